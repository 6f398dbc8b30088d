"""The methods of the grid as their committed runs left them, played again under other rules: see `outages.py`, `official.py`,
`foresight.py`.

Nothing is trained and no language model is asked.
"""

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
    """All runs of the baselines `idle` and the learned variants: list of (variant, seed, path of the policy or None).

    Raises FileNotFoundError if a policy is missing.
    """
    tasks = [(variant, 0, None) for variant in idle]
    for variant in learned:
        seeds = params.seeds if variant in params.grid.variants else params.grid.ablations.seeds
        folder = Path("results/runs") / environment / variant
        tasks += [(variant, seed, str(folder / f"seed={seed}" / "policy.safetensors")) for seed in seeds]
    for _, _, policy in tasks:
        if policy and not (config.root() / policy).is_file():
            raise FileNotFoundError(f"no {policy}: its run is missing, see `dvc status`")
    return tasks


def play_tasks(function, tasks, what):
    """[function(*task) for each task], over ACE_JOBS processes, with a progress bar named `what`."""
    parallel = joblib.Parallel(n_jobs=min(config.jobs(), len(tasks)), batch_size=1, return_as="generator")
    work = parallel(joblib.delayed(function)(*task) for task in tasks)
    with tqdm(work, total=len(tasks), desc=what, unit="run") as bar:
        return list(bar)


@lru_cache(maxsize=1)
def world_of(environment):
    """The World of an environment with the reflexes of `base`; made once a process: it takes seconds."""
    params = config.load()
    return World(params.environment(environment), params.scenarios, params.base.operator)


def unseen_validation(world, scenarios, number):
    """A ScenarioSet of the validation's days: those that a run validates on, then `number` others, by which no checkpoint was
    chosen. scenarios: the section of that name in `config`."""
    more = scenarios.model_copy(update={"validation": scenarios.validation + number})
    return ScenarioSet(world.source, world.spec, more, "validation")


def with_validation(world, scenarios):
    """The world with these validation scenarios, a ScenarioSet."""
    other = copy.copy(world)
    other.sets = {**world.sets, "validation": scenarios}
    return other


def agent_of(settings, environment, world, policy):
    """Who acts: the policy of that path, or where there is none the baseline of these settings."""
    if policy:
        return evaluate.Policy(load_policy(config.root() / policy, world.catalogue))
    if settings.method == "greedy":
        return baselines.Greedy(WhatIf(world), settings.greedy.shortlist)
    if settings.method == "dc_argmin":
        actions = read_card(settings.llm, environment, config.root())["actions"]
        return baselines.DcArgmin(WhatIf(world), world.catalogue, actions)
    return baselines.DoNothing()


def write_rows(table, output, folder, environment):
    """<output>/<folder>/<environment>.csv"""
    path = config.root() / output / folder / f"{environment}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
