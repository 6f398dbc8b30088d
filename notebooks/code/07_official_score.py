# %% [parameters]
environment = 'wcci2020'
episodes = 30
output = 'scratch'

# %%
from ace.official import play_official
table = play_official(environment, episodes, output)

# %%
played = table.assign(survival=100 * table['survival']).groupby('variant', sort=False)
played[['score', 'survival']].mean().round(1)
