from functools import partial
from pathlib import Path
from textwrap import fill
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation
from ace.report import answers, stats
from ace.report.ablations import NOT_RUN, available, pair, value_at
from ace.report.labels import label
from ace.report.questions import JUDGED
from ace.report.runs import ReportError
from ace.report.stats import Estimate
from ace.report.style import LINES, MORE_LINES, save, theme
from ace.report.typeset import write_csv
REASONING = ['ace_no_bad_case', 'ace_rounds_1', 'ace_rounds_3', 'ace']
NO_CRITIC = 'ace_no_critic'
SHAPING = ['ace_K01', 'ace_K02', 'ace', 'ace_K08', *(f'ace_random_K{k}' for k in ('01', '02', '04', '08')), NO_CRITIC]
HALVED = [('ace_query_high', 'ace_half_query_high'), ('ace_query_low', 'ace_half_query_low'), ('sac', 'ace_half_sac')]
GENERALISATION = ['ace_query_high', 'ace_query_low', 'sac', 'ace_half_query_high', 'ace_half_query_low', 'ace_half_sac']
SURVIVAL = 'Survival in the test, % of the horizon'
REACHED = 0.9
LATE = 2 / 3
JUDGES = {'llm': 'g_LLM', 'random': 'random control'}
MEASURES = {'q_std': ('Standard deviation of Q', 3), 'decisions_to_converge': ('Decisions to converge', 0), 'survival': ('Survival in the test, %', 1)}
COLUMNS = ['env', 'variant', 'metric', 'seed', 'value', 'low', 'high', 'n_seeds', 'n_episodes']

def late_q_std(training):
    late = training['decisions'] > LATE * training['decisions'].max()
    return float(training.loc[late, 'q_std'].mean())

def decisions_to_converge(training):
    reached = training['survival'] >= REACHED * training['survival'].max() - 1e-09
    return float(training.loc[reached, 'decisions'].iloc[0])
TRAINING_METRICS = {'q_std': late_q_std, 'decisions_to_converge': decisions_to_converge}

def points(runs, env, variants, metrics=('survival',), **settings):
    seeds = runs.seeds_of_all(env, variants) if variants else []
    rows = []
    for variant in variants:
        of_seeds = [run for run in runs.of(env, variant) if run.seed in seeds]
        said = [_in_force(of_seeds[0].manifest['settings'], key) for key in settings.values()]
        for metric in metrics:
            if metric in TRAINING_METRICS:
                if any((run.training is None for run in of_seeds)):
                    raise ReportError(f'not every seed of {env}/{variant} has a training.csv: make its cell again')
                means = np.array([TRAINING_METRICS[metric](run.training) for run in of_seeds])
                found, n = ((means.mean(), means.min(), means.max()), 0)
            else:
                scores = runs.scores(env, variant, metric, seeds)
                means, found, n = (scores.mean(axis=1), stats.estimate([[scores]], lambda m: m[..., 0]), scores.shape[1])
            rows.append([env, variant, metric, None, *found, len(seeds), n, *said])
            rows += [[env, variant, metric, seed, mean, None, None, 1, n, *said] for seed, mean in zip(seeds, means, strict=True)]
    return pd.DataFrame(rows, columns=[*COLUMNS, *settings]).astype({'seed': 'Int64'})

def reasoning(params, results):
    keys = {'rounds': 'refine.rounds', 'bad_case': 'refine.bad_case'}
    return _figure(params, results, 'reasoning', REASONING, _draw_reasoning, **keys)

def shaping(params, results):
    metrics = [*TRAINING_METRICS, 'survival']
    return _figure(params, results, 'shaping', SHAPING, _draw_shaping, metrics, K='shape.K', judge='shape.judge')

def generalisation(params, results):
    keys = {'share': 'train.share', 'refine': 'refine.enabled', 'every': 'refine.every'}
    draw = partial(_draw_generalisation, scenarios=params.scenarios.train)
    return _figure(params, results, 'generalisation', GENERALISATION, draw, **keys)

def open_questions(table, results):
    data = table[table['unit'] == 'pts of survival']
    with theme():
        save(_draw_contrasts(data), Path(results) / 'figures', 'open_questions')
    write_csv(data, Path(results) / 'figures' / 'open_questions.csv')
    return data

def reasoning_told(params, results):
    found = _differences(params, results, [(variant, 'ace') for variant in REASONING if variant != 'ace'])
    rows = [[label(a), *each.difference, each.mean_b, each.n_seeds] for (a, _), each in found.items()]
    columns = ['variant', 'minus ACE, points', '95 % low', '95 % high', 'ACE on these seeds, %', 'seeds']
    told = answers.against({label(a): each.difference for (a, _), each in found.items()}, label('ace'))
    return (pd.DataFrame(rows, columns=columns), told)

def generalisation_told(params, results):
    found = _differences(params, results, HALVED)
    turned = {whole: Estimate(-d.value, -d.high, -d.low) for (whole, _), (d, *_) in found.items()}
    return answers.halving({label(whole): estimate for whole, estimate in turned.items()})

def shaping_told(params, results, drawn):
    judged = {judge: list(dict.fromkeys(drawn.loc[drawn['judge'] == judge, 'variant'])) for judge in JUDGES}
    lines = []
    for metric, (name, digits) in MEASURES.items():
        sweeps = {judge: _sweep(drawn, metric, variants) for judge, variants in judged.items()}
        for judge, variants in judged.items():
            ends = _differences(params, results, [(variants[-1], variants[0])]) if len(variants) > 1 else {}
            difference = next(iter(ends.values())).difference if metric == 'survival' and ends else None
            lines.append(answers.trend(f'{name}, {JUDGES[judge]}', sweeps[judge], digits, difference))
        if metric != 'survival':
            lines.append(answers.overlapping(f"{name}, {JUDGES['llm']} beside {JUDGES['random']}", *sweeps.values()))
    found = _differences(params, results, [(variant, f'ace_random_K{k}') for k, variant in JUDGED.items()])
    name = f"{MEASURES['survival'][0]}, {JUDGES['llm']} minus {JUDGES['random']}"
    lines.append(answers.differing(name, [each.difference for each in found.values()]))
    return '\n'.join((f'- {line}' for line in lines if line)) or f'Nothing can be said: {NOT_RUN}.'

def shaping_table(drawn):
    means = drawn[drawn['seed'].isna()]
    names = {row.variant: f'{JUDGES.get(row.judge)}, K = {row.K:g}' for row in means.itertuples()}
    names[NO_CRITIC] = 'no shaping'
    measures = {metric: name for metric, (name, _) in MEASURES.items()}
    table = means.assign(shaping=means['variant'].map(names), measure=means['metric'].map(measures))
    table = table.pivot_table(index='shaping', columns='measure', values='value', sort=False)
    return table.round(dict(MEASURES.values())).rename_axis(index='rewards moved by', columns=None)

def _sweep(drawn, metric, variants):
    means = drawn[drawn['seed'].isna() & (drawn['metric'] == metric) & drawn['variant'].isin(variants)]
    return {row.K: Estimate(row.value, row.low, row.high) for row in means.sort_values('K').itertuples()}

def _differences(params, results, pairs):
    runs, ran = available(params, results, [variant for each in pairs for variant in each])
    env = params.grid.ablations.environment
    return {(a, b): pair(runs, env, a, b, 'survival') for a, b in pairs if {a, b} <= set(ran)}

def _figure(params, results, name, variants, draw, metrics=('survival',), **settings):
    runs, ran = available(params, results, variants)
    data = points(runs, params.grid.ablations.environment, ran, metrics, **settings)
    missing = [variant for variant in variants if variant not in ran]
    folder = Path(results) / 'figures'
    with theme():
        figure = draw(data)
        title = f'{params.grid.ablations.environment} ({params.scale}), {_seeds(data)}'
        figure.suptitle(title, fontsize='medium')
        if missing:
            absent = f"{NOT_RUN}: {'; '.join((label(variant) for variant in missing))}"
            figure.supxlabel(fill(absent, int(13 * figure.get_figwidth())), fontsize='x-small', color='#5a5a5a')
        save(figure, folder, name)
    write_csv(data, folder / f'{name}.csv')
    return data

def _in_force(settings, key):
    switch = f"{key.split('.')[0]}.enabled"
    return None if key != switch and value_at(settings, switch) is False else value_at(settings, key)

def _seeds(data):
    seeds = sorted(set(data['seed'].dropna()))
    return f"dots: seeds {', '.join(map(str, seeds))}" if seeds else NOT_RUN

def _draw_points(panel, rows, places, look, name=None, offset=0.0, side=1):
    colour, line, marker = look
    aside = panel.transData + ScaledTranslation(side * 7 / 72, 0, panel.figure.dpi_scale_trans)
    means = rows[rows['seed'].isna()]
    x = np.asarray(places, float) + offset
    for place, (_, mean) in zip(x, means.iterrows(), strict=True):
        panel.plot([place, place], [mean['low'], mean['high']], color=colour, linewidth=2, solid_capstyle='butt')
        own = rows[(rows['variant'] == mean['variant']) & rows['seed'].notna()]['value']
        dots = {'marker': 'o', 'linestyle': '', 'markersize': 3, 'markerfacecolor': 'white', 'transform': aside}
        panel.plot(np.full(len(own), place), own, color=colour, **dots)
    panel.plot(x, means['value'], color=colour, linestyle=line, marker=marker, markersize=7, linewidth=1.1, label=name)

def _survival_axis(panel, data):
    lowest = data[['value', 'low']].min(axis=None) if len(data) else 0.0
    bottom = max(0.0, 10 * np.floor((lowest - 10) / 10))
    panel.set_ylim(bottom, 103)
    panel.set_ylabel(SURVIVAL + (f'\n(the axis starts at {bottom:g})' if bottom else ''))

def _draw_reasoning(data):
    figure = Figure(figsize=(6.4, 4.0), layout='constrained')
    panel = figure.subplots()
    means = data[data['seed'].isna()]
    for place, (_, row) in enumerate(means.iterrows()):
        look = LINES['ace'] if row['variant'] == 'ace' else MORE_LINES[0 if row['bad_case'] else 1]
        _draw_points(panel, data[data['variant'] == row['variant']], [place], look)
    names = [f"{row['rounds']} round{('s' if row['rounds'] > 1 else '')}\n{('with' if row['bad_case'] else 'without')} bad case" for _, row in means.iterrows()]
    panel.set_xticks(range(len(names)), names)
    panel.set_xlim(-0.6, max(len(names), 1) - 0.4)
    _survival_axis(panel, data)
    panel.set_title('marker: mean over seeds and episodes, bar: 95 % interval', fontsize='small')
    return figure

def _draw_shaping(data):
    figure = Figure(figsize=(11.5, 4.2), layout='constrained')
    panels = figure.subplots(1, 3)
    texts = {'q_std': ('Standard deviation of Q in a batch', 'Last third of training\nbar: lowest to highest seed'), 'decisions_to_converge': ('Decisions in training', f'To {100 * REACHED:.0f} % of the best validation survival\nbar: lowest to highest seed'), 'survival': (SURVIVAL, 'Final test\nbar: 95 % interval')}
    for judge, look, name, side in (('llm', LINES['ace'], 'g_LLM', -1), ('random', MORE_LINES[1], 'random control', 1)):
        chosen = data[(data['judge'] == judge) & (data['variant'] != NO_CRITIC)].sort_values('K', kind='stable')
        for panel, metric in zip(panels, texts, strict=True):
            rows = chosen[chosen['metric'] == metric]
            if len(rows):
                places = 1.05 ** side * rows.loc[rows['seed'].isna(), 'K'].to_numpy(float)
                _draw_points(panel, rows, places, look, name, side=side)
    ticks = sorted(set(data.loc[data['variant'] != NO_CRITIC, 'K'])) or [1.0]
    for panel, (metric, (y_label, title)) in zip(panels, texts.items(), strict=True):
        level = data[(data['variant'] == NO_CRITIC) & (data['metric'] == metric) & data['seed'].isna()]
        if len(level):
            colour, line, _ = LINES[NO_CRITIC]
            panel.axhline(level['value'].iloc[0], color=colour, linestyle=line, linewidth=1.5, label='without shaping')
        panel.set_xscale('log')
        panel.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
        panel.set_xticks([], minor=True)
        panel.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.25)
        here = data[data['metric'] == metric]
        if metric == 'survival':
            _survival_axis(panel, here)
        else:
            panel.set_ylim(0, 1.1 * here['value'].max() if len(here) else 1)
            panel.set_ylabel(y_label)
        panel.set_xlabel("K, units of a step's reward (log scale)")
        panel.set_title(title, fontsize='small')
    if panels[2].get_legend_handles_labels()[0]:
        panels[2].legend(fontsize='small')
    return figure

def _draw_generalisation(data, scenarios):
    figure = Figure(figsize=(6.8, 4.4), layout='constrained')
    panel = figure.subplots()
    shares = sorted(set(data['share']), reverse=True)
    refines = data['refine'].astype(bool)
    refining = data[refines]
    series = [(rows, look, f"ACE, f_LLM {how} (every {rows['every'].iloc[0]:g} decisions)") for how, ending, look in (('often', '_high', LINES['ace']), ('seldom', '_low', MORE_LINES[1])) if len((rows := refining[refining['variant'].str.endswith(ending)]))]
    series += [(data[~refines], LINES['sac'], 'SAC')] if len(data[~refines]) else []
    for number, (rows, look, name) in enumerate(series):
        rows = rows.sort_values('share', ascending=False, kind='stable')
        places = [shares.index(share) for share in rows.loc[rows['seed'].isna(), 'share']]
        _draw_points(panel, rows, places, look, name, offset=0.08 * (number - (len(series) - 1) / 2))
    names = [f'{100 * share:g} % ({max(round(scenarios * share), 1)} scenarios)' for share in shares]
    panel.set_xticks(range(len(shares)), names)
    panel.set_xlim(-0.5, max(len(shares), 1) - 0.5)
    _survival_axis(panel, data)
    panel.set_xlabel('Training scenarios to draw from; the test scenarios are of other days')
    panel.set_title('marker: mean over seeds and episodes, bar: 95 % interval', fontsize='small')
    if series:
        panel.legend(fontsize='small')
    return figure

def _draw_contrasts(data):
    figure = Figure(figsize=(8.2, 1.6 + 0.26 * len(data)), layout='constrained')
    panel = figure.subplots()
    panel.axvline(0, color='#5a5a5a', linewidth=1)
    looks = [LINES['ace'], LINES['sac']]
    order = list(dict.fromkeys(data['id']))
    for y, (_, row) in enumerate(data.iterrows()):
        colour, _, marker = looks[order.index(row['id']) % 2]
        panel.plot([row['ci_low'], row['ci_high']], [y, y], color=colour, linewidth=2)
        panel.plot(row['estimate'], y, color=colour, marker=marker, markersize=6)
        place = {'xycoords': panel.get_yaxis_transform(), 'va': 'center', 'fontsize': 'x-small'}
        panel.annotate(row['n'], (1.01, y), **place)
    names = [f"{row['id']}  {row['contrast']}" for _, row in data.iterrows()]
    panel.set_yticks(range(len(data)), names, fontsize='small')
    panel.set_ylim(max(len(data), 1) - 0.5, -0.5)
    panel.set_xlabel('Difference in survival, points; bar: 95 % interval')
    title = f"The open questions (scale {data['scale'].iloc[0]})" if len(data) else NOT_RUN
    panel.set_title(title, fontsize='medium')
    return figure
