"""What a proposer of the study (`measure.py`) does: it learns from a part of the corpus and is asked in the held-out states."""

import hashlib
import json
from pathlib import Path

import numpy as np

from ace import config
from ace.config.host import versions
from ace.experiment import SOURCE_SHA256
from ace.grid.environment import World
from ace.grid.whatif import WhatIf
from ace.llm.clients import LocalClient
from ace.llm.controls import control
from ace.llm.models import checkpoint, corpus, embedded, tuning
from ace.llm.models.critic_rates import truth_of
from ace.llm.models.heldout import JUDGED, heldout_states, one_proposal
from ace.llm.models.rates import outcomes
from ace.llm.models.samples import Writer
from ace.llm.models.training import frequency_ranking
from ace.llm.scoring import ScoringClient
from ace.llm.text import Decision, TextMap
from ace.llm.value_critic import ValueCritic, key_decisions
from ace.studies.rates import classifier
from ace.studies.rates import measure as rates
from ace.studies.rates.measure import HELPED, distinct_states, outcomes_of

LEARNING = ("finetuned", "random_weights", "from_scratch", "classifier", "frequency")
PROPOSERS = ("zero_shot", *LEARNING)
METRICS = (*HELPED, "parse_unmasked", "legal_unmasked")
OWN = (__file__, classifier.__file__, rates.__file__)
CODE = SOURCE_SHA256 + b"".join(Path(name).read_bytes() for name in OWN)
"""Once, when it is read: that of runs, prompts included, and the modules of studies that this one rests on."""
SCORED = 150
"""States in which all actions of the set are scored too (llm/scoring.py), the first ones: it takes several times as long."""


class Bench:
    """What all proposers share: the world, the corpus, the held-out states and the key decisions."""

    def __init__(self, params, environment, progress=True):
        self.params, self.environment, self.progress = params, environment, progress
        self.corpus = corpus.build(params, environment, progress)
        self.world = World(params.environment(environment), params.scenarios, params.base.operator)
        self.whatif, self.textmap = WhatIf(self.world), TextMap(self.world)
        self.states = distinct_states(params, self.world, self.whatif, environment, self.corpus.actions)
        self.groups = [state.scenario for state in self.states]
        n = params.language_model.heldout_states
        _, self.episodes = heldout_states(
            self.world, self.whatif, self.corpus.actions, params.language_model.shortlist, params.base.refine.margin, n,
            params.language_model.seed, JUDGED * n,
        )  # fmt: skip
        self.decided = [[Decision(v.state, v.action, v.reward, v.rho_after) for v in episode] for episode in self.episodes]
        shape = params.base.shape
        places = [(e, p) for e, each in enumerate(self.decided) for p in key_decisions(each, shape.select, shape.threshold)]
        self.keys = places[:n]
        self.truth = [truth_of(self.whatif, self.episodes[e][p], self.corpus.actions) > 0 for e, p in self.keys]

    def learned(self, size, settings):
        """(corpus of at least so many states, corpus of the held-out loss)."""
        return tuning.parts(self.corpus, size, settings.heldout_share)

    def asked(self, model, tokenizer, name, fast, rounds=None, scored=True):
        """{metric: [value of each state, or of each key decision that was judged]} of a language model.

        rounds: of f_LLM in place of those in params.yaml, then without five_rounds; scored: also one_proposal_scored, of the
        set of actions of this grid's corpus, where the client can.
        """
        run, seed = self.params.base, self.params.language_model.seed
        refine = run.refine if rounds is None else run.refine.model_copy(update={"rounds": rounds})
        client, free = (
            LocalClient(model, tokenizer, run.llm.model_copy(update=changes), name, fast=fast)
            for changes in ({}, {"masked": False})
        )
        columns, _ = outcomes(self.whatif, self.textmap, client, self.states, refine, [], seed, free)
        said = ValueCritic(client, self.textmap, run.shape).judge([(self.decided[e], p) for e, p in self.keys], seed)
        right = [multiple is not None and (multiple > 0) == good for multiple, good in zip(said, self.truth, strict=True)]
        metrics = [metric for metric in METRICS if metric != "five_rounds" or rounds is None]
        found = {**{metric: columns["model", metric] for metric in metrics}, "critic_sign": right}
        if client.decoder and scored:
            some = self.states[:SCORED]
            scoring = ScoringClient(client, self.corpus.actions)
            hits = one_proposal(scoring, self.textmap, self.whatif, some, refine, seed)
            found["one_proposal_scored"] = hits
            found["one_proposal_scored_minus_written"] = np.subtract(hits, found["one_proposal"][:SCORED], dtype=float)
        return found

    def ranked(self, actor):
        """The same of a proposer without language: it judges nothing, and all that it proposes can be read."""
        return {metric: values for (_, metric), values in outcomes_of(self.params, "", actor, self.states).items()}


def identity_of(bench, settings, base):
    """Digest of all that decides what a proposer does, but for sizes, seeds and the processor: parameters, weeks, states, model
    files, code, versions. settings: config.PretrainedModel; base: folder of the pretrained model."""
    params, name, sets = bench.params, bench.environment, bench.world.sets
    said = [params.scale, params.environment(name).without_making(), settings.model_dump(exclude={"sizes", "seeds"})]
    said += [params.language_model.model_dump(), params.base.model_dump(), [sets[s].hash() for s in ("train", "validation")]]
    said += [bench.corpus.budget, checkpoint.weights_digest(base), versions()]
    sha = hashlib.sha256(json.dumps(said, sort_keys=True).encode() + CODE)
    for place, file in ((embedded.TRAINED, checkpoint.WORDS), (checkpoint.TUNED, checkpoint.NOTE)):
        path = f"{place.format(env=name)}/{file}"
        sha.update((config.root() / path).read_bytes() if (config.root() / path).is_file() else b"none")
    for state in (*bench.states, *(visit.state for episode in bench.episodes for visit in episode)):
        sha.update(b"".join(each.tobytes() for each in state.to_arrays().values()))
    return sha.hexdigest()[:12]


def committed(environment, settings):
    """The folder of what the stage pretrained_model tuned on an environment, with these settings, in the transplanted form."""
    folder = config.root() / checkpoint.TUNED.format(env=environment)
    if not tuning.is_made_with(folder, settings) or settings.form != "transplanted":
        said = "in the transplanted form, with the settings of `pretrained_model` in params.yaml"
        raise config.ConfigError(f"{config.named(folder)}: no model {said}{checkpoint.cure(folder, environment)}")
    return folder


def one(bench, proposer, size, seed, state):
    """{metric: values} of one proposer that learned from so many states. state: file in which a tuning is kept while it lasts."""
    settings = bench.params.pretrained_model.model_copy(update={"seed": seed})
    words = config.root() / "results" / "language_model" / bench.environment
    if proposer == "zero_shot":
        # In the native form four further rounds, and scoring, take hours.
        return bench.asked(*checkpoint.in_form("native"), proposer, fast=True, rounds=1, scored=False)
    tuned = config.root() / checkpoint.TUNED.replace("{env}", bench.environment)
    if proposer == "finetuned" and tuning.is_made_with(tuned, settings.model_copy(update={"states": size})):
        return bench.asked(*checkpoint.load(tuned, bench.environment), proposer, fast=True)
    learned, unseen = bench.learned(size, settings)
    if proposer in ("finetuned", "random_weights"):
        model, tokenizer = checkpoint.in_form(settings.form, words)
        if proposer == "random_weights":
            model = checkpoint.random_weights(model, seed)
        adapted = tuning.adapt(model, settings, with_rows=settings.form == "transplanted")
        pairs, held = tuning.samples(bench.textmap, learned, unseen, settings)
        tuning.tune(adapted, tokenizer, pairs, held, settings, state, bench.progress)
        return bench.asked(adapted.merge_and_unload().eval(), tokenizer, proposer, fast=True)
    own = bench.params.language_model.model_copy(update={"seed": seed})
    if proposer == "from_scratch":
        pairs = Writer(bench.textmap, learned).draw(own.steps * own.batch_size, seed)
        tokenizer = embedded.make_tokenizer(bench.textmap, [text for pair in pairs for text in pair])
        model = embedded.make_model(tokenizer, own)
        embedded.fit(model, tokenizer, pairs, own.steps, own.batch_size, own.lr, seed, progress=bench.progress)
        return bench.asked(model, tokenizer, proposer, fast=False)
    refine = bench.params.base.refine
    if proposer == "classifier":
        plain = classifier.fit(learned, bench.textmap, bench.world.features, own, bench.params.base.sac)
        return bench.ranked(plain.as_actor(bench.whatif.catalogue, bench.whatif, refine))
    ranking = frequency_ranking(bench.textmap, learned)
    return bench.ranked(control("frequency", bench.world, bench.whatif, refine, bench.params.base.greedy.shortlist, ranking))
