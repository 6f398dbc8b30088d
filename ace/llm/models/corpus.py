"""States of danger from training scenarios and what helps in them: the knowledge that the embedded model is taught.

1. Scan: states of danger are met in play and the most promising of the whole catalogue's actions simulated in each.
2. Choose a set of actions that together help nearly everywhere (greedy coverage): few labels teach a small set.
3. Play more scenarios, at times doing nothing, at times a random or the best action of the set, and simulate the whole
   set in every state of danger. What is played is mixed, because the model will meet what others caused.

`samples.py` writes it down as text. All of this is our reading; the paper's Qwen2-7B comes trained.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from tqdm import tqdm

from ace import config, pool
from ace.episodes import decisions
from ace.grid.environment import GridState, World, scenario_sets
from ace.grid.fastworld import FastWorld
from ace.grid.whatif import WhatIf

BEHAVIOURS = ((0.0, 0.0), (0.0, 0.3), (0.3, 0.1), (0.6, 0.1), (0.8, 0.2))
"""An episode's player does the best it knows, or something random, with these probabilities; else nothing."""
EPISODES_AT_ONCE = 8
"""Episodes between two looks at how many states there are. Not the number of processes, or results would hang on it."""
DECISIONS_AN_EPISODE = 30
CANDIDATES_A_STATE, CANDIDATES_AN_ACTION = 15, 4
"""How many actions of a scanned state are remembered; how many candidates there are for each place in the set."""
GAIN_CLIP = 0.1
"""A gain of more than this share of the limit counts as this much, so that no single state decides on the set."""


@dataclass(slots=True)
class Visit:
    """A decision met in play. rho_after: highest loading one step later, None after a blackout.

    values: (n,) rho_max one step after each action of the set, nan where it fails; legal: (n,) bool.
    """

    state: GridState
    action: int
    reward: float
    rho_after: float | None
    values: np.ndarray
    legal: np.ndarray


@dataclass(slots=True)
class Corpus:
    """actions: (n,) ids of the set, do nothing first; episodes: lists of Visit; budget: what it took to make."""

    actions: np.ndarray
    episodes: list
    budget: dict

    @property
    def visits(self):
        return [visit for episode in self.episodes for visit in episode]


# --- play -------------------------------------------------------------------------------------------------------------


def in_turn(scenarios, number):
    """Which scenario of a set is the number-th to be played: each week once, then each from its next day on, then all over again.

    A training set has the days of a week one after the other; whoever plays a few scenarios would see a few weeks.
    """
    n = len(scenarios)
    weeks, number = getattr(scenarios, "n_weeks", n), number % n
    return number % weeks * (n // weeks) + number // weeks


class Player:
    """Plays scenarios of a split on the fast world: Grid2Op's rules, several times its speed."""

    def __init__(self, world, split="train"):
        self.split, self.whatif = split, WhatIf(world)
        self.world = FastWorld(world, attack_rng=np.random.default_rng(0))

    def play(self, index, choose, rng, limit):
        """Play a scenario until it ends or `limit` decisions were made: [episodes.Decision].

        index: as of `in_turn`; choose: as of `episodes.decisions`; rng: also of the opponent, where there is one.
        """
        self.world.attack_rng = rng
        start = self.world.reset(self.split, in_turn(self.world.sets[self.split], index))
        return list(decisions(self.world, start, choose, limit))


def legal_of(catalogue, state, ids):
    """Which of the actions may be played in a state of danger: (n,) bool."""
    legal = catalogue.legality(state.topo, state.cooldown_sub, True)
    return np.array([catalogue.is_legal(legal, int(a)) for a in ids], dtype=bool)


def behave(rng, behaviour, best, options):
    """The next action of a player: best, one of the options, or nothing."""
    draw, (p_best, p_random) = rng.random(), behaviour
    if draw < p_best:
        return int(best())
    return int(rng.choice(options())) if draw < p_best + p_random else 0


# --- the set of actions -----------------------------------------------------------------------------------------------


def choose_actions(gains, n):
    """Greedy coverage: n columns that together raise the sum over states of the best gain the most.

    gains: (states, candidates) >= 0. Returns column indices; where nothing adds any more, the largest sums follow.
    """
    covered, chosen = np.zeros(len(gains)), []
    open_columns = np.ones(gains.shape[1], dtype=bool)
    for _ in range(min(n, gains.shape[1])):
        added = np.maximum(gains - covered[:, None], 0).sum(axis=0)
        added = np.where(open_columns, added + 1e-6 * gains.sum(axis=0), -1)
        best = int(added.argmax())
        chosen.append(best)
        open_columns[best] = False
        covered = np.maximum(covered, gains[:, best])
    return np.array(chosen, dtype=int)


def _scan_episode(place, index, seed, shortlist):
    """Scan one training episode: [(state, candidates)], and the calls."""
    player, rng = _player(place), np.random.default_rng([seed, 1, index])
    catalogue, whatif, seen = player.world.catalogue, player.whatif, []
    behaviour = BEHAVIOURS[rng.integers(len(BEHAVIOURS))]

    def choose(decision):
        state = decision.state
        legality = catalogue.legality(state.topo, state.cooldown_sub, True)
        ids, rho = whatif.best(state, legality, shortlist)
        better = [int(a) for a, r in zip(ids, rho, strict=True) if r < rho[ids == 0][0]]
        seen.append((state, better[:CANDIDATES_A_STATE]))
        return behave(rng, behaviour, lambda: ids[0], lambda: ids)

    return _counted(player, lambda: (player.play(index, choose, rng, DECISIONS_AN_EPISODE // 3), seen)[1])


def _gains(place, states, candidates):
    """Clipped gain over doing nothing of each candidate in each state: (states, candidates)."""
    player = _player(place)

    def rows():
        out = np.zeros((len(states), len(candidates)), dtype=np.float32)
        for row, state in zip(out, states, strict=True):
            rho = player.whatif.ac(state, [0, *candidates])
            nothing = rho[0] if np.isfinite(rho[0]) else 2.0
            gain = np.where(legal_of(player.world.catalogue, state, candidates), nothing - rho[1:], 0)
            row[:] = np.clip(np.nan_to_num(gain), 0, GAIN_CLIP)
        return out

    return _counted(player, rows)


def _label_episode(place, index, seed, actions):
    """Play one training episode within the set and simulate the whole set at each decision: [Visit], and the calls."""
    player, rng = _player(place), np.random.default_rng([seed, 2, index])
    behaviour, known = BEHAVIOURS[rng.integers(len(BEHAVIOURS))], []

    def choose(decision):
        values = player.whatif.ac(decision.state, actions)
        legal = legal_of(player.world.catalogue, decision.state, actions)
        known.append((values, legal))
        return behave(rng, behaviour, lambda: actions[best_of(values, legal)], lambda: actions[legal])

    def visits():
        played = player.play(index, choose, rng, DECISIONS_AN_EPISODE)
        return [Visit(d.state, d.action, d.reward, d.rho_after, *both) for d, both in zip(played, known, strict=True)]

    return _counted(player, visits)


def best_of(values, legal):
    """Index of the legal action with the lowest rho_max; 0 (do nothing) where all fail."""
    rho = np.where(legal & np.isfinite(values), values, np.inf)
    return int(rho.argmin())


# --- all of it --------------------------------------------------------------------------------------------------------


def build(params, environment, progress=False):
    """The corpus of an environment (by name), made in the pool; how many workers it has changes nothing in it."""
    settings = params.language_model
    place = _place(params, environment)
    scenarios = len(scenario_sets(params.environment(environment), params.scenarios)["train"])
    budget = dict.fromkeys(("simulator_calls", "dc_calls", "env_steps", "episodes"), 0)

    def run(function, *arguments):
        """function(place, each, *arguments) of each in a list, in the pool, and adds up the calls."""
        return lambda each: _collect(function, [(place, one, *arguments) for one in each], budget)

    scan = _until(settings.scan, run(_scan_episode, settings.seed, settings.shortlist), scenarios, "scan", progress)
    seen = [pair for part in scan for pair in part][: settings.scan]
    actions = _choose_set(seen, settings, lambda parts, candidates: run(_gains, candidates)(parts))
    episodes = _until(settings.states, run(_label_episode, settings.seed, actions), scenarios, "states", progress)
    return Corpus(actions, [episode for episode in episodes if episode], budget)


def _choose_set(seen, settings, gains_of):
    votes = np.unique([a for _, better in seen for a in better], return_counts=True)
    # The most voted first; of equals, the lower id.
    most = CANDIDATES_AN_ACTION * settings.actions
    candidates = np.sort(votes[0][np.lexsort((votes[0], -votes[1]))][:most]).tolist()
    states = [state for state, _ in seen]
    parts = [states[i : i + 25] for i in range(0, len(states), 25)]
    gains = np.concatenate(gains_of(parts, candidates))
    chosen = choose_actions(gains, settings.actions - 1)
    return np.array([0, *(candidates[i] for i in chosen)], dtype=np.int64)


def _until(wanted, run, scenarios, name, progress):
    """Episodes in order, scenarios in turn (over again with other behaviour), until there are `wanted` states.

    scenarios: after more than so many in a row without any it gives up
    """
    done, have, first, calm = [], 0, 0, 0
    bar = tqdm(total=wanted, desc=name, unit="state", disable=not progress)
    while have < wanted:
        parts = run(range(first, first + EPISODES_AT_ONCE))
        new = sum(len(part) for part in parts)
        done, have, first = done + parts, have + new, first + EPISODES_AT_ONCE
        bar.update(min(new, wanted - bar.n))
        calm = 0 if new else calm + EPISODES_AT_ONCE
        if calm > scenarios:
            raise config.ConfigError(f"{have} states of danger in {first} episodes: operator.danger is too high for it")
    bar.close()
    return done


def _collect(function, tasks, budget):
    """Results of tasks that return (result, calls); adds up the calls."""
    results = pool.run(function, tasks)
    for _, calls in results:
        for key, count in calls.items():
            budget[key] += count
    return [result for result, _ in results]


def _counted(player, work):
    """(result, calls) of a piece of work."""
    whatif = player.whatif
    before = (whatif.ac_calls, whatif.dc_calls, player.world.env_steps)
    result = work()
    ac, dc, steps = np.subtract((whatif.ac_calls, whatif.dc_calls, player.world.env_steps), before).tolist()
    return result, {"simulator_calls": ac, "dc_calls": dc, "env_steps": steps, "episodes": int(steps > 0)}


def _place(params, environment):
    """What a process needs to make its own world, as text."""
    operator = params.base.operator
    return tuple(m.model_dump_json() for m in (params.environment(environment), params.scenarios, operator))


@lru_cache(maxsize=1)
def _player(place):
    spec, scenarios, operator = place
    world = World(
        config.Environment.model_validate_json(spec), config.Scenarios.model_validate_json(scenarios),
        config.settings.Operator.model_validate_json(operator),
    )  # fmt: skip
    return Player(world)
