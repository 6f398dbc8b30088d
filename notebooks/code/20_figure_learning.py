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

# %%
Image(results / 'figures' / f'{figures.file_name(metric)}.png', width=900)

# %%
display(Markdown(figures.ends_told(params, drawn, metric)))
display(Markdown(show.sentences(claims.evaluate(runs.read(params, results), ids=['C3']))))
figures.last_and_best(drawn, metric)
