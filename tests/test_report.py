"""The report on a small made-up results tree: numbers by hand, refusals, stable bytes, verdicts."""

import io
import itertools
import json
import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from made_up_runs import (
    change_episodes,
    change_manifest,
    change_provenance,
    change_training,
    drop_seed,
    manifest_of,
    write_seed,
)
from scipy.stats import t

from ace import stats
from ace.config import STUDIES, Grid, Params
from ace.report import claims, claims_text, figures, formatting, labels, notes, runs, tables, verdicts
from ace.report.runs import ReportError
from ace.run_files import read_provenance
from ace.stats import Estimate

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


class SmallGrid(SimpleNamespace):
    main, cells = Grid.main, Grid.cells


def small_grid():
    grid = SmallGrid(
        environments=ENVS,
        baselines=["do_nothing", "reconnect", "greedy"],
        lm_baselines=[],
        variants=["sac", "ace", "ace_no_actor", "ace_no_critic"],
        other_model=[],
        more_seeds=SimpleNamespace(seeds=[], variants=[]),
        ablations=SimpleNamespace(environment=ENVS[0], seeds=[0, 1], variants=[]),
        budget=SimpleNamespace(environments=[], seeds=[0], variants=[]),
        also=SimpleNamespace(environments=[], variants=[], controls=[]),
        pretrained=SimpleNamespace(environments=[], seeds=[0], variants=[]),
    )
    specs = {env: SimpleNamespace(weeks=SimpleNamespace(path="results/chronics")) for env in ENVS}
    scenarios = SimpleNamespace(train=12, test=EPISODES, test_split="development_test")
    made = SimpleNamespace(scale="laptop", seeds=[0, 1, 2], grid=grid, environment=specs.get, scenarios=scenarios, variants={})
    for study in STUDIES:
        setattr(made, study, SimpleNamespace(variants=[*grid.baselines, *grid.variants], episodes=EPISODES))
    made.seeds_of, made.played = (partial(of, made) for of in (Params.seeds_of, Params.played))
    return made


@pytest.fixture
def params():
    return small_grid()


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder, grid = tmp_path_factory.mktemp("template"), small_grid()
    for env in ENVS:
        for variant in runs.declared(grid):
            for seed in grid.seeds_of(variant):
                write_run(folder, env, variant, seed, trained=variant not in grid.grid.baselines)
    return folder


@pytest.fixture
def results(tmp_path, template):
    return shutil.copytree(template, tmp_path / "results")


def write_grid(folder, params):
    """Runs of everything that the small grid declares. Returns the folder."""
    for env in ENVS:
        for variant in runs.declared(params):
            for seed in params.seeds_of(variant):
                write_run(folder, env, variant, seed, trained=variant not in params.grid.baselines)
    return folder


def write_run(results, env, variant, seed, trained, level=None, refinements=None, scale="laptop"):
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
    budget, curve = {"test": {"simulator_calls": int(episodes["simulator_calls"].sum()), "dc_calls": 0, "llm_calls": 0}}, None
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
        curve = pd.DataFrame(curve)
    if refinements is None:
        refinements = 300 + 10 * seed if variant == "ace" else 0
    identity = {"env": env, "variant": variant, "seed": seed, "scale": scale, "test_hash": f"hash-of-{env}"}
    manifest = {**identity, "budget": budget}
    if trained:
        manifest["refinements"] = refinements
    write_seed(results, manifest, episodes, curve, {"wall_s": {"evaluate": 10.0 + seed, "llm": 80.0}})


def row(table, **where):
    chosen = table
    for column, value in where.items():
        chosen = chosen[chosen[column] == value]
    assert len(chosen) == 1
    return chosen.iloc[0]


# --- statistics ---


def test_summary_by_hand():
    found = stats.summary([[1, 2, 3, 6], [3, 4, 5, 8]])  # means of the seeds: 3 and 5
    assert (found.mean, found.n_seeds, found.n_episodes) == (4, 2, 4)
    assert found.std == pytest.approx(np.sqrt(2))
    assert found.iqm == pytest.approx((3 + 3 + 4 + 5) / 4)
    assert found.low < found.mean < found.high


def test_one_seed_has_no_std_and_one_value_no_interval():
    assert np.isnan(stats.summary([[1.0, 2.0, 3.0]]).std)
    assert np.isfinite(stats.summary([[1.0, 2.0, 3.0]]).low)
    assert np.isnan(stats.summary([[1.0]]).low)


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
    assert [*stats.paired_difference(a, b)] == pytest.approx([6, 6, 6])


def test_unequal_episodes_are_not_paired():
    with pytest.raises(ValueError, match="not paired"):
        stats.paired_difference(np.zeros((1, 3)), np.zeros((1, 4)))


@pytest.mark.parametrize("scores", [[1.0, 2.0], [[1.0, np.nan]], np.zeros((0, 3))])
def test_malformed_scores_are_refused(scores):
    with pytest.raises(ValueError, match="matrix"):
        stats.summary(scores)


# --- reading ---


def test_missing_baseline_names_its_stage(params, results):
    (results / "runs/case14/greedy/episodes.csv").unlink()
    with pytest.raises(ReportError, match=r"no episodes.csv in results/runs/case14/greedy: run `dvc repro "):
        runs.read(params, results)


def test_missing_run_names_folder_and_target(params, results):
    drop_seed(results, "case14/ace/seed=1")
    with pytest.raises(ReportError) as error:
        runs.read(params, results)
    message = str(error.value)
    assert "no seed 1 in results/runs/case14/ace" in message
    assert runs.target(params, "case14", "ace") in message
    assert "\n" not in message


def test_other_test_set_is_refused(params, results):
    change_manifest(results, "wcci2020/ace/seed=2", test_hash="of-other-scenarios")
    with pytest.raises(ReportError, match=r"wcci2020/ace/seed=2 was tested on other scenarios"):
        runs.read(params, results)


def test_other_episodes_under_the_same_hash_are_refused(params, results):
    change_episodes(results, "case14/sac/seed=0", lambda table: table.replace({"scenario": {"t3": "t30"}}))
    with pytest.raises(ReportError, match=r"different test episodes"):
        runs.read(params, results)


@pytest.mark.parametrize(
    ("key", "value"), [("scale", "quick"), ("variant", "ace"), ("env", "neurips2020")]
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
    change_episodes(results, "wcci2020/greedy/seed=0", lambda table: table.assign(reward=np.nan))
    with pytest.raises(ReportError, match=r"greedy/seed=0: no test episodes or empty cells in episodes.csv"):
        runs.read(params, results)


# --- tables ---


def test_main_table_by_hand(params, results):
    table, _ = tables.write_main(params, results, results / "main")
    header = (results / "main/main.csv").read_text().split("\n")[0]
    assert header == (
        "env,variant,metric,mean,std,iqm,ci_low,ci_high,n_seeds,n_episodes,simulator_calls,llm_calls,scale,"
        "dc_calls,train_s,idle_seeds"
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
    _, pairs = tables.write_main(params, results, results / "main")
    found = row(pairs, env="case14", a="ace", b="sac", metric="survival")
    assert found["difference"] == pytest.approx(30)
    se, df = np.sqrt(2 / 3), 4  # seeds at 70, 71, 72 and 40, 41, 42; the episodes differ alike, which leaves nothing of them
    half = t.ppf(0.975, df) * se
    assert (found["ci_low"], found["ci_high"]) == pytest.approx((30 - half, 30 + half), rel=1e-4)
    assert found["detectable"] == pytest.approx(half + t.ppf(0.8, df) * se, rel=1e-4)
    assert found["p"] == pytest.approx(2 * t.sf(30 / se, df), rel=1e-4) and found["p"] < found["p_holm"]
    assert (found["n_seeds"], found["n_seeds_b"]) == (3, 3)
    back = row(pairs, env="case14", a="sac", b="ace", metric="survival")
    assert back["difference"] == pytest.approx(-30)
    assert (back["ci_low"], back["ci_high"]) == (-found["ci_high"], -found["ci_low"])  # drawn once


def test_roles_table(params, results):
    table = tables.write_roles(params, results, results / "roles")
    assert list(table["variant"].unique()) == ["ace", "ace_no_actor", "ace_no_critic", "sac"]
    found = row(table, env="wcci2020", variant="ace_no_critic", metric="survival")
    assert found["difference"] == pytest.approx(-10)
    assert found["difference_high"] < 0
    assert np.isnan(row(table, env="wcci2020", variant="ace", metric="reward")["difference"])
    # of equal validation survival and reward the first checkpoint is kept; the third is the best of these curves
    assert list(table[table["metric"] == "survival"]["seeds_shaped"])[:3] == [3, 3, 0]
    assert set(table["checkpoint_decisions"]) == {1500}
    lines = (results / "roles/ablation_roles.md").read_text().splitlines()
    line = next(line for line in lines if line.startswith("| WCCI 2020 | ACE without g_LLM |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[2:4] == ["yes", "no"] and cells[8] == "0 of 3"
    assert cells[4].startswith("61.0 [") and cells[5].startswith("-10.0 [-1")
    said = tables.roles_answer(table).splitlines()
    assert len(said) == len(ENVS) and "not significant" not in said[0]
    level = table.assign(difference_high=1.0)
    assert tables.roles_answer(level).count("not significant") == 3 * len(ENVS)
    assert "nothing to compare" in tables.roles_answer(table[table["variant"] == "ace"])


def test_leads_turn_a_pair_that_is_there_the_other_way_round(params, results):
    _, pairs = tables.write_main(params, results, results / "main")
    text = tables.leads(pairs[pairs["b"] != "sac"], ["sac", "reconnect", "expert_sac"])
    assert "| WCCI 2020 | SAC | +30.0 [+2" in text and "| significant |" in text  # from sac - ace
    assert f"| {ENVS[1]} | Reconnect lines | +36.0 [" in text  # from ace - reconnect
    assert "expert" not in text
    level = tables.leads(pairs.assign(ci_low=-1.0, ci_high=1.0), ["sac"])
    assert "| significant |" not in level and level.count("| not significant |") == len(ENVS)


def test_an_interval_in_words():
    ends = [(0.1, 2), (-2, -0.1), (0, 2), (-1, 1), (np.nan, np.nan)]
    assert [stats.sign(*each) for each in ends] == [1, -1, 0, 0, 0]
    assert [stats.describe_interval(*each) for each in ends] == [*["significant"] * 2, *["not significant"] * 3]


def test_the_main_table_shows_means_with_their_interval_and_speaks_of_its_own_methods_only(params, results):
    tables.write_main(params, results, results / "main")
    text = (results / "main/main.md").read_text()
    line = next(line for line in text.splitlines() if line.startswith("| ACE |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    found = stats.mean(runs.read(params, results).scores(ENVS[0], "ace", "survival"), stats.PERCENT)
    assert cells[1] == f"71.0 [{found.low:.1f}, {found.high:.1f}]" and cells[2] == "71.0 ± 1.0" and cells[-1] == f"3 x {EPISODES}"
    assert cells[3:6] == ["10,230", "7,001", "40"]
    assert "- Greedy look-ahead: " in text
    assert not [name for name in (labels.label("llm4teach"), labels.label("expert_sac")) if name in text]


def test_a_variant_that_a_user_adds_is_in_the_main_table_under_a_readable_name(params, results):
    params.variants["ace_ask_twice"] = {"refine": {"every": 50}}
    declare(params, results, {"ace_ask_twice": 0.8})
    table, _ = tables.write_main(params, results, results / "main")
    text = (results / "main/main.md").read_text()
    assert row(table, env=ENVS[0], variant="ace_ask_twice", metric="survival")["mean"] == pytest.approx(81)
    assert "| ACE, ask twice | 81.0 [" in text and "`refine.every = 50`" in text
    assert "ace_ask_twice |" not in text


@pytest.mark.parametrize(
    ("variant", "name"),
    [("ace_my_way", "ACE, my way"), ("sac_lr_high", "SAC, lr high"), ("api_ace", "API ACE"), ("my_llm", "My LLM")],
)
def test_a_variant_without_a_label_gets_a_readable_one(variant, name):
    assert labels.label(variant) == name


def test_notes_fill_in_their_fields_and_name_what_is_wrong():
    assert "Not run: a, b" in notes.note("open_questions.missing", names="a, b")
    for name, fields, problem in (
        ("mian", {}, "there is no note 'mian'; there are .*main"),
        ("main.gredy", {}, "no section 'gredy'; it has .*greedy"),
        ("open_questions.missing", {}, "needs the fields names"),
        ("open_questions.missing", {"names": "a", "seeds": 3}, "does not have the fields seeds"),
    ):
        with pytest.raises(notes.NoteError, match=problem):
            notes.note(name, **fields)


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
    assert formatting.number(value) == text


def test_csv_reads_back_with_whole_counts(params, results):
    table, _ = tables.write_main(params, results, results / "main")
    text = (results / "main/main.csv").read_text()
    assert text.endswith("\n") and "\r" not in text
    back = pd.read_csv(io.StringIO(text))
    assert back["n_seeds"].dtype.kind == back["simulator_calls"].dtype.kind == "i"
    np.testing.assert_allclose(back["mean"], table["mean"], rtol=1e-5)


def test_what_rounds_to_zero_has_no_sign():
    assert formatting.with_interval(0.04, -0.035, 3.0, 1, "+") == "0.0 [0.0, +3.0]"
    assert formatting.with_interval(-0.06, -2.5, 0.05, 1, sign="+") == "-0.1 [-2.5, +0.1]"
    assert formatting.with_interval(1.25, np.nan, np.nan, 1) == "1.2" and formatting.with_interval(np.nan, 0, 0, 1) == ""


def test_markdown_and_latex_escape():
    assert formatting.markdown(["a"], [["x|y"]]) == "| a |\n| --- |\n| x\\|y |\n"
    text = formatting.latex(["Grid", "Method", "Survival, %"], [["w", "ACE without f_LLM", "1.0 ± 0.5"]], "t")
    assert "f\\_LLM & 1.0 $\\pm$ 0.5 \\\\" in text
    assert "Survival, \\% \\\\" in text


def write_everything(params, results):
    paper = results / "paper"
    table, _ = tables.write_main(params, results, paper / "10_table_main")
    tables.write_roles(params, results, paper / "11_table_roles")
    figures.comparison(params, table, runs.read(params, results), paper / "10_table_main")
    figures.learning_curves(params, results, paper / "20_figure_learning")
    claims.write(params, results, results / claims.WRITTEN)
    return {path.relative_to(results): path.read_bytes() for path in written(results)}


def test_everything_has_the_same_bytes_twice(params, results):
    first, second = write_everything(params, results), write_everything(params, results)
    names = {name.name for name in first}
    assert names >= {f"{name}.{kind}" for name in ("learning_curves", "main_figure") for kind in ("csv", "png", "pdf")}
    assert names >= {f"{name}.{kind}" for name in ("main", "ablation_roles") for kind in ("csv", "md", "tex")}
    assert names >= {"claims.csv", "claims.md", "numbers.json", "paired.csv"}
    assert [name for name in first if first[name] != second[name]] == []
    assert all(str(results).encode() not in content for content in first.values())


def written(results):
    made = [path for path in results.rglob("*") if path.is_file()]
    return [path for path in sorted(made) if path.relative_to(results).parts[0] not in ("runs", "provenance")]


# --- claims ---


@pytest.mark.parametrize(
    ("estimate", "size", "verdict"),
    [
        (Estimate(30, 20, 40), 18.75, "reproduced"),
        (Estimate(10, 5, 15), 18.75, "partly"),
        (Estimate(10, -1, 21), 18.75, "inconclusive"),  # the interval holds 0 and the size
        (Estimate(30, 0, 60), 18.75, "inconclusive"),  # it touches 0
        (Estimate(5, -1, 11), 18.75, "contradicted"),  # it excludes the size
        (Estimate(-30, -40, -20), 18.75, "contradicted"),  # the other sign
        (Estimate(-1, -3, 1), 0.0, "inconclusive"),  # no size is asked for
        (Estimate(30, np.nan, np.nan), 18.75, "not tested"),
    ],
)
def test_verdict_by_sign_and_size(estimate, size, verdict):
    assert verdicts.judge(estimate, size) == verdict


def test_a_criterion_of_its_own_stands_in_place_of_the_size():
    found = [verdicts.judge(Estimate(10, 5, 15), 0.0, reached=reached) for reached in (True, False)]
    assert found == ["reproduced", "partly"]
    assert verdicts.judge(Estimate(10, -5, 25), 0.0, reached=True) == "inconclusive"


@pytest.mark.parametrize(
    ("estimates", "verdict"),
    [
        ([Estimate(300, 290, 310), Estimate(682, 682, 682)], "reproduced"),
        ([Estimate(287, 280, 294), Estimate(400, 300, 500)], "partly"),
        ([Estimate(400, -300, 1100)], "inconclusive"),  # the value alone lies in it
        ([Estimate(100, 99, 101), Estimate(700, 683, 720)], "contradicted"),
        ([Estimate(250, 216, 288)], "inconclusive"),  # the interval reaches into the range
        ([Estimate(250)], "not tested"),
    ],
)
def test_verdict_by_range(estimates, verdict):
    assert verdicts.judge_range(estimates, 287, 682) == verdict


def test_verdicts_of_before_the_campaign_are_shown_at_their_scale_alone(params, results):
    table = claims.evaluate(runs.read(params, results))
    here, there = (claims.before(table.assign(scale=scale)).set_index("id") for scale in ("laptop", "quick"))
    assert here.loc["C11", ["verdict_earlier", "verdict_before"]].tolist() == ["not reproduced", "inconclusive"]
    assert not there[["verdict_earlier", "verdict_before"]].any(axis=None)
    assert "Packaged days, today's rules" in claims_text.full_markdown(here.reset_index())
    assert "Packaged days" not in claims_text.full_markdown(there.reset_index())


def test_every_claim_has_a_row_and_an_allowed_verdict(params, results):
    table = claims.write(params, results, results / claims.WRITTEN)
    written_csv = pd.read_csv(results / claims.WRITTEN / "claims.csv")
    assert (results / claims.WRITTEN / "claims.csv").read_text().split("\n")[0] == (
        "id,claim,paper_value,source,measured,ci_low,ci_high,n,scale,test,criterion,verdict,evidence,"
        "detectable,p,p_holm,verdict_before"
    )
    assert list(written_csv["id"]) == [f"C{i}" for i in range(1, 15)]
    assert set(written_csv["verdict"]) <= set(verdicts.VERDICTS)
    for column in ("claim", "paper_value", "source", "scale", "criterion", "evidence"):
        assert written_csv[column].str.len().gt(0).all()
    tested = table[table["verdict"] != "not tested"]
    assert list(tested["id"]) == ["C2", "C8", "C9"]
    assert tested["n"].str.contains("3 seeds").all()
    assert row(table, id="C10")["evidence"] == (
        "not tested: variant ace_rbar_pos, ace_rbar_neg is not in the declared grid"
    )
    counts = json.loads((results / claims.WRITTEN / "numbers.json").read_text())["claims"]
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


def test_one_seed_is_said(params, results):
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


@pytest.mark.parametrize(("expert", "verdict"), [(0.3, "reproduced"), (0.5, "partly"), (0.8, "contradicted")])
def test_c1_once_declared(params, results, expert, verdict):
    declare(params, results, {"expert_sac": expert})
    assert verdict_of("C1", params, results) == (verdict, pytest.approx(100 * (71 / (100 * expert + 1) - 1)))


def test_claims_of_ace_hold_what_the_papers_loss_alone_gives(params, results):
    before = row(claims.evaluate(runs.read(params, results)), id="C2")["evidence"]
    declare(params, results, {"ace_literal": 0.41})
    found = claims.evaluate(runs.read(params, results)).set_index("id")["evidence"]
    assert "ace_literal" not in before and found["C2"].startswith(before)
    assert "(ace_literal): 1 [" in found["C2"] and found["C2"].endswith("contradicted")  # far below half of 37.5
    assert "ace_literal" in found["C8"] and "ace_literal" in found["C9"] and "ace_literal" not in found["C3"]


def test_an_undefined_ratio_of_the_papers_loss_leaves_aces_own_verdict(params, results):
    before = verdict_of("C9", params, results)
    declare(params, results, {"ace_literal": 0.1})
    for env in ENVS:
        for seed in params.seeds:
            change_episodes(results, f"{env}/ace_literal/seed={seed}", lambda table: table.assign(reward=-1.0))
    assert verdict_of("C9", params, results) == before
    assert "(ace_literal): not tested (" in row(claims.evaluate(runs.read(params, results)), id="C9")["evidence"]


def test_c2_says_what_each_environment_gives(params, results):
    evidence = row(claims.evaluate(runs.read(params, results)), id="C2")["evidence"]
    assert evidence.startswith(f"by environment: {ENVS[0]} 30 [") and f"] reproduced, {ENVS[1]} 30 [" in evidence
    claims.write(params, results, results / "claims")
    shown = (results / "claims/claims.md").read_text().split("## C2")[1].split("## C3")[0]
    rows = [line for line in shown.splitlines() if " ACE minus SAC | " in line]
    assert [line.split(" | ")[0].strip("| ") for line in rows] == ["WCCI 2020", ENVS[1]] and evidence not in shown
    assert all(" | +30.0 [+" in line and line.endswith(" | 3 |") for line in rows)
    params.grid.environments = ENVS[:1]
    assert "by environment" not in row(claims.evaluate(runs.read(params, results)), id="C2")["evidence"]


def test_every_title_of_the_test_says_which_weeks_it_is_of(params, results):
    """While test weeks are not made, a table must not pass as one of them."""
    for env, variant in itertools.product(ENVS, LEVELS):
        for seed in params.seeds_of(variant):
            change_manifest(results, f"{env}/{variant}/seed={seed}", environment={"weeks": {"path": "made"}})
    for split, said in (("development_test", "development test: 8 weeks"), ("test", "test: 8 weeks")):
        params.scenarios.test_split = split
        folder = results / split
        table, _ = tables.write_main(params, results, folder)
        figures.comparison(params, table, runs.read(params, results, runs.declared(params)), folder)
        tables.write_roles(params, results, folder)
        judged = claims.write(params, results, folder)
        written = {path.name: path.read_text().splitlines()[0] for path in folder.glob("*.md")}
        assert set(written) == {"main.md", "main_figure.md", "ablation_roles.md", "claims.md"}
        assert all(title.endswith(said) for title in written.values()), written
        assert claims_text.readme_table(judged).startswith(f"Scale `laptop`, {said}: ")
    assert runs.read(params, results).test(1) == "test: 1 week"


def test_runs_on_packaged_days_say_so_whatever_the_parameters_are_today(params, results):
    found = runs.read(params, results)
    assert found.tested() == "scale laptop, test: 8 resampled scenarios" and found.test(1) == "test: 1 resampled scenario"


def test_a_test_on_the_training_day_counts_for_no_claim(params, results):
    before = row(claims.evaluate(runs.read(params, results)), id="C2")
    assert before["n"].startswith("2 env")
    change_manifest(results, "case14/do_nothing/seed=0", environment={"days": {"train": [0], "test": [0]}})
    after = row(claims.evaluate(runs.read(params, results)), id="C2")
    assert after["n"].startswith("1 env") and "case14 30 [" in after["evidence"]
    assert "(on its training day, not counted)" in after["evidence"]


# --- the packaged days ---


def play_packaged(results, run, level, n=3):
    """Adds packaged episodes to a run, with another survival than the test's, and what they used."""
    manifest = manifest_of(results, run)
    used = {"simulator_calls": 5, "dc_calls": 2, "llm_calls": 1, "env_steps": 700}
    change_manifest(results, run, budget={**manifest["budget"], "packaged": used}, packaged_hash="of-the-days")
    added = {"split": "packaged", "episode": range(n), "survival": level, "survived_steps": 999, "reward": 1e6, "decisions": 99}

    def more(episodes):
        return pd.concat([episodes, episodes.head(n).assign(**added)])

    change_episodes(results, run, more)


def play_all_packaged(params, results):
    for env in ENVS:
        for variant in runs.declared(params):
            for seed in params.seeds_of(variant):
                play_packaged(results, f"{env}/{variant}/seed={seed}", 0.5 + 0.1 * seed)


def test_packaged_episodes_change_no_other_table(params, results):
    """Same bytes of the main table, roles and claims whether they were played or not: these read the test alone."""

    def written(name):
        tables.write_main(params, results, results / name)
        tables.write_roles(params, results, results / name)
        claims.write(params, results, results / name)
        return {path.name: path.read_bytes() for path in sorted((results / name).iterdir())}

    before = written("before")
    play_all_packaged(params, results)
    assert written("after") == before and len(before) == 10


def test_the_packaged_table_shows_both_survivals_and_what_it_took(params, results):
    play_all_packaged(params, results)
    table = tables.write_packaged(runs.read(params, results), results / "made")
    assert list(table.columns) == tables.PACKAGED and len(table) == len(ENVS) * len(LEVELS)
    ace = row(table, env=ENVS[0], variant="ace")
    assert (ace["survival"], ace["test_survival"]) == (pytest.approx(60), pytest.approx(71))
    assert ace["ci_low"] < ace["survival"] < ace["ci_high"] and (ace["n_seeds"], ace["n_episodes"]) == (3, 3)
    assert ace[["simulator_calls", "dc_calls", "llm_calls", "env_steps"]].tolist() == [5, 2, 1, 700]
    shown = (results / "made/packaged.md").read_text()
    assert "| ACE | 60.0 [" in shown and shown.count("| ACE |") == len(ENVS)
    assert {path.suffix for path in (results / "made").iterdir()} == {".csv", ".md"}


def test_without_packaged_episodes_there_is_no_packaged_table(params, results):
    play_packaged(results, f"{ENVS[0]}/ace/seed=0", 0.5)  # not of every seed: no row
    folder = results / "made"
    folder.mkdir()
    (folder / "packaged.md").write_text("of an earlier run")
    assert tables.write_packaged(runs.read(params, results), folder).empty and not list(folder.iterdir())


def test_packaged_days_that_differ_between_runs_are_refused(params, results):
    play_all_packaged(params, results)
    change_manifest(results, f"{ENVS[0]}/ace/seed=1", packaged_hash="of-other-days")
    with pytest.raises(ReportError, match=f"{ENVS[0]}/ace/seed=1 .*packaged_hash of-other-day"):
        runs.read(params, results)


# --- the test at lower thermal limits ---


def play_lower(results, run, loss, limits=0.95):
    """Adds the test at lower limits to a run, where each episode loses so much more."""
    change_manifest(results, run, lower_limits=limits)

    def more(episodes):
        return pd.concat([episodes, episodes.assign(split="test_lower", survival=episodes["survival"] - loss)])

    change_episodes(results, run, more)


def play_all_lower(params, results):
    for env, (variant, loss), seed in itertools.product(ENVS, (("sac", 0.2), ("ace", 0.1)), params.seeds):
        play_lower(results, f"{env}/{variant}/seed={seed}", loss)


def test_survival_at_lower_limits_is_shown_with_its_difference_to_ace(params, results):
    play_all_lower(params, results)
    play_lower(results, f"{ENVS[0]}/ace_no_actor/seed=0", 0.3)  # not of every seed: no row
    read = runs.read(params, results)
    table = tables.write_lower_limits(read, results / "made")
    assert list(table.columns) == tables.LOWER
    assert list(zip(table["env"], table["variant"], strict=True)) == [(env, name) for env in ENVS for name in ("sac", "ace")]
    sac, ace = (row(table, env=ENVS[0], variant=name) for name in ("sac", "ace"))
    for each, name, loss in ((sac, "sac", 20), (ace, "ace", 10)):
        normal = read.scores(ENVS[0], name, "survival").mean()
        assert (each["survival"], each["lower_survival"]) == (pytest.approx(normal), pytest.approx(normal - loss))
        assert each["lower_ci_low"] < each["lower_survival"] < each["lower_ci_high"]
        assert (each["limits"], each["n_seeds"], each["n_episodes"]) == (0.95, 3, EPISODES)
    assert sac["difference"] == pytest.approx(sac["lower_survival"] - ace["lower_survival"])
    assert sac["difference_low"] < sac["difference"] < sac["difference_high"] and np.isnan(ace["difference"])
    shown = (results / "made/lower_limits.md").read_text()
    assert shown.count("| 95 | 3 x 8 |") == 4 and f"| {sac['difference']:+.1f} [" in shown
    assert {path.name for path in (results / "made").iterdir()} == {f"lower_limits.{end}" for end in ("csv", "md")}


def test_without_a_test_at_lower_limits_there_is_no_table_of_it(params, results):
    folder = results / "made"
    folder.mkdir()
    (folder / "lower_limits.md").write_text("of an earlier run")
    assert tables.write_lower_limits(runs.read(params, results), folder).empty and not list(folder.iterdir())


@pytest.mark.parametrize("run", [f"{ENVS[0]}/ace/seed=1", f"{ENVS[0]}/sac/seed=0"])
def test_runs_at_different_lower_limits_are_refused(params, results, run):
    play_all_lower(params, results)
    change_manifest(results, run, lower_limits=0.9)
    with pytest.raises(ReportError, match=r"at other limits \(lower_limits 0\.9[5)].*run `dvc repro"):
        runs.read(params, results)


@pytest.mark.parametrize(("seconds", "verdict"), [(12.8, "reproduced"), (2.0, "contradicted")])
def test_c7_once_a_7b_model_was_asked(params, results, seconds, verdict):
    assert verdict_of("C7", params, results)[0] == "not tested"
    for env in ENVS:
        for seed in params.seeds:
            settings = {"refine": {"every": 25, "max_cases": 8, "limit": 700}, "train": {"decisions": 1500}}
            settings["llm"] = {"model": "models/qwen2-7b-instruct"}
            change_manifest(results, f"{env}/ace/seed={seed}", settings=settings, refine_tried=300)
            change_provenance(results, f"{env}/ace/seed={seed}", {"wall_s": {"evaluate": 10.0, "llm": 40 * seconds}})
    assert verdict_of("C7", params, results) == (verdict, pytest.approx(seconds))


def test_c7_reports_the_pretrained_models_seconds_where_it_was_run(params, results):
    assert "ace_pretrained" not in row(claims.evaluate(runs.read(params, results)), id="C7")["evidence"]
    declare(params, results, {"ace_pretrained": 0.6})
    for env, seed in itertools.product(ENVS, params.seeds):
        change_provenance(results, f"{env}/ace_pretrained/seed={seed}", {"wall_s": {"llm": 40 * 0.25}})
    found = row(claims.evaluate(runs.read(params, results)), id="C7")
    assert found["verdict"] == "not tested" and "seconds a call in ace: wcci2020 2, case14 2; " in found["evidence"]
    assert found["evidence"].endswith("seconds a call in ace_pretrained: wcci2020 0.25, case14 0.25")


@pytest.mark.parametrize(("refined", "verdict"), [(400, "reproduced"), (683, "contradicted"), (286, "contradicted")])
def test_c3_once_declared(params, results, refined, verdict):
    declare(params, results, {"ace_rbar_zero": 0.6}, {"ace_rbar_zero": refined})
    assert verdict_of("C3", params, results) == (verdict, pytest.approx(refined))


@pytest.mark.parametrize(("positive", "verdict"), [(510, "reproduced"), (100, "partly"), (60, "contradicted")])
def test_c10_once_declared(params, results, positive, verdict):
    declare(params, results, {"ace_rbar_pos": 0.6, "ace_rbar_neg": 0.6}, {"ace_rbar_pos": positive, "ace_rbar_neg": 83})
    assert verdict_of("C10", params, results) == (verdict, pytest.approx(positive / 83))


def test_a_number_of_refinements_that_the_settings_decided_tests_nothing(params, results):
    declare(params, results, {"ace_rbar_pos": 0.6, "ace_rbar_neg": 0.6}, {"ace_rbar_pos": 510, "ace_rbar_neg": 83})
    settings = {"refine": {"every": 25, "max_cases": 8, "limit": 700}, "train": {"decisions": 1500}}
    for tried, tested in ((300, True), (470, False)):
        change_manifest(results, f"{ENVS[0]}/ace_rbar_pos/seed=1", settings=settings, refine_tried=tried)
        assert (verdict_of("C10", params, results)[0] != "not tested") == tested


@pytest.mark.parametrize(("low", "verdict"), [(0.6, "reproduced"), (0.685, "partly"), (0.75, "contradicted")])
def test_c11_is_judged_by_the_smaller_loss_and_shows_that_to_the_mean(params, results, low, verdict):
    declare(params, results, {"ace_rbar_zero": 0.7, "ace_rbar_pos": 0.5, "ace_rbar_neg": low})
    assert verdict_of("C11", params, results) == (verdict, pytest.approx(100 * (1 - (50 * (0.5 + low) + 1) / 71)))


def test_several_comparisons_are_judged_by_the_weaker_and_shown_by_that_with_the_mean():
    strong, weak = Estimate(14, 10, 18, 2.0, 30.0), Estimate(2.4, -0.9, 5.7, 1.6, 30.0)
    together = Estimate(8.2, 5.2, 11.2, 1.5, 30.0)
    for each in ([strong, weak], [weak, strong]):
        shown, verdict = verdicts.judge_all(each, together, 2)
        assert verdict == "inconclusive" and [*shown] == [*together]
        assert (shown.p(), shown.detectable()) == (weak.p(), weak.detectable())
    assert verdicts.judge_all([strong, weak], together, 6)[1] == "contradicted"
    assert verdicts.judge_all([strong, strong], together, 2)[1] == "reproduced"
    assert verdicts.judge_all([strong, strong], together, 15)[1] == "partly"


@pytest.mark.parametrize(("level", "verdict"), [(0.67, "reproduced"), (0.5, "partly"), (0.75, "contradicted")])
def test_c12_once_declared(params, results, level, verdict):
    declare(params, results, {"ace_no_finetune": level})
    assert verdict_of("C12", params, results) == (verdict, pytest.approx(71 - 100 * level - 1))


def test_c13_and_c14_once_declared(params, results):
    declare(params, results, {"ace_select_state": 0.6, "ace_select_action": 0.5})
    assert verdict_of("C13", params, results) == ("reproduced", pytest.approx((71 + 61) / 2 - 51))
    (row,) = claims.evaluate(runs.read(params, results), ["C13"]).itertuples()
    assert "each: ace 20 [" in row.evidence and "ace_select_state 10 [" in row.evidence
    gaps = {"ace_query_high": 0.7, "ace_query_low": 0.5, "ace_half_query_high": 0.6, "ace_half_query_low": 0.55}
    declare(params, results, gaps)
    assert verdict_of("C14", params, results) == ("reproduced", pytest.approx(15))


def test_a_variant_with_a_model_of_its_own_is_read_everywhere_with_all_seeds(params, results):
    params.grid.other_model = ["camel_poor"]
    with pytest.raises(ReportError, match=rf"{ENVS[0]}/camel_poor: run `dvc repro "):
        runs.read(params, results)
    for env in ENVS:
        for seed in params.seeds_of("camel_poor"):
            write_run(results, env, "camel_poor", seed, True, 0.66)
    assert len(runs.read(params, results).of(ENVS[1], "camel_poor")) == 3
    table, pairs = tables.write_main(params, results, results / "main")
    assert row(table, env=ENVS[0], variant="camel_poor", metric="survival")["n_seeds"] == 3
    assert row(pairs, env=ENVS[0], a="camel_poor", b="ace", metric="survival")["difference"] == pytest.approx(-4)


def test_an_ablation_is_read_on_its_environment_with_its_seeds(params, results):
    params.grid.ablations.variants = ["ace_no_finetune", "ace"]  # ace is declared everywhere: its cells are those
    for seed in (0, 1):
        write_run(results, ENVS[0], "ace_no_finetune", seed, True, 0.67)
    everything = runs.read(params, results)
    assert everything.environments_of(["ace", "ace_no_finetune"]) == [ENVS[0]]
    assert everything.environments_of(["ace"]) == ENVS and len(everything.of(ENVS[0], "ace")) == 3
    assert runs.read(params, results, ["ace", "ace_no_finetune"]).environments == [ENVS[0]]
    assert "ace_no_finetune" not in set(tables.write_main(params, results, results / "main")[0]["variant"])
    found = row(claims.write(params, results, results / claims.WRITTEN), id="C12")
    assert found["verdict"] != "not tested" and found["n"] == f"1 env x 2 seeds x {EPISODES} episodes"  # those that both have
    drop_seed(results, f"{ENVS[0]}/ace_no_finetune/seed=1")
    with pytest.raises(runs.ReportError, match=r"no seed 1 in .*ace_no_finetune: run `dvc repro "):
        runs.read(params, results)


def test_c4_needs_enough_training(params, results):
    declare(params, results, {"expert_100k": 0.5})
    found = row(claims.evaluate(runs.read(params, results)), id="C4")
    assert found["evidence"] == "not tested: expert_100k was trained for fewer than 100,000 environment steps"
    for env in ENVS:
        for seed in params.seeds:
            curve = {"env_steps": [90_000, 150_000 + seed, 200_000], "survival": [0.3, 0.6, 0.5]}
            curve = pd.DataFrame({"decisions": [1, 2, 3], "split": "validation", **curve})
            change_training(results, f"{env}/expert_100k/seed={seed}", lambda _, curve=curve: curve)
    assert verdict_of("C4", params, results) == ("reproduced", 150_001)


def test_times_come_from_provenance(params, results):
    declare(params, results, {"expert_sac": 0.5})
    # as many seconds for fewer steps
    assert verdict_of("C5", params, results) == ("reproduced", pytest.approx(71 / 51, rel=0.02))
    change_provenance(results, "case14/expert_sac/seed=1", None)
    found = row(claims.evaluate(runs.read(params, results)), id="C5")
    assert found["evidence"] == "not tested: no wall_s.evaluate in the provenance of case14/expert_sac"


# --- showing ---


def test_readme_is_renewed_and_staleness_found(params, results, tmp_path):
    claims.write(params, results, results / claims.WRITTEN)
    table = claims.read_written(results)
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n{claims_text.START}\nold\n{claims_text.END}\nmore\n")
    assert "README.md does not show" in claims_text.readme_is_stale(readme, table)
    assert claims_text.update_readme(readme, table)
    assert claims_text.readme_is_stale(readme, table) is None
    assert not claims_text.update_readme(readme, table)
    text = readme.read_text()
    assert text.startswith("# Title\n")
    assert text.endswith(f"{claims_text.END}\nmore\n")
    cells = next(line for line in text.splitlines() if line.startswith("| C2 ")).strip("| ").split(" | ")
    assert cells[1] == "77 % against 39.5 %" and cells[2].startswith("30.0 [") and cells[4] == "reproduced"
    readme.write_text(text.replace("77 %", "78 %"))
    assert claims_text.readme_is_stale(readme, table)


def test_readme_without_markers_is_refused(params, results, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"{claims_text.END} {claims_text.START}")
    with pytest.raises(ReportError, match=r"README.md needs <!-- claims:start -->"):
        claims_text.update_readme(readme, claims.write(params, results, results / claims.WRITTEN))


def test_command_prints_claims_and_where_to_look(params, results, tmp_path, monkeypatch, capsys):
    workspace = tmp_path / "workspace"
    shutil.copytree(results, workspace / "results")
    (workspace / "params.yaml").write_text("")
    monkeypatch.chdir(workspace)
    assert claims.main([]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "no results/paper/90_claims/claims.csv in workspace" in error
    write_everything(params, workspace / "results")
    assert claims.main([]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 121
    tested = claims.read_written(workspace / "results").query("n != ''")["id"].tolist()
    assert [line.split()[0] for line in out.splitlines() if line.startswith("C") and " " in line] == tested
    main, paired = (pd.read_csv(workspace / f"results/paper/10_table_main/{name}.csv") for name in ("main", "paired"))
    for env in ENVS:
        means = main[(main["env"] == env) & (main["metric"] == "survival")].set_index("variant")["mean"]
        assert f"SAC {means['sac']:.1f}, ACE {means['ace']:.1f}, " in out
        pairs = paired[(paired["metric"] == "survival") & (paired["a"] == "ace") & (paired["b"] == "sac")].set_index("env")
        assert f"  ACE minus SAC: {pairs.loc[env, 'difference']:+.1f} [" in out
    assert "results/paper/10_table_main/main.md" in out
    assert claims.main(["--raedme"]) == 1
    monkeypatch.chdir(tmp_path)
    assert claims.main(["workspace"]) == 0
    assert "  workspace/results/paper/10_table_main/main.md " in capsys.readouterr().out, "as typed from where the user is"


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


def test_policies_that_never_act_are_counted_below_the_main_table(params, results):
    env, main = params.grid.environments[0], results / "main/main.md"
    for path in results.glob("runs/*/do_nothing/episodes.csv"):
        pd.read_csv(path).assign(topology_actions=0).to_csv(path, index=False)
    table, _ = tables.write_main(params, results, results / "main")
    assert not table["idle_seeds"].any() and "never acted" not in main.read_text(), "do_nothing is no trained policy"
    path = results / "runs" / env / "sac/episodes.csv"
    played = pd.read_csv(path)
    played.loc[played["seed"] > 0, "topology_actions"] = 0
    played.to_csv(path, index=False)
    table, _ = tables.write_main(params, results, results / "main")
    n = len(params.seeds_of("sac"))
    idle = table.set_index(["env", "variant"])["idle_seeds"].sort_index()
    assert set(idle[env, "sac"]) == {n - 1} and not idle.drop((env, "sac")).any()
    assert f"was played: SAC {n - 1} of {n} ({labels.grid_label(env)})." in main.read_text()


def test_methods_of_another_makers_processor_are_named_below_the_main_table(params, results):
    def run_on(variant, cpu):
        for env in params.grid.environments:
            for seed, noted in read_provenance(results, env, variant).items():
                change_provenance(results, f"{env}/{variant}/seed={seed}", {**noted, "cpu": cpu})

    for variant, cpu in (("ace", "Intel(R) Xeon(R)"), ("sac", "Intel Core"), ("ace_no_actor", "AMD EPYC")):
        run_on(variant, cpu)
    main = results / "main/main.md"
    tables.write_main(params, results, results / "main")
    where = "; ".join(f"ACE without f_LLM ({labels.grid_label(env)})" for env in params.grid.environments)
    assert f"processor of another vendor than ACE: {where}." in main.read_text()
    run_on("ace_no_actor", "Intel(R) Xeon(R) Processor")
    tables.write_main(params, results, results / "main")
    assert "another vendor" not in main.read_text()
