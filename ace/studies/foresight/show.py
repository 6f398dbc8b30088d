"""The table and figure of policies with foresight: what comparing their most probable actions by DC gives, and to whom.

Reads results/studies/foresight/<env>.csv (`ace/studies/foresight/measure.py`) and the run files of the same methods.
"""

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ace import stats
from ace.report.formatting import in_points, markdown, with_interval, write_table
from ace.report.labels import grid_label, label
from ace.report.notes import note
from ace.report.runs import ReportError, measured, read, read_played
from ace.report.style import by_panel, lines, theme, write_figure

OURS, REFERENCE, WITHIN_SET = "ace", "sac", "set"
FLOORS, CEILING = {"way": "do_nothing", "way_reconnect": "reconnect", "way_alone": "do_nothing"}, "greedy"
ALONE = 1  # number of actions compared by a policy that acts alone
ESTIMATES = ("survival", "gain", "minus_sac", "ace_minus", *FLOORS)
COLUMNS = ["env", "variant", "n_candidates", *(name + end for name in ESTIMATES for end in ("", "_low", "_high"))]
COLUMNS += ["alone", "dc_calls_a_decision", "n_seeds", "n_episodes", "scale"]
HEAD = ["Grid", "Method", "Actions compared", "Survival, % of the horizon [95 %]", "Alone, %", "Gain, points [95 %]"]
HEAD += ["ACE with foresight minus it, points [95 %]"]
NOTHING = (math.nan,) * 3  # an estimate of what was not played


def read_foresight(params, results, env):
    """results/studies/foresight/<env>.csv, of what is declared only: DataFrame, or ReportError where it is not there or old."""
    return read_played(params, results, "foresight", env, params.played("foresight", env)[1], [WITHIN_SET])


def write_foresight(params, results, folder):
    """Writes foresight.{csv,md,tex} and foresight_figure.{png,pdf,csv,md} into folder. Returns the table."""
    played = {env: read_foresight(params, results, env) for env in measured(params, results, "foresight")}
    found = {env: of_environment(params, results, env, each) for env, each in played.items()}
    table = pd.DataFrame([row for rows, _ in found.values() for row in rows], columns=COLUMNS)
    _, runs = next(iter(found.values()))
    title, text = f"Policies with foresight, {runs.tested()}", note("foresight")
    write_table(folder, "foresight", table, HEAD, _cells(table), title, text)
    draw(played, folder)
    return table


def of_environment(params, results, env, played):
    """(rows with COLUMNS of one grid, its Runs). played: of `read_foresight`."""
    test = played[played["split"] == "test"]
    policies = [variant for variant in dict.fromkeys(test["variant"]) if variant != WITHIN_SET]
    ends = [variant for variant in {*FLOORS.values(), CEILING} if variant in params.grid.baselines]
    runs = read(params, results, [*policies, *sorted(ends)])
    scenarios = runs.of(env, policies[0])[0].episodes["episode"].tolist()
    ahead = {variant: _matrix(rows, scenarios, env) for variant, rows in test.groupby("variant", sort=False)}
    alone = {variant: runs.scores(env, variant, "survival") for variant in [*policies, *ends]}
    gain = {variant: ahead[variant] - alone[variant] for variant in policies}
    made = []
    for variant, own in ahead.items():
        rows = test[test["variant"] == variant]
        found = {
            "survival": stats.mean(own, stats.PERCENT),
            # The same policies on both sides: their seeds are paired as well.
            "gain": stats.mean(gain[variant]) if variant in gain else NOTHING,
            "minus_sac": _minus(ahead, variant, REFERENCE),
            "ace_minus": _minus(ahead, OURS, variant),
            "way": _way(own, alone, FLOORS["way"]),
            "way_reconnect": _way(own, alone, FLOORS["way_reconnect"]),
            "way_alone": _way(alone.get(variant), alone, FLOORS["way_alone"]),
        }
        calls = rows["dc_calls"].sum() / max(rows["decisions"].sum(), 1)
        before = alone[variant].mean() if variant in alone else math.nan
        numbers = [number for name in ESTIMATES for number in found[name]]
        made.append([env, variant, int(rows["n_candidates"].iloc[0]), *numbers, before, calls, *own.shape, runs.scale])
    return made, runs


def _minus(scores, a, b):
    """Estimate of a - b, paired by scenario; nan from itself and from what was not played."""
    if a == b or a not in scores or b not in scores:
        return NOTHING
    return stats.paired_difference(scores[a], scores[b])


def _way(own, alone, floor):
    """Of the way from a floor to greedy look-ahead, in percent; nan where one of the three was not played, or there is no way."""
    if own is None or floor not in alone or CEILING not in alone:
        return NOTHING
    def share(means):
        way = means[..., 2] - means[..., 1]
        return 100 * (means[..., 0] - means[..., 1]) / np.where(way == 0, np.nan, way)

    return stats.estimate([[own, alone[floor], alone[CEILING]]], share)


def _matrix(rows, scenarios, env):
    """(S, E) survival in percent, seeds and scenarios ascending. scenarios: those of the run files, which it must have."""
    matrix = rows.pivot_table(index="seed", columns="scenario", values="survival")
    if matrix.columns.tolist() != scenarios:
        remedy = "run notebooks/studies/foresight_measure.ipynb"
        raise ReportError(f"results/studies/foresight/{env}.csv has other test scenarios than the runs: {remedy}")
    return 100 * matrix.to_numpy(float)


def as_markdown(table):
    """Some rows of the table, and the note."""
    return f"{markdown(HEAD, _cells(table))}\n{note('foresight')}\n"


def _cells(table):
    cells = []
    for row in table.to_dict("records"):
        points = [in_points(row, column) for column in ("gain", "ace_minus")]
        survival = with_interval(row["survival"], row["survival_low"], row["survival_high"], 1)
        before = "" if math.isnan(row["alone"]) else f"{row['alone']:.1f}"
        cells.append([grid_label(row["env"]), _name(row), str(row["n_candidates"]), survival, before, *points])
    return cells


def _name(row):
    return "No policy: the set's look-ahead" if row["variant"] == WITHIN_SET else label(row["variant"])


def draw(played, folder):
    """A panel for each grid: survival on validation by the number of actions compared, the chosen number in a ring; at most
    six methods, all of them in the CSV."""
    found = []
    methods = dict.fromkeys(
        variant for table in played.values() for variant in table["variant"] if variant != WITHIN_SET
    )
    shown = by_panel(methods)[:1]
    with theme():
        figure = Figure(figsize=(1.2 + 3.3 * len(played), 4.6), layout="constrained")
        panels = figure.subplots(1, len(played), sharey=True, squeeze=False)[0]
        for panel, (env, table) in zip(panels, played.items(), strict=True):
            for variant, (colour, line, marker) in lines(methods).items():
                rows = table[table["variant"] == variant]
                if rows.empty:
                    continue
                means = 100 * rows[rows["split"] == "validation"].groupby("n_candidates")["survival"].mean()
                chosen = int(rows.loc[rows["split"] == "test", "n_candidates"].iloc[0])
                found += [[env, variant, number, mean, number == chosen] for number, mean in means.items()]
                if variant in shown[0]:
                    panel.plot(means.index, means, color=colour, ls=line, marker=marker, ms=4, label=label(variant))
                    panel.plot([chosen], [means[chosen]], "o", ms=11, mfc="none", mec=colour, mew=1.2)
            ticks = sorted(set(table.loc[table["split"] == "validation", "n_candidates"]))
            panel.set_xscale("log")
            panel.set_xticks(ticks, ["alone" if tick == ALONE else str(tick) for tick in ticks])
            panel.minorticks_off()
            panel.set(xlabel="Actions compared", ylim=(0, 104))
            panel.set_title(grid_label(env), fontsize="medium")
        panels[0].set_ylabel("Survival on validation, % of the horizon")
        figure.legend(
            *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize="small", frameon=False
        )
        data = pd.DataFrame(found, columns=["env", "variant", "n_candidates", "survival", "chosen"]).astype(
            {"chosen": int}
        )
        others = [label(variant) for variant in methods if variant not in shown[0]]
        text = note("foresight.figure") + (f" In the CSV only: {', '.join(others)}." if others else "")
        write_figure(figure, data, folder / "foresight_figure", "Foresight: survival by number of actions compared", text)
