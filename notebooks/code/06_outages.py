# %% [parameters]
environment = 'wcci2020'
output = 'scratch'

# %%
from ace.config import load
from ace.outages import play_outages
sizes = load().outages
table = play_outages(environment, sizes.lines, sizes.episodes, output)

# %%
(100 * table.pivot_table(index='variant', columns='line', values='survival', sort=False)).round(1)
