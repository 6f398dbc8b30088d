"""Table 3: the ablations, group by group (`contrasts.yaml`), every variant compared with the reference of its group.

Ablations run on one environment with fewer seeds than ACE has. So a difference takes the seeds that both were run with
(they share the start of the networks and the order of the scenarios) and identical test episodes; the seeds of each count by
themselves still, since from there on training runs part ways.

The table shows what was run. A declared ablation that has no group of its own, such as one that a user adds, is in "Other".
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ace import stats
from ace.report import contrasts, notes
from ace.report.formatting import in_points, markdown, thousands, write_csv, write_parts
from ace.report.labels import grid_label, label
from ace.report.runs import RUN_METRICS, Runs, ablations, adjusted, declared, read
from ace.report.tables import HEADLINE, SEEN, by_metric, changes, mean_and_std, mean_with_interval, scale_of

NOT_RUN = "not run"
OTHER = "Other"
HALVES = ("ace_half_query_high", "ace_half_query_low", "ace_half_sac")  # shown in 23_figure_generalisation


# of one run, from its manifest
COUNTS = {
    "refinements": lambda manifest: manifest.get("refinements", 0),
    # as many as there were, whatever finetune.every promised; a round that lowers the held-out rate isn't kept
    "lora_rounds": lambda manifest: len(manifest.get("finetune_rounds", [])),
    "lora_rounds_kept": lambda manifest: sum(each["accepted"] for each in manifest.get("finetune_rounds", [])),
    "distinct_samples": lambda manifest: mean_of(manifest.get("finetune_rounds", []), "distinct"),  # in a LoRA round
    "adjustments": lambda manifest: adjusted(manifest) or 0,
    "env_steps_to_train": RUN_METRICS["env_steps_to_train"],
    "simulator_calls_train": lambda manifest: manifest["budget"]["train"]["simulator_calls"],
    "simulator_calls_corpus": lambda manifest: manifest["budget"]["corpus"].get("simulator_calls", 0),
    "llm_calls_train": lambda manifest: manifest["budget"]["train"]["llm_calls"],
}
COLUMNS = ["group", "env", "variant", "setting", "metric", "mean", "std", "iqm", "ci_low", "ci_high", "reference"]
COLUMNS += ["reference_mean", "difference", "difference_low", "difference_high", "n_common_seeds", *COUNTS]
COLUMNS += ["n_seeds", "n_episodes", "scale", *SEEN]
RESULTS = ["Group", "Variant", "Setting", "Survival, % [95 % CI]", "minus reference [95 % CI]"]
RESULTS += ["Reference on common seeds, %", "Reward", "n"]
BUDGETS = ["Variant", "Refinements", "LoRA rounds (kept)", "Distinct samples a round", "Adjusted decisions"]
BUDGETS += ["Env. steps", "LLM calls in training"]


def mean_of(rounds, name):
    """Mean over the LoRA rounds of a run; 0 where there were none, or where none noted it."""
    found = [each[name] for each in rounds if name in each]
    return float(np.mean(found)) if found else 0.0


class Pair(NamedTuple):
    """a - b: the difference with its interval, b's mean and the number of seeds, all on the seeds that both have."""

    difference: stats.Estimate
    mean_b: float
    n_seeds: int


def available(params, results, names):
    """Runs of those of the names that are in the declared grid, on the ablations' environment.

    Returns (Runs, names that were run, in their order); both are empty where none of them is declared.
    """
    env = params.grid.ablations.environment
    here = [*ablations(params), *(declared(params) if env in params.grid.environments else [])]
    ran = [name for name in dict.fromkeys(names) if name in here]
    return (read(params, results, ran) if ran else Runs(params.scale, [], [], {})), ran


def pair(runs, env, a, b, metric):
    """a - b on identical episodes and common seeds. Returns Pair."""
    seeds = runs.seeds_of_all(env, [a, b])
    scores_a, scores_b = (runs.scores(env, variant, metric, seeds) for variant in (a, b))
    return Pair(stats.paired_difference(scores_a, scores_b), float(scores_b.mean()), len(seeds))


def value_at(settings, key):
    """Of recorded settings the one at section.name; None where there is no such section (masks are recorded only where they are
    used) or no such name in it."""
    section, _, name = key.partition(".")
    return settings.get(section, {}).get(name) if name else settings[section]


def setting(settings, keys):
    """The given keys (section.name) of resolved settings, as params.yaml writes them; a switched-off section as that."""
    parts = {}
    for key in keys:
        section, _, name = key.partition(".")
        shown = f"{section}.enabled" if name and settings.get(section, {}).get("enabled") is False else key
        value = value_at(settings, shown)
        parts[shown] = value if isinstance(value, str) else json.dumps(value)
    return ", ".join(f"{key} = {value}" for key, value in parts.items())


def count(runs, env, variant, what):
    """One of COUNTS, mean over the seeds."""
    return float(np.mean([COUNTS[what](run.manifest) for run in runs.of(env, variant)]))


def groups(params):
    """Those of `contrasts.yaml`, and one for the declared ablations that are in none of them."""
    known = contrasts.load().ablations
    placed = {variant for group in known for variant in (group.reference, *group.variants)} | {*HALVES}
    others = [variant for variant in ablations(params) if variant not in placed]
    return [*known, contrasts.Group(title=OTHER, variants=others, settings=None)] if others else known


def write_ablations(params, results, folder):
    """<folder>/ablations.{csv,md,tex} of the runs under results. Returns the table, a row for each group, variant and metric.

    A group is in it where another variant than its reference was run; one of which a method of the main comparison alone was
    run is not: it would compare nothing.
    """
    known, env = groups(params), params.grid.ablations.environment
    names = list(dict.fromkeys(name for group in known for name in (group.reference, *group.variants)))
    runs, ran = available(params, results, names)
    rows, shown, used = [], [], {}
    for group in known:
        variants = [variant for variant in group.variants if variant in ran]
        here = {*variants, group.reference} & {*ran}
        if not here - {group.reference} or (len(here) == 1 and here <= {*declared(params)}):
            continue
        for variant in variants:
            keys = changes(params, variant) if group.settings is None else group.settings
            said = setting(runs.of(env, variant)[0].manifest["settings"], keys)
            made = list(_rows(runs, env, group, variant, said))
            rows += made
            cells = by_metric(pd.DataFrame(made, columns=COLUMNS), env, variant)
            shown.append([group.title if variant == variants[0] else "", *_result(cells, variant, said)])
            used[variant] = _budget(cells["survival"], variant)
    table = pd.DataFrame(rows, columns=COLUMNS)
    table["p_holm"] = table.groupby("metric")["p"].transform(stats.holm) if rows else None
    write_csv(table, Path(folder) / "ablations.csv")
    parts = {"Results": (RESULTS, shown), "What they used": (BUDGETS, list(used.values()))}
    missing = [name for name in names if name not in ran]
    title = f"Ablations, {grid_label(env)}, {runs.tested()}"
    write_parts(folder, "ablations", title, parts, _note(params, shown, missing), tex=True)
    return table


def _note(params, shown, missing):
    """The note, the settings that the table shows, and what is not in it."""
    keys = dict.fromkeys(part.split(" = ")[0] for row in shown for part in row[2].split(", ") if " = " in part)
    settings = [f"- `{key}`: {notes.note(f'ablations.{key}')}" for key in keys if notes.has(f"ablations.{key}")]
    parts = [notes.note("ablations"), "\n".join(settings)]
    if halves := [name for name in ablations(params) if name in HALVES]:
        parts.append(notes.note("ablations.halves", names=", ".join(f"`{name}`" for name in halves)))
    if missing:
        parts.append(notes.note("ablations.missing", names="; ".join(map(label, missing))))
    return "\n\n".join(filter(None, parts))


def _rows(runs, env, group, variant, said):
    counts = {what: count(runs, env, variant, what) for what in COUNTS}
    counts["env_steps_to_train"] = round(counts["env_steps_to_train"])  # millions: six digits would not be all
    compared = variant != group.reference and (env, group.reference) in runs.cells
    for metric in HEADLINE:
        found = stats.summary(runs.scores(env, variant, metric), scale_of(metric))
        against, seen = [None] + [np.nan] * 5, [np.nan] * 3
        if compared:
            other = pair(runs, env, variant, group.reference, metric)
            seen = [other.difference.detectable(), other.difference.p(), np.nan]
            against = [group.reference, other.mean_b, *other.difference, other.n_seeds]
        yield [group.title, env, variant, said, metric, *found[:5], *against, *counts.values(), *found[5:], runs.scale, *seen]


def _result(cells, variant, said):
    """A row of the results without its group. cells: by metric."""
    survival, reward = (cells[metric] for metric in HEADLINE)
    n = f"{survival['n_seeds']} x {survival['n_episodes']}"
    other = f"{survival['reference_mean']:.1f}" if pd.notna(survival["reference_mean"]) else ""
    return [label(variant), said, mean_with_interval(survival), in_points(survival, "difference"), other, mean_and_std(reward), n]


def _budget(row, variant):
    rounds = f"{row['lora_rounds']:.1f} ({row['lora_rounds_kept']:.1f})"
    counts = ["distinct_samples", "adjustments", "env_steps_to_train", "llm_calls_train"]
    return [label(variant), thousands(row["refinements"]), rounds, *(thousands(row[what]) for what in counts)]


def compared(table, metric):
    """The rows of a metric that have a difference."""
    return table[(table["metric"] == metric) & table["difference"].notna()]


def largest(table, metric):
    """The differences in the order of their size, as Markdown."""
    rows = compared(table, metric).sort_values("difference", key=lambda column: column.astype(float).abs(), ascending=False)
    cells = []
    for row in rows.to_dict("records"):
        names = row["group"], label(row["variant"]), label(row["reference"])
        cells.append([*names, in_points(row, "difference"), f"{row['n_common_seeds']:.0f}"])
    head = ["Group", "Variant", "Reference", f"{metric.capitalize()} minus reference [95 % CI]", "Common seeds"]
    return markdown(head, cells)


def answer(table, metric):
    """Which differences to a reference are significant, first of ACE's settings, then of the others; as Markdown."""
    found = compared(table, metric)
    ours = found["group"].isin([*(group.title for group in contrasts.load().ablations if group.of_ace), OTHER])
    lines = [_answer(found[ours], metric, "Settings of ACE"), _answer(found[~ours], metric, "Other conditions and methods")]
    chance = f"{(1 - stats.LEVEL) * len(found):.1f}"
    return "\n".join([*lines, "", notes.note("ablations.chance", n=len(found), expected=chance)])


def _answer(rows, metric, what):
    found = [
        f"{label(row['variant'])} minus {label(row['reference'])} {in_points(row, 'difference')}"
        for _, row in rows.iterrows()
        if stats.sign(row["difference_low"], row["difference_high"])
    ]
    which = f": {'; '.join(found)}" if found else ""
    return f"- {what}: {len(found)} of {len(rows)} differences in {metric} are significant{which}."
