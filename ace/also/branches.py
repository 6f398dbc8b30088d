"""Branches: clones of a training run that learn on for a while, and are then scored by the unshaped return.

A branch starts from the run's own state, its random streams included, so that all branches of a point meet the same training
weeks in the same order and draw the same numbers; they differ in the configuration alone. Neither f_LLM nor g_LLM works in a
branch. The run itself is read, never written to. No checkpoint is chosen by the scenarios that score.
"""

import copy
from dataclasses import dataclass

import numpy as np

from ace.also.terms import ShapedSampler
from ace.coevolve import CoEvolution
from ace.evaluate import play
from ace.grid.scenarios import Beyond
from ace.rl.policy import Policy
from ace.rl.sac import SAC


class Enough(Exception):
    """A branch has made its decisions; the episode that it is in is left."""


@dataclass(frozen=True, slots=True)
class Branch:
    """What became of one. score: mean over scenarios of `unshaped_return`; survival: share of the horizon; both None where it
    died, which `died` tells. decisions, updates, env_steps: in training; scoring_steps: environment steps in scoring."""

    score: float | None
    survival: float | None
    died: str | None
    decisions: int
    updates: int
    env_steps: int
    scoring_steps: int


class Branches:
    """Clones of one run, one after the other.

    learner: coevolve.CoEvolution, between two episodes; terms: terms.Terms; decisions: of a branch; scenarios: that score it,
    default `unseen_validation`.
    """

    def __init__(self, learner, terms, decisions, scenarios=None):
        world, s = learner.world, learner.settings
        self.learner, self.decisions = learner, decisions
        sac = SAC(world.catalogue, world.features.n, s.sac, seed=0)
        self.twin = CoEvolution(world, sac, s, 0, None)  # the seed is of no account: the state brings all streams
        self.twin.d_mix = ShapedSampler(self.twin.d_mix, terms)
        self.twin.choose = self._choose
        self.scoring = copy.copy(world)
        self.scoring.sets = {**world.sets, "validation": scenarios or unseen_validation(world)}

    def _choose(self, decision):
        if self.twin.count["decisions"] == self.goal:
            raise Enough
        return self.twin.sac.act(*decision.observation, greedy=False)

    def run(self, state, weights, judgements=()):
        """Train one branch and score it: a Branch.

        state: the learner's state_dict; weights: (6,) of the terms; judgements: [(Transition, r_original, r_refined)] of g_LLM
        that enter D_LLM first. FloatingPointError, as of SAC.update, is a branch's death and nobody else's.
        """
        twin, world = self.twin, self.learner.world
        twin.load_state_dict(state)
        twin.d_mix.weights = weights
        for judged in judgements:
            twin.d_llm.add(*judged, is_refined=False)
        before, steps, scoring_steps = twin.count.copy(), world.env_steps, self.scoring.env_steps
        self.goal, score, survival, died = before["decisions"] + self.decisions, None, None, None
        try:
            self._train()
            scenarios = range(len(self.scoring.sets["validation"]))
            results = list(play(self.scoring, Policy(twin.policy), "validation", scenarios))
            score = float(np.mean([unshaped_return(result, twin.settings.train.reward) for result in results]))
            survival = float(np.mean([result.survival for result in results]))
        except FloatingPointError as error:
            died = str(error)
        trained, world.env_steps = world.env_steps - steps, steps  # the run's own count; what a branch used is in its row
        used = [twin.count[name] - before[name] for name in ("decisions", "updates")]
        return Branch(score, survival, died, *used, trained, self.scoring.env_steps - scoring_steps)

    def _train(self):
        try:
            while True:
                for _ in self.twin.episode():
                    pass
        except Enough:
            pass


def unseen_validation(world):
    """Validation scenarios that choose no checkpoint, as many as those that do: of further weeks, as far as there are any, or
    drawn anew from packaged days. Where there are no further weeks, the same ones."""
    chosen = world.sets["validation"]
    more, n = copy.copy(chosen), len(chosen)
    if hasattr(chosen, "weeks"):
        more.n_weeks = min(2 * n, len(chosen.weeks))
    else:
        more.n = 2 * n
    return Beyond(more, n) if len(more) > n else chosen


def unshaped_return(result, reward):
    """Of an episode, undiscounted, by its horizon: in [-1, 1], as step rewards are. result: evaluate.EpisodeResult; reward: of
    settings.Train. A blackout is an absorbing -1, as in training; where the reward is sparse, that alone counts."""
    lost = result.horizon - result.survived_steps  # the step of the blackout among them, whose -1 is in the sum
    total = -lost if reward == "sparse" else result.reward - max(lost - 1, 0)
    return total / result.horizon


def gain(branch, control):
    """Of a branch over the control, in the unshaped return; None where either died."""
    return None if branch.score is None or control.score is None else branch.score - control.score
