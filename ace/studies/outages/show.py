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
CONTROLS = ("expert_sac", "random_refine", "frequency_refine")  # what replaces f_LLM
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
    others the rows of "all" and what follows for ACE. Returns the table."""
    found = {env: of_environment(params, results, env) for env in measured(params, results, "outages")}
    table = pd.DataFrame([row for rows, _ in found.values() for row in rows], columns=COLUMNS)
    _, runs = next(iter(found.values()))
    text, cells = f"{note('outages')}\n\n{sentences(table)}", _cells(table[table["outage"] == ALL])
    title = f"Unseen outages, {runs.tested(table['n_episodes'].max())}"
    write_table(folder, "outages", table, HEAD, cells, title, text)
    return table


def as_markdown(table):
    """Some rows of the table, and the note."""
    return f"{markdown(HEAD, _cells(table))}\n{note('outages')}\n"


def sentences(table):
    """Whether ACE keeps its lead, and which controls are as good as it or better: a sentence or three a grid, as Markdown."""
    lines = []
    for row in table[(table["variant"] == OURS) & (table["outage"] == ALL)].to_dict("records"):
        text = f"- **{grid_label(row['env'])}**: {label(OURS)} survives {row['survival']:.1f} % without a line, "
        text += f"a change of {in_points(row, 'change')} points."
        if not math.isnan(row["minus_sac"]):
            text += (
                f" Its lead over {label(REFERENCE)} is {in_points(row, 'intact_minus_sac')} points with all lines and "
            )
            text += f"{in_points(row, 'minus_sac')} without one: {_kept(row)}."
        here = table[(table["env"] == row["env"]) & (table["outage"] == ALL) & table["variant"].isin(CONTROLS)]
        lines.append(text + "".join(_compared(control) for control in here.to_dict("records")))
    return "\n".join(lines)


def _kept(row):
    """Of the episodes that were played without a line, fewer than the main table's."""
    had, has = (stats.sign(row[f"{column}_low"], row[f"{column}_high"]) for column in ("intact_minus_sac", "minus_sac"))
    if had < 0 or has < 0:
        return "it is behind on these episodes"
    if had:
        return "it keeps its lead" if has else "the lead without a line is not significant"
    return "only the lead without a line is significant" if has else "neither is significant on these episodes"


def _compared(control):
    """A control that does as well as ACE without a line or better; nothing of one that is behind."""
    side = stats.sign(control["minus_ace_low"], control["minus_ace_high"])
    if side < 0:
        return ""
    found = "it is ahead" if side else "no significant difference"
    text = f" {label(control['variant'])} survives {control['survival']:.1f} %, a difference to {label(OURS)} of "
    return f"{text}{in_points(control, 'minus_ace')} points: {found}."


HEAD = ["Grid", "Method", "Line out", "Survival, % of the horizon [95 %]", "With all lines, %", "Change, points [95 %]"]
HEAD += ["Points above SAC [95 %]", "Seeds x episodes"]


def _cells(table):
    cells = []
    for row in table.to_dict("records"):
        survival = with_interval(row["survival"], row["ci_low"], row["ci_high"], 1)
        out = "each in turn" if row["outage"] == ALL else row["outage"]
        points = [in_points(row, "change"), in_points(row, "minus_sac")]
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
