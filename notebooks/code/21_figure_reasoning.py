# %% [parameters]
width = 640

# %%
from IPython.display import Image
from ace.config import load, root
from ace.report import ablation_figures, ablations
params = load()
results = root() / 'results'
drawn = ablation_figures.reasoning(params, results)

# %%
Image(results / 'figures' / 'reasoning.png', width=width)

# %%
table = ablations.differences(params, results, ablation_figures.REASONING)
table.round(2)
