"""Scenarios, operator reflexes and decision steps, on the real grid."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from ace import config
from ace.grid.environment import GridState, Operator, World, step_reward
from ace.grid.scenarios import DAY, SPLITS, ScenarioSet, read_source

PARAMS = config.load()


def make_world(name="wcci2020", **changes):
    environment = PARAMS.environment(name).model_copy(update=changes)
    return World(environment, PARAMS.scenarios, PARAMS.settings("reconnect").operator)


@pytest.fixture(scope="module")
def world():
    return make_world()


def test_splits_share_no_source_day(world):
    days = {
        split: {d for i in range(10) for d in world.sets[split][i].days} for split in ("train", "validation", "test")
    }
    assert (
        not days["train"] & days["test"]
        and not days["train"] & days["validation"]
        and not days["validation"] & days["test"]
    )
    assert all(days.values())


def test_splits_share_a_day_where_there_is_one_only(world):
    days = PARAMS.environment("wcci2022").days
    with pytest.raises(ValueError, match="one day is packaged; here are 9"):
        ScenarioSet(world.source, world.spec.model_copy(update={"days": days}), PARAMS.scenarios, "train")
    one_day = dataclasses.replace(world.source, chronic=world.source.chronic[:1])
    sets = [ScenarioSet(one_day, world.spec.model_copy(update={"days": days}), PARAMS.scenarios, s) for s in SPLITS]
    assert {day for scenarios in sets for i in range(3) for day in scenarios[i].days} == {0}
    assert len({scenarios[0].load_p.tobytes() for scenarios in sets}) == 3, "the noise differs"


def test_a_scenario_is_the_same_every_time_and_unlike_the_others(world):
    first, again, other = world.sets["test"][0], world.sets["test"][0], world.sets["test"][1]
    for a, b in zip(first.arrays, again.arrays, strict=True):
        assert a.tobytes() == b.tobytes()
    assert first.load_p.tobytes() != other.load_p.tobytes()


def test_hash_follows_the_data(world):
    changed = make_world(horizon=863)
    assert world.sets["test"].hash() == make_world().sets["test"].hash()
    assert world.sets["test"].hash() != changed.sets["test"].hash() != world.sets["validation"].hash()


def test_generation_stays_in_its_limits_and_follows_load(world):
    scenario, source = world.sets["train"][3], world.source
    assert (scenario.gen_p >= -0.01).all() and (scenario.gen_p <= source.gen_max + 0.01).all()
    # Losses are a few per cent of the load; the noise must not open a larger gap.
    gap = (scenario.gen_p.sum(axis=1) - scenario.load_p.sum(axis=1)) / scenario.load_p.sum(axis=1)
    assert np.abs(gap).max() < 0.08


def test_forecast_is_of_the_next_step_and_near_it(world):
    scenario = world.sets["train"][1]
    error = np.abs(scenario.next_load_p[:-2] - scenario.load_p[1:-1]).sum() / scenario.load_p.sum()
    assert 0 < error < 0.02


def test_grid2op_plays_the_scenario_row_by_row(world):
    step = world.reset("train", 0)
    np.testing.assert_array_equal(step.state.load_p, world.scenario.load_p[step.state.t])
    assert step.state.t > 0 and world.operator.asks(step.state)


def test_state_carries_the_forecast_that_grid2op_simulates(world):
    state = world.reset("train", 0).state
    injection = world.env.get_obs()._forecasted_inj[1][1]["injection"]
    np.testing.assert_allclose(state.next_load_p, injection["load_p"], rtol=1e-6)
    np.testing.assert_allclose(state.next_gen_p, injection["prod_p"], rtol=1e-6)


def test_reward_scale():
    rho = np.array([0.5, 1.0])
    assert step_reward(rho, False) == 0.0
    assert step_reward(np.array([0.9, 0.2]), False) == pytest.approx(0.5)
    assert step_reward(np.array([1.05, 1.01]), False) == pytest.approx(-0.25 - 0.03)
    assert step_reward(np.array([3.0]), False) == -1.0 and step_reward(rho * 0, True) == -1.0


def test_a_decision_and_its_quiet_steps_are_one_transition(world):
    step = world.reset("train", 2)
    asked_at = step.state.t
    quiet = []
    while not step.over:
        before = step.state.t
        step = world.step(0)
        assert len(step.rewards) == step.state.t - before
        assert all(-1 <= r <= 1 for r in step.rewards)
        quiet.append(len(step.rewards))
        assert step.over or world.operator.asks(step.state)
    assert asked_at > 0 and max(quiet) > 1
    with pytest.raises(RuntimeError, match="over"):
        world.step(0)


def test_same_scenario_same_episode_also_under_the_opponent():
    world = make_world("neurips2020", horizon=300)
    ends = []
    for _ in range(2):
        step = world.reset("test", 4)
        while not step.over:
            step = world.step(0)
        ends.append((world.t, step.state.rho.tobytes()))
        world.reset("test", 5)  # another episode in between
    assert ends[0] == ends[1]


def test_opponent_cuts_lines_and_reconnection_puts_them_back(monkeypatch):
    world = make_world("neurips2020")
    advance, statuses = world._advance, []

    def watched(action, line):
        reward = advance(action, line)
        if not world.blackout:
            statuses.append(world.state.line_status)
        return reward

    monkeypatch.setattr(world, "_advance", watched)
    lost = back = 0
    for index in range(4):
        statuses.clear()
        step = world.reset("train", index)
        while not step.over:
            step = world.step(0)
        change = np.diff(np.array(statuses).astype(int), axis=0)
        lost, back = lost + (change < 0).sum(), back + (change > 0).sum()
    assert lost >= 4 and back > 0


def test_reconnection_goes_first():
    operator = Operator(PARAMS.settings("reconnect").operator)
    ones = np.ones(3, np.int16)
    state = GridState(0, 0, np.ones(6, np.int8), np.array([True, False, False]), np.array([1.2, 0, 0], np.float32), ones * 0,
                      np.array([0, 2, 0], np.int16), *[ones] * 9)  # fmt: skip
    assert operator.reconnection(state) == 2 and not operator.asks(state)
    state.cooldown_line[2] = 1
    assert operator.reconnection(state) is None and operator.asks(state)
    assert Operator(PARAMS.settings("do_nothing").operator).reconnection(state) is None


def test_features_have_the_promised_length_and_see_the_topology(world):
    state = world.reset("train", 0).state
    x, legal = world.observe(state)
    assert x.shape == (world.features.n,) and x.dtype == np.float32 and np.isfinite(x).all()
    assert legal.shape == (world.catalogue.n_legal,)
    state.topo = world.catalogue.apply(5, state.topo)
    assert not np.array_equal(world.observe(state)[0], x)


def test_unknown_environment_is_one_line():
    spec = PARAMS.environment("wcci2020").model_copy(update={"grid2op": "l2rpn_nowhere"})
    with pytest.raises(config.ConfigError, match="l2rpn_nowhere") as error:
        World(spec, PARAMS.scenarios, PARAMS.settings("reconnect").operator)
    assert "\n" not in str(error.value)


def packaged(*lengths):
    """What `read_source` reads of a Grid2Op environment: two loads, one generator, chronics of so many rows."""
    chronics = [
        SimpleNamespace(**{name: np.full((n, width), n, dtype=float) for name, width in
                           (("load_p", 2), ("load_q", 2), ("prod_p", 1), ("prod_v", 1))})
        for n in lengths
    ]  # fmt: skip
    handler = SimpleNamespace(subpaths=lengths, real_data=SimpleNamespace(data=None))
    env = SimpleNamespace(name="l2rpn_small", chronics_handler=handler, reset=lambda: SimpleNamespace(gen_v=np.ones(1)),
                          gen_pmax=np.ones(1), gen_renewable=np.zeros(1, bool), gen_redispatchable=np.ones(1, bool))  # fmt: skip
    env.set_id = lambda number: setattr(handler.real_data, "data", chronics[number])
    return env


def test_a_chronic_without_a_whole_day_is_one_line():
    """288 rows are one too few: the first row is that of the reset."""
    with pytest.raises(config.ConfigError) as error:
        read_source(packaged(DAY, 100))
    for word in ("'l2rpn_small'", "288 rows", "at least 289"):
        assert word in str(error.value)
    assert "\n" not in str(error.value)
    source = read_source(packaged(100, DAY + 1, 2 * DAY + 5))
    assert source.chronic.tolist() == [1, 2, 2] and source.load_p.shape == (3, DAY, 2)
    assert [day.mean() for day in source.gen_p] == [DAY + 1, 2 * DAY + 5, 2 * DAY + 5]
