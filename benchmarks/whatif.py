"""What-if engine: speed against the `obs.simulate` loop, agreement with it, and how well the whole catalogue is ranked.

    OMP_NUM_THREADS=1 python -m benchmarks.whatif

All times are CPU seconds of this process, one thread, in one run: read the ratios. The recall row looks at every legal
action of each state with AC, which takes a few seconds a state.
"""

import time
from types import SimpleNamespace

import grid2op
import numpy as np
from lightsim2grid import LightSimBackend

from ace import config
from ace.config.host import processor
from ace.grid.actions import Catalogue
from ace.grid.environment import GridState, World
from ace.grid.whatif import WhatIf

CANDIDATES = 1000
SIMULATED = 40  # of them also by obs.simulate
SPEED_STATES = 72
AGREEMENT_STATES = 50
RECALL_STATES = 50
SHORTLIST = 400
NEAR = 0.005  # of rho: as good as the best


def rows(recall_states=RECALL_STATES):
    """One dict a row: name, value, unit, reference, reference_value, ratio, n, machine."""
    world = _world_36()
    engine = WhatIf(world)
    states = _hazardous_states(world, engine, max(recall_states, AGREEMENT_STATES))
    yield from _speed("36", world, engine, _walk(world.env, _grid_states(world), SPEED_STATES))
    yield from _agreement("36", world, engine, _walk(world.env, _grid_states(world), AGREEMENT_STATES))
    large = _world_118()
    large_engine = WhatIf(large)
    yield from _speed("118", large, large_engine, _walk(large.env, large.state, SPEED_STATES))
    yield from _agreement("118", large, large_engine, _walk(large.env, large.state, AGREEMENT_STATES))
    yield from _rank(world, engine, states)
    yield from _rank_118(large, large_engine)
    yield from _one_step(world, engine, states)
    yield from _recall(world, engine, states[:recall_states])


def _row(name, value, unit, reference, reference_value, ratio, n):
    return {
        "name": name, "value": value, "unit": unit, "reference": reference, "reference_value": reference_value,
        "ratio": ratio, "n": n, "machine": processor(),
    }  # fmt: skip


def _world_36():
    params = config.load()
    return World(params.environment("wcci2020"), params.scenarios, params.settings("reconnect").operator)


def _world_118():
    """The grid of WCCI 2022 with its packaged chronic; states carry Grid2Op's own forecast."""
    env = grid2op.make("l2rpn_wcci_2022", test=True, backend=LightSimBackend())
    env.seed(0)

    def state(obs):
        seen = GridState.from_observation(obs)
        seen.next_gen_p, seen.next_gen_v, seen.next_load_p, seen.next_load_q = obs.get_forecasted_inj(1)
        return seen

    return SimpleNamespace(env=env, catalogue=Catalogue(env), state=state)


def _grid_states(world):
    world.reset("train", 0)
    return lambda obs: GridState.from_observation(obs, world.scenario, int(obs.current_step))


def _walk(env, to_state, n):
    """n pairs (state, observation) along a random walk over small substations' actions; a blackout starts again."""
    rng, catalogue = np.random.default_rng(11), Catalogue(env)
    obs = env.reset()
    for _ in range(n):
        while True:
            state = to_state(obs)
            legal = catalogue.legality(state.topo, state.cooldown_sub, True)[: catalogue.n_enum]
            action = int(rng.choice(np.flatnonzero(legal))) if rng.random() < 0.4 else 0
            obs, _, done, _ = env.step(catalogue.to_grid2op(action, env.action_space, state.topo))
            if not done:
                break
            obs = env.reset()
        yield to_state(obs), obs


def _mixed(catalogue, state, n, rng):
    """Half from the whole catalogue (so mostly its one large substation), half from the other substations."""
    ids = catalogue.legal_ids(catalogue.legality(state.topo, state.cooldown_sub, True))
    small = ids[ids < catalogue.n_enum]
    half = min(n // 2, len(small))
    return np.concatenate([rng.choice(ids, n - half, replace=False), rng.choice(small, half, replace=False)])


def _simulate(world, obs, state, action):
    grid_action = world.catalogue.to_grid2op(int(action), world.env.action_space, state.topo)
    return obs.simulate(grid_action, time_step=1)


def _speed(grid, world, engine, pairs):
    rng, batch, loop, count = np.random.default_rng(12), 0.0, 0.0, 0
    for state, obs in pairs:
        ids = _mixed(world.catalogue, state, CANDIDATES, rng)
        engine._rows.clear()  # each question as the first: what was asked before would help
        start = time.process_time()
        engine.ac(state, ids)
        batch += time.process_time() - start
        start = time.process_time()
        for action in ids[:: CANDIDATES // SIMULATED]:
            _simulate(world, obs, state, action)
            count += 1
        loop += time.process_time() - start
    speed, reference = SPEED_STATES * CANDIDATES / batch, count / loop
    yield _row(
        f"whatif_ac_{grid}",
        speed,
        "candidates/s",
        "obs.simulate loop",
        reference,
        speed / reference,
        SPEED_STATES * CANDIDATES,
    )


def _agreement(grid, world, engine, pairs):
    """Largest difference in any line's rho from obs.simulate: `simulate` on all lines, `ac` where no line trips."""
    rng, step, batch, n, quiet, blackouts = np.random.default_rng(13), 0.0, 0.0, 0, 0, 0
    for state, obs in pairs:
        ids = _mixed(world.catalogue, state, 10, rng)
        for action, rho_max in zip(ids.tolist(), engine.ac(state, ids), strict=True):
            after, _, done, _ = _simulate(world, obs, state, action)
            outcome = engine.simulate(state, action)
            if done or outcome.done:
                blackouts += done != outcome.done
                continue
            n += 1
            step = max(step, float(np.abs(outcome.next_state.rho - after.rho).max()))
            if outcome.next_state.line_status.sum() == state.line_status.sum():
                quiet += 1
                batch = max(batch, abs(float(rho_max) - float(after.rho.max())))
    yield _row(f"whatif_simulate_error_{grid}", step, "rho", "bar", 1e-4, step / 1e-4, n)
    yield _row(f"whatif_ac_error_{grid}", batch, "rho", "bar", 1e-4, batch / 1e-4, quiet)
    yield _row(f"whatif_blackout_disagreements_{grid}", blackouts, "candidates", "obs.simulate", 0, None, n)


def _hazardous_states(world, engine, n):
    """States in which the agent is asked, along good play (best of 200) and do nothing: what a trained policy meets."""
    rng, states, episode = np.random.default_rng(5), [], 0
    while len(states) < n:
        step, asked = world.reset("train", episode), 0
        while not step.over and asked < 4 and len(states) < n:
            states.append(step.state)
            asked += 1
            ids = _mixed(world.catalogue, step.state, 200, rng)
            rho = np.nan_to_num(engine.ac(step.state, ids), nan=np.inf)
            step = world.step(int(ids[np.argmin(rho)]) if rng.random() < 0.7 else 0)
        episode = (episode + 7) % len(world.sets["train"])  # a week gives five scenarios: on to another one
    return states


def _rank(world, engine, states):
    """Seconds from a state to a list in AC order: legality, DC of the whole catalogue, shortlist, AC."""
    dc = total = 0.0
    for state in states[:20]:
        start = time.process_time()
        engine.dc(state)
        dc += time.process_time() - start
        start = time.process_time()
        legal = world.catalogue.legality(state.topo, state.cooldown_sub, True)
        engine.best(state, legal, SHORTLIST)
        total += time.process_time() - start
    n = world.catalogue.n
    yield _row("catalogue_rank_s", total / 20, "s", "bar", 0.5, total / 20 / 0.5, n)
    yield _row("catalogue_dc_s", dc / 20, "s", "bar", 0.3, dc / 20 / 0.3, n)


def _rank_118(large, engine):
    obs = large.env.reset()
    engine.dc(large.state(obs))
    start = time.process_time()
    engine.dc(large.state(obs))
    wall = time.process_time() - start
    yield _row("catalogue_dc_118_s", wall, "s", "bar of the 36-substation grid", 0.3, wall / 0.3, large.catalogue.n)


def _one_step(world, engine, states):
    """One step with protections and cooldowns, against obs.simulate."""
    start = time.process_time()
    for _ in range(10):
        for state in states:
            engine.simulate(state, 0)
    own = (time.process_time() - start) / (10 * len(states))
    world.reset("train", 0)
    obs = world.env.get_obs()
    start = time.process_time()
    for _ in range(100):
        obs.simulate(world.env.action_space(), time_step=1)
    reference = (time.process_time() - start) / 100
    yield _row(
        "whatif_simulate_ms", own * 1e3, "ms", "obs.simulate", reference * 1e3, reference / own, 10 * len(states)
    )


def _recall(world, engine, states):
    """Share of states in which a shortlist holds the AC-best action or one within 0.005 of its rho; exhaustive AC."""
    sizes, found, gaps = (20, 50, 100, 200, SHORTLIST, 800), {}, {}
    for state in states:
        legal = world.catalogue.legality(state.topo, state.cooldown_sub, True)
        ids = world.catalogue.legal_ids(legal)
        rho = np.full(world.catalogue.n, np.inf)
        rho[ids] = np.nan_to_num(engine.ac(state, ids), nan=np.inf)
        for n in sizes:
            gap = rho[engine.shortlist(state, legal, n)].min() - rho.min()
            found.setdefault(n, []).append(gap <= NEAR)
            gaps.setdefault(n, []).append(gap)
    for n in sizes:
        share = float(np.mean(found[n]))
        name = "catalogue_recall" if n == SHORTLIST else f"catalogue_recall_{n}"
        yield _row(name, share, f"of states, shortlist of {n}", "bar", 0.95, share / 0.95, len(states))
        yield _row(f"{name}_regret", float(np.mean(gaps[n])), "rho, mean", "exhaustive AC", 0, None, len(states))


if __name__ == "__main__":
    for row in rows():
        value, ratio = row["value"], row["ratio"]
        print(
            f"{row['name']:32s} {value:12.6g} {row['unit']:28s} {row['reference']:30s} {row['reference_value']:10.5g}"
            f" {'' if ratio is None else f'{ratio:8.3g}'}  n={row['n']}",
            flush=True,
        )
