import functools
import numpy as np
import pandas as pd
from ace import config, evaluate
from ace.grid.dcflow import DcFlow
from ace.grid.fastworld import training_world
from ace.llm.team import read_card
from ace.replay import play_tasks, tasks_of, unseen_validation, with_validation, world_of, write_rows
from ace.rl.distribution import most_probable
from ace.rl.policy import load_policy
LEARNED = ['sac', 'ace', 'ace_no_actor', 'expert_sac', 'random_refine', 'frequency_refine', 'sac_5k']
WITHIN_SET = 'set'
ALONE = 1
COLUMNS = ['env', 'variant', 'seed', 'split', 'most', 'scenario', 'horizon', 'survived_steps', 'survival']
COLUMNS += ['reward', 'decisions', 'topology_actions', 'simulator_calls', 'dc_calls', 'llm_calls']

class Foresight:
    simulator_calls = llm_calls = 0

    def __init__(self, candidates, flow):
        self.candidates, self.flow = (candidates, flow)

    @property
    def dc_calls(self):
        return self.flow.calls

    def act(self, state, x, legal):
        ids = self.candidates(x, legal)
        return int(ids[self.flow.rho_max(state, ids).argmin()])

def with_foresight(deployed, world, most):
    if not isinstance(most, int) or most < ALONE:
        raise ValueError(f'most = {most!r}: a whole number of actions, {ALONE} or more')
    if most == ALONE:
        return evaluate.Policy(deployed)
    return Foresight(lambda x, legal: most_probable(deployed.space, deployed.logits(x), legal, most), DcFlow(world))

def within_set(world, actions):
    everything = [0, *(int(action) for action in actions if action)]
    legal_ones = lambda x, legal: np.array([a for a in everything if world.catalogue.is_legal(legal, a)])
    return Foresight(legal_ones, DcFlow(world))

def play_foresight(environment, most, episodes, output='results'):
    params = config.load()
    variants = [variant for variant in params.grid.variants if variant in LEARNED]
    tasks = tasks_of(params, environment, [], variants)
    actions = read_card(params.base.llm, environment, config.root())['actions']
    tried = functools.partial(_validate, environment, [ALONE, *most], episodes)
    table = _table(play_tasks(tried, tasks, f'{environment}, validation'))
    chosen = choose(table)
    tests = [(WITHIN_SET, 0, actions, len(actions)), *((*task, chosen[task[0]]) for task in tasks)]
    table = pd.concat([table, _table(play_tasks(functools.partial(_test, environment), tests, f'{environment}, test'))])
    write_rows(table, output, 'foresight', environment)
    return table

def choose(table):
    tried = table[table['split'] == 'validation']
    survival = tried.groupby(['variant', 'most'])['survival'].mean()
    return {variant: int(each.idxmax()[1]) for variant, each in survival.groupby('variant')}

def _table(played):
    return pd.DataFrame([row for rows in played for row in rows], columns=COLUMNS)

def _validate(environment, tried, episodes, variant, seed, policy):
    params, world = (config.load(), world_of(environment))
    scenarios = unseen_validation(world, params.scenarios, episodes)
    world = with_validation(training_world(world), scenarios)
    unseen = range(params.scenarios.validation, len(scenarios))
    return [row for most in tried for row in _play(environment, world, 'validation', unseen, variant, seed, policy, most)]

def _test(environment, variant, seed, given, most):
    world = world_of(environment)
    return _play(environment, world, 'test', range(len(world.sets['test'])), variant, seed, given, most)

def _play(environment, world, split, indices, variant, seed, given, most):
    if variant == WITHIN_SET:
        agent = within_set(world, given)
    else:
        agent = with_foresight(load_policy(config.root() / given, world.catalogue), world, most)
    identity = {'env': environment, 'variant': variant, 'seed': seed, 'most': most}
    return [{**identity, **result.row()} for result in evaluate.play(world, agent, split, indices)]
