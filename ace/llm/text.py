"""T_s, T_a, T_tau and T_k: states, actions, trajectories and key decisions as text, and the way back.

    T_s    `TextMap.state`        T_tau  `TextMap.trajectory`      P_r  `template`, the files in prompts/
    T_a    `TextMap.action`       T_k    `TextMap.decision`

The words are few and fixed, so that a model of half a million parameters can learn them, and plain, so that a large one
understands them unprepared. The parsers are strict and total: text in, `Parsed` or `ParseFailure(reason)` out, never an
exception, never a guess. All of this is our reading: the paper names the functions, not their form.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

PROMPTS = Path(__file__).parent / "prompts"
LINES_SHOWN = 10
"""Lines in T_s, the most loaded first. Part of the language that an embedded model has learned, as the prompt files are."""

MULTIPLES = (-2, -1, 1, 2)
"""Adjustments that there are, in K."""

MOST_SHOWN = 250
"""Loadings are written as whole percentages up to this one."""


def template(role):
    """The prompt of a role ("actor": f_LLM, "critic": g_LLM): task prefix P_r and named fields, for all clients."""
    return (PROMPTS / f"{role}.txt").read_text().strip()


@dataclass(frozen=True, slots=True)
class Parsed:
    """value: an action id (actor), or the adjustments {number of the decision: -2, -1, 1 or 2 (times K)} (critic)."""

    value: object


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """reason: a few fixed words, shown to the model and counted."""

    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of an episode, as g_LLM is shown it.

    state: GridState at the decision; action: catalogue id; reward: what it earned; rho_after: highest loading one step
    later (share of the limit), None after a blackout.
    """

    state: object
    action: int
    reward: float
    rho_after: float | None


class TextMap:
    """Names of one grid's elements and actions, in both directions."""

    def __init__(self, world):
        """world: anything with `env` (a Grid2Op environment) and `catalogue`."""
        cls, self.catalogue = type(world.env), world.catalogue
        kinds = (
            ("line", cls.line_or_pos_topo_vect), ("line", cls.line_ex_pos_topo_vect), ("load", cls.load_pos_topo_vect),
            ("generator", cls.gen_pos_topo_vect), ("storage", cls.storage_pos_topo_vect),
        )  # fmt: skip
        self.counts = {"line": cls.n_line, "load": cls.n_load, "generator": cls.n_gen, "storage": cls.n_storage,
                       "substation": cls.n_sub}  # fmt: skip
        name = [""] * self.catalogue.dim_topo
        for kind, places in kinds:
            for number, place in enumerate(places):
                name[place] = f"{kind} {number}"
        self.names = [[name[place] for place in places] for places in self.catalogue.elements]
        for s, names in enumerate(self.names):
            # Both ends of a line at one substation would share a name; no L2RPN grid has such a line.
            if len(set(names)) < len(names):
                raise ValueError(f"substation {s} holds both ends of a line: its elements have no unique names")
        self.bit = [{n: k for k, n in enumerate(names)} for names in self.names]
        ends = zip(cls.line_or_to_subid, cls.line_ex_to_subid, strict=True)
        self.line = [f"line {i} ({a}-{b})" for i, (a, b) in enumerate(ends)]

    # --- writing ------------------------------------------------------------------------------------------------------

    def pattern(self, sub, code):
        """Bus assignment of a substation. The smaller side is called bus 2: swapping both buses gives the same grid."""
        names = self.names[sub]
        on_2 = [n for k, n in enumerate(names) if code >> k & 1]
        if not on_2:
            return f"substation {sub} : all on bus 1"
        if 2 * len(on_2) > len(names):
            on_2 = [n for k, n in enumerate(names) if not code >> k & 1]
        return f"substation {sub} : bus 2 : {' , '.join(on_2)}"

    @cached_property
    def written(self):
        """For each substation (ids, codes) of its actions, ascending ids; codes: of the elements that `pattern` names."""
        found = []
        for sub, names in enumerate(self.names):
            ids = np.flatnonzero(self.catalogue.sub == sub)
            codes = self.catalogue.code[ids].astype(np.int64)
            on_2 = sum(codes >> k & 1 for k in range(len(names)))
            found.append((ids, np.where(2 * on_2 > len(names), ~codes & ((1 << len(names)) - 1), codes)))
        return found

    def action(self, action):
        """T_a: a catalogue id as text, "substation 5 : bus 2 : line 7 , load 3"."""
        if action == 0:
            return "do nothing"
        return self.pattern(int(self.catalogue.sub[action]), int(self.catalogue.code[action]))

    def state(self, state):
        """T_s: a GridState as text: the most loaded lines, lines off, split substations, substations in cooldown."""
        text = [f"{self.line[i]} {percent(state.rho[i])}" for i in self._by_loading(state)[:LINES_SHOWN]]
        if not state.line_status.all():
            text.append("off : " + " , ".join(self.line[i] for i in np.flatnonzero(~state.line_status)))
        now, _ = self.catalogue.patterns(state.topo)
        text += [f"split {self.pattern(s, int(now[s]))}" for s in np.flatnonzero(now)]
        waiting = np.flatnonzero(state.cooldown_sub > 0)
        if len(waiting):
            text.append("cooldown : " + " , ".join(f"substation {s}" for s in waiting))
        return "\n".join(text)

    def most_loaded_line(self, state):
        return self.line[self._by_loading(state)[0]]

    def _by_loading(self, state):
        return np.argsort(-np.round(state.rho, 4), kind="stable")

    def index(self, action):
        """A catalogue id as bare digits, apart, because the words of a small vocabulary are few: "action 1 2 3 4"."""
        return "action " + " ".join(str(int(action)))

    def trajectory(self, decisions, describe=True):
        """T_tau: a trajectory as text, one line per `Decision`, numbered from 1; describe: actions as T_a, else as indices."""
        return "\n".join(f"decision {i} : {self.decision(d, describe)}" for i, d in enumerate(decisions, 1))

    def decision(self, decision, describe=True):
        """T_k: one decision as text: the most loaded line, what was done, what came of it."""
        action = self.action(decision.action) if describe else self.index(decision.action)
        return (
            f"{self.most_loaded_line(decision.state)} {percent(decision.state.rho_max)} : {action} : "
            f"{outcome(decision.rho_after)} : reward {decision.reward:+.1f}"
        )

    def actor_prompt(self, state_text, tried):
        """f_LLM's prompt. tried: list of (T_a text, outcome text), the bad case first, then earlier rounds."""
        lines = [f"{name} : {result}" for name, result in tried] or ["none"]
        return self._actor.format(state=state_text, tried="\n".join(lines))

    def actor_reply(self, state, action, result):
        """An answer of f_LLM, for those it learns from: a short chain of reasons, then the action. result: outcome text."""
        place = f"substation {self.catalogue.sub[action]}" if action else "nothing"
        return f"problem : {self.most_loaded_line(state)}\nhelp : {place} , {result}\naction : {self.action(action)}"

    def critic_prompt(self, decisions, number, describe=True):
        """g_LLM's prompt: a stretch of an episode, and which of its decisions (from 1) is the key one."""
        key = self.decision(decisions[number - 1], describe)
        return self._critic.format(trajectory=self.trajectory(decisions, describe), key=key, number=number)

    @cached_property
    def _actor(self):
        return template("actor")

    @cached_property
    def _critic(self):
        return template("critic")

    # --- reading ------------------------------------------------------------------------------------------------------

    def parse_action(self, reply):
        """The action of a reply: its last line must read "action : ..." exactly in the form that `action` writes."""
        answer = _last_line(reply)
        if answer is None:
            return ParseFailure("empty reply")
        match = _ACTION.fullmatch(answer)
        if not match:
            return ParseFailure("the last line is not an action")
        if match["nothing"]:
            return Parsed(0)
        sub, code = int(match["sub"]), 0
        if sub >= len(self.names):
            return ParseFailure("no such substation")
        for element in [] if match["joined"] else match["elements"].split(","):
            k = self.bit[sub].get(" ".join(element.split()))
            if k is None:
                return ParseFailure("an element is not at this substation")
            if code >> k & 1:
                return ParseFailure("an element is named twice")
            code |= 1 << k
        action = self.catalogue.id_of(sub, code)
        return ParseFailure("no such action: each bus needs a line") if action is None else Parsed(action)

    def parse_critic(self, reply, keys):
        """The adjustments of a reply, {number: multiple of K}; keys: numbers of the decisions that may be adjusted."""
        _, found, answer = reply.replace("\r", "\n").lower().rpartition("adjustments")
        lines = [line.strip() for line in answer.split("\n")]
        if not found or not re.fullmatch(r":?", lines[0]):
            return ParseFailure("no line with adjustments")
        adjustments = {}
        for line in filter(None, lines[1:]):
            match = _ADJUSTMENT.fullmatch(line)
            if not match:
                return ParseFailure("a line is not an adjustment")
            number = int(match["number"])
            if number not in keys:
                return ParseFailure("the decision is not a key decision")
            if number in adjustments:
                return ParseFailure("a decision is adjusted twice")
            adjustments[number] = int(match["sign"] + (match["size"] or "1"))
        return Parsed(adjustments) if adjustments else ParseFailure("no adjustment")


def percent(rho):
    """A loading as text. Above MOST_SHOWN it is cut off; rho: share of the limit."""
    return f"{min(round(float(rho) * 100), MOST_SHOWN)} %"


def outcome(rho_max):
    """What an action led to. rho_max: highest loading, None after a blackout."""
    return "blackout" if rho_max is None else percent(rho_max)


def adjustment(number, multiple):
    """One line of g_LLM's answer; multiple: -2, -1, 1 or 2."""
    return f"decision {number} : {'+' if multiple > 0 else '-'} {abs(multiple)} K"


_NUMBER = r"[0-9]{1,4}"
_ELEMENT = rf"(?:line|load|generator|storage)\s+{_NUMBER}"
_ACTION = re.compile(
    rf"action\s*:\s*(?:(?P<nothing>do\s+nothing)|substation\s+(?P<sub>{_NUMBER})\s*:\s*"
    rf"(?:(?P<joined>all\s+on\s+bus\s+1)|bus\s+2\s*:\s*(?P<elements>{_ELEMENT}(?:\s*,\s*{_ELEMENT})*)))\.?",
    re.ASCII,
)
_ADJUSTMENT = re.compile(rf"decision\s+(?P<number>{_NUMBER})\s*:\s*(?P<sign>[+-])\s*(?P<size>[12])?\s*k", re.ASCII)


def _last_line(reply):
    lines = [line.strip() for line in reply.replace("\r", "\n").lower().split("\n")]
    return next((line for line in reversed(lines) if line), None)
