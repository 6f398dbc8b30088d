"""Figures of the ablations: reasoning (Fig. 4), shaping (Fig. K), generalisation, and the open questions' contrasts.

Each is saved as PNG and PDF with the CSV of its points and a Markdown file with the note on it. A row without a seed
is the mean of all seeds, with low and high; the rows with one are the seeds' own means, the small dots. All variants of a
figure are shown on the seeds that all of them were run with. What is not in the declared set of runs is left out and named
below the figure.
"""

from functools import partial
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from ace import stats
from ace.report.ablations import NOT_RUN, available, pair, value_at
from ace.report.labels import grid_label, label
from ace.report.notes import note
from ace.report.questions import JUDGED
from ace.report.runs import ReportError
from ace.report.style import LINES, legend_at_foot, note_absent, theme, write_figure
from ace.report.tables import scale_of

REASONING = ["ace_no_bad_case", "ace_rounds_1", "ace_rounds_3", "ace"]
NO_CRITIC = "ace_no_critic"  # the level that no shaping reaches
SHAPING = ["ace_K01", "ace_K02", "ace", "ace_K08", *(f"ace_random_K{k}" for k in ("01", "02", "04", "08")), NO_CRITIC]
WITH_LESS = [("ace_no_bad_case", "ace"), ("ace_rounds_1", "ace"), ("ace_rounds_3", "ace")]
JUDGED_MINUS_RANDOM = [(variant, f"ace_random_K{k}") for k, variant in JUDGED.items()]
HALVED = [("ace_half_query_high", "ace_query_high"), ("ace_half_query_low", "ace_query_low"), ("ace_half_sac", "sac")]
GENERALISATION = ["ace_query_high", "ace_query_low", "sac", "ace_half_query_high", "ace_half_query_low", "ace_half_sac"]
SURVIVAL = "Survival in the test, % of the horizon"
IN_FULL = {"five rounds minus none": "five rounds minus none (LLM4Teach)"}  # names of contrasts
REACHED = 0.9  # our reading of convergence: this share of the run's own best validation survival
LATE = 2 / 3  # variability of Q is that of the last third of training
JUDGES = {"llm": "g_LLM", "random": "random control"}  # shape.judge -> who says which rewards move
# metric of the shaping figure -> (name, digits)
MEASURES = {
    "q_std": ("Standard deviation of Q", 3),
    "decisions_to_converge": ("Decisions to converge", 0),
    "survival": ("Survival in the test, %", 1),
}
COLUMNS = ["env", "variant", "metric", "seed", "value", "low", "high", "n_seeds", "n_episodes"]


def late_q_std(training):
    """Mean of q_std over the validations in the last third of training. training: a run's training.csv."""
    late = training["decisions"] > LATE * training["decisions"].max()
    return float(training.loc[late, "q_std"].mean())


def decisions_to_converge(training):
    """Decisions until validation survival first reaches REACHED of its own maximum, to the next validation."""
    reached = training["survival"] >= REACHED * training["survival"].max() - 1e-9  # 90 % exactly is reached
    return float(training.loc[reached, "decisions"].iloc[0])


# of one run
TRAINING_METRICS = {"q_std": late_q_std, "decisions_to_converge": decisions_to_converge}


def points(runs, env, variants, metrics=("survival",), **settings):
    """Long table with COLUMNS, then one for each of settings: name=key of the settings (section.name).

    Survival: mean over seeds and test episodes with its 95 % interval. TRAINING_METRICS: mean over the seeds;
    low and high are the lowest and the highest seed, since an interval of three numbers would promise too much.
    """
    seeds = runs.seeds_of_all(env, variants) if variants else []
    rows = []
    for variant in variants:
        of_seeds = runs.of(env, variant, seeds)
        said = [_in_force(of_seeds[0].manifest["settings"], key) for key in settings.values()]
        for metric in metrics:
            if metric in TRAINING_METRICS:
                if any(run.training is None for run in of_seeds):
                    raise ReportError(f"not every seed of {env}/{variant} has a training.csv: make its cell again")
                means = np.array([TRAINING_METRICS[metric](run.training) for run in of_seeds])
                found, n = (means.mean(), means.min(), means.max()), 0
            else:
                scores = runs.scores(env, variant, metric, seeds)
                means, found, n = scores.mean(axis=1), stats.mean(scores, scale_of(metric)), scores.shape[1]
            rows.append([env, variant, metric, None, *found, len(seeds), n, *said])
            rows += [
                [env, variant, metric, seed, mean, None, None, 1, n, *said]
                for seed, mean in zip(seeds, means, strict=True)
            ]
    return pd.DataFrame(rows, columns=[*COLUMNS, *settings]).astype({"seed": "Int64"})


def reasoning(params, results, folder):
    """Fig. 4: without the bad case in the prompt, and with fewer rounds. Returns the table drawn."""
    keys = {"rounds": "refine.rounds", "bad_case": "refine.bad_case"}
    title = "Bad-case and multi-round reasoning (the paper's Fig. 4)"
    return _figure(params, results, folder, "reasoning", title, note("reasoning"), REASONING, _draw_reasoning, **keys)


def shaping(params, results, folder):
    """Fig. K: variability of Q, convergence and final survival against K, g_LLM and random control. Returns the table."""
    metrics, title = [*TRAINING_METRICS, "survival"], "The size K of reward shaping"
    keys = {"K": "shape.K", "judge": "shape.judge"}
    return _figure(params, results, folder, "shaping", title, note("shaping"), SHAPING, _draw_shaping, metrics, **keys)


def generalisation(params, results, folder):
    """Trained on all or on half of the scenarios, f_LLM asked often or rarely, and SAC. Returns the table drawn."""
    keys = {"share": "train.share", "refine": "refine.enabled", "every": "refine.every"}
    weeks = params.environment(params.grid.ablations.environment).weeks
    pool = params.scenarios.train, "weeks" if weeks else "scenarios"
    draw, title = partial(_draw_generalisation, pool=pool), "Trained on half of the scenarios"
    return _figure(
        params, results, folder, "generalisation", title, note("generalisation"), GENERALISATION, draw, **keys
    )


def open_questions(params, table, folder):
    """Every contrast in points of survival with its interval; table: as `questions.write` makes it. Returns the rows."""
    data, text = table[table["unit"] == "pts of survival"], note("open_questions.figure")
    with theme():
        scale = f"scale {params.scale}"
        title, path = f"Open questions, drawn, {scale}", folder / "open_questions_figure"
        write_figure(_draw_contrasts(data, scale), data, path, title, text)
    return data


def differences(params, results, pairs):
    """Survival of the first of each pair minus that of the second, on the seeds that both have: a table, a row for each pair
    of which both were run."""
    runs, ran = available(params, results, [variant for each in pairs for variant in each])
    env = params.grid.ablations.environment
    found = {(a, b): pair(runs, env, a, b, "survival") for a, b in pairs if {a, b} <= set(ran)}
    rows = [[label(a), label(b), *each.difference, each.n_seeds] for (a, b), each in found.items()]
    columns = ["variant", "minus", "difference, points", "95 % low", "95 % high", "seeds"]
    return pd.DataFrame(rows, columns=columns).round(1)


def shaping_table(drawn):
    """The means of the figure with rows and columns in words. drawn: as `shaping` returns it."""
    means = drawn[drawn["seed"].isna()]
    names = {row.variant: f"{JUDGES.get(row.judge)}, K = {row.K:g}" for row in means.itertuples()}
    names[NO_CRITIC] = "no shaping"
    measures = {metric: name for metric, (name, _) in MEASURES.items()}
    table = means.assign(shaping=means["variant"].map(names), measure=means["metric"].map(measures))
    table = table.pivot_table(index="shaping", columns="measure", values="value", sort=False)
    return table.round(dict(MEASURES.values())).rename_axis(index="rewards moved by", columns=None)


def _figure(params, results, folder, name, title, text, variants, draw, metrics=("survival",), **settings):
    runs, ran = available(params, results, variants)
    env = params.grid.ablations.environment
    data = points(runs, env, ran, metrics, **settings)
    missing = [variant for variant in variants if variant not in ran]
    with theme():
        figure = draw(data)
        figure.suptitle(f"{grid_label(env)} ({runs.tested()}), {_seeds(data)}", fontsize="medium")
        if missing:
            absent = "; ".join(label(variant) for variant in missing)
            note_absent(figure, fill(f"{NOT_RUN}: {absent}", int(13 * figure.get_figwidth())))
        write_figure(figure, data, folder / name, f"{title}, {runs.tested()}", text)
    return data


def _in_force(settings, key):
    """The setting at key, None where its section is switched off."""
    switch = f"{key.split('.')[0]}.enabled"
    return None if key != switch and value_at(settings, switch) is False else value_at(settings, key)


def _seeds(data):
    seeds = sorted(set(data["seed"].dropna()))
    return f"dots: seeds {', '.join(map(str, seeds))}" if seeds else NOT_RUN


def _draw_points(panel, rows, places, look, name=None, offset=0.0, side=1):
    """Means with their low and high at places (n,), in the order of the means in rows, and next to them the seeds as dots.

    side: 1 puts the dots to the right, -1 to the left.
    """
    colour, line, marker = look
    # on a log axis as on others
    aside = panel.transData + ScaledTranslation(side * 7 / 72, 0, panel.figure.dpi_scale_trans)
    means = rows[rows["seed"].isna()]
    x = np.asarray(places, float) + offset
    for place, (_, mean) in zip(x, means.iterrows(), strict=True):
        panel.plot([place, place], [mean["low"], mean["high"]], color=colour, linewidth=2, solid_capstyle="butt")
        own = rows[(rows["variant"] == mean["variant"]) & rows["seed"].notna()]["value"]
        dots = {"marker": "o", "linestyle": "", "markersize": 3, "markerfacecolor": "white", "transform": aside}
        panel.plot(np.full(len(own), place), own, color=colour, **dots)
    panel.plot(x, means["value"], color=colour, linestyle=line, marker=marker, markersize=7, linewidth=1.1, label=name)


def _survival_axis(panel, data):
    """No bar needs the zero, but a narrow axis would make much of little; where it starts is said."""
    lowest = data[["value", "low"]].min(axis=None) if len(data) else 0.0
    bottom = max(0.0, 10 * np.floor((lowest - 10) / 10))
    panel.set_ylim(bottom, 103)
    panel.set_ylabel(SURVIVAL + (f"\n(the axis starts at {bottom:g})" if bottom else ""))


def _draw_reasoning(data):
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    panel = figure.subplots()
    means = data[data["seed"].isna()]
    for place, (_, row) in enumerate(means.iterrows()):
        _draw_points(panel, data[data["variant"] == row["variant"]], [place], LINES[row["variant"]])
    names = [
        f"{row['rounds']} round{'s' if row['rounds'] > 1 else ''}\n{'with' if row['bad_case'] else 'without'} bad case"
        for _, row in means.iterrows()
    ]
    panel.set_xticks(range(len(names)), names)
    panel.set_xlim(-0.6, max(len(names), 1) - 0.4)
    _survival_axis(panel, data)
    panel.set_title("marker: mean over seeds and episodes, bar: 95 % interval", fontsize="small")
    return figure


def _draw_shaping(data):
    figure = Figure(figsize=(11.5, 4.2), layout="constrained")
    panels = figure.subplots(1, 3)
    texts = {
        "q_std": ("Standard deviation of Q in a batch", "Last third of training\nbar: lowest to highest seed"),
        "decisions_to_converge": (
            "Decisions in training",
            f"To {100 * REACHED:.0f} % of the best validation survival\nbar: lowest to highest seed",
        ),
        "survival": (SURVIVAL, "Final test\nbar: 95 % interval"),
    }
    # side by side, so that neither hides the other: by 5 % of K
    for judge, look, name, side in (
        ("llm", LINES["ace"], "g_LLM", -1),
        ("random", LINES["ace_random"], "random control", 1),
    ):
        chosen = data[(data["judge"] == judge) & (data["variant"] != NO_CRITIC)].sort_values("K", kind="stable")
        for panel, metric in zip(panels, texts, strict=True):
            rows = chosen[chosen["metric"] == metric]
            if len(rows):
                places = 1.05**side * rows.loc[rows["seed"].isna(), "K"].to_numpy(float)
                _draw_points(panel, rows, places, look, name, side=side)
    ticks = sorted(set(data.loc[data["variant"] != NO_CRITIC, "K"])) or [1.0]
    for panel, (metric, (y_label, title)) in zip(panels, texts.items(), strict=True):
        level = data[(data["variant"] == NO_CRITIC) & (data["metric"] == metric) & data["seed"].isna()]
        if len(level):
            colour, line, _ = LINES[NO_CRITIC]
            panel.axhline(level["value"].iloc[0], color=colour, linestyle=line, linewidth=1.5, label="without shaping")
        panel.set_xscale("log")
        panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        panel.set_xticks([], minor=True)
        panel.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.25)
        here = data[data["metric"] == metric]
        if metric == "survival":
            _survival_axis(panel, here)
        else:
            lowest, highest = (here["value"].min(), here["value"].max()) if len(here) else (0.0, 1.0)
            bottom = round(0.9 * lowest, 2) if lowest > highest / 2 else 0.0
            panel.set_ylim(bottom, 1.1 * highest)
            panel.set_ylabel(y_label + (f"\n(the axis starts at {bottom:g})" if bottom else ""))
        panel.set_xlabel("K, units of a step's reward (log scale)")
        panel.set_title(title, fontsize="small")
    legend_at_foot(figure, panels[2])
    return figure


def _draw_generalisation(data, pool):
    """pool: (how many weeks, or scenarios, there are to train on, which of the two)."""
    figure = Figure(figsize=(6.8, 4.4), layout="constrained")
    panel = figure.subplots()
    shares = sorted(set(data["share"]), reverse=True)
    refines = data["refine"].astype(bool)
    refining = data[refines]
    series = [
        (rows, look, f"ACE, f_LLM {how} (every {rows['every'].iloc[0]:g} decisions)")
        for how, ending, look in (
            ("often", "_high", LINES["ace_query_high"]),
            ("rarely", "_low", LINES["ace_query_low"]),
        )
        if len(rows := refining[refining["variant"].str.endswith(ending)])
    ]
    series += [(data[~refines], LINES["sac"], "SAC")] if len(data[~refines]) else []
    for number, (rows, look, name) in enumerate(series):
        rows = rows.sort_values("share", ascending=False, kind="stable")
        places = [shares.index(share) for share in rows.loc[rows["seed"].isna(), "share"]]
        _draw_points(panel, rows, places, look, name, offset=0.08 * (number - (len(series) - 1) / 2))
    names = [f"{100 * share:g} % ({max(round(pool[0] * share), 1)} {pool[1]})" for share in shares]
    panel.set_xticks(range(len(shares)), names)
    panel.set_xlim(-0.5, max(len(shares), 1) - 0.5)
    _survival_axis(panel, data)
    panel.set_xlabel(f"Training {pool[1]} (those of the test are others)")
    panel.set_title("marker: mean over seeds and episodes, bar: 95 % interval", fontsize="small")
    legend_at_foot(figure, panel)
    return figure


def _draw_contrasts(data, scale):
    figure = Figure(figsize=(8.2, 1.6 + 0.26 * len(data)), layout="constrained")
    panel = figure.subplots()
    panel.axvline(0, color="#5a5a5a", linewidth=1)
    colour, _, marker = LINES["ace"]
    for y, (_, row) in enumerate(data.iterrows()):
        panel.plot([row["ci_low"], row["ci_high"]], [y, y], color=colour, linewidth=2)
        panel.plot(row["estimate"], y, color=colour, marker=marker, markersize=6)
        if y and row["id"] != data["id"].iloc[y - 1]:  # from question to question
            panel.axhline(y - 0.5, color="#888888", linewidth=0.8)
        place = {"xycoords": panel.get_yaxis_transform(), "va": "center", "fontsize": "x-small"}
        panel.annotate(row["n"], (1.01, y), **place)
    names = [f"{row['id']}  {IN_FULL.get(row['contrast'], row['contrast'])}" for _, row in data.iterrows()]
    panel.set_yticks(range(len(data)), names, fontsize="small")
    panel.grid(axis="y", visible=False)
    panel.set_ylim(max(len(data), 1) - 0.5, -0.5)
    panel.set_xlabel("Difference in survival, points; bar: 95 % interval")
    title = f"The open questions ({scale})" if len(data) else NOT_RUN
    panel.set_title(title, fontsize="medium")
    return figure
