# %% [parameters]
variants = []

# %%
from IPython.display import Image, Markdown, display
from ace.config import load, root
from ace.report import claims, figures, runs, show, tables
params = load()
results = root() / 'results'
table, pairs = tables.write_main(params, results, variants)
drawn = figures.comparison(params, table, results)
display(Markdown((results / 'tables' / 'main.md').read_text(encoding='utf-8')))

# %%
Image(results / 'figures' / 'main.png', width=900)

# %%
judged = claims.evaluate(runs.read(params, results, list(table['variant'].unique())), ids=['C2'])
display(Markdown(show.sentences(judged)))
display(Markdown(tables.evidence(judged)))
others = ['sac', 'sac_5k', 'expert_sac', 'frequency_refine', 'random_refine', 'ace_no_critic', 'ace_lean', 'ace_elsewhere']
display(Markdown(tables.leads(params, pairs, others)))
