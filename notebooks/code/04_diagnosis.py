# %% [parameters]
environment = 'wcci2020'
labels = [50, 100, 200, 400, 800]
steps = 400
decisions = 600
states = 150
seeds = 2
output = 'scratch'

# %%
from IPython.display import Image, Markdown
from ace.config import root
from ace.diagnosis import diagnose
from ace.report.diagnosis import sentences, write_figure
table = diagnose(environment, labels, steps, decisions, states, seeds, output)

# %%
results = root() / output
write_figure(table, results, environment)
Image(results / 'figures' / f'diagnosis_{environment}.png')

# %%
Markdown(sentences(table))
