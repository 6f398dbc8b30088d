from collections import Counter
import numpy as np
from ace.llm.legal import Verdict
from ace.llm.roles import as_recorder
from ace.llm.text import MULTIPLES, ParseFailure
BEFORE, AFTER = (2, 3)

def scores(episode, select):
    if select == 'reward':
        return np.array([abs(d.reward) for d in episode])
    if select == 'state':
        return np.array([min(max(d.state.rho_max - 1, 0.0), 1.0) for d in episode])
    times = Counter((d.action for d in episode))
    return np.array([1 - times[d.action] / len(episode) for d in episode])

def key_decisions(episode, select, threshold):
    return np.flatnonzero(scores(episode, select) > threshold).tolist()

def around(episode, position, before=BEFORE):
    first = max(0, position - before)
    return (episode[first:position + AFTER + 1], position - first + 1)

class ValueCritic:

    def __init__(self, client, textmap, settings):
        self.recorder = as_recorder(client)
        self.textmap, self.settings, self.counts = (textmap, settings, Counter())

    def keys(self, episode):
        return key_decisions(episode, self.settings.select, self.settings.threshold)

    def shape(self, episode, seed):
        keys = self.keys(episode)
        judged = zip(keys, self.judge([(episode, position) for position in keys], seed), strict=True)
        return {position: multiple * self.settings.K for position, multiple in judged if multiple}

    def judge(self, places, seed):
        asked = [around(*place) for place in places]
        prompts = [self.textmap.critic_prompt(part, number, self.settings.describe) for part, number in asked]
        multiples = []
        records = self.recorder.ask('critic', prompts, seed, [Verdict(number) for _, number in asked])
        for (_, number), record in zip(asked, records, strict=True):
            self.counts['prompts'] += 1
            parsed = self.textmap.parse_critic(record['reply'], {number})
            if isinstance(parsed, ParseFailure):
                self.counts['unparsable'] += 1
                record['parse'], record['verdict'] = (parsed.reason, 'unparsable')
                multiples.append(None)
                continue
            record['parse'], record['verdict'] = (f'{parsed.value[number]:+d} K', 'adjusted')
            self.counts['adjusted'] += 1
            multiples.append(parsed.value[number])
        return multiples

    def state_dict(self):
        return {'counts': dict(self.counts)}

    def load_state_dict(self, state):
        self.counts = Counter(state['counts'])

class RandomCritic:

    def __init__(self, settings):
        self.settings, self.counts = (settings, Counter())

    def shape(self, episode, seed):
        rng, n = (np.random.default_rng(seed), len(key_decisions(episode, self.settings.select, self.settings.threshold)))
        positions = np.sort(rng.choice(len(episode), n, replace=False)) if n else []
        self.counts['adjusted'] += n
        multiples = rng.choice(MULTIPLES, n)
        return {int(p): int(m) * self.settings.K for p, m in zip(positions, multiples, strict=True)}

    def state_dict(self):
        return {'counts': dict(self.counts)}

    def load_state_dict(self, state):
        self.counts = Counter(state['counts'])
