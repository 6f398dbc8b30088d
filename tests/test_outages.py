"""Unseen outages: the line stays out on Grid2Op itself, the lines are chosen by their rule, and runs come out as rows."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from ace import baselines, config, evaluate, trained_policies
from ace.grid.environment import World
from ace.llm.models.lora_under_shift import ShiftedWorld
from ace.rl.sac import SAC
from ace.studies.outages import measure as outages
from ace.studies.outages.measure import OutageWorld, choose_lines

LINE = 3


@pytest.fixture(scope="module")
def mild_world(params):
    """Limits that leave time to act without a line."""
    spec = params.environment("case14").model_copy(update={"horizon": 96, "thermal_factor": 0.9})
    return World(spec, params.scenarios, params.base.operator)


def played(world, split, index, choices):
    """States of all steps, whoever is asked or not, and the numbers of those steps at which a topology action was played.

    choices: (n,) ints; every second decision does nothing, the others take any legal action.
    """
    states, acted, advance = [], [], world._advance

    def seen(action, line):
        reward = advance(action, line)
        states.append(world.state)
        if action:
            acted.append(world.t)
        return reward

    world._advance = seen
    step = world.reset(split, index)
    while not step.over:
        legal = world.catalogue.legal_ids(world.observe(step.state)[1])
        step = world.step(int(legal[choices[world.t % len(choices)] % len(legal)]) if len(states) % 2 else 0)
    del world._advance
    return states[: len(states) - step.blackout], acted  # of a blackout's state each world says what it likes


def test_the_line_stays_out_and_its_ends_are_on_no_bus(mild_world):
    world = OutageWorld(mild_world, LINE)
    ends = [world.catalogue.line_or_pos[LINE], world.catalogue.line_ex_pos[LINE]]
    random, steps, acted = np.random.default_rng(0).integers(1000, size=50).tolist(), 0, 0
    for index, choices in [(0, [0]), (1, [0]), (0, random), (1, random)]:
        states, when = played(world, "train", index, choices)
        steps, acted = steps + len(states), acted + len(when)
        for state in states:
            assert not state.line_status[LINE]
            assert (state.topo[ends] == -1).all() and state.rho[LINE] == 0
            assert world.operator.reconnection(state) != LINE
    assert steps > 90 and acted > 1, "too short to see a reconnection, by the operator or by an action"


def test_an_outage_begins_with_that_line_out_and_no_other(mild_world):
    first = OutageWorld(mild_world, LINE)
    first.scenario, first.t = first.sets["test"][0], 0
    state = first._first_state(0)
    assert np.flatnonzero(~state.line_status).tolist() == [LINE]
    assert not state.overflow.any() and not state.cooldown_sub.any()


def test_the_given_world_is_left_as_it_was(small_world):
    before = small_world.reset("test", 0).state
    OutageWorld(small_world, LINE).reset("test", 0)
    after = small_world.reset("test", 0).state
    assert after.line_status.all() and not after.cooldown_line.any()
    np.testing.assert_array_equal(before.rho, after.rho)


def test_without_an_outage_it_is_the_world_itself(small_world):
    (ours,) = evaluate.play(OutageWorld(small_world, None), baselines.DoNothing(), "test", [1])
    (theirs,) = evaluate.play(small_world, baselines.DoNothing(), "test", [1])
    assert ours.row() == theirs.row()


def test_agrees_with_the_fast_world_step_by_step(params, mild_world):
    """Two ways to take a line out, Grid2Op's and the what-if engine's: the same states at the same steps."""
    fast_base = World(mild_world.spec, params.scenarios, params.base.operator)
    choices, acted = np.random.default_rng(1).integers(1000, size=60), 0
    for line, index in [(LINE, 0), (12, 0), (12, 1), (17, 0), (17, 1)]:
        slow = OutageWorld(mild_world, line)
        fast = ShiftedWorld(fast_base, np.ones(slow.catalogue.n_line), line)
        (ours, when), (theirs, there) = (played(world, "train", index, choices) for world in (slow, fast))
        assert (len(ours), when) == (len(theirs), there)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a.topo, b.topo)
            np.testing.assert_array_equal(a.line_status, b.line_status)
            np.testing.assert_allclose(a.rho, b.rho, atol=1e-3)
        acted += len(when)
    assert acted > 3


def test_another_operator_may_be_given(params, small_world):
    world = OutageWorld(small_world, LINE, params.settings("do_nothing").operator)
    assert not world.operator.reconnects and small_world.operator.reconnects


# --- which lines ---


def test_lines_are_the_most_loaded_that_last(small_world, monkeypatch):
    loading = np.linspace(0.1, 0.9, small_world.catalogue.n_line)  # line 19 is the most loaded, then 18, ...
    monkeypatch.setattr(outages, "_asked", lambda world, index: [SimpleNamespace(rho=loading)])
    lasts = {19: 47, 18: 48, 17: 3, 16: 48}
    monkeypatch.setattr(outages, "_lasts", lambda world, index: lasts.get(world.line, 48) if index == 1 else 48)
    assert choose_lines(small_world, 2) == [18, 16]
    assert choose_lines(small_world, 3) == [18, 16, 15]


def test_lines_that_an_opponent_attacks_are_left_out(small_world, monkeypatch):
    loading = np.arange(20)
    monkeypatch.setattr(outages, "_asked", lambda world, index: [SimpleNamespace(rho=loading)])
    monkeypatch.setattr(outages, "_lasts", lambda world, index: outages.LASTS)
    assert choose_lines(small_world, 3) == [19, 18, 17]
    spec = small_world.spec.model_copy(update={"opponent": True})
    monkeypatch.setattr(small_world, "spec", spec)
    monkeypatch.setattr(small_world.env, "_opponent", SimpleNamespace(_lines_ids=[18, 2]))
    assert choose_lines(small_world, 3) == [19, 17, 16]


def test_where_none_lasts_the_longest_are_taken(small_world, monkeypatch):
    monkeypatch.setattr(outages, "_lasts", lambda world, index: 10 + (world.line in (4, 7)))
    assert sorted(choose_lines(small_world, 2)) == [4, 7]


def test_lines_are_chosen_on_training_scenarios_alone(small_world, monkeypatch):
    seen, reset = set(), World.reset
    monkeypatch.setattr(
        World, "reset", lambda world, split, index: (seen.add((split, index)), reset(world, split, index))[1]
    )
    lines = choose_lines(small_world, 2)
    assert seen == {("train", index) for index in range(outages.TRIED)}
    assert len(set(lines)) == 2


# --- from policies to rows ---


@pytest.fixture
def project(workspace, small_world, params, monkeypatch):
    """A workspace with two untrained policies in place of those of a run."""

    def change(raw):
        raw["grid"].update(variants=["sac", "ace_no_actor"], baselines=["reconnect"])
        raw["grid"]["ablations"]["variants"] = ["ace_query_low", "ace_K01"]

    folder = workspace(change)
    for variant in ("sac", "ace_query_low"):
        run = folder / "results/runs/case14" / variant / "seed=0"
        run.mkdir(parents=True)
        policy = SAC(small_world.catalogue, small_world.features.n, params.base.sac, seed=len(variant)).acting
        policy.save(run / "policy.safetensors")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ACE_JOBS", "1")
    trained_policies.world_of.cache_clear()
    yield folder
    trained_policies.world_of.cache_clear()


def test_only_what_is_declared_and_asked_about_is_played(project):
    params = config.load()
    assert params.played("outages", "case14") == (["reconnect"], ["sac", "ace_query_low"])
    assert params.played("outages", "wcci2020") == (["reconnect"], ["sac"])


def test_rows_of_all_runs(project, capsys):
    table = outages.play_outages("case14", outages=2, episodes=5)
    written = project / "results/studies/outages/case14.csv"
    first = written.read_bytes()
    assert "100%" in capsys.readouterr().err
    back = pd.read_csv(written)
    assert list(back.columns) == outages.COLUMNS and len(back) == len(table) == 3 * 3  # 3 test scenarios, 3 methods
    assert back["outage"].tolist() == [0, 1, 0] * 3
    pairs = {variant: rows[["line", "episode"]].to_numpy().tolist() for variant, rows in back.groupby("variant")}
    assert pairs["sac"] == pairs["ace_query_low"] == pairs["reconnect"]
    np.testing.assert_allclose(back["survival"], back["survived_steps"] / 96, atol=1e-5)
    assert (back[["llm_calls", "simulator_calls", "dc_calls"]] == 0).all(axis=None)
    outages.play_outages("case14", outages=2, episodes=5)
    assert written.read_bytes() == first


def test_a_missing_policy_is_named_before_anything_is_played(project, monkeypatch):
    (project / "results/runs/case14/sac/seed=0/policy.safetensors").unlink()
    monkeypatch.setattr(outages, "choose_lines", None)
    with pytest.raises(FileNotFoundError, match=r"no results/runs/case14/sac/seed=0/policy.safetensors"):
        outages.play_outages("case14")
