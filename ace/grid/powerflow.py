"""Power flows straight on lightsim2grid, set from plain arrays: one at a time, or many topologies in one batch.

Grid2Op's `obs.simulate` spends 95 % of its time in Python. Here the same C++ grid is set and solved directly. Every
solve starts from the same flat voltages and lightsim2grid's caches are exact to the bit, so a result depends on its
inputs only, never on what was solved before (tested): a run that was killed and resumed gives identical files.

Lines are in Grid2Op's order: power lines, then transformers. Amperes and MW are those of the origin side, as there.
"""

import numpy as np
from lightsim2grid.lightsim2grid_cpp import ElementType, ScenarioSweepCPP, TopoAction

BATCH_ROWS = 16
"""Rows of a batch at the least: it costs 0.1 ms to set one up, but each substation in it adds a bus to its solves."""

BATCH_TOL = 1e-6
"""Tolerance of a batch, per unit of power: a tenth quicker than the environment's 1e-8, and within 1e-6 of rho."""


class PowerFlow:
    """A private copy of the environment's grid."""

    def __init__(self, env, limits=1.0):
        """env: a Grid2Op environment on LightSimBackend; only read. Its topology and injections do not matter.
        limits: share of its thermal limits."""
        backend = env.backend
        self.n_sub, self.n_line, self.dim_topo = int(env.n_sub), int(env.n_line), int(env.dim_topo)
        self.max_iter, self.tol = int(backend.max_it), float(backend.tol)
        # also readable after a blackout
        self.limit_a = np.float32(limits) * np.array(env.backend.thermal_limit_a, dtype=np.float32)
        self._grid = backend._grid.copy()
        self._kv = np.asarray(backend.prod_pu_to_kv, dtype=np.float32)
        self._flat = np.full(self._grid.total_bus(), self._grid.get_init_vm_pu(), dtype=complex)
        self._algorithm = self._grid.get_algo_type()
        slack = [g for g in self._grid.get_generators() if g.is_slack]
        self.slack_gens = np.array([g.id for g in slack])
        self.slack_subs = np.unique([g.sub_id for g in slack])
        """Substations whose generators balance the grid: the batch refuses to move them."""
        self._all_gen, self._all_load = np.ones(env.n_gen, dtype=bool), np.ones(env.n_load, dtype=bool)
        self._topo = np.ones(self.dim_topo, dtype=np.int32)
        self._grid.update_topo(np.ones(self.dim_topo, dtype=bool), self._topo)
        if env.n_storage:  # nothing here ever charges or discharges one
            self._grid.update_storages_p(np.ones(env.n_storage, dtype=bool), np.zeros(env.n_storage, dtype=np.float32))
        self._grid.tell_solver_need_reset()
        self._load_pos, self.gen_pos = np.asarray(env.load_pos_topo_vect), np.asarray(env.gen_pos_topo_vect)
        self._elements = _elements(env)

    def set_topo(self, topo):
        """topo: (dim_topo,) 1, 2, or -1 disconnected."""
        changed = self._topo != topo
        if changed.any():
            self._topo[:] = topo
            self._grid.update_topo(changed, self._topo)

    def set_injections(self, load_p, load_q, gen_p, gen_v):
        """float32 arrays in MW, MVAr, MW, kV."""
        grid = self._grid
        grid.update_gens_p(self._all_gen, gen_p)
        grid.update_gens_v(self._all_gen, gen_v / self._kv)
        grid.update_loads_p(self._all_load, load_p)
        grid.update_loads_q(self._all_load, load_q)

    def solve(self):
        """AC power flow: amperes (n_line,) float32, or None where it diverges or part of the grid is cut off.

        Where the flat start diverges it is tried as Grid2Op does it, from the angles of a DC power flow.
        """
        grid = self._grid
        voltage = grid.ac_pf(self._flat.copy(), self.max_iter, self.tol)
        if not len(voltage):
            grid.tell_solver_need_reset()
            voltage = grid.dc_pf(np.ones_like(self._flat), self.max_iter, self.tol)
            if len(voltage):
                voltage = grid.ac_pf(voltage, self.max_iter, self.tol)
        if not len(voltage):
            grid.tell_solver_need_reset()
            return None
        amps = np.empty(self.n_line, dtype=np.float32)
        lines = grid.get_line_res1()[3]
        amps[: len(lines)], amps[len(lines) :] = lines, grid.get_trafo_res1()[3]
        amps *= np.float32(1000)  # from kA, rounded as Grid2Op rounds
        if not np.isfinite(amps.sum()):
            amps[~np.isfinite(amps)] = 0
        return amps

    def rho_max(self, load_p, load_q, gen_p, gen_v):
        """Loading of the most loaded line at these injections, share of its limit; nan where `solve` has none."""
        self.set_injections(load_p, load_q, gen_p, gen_v)
        amps = self.solve()
        return float("nan") if amps is None else float((amps / self.limit_a).max())

    def flows(self):
        """(MW, MVAr, kV) at the origin of each line after `solve`, (MW, MVAr) at its end: five (n_line,) float64."""
        grid = self._grid
        p, q, kv, _ = map(np.concatenate, zip(grid.get_line_res1(), grid.get_trafo_res1(), strict=True))
        p_end, q_end, *_ = map(np.concatenate, zip(grid.get_line_res2(), grid.get_trafo_res2(), strict=True))
        return p, q, kv, p_end, q_end

    def generation(self):
        """What the generators give after `solve`, the losses on the slack included: (MW, kV), each (n_gen,) float32."""
        p, _, kv = self._grid.get_gen_res()
        return p.astype(np.float32), kv.astype(np.float32)

    def taken(self):
        """MW and MVAr that each load takes after `solve`, or generator (so mostly below 0): two (dim_topo,), else 0."""
        p, q = np.zeros(self.dim_topo), np.zeros(self.dim_topo)
        load, generator = self._grid.get_loads_res(), self._grid.get_gen_res()
        p[self._load_pos], q[self._load_pos] = load[0], load[1]
        p[self.gen_pos], q[self.gen_pos] = -generator[0], -generator[1]
        return p, q

    def susceptances(self):
        """DC susceptance of every line, per unit: (n_line,)."""
        return np.array([x.ydc_11.real for group in (self._grid.get_lines(), self._grid.get_trafos()) for x in group])

    def nominal_kv(self):
        """Of each substation: (n_sub,)."""
        return np.asarray(self._grid.get_bus_vn_kv())[: self.n_sub]

    def topo_action(self, first, moves, code):
        """One row of `batch`: where bit k of `moves` is 1, the element at position `first` + k of the topology vector goes
        to bus 1 plus bit k of `code`. A thousand rows a question: so no array is made here."""
        action = TopoAction()
        add, elements = action.add_element, self._elements
        while moves:
            bit = moves & -moves
            kind, number = elements[first + bit.bit_length() - 1]
            add(kind, number, 2 if code & bit else 1)
            moves ^= bit
        return action

    def near_start(self):
        """The solved voltages of the topology that is set, on both buses of each substation; flat where it diverges."""
        if self.solve() is None:
            return self._flat
        voltage = self._grid.get_V().reshape(2, self.n_sub)
        return np.where(voltage == 0, voltage[::-1], voltage).ravel()

    def batch(self, rows, start):
        """AC power flow for each row's change to the topology that is set: (n, n_line) float32 A, nan where it fails.

        start: voltages that the rows start from, of `near_start`. No row may touch a slack substation. A nan here is no
        proof of divergence: ask `solve`.
        """
        sweep = ScenarioSweepCPP(self._grid)
        sweep.change_algorithm(self._algorithm)
        sweep.set_topo_actions(rows)
        sweep.compute(start.copy(), self.max_iter, BATCH_TOL)
        amps = sweep.compute_flows().astype(np.float32) * np.float32(1000)
        amps[~np.asarray(sweep.converged_mask())] = np.nan
        return amps


def _elements(env):
    """(kind, number) of the element at each position of the topology vector: a list of length dim_topo."""
    elements = [None] * env.dim_topo
    for kind, positions in (
        (ElementType.load, env.load_pos_topo_vect), (ElementType.gen, env.gen_pos_topo_vect),
        (ElementType.line_or, env.line_or_pos_topo_vect), (ElementType.line_ex, env.line_ex_pos_topo_vect),
        (ElementType.storage, env.storage_pos_topo_vect),
    ):  # fmt: skip
        for number, position in enumerate(positions):
            elements[position] = kind, number
    return elements
