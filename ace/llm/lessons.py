"""RL teaches the language model: good decisions of the policy become samples of its LoRA rounds (co-evolution, the way back).

A decision is a lesson if its action gains more in the simulator than doing nothing, and more than what the model itself now
answers in that state, each by the margin of f_LLM's refinements. It is written as f_LLM would be asked, T_s with doing nothing
as the bad case, and as it would answer, T_a after the simulator's reasons. The paper says of its samples only that they come from
prioritized replay and hold successful trajectories; the rest is our reading.
"""

from collections import Counter, deque
from dataclasses import dataclass

from ace.grid.environment import GridState
from ace.llm.policy_actor import first_proposals, outcome_text

KEPT = 1000
"""Latest decisions of the policy that a round draws from; those in which it did nothing have nothing to teach."""


@dataclass(slots=True)
class Lesson:
    """prompt, reply: text; gain: simulated reward of the policy's action less that of doing nothing, for Eq. 8."""

    prompt: str
    reply: str
    gain: float


@dataclass(slots=True)
class _Judged:
    """A decision of the policy; nothing, after: whatif.Outcome of doing nothing and of its action."""

    state: GridState
    action: int
    nothing: object
    after: object

    @property
    def gain(self):
        return self.after.reward - self.nothing.reward


class Lessons:
    """counts: looked_at decisions, better_than_nothing of them, taught of these; state_dict() holds them and the decisions."""

    def __init__(self, actor, settings):
        """actor: the run's PolicyActor; settings: config.settings.Settings."""
        self.actor, self.whatif, self.textmap, self.settings = actor, actor.whatif, actor.textmap, settings
        self.decisions = deque(maxlen=KEPT)  # (GridState, catalogue id)
        self.counts = Counter()

    def keep(self, state, action):
        """Called with every decision of the policy in training."""
        if action:
            self.decisions.append((state, action))

    def draw(self, rng):
        """The lessons of one LoRA round: of `finetune.samples` decisions, drawn at random, those that teach something.

        finetune.draw = random, a control: as many of the decisions that were drawn, whatever they gain, with the weights that
        the lessons would have had; their calls are made, and counted, all the same.
        """
        n = min(self.settings.finetune.samples, len(self.decisions))
        drawn = [self._judged(*self.decisions[i]) for i in rng.permutation(len(self.decisions))[:n]]
        good = [each for each in drawn if each.gain > self.settings.refine.margin]
        taught = self._better_than_the_model(good, seed=int(rng.integers(2**31)))
        self.counts.update(looked_at=n, better_than_nothing=len(good), taught=len(taught))
        shown = taught
        if self.settings.finetune.draw == "random":
            shown = [drawn[i] for i in rng.permutation(n)[: len(taught)]]
        return [Lesson(*self._written(each), lesson.gain) for each, lesson in zip(shown, taught, strict=True)]

    def _judged(self, state, action):
        return _Judged(state, action, self.whatif.simulate(state, 0), self.whatif.simulate(state, action))

    def _better_than_the_model(self, judged, seed):
        """Those whose action beats the model's first proposal too. One that can't be validated is beaten."""
        refine = self.settings.refine
        answers = first_proposals(
            self.actor.recorder, self.textmap, self.whatif, [each.state for each in judged], refine, seed, role="lesson"
        )
        return [j for j, a in zip(judged, answers, strict=True) if a is None or j.after.reward > a.reward + refine.margin]

    def _written(self, judged):
        """(prompt, reply), as f_LLM would be asked and as it should answer."""
        shown = [(self.textmap.action(0), outcome_text(judged.nothing))] if self.settings.refine.bad_case else []
        prompt = self.textmap.actor_prompt(self.textmap.state(judged.state), shown)
        return prompt, self.textmap.actor_reply(judged.state, judged.action, outcome_text(judged.after))

    def state_dict(self):
        actions = [int(action) for _, action in self.decisions]
        return {"states": GridState.stack([s for s, _ in self.decisions]), "actions": actions, "counts": dict(self.counts)}

    def load_state_dict(self, saved):
        self.decisions.clear()
        self.decisions.extend(zip(GridState.unstack(saved["states"]), saved["actions"], strict=True))
        self.counts = Counter(saved["counts"])
