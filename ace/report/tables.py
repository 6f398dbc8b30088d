"""The main comparison, the roles of the language model, paired differences and headline numbers.

Rows come in the order of params.yaml. `simulator_calls` and `llm_calls` are everything that one run of the method used,
on average over its seeds (see `Runs.spent`), not only what it used in the test.
"""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd

from ace import stats
from ace.config.host import maker
from ace.report import contrasts, notes
from ace.report.formatting import (
    markdown,
    thousands,
    value_with_std,
    with_interval,
    write_csv,
    write_parts,
    write_table,
    write_text,
)  # fmt: skip
from ace.report.labels import LABELS, grid_label, label
from ace.report.runs import EPISODE_METRICS, RUN_METRICS, declared, read

COLUMNS = ["env", "variant", "metric", "mean", "std", "iqm", "ci_low", "ci_high", "n_seeds", "n_episodes"]
COLUMNS += ["simulator_calls", "llm_calls", "scale"]
ROLES = ["ace", "ace_no_actor", "ace_no_critic", "sac"]
HAS_ROLE = {"ace": ("yes", "yes"), "ace_no_actor": ("no", "yes"), "ace_no_critic": ("yes", "no"), "sac": ("no", "no")}
HEADLINE = ["survival", "reward"]
PAIR = ["difference", "ci_low", "ci_high"]
SEEN = ["detectable", "p", "p_holm"]  # of a difference: smallest one that had 80 % power, p of none, corrected for the table's
HEAD = ["Method", "Survival, % [95 % CI]", "Reward", "Env. steps", "Simulator calls", "LLM calls", "n"]
PACKAGED = ["env", "variant", "survival", "ci_low", "ci_high", "test_survival", "test_ci_low", "test_ci_high"]
PACKAGED += ["simulator_calls", "dc_calls", "llm_calls", "env_steps", "n_seeds", "n_episodes", "scale"]
PACKAGED_HEAD = ["Method", "Packaged days: survival, % [95 % CI]", "Test: survival, % [95 % CI]", "Simulator calls", "LLM calls"]
PACKAGED_HEAD += ["n"]
LOWER = ["env", "variant", "limits", "survival", "ci_low", "ci_high", "lower_survival", "lower_ci_low", "lower_ci_high"]
LOWER += ["difference", "difference_low", "difference_high", "n_seeds", "n_episodes", "scale"]
LOWER_HEAD = ["Grid", "Method", "Survival, % [95 % CI]", "At lower limits, % [95 % CI]", "minus ACE [95 % CI]", "Limits, %", "n"]
ROLES_HEAD = ["Grid", "Variant", "f_LLM", "g_LLM", "Survival, % [95 % CI]", "minus ACE [95 % CI]"]
ROLES_HEAD += ["Reward", "minus ACE [95 % CI]", "Tested after g_LLM's first adjustment"]


def main_methods(params):
    """Methods of the main comparison: all that are run on every environment."""
    return declared(params)


def summarise(runs, metrics=None):
    """Long table with COLUMNS, one row for each (env, variant, metric); n_episodes is 0 for a metric of the run. ci_low and
    ci_high are the interval of the mean: that of an IQM is not to be trusted where many episodes end at 100 %
    (results/intervals.csv)."""
    rows = []
    for env in runs.environments:
        for variant in runs.variants:
            calls = [round(runs.spent(env, variant, what)) for what in ("simulator_calls", "llm_calls")]
            for metric in metrics or [*EPISODE_METRICS, *RUN_METRICS]:
                found = stats.summary(runs.scores(env, variant, metric), scale_of(metric))
                n_episodes = 0 if metric in RUN_METRICS else found.n_episodes
                rows.append([env, variant, metric, *found[:6], n_episodes, *calls, runs.scale])
    return pd.DataFrame(rows, columns=COLUMNS)


def scale_of(metric):
    """On which the interval of a mean is made."""
    return stats.PERCENT if metric == "survival" else stats.IDENTITY


def paired(runs, references=None):
    """Differences a - b on identical episodes, with SEEN; ci_low and ci_high from `stats.paired_difference`.

    references: each method is compared with each of these, default those of `contrasts.yaml`. A pair that occurs both ways
    round is mirrored. p_holm is corrected for all contrasts with the same b and metric.
    """
    rows, made = [], {}
    for env in runs.environments:
        for b in [each for each in references or contrasts.load().references if each in runs.variants]:
            for a in [variant for variant in runs.variants if variant != b]:
                for metric in HEADLINE:
                    score_a, score_b = runs.scores(env, a, metric), runs.scores(env, b, metric)
                    back = made.get((env, b, a, metric))
                    found = made[env, a, b, metric] = -back if back else stats.paired_difference(score_a, score_b)
                    sizes = [len(score_a), len(score_b), score_a.shape[1]]
                    rows.append([env, a, b, metric, *found, *sizes, found.detectable(), found.p()])
    columns = ["env", "a", "b", "metric", "difference", "ci_low", "ci_high", "n_seeds", "n_seeds_b", "n_episodes", *SEEN[:2]]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(p_holm=table.groupby(["b", "metric"])["p"].transform(stats.holm))


def write_main(params, results, folder, variants=None):
    """Main comparison of the runs under results: <folder>/main.{csv,md,tex} and paired.csv. Returns (table, pairs).

    The CSV has COLUMNS and dc_calls, train_s (wall seconds of one run's training), idle_seeds (of how many the tested policy
    never acts).
    """
    runs = read(params, results, variants or main_methods(params))
    table, pairs = summarise(runs), paired(runs)
    methods = list(zip(table["env"], table["variant"], strict=True))
    table["dc_calls"] = [round(runs.spent(*method, "dc_calls")) for method in methods]
    table["train_s"] = [runs.seconds(*method, "train") for method in methods]
    table["idle_seeds"] = [_idle_seeds(runs, *method) for method in methods]
    write_csv(table, Path(folder) / "main.csv")
    write_csv(pairs, Path(folder) / "paired.csv")
    parts = {}
    for env in runs.environments:
        parts[grid_label(env)] = HEAD, [_main_row(table, env, variant) for variant in runs.variants]
    write_parts(folder, "main", f"Main comparison, {runs.tested()}", parts, _main_note(params, runs), tex=True)
    return table, pairs


def write_packaged(runs, folder):
    """The same methods on the packaged days, with the test beside: <folder>/packaged.{csv,md,tex}. Returns a table with PACKAGED.

    runs: as read. Calls and steps are those of these episodes (mean of the seeds), which are in no other table. Of runs that
    have not played them there is no row, and without any row no file: one that is there is removed.
    """
    rows, parts = [], {}
    for env in runs.environments:
        for variant in runs.methods_of(env):
            scores = runs.on_packaged(env, variant)
            if scores is None:
                continue
            found, test = (stats.mean(each, stats.PERCENT) for each in (scores, runs.scores(env, variant, "survival")))
            budgets = [run.manifest["budget"]["packaged"] for run in runs.of(env, variant)]
            used = {what: round(np.mean([each[what] for each in budgets])) for what in PACKAGED[8:12]}
            rows.append([env, variant, *found, *test, *used.values(), *scores.shape, runs.scale])
            cells = [with_interval(*found, 1), with_interval(*test, 1)]
            cells += [thousands(used[what]) for what in ("simulator_calls", "llm_calls")]
            parts.setdefault(grid_label(env), (PACKAGED_HEAD, []))[1].append(
                [label(variant), *cells, f"{scores.shape[0]} x {scores.shape[1]}"]
            )
    table = pd.DataFrame(rows, columns=PACKAGED)
    if rows:
        write_csv(table, Path(folder) / "packaged.csv")
        write_parts(folder, "packaged", f"On the packaged days, {runs.tested()}", parts, notes.note("main.packaged"))
    else:
        _remove(folder, "packaged")
    return table


def write_lower_limits(runs, folder, reference="ace"):
    """The same methods in the test at lower thermal limits: <folder>/lower_limits.{csv,md,tex}. Returns a table with LOWER.

    runs: as read. limits: share of the environment's; difference: to `reference`'s survival there, paired by episode. Of runs
    that have not played it there is no row, and without any row no file: those that are there are removed.
    """
    rows, cells = [], []
    played = {cell: scores for cell in runs.cells if (scores := runs.at_lower_limits(*cell)) is not None}
    for (env, variant), scores in played.items():
        found = [*stats.mean(runs.scores(env, variant, "survival"), stats.PERCENT)], [*stats.mean(scores, stats.PERCENT)]
        compared = variant != reference and (env, reference) in played
        difference = [*stats.paired_difference(scores, played[env, reference])] if compared else [math.nan] * 3
        limits = runs.of(env, variant)[0].manifest["lower_limits"]
        rows.append([env, variant, limits, *found[0], *found[1], *difference, *scores.shape, runs.scale])
        shown = [*(with_interval(*each, 1) for each in found), with_interval(*difference, 1, sign="+")]
        cells.append([grid_label(env), label(variant), *shown, f"{100 * limits:g}", f"{scores.shape[0]} x {scores.shape[1]}"])
    table = pd.DataFrame(rows, columns=LOWER)
    if rows:
        title = f"At lower thermal limits, {runs.tested()}"
        write_table(folder, "lower_limits", table, LOWER_HEAD, cells, title, notes.note("main.lower_limits"))
    else:
        _remove(folder, "lower_limits")
    return table


def _remove(folder, name):
    for kind in ("csv", "md", "tex"):
        (Path(folder) / f"{name}.{kind}").unlink(missing_ok=True)


def _main_row(table, env, variant):
    cells = by_metric(table, env, variant)
    survival = cells["survival"]
    return [
        label(variant), mean_with_interval(survival), mean_and_std(cells["reward"]),
        thousands(cells["env_steps_to_train"]["mean"]),
        *(thousands(survival[what]) for what in ("simulator_calls", "llm_calls")),
        f"{survival.n_seeds} x {survival.n_episodes}",
    ]  # fmt: skip


def _main_note(params, runs):
    """What the columns mean, then of the methods that this table shows only."""
    methods = []
    for variant in runs.variants:
        if notes.has(f"main.{variant}"):
            methods.append(f"- {label(variant)}: {notes.note(f'main.{variant}')}")
        elif variant not in LABELS:
            settings = ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in changes(params, variant).items())
            methods.append(f"- {label(variant)}: {notes.note('main.other', settings=settings or 'no setting of its own')}")
    return "\n\n".join(filter(None, [notes.note("main"), "\n".join(methods), _idle(runs), _processors(runs)]))


def changes(params, variant):
    """What params.yaml changes for a variant: section.name -> value."""
    flat = {}
    for section, value in params.variants.get(variant, {}).items():
        flat |= {f"{section}.{name}": each for name, each in value.items()} if isinstance(value, dict) else {section: value}
    return flat


def _idle_seeds(runs, env, variant):
    """Number of seeds whose trained policy took no topology action in the whole test."""
    return sum(run.training is not None and not run.episodes["topology_actions"].any() for run in runs.of(env, variant))


def _idle(runs):
    """Of which methods some tested policies never act, by grid, as a sentence; "" of none."""
    grids = []
    for env in runs.environments:
        counts = {variant: _idle_seeds(runs, env, variant) for variant in runs.methods_of(env)}
        if found := [f"{label(v)} {n} of {len(runs.of(env, v))}" for v, n in counts.items() if n]:
            grids.append(f"{', '.join(found)} ({grid_label(env)})")
    return notes.note("main.idle", methods="; ".join(grids)) if grids else ""


def _processors(runs, ours="ace"):
    """Which trained methods ran on a processor of another maker than ours, by grid, as a sentence; "" of none."""
    others = []
    for env in runs.environments:
        trained = {name: [run for run in runs.of(env, name) if run.training is not None] for name in runs.methods_of(env)}
        cpus = {name: {run.provenance.get("cpu", "") for run in own if run.provenance} for name, own in trained.items()}
        makers = {name: {maker(cpu) or cpu for cpu in found} for name, found in cpus.items()}
        if names := [label(variant) for variant, found in makers.items() if found - {""} - makers.get(ours, found)]:
            others.append(f"{'; '.join(names)} ({grid_label(env)})")
    return notes.note("main.processor", reference=label(ours), methods="; ".join(others)) if others else ""


def write_roles(params, results, folder, variants=None):
    """Roles of f_LLM and g_LLM: <folder>/ablation_roles.{csv,md,tex}. Returns the table.

    The CSV has COLUMNS; difference, difference_low, difference_high: variant - ace on identical episodes, with SEEN; and of the
    deployed checkpoints the mean number of decisions, checkpoint_decisions, and the number of seeds in which g_LLM had
    adjusted a reward before it, seeds_shaped: it starts late, and the best checkpoint may be an early one.
    """
    runs = read(params, results, variants or [variant for variant in ROLES if variant in declared(params)])
    table = summarise(runs, HEADLINE)
    pairs = paired(runs, ["ace"]).rename(
        columns={"a": "variant", "ci_low": "difference_low", "ci_high": "difference_high"}
    )
    differences, keys = ["difference", "difference_low", "difference_high"], ["env", "variant", "metric"]
    table = table.merge(pairs[[*keys, *differences]], how="left", on=keys)
    deployed = [[env, v, *_deployed(runs.of(env, v))] for env in runs.environments for v in runs.variants]
    checkpoints = ["checkpoint_decisions", "seeds_shaped"]
    table = table.merge(pd.DataFrame(deployed, columns=["env", "variant", *checkpoints]), on=["env", "variant"])
    table, rows = table.merge(pairs[[*keys, *SEEN]], how="left", on=keys), []
    for env in runs.environments:
        for variant in runs.variants:
            survival, reward = (by_metric(table, env, variant)[metric] for metric in HEADLINE)
            row = [grid_label(env), label(variant), *HAS_ROLE.get(variant, ("", ""))]
            row += [mean_with_interval(survival), with_interval(*(survival[name] for name in differences), 1, sign="+")]
            row += [mean_and_std(reward), with_interval(*(reward[name] for name in differences), 1, sign="+")]
            rows.append([*row, f"{survival.seeds_shaped} of {survival.n_seeds}"])
    title = f"Roles of the language model, {runs.tested()}"
    write_table(folder, "ablation_roles", table, ROLES_HEAD, rows, title, notes.note("roles"), tex=True)
    return table


def roles_answer(table, metric="survival"):
    """What ACE loses without f_LLM and without g_LLM, a line for each grid, as Markdown. table: of `write_roles`."""
    lines = []
    for env in dict.fromkeys(table["env"]):
        cells = {variant: by_metric(table, env, variant).get(metric) for variant in ROLES}
        said = [
            f"{label(variant)} {_points(row.difference, row.difference_low, row.difference_high)}"
            for variant, row in cells.items()
            if row is not None and variant != "ace"
        ]
        ace = cells["ace"]
        shaped = f". g_LLM shaped {ace.seeds_shaped} of {ace.n_seeds} of ACE's tested checkpoints" if ace is not None else ""
        lines.append(f"- **{grid_label(env)}**, {metric} minus ACE's: {'; '.join(said) or 'nothing to compare'}{shaped}.")
    return "\n".join(lines)


def _deployed(seeds):
    """Mean number of decisions before the deployed checkpoints, and in how many seeds a reward was adjusted before it."""
    best = [run.checkpoint for run in seeds if run.training is not None]
    shaped = [row for row in best if row.get("shaped", 0) > 0]
    return (float(np.mean([row["decisions"] for row in best])) if best else math.nan), len(shaped)


def write_numbers(runs, verdicts, folder):
    """<folder>/numbers.json for `dvc metrics`: env -> variant -> headline numbers; claims by verdict."""
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
    write_text(Path(folder) / "numbers.json", json.dumps(numbers, indent=2) + "\n")
    return numbers


def _points(difference, low, high):
    return f"{with_interval(difference, low, high, 1, sign='+')}, {stats.describe_interval(low, high)}"


def leads(pairs, others, ours="ace", metric="survival"):
    """`ours` minus each of others, grid by grid, as Markdown. pairs: of `paired`, which may hold a pair the other way round.

    What was not compared has no row.
    """
    rows = []
    for env in dict.fromkeys(pairs["env"]):
        for other in others:
            chosen = pairs[(pairs["env"] == env) & (pairs["metric"] == metric)]
            there = chosen[(chosen["a"] == ours) & (chosen["b"] == other)]
            back = chosen[(chosen["a"] == other) & (chosen["b"] == ours)]
            ends = there[PAIR].to_numpy(float) if len(there) else -back[[PAIR[0], PAIR[2], PAIR[1]]].to_numpy(float)
            for found in ends:
                difference = with_interval(*found, 1, sign="+")
                rows.append([grid_label(env), label(other), difference, stats.describe_interval(*found[1:])])
    return markdown(["Grid", f"{label(ours)} minus", f"{metric.capitalize()} [95 % CI]", "Difference"], rows)


def evidence(judged):
    """What each judged claim rests on, as Markdown: a paragraph a claim."""
    return "\n\n".join(f"Evidence of {row.id}: {row.evidence}" for row in judged.itertuples())


def by_metric(table, env, variant):
    chosen = table[(table["env"] == env) & (table["variant"] == variant)]
    return {row["metric"]: row for _, row in chosen.iterrows()}


def mean_and_std(row, digits=1):
    """mean ± std of the seeds' means; the mean alone of one seed."""
    return value_with_std(row["mean"], row["std"], digits)


def mean_with_interval(row, digits=1):
    """mean [low, high]."""
    return with_interval(row["mean"], row["ci_low"], row["ci_high"], digits)
