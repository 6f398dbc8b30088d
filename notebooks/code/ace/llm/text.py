import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
import numpy as np
PROMPTS = Path(__file__).parent / 'prompts'
LINES_SHOWN = 10
MULTIPLES = (-2, -1, 1, 2)
MOST_SHOWN = 250

def template(role):
    return (PROMPTS / f'{role}.txt').read_text().strip()

@dataclass(frozen=True, slots=True)
class Parsed:
    value: object

@dataclass(frozen=True, slots=True)
class ParseFailure:
    reason: str

@dataclass(frozen=True, slots=True)
class Decision:
    state: object
    action: int
    reward: float
    rho_after: float | None

class TextMap:

    def __init__(self, world):
        cls, self.catalogue = (type(world.env), world.catalogue)
        kinds = (('line', cls.line_or_pos_topo_vect), ('line', cls.line_ex_pos_topo_vect), ('load', cls.load_pos_topo_vect), ('generator', cls.gen_pos_topo_vect), ('storage', cls.storage_pos_topo_vect))
        self.counts = {'line': cls.n_line, 'load': cls.n_load, 'generator': cls.n_gen, 'storage': cls.n_storage, 'substation': cls.n_sub}
        name = [''] * self.catalogue.dim_topo
        for kind, places in kinds:
            for number, place in enumerate(places):
                name[place] = f'{kind} {number}'
        self.names = [[name[place] for place in places] for places in self.catalogue.elements]
        for s, names in enumerate(self.names):
            if len(set(names)) < len(names):
                raise ValueError(f'substation {s} holds both ends of a line: its elements have no unique names')
        self.bit = [{n: k for k, n in enumerate(names)} for names in self.names]
        ends = zip(cls.line_or_to_subid, cls.line_ex_to_subid, strict=True)
        self.line = [f'line {i} ({a}-{b})' for i, (a, b) in enumerate(ends)]

    def pattern(self, sub, code):
        names = self.names[sub]
        on_2 = [n for k, n in enumerate(names) if code >> k & 1]
        if not on_2:
            return f'substation {sub} : all on bus 1'
        if 2 * len(on_2) > len(names):
            on_2 = [n for k, n in enumerate(names) if not code >> k & 1]
        return f"substation {sub} : bus 2 : {' , '.join(on_2)}"

    @cached_property
    def written(self):
        found = []
        for sub, names in enumerate(self.names):
            ids = np.flatnonzero(self.catalogue.sub == sub)
            codes = self.catalogue.code[ids].astype(np.int64)
            on_2 = sum((codes >> k & 1 for k in range(len(names))))
            found.append((ids, np.where(2 * on_2 > len(names), ~codes & (1 << len(names)) - 1, codes)))
        return found

    def action(self, action):
        if action == 0:
            return 'do nothing'
        return self.pattern(int(self.catalogue.sub[action]), int(self.catalogue.code[action]))

    def state(self, state):
        text = [f'{self.line[i]} {percent(state.rho[i])}' for i in self._fullest(state)[:LINES_SHOWN]]
        if not state.line_status.all():
            text.append('off : ' + ' , '.join((self.line[i] for i in np.flatnonzero(~state.line_status))))
        now, _ = self.catalogue.patterns(state.topo)
        text += [f'split {self.pattern(s, int(now[s]))}' for s in np.flatnonzero(now)]
        waiting = np.flatnonzero(state.cooldown_sub > 0)
        if len(waiting):
            text.append('cooldown : ' + ' , '.join((f'substation {s}' for s in waiting)))
        return '\n'.join(text)

    def fullest_line(self, state):
        return self.line[self._fullest(state)[0]]

    def _fullest(self, state):
        return np.argsort(-np.round(state.rho, 4), kind='stable')

    def index(self, action):
        return 'action ' + ' '.join(str(int(action)))

    def trajectory(self, decisions, describe=True):
        return '\n'.join((f'decision {i} : {self.decision(d, describe)}' for i, d in enumerate(decisions, 1)))

    def decision(self, decision, describe=True):
        action = self.action(decision.action) if describe else self.index(decision.action)
        return f'{self.fullest_line(decision.state)} {percent(decision.state.rho_max)} : {action} : {outcome(decision.rho_after)} : reward {decision.reward:+.1f}'

    def actor_prompt(self, state_text, tried):
        lines = [f'{name} : {result}' for name, result in tried] or ['none']
        return self._actor.format(state=state_text, tried='\n'.join(lines))

    def critic_prompt(self, decisions, number, describe=True):
        key = self.decision(decisions[number - 1], describe)
        return self._critic.format(trajectory=self.trajectory(decisions, describe), key=key, number=number)

    @cached_property
    def _actor(self):
        return template('actor')

    @cached_property
    def _critic(self):
        return template('critic')

    def parse_action(self, reply):
        answer = _last_line(reply)
        if answer is None:
            return ParseFailure('empty reply')
        match = _ACTION.fullmatch(answer)
        if not match:
            return ParseFailure('the last line is not an action')
        if match['nothing']:
            return Parsed(0)
        sub, code = (int(match['sub']), 0)
        if sub >= len(self.names):
            return ParseFailure('no such substation')
        for element in [] if match['joined'] else match['elements'].split(','):
            k = self.bit[sub].get(' '.join(element.split()))
            if k is None:
                return ParseFailure('an element is not at this substation')
            if code >> k & 1:
                return ParseFailure('an element is named twice')
            code |= 1 << k
        action = self.catalogue.id_of(sub, code)
        return ParseFailure('no such action: each bus needs a line') if action is None else Parsed(action)

    def parse_critic(self, reply, keys):
        _, found, answer = reply.replace('\r', '\n').lower().rpartition('adjustments')
        lines = [line.strip() for line in answer.split('\n')]
        if not found or not re.fullmatch(':?', lines[0]):
            return ParseFailure('no line with adjustments')
        adjustments = {}
        for line in filter(None, lines[1:]):
            match = _ADJUSTMENT.fullmatch(line)
            if not match:
                return ParseFailure('a line is not an adjustment')
            number = int(match['number'])
            if number not in keys:
                return ParseFailure('the decision is not a key decision')
            if number in adjustments:
                return ParseFailure('a decision is adjusted twice')
            adjustments[number] = int(match['sign'] + (match['size'] or '1'))
        return Parsed(adjustments) if adjustments else ParseFailure('no adjustment')

def percent(rho):
    return f'{min(round(float(rho) * 100), MOST_SHOWN)} %'

def outcome(rho_max):
    return 'blackout' if rho_max is None else percent(rho_max)

def adjustment(number, multiple):
    return f"decision {number} : {('+' if multiple > 0 else '-')} {abs(multiple)} K"
_NUMBER = '[0-9]{1,4}'
_ELEMENT = f'(?:line|load|generator|storage)\\s+{_NUMBER}'
_ACTION = re.compile(f'action\\s*:\\s*(?:(?P<nothing>do\\s+nothing)|substation\\s+(?P<sub>{_NUMBER})\\s*:\\s*(?:(?P<joined>all\\s+on\\s+bus\\s+1)|bus\\s+2\\s*:\\s*(?P<elements>{_ELEMENT}(?:\\s*,\\s*{_ELEMENT})*)))\\.?', re.ASCII)
_ADJUSTMENT = re.compile(f'decision\\s+(?P<number>{_NUMBER})\\s*:\\s*(?P<sign>[+-])\\s*(?P<size>[12])?\\s*k', re.ASCII)

def _last_line(reply):
    lines = [line.strip() for line in reply.replace('\r', '\n').lower().split('\n')]
    return next((line for line in reversed(lines) if line), None)
