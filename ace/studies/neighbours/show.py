"""One run of a neighbour's arm: LLM-ALSO's points, branches and promotions; CAMEL's masks and what they left to explore.

Reads a cell as `run_files.read_cell` gives it.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ace.also.terms import TERMS
from ace.report.formatting import write_csv
from ace.report.labels import label
from ace.report.notes import note
from ace.report.runs import ReportError
from ace.report.style import LINES, MORE_LINES, save, theme, write_caption
from ace.run_files import frame

MOST_NAMED = 12
POINTS = ["decisions", "diagnosis", "configuration", "gain", "survival", "in force after it"]


def points(run):
    """LLM-ALSO's points as a table with POINTS, a row a branch. gain: over the control, in unshaped return by step.

    run: run_files.SeedFiles. ReportError where it has no points.
    """
    if "points" not in run.manifest:
        raise ReportError(f"{_title(run)}: no run of LLM-ALSO, it has no points")
    rows = []
    for point in run.manifest["points"]:
        control = next(iter(point["trials"]), {}).get("score")
        for trial in point["trials"] or [{}]:
            known = trial.get("score") is not None and control is not None
            what = trial.get("configuration", f"{trial['judgements']} judgements" if "judgements" in trial else "")
            rows.append([
                point["decisions"], (point["diagnosis"] or "").replace("\n", ", "), trial.get("died") or what,
                trial["score"] - control if known else np.nan, 100 * trial["survival"] if known else np.nan, _in_force(point),
            ])  # fmt: skip
    return pd.DataFrame(rows, columns=POINTS)


def _in_force(point):
    entered = point["in_force"] if point["promoted"] is None else point["promoted"]
    return " , ".join(f"{name} {value}" for name, value in entered.items()) or "none"


def write_also(run, folder):
    """<folder>/run.{png,pdf,md} and points.csv: survival on validation, at each point its branches, and the weights in force.
    Returns the table of `points`."""
    curve, table = frame(run.training), points(run)
    with theme():
        figure = Figure(figsize=(7.2, 4.6), layout="constrained")
        upper, lower = figure.subplots(2, sharex=True, height_ratios=[2, 1])
        colour, *_ = LINES["also"]
        upper.plot(curve["decisions"], 100 * curve["survival"], color=colour, label="the run, validation weeks")
        control = table["configuration"].isin(["none", "0 judgements"])
        kinds = ((control, LINES["sac"], "unshaped branch"), (~control, MORE_LINES[0], "branch of a configuration"))
        for rows, (colour, *_), name in kinds:
            upper.plot(table["decisions"][rows], table["survival"][rows], "o", color=colour, markersize=4, label=name)
        upper.set(ylabel="survival, %", ylim=(0, 104), title=_title(run))
        upper.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", frameon=False)
        used = [term for term in TERMS if curve[f"weight_{term}"].any()]
        for term, (colour, line, _) in zip(used, [LINES["ace"], *MORE_LINES, LINES["camel"]], strict=False):
            lower.step(curve["decisions"], curve[f"weight_{term}"], where="post", color=colour, linestyle=line, label=term)
        lower.set(xlabel="decisions", ylabel="weight in the reward", ylim=(-0.02, 0.7))
        if used:  # of no weight there is no legend
            lower.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", frameon=False)
        save(figure, Path(folder) / "run")
    write_csv(table, Path(folder) / "points.csv")
    write_caption(Path(folder) / "run", f"One run of {_title(run)}", note("neighbours.also"))
    return table


def write_camel(run, folder):
    """<folder>/run.{png,pdf,md} and named.csv: epsilon, the share of decisions masked so far, and the table of `named`, which is
    returned."""
    curve, table = frame(run.training), named(run)
    if "epsilon" not in curve:
        raise ReportError(f"{_title(run)}: no run of CAMEL, it has no masks")
    with theme():
        figure = Figure(figsize=(7.2, 2.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot(curve["decisions"], curve["epsilon"], color=LINES["camel"][0], label="ε")
        left.plot(curve["decisions"], curve["masked"], color=MORE_LINES[3][0], linestyle="--", label="masked so far")
        left.set(xlabel="decisions", ylabel="share of the decisions", ylim=(-0.02, 1.04), title=_title(run))
        left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2, fontsize="small", frameon=False)
        most = table.head(MOST_NAMED)[::-1]
        right.barh(most["substation"], most["regions"], color=LINES["camel"][0])
        right.set(xlabel=f"regions that it is part of, of {run.manifest['roles']['mask']['states']}")
        right.grid(axis="y", visible=False)
        save(figure, Path(folder) / "run")
    write_csv(table, Path(folder) / "named.csv")
    write_caption(Path(folder) / "run", f"One run of {_title(run)}", note("neighbours.camel"))
    return table


def _title(run):
    return f"{label(run.manifest['variant'])}, seed {run.manifest['seed']}"


def named(run):
    """Of how many regions each substation is a part, the most frequent first."""
    count = run.manifest.get("roles", {}).get("mask", {})
    found = Counter({name: n for name, n in count.items() if name.startswith("substation ")})
    return pd.DataFrame(found.most_common(), columns=["substation", "regions"])
