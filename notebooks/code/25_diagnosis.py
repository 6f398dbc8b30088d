# %% [parameters]
environment = 'wcci2020'

# %%
import pandas as pd
from IPython.display import Image, Markdown
from ace.config import root
from ace.report.diagnosis import sentences, write_figure
results = root() / 'results'
table = pd.read_csv(results / 'diagnosis' / f'{environment}.csv', dtype={'x': str})
write_figure(table, results, environment)
Image(results / 'figures' / f'diagnosis_{environment}.png')

# %%
Markdown(sentences(table))
