"""The fast world against Grid2Op: the same episodes, step by step, with random legal actions."""

import numpy as np
import pytest

from ace import config
from ace.grid.environment import World
from ace.grid.fastworld import FastWorld, training_world

PARAMS = config.load()


@pytest.mark.parametrize(("name", "episodes", "factor"), [("wcci2020", 20, 0.8), ("case14", 12, 0.75)])
def test_agrees_step_by_step(name, episodes, factor):
    """Trips, refused cooldowns, reconnections and blackouts included; both must see the same legal actions all along."""
    spec = PARAMS.environment(name).model_copy(update={"horizon": 288, "thermal_factor": factor})
    scenarios, operator = PARAMS.scenarios, PARAMS.settings("reconnect").operator
    slow = World(spec, scenarios, operator)
    fast = FastWorld(slow)
    rng, trips, blackouts, acted, reconnected = np.random.default_rng(0), 0, 0, 0, 0
    for index in range(episodes):
        a, b = slow.reset("train", index), fast.reset("train", index)
        while True:
            assert (a.over, a.blackout, slow.t) == (b.over, b.blackout, fast.t)
            if a.blackout:
                break
            for name_ in ("topo", "line_status", "overflow", "cooldown_line", "cooldown_sub"):
                np.testing.assert_array_equal(getattr(a.state, name_), getattr(b.state, name_), err_msg=name_)
            np.testing.assert_allclose(a.state.rho, b.state.rho, atol=1e-4)
            np.testing.assert_allclose(a.state.gen_p, b.state.gen_p, atol=0.01)
            np.testing.assert_allclose(a.state.next_gen_p, b.state.next_gen_p)
            trips += (~a.state.line_status).any()
            if a.over:
                break
            legal = slow.observe(a.state)[1]
            assert (legal == fast.observe(b.state)[1]).all()
            # Half of the decisions do nothing, or hardly any episode would see a trip and a reconnection.
            ids = slow.catalogue.legal_ids(legal)
            enumerated = ids[ids < slow.catalogue.n_enum]
            action = int(rng.choice(enumerated)) if rng.random() < 0.5 else 0
            status = a.state.line_status
            a, b = slow.step(action), fast.step(action)
            np.testing.assert_allclose(a.rewards, b.rewards, atol=1e-3)
            acted += action != 0
            reconnected += (a.state.line_status & ~status).any()
        blackouts += a.blackout
    assert acted > 10 and trips > 0 and blackouts > 0


def test_the_opponent_is_left_to_grid2op():
    world = World(PARAMS.environment("neurips2020"), PARAMS.scenarios, PARAMS.settings("reconnect").operator)
    assert training_world(world) is world
    with pytest.raises(ValueError, match="opponent"):
        FastWorld(world)
