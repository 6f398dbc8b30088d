# %% [parameters]
environment = 'wcci2020'
output = 'scratch'

# %%
from ace.config import load
from ace.official import play_official
table = play_official(environment, load().official_score.episodes, output)

# %%
played = table.assign(survival=100 * table['survival']).groupby('variant', sort=False)
played[['score', 'survival']].mean().round(1)
