"""Rates of proposers: how often one proposal, and five rounds, help in held-out states (our own measurement).

As `llm/models/rates.py` measures them, on STATES times as many states as params.yaml asks for, all different; with those of a
plain classifier that learnt from the same corpus, and of all three with each further round at another substation
(<proposer>_elsewhere, a rule that was found on held-out states of packaged days).

In validation weeks by which no checkpoint was chosen (on packaged days: of the validation's days, drawn anew). No test
scenario is played, no policy is needed, and nothing but the classifier is trained.
"""

import numpy as np
import torch
from tqdm import tqdm

from ace import config
from ace.grid.environment import World
from ace.grid.scenarios import Beyond
from ace.grid.whatif import WhatIf
from ace.llm.clients import LocalClient
from ace.llm.controls import ControlActor, control
from ace.llm.models import corpus, embedded
from ace.llm.models.heldout import heldout_states
from ace.llm.models.rates import outcomes, tabled
from ace.llm.policy_actor import BadCase, PolicyActor
from ace.llm.session import read_model_manifest
from ace.llm.text import TextMap
from ace.studies.rates import classifier
from ace.trained_policies import unseen_validation, with_validation, write_rows

CLASSIFIER = "classifier"
HELPED = ("one_proposal", "five_rounds")
PAIRED = [("model", "frequency"), ("model_elsewhere", "frequency"), ("model_elsewhere", "frequency_elsewhere"),
          ("model_elsewhere", "model"), ("model", CLASSIFIER)]  # fmt: skip
"""Proposers whose HELPED are compared state by state."""
STATES, A_PASS, PASSES = 3, 2, 9
"""Held-out states that rates are of, and how many are looked for each time that the validation scenarios are gone through,
as many are met again, both in units of `language_model.heldout_states`; and the most times, each with other draws."""


def measure(environment, output="results"):
    """Writes <output>/studies/rates/<environment>.csv, as `measure_rates` gives it, and returns it as a table. ConfigError
    without the language model."""
    params = config.load()
    spec = params.environment(environment)
    manifest = read_model_manifest(params.base.llm.model_copy(update={"path": embedded.TRAINED}), environment, config.root())
    torch.set_num_threads(1)
    world = World(spec, params.scenarios, params.base.operator)
    textmap = TextMap(world)
    plain = fit_classifier(params, environment, world, textmap, manifest)
    found = measure_rates(params, environment, world, textmap, manifest, plain)
    write_rows(found, output, "rates", environment)
    return found


def fit_classifier(params, environment, world, textmap, manifest):
    """The classifier on the embedded model's corpus, which is made once more; ConfigError where it is another one by now.

    manifest: the language model's.
    """
    made = corpus.build(params, environment)
    if made.actions.tolist() != manifest["actions"] or made.budget != manifest["budget"]:
        raise config.ConfigError(
            f"the corpus of {environment} is no longer the one that its language model learnt from: run the stage language_model"
        )
    return classifier.fit(made, textmap, world.features, params.language_model, params.base.sac)


def measure_rates(params, environment, world, textmap, manifest, plain):
    """The rates of the embedded model, of chance, of the lookup table and of the classifier `plain` on
    STATES * `language_model.heldout_states` different states, and of those that rank also with each round elsewhere.

    Met as those of the model's own measurement, in the weeks that are played alone, with first days and forecasts drawn
    anew. Behaviours begin an episode alike, so that many a state is met more than once; each
    counts once here. <metric>_minus_<other>: the paired difference of two proposers, PAIRED. As `llm.models.rates.tabled` gives
    it, the intervals over scenarios: states of one scenario are drawn together.
    """
    settings, run, whatif = params.language_model, params.base, WhatIf(world)
    model, tokenizer = embedded.load(config.root() / embedded.TRAINED.format(env=environment))
    found, ranking = distinct_states(params, world, whatif, environment, manifest["actions"]), manifest["ranking"]
    client, unmasked = (
        LocalClient(model, tokenizer, run.llm.model_copy(update=changes), f"embedded-{environment}")
        for changes in ({}, {"masked": False})
    )
    columns, _ = outcomes(whatif, textmap, client, found, run.refine, ranking, settings.seed, unmasked)
    lookup = control("frequency", world, whatif, run.refine, run.greedy.shortlist, ranking)
    classified = plain.as_actor(whatif.catalogue, whatif, run.refine)
    others = {
        CLASSIFIER: classified,
        "model_elsewhere": PolicyActor(client, textmap, whatif, run.refine.model_copy(update={"proposer": "llm_elsewhere"})),
        "frequency_elsewhere": elsewhere(lookup),
        f"{CLASSIFIER}_elsewhere": elsewhere(classified),
    }
    for name, actor in others.items():
        columns |= outcomes_of(params, name, actor, found)
    columns |= {
        (name, f"{metric}_minus_{other}"): np.subtract(columns[name, metric], columns[other, metric], dtype=float)
        for name, other in PAIRED for metric in HELPED
    }  # fmt: skip
    return tabled(environment, columns, [state.scenario for state in found])


def distinct_states(params, world, whatif, environment, actions):
    """STATES * `language_model.heldout_states` different held-out states, or fewer where PASSES give fewer: list of GridState.

    actions: ids of the set, do nothing first.
    """
    settings = params.language_model
    anew = params.scenarios.model_copy(update={"seed": params.scenarios.seed + 1})
    fresh = unseen_validation(world, anew, params.rates.episodes, "rates.episodes")
    world, states = with_validation(world, Beyond(fresh, params.scenarios.validation)), {}
    wanted, bar = STATES * settings.heldout_states, tqdm(desc=f"{environment}, held-out states", unit="state")
    bar.total = wanted
    for number in range(PASSES):
        if len(states) < wanted:
            found, _ = heldout_states(
                world, whatif, np.array(actions), settings.shortlist, params.base.refine.margin,
                A_PASS * settings.heldout_states, settings.seed + number,
            )  # fmt: skip
            states |= {b"".join(a.tobytes() for a in state.to_arrays().values()): state for state in found}
            bar.update(min(len(states), wanted) - bar.n)
    bar.close()
    return list(states.values())[:wanted]


def outcomes_of(params, name, actor, states):
    """One more proposer's, as `llm.models.rates.outcomes` gives them: doing nothing is the bad case of every state."""
    refined = actor.refine([BadCase(i, state, 0, 0.0) for i, state in enumerate(states)], params.language_model.seed)
    rounds = [found.rounds if found is not None and found.improved else np.inf for found in refined]
    most = dict(zip(HELPED, (1, params.base.refine.rounds), strict=True))
    return {(name, metric): [n <= most[metric] for n in rounds] for metric in HELPED}


def elsewhere(actor):
    """A control under the rule of f_LLM's proposer llm_elsewhere: the first of its actions at each substation, then the rest."""

    def propose(state, legal, rng):
        seen, rest = set(), []
        for action in actor.propose(state, legal, rng):
            sub = int(actor.catalogue.sub[action])
            if sub in seen:
                rest.append(action)
            else:
                seen.add(sub)
                yield action
        yield from rest

    return ControlActor(propose, actor.catalogue, actor.whatif, actor.settings)
