"""Unseen outages: trained policies on test scenarios of which one line is out of service from the first step to the last.

Nothing is trained here. The policies met lost lines in training only as protections and, where there is one, the opponent
took them; none ever began an episode without a line. The lines are chosen by a rule that looks at training scenarios
alone, before any policy is played. What is reported is played on Grid2Op itself.
"""

import functools

import numpy as np
import pandas as pd
from grid2op.Exceptions import Grid2OpException

from ace import config, evaluate
from ace.episodes import decisions, do_nothing
from ace.grid.environment import Operator, World
from ace.llm.models.corpus import in_turn
from ace.studies.policies import tasks_of
from ace.trained_policies import agent_of, play_tasks, world_of, write_rows

TRIED, LASTS = 3, 48
"""A line may be taken out if doing nothing then lasts this many steps in each of this many training scenarios."""
COLUMNS = ["env", "variant", "seed", "outage", "line", "episode", "scenario", "horizon", "survived_steps", "survival"]
COLUMNS += ["reward", "decisions", "topology_actions", "simulator_calls", "dc_calls", "llm_calls"]


class OutageWorld(World):
    """A world of which one line is out of service for whole episodes: it is never put back."""

    def __init__(self, world, line, operator=None):
        """world: a World, whose environment, scenarios and catalogue are shared; line: index, or None for no outage.

        operator: settings of other reflexes than the world's, as in `config.settings.Operator`; default: the world's.
        """
        vars(self).update(vars(world))
        self.line, self.env_steps, self._done = line, 0, True
        if operator is not None:
            self.operator = Operator(operator)

    def _first_state(self, seed):
        if self.line is None:
            return super()._first_state(seed)
        reset = self.env.reset
        # The parent resets without options; for this one call the line is taken out before the first observation.
        self.env.reset = functools.partial(reset, options={"init state": {"set_line_status": [(self.line, -1)]}})
        try:
            return self._out(super()._first_state(seed))
        finally:
            del self.env.reset

    def _next_state(self, action, line):
        state, reward, blackout = super()._next_state(action, line)
        return self._out(state), reward, blackout

    def _out(self, state):
        """Whoever reconnects lines waits for their cooldown: this one's outlasts the episode (no feature shows it)."""
        if self.line is not None:
            state.cooldown_line[self.line] = self.spec.horizon + 2
        return state


def choose_lines(world, number):
    """The lines to take out: the most loaded ones whose loss the grid survives, at most `number` of them, in that order.

    Loading: mean over the states in which an agent is asked when nothing is done in the first TRIED training scenarios.
    Survives: doing nothing, with reconnection of all other lines, lasts LASTS steps in each of them. Where fewer lines
    than `number` last so long, those that last longest are added, of equals the most loaded. Lines that an opponent
    attacks are left out: they are lost in training too, and some opponents rest while one of theirs is out.
    """
    tried = [in_turn(world.sets["train"], number) for number in range(TRIED)]
    asked = [state for index in tried for state in _asked(OutageWorld(world, None), index)]
    loading = np.mean([state.rho for state in asked], axis=0)
    lasted = {}
    attacked = set(world.env._opponent._lines_ids) if world.spec.opponent else set()
    for line in [line for line in np.argsort(-loading, kind="stable").tolist() if line not in attacked]:
        lasted[line] = min(_lasts(OutageWorld(world, line), index) for index in tried)
        if sum(steps >= LASTS for steps in lasted.values()) == number:
            break
    return sorted(lasted, key=lambda line: -lasted[line])[:number]


def _asked(world, index):
    """States in which an agent is asked when nothing is done; where it never is, the last state."""
    start = world.reset("train", index)
    return [decision.state for decision in decisions(world, start, do_nothing)] or [start.state]


def _lasts(world, index):
    """Steps, up to LASTS, that doing nothing survives in a training scenario; 0 where the grid can't start like that."""
    try:
        start = world.reset("train", index)
    except Grid2OpException:
        return 0
    for _ in decisions(world, start, do_nothing, until=LASTS):
        pass
    return min(world.t - world.blackout, LASTS)


def play_outages(environment, outages=3, episodes=15, output="results"):
    """Play all methods on the first test episodes, each of them with one of the lines out, in turn: episode i without line
    i mod outages. Reads the policies of results/runs; writes <output>/studies/outages/<environment>.csv, a row an episode,
    and returns it as a table.

    All methods play the same pairs of line and scenario. The same scenarios with all lines in service are in episodes.csv
    of each run. Raises ConfigError or FileNotFoundError, one line each.
    """
    params = config.load()
    tasks = tasks_of(params, environment, *params.played("outages", environment))
    world = world_of(environment)
    lines, episodes = choose_lines(world, outages), min(episodes, len(world.sets["test"]))
    names = [world.env.name_line[line] for line in lines]
    what = f"{environment}, without line {' or '.join(names)}"
    played = play_tasks(functools.partial(_play, environment, lines, episodes), tasks, what)
    table = pd.DataFrame([row for rows in played for row in rows], columns=COLUMNS)
    write_rows(table, output, "outages", environment)
    return table


def _play(environment, lines, episodes, variant, seed, policy):
    """All episodes of one run: list of dicts with COLUMNS."""
    settings, world = config.load().settings(variant), world_of(environment)
    agent = agent_of(settings, environment, world, policy)
    rows = []
    for episode in range(episodes):
        line = lines[episode % len(lines)]
        (result,) = evaluate.play(OutageWorld(world, line, settings.operator), agent, "test", [episode])
        identity = {"env": environment, "variant": variant, "seed": seed, "outage": episode % len(lines)}
        rows.append({**identity, "line": world.env.name_line[line], "episode": episode, **result.row()})
    return rows
