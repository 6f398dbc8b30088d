# %% [parameters]
environments = []

# %%
from IPython.display import Image, Markdown
from ace.config import load, root
from ace.report import proposers
params = load()
results = root() / 'results'
table = proposers.write_proposers(params, results)
Image(results / 'figures' / 'proposers.png')

# %%
shown = table[table['grid'].isin(environments or params.grid.environments)]
Markdown(proposers.as_markdown(params, shown))

# %%
Markdown(proposers.sentences(params, table))
