"""Held-out episodes: what a deployed agent survives, and what it costs to ask it.

`play` is the one way in which any method is scored, on validation scenarios while training and on test scenarios once.
A trained policy is also a Grid2Op agent (`GridAgent`) and runs under Grid2Op's own `Runner`.
"""

import time
from dataclasses import asdict, dataclass, replace

import numpy as np
from grid2op.Agent import BaseAgent

from ace.episodes import decisions
from ace.grid.environment import GridState

CALLS = ("simulator_calls", "dc_calls", "llm_calls")
REPEATED = "test_on_grid2op"  # split of the results
SAME_REWARD = 0.05  # of a sum over an episode: float32 states differ in the last digits


@dataclass(slots=True)
class EpisodeResult:
    """One held-out episode. survival: survived_steps / horizon; reward: sum of the step rewards; seconds: of the agent alone."""

    split: str
    scenario: int
    horizon: int
    survived_steps: int
    survival: float
    reward: float
    reward_mean: float
    decisions: int
    topology_actions: int
    simulator_calls: int
    dc_calls: int
    llm_calls: int
    seconds: float

    def row(self):
        """Without the wall time, which differs in every run."""
        row = asdict(self)
        del row["seconds"]
        return row


def play(world, agent, split, indices):
    """Play scenarios of a split from start to end: yields one EpisodeResult each."""
    seconds = 0.0

    def choose(decision):
        nonlocal seconds
        x, legal = decision.observation
        started = time.perf_counter()
        action = agent.act(decision.state, x, legal)
        seconds += time.perf_counter() - started
        return action

    for index in indices:
        before, seconds = (agent.simulator_calls, agent.dc_calls, agent.llm_calls), 0.0
        start = world.reset(split, index)
        rewards, asked, acted = list(start.rewards), 0, 0
        for decision in decisions(world, start, choose):
            rewards += decision.step.rewards
            asked += 1
            acted += decision.action != 0
        calls = (agent.simulator_calls - before[0], agent.dc_calls - before[1], agent.llm_calls - before[2])
        # A step that ends in the blackout was not survived.
        survived = world.t - int(world.blackout)
        yield EpisodeResult(
            split, index, world.spec.horizon, survived, survived / world.spec.horizon, float(np.sum(rewards)),
            float(np.mean(rewards)) if rewards else 0.0, asked, acted, *calls, seconds,
        )  # fmt: skip


class Plays:
    """What a finished run plays, by phase, and what that used.

    test: on the fast world where that is right; repeats: its first episodes once more, on Grid2Op itself; packaged: days that
    Grid2Op packages; marks: the test with the policy of a mark; redraws: under another draw of the opponent; lower: at lower
    thermal limits.
    """

    PHASES = ("test", "packaged", "marks", "redraws", "repeats", "lower")

    def __init__(self, world, fast):
        """world: a World; fast: `training_world` of it."""
        self.world, self.fast = world, fast
        self.results = {phase: [] for phase in self.PHASES}
        self.steps = dict.fromkeys(self.PHASES, 0)
        self.differ = []

    def play(self, agent, phase, split="test", name=None, world=None, number=None, tick=None):
        """Play a split's first scenarios, all by default. name: of the results, default `split`; tick: called with how many are
        done."""
        world = world or self.fast
        before, number = world.env_steps, len(world.sets[split]) if number is None else number
        for done, result in enumerate(play(world, agent, split, range(number)), start=1):
            self.results[phase].append(replace(result, split=name or split))
            if tick:
                tick(done, number)
        self.steps[phase] += world.env_steps - before

    def repeat(self, agent, number):
        """The first test episodes on Grid2Op, where the fast world has played them; which differ is noted in `differ`."""
        if self.fast is self.world:
            return
        self.play(agent, "repeats", name=REPEATED, world=self.world, number=min(number, len(self.results["test"])))
        for fast, slow in zip(self.results["test"], self.results["repeats"], strict=False):
            counted = [(each.survived_steps, each.decisions, each.topology_actions) for each in (fast, slow)]
            if counted[0] != counted[1] or abs(fast.reward - slow.reward) > SAME_REWARD:
                self.differ.append(fast.scenario)

    def used(self):
        """{phase: calls and steps}, of the test and all else that was played."""
        return {
            phase: {name: sum(getattr(e, name) for e in results) for name in CALLS} | {"env_steps": self.steps[phase]}
            for phase, results in self.results.items() if results or phase == "test"
        }  # fmt: skip


class GridAgent(BaseAgent):
    """Any agent of this package, with the operator's reflexes, as a Grid2Op agent.

    world: the World it was trained in (catalogue, features, operator); agent: something with `act(state, x, legal)`.
    """

    def __init__(self, action_space, world, agent):
        super().__init__(action_space)
        self.catalogue, self.features, self.operator = world.catalogue, world.features, world.operator
        self.agent = agent

    def act(self, observation, reward, done=False):
        state = GridState.from_observation(observation)
        line = self.operator.reconnection(state)
        if line is not None:
            return self.action_space({"set_line_status": [(line, 1)]})
        if not self.operator.asks(state):
            return self.catalogue.to_grid2op(self.operator.recovery(state, self.catalogue), self.action_space, state.topo)
        legal = self.catalogue.legality(state.topo, state.cooldown_sub, True)
        action = self.agent.act(state, self.features(state), legal)
        return self.catalogue.to_grid2op(action, self.action_space, state.topo)
