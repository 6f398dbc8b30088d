# %% [parameters]
metric = 'survival'

# %%
from IPython.display import Markdown, display
from ace.config import load, root
from ace.report import ablations, claims, runs, show
params = load()
results = root() / 'results'
table = ablations.write_ablations(params, results)
print(ablations.summary(table))
display(Markdown((results / 'tables' / 'ablations.md').read_text(encoding='utf-8')))

# %%
import pandas as pd
written = pd.read_csv(results / 'tables' / 'ablations.csv')
columns = ['group', 'variant', 'reference', 'difference', 'difference_low', 'difference_high', 'n_common_seeds']
compared = written.loc[(written['metric'] == metric) & written['difference'].notna(), columns]
compared.sort_values('difference', key=abs, ascending=False).round(2)

# %%
judged = claims.evaluate(runs.read(params, results), ids=['C10', 'C11', 'C12', 'C13'])
display(Markdown(show.sentences(judged)))
