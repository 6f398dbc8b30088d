"""The table of unseen outages: survival with a line out of service, and on the same scenarios with all of them.

Reads results/studies/outages/<env>.csv (`ace/studies/outages/measure.py`) and the run files of the same methods. Differences
are paired: the same scenario with and without the outage, or two methods with the same line out in the same scenario.
"""

import math
from pathlib import Path

import pandas as pd

from ace import stats
from ace.report.formatting import in_points, markdown, with_interval, write_table
from ace.report.labels import grid_label, label
from ace.report.notes import note
from ace.report.runs import ReportError, ablations, declared, measured, read

REFERENCE = "sac"
OURS = "ace"
ALL = "all"  # episodes, each without one of the lines in turn
COLUMNS = ["env", "outage", "variant", "survival", "ci_low", "ci_high"]
COLUMNS += ["intact", "change", "change_low", "change_high", "minus_sac", "minus_sac_low", "minus_sac_high"]
COLUMNS += [
    "intact_minus_sac",
    "intact_minus_sac_low",
    "intact_minus_sac_high",
    "minus_ace",
    "minus_ace_low",
    "minus_ace_high",
]
COLUMNS += ["n_seeds", "n_episodes", "scale"]


def read_outages(params, results, env):
    """results/studies/outages/<env>.csv, of the declared grid only: DataFrame, or ReportError where it is not there or old."""
    path, remedy = Path(results) / "studies" / "outages" / f"{env}.csv", "run notebooks/studies/outages_measure.ipynb"
    table = pd.read_csv(path)
    here = [*declared(params), *(ablations(params) if env == params.grid.ablations.environment else [])]
    table = table[table["variant"].isin(here)]
    for variant, rows in table.groupby("variant", sort=False):
        if sorted(set(rows["seed"])) != sorted(params.seeds_of(variant)):
            raise ReportError(f"results/studies/outages/{env}.csv has not the declared seeds of {variant}: {remedy}")
    return table


def write_outages(params, results, folder):
    """Writes outages.{csv,md,tex} into folder. The CSV has a row for each grid, outage ("all": each in turn) and method, the
    others the rows of "all". Returns the table."""
    found = {env: of_environment(params, results, env) for env in measured(params, results, "outages")}
    table = pd.DataFrame([row for rows, _ in found.values() for row in rows], columns=COLUMNS)
    _, runs = next(iter(found.values()))
    cells = _cells(table[table["outage"] == ALL])
    title = f"Unseen outages, {runs.tested(table['n_episodes'].max())}"
    write_table(folder, "outages", table, HEAD, cells, title, note("outages"))
    return table


def as_markdown(table):
    """Some rows of the table, and the note."""
    return f"{markdown(HEAD, _cells(table))}\n{note('outages')}\n"


HEAD = ["Grid", "Method", "Line out", "Survival, % of the horizon [95 %]", "With all lines, %", "Change, points [95 %]"]
HEAD += ["minus SAC, points [95 %]", "minus ACE, points [95 %]", "Seeds x episodes"]


def _cells(table):
    cells = []
    for row in table.to_dict("records"):
        survival = with_interval(row["survival"], row["ci_low"], row["ci_high"], 1)
        out = "each in turn" if row["outage"] == ALL else row["outage"]
        points = [in_points(row, column) for column in ("change", "minus_sac", "minus_ace")]
        count = f"{row['n_seeds']} x {row['n_episodes']}"
        cells.append(
            [grid_label(row["env"]), label(row["variant"]), out, survival, f"{row['intact']:.1f}", *points, count]
        )
    return cells


def of_environment(params, results, env):
    """(rows with COLUMNS of one grid, its Runs)."""
    played = read_outages(params, results, env)
    variants = list(dict.fromkeys(played["variant"]))
    if not variants:
        raise ReportError(
            f"results/studies/outages/{env}.csv has no declared method: run notebooks/studies/outages_measure.ipynb"
        )
    runs = read(params, results, variants)
    scores = {variant: _matrix(played[played["variant"] == variant]) for variant in variants}
    whole = {variant: runs.scores(env, variant, "survival") for variant in variants}
    lines = played.drop_duplicates("outage").sort_values("outage")["line"].tolist()
    where = played[(played["variant"] == variants[0]) & (played["seed"] == played["seed"].iloc[0])].sort_values(
        "episode"
    )
    rows = []
    for outage in [ALL, *lines]:
        episodes = where.loc[(where["line"] == outage) | (outage == ALL), "episode"].to_numpy()
        for variant in variants:
            out, intact = scores[variant][:, episodes], whole[variant][:, episodes]
            survival = stats.mean(out, stats.PERCENT)
            # The same policies on both sides: their seeds are paired as well.
            change = stats.mean(out - intact)
            against = ((scores, REFERENCE), (whole, REFERENCE), (scores, OURS))
            more = [end for of, other in against for end in _minus(of, variant, other, episodes)]
            rows.append([env, outage, variant, *survival, intact.mean(), *change, *more, *out.shape, runs.scale])
    return rows, runs


def _minus(scores, variant, other, episodes):
    """Estimate of the difference on these episodes; nan from itself and from what was not played."""
    if other not in scores or variant == other:
        return math.nan, math.nan, math.nan
    return stats.paired_difference(scores[variant][:, episodes], scores[other][:, episodes])


def _matrix(rows):
    """(S, E) survival in percent, seeds and episodes ascending."""
    return 100 * rows.pivot_table(index="seed", columns="episode", values="survival").to_numpy(float)
