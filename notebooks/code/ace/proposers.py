import json
from functools import lru_cache
import numpy as np
import pandas as pd
import torch
from ace import baselines, classifier, config, evaluate
from ace.grid.environment import World
from ace.grid.fastworld import training_world
from ace.grid.scenarios import ScenarioSet
from ace.grid.whatif import WhatIf
from ace.llm import corpus, embedded
from ace.llm.clients import LocalClient
from ace.llm.controls import ControlActor, control
from ace.llm.heldout import heldout_states
from ace.llm.rates import outcomes, tabled
from ace.llm.roles import BadCase, PolicyActor
from ace.llm.team import read_card
from ace.llm.text import TextMap
from ace.replay import play_tasks, tasks_of, unseen_validation, with_validation, write_rows
from ace.report.stats import estimate, paired_difference
from ace.rl.policy import load_policy
COLUMNS = ['grid', 'proposer', 'learnt', 'survival', 'ci_low', 'ci_high', 'minus_sac', 'minus_sac_low', 'minus_sac_high']
COLUMNS += ['minus_proposer', 'minus_proposer_low', 'minus_proposer_high', 'n_seeds', 'n_episodes']
COLUMNS += ['simulator_calls_before', 'simulator_calls', 'dc_calls', 'llm_calls']
CONTROLS, CLASSIFIER, MODELS = (['random', 'frequency', 'expert'], 'classifier', ['model_unvalidated', 'model', 'model_elsewhere'])
TAUGHT_BY = {'sac': 'nobody', 'random_refine': 'random', 'frequency_refine': 'frequency', 'ace': 'model', 'ace_elsewhere': 'model_elsewhere', 'expert_sac': 'expert'}
HELPED = ('one_proposal', 'five_rounds')
PAIRED = [('model', 'frequency'), ('model_elsewhere', 'frequency'), ('model_elsewhere', 'frequency_elsewhere'), ('model_elsewhere', 'model'), ('model', CLASSIFIER)]
SETS = (1 / 3, 1, 2, 4)
STATES, A_PASS, PASSES = (3, 2, 9)

def measure(environment, output='results'):
    params = config.load()
    params.environment(environment)
    card = _card(environment)
    learnt = tasks_of(params, environment, [], [v for v in TAUGHT_BY if v in params.grid.variants])
    plain = fit_classifier(environment)
    found, sets = (measure_rates(environment, plain), choose_sets(params, environment))
    tasks = [(environment, name, None) for name in ('nobody', *CONTROLS)] + [(environment, CLASSIFIER, plain)]
    tasks += [(environment, name, None) for name in MODELS]
    tasks += [(environment, f'set_{n}', actions) for n, (actions, _) in sets.items()]
    tasks += [(environment, 'greedy', None)] + [(environment, variant, path) for variant, _, path in learnt]
    played = play_tasks(_play, tasks, f'{environment}, proposers')
    before = {f'set_{n}': calls for n, (_, calls) in sets.items()}
    from_corpus = ('frequency', CLASSIFIER, *MODELS)
    before |= dict.fromkeys(from_corpus, card['budget']['simulator_calls'])
    table = pd.DataFrame(_rows(params, environment, tasks, played, before), columns=COLUMNS)
    write_rows(found, output, 'proposers', f'{environment}_rates')
    write_rows(table, output, 'proposers', environment)
    return (table, found)

def fit_classifier(environment):
    params, world, _, textmap, card, *_ = _bench(environment)
    made = corpus.build(params, environment)
    if made.actions.tolist() != card['actions'] or made.budget != card['budget']:
        raise config.ConfigError(f'the corpus of {environment} is no longer the one that its language model learnt from: run the stage language_model')
    return classifier.fit(made, textmap, world.features, params.language_model, params.base.sac)

def measure_rates(environment, plain):
    params, world, scenarios, textmap, card, model, tokenizer = _bench(environment)
    settings, run, whatif = (params.language_model, params.base, WhatIf(world))
    fresh = {'seed': params.scenarios.seed + 1, 'validation': len(scenarios)}
    fresh = ScenarioSet(world.source, world.spec, params.scenarios.model_copy(update=fresh), 'validation')
    world, states, wanted = (with_validation(world, fresh), {}, STATES * settings.heldout_states)
    for number in range(PASSES):
        if len(states) < wanted:
            found, _ = heldout_states(world, whatif, np.array(card['actions']), settings.shortlist, run.refine.margin, A_PASS * settings.heldout_states, settings.seed + number)
            states |= {b''.join((a.tobytes() for a in state.to_arrays().values())): state for state in found}
    client, unmasked = (LocalClient(model, tokenizer, run.llm.model_copy(update=changes), f'embedded-{environment}') for changes in ({}, {'masked': False}))
    found, ranking = (list(states.values())[:wanted], card['ranking'])
    columns, _ = outcomes(whatif, textmap, client, found, run.refine, ranking, settings.seed, unmasked)
    lookup = control('frequency', world, whatif, run.refine, run.greedy.shortlist, ranking)
    classified = plain.as_actor(whatif.catalogue, whatif, run.refine)
    others = {CLASSIFIER: classified, 'model_elsewhere': PolicyActor(client, textmap, whatif, _elsewhere(run.refine)), 'frequency_elsewhere': elsewhere(lookup), f'{CLASSIFIER}_elsewhere': elsewhere(classified)}
    for name, actor in others.items():
        columns |= outcomes_of(params, name, actor, found)
    columns |= {(name, f'{metric}_minus_{other}'): np.subtract(columns[name, metric], columns[other, metric], dtype=float) for name, other in PAIRED for metric in HELPED}
    return tabled(environment, columns, settings.seed, [state.scenario for state in found])

def outcomes_of(params, name, actor, states):
    refined = actor.refine([BadCase(i, state, 0, 0.0) for i, state in enumerate(states)], params.language_model.seed)
    rounds = [found.rounds if found is not None and found.improved else np.inf for found in refined]
    most = dict(zip(HELPED, (1, params.base.refine.rounds), strict=True))
    return {(name, metric): [n <= most[metric] for n in rounds] for metric in HELPED}

def elsewhere(actor):

    def propose(state, legal, rng):
        seen, rest = (set(), [])
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
    return refine.model_copy(update={'proposer': 'llm_elsewhere'})

def choose_sets(params, environment):
    sets = {}
    for share in SETS:
        n = max(round(share * params.language_model.actions), 2)
        settings = params.language_model.model_copy(update={'actions': n, 'states': 1})
        made = corpus.build(params.model_copy(update={'language_model': settings}), environment)
        sets[len(made.actions)] = (made.actions, made.budget['simulator_calls'])
    return sets

class Alone(baselines.LlmOnly):

    @property
    def llm_calls(self):
        return self.actor.recorder.calls if self.actor.recorder else 0

class AsProposed(Alone):

    def act(self, state, x, legal):
        self.asked += 1
        return self.actor.propose([state], self.asked)[0] or 0

class SetLookAhead(baselines.DoNothing):

    def __init__(self, whatif, actions):
        self.whatif, self.actions = (whatif, np.asarray(actions))

    @property
    def simulator_calls(self):
        return self.whatif.ac_calls

    def act(self, state, x, legal):
        ids = self.actions[corpus.legal_of(self.whatif.catalogue, state, self.actions)]
        return int(ids[corpus.best_of(self.whatif.ac(state, ids), np.ones(len(ids), bool))])

def _card(environment):
    settings = config.load().base.llm.model_copy(update={'path': 'results/language_model/{env}'})
    return read_card(settings, environment, config.root())

@lru_cache(maxsize=1)
def _bench(environment):
    torch.set_num_threads(1)
    params = config.load()
    world = World(params.environment(environment), params.scenarios, params.base.operator)
    scenarios = unseen_validation(world, params.scenarios, params.scenarios.test)
    folder = config.root() / 'results' / 'language_model' / environment
    return (params, world, scenarios, TextMap(world), _card(environment), *embedded.load(folder))

def _play(environment, name, given):
    params, world, scenarios, textmap, card, model, tokenizer = _bench(environment)
    whatif = WhatIf(world)
    if name == 'nobody':
        agent = baselines.DoNothing()
    elif name in CONTROLS:
        shortlist = params.base.greedy.shortlist
        agent = Alone(control(name, world, whatif, params.base.refine, shortlist, card['ranking']), whatif)
    elif name == CLASSIFIER:
        agent = Alone(given.as_actor(world.catalogue, whatif, params.base.refine), whatif)
    elif name in MODELS:
        client = LocalClient(model, tokenizer, params.base.llm, f'embedded-{environment}')
        kind = AsProposed if name == 'model_unvalidated' else Alone
        refine = _elsewhere(params.base.refine) if name == 'model_elsewhere' else params.base.refine
        agent = kind(PolicyActor(client, textmap, whatif, refine), whatif)
    elif name.startswith('set_'):
        agent = SetLookAhead(whatif, given)
    elif name == 'greedy':
        agent = baselines.Greedy(whatif, params.base.greedy.shortlist)
    else:
        agent = evaluate.Policy(load_policy(config.root() / given, world.catalogue))
    unseen = range(params.scenarios.validation, len(scenarios))
    return list(evaluate.play(with_validation(training_world(world), scenarios), agent, 'validation', unseen))

def _rows(params, environment, tasks, played, before):
    results = {}
    for (_, name, _), episodes in zip(tasks, played, strict=True):
        results.setdefault(name, []).append(episodes)
    survival = {name: np.array([[100 * e.survival for e in run] for run in runs]) for name, runs in results.items()}
    for name, runs in results.items():
        policy = name in TAUGHT_BY
        proposer = TAUGHT_BY.get(name, name)
        own = estimate([[survival[name]]], lambda means: means[..., 0])
        lead, short = (_minus(survival, name, 'sac'), _minus(survival, name, proposer))
        made = np.mean(list(_spent(params, environment, name))) if policy else before.get(name, 0)
        calls = [np.mean([sum((getattr(e, c) for e in run)) for run in runs]) for c in COLUMNS[-3:]]
        yield [environment, proposer, name if policy else '', *own, *lead, *short, *survival[name].shape, made, *calls]

def _minus(survival, name, other):
    if name == other or other not in survival:
        return [np.nan] * 3
    return paired_difference(survival[name], survival[other])

def _spent(params, environment, variant):
    for seed in params.seeds:
        place = config.root() / 'results' / 'runs' / environment / variant / f'seed={seed}' / 'manifest.json'
        budget = json.loads(place.read_text())['budget']
        yield sum((budget[phase]['simulator_calls'] for phase in ('train', 'validation', 'corpus')))
