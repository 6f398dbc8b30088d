from dataclasses import dataclass
import numpy as np
from ace import baselines, config, evaluate
from ace.grid.environment import World
from ace.grid.fastworld import training_world
from ace.grid.whatif import WhatIf
from ace.llm.corpus import legal_of
from ace.llm.heldout import AN_EPISODE, mixed_episodes
from ace.llm.team import read_card
from ace.rl.sac import SAC
LOST = 1.5

@dataclass(slots=True)
class Judged:
    state: object
    x: np.ndarray
    legal: np.ndarray
    ids: np.ndarray
    rho: np.ndarray
    rewards: np.ndarray

class Bench:

    def __init__(self, environment):
        self.params, self.root, self.environment = (config.load(), config.root(), environment)
        self.settings = self.params.settings('ace')
        world = World(self.params.environment(environment), self.params.scenarios, self.settings.operator)
        self.world, self.whatif = (training_world(world), WhatIf(world))
        self.catalogue = world.catalogue
        self.actions = np.array(read_card(self.settings.llm, environment, self.root)['actions'])

    def judge(self, state):
        ids = self.actions[legal_of(self.catalogue, state, self.actions)]
        rewards = np.array([self.whatif.simulate(state, int(a)).reward for a in ids])
        return Judged(state, *self.world.observe(state), ids, self.rho(state, ids), rewards)

    def rho(self, state, ids):
        return np.minimum(np.nan_to_num(self.whatif.ac(state, ids), nan=LOST, posinf=LOST), LOST)

    def met(self, split, n):
        found = []
        for number, episode in enumerate(mixed_episodes(self.world, self.whatif, self.actions, split, seed=1)):
            chosen = np.random.default_rng([13, number]).permutation(len(episode))[:AN_EPISODE]
            found += [self.judge(episode[i].state) for i in sorted(chosen)]
            if len(found) >= n:
                break
        return found[:n]

    def visited(self, act, seed):
        states, rng = ([], np.random.default_rng([seed, 11]))
        for index in range(len(self.world.sets['validation'])):
            step, episode = (self.world.reset('validation', index), [])
            while not step.over:
                episode.append(step.state)
                step = self.world.step(act(*self.world.observe(step.state)))
            states += [episode[i] for i in sorted(rng.permutation(len(episode))[:AN_EPISODE])]
        return states

    def learner(self, seed):
        return SAC(self.catalogue, self.world.features.n, self.settings.sac, seed)

def survival(world, agent):
    return [100 * r.survival for r in evaluate.play(world, agent, 'validation', range(len(world.sets['validation'])))]

class SetArgmin(baselines.DoNothing):

    def __init__(self, bench):
        self.bench = bench

    def act(self, state, x, legal):
        ids = self.bench.actions[legal_of(self.bench.catalogue, state, self.bench.actions)]
        return int(ids[self.bench.rho(state, ids).argmin()])
