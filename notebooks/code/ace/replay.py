import copy
from functools import lru_cache
from pathlib import Path
import joblib
from tqdm import tqdm
from ace import baselines, config, evaluate
from ace.grid.environment import World
from ace.grid.scenarios import ScenarioSet
from ace.grid.whatif import WhatIf
from ace.llm.team import read_card
from ace.rl.policy import load_policy

def tasks_of(params, environment, idle, learned):
    tasks = [(variant, 0, None) for variant in idle]
    for variant in learned:
        seeds = params.seeds if variant in params.grid.variants else params.grid.ablations.seeds
        folder = Path('results/runs') / environment / variant
        tasks += [(variant, seed, str(folder / f'seed={seed}' / 'policy.safetensors')) for seed in seeds]
    for _, _, policy in tasks:
        if policy and (not (config.root() / policy).is_file()):
            raise FileNotFoundError(f'no {policy}: its run is missing, see `dvc status`')
    return tasks

def play_tasks(function, tasks, what):
    parallel = joblib.Parallel(n_jobs=min(config.jobs(), len(tasks)), batch_size=1, return_as='generator')
    work = parallel((joblib.delayed(function)(*task) for task in tasks))
    with tqdm(work, total=len(tasks), desc=what, unit='run') as bar:
        return list(bar)

@lru_cache(maxsize=1)
def world_of(environment):
    params = config.load()
    return World(params.environment(environment), params.scenarios, params.base.operator)

def unseen_validation(world, scenarios, number):
    more = scenarios.model_copy(update={'validation': scenarios.validation + number})
    return ScenarioSet(world.source, world.spec, more, 'validation')

def with_validation(world, scenarios):
    other = copy.copy(world)
    other.sets = {**world.sets, 'validation': scenarios}
    return other

def agent_of(settings, environment, world, policy):
    if policy:
        return evaluate.Policy(load_policy(config.root() / policy, world.catalogue))
    if settings.method == 'greedy':
        return baselines.Greedy(WhatIf(world), settings.greedy.shortlist)
    if settings.method == 'dc_argmin':
        actions = read_card(settings.llm, environment, config.root())['actions']
        return baselines.DcArgmin(WhatIf(world), world.catalogue, actions)
    return baselines.DoNothing()

def write_rows(table, output, folder, environment):
    path = config.root() / output / folder / f'{environment}.csv'
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, float_format='%.6g', lineterminator='\n')
