"""The environments: what each grid is made of, where its actions are, how hard its scenarios are, and a drawn grid.

Sizes and scenario statistics of the declared grids are those of results/scenarios/<env>.json; grids that are in
params.yaml and not in the declared grid are measured here, in the same way.
"""

import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from grid2op.PlotGrid import PlotMatplot
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ace.grid.card import environment_card
from ace.grid.environment import World
from ace.grid.scenarios import SPLITS
from ace.report import notes
from ace.report.formatting import thousands, write_table
from ace.report.labels import grid_label
from ace.report.runs import ReportError, declared, read
from ace.report.style import theme, write_figure

IDLE = ["do_nothing", "reconnect", "greedy"]
SAMPLED = 20  # scenarios of a split that `environment_card` takes its load statistics from
COLUMNS = ["env", "grid2op", "substations", "lines", "loads", "generators", "actions", "hub", "hub_share"]
COLUMNS += ["thermal_factor", "horizon", "opponent", "source_days"]
COLUMNS += [f"{what}_{split}" for split in SPLITS for what in ("days", "scenarios", "load_mean_mw", "load_max_mw")]
COLUMNS += [f"survival_{variant}" for variant in IDLE] + ["run_here", "scale"]
PAPER_ACTIONS = 60_000
"""The paper: "more than 60,000 discrete topology actions"."""
FREE = 24
"""Distance from a printed loading to the next line, in units of Grid2Op's layouts."""
PAPER_GRID = "l2rpn_wcci_2020"
"""The grid that what we hold of the paper names with them; that the others are its grids too is our reading."""


def write_environments(params, results, folder):
    """<folder>/environments.{csv,md,tex} and environments_figure.{csv,png,svg,pdf}. Returns the table."""
    cards = {name: card(params, results, name) for name in params.environments}
    table = pd.DataFrame([_row(params, results, *item) for item in cards.items()], columns=COLUMNS).astype(object)
    table = table.where(table.notna(), None)
    # grids are columns: all of them fit on a page
    head, *cells = zip(*[HEAD, *map(_cells, table.to_dict("records"))], strict=True)
    write_table(
        folder, "environments", table, head, cells, f"Environments, scale {params.scale}", notes.note("environments")
    )
    draw(cards, params, params.grid.environments[0], folder)
    return table


def card(params, results, name):
    """The card of a grid in params.yaml, as `environment_card` makes it: the file where the grid is declared."""
    if name in params.grid.environments:
        path = Path(results) / "scenarios" / f"{name}.json"
        if not path.is_file():
            raise ReportError(f"no results/scenarios/{name}.json: run notebooks/01_grids_and_actions.ipynb")
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
    """Actions against the paper's, where they are, and how hard the test scenarios are: a line of Markdown for each grid."""
    return "\n".join(f"- **{grid_label(row['env'])}** {_said(row)}" for row in table.to_dict("records"))


def _said(row):
    if row["actions"] <= PAPER_ACTIONS:
        compared = f"fewer than the paper's {PAPER_ACTIONS:,}: a small grid for tests, not one of the paper's"
    elif row["grid2op"] == PAPER_GRID:
        compared = f"where the paper says more than {PAPER_ACTIONS:,} and names this grid"
    else:
        compared = (
            f"more than the paper's {PAPER_ACTIONS:,} as well; that it is one of the paper's grids is our reading"
        )
    text = f"has {row['actions']:,} actions, {compared}. {_percent(100 * row['hub_share'])} are at substation {row['hub']}."
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
    return [grid_label(row["env"]), row["grid2op"], *sizes, *largest, *about, *days, *loads, *survival]


def _percent(value):
    return f"{value:.1f} %"


class GridPlot(PlotMatplot):
    """Grid2Op's own picture of a grid, on given axes instead of a figure of its own, without numbers of loads and generators.

    Loadings are printed on their lines, where no other line is near.
    """

    def __init__(self, observation_space, axes):
        super().__init__(
            observation_space, load_name=False, gen_name=False, line_name=False, load_radius=7, gen_radius=7
        )
        self.axes = axes

    def draw_powerline(self, figure, observation, line_id, line_name, connected, line_value, *drawn):
        """Parallel lines get one label, at the first of them, or theirs would be printed over one another."""
        ends = [{*pair} for pair in zip(observation.line_or_to_subid, observation.line_ex_to_subid, strict=True)]
        parallel = [line for line, pair in enumerate(ends) if pair == ends[line_id]]
        shown = (
            " / ".join(f"{100 * observation.rho[line]:.0f}" for line in parallel) if line_id == parallel[0] else None
        )
        self.bundle = parallel[0]
        super().draw_powerline(figure, observation, line_id, line_name, connected, shown, *drawn)

    def _draw_load_name(self, *_):
        """Nothing: its number would not be readable in the symbol."""

    _draw_gen_name = _draw_load_name

    def _draw_powerline_line(self, *drawn):
        self.segments.append((self.bundle, np.array(drawn[:4], dtype=float).reshape(2, 2)))
        super()._draw_powerline_line(*drawn)

    def _draw_powerline_txt(self, *drawn):
        self.texts[self.bundle] = drawn[4]

    def draw_legend(self, figure, observation):
        super().draw_legend(figure, observation)
        self.ax.get_legend().remove()

    def clear_figure(self, figure):
        self.xlim, self.ylim, self.ax = [0, 0], [0, 0], self.axes
        self.bundle, self.texts = None, {}  # the first of the parallel lines -> its label
        self.segments = []  # (the first of its parallel lines, [[x, y], [x, y]])

    def plot_postprocess(self, figure, observation, update):
        placed = []
        for bundle, text in self.texts.items():
            own = np.mean([ends for first, ends in self.segments if first == bundle], axis=0)
            others = [ends for first, ends in self.segments if first != bundle]
            place = free_place(own, others, placed)
            placed.append(place)
            self.ax.text(*place, text, ha="center", va="center", zorder=5,
                         bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"})  # fmt: skip
        look = {"linestyle": "", "markersize": 9, "markerfacecolor": "white"}
        kinds = {"load": ("orange", "^"), "generator": ("green", "p"), "substation": ("blue", "o")}
        symbols = [
            Line2D([], [], color=colour, marker=mark, label=kind, **look) for kind, (colour, mark) in kinds.items()
        ]
        symbols.append(Line2D([], [], color="red", marker="o", linestyle="", markersize=4, label="connected to bus 1"))
        self.ax.legend(handles=symbols, loc="lower left", fontsize=9, frameon=False)
        self.ax.set(xlim=(self.xlim[0] - self.xpad, self.xlim[1] + self.xpad), aspect="equal")
        self.ax.set_ylim(self.ylim[0] - self.ypad, self.ylim[1] + self.ypad)


def free_place(own, others, placed):
    """The place [x, y] on a line, own [[x, y], [x, y]], near its middle where other lines and labels are not near it."""

    def clear(place):
        found = [np.linalg.norm((place - other) * (0.5, 1)) for other in placed]  # a label is wider than high
        for a, b in others:
            along = np.clip(np.dot(place - a, b - a) / max(np.dot(b - a, b - a), 1e-9), 0, 1)
            found.append(np.linalg.norm(place - (a + along * (b - a))))
        return min(found, default=np.inf)

    places = [own[0] + share * (own[1] - own[0]) for share in (0.5, 0.45, 0.55, 0.4, 0.6, 0.35, 0.65, 0.3, 0.7)]
    return next((place for place in places if clear(place) >= FREE), max(places, key=clear))


def draw(cards, params, name, folder):
    """Actions by substation of all grids; below, grid `name` when the agent is first asked in a training scenario.

    Writes <folder>/environments_figure.{csv,png,svg,pdf}.
    """
    world = World(params.environment(name), params.scenarios, params.base.operator)
    step = world.reset("train", 0)
    with theme():
        figure = Figure(figsize=(11, 9.6), layout="constrained")
        above, below = figure.subfigures(2, 1, height_ratios=(1, 2.6))
        shared = {}  # grids with the same actions share a panel
        for env, found in cards.items():
            shared.setdefault(tuple(found["actions_by_substation"]), []).append(env)
        panels = above.subplots(1, len(shared), squeeze=False, sharey=True)[0]
        for panel, names in zip(panels, shared.values(), strict=True):
            _draw_catalogue(panel, " and ".join(map(grid_label, names)), cards[names[0]])
        panels[0].set_ylabel("Actions")
        axes = below.subplots()
        with mpl.rc_context({"font.size": 7}):
            plot = GridPlot(world.env.observation_space, axes)
            plot.plot_obs(world.env.get_obs(), figure=figure, line_info="rho", load_info=None, gen_info=None)
        axes.set_title(
            f"{grid_label(name)}: training scenario 0, step {step.state.t}, the most loaded line at "
            f"{100 * step.state.rho_max:.0f} % of its limit\n"
            "on the lines: loading, a / b of parallel lines; blue below 50 %, orange below 100 %, red above",
            fontsize="medium",
        )
        rows = [
            ("actions", env, sub, n)
            for env, found in cards.items()
            for sub, n in enumerate(found["actions_by_substation"])
        ]
        rows += [
            ("loading_percent", name, *pair) for pair in zip(world.env.name_line, 100 * step.state.rho, strict=True)
        ]
        data = pd.DataFrame(rows, columns=["what", "env", "substation_or_line", "value"])
        title, note = "Actions by substation, and a grid under load", notes.note("environments.figure")
        write_figure(figure, data, Path(folder) / "environments_figure", title, note)
    return data


def _draw_catalogue(panel, env, found):
    by_sub = np.sort(found["actions_by_substation"])[::-1]
    panel.bar(np.arange(1, len(by_sub) + 1), by_sub, width=1.0, color="#0072b2", edgecolor="white", linewidth=0.2)
    panel.set(yscale="log", ylim=(1, None), xlabel="Substation, by size")
    share = f"{100 * found['hub_share']:.0f} % at substation {int(np.argmax(found['actions_by_substation']))}"
    panel.set_title(f"{env}: {found['actions']:,} actions\n{share}", fontsize="medium")
