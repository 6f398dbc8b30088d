# %% [parameters]
environment = 'wcci2020'
output = 'scratch'

# %%
import warnings
from ace.proposers import measure
warnings.filterwarnings('ignore', module='grid2op')
table, rates = measure(environment, output)
table.drop(columns='grid').round(1)

# %%
rates.pivot_table(index='proposer', columns='metric', values='value', sort=False)
