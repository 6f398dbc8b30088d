"""Constrained decoding: in the answer line only tokens that can still complete a legal, untried action.

On demand the reasons before it are kept from naming substations that the answer may not have.

    Guide          the language of f_LLM's legal, untried actions in one state (`TextMap.action`), as text
    Verdict        the language of g_LLM's adjustments of one decision (`text.adjustment`), as text
    Spelling       which tokens of a tokenizer begin a text: whole words in the embedded model, pieces in a checkpoint
    LegalDecoding  joins them as a LogitsProcessor of transformers

All of this is our reading: the paper only validates afterwards.
"""

import re
from functools import cached_property, partial

import numpy as np
import torch
from transformers import LogitsProcessor

from ace.llm.text import MULTIPLES, adjustment


class Guide:
    """What may follow in one reply so that a legal action that is not forbidden can still be reached.

    The text is made of units ("substation 16", ": bus 2 :", "line 12", ","), each after a space. A place in it is known by the
    text up to there; it has the units that may come next, each with the function that makes the next place.
    """

    begun = re.compile(r"(?:^|[\r\n])\s*action\s*:(\s*)$", re.IGNORECASE | re.ASCII)
    """A reply whose last line begins as the parser wants it: from here on the guide leads, before only `unwanted` names are
    masked."""

    def __init__(self, textmap, legal, forbidden=(), avoided=None):
        """legal: legality vector of the state, (L,) uint8; forbidden: action ids that are not wanted, do nothing may be one.

        avoided: substations that are not to be named; where there is no other one left, they may be. With any such set, an empty
        one too, `unwanted` holds the names of all substations that can't be answered, so that the reasons don't argue for them,
        and `wanted` those of all others.
        """
        self.textmap, self.catalogue, self.legal = textmap, textmap.catalogue, legal
        self.avoided, self.unwanted, self.wanted = avoided, [], []
        self.forbidden = np.array(sorted(forbidden), dtype=np.int64)
        self._done, self._places = "", {"": (self._first_units(), False)}

    @property
    def is_empty(self):
        """Nothing at all is allowed."""
        return not self._places[""][0]

    def follow(self, text):
        """(rests, end): what may come after `text`, and whether it may end here.

        text: what stands after "action :", beginning with its space; rests: the rest of the present unit, or the next unit. None
        where `text` is not of the language, or nothing is allowed at all. Texts must be asked for in the order they are written.
        """
        if self.is_empty:
            return None
        while True:
            units, rest = self._place(self._done)[0], text[len(self._done) :]
            longer = [unit[len(rest) :] for unit in units if len(unit) > len(rest) and unit.startswith(rest)]
            if rest in units:  # "line 1": complete, and perhaps the beginning of "line 12"
                after, end = self._place(text)
                return longer + list(after), end
            if longer:
                return longer, False
            # Every unit begins with a space: one that is followed by a space is complete.
            unit = next((unit for unit in units if rest.startswith(unit + " ")), None)
            if unit is None:
                return None
            self._place(self._done + unit)
            self._done += unit

    def _place(self, text):
        """(units, end) of a place one unit after `_done`, or there."""
        if text not in self._places:
            self._places[text] = self._places[self._done][0][text[len(self._done) :]]()
        return self._places[text]

    def _first_units(self):
        c = self.catalogue
        enumerated = self.legal[: c.n_enum].astype(bool)
        enumerated[self.forbidden[self.forbidden < c.n_enum]] = False
        self._allowed = enumerated
        self._hub_allowed = self._hub_mask()
        subs = np.flatnonzero(np.bincount(c.sub[1 : c.n_enum][enumerated[1:]], minlength=c.n_sub)).tolist()
        if self._hub_allowed is not None and self._hub_allowed.any():
            subs.append(c.hub)
        if self.avoided is not None:
            subs = [s for s in subs if s not in self.avoided] or subs
            names = [(f"substation {s}", s in subs) for s in range(c.n_sub)]
            self.unwanted, self.wanted = ([name for name, may in names if may is kept] for kept in (False, True))
        units = {" do nothing": _complete} if enumerated[0] else {}
        return units | {f" substation {s}": partial(self._substation, s) for s in subs}

    def _hub_mask(self):
        """Which of the hub's actions are allowed, (A-E,) bool; None if it may not be acted on."""
        c = self.catalogue
        is_open, blocked, now = c.hub_part(self.legal)
        if not is_open:
            return None
        allowed = (c.hub_codes & blocked) == 0
        allowed &= c.hub_codes != now
        allowed[self.forbidden[self.forbidden >= c.n_enum] - c.n_enum] = False
        return allowed

    def _substation(self, s):
        ids, codes = self.textmap.written[s]
        codes = codes[self._hub_allowed if s == self.catalogue.hub else self._allowed[ids]]
        units = {" : all on bus 1": _complete} if (codes == 0).any() else {}
        if codes.any():
            units[" : bus 2 :"] = partial(self._elements, s, codes, 0, 0)
        return units, False

    def _elements(self, s, codes, named, first):
        """The next element. codes: still possible; named: bits of those written; first: the lowest bit that may come."""
        ahead = codes >> first
        following = int(np.bitwise_or.reduce(ahead & -ahead)) << first
        names = self.textmap.names[s]
        bits = [k for k in range(first, len(names)) if following >> k & 1]
        return {f" {names[k]}": partial(self._named, s, codes, named | 1 << k, k + 1) for k in bits}, False

    def _named(self, s, codes, named, first):
        codes = codes[codes & ((1 << first) - 1) == named]
        more = codes[codes != named]
        return {" ,": partial(self._elements, s, more, named, first)} if len(more) else {}, len(more) < len(codes)


def _complete():
    return {}, True


class Verdict:
    """What may follow where g_LLM adjusts the key decision: its number, and one of the four multiples of K."""

    unwanted = wanted = ()

    begun = re.compile(r"(?:^|[\r\n])\s*adjustments\s*:?[ \t]*[\r\n](\s*)$", re.IGNORECASE | re.ASCII)

    def __init__(self, number):
        """number: of the key decision in the prompt."""
        self.number, answers = number, [adjustment(number, multiple) for multiple in MULTIPLES]
        self._answers = answers + [" " + answer for answer in answers]  # some tokenizers begin every word with its space

    def follow(self, text):
        """As `Guide.follow`; text: what stands below "adjustments"."""
        begun = [answer for answer in self._answers if answer.startswith(text)]
        return ([answer[len(text) :] for answer in begun if answer != text], text in begun) if begun else None


class Spelling:
    """Tokens as text, and which of them begin a text. Made once for a tokenizer."""

    def __init__(self, tokenizer):
        special = set(tokenizer.all_special_ids)
        ids = [i for i in sorted(tokenizer.get_vocab().values()) if i not in special]
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        # Some tokenizers drop the space before a first token: a token's text is what it adds to another one.
        anchor = next(i for i in ids if (text := tokenizer.decode([i], **options)).strip() and text.isprintable())
        cut = len(tokenizer.decode([anchor], **options))
        texts = tokenizer.batch_decode([[anchor, i] for i in ids], **options)
        self.text = {i: text[cut:] for i, text in zip(ids, texts, strict=True)}
        self._id = {text: i for i, text in reversed(self.text.items()) if text}
        self._known, self._leading = {"": []}, {}

    def first(self, text):
        """Ids of the tokens that `text` may begin with, such that the tokenizer can also write its rest."""
        if text not in self._known:
            beginnings = ((text[:n], text[n:]) for n in range(1, len(text) + 1) if text[:n] in self._id)
            self._known[text] = [self._id[begin] for begin, rest in beginnings if not rest or self.first(rest)]
        return self._known[text]

    def whole(self, name):
        """Ids of the tokens that are this name, with a space before it or without: none where it is written in pieces."""
        return [self._id[text] for text in (name, " " + name) if text in self._id]

    @cached_property
    def _beginnings(self):
        """{(space, digits, whether more follows) that a token's text begins with: ids}."""
        found = {}
        for i, text in self.text.items():
            space, digits, more = _BEGINNING.match(text).groups()
            found.setdefault((space, digits, bool(more)), []).append(i)
        return found

    def leading_to(self, written, unwanted, wanted):
        """Ids of the tokens after which a name of some pieces is complete and unwanted, or can only become such a one.

        written: what stands after the name's word, " 1" of "substation 1"; unwanted, wanted: frozensets of numbers as text. The
        end of the reply, which has no text, counts as a token of its own, with the id None.
        """
        key = (written, unwanted, wanted)
        if key not in self._leading:
            ids = [None] if written.strip() in unwanted else []
            for (space, digits, more), those in self._beginnings.items():
                named = _NUMBERED.match(f"{written}{space}{digits}{'.' * more}")
                if named and (named[1] in unwanted if named[2] else _only(named[1], unwanted, wanted)):
                    ids += those
            self._leading[key] = ids
        return self._leading[key]


_BEGINNING = re.compile(r"(\s*)([0-9]*)(.?)", re.DOTALL)
_NUMBERED = re.compile(r"\s+([0-9]+)(.?)", re.DOTALL)


def _only(digits, unwanted, wanted):
    """Whether numbers that begin so are unwanted, and none is wanted."""
    return any(n.startswith(digits) for n in unwanted) and not any(n.startswith(digits) for n in wanted)


class _Pieces:
    """Of one guide's unwanted names, those that are written in pieces: which token may not come next in the reasons."""

    def __init__(self, guide, spelling):
        split = [name.rpartition(" ") for name in guide.unwanted if not spelling.whole(name)]
        self.spelling, self.unwanted = spelling, frozenset(number for _, _, number in split)
        self.wanted = frozenset(name.rpartition(" ")[2] for name in guide.wanted)
        words = "|".join(sorted({re.escape(word) for word, _, _ in split}))
        self.begun = re.compile(rf"\b(?:{words})(\s*|\s+[0-9]+)$", re.IGNORECASE) if split else None

    def masked(self, text):
        """Ids of tokens, None for the end of the reply. text: what the reply holds so far."""
        begun = self.begun.search(text) if self.begun else None
        return self.spelling.leading_to(begun[1], self.unwanted, self.wanted) if begun else []


class LegalDecoding(LogitsProcessor):
    """Masks the batch of one `generate` call. A row is free until its answer line begins, but for unwanted names, in one piece or
    in many; then it is guided to the end."""

    def __init__(self, guides, spelling, end, start):
        """guides: a Guide, a Verdict or None for each row; end: id of the end token; start: width of the prompts in tokens."""
        self.guides, self.spelling, self.end, self.start = list(guides), spelling, end, start
        names = [guide.unwanted if guide else () for guide in self.guides]
        self.unwanted = [[i for name in row for i in spelling.whole(name)] for row in names]
        # Names that the tokenizer writes in pieces: their numbers, those of the wanted ones, and the word before them.
        self.pieces = [_Pieces(guide, spelling) if guide else None for guide in self.guides]
        self.texts = [""] * len(self.guides)  # the reply of a row while it is free
        self.answers = [None] * len(self.guides)  # what stands where the guide leads, else None

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] > self.start:
            for row, token in enumerate(input_ids[:, -1].tolist()):
                if self.guides[row] is not None:
                    self._read(row, token)
        rows, columns, masked, free = [], [], [], []
        for row, answer in enumerate(self.answers):
            if self.guides[row] is None:
                continue
            if answer is None:
                free += [(row, i) for i in self.unwanted[row]]
                free += [(row, self.end if i is None else i) for i in self.pieces[row].masked(self.texts[row])]
                continue
            ids = self._allowed(row, answer)
            if not ids:
                self.guides[row] = None
                continue
            masked.append(row)
            rows += [row] * len(ids)
            columns += ids
        if not masked and not free:
            return scores
        out = scores.clone()
        out[masked] = -torch.inf
        out[rows, columns] = scores[rows, columns]
        if free:
            out[tuple(zip(*free, strict=True))] = -torch.inf
        return out

    def _read(self, row, token):
        text = self.spelling.text.get(token, "")
        if token == self.end:  # only padding follows
            self.guides[row] = None
        elif self.answers[row] is not None:
            self.answers[row] += text
        else:
            self.texts[row] += text
            if begun := self.guides[row].begun.search(self.texts[row]):
                self.answers[row] = begun[1]

    def _allowed(self, row, answer):
        found = self.guides[row].follow(answer)
        if found is None:
            return []
        rests, end = found
        ids = {i for rest in rests for i in self.spelling.first(rest)}
        return sorted(ids | {self.end}) if end else sorted(ids)
