"""The tables: main comparison and roles, as CSV (long), Markdown and LaTeX; paired differences; headline numbers.

Rows come in the order of params.yaml. `simulator_calls` and `llm_calls` are everything that one run of the method used,
on average over its seeds (see `Runs.spent`), not only what it used in the test.
"""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd

from ace.report import stats
from ace.report.labels import label
from ace.report.runs import EPISODE_METRICS, RUN_METRICS, declared, is_same_day, named, read
from ace.report.typeset import latex, markdown, thousands, with_interval, write_csv, write_table, write_text

COLUMNS = ["env", "variant", "metric", "mean", "std", "iqm", "ci_low", "ci_high", "n_seeds", "n_episodes"]
COLUMNS += ["simulator_calls", "llm_calls", "scale"]
ROLES = ["ace", "ace_no_actor", "ace_no_critic", "sac"]
HAS_ROLE = {"ace": ("yes", "yes"), "ace_no_actor": ("no", "yes"), "ace_no_critic": ("yes", "no"), "sac": ("no", "no")}
# of these the main comparison tells too
MAIN_ABLATIONS = ["ace_no_actor", "ace_no_critic", "ace_literal", "ace_lean", "ace_elsewhere"]
# every method is compared with each of these
REFERENCES = ["reconnect", "sac", "sac_5k", "random_refine", "frequency_refine", "expert_sac", "ace"]
HEADLINE = ["survival", "reward"]
PAIR = ["difference", "ci_low", "ci_high"]
PROTOCOL = (
    "± is the standard deviation of the seeds' means (paper protocol; none for one seed). IQM: interquartile mean over "
    "seeds x episodes with a 95 % bootstrap interval that resamples seeds and episodes. Reward is summed over an episode, "
    "which differs in length by grid. "
)
CALLS = (
    "Calls are all that one run used: training, validation, language-model corpus and test. Simulator calls are AC power "
    "flows besides the environment's own steps"
)
INTERVALS = (
    "Intervals hold for these source days (see results/scenarios/; *same day*: one is packaged, and it is the training's "
    "too), and with few seeds they are too narrow: in a simulated null (benchmarks/intervals.py) with as much variance "
    "between seeds as between episodes, 17 % of the intervals of a paired difference left out 0 with 3 seeds and 11 % with "
    "5, instead of 5 %."
)
METHODS = (
    "Methods. Greedy look-ahead simulates at every decision; DC look-ahead in the set takes, of the language model's own set of "
    "actions, the one that a linear flow rates best, and learns nothing. SAC + expert, random, frequency refinement: in f_LLM's "
    "place a greedy look-ahead over the whole catalogue, a random legal action, or the actions that were most often right in the "
    "corpus proposes what the simulator validates; all three have ACE's loss, bad cases and rounds, but neither g_LLM nor LoRA. "
    "LLM4Teach: SAC, pulled less and less to proposals of the model that nobody validated. Language model alone: it is asked, "
    "and its proposals are simulated, at every decision of the test. SAC, five thousand decisions: trained for "
    "longer than all others, and validated every thousand decisions. ACE, smaller corpus: its language model learnt from a "
    "corpus of fewer states and fewer actions (language_models in params.yaml); nothing else differs. ACE, each round "
    "elsewhere: a further round of f_LLM names a substation where nothing was validated yet, and in every round its reasons "
    "name only those that may be answered; the two were not run apart."
)
NOTE = (
    f"{PROTOCOL}{CALLS}; DC calls are actions whose loadings a linear flow estimated, by one matrix product for thousands "
    "of them. Env. steps, all: of training, validation and corpus. Seconds are of one run, measured once on a shared "
    f"machine, without the corpus and the language model's own training. {INTERVALS}\n\n{METHODS}"
)
ROLES_NOTE = (
    f"{PROTOCOL}{CALLS}. What is deployed is the checkpoint of the best validation: the last two columns have at which "
    "decision it was saved, on average, and in how many seeds g_LLM had adjusted a reward before it. In the other seeds "
    f"g_LLM had no effect on what was tested. minus ACE: paired difference on identical episodes. {INTERVALS}"
)


def main_methods(params):
    """Methods of the main comparison: all that are declared but the sweeps, which are named ace_<what>."""
    return [v for v in declared(params) if not v.startswith("ace_") or v in MAIN_ABLATIONS]


def summarise(runs, metrics=None):
    """Long table with COLUMNS, one row for each (env, variant, metric); n_episodes is 0 for a metric of the run."""
    rows = []
    for env in runs.environments:
        for variant in runs.variants:
            calls = [round(runs.spent(env, variant, what)) for what in ("simulator_calls", "llm_calls")]
            for metric in metrics or [*EPISODE_METRICS, *RUN_METRICS]:
                found = stats.summary(runs.scores(env, variant, metric))
                n_episodes = 0 if metric in RUN_METRICS else found.n_episodes
                rows.append([env, variant, metric, *found[:6], n_episodes, *calls, runs.scale])
    return pd.DataFrame(rows, columns=COLUMNS)


def paired(runs, references=REFERENCES, metrics=HEADLINE):
    """Differences a - b on identical episodes; ci_low and ci_high from `stats.paired_difference`.

    A pair that stands both ways round is drawn once, the reference that is listed first as b, and mirrored.
    """
    rows, drawn = [], {}
    for env in runs.environments:
        for b in [reference for reference in references if reference in runs.variants]:
            for a in [variant for variant in runs.variants if variant != b]:
                for metric in metrics:
                    score_a, score_b = runs.scores(env, a, metric), runs.scores(env, b, metric)
                    if back := drawn.get((env, b, a, metric)):
                        difference = stats.Estimate(-back.value, -back.high, -back.low)
                    else:
                        difference = drawn[env, a, b, metric] = stats.paired_difference(score_a, score_b)
                    rows.append([env, a, b, metric, *difference, len(score_a), len(score_b), score_a.shape[1]])
    columns = ["env", "a", "b", "metric", "difference", "ci_low", "ci_high", "n_seeds", "n_seeds_b", "n_episodes"]
    return pd.DataFrame(rows, columns=columns)


def write_main(params, results, variants=None):
    """Main comparison: writes tables/main.{csv,md,tex} and tables/paired.csv under results. Returns (table, pairs).

    The CSV has COLUMNS and dc_calls, train_s (wall seconds of one run's training).
    """
    runs = read(params, results, variants or main_methods(params))
    table, pairs = summarise(runs), paired(runs)
    methods = list(zip(table["env"], table["variant"], strict=True))
    table["dc_calls"] = [round(runs.spent(*method, "dc_calls")) for method in methods]
    table["train_s"] = [runs.seconds(*method, "train") for method in methods]
    head = ["Grid", "Method", "Survival, %", "Survival IQM [95 %]", "Reward", "Reward IQM [95 %]", "Seeds x episodes"]
    head += ["Env. steps, all", "Topology actions an episode"]
    head += ["Simulator calls", "DC calls", "LLM calls", "LLM calls in the test", "Seconds to train"]
    rows = []
    for env in runs.environments:
        for variant in runs.variants:
            cells = by_metric(table, env, variant)
            rows.append(
                [named(params, env), label(variant), *mean_and_iqm(cells["survival"], 1), *mean_and_iqm(cells["reward"], 1)]
                + [f"{cells['survival'].n_seeds} x {cells['survival'].n_episodes}"]
                + [thousands(cells["env_steps_to_train"]["mean"])]
                + [thousands(cells["topology_actions"]["mean"])]
                + [thousands(cells["survival"][what]) for what in ("simulator_calls", "dc_calls", "llm_calls")]
                + [thousands(cells["llm_calls_test"]["mean"]), thousands(cells["survival"]["train_s"])]
            )
    write_table(results, "main", table, head, rows, f"Main comparison, scale {params.scale}", NOTE + _elsewhere(runs))
    write_csv(pairs, Path(results) / "tables" / "paired.csv")
    return table, pairs


def _elsewhere(runs, ours="ace"):
    """Which trained methods ran on a processor of another maker than ours, as a sentence; "" of none."""
    makers = {
        variant: {run.provenance.get("cpu", "").partition(" ")[0].partition("(")[0] for env in runs.environments
                  for run in runs.of(env, variant) if run.provenance and run.training is not None}
        for variant in runs.variants
    }  # fmt: skip
    others = [label(variant) for variant, found in makers.items() if found - {""} - makers.get(ours, found)]
    if not others:
        return ""
    told = "seconds and the luck of training depend on it (README, last known issue)"
    return f"\n\nRun on a processor of another maker than {label(ours)}, at least in part: {', '.join(others)}; {told}."


def write_roles(params, results, variants=None):
    """Roles of f_LLM and g_LLM: writes tables/ablation_roles.{csv,md,tex}. Returns the table.

    The CSV has COLUMNS; difference, difference_low, difference_high: variant - ace on identical episodes; and of the
    deployed checkpoints the mean number of decisions, checkpoint_decisions, and the number of seeds in which g_LLM had
    adjusted a reward before it, seeds_shaped: it starts late, and the best checkpoint may be an early one.
    """
    runs = read(params, results, variants or [variant for variant in ROLES if variant in declared(params)])
    table = summarise(runs, HEADLINE)
    pairs = paired(runs, ["ace"]).rename(
        columns={"a": "variant", "ci_low": "difference_low", "ci_high": "difference_high"}
    )
    differences = ["difference", "difference_low", "difference_high"]
    table = table.merge(pairs[["env", "variant", "metric", *differences]], how="left", on=["env", "variant", "metric"])
    deployed = [[env, v, *_deployed(runs.of(env, v))] for env in runs.environments for v in runs.variants]
    checkpoints = ["checkpoint_decisions", "seeds_shaped"]
    table = table.merge(pd.DataFrame(deployed, columns=["env", "variant", *checkpoints]), on=["env", "variant"])
    head = ["Grid", "Variant", "f_LLM", "g_LLM", "Survival, %", "Survival IQM [95 %]", "Survival minus ACE [95 %]"]
    head += ["Reward", "Reward IQM [95 %]", "Reward minus ACE [95 %]", "Seeds x episodes", "Simulator calls", "LLM calls"]
    head += ["Deployed at decision", "Seeds shaped by then"]
    rows = []
    for env in runs.environments:
        for variant in runs.variants:
            cells = by_metric(table, env, variant)
            row = [named(params, env), label(variant), *HAS_ROLE.get(variant, ("", ""))]
            for metric in HEADLINE:
                row += mean_and_iqm(cells[metric], 1)
                row.append(with_interval(*(cells[metric][name] for name in differences), 1, sign="+"))
            survival = cells["survival"]
            row += [f"{survival.n_seeds} x {survival.n_episodes}"]
            row += [thousands(survival.simulator_calls), thousands(survival.llm_calls)]
            rows.append([*row, thousands(survival.checkpoint_decisions), f"{survival.seeds_shaped} of {survival.n_seeds}"])
    write_table(results, "ablation_roles", table, head, rows, f"Roles of the language model, scale {params.scale}", ROLES_NOTE)
    return table


def roles_answer(params, table, metric="survival"):
    """What ACE loses without f_LLM and without g_LLM, a sentence for each grid, as Markdown. table: of `write_roles`."""
    lines = []
    for env in dict.fromkeys(table["env"]):
        cells = {variant: by_metric(table, env, variant).get(metric) for variant in ROLES}
        said = [
            f"{label(variant)} {_points(row.difference, row.difference_low, row.difference_high)}"
            for variant, row in cells.items()
            if row is not None and variant != "ace"
        ]
        ace = cells["ace"]
        checkpoint = f". g_LLM had a part in {ace.seeds_shaped} of {ace.n_seeds} of ACE's checkpoints" if ace is not None else ""
        lines.append(f"- **{named(params, env)}**, {metric} minus ACE's: {'; '.join(said) or 'nothing to compare'}{checkpoint}.")
    return "\n".join(lines)


def _deployed(seeds):
    """Mean number of decisions before the deployed checkpoints, and in how many seeds a reward was adjusted before it."""
    best = []
    for run in seeds:
        if run.training is not None:
            ranked = run.training.sort_values(["survival", "reward_mean"], ascending=False, kind="stable")
            best.append(ranked.iloc[0])
    shaped = [row for row in best if row.get("shaped", 0) > 0]
    return (float(np.mean([row["decisions"] for row in best])) if best else math.nan), len(shaped)


def write_numbers(runs, verdicts, results):
    """results/numbers.json for `dvc metrics`: env -> variant -> headline numbers; claims by verdict."""
    numbers = {}
    for env in runs.environments:
        numbers[env] = {}
        for variant in runs.methods_of(env):
            numbers[env][variant] = {
                "survival_percent": round(float(runs.scores(env, variant, "survival").mean()), 2),
                "reward": round(float(runs.scores(env, variant, "reward").mean()), 2),
                "simulator_calls": round(runs.spent(env, variant, "simulator_calls")),
                "llm_calls": round(runs.spent(env, variant, "llm_calls")),
            }
    numbers["claims"] = verdicts
    write_text(Path(results) / "numbers.json", json.dumps(numbers, indent=2) + "\n")
    return numbers


def told(low, high):
    """Whether an interval tells a difference: above, below, or not told apart from 0."""
    return "above 0" if low > 0 else "below 0" if high < 0 else "not told apart from 0"


def _points(difference, low, high):
    return f"{with_interval(difference, low, high, 1, sign='+')}, {told(low, high)}"


def leads(params, pairs, others, ours="ace", metric="survival"):
    """`ours` minus each of others, grid by grid, as Markdown. pairs: of `paired`, which may hold a pair the other way round.

    Says which grids count for no claim. What was not compared has no row.
    """
    rows = []
    for env in dict.fromkeys(pairs["env"]):
        for other in others:
            chosen = pairs[(pairs["env"] == env) & (pairs["metric"] == metric)]
            there = chosen[(chosen["a"] == ours) & (chosen["b"] == other)]
            back = chosen[(chosen["a"] == other) & (chosen["b"] == ours)]
            ends = there[PAIR].to_numpy(float) if len(there) else -back[[PAIR[0], PAIR[2], PAIR[1]]].to_numpy(float)
            rows += [[named(params, env), label(other), with_interval(*found, 1, sign="+"), told(*found[1:])] for found in ends]
    table = markdown(["Grid", f"{label(ours)} minus", f"{metric.capitalize()} [95 %]", "Told"], rows)
    same = [env for env in dict.fromkeys(pairs["env"]) if is_same_day(params, env)]
    return table + (f"\nTested on its training day, and counted for no claim: {', '.join(same)}.\n" if same else "")


def evidence(judged):
    """What each judged claim rests on, as Markdown: a paragraph a claim."""
    return "\n\n".join(f"Evidence of {row.id}: {row.evidence}" for row in judged.itertuples())


def write_parts(results, name, title, parts, note):
    """A table in several parts: tables/<name>.{md,tex}. parts: heading -> (head, rows)."""
    folder = Path(results) / "tables"
    text = "\n".join(f"## {part}\n\n{markdown(head, rows)}" for part, (head, rows) in parts.items())
    write_text(folder / f"{name}.md", f"# {title}\n\n{text}\n{note}\n")
    write_text(folder / f"{name}.tex", "\n".join(latex(*rows, f"{title}: {part.lower()}") for part, rows in parts.items()))


def by_metric(table, env, variant):
    chosen = table[(table["env"] == env) & (table["variant"] == variant)]
    return {row["metric"]: row for _, row in chosen.iterrows()}


def mean_and_iqm(row, digits):
    """mean ± std and IQM [low, high], as two strings."""
    spread = "" if math.isnan(row["std"]) else f" ± {row['std']:.{digits}f}"
    return f"{row['mean']:.{digits}f}{spread}", with_interval(row["iqm"], row["ci_low"], row["ci_high"], digits)
