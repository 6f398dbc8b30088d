"""The what-if engine against Grid2Op's simulate and step, against brute force, and against itself in another order."""

import pickle
from collections import Counter

import numpy as np
import pytest

from ace import config
from ace.grid.environment import World, step_reward
from ace.grid.whatif import WhatIf

PARAMS = config.load()
AGREE = 1e-4  # of rho: the bar; what is measured is about 1e-7


def make_world(name, **operator):
    """operator: changes to the reflexes; danger 0 asks at every step, so that a test drives each of them."""
    settings = PARAMS.settings("reconnect").operator.model_copy(update=operator)
    return World(PARAMS.environment(name), PARAMS.scenarios, settings)


@pytest.fixture(scope="module", params=["wcci2020", "neurips2020", "case14"])
def world(request):
    return make_world(request.param, danger=0.0)


@pytest.fixture(scope="module")
def engine(world):
    return WhatIf(world)


@pytest.fixture(scope="module")
def large():
    """The 36-substation grid and 8 hazardous states met in play, some with lines lost."""
    world = make_world("wcci2020")
    rng, states, episode = np.random.default_rng(4), [], 0
    while len(states) < 8:
        step = world.reset("train", episode)
        for _ in range(3):
            if step.over:
                break
            states.append(step.state)
            legal = world.catalogue.legality(step.state.topo, step.state.cooldown_sub, True)
            enumerated = np.flatnonzero(legal[: world.catalogue.n_enum])
            step = world.step(int(rng.choice(enumerated)) if rng.random() < 0.5 else 0)
        episode += 1
    return world, WhatIf(world), states


def candidates(world, engine, state, rng, n):
    """Legal ids: do nothing, some of the whole catalogue, some small substations, one at a slack substation."""
    catalogue = world.catalogue
    ids = catalogue.legal_ids(catalogue.legality(state.topo, state.cooldown_sub, True))
    small = ids[ids < catalogue.n_enum]
    at_slack = small[np.isin(catalogue.sub[small], engine.flow.slack_subs)]
    return [0, *rng.choice(ids, n).tolist(), *rng.choice(small, n).tolist(), *at_slack[:1].tolist()]


def assert_same_step(outcome, obs, done):
    """outcome against what Grid2Op says of the same step."""
    assert outcome.done == done
    if done:
        assert outcome.reward == -1
        return
    after = outcome.next_state
    assert np.abs(after.rho - obs.rho).max() < AGREE
    np.testing.assert_array_equal(after.topo, obs.topo_vect)
    np.testing.assert_array_equal(after.line_status, obs.line_status)
    np.testing.assert_array_equal(after.overflow, obs.timestep_overflow)
    np.testing.assert_array_equal(after.cooldown_line, obs.time_before_cooldown_line)
    np.testing.assert_array_equal(after.cooldown_sub, obs.time_before_cooldown_sub)
    np.testing.assert_allclose(after.load_p, obs.load_p, atol=1e-4)
    np.testing.assert_allclose(after.gen_p, obs.gen_p, atol=1e-2)
    np.testing.assert_allclose(after.gen_v, obs.gen_v, atol=1e-3)
    assert outcome.reward == pytest.approx(step_reward(obs.rho, False), abs=5e-3)


def test_simulate_is_obs_simulate_on_states_met_in_play(world, engine):
    """At least 50 states a grid, also with overflow timers at their limit, lost lines, trips and blackouts."""
    rng, seen = np.random.default_rng(1), Counter()
    for episode in range(60):
        world.reset("train", episode)
        while not world._done and world.t < 288:
            state, obs = world.state, world.env.get_obs()
            interesting = state.rho_max > 0.97 or not state.line_status.all()
            if (interesting and rng.random() < 0.5) or world.t % 40 == 0:
                seen["states"] += 1
                seen["lost line"] += not state.line_status.all()
                seen["at limit"] += (state.overflow == engine._allowed).any()
                for action in candidates(world, engine, state, rng, 1):
                    grid_action = world.catalogue.to_grid2op(action, world.env.action_space, state.topo)
                    simulated, _, done, info = obs.simulate(grid_action, time_step=1)
                    assert not info["is_illegal"] and not info["is_ambiguous"]
                    outcome = engine.simulate(state, action)
                    assert_same_step(outcome, simulated, done)
                    seen["trip"] += outcome.next_state.line_status.sum() < state.line_status.sum()
                    seen["blackout"] += done
            act = 0
            if rng.random() < (0.3 if interesting else 0.03):
                act = candidates(world, engine, state, rng, 1)[1 + int(rng.integers(2))]
            world._advance(act, world.operator.reconnection(state))
        if seen["states"] >= 60 and seen["trip"] and (seen["at limit"] or world.spec.opponent):
            break
    print(world.spec.grid2op, dict(seen))
    assert seen["states"] >= 50 and seen["trip"] and (seen["at limit"] or world.spec.opponent)


def test_advance_is_env_step_with_reconnections():
    """Whole episodes with the true injections: topology, timers and flows stay those of Grid2Op."""
    world = make_world("wcci2020", danger=0.0)
    engine, rng, seen = WhatIf(world), np.random.default_rng(2), Counter()
    for episode in range(6):
        world.reset("train", 3 + 30 * episode)
        last_bus = np.ones(world.env.dim_topo, dtype=np.int8)
        while not world._done and world.t < 200:
            state, scenario, t = world.state, world.scenario, world.t + 1
            last_bus = np.where(state.topo > 0, state.topo, last_bus)
            line, action = world.operator.reconnection(state), 0
            if line is None and rng.random() < 0.15:
                action = int(rng.choice(candidates(world, engine, state, rng, 2)))
            injections = scenario.load_p[t], scenario.load_q[t], scenario.gen_p[t], scenario.gen_v[t]
            outcome = engine.advance(state, action, *injections, reconnect=line, last_bus=last_bus)
            world._advance(action, line)
            assert_same_step(outcome, None if world.blackout else world.env.get_obs(), world.blackout)
            seen["steps"] += 1
            seen["reconnected"] += line is not None
            seen["trip"] += outcome.next_state.line_status.sum() < state.line_status.sum()
    assert seen["steps"] > 200 and seen["trip"] and seen["reconnected"]


def test_ac_agrees_with_simulate_and_single_solves(large):
    world, engine, states = large
    rng = np.random.default_rng(3)
    for state in states:
        ids = candidates(world, engine, state, rng, 40)
        rho = engine.ac(state, ids)
        for action, batched in zip(ids, rho, strict=True):
            engine.flow.set_topo(world.catalogue.apply(action, state.topo))
            amps = engine.flow.solve()
            if amps is None:
                assert np.isnan(batched)
                continue
            assert batched == pytest.approx((amps / engine.limit).max(), abs=1e-6)
            outcome = engine.simulate(state, action)
            if not outcome.done and outcome.next_state.line_status.sum() == state.line_status.sum():
                assert batched == pytest.approx(outcome.next_state.rho_max, abs=1e-6)


def test_ac_leaves_a_lost_line_lost(large):
    """Patterns of a substation with a lost line: the row must not put the line back."""
    world, engine, states = large
    state = pickle.loads(pickle.dumps(states[0]))
    line = 22
    for place in (world.catalogue.line_or_pos[line], world.catalogue.line_ex_pos[line]):
        state.topo[place] = -1
    state.line_status[line] = False
    ids = world.catalogue.legal_ids(world.catalogue.legality(state.topo, state.cooldown_sub, True))
    subs = world.catalogue.sub_of_element[[world.catalogue.line_or_pos[line], world.catalogue.line_ex_pos[line]]]
    ids = ids[np.isin(world.catalogue.sub[ids], subs)][::997]
    assert len(ids) > 30
    for action, batched in zip(ids.tolist(), engine.ac(state, ids), strict=True):
        engine.flow.set_topo(world.catalogue.apply(action, state.topo))
        amps = engine.flow.solve()
        if amps is None:
            assert np.isnan(batched)
        else:
            assert amps[line] == 0 and batched == pytest.approx((amps / engine.limit).max(), abs=1e-6)


def test_results_do_not_depend_on_what_was_asked_before(large):
    """To the byte: the order of questions, a fresh engine and a pickled state change nothing."""
    world, engine, states = large
    rng = np.random.default_rng(5)
    questions = [(s, candidates(world, engine, s, rng, 15)) for s in states]
    straight = [_answers(engine, s, ids) for s, ids in questions]
    fresh = WhatIf(world)
    for i in rng.permutation(len(questions)):
        s, ids = questions[i]
        assert _answers(fresh, pickle.loads(pickle.dumps(s)), ids) == straight[i]


def _answers(engine, state, ids):
    outcomes = [engine.simulate(state, a) for a in ids[::5]]
    parts = [engine.ac(state, ids), engine.dc(state)]
    parts += [v for o in outcomes for v in o.next_state.to_arrays().values()] + [np.array([o.reward for o in outcomes])]
    return b"".join(part.tobytes() for part in parts)


def test_dc_is_exact_for_a_linear_grid(large):
    """The split formula against solving the split grid anew, both in DC: numerator, denominator and flows by hand."""
    world, engine, states = large
    state, catalogue, split = states[0], world.catalogue, engine._split
    engine.flow.set_injections(state.next_load_p, state.next_load_q, state.next_gen_p, state.next_gen_v)
    one_piece = np.where(state.topo > 0, 1, -1).astype(np.int8)
    base = split._base(one_piece)
    # Injections that make the base flows an exact DC solution: what the lines take, by theta = X p.
    rng = np.random.default_rng(6)
    injection = np.zeros(catalogue.dim_topo)
    elements = np.setdiff1d(
        np.arange(catalogue.dim_topo), np.concatenate([catalogue.line_or_pos, catalogue.line_ex_pos])
    )
    injection[elements] = rng.normal(0, 30, len(elements))
    injection[elements[0]] -= injection.sum()
    dc = _dc_flows(catalogue, split._b, one_piece, injection)
    taken = -injection.copy()
    taken[catalogue.line_or_pos], taken[catalogue.line_ex_pos] = dc, -dc
    base = base._replace(p=dc, q=np.zeros_like(dc), taken_p=taken, taken_q=np.zeros_like(taken))
    checked = 0
    for part in split._parts:
        predicted = split._rank_part(base, part)
        for k in range(0, len(part.ids), max(1, len(part.ids) // 5)):
            flows = _dc_flows(catalogue, split._b, catalogue.apply(int(part.ids[k]), one_piece), injection)
            if flows is None:
                assert np.isinf(predicted[k])
            else:
                assert predicted[k] == pytest.approx((np.abs(flows) * base.per_mva).max(), rel=2e-4)
                checked += 1
    assert checked > 80


def _dc_flows(catalogue, susceptance, topo, injection):
    """Brute force: flows of all lines in DC, or None for a grid in pieces."""
    node = np.where(topo > 0, catalogue.sub_of_element + catalogue.n_sub * (topo == 2), -1)
    used = np.unique(node[node >= 0])
    i, j = np.searchsorted(used, node[catalogue.line_or_pos]), np.searchsorted(used, node[catalogue.line_ex_pos])
    b = np.where(node[catalogue.line_or_pos] >= 0, susceptance, 0)
    matrix = np.zeros((len(used), len(used)))
    for line in np.flatnonzero(b):
        ends = np.ix_([i[line], j[line]], [i[line], j[line]])
        matrix[ends] += b[line] * np.array([[1, -1], [-1, 1]])
    if np.linalg.matrix_rank(matrix) < len(used) - 1:
        return None
    p = np.zeros(len(used))
    np.add.at(p, np.searchsorted(used, node[node >= 0]), injection[node >= 0])
    theta = np.zeros(len(used))
    theta[1:] = np.linalg.solve(matrix[1:, 1:], p[1:])
    return b * (theta[i] - theta[j])


def test_dc_starts_from_the_ac_flows_and_finds_good_actions(large):
    world, engine, states = large
    for state in states[:4]:
        rho = engine.dc(state)
        assert rho.shape == (world.catalogue.n,) and rho.dtype == np.float32 and not np.isnan(rho).any()
        assert rho[0] == pytest.approx(engine.ac(state, [0])[0], abs=1e-5)
        legal = world.catalogue.legality(state.topo, state.cooldown_sub, True)
        enumerated = np.flatnonzero(legal[: world.catalogue.n_enum])
        exact = engine.ac(state, enumerated)
        # An action that islands in AC (no solution at all) must not look good.
        apart = enumerated[np.isinf(rho[enumerated])]
        assert np.isnan(exact[np.isin(enumerated, apart)]).all()
        _, best = engine.best(state, legal, 100)
        assert best[0] <= np.nanmin(exact) + 0.005


def test_shortlist_and_best(large):
    world, engine, states = large
    state, catalogue = states[1], world.catalogue
    legal = catalogue.legality(state.topo, state.cooldown_sub, True)
    before = engine.ac_calls, engine.dc_calls
    ids = engine.shortlist(state, legal, 60)
    assert engine.dc_calls == before[1] + catalogue.n and engine.ac_calls == before[0]
    assert len(ids) == 60 == len(set(ids.tolist())) and 0 in ids
    assert all(catalogue.is_legal(legal, int(a)) for a in ids)
    assert np.bincount(catalogue.sub[ids[ids > 0]]).max() <= 30
    predicted = engine.dc(state)[ids]
    assert (np.diff(predicted) >= 0).all()
    ranked, rho = engine.best(state, legal, 60)
    assert engine.ac_calls == before[0] + 60
    assert set(ranked.tolist()) == set(ids.tolist()) and (np.diff(rho) >= 0).all()
    np.testing.assert_array_equal(np.sort(rho[np.isfinite(rho)]), np.sort(engine.ac(state, ids)))
    quiet = catalogue.legality(state.topo, state.cooldown_sub, False)
    assert engine.shortlist(state, quiet, 60).tolist() == [0] == engine.best(state, quiet, 60)[0].tolist()


def test_a_grid_in_pieces_is_a_blackout(large):
    """Cutting every line of a substation: no solution, reward -1, nan in a batch."""
    world, engine, states = large
    state, catalogue = pickle.loads(pickle.dumps(states[0])), world.catalogue
    starts, ends = catalogue.sub_of_element[catalogue.line_or_pos], catalogue.sub_of_element[catalogue.line_ex_pos]
    for line in np.flatnonzero((starts == 5) | (ends == 5)):
        state.topo[catalogue.line_or_pos[line]] = state.topo[catalogue.line_ex_pos[line]] = -1
        state.line_status[line] = False
    outcome = engine.simulate(state, 0)
    assert outcome.done and outcome.reward == -1 and not outcome.next_state.rho.any()
    assert np.isnan(engine.ac(state, [0, 40])).all()
    assert np.isinf(engine.dc(state)[0])


def test_the_live_environment_is_left_alone(large):
    world, engine, states = large
    before = world.env.backend._grid.get_V().copy(), world.env.backend.get_topo_vect()
    engine.best(states[2], world.catalogue.legality(states[2].topo, states[2].cooldown_sub, True), 30)
    np.testing.assert_array_equal(before[0], world.env.backend._grid.get_V())
    np.testing.assert_array_equal(before[1], world.env.backend.get_topo_vect())
