"""The figures on made-up runs: what they draw by hand, what they say, which methods, stable bytes."""

# ruff: noqa: F811 (fixtures of other tests)

import numpy as np
import pandas as pd
import pytest
from made_up_runs import change_training
from matplotlib.figure import Figure
from PIL import Image
from test_ablations import ENV, make  # noqa: F401
from test_report import EPISODE_EASE, results, row, small_grid, template  # noqa: F401

from ace.report import ablation_figures, figures, labels, runs, style, tables
from ace.report.runs import ReportError


@pytest.fixture
def grid():
    return small_grid()


@pytest.mark.parametrize(("longest", "scale"), [(1500, "linear"), (3000, "linear"), (5000, "log")])
def test_decisions_are_shown_on_a_log_scale_where_some_methods_train_much_longer(longest, scale):
    panel = Figure().subplots()
    ends = [("sac", 1500), ("sac", 250), ("expert_100k", longest)]
    said = figures._scaled(panel, pd.DataFrame(ends, columns=["variant", "decisions"]))
    assert panel.get_xscale() == scale and bool(said) == (scale == "log")


# --- figures ---


def test_learning_data_by_hand(grid, results):
    data = figures.learning_data(runs.read(grid, results))
    point = row(data, env="case14", variant="ace", decisions=1000)
    ease = 100 * EPISODE_EASE[1]
    assert point[["value", "low", "high"]].tolist() == pytest.approx([71 + ease, 70 + ease, 72 + ease])
    assert point["n_seeds"] == 3
    assert not {"do_nothing", "reconnect", "greedy"} & set(data["variant"]), "test levels are no validation curves"


def test_curves_are_interpolated_where_validations_differ(grid, results):
    other = pd.DataFrame({"decisions": [750, 1250], "split": "validation", "survival": [0.2, 0.6]})
    change_training(results, "case14/sac/seed=1", lambda _: other)
    data = figures.learning_data(runs.read(grid, results, ["sac"]))
    curve = data[data["env"] == "case14"]
    assert curve["decisions"].tolist() == [750, 1000, 1250]  # only what all seeds cover
    assert curve["high"].iloc[1] == pytest.approx(40)  # half-way from 20 to 60
    assert curve["low"].iloc[1] == pytest.approx(40 + 100 * EPISODE_EASE[1])  # seed 0, as validated


def test_seed_without_training_is_named(grid, results):
    change_training(results, "case14/sac/seed=1", lambda _: None)
    with pytest.raises(ReportError, match=r"case14/sac"):
        figures.learning_curves(grid, results, results / "paper")


@pytest.mark.parametrize("n", [0, 1, 6, 7, 12, 13])
def test_a_panel_has_at_most_six_methods_and_all_are_drawn_once(n):
    names = ["ace_literal", "sac", "a", "ace", "b", "expert_sac", "c", "d", "frequency_refine", "e", "f", "g", "h"][:n]
    panels = style.by_panel(names)
    assert sorted(name for panel in panels for name in panel) == sorted(names)
    assert all(1 <= len(panel) <= style.MOST_LINES for panel in panels) and len(panels) == -(-n // style.MOST_LINES)
    assert set(names) & set(style.FIRST) <= set(panels[0]) if n else panels == []


def test_a_method_looks_the_same_in_every_figure_and_like_no_other(grid, results):
    assert len(set(style.LINES.values())) == len(style.LINES)
    assert style.lines(["ace_40k", "mine"]) == {"ace_40k": style.LINES["ace"], "mine": style.MORE_LINES[0]}
    read = runs.read(grid, results)
    data = tables.summarise(read, ["survival"])
    curves = figures._draw_curves(figures.learning_data(read), "y")
    bars = figures._draw_comparison(grid, data, "")
    drawn = {line.get_label(): line.get_color() for line in curves.axes[0].lines if not line.get_label().startswith("_")}
    assert drawn == {labels.label(name): style.LINES[name][0] for name in ("sac", "ace", "ace_no_actor", "ace_no_critic")}
    panel = bars.axes[0]
    rows = dict(zip(panel.get_yticks(), (text.get_text() for text in panel.get_yticklabels()), strict=True))
    marks = {rows[line.get_ydata()[0]]: line.get_color() for line in panel.lines if line.get_marker() == "o"}
    assert marks == drawn


def test_more_methods_than_a_panel_holds_fill_a_second_figure(grid, results, monkeypatch):
    monkeypatch.setattr(style, "MOST_LINES", 3)
    made = figures.learning_curves(grid, results, results / "paper")
    assert list(made) == ["learning_curves", "learning_curves_2"]
    assert [set(table["variant"]) for table in made.values()] == [{"sac", "ace", "ace_no_actor"}, {"ace_no_critic"}]
    for name in made:
        assert {path.suffix for path in (results / "paper").glob(f"{name}.*")} == {
            ".png",
            ".pdf",
            ".csv",
            ".md",
        }


def test_the_main_figure_shows_means_with_their_own_interval(grid, results):
    read = runs.read(grid, results)
    drawn = figures.comparison(grid, tables.summarise(read, ["survival"]), read, results / "paper")
    found = row(drawn, env="case14", variant="ace")
    assert found["mean"] == pytest.approx(read.scores("case14", "ace", "survival").mean())
    assert found["ci_low"] < found["mean"] < found["ci_high"]
    figure = figures._draw_comparison(grid, drawn, "")
    first = figure.axes[0]
    names = [tick.get_text() for tick in first.get_yticklabels()]
    assert names == ["SAC", "ACE without f_LLM", "ACE without g_LLM", "ACE"]
    levels = {
        line.get_label() for line in first.lines if len(set(line.get_xdata())) == 1 and len(line.get_xdata()) == 2
    }
    assert levels >= {"Do nothing", "Reconnect lines", "Greedy look-ahead"}
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["Learns", "Do nothing", "Reconnect lines", "Greedy look-ahead"], "only what is drawn"


@pytest.mark.parametrize(("extra", "shown"), [(8, True), (9, False)])
def test_a_long_main_figure_leaves_out_what_is_said_to_be_in_the_table_only(extra, shown):
    names = ["ace_literal", "llm_only", "ace", "sac", *(f"mine_{number}" for number in range(extra))]
    drawn = figures._rows_drawn(names, {"llm_only"})
    assert drawn[:2] == ["sac", "ace"] and drawn[-1] == "llm_only", "those that do not learn come last"
    assert ("ace_literal" in drawn) == shown and set(names) - {"ace_literal"} <= set(drawn)


def test_a_row_with_other_seeds_than_its_family_says_so():
    sizes = {"sac": (5, 30), "ace": (5, 30), "mine": (2, 30), "llm_only": (1, 30)}
    data = pd.DataFrame([[name, *size] for name, size in sizes.items()], columns=["variant", "n_seeds", "n_episodes"])
    names, text = figures._names_and_counts(data, list(sizes), {"llm_only"})
    assert names[:3] == ["SAC", "ACE", "Mine (2 x 30)"] and "x" not in names[3]
    assert "5 x 30" in text and "1 x 30" in text


@pytest.mark.parametrize("log", [False, True])
def test_ranges_of_seeds_stand_in_a_strip_behind_the_last_decision(log):
    here = pd.DataFrame({"variant": ["a", "a", "b", "b"], "decisions": [250, 1500, 250, 5000]})
    panel = Figure().subplots()
    panel.plot(here["decisions"], here["decisions"])
    if log:
        panel.set_xscale("log")
    places = figures._strip(panel, here, log)
    assert 5000 < places[0] < places[1] < panel.get_xlim()[1]
    assert max(panel.get_xticks()) <= 5200, "the strip has no decisions"


def test_a_validation_gets_one_marker():
    assert figures._marked(np.array([255.0, 259, 261, 504, 540, 755, 760, 1001])).tolist() == [2, 4, 6, 7]
    assert figures._marked(np.array([250.0, 500, 750])).tolist() == [0, 1, 2]
    assert figures._marked(np.array([250.0])).tolist() == [0]


def test_unknown_curve_is_refused(grid, results):
    with pytest.raises(ReportError, match="metric surival can't be drawn; there are survival"):
        figures.learning_curves(grid, results, results / "paper", metric="surival")


def test_drawing_changes_no_setting_and_leaves_no_date(grid, results):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    folder = results / "paper"
    figures.learning_curves(grid, results, folder)
    assert {key: value for key, value in mpl.rcParams.items() if before[key] != value} == {}
    assert b"Software" not in (folder / "learning_curves.png").read_bytes()
    with Image.open(folder / "learning_curves.png") as drawn:
        assert drawn.mode == "P" and len(drawn.getcolors()) <= 64
    assert b"Date" not in (folder / "learning_curves.pdf").read_bytes()


# --- ablations ---


def test_measures_of_training_by_hand():
    training = {"decisions": [250, 500, 750, 1000, 1250, 1500], "q_std": [9, 9, 9, 9, 0.2, 0.4]}
    training = pd.DataFrame({**training, "survival": [0.1, 0.72, 0.70, 0.8, 0.5, 0.79]})
    assert ablation_figures.late_q_std(training) == pytest.approx(0.3)  # beyond 1000, two thirds of 1500
    assert ablation_figures.decisions_to_converge(training) == 500  # 0.72 = 90 % of 0.8
    training.loc[1, "survival"] = 0.71
    assert ablation_figures.decisions_to_converge(training) == 1000


def test_points_of_the_shaping_figure(make):
    params, results = make({"ace_K01": 0.5, "ace_random_K01": 0.4})
    data = ablation_figures.shaping(params, results, results / "paper")
    assert set(data["variant"]) == {"ace_K01", "ace", "ace_random_K01", "ace_no_critic"}
    mean = data[data["seed"].isna()]
    found = row(mean, variant="ace_random_K01", metric="q_std")
    assert (found["K"], found["judge"], found["n_seeds"]) == (0.1, "random", 2)
    assert found[["value", "low", "high"]].tolist() == pytest.approx([0.9, 0.4, 1.4])  # the last of three rows
    ace = row(mean, variant="ace", metric="survival")
    assert (ace["value"], ace["n_seeds"], ace["K"]) == (pytest.approx(70.5), 2, 0.4)  # of three seeds the common two
    assert pd.isna(row(mean, variant="ace_no_critic", metric="survival")["K"])  # of a role that is off it means nothing
    seeds = data[(data["variant"] == "ace") & (data["metric"] == "survival") & data["seed"].notna()]
    assert seeds["value"].tolist() == pytest.approx([70, 71])
    written = (results / "paper/shaping.csv").read_text().split("\n")
    assert written[0] == "env,variant,metric,seed,value,low,high,n_seeds,n_episodes,K,judge"


def test_figures_are_the_same_bytes_twice_and_name_what_is_missing(make):
    params, results = make({"ace_half_query_high": 0.5, "ace_query_high": 0.6})
    ablation_figures.generalisation(params, results, results / "paper")
    first = {path.name: path.read_bytes() for path in (results / "paper").iterdir()}
    assert set(first) == {f"generalisation.{kind}" for kind in ("csv", "png", "pdf", "md")}
    data = ablation_figures.generalisation(params, results, results / "paper")
    assert first == {path.name: path.read_bytes() for path in (results / "paper").iterdir()}
    assert row(data[data["seed"].isna()], variant="ace_half_query_high")["share"] == 0.5
    assert "ace_half_sac" not in set(data["variant"])


def test_differences_are_of_common_seeds_and_of_what_was_run(make):
    params, results = make({"ace_rounds_1": 0.60, "ace_no_bad_case": 0.70})
    table = ablation_figures.differences(params, results, ablation_figures.WITH_LESS)
    found = row(table, variant="ACE, one round")
    assert found["difference, points"] == pytest.approx(-10) and (found["minus"], found["seeds"], len(table)) == ("ACE", 2, 2)
    assert ablation_figures.differences(params, results, ablation_figures.HALVED).empty


def test_half_of_the_scenarios_minus_all_of_them(make):
    params, results = make({"ace_query_low": 0.6, "ace_half_query_low": 0.4, "ace_half_sac": 0.405})
    table = ablation_figures.differences(params, results, ablation_figures.HALVED)
    assert table["difference, points"].tolist() == pytest.approx([-20, 0.5]) and table["minus"].iloc[1] == "SAC"
    named = ablation_figures._draw_generalisation(
        ablation_figures.generalisation(params, results, results / "paper"), pool=(7, "weeks")
    )
    (panel,) = named.axes
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["100 % (7 weeks)", "50 % (4 weeks)"]
    assert [text.get_text() for text in named.legends[0].get_texts()] == [
        "ACE, f_LLM rarely (every 75 decisions)",
        "SAC",
    ]


def test_the_means_of_the_shaping_figure(make):
    control = {"ace_random_K01": 0.65, "ace_random_K04": 0.70}
    params, results = make({"ace_K01": 0.5, "ace_K08": 0.8, **control})
    for seed in (0, 1):
        q_std = [1, 2, 5.0 + seed]
        change_training(results, f"{ENV}/ace_K08/seed={seed}", lambda curve, q_std=q_std: curve.assign(q_std=q_std))
    table = ablation_figures.shaping_table(ablation_figures.shaping(params, results, results / "paper"))
    names = ["g_LLM, K = 0.1", "g_LLM, K = 0.4", "g_LLM, K = 0.8", "random control, K = 0.1", "random control, K = 0.4"]
    assert list(table.index) == [*names, "no shaping"]
    assert table.loc["g_LLM, K = 0.8"].tolist() == pytest.approx([5.5, 500, 80.5], abs=1)
    against = ablation_figures.differences(params, results, ablation_figures.JUDGED_MINUS_RANDOM)
    assert against["difference, points"].tolist() == pytest.approx([-15, 0])


@pytest.mark.parametrize("bottom", [0.0, 40.0])
def test_an_axis_of_survival_says_where_it_starts(bottom):
    panel = Figure().subplots()
    ablation_figures._survival_axis(panel, pd.DataFrame({"value": [bottom + 15], "low": [bottom + 12.0]}))
    assert panel.get_ylim()[0] == bottom
    assert ("the axis starts at 40" in panel.get_ylabel()) == bool(bottom)
