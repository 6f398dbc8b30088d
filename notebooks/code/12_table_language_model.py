# %% [parameters]
metric = 'one_proposal'

# %%
from IPython.display import Markdown, display
from ace.config import load, root
from ace.report import language
params = load()
results = root() / 'results'
table = language.write_language_model(params, results)
print(f'{len(table)} rows in results/tables/language_model.csv')
display(Markdown(language.NOTE))

# %%
display(Markdown(language.proposals(params, table, metric)))

# %%
display(Markdown(language.signs(params, table)))

# %%
display(Markdown(language.shift(params, table)))

# %%
display(Markdown(language.settings_tried(params, table)))

# %%
display(Markdown(language.answers(params, table)))
