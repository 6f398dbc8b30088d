"""The fast world against Grid2Op: the same episodes, without actions to their ends and with random ones step by step."""

import numpy as np
import pytest

from ace import config
from ace.grid.environment import World
from ace.grid.fastworld import FastWorld, training_world
from ace.grid.whatif import WhatIf

PARAMS = config.load()


def both_worlds(name, variant="reconnect", limits=1.0, **changes):
    """Grid2Op's world and the fast one, without the opponent, which only Grid2Op knows.

    limits: share of the thermal limits: of Grid2Op's by its thermal factor, of the fast world by its own argument."""

    def world(share):
        spec = PARAMS.environment(name).model_copy(update={"opponent": False, **changes})
        spec = spec.model_copy(update={"thermal_factor": share * spec.thermal_factor})
        return World(spec, PARAMS.scenarios, PARAMS.settings(variant).operator)

    slow = world(limits)
    return slow, FastWorld(slow if limits == 1 else world(1.0), limits=limits)


@pytest.mark.parametrize(("name", "factor"), [("wcci2020", 0.8), ("neurips2020", 0.7), ("wcci2022", 0.9)])
def test_do_nothing_ends_at_the_same_step(name, factor):
    """Twenty whole episodes, from weeks all over the year."""
    slow, fast = both_worlds(name, "do_nothing", thermal_factor=factor)
    scenarios, ends = len(slow.sets["train"]), []
    for index in np.arange(20) * scenarios // 20:
        for world in (slow, fast):
            step = world.reset("train", index)
            while not step.over:
                step = world.step(0)
        assert (slow.t, slow.blackout) == (fast.t, fast.blackout), index
        ends.append(slow.t)
    assert len(ends) == 20 and len(set(ends)) > 3, ends


def test_lower_limits_are_those_of_a_lower_factor_on_grid2op():
    """Of the fast world and of an engine that is asked in it, as a baseline does."""
    slow, scaled = both_worlds("case14", limits=0.95, thermal_factor=0.8)
    whole, _ = both_worlds("case14", thermal_factor=0.8)
    np.testing.assert_allclose(WhatIf(scaled).limit, slow.env.get_thermal_limit(), rtol=1e-5)
    assert (WhatIf(whole).limit > 1.05 * WhatIf(scaled).limit).all()


@pytest.mark.parametrize(
    ("name", "factor", "episodes", "share", "limits"),
    [("wcci2020", 0.8, 16, 0.2, 1.0), ("neurips2020", 0.8, 12, 0.2, 1.0), ("wcci2022", 0.85, 20, 0.1, 1.0),
     ("case14", 0.75, 12, 0.5, 1.0), ("wcci2020", 0.82, 12, 0.2, 0.95), ("case14", 0.8, 12, 0.5, 0.95)],
)  # fmt: skip
def test_agrees_step_by_step(name, factor, episodes, share, limits):
    """Trips, refused cooldowns, reconnections and blackouts included; both must see the same legal actions all along.

    share: of random actions among the decisions: with more of them hardly any episode lasts until a line is put back.
    """
    slow, fast = both_worlds(name, limits=limits, thermal_factor=factor)
    scenarios = len(slow.sets["train"])
    rng, trips, blackouts, acted, reconnected = np.random.default_rng(0), 0, 0, 0, 0
    for index in np.arange(episodes) * scenarios // episodes:
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
            ids = slow.catalogue.legal_ids(legal)
            enumerated = ids[ids < slow.catalogue.n_enum]
            action = int(rng.choice(enumerated)) if rng.random() < share else 0
            status = a.state.line_status
            a, b = slow.step(action), fast.step(action)
            np.testing.assert_allclose(a.rewards, b.rewards, atol=1e-3)
            acted += action != 0
            reconnected += (a.state.line_status & ~status).any()
        blackouts += a.blackout
    assert acted > 10 and trips > 0 and blackouts > 0
    assert reconnected > 0 or name == "case14", "14 substations do not last that long"


def test_the_opponent_is_left_to_grid2op():
    world = World(PARAMS.environment("neurips2020"), PARAMS.scenarios, PARAMS.settings("reconnect").operator)
    assert training_world(world) is world
    with pytest.raises(ValueError, match="opponent"):
        FastWorld(world)
