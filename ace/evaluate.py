"""Held-out episodes: what a deployed agent survives, and what it costs to ask it.

`play` is the one way in which any method is scored, on validation scenarios while training and on test scenarios once.
A trained policy is also a Grid2Op agent (`GridAgent`) and runs under Grid2Op's own `Runner`.
"""

import time
from dataclasses import asdict, dataclass

import numpy as np
from grid2op.Agent import BaseAgent

from ace.grid.environment import GridState


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


class Policy:
    """A trained policy as agent: the most probable legal action. No simulator, no language model ("act once")."""

    simulator_calls = dc_calls = llm_calls = 0

    def __init__(self, deployed):
        """deployed: rl.policy.DeployedPolicy, of a learner or from `load_policy`."""
        self.deployed = deployed

    def act(self, state, x, legal):
        return self.deployed.act(x, legal, None)


def play(world, agent, split, indices):
    """Play scenarios of a split from start to end: yields one EpisodeResult each."""
    for index in indices:
        before = (agent.simulator_calls, agent.dc_calls, agent.llm_calls)
        step = world.reset(split, index)
        rewards, decisions, acted, seconds = list(step.rewards), 0, 0, 0.0
        while not step.over:
            x, legal = world.observe(step.state)
            started = time.perf_counter()
            action = agent.act(step.state, x, legal)
            seconds += time.perf_counter() - started
            step = world.step(action)
            rewards += step.rewards
            decisions += 1
            acted += action != 0
        calls = (agent.simulator_calls - before[0], agent.dc_calls - before[1], agent.llm_calls - before[2])
        # A step that ends in the blackout was not survived.
        survived = world.t - int(step.blackout)
        yield EpisodeResult(
            split, index, world.spec.horizon, survived, survived / world.spec.horizon, float(np.sum(rewards)),
            float(np.mean(rewards)) if rewards else 0.0, decisions, acted, *calls, seconds,
        )  # fmt: skip


class GridAgent(BaseAgent):
    """Any agent of this package, with the operator's reflexes, as a Grid2Op agent.

    world: the World it was trained in (catalogue, features, operator); agent: something with `act(state, x, legal)`.
    """

    def __init__(self, action_space, world, agent):
        super().__init__(action_space)
        self.catalogue, self.features, self.operator, self.agent = (
            world.catalogue,
            world.features,
            world.operator,
            agent,
        )

    def act(self, observation, reward, done=False):
        state = GridState.from_observation(observation)
        line = self.operator.reconnection(state)
        if line is not None:
            return self.action_space({"set_line_status": [(line, 1)]})
        if not self.operator.asks(state):
            return self.action_space()
        legal = self.catalogue.legality(state.topo, state.cooldown_sub, True)
        action = self.agent.act(state, self.features(state), legal)
        return self.catalogue.to_grid2op(action, self.action_space, state.topo)
