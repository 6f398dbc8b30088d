from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
import numpy as np
import pandas as pd
from ace.report import answers, stats
from ace.report.ablations import COUNTS, NOT_RUN
from ace.report.labels import SWEEP, label
from ace.report.outages import CONTROLS
from ace.report.runs import EPISODE_METRICS, ReportError, read
from ace.report.stats import Estimate
from ace.report.typeset import markdown, with_interval, write_csv, write_text
POINTS = 'pts of survival'
DIGITS = {'share of the target': 2, 'simulator calls': 0}
COLUMNS = ['id', 'question', 'design', 'contrast', 'estimate', 'ci_low', 'ci_high', 'unit', 'n']
COLUMNS += ['figure', 'answer', 'scale']
HEAD = ['Question', 'Contrast', 'Estimate [95 %]', 'Unit', 'n']
NOTE = 'Differences of mean survival on identical test episodes and on the seeds that all variants of a contrast were run with. Intervals: 95 % bootstrap of seeds and episodes; of an entropy, a fall or a number of calls of seeds alone. With three seeds they are too narrow. Q4 is averaged over all grids with test days of their own, all others are of {home}.'

def _survival(run):
    column, factor = EPISODE_METRICS['survival']
    return factor * run.episodes[column].to_numpy(float)

def _entropy_at_the_end(run):
    return [run.training['entropy'].iloc[-1] / run.manifest['settings']['sac']['target_entropy']]

def _fall(run):
    return [100 * (run.training['survival'].max() - run.training['survival'].iloc[-1])]

def _simulated(run):
    return [COUNTS['simulator_calls_train'](run.manifest)]

def _simulated_for_corpus(run):
    return [COUNTS['simulator_calls_corpus'](run.manifest)]

@dataclass(frozen=True)
class Contrast:
    name: str
    weights: dict
    unit: str = POINTS
    value: Callable = _survival

@dataclass(frozen=True)
class Outage:
    name: str
    variant: str
    column: str
    unit: str = POINTS

    @property
    def weights(self):
        return {self.variant: 1.0}

def _minus(name, a, b):
    return Contrast(name, {a: 1.0, b: -1.0})

@dataclass(frozen=True)
class Question:
    id: str
    question: str
    design: str
    contrasts: list
    answer: Callable
    figure: str
    everywhere: bool = False

def measure(runs, envs, contrast):
    variants = list(contrast.weights)
    envs = [env for env in runs.environments_of(variants) if env in envs]
    if not envs:
        return None
    strata, seeds = ([], set())
    for env in envs:
        common = runs.seeds_of_all(env, variants)
        seeds.add(len(common))
        chosen = [[run for run in runs.of(env, variant) if run.seed in common] for variant in variants]
        strata.append([np.array([contrast.value(run) for run in cell], dtype=float) for cell in chosen])
    weights = np.array(list(contrast.weights.values()))
    n = f"{len(envs)} env x {'/'.join(map(str, sorted(seeds)))} seed{('' if seeds == {1} else 's')}"
    n += f' x {strata[0][0].shape[1]} episodes' if contrast.value is _survival else ''
    return (stats.estimate(strata, lambda means: (means * weights).sum(axis=-1)), n)

def read_outage(results, env, contrast):
    path = Path(results) / 'tables' / 'outages.csv'
    if not path.is_file():
        return None
    table = pd.read_csv(path)
    rows = table[(table['env'] == env) & (table['outage'] == 'all') & (table['variant'] == contrast.variant)]
    if rows.empty or contrast.column not in table or pd.isna(rows.iloc[0][contrast.column]):
        return None
    row = rows.iloc[0]
    found = Estimate(*(float(row[f'{contrast.column}{end}']) for end in ('', '_low', '_high')))
    return (found, f"1 env x {row['n_seeds']} seeds x {row['n_episodes']} episodes")
ROUNDS = [('none', 'llm4teach'), ('one', 'ace_rounds_1'), ('three', 'ace_rounds_3'), ('five', 'ace')]
JUDGED = {k: 'ace' if k == '04' else f'ace_K{k}' for k in SWEEP}
QUESTIONS = [Question('Q1', 'Does a text that describes a topology action close the gap of trajectory selection by action?', 'Key decisions of g_LLM selected by how rare the action is; the prompt shows actions as descriptions or as bare indices. Closed: described is above index, and selection by reward is not above described.', [_minus('described minus bare index', 'ace_select_action', 'ace_select_action_index'), _minus('reward minus action (described)', 'ace', 'ace_select_action'), _minus('reward minus action (bare index)', 'ace', 'ace_select_action_index')], answers.answer_1, 'open_questions'), Question('Q2', 'How much does the simulator budget of multi-round validation matter: 0, 1, 3, 5 rounds?', "Rounds of f_LLM's proposals with the simulator's verdict in between. No round is LLM4Teach: the policy is pulled towards proposals that nobody validated, without g_LLM and LoRA, so more than the rounds differs there.", [_minus('five rounds minus none', 'ace', 'llm4teach'), _minus('five rounds minus one', 'ace', 'ace_rounds_1'), _minus('five rounds minus three', 'ace', 'ace_rounds_3'), *(Contrast(f'{name}: calls', {variant: 1.0}, 'simulator calls', _simulated) for name, variant in ROUNDS), Contrast(f'{answers.CORPUS}: calls', {'ace': 1.0}, 'simulator calls', _simulated_for_corpus)], answers.answer_2, 'reasoning'), Question('Q3', 'Does co-evolution stay stable with a sparse reward?', f"SAC learns from blackouts only; bad cases are still those of the dense reward. Stable: the policy's entropy ends above {answers.COLLAPSED} of SAC's target (interval), and the last validation less than {answers.FALLEN:g} points below the best (mean of the seeds; where its interval reaches further, that is said).", [_minus('ACE minus SAC (sparse)', 'ace_sparse', 'ace_sparse_sac'), _minus('ACE, sparse minus dense', 'ace_sparse', 'ace'), Contrast('entropy at the end', {'ace_sparse': 1.0}, 'share of the target', _entropy_at_the_end), Contrast('best minus last validation', {'ace_sparse': 1.0}, 'pts of validation survival', _fall)], answers.answer_3, 'open_questions'), Question('Q4', 'Which part comes from f_LLM and which from g_LLM?', 'Each alone, both, neither (SAC). From a role: alone it is above neither.', [_minus('f_LLM alone minus neither', 'ace_no_critic', 'sac'), _minus('g_LLM alone minus neither', 'ace_no_actor', 'sac'), _minus('both minus neither', 'ace', 'sac'), _minus('both minus f_LLM alone', 'ace', 'ace_no_critic'), _minus('both minus g_LLM alone', 'ace', 'ace_no_actor'), Contrast('both beyond the sum', {'ace': 1.0, 'ace_no_critic': -1.0, 'ace_no_actor': -1.0, 'sac': 1.0})], answers.answer_4, 'open_questions', everywhere=True), Question('Q5', 'Is g_LLM credit assignment or noise?', 'For each K, ACE against a control that moves the rewards of as many random decisions by random multiples of K. Credit assignment: the mean difference over the four K is above 0.', [Contrast('g_LLM minus random, mean over K', {**dict.fromkeys(JUDGED.values(), 1 / 4), **{f'ace_random_K{k}': -1 / 4 for k in JUDGED}}), *(_minus(f'K = {k[0]}.{k[1:]}: g_LLM minus random', v, f'ace_random_K{k}') for k, v in JUDGED.items()), _minus('g_LLM minus no shaping', 'ace', 'ace_no_critic')], answers.answer_5, 'shaping'), Question('Q6', 'Does it generalise: trained on half of the scenarios, tested on unseen ones and on unseen outages?', 'All or half of the training scenarios, f_LLM asked often or seldom, SAC beside it; test scenarios are of other days. Yes: trained on half, ACE with f_LLM asked often is above SAC. Unseen outages: a line out for the whole episode, SAC trained on all; beside ACE the three controls that put something else in place of f_LLM.', [_minus('half: ACE (often) minus SAC', 'ace_half_query_high', 'ace_half_sac'), _minus('half: ACE (seldom) minus SAC', 'ace_half_query_low', 'ace_half_sac'), _minus('ACE (often): all minus half', 'ace_query_high', 'ace_half_query_high'), _minus('ACE (seldom): all minus half', 'ace_query_low', 'ace_half_query_low'), _minus('SAC: all minus half', 'sac', 'ace_half_sac'), Outage(f'{answers.OUTAGES}ACE minus SAC', 'ace', 'minus_sac'), Outage(f'{answers.OUTAGES}ACE, without a line minus with all', 'ace', 'change'), Outage(f'{answers.OUTAGES}ACE on half (often) minus SAC', 'ace_half_query_high', 'minus_sac'), *(Outage(f'{answers.OUTAGES}{label(control)} minus ACE', control, 'minus_ace') for control in CONTROLS)], answers.answer_6, 'generalisation')]

def write(params, results):
    runs, home = (read(params, results), params.grid.ablations.environment)
    rows, lines = ([], [])
    for q in QUESTIONS:
        envs = runs.held_out_of([]) if q.everywhere else [home]
        measured = {c.name: read_outage(results, home, c) if isinstance(c, Outage) else measure(runs, envs, c) for c in q.contrasts}
        answer = q.answer({name: each and each[0] for name, each in measured.items()})
        head, ends, before = ([q.id, q.question, q.design], [q.figure, answer, params.scale], len(rows))
        for c in q.contrasts:
            if not measured[c.name]:
                missing = [v for v in c.weights if not any(((env, v) in runs.cells for env in envs))]
                lines.append([q.id, c.name, f"{NOT_RUN}: {', '.join(missing) or 'table of outages'}", '', ''])
                continue
            estimate, n = measured[c.name]
            rows.append([*head, c.name, *estimate, c.unit, n, *ends])
            found = with_interval(*estimate, DIGITS.get(c.unit, 1), sign='+' if c.unit == POINTS else '')
            lines.append([q.id, c.name, found, c.unit, n])
        if len(rows) == before:
            rows.append([*head, '', *[np.nan] * 3, '', '', *ends])
    table = pd.DataFrame(rows, columns=COLUMNS)
    folder = Path(results) / 'tables'
    write_csv(table, folder / 'open_questions.csv')
    shown = markdown(HEAD, lines)
    note = NOTE.replace('{home}', home)
    note += f' {NOT_RUN}: not in the declared set of runs.' if any((NOT_RUN in line[2] for line in lines)) else ''
    title = f'# The open questions, scale {params.scale}'
    write_text(folder / 'open_questions.md', f'{title}\n\n{answered(table)}\n{shown}\n{note}\n')
    return table

def answered(table, question=''):
    if question and question not in set(table['id']):
        raise ReportError(f"there is no question {question}; there are {', '.join(dict.fromkeys(table['id']))}")
    chosen = table[(table['id'] == question) | (question == '')].drop_duplicates('id')
    texts = [f'**{q.id} {q.question}** {q.design}\n\n*Answer.* {q.answer}\n' for q in chosen.itertuples()]
    return '\n'.join(texts)

def contrasts(results):
    text = (Path(results) / 'tables' / 'open_questions.md').read_text(encoding='utf-8')
    return text[text.index(f'| {HEAD[0]} | {HEAD[1]} |'):]
