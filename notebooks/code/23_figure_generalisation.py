# %% [parameters]
width = 640

# %%
from IPython.display import Image, Markdown, display
from ace.config import load, root
from ace.report import ablation_figures, claims, runs, show
params = load()
results = root() / 'results'
drawn = ablation_figures.generalisation(params, results)

# %%
Image(results / 'figures' / 'generalisation.png', width=width)

# %%
display(Markdown(ablation_figures.generalisation_told(params, results)))
judged = claims.evaluate(runs.read(params, results), ids=['C14'])
display(Markdown(show.sentences(judged)))
