"""The one way in which episodes are played: a generator of decisions.

Training, evaluation, the language model's corpus and the studies all consume it. `World` plays the quiet steps between two
decisions; what is yielded here are the steps at which an agent is asked.
"""

from dataclasses import dataclass, field
from functools import cached_property


@dataclass
class Decision:
    """One decision of an episode. The observation is made when it is first asked for: not everyone needs it.

    world: the World that is played; state: GridState in which the agent is asked
    action: catalogue id; step: what followed, a grid.environment.Step; both None while `choose` is asked
    """

    world: object = field(repr=False)
    state: object
    action: int | None = None
    step: object = None

    @cached_property
    def observation(self):
        """(x, legal): (F,) float32 and (L,) uint8, as the networks take them."""
        return self.world.observe(self.state)

    @property
    def reward(self):
        """Of the first step after the decision, in [-1, 1]."""
        return self.step.rewards[0]

    @property
    def rho_after(self):
        """Highest loading one step after the decision (share of the limit), None after a blackout."""
        lost = self.step.blackout and len(self.step.rewards) == 1
        return None if lost else self.step.first.rho_max


def decisions(world, start, choose, limit=None, until=None):
    """Play an episode and yield each Decision, once it is played.

    start: the Step of `world.reset(split, index)`; choose: (Decision) -> catalogue id
    limit: decisions at the most; until: step of the episode from which on no decision is made. Default: to its end.
    How it ended is in `world.t` and `world.blackout`. The consumer's code runs between a decision and the next, so that it
    may learn, and draw from the generators that `choose` draws from.
    """
    step, n = start, 0
    while not step.over and n != limit and (until is None or world.t < until):
        decision = Decision(world, step.state)
        decision.action = choose(decision)
        decision.step = step = world.step(decision.action)
        n += 1
        yield decision


def do_nothing(decision):
    """As `choose` of `decisions`."""
    return 0
