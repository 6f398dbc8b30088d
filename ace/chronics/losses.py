"""AC power flows of a whole stretch in the intact grid: the losses, what the slack really gives, the flows of lines."""

from dataclasses import dataclass

import numpy as np

from ace.chronics.errors import ChronicsError


@dataclass(frozen=True, slots=True)
class Flows:
    """gen_p: (T, n_gen) MW, the slack as solved; losses: (T,) MW; rho_max: (T,) of the environment's thermal limits
    p_or, q_or, p_ex, q_ex: (T, n_line) MW and MVAr that enter each line at its two ends.
    """

    gen_p: np.ndarray
    losses: np.ndarray
    rho_max: np.ndarray
    p_or: np.ndarray
    q_or: np.ndarray
    p_ex: np.ndarray
    q_ex: np.ndarray


def ac_pass(flow, load_p, load_q, gen_p, gen_v):
    """Solve every row. flow: grid.powerflow.PowerFlow, every element on bus 1; load_p, load_q: (T, n_load) MW, MVAr;
    gen_p: (T, n_gen) MW; gen_v: (n_gen,) kV. Raises ChronicsError, naming the step, where a power flow diverges.
    """
    flow.set_topo(np.ones(flow.dim_topo, dtype=np.int32))
    load_p, load_q, gen_p, gen_v = (np.asarray(a, dtype=np.float32) for a in (load_p, load_q, gen_p, gen_v))
    n_step, n_line = len(load_p), flow.n_line
    ends = np.empty((4, n_step, n_line))
    given, rho_max = np.empty((n_step, gen_p.shape[1])), np.empty(n_step)
    for t in range(n_step):
        flow.set_injections(load_p[t], load_q[t], gen_p[t], gen_v)
        amps = flow.solve()
        if amps is None:
            raise ChronicsError(f"the AC power flow diverges at step {t}")
        p, q, _, p_end, q_end = flow.flows()
        ends[:, t] = p, q, p_end, q_end
        given[t] = flow.generation()[0]
        rho_max[t] = (amps / flow.limit_a).max()
    losses = given.sum(axis=1) - load_p.sum(axis=1, dtype=float)
    return Flows(given, losses, rho_max, *ends)
