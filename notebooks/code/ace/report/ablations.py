import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
import numpy as np
import pandas as pd
from ace.checked import ConfigError
from ace.report import stats
from ace.report.labels import label
from ace.report.runs import RUN_METRICS, Runs, ablations, declared, read
from ace.report.tables import HEADLINE, by_metric, mean_and_iqm, write_parts
from ace.report.typeset import markdown, thousands, with_interval, write_csv
NOT_RUN = 'not run'

@dataclass(frozen=True)
class Group:
    title: str
    variants: list
    settings: list
    reference: str = 'ace'
    of_ace: bool = True
GROUPS = [Group('f_LLM query frequency', ['ace_query_high', 'ace', 'ace_query_low'], ['refine.every']), Group('Bad-case threshold', ['ace_rbar_neg', 'ace_rbar_zero', 'ace_rbar_pos'], ['refine.threshold', 'refine.most'], reference='ace_rbar_zero'), Group('LoRA rounds', ['ace_no_finetune', 'ace_lora_1', 'ace', 'ace_lora_3'], ['finetune.every']), Group('g_LLM frequency', ['ace_no_critic', 'ace_critic_low', 'ace', 'ace_critic_high'], ['shape.every']), Group('Trajectory selection', ['ace', 'ace_select_state', 'ace_select_action', 'ace_select_action_index'], ['shape.select', 'shape.threshold', 'shape.describe']), Group('K, judged by g_LLM', ['ace_K01', 'ace_K02', 'ace', 'ace_K08'], ['shape.K', 'shape.judge']), Group('K, random control', ['ace', 'ace_random_K01', 'ace_random_K02', 'ace_random_K04', 'ace_random_K08'], ['shape.K', 'shape.judge']), Group('Bad cases and rounds', ['ace_no_bad_case', 'ace_rounds_1', 'ace_rounds_3', 'ace'], ['refine.bad_case', 'refine.rounds']), Group('Rounds at other substations', ['ace', 'ace_elsewhere'], ['refine.proposer']), Group('How the policy learns from D_LLM', ['ace_literal', 'ace_prior', 'ace'], ['sac.bc', 'sac.prior_llm'], reference='ace_literal'), Group('Sparse reward', ['ace_sparse_sac', 'ace_sparse'], ['train.reward'], reference='ace_sparse_sac', of_ace=False), Group('Longer training', ['ace_long_sac', 'ace_long'], ['train.decisions'], reference='ace_long_sac', of_ace=False), Group('A smaller corpus', ['ace', 'expert_sac', 'expert_100k', 'ace_lean'], ['llm.path'], reference='ace_lean', of_ace=False), Group('The same settings once more', ['ace', 'ace_again'], [], of_ace=False), Group('More samples without a model', ['sac', 'sac_5k', 'sac_20k', 'expert_sac', 'expert_100k', 'ace'], ['train.decisions', 'train.validate_every'], of_ace=False)]
COUNTS = {'refinements': lambda manifest: manifest.get('refinements', 0), 'lora_rounds': lambda manifest: len(manifest.get('finetune_rounds', [])), 'lora_rounds_kept': lambda manifest: sum((each['accepted'] for each in manifest.get('finetune_rounds', []))), 'adjustments': lambda manifest: manifest.get('shaped', 0), 'env_steps_to_train': RUN_METRICS['env_steps_to_train'], 'simulator_calls_train': lambda manifest: manifest['budget']['train']['simulator_calls'], 'simulator_calls_corpus': lambda manifest: manifest['budget']['corpus'].get('simulator_calls', 0), 'llm_calls_train': lambda manifest: manifest['budget']['train']['llm_calls']}
COLUMNS = ['group', 'env', 'variant', 'setting', 'metric', 'mean', 'std', 'iqm', 'ci_low', 'ci_high', 'reference']
COLUMNS += ['reference_mean', 'difference', 'difference_low', 'difference_high', 'n_common_seeds', *COUNTS]
COLUMNS += ['n_seeds', 'n_episodes', 'scale']
RESULTS = ['Group', 'Variant', 'Setting', 'Survival, %', 'Survival IQM [95 %]', 'Reference on these seeds']
RESULTS += ['Survival minus reference [95 %]', 'Reward', 'Reward IQM [95 %]', 'Reward minus reference [95 %]', 'Seeds x episodes']
BUDGETS = ['Group', 'Variant', 'Refinements', 'LoRA rounds (kept)', 'Adjustments', 'Env. steps, all']
BUDGETS += ['Simulator calls in training', 'Simulator calls of the corpus', 'LLM calls in training']
NOTE = f"The reference of a group is ACE as in `base`, also of SAC and the expert with more samples; of the thresholds, the one of `base` with all bad cases of a mini-batch refined; of the sparse reward and of longer training, SAC under the same condition; of a smaller corpus, ACE with it; of how the policy learns from D_LLM, the paper's loss. ± is the standard deviation of the seeds' means, IQM the interquartile mean over seeds x episodes, both over all seeds of the row. minus reference: paired difference of the means on identical test episodes and on the seeds that both were run with; *Reference on these seeds* is the reference's mean survival on these. Intervals: 95 % bootstrap of seeds and episodes. With three seeds they are too narrow (in a simulated null 17 % instead of 5 % of the differences exclude 0, see the main table), and of this many rows some exclude 0 by luck. Refinements, LoRA rounds (in brackets those not rolled back), adjustments of rewards and calls are counted in training, means over the seeds; what the corpus of the language model took, once for all rows that use it, stands in a column of its own; Env. steps, all: training, validation and corpus. Setting: as in the run's manifest. {NOT_RUN}: not in the declared grid of params.yaml."
KEYS = {'base': 'the settings of ACE in params.yaml, from which a variant differs by what stands in its row', 'refine.enabled': 'whether f_LLM is asked', 'refine.every': 'decisions of training between two mini-batches of f_LLM', 'refine.most': 'bad cases of a mini-batch that it refines at the most', 'refine.threshold': 'r̄: a decision whose step has a lower reward is a bad case', 'refine.rounds': "proposals in turn for a bad case, each with the simulator's verdict on those before", 'refine.bad_case': "whether f_LLM's prompt shows the bad action and its outcome", 'refine.proposer': 'llm: f_LLM at will; llm_elsewhere: each further round names a substation where nothing was validated yet, if there is one, or to do nothing, and reasons of every round only substations that may be answered', 'finetune.enabled': 'whether there are LoRA rounds', 'finetune.every': 'refinements between two LoRA rounds', 'sac.bc': "weight of cloning the refined actions in the policy's loss; 0: the paper's loss", 'sac.prior_llm': "share of the policy's prior that may follow the actions of D_LLM, the more the larger D_LLM is", 'shape.enabled': 'whether g_LLM is asked', 'shape.every': 'g_LLM reads one training episode in so many', 'shape.select': "score by which it finds an episode's key decisions: size of the step's reward, overload of the state, or how rare the action is in its episode", 'shape.threshold': 'r̿: a decision with a higher score is a key decision', 'shape.describe': 'whether g_LLM sees an action as text (true) or as its bare index (false)', 'shape.K': "a key decision's reward is moved by one or two K, up or down, in units of a step's reward", 'shape.judge': 'who moves it: g_LLM, or as many random moves of random decisions', 'llm.path': 'where the language model lies; that of `language_models` learnt from a corpus of fewer states and actions', 'train.reward': 'dense: of every step; sparse: of a blackout alone', 'train.decisions': 'decisions in training', 'train.validate_every': 'decisions between two validations, of which the best checkpoint is kept'}

class Pair(NamedTuple):
    difference: stats.Estimate
    mean_b: float
    n_seeds: int

def available(params, results, names):
    env = params.grid.ablations.environment
    here = [*ablations(params), *(declared(params) if env in params.grid.environments else [])]
    ran = [name for name in dict.fromkeys(names) if name in here]
    return (read(params, results, ran) if ran else Runs(params.scale, [], [], {}), ran)

def pair(runs, env, a, b, metric):
    seeds = runs.seeds_of_all(env, [a, b])
    scores_a, scores_b = (runs.scores(env, variant, metric, seeds) for variant in (a, b))
    return Pair(stats.paired_difference(scores_a, scores_b), float(scores_b.mean()), len(seeds))

def value_at(settings, key):
    section, _, name = key.partition('.')
    return settings[section].get(name)

def setting(settings, keys):
    parts = {}
    for key in keys:
        switch = f"{key.split('.')[0]}.enabled"
        shown = switch if value_at(settings, switch) is False else key
        value = value_at(settings, shown)
        parts[shown] = value if isinstance(value, str) else json.dumps(value)
    return ', '.join((f'{key} = {value}' for key, value in parts.items()))

def _setting_of(params, runs, env, variant, keys):
    if (env, variant) in runs.cells:
        return setting(runs.of(env, variant)[0].manifest['settings'], keys)
    try:
        return setting(params.settings(variant).model_dump(), keys)
    except ConfigError:
        return '–'

def count(runs, env, variant, what):
    return float(np.mean([COUNTS[what](run.manifest) for run in runs.of(env, variant)]))

def write_ablations(params, results):
    runs, ran = available(params, results, [v for group in GROUPS for v in (group.reference, *group.variants)])
    env = params.grid.ablations.environment
    rows, shown = ([], [])
    for group in GROUPS:
        for variant in group.variants:
            said = _setting_of(params, runs, env, variant, group.settings)
            if variant in ran:
                rows += _rows(runs, env, group, variant, said)
            shown.append((group.title, variant, said))
    table = pd.DataFrame(rows, columns=COLUMNS)
    cells = [(by_metric(table[table['group'] == names[0]], env, names[1]), *names) for names in shown]
    parts = {'Results': (RESULTS, [_result(found, *names) for found, *names in cells]), 'What they used': (BUDGETS, [_budget(found, *names) for found, *names in cells])}
    settings = ''.join((f'- `{key}`: {meaning}\n' for key, meaning in KEYS.items()))
    write_csv(table, Path(results) / 'tables' / 'ablations.csv')
    title = f'ACE taken apart, {env}, scale {params.scale}'
    write_parts(results, 'ablations', title, parts, f'{NOTE}{_left_out(params)}\n\nThe settings:\n\n{settings}')
    return table

def _left_out(params):
    placed = {variant for group in GROUPS for variant in group.variants}
    names = [f'`{name}`' for name in ablations(params) if name not in placed]
    return f"\n\nDeclared, and in no group of this table: {', '.join(names)}." if names else ''

def summary(table):
    names = list(dict.fromkeys((variant for group in GROUPS for variant in group.variants)))
    missing = [name for name in names if name not in set(table['variant'])]
    done = f'{len(names) - len(missing)} of {len(names)} variants were run'
    return f"{done}; {NOT_RUN}: {', '.join(missing)}." if missing else f'{done}.'

def _rows(runs, env, group, variant, said):
    counts = {what: count(runs, env, variant, what) for what in COUNTS}
    counts['env_steps_to_train'] = round(counts['env_steps_to_train'])
    compared = variant != group.reference and (env, group.reference) in runs.cells
    for metric in HEADLINE:
        found = stats.summary(runs.scores(env, variant, metric))
        against = [None] * 6
        if compared:
            other = pair(runs, env, variant, group.reference, metric)
            against = [group.reference, other.mean_b, *other.difference, other.n_seeds]
        yield [group.title, env, variant, said, metric, *found[:5], *against, *counts.values(), *found[5:], runs.scale]

def _result(cells, title, variant, said):
    if not cells:
        return [title, label(variant), said, NOT_RUN, *[''] * (len(RESULTS) - 4)]
    survival, reward = (cells[metric] for metric in HEADLINE)
    known = pd.notna(survival['reference_mean'])
    return [*(title, label(variant), said, *mean_and_iqm(survival, 1)), *(f"{survival['reference_mean']:.1f}" if known else '', _difference(survival)), *(*mean_and_iqm(reward, 1), _difference(reward)), f"{survival['n_seeds']} x {survival['n_episodes']}"]

def _budget(cells, title, variant, said):
    if not cells:
        return [title, label(variant), NOT_RUN, *[''] * (len(BUDGETS) - 3)]
    row = cells['survival']
    rounds = f"{row['lora_rounds']:.1f} ({row['lora_rounds_kept']:.1f})"
    counts = ['adjustments', 'env_steps_to_train', 'simulator_calls_train', 'simulator_calls_corpus', 'llm_calls_train']
    return [title, label(variant), thousands(row['refinements']), rounds, *(thousands(row[what]) for what in counts)]

def compared(table, metric):
    return table[(table['metric'] == metric) & table['difference'].notna()]

def largest(table, metric):
    rows = compared(table, metric).sort_values('difference', key=lambda column: column.astype(float).abs(), ascending=False)
    cells = [[row['group'], label(row['variant']), label(row['reference']), _difference(row), str(int(row['n_common_seeds']))] for _, row in rows.iterrows()]
    return markdown(['Group', 'Variant', 'Reference', f'{metric.capitalize()} minus reference [95 %]', 'Common seeds'], cells)

def answer(table, metric):
    found = compared(table, metric)
    ours = found['group'].isin([group.title for group in GROUPS if group.of_ace])
    lines = [_answer(found[ours], metric, 'Settings of ACE'), _answer(found[~ours], metric, 'Other conditions and methods')]
    luck = f'{(1 - stats.LEVEL) * len(found):.1f} of {len(found)} intervals at {100 * stats.LEVEL:.0f} %'
    few = 'with three seeds more like three times as many (note of the main table)'
    return '\n'.join([*lines, f'\nBy luck alone {luck} would exclude 0 if seeds were many, {few}.'])

def _answer(rows, metric, what):
    apart, level = ([], [])
    for _, row in rows.iterrows():
        if not (row['difference_low'] > 0 or row['difference_high'] < 0):
            level.append(label(row['variant']))
        else:
            apart.append(f"{label(row['variant'])} minus {label(row['reference'])} {_difference(row)}")
    yes, no = (f" ({'; '.join(names)})" if names else '' for names in (apart, level))
    counted = f'in {len(apart)} of {len(rows)} comparisons the difference of {metric} to the reference excludes 0{yes}'
    return f'- {what}: {counted}; in the other {len(level)} it does not{no}.'

def _difference(row):
    names = ('difference', 'difference_low', 'difference_high')
    return with_interval(*(float(row[name]) for name in names), 1, sign='+') if pd.notna(row['difference']) else ''
