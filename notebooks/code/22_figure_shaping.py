# %% [parameters]
width = 1000

# %%
from IPython.display import Image
from ace.config import load, root
from ace.report import ablation_figures
params = load()
results = root() / 'results'
drawn = ablation_figures.shaping(params, results)

# %%
Image(results / 'figures' / 'shaping.png', width=width)

# %%
means = drawn[drawn['seed'].isna()]
means.pivot_table(index='variant', columns='metric', values='value', sort=False).round(3)
