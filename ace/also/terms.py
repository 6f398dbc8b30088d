"""Shaping terms and the sampler that adds them to a batch.

    r'(s, a, s') = r + sum_i w_i F_i,    F_i = gamma^n Phi_i(s') - Phi_i(s),    -1 <= Phi_i <= 0

A difference of potentials leaves the optimal policy as it is (Ng et al. 1999). `gamma^n` is the row's own discount, 0 after a
blackout. r is the return of the row, normalised by 1 - gamma as values are, which lie in [-1, 1]: a term with w = 0.5 moves a
value by a quarter of that range at the most, three such terms by three quarters. `acting` is the one term that is no potential:
it charges every action but do nothing.

Shaping is added when a batch is drawn: the buffers keep what was measured, and every row follows the present configuration.
"""

import numpy as np

from ace.rl.buffers import MixedSampler

POTENTIALS = ("margin", "overload", "lost", "topology", "recovery")
TERMS = (*POTENTIALS, "acting")
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Weights that there are; a term that is not named has none."""
MOST_TERMS = 3
"""In a configuration, whoever proposes it."""
LOADING, OVERLOADS, LINES, MOVED, TIMER = 2.0, 1.0, 4.0, 20.0, 4.0
"""Where the potentials reach -1: loading of the most loaded line, sum of overloads, lines lost, elements away from the reference
topology, steps that a line has been overloaded for (the features hold a quarter of them)."""


class Terms:
    """Potentials, read from the networks' features.

    n_line, dim_topo: of the grid; acting_cost: of one action, in the unit of a row's return, 1 - gamma: one step's reward of 1.
    """

    def __init__(self, n_line, dim_topo, gamma):
        self.n_line, self.dim_topo, self.acting_cost = n_line, dim_topo, 1.0 - gamma

    @classmethod
    def of(cls, learner):
        """Of the grid of a coevolve.CoEvolution."""
        catalogue = learner.world.catalogue
        return cls(catalogue.n_line, catalogue.dim_topo, learner.settings.sac.gamma)

    def measures(self, x):
        """x: (B, F) -> (B, 5): highest loading, sum of overloads, lines lost, elements on bus 2, longest overload in steps."""
        n = self.n_line
        rho, timers, lost, bus_2 = x[:, :n], x[:, n : 2 * n], x[:, 2 * n : 3 * n], x[:, 3 * n : 3 * n + self.dim_topo]
        return np.stack(
            [rho.max(1), np.maximum(rho - 1, 0).sum(1), lost.sum(1), bus_2.sum(1), 4 * timers.max(1)], axis=1
        ).astype(np.float64)  # fmt: skip

    def potentials(self, x):
        """x: (B, F) -> (B, 5) in [-1, 0], in the order of POTENTIALS."""
        return -np.clip(self.measures(x) / (LOADING, OVERLOADS, LINES, MOVED, TIMER), 0.0, 1.0)

    def shaping(self, weights, batch):
        """What is added to the returns of a batch, (B,) float32. weights: (6,) in the order of TERMS; batch: rl.buffers.Batch."""
        difference = batch.discount[:, None] * self.potentials(batch.x_next) - self.potentials(batch.x)
        acting = -self.acting_cost * (batch.action != 0)
        return (difference @ weights[:-1] + weights[-1] * acting).astype(np.float32)


class ShapedSampler:
    """D_mix with shaped returns, in the place of a `MixedSampler`. weights: (6,), all zero for none."""

    def __init__(self, inner: MixedSampler, terms):
        self.inner, self.terms, self.weights = inner, terms, np.zeros(len(TERMS))

    def sample(self, batch_size, rng):
        batch = self.inner.sample(batch_size, rng)
        if self.weights.any():
            batch.reward = batch.reward + self.terms.shaping(self.weights, batch)
        return batch


def as_weights(configuration):
    """{term: weight} -> (6,). ValueError for a term that there is not, a weight that is not of LEVELS, or too many terms."""
    if len(configuration) > MOST_TERMS:
        raise ValueError(f"{', '.join(configuration)}: {len(configuration)} terms, and at most {MOST_TERMS} have a weight")
    for term, weight in configuration.items():
        if term not in TERMS or weight not in LEVELS:
            raise ValueError(f"{term} {weight}: no term of {', '.join(TERMS)} with a weight of {LEVELS[0]} to {LEVELS[-1]}")
    return np.array([configuration.get(term, 0.0) for term in TERMS])


def random_configuration(rng, known=()):
    """{term: weight} that is not among `known`: one to MOST_TERMS terms, each with a weight of LEVELS, all drawn evenly."""
    while True:
        terms = rng.permutation(TERMS)[: int(rng.integers(1, MOST_TERMS + 1))]
        found = {term: float(rng.choice(LEVELS)) for term in TERMS if term in terms}
        if found not in known:
            return found
