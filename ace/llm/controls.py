"""The controls, without a language model: what stands in for f_LLM (`ControlActor`) and for g_LLM (`RandomCritic`).

A ControlActor has the same bad cases, rounds and validation as f_LLM and another proposer. What it gains over plain SAC is
the simulator's doing; only what f_LLM gains over it is the model's.
"""

from collections import Counter

import numpy as np

from ace.llm.policy_actor import Refinement
from ace.llm.text import MULTIPLES
from ace.llm.value_critic import key_decisions


class ControlActor:
    """Proposes without a language model. Every proposal is simulated, as f_LLM's are, until one gains the margin.

    propose: (state, legal, rng) -> up to any number of ids, the first to be tried first; counts: as PolicyActor's.
    """

    recorder = None

    def __init__(self, propose, catalogue, whatif, settings):
        """settings: config.settings.Refine."""
        self.propose, self.catalogue, self.whatif, self.settings = propose, catalogue, whatif, settings
        self.counts = Counter()

    def refine(self, cases, seed):
        """A Refinement for each bad case, or None where there was nothing to propose."""
        rng = np.random.default_rng(seed)
        return [self._refine(case, rng) for case in cases]

    def _refine(self, case, rng):
        original = self.whatif.simulate(case.state, case.action).reward
        legal = self.catalogue.legality(case.state.topo, case.state.cooldown_sub, True)
        tried, best = [], None
        for action in self.propose(case.state, legal, rng):
            if action == case.action:
                continue
            if len(tried) == self.settings.rounds or (best and best[1].reward > original + self.settings.margin):
                break
            result = self.whatif.simulate(case.state, action)
            tried.append((action, result.reward))
            if best is None or result.reward > best[1].reward:
                best = action, result
        self.counts["proposals"] += len(tried)
        self.counts["validated"] += len(tried)
        if best is None:
            return None
        action, result = best
        improved = result.reward > original + self.settings.margin
        self.counts["improved"] += improved
        return Refinement(case.uid, action, result.reward, original, improved, result.next_state, result.done, len(tried),
                          tried, "", "")  # fmt: skip

    def state_dict(self):
        return {"counts": dict(self.counts)}

    def load_state_dict(self, state):
        self.counts = Counter(state["counts"])


def control(name, world, whatif, settings, shortlist, ranking):
    """The control of this name. settings: config.settings.Refine; shortlist: of the expert's look-ahead; ranking: ids, the label
    most frequent in the corpus first."""
    catalogue = world.catalogue

    def expert(state, legal, rng):
        return whatif.best(state, legal, shortlist)[0].tolist()

    def random(state, legal, rng):
        # First a substation, then one of its patterns: over the catalogue, 98 % of all draws would fall on the hub. To do
        # nothing counts as one more substation.
        ids = catalogue.legal_ids(legal)
        subs = np.unique(catalogue.sub[ids])
        drawn = rng.permutation(subs)[: settings.rounds + 1]
        return [int(rng.choice(ids[catalogue.sub[ids] == sub])) for sub in drawn]

    def frequency(state, legal, rng):
        return [int(action) for action in ranking if catalogue.is_legal(legal, int(action))]

    propose = {"expert": expert, "random": random, "frequency": frequency}[name]
    return ControlActor(propose, catalogue, whatif, settings)


class RandomCritic:
    """In g_LLM's place: as many adjustments as there are key decisions, of random decisions, by random multiples.

    counts: adjusted, of all calls so far.
    """

    def __init__(self, settings):
        """settings: config.settings.Shape."""
        self.settings, self.counts = settings, Counter()

    def shape(self, episode, seed):
        """As `ValueCritic.shape`, from a generator with this seed."""
        rng, n = np.random.default_rng(seed), len(key_decisions(episode, self.settings.select, self.settings.threshold))
        positions = np.sort(rng.choice(len(episode), n, replace=False)) if n else []
        self.counts["adjusted"] += n
        multiples = rng.choice(MULTIPLES, n)
        return {int(p): int(m) * self.settings.K for p, m in zip(positions, multiples, strict=True)}

    def state_dict(self):
        return {"counts": dict(self.counts)}

    def load_state_dict(self, state):
        self.counts = Counter(state["counts"])
