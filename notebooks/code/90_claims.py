# %% [parameters]
details = False

# %%
from IPython.display import Markdown, display
from ace.config import load, root
from ace.report import claims, show
params = load()
results = root() / 'results'
table = claims.write(params, results)
print(show.summary_line(table))

# %%
display(Markdown(show.readme_table(claims.read_written(results))))

# %%
display(Markdown(show.full_markdown(table) if details else show.sentences(table)))
