"""CAMEL's regions: the substations worth exploring in a state, and who names them. `rl/mask.py` explores inside of them.

CAMEL (arXiv 2502.11896) has a language model write suboptimal policies, whose outputs bound what is explored. Our reading: f_LLM
is asked about a state `mask.answers` times, by its own prompt with nothing tried; a region is the union of the substations that
its answers name. With constrained decoding each further answer has to name a new one; a server may repeat itself. No answer is
simulated. States with the same most loaded line and the same lost lines are alike: they share a region, asked for once a run.
"""

from collections import Counter

import numpy as np

from ace.config.streams import generator
from ace.llm.constrained_decoding import Guide
from ace.llm.text import ParseFailure


def likeness(state):
    """What like states have in common: (most loaded line, lost lines ascending ...), numbers of lines."""
    return (int(state.rho.argmax()), *np.flatnonzero(~state.line_status).tolist())


class Regions:
    """The region of each kind of state, named by a subclass when it is first needed.

    As many answers as f_LLM may have had by then, `max_cases` states of `rounds` each every `refine.every` decisions: above that
    cap a state has no region. Controls keep to it too, so that they differ in what is named alone.
    counts: states asked about, and answers asked for (of a model: its calls); reused: decisions in states like these; decisions
    without a mask: over_cap, no_choice (only do nothing is legal, so nobody is asked), unnamed (no answer named a substation);
    and, of a model's answers, unparsable and nothing (do nothing). `substation 5`: regions that it is in.
    """

    def __init__(self, catalogue, settings, seed):
        """settings: config.settings.Settings; seed: of the run."""
        self.catalogue, self.settings = catalogue, settings
        self.rng, self.known, self.counts = generator(seed, "regions"), {}, Counter()

    def name(self, state, legal, n, seed):
        """At most n substations, 0 < n <= those with a legal action."""
        raise NotImplementedError

    def of(self, state, legal, decisions):
        """Substations, [] for no mask. legal: (L,) uint8 of the state; decisions: made before this one."""
        key, refine = likeness(state), self.settings.refine
        if key in self.known:
            self.counts["reused"] += 1
        else:
            n = min(self.settings.mask.answers, len(self._open(legal)))
            cap = decisions // refine.every * refine.max_cases * refine.rounds
            if not n or self.counts["answers"] + n > cap:
                self.counts["over_cap" if n else "no_choice"] += 1
                return []
            self.counts.update(states=1, answers=n)
            self.known[key] = self.name(state, legal, n, int(self.rng.integers(2**31)))
            self.counts.update(f"substation {sub}" for sub in self.known[key])
        self.counts["unnamed"] += not self.known[key]
        return self.known[key]

    def _open(self, legal):
        """Substations with a legal action, ascending."""
        subs = np.unique(self.catalogue.sub[self.catalogue.legal_ids(legal)])
        return subs[subs >= 0].tolist()

    def state_dict(self):
        known = [[list(key), region] for key, region in self.known.items()]
        return {"rng": self.rng.bit_generator.state, "known": known, "counts": dict(self.counts)}

    def load_state_dict(self, saved):
        self.rng.bit_generator.state = saved["rng"]
        self.known = {tuple(key): list(region) for key, region in saved["known"]}
        self.counts = Counter(saved["counts"])


class ModelRegions(Regions):
    """Those that f_LLM's model names."""

    def __init__(self, catalogue, settings, seed, recorder, textmap):
        super().__init__(catalogue, settings, seed)
        self.recorder, self.textmap = recorder, textmap

    def name(self, state, legal, n, seed):
        prompt, named = self.textmap.actor_prompt(self.textmap.state(state), []), []
        for number in range(n):
            # do nothing is in every mask: as an answer it would name no region
            guide = Guide(self.textmap, legal, forbidden=(0,), avoided=set(named))
            (record,) = self.recorder.ask("actor", [prompt], seed + number, [guide], role="mask")
            parsed = self.textmap.parse_action(record["reply"])
            if isinstance(parsed, ParseFailure):
                self.counts["unparsable"] += 1
                record["parse"], record["verdict"] = parsed.reason, "unparsable"
                continue
            sub = int(self.catalogue.sub[parsed.value])
            self.counts["nothing"] += sub < 0
            record["parse"], record["verdict"] = self.textmap.action(parsed.value), "not validated"
            if sub >= 0 and sub not in named:
                named.append(sub)
        return named


class RandomRegions(Regions):
    """As a control: as many substations, drawn at random."""

    def name(self, state, legal, n, seed):
        return np.random.default_rng(seed).permutation(self._open(legal))[:n].tolist()


class FrequencyRegions(Regions):
    """As a control: as many substations, those that were most often right in the corpus, by their most frequent action."""

    def __init__(self, catalogue, settings, seed, ranking):
        """ranking: action ids, the most frequent label first."""
        super().__init__(catalogue, settings, seed)
        self.subs = list(dict.fromkeys(int(catalogue.sub[action]) for action in ranking if action))

    def name(self, state, legal, n, seed):
        may = set(self._open(legal))
        return [sub for sub in self.subs if sub in may][:n]


def make_regions(settings, catalogue, session, ranking, seed):
    """The regions that the settings ask for, None where nothing is masked. settings: config.settings.Settings; session: the run's
    LlmSession, or None where no model is asked; ranking: () -> action ids, the corpus' most frequent label first."""
    source, about = settings.mask.source, (catalogue, settings, seed)
    if source == "model":
        return ModelRegions(*about, session.recorder, session.textmap)
    if source == "frequency":
        return FrequencyRegions(*about, ranking())
    return RandomRegions(*about) if source == "random" else None
