# %% [parameters]
folded_rows = 40

# %%
from IPython.display import Markdown, display
from ace.config import load, root
from ace.report import page, typeset
workspace = root()
made = page.write(load(), workspace, folded_rows)
size = (workspace / 'results/report.html').stat().st_size
print(f'results/report.html: {len(made)} items, {size / 1000000.0:.1f} MB')

# %%
shown = made[['item', 'file', 'stage', 'notebook', 'runs']].astype(object).map(typeset.number)
display(Markdown(typeset.markdown(list(shown.columns), shown.to_numpy().tolist())))
