# %% [parameters]
width = 1000

# %%
from IPython.display import Image, Markdown, display
from ace.config import load, root
from ace.report import ablation_figures
params = load()
results = root() / 'results'
drawn = ablation_figures.shaping(params, results)

# %%
Image(results / 'figures' / 'shaping.png', width=width)

# %%
display(Markdown(ablation_figures.shaping_told(params, results, drawn)))
ablation_figures.shaping_table(drawn)
