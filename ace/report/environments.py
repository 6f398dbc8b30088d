"""The environments: what each grid is made of, where its actions are, how hard each split's scenarios are, and a drawn grid.

Sizes of the declared grids are those of results/scenarios/<env>.json; grids that are in params.yaml and not in the declared
grid are measured here, in the same way. How hard they are is measured by `ace.studies.environments`, declared grids only.
"""

import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from grid2op.PlotGrid import PlotMatplot
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ace import stats
from ace.grid.card import environment_card
from ace.grid.environment import World
from ace.report import notes
from ace.report.formatting import thousands, with_interval, write_table
from ace.report.labels import grid_label
from ace.report.runs import ReportError
from ace.report.style import theme, write_figure
from ace.studies.environments.choice import easy_and_hopeless

PLAYED = ["reconnect", "greedy"]
COLUMNS = ["env", "split", "weeks", "mean_load_mw", "peak_load_mw", "renewable_share"]
COLUMNS += [f"{variant}{end}" for variant in PLAYED for end in ("", "_low", "_high")] + ["easy_share", "hopeless_share"]
"""Shares and survival in percent."""
GRID_COLUMNS = ["env", "grid2op", "substations", "lines", "loads", "generators", "actions", "hub", "hub_share"]
GRID_COLUMNS += ["thermal_factor", "horizon", "opponent", "run_here", "scale"]
FREE = 24
"""Distance from a printed loading to the next line, in units of Grid2Op's layouts."""



def write_environments(params, results, folder):
    """environments.{csv,md,tex}, grids.{csv,md,tex} and environments_figure.{csv,md,png,pdf}. Returns the first two tables:
    how hard each split is, and what each grid is."""
    measured = {name: read_measured(params, results, name) for name in params.grid.environments}
    table = pd.DataFrame(
        [_split(name, split, rows) for name, (episodes, _) in measured.items() for split, rows in _by_split(episodes)],
        columns=COLUMNS,
    )
    note = f"{notes.note('environments')}\n\n{agreement({name: both for name, (_, both) in measured.items()})}"
    episodes = pd.concat([each for each, _ in measured.values()])
    title = f"How hard each split is, scale {params.scale}"
    write_table(folder, "environments", table, HEAD, _cells(table, episodes), title, note)
    cards = {name: card(params, results, name) for name in params.environments}
    grids = pd.DataFrame([_grid(params, *item) for item in cards.items()], columns=GRID_COLUMNS)
    # grids are columns: all of them fit on a page
    head, *cells = zip(*[GRID_HEAD, *map(_grid_cells, grids.to_dict("records"))], strict=True)
    write_table(folder, "grids", grids, head, cells, f"Grids, scale {params.scale}", notes.note("environments.grids"))
    draw(cards, params, params.grid.environments[0], folder)
    return table, grids


def read_measured(params, results, env):
    """(episodes, agreement) of results/studies/environments/<env>.csv and <env>_agreement.csv; ReportError where they are missing
    or not of the splits that are declared."""
    remedy = f"run `dvc repro measure_environments@{env}`"
    names = [f"studies/environments/{env}{end}.csv" for end in ("", "_agreement")]
    for name in names:
        if not (Path(results) / name).is_file():
            raise ReportError(f"no results/{name}: {remedy}")
    # a start of packaged days is empty; a week may look like a number
    episodes, both = (pd.read_csv(Path(results) / name, dtype={"week": str, "start": "Int64"}) for name in names)
    test = params.scenarios.test_split if params.environment(env).weeks else "test"
    if test not in set(episodes["split"]):
        raise ReportError(f"results/{names[0]} has no episodes of the split {test!r}, which is tested on: {remedy}")
    return episodes, both


def _by_split(episodes):
    return episodes.groupby("split", sort=False)


def _split(env, split, rows):
    """A dict with COLUMNS. rows: the episodes of a split; intervals are over its weeks."""
    of = {variant: rows[rows["variant"] == variant] for variant in PLAYED}
    weeks = of[PLAYED[0]]
    found = {"env": env, "split": split, "weeks": len(weeks), "mean_load_mw": weeks["mean_load_mw"].mean()}
    found |= {"peak_load_mw": weeks["peak_load_mw"].max(), "renewable_share": 100 * weeks["renewable_share"].mean()}
    for variant, episodes in of.items():
        survival = stats.mean(100 * episodes["survival"].to_numpy()[None], stats.PERCENT)
        found |= dict(zip((variant, f"{variant}_low", f"{variant}_high"), survival, strict=True))
    return found | dict(zip(("easy_share", "hopeless_share"), easy_and_hopeless(rows), strict=True))


HEAD = ["Grid", "Split", "Weeks", "Load, MW: mean (highest)", "Wind and sun, % of the generation"]
HEAD += ["Survival, %: do nothing", "Reconnect lines [95 %]", "Greedy look-ahead [95 %]"]
HEAD += ["Easy weeks, %", "Hopeless weeks, %", "Simulator calls of greedy, an episode"]


def _cells(table, episodes):
    of = episodes.set_index(["env", "split", "variant"]).sort_index()
    cells = []
    for row in table.to_dict("records"):
        idle, greedy = (of.loc[(row["env"], row["split"], variant)] for variant in ("do_nothing", "greedy"))
        load = f"{thousands(row['mean_load_mw'])} ({thousands(row['peak_load_mw'])})"
        survival = [with_interval(row[each], row[f"{each}_low"], row[f"{each}_high"], 1) for each in PLAYED]
        shares = [f"{row[name]:.1f}" for name in ("easy_share", "hopeless_share")]
        first = [grid_label(row["env"]), row["split"].replace("_", " "), str(row["weeks"]), load, f"{row['renewable_share']:.1f}"]
        idle = f"{100 * idle['survival'].mean():.1f}"
        cells.append([*first, idle, *survival, *shares, thousands(greedy["simulator_calls"].mean())])
    return cells


def agreement(both):
    """A sentence: on how many do-nothing episodes Grid2Op and the fast world end at the same step. both: {env: table}."""
    counted = []
    for env, table in both.items():
        same = int((table["steps_grid2op"] == table["steps_fast_world"]).sum())
        lost = int(table["lost"].sum())
        counted.append(f"{grid_label(env)} {same} of {len(table)} ({lost} of them end in a blackout)")
    return notes.note("environments.agreement", counted="; ".join(counted))


def card(params, results, name):
    """The card of a grid in params.yaml, as `environment_card` makes it: the file where the grid is declared."""
    if name in params.grid.environments:
        path = Path(results) / "scenarios" / f"{name}.json"
        if not path.is_file():
            raise ReportError(f"no results/scenarios/{name}.json: run notebooks/01_grids_and_actions.ipynb")
        return json.loads(path.read_text(encoding="utf-8"))
    # Nothing is shown of its scenarios: one of each split will do.
    one = dict.fromkeys(("train", "validation", "test", "packaged"), 1)
    return environment_card(World(params.environment(name), params.scenarios.model_copy(update=one), params.base.operator))


def _grid(params, name, found):
    row = {column: found[column] for column in GRID_COLUMNS[1:-2] if column != "hub"}
    row |= {"env": name, "hub": int(np.argmax(found["actions_by_substation"])), "scale": params.scale}
    return row | {"run_here": name in params.grid.environments}


GRID_HEAD = ["Property", "Name in Grid2Op", "Substations", "Lines", "Loads", "Generators", "Actions"]
GRID_HEAD += ["Largest substation", "Its share of the actions", "Factor on thermal limits", "Steps of 5 minutes an episode"]
GRID_HEAD += ["Opponent cuts lines", "Run at this scale"]


def _grid_cells(row):
    """A column of the table, top to bottom."""
    sizes = [thousands(row[name]) for name in ("substations", "lines", "loads", "generators", "actions")]
    largest = [str(row["hub"]), _percent(100 * row["hub_share"])]
    about = [str(row["thermal_factor"]), thousands(row["horizon"])]
    return [grid_label(row["env"]), row["grid2op"], *sizes, *largest, *about, _yes(row["opponent"]), _yes(row["run_here"])]


def _yes(value):
    return "yes" if value else "no"


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

    Writes <folder>/environments_figure.{csv,png,pdf}.
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
