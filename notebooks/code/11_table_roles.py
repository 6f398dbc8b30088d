# %% [parameters]
variants = []

# %%
from IPython.display import Markdown, display
from ace.config import load, root
from ace.report import claims, runs, show, tables
params = load()
results = root() / 'results'
table = tables.write_roles(params, results, variants)
display(Markdown((results / 'tables' / 'ablation_roles.md').read_text(encoding='utf-8')))

# %%
display(Markdown(tables.roles_answer(params, table)))

# %%
judged = claims.evaluate(runs.read(params, results, list(table['variant'].unique())), ids=['C8', 'C9'])
display(Markdown(show.sentences(judged)))
