"""Pilots of the learner: played on starts that choose nothing, summarised by their formulas; the committed table is theirs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ace import config
from ace.grid.environment import scenario_sets
from benchmarks import learner_pilot

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
ACE = "ace_no_recover"  # with which the mechanisms are compared


@pytest.fixture(scope="module")
def tables():
    return [pd.read_csv(RESULTS / f"learner_pilot_{name}") for name in ("episodes.csv.gz", "runs.csv")]


@pytest.mark.parametrize("env", learner_pilot.PILOTS)
def test_unseen_starts_are_of_weeks_that_neither_train_nor_choose_nor_test(env):
    """Splits share calendar dates, but no week's loads."""
    params = config.load(ROOT / "params.yaml")
    sets = scenario_sets(params.environment(env), params.scenarios)
    validation, chosen = sets["validation"], params.scenarios.validation
    starts = learner_pilot.UnseenStarts(validation, chosen)
    scenarios = [starts[i] for i in range(len(starts))]
    unseen = [week.date for week in list(validation.weeks)[chosen:]]
    assert [each.origin for each in scenarios] == [(date, start) for date in unseen for start in range(5)]
    used = [week for name in ("train", "test") for week in sets[name].weeks] + list(validation.weeks)[:chosen]
    loads = {week.load_p.tobytes() for week in used}
    assert len(loads) == len(used) and not loads & {week.load_p.tobytes() for week in list(validation.weeks)[chosen:]}


def test_committed_pilots_are_complete_and_their_budgets_noted(tables):
    episodes, runs = tables
    declared = {(env, v, s) for env, variants in learner_pilot.PILOTS.items() for v, n in variants.items() for s in range(n)}
    assert set(runs[["env", "variant", "seed"]].itertuples(index=False, name=None)) == declared
    counts = episodes.groupby(["env", "variant", "seed"]).size()
    assert set(counts.index) == declared | {(env, "reconnect", 0) for env in learner_pilot.PILOTS}
    for (env, variant, _), n in counts.items():  # an opponent acts on one of the grids
        assert n == 40 * (learner_pilot.DRAWS.get(variant, 1) if env == "neurips2020" else 1)
    asks = ~runs["variant"].str.startswith("sac")
    assert (runs["env_steps"] > 0).all() and (runs.loc[asks, ["simulator_calls", "llm_calls"]] > 0).all(axis=None)
    assert (runs.loc[~asks, ["simulator_calls", "llm_calls", "refined", "shaped", "rounds"]] == 0).all(axis=None)


def test_the_committed_table_is_made_of_the_committed_rows(tables, tmp_path):
    learner_pilot.write_csv(learner_pilot.summarise(*tables), tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (RESULTS / "learner_pilot.csv").read_bytes()


def made_up(survivals, seeds, draws=()):
    """Rows of one environment, two weeks of two starts each. survivals: variant -> (seeds, 4); of `draws`: (draws, 4)."""
    rows = [
        {"env": "toy", "variant": variant, "seed": 0 if by_draw else n, "draw": n if by_draw else 0, "week": "ab"[i // 2],
         "start": i % 2, "survival": value}
        for variant, values in survivals.items() for by_draw in [variant in draws]
        for n, each in enumerate(values) for i, value in enumerate(each)
    ]  # fmt: skip
    runs = [
        {"env": "toy", "variant": variant, "seed": seed, "rate_before": before, "rate_after": after}
        for variant, rates in seeds.items() for seed, (before, after) in enumerate(rates)
    ]  # fmt: skip
    return pd.DataFrame(rows), pd.DataFrame(runs)


def test_metrics_by_hand():
    survivals = {
        "reconnect": [[1, 0.5, 0.2, 0.3]], ACE: [[0.9, 0.7, 0.2, 0.4], [1, 0.5, 0.2, 0.3]],
        "ace_own_answers": [[1, 0.5, 0.2, 0.3]] * 2, "ace_random_lessons": [[0, 0, 0, 0]] * 2, "sac": [[1, 1, 1, 1]] * 2,
    }  # fmt: skip
    rates = {ACE: [(0.5, 0.6), (0.5, 0.5)], "ace_own_answers": [(0.5, 0.5)] * 2, "ace_random_lessons": [(0.5, 0.6)] * 2}
    table = learner_pilot.summarise(*made_up(survivals, {**rates, "sac": [(None, None)] * 2}))
    table = table.fillna({"against": ""}).set_index(["variant", "against", "metric"])
    assert table.loc[(ACE, "", "seed_sd"), "value"] == pytest.approx(np.std([55, 50], ddof=1), abs=1e-3)
    assert table.loc[(ACE, "reconnect", "mean_change"), "value"] == pytest.approx(2.5)
    assert table.loc[(ACE, "reconnect", "loss_where_reconnect_survives"), "value"] == pytest.approx(5)
    assert table.loc[(ACE, "reconnect", "gain_elsewhere"), "value"] == pytest.approx((20 + 0 + 10 + 0 + 0 + 0) / 6, abs=1e-3)
    gain = table.loc[(ACE, "", "llm_rate_gain")]
    assert gain["value"] == pytest.approx(5) and gain["ci_high"] == pytest.approx(5 + 12.706 * 5, rel=1e-3)
    assert table.loc[(ACE, "ace_random_lessons", "llm_rate_gain"), "value"] == pytest.approx(-5)
    assert ("sac", "", "llm_rate_gain") not in table.index and (table["n_seeds"] == 2).all()


def test_under_an_opponent_a_start_counts_by_the_other_draws_that_reconnection_survives():
    """Three draws of reconnection; the one that SAC plays, 0, would say that it survives start 0 of week a and no other."""
    survivals = {"reconnect": [[1, 0.5, 0.2, 0.3], [1, 1, 0.4, 0.1], [0.5, 1, 0.4, 0.1]], "sac": [[0.8, 0.6, 0.4, 0.3]] * 2}
    played, trained = made_up(survivals, {"sac": [(None, None)] * 2}, draws=["reconnect"])
    base, p = learner_pilot.reconnection(played)
    assert list(base[0]) == [1, 0.5, 0.2, 0.3] and list(p[0]) == [0.5, 1, 0, 0] and list(p[2]) == [1, 0.5, 0, 0]
    table = learner_pilot.summarise(played, trained).set_index(["variant", "against", "metric"])["value"]
    assert table["sac", "reconnect", "loss_where_reconnect_survives"] == pytest.approx((0.5 * 20 - 1 * 10) / 1.5, abs=1e-3)
    assert table["sac", "reconnect", "gain_elsewhere"] == pytest.approx((-0.5 * 20 + 0 * 10 + 20 + 0) / 2.5, abs=1e-3)
    assert table["sac", "reconnect", "mean_change"] == pytest.approx(52.5 - 50)
    assert table["sac", "reconnect", "loss_as_drawn"] == pytest.approx(20), "in draw 0 reconnection survives start 0 alone"


def test_contrasts_are_of_the_seeds_that_both_have():
    levels = {ACE: (0.5, 0.7, 0.9, 1.0), "ace_own_answers": (0.4, 0.6)}
    survivals = {"reconnect": [[0.5] * 4]} | {name: [[value] * 4 for value in values] for name, values in levels.items()}
    rates = {ACE: [(0.5, 0.5)] * 4, "ace_own_answers": [(0.5, 0.5)] * 2}
    rates["ace_random_lessons"], survivals["ace_random_lessons"] = rates["ace_own_answers"], survivals["ace_own_answers"]
    table = learner_pilot.summarise(*made_up(survivals, rates)).set_index(["variant", "against", "metric"])
    found = table.loc[(ACE, "ace_own_answers", "mean_change")]
    assert found["value"] == pytest.approx(10) and found["n_seeds"] == 2
    assert table.loc[(ACE, "reconnect", "mean_change"), "n_seeds"] == 4


def test_settings_are_those_of_the_variant_but_for_the_model():
    params = config.load(ROOT / "params.yaml")
    own, pilots = params.settings("ace_own_answers"), learner_pilot.settings_of(params, "ace_own_answers")
    assert pilots.llm.path == learner_pilot.MODEL and pilots.finetune == own.finetune and pilots.sac == own.sac
    without = learner_pilot.settings_of(params, "sac_no_recover")
    assert without.operator.recover == 0 < own.operator.recover and not without.refine.enabled
    assert learner_pilot.settings_of(params, "sac").operator == params.base.operator and pilots.operator.recover == 0
    strong = learner_pilot.settings_of(params, "ace_strong_lora_own").finetune
    assert (strong.every, strong.epochs, strong.lr, strong.draw) == (50, 5, 1e-3, "d_llm")
    assert learner_pilot.settings_of(params, "ace_strong_lora").finetune.draw == params.base.finetune.draw


def test_an_environment_without_pilots_is_refused(capsys):
    with pytest.raises(SystemExit, match="no pilots of 'case14': give one of wcci2020, neurips2020"):
        learner_pilot.main("case14")


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_rows_of_pilots_are_replaced_in_the_same_bytes(tmp_path, name):
    rows = pd.DataFrame({"env": "a", "variant": ["x", "y"], "seed": 0, "survival": [0.1, 0.2]})
    learner_pilot.replaced(tmp_path / name, rows, "a", ["x", "y"])
    first = (tmp_path / name).read_bytes()
    table = learner_pilot.replaced(tmp_path / name, rows[1:].assign(survival=0.3), "a", ["y"])
    assert table["survival"].tolist() == [0.1, 0.3]
    learner_pilot.replaced(tmp_path / name, rows[1:], "a", ["y"])
    assert (tmp_path / name).read_bytes() == first
