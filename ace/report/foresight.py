"""The table and figure of policies with foresight: what comparing their most probable actions by DC gives, and to whom.

Reads results/foresight/<env>.csv (`ace/foresight.py`) and the run files of the same methods.
"""

import math
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from ace.report import stats
from ace.report.labels import label
from ace.report.runs import ReportError, named, read, seeds_of, titled
from ace.report.style import lines, save, theme
from ace.report.typeset import markdown, with_interval, write_csv, write_table

OURS, REFERENCE, WITHIN_SET = "ace", "sac", "dc_argmin"
FLOOR, CEILING = "do_nothing", "greedy"
ALONE = 1  # number of actions compared by a policy that acts alone
ESTIMATES = ("survival", "gain", "minus_sac", "minus_sac_alone", "minus_dc_argmin", "way", "way_alone")
COLUMNS = ["env", "variant", "most", *(name + end for name in ESTIMATES for end in ("", "_low", "_high"))]
COLUMNS += ["alone", "dc_calls_a_decision", "n_seeds", "n_episodes", "scale"]
HEAD = ["Grid", "Method", "Actions compared", "Survival, % of the horizon [95 %]", "Alone, %", "Gain, points [95 %]"]
HEAD += ["Points above SAC with foresight [95 %]", "Points above DC look-ahead in the set [95 %]"]
HEAD += ["Of the way from do nothing to greedy, % [95 %]", "DC power flows a decision", "Seeds x episodes"]
NOTE = (
    "Survival on the test scenarios, on Grid2Op itself. Of as many of its most probable actions as *actions compared* says the "
    "policy plays the one after which a DC power flow expects the lowest loading, worked out from the observation: no simulator "
    "and no language model is asked. The number was chosen for each method and grid on validation scenarios, others than those "
    "by which checkpoints were chosen; 1 is the policy alone. Nothing was trained for it: the policies are those of the main "
    "comparison, whose survival stands under *alone* (same scenarios; the gain is paired by policy too). DC look-ahead in the "
    "set compares the language model's whole set of actions and knows no policy; it begins with a simulated AC power flow. Do "
    "nothing does not put lines back; greedy simulates at every decision. Intervals: 95 % bootstrap over seeds and scenarios; "
    "the luck of the choice is in none."
)


def read_foresight(params, results, env):
    """results/foresight/<env>.csv, of the declared grid only: DataFrame, or ReportError where it is not there or old."""
    path, remedy = Path(results) / "foresight" / f"{env}.csv", f"run `dvc repro foresight@{env}`"
    if not path.is_file():
        raise ReportError(f"no results/foresight/{env}.csv: {remedy}")
    table = pd.read_csv(path)
    table = table[table["variant"].isin(params.grid.variants)]
    for variant, rows in table.groupby("variant", sort=False):
        if sorted(set(rows["seed"])) != sorted(seeds_of(params, variant)):
            raise ReportError(f"results/foresight/{env}.csv has not the declared seeds of {variant}: {remedy}")
    return table


def write_foresight(params, results):
    """Writes tables/foresight.{csv,md,tex} and figures/foresight.{png,svg,pdf,csv} under results. Returns the table."""
    played = {env: read_foresight(params, results, env) for env in params.grid.environments}
    rows = [row for env, each in played.items() for row in of_environment(params, results, env, each)]
    table = pd.DataFrame(rows, columns=COLUMNS)
    title = f"Policies with foresight, scale {params.scale}"
    write_table(results, "foresight", table, HEAD, _cells(params, table), title, NOTE)
    draw(params, played, results)
    return table


def of_environment(params, results, env, played):
    """Rows with COLUMNS of one grid. played: of `read_foresight`."""
    test = played[played["split"] == "test"]
    variants = list(dict.fromkeys(test["variant"]))
    references = [v for v in (FLOOR, CEILING, WITHIN_SET) if v in [*params.grid.baselines, *params.grid.lm_baselines]]
    runs = read(params, results, [*variants, *references])
    ahead = {variant: _matrix(test[test["variant"] == variant]) for variant in variants}
    alone = {variant: runs.scores(env, variant, "survival") for variant in [*variants, *references]}
    for variant in variants:
        own, episodes = ahead[variant], test[test["variant"] == variant]
        found = {
            "survival": stats.estimate([[own]], lambda means: means[..., 0]),
            # The same policies on both sides: their seeds are paired as well.
            "gain": stats.estimate([[own - alone[variant]]], lambda means: means[..., 0]),
            "minus_sac": _minus(own, ahead.get(REFERENCE) if variant != REFERENCE else None),
            "minus_sac_alone": _minus(own, alone.get(REFERENCE)),
            "minus_dc_argmin": _minus(own, alone.get(WITHIN_SET)),
            "way": _way(own, alone),
            "way_alone": _way(alone[variant], alone),
        }
        calls = episodes["dc_calls"].sum() / max(episodes["decisions"].sum(), 1)
        ends = [end for name in ESTIMATES for end in found[name]]
        most = int(episodes["most"].iloc[0])
        yield [env, variant, most, *ends, alone[variant].mean(), calls, *own.shape, runs.scale]


def _minus(own, other):
    return (math.nan,) * 3 if other is None else stats.paired_difference(own, other)


def _way(own, alone):
    """Of the way from doing nothing to greedy look-ahead, in percent; nan where one of them was not played."""
    if FLOOR not in alone or CEILING not in alone:
        return (math.nan,) * 3
    strata = [[own, alone[FLOOR], alone[CEILING]]]
    return stats.estimate(strata, lambda m: 100 * (m[..., 0] - m[..., 1]) / (m[..., 2] - m[..., 1]))


def _matrix(rows):
    """(S, E) survival in percent, seeds and scenarios ascending."""
    return 100 * rows.pivot_table(index="seed", columns="scenario", values="survival").to_numpy(float)


def as_markdown(params, table):
    """Some rows of the table, and the note."""
    return f"{markdown(HEAD, _cells(params, table))}\n{NOTE}\n"


def _cells(params, table):
    cells = []
    for row in table.to_dict("records"):
        points = [_points(row, column) for column in ("gain", "minus_sac", "minus_dc_argmin")]
        survival, way = (with_interval(row[c], row[f"{c}_low"], row[f"{c}_high"], d) for c, d in (("survival", 1), ("way", 0)))
        calls, count = f"{row['dc_calls_a_decision']:.1f}", f"{row['n_seeds']} x {row['n_episodes']}"
        name = [named(params, row["env"]), label(row["variant"]), str(row["most"])]
        cells.append([*name, survival, f"{row['alone']:.1f}", *points, way, calls, count])
    return cells


def _points(row, column):
    return with_interval(row[column], row[f"{column}_low"], row[f"{column}_high"], 1, sign="+")


def sentences(params, table):
    """What foresight gives ACE, whether its lead over SAC stays, and who is not told from it: some sentences a grid."""
    text = []
    for env in dict.fromkeys(table["env"]):
        rows = {row["variant"]: row for row in table[table["env"] == env].to_dict("records")}
        if OURS not in rows:
            continue
        ours = rows[OURS]
        line = f"- **{titled(params, env)}**: {label(OURS)} survives {ours['survival']:.1f} % with foresight, alone "
        line += f"{ours['alone']:.1f} %, a gain of {_points(ours, 'gain')} points: {_told(ours, 'gain', 'it helps', 'it harms')}."
        if REFERENCE in rows:
            line += f" {label(REFERENCE)} gains {_points(rows[REFERENCE], 'gain')}; with foresight for both {label(OURS)} is "
            line += f"{_points(ours, 'minus_sac')} points above it: {_told(ours, 'minus_sac', 'it leads', 'it is behind')}."
        if not math.isnan(ours["minus_dc_argmin"]):
            line += " Above a DC look-ahead in the language model's set, which knows no policy, it is by "
            line += f"{_points(ours, 'minus_dc_argmin')}: "
            line += f"{_told(ours, 'minus_dc_argmin', 'the policy adds to the set', 'the set alone does more')}."
        text.append(line)
    return "\n".join(text)


def _told(row, column, above, below):
    """By the side of 0 on which the interval lies."""
    if row[f"{column}_low"] > 0:
        return above
    return below if row[f"{column}_high"] < 0 else "no difference can be told"


def draw(params, played, results):
    """A panel for each grid: survival on validation by the number of actions compared, the chosen number in a ring."""
    found = []
    with theme():
        figure = Figure(figsize=(1.2 + 3.3 * len(played), 4.6), layout="constrained")
        panels = figure.subplots(1, len(played), sharey=True, squeeze=False)[0]
        for panel, (env, table) in zip(panels, played.items(), strict=True):
            variants = list(dict.fromkeys(table["variant"]))
            for variant, (colour, line, marker) in lines(variants).items():
                rows = table[table["variant"] == variant]
                means = 100 * rows[rows["split"] == "validation"].groupby("most")["survival"].mean()
                chosen = int(rows.loc[rows["split"] == "test", "most"].iloc[0])
                panel.plot(means.index, means, color=colour, ls=line, marker=marker, ms=4, label=label(variant))
                panel.plot([chosen], [means[chosen]], "o", ms=11, mfc="none", mec=colour, mew=1.2)
                found += [[env, variant, most, mean, most == chosen] for most, mean in means.items()]
            ticks = sorted(set(table["most"]))
            panel.set_xscale("log")
            panel.set_xticks(ticks, ["alone" if tick == ALONE else str(tick) for tick in ticks])
            panel.minorticks_off()
            panel.set(xlabel="Actions compared", ylim=(0, 104))
            panel.set_title(titled(params, env), fontsize="medium")
        panels[0].set_ylabel("Survival on validation, % of the horizon")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
        save(figure, Path(results) / "figures", "foresight")
    write_csv(
        pd.DataFrame(found, columns=["env", "variant", "most", "survival", "chosen"]).astype({"chosen": int}),
        Path(results) / "figures" / "foresight.csv",
    )
