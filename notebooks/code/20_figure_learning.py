# %% [parameters]
metric = 'survival'
variants = []

# %%
from IPython.display import Image, Markdown, display
from ace.config import load, root
from ace.report import claims, figures, runs, show
params = load()
results = root() / 'results'
drawn = figures.learning_curves(params, results, metric, variants)
name = 'learning_curves' if metric == 'survival' else f'learning_curves_{metric}'

# %%
Image(results / 'figures' / f'{name}.png', width=900)

# %%
judged = claims.evaluate(runs.read(params, results, variants), ids=['C3'])
display(Markdown(show.sentences(judged)))
figures.last_and_best(drawn)
