# %% [parameters]
variants = []

# %%
from IPython.display import Markdown, display
from ace.config import load, root
from ace.report import claims, cost, runs, show
params = load()
results = root() / 'results'
table = cost.write_cost(params, results, variants)
display(Markdown((results / 'tables' / 'cost.md').read_text(encoding='utf-8')))

# %%
display(Markdown(cost.latency(table)))
everything = runs.read(params, results)
display(Markdown(cost.share_of_the_agent(everything)))

# %%
judged = claims.evaluate(everything, ids=['C5', 'C6', 'C7'])
Markdown(show.sentences(judged))
