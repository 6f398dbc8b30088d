"""What if: the grid one step ahead, after any action, from a stored state.

Everything starts from a `GridState`, never from a live observation: a decision can be asked about long after it was
made, or in another process. `simulate` agrees with Grid2Op's `obs.simulate`, protections and cooldowns included (tested
on states met in play); `ac` asks about many candidates at once, `dc` ranks the whole catalogue roughly and fast.
"""

from dataclasses import dataclass

import numpy as np

from ace.grid.busplit import BusSplit
from ace.grid.environment import GridState, step_reward
from ace.grid.powerflow import BATCH_ROWS, PowerFlow

SHARE = 0.5
"""No substation fills more of a shortlist while others have candidates: one substation has 98 % of the catalogue."""


@dataclass(slots=True)
class Outcome:
    """next_state: the grid one step later (rho 0 after a blackout); reward: `step_reward`'s; done: blackout."""

    next_state: GridState
    reward: float
    done: bool


class WhatIf:
    """ac_calls: AC power-flow questions asked so far, a `simulate` counts one; dc_calls: candidates ranked by `dc`."""

    def __init__(self, world):
        """world: a World, or anything with its `env`, `catalogue` and `limits`."""
        self.catalogue, env = world.catalogue, world.env
        rules = env.parameters
        if rules.NO_OVERFLOW_DISCONNECTION or rules.ENV_DC or rules.SOFT_OVERFLOW_THRESHOLD != 1:
            raise ValueError("the what-if engine is made for AC, with overflow protection from 1.0 on")
        self.flow = PowerFlow(env, world.limits)
        self.limit = self.flow.limit_a
        self._hard = np.float32(rules.HARD_OVERFLOW_THRESHOLD) * self.limit
        self._allowed = np.asarray(env._nb_ts_max_protection_counter, dtype=np.int16)
        self._after_trip = int(rules.NB_TIMESTEP_RECONNECTION)
        self._after_line, self._after_sub = int(rules.NB_TIMESTEP_COOLDOWN_LINE), int(rules.NB_TIMESTEP_COOLDOWN_SUB)
        self._or, self._ex = self.catalogue.line_or_pos, self.catalogue.line_ex_pos
        self._of_slack = np.isin(self.catalogue.sub, self.flow.slack_subs)
        self._split, self._rows = BusSplit(self.catalogue, self.flow), {}
        self._first = [int(places[0]) for places in self.catalogue.elements]
        self.ac_calls = self.dc_calls = 0

    def simulate(self, state, action):
        """One step with the forecast injections: an Outcome."""
        return self.advance(state, action, state.next_load_p, state.next_load_q, state.next_gen_p, state.next_gen_v)

    def advance(self, state, action, load_p, load_q, gen_p, gen_v, reconnect=None, last_bus=None, ahead=None):
        """One step of the grid as Grid2Op plays it: an Outcome.

        action: a legal catalogue id; load_p .. gen_v: float32 injections of the step (MW, MVAr, MW, kV)
        reconnect: a line to put back, or None
        last_bus: (dim_topo,) the bus that each element had when last connected; without it, bus 1
        ahead: (load_p, load_q, gen_p, gen_v), the next state's own forecast; without it, "as now"
        """
        self.ac_calls += 1
        topo, status = self.catalogue.apply(action, state.topo), state.line_status
        if reconnect is not None:
            for place in (self._or[reconnect], self._ex[reconnect]):
                topo[place] = 1 if last_bus is None else last_bus[place]
            status = status.copy()
            status[reconnect] = True
        self.flow.set_injections(load_p, load_q, gen_p, gen_v)
        amps, topo, status, tripped = self._protected_flow(topo, status, state.overflow)
        done = amps is None
        if done:
            amps, gen_now, kv_now = np.zeros_like(self.limit), gen_p, gen_v
        else:
            gen_now, kv_now = self.flow.generation()
        rho = amps / self.limit
        overflow = (state.overflow + 1) * (amps > self.limit)
        cooldown_line, cooldown_sub = self._cooldowns(state, action, reconnect, tripped)
        forecast = ahead or (load_p, load_q, gen_p, gen_v)
        after = GridState(
            state.scenario, state.t + 1, topo, status, rho, overflow, cooldown_line, cooldown_sub,
            load_p, load_q, gen_now, kv_now, *forecast,
        )  # fmt: skip
        return Outcome(after, step_reward(rho, done), done)

    def _protected_flow(self, topo, status, overflow):
        """Solve, trip lines, solve again, until none trips: (amperes or None, topo, status, tripped lines or None).

        A line trips above the hard limit, or after longer over its limit than is allowed; a step adds at most one to
        that count, however often it is solved (Grid2Op's Backend.next_grid_state).
        """
        tripped = over = None
        while True:
            self.flow.set_topo(topo)
            amps = self.flow.solve()
            if amps is None:
                return None, topo, status, tripped
            now = amps > self.limit
            over = now if over is None else over | now
            if not now.any():
                return amps, topo, status, tripped
            trips = ((amps > self._hard) | (over & (overflow + 1 > self._allowed))) & status
            if not trips.any():
                return amps, topo, status, tripped
            topo, status = topo.copy(), status & ~trips
            topo[self._or[trips]] = topo[self._ex[trips]] = -1
            tripped = trips if tripped is None else tripped | trips

    def _cooldowns(self, state, action, reconnect, tripped):
        """Cooldowns one step later: (n_line,) and (n_sub,) int16."""
        line = state.cooldown_line - (state.cooldown_line > 0)
        sub = state.cooldown_sub - (state.cooldown_sub > 0)
        if tripped is not None:
            line[tripped] = self._after_trip
        if reconnect is not None:
            line[reconnect] = max(line[reconnect], self._after_line)
        if action:
            sub[self.catalogue.sub[action]] = self._after_sub
        return line, sub

    def ac(self, state, ids):
        """rho_max after each candidate at the forecast injections, before any protection trips: (n,) float32.

        nan where the power flow diverges or the grid falls apart.
        """
        ids = np.asarray(ids, dtype=np.int64)
        self.ac_calls += len(ids)
        self.flow.set_injections(state.next_load_p, state.next_load_q, state.next_gen_p, state.next_gen_v)
        rho_max = np.full(len(ids), np.nan, dtype=np.float32)
        batched = np.flatnonzero(~self._of_slack[ids])
        batched = batched[np.argsort(self.catalogue.sub[ids[batched]], kind="stable")]
        now, off = self.catalogue.patterns(state.topo)
        self.flow.set_topo(state.topo)
        start = self.flow.near_start() if len(batched) else None
        # A batch is solved on all buses that any of its rows uses: few substations at a time make small matrices.
        first, subs = 0, self.catalogue.sub[ids[batched]]
        for last in np.append(np.flatnonzero(np.diff(subs)) + 1, len(subs)):
            if last - first >= BATCH_ROWS or (last == len(subs) and last > first):
                rows = batched[first:last]
                amps = self.flow.batch(self._batch_rows(ids[rows], now, off), start)
                rho_max[rows] = (amps / self.limit).max(axis=1)
                first = last
        for i in np.flatnonzero(np.isnan(rho_max)).tolist():
            self.flow.set_topo(self.catalogue.apply(int(ids[i]), state.topo))
            amps = self.flow.solve()
            if amps is not None:
                rho_max[i] = (amps / self.limit).max()
        return rho_max

    def dc(self, state):
        """Rough rho_max of the whole catalogue at the forecast injections: (A,) float32, inf where it falls apart."""
        self.dc_calls += self.catalogue.n
        self.flow.set_injections(state.next_load_p, state.next_load_q, state.next_gen_p, state.next_gen_v)
        return self._split.rank(state.topo)

    def shortlist(self, state, legality, n):
        """The n legal actions with the lowest rho_max by `dc`, the best first, do nothing in any case: (<= n,) int64.

        legality: (L,) uint8 as from `Catalogue.legality`. Actions that make the grid fall apart are left out.
        """
        rho, ids = self.dc(state), self.catalogue.legal_ids(legality)
        ids = ids[(ids > 0) & np.isfinite(rho[ids])]
        order = np.argsort(rho[ids], kind="stable")
        subs = self.catalogue.sub[ids[order]]
        by_sub = np.argsort(subs, kind="stable")
        first = np.searchsorted(subs[by_sub], subs[by_sub])
        place = np.empty(len(order), dtype=np.int64)  # each candidate's place within its own substation
        place[by_sub] = np.arange(len(order)) - first
        within = place < max(1, SHARE * n)
        chosen = np.concatenate([order[within], order[~within]])[: n - 1]
        ids = np.append(ids[chosen], 0)
        return ids[np.argsort(rho[ids], kind="stable")]

    def best(self, state, legality, n):
        """A shortlist of n, best AC loading first: ids (<= n,) and rho_max float32, inf where the power flow fails."""
        ids = self.shortlist(state, legality, n)
        rho = self.ac(state, ids)
        rho[np.isnan(rho)] = np.inf
        order = np.argsort(rho, kind="stable")
        return ids[order], rho[order]

    def _batch_rows(self, ids, now, off):
        """Each action as a row of a batch: only what moves, and no end of a lost line, or the line would be put back.

        now, off: the state's bit codes of `Catalogue.patterns`. Rows from a substation in one piece are kept.
        """
        rows, now, off = [], now.tolist(), off.tolist()
        subs, codes = self.catalogue.sub[ids].tolist(), self.catalogue.code[ids].tolist()
        for action, sub, code in zip(ids.tolist(), subs, codes, strict=True):
            as_new = not now[sub] and not off[sub]
            row = self._rows.get(action) if as_new else None
            if row is None:
                moves = (code ^ now[sub]) & ~off[sub] if action else 0
                row = self.flow.topo_action(self._first[sub], moves, code)
                if as_new:
                    self._rows[action] = row
            rows.append(row)
        return rows
