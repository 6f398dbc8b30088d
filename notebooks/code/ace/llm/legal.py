import re
from functools import partial
import numpy as np
import torch
from transformers import LogitsProcessor
from ace.llm.text import MULTIPLES, adjustment

class Guide:
    begun = re.compile('(?:^|[\\r\\n])\\s*action\\s*:(\\s*)$', re.IGNORECASE | re.ASCII)

    def __init__(self, textmap, legal, forbidden=(), avoided=None):
        self.textmap, self.catalogue, self.legal = (textmap, textmap.catalogue, legal)
        self.avoided, self.unwanted = (avoided, [])
        self.forbidden = np.array(sorted(forbidden), dtype=np.int64)
        self._done, self._places = ('', {'': (self._first_units(), False)})

    @property
    def is_empty(self):
        return not self._places[''][0]

    def follow(self, text):
        if self.is_empty:
            return None
        while True:
            units, rest = (self._place(self._done)[0], text[len(self._done):])
            longer = [unit[len(rest):] for unit in units if len(unit) > len(rest) and unit.startswith(rest)]
            if rest in units:
                after, end = self._place(text)
                return (longer + list(after), end)
            if longer:
                return (longer, False)
            unit = next((unit for unit in units if rest.startswith(unit + ' ')), None)
            if unit is None:
                return None
            self._place(self._done + unit)
            self._done += unit

    def _place(self, text):
        if text not in self._places:
            self._places[text] = self._places[self._done][0][text[len(self._done):]]()
        return self._places[text]

    def _first_units(self):
        c = self.catalogue
        enumerated = self.legal[:c.n_enum].astype(bool)
        enumerated[self.forbidden[self.forbidden < c.n_enum]] = False
        self._allowed = enumerated
        self._hub_allowed = self._hub_mask()
        subs = np.flatnonzero(np.bincount(c.sub[1:c.n_enum][enumerated[1:]], minlength=c.n_sub)).tolist()
        if self._hub_allowed is not None and self._hub_allowed.any():
            subs.append(c.hub)
        if self.avoided is not None:
            subs = [s for s in subs if s not in self.avoided] or subs
            self.unwanted = [f'substation {s}' for s in range(c.n_sub) if s not in subs]
        units = {' do nothing': _complete} if enumerated[0] else {}
        return units | {f' substation {s}': partial(self._substation, s) for s in subs}

    def _hub_mask(self):
        c = self.catalogue
        is_open, blocked, now = c.hub_part(self.legal)
        if not is_open:
            return None
        allowed = c.hub_codes & blocked == 0
        allowed &= c.hub_codes != now
        allowed[self.forbidden[self.forbidden >= c.n_enum] - c.n_enum] = False
        return allowed

    def _substation(self, s):
        ids, codes = self.textmap.written[s]
        codes = codes[self._hub_allowed if s == self.catalogue.hub else self._allowed[ids]]
        units = {' : all on bus 1': _complete} if (codes == 0).any() else {}
        if codes.any():
            units[' : bus 2 :'] = partial(self._elements, s, codes, 0, 0)
        return (units, False)

    def _elements(self, s, codes, named, first):
        ahead = codes >> first
        following = int(np.bitwise_or.reduce(ahead & -ahead)) << first
        names = self.textmap.names[s]
        bits = [k for k in range(first, len(names)) if following >> k & 1]
        return ({f' {names[k]}': partial(self._named, s, codes, named | 1 << k, k + 1) for k in bits}, False)

    def _named(self, s, codes, named, first):
        codes = codes[codes & (1 << first) - 1 == named]
        more = codes[codes != named]
        return ({' ,': partial(self._elements, s, more, named, first)} if len(more) else {}, len(more) < len(codes))

def _complete():
    return ({}, True)

class Verdict:
    unwanted = ()
    begun = re.compile('(?:^|[\\r\\n])\\s*adjustments\\s*:?[ \\t]*[\\r\\n](\\s*)$', re.IGNORECASE | re.ASCII)

    def __init__(self, number):
        answers = [adjustment(number, multiple) for multiple in MULTIPLES]
        self._answers = answers + [' ' + answer for answer in answers]

    def follow(self, text):
        begun = [answer for answer in self._answers if answer.startswith(text)]
        return ([answer[len(text):] for answer in begun if answer != text], text in begun) if begun else None

class Spelling:

    def __init__(self, tokenizer):
        special = set(tokenizer.all_special_ids)
        ids = [i for i in sorted(tokenizer.get_vocab().values()) if i not in special]
        options = {'skip_special_tokens': True, 'clean_up_tokenization_spaces': False}
        anchor = next((i for i in ids if (text := tokenizer.decode([i], **options)).strip() and text.isprintable()))
        cut = len(tokenizer.decode([anchor], **options))
        texts = tokenizer.batch_decode([[anchor, i] for i in ids], **options)
        self.text = {i: text[cut:] for i, text in zip(ids, texts, strict=True)}
        self._id = {text: i for i, text in reversed(self.text.items()) if text}
        self._known = {'': []}

    def first(self, text):
        if text not in self._known:
            beginnings = ((text[:n], text[n:]) for n in range(1, len(text) + 1) if text[:n] in self._id)
            self._known[text] = [self._id[begin] for begin, rest in beginnings if not rest or self.first(rest)]
        return self._known[text]

    def whole(self, name):
        return [self._id[text] for text in (name, ' ' + name) if text in self._id]

class LegalDecoding(LogitsProcessor):

    def __init__(self, guides, spelling, end, start):
        self.guides, self.spelling, self.end, self.start = (list(guides), spelling, end, start)
        names = [guide.unwanted if guide else () for guide in self.guides]
        self.unwanted = [[i for name in row for i in spelling.whole(name)] for row in names]
        self.texts = [''] * len(self.guides)
        self.answers = [None] * len(self.guides)

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] > self.start:
            for row, token in enumerate(input_ids[:, -1].tolist()):
                if self.guides[row] is not None:
                    self._read(row, token)
        rows, columns, masked, free = ([], [], [], [])
        for row, answer in enumerate(self.answers):
            if self.guides[row] is None:
                continue
            if answer is None:
                free += [(row, i) for i in self.unwanted[row]]
                continue
            ids = self._allowed(row, answer)
            if not ids:
                self.guides[row] = None
                continue
            masked.append(row)
            rows += [row] * len(ids)
            columns += ids
        if not masked and (not free):
            return scores
        out = scores.clone()
        out[masked] = -torch.inf
        out[rows, columns] = scores[rows, columns]
        if free:
            out[tuple(zip(*free, strict=True))] = -torch.inf
        return out

    def _read(self, row, token):
        text = self.spelling.text.get(token, '')
        if token == self.end:
            self.guides[row] = None
        elif self.answers[row] is not None:
            self.answers[row] += text
        else:
            self.texts[row] += text
            if (begun := self.guides[row].begun.search(self.texts[row])):
                self.answers[row] = begun[1]

    def _allowed(self, row, answer):
        found = self.guides[row].follow(answer)
        if found is None:
            return []
        rests, end = found
        ids = {i for rest in rests for i in self.spelling.first(rest)}
        return sorted(ids | {self.end}) if end else sorted(ids)
