"""The report on a small made-up results tree: numbers by hand, refusals, stable bytes, verdicts."""

import io
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from ace.report import claims, figures, measure, runs, show, stats, tables, typeset
from ace.report.runs import ReportError
from ace.report.stats import Estimate

ENVS = ["wcci2020", "case14"]
EPISODES = 8
# level of survival and the spread of its seeds; one seed for the baselines
LEVELS = {
    "do_nothing": 0.30,
    "reconnect": 0.35,
    "greedy": 0.90,
    "sac": 0.40,
    "ace": 0.70,
    "ace_no_actor": 0.40,
    "ace_no_critic": 0.60,
}
EPISODE_EASE = np.linspace(-0.08, 0.08, EPISODES)


def small_grid():
    grid = SimpleNamespace(
        environments=ENVS,
        baselines=["do_nothing", "reconnect", "greedy"],
        lm_baselines=[],
        variants=["sac", "ace", "ace_no_actor", "ace_no_critic"],
        other_model=[],
        ablations=SimpleNamespace(environment=ENVS[0], seeds=[0, 1], variants=[]),
    )
    days = {env: SimpleNamespace(days=SimpleNamespace(train=[0], test=[1])) for env in ENVS}
    return SimpleNamespace(scale="laptop", seeds=[0, 1, 2], grid=grid, days=days, environment=days.get)


@pytest.fixture
def params():
    return small_grid()


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder, grid = tmp_path_factory.mktemp("template"), small_grid()
    for env in ENVS:
        for variant in runs.declared(grid):
            for seed in runs.seeds_of(grid, variant):
                write_run(folder, env, variant, seed, trained=variant not in grid.grid.baselines)
    return folder


@pytest.fixture
def results(tmp_path, template):
    return shutil.copytree(template, tmp_path / "results")


def write_run(results, env, variant, seed, trained, level=None, refinements=None, scale="laptop"):
    folder = results / "runs" / env / variant / f"seed={seed}"
    folder.mkdir(parents=True)
    survival = (level or LEVELS[variant]) + 0.01 * seed + EPISODE_EASE
    episodes = pd.DataFrame(
        {
            "split": "test",
            "episode": range(EPISODES),
            "scenario": [f"t{i}" for i in range(EPISODES)],
            "horizon": 288,
            "survived_steps": (288 * survival).astype(int),
            "survival": survival,
            "reward": 100 * survival,
            "reward_mean": 0.3,
            "decisions": 20,
            "topology_actions": 5,
            "simulator_calls": 7 if variant == "greedy" else 0,
            "dc_calls": 0,
            "llm_calls": 0,
        }
    )
    episodes.to_csv(folder / "episodes.csv", index=False)
    budget = {"test": {"simulator_calls": int(episodes["simulator_calls"].sum()), "dc_calls": 0, "llm_calls": 0}}
    if trained:
        budget["train"] = {
            "simulator_calls": 1000 + seed,
            "dc_calls": 50,
            "llm_calls": 40,
            "env_steps": 9000 + 30 * seed,
        }
        budget["validation"] = {"simulator_calls": 0, "dc_calls": 0, "llm_calls": 0, "env_steps": 500}
        budget["corpus"] = {"simulator_calls": 6000, "dc_calls": 0, "llm_calls": 0, "env_steps": 700}
        decisions = np.array([500, 1000, 1500])
        curve = {"decisions": decisions, "env_steps": 3 * decisions, "split": "validation", "survival": survival[:3]}
        curve |= {"reward_mean": 0.3, "shaped": [0, 0, 5 if "no_critic" not in variant else 0]}
        pd.DataFrame(curve).to_csv(folder / "training.csv", index=False)
    if refinements is None:
        refinements = 300 + 10 * seed if variant == "ace" else 0
    identity = {"env": env, "variant": variant, "seed": seed, "scale": scale, "test_hash": f"hash-of-{env}"}
    manifest = {**identity, "budget": budget}
    if trained:
        manifest["refinements"] = refinements
    (folder / "manifest.json").write_text(json.dumps(manifest))
    path = results / "provenance" / env / variant / f"seed={seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    provenance = {"wall_s": {"evaluate": 10.0 + seed, "llm": 80.0}}
    path.write_text(json.dumps(provenance))


def change_manifest(results, cell, **changes):
    path = results / "runs" / cell / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def row(table, **where):
    chosen = table
    for column, value in where.items():
        chosen = chosen[chosen[column] == value]
    assert len(chosen) == 1
    return chosen.iloc[0]


# --- statistics ---


def test_iqm_by_hand():
    assert stats.iqm([0, 1, 2, 3, 4, 5, 6, 100]) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert stats.iqm([1, 2, 3, 4, 5, 90]) == pytest.approx((2 + 3 + 4 + 5) / 4)  # floor(6/4) = 1 at each end
    assert stats.iqm([4, 8, 3]) == pytest.approx(5)  # fewer than four: the mean
    np.testing.assert_allclose(stats.iqm([[0, 1, 2, 30], [5, 6, 7, 80]]), [1.5, 6.5])


@pytest.mark.parametrize("n", range(1, 14))
def test_iqm_agrees_with_scipy(n):
    trim_mean = pytest.importorskip("scipy.stats").trim_mean
    scores = np.random.default_rng(n).normal(size=n)
    assert stats.iqm(scores) == pytest.approx(trim_mean(scores, 0.25))


def test_summary_by_hand():
    found = stats.summary([[1, 2, 3, 6], [3, 4, 5, 8]])  # means of the seeds: 3 and 5
    assert (found.mean, found.n_seeds, found.n_episodes) == (4, 2, 4)
    assert found.std == pytest.approx(np.sqrt(2))
    assert found.iqm == pytest.approx((3 + 3 + 4 + 5) / 4)
    assert found.low < found.iqm < found.high


def test_one_seed_has_no_std_and_one_value_no_interval():
    assert np.isnan(stats.summary([[1.0, 2.0, 3.0]]).std)
    assert np.isfinite(stats.summary([[1.0, 2.0, 3.0]]).low)
    assert np.isnan(stats.summary([[1.0]]).low)


def test_bootstrap_is_seeded():
    scores = np.random.default_rng(0).normal(size=(3, 20))
    assert stats.summary(scores) == stats.summary(scores)
    assert stats.summary(scores) != stats.summary(scores, seed=1)


def test_interval_of_the_mean_has_the_right_width():
    """One seed, many episodes: the standard error of a mean is known, 1.96 of it is half the interval."""
    scores = np.random.default_rng(3).normal(size=(1, 400))
    value, low, high = stats.estimate([[scores]], lambda means: means[..., 0])
    assert value == pytest.approx(scores.mean())
    assert (high - low) / 2 == pytest.approx(1.96 * scores.std() / 20, rel=0.06)


def test_seeds_are_resampled_too():
    """All the spread lies between the seeds: the interval covers their range, however many episodes there are."""
    scores = np.repeat([[0.0], [1.0], [2.0]], 500, axis=1)
    low, high = stats.estimate([[scores]], lambda means: means[..., 0])[1:]
    assert (low, high) == pytest.approx((0, 2), abs=0.34)  # all three draws the lowest seed: 1 in 27


def test_pairing_removes_what_episodes_share():
    ease = np.random.default_rng(1).normal(scale=10, size=30)
    a, b = ease[None] + 1.0, np.stack([ease, ease])
    value, low, high = stats.paired_difference(a, b)
    assert (value, low, high) == pytest.approx((1, 1, 1))
    assert (
        stats.paired_difference(a, b[:, ::-1]).high > 3
    )  # the same scores on other episodes: all their spread is back


def test_paired_difference_weighs_environments_equally():
    a, b = [np.full((1, 2), 4.0), np.full((1, 6), 8.0)], [np.zeros((1, 2)), np.zeros((1, 6))]
    assert stats.paired_difference(a, b) == pytest.approx((6, 6, 6))


def test_unequal_episodes_are_not_paired():
    with pytest.raises(ValueError, match="not paired"):
        stats.paired_difference(np.zeros((1, 3)), np.zeros((1, 4)))


def test_ratio_by_hand_and_undefined_ratio():
    assert stats.paired_ratio(np.full((2, 3), 6.0), np.full((1, 3), 4.0)) == pytest.approx((1.5, 1.5, 1.5))
    undefined = stats.paired_ratio(np.ones((2, 3)), np.array([[-5.0, 1.0, 4.1]]))  # some replicates are negative
    assert np.isfinite(undefined.value)
    assert np.isnan(undefined.low)


@pytest.mark.parametrize("scores", [[1.0, 2.0], [[1.0, np.nan]], np.zeros((0, 3))])
def test_malformed_scores_are_refused(scores):
    with pytest.raises(ValueError, match="matrix"):
        stats.summary(scores)


# --- reading ---


def test_missing_baseline_names_its_stage(params, results):
    (results / "runs/case14/greedy/seed=0/episodes.csv").unlink()
    with pytest.raises(ReportError, match=r"no episodes.csv in .*run `dvc repro baseline@case14-greedy`"):
        runs.read(params, results)


def test_missing_run_names_folder_and_target(params, results):
    shutil.rmtree(results / "runs/case14/ace/seed=1")
    with pytest.raises(ReportError) as error:
        runs.read(params, results)
    message = str(error.value)
    assert "results/runs/case14/ace/seed=1" in message
    assert "dvc repro train@case14-ace" in message
    assert "\n" not in message


def test_other_test_set_is_refused(params, results):
    change_manifest(results, "wcci2020/ace/seed=2", test_hash="of-other-scenarios")
    with pytest.raises(ReportError, match=r"wcci2020/ace/seed=2 was tested on other scenarios"):
        runs.read(params, results)


def test_other_episodes_under_the_same_hash_are_refused(params, results):
    path = results / "runs/case14/sac/seed=0/episodes.csv"
    path.write_text(path.read_text().replace("t3", "t30"))
    with pytest.raises(ReportError, match=r"different test episodes"):
        runs.read(params, results)


@pytest.mark.parametrize(
    ("key", "value"), [("scale", "quick"), ("variant", "ace"), ("seed", 5), ("env", "neurips2020")]
)
def test_run_of_another_cell_is_refused(params, results, key, value):
    change_manifest(results, "wcci2020/sac/seed=1", **{key: value})
    with pytest.raises(ReportError, match=rf"seed=1 was made for {key} {value}, but"):
        runs.read(params, results)


def test_only_the_declared_grid_is_read(params, results):
    before = tables.summarise(runs.read(params, results))
    write_run(results, "wcci2020", "ace", 9, trained=True, level=0.1)
    write_run(results, "wcci2020", "left_over", 0, trained=True, level=0.1, scale="quick")
    pd.testing.assert_frame_equal(tables.summarise(runs.read(params, results)), before)


def test_undeclared_variant_is_refused(params, results):
    with pytest.raises(ReportError, match="variant aec is not in the grid"):
        runs.read(params, results, ["aec"])


def test_empty_cells_are_refused(params, results):
    path = results / "runs/wcci2020/greedy/seed=0/episodes.csv"
    pd.read_csv(path).assign(reward=np.nan).to_csv(path, index=False)
    with pytest.raises(ReportError, match=r"greedy/seed=0/episodes.csv has no test episodes or has empty cells"):
        runs.read(params, results)


# --- tables ---


def test_main_table_by_hand(params, results):
    table, _ = tables.write_main(params, results)
    header = (results / "tables/main.csv").read_text().split("\n")[0]
    assert header == (
        "env,variant,metric,mean,std,iqm,ci_low,ci_high,n_seeds,n_episodes,simulator_calls,llm_calls,scale,"
        "dc_calls,train_s"
    )
    assert list(table["variant"].unique()) == ["do_nothing", "reconnect", "greedy", "sac", "ace", "ace_no_actor", "ace_no_critic"]
    survival = row(table, env="wcci2020", variant="ace", metric="survival")
    assert survival["mean"] == pytest.approx(71)  # 70, 71 and 72 percent; the ease of the episodes averages out
    assert survival["std"] == pytest.approx(1)
    assert (survival["n_seeds"], survival["n_episodes"], survival["scale"]) == (3, 8, "laptop")
    assert survival["simulator_calls"] == 1001 + 6000  # train and corpus; a deployed policy simulates nothing
    assert survival["llm_calls"] == 40
    greedy = row(table, env="wcci2020", variant="greedy", metric="simulator_calls_test")
    assert (greedy["mean"], greedy["simulator_calls"], greedy["n_seeds"]) == (7, 56, 1)
    assert np.isnan(greedy["std"])
    assert row(table, env="case14", variant="ace", metric="env_steps_to_train")["mean"] == 9030 + 500 + 700
    assert row(table, env="case14", variant="ace", metric="refinements")["n_episodes"] == 0


def test_paired_by_hand(params, results):
    _, pairs = tables.write_main(params, results)
    found = row(pairs, env="case14", a="ace", b="sac", metric="survival")
    assert found["difference"] == pytest.approx(30)
    assert (
        28 <= found["ci_low"] < 30 < found["ci_high"] <= 32
    )  # two to four percent between the lowest and highest seed
    assert (found["n_seeds"], found["n_seeds_b"]) == (3, 3)
    back = row(pairs, env="case14", a="sac", b="ace", metric="survival")
    assert back["difference"] == pytest.approx(-30)
    assert (back["ci_low"], back["ci_high"]) == (-found["ci_high"], -found["ci_low"])  # drawn once


def test_roles_table(params, results):
    table = tables.write_roles(params, results)
    assert list(table["variant"].unique()) == ["ace", "ace_no_actor", "ace_no_critic", "sac"]
    found = row(table, env="wcci2020", variant="ace_no_critic", metric="survival")
    assert found["difference"] == pytest.approx(-10)
    assert found["difference_high"] < 0
    assert np.isnan(row(table, env="wcci2020", variant="ace", metric="reward")["difference"])
    # of equal validation survival and reward the first checkpoint is kept; the third is the best of these curves
    assert list(table[table["metric"] == "survival"]["seeds_shaped"])[:3] == [3, 3, 0]
    assert set(table["checkpoint_decisions"]) == {1500}
    text = (results / "tables/ablation_roles.md").read_text()
    assert "| ACE without f_LLM | no | yes |" in text
    assert "-10.0 [-1" in text
    assert "DC calls" not in text, "the note explains the columns of this table only"
    said = tables.roles_answer(params, table).splitlines()
    assert len(said) == len(ENVS) and said[0].startswith(f"- **{ENVS[0]}**, survival minus ACE's: ACE without f_LLM -30.0 [")
    assert "ACE without g_LLM -10.0 [" in said[0] and "], below 0" in said[0] and "in 3 of 3 of ACE's checkpoints" in said[0]
    level = table.assign(difference_high=1.0)
    assert "not told apart from 0" in tables.roles_answer(params, level) and "below" not in tables.roles_answer(params, level)
    assert "nothing to compare" in tables.roles_answer(params, table[table["variant"] == "ace"])


def test_leads_turn_a_pair_that_is_there_the_other_way_round(params, results):
    _, pairs = tables.write_main(params, results)
    params.days[ENVS[1]].days.test = [0]
    text = tables.leads(params, pairs[pairs["b"] != "sac"], ["sac", "reconnect", "expert_sac"])
    assert f"| {ENVS[0]} | SAC | +30.0 [+2" in text and "] | above 0 |" in text  # from sac - ace
    assert f"| {ENVS[1]}, same day | Reconnect lines | +36.0 [" in text  # from ace - reconnect
    assert "expert" not in text and text.endswith(f"counted for no claim: {ENVS[1]}.\n")
    level = pairs.assign(ci_low=-1.0)
    assert "not told apart from 0" in tables.leads(params, level, ["sac"]) and "no claim" not in tables.leads(
        params, level[level["env"] == ENVS[0]], ["sac"]
    )


def test_told_by_the_interval_alone():
    ends = [(0.1, 2), (-2, -0.1), (0, 2), (-1, 1), (np.nan, np.nan)]
    assert [tables.told(*each) for each in ends] == ["above 0", "below 0", *["not told apart from 0"] * 3]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567.8, "1234570"),
        (0.1 + 0.2, "0.3"),
        (np.float64(1e-9), "0.000000001"),
        (-0.0, "0"),
        (float("nan"), ""),
        (7, "7"),
        (np.int64(66811), "66811"),
        (None, ""),
        (pd.NA, ""),
        (2 / 3, "0.666667"),
        ("ace", "ace"),
    ],
)
def test_number(value, text):
    assert typeset.number(value) == text


def test_csv_reads_back_with_whole_counts(params, results):
    table, _ = tables.write_main(params, results)
    text = (results / "tables/main.csv").read_text()
    assert text.endswith("\n") and "\r" not in text
    back = pd.read_csv(io.StringIO(text))
    assert back["n_seeds"].dtype.kind == back["simulator_calls"].dtype.kind == "i"
    np.testing.assert_allclose(back["mean"], table["mean"], rtol=1e-5)


def test_markdown_and_latex_escape():
    assert typeset.markdown(["a"], [["x|y"]]) == "| a |\n| --- |\n| x\\|y |\n"
    text = typeset.latex(["Grid", "Method", "Survival, %"], [["w", "ACE without f_LLM", "1.0 ± 0.5"]], "t")
    assert "f\\_LLM & 1.0 $\\pm$ 0.5 \\\\" in text
    assert "Survival, \\% \\\\" in text


def write_everything(params, results):
    table, _ = tables.write_main(params, results)
    tables.write_roles(params, results)
    figures.comparison(params, table, results)
    figures.learning_curves(params, results)
    claims.write(params, results)
    return {path.relative_to(results): path.read_bytes() for path in written(results)}


@pytest.mark.parametrize(("longest", "scale"), [(1500, "linear"), (3000, "linear"), (5000, "log")])
def test_decisions_are_shown_on_a_log_scale_where_some_methods_train_much_longer(longest, scale):
    panel = Figure().subplots()
    ends = [("sac", "validation", 1500), ("sac", "validation", 250), ("sac_5k", "validation", longest), ("greedy", "test", None)]
    said = figures._scaled(panel, pd.DataFrame(ends, columns=["variant", "kind", "decisions"]))
    assert panel.get_xscale() == scale and bool(said) == (scale == "log")


def test_everything_has_the_same_bytes_twice(params, results):
    first, second = write_everything(params, results), write_everything(params, results)
    names = {str(name) for name in first if (results / name).is_file()}
    assert names >= {f"tables/main.{kind}" for kind in ("csv", "md", "tex")}
    assert names >= {f"figures/learning_curves.{kind}" for kind in ("csv", "png", "svg", "pdf")}
    assert names >= {f"figures/main.{kind}" for kind in ("csv", "png", "svg", "pdf")}
    assert names >= {"claims.csv", "claims.md", "numbers.json", "tables/paired.csv", "tables/ablation_roles.csv"}
    assert [name for name in first if first[name] != second[name]] == []
    assert all(str(results).encode() not in content for content in first.values())


def written(results):
    made = [path for path in results.rglob("*") if path.is_file()]
    return [path for path in sorted(made) if path.relative_to(results).parts[0] not in ("runs", "provenance")]


# --- figures ---


def test_learning_data_by_hand(params, results):
    data = figures.learning_data(runs.read(params, results))
    point = row(data, env="case14", variant="ace", decisions=1000)
    ease = 100 * EPISODE_EASE[1]
    assert point[["value", "low", "high"]].tolist() == pytest.approx([71 + ease, 70 + ease, 72 + ease])
    assert (point["kind"], point["n_seeds"]) == ("validation", 3)
    level = row(data, env="case14", variant="greedy")
    assert (level["kind"], level["n_episodes"]) == ("test", EPISODES)
    assert level["value"] == pytest.approx(90)
    assert set(data.loc[data["kind"] == "test", "variant"]) == {"do_nothing", "reconnect", "greedy"}


def test_curves_are_interpolated_where_validations_differ(params, results):
    path = results / "runs/case14/sac/seed=1/training.csv"
    pd.DataFrame({"decisions": [750, 1250], "split": "validation", "survival": [0.2, 0.6]}).to_csv(path, index=False)
    data = figures.learning_data(runs.read(params, results, ["sac"]))
    curve = data[data["env"] == "case14"]
    assert curve["decisions"].tolist() == [750, 1000, 1250]  # only what all seeds cover
    assert curve["high"].iloc[1] == pytest.approx(40)  # half-way from 20 to 60
    assert curve["low"].iloc[1] == pytest.approx(40 + 100 * EPISODE_EASE[1])  # seed 0, as validated


def test_seed_without_training_is_named(params, results):
    (results / "runs/case14/sac/seed=1/training.csv").unlink()
    with pytest.raises(ReportError, match=r"case14/sac.*dvc repro train@case14-sac"):
        figures.learning_curves(params, results)


def test_where_the_curves_end_is_told(params, results):
    data = figures.learning_data(runs.read(params, results, ["sac", "ace", "ace_no_critic"]))
    line = figures.ends_told(params, data).split("\n")[0]
    assert line.startswith("- **wcci2020**, Survival, % of the horizon: ACE goes from 63 at 500 decisions to 67.6 (seeds 66.6")
    assert "; SAC goes from 33 at 500 decisions to 37.6 (seeds" in line
    assert "ACE is above SAC, even its lowest seed above the highest of SAC; the highest mean at the end is ACE" in line
    assert line.endswith("the seeds of none of the 2 others reach into their range.")
    data.loc[(data["variant"] == "sac") & (data["decisions"] == 1500), "high"] = 70.0
    line = figures.ends_told(params, data).split("\n")[0]
    assert "above SAC, but the ranges of their seeds overlap" in line and "the seeds of 1 of the 2 others" in line
    data.loc[(data["variant"] == "sac") & (data["decisions"] == 1500), "value"] = 69.0
    assert "ACE is not above SAC; the highest mean at the end is SAC's, 69 " in figures.ends_told(params, data)
    alone = figures.ends_told(params, data[data["variant"] == "ace"])
    assert "SAC" not in alone and alone.split("\n")[0].endswith(").")
    assert list(figures.last_and_best(data))[2:4] == ["last survival, %", "best survival, %"]
    assert list(figures.last_and_best(data, "q_std"))[2:4] == ["last Standard deviation of Q", "best Standard deviation of Q"]


def test_a_validation_gets_one_marker():
    assert figures._marked(np.array([255.0, 259, 261, 504, 540, 755, 760, 1001])).tolist() == [2, 4, 6, 7]
    assert figures._marked(np.array([250.0, 500, 750])).tolist() == [0, 1, 2]
    assert figures._marked(np.array([250.0])).tolist() == [0]


def test_unknown_curve_is_refused(params, results):
    with pytest.raises(ReportError, match="metric surival can't be drawn; there are survival"):
        figures.learning_curves(params, results, metric="surival")


def test_drawing_changes_no_setting_and_leaves_no_date(params, results):
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    figures.learning_curves(params, results)
    assert {key: value for key, value in mpl.rcParams.items() if before[key] != value} == {}
    assert "dc:date" not in (results / "figures/learning_curves.svg").read_text()
    assert b"Software" not in (results / "figures/learning_curves.png").read_bytes()
    assert b"Date" not in (results / "figures/learning_curves.pdf").read_bytes()


def test_labels_are_spread():
    assert figures._spread([25.0, 27.0, 93.0], 9, 98) == [25, 34, 93]
    assert figures._spread([95.0, 97.0, 99.0], 9, 98) == [80, 89, 98]


# --- claims ---


@pytest.mark.parametrize(
    ("estimate", "size", "verdict"),
    [
        (Estimate(30, 20, 40), 18.75, "reproduced"),
        (Estimate(10, 5, 15), 18.75, "partly"),
        (Estimate(10, -1, 21), 18.75, "not reproduced"),  # the interval holds 0
        (Estimate(30, 0, 60), 18.75, "not reproduced"),  # it touches 0
        (Estimate(-30, -40, -20), 18.75, "not reproduced"),  # the other sign
        (Estimate(30, np.nan, np.nan), 18.75, "not tested"),
    ],
)
def test_verdict_by_sign_and_size(estimate, size, verdict):
    assert measure.by_sign_and_size(estimate, size) == verdict


def test_verdict_by_range():
    assert measure.by_range([287, 682], 287, 682) == "reproduced"
    assert measure.by_range([300, 700], 287, 682) == "partly"
    assert measure.by_range([100], 287, 682) == "not reproduced"


def test_every_claim_has_a_row_and_an_allowed_verdict(params, results):
    table = claims.write(params, results)
    written_csv = pd.read_csv(results / "claims.csv")
    assert (results / "claims.csv").read_text().split("\n")[0] == (
        "id,claim,paper_value,source,measured,ci_low,ci_high,n,scale,criterion,verdict,evidence"
    )
    assert list(written_csv["id"]) == [f"C{i}" for i in range(1, 15)]
    assert set(written_csv["verdict"]) <= set(measure.VERDICTS)
    for column in ("claim", "paper_value", "source", "scale", "criterion", "evidence"):
        assert written_csv[column].str.len().gt(0).all()
    tested = table[table["verdict"] != "not tested"]
    assert list(tested["id"]) == ["C2", "C8", "C9"]
    assert tested["n"].str.contains("3 seeds").all()
    assert row(table, id="C10")["evidence"] == (
        "not tested: variant ace_rbar_pos, ace_rbar_neg is not in the declared grid"
    )
    counts = json.loads((results / "numbers.json").read_text())["claims"]
    assert sum(counts.values()) == 14


def test_measured_claims_by_hand(params, results):
    table = claims.evaluate(runs.read(params, results))
    survival = row(table, id="C2")
    assert (survival["measured"], survival["verdict"]) == (pytest.approx(30), "reproduced")
    assert survival["n"] == "2 env x 3 seeds x 8 episodes"
    assert row(table, id="C8")["measured"] == pytest.approx(71 / 41)
    assert row(table, id="C9")["measured"] == pytest.approx(100 * (1 - 41 / 71))
    assert "seconds a call in ace: wcci2020 2, case14 2" in row(table, id="C7")["evidence"]


def test_claim_about_wcci2020_needs_it(params, results):
    params.grid.environments = ["case14"]
    found = row(claims.evaluate(runs.read(params, results)), id="C8")
    assert (found["verdict"], found["evidence"]) == (
        "not tested",
        "not tested: environment wcci2020 is not in the declared grid",
    )


def test_one_seed_is_told(params, results):
    params.seeds = [0]
    found = row(claims.evaluate(runs.read(params, results)), id="C2")
    assert found["n"] == "2 env x 1 seed x 8 episodes"
    assert "says nothing about training luck" in found["evidence"]


def declare(params, results, levels, refinements=None):
    """Add variants to the declared grid, with the given survival."""
    for variant, level in levels.items():
        params.grid.variants.append(variant)
        for env in ENVS:
            for seed in params.seeds:
                write_run(results, env, variant, seed, True, level, (refinements or {}).get(variant, 300 + seed))


def verdict_of(name, params, results):
    found = row(claims.evaluate(runs.read(params, results), [name]), id=name)
    return found["verdict"], found["measured"]


@pytest.mark.parametrize(("expert", "verdict"), [(0.3, "reproduced"), (0.5, "partly"), (0.8, "not reproduced")])
def test_c1_once_declared(params, results, expert, verdict):
    declare(params, results, {"expert_sac": expert})
    assert verdict_of("C1", params, results) == (verdict, pytest.approx(100 * (71 / (100 * expert + 1) - 1)))


def test_claims_of_ace_tell_what_the_papers_loss_alone_gives(params, results):
    before = row(claims.evaluate(runs.read(params, results)), id="C2")["evidence"]
    declare(params, results, {"ace_literal": 0.41})
    told = claims.evaluate(runs.read(params, results)).set_index("id")["evidence"]
    assert "ace_literal" not in before and told["C2"].startswith(before)
    assert "(ace_literal): 1 [" in told["C2"] and told["C2"].endswith("partly")
    assert "ace_literal" in told["C8"] and "ace_literal" in told["C9"] and "ace_literal" not in told["C3"]


def test_c2_tells_what_a_longer_trained_sac_comes_to(params, results):
    before = row(claims.evaluate(runs.read(params, results)), id="C2")
    declare(params, results, {"sac_20k": 0.9, "ace_long": 0.8})
    told = claims.evaluate(runs.read(params, results)).set_index("id")
    assert told.loc["C2", "evidence"].startswith(before["evidence"] + "; ace against sac_20k: -20 [")
    assert f"{told.loc['C2', 'measured']:.3g}" != "-20" and "ace_long" not in told.loc["C2", "evidence"], "alone"
    longer = told.loc["C2", "evidence"].removeprefix(before["evidence"])
    assert "a run used, corpus included: ace " in longer and " sac_20k " in longer, "budgets of both beside"
    assert told.loc["C2", "verdict"] == before["verdict"]
    assert not any("sac_20k" in evidence for name, evidence in told["evidence"].items() if name != "C2")


def test_an_undefined_ratio_of_the_papers_loss_leaves_aces_own_verdict(params, results):
    before = verdict_of("C9", params, results)
    declare(params, results, {"ace_literal": 0.1})
    for env in ENVS:
        for seed in params.seeds:
            path = results / "runs" / env / "ace_literal" / f"seed={seed}" / "episodes.csv"
            episodes = pd.read_csv(path)
            episodes.assign(reward=-1.0).to_csv(path, index=False)
    assert verdict_of("C9", params, results) == before
    assert "(ace_literal): not tested (" in row(claims.evaluate(runs.read(params, results)), id="C9")["evidence"]


def test_c2_tells_each_environment(params, results):
    told = row(claims.evaluate(runs.read(params, results)), id="C2")["evidence"]
    assert told.startswith(f"by environment: {ENVS[0]} 30 [") and f"] reproduced, {ENVS[1]} 30 [" in told
    params.grid.environments = ENVS[:1]
    assert "by environment" not in row(claims.evaluate(runs.read(params, results)), id="C2")["evidence"]


def test_rows_of_a_grid_tested_on_its_training_day_say_so(params, results):
    params.days[ENVS[1]].days.test = [0]
    tables.write_main(params, results)
    tables.write_roles(params, results)
    for name in ("main.md", "ablation_roles.md"):
        grids = {line.split("|")[1].strip() for line in (results / "tables" / name).read_text().splitlines() if "| " in line}
        assert {ENVS[0], f"{ENVS[1]}, same day"} == grids & {*ENVS, *(f"{env}, same day" for env in ENVS)}


def test_a_grid_tested_on_its_training_day_is_told_and_not_counted(params, results):
    declare(params, results, {"expert_sac": 0.5})
    both = verdict_of("C2", params, results)
    for seed in params.seeds:
        for name, survived in (("ace", 8), ("expert_sac", 1)):
            path = results / "runs" / ENVS[1] / name / f"seed={seed}" / "episodes.csv"
            episodes = pd.read_csv(path)
            episodes.assign(survival=survived / 8).to_csv(path, index=False)
    params.days[ENVS[1]].days.test = [0]
    table = claims.evaluate(runs.read(params, results))
    c1, c2 = row(table, id="C1"), row(table, id="C2")
    assert c2["measured"] == pytest.approx(30) and c2["n"].startswith("1 env x") and c2["verdict"] == both[0]
    assert f"{ENVS[1]} 59 [" in c2["evidence"] and "(on its training day, not counted)" in c2["evidence"]
    assert c1["measured"] < 100 and f"largest of 1 environments: {ENVS[0]}; by environment" in c1["evidence"]
    params.grid.environments = ENVS[1:]
    assert verdict_of("C1", params, results)[0] == "not tested"


@pytest.mark.parametrize(("seconds", "verdict"), [(12.8, "reproduced"), (2.0, "not reproduced")])
def test_c7_once_a_7b_model_was_asked(params, results, seconds, verdict):
    assert verdict_of("C7", params, results)[0] == "not tested"
    for env in ENVS:
        for seed in params.seeds:
            settings = {"refine": {"every": 25, "most": 8, "limit": 700}, "train": {"decisions": 1500}}
            settings["llm"] = {"model": "models/qwen2-7b-instruct"}
            change_manifest(results, f"{env}/ace/seed={seed}", settings=settings, refine_tried=300)
            path = results / "provenance" / env / "ace" / f"seed={seed}.json"
            path.write_text(json.dumps({"wall_s": {"evaluate": 10.0, "llm": 40 * seconds}}))
    assert verdict_of("C7", params, results) == (verdict, pytest.approx(seconds))


@pytest.mark.parametrize(("refined", "verdict"), [(400, "reproduced"), (683, "not reproduced"), (286, "not reproduced")])
def test_c3_once_declared(params, results, refined, verdict):
    declare(params, results, {"ace_rbar_zero": 0.6}, {"ace_rbar_zero": refined})
    assert verdict_of("C3", params, results) == (verdict, pytest.approx(refined))


@pytest.mark.parametrize(("positive", "verdict"), [(510, "reproduced"), (100, "partly"), (60, "not reproduced")])
def test_c10_once_declared(params, results, positive, verdict):
    declare(params, results, {"ace_rbar_pos": 0.6, "ace_rbar_neg": 0.6}, {"ace_rbar_pos": positive, "ace_rbar_neg": 83})
    assert verdict_of("C10", params, results) == (verdict, pytest.approx(positive / 83))


def test_a_number_of_refinements_that_the_settings_decided_tests_nothing(params, results):
    declare(params, results, {"ace_rbar_pos": 0.6, "ace_rbar_neg": 0.6}, {"ace_rbar_pos": 510, "ace_rbar_neg": 83})
    path = results / "runs" / ENVS[0] / "ace_rbar_pos" / "seed=1" / "manifest.json"
    manifest = json.loads(path.read_text())
    settings = {"refine": {"every": 25, "most": 8, "limit": 700}, "train": {"decisions": 1500}}
    for tried, tested in ((300, True), (470, False)):
        path.write_text(json.dumps(manifest | {"settings": settings, "refine_tried": tried}))
        assert (verdict_of("C10", params, results)[0] != "not tested") == tested


@pytest.mark.parametrize(("low", "verdict"), [(0.6, "reproduced"), (0.685, "partly"), (0.75, "not reproduced")])
def test_c11_takes_the_smaller_loss(params, results, low, verdict):
    declare(params, results, {"ace_rbar_zero": 0.7, "ace_rbar_pos": 0.5, "ace_rbar_neg": low})
    assert verdict_of("C11", params, results) == (verdict, pytest.approx(100 * (1 - (100 * low + 1) / 71)))


@pytest.mark.parametrize(("level", "verdict"), [(0.67, "reproduced"), (0.5, "partly"), (0.75, "not reproduced")])
def test_c12_once_declared(params, results, level, verdict):
    declare(params, results, {"ace_no_finetune": level})
    assert verdict_of("C12", params, results) == (verdict, pytest.approx(71 - 100 * level - 1))


def test_c13_and_c14_once_declared(params, results):
    declare(params, results, {"ace_select_state": 0.6, "ace_select_action": 0.5})
    assert verdict_of("C13", params, results) == ("reproduced", pytest.approx(10))
    gaps = {"ace_query_high": 0.7, "ace_query_low": 0.5, "ace_half_query_high": 0.6, "ace_half_query_low": 0.55}
    declare(params, results, gaps)
    assert verdict_of("C14", params, results) == ("reproduced", pytest.approx(15))


def test_a_variant_with_a_model_of_its_own_is_read_everywhere_with_all_seeds(params, results):
    params.grid.other_model = ["ace_lean"]
    with pytest.raises(ReportError, match=rf"dvc repro.* other_model@{ENVS[0]}-ace_lean"):
        runs.read(params, results)
    for env in ENVS:
        for seed in runs.seeds_of(params, "ace_lean"):
            write_run(results, env, "ace_lean", seed, True, 0.66)
    assert len(runs.read(params, results).of(ENVS[1], "ace_lean")) == 3
    table, pairs = tables.write_main(params, results)
    assert row(table, env=ENVS[0], variant="ace_lean", metric="survival")["n_seeds"] == 3
    assert row(pairs, env=ENVS[0], a="ace_lean", b="ace", metric="survival")["difference"] == pytest.approx(-4)


def test_an_ablation_is_read_on_its_environment_with_its_seeds(params, results):
    params.grid.ablations.variants = ["ace_no_finetune", "ace"]  # ace is declared everywhere: its cells are those
    for seed in (0, 1):
        write_run(results, ENVS[0], "ace_no_finetune", seed, True, 0.67)
    everything = runs.read(params, results)
    assert everything.environments_of(["ace", "ace_no_finetune"]) == [ENVS[0]]
    assert everything.environments_of(["ace"]) == ENVS and len(everything.of(ENVS[0], "ace")) == 3
    assert runs.read(params, results, ["ace", "ace_no_finetune"]).environments == [ENVS[0]]
    assert "ace_no_finetune" not in set(tables.write_main(params, results)[0]["variant"])
    found = row(claims.write(params, results), id="C12")
    assert found["verdict"] != "not tested" and found["n"] == f"1 env x 2 seeds x {EPISODES} episodes"  # those that both have
    shutil.rmtree(results / "runs" / ENVS[0] / "ace_no_finetune" / "seed=1")
    with pytest.raises(runs.ReportError, match="dvc repro ablation@ace_no_finetune"):
        runs.read(params, results)


def test_c4_needs_enough_training(params, results):
    declare(params, results, {"expert_100k": 0.5})
    found = row(claims.evaluate(runs.read(params, results)), id="C4")
    assert found["evidence"] == "not tested: expert_100k was trained for fewer than 100,000 environment steps"
    for env in ENVS:
        for seed in params.seeds:
            curve = {"env_steps": [90_000, 150_000 + seed, 200_000], "survival": [0.3, 0.6, 0.5]}
            curve = pd.DataFrame({"decisions": [1, 2, 3], "split": "validation", **curve})
            curve.to_csv(results / f"runs/{env}/expert_100k/seed={seed}/training.csv", index=False)
    assert verdict_of("C4", params, results) == ("reproduced", 150_001)


def test_times_come_from_provenance(params, results):
    declare(params, results, {"expert_sac": 0.5})
    # as many seconds for fewer steps
    assert verdict_of("C5", params, results) == ("reproduced", pytest.approx(71 / 51, rel=0.02))
    (results / "provenance/case14/expert_sac/seed=1.json").unlink()
    found = row(claims.evaluate(runs.read(params, results)), id="C5")
    assert found["evidence"] == "not tested: no wall_s.evaluate in the provenance of case14/expert_sac"


# --- showing ---


def test_readme_is_renewed_and_staleness_told(params, results, tmp_path):
    claims.write(params, results)
    table = claims.read_written(results)
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n{show.START}\nold\n{show.END}\nmore\n")
    assert "README.md does not show" in show.readme_is_stale(readme, table)
    assert show.update_readme(readme, table)
    assert show.readme_is_stale(readme, table) is None
    assert not show.update_readme(readme, table)
    text = readme.read_text()
    assert text.startswith("# Title\n")
    assert text.endswith(f"{show.END}\nmore\n")
    assert "| C2 Survival of ACE against plain RL | `10_table_main` | `table_main` | 77 % against 39.5 % | 30 [" in text
    readme.write_text(text.replace("77 %", "78 %"))
    assert show.readme_is_stale(readme, table)


def test_readme_without_markers_is_refused(params, results, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"{show.END} {show.START}")
    with pytest.raises(ReportError, match=r"README.md needs <!-- claims:start -->"):
        show.update_readme(readme, claims.write(params, results))


def test_command_prints_claims_and_where_to_look(params, results, tmp_path, monkeypatch, capsys):
    workspace = tmp_path / "workspace"
    shutil.copytree(results, workspace / "results")
    (workspace / "params.yaml").write_text("")
    monkeypatch.chdir(workspace)
    assert claims.main([]) == 1
    assert (
        capsys.readouterr().err
        == "claims: no results/claims.csv in workspace: run `make quick` or `dvc repro claims`\n"
    )
    write_everything(params, workspace / "results")
    assert claims.main([]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 121
    assert [line.split()[0] for line in out.splitlines()[1:15]] == [f"C{i}" for i in range(1, 15)]
    assert "results/tables/main.md" in out
    assert claims.main(["--raedme"]) == 1
    monkeypatch.chdir(tmp_path)
    assert claims.main(["workspace"]) == 0
    assert "  workspace/results/tables/main.md " in capsys.readouterr().out, "as typed from where the user is"


@pytest.mark.parametrize("name", ["10_table_main", "11_table_roles", "20_figure_learning", "90_claims"])
def test_notebooks_are_clean_sources(name):
    from pathlib import Path

    import nbformat

    path = Path(__file__).parents[1] / "notebooks" / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.id for cell in code if "parameters" in cell.metadata.get("tags", [])] == ["parameters"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert all("  # " in line for line in code[0].source.splitlines())  # each parameter is explained


def test_methods_of_another_makers_processor_are_named_below_the_main_table(params, results):
    def run_on(variant, cpu):
        for path in (results / "provenance").glob(f"*/{variant}/*.json"):
            path.write_text(json.dumps({**json.loads(path.read_text()), "cpu": cpu}))

    for variant, cpu in (("ace", "Intel(R) Xeon(R)"), ("sac", "Intel Core"), ("ace_no_actor", "AMD EPYC")):
        run_on(variant, cpu)
    main = results / "tables/main.md"
    tables.write_main(params, results)
    assert "another maker than ACE, at least in part: ACE without f_LLM; seconds" in main.read_text()
    run_on("ace_no_actor", "Intel(R) Xeon(R) Processor")
    tables.write_main(params, results)
    assert "another maker" not in main.read_text()
