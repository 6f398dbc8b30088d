# %% [parameters]
environment = 'wcci2020'

# %%
import json
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from ace.config import load, root
from ace.grid.card import environment_card
from ace.grid.environment import World
from ace.report.style import theme
params = load()
world = World(params.environment(environment), params.scenarios, params.base.operator)
card = environment_card(world)
path = root() / 'results' / 'scenarios' / f'{environment}.json'
path.parent.mkdir(parents=True, exist_ok=True)
path.write_text(json.dumps(card, indent=1) + '\n')
by_sub = np.array(card['actions_by_substation'])
largest, share = (int(by_sub.argmax()), f"{100 * card['hub_share']:.1f} %")
names = {'grid2op': 'name in Grid2Op', 'substations': 'substations', 'lines': 'lines', 'loads': 'loads', 'generators': 'generators', 'actions': 'actions, doing nothing not counted', 'hub': 'largest substation, by actions', 'hub_share': 'its share of the actions', 'thermal_factor': 'factor on all thermal limits', 'horizon': 'steps of 5 minutes an episode', 'opponent': 'an opponent cuts lines', 'source_days': 'days packaged'}
shown = card | {'hub': largest, 'hub_share': share, 'opponent': 'yes' if card['opponent'] else 'no'}
pd.Series({text: shown[name] for name, text in names.items()}, name=environment).to_frame()

# %%
print(f"{share} of {card['actions']:,} actions belong to substation {largest}")
with theme():
    figure, axis = plt.subplots(figsize=(8, 2.6), layout='constrained')
    axis.bar(np.arange(len(by_sub)), np.maximum(by_sub, 0.5), color='0.35')
    axis.set(yscale='log', xlabel='substation', ylabel='actions', title=f"{environment}: {card['actions']:,} actions")
    plt.show()

# %%
from grid2op.PlotGrid import PlotMatplot
step = world.reset('train', 0)
print(f'step {step.state.t}: fullest line at {100 * step.state.rho_max:.0f} % of its limit')
plot = PlotMatplot(world.env.observation_space, load_name=False, gen_name=False, line_name=False)
plot.plot_obs(world.env.get_obs(), line_info='rho', load_info=None, gen_info=None)
plt.show()

# %%
with theme():
    figure, axes = plt.subplots(1, 3, figsize=(11, 2.8), sharey=True, layout='constrained')
    for axis, (split, scenarios) in zip(axes, world.sets.items(), strict=True):
        for index in range(min(5, len(scenarios))):
            axis.plot(scenarios[index].load_p.sum(axis=1), linewidth=0.8)
        days = card['splits'][split]['source_days']
        axis.set(title=f'{split}: {len(scenarios)} scenarios of days {days}', xlabel='step of 5 minutes')
    axes[0].set_ylabel('total load (MW)')
    plt.show()

# %%
splits = {split: {'scenarios': about['scenarios'], 'source days': ', '.join(map(str, about['source_days'])), **{f'total load, MW: {what}': about['load_mw'][what] for what in ('mean', 'min', 'max')}, 'hash': about['hash']} for split, about in card['splits'].items()}
pd.DataFrame(splits).T
