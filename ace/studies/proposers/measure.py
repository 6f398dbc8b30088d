"""Proposers: what there is to learn from each of them, and what a policy has learnt from it (our own measurement).

    rates  how often one proposal, and five rounds, help in held-out states: `llm/models/rates.py`, on STATES times as many
           states as params.yaml asks for, all different; with those of a plain classifier that learnt from the same corpus,
           and of all three with each further round at another substation (<proposer>_elsewhere)
    alone  survival of whole episodes where a proposer decides, with its validated rounds; with look-ahead within sets
           of actions of several sizes, chosen as the language model's was, and over the whole catalogue, and the trained
           policies, which learnt from a proposer and act without a simulator

All on validation scenarios of weeks by which no checkpoint was chosen (on packaged days: of the validation's days, drawn anew).
No test scenario is played, and nothing but the classifier is trained. The rule of the rows `_elsewhere` was found on held-out
states of packaged days.
"""

from functools import lru_cache

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from ace import baselines, config, evaluate
from ace.grid.environment import World
from ace.grid.fastworld import training_world
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
from ace.rl.policy import Policy, load_policy
from ace.run_files import cell_folder, read_cell
from ace.stats import PERCENT, mean, paired_difference
from ace.studies.policies import tasks_of
from ace.studies.proposers import classifier
from ace.trained_policies import play_tasks, unseen_validation, with_validation, write_rows

COLUMNS = ["grid", "proposer", "learnt", "survival", "ci_low", "ci_high", "minus_sac", "minus_sac_low", "minus_sac_high"]
COLUMNS += ["minus_proposer", "minus_proposer_low", "minus_proposer_high", "n_seeds", "n_episodes"]
COLUMNS += ["simulator_calls_before", "simulator_calls", "dc_calls", "llm_calls"]
CONTROLS, CLASSIFIER, MODELS = ["random", "frequency", "expert"], "classifier", ["model_unvalidated", "model", "model_elsewhere"]
TAUGHT_BY = {"sac": "nobody", "random_refine": "random", "frequency_refine": "frequency", "ace": "model",
             "ace_elsewhere": "model_elsewhere", "expert_sac": "expert"}  # fmt: skip
"""Whose proposals a variant learnt from; any other counts as one without a teacher."""
HELPED = ("one_proposal", "five_rounds")
PAIRED = [("model", "frequency"), ("model_elsewhere", "frequency"), ("model_elsewhere", "frequency_elsewhere"),
          ("model_elsewhere", "model"), ("model", CLASSIFIER)]  # fmt: skip
"""Proposers whose HELPED are compared state by state."""
SETS = (1 / 3, 1, 2, 4)
"""Sizes of sets of actions, in units of the language model's."""
STATES, A_PASS, PASSES = 3, 2, 9
"""Held-out states that rates are of, and how many are looked for each time that the validation scenarios are gone through,
as many are met again, both in units of `language_model.heldout_states`; and the most times, each with other draws."""


def measure(environment, output="results"):
    """Both measurements; writes <output>/studies/proposers/<environment>.csv and <environment>_rates.csv, returns them as tables.

    The first, with COLUMNS, a row for each proposer alone and (learnt: its variant) for each policy: survival in percent of
    the horizon and its differences to plain SAC's and to that of the proposer it learnt from, paired by episode, with 95 %
    intervals over seeds and episodes; simulator_calls_before: power flows of the corpus, of the choice of the
    set, or of training; the other calls are those of all episodes (mean of the seeds). The second as `measure_rates` gives
    it. Raises ConfigError without the language model, FileNotFoundError without a trained policy.
    """
    params = config.load()
    params.environment(environment)
    manifest = _manifest(environment)
    learnt = tasks_of(params, environment, [], params.played("proposers", environment)[1])
    plain = fit_classifier(environment)
    found, sets = measure_rates(environment, plain), choose_sets(params, environment)
    tasks = [(environment, name, None) for name in ("nobody", *CONTROLS)] + [(environment, CLASSIFIER, plain)]
    tasks += [(environment, name, None) for name in MODELS]
    tasks += [(environment, f"set_{n}", actions) for n, (actions, _) in sets.items()]
    tasks += [(environment, "greedy", None)] + [(environment, variant, path) for variant, _, path in learnt]
    played = play_tasks(_play, tasks, f"{environment}, proposers")
    before = {f"set_{n}": calls for n, (_, calls) in sets.items()}
    from_corpus = ("frequency", CLASSIFIER, *MODELS)
    before |= dict.fromkeys(from_corpus, manifest["budget"]["simulator_calls"])
    table = pd.DataFrame(_rows(params, environment, tasks, played, before), columns=COLUMNS)
    write_rows(found, output, "proposers", f"{environment}_rates")
    write_rows(table, output, "proposers", environment)
    return table, found


def fit_classifier(environment):
    """The classifier on the embedded model's corpus, which is made once more; ConfigError where it is another one by now."""
    params, world, _, textmap, manifest, *_ = _bench(environment)
    made = corpus.build(params, environment)
    if made.actions.tolist() != manifest["actions"] or made.budget != manifest["budget"]:
        raise config.ConfigError(
            f"the corpus of {environment} is no longer the one that its language model learnt from: run the stage language_model"
        )
    return classifier.fit(made, textmap, world.features, params.language_model, params.base.sac)


def measure_rates(environment, plain):
    """The rates of the embedded model, of chance, of the lookup table and of the classifier `plain` on
    STATES * `language_model.heldout_states` different states, and of those that rank also with each round elsewhere.

    Met as those of the model's own measurement, in the weeks that are played alone, with first days and forecasts drawn
    anew. Behaviours begin an episode alike, so that many a state is met more than once; each
    counts once here. <metric>_minus_<other>: the paired difference of two proposers, PAIRED. As `llm.models.rates.tabled` gives
    it, the intervals over scenarios: states of one scenario are drawn together.
    """
    params, world, _, textmap, manifest, model, tokenizer = _bench(environment)
    settings, run, whatif = params.language_model, params.base, WhatIf(world)
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
        "model_elsewhere": PolicyActor(client, textmap, whatif, _elsewhere(run.refine)),
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
    fresh = unseen_validation(world, anew, params.proposers.episodes, "proposers.episodes")
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


def _elsewhere(refine):
    return refine.model_copy(update={"proposer": "llm_elsewhere"})


def choose_sets(params, environment):
    """{size: (action ids, power flows that choosing took)} for SETS, each chosen as the language model's was."""
    sets = {}
    for share in SETS:
        # A corpus that ends as soon as its set is chosen: eight episodes are labelled all the same.
        n = max(round(share * params.language_model.actions), 2)
        settings = params.language_model.model_copy(update={"actions": n, "states": 1})
        made = corpus.build(params.model_copy(update={"language_model": settings}), environment)
        sets[len(made.actions)] = made.actions, made.budget["simulator_calls"]
    return sets


# --- alone ------------------------------------------------------------------------------------------------------------


class Alone(baselines.LlmOnly):
    """The same for any proposer: what its validated rounds end with, if it gains more than the margin; else nothing."""

    @property
    def llm_calls(self):
        return self.actor.recorder.calls if self.actor.recorder else 0


class AsProposed(Alone):
    """Plays the first proposal as it is, without asking the simulator."""

    def act(self, state, x, legal):
        self.asked += 1
        return self.actor.propose([state], self.asked)[0] or 0


class SetLookAhead(baselines.DoNothing):
    """The legal action of a set with the lowest forecast rho_max, by AC power flow."""

    def __init__(self, whatif, actions):
        self.whatif, self.actions = whatif, np.asarray(actions)

    @property
    def simulator_calls(self):
        return self.whatif.ac_calls

    def act(self, state, x, legal):
        ids = self.actions[corpus.legal_of(self.whatif.catalogue, state, self.actions)]
        return int(ids[corpus.best_of(self.whatif.ac(state, ids), np.ones(len(ids), bool))])


def _manifest(environment):
    settings = config.load().base.llm.model_copy(update={"path": "results/language_model/{env}"})
    return read_model_manifest(settings, environment, config.root())


@lru_cache(maxsize=1)
def _bench(environment):
    """What all tasks share, made once a process: (params, world, scenarios, textmap, manifest, model, tokenizer).

    scenarios: of validation, those that a run validates on first, then `proposers.episodes` others.
    """
    torch.set_num_threads(1)
    params = config.load()
    world = World(params.environment(environment), params.scenarios, params.base.operator)
    scenarios = unseen_validation(world, params.scenarios, params.proposers.episodes, "proposers.episodes")
    folder = config.root() / "results" / "language_model" / environment
    return params, world, scenarios, TextMap(world), _manifest(environment), *embedded.load(folder)


def _play(environment, name, given):
    """[EpisodeResult] of one player, on scenarios that no checkpoint was chosen by. given: a set's actions, a policy's path,
    the classifier, or None."""
    params, world, scenarios, textmap, manifest, model, tokenizer = _bench(environment)
    whatif = WhatIf(world)
    if name == "nobody":
        agent = baselines.DoNothing()
    elif name in CONTROLS:
        shortlist = params.base.greedy.shortlist
        agent = Alone(control(name, world, whatif, params.base.refine, shortlist, manifest["ranking"]), whatif)
    elif name == CLASSIFIER:
        agent = Alone(given.as_actor(world.catalogue, whatif, params.base.refine), whatif)
    elif name in MODELS:
        client = LocalClient(model, tokenizer, params.base.llm, f"embedded-{environment}")
        kind = AsProposed if name == "model_unvalidated" else Alone
        refine = _elsewhere(params.base.refine) if name == "model_elsewhere" else params.base.refine
        agent = kind(PolicyActor(client, textmap, whatif, refine), whatif)
    elif name.startswith("set_"):
        agent = SetLookAhead(whatif, given)
    elif name == "greedy":
        agent = baselines.Greedy(whatif, params.base.greedy.shortlist)
    else:
        agent = Policy(load_policy(config.root() / given, world.catalogue))
    unseen = range(params.scenarios.validation, len(scenarios))
    return list(evaluate.play(with_validation(training_world(world), scenarios), agent, "validation", unseen))


def _rows(params, environment, tasks, played, before):
    """Rows with COLUMNS, the runs of a variant in one; before: power flows that a proposer's making took."""
    results, learnt = {}, {name for _, name, given in tasks if isinstance(given, str)}
    for (_, name, _), episodes in zip(tasks, played, strict=True):
        results.setdefault(name, []).append(episodes)
    survival = {name: np.array([[100 * e.survival for e in run] for run in runs]) for name, runs in results.items()}
    for name, runs in results.items():
        policy = name in learnt
        proposer = TAUGHT_BY.get(name, "nobody") if policy else name
        own = mean(survival[name], PERCENT)
        lead, short = _minus(survival, name, "sac"), _minus(survival, name, proposer)
        made = np.mean(list(_spent(params, environment, name))) if policy else before.get(name, 0)
        calls = [np.mean([sum(getattr(e, c) for e in run) for run in runs]) for c in COLUMNS[-3:]]
        yield [environment, proposer, name if policy else "", *own, *lead, *short, *survival[name].shape, made, *calls]


def _minus(survival, name, other):
    """Estimate of the difference, paired by episode; nan from itself and from what was not played."""
    if name == other or other not in survival:
        return [np.nan] * 3
    return paired_difference(survival[name], survival[other])


def _spent(params, environment, variant):
    """Power flows of each run of a variant before its test."""
    cell = read_cell(cell_folder(config.root() / "results", environment, variant))
    for seed in params.seeds_of(variant):
        budget = cell[seed].manifest["budget"]
        yield sum(budget[phase]["simulator_calls"] for phase in ("train", "validation", "corpus"))
