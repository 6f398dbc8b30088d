"""Trained policies with foresight: a DC-predicted loading for each of their most probable actions (our extension).

The policy names its `n_candidates` most probable actions, and the one is played after which the loading is expected to be
lowest, by a DC model of the grid at the observed injections (`grid/dcflow.py`): a look-ahead without AC power flow and
without Grid2Op's simulation. Nothing is trained. SAC and the other learning methods that are played get the same: how many
actions are compared, or that the policy acts alone, is chosen for each method and grid on validation scenarios; the test is
then played once. They are compared with the same look-ahead in the language model's set of actions, without a policy.
"""

import functools

import pandas as pd

from ace import config, evaluate
from ace.grid.fastworld import training_world
from ace.llm.session import read_model_manifest
from ace.rl.foresight import ALONE, with_foresight, within_set
from ace.rl.policy import load_policy
from ace.studies.policies import tasks_of
from ace.trained_policies import play_tasks, unseen_validation, with_validation, world_of, write_rows

WITHIN_SET = "set"
"""No policy: the actions compared are those of the language model's manifest."""
COLUMNS = ["env", "variant", "seed", "split", "n_candidates", "scenario", "horizon", "survived_steps", "survival"]
COLUMNS += ["reward", "decisions", "topology_actions", "simulator_calls", "dc_calls", "llm_calls"]


def play_foresight(environment, n_candidates, episodes, output="results"):
    """Choose on validation scenarios, then play the test once: writes <output>/studies/foresight/<environment>.csv, a row an
    episode of either, and returns it as a table.

    n_candidates: numbers of actions to choose from, together with the policy alone; episodes: validation scenarios, other
    ones than checkpoints were chosen by. Raises ConfigError or FileNotFoundError, one line each.
    """
    params = config.load()
    tasks = tasks_of(params, environment, [], params.played("foresight", environment)[1])
    actions = read_model_manifest(params.base.llm, environment, config.root())["actions"]
    tried = functools.partial(_validate, environment, [ALONE, *n_candidates], episodes)
    table = _table(play_tasks(tried, tasks, f"{environment}, validation"))
    chosen = choose(table)
    tests = [(WITHIN_SET, 0, actions, len(actions)), *((*task, chosen[task[0]]) for task in tasks)]
    table = pd.concat([table, _table(play_tasks(functools.partial(_test, environment), tests, f"{environment}, test"))])
    write_rows(table, output, "foresight", environment)
    return table


def choose(table):
    """variant -> how many actions are compared: what survives longest on the mean of all seeds and validation scenarios,
    of equals the fewest. table: with COLUMNS; rows of the test are not looked at."""
    tried = table[table["split"] == "validation"]
    survival = tried.groupby(["variant", "n_candidates"])["survival"].mean()  # ascending: idxmax takes the fewest
    return {variant: int(each.idxmax()[1]) for variant, each in survival.groupby("variant")}


def _table(played):
    return pd.DataFrame([row for rows in played for row in rows], columns=COLUMNS)


def _validate(environment, tried, episodes, variant, seed, policy):
    """All episodes of one run with each number of actions: list of dicts with COLUMNS."""
    params, world = config.load(), world_of(environment)
    scenarios = unseen_validation(world, params.scenarios, episodes, "foresight.episodes")
    world = with_validation(training_world(world), scenarios)
    unseen = range(params.scenarios.validation, len(scenarios))
    return [row for n in tried for row in _play(environment, world, "validation", unseen, variant, seed, policy, n)]


def _test(environment, variant, seed, given, n_candidates):
    world = world_of(environment)
    return _play(environment, world, "test", range(len(world.sets["test"])), variant, seed, given, n_candidates)


def _play(environment, world, split, indices, variant, seed, given, n_candidates):
    """given: a policy's path, or the actions of WITHIN_SET."""
    if variant == WITHIN_SET:
        agent = within_set(world, given)
    else:
        agent = with_foresight(load_policy(config.root() / given, world.catalogue), world, n_candidates)
    identity = {"env": environment, "variant": variant, "seed": seed, "n_candidates": n_candidates}
    return [{**identity, **result.row()} for result in evaluate.play(world, agent, split, indices)]
