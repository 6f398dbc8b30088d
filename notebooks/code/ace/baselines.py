import numpy as np
from ace.llm.roles import BadCase

class DoNothing:
    simulator_calls = dc_calls = llm_calls = 0

    def act(self, state, x, legal):
        return 0

class Greedy:
    llm_calls = 0

    def __init__(self, whatif, shortlist):
        self.whatif, self.shortlist = (whatif, shortlist)

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
    simulator_calls = llm_calls = 0

    def __init__(self, whatif, catalogue, actions):
        self.whatif, self.catalogue, self.actions = (whatif, catalogue, np.asarray(actions))

    @property
    def dc_calls(self):
        return self.whatif.dc_calls

    def act(self, state, x, legal):
        allowed = [int(a) for a in self.actions if self.catalogue.is_legal(legal, int(a))]
        rho = self.whatif.dc(state)[allowed]
        return allowed[int(rho.argmin())] if len(allowed) and np.isfinite(rho).any() else 0

class LlmOnly:

    def __init__(self, actor, whatif):
        self.actor, self.whatif, self.asked = (actor, whatif, 0)

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
        found, = self.actor.refine([BadCase(self.asked, state, 0, 0.0)], seed=self.asked)
        return found.action if found is not None and found.improved else 0
