"""The table and figure of the proposers: how far each gets alone, and how far the policy that learnt from it.

Reads results/proposers/<env>.csv (`ace/proposers.py`): validation scenarios, no test.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ace.report.labels import label
from ace.report.runs import ReportError, named, titled
from ace.report.style import save, theme
from ace.report.typeset import markdown, thousands, with_interval, write_csv, write_table

NAMES = {
    "nobody": "Nobody: lost lines are put back",
    "random": "Random actions",
    "model_unvalidated": "Language model, first proposal as it is",
    "model": "Language model, as f_LLM",
    "model_elsewhere": "Language model, each round elsewhere",
    "frequency": "Lookup table",
    "classifier": "Classifier on the same corpus",
    "expert": "Expert: the best of the whole catalogue",
    "greedy": "Greedy look-ahead, whole catalogue",
}
SET = "set_"
TEACHER, OURS, REFERENCE = "model", "ace", "sac"
HEAD = ["Grid", "Proposer", "Alone, survival, % [95 %]", "Alone minus SAC, points [95 %]", "Its power flows an episode"]
HEAD += ["Power flows before", "Policy that learnt from it", "Policy, survival, % [95 %]", "Policy minus proposer, points [95 %]"]
NOTE = (
    "Scenarios of the validation's days, as many as the test has, and other ones than checkpoints were chosen by. Alone: "
    "whenever an agent is asked, the proposer's action is played if it gains more than the margin of a refinement in "
    "simulation, the first of at most five that does, else nothing; of the language model also its first proposal, played "
    "without simulation, and f_LLM whose further rounds name substations where nothing was validated yet, and its reasons "
    "only such as may be answered (a rule that was found on states of which some are of these scenarios). Look-ahead "
    "plays the action with the lowest simulated loading: of a set of actions that was chosen on training scenarios as the "
    "language model's was, or of a shortlist of the whole catalogue, whose best the expert proposes. They all simulate before "
    "they act, but for the unvalidated one; a policy does not. Power flows before: of the corpus, of the choice of the set "
    "alone, or (behind the semicolon) of the policy's training with the corpus it needs; the lookup table and the classifier, "
    "a network that learnt the best action of each of its states other than to do nothing, count the language model's "
    "corpus. Differences are paired by episode. Intervals: 95 % bootstrap over seeds and episodes; proposers that draw, the "
    "language model and random actions, were played once, and the luck of their draws is in no interval."
)


def read(params, results):
    """results/proposers/<env>.csv of the declared grid, one below the other, or ReportError where one is missing."""
    tables = []
    for env in params.grid.environments:
        path = Path(results) / "proposers" / f"{env}.csv"
        if not path.is_file():
            raise ReportError(f"no results/proposers/{env}.csv: run `dvc repro proposers@{env}`")
        tables.append(pd.read_csv(path, keep_default_na=False, na_values=[""]).fillna({"learnt": ""}))
    return pd.concat(tables, ignore_index=True)


def write_proposers(params, results):
    """Writes tables/proposers.{csv,md,tex} and figures/proposers.{png,svg,pdf,csv} under results. Returns the table."""
    table = read(params, results)
    sizes = table["proposer"].str.removeprefix(SET).where(table["proposer"].str.startswith(SET))
    each = table["simulator_calls"] / table["n_episodes"]
    table = table.assign(set_size=pd.to_numeric(sizes), simulator_calls_an_episode=each, scale=params.scale)
    write_table(results, "proposers", table, HEAD, _cells(params, table), f"Proposers, scale {params.scale}", NOTE)
    draw(params, table, results)
    return table


def name_of(proposer):
    if proposer.startswith(SET):
        return f"Look-ahead within {proposer.removeprefix(SET)} actions"
    return NAMES[proposer]


def as_markdown(params, table):
    """The table and its note."""
    return f"{markdown(HEAD, _cells(params, table))}\n{NOTE}\n"


def _cells(params, table):
    cells = []
    for row in table[table["learnt"] == ""].to_dict("records"):
        found = table[(table["grid"] == row["grid"]) & (table["proposer"] == row["proposer"]) & (table["learnt"] != "")]
        learnt = next(iter(found.to_dict("records")), None)
        own = [_survival(row), _points(row, "minus_sac"), thousands(row["simulator_calls_an_episode"])]
        policy = (
            [f"{label(learnt['learnt'])}, seeds: {learnt['n_seeds']}", _survival(learnt), _points(learnt, "minus_proposer")]
            if learnt
            else [""] * 3
        )
        before = thousands(row["simulator_calls_before"]) + (f"; {thousands(learnt['simulator_calls_before'])}" if learnt else "")
        cells.append([named(params, row["grid"]), name_of(row["proposer"]), *own, before, *policy])
    return cells


def _survival(row):
    return with_interval(row["survival"], row["ci_low"], row["ci_high"], 1)


def _points(row, column):
    return with_interval(row[column], row[f"{column}_low"], row[f"{column}_high"], 1, sign="+")


def sentences(params, table):
    """Whether ACE's policy has learnt what f_LLM knows, and what more there was to know: a line a grid, as Markdown."""
    lines = []
    for env in dict.fromkeys(table["grid"]):
        rows = {(r["proposer"], r["learnt"]): r for r in table[table["grid"] == env].to_dict("records")}
        teacher, best = rows[TEACHER, ""], rows["greedy", ""]
        text = (
            f"- **{titled(params, env)}**: f_LLM alone survives {_survival(teacher)} %, "
            f"look-ahead over all actions {_survival(best)} %"
        )
        ours, reference = rows.get((TEACHER, OURS)), rows.get(("nobody", REFERENCE))
        if ours:
            text += f"; {label(OURS)}, which learnt from f_LLM and simulates nothing, {_survival(ours)} %, "
            text += f"{_points(ours, 'minus_proposer')} points beside it: {_learnt(ours)}"
        if ours and reference:
            text += (
                f". A policy that did all that f_LLM does would lead {label(REFERENCE)} "
                f"by {_points(teacher, 'minus_sac')} points; "
            )
            text += f"{label(OURS)} leads by {_points(ours, 'minus_sac')}"
        lines.append(text + ".")
    return "\n".join(lines)


def _learnt(row):
    if row["minus_proposer_high"] < 0:
        return "it has not learnt all that its teacher does"
    return "it is ahead of its teacher" if row["minus_proposer_low"] > 0 else "no difference to its teacher can be told"


def draw(params, table, results):
    """A panel for each grid, a line for each proposer: alone, and the policy that learnt from it."""
    grids = list(dict.fromkeys(table["grid"]))
    order = list(dict.fromkeys(table["proposer"]))
    with theme():
        figure = Figure(figsize=(1.6 + 3.4 * len(grids), 0.9 + 0.4 * len(order)), layout="constrained")
        panels = figure.subplots(1, len(grids), sharey=True, squeeze=False)[0]
        for panel, env in zip(panels, grids, strict=True):
            for policy, colour, marker, shift, what in (
                (False, "#e69f00", "D", 0.14, "the proposer alone; it simulates before it acts, but where said"),
                (True, "#0072b2", "o", -0.14, "the policy that learnt from it; it acts without a simulator"),
            ):
                rows = table[(table["grid"] == env) & ((table["learnt"] != "") == policy)]
                places = [len(order) - 1 - order.index(p) + shift for p in rows["proposer"]]
                ends = np.abs(rows[["ci_low", "ci_high"]].to_numpy().T - rows["survival"].to_numpy())
                panel.errorbar(
                    rows["survival"], places, xerr=ends, color=colour, marker=marker, ls="", capsize=2.5, ms=5, label=what
                )
            panel.set(xlim=(0, 104), ylim=(-0.5, len(order) - 0.5), xlabel="Survival, % of the horizon")
            panel.set_title(named(params, env), fontsize="medium")
            panel.grid(axis="y", visible=False)
        learnt = dict(table.loc[table["learnt"] != "", ["proposer", "learnt"]].to_numpy())
        names = [name_of(p) + (f"\npolicy: {label(learnt[p])}" if p in learnt else "") for p in reversed(order)]
        panels[0].set_yticks(range(len(order)), names)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")
        save(figure, Path(results) / "figures", "proposers")
    columns = ["grid", "proposer", "learnt", "survival", "ci_low", "ci_high", "n_seeds", "n_episodes"]
    write_csv(table[columns], Path(results) / "figures" / "proposers.csv")
