from ace import config
from ace.evaluate import GridAgent, Policy
from ace.foresight import ALONE, Foresight
from ace.grid.dcflow import DcFlow
from ace.grid.environment import World
from ace.rl.policy import load_policy

def grid_agent(environment, policy, most=ALONE):
    params = config.load()
    world = World(params.environment(environment), params.scenarios, params.base.operator)
    deployed = load_policy(config.root() / policy, world.catalogue)
    agent = Policy(deployed) if most == ALONE else Foresight(deployed, DcFlow(world), most)
    agent = GridAgent(world.env.action_space, world, agent)
    agent.env = world.env
    return agent
