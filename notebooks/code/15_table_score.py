# %% [parameters]
ours = 'ace'

# %%
from IPython.display import Markdown, display
from ace.config import load, root
from ace.report import official
params = load()
results = root() / 'results'
table = official.write_scores(params, results)
display(Markdown((results / 'tables' / 'official_score.md').read_text(encoding='utf-8')))

# %%
Markdown(f'{official.scored(params)}\n\n{official.sentences(table, ours)}')
