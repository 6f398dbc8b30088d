"""The official score of the L2RPN competitions of 2020, of baselines and trained policies, on our test scenarios.

A scenario is scored by what operating the grid cost: losses at the price of the dearest running unit, and for each step after
the grid is lost its whole load at the dearest price. Between fixed points the score is linear. 0: Grid2Op's do-nothing
agent. 80: all steps, lines not tripped by overload and put back otherwise. 100: cost 0 (see below). -100: lost at once.

Grid2Op's, unchanged: the cost of a step (`L2RPNSandBoxScore`), the agents of both fixed points (`DoNothingAgent`,
`RecoPowerlineAgent`), and the score with its interpolation (`ScoreL2RPN2020`, called, not rewritten). Ours: where its numbers
come from. Its constructor plays the two fixed points on folders of chronics and keeps them with Grid2Op's own
data; our scenarios lie in memory, so they are played here and handed over. `tests/test_official.py` writes scenarios as
such folders, and the scorer run as it is gives the same scores. What the competitions had and these scores have not: their
scenarios, their thermal limits (ours are `thermal_factor` times them) and redispatching by the agents. No score where
an opponent acts: it attacks full lines rather than empty ones, so that not even the fixed points meet the same attacks.

Known of Grid2Op 1.12: `ScoreL2RPN2020` means to put 100 at 80 % of the losses (`min_losses_ratio`), but reads the loads
in place of the generation, so that these losses are 0. It is left as it is: agents of topology alone hardly go beyond 80.
"""

import functools
import inspect
import re
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from grid2op.Agent import DoNothingAgent, RecoPowerlineAgent
from grid2op.dtypes import dt_float
from grid2op.Reward import L2RPNSandBoxScore
from grid2op.utils import EpisodeStatistics, ScoreL2RPN2020

from ace import baselines, config, evaluate
from ace.config import ConfigError
from ace.grid.environment import Operator, World
from ace.studies.policies import tasks_of
from ace.trained_policies import agent_of, play_tasks, world_of, write_rows

FIXED = {"grid2op_do_nothing": (DoNothingAgent, True), "grid2op_unprotected": (RecoPowerlineAgent, False)}
"""The fixed points 0 and 80: agent of Grid2Op, whether overflow protection takes lines."""
COLUMNS = ["env", "variant", "seed", "episode", "horizon", "survived_steps", "survival", "cost", "score"]


@dataclass(frozen=True)
class Played:
    """One episode as the scorer reads it. n: steps, a last one in which the grid was lost among them.

    costs: (n,) float32, of each step; load_p, gen_p: (n + 1, ...) float32, MW, the first state among them, asked for of a
    fixed point only.
    """

    survived_steps: int
    costs: np.ndarray
    load_p: np.ndarray | None = None
    gen_p: np.ndarray | None = None

    @property
    def operating_cost(self):
        """Of the steps that count: the scorer leaves the last one out, whether the grid was lost in it or not."""
        return float(self.costs[:-1].sum(dtype=float))


class AgentAsOperator:
    """One of Grid2Op's agents that at most put lines back, in the place of our reflexes; no other agent is asked."""

    def __init__(self, env, agent):
        self.env, self.agent = env, agent(env.action_space)

    def reconnection(self, state):
        if state.line_status.all():  # either agent does nothing then, and copying an observation takes time
            return None
        lines = np.flatnonzero(self.agent.act(self.env.get_obs(), 0.0).line_set_status)
        return int(lines[0]) if len(lines) else None

    def recovery(self, state, catalogue):
        return 0

    def in_danger(self, state):
        return False


class ScoredWorld(World):
    """A world that keeps what the scorer wants to know of an episode."""

    def __init__(self, world, operator, protected=True):
        """world: a World, whose environment, scenarios and catalogue are shared; operator: its reflexes.

        protected: whether lines above their limit are taken out of service, as ever.
        """
        vars(self).update(vars(world))
        if not protected:  # in an environment of its own: the what-if engine reads the parameters of the shared one
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.env, parameters = self._make(world.sets["test"][0]), world.env.parameters
            parameters.NO_OVERFLOW_DISCONNECTION = True
            self.env.change_parameters(parameters)
            self.env.change_forecast_parameters(parameters)
        self.operator, self.env_steps, self._done = operator, 0, True
        self._cost = L2RPNSandBoxScore()
        self._cost.initialize(self.env)

    def _first_state(self, seed):
        state = super()._first_state(seed)
        self._costs, self._states = [], [state]
        return state

    def _next_state(self, action, line):
        state, reward, blackout = super()._next_state(action, line)
        self._costs.append(self._cost(None, self.env, blackout, blackout, False, False))
        self._states.append(state)
        return state, reward, blackout

    def played(self):
        """The episode that has just ended: Played."""
        load_p, gen_p = (np.stack([getattr(state, name) for state in self._states]) for name in ("load_p", "gen_p"))
        return Played(self.t - self.blackout, np.array(self._costs, dtype=dt_float), load_p, gen_p)


def fixed_point(world, name):
    """A ScoredWorld in which one of FIXED plays by itself."""
    agent, protected = FIXED[name]
    scored = ScoredWorld(world, None, protected)
    scored.operator = AgentAsOperator(scored.env, agent)
    return scored


class _InMemory:
    """Stands in for Grid2Op's `EpisodeStatistics`, which reads the same from a folder; of a single scenario, number 0."""

    def __init__(self, played):
        self.values = {EpisodeStatistics.SCORES: played.costs, "load_p": played.load_p, "prod_p": played.gen_p}

    def get(self, name):
        values = self.values[name]
        return values, np.zeros((len(values), 1), dtype=int)


class Score(ScoreL2RPN2020):
    """Grid2Op's score on one scenario, of which both fixed points were played already."""

    def __init__(self, env, do_nothing, unprotected):
        """env: a Grid2Op environment, for its prices; the others: Played. The parent's constructor is not called: it would
        play the fixed points again, on chronics from a folder, and write them to where Grid2Op keeps its data."""
        self.env, self.max_step = env, -1
        self.min_losses_ratio = inspect.signature(ScoreL2RPN2020).parameters["min_losses_ratio"].default
        self.stat_dn, self.stat_no_overflow_rp = _InMemory(do_nothing), _InMemory(unprotected)
        steps = (len(played.load_p) for played in (do_nothing, unprotected))
        self._metadata = [{"0": {"nb_step": n}, "max_step": self.max_step} for n in steps]

    def __call__(self, played):
        """played: Played. Returns the score, in [-100, 100]."""
        costs = [{EpisodeStatistics.KEY_SCORE: cost} for cost in played.costs]
        score, _, _ = self._compute_episode_score(0, {"nb_timestep_played": len(costs)}, costs, *self._metadata)
        return float(score)


def play_official(environment, episodes=30, output="results"):
    """Play all methods on the first test episodes and score them. Reads the policies of results/runs and the manifest of the
    language model; writes <output>/studies/official_score/<environment>.csv, a row an episode, and returns it as a table.

    Raises ConfigError or FileNotFoundError, one line each.
    """
    params = config.load()
    name = params.environment(environment).grid2op
    if re.search(r"_202[1-9]", name):
        raise ConfigError(f"params.yaml: {environment}: {name} is of a later competition, which was scored otherwise")
    if params.environment(environment).opponent:
        raise ConfigError(f"params.yaml: {environment}: its opponent would attack the fixed points otherwise than the agents")
    idle, learned = params.played("official_score", environment)
    tasks = tasks_of(params, environment, [*FIXED, *idle], learned)
    world = world_of(environment)
    episodes = min(episodes, len(world.sets["test"]))
    played = play_tasks(functools.partial(_play, environment, episodes), tasks, f"{environment}, official score")
    scorers = [Score(world.env, *points) for points in zip(*played[: len(FIXED)], strict=True)]
    rows = []
    for (variant, seed, _), run in zip(tasks, played, strict=True):
        for episode, (scorer, result) in enumerate(zip(scorers, run, strict=True)):
            steps, horizon = result.survived_steps, world.spec.horizon
            row = [environment, variant, seed, episode, horizon, steps, steps / horizon]
            rows.append([*row, result.operating_cost, scorer(result)])
    table = pd.DataFrame(rows, columns=COLUMNS)
    write_rows(table, output, "official_score", environment)
    return table


def _play(environment, episodes, variant, seed, policy):
    """All test episodes of one run, or of a fixed point: list of Played."""
    base, result = world_of(environment), []
    if variant in FIXED:
        world, agent = fixed_point(base, variant), baselines.DoNothing()
    else:
        settings = config.load().settings(variant)
        world, agent = ScoredWorld(base, Operator(settings.operator)), agent_of(settings, environment, base, policy)
    for episode in range(episodes):
        list(evaluate.play(world, agent, "test", [episode]))
        played = world.played()
        result.append(played if variant in FIXED else replace(played, load_p=None, gen_p=None))
    return result
