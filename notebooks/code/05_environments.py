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
Markdown(environments.sentences(table))
