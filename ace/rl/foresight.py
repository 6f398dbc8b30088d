"""A trained policy with foresight: of its most probable actions the one of lowest DC-predicted loading (our extension)."""

import numpy as np

from ace.grid.dcflow import DcFlow
from ace.rl.distribution import most_probable
from ace.rl.policy import Policy

ALONE = 1
"""The policy's most probable action, whatever is expected of it."""


class Foresight:
    """Plays, of some actions, the one of lowest expected loading.

    dc_calls: DC power flows solved.
    """

    simulator_calls = llm_calls = 0

    def __init__(self, candidates, flow):
        """candidates: (x, legal) -> legal ids, the preferred ones first; flow: grid.dcflow.DcFlow."""
        self.candidates, self.flow = candidates, flow

    @property
    def dc_calls(self):
        return self.flow.calls

    def act(self, state, x, legal):
        """Of equals the preferred one, as where all make the grid fall apart."""
        ids = self.candidates(x, legal)
        return int(ids[self.flow.rho_max(state, ids).argmin()])


def with_foresight(deployed, world, n_candidates):
    """The agent of a trained policy, rl.policy.DeployedPolicy: Foresight among its `n_candidates` most probable actions; with
    1 the policy acts alone. Few are meant: by DC alone, among all actions, harmful ones look best. Raises ValueError.
    """
    if not isinstance(n_candidates, int) or n_candidates < ALONE:
        raise ValueError(f"n_candidates = {n_candidates!r}: a whole number of actions, {ALONE} or more")
    if n_candidates == ALONE:
        return Policy(deployed)
    return Foresight(lambda x, legal: most_probable(deployed.space, deployed.logits(x), legal, n_candidates), DcFlow(world))


def within_set(world, actions):
    """The agent that compares doing nothing and those of `actions`, (n,) ids, that are legal."""
    everything = [0, *(int(action) for action in actions if action)]
    legal_ones = lambda x, legal: np.array([a for a in everything if world.catalogue.is_legal(legal, a)])  # noqa: E731
    return Foresight(legal_ones, DcFlow(world))
