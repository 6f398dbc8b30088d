"""The tables: main comparison and roles, as CSV (long), Markdown and LaTeX; paired differences; headline numbers.

Numbers are written with six significant digits and rows in the order of params.yaml, so that the same run files give
the same bytes. `simulator_calls` and `llm_calls` are everything that one run of the method used, on average over its
seeds (see `Runs.spent`), not only what it used in the test.
"""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd

from ace.report import stats
from ace.report.runs import EPISODE_METRICS, RUN_METRICS, declared, read

SWEEP = ("01", "02", "04", "08")  # how K is written in the names of variants
LABELS = {
    "do_nothing": "Do nothing",
    "reconnect": "Reconnect lines",
    "greedy": "Greedy look-ahead",
    "sac": "SAC",
    "ace": "ACE",
    "ace_no_actor": "ACE without f_LLM",
    "ace_no_critic": "ACE without g_LLM",
    "ace_literal": "ACE, the paper's loss alone",
    "expert_sac": "SAC + expert",
    "random_refine": "SAC + random refinement",
    "frequency_refine": "SAC + frequency refinement",
    "dc_argmin": "DC look-ahead in the set",
    "llm_only": "Language model alone",
    "llm4teach": "LLM4Teach",
    "ace_prior": "ACE, prior from D_LLM",
    # ACE taken apart; the setting itself stands beside the label and comes from the run files
    "ace_query_high": "ACE, f_LLM often",
    "ace_query_low": "ACE, f_LLM seldom",
    "ace_rbar_neg": "ACE, lower threshold",
    "ace_rbar_zero": "ACE, same threshold, all bad cases",
    "ace_rbar_pos": "ACE, higher threshold",
    "ace_no_finetune": "ACE without LoRA",
    "ace_lora_1": "ACE, LoRA seldom",
    "ace_lora_3": "ACE, LoRA often",
    "ace_critic_high": "ACE, g_LLM often",
    "ace_critic_low": "ACE, g_LLM seldom",
    "ace_select_state": "ACE, selection by state",
    "ace_select_action": "ACE, selection by action, described",
    "ace_select_action_index": "ACE, selection by action, bare index",
    **{f"ace_K{k}": f"ACE, K = {k[0]}.{k[1:]}" for k in SWEEP},
    **{f"ace_random_K{k}": f"ACE, random shaping, K = {k[0]}.{k[1:]}" for k in SWEEP},
    "ace_no_bad_case": "ACE without bad cases",
    "ace_rounds_1": "ACE, one round",
    "ace_rounds_3": "ACE, three rounds",
    "ace_sparse": "ACE, sparse reward",
    "ace_sparse_sac": "SAC, sparse reward",
    "ace_long": "ACE, trained longer",
    "ace_long_sac": "SAC, trained longer",
    "ace_half_query_high": "ACE on half of the scenarios, f_LLM often",
    "ace_half_query_low": "ACE on half of the scenarios, f_LLM seldom",
    "ace_half_sac": "SAC on half of the scenarios",
    "ace_again": "ACE once more, another processor",
    "sac_20k": "SAC, as many steps as ACE in all",
    "expert_100k": "SAC + expert, trained longer",
}
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
    "seeds x episodes with a 95 % bootstrap interval that resamples seeds and episodes. Calls are all that one run "
    "used: training, validation, language-model corpus and test; environment steps to train include validation and "
    "corpus. Simulator calls are AC power flows; DC calls are actions whose loadings a linear flow estimated, by one "
    "matrix product for thousands of them. Seconds are of one run, measured once on a shared machine, without the corpus and the language model's own "
    "training. Intervals hold for these source days (see results/scenarios/), and with few seeds they are too narrow: "
    "in a simulated null (benchmarks/intervals.py) with as much variance between seeds as between episodes, 17 % of the "
    "intervals of a paired difference left out 0 with 3 seeds and 11 % with 5, instead of 5 %. The refining controls "
    "(expert, random, frequency) have ACE's loss, bad cases and rounds, but neither g_LLM nor LoRA; random and frequency "
    "differ from it by the proposer, the expert also by the actions that it may propose: all of the catalogue."
)


def label(variant):
    """Name of a variant for people; its own name where it has none."""
    return LABELS.get(variant, variant)


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
            cells = _cells(table, env, variant)
            rows.append(
                [env, label(variant), *_scores(cells["survival"], 1), *_scores(cells["reward"], 1)]
                + [f"{cells['survival'].n_seeds} x {cells['survival'].n_episodes}"]
                + [_count(cells["env_steps_to_train"]["mean"])]
                + [_count(cells["topology_actions"]["mean"])]
                + [_count(cells["survival"][what]) for what in ("simulator_calls", "dc_calls", "llm_calls")]
                + [_count(cells["llm_calls_test"]["mean"]), _count(cells["survival"]["train_s"])]
            )
    _write_three(results, "main", table, head, rows, f"Main comparison, scale {params.scale}")
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
            cells = _cells(table, env, variant)
            row = [env, label(variant), *HAS_ROLE.get(variant, ("", ""))]
            for metric in HEADLINE:
                row += _scores(cells[metric], 1)
                row.append(_with_interval(*(cells[metric][name] for name in differences), 1, sign="+"))
            survival = cells["survival"]
            row += [f"{survival.n_seeds} x {survival.n_episodes}"]
            row += [_count(survival.simulator_calls), _count(survival.llm_calls)]
            rows.append([*row, _count(survival.checkpoint_decisions), f"{survival.seeds_shaped} of {survival.n_seeds}"])
    _write_three(results, "ablation_roles", table, head, rows, f"Roles of the language model, scale {params.scale}")
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
    _write(Path(results) / "numbers.json", json.dumps(numbers, indent=2) + "\n")
    return numbers


def number(value):
    """Six significant digits, no exponent, nothing for nan: the one way a number gets into a CSV."""
    if value is None or value is pd.NA:
        return ""
    if isinstance(value, (str, int, np.integer)):
        return str(value)
    if not math.isfinite(value):
        return ""
    text = np.format_float_positional(float(value), precision=6, unique=False, fractional=False, trim="-")
    return "0" if text in ("-0", "0") else text


def write_csv(table, path):
    """UTF-8, \\n at line ends, cells by `number`."""
    text = table.astype(object).map(number).to_csv(index=False, lineterminator="\n")
    _write(path, text)


def markdown(head, rows):
    """A Markdown table; cells are strings."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def latex(head, rows, caption):
    """A booktabs table; the caption is ours, to be edited where it is used."""
    body = [" & ".join(_tex(cell) for cell in row) + " \\\\\n" for row in [head, *rows]]
    columns = "ll" + "r" * (len(head) - 2)
    return (
        f"% {caption}; needs booktabs\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n"
        f"{body[0]}\\midrule\n{''.join(body[1:])}\\bottomrule\n\\end{{tabular}}\n"
    )


def _cells(table, env, variant):
    chosen = table[(table["env"] == env) & (table["variant"] == variant)]
    return {row["metric"]: row for _, row in chosen.iterrows()}


def _scores(row, digits):
    """mean ± std and IQM [low, high], as two strings."""
    spread = "" if math.isnan(row["std"]) else f" ± {row['std']:.{digits}f}"
    return f"{row['mean']:.{digits}f}{spread}", _with_interval(row["iqm"], row["ci_low"], row["ci_high"], digits)


def _with_interval(value, low, high, digits, sign=""):
    if math.isnan(value):
        return ""
    ends = "" if math.isnan(low) else f" [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"
    return f"{value:{sign}.{digits}f}{ends}"


def _count(value):
    return f"{round(value):,}" if math.isfinite(value) else "–"


def _tex(cell):
    for plain, command in (("%", "\\%"), ("_", "\\_"), ("±", "$\\pm$"), (" x ", " $\\times$ ")):
        cell = cell.replace(plain, command)
    return cell


def _write_three(results, name, table, head, rows, title, note=NOTE):
    folder = Path(results) / "tables"
    write_csv(table, folder / f"{name}.csv")
    _write(folder / f"{name}.md", f"# {title}\n\n{markdown(head, rows)}\n{note}\n")
    _write(folder / f"{name}.tex", latex(head, rows, title))


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
