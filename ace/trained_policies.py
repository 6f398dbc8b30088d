"""The methods of the grid with the policies of their committed runs, played again under other rules by the studies.

No language model is asked.
"""

import copy
from functools import lru_cache
from pathlib import Path

from tqdm import tqdm

from ace import baselines, config, pool
from ace.grid.environment import World, scenario_sets
from ace.grid.whatif import WhatIf
from ace.llm.session import read_model_manifest
from ace.rl.policy import Policy, load_policy
from ace.run_files import POLICY, cell_folder, policy_digest, read_cell, seeds_in


def policy_of(root, environment, variant, seed):
    """Path below root of a run's policy, or None: of its cell, or where a cell keeps none the one that its training left under
    checkpoints/, if it is the same by the manifest."""
    folder = cell_folder("results", environment, variant)
    kept, left = (place / f"seed={seed}" / POLICY for place in (folder, Path("checkpoints/results") / environment / variant))
    if (root / kept).is_file():
        return str(kept)
    if (root / left).is_file() and seed in seeds_in(root / folder):
        noted = read_cell(root / folder)[seed].manifest.get("policy_sha256")
        return str(left) if policy_digest(root / left) == noted else None
    return None


def play_tasks(function, tasks, what):
    """[function(*task) for each task], in the pool, with a progress bar named `what`."""
    with tqdm(pool.finished(function, tasks), total=len(tasks), desc=what, unit="run") as bar:
        results = dict(bar)
    return [results[number] for number in range(len(tasks))]


@lru_cache(maxsize=1)
def world_of(environment):
    """The World of an environment with the reflexes of `base`; made once a process: it takes seconds."""
    params = config.load()
    return World(params.environment(environment), params.scenarios, params.base.operator)


def unseen_validation(world, scenarios, number, key):
    """Validation scenarios: those that a run validates on, then `number` others, by which no checkpoint was chosen.

    scenarios: the section of that name in `config`; key: of params.yaml, where the number is from. The others are of further
    weeks, of which a grid has so many: ConfigError where it has fewer. On packaged days they are drawn anew.
    """
    weeks = getattr(world.sets["validation"], "weeks", None)
    if weeks is not None and scenarios.validation + number > len(weeks):
        spare = max(len(weeks) - scenarios.validation, 0)
        raise config.ConfigError(
            f"params.yaml: {key} = {number}: {world.spec.weeks.path} holds {len(weeks)} validation weeks, of which the first "
            f"{scenarios.validation} choose checkpoints: at most {spare}"
        )
    more = scenarios.model_copy(update={"validation": scenarios.validation + number})
    return scenario_sets(world.spec, more)["validation"]


def with_validation(world, scenarios):
    """The world with these validation scenarios, of `unseen_validation`."""
    other = copy.copy(world)
    other.sets = {**world.sets, "validation": scenarios}
    return other


def agent_of(settings, environment, world, policy):
    """Who acts: the policy of that path, or where there is none the baseline of these settings; ConfigError for any other."""
    if policy:
        return Policy(load_policy(config.root() / policy, world.catalogue))
    if settings.method == "greedy":
        return baselines.Greedy(WhatIf(world), settings.greedy.shortlist)
    if settings.method == "dc_argmin":
        actions = read_model_manifest(settings.llm, environment, config.root())["actions"]
        return baselines.DcArgmin(WhatIf(world), world.catalogue, actions)
    if settings.method in ("do_nothing", "reconnect"):
        return baselines.DoNothing()
    raise config.ConfigError(f"method {settings.method!r} can't be played again without a policy")


def write_rows(table, output, study, name):
    """<output>/studies/<study>/<name>.csv"""
    path = config.root() / output / "studies" / study / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
