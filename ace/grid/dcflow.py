"""What an action would do to the loadings, by a DC model of the grid: no AC power flow and no Grid2Op simulation.

Angles theta solve the DC power flow B theta = P for the injections that are observed, before the action and after it, and
give the active flows p and p'. The observed loadings are moved by the difference, so that doing nothing leaves them:

    rho' = sqrt(max((rho S_max)^2 + p'^2 - p^2, 0)) / S_max,    S_max = sqrt(3) V_nominal I_limit

`whatif.WhatIf.dc` ranks the whole catalogue and begins with a solved AC power flow; this is for a few actions.
"""

import numpy as np

from ace.grid.powerflow import PowerFlow

CUT_OFF = 1e6
"""Per-unit angle: as one unit is fed in everywhere, no connected grid comes near it, and a bus that is cut off goes beyond."""


class DcFlow:
    """calls: DC power flows that were solved so far."""

    def __init__(self, world):
        """world: anything with `env`, a Grid2Op environment on LightSimBackend, and its `catalogue`."""
        self.catalogue, cls, flow = world.catalogue, type(world.env), PowerFlow(world.env)
        self._b, self._sub = flow.susceptances(), self.catalogue.sub_of_element
        self._or, self._ex = self.catalogue.line_or_pos, self.catalogue.line_ex_pos
        self._load, self._gen = np.asarray(cls.load_pos_topo_vect), np.asarray(cls.gen_pos_topo_vect)
        self._slack = self._gen[flow.slack_gens[0]]
        self._s_max = np.sqrt(3) * flow.nominal_kv()[self._sub[self._or]] * flow.limit_a / 1e3  # MVA
        self.calls = 0

    def rho_max(self, state, actions):
        """Expected rho_max after each of these actions (n,): (n,) float64, inf where a bus would be cut off."""
        now = self._active(state, state.topo)
        if now is None:
            return np.full(len(actions), np.inf)
        beside = (state.rho * self._s_max) ** 2 - now**2
        after = (self._active(state, self.catalogue.apply(int(action), state.topo)) for action in actions)
        return np.array([np.inf if p is None else (np.sqrt(np.maximum(p**2 + beside, 0)) / self._s_max).max() for p in after])

    def _active(self, state, topo):
        """Active flow of each line in MW at the observed injections, 0 out of service: (n_line,), None if a bus is cut off."""
        self.calls += 1
        n = 2 * self.catalogue.n_sub
        node = np.where(topo > 0, self._sub + (topo == 2) * self.catalogue.n_sub, n)  # what is disconnected goes to node n
        i, j = node[self._or], node[self._ex]
        b = np.where((i < n) & (j < n), self._b, 0.0)
        matrix = np.zeros((n + 1, n + 1))
        for rows, columns, sign in ((i, i, 1), (j, j, 1), (i, j, -1), (j, i, -1)):
            np.add.at(matrix, (rows, columns), sign * b)
        p = np.bincount(node[self._gen], state.gen_p, n + 1) - np.bincount(node[self._load], state.load_p, n + 1)
        used = np.unique(node[node < n])
        free = used[used != node[self._slack]]  # the slack's bus keeps angle 0 and takes the losses
        theta = np.zeros((n + 1, 2))
        try:
            theta[free] = np.linalg.solve(matrix[np.ix_(free, free)], np.stack([p[free], np.ones(len(free))], axis=1))
        except np.linalg.LinAlgError:
            return None
        if not np.abs(theta[:, 1]).max() < CUT_OFF:
            return None
        return b * (theta[i, 0] - theta[j, 0])
