# %% [parameters]
width = 640

# %%
from IPython.display import Image, Markdown, display
from ace.config import load, root
from ace.report import ablation_figures
params = load()
results = root() / 'results'
drawn = ablation_figures.reasoning(params, results)

# %%
Image(results / 'figures' / 'reasoning.png', width=width)

# %%
table, told = ablation_figures.reasoning_told(params, results)
display(Markdown(told))
table.round(1)
