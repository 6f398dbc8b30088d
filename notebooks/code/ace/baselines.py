import numpy as np

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
