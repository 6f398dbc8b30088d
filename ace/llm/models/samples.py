"""The corpus as text: (prompt, reply) pairs for f_LLM and for g_LLM.

f_LLM learns to name the best action that was not tried yet, after a bad case and up to four tries. g_LLM learns the
counterfactual: what the simulator says about an action against doing nothing, and about doing nothing against the best.
"""

import numpy as np

from ace.llm.models.corpus import best_of
from ace.llm.text import Decision, adjustment, outcome
from ace.llm.value_critic import BEFORE, around

TIE = 0.005
"""Actions whose loading is this close to the best count as equally good; the label is the one most useful overall."""
NO_BAD_CASE = 0.15
"""Share of prompts without a bad case, for the variant that does not show it."""
TRIES = (0.4, 0.2, 0.15, 0.15, 0.1)
"""Probabilities of 0, 1, .. tries after the bad case."""
TRY_TEMPERATURE, REFUTED = 0.02, 0.7
"""Tries are drawn with weight exp(-rho_max / temperature): good actions, as a model would propose them. But a model is
asked again because its tries did not help. So this share of tries is shown as if they had not: the outcome is made up,
no better than the bad case. What is taught is to believe the verdict and name the next best, not to say it again."""
NOT_UNDERSTOOD, ILLEGAL = 0.03, 0.2
"""Shares of tries that failed so; illegal ones are drawn by worth, as a model would propose them."""
FAILED = ("not understood , the last line is not an action", "not understood , an element is not at this substation")
CRITIC_SHARE = 0.2
"""Share of g_LLM's samples; every second one shows actions as bare indices, so that the model knows both forms."""
EARLY = 0.5
"""Share of g_LLM's samples in which fewer decisions come before the key one than could."""
FAR = 0.05
"""A counterfactual difference of rho_max above this is "by far": 2 K instead of K."""
IN_NEED = 0.02
"""Doing nothing was wrong where the best action would have gained more rho_max than this."""


class Writer:
    """Draws samples from a corpus."""

    def __init__(self, textmap, corpus):
        self.textmap, self.corpus = textmap, corpus
        self.visits = corpus.visits
        self.state_text = [textmap.state(visit.state) for visit in self.visits]
        self.names = [textmap.action(int(a)) for a in corpus.actions]
        self.index = {int(a): i for i, a in enumerate(corpus.actions)}
        self.worth = _worth(self.visits, len(corpus.actions))
        self.places = [(episode, i) for episode in corpus.episodes for i in range(len(episode))]

    def draw(self, n, seed):
        """n (prompt, reply) pairs. Every visit is used about equally often, each time with other tries."""
        rng = np.random.default_rng([seed, 3])
        n_critic = round(CRITIC_SHARE * n)
        actor = [self.actor(i, rng) for i in _passes(rng, len(self.visits), n - n_critic)]
        places = [self.places[i] for i in _passes(rng, len(self.places), n_critic)]
        return actor + [self._critic(number, place, rng) for number, place in enumerate(places)]

    # --- f_LLM --------------------------------------------------------------------------------------------------------

    def actor(self, number, rng):
        """One sample of f_LLM from the visit of this number."""
        visit, tried, shown, bad = self.visits[number], [], [], 0
        if rng.random() >= NO_BAD_CASE:
            bad = 0 if rng.random() < 0.5 else int(rng.choice(np.flatnonzero(visit.legal)))
            shown.append((self.names[bad], self._after(visit, bad)))
            tried.append(bad)
        for _ in range(int(rng.choice(len(TRIES), p=TRIES))):
            kind = rng.random()
            if kind < NOT_UNDERSTOOD:
                shown.append(("answer", FAILED[int(rng.integers(len(FAILED)))]))
            elif kind < NOT_UNDERSTOOD + ILLEGAL and self.worth[~visit.legal].sum() > 0:
                weight = np.where(visit.legal, 0, self.worth)
                shown.append((self.names[int(rng.choice(len(weight), p=weight / weight.sum()))], "illegal"))
            else:
                choice = self._try(visit, tried, rng)
                shown.append((self.names[choice], self._verdict(visit, bad, choice, rng)))
                tried.append(choice)
        prompt = self.textmap.actor_prompt(self.state_text[number], shown)
        return prompt, self.answer(visit, self.label(visit, tried))

    def label(self, visit, tried=()):
        """Index of the action to name: the best that was not tried; among near equals the one of most worth overall."""
        legal = visit.legal.copy()
        legal[list(tried)] = False
        values = np.where(legal, visit.values, np.nan)
        if not np.isfinite(values).any():
            return 0
        near = np.flatnonzero(values <= np.nanmin(values) + TIE)
        return int(near[self.worth[near].argmax()])

    def answer(self, visit, choice):
        return self.textmap.actor_reply(visit.state, int(self.corpus.actions[choice]), self._after(visit, choice))

    def _verdict(self, visit, bad, choice, rng):
        floor = visit.values[bad]
        if rng.random() >= REFUTED or not np.isfinite(floor) or visit.values[choice] > floor:
            return self._after(visit, choice)
        return outcome(None if rng.random() < 0.1 else float(floor) + rng.exponential(0.03))

    def _try(self, visit, tried, rng):
        value = np.where(visit.legal & np.isfinite(visit.values), visit.values, np.inf)
        value[tried] = np.inf
        if not np.isfinite(value).any():
            return int(rng.choice(np.flatnonzero(visit.legal)))
        weight = np.exp((value.min() - value) / TRY_TEMPERATURE)
        return int(rng.choice(len(value), p=weight / weight.sum()))

    def _after(self, visit, choice):
        value = visit.values[choice]
        return outcome(float(value) if np.isfinite(value) else None)

    # --- g_LLM --------------------------------------------------------------------------------------------------------

    def _critic(self, number, place, rng):
        # Few decisions are the first of their episode: without these, the number is the same one nearly everywhere.
        before = int(rng.integers(BEFORE)) if rng.random() < EARLY else BEFORE
        return self.critic(*place, describe=number % 2 == 0, before=before)

    def critic(self, episode, position, describe=True, before=BEFORE):
        """One sample of g_LLM: any decision of an episode as the key one, so that the threshold can be set later."""
        part, number = around(episode, position, before)
        decisions = [Decision(v.state, v.action, v.reward, v.rho_after) for v in part]
        verdict = adjustment(number, self.truth(episode[position]))
        return self.textmap.critic_prompt(decisions, number, describe), f"adjustments :\n{verdict}"

    def truth(self, visit):
        """The counterfactual verdict on a decision: -2, -1, 1 or 2."""
        best = best_of(visit.values, visit.legal)
        return counterfactual(visit.action, visit.values[self.index[visit.action]], visit.values[0], visit.values[best])


def counterfactual(action, played, nothing, best):
    """The verdict on a decision, -2, -1, 1 or 2: an action against doing nothing, doing nothing against the best.

    action: catalogue id, 0 for doing nothing; played, nothing, best: rho_max one step after each, nan after a blackout.
    """
    if action:
        difference = _finite(nothing) - _finite(played)
        return _verdict(difference >= 0, abs(difference))
    difference = _finite(nothing) - _finite(best)
    return _verdict(difference <= IN_NEED, difference)


def _verdict(good, difference):
    return (1 if good else -1) * (2 if difference > FAR else 1)


def _finite(value, blackout=2.0):
    return float(value) if np.isfinite(value) else blackout


def _worth(visits, n):
    """How often each action is within TIE of the best: (n,)."""
    worth = np.zeros(n)
    for visit in visits:
        values = np.where(visit.legal, visit.values, np.nan)
        if np.isfinite(values).any():
            worth += values <= np.nanmin(values) + TIE
    return worth


def _passes(rng, n, wanted):
    """`wanted` indices below n in shuffled passes."""
    passes = [rng.permutation(n) for _ in range(-(-wanted // n))] or [np.zeros(0, dtype=int)]
    return np.concatenate(passes)[:wanted]
