"""Budget curves: survival in the test of the policies that a run left at its marks, against what had been used by then.

A mark is a number of decisions (`train.marks`); its policy is the averaged one of that moment, not the best checkpoint. Budgets
are of training, LLM-ALSO's branches, validation, and the corpus of the language model or of its set of actions. Not in them: the
held-out states by which a LoRA round is accepted, and what training a language model takes.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, StrMethodFormatter

from ace import stats
from ace.report.formatting import markdown, thousands, with_interval, write_csv
from ace.report.labels import grid_label, label, method
from ace.report.notes import note
from ace.report.runs import ReportError, read_cells
from ace.report.style import LINES, by_panel, legend_at_foot, lines, theme, write_figure

COLUMNS = ["env", "variant", "mark", "decisions", "env_steps", "power_flows", "survival", "ci_low", "ci_high", "n_seeds"]
COLUMNS += ["own_flows", "dc_flows", "llm_calls", "n_episodes", "scale"]
AXES = {
    "decisions": "Decisions in training",
    "env_steps": "Environment steps",
    "power_flows": "AC power flows (steps and simulations)",
}
LEVEL = "reconnect"
"""Drawn as a line where it was run."""


def read_marked(params, results, variants=()):
    """Runs of the declared cells with marks, and of reconnection alone on their grids. variants: a selection; empty: all."""
    cells = [(env, variant) for _, env, variant in params.grid.cells]
    marked = [cell for cell in cells if params.settings(cell[1]).train.marks and params.settings(cell[1]).method == "sac"]
    marked = [cell for cell in marked if not variants or cell[1] in variants]
    levels = [(env, LEVEL) for env in dict.fromkeys(env for env, _ in marked) if (env, LEVEL) in cells]
    return read_cells(params, results, [*levels, *marked])


def budget(runs):
    """A row with COLUMNS for each (env, variant, mark), by mark; survival in percent, budgets are means over the seeds.

    decisions: of training and of branches until the mark; env_steps, power_flows: of these, of validations and of the corpus; a
    step counts as one AC power flow, and so does a simulation; own_flows: power_flows without the corpus, which all runs share;
    dc_flows: DC power flows of training and corpus, which are in no other column.
    Raises ReportError where the seeds of a cell have other marks.
    """
    rows = []
    for env in runs.environments:
        for variant in runs.methods_of(env):
            seeds = runs.of(env, variant)
            if len({tuple(run.at_marks) for run in seeds}) > 1:
                raise ReportError(f"the seeds of {env}/{variant} were kept at different marks: make the cell again")
            for mark in seeds[0].at_marks:
                scores, used = scores_at(mark, seeds), used_at(mark, seeds)
                mean = stats.mean(scores, stats.PERCENT)
                beside = [*used[["own_flows", "dc_flows", "llm_calls"]], scores.shape[1], runs.scale]
                rows.append([env, variant, mark, *used[list(AXES)], *mean, len(seeds), *beside])
    return pd.DataFrame(rows, columns=COLUMNS)


def scores_at(mark, seeds):
    """(S, E) survival in percent, in the test, of the policies of a mark. seeds: [Run] of a cell."""
    return 100 * np.stack([run.at_marks[mark] for run in seeds])


def used_at(mark, seeds):
    """What a run had used at a mark, mean over the seeds, [Run] of a cell. Names as in COLUMNS."""
    return pd.DataFrame([_used(run, mark) for run in seeds]).mean()


def _used(run, mark):
    at, corpus = next(each for each in run.manifest["marks"] if each["decisions"] == mark), run.manifest["budget"]["corpus"]
    own_steps = at["env_steps"] + at["validation_steps"] + at.get("branch_env_steps", 0)
    own_flows, steps = own_steps + at["simulator_calls"], corpus.get("env_steps", 0)
    return {
        "decisions": at["decisions"] + at.get("branch_decisions", 0),
        "env_steps": own_steps + steps,
        "power_flows": own_flows + steps + corpus.get("simulator_calls", 0),
        "own_flows": own_flows,
        "dc_flows": at.get("dc_calls", 0) + corpus.get("dc_calls", 0),
        "llm_calls": at["llm_calls"],
    }


def write_budget(runs, folder):
    """<folder>/budget.{csv,md,png,pdf} of methods with marks; without any, the CSV's head alone. Returns the table."""
    table = budget(runs)
    if table.empty:
        write_csv(table, Path(folder) / "budget.csv")
        return table
    with theme():
        title = f"Survival by budget, {runs.tested()}"
        write_figure(_draw(runs, table), table, Path(folder) / "budget", title, note("budget"))
    return table


def _draw(runs, table):
    """Rows: grids; columns: AXES; of many methods the first panel's."""
    variants = by_panel(dict.fromkeys(table["variant"]))[0]
    environments, look = list(dict.fromkeys(table["env"])), lines(variants)
    figure = Figure(figsize=(9.2, 0.7 + 2.5 * len(environments)), layout="constrained")
    panels = figure.subplots(len(environments), len(AXES), squeeze=False, sharey="row")
    for row, env in zip(panels, environments, strict=True):
        for panel, (column, name) in zip(row, AXES.items(), strict=True):
            if env in runs.environments_of([LEVEL]):
                colour, style, _ = LINES[LEVEL]
                level = runs.scores(env, LEVEL, "survival").mean()
                panel.axhline(level, color=colour, linestyle=style, linewidth=1.2, label=label(LEVEL))
            for variant in variants:
                here = table[(table["env"] == env) & (table["variant"] == variant)]
                if here.empty:
                    continue
                colour, style, marker = look[variant]
                x, drawn = here[column].to_numpy(float), {"color": colour, "linestyle": style, "linewidth": 1.5}
                panel.plot(x, here["survival"], marker=marker, markersize=5, label=label(method(variant)), **drawn)
                if here["ci_low"].notna().all():
                    panel.vlines(x, here["ci_low"], here["ci_high"], color=colour, linewidth=0.9)
            panel.set(xscale="log", ylim=(0, 104))
            panel.xaxis.set_major_locator(LogLocator(subs=(1, 3) if column == "decisions" else (1,)))
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            panel.xaxis.set_minor_locator(NullLocator())
            panel.xaxis.set_minor_formatter(NullFormatter())
            panel.tick_params(labelsize="small")
            if env == environments[-1]:
                panel.set_xlabel(name, fontsize="small")
        row[0].set_ylabel(f"{grid_label(env)}\nsurvival, %", fontsize="small")
    legend_at_foot(figure, panels[0][0])
    return figure


def by_mark(table):
    """Survival with its interval at each mark, a row a method and grid, as Markdown."""
    marks, rows = sorted(set(table["mark"])), []
    for (env, variant), here in table.groupby(["env", "variant"], sort=False):
        said = {row.mark: with_interval(row.survival, row.ci_low, row.ci_high, 1) for row in here.itertuples()}
        cells = [grid_label(env), label(method(variant)), str(here["n_seeds"].iloc[0])]
        rows.append([*cells, *(said.get(mark, "") for mark in marks)])
    return markdown(["Grid", "Method", "Seeds", *(f"{thousands(mark)} decisions" for mark in marks)], rows)
