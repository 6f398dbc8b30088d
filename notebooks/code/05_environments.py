# %% [parameters]
width = 950

# %%
from IPython.display import Image, Markdown, display
from ace.config import load, root
from ace.report import environments
params = load()
results = root() / 'results'
table = environments.write_environments(params, results)
display(Markdown((results / 'tables' / 'environments.md').read_text(encoding='utf-8')))

# %%
Image(results / 'figures' / 'environments.png', width=width)

# %%
table[['env', 'actions', 'hub', 'hub_share', 'survival_do_nothing', 'survival_reconnect', 'survival_greedy']]
