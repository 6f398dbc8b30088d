"""CAMEL, a neighbour of ACE (arXiv 2502.11896): exploration inside a mask that fades. Our reading, for discrete actions:

    with probability epsilon   a ~ pi(. | s) renormalised over M(s)     M(s): do nothing, and all that is legal at the
    else                       a ~ pi(. | s)                                  substations that were named

epsilon falls linearly to 0. Masking-aware: the transition is stored with the legality inside its mask, and every loss of a row
reads pi over the row's own legality, so that SAC's entropy, policy and temperature losses are renormalised inside the mask.
`legal_next`, which the target of Eq. 2 reads, is never masked. Validation and test know of no mask.
"""

from collections import Counter

import numpy as np

from ace.config.streams import generator


def epsilon(decisions, mask, total):
    """Probability that a decision explores inside its mask. decisions: made before it; mask: config.settings.Mask; total:
    decisions of the run."""
    return mask.epsilon * max(1.0 - decisions / (mask.until * total), 0.0)


def legal_inside(catalogue, legal, region):
    """The legality vector of a mask, (L,) uint8: of `legal` do nothing, and the actions at the substations of `region`.

    The hub is open only if it is one of these; which of its patterns are legal stays as it is.
    """
    inside, e = legal.copy(), catalogue.n_enum
    inside[1:e] &= np.isin(catalogue.sub[1:e], region)
    inside[e] &= catalogue.hub in region
    return inside


class MaskedExploration:
    """Chooses the actions of training.

    counts: decisions; masked of them; only_do_nothing: masked, and nothing else was legal inside; substations and actions: of
    the masks, summed over masked decisions (a mean size is this by `masked`); and what the regions count.
    """

    def __init__(self, sac, catalogue, regions, settings, seed):
        """sac: the learner; regions: llm.regions.Regions; settings: config.settings.Settings; seed: of the run."""
        self.sac, self.catalogue, self.regions, self.settings = sac, catalogue, regions, settings
        self.rng, self._counts = generator(seed, "mask"), Counter()

    @property
    def counts(self):
        return Counter({**self._counts, **self.regions.counts})

    @property
    def epsilon(self):
        """Of the next decision."""
        return epsilon(self._counts["decisions"], self.settings.mask, self.settings.train.decisions)

    def choose(self, decision):
        """Catalogue id. decision: episodes.Decision; where it is masked, its observation becomes what the policy was shown."""
        x, legal = decision.observation
        # drawn at every decision, so that who names the regions does not move the draws
        if self.rng.random() < self.epsilon:
            region = self.regions.of(decision.state, legal, self._counts["decisions"])
            if region:
                legal = legal_inside(self.catalogue, legal, region)
                decision.observation = x, legal
                n = len(self.catalogue.legal_ids(legal))
                self._counts.update(masked=1, only_do_nothing=int(n == 1), substations=len(region), actions=n)
        self._counts["decisions"] += 1
        return self.sac.act(x, legal, greedy=False)

    def row(self):
        """For the training curve: epsilon as it is now, the share of decisions that was masked, substations in a mask."""
        n = self._counts
        return {
            "epsilon": self.epsilon,
            "masked": n["masked"] / max(n["decisions"], 1),
            "mask_substations": n["substations"] / max(n["masked"], 1),
        }

    def state_dict(self):
        return {"rng": self.rng.bit_generator.state, "counts": dict(self._counts), "regions": self.regions.state_dict()}

    def load_state_dict(self, saved):
        self.rng.bit_generator.state = saved["rng"]
        self._counts = Counter(saved["counts"])
        self.regions.load_state_dict(saved["regions"])
