"""Budget curves and the loss where reconnection survives, on made-up runs: numbers by hand."""

import numpy as np
import pandas as pd
import pytest
from made_up_runs import change_episodes, change_manifest, manifest_of
from test_report import EPISODES, LEVELS, small_grid, write_grid

from ace.report import budget, equal_use, harm, labels, runs
from ace.report.runs import ReportError

ENV = "wcci2020"
SEEDS = (0, 1, 2)


@pytest.fixture
def params():
    return small_grid()


@pytest.fixture
def results(tmp_path, params):
    return write_grid(tmp_path / "results", params)


def survives(results, run, survival):
    """The test episodes of a run get these shares of the horizon."""
    change_episodes(results, run, lambda rows: rows.assign(survival=survival))


def leave_marks(results, variant, seed, survival_at):
    """survival_at: mark -> survival of all test episodes with its policy."""
    run = f"{ENV}/{variant}/seed={seed}"

    def with_marks(rows):
        at = [rows.assign(split=f"test@{mark}", survival=survival) for mark, survival in survival_at.items()]
        return pd.concat([rows, *at])

    change_episodes(results, run, with_marks)
    marks = [
        {"decisions": mark, "env_steps": 10 * mark + seed, "validation_steps": mark, "simulator_calls": 2 * mark, "llm_calls": 3}
        for mark in survival_at
    ]
    change_manifest(results, run, marks=marks)


def test_a_mark_is_shown_with_all_that_was_used_by_then(results, params, tmp_path):
    for seed in SEEDS:
        leave_marks(results, "ace", seed, {500: 0.2 + 0.1 * seed, 1500: 0.6})
    table = budget.write_budget(runs.read(params, results), tmp_path / "budget")
    assert list(table["mark"]) == [500, 1500] and set(table["variant"]) == {"ace"}
    first = table.iloc[0]
    assert (first["survival"], first["n_seeds"], first["n_episodes"]) == (pytest.approx(30), 3, EPISODES)
    assert first["env_steps"] == 5001 + 500 + 700  # of training, validation, corpus
    assert first["power_flows"] == first["env_steps"] + 1000 + 6000  # simulations in training, for the corpus
    assert first["ci_low"] < 30 < first["ci_high"]
    assert {path.suffix for path in (tmp_path / "budget").iterdir()} == {".csv", ".md", ".png", ".pdf"}
    assert "| 30.0 [" in budget.by_mark(table) and "1,500 decisions" in budget.by_mark(table)


def test_at_equal_use_the_other_is_interpolated_between_its_marks(results, params, tmp_path):
    for seed in SEEDS:
        leave_marks(results, "ace", seed, {100: 0.5, 400: 0.7})  # with the corpus 1,801 and 5,101 steps, 8,001 and 11,901 flows
        leave_marks(results, "sac", seed, {200: 0.1, 800: 0.5})  # 2,201 and 8,801 steps, 2,601 and 10,401 flows
        run = f"{ENV}/sac/seed={seed}"
        change_manifest(results, run, budget=manifest_of(results, run)["budget"] | {"corpus": {}})
    read = runs.read(params, results)
    found = equal_use.write_equal_use(read, tmp_path).set_index(["mark", "measure"])
    assert set(found["other"]) == {"sac"} and set(found["n_seeds"]) == {3} and set(found["n_episodes"]) == {EPISODES}
    assert set(found.index) == {(100, "power_flows"), *((400, measure) for measure in equal_use.MEASURES)}
    assert found.loc[(400, "decisions"), "difference"] == pytest.approx(70 - 30)  # 400 is half of the way from 200 to 800
    way = np.log(5201 / 2601) / np.log(10401 / 2601)  # 4,001 + 400 + 800 flows without the corpus
    assert found.loc[(400, "own_flows"), "difference"] == pytest.approx(70 - (10 + 40 * way))
    assert found.loc[(400, "power_flows"), "difference"] == pytest.approx(20), "the last mark stands for what comes after"
    assert (found["other_used"] < found["used"]).to_dict() == {key: key == (400, "power_flows") for key in found.index}
    shown = (tmp_path / "equal_use.md").read_text()
    assert "| SAC | 3 | 400 | 11,901 | +40.0 [+40.0, +40.0] |" in shown and "| – |\n" in shown, "beyond the other's last mark"
    assert "| SAC | 3 | 100 | 8,001 | – | – | – | +" in shown, "before its first"
    assert equal_use.as_markdown(found.reset_index()).strip() in shown


def test_equal_use_is_of_common_seeds(results, params):
    for seed in SEEDS:
        for variant, survival in {"sac": 0.1, "ace": 0.5, "ace_no_critic": 0.4}.items():
            leave_marks(results, variant, seed, {100: survival})
    read = runs.read(params, results)
    read.cells[ENV, "sac"] = read.of(ENV, "sac")[1:]
    found = equal_use.equal_use(read).set_index(["other", "measure"])
    assert set(found.loc["sac", "n_seeds"]) == {2} and set(found.loc["ace_no_critic", "n_seeds"]) == {3}
    assert found.loc[("sac", "own_flows"), "used"] == 1001.5 + 100 + 200, "the mean of seeds 1 and 2"
    assert len(equal_use.cells(found.reset_index())) == 2


def test_ace_is_not_compared_with_ace_trained_for_longer(results, params, monkeypatch):
    monkeypatch.setitem(labels.LONGER, "ace_no_critic", "ace")
    for seed in SEEDS:
        for variant in ("sac", "ace", "ace_no_critic"):
            leave_marks(results, variant, seed, {100: 0.5})
    found = equal_use.equal_use(runs.read(params, results))
    assert set(zip(found["variant"], found["other"], strict=True)) == {("ace", "sac"), ("ace_no_critic", "sac")}


@pytest.mark.parametrize(("used", "wanted"), [(10, 1), (100, 2), (1e3, 4), (1e4, 4), (10**1.5, 1.5), (10**2.5, 3)])
def test_scores_between_marks(used, wanted):
    scores = np.array([1.0, 2, 4])[:, None, None] * np.ones((3, 2, 5))
    assert equal_use.interpolated(used, np.array([10.0, 100, 1000]), scores) == pytest.approx(wanted)
    assert equal_use.interpolated(used, np.array([10.0]), scores[:1]) == pytest.approx(1)


def test_without_another_method_with_marks_nothing_is_equal(results, params, tmp_path):
    for seed in SEEDS:
        leave_marks(results, "ace", seed, {500: 0.2})
    read = runs.read(params, results)
    found = equal_use.write_equal_use(read, tmp_path)
    assert found.empty and not (tmp_path / "equal_use.md").exists() and equal_use.as_markdown(found) == ""


def test_what_branches_took_is_in_the_budget_of_a_mark(results, params):
    for seed in SEEDS:
        leave_marks(results, "ace", seed, {500: 0.2})
        run = f"{ENV}/ace/seed={seed}"
        marks = [{**mark, "branch_decisions": 300, "branch_updates": 290, "branch_env_steps": 4000}
                 for mark in manifest_of(results, run)["marks"]]  # fmt: skip
        change_manifest(results, run, marks=marks)
    first = budget.budget(runs.read(params, results)).iloc[0]
    assert (first["mark"], first["decisions"], first["env_steps"]) == (500, 800, 5001 + 4000 + 500 + 700)


def test_marks_of_a_cell_must_be_the_same(results, params):
    leave_marks(results, "ace", 0, {500: 0.2})
    with pytest.raises(ReportError, match="wcci2020/ace were kept at different marks"):
        budget.budget(runs.read(params, results))


def test_a_mark_that_was_not_tested_is_one_line(results, params):
    leave_marks(results, "ace", 1, {500: 0.2})
    change_manifest(results, f"{ENV}/ace/seed=1", marks=[{"decisions": 1500}])
    with pytest.raises(ReportError, match=r"ace/seed=1: episodes\.csv has no test of the policy at mark 1500"):
        runs.read(params, results)


def test_without_marks_there_is_no_figure(results, params, tmp_path):
    assert budget.write_budget(runs.read(params, results), tmp_path / "budget").empty
    assert [path.name for path in (tmp_path / "budget").iterdir()] == ["budget.csv"]


def test_loss_and_gain_by_hand():
    base, p = np.array([100.0, 100.0, 20.0, 50.0]), np.array([1.0, 0.5, 0.5, 0.0])
    loss, gain = harm.loss_and_gain([[90, 100, 40, 60], [100, 80, 20, 50]], base, p)
    changes = np.array([-5, -10, 10, 5])  # means of the two seeds
    assert loss.mean() == pytest.approx(-(changes * p).sum() / p.sum())
    assert gain.mean() == pytest.approx((changes * (1 - p)).sum() / (1 - p).sum())
    assert list(loss) == pytest.approx([(10 + 0 - 10) / 2, (0 + 10 - 0) / 2])  # weights 1, 1/2, 1/2, 0


def test_without_an_opponent_reconnection_has_survived_or_not(results, params, tmp_path):
    survives(results, f"{ENV}/reconnect/seed=0", [1.0] * 2 + [0.5] * 6)
    for seed in SEEDS:
        survives(results, f"{ENV}/ace/seed={seed}", [0.9] * 2 + [0.8] * 6)
    table = harm.write_harm(runs.read(params, results), tmp_path).set_index(["env", "variant"])
    found = table.loc[(ENV, "ace")]
    assert (found["surviving"], found["loss"], found["gain"]) == (2, pytest.approx(10), pytest.approx(30))
    assert found["loss_sd"] == pytest.approx(0)
    assert not {"do_nothing", "greedy", "reconnect"} & set(table.loc[ENV].index)
    assert "reconnection survives 2 of 8" in (tmp_path / "harm.md").read_text()


def test_with_an_opponent_other_draws_say_where_reconnection_survives(results, params, tmp_path):
    run = f"{ENV}/reconnect/seed=0"
    change_manifest(results, run, environment={"opponent": True})
    read = runs.read(params, results)
    assert harm.weights(read, ENV) is None
    assert ENV not in set(harm.write_harm(read, tmp_path)["env"])

    def redrawn(rows):
        other = [rows.assign(split=f"redraw_{k}", survival=[1.0] * k + [0.3] * (8 - k)) for k in (1, 2)]
        return pd.concat([rows, *other])

    change_episodes(results, run, redrawn)
    read = runs.read(params, results)
    np.testing.assert_allclose(harm.weights(read, ENV), [1, 0.5, 0, 0, 0, 0, 0, 0])
    assert len(read.of(ENV, "reconnect")[0].episodes) == EPISODES, "redraws are no test episodes"
    base = LEVELS["reconnect"] + np.linspace(-0.08, 0.08, EPISODES)
    ace = LEVELS["ace"] + 0.01 + np.linspace(-0.08, 0.08, EPISODES)  # mean of its seeds
    found = harm.write_harm(read, tmp_path).set_index(["env", "variant"]).loc[(ENV, "ace")]
    p = np.array([1, 0.5, 0, 0, 0, 0, 0, 0])
    assert found["loss"] == pytest.approx(100 * ((base - ace) * p).sum() / p.sum())
    assert "environment" in manifest_of(results, run)
