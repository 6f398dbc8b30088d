import numpy as np
from lightsim2grid.lightsim2grid_cpp import ElementType, ScenarioSweepCPP, TopoAction
BATCH_ROWS = 16
BATCH_TOL = 1e-06

class PowerFlow:

    def __init__(self, env):
        backend = env.backend
        self.n_sub, self.n_line, self.dim_topo = (int(env.n_sub), int(env.n_line), int(env.dim_topo))
        self.max_iter, self.tol = (int(backend.max_it), float(backend.tol))
        self.limit_a = np.array(env.backend.thermal_limit_a, dtype=np.float32)
        self._grid = backend._grid.copy()
        self._kv = np.asarray(backend.prod_pu_to_kv, dtype=np.float32)
        self._flat = np.full(self._grid.total_bus(), self._grid.get_init_vm_pu(), dtype=complex)
        self._algorithm = self._grid.get_algo_type()
        slack = [g for g in self._grid.get_generators() if g.is_slack]
        self.slack_gens = np.array([g.id for g in slack])
        self.slack_subs = np.unique([g.sub_id for g in slack])
        self._all_gen, self._all_load = (np.ones(env.n_gen, dtype=bool), np.ones(env.n_load, dtype=bool))
        self._topo = np.ones(self.dim_topo, dtype=np.int32)
        self._grid.update_topo(np.ones(self.dim_topo, dtype=bool), self._topo)
        if env.n_storage:
            self._grid.update_storages_p(np.ones(env.n_storage, dtype=bool), np.zeros(env.n_storage, dtype=np.float32))
        self._grid.tell_solver_need_reset()
        self._load_pos, self.gen_pos = (np.asarray(env.load_pos_topo_vect), np.asarray(env.gen_pos_topo_vect))
        self._elements = _elements(env)

    def set_topo(self, topo):
        changed = self._topo != topo
        if changed.any():
            self._topo[:] = topo
            self._grid.update_topo(changed, self._topo)

    def set_injections(self, load_p, load_q, gen_p, gen_v):
        grid = self._grid
        grid.update_gens_p(self._all_gen, gen_p)
        grid.update_gens_v(self._all_gen, gen_v / self._kv)
        grid.update_loads_p(self._all_load, load_p)
        grid.update_loads_q(self._all_load, load_q)

    def solve(self):
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
        amps[:len(lines)], amps[len(lines):] = (lines, grid.get_trafo_res1()[3])
        amps *= np.float32(1000)
        if not np.isfinite(amps.sum()):
            amps[~np.isfinite(amps)] = 0
        return amps

    def flows(self):
        grid = self._grid
        p, q, kv, _ = map(np.concatenate, zip(grid.get_line_res1(), grid.get_trafo_res1(), strict=True))
        p_end, q_end, *_ = map(np.concatenate, zip(grid.get_line_res2(), grid.get_trafo_res2(), strict=True))
        return (p, q, kv, p_end, q_end)

    def generation(self):
        p, _, kv = self._grid.get_gen_res()
        return (p.astype(np.float32), kv.astype(np.float32))

    def taken(self):
        p, q = (np.zeros(self.dim_topo), np.zeros(self.dim_topo))
        load, generator = (self._grid.get_loads_res(), self._grid.get_gen_res())
        p[self._load_pos], q[self._load_pos] = (load[0], load[1])
        p[self.gen_pos], q[self.gen_pos] = (-generator[0], -generator[1])
        return (p, q)

    def susceptances(self):
        return np.array([x.ydc_11.real for group in (self._grid.get_lines(), self._grid.get_trafos()) for x in group])

    def nominal_kv(self):
        return np.asarray(self._grid.get_bus_vn_kv())[:self.n_sub]

    def topo_action(self, first, moves, code):
        action = TopoAction()
        add, elements = (action.add_element, self._elements)
        while moves:
            bit = moves & -moves
            kind, number = elements[first + bit.bit_length() - 1]
            add(kind, number, 2 if code & bit else 1)
            moves ^= bit
        return action

    def near_start(self):
        if self.solve() is None:
            return self._flat
        voltage = self._grid.get_V().reshape(2, self.n_sub)
        return np.where(voltage == 0, voltage[::-1], voltage).ravel()

    def batch(self, rows, start):
        sweep = ScenarioSweepCPP(self._grid)
        sweep.change_algorithm(self._algorithm)
        sweep.set_topo_actions(rows)
        sweep.compute(start.copy(), self.max_iter, BATCH_TOL)
        amps = sweep.compute_flows().astype(np.float32) * np.float32(1000)
        amps[~np.asarray(sweep.converged_mask())] = np.nan
        return amps

def _elements(env):
    elements = [None] * env.dim_topo
    for kind, positions in ((ElementType.load, env.load_pos_topo_vect), (ElementType.gen, env.gen_pos_topo_vect), (ElementType.line_or, env.line_or_pos_topo_vect), (ElementType.line_ex, env.line_ex_pos_topo_vect), (ElementType.storage, env.storage_pos_topo_vect)):
        for number, position in enumerate(positions):
            elements[position] = (kind, number)
    return elements
