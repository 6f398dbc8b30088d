from pathlib import Path
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter
from ace.report import stats
from ace.report.labels import label
from ace.report.runs import EPISODE_METRICS, ReportError, read, titled
from ace.report.style import lines, save, theme
from ace.report.tables import main_methods
from ace.report.typeset import write_csv
CURVES = {'survival': ('Survival, % of the horizon', 100.0, 'survival'), 'reward_mean': ('Reward a step (validation)', 1.0, None), 'entropy': ('Policy entropy, nats', 1.0, None), 'q_std': ('Standard deviation of Q', 1.0, None), 'refined': ('Refined samples so far', 1.0, None)}
MUCH_LONGER = 2

def learning_data(runs, metric='survival'):
    _, factor, test_metric = CURVES[metric]
    rows = []
    for env in runs.environments:
        for variant in runs.variants:
            trained = [run.training for run in runs.of(env, variant) if run.training is not None]
            if trained and len(trained) < len(runs.of(env, variant)):
                raise ReportError(f'not every seed of {env}/{variant} has a training.csv: run `dvc repro train@{env}-{variant}`')
            if trained:
                decisions, values = _on_common_decisions(trained, metric)
                for x, column in zip(decisions, factor * values.T, strict=True):
                    found = [column.mean(), column.min(), column.max()]
                    rows.append([env, variant, 'validation', int(x), *found, len(column), 0])
            elif test_metric:
                scores = runs.scores(env, variant, test_metric)
                value, low, high = stats.estimate([[scores]], lambda means: means[..., 0])
                rows.append([env, variant, 'test', None, value, low, high, *scores.shape])
    columns = ['env', 'variant', 'kind', 'decisions', 'value', 'low', 'high', 'n_seeds', 'n_episodes']
    return pd.DataFrame(rows, columns=columns).astype({'decisions': 'Int64'})

def learning_curves(params, results, metric='survival', variants=None):
    if metric not in CURVES:
        raise ReportError(f"metric {metric} can't be drawn; there are {', '.join(CURVES)}")
    data = learning_data(read(params, results, variants or main_methods(params)), metric)
    name, folder = (file_name(metric), Path(results) / 'figures')
    with theme():
        figure = _draw_curves(params, data, CURVES[metric][0])
        save(figure, folder, name)
    write_csv(data, folder / f'{name}.csv')
    return data

def comparison(params, table, results, metric='survival'):
    data = table.loc[table['metric'] == metric]
    folder = Path(results) / 'figures'
    with theme():
        save(_draw_comparison(params, data, metric), folder, 'main')
    columns = ['env', 'variant', 'metric', 'mean', 'iqm', 'ci_low', 'ci_high', 'n_seeds', 'n_episodes', 'scale']
    write_csv(data[columns], folder / 'main.csv')
    return data[columns]

def file_name(metric):
    return 'learning_curves' if metric == 'survival' else f'learning_curves_{metric}'

def last_and_best(data, metric='survival'):
    rows = []
    for (env, variant), curve in data[data['kind'] == 'validation'].groupby(['env', 'variant'], sort=False):
        last, best = (curve.iloc[-1], curve.loc[curve['value'].idxmax()])
        rows.append([env, label(variant), last['value'], best['value'], best['decisions'], last['n_seeds']])
    unit = 'survival, %' if metric == 'survival' else CURVES[metric][0]
    columns = ['grid', 'method', f'last {unit}', f'best {unit}', 'decisions at the best', 'seeds']
    return pd.DataFrame(rows, columns=columns).round(1 if metric == 'survival' else 3)

def ends_told(params, data, metric='survival', ours='ace', other='sac'):
    lines = []
    for env, here in data[data['kind'] == 'validation'].groupby('env', sort=False):
        curves = dict(list(here.groupby('variant', sort=False)))
        last = {variant: curve.iloc[-1] for variant, curve in curves.items()}
        parts = [f'{label(name)} goes {_way(curves[name])}' for name in (ours, other) if name in curves]
        if len(parts) == 2:
            parts.append(f'at the end {label(ours)} is {_compared(last[ours], last[other], label(other))}')
        shortest = min((row['decisions'] for row in last.values()))
        last = {variant: row for variant, row in last.items() if row['decisions'] <= MUCH_LONGER * shortest}
        best = max(last, key=lambda variant: last[variant]['value'])
        parts.append(f"the highest mean at the end is {label(best)}'s, {_with_seeds(last[best])}")
        if len(last) > 2:
            near = sum((row['high'] >= last[best]['low'] for variant, row in last.items() if variant != best))
            parts.append(f"the seeds of {near or 'none'} of the {len(last) - 1} others reach into their range")
        lines.append(f"- **{titled(params, env)}**, {CURVES[metric][0]}: {'; '.join(parts)}.")
    return '\n'.join(lines)

def _compared(a, b, name):
    if a['value'] <= b['value']:
        return f'not above {name}'
    apart = a['low'] > b['high']
    seeds = f'even its lowest seed above the highest of {name}' if apart else 'but the ranges of their seeds overlap'
    return f'above {name}, {seeds}'

def _way(curve):
    first = curve.iloc[0]
    return f"from {first['value']:.3g} at {first['decisions']} decisions to {_with_seeds(curve.iloc[-1])}"

def _with_seeds(row):
    return f"{row['value']:.3g} (seeds {row['low']:.3g} to {row['high']:.3g})"

def _marked(decisions):
    steps = np.diff(decisions)
    return np.flatnonzero(np.append(steps > 0.5 * steps.max(initial=0.0), True))

def _on_common_decisions(trained, metric):
    curves = []
    for training in trained:
        if 'split' in training:
            training = training[training['split'] == 'validation']
        curve = training[['decisions', metric]].dropna().drop_duplicates('decisions', keep='last')
        curves.append(curve.sort_values('decisions').to_numpy(float))
    if not all((len(curve) for curve in curves)):
        raise ReportError(f'a training.csv has no {metric} in any validation row')
    first, last = (max((curve[0, 0] for curve in curves)), min((curve[-1, 0] for curve in curves)))
    decisions = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    decisions = decisions[(decisions >= first) & (decisions <= last)]
    return (decisions, np.stack([np.interp(decisions, *curve.T) for curve in curves]))

def _draw_curves(params, data, y_label):
    environments = list(dict.fromkeys(data['env']))
    columns, rows = (min(2, len(environments)), -(-len(environments) // 2))
    look = lines(list(dict.fromkeys(data['variant'])))
    figure = Figure(figsize=(2.2 + 5.4 * columns, 0.7 + 4.2 * rows), layout='constrained')
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    panels, spare = (grid.flat[:len(environments)], grid.flat[len(environments):])
    for panel, env in zip(panels, environments, strict=True):
        here = data[data['env'] == env]
        seeds = sorted(set(here.loc[here['kind'] == 'validation', 'n_seeds']))
        for variant, curve in here[here['kind'] == 'validation'].groupby('variant', sort=False):
            colour, line, marker = look[variant]
            x = curve['decisions'].to_numpy(float)
            panel.fill_between(x, curve['low'], curve['high'], color=colour, alpha=0.1, linewidth=0)
            look_here = {'color': colour, 'linestyle': line, 'marker': marker, 'markersize': 4}
            panel.plot(x, curve['value'], label=label(variant), markevery=_marked(x).tolist(), **look_here)
        _draw_references(panel, here[here['kind'] == 'test'], look)
        shown = f"n = {', '.join(map(str, seeds))} seeds, band: lowest to highest seed"
        panel.set_title(f'{titled(params, env)} ({params.scale})\n{shown}', fontsize='medium')
        panel.set_xlabel('Decisions in training' + _scaled(panel, here))
    for panel in grid[:, 0]:
        panel.set_ylabel(y_label)
    handles = {}
    for panel in panels:
        handles |= {text: handle for handle, text in zip(*panel.get_legend_handles_labels(), strict=True)}
    title = 'Curves: on validation scenarios'
    if len(data[data['kind'] == 'test']):
        title += '\nLevel lines: on test scenarios, not to be compared with the curves'
    look = {'title': title, 'fontsize': 'small'}
    if len(spare):
        spare[0].axis('off')
        spare[0].legend(handles.values(), handles.keys(), loc='center', ncols=2, **look)
    else:
        figure.legend(handles.values(), handles.keys(), loc='outside lower center', ncols=3 * columns, **look)
    return figure

def _scaled(panel, here):
    ends = here[here['kind'] == 'validation'].groupby('variant')['decisions'].max()
    if ends.empty or ends.max() <= MUCH_LONGER * ends.min():
        return ''
    panel.set_xscale('log')
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(StrMethodFormatter('{x:,.0f}'))
    panel.xaxis.set_minor_locator(NullLocator())
    return ' (log scale)'

def _draw_references(panel, tests, look):
    if tests.empty:
        return
    panel.set_ylim(0, 103)
    tests = tests.sort_values('value')
    for (_, row), height in zip(tests.iterrows(), _spread(tests['value'].to_numpy(float), 9.0, 98.0), strict=True):
        colour, line, _ = look[row['variant']]
        panel.axhline(row['value'], color=colour, linestyle=line, linewidth=1.1)
        text = f"{label(row['variant'])}\n(test, {row['n_episodes']} ep.)"
        place = {'xycoords': panel.get_yaxis_transform(), 'va': 'center'}
        panel.annotate(text, (1.01, height), color=colour, fontsize='x-small', **place)

def _spread(heights, gap, top):
    moved = list(heights)
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + gap)
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], top if i == len(moved) - 1 else moved[i + 1] - gap)
    return moved

def _draw_comparison(params, data, metric):
    environments = list(dict.fromkeys(data['env']))
    variants = list(dict.fromkeys(data['variant']))
    look = lines(variants)
    figure = Figure(figsize=(1.6 + 3.3 * len(environments), 1.3 + 0.36 * len(variants)), layout='constrained')
    panels = figure.subplots(1, len(environments), squeeze=False, sharey=True)[0]
    for panel, env in zip(panels, environments, strict=True):
        here = data[data['env'] == env].set_index('variant')
        for y, variant in enumerate(variants):
            row, (colour, _, marker) = (here.loc[variant], look[variant])
            panel.plot([row['ci_low'], row['ci_high']], [y, y], color=colour, linewidth=2)
            panel.plot(row['iqm'], y, color=colour, marker=marker, markersize=7)
            panel.plot(row['mean'], y, color=colour, marker='|', markersize=11)
            panel.annotate(f"{row['n_seeds']} x {row['n_episodes']}", (1.01, y), xycoords=panel.get_yaxis_transform(), va='center', fontsize='x-small')
        panel.set_title(f'{titled(params, env)}\n({params.scale})', fontsize='medium')
        panel.set_xlabel(_unit(metric))
        if metric == 'survival':
            panel.set_xlim(-2, 102)
    key = 'marker and bar: IQM, 95 % interval\ntick: mean; right: seeds x episodes'
    figure.supxlabel(key, fontsize='small')
    panels[0].set_yticks(range(len(variants)), [label(variant) for variant in variants])
    panels[0].set_ylim(len(variants) - 0.5, -0.5)
    return figure

def _unit(metric):
    names = {'survival': 'Survival in the test, % of the horizon', 'reward': 'Reward, sum over a test episode'}
    return names.get(metric, EPISODE_METRICS[metric][0].replace('_', ' '))
