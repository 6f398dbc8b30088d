"""The two figures of the diagnosis, from results/studies/diagnosis/<environment>.csv.

The measurements are those of `ace/studies/diagnosis/measure.py`; this module reads nothing but their table.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ace.report.labels import grid_label, label
from ace.report.notes import note
from ace.report.runs import measured
from ace.report.style import LINES, MORE_LINES, legend_below, lines, save, theme, write_caption

LABELS = {"best action": MORE_LINES[0], "rated set": MORE_LINES[3]}
"""What the imitating network is taught, with its line."""


def write_figures(params, results, folder):
    """For each measured grid what `write_figure` writes. Returns {environment: table}."""
    tables = {}
    for env in measured(params, results, "diagnosis"):
        tables[env] = pd.read_csv(Path(results) / "studies" / "diagnosis" / f"{env}.csv", dtype={"x": str})
        write_figure(tables[env], folder, env, grid_label(env))
    return tables


def write_figure(table, folder, environment, title=None):
    """A grid's figures: diagnosis_<environment>.{png,pdf,csv,md} of questions 1 and 2, and ..._2 of 3 to 5.

    The CSV, of all questions, is with the first. table: of `ace.studies.diagnosis.measure.diagnose`, or as read back.
    """
    first = Path(folder) / f"diagnosis_{environment}"
    path = {"": first, "_2": first.with_name(f"{first.name}_2")}
    title = title or environment
    for part, panels in FIGURES.items():
        with theme():
            save(_draw(table, title, panels), path[part])
        asked = list(dict.fromkeys(name.split()[1].rstrip(":") for name in panels))
        terms = "\n".join(f"- {line}" for line in note("diagnosis.terms").split("\n"))
        text = f"{note('diagnosis.second' if part else 'diagnosis')}\n\n{terms}"
        subject = " and ".join(filter(None, [", ".join(asked[:-1]), asked[-1]])).lower()
        write_caption(path[part], f"Why the learner learns what it does, {title}: {subject}", text)
    table.to_csv(first.with_suffix(".csv"), index=False, float_format="%.6g", lineterminator="\n")


def _draw(table, title, draw):
    """draw: of FIGURES. Two panels a row."""
    figure = Figure(figsize=(10.4, 8.4), layout="constrained")
    figure.get_layout_engine().set(wspace=0.06, hspace=0.06)
    panels = figure.subplots(2, 2).ravel()
    for panel, (name, draw_one) in zip(panels, draw.items(), strict=True):
        draw_one(panel, _of(table, name.split()[1].rstrip(":").lower()))
        panel.set_title(name, fontsize="medium", loc="left")
    figure.suptitle(f"{title}: training and validation scenarios", fontsize="medium")
    figure.supxlabel("bars: 95 % intervals over seeds and states or scenarios", fontsize="small")
    return figure


def _name(who):
    return who if " " in who else "untrained policy" if who == "untrained" else label(who)


def _of(table, question):
    return table[table["question"] == question]


def _series(rows, name):
    """One series by its x: numbers where they are numbers."""
    return rows[rows["series"] == name]


def _split(series):
    """'regret: sac' -> 'sac'."""
    return series.partition(": ")[2]


def _short_run(name):
    """'ace, beta 0.5' -> 'ACE, β = 0.5'."""
    return name.replace("ace, beta ", "ACE, β = ").replace("sac", "SAC")


def _line(panel, rows, look, label, shift=0.0, stretch=1.0):
    """Points with their intervals over numeric x, joined; moved a little, so that none hides another."""
    colour, line, marker = look
    x = stretch * rows["x"].astype(float).to_numpy() + shift
    panel.errorbar(x, rows["value"], yerr=_bars(rows), color=colour, linestyle=line, marker=marker, markersize=5,
                   elinewidth=1.0, label=label)  # fmt: skip


def _bars(rows):
    """(2, n) lengths of the intervals, 0 where there is none."""
    ends = [rows["value"] - rows["ci_low"], rows["ci_high"] - rows["value"]]
    return np.maximum(np.nan_to_num(np.array(ends, dtype=float)), 0.0)


def _points(panel, rows, places, look, label):
    colour, _, marker = look
    panel.errorbar(places, rows["value"], yerr=_bars(rows), color=colour, linestyle="none", marker=marker, markersize=6,
                   elinewidth=1.2, label=label)  # fmt: skip


def _imitation(panel, rows):
    _taught(panel, rows, "survival")
    levels = {
        "do nothing": ("do nothing", LINES["do_nothing"]),
        "look-ahead": ("look-ahead, set", LINES["dc_argmin"]),
        "look-ahead, all actions": ("look-ahead, all actions", LINES["greedy"]),
    }
    for name, (text, (colour, line, _)) in levels.items():
        value = _series(rows, f"survival: {name}")["value"].iloc[0]
        panel.axhline(value, color=colour, linestyle=line, linewidth=1.5, label=text)
    panel.set(ylim=(0, 104), ylabel="Survival, % of the horizon")
    legend_below(panel, 3)


def _right_actions(panel, rows):
    _taught(panel, rows, "accuracy")
    panel.set(ylim=(0, 104), ylabel="Right actions, %")
    legend_below(panel)


def _taught(panel, rows, what):
    for (kind, look), stretch in zip(LABELS.items(), (0.97, 1.03), strict=True):
        _line(panel, _series(rows, f"{what}: {kind}"), look, f"taught the {kind}", stretch=stretch)
    ticks = sorted(set(_series(rows, f"{what}: rated set")["x"].astype(float)))
    panel.set(xscale="log", xlabel="Labels (log scale)")
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.set_xticks([], minor=True)


def _credit(panel, rows, series, look):
    names = list(dict.fromkeys(rows["x"]))
    _points(panel, _series(rows, series), np.arange(len(names)), look, None)
    panel.axhline(0, color="#555555", linewidth=1)
    panel.set_xticks(range(len(names)), [_short_run(name).replace(", ", ",\n") for name in names])
    labels = {
        "rank correlation": "Rank correlation with reward",
        "bias for D_LLM": "Overrating, SD of Q",
    }
    panel.set(xlim=(-0.5, len(names) - 0.5), ylabel=labels[series])


def _distribution(panel, rows):
    visitors = list(dict.fromkeys(rows["x"]))
    series = list(dict.fromkeys(rows["series"]))
    variants = [_split(s) for s in series]
    looks = lines([v for v in variants if v != "do nothing"]) | {"do nothing": LINES["do_nothing"]}
    for place, (name, variant) in enumerate(zip(series, variants, strict=True)):
        shift = 0.14 * (place - (len(series) - 1) / 2)
        _points(panel, _series(rows, name), np.arange(len(visitors)) + shift, looks[variant], _name(variant))
    panel.set_xticks(range(len(visitors)), [f"states of\n{_name(v)}" for v in visitors])
    panel.set(xlim=(-0.5, len(visitors) - 0.5), ylabel="Regret (reward)")
    panel.set_ylim(bottom=0)
    legend_below(panel, 3)


def _mixing(panel, rows):
    survival = _series(rows, "survival")
    for place, name in enumerate(survival["x"]):
        _points(panel, survival.iloc[[place]], [place], LINES["sac" if name == "sac" else "ace"], None)
    labels = ["SAC" if x == "sac" else f"ACE,\nβ = {float(x):g}" for x in survival["x"]]
    panel.set_xticks(range(len(labels)), labels)
    panel.set(xlim=(-0.5, len(labels) - 0.5), ylim=(0, 104), ylabel="Survival on validation, %")


def _effective(panel, rows):
    chosen = [s for s in dict.fromkeys(rows["series"]) if s.startswith("effective actions: ")]
    for name, look in zip(chosen, lines([_split(s) for s in chosen]).values(), strict=True):
        _line(panel, _series(rows, name), look, _name(_split(name)), shift=_beside(rows, chosen, name))
    panel.set(yscale="log", xlabel="Decisions in training", ylabel="exp(entropy), actions (log scale)")
    _decisions(panel, rows, chosen)


def _hub(panel, rows):
    chosen = [s for s in dict.fromkeys(rows["series"]) if s.startswith("at the hub, short run: ")]
    looks = [LINES["sac"], MORE_LINES[0], LINES["ace"], *MORE_LINES[2:]]
    for name, look in zip(chosen, looks, strict=False):
        _line(panel, _series(rows, name), look, _short_run(_split(name)), shift=_beside(rows, chosen, name))
    panel.set(xlabel="Decisions of a short run", ylabel="Probability, %", ylim=(0, 104))
    _decisions(panel, rows, chosen)


def _decisions(panel, rows, series):
    panel.set_xticks(sorted(set(rows.loc[rows["series"].isin(series), "x"].astype(float))))
    panel.xaxis.set_major_formatter("{x:,.0f}")
    legend_below(panel)


def _beside(rows, series, name):
    """How far the points of one series are moved, so that the bars of all stand side by side."""
    x = np.unique(_series(rows, name)["x"].astype(float))
    return 0.06 * np.diff(x).min(initial=np.inf) * (series.index(name) - (len(series) - 1) / 2) if len(x) > 1 else 0.0


FIGURES = {  # ending of the file's name -> {title of a panel: how it is drawn}
    "": {
        "1 Representation: survival by imitation": _imitation,
        "1 Representation: right actions in held-out states": _right_actions,
        "2 Credit: rank correlation of Q with simulated reward": partial(
            _credit, series="rank correlation", look=MORE_LINES[3]
        ),
        "2 Credit: overrating of D_LLM's actions": partial(_credit, series="bias for D_LLM", look=MORE_LINES[0]),
    },
    "_2": {
        "3 Distribution: one-step regret": _distribution,
        "4 Mixing: survival after short runs": _mixing,
        "5 Exploration: effective actions": _effective,
        "5 Exploration: acting at the largest substation": _hub,
    },
}
