"""The same world without Grid2Op's Python: one lightsim2grid power flow a step, protections and cooldowns included.

For training and test where no opponent acts. It agrees with Grid2Op step by step (tests/test_fastworld.py), and every run repeats
some test episodes on Grid2Op itself (`evaluate.Plays.repeat`).
"""

from dataclasses import replace

import numpy as np

from ace.grid.environment import GridState, World
from ace.grid.whatif import WhatIf

ATTACK_EVERY, ATTACK_STEPS = 288, 48
"""The opponent, imitated: about once a day one of its lines is lost for four hours."""


class FastWorld(World):
    """World whose steps are computed by the what-if engine with the true injections of the step.

    attack_rng: a generator, or None. With one, an opponent is imitated (random lines of its list at random times), which is
    good enough to meet states of danger for a corpus; Grid2Op's own opponent chooses by load and has a budget.
    """

    def __init__(self, world, attack_rng=None, limits=1.0):
        """world: a World, whose scenarios, catalogue and features are shared; its episodes are not touched.
        limits: share of its thermal limits."""
        if world.spec.opponent and attack_rng is None:
            raise ValueError("the fast world does not know Grid2Op's opponent: train on World")
        vars(self).update(vars(world))
        self.env_steps, self._done, self.limits = 0, True, limits
        self.attack_rng = attack_rng
        self._targets = [int(line) for line in self.env._opponent._lines_ids] if self.spec.opponent else []
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
        state = self._attacked() if self._targets else self.state
        outcome = self._engine.advance(
            state, action, *self._injections(t), reconnect=line, last_bus=self._last_bus, ahead=self._forecast(t)
        )
        if action or line is not None:
            topo = outcome.next_state.topo
            self._last_bus = np.where(topo > 0, topo, self._last_bus)
        return outcome.next_state, outcome.reward, outcome.done

    def _attacked(self):
        """The present state, at times with one of the opponent's lines lost."""
        if self.attack_rng.random() >= 1 / ATTACK_EVERY:
            return self.state
        line = int(self.attack_rng.choice(self._targets))
        if not self.state.line_status[line]:
            return self.state
        topo, status, cooldown = (a.copy() for a in (self.state.topo, self.state.line_status, self.state.cooldown_line))
        topo[[self.catalogue.line_or_pos[line], self.catalogue.line_ex_pos[line]]] = -1
        status[line], cooldown[line] = False, ATTACK_STEPS
        return replace(self.state, topo=topo, line_status=status, cooldown_line=cooldown)

    def _injections(self, t):
        s = self.scenario
        return s.load_p[t], s.load_q[t], s.gen_p[t], s.gen_v[t]

    def _forecast(self, t):
        s = self.scenario
        return s.next_load_p[t], s.next_load_q[t], s.next_gen_p[t], s.gen_v[t + 1]


def training_world(world):
    """The fastest world that is right: with an opponent the given one, on Grid2Op itself, else a `FastWorld`."""
    return world if world.spec.opponent else FastWorld(world)
