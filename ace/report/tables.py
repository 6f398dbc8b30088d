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
from ace.report.runs import EPISODE_METRICS, RUN_METRICS, declared, named, read
from ace.report.typeset import thousands, with_interval, write_csv, write_table, write_text

COLUMNS = ["env", "variant", "metric", "mean", "std", "iqm", "ci_low", "ci_high", "n_seeds", "n_episodes"]
COLUMNS += ["simulator_calls", "llm_calls", "scale"]
ROLES = ["ace", "ace_no_actor", "ace_no_critic", "sac"]
HAS_ROLE = {"ace": ("yes", "yes"), "ace_no_actor": ("no", "yes"), "ace_no_critic": ("yes", "no"), "sac": ("no", "no")}
MAIN_ABLATIONS = ["ace_no_actor", "ace_no_critic", "ace_literal"]  # the ablations that the main comparison shows too
# every method is compared with each of these
REFERENCES = ["reconnect", "sac", "random_refine", "frequency_refine", "expert_sac", "ace"]
HEADLINE = ["survival", "reward"]
NOTE = (
    "± is the standard deviation of the seeds' means (paper protocol; none for one seed). IQM: interquartile mean over "
    "seeds x episodes with a 95 % bootstrap interval that resamples seeds and episodes. Reward is summed over an episode, "
    "which differs in length by grid. Calls are all that one run used: training, validation, language-model corpus and "
    "test; environment steps to train include validation and corpus. Simulator calls are AC power flows; DC calls are "
    "actions whose loadings a linear flow estimated, by one matrix product for thousands of them. Seconds are of one run, "
    "measured once on a shared machine, without the corpus and the language model's own training. Intervals hold for "
    "these source days (see results/scenarios/; *same day*: one is packaged, and it is the training's too), and with few "
    "seeds they are too narrow: in a simulated null (benchmarks/intervals.py) with as much variance between seeds as between "
    "episodes, 17 % of the intervals of a paired difference left out 0 with 3 seeds and 11 % with 5, instead of 5 %. The "
    "refining controls (expert, random, frequency) have ACE's loss, bad cases and rounds, but neither g_LLM nor LoRA; "
    "random and frequency differ from it by the proposer, the expert also by the actions that it may propose: all of the "
    "catalogue."
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
    """Differences a - b on identical episodes; ci_low and ci_high from `stats.paired_difference`."""
    rows = []
    for env in runs.environments:
        for b in [reference for reference in references if reference in runs.variants]:
            for a in [variant for variant in runs.variants if variant != b]:
                for metric in metrics:
                    score_a, score_b = runs.scores(env, a, metric), runs.scores(env, b, metric)
                    difference = stats.paired_difference(score_a, score_b)
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
    head = ["Grid", "Method", "Survival, %", "IQM [95 %]", "Reward", "IQM [95 %]", "Seeds x episodes"]
    head += ["Env. steps to train", "Topology actions an episode"]
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
    write_table(results, "main", table, head, rows, f"Main comparison, scale {params.scale}", NOTE)
    write_csv(pairs, Path(results) / "tables" / "paired.csv")
    return table, pairs


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
    head = ["Grid", "Variant", "f_LLM", "g_LLM", "Survival, %", "IQM [95 %]", "minus ACE [95 %]"]
    head += ["Reward", "IQM [95 %]", "minus ACE [95 %]", "Seeds x episodes", "Simulator calls", "LLM calls"]
    head += ["Decisions before the checkpoint", "Seeds with adjustments before it"]
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
    write_table(results, "ablation_roles", table, head, rows, f"Roles of the language model, scale {params.scale}", NOTE)
    return table


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


def by_metric(table, env, variant):
    chosen = table[(table["env"] == env) & (table["variant"] == variant)]
    return {row["metric"]: row for _, row in chosen.iterrows()}


def mean_and_iqm(row, digits):
    """mean ± std and IQM [low, high], as two strings."""
    spread = "" if math.isnan(row["std"]) else f" ± {row['std']:.{digits}f}"
    return f"{row['mean']:.{digits}f}{spread}", with_interval(row["iqm"], row["ci_low"], row["ci_high"], digits)
