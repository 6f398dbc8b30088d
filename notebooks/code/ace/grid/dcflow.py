import numpy as np
from ace.grid.powerflow import PowerFlow
CUT_OFF = 1000000.0

class DcFlow:

    def __init__(self, world):
        self.catalogue, cls, flow = (world.catalogue, type(world.env), PowerFlow(world.env))
        self._b, self._sub = (flow.susceptances(), self.catalogue.sub_of_element)
        self._or, self._ex = (self.catalogue.line_or_pos, self.catalogue.line_ex_pos)
        self._load, self._gen = (np.asarray(cls.load_pos_topo_vect), np.asarray(cls.gen_pos_topo_vect))
        self._slack = self._gen[flow.slack_gens[0]]
        self._s_max = np.sqrt(3) * flow.nominal_kv()[self._sub[self._or]] * flow.limit_a / 1000.0
        self.calls = 0

    def rho_max(self, state, actions):
        now = self._active(state, state.topo)
        if now is None:
            return np.full(len(actions), np.inf)
        beside = (state.rho * self._s_max) ** 2 - now ** 2
        after = (self._active(state, self.catalogue.apply(int(action), state.topo)) for action in actions)
        return np.array([np.inf if p is None else (np.sqrt(np.maximum(p ** 2 + beside, 0)) / self._s_max).max() for p in after])

    def _active(self, state, topo):
        self.calls += 1
        n = 2 * self.catalogue.n_sub
        node = np.where(topo > 0, self._sub + (topo == 2) * self.catalogue.n_sub, n)
        i, j = (node[self._or], node[self._ex])
        b = np.where((i < n) & (j < n), self._b, 0.0)
        matrix = np.zeros((n + 1, n + 1))
        for rows, columns, sign in ((i, i, 1), (j, j, 1), (i, j, -1), (j, i, -1)):
            np.add.at(matrix, (rows, columns), sign * b)
        p = np.bincount(node[self._gen], state.gen_p, n + 1) - np.bincount(node[self._load], state.load_p, n + 1)
        used = np.unique(node[node < n])
        free = used[used != node[self._slack]]
        theta = np.zeros((n + 1, 2))
        try:
            theta[free] = np.linalg.solve(matrix[np.ix_(free, free)], np.stack([p[free], np.ones(len(free))], axis=1))
        except np.linalg.LinAlgError:
            return None
        if not np.abs(theta[:, 1]).max() < CUT_OFF:
            return None
        return b * (theta[i, 0] - theta[j, 0])
