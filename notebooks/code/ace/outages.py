import functools
from pathlib import Path
import joblib
import numpy as np
import pandas as pd
from grid2op.Exceptions import Grid2OpException
from tqdm import tqdm
from ace import baselines, config, evaluate
from ace.grid.environment import Operator, World
from ace.grid.whatif import WhatIf
from ace.rl.policy import load_policy
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
    for line in np.argsort(-loading, kind='stable').tolist():
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
    params, root = (config.load(), config.root())
    idle, learned = variants_of(params, environment)
    world = _world(environment)
    tasks = [(variant, 0, None) for variant in idle]
    for variant in learned:
        seeds = params.seeds if variant in params.grid.variants else params.grid.ablations.seeds
        folder = Path('results/runs') / environment / variant
        tasks += [(variant, seed, str(folder / f'seed={seed}' / 'policy.safetensors')) for seed in seeds]
    for _, _, policy in tasks:
        if policy and (not (root / policy).is_file()):
            raise FileNotFoundError(f'no {policy}: its run is missing, see `dvc status`')
    lines, episodes = (choose_lines(world, outages), min(episodes, len(world.sets['test'])))
    parallel = joblib.Parallel(n_jobs=min(config.jobs(), len(tasks)), batch_size=1, return_as='generator')
    work = parallel((joblib.delayed(_play)(environment, lines, episodes, *task) for task in tasks))
    names = [world.env.name_line[line] for line in lines]
    with tqdm(work, total=len(tasks), desc=f"{environment}, without line {' or '.join(names)}", unit='run') as bar:
        rows = [row for played in bar for row in played]
    table = pd.DataFrame(rows, columns=COLUMNS)
    path = root / output / 'outages' / f'{environment}.csv'
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, float_format='%.6g', lineterminator='\n')
    return table

@functools.lru_cache(maxsize=1)
def _world(environment):
    params = config.load()
    return World(params.environment(environment), params.scenarios, params.base.operator)

def _play(environment, lines, episodes, variant, seed, policy):
    settings, world = (config.load().settings(variant), _world(environment))
    agent = _agent(settings, world, policy)
    rows = []
    for episode in range(episodes):
        line = lines[episode % len(lines)]
        result, = evaluate.play(OutageWorld(world, line, settings.operator), agent, 'test', [episode])
        identity = {'env': environment, 'variant': variant, 'seed': seed, 'outage': episode % len(lines)}
        rows.append({**identity, 'line': world.env.name_line[line], 'episode': episode, **result.row()})
    return rows

def _agent(settings, world, policy):
    if policy:
        return evaluate.Policy(load_policy(config.root() / policy, world.catalogue))
    if settings.method == 'greedy':
        return baselines.Greedy(WhatIf(world), settings.greedy.shortlist)
    return baselines.DoNothing()
