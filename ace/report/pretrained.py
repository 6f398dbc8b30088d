"""Two tables of what the pretrained model is worth to the policy: ACE with it minus methods without it, on every grid that it
was run on, and what the runs of all of them took. Read from the run files alone."""

import numpy as np
import pandas as pd

from ace import stats
from ace.report.ablations import pair
from ace.report.formatting import in_points, markdown, thousands, with_interval, write_table
from ace.report.labels import grid_label, label
from ace.report.notes import note
from ace.report.runs import read_cells

COMPARED = ["ace", "frequency_refine", "sac"]
COLUMNS = ["env", "variant", "survival", "ci_low", "ci_high", "n_seeds", "n_episodes", "minus", "minus_survival"]
COLUMNS += ["difference", "difference_low", "difference_high", "detectable", "n_common_seeds", "scale"]
HEAD = ["Grid", "Method", "Survival, % [95 % CI]", "n", "minus", "its survival on common seeds, %", "Points [95 % CI]"]
HEAD += ["Detectable, points", "Common seeds"]
SPENT = ["simulator_calls", "dc_calls", "llm_calls"]
PHASES = ["train", "llm", "finetune"]
USED = ["env", "variant", "refinements", "env_steps", *SPENT, "llm_tokens", *(f"{phase}_minutes" for phase in PHASES)]
HEAD_USED = ["Grid", "Method", "Refinements", "Env. steps", "Simulator calls", "DC power flows", "LLM calls", "LLM tokens"]
HEAD_USED += ["Training, minutes", "of these LLM", "of these LoRA"]


def write_policies(params, results, folder):
    """Writes policies.{csv,md} and policies_used.{csv,md} into folder.

    Returns the tables: with COLUMNS, a row for each grid, variant with the pretrained model and method that it is compared with;
    with USED, a row a grid and method. Both are empty, and not written, where params.yaml declares no such variant.
    """
    declared = [(env, name) for kind, env, name in params.grid.cells if kind == "pretrained"]
    grids = {env: [name for at, name in declared if at == env] for env in params.grid.environments}
    grids = {env: ours for env, ours in grids.items() if ours}
    compared = [name for name in COMPARED if name in params.grid.main]
    cells_read = [(env, name) for env, ours in grids.items() for name in [*ours, *compared]]
    runs = read_cells(params, results, cells_read)
    table = pd.DataFrame([row for env, ours in grids.items() for name in ours for row in _rows(runs, env, name)], columns=COLUMNS)
    used = pd.DataFrame([_used(runs, *cell) for cell in cells_read], columns=USED)
    if grids:
        title = f"ACE with the pretrained model, {runs.tested()}"
        write_table(folder, "policies", table, HEAD, cells(table), title, note("pretrained.policies"))
        title = "ACE with the pretrained model: what a run used"
        write_table(folder, "policies_used", used, HEAD_USED, cells_used(used), title, note("pretrained.used"))
    return table, used


def _rows(runs, env, variant):
    scores = runs.scores(env, variant, "survival")
    own = [env, variant, *stats.mean(scores, stats.PERCENT), *scores.shape]
    for name in [each for each in COMPARED if (env, each) in runs.cells]:
        found = pair(runs, env, variant, name, "survival")
        yield [*own, name, found.mean_b, *found.difference, found.difference.detectable(), found.n_seeds, runs.scale]


def _used(runs, env, variant):
    counts = [round(runs.scores(env, variant, what).mean()) for what in ("refinements", "env_steps_to_train")]
    spent = [round(runs.spent(env, variant, what)) for what in SPENT]
    tokens = np.mean([sum(run.manifest.get("tokens", {}).values()) for run in runs.of(env, variant)])
    return [env, variant, *counts, *spent, round(tokens), *(runs.seconds(env, variant, phase) / 60 for phase in PHASES)]


def cells(table):
    """A row a comparison; grid, method and its survival where they change."""
    rows, known = [], None
    for _, row in table.iterrows():
        cell = (row["env"], row["variant"])
        survival = with_interval(row["survival"], row["ci_low"], row["ci_high"], 1)
        own = [grid_label(cell[0]), label(cell[1]), survival, f"{row['n_seeds']} x {row['n_episodes']}"]
        minus = [label(row["minus"]), f"{row['minus_survival']:.1f}", in_points(row, "difference"), f"{row['detectable']:.1f}"]
        rows.append([*(own if cell != known else [""] * len(own)), *minus, str(row["n_common_seeds"])])
        known = cell
    return rows


def cells_used(used):
    """A row a grid and method."""
    rows = []
    for _, row in used.iterrows():
        counts = [thousands(row[what]) for what in USED[2 : -len(PHASES)]]
        minutes = ["–" if pd.isna(row[what]) else f"{row[what]:.1f}" for what in USED[-len(PHASES) :]]
        rows.append([grid_label(row["env"]), label(row["variant"]), *counts, *minutes])
    return rows


def as_markdown(table, used):
    """Both tables with their notes; a line where there is nothing to show."""
    if table.empty:
        return "params.yaml declares no run with the pretrained model (`grid.pretrained.variants`)."
    parts = [(HEAD, cells(table), "policies"), (HEAD_USED, cells_used(used), "used")]
    return "\n".join(f"{markdown(head, rows)}\n{note(f'pretrained.{name}')}\n" for head, rows, name in parts)
