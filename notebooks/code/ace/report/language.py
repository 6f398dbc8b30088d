from pathlib import Path
import pandas as pd
from ace.report import stats
from ace.report.runs import ReportError, declared, named, read
from ace.report.tables import told
from ace.report.typeset import markdown, with_interval, write_csv, write_text
COLUMNS = ['grid', 'proposer', 'metric', 'value', 'ci_low', 'ci_high', 'n_states']
AS_RUN = 'as_run'
ALONE, REFERENCE = ('llm_only', 'reconnect')
PROPOSERS = {'model': 'Language model', 'model_elsewhere': 'Language model, each round elsewhere', 'classifier': 'Classifier on the same corpus', 'classifier_elsewhere': 'Classifier, each round elsewhere', 'frequency': 'Lookup table', 'frequency_elsewhere': 'Lookup table, each round elsewhere', 'random': 'Random action', 'random_same_substation': 'Random action, same substation'}
SAME_FIRST = {'frequency_elsewhere', 'classifier_elsewhere'}
BESIDE = {'random': 'a random action', 'frequency': 'the lookup table', 'classifier': 'a classifier on the same corpus'}
ELSEWHERE = {'model': 'five at will', 'frequency': 'the lookup table', 'frequency_elsewhere': 'the lookup table by the rule on substations', 'classifier_elsewhere': 'the classifier by it'}
JUDGES = {'model': 'Language model', 'majority': 'More frequent sign'}
SHIFT = {('model_before_lora', 'one_proposal'): 'One proposal, before the LoRA rounds', ('model_after_lora', 'one_proposal'): 'One proposal, after the LoRA rounds', ('model_after_lora', 'lora_gain'): 'Gain by the LoRA rounds', ('model', 'alone_minus_do_nothing'): 'Alone, points of survival above reconnecting lines'}
GAINS = [(('model_after_lora', 'lora_gain'), 'LoRA under a shift', 3, ''), (('model', 'alone_minus_do_nothing'), 'alone against reconnecting lines', 1, ' points of survival')]
NOTE = "one_proposal, five_rounds: share of the held-out states in which a proposal gains more reward than doing nothing does, by the margin of a refinement, both simulated; only states in which some action would. The held-out states are taken from validation episodes in their order, played by all of the corpus's behaviours, at most eight from each, each counted once: several hundred states are of a few dozen scenarios, one or two days (of wcci2022 the training's). Other ones serve critic_sign, from the model's own measurement. <metric>_minus_<other>: paired difference to another proposer on the same states. Proposer frequency is a lookup table: the actions that were most often right in the model's corpus, in that order, whatever the state. Proposer classifier: a network as SAC's policy has, which learnt the best action of each state of the same corpus, other than to do nothing, from as many samples as f_LLM, and names its most probable actions one after the other, whatever came of those before. It differs in more than language: it reads the policy's input, where the text has the ten fullest lines, and does not draw. It and the model were trained once. random_same_substation draws from the actions of the substation that the model named. random draws from all actions alike, with replacement, and may repeat itself in five rounds, the model may not. `_elsewhere`: each further round at a substation where nothing was validated yet, while there is one; of the model also, in every round, reasons that name only substations that the answer may name. parse, legal: share of the model's replies that can be read, and that name a legal action; `_unmasked`: without masks in its decoding. critic_sign: share of g_LLM's adjustments whose sign is that of the counterfactual, by the way in which key decisions are selected; `_index`: actions shown as bare indices; proposer majority always gives the more frequent sign, random is a coin. model_before_lora, model_after_lora: the model in a shifted world (a line out, other limits), on states of its own, so that these rates stand beside one another and not beside the others; lora_gain: their paired difference; `lora_gain_<setting>`: the same, measured again, with other settings of the rounds (as_run: with a run's), as params.yaml names them under `lora`; all of a grid share the rate before, which where an opponent attacks is of other held-out states than model_before_lora. alone_minus_do_nothing: points of survival, paired over test episodes (its n counts episodes), against doing nothing with line reconnection. Intervals: 95 % bootstrap, of rates over scenarios (states of one are drawn together; those of one source day are still taken as independent), of critic_sign over episodes, and of LoRA's over states, which is too narrow."

def rates(params, results):
    tables = []
    for env in params.grid.environments:
        table = _read(results, f'language_model/{env}/rates.csv', f'language_model@{env}')
        again = _read(results, f'proposers/{env}_rates.csv', f'proposers@{env}')
        keys = ['proposer', 'metric']
        first = pd.concat([again, table]).drop_duplicates(keys).set_index(keys, drop=False)
        order = pd.concat([table[keys], again[keys]]).drop_duplicates()
        tables.append(first.loc[pd.MultiIndex.from_frame(order)])
    return pd.concat(tables, ignore_index=True)

def _read(results, place, stage):
    path = Path(results) / place
    if not path.is_file():
        raise ReportError(f'no results/{place}: run `dvc repro {stage}`')
    table = pd.read_csv(path)
    if list(table.columns) != COLUMNS:
        raise ReportError(f'results/{place} is old: run `dvc repro {stage}`')
    return table

def tried(params, results):
    rows = []
    for env in params.grid.environments:
        path = Path(results) / 'lora' / f'{env}.csv'
        table = pd.read_csv(path) if path.is_file() else pd.DataFrame({'setting': []})
        if list(table['setting']) != [AS_RUN, *params.lora]:
            raise ReportError(f'results/lora/{env}.csv is missing or old: run `dvc repro lora@{env}`')
        for row in table.itertuples():
            measured = [row.value, row.ci_low, row.ci_high, row.n_states]
            rows.append([row.grid, row.proposer, f'{row.metric}_{row.setting}', *measured])
    return rows

def alone(params, results):
    if not {ALONE, REFERENCE} <= set(declared(params)):
        return []
    runs = read(params, results, [ALONE, REFERENCE])
    rows = []
    for env in runs.environments:
        ours, reference = (runs.scores(env, variant, 'survival') for variant in (ALONE, REFERENCE))
        rows.append([env, 'model', 'alone_minus_do_nothing', *stats.paired_difference(ours, reference), ours.shape[1]])
    return rows

def write_language_model(params, results):
    table = rates(params, results)
    more = tried(params, results) + alone(params, results)
    if more:
        table = pd.concat([table, pd.DataFrame(more, columns=COLUMNS)], ignore_index=True)
    folder = Path(results) / 'tables'
    write_csv(table, folder / 'language_model.csv')
    rows = [[named(params, r.grid), r.proposer, r.metric, with_interval(r.value, r.ci_low, r.ci_high, 3), str(r.n_states)] for r in table.itertuples()]
    text = markdown(['Grid', 'Proposer', 'Metric', 'Value [95 %]', 'n'], rows)
    write_text(folder / 'language_model.md', f'# The language model, scale {params.scale}\n\n{text}\n{NOTE}\n')
    return table

def proposals(params, table, metric):
    rows = [[named(params, r.grid), PROPOSERS[r.proposer], with_interval(r.value, r.ci_low, r.ci_high, 3), str(r.n_states)] for r in table[table['metric'] == metric].itertuples() if r.proposer in PROPOSERS and (metric != 'one_proposal' or r.proposer not in SAME_FIRST)]
    return markdown(['Grid', 'Proposer', f'{metric} [95 %]', 'Held-out states'], rows)

def signs(params, table):
    rows = []
    chosen = table[table['metric'].str.startswith('critic_sign_')]
    for (grid, metric), found in chosen.groupby(['grid', 'metric'], sort=False):
        cells = {r.proposer: with_interval(r.value, r.ci_low, r.ci_high, 3) for r in found.itertuples()}
        select, _, index = metric.removeprefix('critic_sign_').partition('_')
        shown = 'bare index' if index else 'described'
        judged = [cells.get(judge, '') for judge in JUDGES]
        rows.append([named(params, grid), select, shown, *judged, str(found['n_states'].iloc[0])])
    return markdown(['Grid', 'Selection by', 'Actions', *(f'{name} [95 %]' for name in JUDGES.values()), 'Adjustments'], rows)

def shift(params, table):
    rows = []
    for grid in dict.fromkeys(table['grid']):
        for (proposer, metric), what in SHIFT.items():
            row = _row(table, grid, proposer, metric)
            if row is not None:
                points, n = (metric == 'alone_minus_do_nothing', f'{row.n_states}')
                sign = '+' if metric in ('lora_gain', 'alone_minus_do_nothing') else ''
                value = with_interval(row.value, row.ci_low, row.ci_high, 1 if points else 3, sign)
                rows.append([named(params, grid), what, value, f"{n} {('episodes' if points else 'states')}"])
    return markdown(['Grid', 'What', 'Value [95 %]', 'n'], rows)

def settings_tried(params, table):
    grids = params.grid.environments
    rows = []
    for name in (AS_RUN, *params.lora):
        changes = ', '.join((f'{key} {value:g}' for key, value in params.lora.get(name, {}).items())) or 'as in a run'
        found = [_row(table, env, 'model_after_lora', f'lora_gain_{name}') for env in grids]
        rows.append([changes, *(with_interval(row.value, row.ci_low, row.ci_high, 3, '+') for row in found)])
    return markdown(['Changed', *(f'{named(params, env)} [95 %]' for env in grids)], rows)

def answers(params, table):
    lines = []
    for grid in dict.fromkeys(table['grid']):
        said = []
        for metric, name in (('one_proposal', 'one proposal'), ('five_rounds', 'five rounds')):
            said.append(_beside(table, grid, metric, name, BESIDE))
        said.append(_beside(table, grid, 'five_rounds', 'five rounds, each elsewhere', ELSEWHERE, 'model_elsewhere'))
        said.append(_beside(table, grid, 'critic_sign', 'sign of g_LLM', {'majority': 'always the more frequent sign'}))
        for (proposer, metric), name, digits, unit in GAINS:
            row = _row(table, grid, proposer, metric)
            if row is not None:
                gain = with_interval(row.value, row.ci_low, row.ci_high, digits, sign='+')
                said.append(f'{name} {gain}{unit}, {told(row.ci_low, row.ci_high)}')
        said.append(_settings_told(table, grid))
        lines.append(f"- **{named(params, grid)}**: {'; '.join(filter(None, said))}.")
    return '\n'.join(lines)

def _settings_told(table, grid):
    tried = table[(table['grid'] == grid) & table['metric'].str.startswith('lora_gain_')]
    others = tried[tried['metric'] != f'lora_gain_{AS_RUN}']
    if not len(others):
        return ''
    above, below = (int((others['ci_low'] > 0).sum()), int((others['ci_high'] < 0).sum()))
    means = f"means from {others['value'].min():+.3f} to {others['value'].max():+.3f}"
    return f'LoRA with {len(others)} other settings: above 0 with {above}, below 0 with {below}, {means}'

def _beside(table, grid, metric, name, others, proposer='model'):
    ours = _row(table, grid, proposer, metric)
    if ours is None:
        return ''
    said = []
    for other, what in others.items():
        row, paired = (_row(table, grid, other, metric), _row(table, grid, proposer, f'{metric}_minus_{other}'))
        if row is None:
            continue
        if paired is not None:
            gain = with_interval(paired.value, paired.ci_low, paired.ci_high, 3, '+')
            verdict = told(paired.ci_low, paired.ci_high)
            said.append(f'against {what} ({row.value:.2f}) state by state {gain}, {verdict}')
            continue
        above, below = (ours.ci_low > row.ci_high, ours.ci_high < row.ci_low)
        place = 'above' if above else 'below' if below else 'interval overlaps that of'
        said.append(f'{place} {what} ({row.value:.2f})')
    return f"{name} {with_interval(ours.value, ours.ci_low, ours.ci_high, 2)}{': ' * bool(said)}{', '.join(said)}"

def _row(table, grid, proposer, metric):
    found = table[(table['grid'] == grid) & (table['proposer'] == proposer) & (table['metric'] == metric)]
    return next(found.itertuples(), None)
