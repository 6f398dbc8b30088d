from collections import Counter
from dataclasses import dataclass, field
from ace.llm.clients import Recorder
from ace.llm.text import Decision, ParseFailure, outcome
BEFORE, AFTER = (2, 3)

@dataclass(slots=True)
class BadCase:
    uid: int
    state: object
    action: int
    reward: float

@dataclass(slots=True)
class Refinement:
    uid: int
    action: int
    reward: float
    r_original: float
    improved: bool
    next_state: object
    done: bool
    rounds: int
    tried: list
    prompt: str
    reply: str

@dataclass(slots=True)
class _Case:
    bad: BadCase
    state_text: str
    r_original: float
    told: list
    best: tuple | None = None
    tried: list = field(default_factory=list)
    rounds: int = 0

class PolicyActor:

    def __init__(self, client, textmap, whatif, settings):
        self.recorder = as_recorder(client)
        self.textmap, self.catalogue, self.whatif, self.settings = (textmap, textmap.catalogue, whatif, settings)
        self.counts = Counter()

    def refine(self, cases, seed):
        work = [self._begin(case) for case in cases]
        for number in range(self.settings.rounds):
            todo = [case for case in work if not self._improved(case)]
            if not todo:
                break
            prompts = [self.textmap.actor_prompt(case.state_text, case.told) for case in todo]
            for case, record in zip(todo, self.recorder.ask('actor', prompts, seed + number), strict=True):
                case.rounds += 1
                self._judge(case, record)
        self.counts['improved'] += sum((self._improved(case) for case in work))
        return [self._finish(case) for case in work]

    def _begin(self, bad):
        original = self.whatif.simulate(bad.state, bad.action)
        told = [(self.textmap.action(bad.action), _outcome(original))] if self.settings.bad_case else []
        return _Case(bad, self.textmap.state(bad.state), original.reward, told)

    def _improved(self, case):
        return case.best is not None and case.best[1].reward > case.r_original + self.settings.margin

    def _judge(self, case, record):
        self.counts['proposals'] += 1
        parsed = self.textmap.parse_action(record['reply'])
        if isinstance(parsed, ParseFailure):
            self.counts['unparsable'] += 1
            record['parse'], record['verdict'] = (parsed.reason, 'unparsable')
            case.told.append(('answer', f'not understood , {parsed.reason}'))
            return
        action, name = (parsed.value, self.textmap.action(parsed.value))
        record['parse'] = name
        legal = self.catalogue.legality(case.bad.state.topo, case.bad.state.cooldown_sub, True)
        if not self.catalogue.is_legal(legal, action):
            self.counts['illegal'] += 1
            record['verdict'] = 'illegal'
            case.told.append((name, 'illegal'))
            return
        if action in (case.bad.action, *(a for a, _ in case.tried)):
            self.counts['repeated'] += 1
            record['verdict'] = 'repeated'
            return
        result = self.whatif.simulate(case.bad.state, action)
        self.counts['validated'] += 1
        case.tried.append((action, result.reward))
        case.told.append((name, _outcome(result)))
        record['verdict'] = f'{_outcome(result)}, reward {result.reward:+.3f}, original {case.r_original:+.3f}'
        if case.best is None or result.reward > case.best[1].reward:
            case.best = (action, result, record)

    def _finish(self, case):
        if case.best is None:
            return None
        action, result, record = case.best
        return Refinement(case.bad.uid, action, result.reward, case.r_original, self._improved(case), result.next_state, result.done, case.rounds, case.tried, record['prompt'], record['reply'])

    def state_dict(self):
        return {'counts': dict(self.counts)}

    def load_state_dict(self, state):
        self.counts = Counter(state['counts'])

class ValueCritic:

    def __init__(self, client, textmap, settings):
        self.recorder = as_recorder(client)
        self.textmap, self.settings, self.counts = (textmap, settings, Counter())

    def is_key(self, reward):
        return abs(reward) > self.settings.threshold

    def shape(self, episode, seed):
        keys = [position for position, d in enumerate(episode) if d.key]
        asked = [around(episode, position) for position in keys]
        prompts = [self.textmap.critic_prompt(part, number) for part, number in asked]
        deltas = {}
        records = self.recorder.ask('critic', prompts, seed)
        for position, (_, number), record in zip(keys, asked, records, strict=True):
            self.counts['prompts'] += 1
            parsed = self.textmap.parse_critic(record['reply'], {number})
            if isinstance(parsed, ParseFailure):
                self.counts['unparsable'] += 1
                record['parse'], record['verdict'] = (parsed.reason, 'unparsable')
                continue
            record['parse'], record['verdict'] = (f'{parsed.value[number]:+d} K', 'adjusted')
            self.counts['adjusted'] += 1
            deltas[position] = parsed.value[number] * self.settings.K
        return deltas

    def state_dict(self):
        return {'counts': dict(self.counts)}

    def load_state_dict(self, state):
        self.counts = Counter(state['counts'])

def around(episode, position):
    first = max(0, position - BEFORE)
    return (episode[first:position + AFTER + 1], position - first + 1)

def as_recorder(client):
    return client if isinstance(client, Recorder) else Recorder(client)

def _outcome(result):
    return outcome(None if result.done else result.next_state.rho_max)
__all__ = ['BadCase', 'Decision', 'PolicyActor', 'Refinement', 'ValueCritic', 'around', 'as_recorder']
