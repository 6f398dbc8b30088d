from collections import Counter
from dataclasses import dataclass, field
from ace.llm.clients import Recorder
from ace.llm.legal import Guide
from ace.llm.text import ParseFailure, outcome

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
    legal: object
    r_original: float
    told: list
    best: tuple | None = None
    tried: list = field(default_factory=list)
    rounds: int = 0

    @property
    def known(self):
        return {self.bad.action, *(action for action, _ in self.tried)}

class PolicyActor:

    def __init__(self, client, textmap, whatif, settings):
        self.recorder = as_recorder(client)
        self.textmap, self.catalogue, self.whatif, self.settings = (textmap, textmap.catalogue, whatif, settings)
        self.elsewhere = settings.proposer == 'llm_elsewhere'
        self.counts = Counter()

    def refine(self, cases, seed):
        work = [self._begin(case) for case in cases]
        for number in range(self.settings.rounds):
            todo = [case for case in work if not self._improved(case)]
            if not todo:
                break
            prompts = [self.textmap.actor_prompt(case.state_text, case.told) for case in todo]
            guides = [Guide(self.textmap, case.legal, case.known, self._avoided(case.tried)) for case in todo]
            records = self.recorder.ask('actor', prompts, seed + number, guides)
            for case, record in zip(todo, records, strict=True):
                case.rounds += 1
                self._judge(case, record)
        self.counts['improved'] += sum((self._improved(case) for case in work))
        return [self._finish(case) for case in work]

    def propose(self, states, seed):
        legal = [self.catalogue.legality(state.topo, state.cooldown_sub, True) for state in states]
        prompts = [self.textmap.actor_prompt(self.textmap.state(state), []) for state in states]
        records = self.recorder.ask('actor', prompts, seed, [Guide(self.textmap, one, (), self._avoided([])) for one in legal])
        proposals = []
        for record, one in zip(records, legal, strict=True):
            self.counts['proposals'] += 1
            parsed = self.textmap.parse_action(record['reply'])
            good = not isinstance(parsed, ParseFailure) and self.catalogue.is_legal(one, parsed.value)
            record['parse'] = self.textmap.action(parsed.value) if good else getattr(parsed, 'reason', 'illegal')
            record['verdict'] = 'not validated'
            self.counts['illegal'] += not good
            proposals.append(parsed.value if good else None)
        return proposals

    def _begin(self, bad):
        original = self.whatif.simulate(bad.state, bad.action)
        told = [(self.textmap.action(bad.action), _outcome(original))] if self.settings.bad_case else []
        legal = self.catalogue.legality(bad.state.topo, bad.state.cooldown_sub, True)
        return _Case(bad, self.textmap.state(bad.state), legal, original.reward, told)

    def _avoided(self, tried):
        return {int(self.catalogue.sub[action]) for action, _ in tried if action} if self.elsewhere else None

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
        if not self.catalogue.is_legal(case.legal, action):
            self.counts['illegal'] += 1
            record['verdict'] = 'illegal'
            case.told.append((name, 'illegal'))
            return
        if action in case.known:
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

def as_recorder(client):
    return client if isinstance(client, Recorder) else Recorder(client)

def _outcome(result):
    return outcome(None if result.done else result.next_state.rho_max)
