"""LLM4Teach, a baseline: the policy is distilled from the language model's unvalidated proposals (our reading)."""

import numpy as np

from ace.rl.sac import DistillationBatch


class Distillation:
    """propose: (states, seed) -> a catalogue id or None for each; rng: numpy's generator."""

    def __init__(self, propose, settings, rng):
        """settings: config.settings.Settings."""
        self.propose, self.settings, self.rng = propose, settings, rng
        self.unasked, self.proposals = [], []  # this episode's decisions since the model was asked; its (x, legal, id)

    def ask(self):
        """One proposal for some of the latest decisions, as many as f_LLM would be asked about."""
        n = min(self.settings.refine.max_cases, len(self.unasked))
        chosen = [self.unasked[i] for i in self.rng.choice(len(self.unasked), n, replace=False)]
        answers = self.propose([decision.state for decision in chosen], int(self.rng.integers(2**31)))
        self.proposals += [(*d.observation, a) for d, a in zip(chosen, answers, strict=True) if a is not None]
        self.unasked = []

    def batch(self, decisions):
        """What one update imitates, with a weight that falls linearly to 0 over the run; None while there are no proposals."""
        train = self.settings.train
        if not self.proposals:
            return None
        drawn = self.rng.integers(len(self.proposals), size=train.batch_size // 2)
        x, legal, action = (np.array(column) for column in zip(*(self.proposals[i] for i in drawn), strict=True))
        left = max(1 - decisions / train.decisions, 0)
        return DistillationBatch(x, legal, action, self.settings.teach.weight * left)

    def state_dict(self):
        """At the end of an episode; rng is the caller's."""
        return {"proposals": [list(proposal) for proposal in self.proposals]}

    def load_state_dict(self, state):
        self.proposals = [tuple(proposal) for proposal in state["proposals"]]
