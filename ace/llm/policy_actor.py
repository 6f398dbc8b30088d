"""f_LLM, the Policy Actor (paper Eq. 4): it proposes better actions for bad decisions, and the simulator validates them.

    a_hat = f_LLM(P_r, T_s(s), T_a(a) given r(s, a) < r̄)

P_r, T_s and T_a are in `text.py`. `PolicyActor.refine` is the loop over rounds, `_judge` the validation of one proposal.
The model only ever sees text and returns checked values: what can't be parsed, is illegal or was not asked for changes
nothing and is counted.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from ace.llm.clients import Recorder
from ace.llm.constrained_decoding import Guide
from ace.llm.text import ParseFailure, outcome


@dataclass(slots=True)
class BadCase:
    """A transition to be refined. uid: of it in D_RL; action: catalogue id; reward: of the step, as played."""

    uid: int
    state: object
    action: int
    reward: float


@dataclass(slots=True)
class Refinement:
    """What f_LLM made of a bad case.

    action: the best validated one; reward, r_original: of it and of the original action, both simulated from the same
    state, so that the forecast's error hits both; improved: it gains more than the margin; next_state, done: after it,
    as simulated; rounds: used; tried: all validated tries (action, reward), in their order; prompt, reply: those
    that gave `action`, for the fine-tuning.
    """

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
    """A bad case while it is worked on.

    legal: legality vector of its state; shown: (T_a, outcome) lines of the prompt; best: (action, Outcome, record).
    """

    bad: BadCase
    state_text: str
    legal: object
    r_original: float
    shown: list
    best: tuple | None = None
    tried: list = field(default_factory=list)
    rounds: int = 0

    @property
    def known(self):
        """Actions whose outcome is known: the bad one and those tried."""
        return {self.bad.action, *(action for action, _ in self.tried)}


class PolicyActor:
    """f_LLM (paper Eq. 4): bad-case and multi-round reasoning, validated in the simulator.

    With `new_substation_each_round` (our reading, the proposer llm_elsewhere) each further round names a substation where
    nothing was validated yet, or to do nothing; any where none is left. Without it a small model that is asked again stays
    at its first substation. The reasons, too, name only substations that the answer may name.

    counts: proposals, unparsable, illegal, repeated, validated, improved: of all calls so far; state_dict() holds them.
    """

    def __init__(self, client, textmap, whatif, settings, role="actor"):
        """client: any client or a Recorder; settings: config.settings.Refine; role: what the records call it."""
        self.recorder, self.role = as_recorder(client), role
        self.textmap, self.catalogue, self.whatif, self.settings = textmap, textmap.catalogue, whatif, settings
        self.new_substation_each_round = settings.new_substation_each_round
        self.counts = Counter()

    def refine(self, cases, seed):
        """Up to `rounds` validated proposals for each bad case, all cases in one batch a round.

        Returns for each case a Refinement, or None where no proposal could be validated. A case is done when a proposal
        beats the simulated original by more than the margin; else the best validated one is returned, `improved` False.
        """
        work = [self._begin(case) for case in cases]
        for number in range(self.settings.rounds):  # multi-round reasoning
            todo = [case for case in work if not self._improved(case)]
            if not todo:
                break
            # Bad-case reasoning: the prompt shows T_s and, as T_a, the bad action and all tries with their outcomes.
            prompts = [self.textmap.actor_prompt(case.state_text, case.shown) for case in todo]
            guides = [Guide(self.textmap, case.legal, case.known, self._avoided(case.tried)) for case in todo]
            records = self.recorder.ask("actor", prompts, seed + number, guides, self.role)
            for case, record in zip(todo, records, strict=True):
                case.rounds += 1
                self._judge(case, record)
        self.counts["improved"] += sum(self._improved(case) for case in work)
        return [self._finish(case) for case in work]

    def propose(self, states, seed):
        """One proposal for each state, not validated: a legal action id, or None (LLM4Teach)."""
        legal = [self.catalogue.legality(state.topo, state.cooldown_sub, True) for state in states]
        prompts = [self.textmap.actor_prompt(self.textmap.state(state), []) for state in states]
        guides = [Guide(self.textmap, one, (), self._avoided([])) for one in legal]
        records = self.recorder.ask("actor", prompts, seed, guides, self.role)
        proposals = []
        for record, one in zip(records, legal, strict=True):
            self.counts["proposals"] += 1
            parsed = self.textmap.parse_action(record["reply"])
            good = not isinstance(parsed, ParseFailure) and self.catalogue.is_legal(one, parsed.value)
            record["parse"] = self.textmap.action(parsed.value) if good else getattr(parsed, "reason", "illegal")
            record["verdict"] = "not validated"
            self.counts["illegal"] += not good
            proposals.append(parsed.value if good else None)
        return proposals

    def _begin(self, bad):
        original = self.whatif.simulate(bad.state, bad.action)
        shown = [(self.textmap.action(bad.action), outcome_text(original))] if self.settings.bad_case else []
        # The agent was asked in this state, so it was one of danger: all may be played that no rule forbids.
        legal = self.catalogue.legality(bad.state.topo, bad.state.cooldown_sub, True)
        return _Case(bad, self.textmap.state(bad.state), legal, original.reward, shown)

    def _avoided(self, tried):
        """Substations that the next round leaves out, for its Guide.

        The bad action's is not among them: another pattern may do.
        """
        if not self.new_substation_each_round:
            return None
        return {int(self.catalogue.sub[action]) for action, _ in tried if action}

    def _improved(self, case):
        return case.best is not None and case.best[1].reward > case.r_original + self.settings.margin

    def _judge(self, case, record):
        """Parse, check and simulate one proposal; its verdict goes into the record and into the next round's prompt."""
        self.counts["proposals"] += 1
        parsed = self.textmap.parse_action(record["reply"])
        if isinstance(parsed, ParseFailure):
            self.counts["unparsable"] += 1
            record["parse"], record["verdict"] = parsed.reason, "unparsable"
            case.shown.append(("answer", f"not understood , {parsed.reason}"))
            return
        action, name = parsed.value, self.textmap.action(parsed.value)
        record["parse"] = name
        if not self.catalogue.is_legal(case.legal, action):
            self.counts["illegal"] += 1
            record["verdict"] = "illegal"
            case.shown.append((name, "illegal"))
            return
        if action in case.known:
            self.counts["repeated"] += 1
            record["verdict"] = "repeated"
            return
        result = self.whatif.simulate(case.bad.state, action)
        self.counts["validated"] += 1
        case.tried.append((action, result.reward))
        case.shown.append((name, outcome_text(result)))
        record["verdict"] = f"{outcome_text(result)}, reward {result.reward:+.3f}, original {case.r_original:+.3f}"
        if case.best is None or result.reward > case.best[1].reward:
            case.best = (action, result, record)

    def _finish(self, case):
        if case.best is None:
            return None
        action, result, record = case.best
        return Refinement(
            case.bad.uid, action, result.reward, case.r_original, self._improved(case), result.next_state, result.done,
            case.rounds, case.tried, record["prompt"], record["reply"],
        )  # fmt: skip

    def state_dict(self):
        return {"counts": dict(self.counts)}

    def load_state_dict(self, state):
        self.counts = Counter(state["counts"])


def gain(record):
    """What a proposal gained, of a record as `_judge` leaves it: the simulated reward less that of the original action; 0 where
    nothing was simulated."""
    found = re.search(r"reward (\S+), original (\S+)", record["verdict"] or "")
    return float(found[1]) - float(found[2]) if found else 0.0


def as_recorder(client):
    return client if isinstance(client, Recorder) else Recorder(client)


def first_proposals(client, textmap, whatif, states, settings, seed, role="actor"):
    """One validated proposal for each state, against doing nothing: list of Refinement or None. Arguments as of PolicyActor."""
    actor = PolicyActor(client, textmap, whatif, settings.model_copy(update={"rounds": 1}), role)
    return actor.refine([BadCase(i, state, 0, 0.0) for i, state in enumerate(states)], seed)


def outcome_text(result):
    """What a prompt says of a simulated step. result: whatif.Outcome."""
    return outcome(None if result.done else result.next_state.rho_max)
