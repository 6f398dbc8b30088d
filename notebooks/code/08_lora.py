# %% [parameters]
environment = 'wcci2020'
output = 'scratch'

# %%
from ace.config import load
from ace.lora import try_settings
table = try_settings(environment, output)
table.drop(columns=['grid', 'proposer', 'metric']).set_index('setting').round(3)

# %%
import pandas as pd
params = load()
resolved = {name: params.lora_settings(name).model_dump() for name in table['setting']}
pd.DataFrame(resolved).T[['every', 'samples', 'epochs', 'rank', 'lr']]
