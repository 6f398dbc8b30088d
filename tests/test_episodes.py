"""The generator that plays episodes: the same as the loop by hand, no step more than asked for."""

import numpy as np
import pytest

from ace.episodes import decisions, do_nothing
from ace.grid.fastworld import FastWorld


@pytest.fixture(scope="module")
def world(small_world):
    return FastWorld(small_world)


def some(decision):
    """A legal action that differs from state to state."""
    ids = decision.world.catalogue.legal_ids(decision.observation[1])
    return int(ids[int(1000 * decision.state.rho_max) % len(ids)])


def by_hand(world, index):
    """[(state, action, step)] of a whole episode."""
    step, found = world.reset("train", index), []
    while not step.over:
        state, legal = step.state, world.catalogue.legal_ids(world.observe(step.state)[1])
        action = int(legal[int(1000 * state.rho_max) % len(legal)])
        step = world.step(action)
        found.append((state, action, step))
    return found, (world.t, world.blackout)


def test_it_is_the_loop_by_hand(world):
    lengths = []
    for index in range(12):
        expected, end = by_hand(world, index)
        played = list(decisions(world, world.reset("train", index), some))
        assert (world.t, world.blackout) == end
        assert [d.action for d in played] == [action for _, action, _ in expected]
        for ours, (state, _, step) in zip(played, expected, strict=True):
            np.testing.assert_array_equal(ours.state.rho, state.rho)
            np.testing.assert_array_equal(ours.observation[0], world.features(state))
            assert ours.step.rewards == step.rewards and ours.reward == step.rewards[0]
            lost_at_once = step.blackout and len(step.rewards) == 1
            assert ours.rho_after == (None if lost_at_once else step.first.rho_max)
        lengths.append(len(played))
    assert sum(lengths) > 20


def test_no_decision_more_than_asked_for(world):
    index = next(i for i in range(20) if len(by_hand(world, i)[0]) > 2)
    whole = by_hand(world, index)[0]
    asked = []
    played = list(decisions(world, world.reset("train", index), lambda d: asked.append(d.state.t) or some(d), limit=2))
    assert len(played) == len(asked) == 2 and [d.action for d in played] == [action for _, action, _ in whole[:2]]
    assert list(decisions(world, world.reset("train", index), some, limit=0)) == []
    stop = whole[1][0].t  # the step at which the second decision is made
    assert len(list(decisions(world, world.reset("train", index), some, until=stop))) == 1
    assert len(list(decisions(world, world.reset("train", index), some, until=stop + 1))) == 2
    start = world.reset("train", index)
    steps = world.env_steps
    assert list(decisions(world, start, do_nothing, until=start.state.t)) == [] and world.env_steps == steps


def test_nothing_is_played_before_the_consumer_has_done_its_part(world):
    """Learning between two decisions may change the next: choose is asked after the consumer's code."""
    log, index = [], next(i for i in range(20) if len(by_hand(world, i)[0]) > 2)
    for _ in decisions(world, world.reset("train", index), lambda d: log.append("choose") or some(d), limit=3):
        log.append("learn")
    assert log == ["choose", "learn"] * 3
