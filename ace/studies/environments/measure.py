"""How hard the scenarios of each split are: baselines play an episode of each week, on Grid2Op itself.

Nothing is trained and no language model is asked. What is chosen by these numbers (thermal factor and months) is chosen on the
training weeks. A second table compares Grid2Op with the fast world, on which agents train where no opponent acts.
"""

import functools

import numpy as np
import pandas as pd

from ace import config, evaluate
from ace.episodes import decisions, do_nothing
from ace.grid.fastworld import FastWorld
from ace.studies.environments.choice import VARIANTS, described, name_of, one_a_week, world_of
from ace.trained_policies import agent_of, play_tasks, write_rows

COLUMNS = ["env", "split", "week", "start", "mean_load_mw", "peak_load_mw", "renewable_share", "variant", "horizon"]
COLUMNS += ["survived_steps", "survival", "decisions", "simulator_calls", "dc_calls"]
AGREEMENT = ["env", "week", "start", "steps_grid2op", "steps_fast_world", "lost", "reward_difference"]


def measure_environment(environment, output="results", compared=20):
    """Play VARIANTS on every split of an environment; compared: do-nothing episodes that the fast world plays as well.

    Writes <output>/studies/environments/<environment>.csv, a row for each episode and variant, and
    <environment>_agreement.csv, a row for each episode that both worlds play; returns both tables. Raises ConfigError.
    """
    world = world_of(environment, "reconnect")
    episodes = [(split, index) for split, scenarios in world.sets.items() for index in one_a_week(scenarios)]
    # What takes longest first, or one process would play it while the others have nothing left to do.
    tasks = [(variant, *episode) for variant in reversed(VARIANTS) for episode in episodes]
    played = dict(zip(tasks, play_tasks(functools.partial(_play, environment), tasks, environment), strict=True))
    table = pd.DataFrame([played[variant, *each] for each in episodes for variant in VARIANTS], columns=COLUMNS)
    write_rows(table, output, "environments", environment)
    tasks = [(index,) for index in one_a_week(world.sets["train"])[:compared]]
    rows = play_tasks(functools.partial(_both_worlds, environment), tasks, f"{environment}, both worlds")
    agreement = pd.DataFrame(rows, columns=AGREEMENT)
    write_rows(agreement, output, "environments", f"{environment}_agreement")
    return table, agreement


def _play(environment, variant, split, index):
    """One episode: a dict with COLUMNS."""
    params, world = config.load(), world_of(environment, variant)
    agent = agent_of(params.settings(variant), environment, world, None)
    (result,) = evaluate.play(world, agent, split, [index])
    name = name_of(split, params.environment(environment), params.scenarios)
    about = described(world.scenario, world.env.gen_type)
    return {"env": environment, "variant": variant, **about, **result.row(), "split": name}


def _both_worlds(environment, index):
    """A training episode on both worlds, no opponent, nothing done and no line put back: a dict with AGREEMENT.

    reward_difference: the largest one of a step, of rewards in [-1, 1]; inf where the episodes are not of one length.
    """
    world = world_of(environment, "do_nothing", opponent=False)
    steps, rewards = zip(*[_rewards(each, index) for each in (world, FastWorld(world))], strict=True)
    same = len(rewards[0]) == len(rewards[1])
    difference = float(np.abs(rewards[0] - rewards[1]).max()) if same else np.inf
    about = described(world.scenario, world.env.gen_type)
    lost = steps[0] < world.spec.horizon
    return {
        "env": environment, "week": about["week"], "start": about["start"], "steps_grid2op": steps[0],
        "steps_fast_world": steps[1], "lost": lost, "reward_difference": difference,
    }  # fmt: skip


def _rewards(world, index):
    """(steps survived, rewards of all steps (T,)) of a training episode in which nothing is done."""
    start = world.reset("train", index)
    rewards = list(start.rewards)
    for decision in decisions(world, start, do_nothing):
        rewards += decision.step.rewards
    return world.t - int(world.blackout), np.array(rewards)
