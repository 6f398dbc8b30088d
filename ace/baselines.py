"""Agents without learning, and the shape every agent has: `act(state, x, legal) -> action id`.

Each of them is asked at the same decisions, behind the same operator reflexes, on the same episodes. "Do nothing" in the
literal sense also never reconnects a line; the honest reference is `reconnect`: do nothing, but put lost lines back.
"""

import numpy as np


class DoNothing:
    """Never acts. With the operator's reconnection switched on it is the baseline `reconnect`."""

    simulator_calls = dc_calls = llm_calls = 0

    def act(self, state, x, legal):
        return 0


class Greedy:
    """Look-ahead at decision time: the action with the lowest forecast rho_max among a DC shortlist, by AC power flow.

    It simulates while deployed, which ACE's policy may not: read its survival beside its simulator calls.
    """

    llm_calls = 0

    def __init__(self, whatif, shortlist):
        self.whatif, self.shortlist = whatif, shortlist

    @property
    def simulator_calls(self):
        return self.whatif.ac_calls

    @property
    def dc_calls(self):
        return self.whatif.dc_calls

    def act(self, state, x, legal):
        ids, rho_max = self.whatif.best(state, legal, self.shortlist)
        return int(ids[0]) if np.isfinite(rho_max[0]) else 0
