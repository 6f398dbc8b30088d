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
display(Markdown(ablations.answer(table, metric)))
display(Markdown(ablations.largest(table, metric)))

# %%
judged = claims.evaluate(runs.read(params, results), ids=['C3', 'C10', 'C11', 'C12', 'C13'])
display(Markdown(show.sentences(judged)))
