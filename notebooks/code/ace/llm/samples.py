import numpy as np
from ace.llm.corpus import best_of
from ace.llm.critic import BEFORE, around
from ace.llm.text import Decision, adjustment, outcome
TIE = 0.005
NO_BAD_CASE = 0.15
TRIES = (0.4, 0.2, 0.15, 0.15, 0.1)
TRY_TEMPERATURE, REFUTED = (0.02, 0.7)
NOT_UNDERSTOOD, ILLEGAL = (0.03, 0.2)
FAILED = ('not understood , the last line is not an action', 'not understood , an element is not at this substation')
CRITIC_SHARE = 0.2
EARLY = 0.5
FAR = 0.05
IN_NEED = 0.02

class Writer:

    def __init__(self, textmap, corpus):
        self.textmap, self.corpus = (textmap, corpus)
        self.visits = corpus.visits
        self.state_text = [textmap.state(visit.state) for visit in self.visits]
        self.names = [textmap.action(int(a)) for a in corpus.actions]
        self.index = {int(a): i for i, a in enumerate(corpus.actions)}
        self.worth = _worth(self.visits, len(corpus.actions))
        self.places = [(episode, i) for episode in corpus.episodes for i in range(len(episode))]

    def draw(self, n, seed):
        rng = np.random.default_rng([seed, 3])
        n_critic = round(CRITIC_SHARE * n)
        actor = [self.actor(i, rng) for i in _passes(rng, len(self.visits), n - n_critic)]
        places = [self.places[i] for i in _passes(rng, len(self.places), n_critic)]
        return actor + [self._critic(number, place, rng) for number, place in enumerate(places)]

    def actor(self, number, rng):
        visit, tried, told, bad = (self.visits[number], [], [], 0)
        if rng.random() >= NO_BAD_CASE:
            bad = 0 if rng.random() < 0.5 else int(rng.choice(np.flatnonzero(visit.legal)))
            told.append((self.names[bad], self._after(visit, bad)))
            tried.append(bad)
        for _ in range(int(rng.choice(len(TRIES), p=TRIES))):
            kind = rng.random()
            if kind < NOT_UNDERSTOOD:
                told.append(('answer', FAILED[int(rng.integers(len(FAILED)))]))
            elif kind < NOT_UNDERSTOOD + ILLEGAL and self.worth[~visit.legal].sum() > 0:
                weight = np.where(visit.legal, 0, self.worth)
                told.append((self.names[int(rng.choice(len(weight), p=weight / weight.sum()))], 'illegal'))
            else:
                choice = self._try(visit, tried, rng)
                told.append((self.names[choice], self._verdict(visit, bad, choice, rng)))
                tried.append(choice)
        prompt = self.textmap.actor_prompt(self.state_text[number], told)
        return (prompt, self.answer(visit, self.label(visit, tried)))

    def label(self, visit, tried=()):
        legal = visit.legal.copy()
        legal[list(tried)] = False
        values = np.where(legal, visit.values, np.nan)
        if not np.isfinite(values).any():
            return 0
        near = np.flatnonzero(values <= np.nanmin(values) + TIE)
        return int(near[self.worth[near].argmax()])

    def answer(self, visit, choice):
        place = 'nothing' if choice == 0 else f'substation {self.textmap.catalogue.sub[self.corpus.actions[choice]]}'
        line = self.textmap.fullest_line(visit.state)
        return f'problem : {line}\nhelp : {place} , {self._after(visit, choice)}\naction : {self.names[choice]}'

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

    def _critic(self, number, place, rng):
        before = int(rng.integers(BEFORE)) if rng.random() < EARLY else BEFORE
        return self.critic(*place, describe=number % 2 == 0, before=before)

    def critic(self, episode, position, describe=True, before=BEFORE):
        part, number = around(episode, position, before)
        decisions = [Decision(v.state, v.action, v.reward, v.rho_after) for v in part]
        verdict = adjustment(number, self.truth(episode[position]))
        return (self.textmap.critic_prompt(decisions, number, describe), f'adjustments :\n{verdict}')

    def truth(self, visit):
        best = best_of(visit.values, visit.legal)
        return counterfactual(visit.action, visit.values[self.index[visit.action]], visit.values[0], visit.values[best])

def counterfactual(action, played, nothing, best):
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
    worth = np.zeros(n)
    for visit in visits:
        values = np.where(visit.legal, visit.values, np.nan)
        if np.isfinite(values).any():
            worth += values <= np.nanmin(values) + TIE
    return worth

def _passes(rng, n, wanted):
    passes = [rng.permutation(n) for _ in range(-(-wanted // n))] or [np.zeros(0, dtype=int)]
    return np.concatenate(passes)[:wanted]
