# %% [parameters]
environment = 'wcci2020'
output = 'scratch'

# %%
from ace.config import load
from ace.foresight import play_foresight
sizes = load().foresight
table = play_foresight(environment, sizes.most, sizes.episodes, output)

# %%
shown = 100 * table.pivot_table(index='variant', columns=['split', 'most'], values='survival', sort=False)
shown.round(1).sort_index(axis=1, ascending=[False, True])
