"""Act once: a trained policy as a Grid2Op agent, in one call."""

from ace import config
from ace.evaluate import GridAgent, Policy
from ace.grid.environment import World
from ace.rl.policy import load_policy


def grid_agent(environment, policy):
    """environment: a name of params.yaml; policy: a .safetensors file of a run, relative to the workspace.

    Returns a GridAgent with the attribute `env`, the Grid2Op environment that it was trained for.
    Raises ConfigError, FileNotFoundError or ValueError, one line each.
    """
    params = config.load()
    world = World(params.environment(environment), params.scenarios, params.base.operator)
    agent = GridAgent(world.env.action_space, world, Policy(load_policy(config.root() / policy, world.catalogue)))
    agent.env = world.env
    return agent
