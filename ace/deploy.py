"""Act once: a trained policy as a Grid2Op agent, in one call; by default the best one of its grid."""

from pathlib import Path

from ace import config
from ace.evaluate import GridAgent
from ace.grid.environment import World
from ace.rl.foresight import ALONE, with_foresight
from ace.rl.policy import load_policy
from ace.run_files import POLICY

RUNS = Path("results/runs")
DEPLOYED = Path("results/deployed")
"""Below it, by environment: the best policy by validation and its card (`ace/studies/deployed/show.py`)."""


def grid_agent(environment, policy=None, n_candidates=ALONE):
    """environment: a name of params.yaml; policy: a .safetensors file of a run, relative to the workspace, default: the deployed
    one.
    n_candidates: how many of the policy's most probable actions are compared by DC (`rl/foresight.py`); by default it acts alone.

    Returns a GridAgent with the attribute `env`, the Grid2Op environment with the thermal limits of params.yaml. Grid2Op's own
    Runner plays the first training scenario, with `env_seeds=[0]` under the attacks of `World.reset("train", 0)`, and two steps
    that its arrays have beyond the horizon:

        runner = Runner(**agent.env.get_params_for_runner(), agentClass=None, agentInstance=agent)
        runner.run(nb_episode=1, env_seeds=[0])

    A policy holds its sizes and weights only: features are scaled by the mean loads of the training weeks as they are now. One
    that was trained on other weeks plays too, but on other inputs: play it at the commit whose weeks it was trained on.
    Raises ConfigError, FileNotFoundError or ValueError, one line each.
    """
    params = config.load()
    spec = params.environment(environment)
    if policy is None:
        policy = DEPLOYED / environment / POLICY
        if not (config.root() / policy).is_file():
            runs = (config.root() / RUNS / environment).glob(f"*/seed=*/{POLICY}")
            there = ", ".join(sorted(str(run.relative_to(config.root())) for run in runs)) or f"a run's {POLICY}"
            raise FileNotFoundError(f"no {policy}: `dvc repro deployed@{environment}` makes it; or name another: {there}")
    folders = Path(policy).parts[-4:]  # runs/<grid>/<variant>/seed=<n> or deployed/<grid>; those above are anybody's
    other = next((name for name in params.environments if name != environment and name in folders), None)
    if other:
        raise ValueError(f"{policy} was trained on {other}, not on {environment}")
    world = World(spec, params.scenarios, params.base.operator)
    agent = with_foresight(load_policy(config.root() / policy, world.catalogue), world, n_candidates)
    agent = GridAgent(world.env.action_space, world, agent)
    agent.env = world.env
    return agent
