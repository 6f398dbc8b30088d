"""The environments: what each grid is made of, how its catalogue lies, how hard its scenarios are, and a drawn grid.

Sizes and scenario statistics of the declared grids are those of results/scenarios/<env>.json; grids that are in
params.yaml and not in the declared grid are measured anew, in the same way.
"""

import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from grid2op.PlotGrid import PlotMatplot
from matplotlib.figure import Figure

from ace.grid.card import environment_card
from ace.grid.environment import World
from ace.grid.scenarios import SPLITS
from ace.report.runs import ReportError, declared, read
from ace.report.style import save, theme
from ace.report.typeset import thousands, write_csv, write_table

IDLE = ["do_nothing", "reconnect", "greedy"]
SAMPLED = 20  # scenarios of a split that `environment_card` takes its load statistics from
COLUMNS = ["env", "grid2op", "substations", "lines", "loads", "generators", "actions", "hub", "hub_share"]
COLUMNS += ["thermal_factor", "horizon", "opponent", "source_days"]
COLUMNS += [f"{what}_{split}" for split in SPLITS for what in ("days", "scenarios", "load_mean_mw", "load_max_mw")]
COLUMNS += [f"survival_{variant}" for variant in IDLE] + ["run_here", "scale"]
PAPER_ACTIONS = 60_000
"""The paper: "more than 60,000 discrete topology actions"."""
PAPER_GRID = "l2rpn_wcci_2020"
"""The grid that what we hold of the paper names with them; that the others are its grids too is our reading."""
NOTE = (
    "Actions: every legal assignment of one substation's elements to its two buses; doing nothing is not counted. A factor on "
    "the thermal limits below 1 makes a grid harder; how it was set is told in "
    "README (deviations, first known issue). An opponent takes a line out "
    "of service now and then, as an attack does; no agent decides on that. Source days: where one day is packaged the splits "
    "share it and differ by their noise. Load: mean (highest) total load of the first 20 scenarios of a split. Survival: mean "
    "over the test episodes in percent of the horizon; a dash where no run of this scale is declared. Do nothing: not even "
    "lost lines are reconnected, as all others do."
)


def write_environments(params, results):
    """Writes tables/environments.{csv,md,tex} and figures/environments.{png,svg,csv} under results. Returns the table."""
    cards = {name: card(params, results, name) for name in params.environments}
    table = pd.DataFrame([_row(params, results, *item) for item in cards.items()], columns=COLUMNS).astype(object)
    table = table.where(table.notna(), None)
    # grids are columns: all of them fit on a page
    head, *cells = zip(*[HEAD, *map(_cells, table.to_dict("records"))], strict=True)
    write_table(results, "environments", table, head, cells, f"Environments, scale {params.scale}", NOTE)
    draw(cards, params, params.grid.environments[0], results)
    return table


def card(params, results, name):
    """The card of a grid in params.yaml, as `environment_card` makes it: the file where the grid is declared."""
    if name in params.grid.environments:
        path = Path(results) / "scenarios" / f"{name}.json"
        if not path.is_file():
            raise ReportError(f"no results/scenarios/{name}.json: run `dvc repro scenarios@{name}`")
        return json.loads(path.read_text(encoding="utf-8"))
    # No hash of all scenarios is wanted here, which is most of a card's time: as many as its statistics look at.
    few = {split: min(SAMPLED, getattr(params.scenarios, split)) for split in SPLITS}
    scenarios = params.scenarios.model_copy(update=few)
    found = environment_card(World(params.environment(name), scenarios, params.base.operator))
    for split in SPLITS:
        found["splits"][split]["scenarios"] = getattr(params.scenarios, split)
    return found


def _row(params, results, name, found):
    row = {column: found[column] for column in COLUMNS[1:13] if column != "hub"}
    row |= {"env": name, "hub": int(np.argmax(found["actions_by_substation"])), "scale": params.scale}
    row["run_here"] = name in params.grid.environments
    for split, about in found["splits"].items():
        row[f"days_{split}"] = " ".join(map(str, about["source_days"]))
        row[f"scenarios_{split}"] = about["scenarios"]
        row |= {f"load_{what}_mw_{split}": about["load_mw"][what] for what in ("mean", "max")}
    idle = [variant for variant in IDLE if variant in declared(params)]
    if row["run_here"] and idle:
        runs = read(params, results, idle)
        row |= {f"survival_{variant}": float(runs.scores(name, variant, "survival").mean()) for variant in idle}
    return row


def sentences(table):
    """Actions beside the paper's, where they lie, and how hard the test scenarios are: a line of Markdown for each grid."""
    return "\n".join(f"- **{row['env']}** {_said(row)}" for row in table.to_dict("records"))


def _said(row):
    if row["actions"] <= PAPER_ACTIONS:
        beside = f"fewer than the paper's {PAPER_ACTIONS:,}: a small grid for tests, not one of the paper's"
    elif row["grid2op"] == PAPER_GRID:
        beside = f"where the paper says more than {PAPER_ACTIONS:,} and names this grid"
    else:
        beside = f"more than the paper's {PAPER_ACTIONS:,} as well; that it is one of the paper's grids is our reading"
    text = f"has {row['actions']:,} actions, {beside}. {_percent(100 * row['hub_share'])} are at substation {row['hub']}."
    names = {"do_nothing": "doing nothing", "reconnect": "reconnection of lines alone", "greedy": "greedy look-ahead"}
    survived = {names[variant]: row[f"survival_{variant}"] for variant in IDLE if pd.notna(row[f"survival_{variant}"])}
    if not survived:
        return f"{text} Nothing was run on it at this scale."
    return f"{text} Survival: {', '.join(f'{who} {_percent(value)}' for who, value in survived.items())} of a test episode."


HEAD = ["Property", "Name in Grid2Op", "Substations", "Lines", "Loads", "Generators", "Actions"]
HEAD += ["Largest substation", "Its share of the actions", "Factor on thermal limits", "Steps of 5 minutes an episode"]
HEAD += ["Opponent cuts lines", *(f"Source days, {split}" for split in SPLITS)]
HEAD += [f"Load, MW, {split}: mean (highest)" for split in SPLITS]
HEAD += [f"Survival, %: {name}" for name in ("do nothing", "reconnect lines", "greedy look-ahead")]


def _cells(row):
    """A column of the table, top to bottom."""
    sizes = [thousands(row[name]) for name in ("substations", "lines", "loads", "generators", "actions")]
    largest = [str(row["hub"]), _percent(100 * row["hub_share"])]
    about = [str(row["thermal_factor"]), thousands(row["horizon"]), "yes" if row["opponent"] else "no"]
    days = [", ".join(row[f"days_{split}"].split()) for split in SPLITS]
    means, highest = ([thousands(row[f"load_{what}_mw_{split}"]) for split in SPLITS] for what in ("mean", "max"))
    loads = [f"{mean} ({top})" for mean, top in zip(means, highest, strict=True)]
    survival = ["–" if (value := row[f"survival_{variant}"]) is None else f"{value:.1f}" for variant in IDLE]
    return [row["env"], row["grid2op"], *sizes, *largest, *about, *days, *loads, *survival]


def _percent(value):
    return f"{value:.1f} %"


class GridPlot(PlotMatplot):
    """Grid2Op's own picture of a grid, on given axes instead of a figure of its own."""

    def __init__(self, observation_space, axes):
        super().__init__(observation_space, load_name=False, gen_name=False, line_name=False)
        self.axes = axes

    def draw_powerline(self, figure, observation, line_id, line_name, connected, line_value, *drawn):
        """Parallel lines get one label, at the first of them, or theirs would lie on one another."""
        ends = [{*pair} for pair in zip(observation.line_or_to_subid, observation.line_ex_to_subid, strict=True)]
        parallel = [line for line, pair in enumerate(ends) if pair == ends[line_id]]
        shown = " / ".join(f"{100 * observation.rho[line]:.0f}" for line in parallel) if line_id == parallel[0] else None
        super().draw_powerline(figure, observation, line_id, line_name, connected, shown, *drawn)

    def clear_figure(self, figure):
        self.xlim, self.ylim, self.ax = [0, 0], [0, 0], self.axes

    def plot_postprocess(self, figure, observation, update):
        self.ax.set(xlim=(self.xlim[0] - self.xpad, self.xlim[1] + self.xpad), aspect="equal")
        self.ax.set_ylim(self.ylim[0] - self.ypad, self.ylim[1] + self.ypad)


def draw(cards, params, name, results):
    """Catalogue sizes by substation of all grids; below, grid `name` at the first moment of danger of a training scenario.

    Writes figures/environments.{png,svg,csv} under results.
    """
    world = World(params.environment(name), params.scenarios, params.base.operator)
    step = world.reset("train", 0)
    with theme():
        figure = Figure(figsize=(11, 9.6), layout="constrained")
        above, below = figure.subfigures(2, 1, height_ratios=(1, 2.6))
        panels = above.subplots(1, len(cards), squeeze=False, sharey=True)[0]
        for panel, (env, found) in zip(panels, cards.items(), strict=True):
            _draw_catalogue(panel, env, found)
        panels[0].set_ylabel("Actions")
        axes = below.subplots()
        with mpl.rc_context({"font.size": 6}):
            plot = GridPlot(world.env.observation_space, axes)
            plot.plot_obs(world.env.get_obs(), figure=figure, line_info="rho", load_info=None, gen_info=None)
        axes.set_title(
            f"{name}: training scenario 0, step {step.state.t}, the fullest line at {100 * step.state.rho_max:.0f} % of its "
            "limit\nnumbers: loading in %, of parallel lines each; blue below 50 %, orange below 100 %, red above",
            fontsize="medium",
        )  # fmt: skip
        save(figure, Path(results) / "figures", "environments")
    rows = [
        ("actions", env, sub, n) for env, found in cards.items() for sub, n in enumerate(found["actions_by_substation"])
    ]
    rows += [("loading_percent", name, *pair) for pair in zip(world.env.name_line, 100 * step.state.rho, strict=True)]
    data = pd.DataFrame(rows, columns=["what", "env", "substation_or_line", "value"])
    write_csv(data, Path(results) / "figures" / "environments.csv")
    return data


def _draw_catalogue(panel, env, found):
    by_sub = np.sort(found["actions_by_substation"])[::-1]
    panel.bar(np.arange(1, len(by_sub) + 1), by_sub, width=1.0, color="#0072b2", edgecolor="white", linewidth=0.2)
    panel.set(yscale="log", ylim=(1, None), xlabel="Substation, by size")
    share = f"{100 * found['hub_share']:.0f} % at substation {int(np.argmax(found['actions_by_substation']))}"
    panel.set_title(f"{env}: {found['actions']:,} actions\n{share}", fontsize="medium")
