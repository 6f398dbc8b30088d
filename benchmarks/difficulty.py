"""Evidence for the thermal factors: how hard the training weeks of an environment are at several of them.

    python -m benchmarks.difficulty wcci2020 0.80,0.81,0.82,0.83
    python -m benchmarks.difficulty neurips2020 0.85 no_opponent

One episode of each training week, by reconnection alone and by greedy look-ahead; on the fast world where no opponent acts, else
on Grid2Op. Prints a line a factor and writes results/difficulty.csv: env, thermal_factor, opponent (whether one acts), weeks, and
in percent reconnect and greedy (mean survival), easy_share and hopeless_share (of the weeks). Other rows are kept. One to two
minutes a factor.
"""

import sys
import warnings

import numpy as np
import pandas as pd

from ace import config, evaluate
from ace.grid.environment import World
from ace.grid.fastworld import FastWorld
from ace.report.formatting import write_csv
from ace.studies.environments.choice import HOUR, one_a_week
from ace.trained_policies import agent_of

KEYS = ["env", "thermal_factor", "opponent"]


def row(params, environment, thermal_factor, opponent):
    """A dict with the columns of the CSV. opponent: whether it acts where the environment has one."""
    spec = params.environment(environment)
    spec = spec.model_copy(update={"thermal_factor": thermal_factor, "opponent": spec.opponent and opponent})
    survived = {}
    for variant in ("reconnect", "greedy"):
        settings = params.settings(variant)
        world = World(spec, params.scenarios, settings.operator)
        agent, weeks = agent_of(settings, environment, world, None), one_a_week(world.sets["train"])
        played = evaluate.play(world if spec.opponent else FastWorld(world), agent, "train", weeks)
        survived[variant] = np.array([result.survived_steps for result in played])
    means = {variant: 100 * steps.mean() / spec.horizon for variant, steps in survived.items()}
    easy, hopeless = survived["reconnect"] >= spec.horizon, survived["greedy"] < HOUR
    shares = {"easy_share": 100 * easy.mean(), "hopeless_share": 100 * hopeless.mean()}
    return dict(zip(KEYS, (environment, thermal_factor, spec.opponent), strict=True)) | {"weeks": len(weeks)} | means | shares


def main(environment, factors, opponent=""):
    warnings.simplefilter("ignore")
    params, path = config.load(), config.root() / "results" / "difficulty.csv"
    for factor in map(float, factors.split(",")):
        new = pd.DataFrame([row(params, environment, factor, opponent != "no_opponent")]).round(2)
        print(new.to_string(index=False, header=False), flush=True)
        table = pd.concat([pd.read_csv(path), new]) if path.is_file() else new
        write_csv(table.drop_duplicates(KEYS, keep="last").sort_values(KEYS), path)


if __name__ == "__main__":
    main(*sys.argv[1:])
