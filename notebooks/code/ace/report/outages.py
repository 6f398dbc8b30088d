import math
from pathlib import Path
import pandas as pd
from ace.report import stats
from ace.report.labels import label
from ace.report.runs import ReportError, ablations, declared, named, read, seeds_of, titled
from ace.report.typeset import markdown, with_interval, write_table
REFERENCE = 'sac'
ALL = 'all'
COLUMNS = ['env', 'outage', 'variant', 'survival', 'ci_low', 'ci_high']
COLUMNS += ['intact', 'change', 'change_low', 'change_high', 'minus_sac', 'minus_sac_low', 'minus_sac_high']
COLUMNS += ['n_seeds', 'n_episodes', 'scale']
NOTE = "Survival in percent of the horizon, on test scenarios on Grid2Op itself, with one line out of service from the first step to the last; each scenario is played without one of the lines, in turn. The lines are the most loaded ones of training scenarios whose loss doing nothing survives for 48 steps in three of them; no policy had a say, and no line that an opponent attacks is among them. Intact: the same scenarios with all lines, from the run files. Change: paired by scenario; minus SAC: paired by scenario and line. A grid of which one day is packaged is tested on its training day. Intervals: 95 % bootstrap over seeds and scenarios, not over lines; a line's own rows rest on few scenarios, others than those of the other lines."

def read_outages(params, results, env):
    path, remedy = (Path(results) / 'outages' / f'{env}.csv', f'run `dvc repro outages@{env}`')
    if not path.is_file():
        raise ReportError(f'no results/outages/{env}.csv: {remedy}')
    table = pd.read_csv(path)
    here = [*declared(params), *(ablations(params) if env == params.grid.ablations.environment else [])]
    table = table[table['variant'].isin(here)]
    for variant, rows in table.groupby('variant', sort=False):
        if sorted(set(rows['seed'])) != sorted(seeds_of(params, variant)):
            raise ReportError(f'results/outages/{env}.csv has not the declared seeds of {variant}: {remedy}')
    return table

def write_outages(params, results):
    rows = [row for env in params.grid.environments for row in of_environment(params, results, env)]
    table = pd.DataFrame(rows, columns=COLUMNS)
    write_table(results, 'outages', table, HEAD, _cells(params, table), f'Unseen outages, scale {params.scale}', NOTE)
    return table

def as_markdown(params, table):
    return f'{markdown(HEAD, _cells(params, table))}\n{NOTE}\n'

def sentences(params, table, ours='ace'):
    lines = []
    for row in table[(table['variant'] == ours) & (table['outage'] == ALL)].itertuples():
        change = with_interval(row.change, row.change_low, row.change_high, 1, sign='+')
        lead = with_interval(row.minus_sac, row.minus_sac_low, row.minus_sac_high, 1, sign='+')
        text = f'- **{titled(params, row.env)}**: {label(ours)} survives {row.survival:.1f} % without a line, '
        text += f'a change of {change} points'
        lines.append(text + (f'; it is {lead} points from SAC.' if lead else '.'))
    return '\n'.join(lines)
HEAD = ['Grid', 'Method', 'Line out', 'Survival, % [95 %]', 'Intact, %', 'Change [95 %]', 'minus SAC [95 %]']
HEAD += ['Seeds x episodes']

def _cells(params, table):
    cells = []
    for row in table.itertuples():
        survival = with_interval(row.survival, row.ci_low, row.ci_high, 1)
        change = with_interval(row.change, row.change_low, row.change_high, 1, sign='+')
        lead = with_interval(row.minus_sac, row.minus_sac_low, row.minus_sac_high, 1, sign='+')
        count = f'{row.n_seeds} x {row.n_episodes}'
        cells.append([named(params, row.env), label(row.variant), row.outage, survival, f'{row.intact:.1f}', change, lead, count])
    return cells

def of_environment(params, results, env):
    played = read_outages(params, results, env)
    variants = list(dict.fromkeys(played['variant']))
    if not variants:
        raise ReportError(f'results/outages/{env}.csv has no declared method: run `dvc repro outages@{env}`')
    runs = read(params, results, variants)
    scores = {variant: _matrix(played[played['variant'] == variant]) for variant in variants}
    lines = played.drop_duplicates('outage').sort_values('outage')['line'].tolist()
    where = played[(played['variant'] == variants[0]) & (played['seed'] == played['seed'].iloc[0])].sort_values('episode')
    rows = []
    for outage in [ALL, *lines]:
        episodes = where.loc[(where['line'] == outage) | (outage == ALL), 'episode'].to_numpy()
        for variant in variants:
            out, intact = (scores[variant][:, episodes], runs.scores(env, variant, 'survival')[:, episodes])
            survival = stats.estimate([[out]], lambda means: means[..., 0])
            change = stats.estimate([[out - intact]], lambda means: means[..., 0])
            lead = (math.nan, math.nan, math.nan)
            if REFERENCE in variants and variant != REFERENCE:
                lead = stats.paired_difference(out, scores[REFERENCE][:, episodes])
            rows.append([env, outage, variant, *survival, intact.mean(), *change, *lead, *out.shape, runs.scale])
    return rows

def _matrix(rows):
    return 100 * rows.pivot_table(index='seed', columns='episode', values='survival').to_numpy(float)
