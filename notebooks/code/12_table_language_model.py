# %% [parameters]
metric = 'one_proposal'

# %%
from ace.config import load, root
from ace.report import language
params = load()
results = root() / 'results'
table = language.write_language_model(params, results)
print(f'{len(table)} rows in results/tables/language_model.csv')

# %%
import pandas as pd
written = pd.read_csv(results / 'tables' / 'language_model.csv')
written[written['metric'] == metric].set_index(['grid', 'proposer']).drop(columns='metric').round(3)

# %%
signs = written[written['metric'].str.startswith('critic_sign')]
signs.pivot_table(index=['grid', 'metric'], columns='proposer', values='value').round(3)

# %%
written[written['metric'].isin(['lora_gain', 'alone_minus_do_nothing'])].round(3)
