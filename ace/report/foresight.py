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

OURS, REFERENCE, WITHIN_SET = "ace", "sac", "set"
FLOORS, CEILING = {"way": "do_nothing", "way_reconnect": "reconnect", "way_alone": "do_nothing"}, "greedy"
ALONE = 1  # number of actions compared by a policy that acts alone
ESTIMATES = ("survival", "gain", "minus_sac", "lead_change", "ace_minus", "minus_set", *FLOORS)
COLUMNS = ["env", "variant", "most", *(name + end for name in ESTIMATES for end in ("", "_low", "_high"))]
COLUMNS += ["alone", "dc_calls_a_decision", "n_seeds", "n_episodes", "scale"]
HEAD = ["Grid", "Method", "Actions compared", "Survival, % of the horizon [95 %]", "Alone, %", "Gain, points [95 %]"]
HEAD += ["Points above SAC with foresight [95 %]", "ACE with foresight minus it [95 %]"]
HEAD += ["Points above the set's look-ahead [95 %]"]
HEAD += ["Of the way from do nothing to greedy, % [95 %]", "From reconnect to greedy, % [95 %]", "Seeds x episodes"]
NOTHING = (math.nan,) * 3  # an estimate of what was not played
NOTE = (
    "Survival on the test scenarios, on Grid2Op itself. Of as many of its most probable actions as *actions compared* says the "
    "policy plays the one after which a DC model of the grid expects the lowest loading, at the observed injections: a "
    "look-ahead, but without AC power flow and without Grid2Op's simulation. Nothing was trained for it: the policies are those "
    "of the main comparison, whose survival stands under *alone* (same scenarios; the gain is paired by policy too). The number "
    "of actions was chosen for each method and grid on validation scenarios, others than those by which checkpoints were "
    "chosen; where it is the largest that was tried, more might do better. The set's look-ahead is the same one without a "
    "policy, among the language model's whole set of actions and to do nothing, nothing chosen. Not played: ACE's other variants "
    "and LLM4Teach. Do nothing does not put lines back, reconnect does, as all policies; greedy simulates at every decision. "
    "Intervals: 95 % bootstrap over seeds and scenarios; the luck of the choice is in none."
)


def read_foresight(params, results, env):
    """results/foresight/<env>.csv, of the declared grid only: DataFrame, or ReportError where it is not there or old."""
    path, remedy = Path(results) / "foresight" / f"{env}.csv", f"run `dvc repro foresight@{env}`"
    if not path.is_file():
        raise ReportError(f"no results/foresight/{env}.csv: {remedy}")
    table = pd.read_csv(path)
    table = table[table["variant"].isin([*params.grid.variants, WITHIN_SET])]
    for variant, rows in table[table["variant"] != WITHIN_SET].groupby("variant", sort=False):
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
    policies = [variant for variant in dict.fromkeys(test["variant"]) if variant != WITHIN_SET]
    ends = [variant for variant in {*FLOORS.values(), CEILING} if variant in params.grid.baselines]
    runs = read(params, results, [*policies, *sorted(ends)])
    scenarios = runs.of(env, policies[0])[0].episodes["episode"].tolist()
    ahead = {variant: _matrix(rows, scenarios, env) for variant, rows in test.groupby("variant", sort=False)}
    alone = {variant: runs.scores(env, variant, "survival") for variant in [*policies, *ends]}
    gain = {variant: ahead[variant] - alone[variant] for variant in policies}
    for variant, own in ahead.items():
        rows = test[test["variant"] == variant]
        found = {
            "survival": stats.estimate([[own]], lambda means: means[..., 0]),
            # The same policies on both sides: their seeds are paired as well.
            "gain": stats.estimate([[gain[variant]]], lambda means: means[..., 0]) if variant in gain else NOTHING,
            "minus_sac": _minus(ahead, variant, REFERENCE),
            "lead_change": _minus(gain, variant, REFERENCE),
            "ace_minus": _minus(ahead, OURS, variant),
            "minus_set": _minus(ahead, variant, WITHIN_SET),
            "way": _way(own, alone, FLOORS["way"]),
            "way_reconnect": _way(own, alone, FLOORS["way_reconnect"]),
            "way_alone": _way(alone.get(variant), alone, FLOORS["way_alone"]),
        }
        calls = rows["dc_calls"].sum() / max(rows["decisions"].sum(), 1)
        before = alone[variant].mean() if variant in alone else math.nan
        numbers = [number for name in ESTIMATES for number in found[name]]
        yield [env, variant, int(rows["most"].iloc[0]), *numbers, before, calls, *own.shape, runs.scale]


def _minus(scores, a, b):
    """Estimate of a - b, paired by scenario; nan from itself and from what was not played."""
    if a == b or a not in scores or b not in scores:
        return NOTHING
    return stats.paired_difference(scores[a], scores[b])


def _way(own, alone, floor):
    """Of the way from a floor to greedy look-ahead, in percent; nan where one of the three was not played."""
    if own is None or floor not in alone or CEILING not in alone:
        return NOTHING
    strata = [[own, alone[floor], alone[CEILING]]]
    return stats.estimate(strata, lambda m: 100 * (m[..., 0] - m[..., 1]) / (m[..., 2] - m[..., 1]))


def _matrix(rows, scenarios, env):
    """(S, E) survival in percent, seeds and scenarios ascending. scenarios: those of the run files, which it must have."""
    matrix = rows.pivot_table(index="seed", columns="scenario", values="survival")
    if matrix.columns.tolist() != scenarios:
        remedy = f"run `dvc repro foresight@{env}`"
        raise ReportError(f"results/foresight/{env}.csv has other test scenarios than the runs: {remedy}")
    return 100 * matrix.to_numpy(float)


def as_markdown(params, table):
    """Some rows of the table, and the note."""
    return f"{markdown(HEAD, _cells(params, table))}\n{NOTE}\n"


def _cells(params, table):
    cells = []
    for row in table.to_dict("records"):
        points = [_points(row, column) for column in ("gain", "minus_sac", "ace_minus", "minus_set")]
        survival = with_interval(row["survival"], row["survival_low"], row["survival_high"], 1)
        ways = [with_interval(row[way], row[f"{way}_low"], row[f"{way}_high"], 0) for way in ("way", "way_reconnect")]
        before = "" if math.isnan(row["alone"]) else f"{row['alone']:.1f}"
        count = f"{row['n_seeds']} x {row['n_episodes']}"
        cells.append([named(params, row["env"]), _name(row), str(row["most"]), survival, before, *points, *ways, count])
    return cells


def _name(row):
    return "No policy: the set's look-ahead" if row["variant"] == WITHIN_SET else label(row["variant"])


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
        line += f"{ours['alone']:.1f} %, a gain of {_points(ours, 'gain')} points: {_gained(ours)}."
        if REFERENCE in rows:
            line += f" {label(REFERENCE)} gains {_points(rows[REFERENCE], 'gain')}: {_gained(rows[REFERENCE])}. With foresight "
            line += f"for both {label(OURS)} is {_points(ours, 'minus_sac')} points above it: "
            line += f"{_told(ours, 'minus_sac', 'it leads', 'it is behind')}; its lead changes by "
            line += f"{_points(ours, 'lead_change')}: {_told(ours, 'lead_change', 'it grows', 'it shrinks')}."
        if WITHIN_SET in rows:
            line += " Above the same look-ahead in the language model's set, without a policy, it is by "
            line += f"{_points(ours, 'minus_set')}: "
            line += f"{_told(ours, 'minus_set', 'the policy does more than the set', 'the set alone does more')}."
        others = [row for row in rows.values() if row["variant"] not in (OURS, REFERENCE, WITHIN_SET)]
        level = [label(row["variant"]) for row in others if row["ace_minus_low"] <= 0 <= row["ace_minus_high"]]
        ahead = [label(row["variant"]) for row in others if row["ace_minus_high"] < 0]
        line += f" Not told from it: {', '.join(level)}." if level else ""
        line += f" Above it: {', '.join(ahead)}." if ahead else ""
        text.append(line)
    return "\n".join(text)


def _gained(row):
    return "it acts alone" if row["most"] == ALONE else _told(row, "gain", "it helps", "it harms")


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
            variants = [variant for variant in dict.fromkeys(table["variant"]) if variant != WITHIN_SET]
            for variant, (colour, line, marker) in lines(variants).items():
                rows = table[table["variant"] == variant]
                means = 100 * rows[rows["split"] == "validation"].groupby("most")["survival"].mean()
                chosen = int(rows.loc[rows["split"] == "test", "most"].iloc[0])
                panel.plot(means.index, means, color=colour, ls=line, marker=marker, ms=4, label=label(variant))
                panel.plot([chosen], [means[chosen]], "o", ms=11, mfc="none", mec=colour, mew=1.2)
                found += [[env, variant, most, mean, most == chosen] for most, mean in means.items()]
            ticks = sorted(set(table.loc[table["split"] == "validation", "most"]))
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
