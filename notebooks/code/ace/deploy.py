from ace import config
from ace.evaluate import GridAgent, Policy
from ace.grid.environment import World
from ace.rl.policy import load_policy

def grid_agent(environment, policy):
    params = config.load()
    world = World(params.environment(environment), params.scenarios, params.base.operator)
    agent = GridAgent(world.env.action_space, world, Policy(load_policy(config.root() / policy, world.catalogue)))
    agent.env = world.env
    return agent
