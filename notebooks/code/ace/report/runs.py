import json
from dataclasses import dataclass, field
from pathlib import Path
import numpy as np
import pandas as pd
from ace.checked import OneLine
EPISODE_METRICS = {'survival': ('survival', 100.0), 'survived_steps': ('survived_steps', 1.0), 'reward': ('reward', 1.0), 'decisions': ('decisions', 1.0), 'topology_actions': ('topology_actions', 1.0), 'simulator_calls_test': ('simulator_calls', 1.0), 'dc_calls_test': ('dc_calls', 1.0), 'llm_calls_test': ('llm_calls', 1.0)}
RUN_METRICS = {'env_steps_to_train': lambda manifest: sum((phase.get('env_steps', 0) for name, phase in manifest['budget'].items() if name != 'test')), 'refinements': lambda manifest: manifest.get('refinements', 0)}

class ReportError(OneLine, Exception):
    pass

@dataclass(frozen=True)
class Run:
    seed: int
    folder: str
    episodes: pd.DataFrame
    training: pd.DataFrame | None
    manifest: dict
    provenance: dict | None

@dataclass(frozen=True)
class Runs:
    scale: str
    environments: list
    variants: list
    cells: dict = field(repr=False)
    same_day: tuple = ()

    def of(self, env, variant):
        return self.cells[env, variant]

    def methods_of(self, env):
        return [variant for variant in self.variants if (env, variant) in self.cells]

    def environments_of(self, variants):
        return [env for env in self.environments if all(((env, variant) in self.cells for variant in variants))]

    def held_out_of(self, variants):
        return [env for env in self.environments_of(variants) if env not in self.same_day]

    def seeds_of_all(self, env, variants):
        common = set.intersection(*({run.seed for run in self.of(env, variant)} for variant in variants))
        if not common:
            raise ReportError(f"{', '.join(variants)} have no seed in common in {env}: let seeds and grid.ablations.seeds overlap")
        return sorted(common)

    def scores(self, env, variant, metric, seeds=None):
        runs = [run for run in self.of(env, variant) if seeds is None or run.seed in seeds]
        if metric in RUN_METRICS:
            return np.array([[float(RUN_METRICS[metric](run.manifest))] for run in runs])
        column, factor = EPISODE_METRICS[metric]
        return factor * np.stack([run.episodes[column].to_numpy(float) for run in runs])

    def spent(self, env, variant, what, seeds=None):
        runs = [run for run in self.of(env, variant) if seeds is None or run.seed in seeds]
        totals = [sum((phase.get(what, 0) for phase in run.manifest['budget'].values())) for run in runs]
        return sum(totals) / len(totals)

    def seconds(self, env, variant, phase):
        walls = [run.provenance['wall_s'] for run in self.of(env, variant) if run.provenance]
        found = [wall[phase] for wall in walls if phase in wall]
        return float(np.mean(found)) if found else float('nan')

def is_same_day(params, env):
    days = params.environment(env).days
    return days.train == days.test

def titled(params, env):
    return f'{env}, tested on its training day' if is_same_day(params, env) else env

def named(params, env):
    return f'{env}, same day' if is_same_day(params, env) else env

def declared(params):
    return [*params.grid.baselines, *params.grid.lm_baselines, *params.grid.variants, *params.grid.other_model]

def ablations(params):
    return [variant for variant in params.grid.ablations.variants if variant not in params.grid.variants]

def seeds_of(params, variant):
    if variant in ablations(params):
        return list(params.grid.ablations.seeds)
    return list(params.seeds) if variant in [*params.grid.variants, *params.grid.other_model] else [0]

def target(params, env, variant):
    if variant in ablations(params):
        return f'ablation@{variant}'
    stages = {'baselines': 'baseline', 'lm_baselines': 'lm_baseline', 'variants': 'train', 'other_model': 'other_model'}
    stage = next((stage for group, stage in stages.items() if variant in getattr(params.grid, group)))
    return f'{stage}@{env}-{variant}'

def read(params, results, variants=None):
    everywhere, environments = (declared(params), list(params.grid.environments))
    methods = [*everywhere, *ablations(params)]
    for variant in variants or []:
        if variant not in methods:
            raise ReportError(f"variant {variant} is not in the grid of params.yaml; there are {', '.join(methods)}")
    if set(variants or []) - set(everywhere):
        environments = [params.grid.ablations.environment]
    variants = list(variants or methods)
    cells = {(env, variant): [_read_run(Path(results), params, env, variant, seed) for seed in seeds_of(params, variant)] for env in environments for variant in variants if variant in everywhere or env == params.grid.ablations.environment}
    for env in environments:
        runs = [(target(params, env, variant), cells.get((env, variant), [])) for variant in variants]
        _check_same_test([(name, run) for name, seeds in runs for run in seeds])
    same_day = tuple((env for env in environments if is_same_day(params, env)))
    return Runs(params.scale, environments, variants, cells, same_day)

def _read_run(results, params, env, variant, seed):
    folder = results / 'runs' / env / variant / f'seed={seed}'
    name = f'results/runs/{env}/{variant}/seed={seed}'
    remedy = f'run `dvc repro {target(params, env, variant)}`'
    for file in ('manifest.json', 'episodes.csv'):
        if not (folder / file).is_file():
            raise ReportError(f'no {file} in {name}: {remedy}')
    manifest = json.loads((folder / 'manifest.json').read_text(encoding='utf-8'))
    training, provenance = (folder / 'training.csv', results / 'provenance' / env / variant / f'seed={seed}.json')
    trained = ['refinements'] if training.is_file() else []
    for key in ('env', 'variant', 'seed', 'scale', 'test_hash', 'budget', *trained):
        if key not in manifest:
            raise ReportError(f'{name}/manifest.json has no {key}: {remedy}')
    for key, expected in (('env', env), ('variant', variant), ('seed', seed), ('scale', params.scale)):
        if manifest[key] != expected:
            raise ReportError(f'{name} was made for {key} {manifest[key]}, but {expected} is declared: {remedy}')
    episodes = pd.read_csv(folder / 'episodes.csv')
    episodes = episodes[episodes['split'] == 'test'].sort_values('episode').reset_index(drop=True)
    columns = [column for column, _ in EPISODE_METRICS.values()]
    if episodes.empty or episodes[columns].isna().any(axis=None):
        raise ReportError(f'{name}/episodes.csv has no test episodes or has empty cells: {remedy}')
    return Run(seed, name, episodes, pd.read_csv(training) if training.is_file() else None, manifest, json.loads(provenance.read_text(encoding='utf-8')) if provenance.is_file() else None)

def _check_same_test(runs):
    first_target, first = runs[0]
    identity = ['episode', 'scenario', 'horizon']
    for name, run in runs[1:]:
        if run.manifest['test_hash'] != first.manifest['test_hash']:
            raise ReportError(f"{run.folder} was tested on other scenarios (test_hash {run.manifest['test_hash'][:12]}) than {first.folder} ({first.manifest['test_hash'][:12]}): run `dvc repro {name}` or `dvc repro {first_target}`, whichever is old")
        if not run.episodes[identity].equals(first.episodes[identity]):
            both = f'`dvc repro -s -f {name} {first_target}`'
            raise ReportError(f'{run.folder} and {first.folder} list different test episodes: run {both}')
