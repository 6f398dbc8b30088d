"""Pictures of packaged days against weeks, and of survival by season: figures for notebook 01, which are not written to files."""

import numpy as np
from matplotlib.figure import Figure

from ace.report.style import LINES, MORE_LINES
from ace.studies.environments.compared import KINDS, PACKAGED, WEEKS, mix

LOOK = {PACKAGED: (MORE_LINES[0][0], "--"), WEEKS: (MORE_LINES[3][0], "-")}
METHODS = {"do_nothing": "do nothing", "reconnect": "reconnect lines"}


def draw_compared(hours, grid):
    """Load, mix, wind, sun, and loading of the intact grid by source. hours: of `compared.hourly`. Within `style.theme`."""
    figure = Figure(figsize=(11, 6.2), layout="constrained")
    panels = figure.subplots(2, 3)
    (level, load, shares), (wind, sun, loading) = panels
    of = dict(list(hours.groupby("source", sort=False)))
    for source, rows in of.items():
        _distribution(level, source, rows["load_mw"])
        _distribution(loading, source, 100 * rows["rho_max"].dropna())
        for panel, column in ((load, "load_mw"), (wind, "wind_mw"), (sun, "solar_mw")):
            _day(panel, source, rows.pivot_table(index="day", columns="hour", values=column))
    table, width = mix(hours), 0.8 / len(of)
    for number, source in enumerate(of):
        places = np.arange(len(KINDS)) + (number - (len(of) - 1) / 2) * width
        shares.bar(places, table[source], width, color=LOOK[source][0])
    shares.set(title="Energy by kind of generator", ylabel="%", xticks=range(len(KINDS)))
    shares.set_xticklabels(KINDS, fontsize="small")
    shares.grid(visible=False, axis="x")
    level.set(title="Load, hourly means", xlabel="MW", ylabel="share of the hours below, %")
    loading.set(title="Most loaded line, nothing switched", xlabel="% of its limit", ylabel="share of the hours below, %")
    loading.axvline(100, color="#888888", linewidth=0.8)
    for panel, title in ((load, "Load by hour"), (wind, "Wind by hour"), (sun, "Sun by hour")):
        panel.set(title=title, xlabel="hour of the day", ylabel="MW", xticks=range(0, 25, 6))
    days = {source: rows["day"].nunique() for source, rows in of.items()}
    handles = [load.lines[number] for number in range(len(of))]
    labels = [f"{source} ({count} day{'s' * (count > 1)})" for source, count in days.items()]
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(grid)
    return figure


def draw_seasons(survival, grid):
    """A bar for each season and method, a dot for each week. survival: of `compared.survival_by_season`. Within `style.theme`."""
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axis = figure.subplots()
    seasons = list(survival["season"].cat.categories)
    for number, (method, name) in enumerate(METHODS.items()):
        colour = LINES[method][0]
        for place, season in enumerate(seasons):
            values = survival.loc[(survival["season"] == season) & (survival["method"] == method), "survival"].to_numpy()
            at = place + 0.4 * number - 0.2
            axis.bar(at, values.mean(), 0.36, color=colour, alpha=0.45, label=None if place else name)
            spread = np.linspace(-0.13, 0.13, len(values)) if len(values) > 1 else np.zeros(1)
            axis.plot(at + spread, np.sort(values), ".", color=colour, markersize=4)
    counts = {season: int((survival["season"] == season).sum() / len(METHODS)) for season in seasons}
    axis.set(xticks=range(len(seasons)), xticklabels=[f"{season}\n{n} episodes" for season, n in counts.items()], ylim=(-3, 103))
    axis.set(ylabel="steps survived, % of an episode", title=f"{grid}: training scenarios, no opponent")
    axis.grid(visible=False, axis="x")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _distribution(panel, source, values):
    values = np.sort(values)
    colour, style = LOOK[source]
    panel.plot(values, 100 * np.arange(1, len(values) + 1) / len(values), color=colour, linestyle=style)


def _day(panel, source, by_day):
    """Mean of the days, and the band that holds eight days of ten. by_day: (days, 24)."""
    colour, style = LOOK[source]
    hours = np.arange(24) + 0.5
    panel.plot(hours, by_day.mean(), color=colour, linestyle=style)
    panel.fill_between(hours, by_day.quantile(0.1), by_day.quantile(0.9), color=colour, alpha=0.15, linewidth=0)
