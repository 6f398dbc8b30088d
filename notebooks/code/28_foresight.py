# %% [parameters]
environments = []

# %%
from IPython.display import Image, Markdown
from ace.config import load, root
from ace.report import foresight
params = load()
results = root() / 'results'
table = foresight.write_foresight(params, results)
Image(results / 'figures' / 'foresight.png')

# %%
shown = table[table['env'].isin(environments or params.grid.environments)]
Markdown(foresight.as_markdown(params, shown))

# %%
Markdown(foresight.sentences(params, table))
