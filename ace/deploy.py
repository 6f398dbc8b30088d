"""Act once: a trained policy as a Grid2Op agent, in one call."""

from ace import config
from ace.evaluate import GridAgent
from ace.grid.environment import World
from ace.rl.foresight import ALONE, with_foresight
from ace.rl.policy import load_policy


def grid_agent(environment, policy, n_candidates=ALONE):
    """environment: a name of params.yaml; policy: a .safetensors file of a run, relative to the workspace.
    n_candidates: how many of the policy's most probable actions are compared by DC (`rl/foresight.py`); by default it acts alone.

    Returns a GridAgent with the attribute `env`, the Grid2Op environment with the thermal limits of params.yaml.
    A policy holds its sizes and weights only: features are scaled by the mean loads of the training weeks as they are now. One
    that was trained on other scenarios plays too, but on other inputs: those committed at e8e0639 would see WCCI 2020's border
    loads up to 2.7 times as large. Play a policy at the commit whose scenarios it was trained on.
    Raises ConfigError, FileNotFoundError or ValueError, one line each.
    """
    params = config.load()
    world = World(params.environment(environment), params.scenarios, params.base.operator)
    agent = with_foresight(load_policy(config.root() / policy, world.catalogue), world, n_candidates)
    agent = GridAgent(world.env.action_space, world, agent)
    agent.env = world.env
    return agent
