import functools
import numpy as np
import pandas as pd
from grid2op.Exceptions import Grid2OpException
from ace import config, evaluate
from ace.grid.environment import Operator, World
from ace.replay import agent_of, play_tasks, tasks_of, world_of, write_rows
LEARNED = ['sac', 'ace', 'ace_no_critic', 'expert_sac', 'random_refine', 'frequency_refine']
ALSO = ('ace_half_', 'ace_query_')
UNLEARNED = ['do_nothing', 'reconnect', 'greedy']
TRIED, LASTS = (3, 48)
COLUMNS = ['env', 'variant', 'seed', 'outage', 'line', 'episode', 'scenario', 'horizon', 'survived_steps', 'survival']
COLUMNS += ['reward', 'decisions', 'topology_actions', 'simulator_calls', 'dc_calls', 'llm_calls']

class OutageWorld(World):

    def __init__(self, world, line, operator=None):
        vars(self).update(vars(world))
        self.line, self.env_steps, self._done = (line, 0, True)
        if operator is not None:
            self.operator = Operator(operator)

    def _first_state(self, seed):
        if self.line is None:
            return super()._first_state(seed)
        reset = self.env.reset
        self.env.reset = functools.partial(reset, options={'init state': {'set_line_status': [(self.line, -1)]}})
        try:
            return self._out(super()._first_state(seed))
        finally:
            del self.env.reset

    def _next_state(self, action, line):
        state, reward, blackout = super()._next_state(action, line)
        return (self._out(state), reward, blackout)

    def _out(self, state):
        if self.line is not None:
            state.cooldown_line[self.line] = self.spec.horizon + 2
        return state

def choose_lines(world, number):
    tried = range(min(TRIED, len(world.sets['train'])))
    asked = [state for index in tried for state in _asked(OutageWorld(world, None), index)]
    loading = np.mean([state.rho for state in asked], axis=0)
    lasted = {}
    attacked = set(world.env._opponent._lines_ids) if world.spec.opponent else set()
    for line in [line for line in np.argsort(-loading, kind='stable').tolist() if line not in attacked]:
        lasted[line] = min((_lasts(OutageWorld(world, line), index) for index in tried))
        if sum((steps >= LASTS for steps in lasted.values())) == number:
            break
    return sorted(lasted, key=lambda line: -lasted[line])[:number]

def _asked(world, index):
    step = world.reset('train', index)
    states = [step.state]
    while not step.over:
        step = world.step(0)
        states.append(step.state)
    return states[:-1] or states

def _lasts(world, index):
    try:
        step = world.reset('train', index)
    except Grid2OpException:
        return 0
    while not step.over and world.t < LASTS:
        step = world.step(0)
    return min(world.t - step.blackout, LASTS)

def variants_of(params, environment):
    grid, ablations = (params.grid, params.grid.ablations)
    learned = list(grid.variants)
    if environment == ablations.environment:
        learned += [variant for variant in ablations.variants if variant not in learned]
    chosen = [variant for variant in learned if variant in LEARNED or variant.startswith(ALSO)]
    return ([variant for variant in grid.baselines if variant in UNLEARNED], chosen)

def play_outages(environment, outages=3, episodes=15, output='results'):
    params = config.load()
    tasks = tasks_of(params, environment, *variants_of(params, environment))
    world = world_of(environment)
    lines, episodes = (choose_lines(world, outages), min(episodes, len(world.sets['test'])))
    names = [world.env.name_line[line] for line in lines]
    what = f"{environment}, without line {' or '.join(names)}"
    played = play_tasks(functools.partial(_play, environment, lines, episodes), tasks, what)
    table = pd.DataFrame([row for rows in played for row in rows], columns=COLUMNS)
    write_rows(table, output, 'outages', environment)
    return table

def _play(environment, lines, episodes, variant, seed, policy):
    settings, world = (config.load().settings(variant), world_of(environment))
    agent = agent_of(settings, environment, world, policy)
    rows = []
    for episode in range(episodes):
        line = lines[episode % len(lines)]
        result, = evaluate.play(OutageWorld(world, line, settings.operator), agent, 'test', [episode])
        identity = {'env': environment, 'variant': variant, 'seed': seed, 'outage': episode % len(lines)}
        rows.append({**identity, 'line': world.env.name_line[line], 'episode': episode, **result.row()})
    return rows
