"""The world: a Grid2Op environment on lightsim2grid, seen as a sequence of decisions.

Convention of the field (SMAAC, the WCCI 2020 winner; our reading of the paper): the agent is asked only when some line is
loaded above a danger level. Otherwise nothing is done, and lost lines are reconnected as soon as that is allowed. A
decision and the quiet steps after it make one transition of a semi-Markov decision process.
"""

import atexit
import contextlib
import copy
import functools
import weakref
from dataclasses import dataclass, fields

import grid2op
import numpy as np
from grid2op.Chronics import FromNPY
from grid2op.Exceptions import EnvError

from ace.config import ConfigError, root
from ace.config.environments import Environment, Scenarios
from ace.config.settings import Operator as OperatorSettings
from ace.grid.actions import Catalogue
from ace.grid.packaged import PackagedScenarios, make_env, read_packaged
from ace.grid.scenarios import SPLITS, WeekScenarios
from ace.grid.weeks import Weeks


@dataclass(slots=True)
class GridState:
    """What is known of the grid at one step. Plain arrays, about 2 KB, picklable: enough to ask "what if" much later.

    topo: (dim_topo,) int8, bus 1 or 2 of every element, -1 disconnected
    rho: (n_line,) float32, current / thermal limit; overflow: (n_line,) int16, steps spent above 1
    cooldown_line, cooldown_sub: int16, steps until it may be acted on again
    load_p, load_q, gen_p, gen_v: float32, MW, MVAr, MW, kV now; next_*: the same as forecast for the next step
    """

    scenario: int
    t: int
    topo: np.ndarray
    line_status: np.ndarray
    rho: np.ndarray
    overflow: np.ndarray
    cooldown_line: np.ndarray
    cooldown_sub: np.ndarray
    load_p: np.ndarray
    load_q: np.ndarray
    gen_p: np.ndarray
    gen_v: np.ndarray
    next_load_p: np.ndarray
    next_load_q: np.ndarray
    next_gen_p: np.ndarray
    next_gen_v: np.ndarray

    @property
    def rho_max(self):
        return float(self.rho.max())

    @classmethod
    def from_observation(cls, obs, scenario=None, t=0):
        """obs: a Grid2Op observation. Without a scenario the forecast is "as now" (a deployed policy does not need it)."""
        if scenario is None:
            index, ahead = -1, (obs.load_p, obs.load_q, obs.gen_p, obs.gen_v)
        else:
            index = scenario.index
            ahead = (scenario.next_load_p[t], scenario.next_load_q[t], scenario.next_gen_p[t], scenario.gen_v[t + 1])
        return cls(
            index, t, obs.topo_vect.astype(np.int8), obs.line_status.copy(), obs.rho.copy(),
            obs.timestep_overflow.astype(np.int16), obs.time_before_cooldown_line.astype(np.int16),
            obs.time_before_cooldown_sub.astype(np.int16), obs.load_p, obs.load_q, obs.gen_p, obs.gen_v, *ahead,
        )  # fmt: skip

    def to_arrays(self):
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def stack(cls, states):
        """Any number of states as {name: (n, ...) array}, {} for none; `unstack` is the way back."""
        rows = [state.to_arrays() for state in states]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}

    @classmethod
    def unstack(cls, columns):
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return [cls(**row | {"scenario": int(row["scenario"]), "t": int(row["t"])}) for row in rows]


def scenario_sets(environment, scenarios):
    """{split: its scenarios} of an environment. environment, scenarios: the sections of the same names in `config`.

    What is packaged is read when its first scenario is asked for: it takes seconds.
    """
    read = functools.cache(functools.partial(read_packaged, environment.grid2op))
    days = environment.days.model_dump() if environment.days else {"packaged": environment.packaged_days}
    sets = {
        split: PackagedScenarios(read, split, days[split], getattr(scenarios, split), environment.horizon, scenarios)
        for split in SPLITS
        if days.get(split)
    }
    if environment.weeks:
        folder, sd = root() / environment.weeks.path, environment.weeks.forecast_sd
        for split in SPLITS[:3]:
            weeks = Weeks(folder, scenarios.test_split if split == "test" else split)
            if weeks.env != environment.grid2op:
                key = f"environments: weeks.path = {environment.weeks.path}"
                raise ConfigError(f"params.yaml: {key}: these are weeks of {weeks.env}, not of {environment.grid2op}")
            sets[split] = WeekScenarios(weeks, split, getattr(scenarios, split), environment.horizon, scenarios.seed, sd)
    return {split: sets[split] for split in SPLITS if split in sets}


def step_reward(rho, done):
    """Reward of a step from the loading that it led to, in [-1, 1] (our reading).

    5 (1 - rho_max), less half of the overloads' sum; -1 on a blackout. 0 means: the most loaded line is exactly at its limit.
    rho: (n_line,). With this scale the paper's thresholds r̄ of -0.3, 0 and 0.3 are loadings of about 1.05, 1.0 and 0.94.
    """
    if done:
        return -1.0
    rho_max = float(rho.max())
    overloads = float(np.maximum(rho - 1, 0).sum()) if rho_max > 1 else 0.0
    return min(max(5 * (1 - rho_max) - 0.5 * overloads, -1.0), 1.0)


class Operator:
    """The reflexes shared by every method: reconnect what may be reconnected, go back to the reference topology where the grid
    is far from danger, and ask the agent only in danger."""

    def __init__(self, settings):
        self.danger, self.reconnects, self.recover = settings.danger, settings.reconnect, settings.recover

    def reconnection(self, state):
        """The line to put back now, or None. One a step, as the rules of the competition allow."""
        status = state.line_status
        if not self.reconnects or status[status.argmin()]:  # asked at every step: a third of the time of all()
            return None
        ready = np.flatnonzero(~state.line_status & (state.cooldown_line == 0))
        return int(ready[0]) if len(ready) else None

    def recovery(self, state, catalogue):
        """The action that puts a substation back on one bus now, 0 for none: one a step, all loadings below `recover`."""
        if not self.recover or state.rho[state.rho.argmax()] >= self.recover or state.topo.max() < 2:
            return 0
        pattern, _ = catalogue.patterns(state.topo)
        ready = np.flatnonzero((pattern != 0) & (state.cooldown_sub == 0))
        return catalogue.id_of(int(ready[0]), 0) if len(ready) else 0

    def asks(self, state):
        """Whether the agent decides here: danger, and no reconnection that goes first."""
        return self.in_danger(state) and self.reconnection(state) is None

    def in_danger(self, state):
        return bool(state.rho[state.rho.argmax()] > self.danger)  # as above, of max()


class Features:
    """x: a state as float32 vector for the networks: loadings, overflow timers, lost lines, topology, cooldowns, injections."""

    def __init__(self, grid):
        self.load_scale = np.maximum(np.asarray(grid["load_scale"]), 1e-3).astype(np.float32)
        self.gen_scale = np.maximum(np.asarray(grid["gen_max"]), 1e-3).astype(np.float32)
        n_line, dim_topo, n_sub = grid["n_line"], grid["dim_topo"], grid["n_sub"]
        self.n = 3 * n_line + dim_topo + n_sub + len(self.load_scale) + len(self.gen_scale)

    def __call__(self, state):
        return np.concatenate([
            state.rho, state.overflow * np.float32(0.25), ~state.line_status, state.topo == 2,
            state.cooldown_sub * np.float32(1 / 3), state.load_p / self.load_scale, state.gen_p / self.gen_scale,
        ]).astype(np.float32)  # fmt: skip


@dataclass(slots=True)
class Step:
    """What followed a decision: the states and rewards of each step until the agent is asked again.

    rewards: r_{t+1} .. r_{t+n}; first: the state one step after the decision; state: the one where it is asked again.
    blackout: the grid is lost; over: the scenario has ended or the grid is lost.
    """

    rewards: list
    first: GridState
    state: GridState
    blackout: bool
    over: bool


class Injections(FromNPY):
    """Grid2Op's chronics from arrays, with a constant name: FromNPY hashes all arrays for its name at every single step."""

    def get_id(self):
        return "ace"


class World:
    """One environment with its scenarios, catalogue and operator reflexes, on Grid2Op itself."""

    limits = 1.0
    """Share of the environment's thermal limits; a FastWorld may have lower ones."""

    def __init__(self, environment, scenarios, operator):
        """environment, scenarios, operator: the sections of the same names in `config`."""
        self.spec, self.operator = environment, Operator(operator)
        self.sets = scenario_sets(environment, scenarios)
        self.env = self._make(self.sets["train"][0])
        self.catalogue = Catalogue(self.env)
        self.features = Features(
            {"load_scale": self.sets["train"].load_means(), "gen_max": self.sets["train"].gen_max, "n_line": self.env.n_line,
             "dim_topo": self.env.dim_topo, "n_sub": self.env.n_sub}
        )  # fmt: skip
        self.env_steps = 0
        self._nothing = self.env.action_space()
        self._done = True

    def _make(self, first):
        opponent = {} if self.spec.opponent else {
            "opponent_init_budget": 0.0, "opponent_budget_per_ts": 0.0, "opponent_class": grid2op.Opponent.BaseOpponent,
        }  # fmt: skip
        env = make_env(self.spec.grid2op, chronics_class=Injections, data_feeding_kwargs=_npy(first), **opponent)
        env.set_thermal_limit(env.get_thermal_limit() * self.spec.thermal_factor)
        _close_at_exit(env)
        return env

    def observe(self, state):
        """(x, legality) of a state, as the networks take them."""
        return self.features(state), self.catalogue.legality(state.topo, state.cooldown_sub, self.operator.asks(state))

    def reset(self, split, index):
        """Begin scenario `index` of a split; quiet steps are played until the agent is asked.

        Returns a Step whose rewards belong to no decision. The opponent's draws depend on the scenario only, by its own number:
        a set may be a part of another.
        """
        self.scenario = self.sets[split][index]
        self.t, self.blackout, self._done = 0, False, False
        self.state = self._first_state(10_000_000 * self.scenario.salt + 1_000_000 * SPLITS.index(split) + self.scenario.index)
        return self._until_asked([], None)

    def step(self, action):
        """Play a catalogue action, then quiet steps until the agent is asked again: a Step."""
        if self._done:
            raise RuntimeError("the episode is over: call reset()")
        rewards = [self._advance(action, None)]
        return self._until_asked(rewards, self.state)

    def _until_asked(self, rewards, first):
        while not self._done:
            line = self.operator.reconnection(self.state)
            if line is None and self.operator.in_danger(self.state):
                break
            action = self.operator.recovery(self.state, self.catalogue) if line is None else 0
            rewards.append(self._advance(action, line))
        return Step(rewards, first or self.state, self.state, self.blackout, self._done)

    def _advance(self, action, line):
        """One step with a catalogue action, or a line to put back, or neither; returns the step's reward."""
        self.state, reward, self.blackout = self._next_state(action, line)
        self.t += 1
        self.env_steps += 1
        self._done = self.blackout or self.t >= self.spec.horizon
        return reward

    def _first_state(self, seed):
        data, s = self.env.chronics_handler.real_data, self.scenario
        data.change_chronics(s.load_p, s.load_q, s.gen_p, s.gen_v)
        data.change_forecasts(s.next_load_p, s.next_load_q, s.next_gen_p, s.gen_v)
        self.env.seed(seed)
        return GridState.from_observation(self.env.reset(), s, 0)

    def _next_state(self, action, line):
        if line is not None:
            grid_action = self.env.action_space({"set_line_status": [(line, 1)]})
        elif action:
            grid_action = self.catalogue.to_grid2op(action, self.env.action_space, self.state.topo)
        else:
            grid_action = self._nothing
        # The arrays are longer than the horizon: Grid2Op ends an episode on a blackout only.
        obs, _, blackout, info = self.env.step(grid_action)
        if info["is_illegal"] or info["is_ambiguous"]:
            raise RuntimeError(f"Grid2Op refused action {action} at step {self.t}: {info['exception']}")
        state = GridState.from_observation(obs, self.scenario, self.t + 1)
        return state, step_reward(state.rho, bool(blackout)), bool(blackout)


@functools.lru_cache(maxsize=2)
def _shared_world(environment, scenarios, operator):
    """The World of these sections, as text: made once a process, as it takes a second."""
    kinds = (Environment, environment), (Scenarios, scenarios), (OperatorSettings, operator)
    return World(*(kind.model_validate_json(text) for kind, text in kinds))


def own_world(environment, scenarios, operator):
    """A World of its own for these sections: what episodes leave behind is not shared, the grid and its scenarios are."""
    world = copy.copy(_shared_world(*(section.model_dump_json() for section in (environment, scenarios, operator))))
    world.env_steps, world._done, world.sets = 0, True, dict(world.sets)
    return world


def _close_at_exit(env):
    """Left to the interpreter, an environment closes its parts twice at exit, and Grid2Op prints a traceback."""
    alive = weakref.ref(env)

    def close():
        if alive() is not None:
            with contextlib.suppress(EnvError):  # its user has closed it
                alive().close()

    atexit.register(close)


def _npy(scenario):
    """A scenario as arguments of Grid2Op's FromNPY."""
    return {
        "load_p": scenario.load_p, "load_q": scenario.load_q, "prod_p": scenario.gen_p, "prod_v": scenario.gen_v,
        "load_p_forecast": scenario.next_load_p, "load_q_forecast": scenario.next_load_q,
        "prod_p_forecast": scenario.next_gen_p, "prod_v_forecast": scenario.gen_v,
    }  # fmt: skip
