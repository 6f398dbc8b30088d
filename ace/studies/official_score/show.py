"""The table of official scores: what the scorer of the L2RPN competitions of 2020 says of every method.

Reads results/studies/official_score/<env>.csv (`ace/studies/official_score/measure.py`) of the environment of the ablations.
Differences are paired: both methods play the same scenarios.
"""

import math

import pandas as pd

from ace import stats
from ace.report.formatting import in_points, value_with_std, write_table
from ace.report.labels import grid_label, label
from ace.report.notes import note
from ace.report.runs import read_cells, read_played

REFERENCES = ["reconnect", "sac", "frequency_refine"]
FIXED = {
    "grid2op_do_nothing": "Grid2Op's do nothing: the point 0",
    "grid2op_unprotected": "Grid2Op's reconnection, unprotected: the point 80",
}
COLUMNS = ["env", "variant", "score", "std", "ci_low", "ci_high", "survival", "completed", "safe", "unsafe"]
COLUMNS += [f"minus_{b}{end}" for b in REFERENCES for end in ("", "_low", "_high")]
COLUMNS += ["n_seeds", "n_episodes", "n_safe", "scale"]
HEAD = [
    "Grid",
    "Method",
    "Score",
    "[95 %]",
    "where doing nothing survives",
    "elsewhere",
    "Survival, %",
    "Completed, %",
    "minus reconnect [95 %]",
    "minus SAC [95 %]",
    "minus lookup table [95 %]",
]
HEAD += ["Seeds x episodes"]


def read_scores(params, results, env):
    """results/studies/official_score/<env>.csv, of the fixed points and what params.yaml declares: DataFrame, or ReportError
    where it is not there or old."""
    methods = [variant for variants in params.played("official_score", env) for variant in variants]
    return read_played(params, results, "official_score", env, [*FIXED, *methods])


def write_scores(params, results, folder):
    """Writes official_score.{csv,md} into folder: a row for each method. Returns the table.

    safe, unsafe: the mean score of the scenarios that Grid2Op's do-nothing agent survives (n_safe of them) and of the others.
    """
    table = pd.DataFrame(_of_environment(params, results, params.grid.ablations.environment), columns=COLUMNS)
    cells = [_cells(row) for row in table.to_dict("records")]
    first = next(variant for variant in table["variant"] if variant not in FIXED)
    runs = read_cells(params, results, [(params.grid.ablations.environment, first)])
    title = f"Official L2RPN score, {runs.tested(table['n_episodes'].max())}"
    write_table(folder, "official_score", table, HEAD, cells, title, note("official_score", safe=table["n_safe"].max()))
    return table


def _of_environment(params, results, env):
    played = read_scores(params, results, env)
    variants = list(dict.fromkeys(played["variant"]))
    scores = {variant: _matrix(played, variant, "score") for variant in variants}
    safe = _matrix(played, "grid2op_do_nothing", "survival")[0] == 1
    rows = []
    for variant in variants:
        survival = 100 * _matrix(played, variant, "survival")
        summary = stats.summary(scores[variant])
        estimate = stats.mean(scores[variant])
        leads = []
        for reference in REFERENCES:
            compared = reference in scores and variant != reference
            leads += (
                stats.paired_difference(scores[variant], scores[reference])
                if compared
                else (math.nan, math.nan, math.nan)
            )
        row = [env, variant, summary.mean, summary.std, estimate.low, estimate.high, survival.mean()]
        parts = [scores[variant][:, where].mean() if where.any() else math.nan for where in (safe, ~safe)]
        counts = [*scores[variant].shape, safe.sum(), params.scale]
        rows.append([*row, 100 * (survival == 100).mean(), *parts, *leads, *counts])
    return rows


def _cells(row):
    return [
        grid_label(row["env"]), FIXED.get(row["variant"]) or label(row["variant"]), value_with_std(row["score"], row["std"]),
        f"[{row['ci_low']:.1f}, {row['ci_high']:.1f}]",
        *("" if math.isnan(row[part]) else f"{row[part]:.1f}" for part in ("safe", "unsafe", "survival", "completed")),
        *(in_points(row, f"minus_{reference}") for reference in REFERENCES), f"{row['n_seeds']} x {row['n_episodes']}",
    ]  # fmt: skip


def _matrix(played, variant, column):
    """(S, E), seeds and episodes ascending."""
    rows = played[played["variant"] == variant]
    return rows.pivot_table(index="seed", columns="episode", values=column).to_numpy(float)
