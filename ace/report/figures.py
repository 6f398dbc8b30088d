"""The figures of the main comparison: learning curves, and survival by method.

Each is saved as PNG and PDF with the CSV it shows and a Markdown file with what it says.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from ace.report.labels import grid_label, label
from ace.report.notes import note
from ace.report.runs import ReportError, read
from ace.report.style import LINES, by_panel, lines, theme, write_figure
from ace.report.tables import main_methods

# column of training.csv -> (axis label, factor)
CURVES = {
    "survival": ("Survival on validation, % of the horizon", 100.0),
    "reward_mean": ("Reward a step (validation)", 1.0),
    "entropy": ("Policy entropy, nats", 1.0),
    "q_std": ("Standard deviation of Q", 1.0),
    "refined": ("Refined samples so far", 1.0),
}
SURVIVAL = "Survival in the test, % of the horizon"
LEVELS = ("do_nothing", "reconnect", "greedy")
"""Baselines that the main figure shows as lines, to read the others against."""
ORDER = ("sac", "frequency_refine", "expert_sac", "llm4teach", "camel", "also", "ace_no_actor", "ace_no_critic", "ace")
"""The first rows of the main figure; methods that learn and are not named here follow, then those that do not learn."""
TABLE_ONLY = ("random_refine", "ace_literal", "camel_poor")
"""Left out of the main figure where it would have more than MOST_ROWS rows: they are in the table and in the CSV."""
MOST_ROWS = 12
MARKERS = {"learns": "o", "does not learn": "D"}

MUCH_LONGER = 2
"""A method trained for more than so many times the decisions of another can't be compared with it at the end."""


def learning_data(runs, metric="survival"):
    """What the learning curves show, as a long table of the methods that are trained.

    Columns env, variant, decisions, value, low, high, n_seeds: the mean over the seeds on validation scenarios, low and high
    the lowest and the highest seed (an interval of three to five numbers would promise too much).
    """
    _, factor = CURVES[metric]
    rows = []
    for env in runs.environments:
        for variant in runs.variants:
            trained = [run.training for run in runs.of(env, variant) if run.training is not None]
            if trained and len(trained) < len(runs.of(env, variant)):
                raise ReportError(f"not every seed of {env}/{variant} has rows in training.csv: make the cell again")
            if trained:
                decisions, values = _on_common_decisions(trained, metric)
                for x, column in zip(decisions, factor * values.T, strict=True):
                    rows.append([env, variant, int(x), column.mean(), column.min(), column.max(), len(column)])
    return pd.DataFrame(rows, columns=["env", "variant", "decisions", "value", "low", "high", "n_seeds"])


def learning_curves(params, results, folder, metric="survival", variants=None):
    """Validation survival against decisions, a panel for each grid, at most six methods a figure.

    Writes learning_curves.{png,pdf,csv,md} into folder, and learning_curves_2 and so on where there are more methods.
    metric: one of CURVES; another metric than survival gets its name into the file names. variants: a selection, default
    those of the main table. Returns {file name: table drawn}.
    """
    if metric not in CURVES:
        raise ReportError(f"metric {metric} can't be drawn; there are {', '.join(CURVES)}")
    data = learning_data(read(params, results, variants or main_methods(params)), metric)
    written = {}
    for number, chosen in enumerate(by_panel(dict.fromkeys(data["variant"])), start=1):
        name = file_name(metric) + (f"_{number}" if number > 1 else "")
        part = written[name] = data[data["variant"].isin(chosen)]
        title = "Learning curves" if number == 1 else "Learning curves, further methods"
        title += "" if metric == "survival" else f": {CURVES[metric][0]}"
        with theme():
            write_figure(
                _draw_curves(part, CURVES[metric][0]), part, folder / name, title, note("learning_curves")
            )
    return written


def comparison(params, table, runs, folder):
    """Mean survival of each method with its 95 % interval, a panel for each grid.

    Writes main_figure.{png,pdf,csv,md} into folder; returns the rows of the CSV, of all methods. table: as `tables.summarise`
    makes it of runs.
    """
    columns = ["env", "variant", "metric", "mean", "iqm", "ci_low", "ci_high", "n_seeds", "n_episodes", "scale"]
    data = table.loc[table["metric"] == "survival", columns].copy()
    with theme():
        title, figure = f"{SURVIVAL}, by method, {runs.tested()}", _draw_comparison(params, data, runs.tested())
        write_figure(figure, data, folder / "main_figure", title, note("main.figure"))
    return data


def file_name(metric):
    """Of the learning curves, without its ending."""
    return "learning_curves" if metric == "survival" else f"learning_curves_{metric}"


def last_and_best(data, metric="survival"):
    """From the table of the learning curves: where each trained method ends, and its best point, by grid."""
    rows = []
    for (env, variant), curve in data.groupby(["env", "variant"], sort=False):
        last, best = curve.iloc[-1], curve.loc[curve["value"].idxmax()]
        rows.append([env, label(variant), last["value"], best["value"], best["decisions"], last["n_seeds"]])
    unit = "survival, %" if metric == "survival" else CURVES[metric][0]
    columns = ["grid", "method", f"last {unit}", f"best {unit}", "decisions at the best", "seeds"]
    return pd.DataFrame(rows, columns=columns).round(1 if metric == "survival" else 3)


def _marked(decisions):
    """Which points get a marker: the last of each bunch that one validation leaves, as seeds end their episodes at their own
    decisions. decisions: (n,) ascending. Returns indices."""
    steps = np.diff(decisions)
    return np.flatnonzero(np.append(steps > 0.5 * steps.max(initial=0.0), True))


def _on_common_decisions(trained, metric):
    """The seeds' curves at common decisions: (n,) and (S, n).

    Seeds validate at the same decisions unless an episode ends late or a run was resumed; then they are interpolated
    linearly, over the part that all of them cover.
    """
    curves = []
    for training in trained:
        if "split" in training:
            training = training[training["split"] == "validation"]
        curve = training[["decisions", metric]].dropna().drop_duplicates("decisions", keep="last")
        curves.append(curve.sort_values("decisions").to_numpy(float))
    if not all(len(curve) for curve in curves):
        raise ReportError(f"a training.csv has no {metric} in any validation row")
    first, last = max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves)
    decisions = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    decisions = decisions[(decisions >= first) & (decisions <= last)]
    return decisions, np.stack([np.interp(decisions, *curve.T) for curve in curves])


def _draw_curves(data, y_label):
    """A panel for each grid, the legend at the foot. The seeds' range at the end of each curve is drawn in a strip of its own,
    side by side: bands of six methods would cover one another."""
    environments = list(dict.fromkeys(data["env"]))
    look = lines(list(dict.fromkeys(data["variant"])))
    figure = Figure(figsize=(1.2 + 3.9 * len(environments), 4.6), layout="constrained")
    panels = figure.subplots(1, len(environments), squeeze=False, sharey=True)[0]
    for panel, env in zip(panels, environments, strict=True):
        here = data[data["env"] == env]
        scaled = _scaled(panel, here)
        ends = _strip(panel, here, bool(scaled))
        for place, (variant, curve) in zip(ends, here.groupby("variant", sort=False), strict=True):
            colour, line, marker = look[variant]
            x, last = curve["decisions"].to_numpy(float), curve.iloc[-1]
            look_here = {"color": colour, "linestyle": line, "marker": marker, "markersize": 4}
            panel.plot(x, curve["value"], label=label(variant), markevery=_marked(x).tolist(), **look_here)
            panel.plot([place] * 2, [last["low"], last["high"]], color=colour, lw=2)
            panel.plot([place], [last["value"]], color=colour, marker=marker, ms=4)
        seeds = " or ".join(map(str, sorted(set(here["n_seeds"]))))
        panel.set_title(f"{grid_label(env)}\n(validation, {seeds} seeds)", fontsize="medium")
        panel.set_xlabel(f"Decisions in training{scaled}", labelpad=9)
    panels[0].set_ylabel(y_label)
    if data["value"].max() > 1 and y_label == CURVES["survival"][0]:
        panels[0].set_ylim(0, 104)
    handles = {}
    for panel in panels:
        handles |= {text: handle for handle, text in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=6, fontsize="small", frameon=False
    )
    return figure


def _strip(panel, here, log):
    """A shaded strip right of the last decision, which is no part of the axis. Returns a place in it for each method."""
    first, end = here["decisions"].min(), here["decisions"].max()
    n, span = here["variant"].nunique(), np.log(end / first) if log else max(end - first, 1)

    def at(share):
        return end * np.exp(share * span) if log else end + share * span

    left, right = 0.035, 0.075 + 0.04 * n
    panel.axvspan(at(left), at(right), color="#ececec", linewidth=0, zorder=0)
    panel.set_xlim(at(-1.04), at(right))
    ticks = panel.get_xticks()
    panel.set_xticks([tick for tick in ticks if at(-1.04) <= tick <= at(0.02)])
    panel.annotate("range of\nseeds", (at((left + right) / 2), 0), xycoords=panel.get_xaxis_transform(), xytext=(0, -3),
                   textcoords="offset points", ha="center", va="top", fontsize="x-small")  # fmt: skip
    return [at(left + 0.04 * (place + 1)) for place in range(n)]


def _scaled(panel, here):
    """A log scale where some methods are trained much longer than others, and what to say of it."""
    ends = here.groupby("variant")["decisions"].max()
    if ends.empty or ends.max() <= MUCH_LONGER * ends.min():
        return ""
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panel.xaxis.set_minor_locator(NullLocator())
    return " (log scale)"


def _draw_comparison(params, data, tested):
    """Each method in its colour, the marker says whether it learns; the baselines are lines, ACE is set off."""
    environments = list(dict.fromkeys(data["env"]))
    untrained = {*params.grid.baselines, *params.grid.lm_baselines}
    levels = [variant for variant in LEVELS if variant in set(data["variant"])]
    colours = {variant: look[0] for variant, look in lines(dict.fromkeys(data["variant"])).items()}
    variants = _rows_drawn([variant for variant in dict.fromkeys(data["variant"]) if variant not in levels], untrained)
    figure = Figure(figsize=(1.6 + max(4.5, 2.25 * len(environments)), 1.9 + 0.26 * len(variants)), layout="constrained")
    figure.get_layout_engine().set(wspace=0.05)
    panels = figure.subplots(1, len(environments), squeeze=False, sharey=True)[0]
    for panel, env in zip(panels, environments, strict=True):
        here = data[data["env"] == env].set_index("variant")
        for variant in [each for each in levels if each in here.index]:
            look = {"color": LINES[variant][0], "linestyle": LINES[variant][1]}
            panel.axvline(here.loc[variant, "mean"], linewidth=1.4, label=label(variant), zorder=1, **look)
        for y, variant in enumerate(variants):
            if variant in here.index:
                row, ours = here.loc[variant], variant == "ace"
                family = "does not learn" if variant in untrained else "learns"
                look = {"color": colours[variant], "linewidth": 4 if ours else 2.4}
                panel.plot([row["ci_low"], row["ci_high"]], [y, y], **look)
                panel.plot(row["mean"], y, marker=MARKERS[family], markersize=9 if ours else 6, **look)
        panel.set_title(grid_label(env), fontsize="medium")
        panel.set(xlim=(0, 104), xticks=range(0, 101, 20))
        panel.grid(axis="y", visible=False)
    names, counted = _names_and_counts(data, variants, untrained)
    panels[0].set_yticks(range(len(variants)), names)
    for tick, variant in zip(panels[0].get_yticklabels(), variants, strict=True):
        tick.set_fontweight("bold" if variant == "ace" else "normal")
    panels[0].set_ylim(len(variants) - 0.4, -0.6)
    key = f"Marker and bar: mean and 95 % interval over seeds x episodes{counted}; {tested}"
    figure.supxlabel(f"{SURVIVAL}\n{key}", fontsize="small")
    families = dict.fromkeys("does not learn" if variant in untrained else "learns" for variant in variants)
    handles = {
        family.capitalize(): Line2D([], [], color="#5a5a5a", linestyle="", marker=MARKERS[family]) for family in families
    }
    for panel in panels:
        handles |= {text: handle for handle, text in zip(*panel.get_legend_handles_labels(), strict=True)}
    look = {"ncols": 5, "fontsize": "small", "frameon": False, "columnspacing": 1.4}
    figure.legend(handles.values(), handles.keys(), loc="outside upper right", **look)
    return figure


def _rows_drawn(variants, untrained):
    """The methods of the main figure from top to bottom: those that learn first, in ORDER."""
    if len(variants) > MOST_ROWS:
        variants = [variant for variant in variants if variant not in TABLE_ONLY]
    place = {variant: number for number, variant in enumerate(ORDER)}
    return sorted(variants, key=lambda variant: (variant in untrained, place.get(variant, len(ORDER))))


def _names_and_counts(data, variants, untrained):
    """Labels of the rows, and what to say of seeds x episodes; a row that differs from its family says so itself."""
    counts = data.groupby("variant", sort=False)[["n_seeds", "n_episodes"]].max()
    counts = {variant: "{} x {}".format(*counts.loc[variant]) for variant in variants}
    usual = {}
    for family in (False, True):
        found = [counts[variant] for variant in variants if (variant in untrained) == family]
        if found:
            usual[family] = max(found, key=found.count)
    names = [label(v) + ("" if counts[v] == usual[v in untrained] else f" ({counts[v]})") for v in variants]
    text = f" ({usual[False]}" if False in usual else " ("
    if True in usual:
        text += f"; without learning {usual[True]}" if False in usual else usual[True]
    return names, f"{text})" if usual else ""
