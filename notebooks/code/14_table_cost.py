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
ours = table[table['kind'] == 'measured'].set_index(['env', 'variant'])
share = ours[['decision_ms', 'test_s', 'test_steps', 'test_ms_per_step']].astype(float)
latency = share['decision_ms']
share['times that of ace'] = [ms / latency.get((env, 'ace'), float('nan')) for (env, _), ms in latency.items()]
share.sort_values('decision_ms').round(3)

# %%
judged = claims.evaluate(runs.read(params, results), ids=['C5', 'C6', 'C7'])
Markdown(show.sentences(judged))
