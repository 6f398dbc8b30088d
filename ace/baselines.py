"""Agents without learning, and the shape every agent has: `act(state, x, legal) -> action id`.

Each of them is asked at the same decisions, behind the same operator reflexes, on the same episodes. "Do nothing" in the
literal sense also never reconnects a line; the honest reference is `reconnect`: do nothing, but put lost lines back.
"""

import numpy as np

from ace.llm.policy_actor import BadCase


class DoNothing:
    """Never acts. With the operator's reconnection switched on it is the baseline `reconnect`."""

    simulator_calls = dc_calls = llm_calls = 0

    def act(self, state, x, legal):
        return 0


class Greedy:
    """Look-ahead at decision time: the action with the lowest forecast rho_max among a DC shortlist, by AC power flow.

    It simulates while deployed, which ACE's policy may not: read its survival together with its simulator calls.
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


class DcArgmin:
    """Look-ahead within a given set of actions by DC alone, nothing learnt: what the set is worth without a policy."""

    simulator_calls = llm_calls = 0

    def __init__(self, whatif, catalogue, actions):
        """actions: (n,) ids, as in the language model's manifest: chosen on training states."""
        self.whatif, self.catalogue, self.actions = whatif, catalogue, np.asarray(actions)

    @property
    def dc_calls(self):
        return self.whatif.dc_calls

    def act(self, state, x, legal):
        allowed = [int(a) for a in self.actions if self.catalogue.is_legal(legal, int(a))]
        rho = self.whatif.dc(state)[allowed]
        return allowed[int(rho.argmin())] if len(allowed) and np.isfinite(rho).any() else 0


class LlmOnly:
    """The language model at every decision, with its validated rounds; does nothing where none of them gains."""

    def __init__(self, actor, whatif):
        """actor: llm.policy_actor.PolicyActor."""
        self.actor, self.whatif, self.asked = actor, whatif, 0

    @property
    def simulator_calls(self):
        return self.whatif.ac_calls

    @property
    def dc_calls(self):
        return self.whatif.dc_calls

    @property
    def llm_calls(self):
        return self.actor.recorder.calls

    def act(self, state, x, legal):
        self.asked += 1
        (found,) = self.actor.refine([BadCase(self.asked, state, 0, 0.0)], seed=self.asked)
        return found.action if found is not None and found.improved else 0
