"""Branches: clones of a training run that learn on for a while, and are then scored by the unshaped return.

A branch starts from the run's own state, its random streams included, so that all branches of a point meet the same training
weeks in the same order and draw the same numbers; they differ in the configuration alone. Neither f_LLM nor g_LLM works in a
branch. The run itself is read, never written to.
"""

from dataclasses import dataclass

import numpy as np

from ace.also.terms import ShapedSampler
from ace.coevolve import CoEvolution
from ace.evaluate import play
from ace.rl.policy import Policy
from ace.rl.sac import SAC


class Enough(Exception):
    """A branch has made its decisions; the episode that it is in is left."""


@dataclass(frozen=True, slots=True)
class Branch:
    """What became of one. score: mean over scenarios of the unshaped return, the sum of an episode's step rewards by its horizon;
    survival: share of the horizon; both None where it died, which `died` tells. decisions, env_steps: in training;
    scoring_steps: environment steps in scoring."""

    score: float | None
    survival: float | None
    died: str | None
    decisions: int
    env_steps: int
    scoring_steps: int


class Branches:
    """Clones of one run, one after the other, scored on the validation scenarios of its world.

    learner: coevolve.CoEvolution, between two episodes; terms: terms.Terms; decisions: of a branch.
    """

    def __init__(self, learner, terms, decisions):
        world, s = learner.world, learner.settings
        self.learner, self.decisions = learner, decisions
        sac = SAC(world.catalogue, world.features.n, s.sac, seed=0)
        self.twin = CoEvolution(world, sac, s, 0, None)  # the seed is of no account: the state brings all streams
        self.twin.d_mix = ShapedSampler(self.twin.d_mix, terms)
        self.twin.choose = self._choose

    def _choose(self, decision):
        if self.twin.count["decisions"] == self.goal:
            raise Enough
        return self.twin.sac.act(*decision.observation, greedy=False)

    def run(self, state, weights, judgements=None):
        """Train one branch and score it: a Branch.

        state: the learner's state_dict; weights: (6,) of the terms; judgements: {uid of D_LLM: g_LLM's change of its step reward}
        that are applied first. FloatingPointError, as of SAC.update, is a branch's death and nobody else's.
        """
        twin, world = self.twin, self.learner.world
        twin.load_state_dict(state)
        twin.d_mix.weights = weights
        for uid, delta in (judgements or {}).items():
            twin.d_llm.judge(uid, delta, 1 - twin.settings.sac.gamma)
        start, steps = twin.count["decisions"], world.env_steps
        self.goal, score, survival, died = start + self.decisions, None, None, None
        try:
            self._train()
            trained = world.env_steps - steps
            results = list(play(world, Policy(twin.policy), "validation", range(len(world.sets["validation"]))))
            score = float(np.mean([result.reward / result.horizon for result in results]))
            survival = float(np.mean([result.survival for result in results]))
        except FloatingPointError as error:
            trained, died = world.env_steps - steps, str(error)
        scoring = world.env_steps - steps - trained
        world.env_steps = steps  # the run's own count; what a branch used is in its row
        return Branch(score, survival, died, twin.count["decisions"] - start, trained, scoring)

    def _train(self):
        try:
            while True:
                for _ in self.twin.episode():
                    pass
        except Enough:
            pass


def gain(branch, control):
    """Of a branch over the control, in the unshaped return; None where either died."""
    return None if branch.score is None or control.score is None else branch.score - control.score
