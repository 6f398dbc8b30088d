# %% [parameters]
by_line = False

# %%
from IPython.display import Markdown, display
from ace.config import load, root
from ace.report import outages
params = load()
results = root() / 'results'
table = outages.write_outages(params, results)
shown = table if by_line else table[table['outage'] == outages.ALL]
display(Markdown(outages.as_markdown(params, shown)))

# %%
Markdown(outages.sentences(params, table))
