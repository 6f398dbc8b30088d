"""The open questions 1 to 6: question, design, contrasts with intervals, and an answer.

A contrast is a weighted sum of the variants' means on identical test episodes and on the seeds that all of them were run
with. `ace/report/answers.py` says how an answer follows from the intervals.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ace import stats
from ace.report import answers, notes
from ace.report.ablations import COUNTS
from ace.report.formatting import with_interval, write_csv, write_parts
from ace.report.labels import SWEEP, grid_label
from ace.report.runs import EPISODE_METRICS, ReportError, read

POINTS = "pts of survival"
DIGITS = {"share of the target": 2, "simulator calls": 0}  # 1 for all others
COLUMNS = ["id", "question", "design", "contrast", "estimate", "ci_low", "ci_high", "unit", "n"]
COLUMNS += ["figure", "answer", "scale"]
HEAD = ["Question", "Contrast", "Estimate [95 % CI]", "Unit", "n"]


def _survival(run):
    """(E,) percent of the horizon."""
    column, factor = EPISODE_METRICS["survival"]
    return factor * run.episodes[column].to_numpy(float)


def _entropy_at_the_end(run):
    """Policy entropy of the last validation's stretch, as a share of SAC's target; one value."""
    return [run.training["entropy"].iloc[-1] / run.manifest["settings"]["sac"]["target_entropy"]]


def _fall(run):
    """Best less last validation survival, points; one value."""
    return [100 * (run.training["survival"].max() - run.training["survival"].iloc[-1])]


def _simulated(run):
    return [COUNTS["simulator_calls_train"](run.manifest)]


def _simulated_for_corpus(run):
    """Once for all runs that use the language model, each of which needs all of it."""
    return [COUNTS["simulator_calls_corpus"](run.manifest)]


@dataclass(frozen=True)
class Contrast:
    """Sum of weight x mean over variants. value: Run -> (E,) values, of episodes or one of the run."""

    name: str
    weights: dict
    unit: str = POINTS
    value: Callable = _survival


def _minus(name, a, b):
    return Contrast(name, {a: 1.0, b: -1.0})


@dataclass(frozen=True)
class Question:
    """answer: {name of a contrast: Estimate or None} -> phrase. everywhere: on all grids, not the ablations' alone."""

    id: str
    question: str
    design: str
    contrasts: list
    answer: Callable
    figure: str
    everywhere: bool = False


def measure(runs, envs, contrast):
    """Estimate and n in words, averaged over the grids; None where a variant of the contrast was not run."""
    variants = list(contrast.weights)
    envs = [env for env in runs.environments_of(variants) if env in envs]
    if not envs:
        return None
    strata, seeds = [], set()
    for env in envs:
        common = runs.seeds_of_all(env, variants)
        seeds.add(len(common))
        chosen = [runs.of(env, variant, common) for variant in variants]
        strata.append([np.array([contrast.value(run) for run in cell], dtype=float) for cell in chosen])
    weights = np.array(list(contrast.weights.values()))
    n = f"{len(envs)} env x {'/'.join(map(str, sorted(seeds)))} seed{'' if seeds == {1} else 's'}"
    n += f" x {strata[0][0].shape[1]} episodes" if contrast.value is _survival else ""
    return stats.estimate(strata, lambda means: (means * weights).sum(axis=-1)), n


ROUNDS = [("none", "llm4teach"), ("one", "ace_rounds_1"), ("three", "ace_rounds_3"), ("five", "ace")]
JUDGED = {k: "ace" if k == "04" else f"ace_K{k}" for k in SWEEP}  # K -> the variant in which g_LLM shapes with it

QUESTIONS = [
    Question(
        "Q1",
        "Does a text that describes a topology action close the gap of trajectory selection by action?",
        "Key decisions of g_LLM selected by how rare the action is; the prompt shows actions as descriptions or as bare "
        "indices. Closed: described is above index, and selection by reward is not above described.",
        [
            _minus("described minus bare index", "ace_select_action", "ace_select_action_index"),
            _minus("reward minus action (described)", "ace", "ace_select_action"),
            _minus("reward minus action (bare index)", "ace", "ace_select_action_index"),
        ],
        answers.answer_1,
        "open_questions",
    ),
    Question(
        "Q2",
        "How much does the simulator budget of multi-round validation matter: 0, 1, 3, 5 rounds?",
        "Rounds of f_LLM's proposals with the simulator's verdict in between. No round is LLM4Teach: the policy is drawn "
        "towards proposals that are not validated, without g_LLM and LoRA, so more than the rounds differs there.",
        [
            _minus("five rounds minus none", "ace", "llm4teach"),
            _minus("five rounds minus one", "ace", "ace_rounds_1"),
            _minus("five rounds minus three", "ace", "ace_rounds_3"),
            *(Contrast(f"{name}: calls", {variant: 1.0}, "simulator calls", _simulated) for name, variant in ROUNDS),
            Contrast("the corpus: calls", {"ace": 1.0}, "simulator calls", _simulated_for_corpus),
        ],
        answers.answer_2,
        "reasoning",
    ),
    Question(
        "Q3",
        "Does co-evolution stay stable with a sparse reward?",
        "SAC learns from blackouts only; f_LLM's refinements are still chosen, validated and weighted by the dense reward. "
        f"Stable: the policy's entropy ends above {answers.COLLAPSED} of SAC's target (interval), and the last validation is "
        f"less than {answers.FALLEN:g} points below the best (mean of the seeds).",
        [
            _minus("ACE minus SAC (sparse)", "ace_sparse", "ace_sparse_sac"),
            _minus("ACE, sparse minus dense", "ace_sparse", "ace"),
            Contrast("entropy at the end", {"ace_sparse": 1.0}, "share of the target", _entropy_at_the_end),
            Contrast("best minus last validation", {"ace_sparse": 1.0}, "pts of validation survival", _fall),
        ],
        answers.answer_3,
        "open_questions",
    ),
    Question(
        "Q4",
        "Which part comes from f_LLM and which from g_LLM?",
        "Each alone, both, neither (SAC). From a role: alone it is above neither.",
        [
            _minus("f_LLM alone minus neither", "ace_no_critic", "sac"),
            _minus("g_LLM alone minus neither", "ace_no_actor", "sac"),
            _minus("both minus neither", "ace", "sac"),
            _minus("both minus f_LLM alone", "ace", "ace_no_critic"),
            _minus("both minus g_LLM alone", "ace", "ace_no_actor"),
            Contrast("interaction", {"ace": 1.0, "ace_no_critic": -1.0, "ace_no_actor": -1.0, "sac": 1.0}),
        ],
        answers.answer_4,
        "open_questions",
        everywhere=True,
    ),
    Question(
        "Q5",
        "Is g_LLM credit assignment or noise?",
        "For each K, ACE against a control that moves the rewards of as many random decisions by random multiples of K. "
        "Credit assignment: the mean difference over the four K is above 0.",
        [
            Contrast(
                "g_LLM minus random, mean over K",
                {**dict.fromkeys(JUDGED.values(), 1 / 4), **{f"ace_random_K{k}": -1 / 4 for k in JUDGED}},
            ),
            *(_minus(f"K = {k[0]}.{k[1:]}: g_LLM minus random", v, f"ace_random_K{k}") for k, v in JUDGED.items()),
            _minus("g_LLM minus no shaping", "ace", "ace_no_critic"),
        ],
        answers.answer_5,
        "shaping",
    ),
    Question(
        "Q6",
        "Does it generalise: trained on half of the scenarios, tested on unseen ones?",
        "All or half of the training scenarios, f_LLM asked often or rarely, compared with SAC; test scenarios are of other "
        "weeks. Yes: trained on half, ACE with f_LLM asked often is above SAC.",
        [
            _minus("half: ACE (often) minus SAC", "ace_half_query_high", "ace_half_sac"),
            _minus("half: ACE (rarely) minus SAC", "ace_half_query_low", "ace_half_sac"),
            _minus("ACE (often): all minus half", "ace_query_high", "ace_half_query_high"),
            _minus("ACE (rarely): all minus half", "ace_query_low", "ace_half_query_low"),
            _minus("SAC: all minus half", "sac", "ace_half_sac"),
        ],
        answers.answer_6,
        "generalisation",
    ),
]


def write(params, results, folder):
    """Answers all; <folder>/open_questions.{csv,md,tex} of the runs under results. Returns the table, a row a contrast.

    A question of which nothing was run has one row without an estimate.
    """
    runs, home = read(params, results), params.grid.ablations.environment
    rows, lines, missing = [], [], []
    for q in QUESTIONS:
        envs = runs.counted(runs.environments) if q.everywhere else [home]
        measured = {contrast.name: measure(runs, envs, contrast) for contrast in q.contrasts}
        answer = q.answer({name: each and each[0] for name, each in measured.items()})
        head, ends, before = [q.id, q.question, q.design], [q.figure, answer, params.scale], len(rows)
        for c in q.contrasts:
            if not measured[c.name]:
                missing.append(f"{q.id} {c.name}")
                continue
            estimate, n = measured[c.name]
            rows.append([*head, c.name, *estimate, c.unit, n, *ends])
            found = with_interval(*estimate, DIGITS.get(c.unit, 1), sign="+" if c.unit == POINTS else "")
            lines.append([q.id, c.name, found, c.unit, n])
        if len(rows) == before:
            rows.append([*head, "", *[np.nan] * 3, "", "", *ends])
    table = pd.DataFrame(rows, columns=COLUMNS)
    write_csv(table, Path(folder) / "open_questions.csv")
    note = notes.note("open_questions", home=grid_label(home))
    note += "\n\n" + notes.note("open_questions.missing", names="; ".join(missing)) if missing else ""
    title, parts = f"The open questions, {runs.tested()}", {"All contrasts": (HEAD, lines)}
    write_parts(folder, "open_questions", title, parts, note, lead=f"{answered(table)}\n")
    return table


def answered(table, question=""):
    """Question, design and answer of all, or of one by its id, as Markdown. table: as `write` makes it."""
    if question and question not in set(table["id"]):
        raise ReportError(f"there is no question {question}; there are {', '.join(dict.fromkeys(table['id']))}")
    chosen = table[(table["id"] == question) | (question == "")].drop_duplicates("id")
    texts = [f"**{q.id} {q.question}** {q.design}\n\n*Answer*: {q.answer}.\n" for q in chosen.itertuples()]
    return "\n".join(texts)
