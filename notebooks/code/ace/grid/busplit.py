from typing import NamedTuple
import numpy as np
BLOCK = 4096
APART = 1e-06

class Base(NamedTuple):
    b: np.ndarray
    i: np.ndarray
    j: np.ndarray
    node: np.ndarray
    x_p: np.ndarray
    x_q: np.ndarray
    p: np.ndarray
    q: np.ndarray
    per_mva: np.ndarray
    taken_p: np.ndarray
    taken_q: np.ndarray

class Part(NamedTuple):
    sub: int
    ids: np.ndarray
    place: np.ndarray
    bits: np.ndarray
    ends: np.ndarray
    lines: np.ndarray
    others: np.ndarray
    generators: np.ndarray

class BusSplit:

    def __init__(self, catalogue, flow):
        self.catalogue, self.flow = (catalogue, flow)
        self._b = flow.susceptances()
        self._or, self._ex = (catalogue.line_or_pos, catalogue.line_ex_pos)
        self._parts = [self._part(s) for s in range(catalogue.n_sub) if (catalogue.sub == s).any()]

    def _part(self, s):
        cat = self.catalogue
        ids, place = (np.flatnonzero(cat.sub == s), cat.elements[s])
        bits = (cat.code[ids, None] >> np.arange(len(place)) & 1).astype(np.float32)
        at_or = {int(p): line for line, p in enumerate(self._or)}
        at_ex = {int(p): line for line, p in enumerate(self._ex)}
        ends = np.array([k for k, p in enumerate(place.tolist()) if p in at_or or p in at_ex])
        lines = np.array([at_or[p] if p in at_or else at_ex[p] for p in place[ends].tolist()])
        others = np.where(self._or[lines] == place[ends], self._ex[lines], self._or[lines])
        return Part(s, ids, place, bits, ends, lines, others, np.flatnonzero(np.isin(place, self.flow.gen_pos)))

    def rank(self, topo):
        rho = np.full(self.catalogue.n, np.inf, dtype=np.float32)
        base = self._base(topo)
        if base is not None:
            rho[0] = (np.hypot(base.p, base.q) * base.per_mva).max()
        for part in self._parts:
            whole = base
            if (topo[part.place] == 2).any():
                merged = topo.copy()
                merged[part.place] = np.minimum(merged[part.place], 1)
                whole = self._base(merged)
            if whole is not None:
                rho[part.ids] = self._rank_part(whole, part)
        return rho

    def _base(self, topo):
        self.flow.set_topo(topo)
        if self.flow.solve() is None:
            return None
        n = self.catalogue.n_sub
        node = np.where(topo > 0, self.catalogue.sub_of_element + n * (topo == 2), -1)
        on = node[self._or] >= 0
        b, i, j = (np.where(on, self._b, 0.0), np.where(on, node[self._or], 0), np.where(on, node[self._ex], 0))
        matrix = np.zeros((2 * n, 2 * n))
        np.add.at(matrix, (np.concatenate([i, j, i, j]), np.concatenate([i, j, j, i])), np.concatenate([b, b, -b, -b]))
        used = np.flatnonzero(np.diag(matrix) > 0)
        held = np.unique(node[self.flow.gen_pos])
        p, q, kv, p_end, q_end = self.flow.flows()
        per_mva = np.divide(1000.0 / np.sqrt(3), kv * self.flow.limit_a, out=np.zeros_like(kv), where=kv > 0)
        taken_p, taken_q = self.flow.taken()
        taken_p[self._or], taken_p[self._ex] = (p, p_end)
        taken_q[self._or], taken_q[self._ex] = (q, q_end)
        taken_p[node < 0] = taken_q[node < 0] = 0
        x_p, x_q = (_inverse(matrix, used[1:]), _inverse(matrix, np.setdiff1d(used, held)))
        return Base(b, i, j, node, x_p, x_q, p, q, per_mva, taken_p, taken_q)

    def _rank_part(self, base, part):
        live = (base.node[part.place] >= 0).astype(np.float32)
        part_p, part_q = (self._terms(base, part, base.x_p), self._terms(base, part, base.x_q))
        coupler_p, coupler_q = (-taken[part.place].astype(np.float32) for taken in (base.taken_p, base.taken_q))
        p, q, square = (a.astype(np.float32) for a in (base.p, base.q, base.per_mva ** 2))
        rho = np.empty(len(part.bits), dtype=np.float32)
        for first in range(0, len(rho), BLOCK):
            pattern = part.bits[first:first + BLOCK]
            flow, apart = _change(pattern[:, part.ends], pattern @ coupler_p, *part_p)
            moved = pattern @ live
            apart &= (moved > 0) & (moved < live.sum())
            flow += p
            there = pattern[:, part.generators] @ live[part.generators] > 0
            here = (1 - pattern[:, part.generators]) @ live[part.generators] > 0
            moving = np.where((there & ~here)[:, None], live - pattern * live, pattern)
            reactive, _ = _change(moving[:, part.ends], moving @ coupler_q * ~(there & here), *part_q)
            reactive += q
            np.square(flow, out=flow)
            flow += np.square(reactive, out=reactive)
            flow *= square
            block = np.sqrt(flow.max(axis=1))
            block[apart] = np.inf
            rho[first:first + BLOCK] = block
        return rho

    def _terms(self, base, part, x):
        s, lines = (part.sub, part.lines)
        b_k = base.b[lines]
        far = np.where(base.node[part.others] >= 0, base.node[part.others], s)
        moved = (x[:, [s]] - x[:, far]) * b_k
        cross = b_k[:, None] * (moved[s] - moved[far])
        change = (base.b[:, None] * (moved[base.j] - moved[base.i])).T
        change[np.arange(len(lines)), lines] += np.where(self._or[lines] == part.place[part.ends], b_k, -b_k)
        return tuple((a.astype(np.float32) for a in (b_k, cross, change)))

def _change(lines, coupler, b_k, cross, change):
    stiff = lines @ b_k
    left = stiff - (lines @ cross * lines).sum(axis=1)
    apart = left <= APART * stiff
    delta = np.where(apart, 0, coupler / np.where(apart, 1, left))
    return (lines * delta[:, None] @ change, apart)

def _inverse(matrix, keep):
    x = np.zeros_like(matrix)
    x[np.ix_(keep, keep)] = np.linalg.inv(matrix[np.ix_(keep, keep)])
    return x
