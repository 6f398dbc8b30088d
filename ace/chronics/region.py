"""The 36-substation grids as what they are: region R2 of the 118-bus case, with what crosses its border as loads.

Lines, generators and loads of the region stand in the same order in the case and in both grids; the eight loads in
`BORDER` are the AC flows of the lines that were cut (Grid2Op calls them interco). Names differ, so all is found by place.
"""

import numpy as np

from ace.chronics.errors import ChronicsError
from ace.grid.weeks import REACTIVE

SUBSTATIONS = (*range(32, 67), 68)
"""Of the case, in the order of the grids' substations 0 to 35."""

BORDER = {1: (14, 32), 2: (18, 33), 6: (29, 37), 30: (64, 67), 33: (68, 74), 34: (68, 76), 35: (68, 69), 36: (67, 68)}
"""Loads of the grids -> the two substations of the case whose line was cut there."""


class Region:
    """loads, gens, lines: (29,), (22,), (59,) places in the case of what the region keeps; border: (8,) loads in the grid."""

    def __init__(self, case_env, env):
        """case_env: Grid2Op environment of the case; env: of the cut grid. Raises ChronicsError where they do not match."""
        inside = np.zeros(case_env.n_sub, dtype=bool)
        inside[list(SUBSTATIONS)] = True
        sub = np.array(SUBSTATIONS)
        refused = ChronicsError(f"{env.name} is not the region that is cut from {case_env.name}: lines or units differ")
        if env.n_sub != len(sub):
            raise refused
        start, end = case_env.line_or_to_subid, case_env.line_ex_to_subid
        self.lines = np.flatnonzero(inside[start] & inside[end])
        self.gens = np.flatnonzero(inside[case_env.gen_to_subid])
        self.loads = np.flatnonzero(inside[case_env.load_to_subid])
        self.border = np.array(list(BORDER))
        self.kept = np.setdiff1d(np.arange(env.n_load), self.border)
        self.cut = [self._cut_line(start, end, inside, pair) for pair in BORDER.values()]
        cut = np.array([line for line, _ in self.cut])
        inner_end = np.where([by_origin for _, by_origin in self.cut], start[cut], end[cut])
        same = (
            _equal(np.sort(cut), np.flatnonzero(inside[start] != inside[end]))
            and _equal(sub[env.load_to_subid[self.border]], inner_end)
            and _equal(sub[env.line_or_to_subid], start[self.lines]) and _equal(sub[env.line_ex_to_subid], end[self.lines])
            and _equal(sub[env.gen_to_subid], case_env.gen_to_subid[self.gens])
            and _equal(sub[env.load_to_subid[self.kept]], case_env.load_to_subid[self.loads])
            and np.allclose(env.gen_pmax, case_env.gen_pmax[self.gens])
        )  # fmt: skip
        if not same:
            raise refused

    def _cut_line(self, start, end, inside, pair):
        """(line of the case, whether its origin is the end inside the region)."""
        found = np.flatnonzero((np.minimum(start, end) == min(pair)) & (np.maximum(start, end) == max(pair)))
        if len(found) != 1:
            raise ChronicsError(f"the case has {len(found)} lines between substations {pair[0]} and {pair[1]}, not one")
        return int(found[0]), bool(inside[start[found[0]]])

    def loads_of(self, load_p, flows):
        """(load_p, load_q) of the cut grid: (T, 37) MW and MVAr. load_p: (T, n_load) of the case; flows: its Flows."""
        p = np.empty((len(load_p), len(self.kept) + len(self.border)))
        q = np.empty_like(p)
        p[:, self.kept] = load_p[:, self.loads]
        q[:, self.kept] = REACTIVE * p[:, self.kept]
        for load, (line, by_origin) in zip(self.border, self.cut, strict=True):
            # What enters the line at its end inside leaves the region there: a load.
            p[:, load] = (flows.p_or if by_origin else flows.p_ex)[:, line]
            q[:, load] = (flows.q_or if by_origin else flows.q_ex)[:, line]
        return p, q


def _equal(a, b):
    return len(a) == len(b) and bool(np.all(a == b))
