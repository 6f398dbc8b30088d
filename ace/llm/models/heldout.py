"""Held-out states of danger, and the one number that says most of a proposer: how often its first proposal helps.

They come from validation scenarios, played by the mixed behaviours of the corpus, because a model meets what others
caused.
"""

import numpy as np

from ace.config import ConfigError
from ace.episodes import decisions
from ace.grid.environment import GridState
from ace.llm.models.corpus import BEHAVIOURS, Visit, behave, best_of, in_turn, legal_of
from ace.llm.policy_actor import first_proposals

AN_EPISODE = 8
"""Held-out states of one episode at the most."""
DECISIONS = 60
"""Decisions of an episode at the most."""
JUDGED = 4
"""Decisions played for each held-out state that is wanted, so that enough of them are key decisions for g_LLM."""
PASSES = 2
"""Times that every scenario is played with every behaviour, at the most."""


def mixed_episodes(world, whatif, actions, split, seed):
    """Yields episodes, lists of corpus.Visit: a scenario of a split with every behaviour, then the next scenario, ...

    world: anything with `reset`, `step`, `sets` and `catalogue`; actions: (n,) ids of the set, do nothing first.
    """
    n = len(world.sets[split])

    def choose(decision):
        values = whatif.ac(decision.state, actions)
        legal = legal_of(world.catalogue, decision.state, actions)
        known.append((values, legal))
        return behave(rng, behaviour, lambda: actions[best_of(values, legal)], lambda: actions[legal])

    for number in range(PASSES * n * len(BEHAVIOURS)):
        rng, behaviour, known = np.random.default_rng([seed, 4, number]), BEHAVIOURS[number % len(BEHAVIOURS)], []
        start = world.reset(split, in_turn(world.sets[split], number // len(BEHAVIOURS)))
        played = decisions(world, start, choose, limit=DECISIONS)
        yield [Visit(d.state, d.action, d.reward, d.rho_after, *known[-1]) for d in played]


def heldout_states(world, whatif, actions, shortlist, margin, n, seed, judged=0):
    """(states, episodes): up to n states of danger with an improving action, and the episodes they were met in.

    Improving is what counts as success later: of the set, or of the whole catalogue's shortlist of this length, an
    action's simulated reward beats doing nothing's by more than the margin. Fewer than n where the passes give fewer.
    judged: decisions that the episodes hold at least, all together.
    """
    states, episodes = [], []
    for number, episode in enumerate(mixed_episodes(world, whatif, actions, "validation", seed)):
        rng, taken = np.random.default_rng([seed, 7, number]), 0
        episodes.append(episode)
        for visit in episode:
            # Not every one: decisions in a row are much alike.
            if (
                len(states) < n
                and taken < AN_EPISODE
                and rng.random() < 0.5
                and _improvable(whatif, visit, actions, shortlist, margin)
            ):
                states.append(visit.state)
                taken += 1
        if len(states) >= n and sum(map(len, episodes)) >= judged:
            break
    return states, episodes


def _improvable(whatif, visit, actions, shortlist, margin):
    state, catalogue = visit.state, whatif.catalogue
    wanted = whatif.simulate(state, 0).reward + margin
    order = np.argsort(visit.values, kind="stable")  # the promising first: mostly one simulation settles it
    if any(whatif.simulate(state, int(a)).reward > wanted for a in actions[order[visit.legal[order]]]):
        return True
    ids, _ = whatif.best(state, catalogue.legality(state.topo, state.cooldown_sub, True), shortlist)
    return any(whatif.simulate(state, int(a)).reward > wanted for a in ids)


def one_proposal(client, textmap, whatif, states, settings, seed, role="actor"):
    """Whether the model's first proposal beats doing nothing by the margin, in each state: list of bool.

    Arguments as of `policy_actor.first_proposals`.
    """
    found = first_proposals(client, textmap, whatif, states, settings, seed, role)
    return [refinement is not None and refinement.improved for refinement in found]


# --- on disk ----------------------------------------------------------------------------------------------------------


def save_states(states, path):
    """states: list of GridState, stacked; the same bytes for the same states."""
    np.savez_compressed(path, **GridState.stack(states))


def load_states(path, n):
    """The first n states of a file that `save_states` wrote, or all where it holds fewer."""
    try:
        with np.load(path) as file:
            columns = {name: file[name][:n] for name in file.files}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no held-out states at {path} ({type(error).__name__}): stage language_model makes them"
        ) from None
    return GridState.unstack(columns)
