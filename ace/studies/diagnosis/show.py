"""The two figures of the diagnosis and a sentence for each of its questions, from results/studies/diagnosis/<environment>.csv.

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

NEARLY = 0.9
"""Share of the gap between doing nothing and look-ahead that counts as nearly all of it."""
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
        text = f"{sentences(table, asked)}\n\n{note('diagnosis.second' if part else 'diagnosis')}\n\n{terms}"
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


def sentences(table, asked=None):
    """What was found, a line of Markdown for each question; asked: a selection, default all."""
    chosen = {name: describe for name, describe in DESCRIBE.items() if asked is None or name in asked}
    return "\n".join(f"- **{name}.** {describe(_of(table, name.lower()))}" for name, describe in chosen.items())


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


# --- sentences --------------------------------------------------------------------------------------------------------


def _value(rows, series, x=None):
    """'12.3 [10.1, 14.5]' of one row; x: default the last."""
    found = _series(rows, series)
    return _shown(found.iloc[-1] if x is None else found[found["x"] == str(x)].iloc[0])


def _shown(row):
    size = max(abs(row["value"]), abs(row["ci_high"]) if np.isfinite(row["ci_high"]) else 0.0)
    digits = 1 if size >= 10 else 2
    text = f"{row['value']:.{digits}f}"
    if np.isfinite(row["ci_low"]):
        text += f" [{row['ci_low']:.{digits}f}, {row['ci_high']:.{digits}f}]"
    return text


def _describe_representation(rows):
    value = partial(_value, rows)
    nothing, goal = (_series(rows, f"survival: {name}")["value"].iloc[0] for name in ("do nothing", "look-ahead"))
    curve = _series(rows, "survival: rated set")
    enough = curve[curve["value"] - nothing >= NEARLY * (goal - nothing)]["x"]
    reached = (
        f"with {', '.join(enough)} labels of {', '.join(curve['x'])}" if len(enough) else "with no number of labels"
    )
    ways = [
        f"taught the {kind}, its action is within 1 % of the limit of the best in {value(f'fit: {kind}')} % of the states "
        f"it was taught and in {value(f'accuracy: {kind}')} % of others, its "
        f"regret is {value(f'regret in rho: {kind}')} of the limit and its survival {value(f'survival: {kind}')} %"
        for kind in ("best action", "rated set")
    ]
    return (
        f"Do nothing: regret {value('regret in rho: do nothing')} of the limit, survival {value('survival: do nothing')} %; "
        f"look-ahead in the set survives {value('survival: look-ahead')} %, over the whole catalogue "
        f"{value('survival: look-ahead, all actions')} %. The imitating network with {curve['x'].iloc[-1]} labels: "
        f"{'; '.join(ways)}. The rated set closes {100 * NEARLY:.0f} % of the gap between doing nothing and look-ahead in "
        f"the set {reached}."
    )


def _describe_credit(rows):
    value, parts = partial(_value, rows), []
    for name in dict.fromkeys(rows["x"]):
        bias = value("bias for D_LLM", name)
        parts.append(
            f"{_short_run(name)}: {value('rank correlation', name)}, overrating of D_LLM's actions {bias} SD of Q"
        )
    worst = value("regret of the best-rated", "sac")
    last = rows["x"].iloc[-1]
    return (
        "Rank correlation of Q with the simulated reward, over the actions of the set, after short runs: "
        f"{'; '.join(parts)}. The action rated best misses {worst} of reward with SAC's critics and "
        f"{value('regret of the best-rated', last)} with those of "
        f"{_short_run(last)}."
    )


def _describe_distribution(rows):
    parts = []
    for visitor in dict.fromkeys(rows["x"]):
        regrets = [f"{_name(_split(s))} {_value(rows, s, visitor)}" for s in dict.fromkeys(rows["series"])]
        who = "the untrained policy" if visitor == "untrained" else _name(visitor)
        parts.append(f"in the states that {who} visits, {', '.join(regrets)}{_apart(rows, visitor)}")
    return f"Regret of one step, in reward (0.1 is about 2 % of the limit): {'; '.join(parts)}."


def _apart(rows, visitor, a="ace", b="sac"):
    """Whose regret is lower where one of them goes, if their intervals lie apart; "" where one of them is missing."""
    here = rows[rows["x"] == visitor].set_index("series")
    if not {f"regret: {a}", f"regret: {b}"} <= set(here.index):
        return ""
    first, second = (here.loc[f"regret: {name}"] for name in (a, b))
    if not first["ci_high"] < second["ci_low"] and not second["ci_high"] < first["ci_low"]:
        return f" ({_name(a)}'s and {_name(b)}'s intervals overlap)"
    lower, higher = (a, b) if first["value"] < second["value"] else (b, a)
    return f" ({_name(lower)}'s is lower than {_name(higher)}'s)"


def _describe_mixing(rows):
    survival = _series(rows, "survival")
    names = ["SAC" if x == "sac" else f"β = {float(x):g}" for x in survival["x"]]
    parts = [f"{name} {_shown(row)} %" for name, (_, row) in zip(names, survival.iterrows(), strict=True)]
    held = [
        f"{_value(rows, 'rows of D_LLM', x)} rows of gain {_value(rows, 'gain of a row', x)}" for x in survival["x"][1:]
    ]
    return f"Validation survival after short runs: {', '.join(parts)}. D_LLM then holds, by β, {'; '.join(held)}."


def _describe_exploration(rows):
    value, parts = partial(_value, rows), []
    for series in dict.fromkeys(rows["series"]):
        if series.startswith("effective actions: "):
            variant, curve = _split(series), _series(rows, series)
            first, last = curve.iloc[0], curve.iloc[-1]
            nothing, hub = value(f"do nothing: {variant}"), value(f"at the hub: {variant}")
            parts.append(
                f"{_name(variant)} spreads over {_shown(first)} actions at {first['x']} decisions and {_shown(last)} at "
                f"{last['x']}, where it does nothing in {nothing} % of its decisions; the policy kept "
                f"after the full training puts {hub} % of its probability on the largest substation"
            )
    return f"{'. '.join(part[0].upper() + part[1:] for part in parts)}."


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
DESCRIBE = {
    "Representation": _describe_representation,
    "Credit": _describe_credit,
    "Distribution": _describe_distribution,
    "Mixing": _describe_mixing,
    "Exploration": _describe_exploration,
}
