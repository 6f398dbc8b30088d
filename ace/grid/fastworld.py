"""The same world without Grid2Op's Python: one lightsim2grid power flow a step, protections and cooldowns included.

For training where no opponent acts. It agrees with Grid2Op step by step (tests/test_fastworld.py); every number that is
reported is still played on Grid2Op itself.
"""

import numpy as np

from ace.grid.environment import GridState, World
from ace.grid.whatif import WhatIf


class FastWorld(World):
    """World whose steps are computed by the what-if engine with the true injections of the step."""

    def __init__(self, world):
        """world: a World, whose scenarios, catalogue and features are shared; its episodes are not touched."""
        if world.spec.opponent:
            raise ValueError("the fast world knows no opponent: train on World")
        vars(self).update(vars(world))
        self.env_steps, self._done = 0, True
        self._engine = WhatIf(self)

    def _first_state(self, seed):
        n_line, n_sub = self.catalogue.n_line, self.catalogue.n_sub
        idle, s = np.zeros(n_line, np.int16), self.scenario
        before = GridState(
            s.index, -1, np.ones(self.catalogue.dim_topo, np.int8), np.ones(n_line, bool), np.zeros(n_line, np.float32), idle,
            idle, np.zeros(n_sub, np.int16), *self._injections(0), *self._injections(0),
        )  # fmt: skip
        self._last_bus = before.topo.copy()
        state = self._engine.advance(before, 0, *self._injections(0), ahead=self._forecast(0)).next_state
        # Grid2Op starts to count overflows with the first step, not with the first observation.
        state.overflow = idle
        return state

    def _next_state(self, action, line):
        t = self.t + 1
        outcome = self._engine.advance(
            self.state, action, *self._injections(t), reconnect=line, last_bus=self._last_bus, ahead=self._forecast(t)
        )
        topo = outcome.next_state.topo
        self._last_bus = np.where(topo > 0, topo, self._last_bus)
        return outcome.next_state, outcome.done

    def _injections(self, t):
        s = self.scenario
        return s.load_p[t], s.load_q[t], s.gen_p[t], s.gen_v[t]

    def _forecast(self, t):
        s = self.scenario
        return s.next_load_p[t], s.next_load_q[t], s.next_gen_p[t], s.gen_v[t + 1]


def training_world(world):
    """The fastest world that is right: with an opponent the given one, on Grid2Op itself, else a `FastWorld`."""
    return world if world.spec.opponent else FastWorld(world)
