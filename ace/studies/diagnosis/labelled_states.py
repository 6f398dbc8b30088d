"""States of play and what the simulator says of every action of a set there: the ground that the diagnosis stands on.

Everything is played on the fast world, on training or validation scenarios.
"""

from dataclasses import dataclass

import numpy as np

from ace import baselines, config, evaluate
from ace.episodes import decisions
from ace.grid.environment import World
from ace.grid.fastworld import training_world
from ace.grid.whatif import WhatIf
from ace.llm.models.corpus import legal_of
from ace.llm.models.heldout import AN_EPISODE, mixed_episodes
from ace.llm.session import read_model_manifest
from ace.rl.sac import SAC

LOST = 1.5
"""Loading that stands for a power flow without a solution, and the most that any counts as: else a few would decide."""


@dataclass(slots=True)
class LabelledState:
    """A state with a choice. x (F,), legal (L,); ids (n,): the set's legal actions; rho (n,), at most LOST, and rewards
    (n,): what the simulator says of each."""

    state: object
    x: np.ndarray
    legal: np.ndarray
    ids: np.ndarray
    rho: np.ndarray
    rewards: np.ndarray


class DiagnosisSetup:
    """One environment with its what-if engine and the language model's set of actions."""

    def __init__(self, environment):
        self.params, self.root, self.environment = config.load(), config.root(), environment
        self.settings = self.params.settings("ace")
        world = World(self.params.environment(environment), self.params.scenarios, self.settings.operator)
        self.world, self.whatif = training_world(world), WhatIf(world)
        self.catalogue = world.catalogue
        self.actions = np.array(read_model_manifest(self.settings.llm, environment, self.root)["actions"])

    def label(self, state):
        ids = self.actions[legal_of(self.catalogue, state, self.actions)]
        rewards = np.array([self.whatif.simulate(state, int(a)).reward for a in ids])
        return LabelledState(state, *self.world.observe(state), ids, self.rho(state, ids), rewards)

    def rho(self, state, ids):
        """(n,) rho_max one step after each action, LOST at most."""
        return np.minimum(np.nan_to_num(self.whatif.ac(state, ids), nan=LOST, posinf=LOST), LOST)

    def met(self, split, n):
        """n states of a split's scenarios, labelled: met by the corpus's mixed behaviours, AN_EPISODE of each episode at most."""
        found = []
        for number, episode in enumerate(mixed_episodes(self.world, self.whatif, self.actions, split, seed=1)):
            chosen = np.random.default_rng([13, number]).permutation(len(episode))[:AN_EPISODE]
            found += [self.label(episode[i].state) for i in sorted(chosen)]
            if len(found) >= n:
                break
        return found[:n]

    def visited(self, act, seed):
        """States that `act(x, legal)` is asked about on the validation scenarios, at most AN_EPISODE of each episode."""
        states, rng = [], np.random.default_rng([seed, 11])
        for index in range(len(self.world.sets["validation"])):
            start = self.world.reset("validation", index)
            episode = [d.state for d in decisions(self.world, start, lambda decision: act(*decision.observation))]
            states += [episode[i] for i in sorted(rng.permutation(len(episode))[:AN_EPISODE])]
        return states

    def learner(self, seed):
        return SAC(self.catalogue, self.world.features.n, self.settings.sac, seed)


def survival(world, agent):
    """(E,) percent of the horizon, on the validation scenarios."""
    return [100 * r.survival for r in evaluate.play(world, agent, "validation", range(len(world.sets["validation"])))]


class SetArgmin(baselines.DoNothing):
    """Look-ahead within the set by AC power flow: what a perfect imitation of the labels would do."""

    def __init__(self, bench):
        self.bench = bench

    def act(self, state, x, legal):
        ids = self.bench.actions[legal_of(self.bench.catalogue, state, self.bench.actions)]
        return int(ids[self.bench.rho(state, ids).argmin()])
