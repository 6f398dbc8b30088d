import gzip
import json
import math
from pathlib import Path
import numpy as np
import pandas as pd
from ace.report.claims import PAPER
from ace.report.labels import label
from ace.report.runs import read
from ace.report.tables import main_methods, write_parts
from ace.report.typeset import markdown, thousands, write_csv
ENDS = ['seconds_per_call', 'test_s', 'decision_ms']
NUMBERS = [*('decisions', 'env_steps_train', 'env_steps_validation', 'env_steps_corpus'), *('calls_train', 'calls_test', 'tokens', 'lora_rounds', 'lora_kept'), *('train_s', 'llm_s', 'finetune_s', 'seconds_per_call', 'seconds_per_lora_round'), *('test_s', 'test_steps', 'test_ms_per_step', 'decision_ms')]
COLUMNS = ['env', 'variant', 'kind', *NUMBERS, *(f'{name}_{end}' for name in ENDS for end in ('low', 'high'))]
COLUMNS += ['n_seeds', 'scale', 'note', 'source']
REPORTED = [{'env': 'neurips2020', 'variant': 'ace', 'calls_train': 508, 'llm_s': 6480.0, 'seconds_per_call': 6480 / 508} | {'note': 'paper, Qwen2-7B: 1 h 48 min', 'source': f'{PAPER}; second hand: Table 4'}, {'variant': 'ace', 'test_s': 38.7, 'note': 'paper', 'source': f'{PAPER}; second hand: Table 1'}, {'variant': 'expert_sac', 'test_s': 46.1, 'note': 'paper', 'source': f'{PAPER}; second hand: Table 1'}, {'variant': 'llm_only', 'test_s': 1000.0, 'note': 'paper: more than this'} | {'source': f'{PAPER}; second hand: Table 1, 1480.8 s to thousands'}]
UNMEASURED = [{'variant': 'ace_qwen2_7b', 'note': 'not measured: no GPU at hand', 'source': ''}]
MORE_LABELS = {'ace_qwen2_7b': 'ACE with Qwen2-7B'}
NOTE = "Means over the seeds; in brackets the lowest and the highest seed. Samples: environment steps of training, of its validations, and of the corpus that the language model (or its set of actions) was made from. Language-model calls: proposals, judgements and those on held-out states around each LoRA round; calls in the test are over all of its episodes, tokens are read and written, all calls together. Seconds to train hold those of the language model and of the LoRA rounds, not the corpus and the making of the model. LLM, s: of training, and of the test where the model is in the loop. Seconds of the test are for all of its episodes on Grid2Op: who survives longer plays more steps, hence the milliseconds a step beside them; a decision is what the agent alone takes. All seconds were measured once, on a shared machine of two cores; they are not compared across machines. The embedded model has some 0.6 million parameters: its seconds a call are no estimate of a 7B model's."

def write_cost(params, results, variants=None):
    runs = read(params, results, variants or main_methods(params))
    rows = [measured(runs, env, variant, results) for env in runs.environments for variant in runs.methods_of(env)]
    rows += [{'kind': 'reported', **row} for row in REPORTED] + [{'kind': 'not measured', **row} for row in UNMEASURED]
    table = pd.DataFrame(rows, columns=COLUMNS).astype(object)
    folder, title = (Path(results) / 'tables', f'Cost, scale {params.scale}')
    write_csv(table.where(table.notna(), None), folder / 'cost.csv')
    parts = {head: (names, _part(table, cells)) for head, (names, cells) in PARTS.items()}
    write_parts(results, 'cost', title, parts, NOTE)
    return table

def latency(table):
    ours = table[table['kind'] == 'measured']
    base = {row['env']: row['decision_ms'] for _, row in ours.iterrows() if row['variant'] == 'ace'}
    rows = []
    for env in dict.fromkeys(ours['env']):
        for _, row in ours[ours['env'] == env].sort_values('decision_ms', kind='stable').iterrows():
            times = _over(_known(row['decision_ms']), _known(base.get(env)))
            few = times is not None and times < 10
            cells = [_shown(row['decision_ms'], '{:.2f}'.format), _shown(times, '{:.2g}'.format if few else thousands)]
            cells += [_shown(row['test_steps'], thousands), _shown(row['test_ms_per_step'], '{:.2f}'.format)]
            rows.append([env, label(row['variant']), *cells])
    head = ['Grid', 'Method', 'A decision, ms', "Times ACE's", 'Env. steps of the test', 'A step of the test, ms']
    return markdown(head, rows)

def share_of_the_agent(runs, variants=('ace', 'sac', 'greedy', 'llm_only')):
    said = []
    for variant in variants:
        shares = [share for env in runs.environments_of([variant]) if (share := _agent_share(runs, env, variant)) is not None]
        if shares:
            said.append(f'of {label(variant)} {min(shares):.0f} to {max(shares):.0f} %')
    return f"Share of the decisions in the seconds of a test, lowest to highest grid: {'; '.join(said)}." if said else ''

def _agent_share(runs, env, variant):
    shares = []
    for run in runs.of(env, variant):
        spent = (run.provenance or {}).get('decision_latency_ms')
        total = (run.provenance or {}).get('wall_s', {}).get('evaluate')
        if spent is not None and total:
            shares.append(100 * 0.001 * spent * run.episodes['decisions'].sum() / total)
    return _mean(shares)

def measured(runs, env, variant, results):
    seeds = [_of_seed(run, results) for run in runs.of(env, variant)]
    columns = {name: [seed[name] for seed in seeds] for name in NUMBERS}
    row = {name: _mean(values) for name, values in columns.items()}
    for name in ENDS:
        known = [value for value in columns[name] if value is not None]
        if len(known) > 1:
            row |= {f'{name}_low': min(known), f'{name}_high': max(known)}
    identity = {'env': env, 'variant': variant, 'kind': 'measured', 'scale': runs.scale, 'n_seeds': len(seeds)}
    return {**identity, **row, 'source': f'results/runs/{env}/{variant}/, results/provenance/{env}/{variant}/'}

def _of_seed(run, results):
    budget, manifest = (run.manifest['budget'], run.manifest)
    steps = {phase: budget.get(phase, {}).get('env_steps') for phase in ('train', 'validation', 'corpus', 'test')}
    calls = {phase: budget.get(phase, {}).get('llm_calls', 0) for phase in ('train', 'test')}
    rounds = manifest.get('finetune_rounds', [])
    provenance = run.provenance or {}
    wall = provenance.get('wall_s', {})
    return {'decisions': manifest.get('decisions'), **{f'env_steps_{phase}': steps[phase] for phase in ('train', 'validation', 'corpus')}, **{f'calls_{phase}': number for phase, number in calls.items()}, 'tokens': _tokens(Path(results).parent / run.folder / 'transcript.jsonl.gz'), 'lora_rounds': len(rounds), 'lora_kept': sum((round_['accepted'] for round_ in rounds)), **{f'{phase}_s': wall.get(phase) for phase in ('train', 'llm', 'finetune')}, 'seconds_per_call': _over(wall.get('llm'), sum(calls.values())), 'seconds_per_lora_round': _over(wall.get('finetune'), len(rounds)), 'test_s': wall.get('evaluate'), 'test_steps': steps['test'], 'test_ms_per_step': _over(wall.get('evaluate'), steps['test'], 1000.0), 'decision_ms': provenance.get('decision_latency_ms')}

def _tokens(path):
    if not path.is_file():
        return 0
    with gzip.open(path, 'rt', encoding='utf-8') as lines:
        next(lines)
        used = [json.loads(line).get('tokens') for line in lines]
    return None if None in used else sum(used)

def _over(amount, number, unit=1.0):
    return unit * amount / number if amount is not None and number else None

def _known(value):
    return None if value is None or math.isnan(value) else value

def _mean(values):
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None

def _part(table, cells):
    rows = []
    for _, row in table.iterrows():
        said = cells(row)
        if any((cell not in ('–', '') for cell in said)) or row['kind'] == 'not measured':
            grid = row['env'] if isinstance(row['env'], str) else ''
            name = MORE_LABELS.get(row['variant']) or label(row['variant'])
            rows.append([grid, name, *said, row['note'] if isinstance(row['note'], str) else ''])
    return rows

def _counts(row):
    rounds = _shown(row['lora_rounds'], lambda n: f"{n:.1f} ({row['lora_kept']:.1f})" if n else '–')
    return [*(_shown(row[column], thousands) for column in NUMBERS[:7]), rounds]

def _times(row):
    train = [_shown(row[column], _seconds) for column in ('train_s', 'llm_s', 'finetune_s')]
    each = [_spread(row, 'seconds_per_call', 3), _shown(row['seconds_per_lora_round'], '{:.1f}'.format)]
    test = [_spread(row, 'test_s', 1), _shown(row['test_ms_per_step'], '{:.2f}'.format)]
    return [*train, *each, *test, _spread(row, 'decision_ms', 2)]
COUNTS = ['Decisions', 'Env. steps to train', 'Env. steps to validate', 'Env. steps for the corpus', 'LLM calls to train']
COUNTS += ['LLM calls in the test']
COUNTS += ['Tokens', 'LoRA rounds (kept)']
TIMES = ['Train, s', 'LLM, s (train or test)', 'LoRA, s (of train)', 'An LLM call, s', 'A LoRA round, s', 'Test, s', 'A step, ms']
TIMES += ['A decision, ms']
PARTS = {'Samples and calls': (['Grid', 'Method', *COUNTS, 'Note'], _counts), 'Seconds': (['Grid', 'Method', *TIMES, 'Note'], _times)}

def _shown(value, write):
    return '–' if value is None or math.isnan(value) else write(value)

def _seconds(value):
    return f'{value:,.0f}' if value else '–'

def _spread(row, name, digits):
    low, high = (row[f'{name}_low'], row[f'{name}_high'])
    there = isinstance(low, float) and (not math.isnan(low))
    ends = f' [{low:.{digits}f}, {high:.{digits}f}]' if there else ''
    return _shown(row[name], lambda value: f'{value:.{digits}f}{ends}')
