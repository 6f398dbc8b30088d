from functools import partial
import numpy as np
from matplotlib.figure import Figure
from ace.report.style import LINES, MORE_LINES, lines, save, theme
NAMES = {'sac': 'SAC', 'ace': 'ACE', 'random_refine': 'random proposer', 'frequency_refine': 'frequency proposer', 'do nothing': 'do nothing', 'untrained': 'untrained policy'}
NEARLY = 0.9
SURVIVAL = 'Survival on validation, % of the horizon'

def write_figure(table, results, environment):
    with theme():
        figure = Figure(figsize=(13.0, 8.2), layout='constrained')
        panels = figure.subplots(2, 3).ravel()
        draw = [_representation, _credit, _distribution, _mixing, _effective, _hub]
        titles = ['1 Representation: imitation', '2 Credit: critics of short runs', '3 Distribution: one-step regret']
        titles += ['4 Mixing: short runs', '5 Exploration: effective actions', '5 Exploration: mass at the hub']
        for panel, draw_one, title in zip(panels, draw, titles, strict=True):
            draw_one(panel, _of(table, title.split()[1].rstrip(':').lower()))
            panel.set_title(title, fontsize='medium', loc='left')
        figure.suptitle(f'{environment}, training and validation scenarios', fontsize='medium')
        figure.supxlabel('bars: 95 % bootstrap over seeds and states or scenarios', fontsize='small')
        save(figure, results / 'figures', f'diagnosis_{environment}')
    table.to_csv(results / 'figures' / f'diagnosis_{environment}.csv', index=False, float_format='%.6g', lineterminator='\n')

def sentences(table):
    return '\n'.join((f'- **{name}.** {tell(_of(table, name.lower()))}' for name, tell in TELL.items()))

def _of(table, question):
    return table[table['question'] == question]

def _series(rows, name):
    return rows[rows['series'] == name]

def _split(series):
    return series.partition(': ')[2]

def _short_run(name):
    return name.replace('ace, beta ', 'ACE, β = ').replace('sac', 'SAC')

def _line(panel, rows, look, label, shift=0.0, stretch=1.0):
    colour, line, marker = look
    x = stretch * rows['x'].astype(float).to_numpy() + shift
    panel.errorbar(x, rows['value'], yerr=_bars(rows), color=colour, linestyle=line, marker=marker, markersize=5, elinewidth=1.0, label=label)

def _bars(rows):
    ends = [rows['value'] - rows['ci_low'], rows['ci_high'] - rows['value']]
    return np.maximum(np.nan_to_num(np.array(ends, dtype=float)), 0.0)

def _points(panel, rows, places, look, label):
    colour, _, marker = look
    panel.errorbar(places, rows['value'], yerr=_bars(rows), color=colour, linestyle='none', marker=marker, markersize=6, elinewidth=1.2, label=label)

def _representation(panel, rows):
    looks = {'best action': LINES['sac'], 'rated set': LINES['ace']}
    for (kind, look), stretch in zip(looks.items(), (0.97, 1.03), strict=True):
        _line(panel, _series(rows, f'survival: {kind}'), look, f'survival, {kind}', stretch=stretch)
        faint = (look[0], ':', look[2])
        _line(panel, _series(rows, f'accuracy: {kind}'), faint, f'right action, {kind}', stretch=stretch)
    levels = {'do nothing': ('do nothing', LINES['reconnect']), 'look-ahead': ('look-ahead, set', LINES['dc_argmin']), 'look-ahead, all actions': ('look-ahead, all actions', LINES['greedy'])}
    for name, (label, (colour, line, _)) in levels.items():
        value = _series(rows, f'survival: {name}')['value'].iloc[0]
        panel.axhline(value, color=colour, linestyle=line, linewidth=1.5, label=f'survival, {label}')
    panel.set(xscale='log', ylim=(0, 160), xlabel='Labels (log scale)', yticks=range(0, 101, 20))
    panel.set_ylabel('Survival, or right actions, %')
    ticks = sorted(set(_series(rows, 'survival: rated set')['x'].astype(float)))
    panel.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
    panel.set_xticks([], minor=True)
    panel.legend(fontsize='x-small', loc='upper left', ncols=2)

def _credit(panel, rows):
    names = list(dict.fromkeys(rows['x']))
    looks = {'rank correlation': LINES['ace'], 'bias for D_LLM': LINES['sac']}
    labels = ['rank correlation of Q and simulated reward', "overrating of D_LLM's actions, SD of Q"]
    for shift, (series, look), label in zip((-0.1, 0.1), looks.items(), labels, strict=True):
        _points(panel, _series(rows, series), np.arange(len(names)) + shift, look, label)
    panel.axhline(0, color='#555555', linewidth=1)
    panel.set_xticks(range(len(names)), [_short_run(name).replace(', ', ',\n') for name in names])
    panel.set_xlim(-0.5, len(names) - 0.5)
    low, high = (rows['ci_low'].min(), rows[rows['series'].isin(looks)]['ci_high'].max())
    panel.set(ylabel='Correlation; standard deviations of Q', ylim=(min(low, 0) - 0.1, high + 0.35 * (high - low)))
    panel.legend(fontsize='x-small', loc='upper left')

def _distribution(panel, rows):
    visitors = list(dict.fromkeys(rows['x']))
    series = list(dict.fromkeys(rows['series']))
    variants = [_split(s) for s in series]
    looks = lines([v for v in variants if v != 'do nothing']) | {'do nothing': LINES['reconnect']}
    for place, (name, variant) in enumerate(zip(series, variants, strict=True)):
        shift = 0.14 * (place - (len(series) - 1) / 2)
        _points(panel, _series(rows, name), np.arange(len(visitors)) + shift, looks[variant], NAMES[variant])
    panel.set_xticks(range(len(visitors)), [f'states of\n{NAMES[v]}' for v in visitors])
    panel.set(xlim=(-0.5, len(visitors) - 0.5), ylabel='Regret (reward)')
    panel.set_ylim(0, 1.35 * rows['ci_high'].max())
    panel.legend(fontsize='x-small', ncols=2, loc='upper left')

def _mixing(panel, rows):
    survival = _series(rows, 'survival')
    _points(panel, survival, np.arange(len(survival)), LINES['ace'], None)
    labels = ['SAC' if x == 'sac' else f'ACE,\nβ = {float(x):g}' for x in survival['x']]
    panel.set_xticks(range(len(labels)), labels)
    panel.set(xlim=(-0.5, len(labels) - 0.5), ylim=(0, 105), ylabel=SURVIVAL)

def _effective(panel, rows):
    chosen = [s for s in dict.fromkeys(rows['series']) if s.startswith('effective actions: ')]
    for name, look in zip(chosen, lines([_split(s) for s in chosen]).values(), strict=True):
        _line(panel, _series(rows, name), look, NAMES[_split(name)])
    panel.set(yscale='log', xlabel='Decisions of training', ylabel='exp(entropy), actions (log scale)')
    panel.legend(fontsize='x-small')

def _hub(panel, rows):
    chosen = [s for s in dict.fromkeys(rows['series']) if s.startswith('at the hub, short run: ')]
    looks = [LINES['sac'], LINES['ace_no_critic'], LINES['ace'], *MORE_LINES]
    for name, look in zip(chosen, looks, strict=False):
        _line(panel, _series(rows, name), look, _short_run(_split(name)), shift=3 * chosen.index(name))
    panel.set(xlabel='Decisions of a short run', ylabel='Probability of the hub, %')
    panel.set_ylim(bottom=0)
    panel.legend(fontsize='x-small')

def _value(rows, series, x=None):
    found = _series(rows, series)
    return _shown(found.iloc[-1] if x is None else found[found['x'] == str(x)].iloc[0])

def _shown(row):
    size = max(abs(row['value']), abs(row['ci_high']) if np.isfinite(row['ci_high']) else 0.0)
    digits = 1 if size >= 10 else 2
    text = f"{row['value']:.{digits}f}"
    if np.isfinite(row['ci_low']):
        text += f" [{row['ci_low']:.{digits}f}, {row['ci_high']:.{digits}f}]"
    return text

def _tell_representation(rows):
    value = partial(_value, rows)
    nothing, goal = (_series(rows, f'survival: {name}')['value'].iloc[0] for name in ('do nothing', 'look-ahead'))
    curve = _series(rows, 'survival: rated set')
    enough = curve[curve['value'] - nothing >= NEARLY * (goal - nothing)]['x']
    reached = f"with {', '.join(enough)} labels of {', '.join(curve['x'])}" if len(enough) else 'with no number of labels'
    ways = [f"taught the {kind}, its action is within 1 % of the limit of the best in {value(f'fit: {kind}')} % of the states it was taught and in {value(f'accuracy: {kind}')} % of others, its regret is {value(f'regret in rho: {kind}')} of the limit and its survival {value(f'survival: {kind}')} %" for kind in ('best action', 'rated set')]
    return f"Do nothing: regret {value('regret in rho: do nothing')} of the limit, survival {value('survival: do nothing')} %; look-ahead in the set survives {value('survival: look-ahead')} %, over the whole catalogue {value('survival: look-ahead, all actions')} %. The imitating network with {curve['x'].iloc[-1]} labels: {'; '.join(ways)}. The rated set closes {100 * NEARLY:.0f} % of the gap between doing nothing and look-ahead in the set {reached}."

def _tell_credit(rows):
    value, parts = (partial(_value, rows), [])
    for name in dict.fromkeys(rows['x']):
        bias = value('bias for D_LLM', name)
        parts.append(f"{_short_run(name)}: {value('rank correlation', name)}, overrating of D_LLM's actions {bias} SD of Q")
    worst = value('regret of the best-rated', 'sac')
    last = rows['x'].iloc[-1]
    return f"Rank correlation of Q with the simulated reward, over the set, after short runs: {'; '.join(parts)}. The action rated best misses {worst} of reward with SAC's critics and {value('regret of the best-rated', last)} with those of {_short_run(last)}."

def _tell_distribution(rows):
    parts = []
    for visitor in dict.fromkeys(rows['x']):
        regrets = [f'{NAMES[_split(s)]} {_value(rows, s, visitor)}' for s in dict.fromkeys(rows['series'])]
        who = 'the untrained policy' if visitor == 'untrained' else NAMES[visitor]
        parts.append(f"where {who} goes, {', '.join(regrets)}{_apart(rows, visitor)}")
    return f"Regret of one step, in reward (0.1 is about 2 % of the limit): {'; '.join(parts)}."

def _apart(rows, visitor, a='ace', b='sac'):
    here = rows[rows['x'] == visitor].set_index('series')
    if not {f'regret: {a}', f'regret: {b}'} <= set(here.index):
        return ''
    first, second = (here.loc[f'regret: {name}'] for name in (a, b))
    if not first['ci_high'] < second['ci_low'] and (not second['ci_high'] < first['ci_low']):
        return f" ({NAMES[a]}'s and {NAMES[b]}'s intervals overlap)"
    lower, higher = (a, b) if first['value'] < second['value'] else (b, a)
    return f" ({NAMES[lower]}'s is lower than {NAMES[higher]}'s)"

def _tell_mixing(rows):
    survival = _series(rows, 'survival')
    names = ['SAC' if x == 'sac' else f'β = {float(x):g}' for x in survival['x']]
    parts = [f'{name} {_shown(row)} %' for name, (_, row) in zip(names, survival.iterrows(), strict=True)]
    held = [f"{_value(rows, 'rows of D_LLM', x)} rows of gain {_value(rows, 'gain of a row', x)}" for x in survival['x'][1:]]
    told = f"Validation survival after short runs: {', '.join(parts)}."
    return f"{told} D_LLM then holds, by β, {'; '.join(held)}."

def _tell_exploration(rows):
    value, parts = (partial(_value, rows), [])
    for series in dict.fromkeys(rows['series']):
        if series.startswith('effective actions: '):
            variant, curve = (_split(series), _series(rows, series))
            first, last = (curve.iloc[0], curve.iloc[-1])
            nothing, hub = (value(f'do nothing: {variant}'), value(f'at the hub: {variant}'))
            parts.append(f"{NAMES[variant]} spreads over {_shown(first)} actions at {first['x']} decisions and {_shown(last)} at {last['x']}, where it does nothing in {nothing} % of its decisions; of the policy kept after the full training {hub} % of the probability is at the hub")
    return f"{'. '.join((part[0].upper() + part[1:] for part in parts))}."
TELL = {'Representation': _tell_representation, 'Credit': _tell_credit, 'Distribution': _tell_distribution, 'Mixing': _tell_mixing, 'Exploration': _tell_exploration}
