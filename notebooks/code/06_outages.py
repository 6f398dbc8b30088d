# %% [parameters]
environment = 'wcci2020'
outages = 3
episodes = 15
output = 'scratch'

# %%
from ace.outages import play_outages
table = play_outages(environment, outages, episodes, output)

# %%
(100 * table.pivot_table(index='variant', columns='line', values='survival', sort=False)).round(1)
