# %% [parameters]
environment = 'wcci2020'
variant = 'sac'
seeds = [0]
output = 'scratch'

# %%
import json
import matplotlib.pyplot as plt
import pandas as pd
from ace.config import load
from ace.experiment import run_cell
from ace.report.style import theme
settings = load().settings(variant)
folders = run_cell(environment, variant, seeds or None, output)
[folder.name for folder in folders]

# %%
curves = {f.name: pd.read_csv(f / 'training.csv') for f in folders if (f / 'training.csv').exists()}
if curves:
    panels = {'survival': 'survival on validation', 'entropy': 'entropy (nats)', 'q_mean': 'mean Q', 'refined': 'refined samples'}
    with theme():
        figure, axes = plt.subplots(1, len(panels), figsize=(13, 2.8), layout='constrained')
        for axis, (column, title) in zip(axes, panels.items(), strict=True):
            for name, curve in curves.items():
                axis.plot(curve['decisions'], curve[column], marker='o', markersize=3, label=name)
            axis.set(title=title, xlabel='decisions')
        axes[0].legend()
        plt.show()
else:
    print(f'{variant} does not learn')

# %%
import re
from IPython.display import Markdown, display
from ace.llm.clients import read_transcript

def gain(record):
    told = re.search('reward (\\S+), original (\\S+)', record['verdict'] or '')
    return float(told[1]) - float(told[2]) if told else 0.0
transcript = folders[0] / 'transcript.jsonl.gz'
records = read_transcript(transcript)[1:] if transcript.exists() else []
improved = [r for r in records if r['role'] == 'actor' and gain(r) > settings.refine.margin]
if improved:
    display(Markdown('\n'.join((f'```text\n{improved[-1][part]}\n```' for part in ('prompt', 'reply', 'verdict')))))
print(f'{len(records)} calls of the language model')

# %%
rows = []
for folder in folders:
    episodes, manifest = (pd.read_csv(folder / 'episodes.csv'), json.loads((folder / 'manifest.json').read_text()))
    spent = pd.DataFrame(manifest['budget']).T.sum()
    rows.append({'seed': folder.name, 'survival %': 100 * episodes['survival'].mean(), 'episodes': len(episodes), 'refinements': manifest.get('refinements', 0), **spent.to_dict()})
pd.DataFrame(rows).round(1)
