from ace import config
from ace.evaluate import GridAgent
from ace.foresight import ALONE, with_foresight
from ace.grid.environment import World
from ace.rl.policy import load_policy

def grid_agent(environment, policy, most=ALONE):
    params = config.load()
    world = World(params.environment(environment), params.scenarios, params.base.operator)
    agent = with_foresight(load_policy(config.root() / policy, world.catalogue), world, most)
    agent = GridAgent(world.env.action_space, world, agent)
    agent.env = world.env
    return agent
