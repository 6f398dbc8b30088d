# %% [parameters]
environment = 'wcci2020'
output = 'scratch'
variant = ''

# %%
import json
import warnings
import matplotlib.pyplot as plt
import pandas as pd
from ace.config import load, root
from ace.grid.environment import World
from ace.grid.whatif import WhatIf
from ace.llm import corpus, samples, training
from ace.llm.text import TextMap
from ace.report.style import theme
warnings.filterwarnings('ignore', module='grid2op')
params = load().with_model(variant)
place = f'language_models/{variant}' if variant else 'language_model'
folder = root() / output / place / environment
made = corpus.build(params, environment, progress=True)
world = World(params.environment(environment), params.scenarios, params.base.operator)
textmap = TextMap(world)
sizes = {'states': len(made.visits), 'actions in the set': len(made.actions), **made.budget}
pd.Series(sizes, name=environment).to_frame()

# %%
writer = samples.Writer(textmap, made)
prompt, reply = writer.draw(200, seed=0)[0]
print('State', prompt.partition('\nState')[2], '\n-----\n', reply, sep='')

# %%
curve = training.train(params, made, textmap, folder, progress=True)
curve.iloc[[0, -1]]

# %%
rates, records = training.measure(params, environment, made, world, WhatIf(world), textmap, folder)
proposals = rates[~rates['metric'].str.startswith('critic') & ~rates['proposer'].str.contains('lora')]
proposals.pivot_table(index='proposer', columns='metric', values='value')

# %%
curve, rates = (pd.read_csv(folder / name) for name in ('training_curve.csv', 'rates.csv'))
with theme():
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout='constrained')
    left.plot(curve['step'], curve['loss'], '-o', color='#0072b2', markersize=3, label='training')
    left.plot(curve['step'], curve['loss_heldout'], '--', color='#d55e00', label='other tries')
    left.set(xlabel='step', ylabel='loss / nats per word', ylim=(0, None))
    left.legend()
    looks = {'model': ('#0072b2', 'o'), 'frequency': ('#009e73', 's'), 'random_same_substation': ('#d55e00', '^'), 'random': ('#5a5a5a', 'v')}
    value = rates.set_index(['proposer', 'metric'])
    for i, (proposer, (colour, marker)) in enumerate(looks.items()):
        rows = value.loc[[(proposer, 'one_proposal'), (proposer, 'five_rounds')]]
        bars = [rows['value'] - rows['ci_low'], rows['ci_high'] - rows['value']]
        places = [0.12 * (i - 1.5), 1 + 0.12 * (i - 1.5)]
        right.errorbar(places, rows['value'], bars, color=colour, ls='', marker=marker, capsize=3, label=proposer.replace('_', ' '))
    right.set(xticks=[0, 1], xticklabels=['one proposal', 'five rounds'], ylim=(0, 1), ylabel='states improved (share)')
    right.set_title(f"{environment}, n = {rates['n_states'].iloc[0]} states", fontsize=9)
    right.legend(fontsize=8)
    plt.show()

# %%
last = records[-1]
print('State', last['prompt'].partition('\nState')[2], '\n-----\n', last['reply'], '\n-----\nverdict: ', last['verdict'], sep='')

# %%
signs = rates[rates['metric'].str.startswith('critic_sign_')]
signs.pivot_table(index='metric', columns='proposer', values='value')

# %%
print('out of service:', json.loads((folder / 'card.json').read_text())['shift']['line_out'])
rates[rates['proposer'].str.contains('lora')].set_index(['proposer', 'metric']).drop(columns='grid')

# %%
wrong = [r for r in records if (r['verdict'] or '').partition(',')[0] in ('blackout', 'illegal', 'repeated', 'unparsable')]
print(f'{len(wrong)} of {len(records)} replies are unusable or end in a blackout; the commonest of them:')
pd.Series([r['parse'] for r in wrong], dtype=object).value_counts().head(3).rename('replies').to_frame()

# %%
for proposer in ('model', 'random_same_substation', 'frequency'):
    share, low, high = value.loc[(proposer, 'one_proposal'), ['value', 'ci_low', 'ci_high']]
    print(f'{proposer}: one proposal improves {share:.2f} [{low:.2f}, {high:.2f}] of the states')
low = value.loc[('model', 'one_proposal'), 'ci_low']
high = value.loc[('random_same_substation', 'one_proposal'), 'ci_high']
print('intervals of the model and of chance at the same substations', 'do not overlap' if low > high else 'overlap')
