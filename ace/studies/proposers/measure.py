"""Proposers alone: survival of whole episodes where a proposer decides, with its validated rounds (our own measurement).

Beside them look-ahead within sets of actions of several sizes, chosen as the language model's was, and over the whole
catalogue, and the trained policies, which learnt from a proposer and act without a simulator. In validation weeks by which no
checkpoint was chosen (on packaged days: of the validation's days, drawn anew); no test scenario is played.
"""

import numpy as np
import pandas as pd

from ace import baselines, config, evaluate
from ace.grid.fastworld import training_world
from ace.grid.whatif import WhatIf
from ace.llm.clients import LocalClient
from ace.llm.controls import control
from ace.llm.models import corpus
from ace.llm.policy_actor import PolicyActor
from ace.rl.policy import Policy, load_policy
from ace.run_files import cell_folder, read_cell
from ace.stats import PERCENT, mean, paired_difference
from ace.studies.policies import tasks_of
from ace.studies.proposers.rates import CLASSIFIER, bench, fit_classifier, llm_elsewhere, manifest_of
from ace.trained_policies import play_tasks, with_validation, write_rows

COLUMNS = ["grid", "proposer", "learnt", "survival", "ci_low", "ci_high", "minus_sac", "minus_sac_low", "minus_sac_high"]
COLUMNS += ["minus_proposer", "minus_proposer_low", "minus_proposer_high", "n_seeds", "n_episodes"]
COLUMNS += ["simulator_calls_before", "simulator_calls", "dc_calls", "llm_calls"]
CONTROLS, MODELS = ["random", "frequency", "expert"], ["model_unvalidated", "model", "model_elsewhere"]
TAUGHT_BY = {"sac": "nobody", "random_refine": "random", "frequency_refine": "frequency", "ace": "model",
             "ace_elsewhere": "model_elsewhere", "expert_sac": "expert"}  # fmt: skip
"""Whose proposals a variant learnt from; any other counts as one without a teacher."""
SETS = (1 / 3, 1, 2, 4)
"""Sizes of sets of actions, in units of the language model's."""


def measure(environment, output="results"):
    """Writes <output>/studies/proposers/<environment>.csv and returns it as a table with COLUMNS.

    A row for each proposer alone and (learnt: its variant) for each policy: survival in percent of the horizon and its
    differences to plain SAC's and to that of the proposer it learnt from, paired by episode, with 95 % intervals over seeds and
    episodes; simulator_calls_before: power flows of the corpus, of the choice of the set, or of training; the other calls are
    those of all episodes (mean of the seeds). Raises ConfigError without the language model, FileNotFoundError without a
    trained policy.
    """
    params = config.load()
    params.environment(environment)
    manifest = manifest_of(environment)
    learnt = tasks_of(params, environment, [], params.played("proposers", environment)[1])
    plain = fit_classifier(environment)
    sets = choose_sets(params, environment)
    tasks = [(environment, name, None) for name in ("nobody", *CONTROLS)] + [(environment, CLASSIFIER, plain)]
    tasks += [(environment, name, None) for name in MODELS]
    tasks += [(environment, f"set_{n}", actions) for n, (actions, _) in sets.items()]
    tasks += [(environment, "greedy", None)] + [(environment, variant, path) for variant, _, path in learnt]
    played = play_tasks(_play, tasks, f"{environment}, proposers")
    before = {f"set_{n}": calls for n, (_, calls) in sets.items()}
    from_corpus = ("frequency", CLASSIFIER, *MODELS)
    before |= dict.fromkeys(from_corpus, manifest["budget"]["simulator_calls"])
    table = pd.DataFrame(_rows(params, environment, tasks, played, before), columns=COLUMNS)
    write_rows(table, output, "proposers", environment)
    return table


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


def _play(environment, name, given):
    """[EpisodeResult] of one player, on scenarios that no checkpoint was chosen by. given: a set's actions, a policy's path,
    the classifier, or None."""
    params, world, scenarios, textmap, manifest, model, tokenizer = bench(environment)
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
        refine = llm_elsewhere(params.base.refine) if name == "model_elsewhere" else params.base.refine
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
