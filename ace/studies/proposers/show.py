"""The table and figure of the proposers: how far each gets alone, and how far the policy that learnt from it.

Reads results/studies/proposers/<env>.csv (`ace/studies/proposers/measure.py`): validation scenarios, no test.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ace.report.formatting import in_points, markdown, thousands, with_interval, write_table
from ace.report.labels import grid_label, label
from ace.report.notes import note
from ace.report.runs import measured
from ace.report.style import lines, theme, write_figure

NAMES = {
    "nobody": "None: lost lines are reconnected",
    "random": "Random actions",
    "model_unvalidated": "Language model, first proposal as it is",
    "model": "Language model, as f_LLM",
    "model_elsewhere": "Language model, new substation each round",
    "frequency": "Lookup table",
    "classifier": "Classifier on the same corpus",
    "expert": "Expert: the best of the whole catalogue",
    "greedy": "Greedy look-ahead, whole catalogue",
}
SET = "set_"
HEAD = ["Grid", "Proposer", "Alone, survival, % [95 %]", "Alone minus SAC, points [95 %]", "Its power flows an episode"]
HEAD += ["Policy that learnt from it", "Policy, survival, % [95 %]", "Policy minus proposer, points [95 %]"]


def read(params, results):
    """results/studies/proposers/<env>.csv of the measured grids, one below the other, or ReportError where there is none."""
    tables = []
    for env in measured(params, results, "proposers"):
        path = Path(results) / "studies" / "proposers" / f"{env}.csv"
        tables.append(pd.read_csv(path, keep_default_na=False, na_values=[""]).fillna({"learnt": ""}))
    return pd.concat(tables, ignore_index=True)


def write_proposers(params, results, folder):
    """Writes proposers.{csv,md,tex} and proposers_figure.{png,pdf,csv,md} into folder. Returns the table."""
    table = read(params, results)
    sizes = table["proposer"].str.removeprefix(SET).where(table["proposer"].str.startswith(SET))
    each = table["simulator_calls"] / table["n_episodes"]
    table = table.assign(set_size=pd.to_numeric(sizes), simulator_calls_an_episode=each, scale=params.scale)
    write_table(folder, "proposers", table, HEAD, _cells(table), f"Proposers, scale {params.scale}", note("proposers"))
    draw(table, folder)
    return table


def name_of(proposer):
    if proposer.startswith(SET):
        return f"Look-ahead within {proposer.removeprefix(SET)} actions"
    return NAMES[proposer]


def as_markdown(table):
    """The table and its note."""
    return f"{markdown(HEAD, _cells(table))}\n{note('proposers')}\n"


def _cells(table):
    cells = []
    for row in table[table["learnt"] == ""].to_dict("records"):
        found = table[(table["grid"] == row["grid"]) & (table["proposer"] == row["proposer"]) & (table["learnt"] != "")]
        learnt = next(iter(found.to_dict("records")), None)
        own = [_survival(row), in_points(row, "minus_sac"), thousands(row["simulator_calls_an_episode"])]
        policy = [label(learnt["learnt"]), _survival(learnt), in_points(learnt, "minus_proposer")] if learnt else [""] * 3
        cells.append([grid_label(row["grid"]), name_of(row["proposer"]), *own, *policy])
    return cells


def _survival(row):
    return with_interval(row["survival"], row["ci_low"], row["ci_high"], 1)


def draw(table, folder):
    """A panel for each grid, a row for each proposer: alone in grey, the policy that learnt from it in its own colour."""
    grids, order = list(dict.fromkeys(table["grid"])), list(dict.fromkeys(table["proposer"]))
    learnt = dict(table.loc[table["learnt"] != "", ["proposer", "learnt"]].to_numpy())
    look = lines(learnt.values())
    with theme():
        figure = Figure(figsize=(1.6 + 3.4 * len(grids), 0.9 + 0.4 * len(order)), layout="constrained")
        panels = figure.subplots(1, len(grids), sharey=True, squeeze=False)[0]
        for panel, env in zip(panels, grids, strict=True):
            for _, row in table[table["grid"] == env].iterrows():
                shift = (-0.16 if row["learnt"] else 0.16) if row["proposer"] in learnt else 0.0
                colour, _, marker = look[row["learnt"]] if row["learnt"] else ("#5a5a5a", "", "D")
                ends = np.abs([[row["survival"] - row["ci_low"]], [row["ci_high"] - row["survival"]]])
                face = colour if row["learnt"] else "white"
                panel.errorbar(row["survival"], len(order) - 1 - order.index(row["proposer"]) + shift, xerr=ends, color=colour,
                               marker=marker, mfc=face, ls="", capsize=2.5, ms=5)  # fmt: skip
            panel.set(xlim=(0, 104), ylim=(-0.5, len(order) - 0.5), xlabel="Survival on validation, %")
            panel.set_title(grid_label(env), fontsize="medium")
            panel.grid(axis="y", visible=False)
        names = [name_of(p) + (f"\npolicy: {label(learnt[p])}" if p in learnt else "") for p in reversed(order)]
        panels[0].set_yticks(range(len(order)), names)
        figure.supxlabel("open: the proposer alone; filled: the policy that learnt from it", fontsize="small")
        data = table[["grid", "proposer", "learnt", "survival", "ci_low", "ci_high", "n_seeds", "n_episodes"]]
        title = "What there is to learn, and what was learnt"
        write_figure(figure, data, folder / "proposers_figure", title, note("proposers.figure"))
