"""Scenarios, operator reflexes and decision steps, on the real grid."""

import copy
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT

from ace import config
from ace.grid.environment import GridState, Operator, World, scenario_sets, step_reward
from ace.grid.fastworld import FastWorld
from ace.grid.packaged import read_source
from ace.grid.scenarios import SPLITS, Beyond, WeekScenarios
from ace.grid.weeks import DAY, Weeks

PARAMS = config.load()
GRIDS = [name for name, environment in PARAMS.environments.items() if environment.weeks]

EARLIER_TEST = "f1d22b82b95a5859"
"""Hash of the thirty test scenarios of wcci2020 when they were resampled: results/scenarios/wcci2020.json of commit e8e06394."""


def make_world(name="wcci2020", **changes):
    environment = PARAMS.environment(name).model_copy(update=changes)
    return World(environment, PARAMS.scenarios, PARAMS.settings("reconnect").operator)


def sets_of(name="wcci2020", noise=None, weeks=None, **changes):
    """{split: scenarios} of an environment with changes; noise: to `scenarios`; weeks: to its `weeks`."""
    environment = PARAMS.environment(name)
    if weeks:
        changes["weeks"] = environment.weeks.model_copy(update=weeks)
    return scenario_sets(environment.model_copy(update=changes), PARAMS.scenarios.model_copy(update=noise or {}))


@pytest.fixture(scope="module")
def world():
    return make_world()


# --- scenarios of weeks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRIDS)
def test_no_two_splits_share_a_week_and_outside_training_each_scenario_has_its_own(name):
    sets, seen = sets_of(name), {}
    assert tuple(sets) == SPLITS
    for split in SPLITS[:3]:
        scenarios = sets[split]
        origins = [scenarios[index].origin for index in range(0, len(scenarios), scenarios.starts if split == "train" else 1)]
        dates = {date for date, _ in origins}
        assert dates == {week["date"] for week in scenarios.weeks.about[: scenarios.n_weeks]}
        if split != "train":
            assert len(origins) == len(dates) == getattr(PARAMS.scenarios, split)
            assert len({first for _, first in origins}) > 1, "episodes begin on different days of the week"
        seen[split] = {(week["date"], week["seed"]) for week in scenarios.weeks.about}
        assert {week["split"] for week in scenarios.weeks.about} == {scenarios.weeks.split}
    assert len(set.union(*seen.values())) == sum(len(weeks) for weeks in seen.values())


def test_a_training_week_gives_a_scenario_for_each_day_to_begin_with(world):
    train = world.sets["train"]
    assert train.starts == 7 - world.spec.horizon // DAY + 1 == 5 and len(train) == 5 * PARAMS.scenarios.train
    origins = [train[index].origin for index in range(len(train))]
    assert len(set(origins)) == len(origins) and {first for _, first in origins} == set(range(5))
    half = {date for date, _ in origins[: len(train) // 2]}
    assert len(half) == PARAMS.scenarios.train // 2, (
        "the first half of the scenarios is half of the weeks (train.share)"
    )
    assert len(sets_of(horizon=7 * DAY)["train"]) == PARAMS.scenarios.train


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_rows_are_those_of_the_week(name, split):
    scenarios = sets_of(name)[split]
    for index in (0, len(scenarios) - 1):
        scenario = scenarios[index]
        number = index // scenarios.starts if split == "train" else index
        week, first = scenarios.weeks[number], scenario.origin[1]
        rows = slice(first * DAY, first * DAY + scenarios.horizon + 2)
        assert scenario.origin[0] == week.date and len(scenario.load_p) == scenarios.horizon + 2
        for kind in ("load_p", "load_q", "gen_p"):
            np.testing.assert_array_equal(
                getattr(scenario, kind), getattr(week, kind)[rows].astype(np.float32), err_msg=kind
            )
        np.testing.assert_allclose(scenario.gen_v, np.tile(week.gen_v, (len(scenario.gen_v), 1)), atol=0.005)


def test_a_scenario_is_the_same_every_time_and_unlike_the_others(world):
    for split in SPLITS:
        first, again, other = world.sets[split][0], sets_of()[split][0], world.sets[split][1]
        for a, b in zip(first.arrays, again.arrays, strict=True):
            assert a.tobytes() == b.tobytes()
        assert first.load_p.tobytes() != other.load_p.tobytes()
        assert first.next_load_p.tobytes() != other.next_load_p.tobytes()


def test_who_uses_fewer_weeks_has_the_first_of_the_scenarios(world):
    fewer = sets_of(noise={"train": 8, "validation": 4})
    assert len(fewer["train"]) == 40
    for split, index in (("train", 39), ("validation", 3)):
        for a, b in zip(fewer[split][index].arrays, world.sets[split][index].arrays, strict=True):
            assert a.tobytes() == b.tobytes()
    np.testing.assert_array_equal(fewer["train"].load_means(), world.sets["train"].load_means())


@pytest.mark.parametrize("name", GRIDS)
def test_forecast_is_the_next_steps_truth_with_the_declared_error(name):
    """Of loads and generators alike, except where a generator's limit cuts the forecast."""
    scenarios = sets_of(name)["train"]
    scenario, sd = scenarios[1], PARAMS.environment(name).weeks.forecast_sd
    for kind in ("load_p", "load_q", "gen_p"):
        truth, forecast = (
            getattr(scenario, kind)[1:].astype(float),
            getattr(scenario, f"next_{kind}")[:-1].astype(float),
        )
        large = (np.abs(truth) > 5) & (truth < 0.9 * scenarios.gen_max if kind == "gen_p" else True)
        error = np.log(forecast[large] / truth[large])
        assert large.sum() > 5000
        assert error.std() == pytest.approx(sd, rel=0.03) and abs(error.mean()) < 0.03 * sd, kind
    assert (scenario.next_gen_p <= scenarios.gen_max + 0.01).all()


def test_hash_follows_the_data(world):
    sets, weeks = sets_of(), PARAMS.environment("wcci2020").weeks
    assert [sets[split].hash() for split in SPLITS] == [world.sets[split].hash() for split in SPLITS]
    others = [
        sets_of(horizon=863), sets_of(noise={"seed": 1}), sets_of(noise={"train": 39, "validation": 7, "test": 11}),
        sets_of(weeks={"forecast_sd": weeks.forecast_sd / 2}),
    ]  # fmt: skip
    for split in SPLITS[:3]:
        assert len({each[split].hash() for each in [sets, *others]}) == 5
    assert len({sets[split].hash() for split in SPLITS}) == 4
    before = sets["test"].hash()
    sets["test"].weeks.about[3]["digest"] = "0" * 16
    assert sets["test"].hash() != before


# --- scenarios of packaged days -----------------------------------------------------------------------------------------


def test_packaged_scenarios_are_drawn_as_the_test_was_before_there_were_weeks():
    """Byte by byte: with as many scenarios the hash is the one that was committed then."""
    assert sets_of(noise={"packaged": 30})["packaged"].hash() == EARLIER_TEST
    assert sets_of(noise={"packaged": 29})["packaged"].hash() != EARLIER_TEST


def test_a_grid_without_weeks_has_its_splits_from_days_of_their_own(small_world):
    assert tuple(small_world.sets) == SPLITS[:3]
    days = {split: {day for index in range(5) for day in scenarios[index].origin} for split, scenarios in
            sets_of("case14").items()}  # fmt: skip
    assert days == {"train": {0}, "validation": {1}, "test": {2}}


def test_packaged_generation_stays_in_its_limits_and_follows_load(world):
    scenario, source = world.sets["packaged"][3], world.sets["packaged"].source
    assert set(scenario.origin) <= set(world.spec.packaged_days)
    assert (scenario.gen_p >= -0.01).all() and (scenario.gen_p <= source.gen_max + 0.01).all()
    # Losses are a few per cent of the load; the noise must not open a larger gap.
    gap = (scenario.gen_p.sum(axis=1) - scenario.load_p.sum(axis=1)) / scenario.load_p.sum(axis=1)
    assert np.abs(gap).max() < 0.08


# --- what cannot be made ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"noise": {"validation": 17}}, ["scenarios.validation = 17", "chronics/wcci2020", "16 weeks", "'validation'"]),
        ({"noise": {"test": 51}}, ["scenarios.test = 51", "50 weeks", "'test'"]),
        (
            {"noise": {"test": 13, "test_split": "development_test"}},
            ["scenarios.test = 13", "12 weeks", "'development_test'"],
        ),
        ({"horizon": 2017}, ["horizon = 2017", "chronics/wcci2020", "2016 steps"]),
        (
            {"weeks": {"path": "results/chronics/neurips2020"}},
            ["weeks.path", "l2rpn_neurips_2020_track1", "l2rpn_wcci_2020"],
        ),
        ({"weeks": {"path": "results/chronics/nowhere"}}, ["chronics/nowhere", "'train'"]),
        ({"grid2op": "l2rpn_nowhere"}, ["weeks.path", "l2rpn_wcci_2020", "l2rpn_nowhere"]),
    ],
)
def test_weeks_that_are_not_there_are_one_line(changes, words):
    with pytest.raises(config.ConfigError) as error:
        sets_of(**changes)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("name", "changes", "split", "words"),
    [
        ("wcci2020", {"packaged_days": [8, 9]}, "packaged", ["packaged_days = [8, 9]", "l2rpn_wcci_2020", "0 to 8"]),
        (
            "case14",
            {"days": config.environments.Days(train=[0], validation=[1], test=[99])},
            "test",
            ["days.test = [99]"],
        ),
    ],
)
def test_a_packaged_day_that_is_not_there_is_one_line(name, changes, split, words):
    scenarios = sets_of(name, **changes)[split]
    with pytest.raises(config.ConfigError) as error:
        scenarios[0]
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_unknown_environment_is_one_line(tmp_path):
    """Where days are packaged, and where there are weeks of a grid that this Grid2Op does not have."""
    shutil.copytree(ROOT / "results" / "chronics" / "wcci2020", tmp_path / "weeks")
    digests = {week.digest(): replace(week, env="l2rpn_nowhere").digest() for week in Weeks(tmp_path / "weeks", "train")}
    for path in (tmp_path / "weeks").glob("*.json"):
        beside = json.loads(path.read_text()) | {"env": "l2rpn_nowhere"}
        for week in beside["weeks"]:
            week["digest"] = digests.get(week["digest"])
        path.write_text(json.dumps(beside))
    weeks = PARAMS.environment("wcci2020").weeks.model_copy(update={"path": str(tmp_path / "weeks")})
    for name, changes in (("case14", {}), ("wcci2020", {"weeks": weeks})):
        with pytest.raises(config.ConfigError, match="Grid2Op has no environment 'l2rpn_nowhere' packaged") as error:
            make_world(name, grid2op="l2rpn_nowhere", **changes)
        assert "\n" not in str(error.value)


def packaged(*lengths):
    """What `read_source` reads of a Grid2Op environment: two loads, one generator, chronics of so many rows."""
    chronics = [
        SimpleNamespace(**{name: np.full((n, width), n, dtype=float) for name, width in
                           (("load_p", 2), ("load_q", 2), ("prod_p", 1), ("prod_v", 1))})
        for n in lengths
    ]  # fmt: skip
    handler = SimpleNamespace(subpaths=lengths, real_data=SimpleNamespace(data=None))
    env = SimpleNamespace(chronics_handler=handler, reset=lambda: SimpleNamespace(gen_v=np.ones(1)),
                          gen_pmax=np.ones(1), gen_renewable=np.zeros(1, bool), gen_redispatchable=np.ones(1, bool))  # fmt: skip
    env.set_id = lambda number: setattr(handler.real_data, "data", chronics[number])
    return env


def test_a_chronic_without_a_whole_day_is_one_line():
    """288 rows are one too few: the first row is that of the reset."""
    with pytest.raises(config.ConfigError) as error:
        read_source(packaged(DAY, 100), "l2rpn_small")
    for word in ("'l2rpn_small'", "288 rows", "at least 289"):
        assert word in str(error.value)
    assert "\n" not in str(error.value)
    source = read_source(packaged(100, DAY + 1, 2 * DAY + 5), "l2rpn_small")
    assert source.chronic.tolist() == [1, 2, 2] and source.load_p.shape == (3, DAY, 2)
    assert [day.mean() for day in source.gen_p] == [DAY + 1, 2 * DAY + 5, 2 * DAY + 5]


# --- the world -----------------------------------------------------------------------------------------------------------


def test_a_part_of_a_set_has_the_opponents_draws_of_the_whole(world, monkeypatch):
    part, seeds = copy.copy(world), []
    part.sets = {**world.sets, "validation": Beyond(world.sets["validation"], 5)}
    monkeypatch.setattr(world.env, "seed", seeds.append)
    for which, index in ((world, 7), (part, 2), (world, 2)):
        which.reset("validation", index)
    assert seeds[0] == seeds[1] != seeds[2]


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
    step = world.reset("train", 150)
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


def test_far_from_danger_substations_go_back_to_one_bus_one_a_step(params, small_world):
    settings = params.base.operator.model_copy(update={"recover": 0.9})
    operator, catalogue = Operator(settings), small_world.catalogue
    start = small_world.reset("train", 0).state
    subs = np.unique(catalogue.sub[1:])[:2]
    split = [int(np.flatnonzero((catalogue.sub == sub) & (catalogue.code != 0))[0]) for sub in subs]
    topo = catalogue.apply(split[1], catalogue.apply(split[0], np.ones_like(start.topo)))
    idle = np.zeros_like(start.cooldown_sub)
    calm = replace(start, topo=topo, rho=np.full_like(start.rho, 0.5), cooldown_sub=idle)
    first = operator.recovery(calm, catalogue)
    assert (catalogue.sub[first], catalogue.code[first]) == (subs[0], 0)
    after = catalogue.apply(first, topo)
    second = operator.recovery(replace(calm, topo=after), catalogue)
    assert (catalogue.apply(second, after) == 1).all()
    assert operator.recovery(replace(calm, topo=catalogue.apply(second, after)), catalogue) == 0, "the reference topology"
    busy = idle.copy()
    busy[subs[0]] = 3
    assert catalogue.sub[operator.recovery(replace(calm, cooldown_sub=busy), catalogue)] == subs[1]
    loaded = calm.rho.copy()
    loaded[3] = 0.9
    assert operator.recovery(replace(calm, rho=loaded), catalogue) == 0, "a line is loaded to the threshold"
    assert Operator(params.base.operator.model_copy(update={"recover": 0.0})).recovery(calm, catalogue) == 0


def test_both_worlds_recover_alike(params):
    """A random action at the first danger, then whatever the reflexes do: the same states on Grid2Op and on the fast world."""
    spec = params.environment("case14").model_copy(update={"horizon": 192, "thermal_factor": 0.8})
    settings, met = params.base.operator.model_copy(update={"recover": 0.95}), []

    class Noted(Operator):
        def recovery(self, state, catalogue):
            met.append(super().recovery(state, catalogue))
            return met[-1]

    world = World(spec, params.scenarios, settings)
    world.operator = Noted(settings)
    for index in range(6):
        topologies = []
        for played in (world, FastWorld(world)):
            rng, step, seen = np.random.default_rng(index), played.reset("train", index), []
            while not step.over:
                legal = played.catalogue.legal_ids(played.observe(step.state)[1])
                step = played.step(0 if seen else int(rng.choice(legal)))
                seen.append(step.first.topo if step.over else step.state.topo)
            topologies.append((played.t, seen[:-1]))
        (t_grid, grid), (t_fast, fast) = topologies
        assert t_grid == t_fast and all((a == b).all() for a, b in zip(grid, fast, strict=True))
    assert sum(action != 0 for action in met) >= 4, "the reflex was met, in both worlds"


def test_random_numbers_of_the_test_follow_from_its_weeks(params, tmp_path, monkeypatch):
    """Start days, forecast errors and the opponent's seeds: nobody can have looked at them before the freeze."""
    environment = params.environment("wcci2020")
    weeks = Weeks(ROOT / environment.weeks.path, "development_test")

    def scenarios(split, digest):
        weeks.split = split
        monkeypatch.setattr(Weeks, "hash", lambda _: digest)
        return WeekScenarios(weeks, "test", 6, environment.horizon, 1, 0.02)

    early, later = (scenarios("test", digest) for digest in ("00000000000000a1", "00000000000000a2"))
    assert (early.salt, later.salt) == (0xA1, 0xA2) and early[0].salt == 0xA1
    assert [each.origin for each in early] != [each.origin for each in later]
    of_development = scenarios("development_test", "00000000000000a1")
    assert of_development.salt == 0 and [each.origin for each in of_development] != [each.origin for each in early]
