"""Trained policies with foresight: a DC-predicted loading for each of their most probable actions (a declared extension).

The policy names its `most` most probable actions, and the one is played after which the loading is expected to be lowest, by
a DC model of the grid at the observed injections (`grid/dcflow.py`): a look-ahead without AC power flow and without Grid2Op's
simulation. Nothing is trained. SAC and the other learning methods that are played get the same: how many actions are
compared, or that the policy acts alone, is chosen for each method and grid on validation scenarios; the test is then played
once. Beside them stands the same look-ahead in the language model's set of actions, without a policy.
"""

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

LEARNED = ["sac", "ace", "ace_no_actor", "expert_sac", "random_refine", "frequency_refine", "sac_5k"]
"""Variants that are played where they are declared."""
WITHIN_SET = "set"
"""No policy: the actions compared are those of the language model's card."""
ALONE = 1
"""The policy's most probable action, whatever is expected of it."""
COLUMNS = ["env", "variant", "seed", "split", "most", "scenario", "horizon", "survived_steps", "survival"]
COLUMNS += ["reward", "decisions", "topology_actions", "simulator_calls", "dc_calls", "llm_calls"]


class Foresight:
    """Plays, of some actions, the one of lowest expected loading.

    dc_calls: DC power flows solved.
    """

    simulator_calls = llm_calls = 0

    def __init__(self, candidates, flow):
        """candidates: (x, legal) -> legal ids, the preferred ones first; flow: grid.dcflow.DcFlow."""
        self.candidates, self.flow = candidates, flow

    @property
    def dc_calls(self):
        return self.flow.calls

    def act(self, state, x, legal):
        """Of equals the preferred one, as where all make the grid fall apart."""
        ids = self.candidates(x, legal)
        return int(ids[self.flow.rho_max(state, ids).argmin()])


def with_foresight(deployed, world, most):
    """The agent of a trained policy, rl.policy.DeployedPolicy: Foresight among its `most` most probable actions, from 1 on;
    with 1 the policy acts alone. Few is meant: by DC alone, among all actions, harmful ones look best. Raises ValueError."""
    if not isinstance(most, int) or most < ALONE:
        raise ValueError(f"most = {most!r}: a whole number of actions, {ALONE} or more")
    if most == ALONE:
        return evaluate.Policy(deployed)
    return Foresight(lambda x, legal: most_probable(deployed.space, deployed.logits(x), legal, most), DcFlow(world))


def within_set(world, actions):
    """The agent that compares doing nothing and those of `actions`, (n,) ids, that are legal."""
    everything = [0, *(int(action) for action in actions if action)]
    legal_ones = lambda x, legal: np.array([a for a in everything if world.catalogue.is_legal(legal, a)])  # noqa: E731
    return Foresight(legal_ones, DcFlow(world))


def play_foresight(environment, most, episodes, output="results"):
    """Choose on validation scenarios, then play the test once: writes <output>/foresight/<environment>.csv, a row an
    episode of either, and returns it as a table.

    most: numbers of actions to choose from, beside the policy alone; episodes: validation scenarios, other ones than
    checkpoints were chosen by. Raises ConfigError or FileNotFoundError, one line each.
    """
    params = config.load()
    variants = [variant for variant in params.grid.variants if variant in LEARNED]
    tasks = tasks_of(params, environment, [], variants)
    actions = read_card(params.base.llm, environment, config.root())["actions"]
    tried = functools.partial(_validate, environment, [ALONE, *most], episodes)
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
    survival = tried.groupby(["variant", "most"])["survival"].mean()  # sorted by `most`, of which idxmax takes the first
    return {variant: int(each.idxmax()[1]) for variant, each in survival.groupby("variant")}


def _table(played):
    return pd.DataFrame([row for rows in played for row in rows], columns=COLUMNS)


def _validate(environment, tried, episodes, variant, seed, policy):
    """All episodes of one run with each number of actions: list of dicts with COLUMNS."""
    params, world = config.load(), world_of(environment)
    scenarios = unseen_validation(world, params.scenarios, episodes)
    world = with_validation(training_world(world), scenarios)
    unseen = range(params.scenarios.validation, len(scenarios))
    return [row for most in tried for row in _play(environment, world, "validation", unseen, variant, seed, policy, most)]


def _test(environment, variant, seed, given, most):
    world = world_of(environment)
    return _play(environment, world, "test", range(len(world.sets["test"])), variant, seed, given, most)


def _play(environment, world, split, indices, variant, seed, given, most):
    """given: a policy's path, or the actions of WITHIN_SET."""
    if variant == WITHIN_SET:
        agent = within_set(world, given)
    else:
        agent = with_foresight(load_policy(config.root() / given, world.catalogue), world, most)
    identity = {"env": environment, "variant": variant, "seed": seed, "most": most}
    return [{**identity, **result.row()} for result in evaluate.play(world, agent, split, indices)]
