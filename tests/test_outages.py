"""Unseen outages: the line stays out on Grid2Op itself, the lines are chosen by their rule, and runs come out as rows."""

import numpy as np
import pandas as pd
import pytest

from ace import baselines, config, evaluate, outages
from ace.grid.environment import World
from ace.llm.adaptation import ShiftedWorld
from ace.outages import OutageWorld, choose_lines
from ace.rl.sac import SAC

LINE = 3


def played(world, split, index, actions):
    """All states that an agent is asked in, with the given actions, and the steps played."""
    step = world.reset(split, index)
    states = [step.state]
    while not step.over:
        legal = world.catalogue.legal_ids(world.observe(step.state)[1])
        step = world.step(int(legal[actions[world.t % len(actions)] % len(legal)]))
        states.append(step.state)
    return states, world.t


def test_the_line_stays_out_and_its_ends_are_on_no_bus(small_world):
    world = OutageWorld(small_world, LINE)
    ends = [world.catalogue.line_or_pos[LINE], world.catalogue.line_ex_pos[LINE]]
    acted = np.random.default_rng(0).integers(1000, size=50)
    for index in range(3):
        states, _ = played(world, "test", index, acted)
        for state in states:
            assert not state.line_status[LINE]
            assert (state.topo[ends] == -1).all() and state.rho[LINE] == 0
            assert world.operator.reconnection(state) != LINE


def test_the_first_state_has_that_line_out_and_no_other(small_world):
    state = OutageWorld(small_world, LINE)._until_asked  # noqa: F841 (the world is made before the other one is reset)
    world = OutageWorld(small_world, LINE)
    world.scenario, world.t = world.sets["test"][0], 0
    first = world._first_state(0)
    assert np.flatnonzero(~first.line_status).tolist() == [LINE]
    assert first.overflow.max() == 0


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


def test_agrees_with_the_fast_world_step_by_step(params):
    """Two ways to take a line out, Grid2Op's and the what-if engine's: the same states at the same steps."""
    spec = params.environment("case14").model_copy(update={"horizon": 96, "thermal_factor": 0.75})
    slow_base, fast_base = (World(spec, params.scenarios, params.base.operator) for _ in range(2))
    slow = OutageWorld(slow_base, LINE)
    fast = ShiftedWorld(fast_base, np.ones(slow_base.catalogue.n_line), LINE)
    acted = np.random.default_rng(1).integers(1000, size=60)
    lengths = []
    for index in range(6):
        (a, steps), (b, others) = (played(world, "train", index, acted) for world in (slow, fast))
        assert (len(a), steps) == (len(b), others)
        for ours, theirs in zip(a[:-1], b[:-1], strict=True):  # after a blackout each says what it likes
            np.testing.assert_array_equal(ours.topo, theirs.topo)
            np.testing.assert_array_equal(ours.line_status, theirs.line_status)
            np.testing.assert_allclose(ours.rho, theirs.rho, atol=1e-3)
        lengths.append(steps)
    assert max(lengths) > 10


def test_another_operator_may_be_given(params, small_world):
    world = OutageWorld(small_world, LINE, params.settings("do_nothing").operator)
    assert not world.operator.reconnects and small_world.operator.reconnects


# --- which lines ---


def test_lines_are_the_most_loaded_that_last(small_world, monkeypatch):
    asked = [np.linspace(0.1, 0.9, small_world.catalogue.n_line)]  # line 19 is the fullest, then 18, ...
    state = type("State", (), {})
    states = []
    for rho in asked:
        states.append(state())
        states[-1].rho = rho
    monkeypatch.setattr(outages, "_asked", lambda world, index: states)
    lasts = {19: 47, 18: 48, 17: 3, 16: 48}
    monkeypatch.setattr(outages, "_lasts", lambda world, index: lasts.get(world.line, 48) if index == 1 else 48)
    assert choose_lines(small_world, 2) == [18, 16]
    assert choose_lines(small_world, 3) == [18, 16, 15]


def test_where_none_lasts_the_longest_are_taken(small_world, monkeypatch):
    monkeypatch.setattr(outages, "_lasts", lambda world, index: 10 + (world.line in (4, 7)))
    assert sorted(choose_lines(small_world, 2)) == [4, 7]


def test_lines_are_chosen_on_training_scenarios_alone(small_world, monkeypatch):
    seen, reset = set(), World.reset
    monkeypatch.setattr(World, "reset", lambda world, split, index: (seen.add((split, index)), reset(world, split, index))[1])
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
        policy = SAC(small_world.catalogue, small_world.features.n, params.base.sac, seed=len(variant)).deployed
        policy.save(run / "policy.safetensors")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ACE_JOBS", "1")
    outages._world.cache_clear()
    yield folder
    outages._world.cache_clear()


def test_only_what_is_declared_and_asked_about_is_played(project):
    params = config.load()
    assert outages.variants_of(params, "case14") == (["reconnect"], ["sac", "ace_query_low"])
    assert outages.variants_of(params, "wcci2020") == (["reconnect"], ["sac"])


def test_rows_of_all_runs(project, capsys):
    table = outages.play_outages("case14", outages=2, episodes=5)
    written = project / "results/outages/case14.csv"
    first = written.read_bytes()
    assert "100%" in capsys.readouterr().err
    back = pd.read_csv(written)
    assert list(back.columns) == outages.COLUMNS and len(back) == len(table) == 3 * 3  # 3 test scenarios, 3 methods
    assert back["outage"].tolist() == [0, 1, 0] * 3
    pairs = {variant: rows[["line", "episode"]].values.tolist() for variant, rows in back.groupby("variant")}
    assert pairs["sac"] == pairs["ace_query_low"] == pairs["reconnect"]
    assert (back["survival"] == (back["survived_steps"] / 96).round(6)).all() or np.allclose(
        back["survival"], back["survived_steps"] / 96, atol=1e-5
    )
    assert (back[["llm_calls", "simulator_calls", "dc_calls"]] == 0).all(axis=None)
    outages.play_outages("case14", outages=2, episodes=5)
    assert written.read_bytes() == first


def test_a_missing_policy_is_named_before_anything_is_played(project, monkeypatch):
    (project / "results/runs/case14/sac/seed=0/policy.safetensors").unlink()
    monkeypatch.setattr(outages, "choose_lines", None)
    with pytest.raises(FileNotFoundError, match=r"no results/runs/case14/sac/seed=0/policy.safetensors"):
        outages.play_outages("case14")
