"""What an environment is, as plain data: sizes, the catalogue by substation, the scenarios and their identity."""

import numpy as np

from ace.grid.scenarios import WeekScenarios

LOADS = 20
"""Scenarios of a split that its load statistics are taken from; of training weeks the first of each."""


def environment_card(world):
    """A dict for results/scenarios/<env>.json; the hashes identify every scenario of each split."""
    catalogue, spec = world.catalogue, world.spec
    by_sub = np.bincount(catalogue.sub[1:], minlength=catalogue.n_sub)
    return {
        "grid2op": spec.grid2op,
        "substations": catalogue.n_sub,
        "lines": catalogue.n_line,
        "loads": int(world.env.n_load),
        "generators": int(world.env.n_gen),
        "actions": catalogue.n - 1,
        "actions_by_substation": by_sub.tolist(),
        "hub": catalogue.hub,
        "hub_share": round(float(by_sub.max() / by_sub.sum()), 4),
        "thermal_factor": spec.thermal_factor,
        "horizon": spec.horizon,
        "opponent": spec.opponent,
        "splits": {split: _split(scenarios) for split, scenarios in world.sets.items()},
    }


def _split(scenarios):
    """Number and hash; `weeks` has the dates of the weeks and `weeks_of` their kind, `days` the numbers of the packaged days."""
    every = 1  # of the load, a scenario a week
    if isinstance(scenarios, WeekScenarios):
        every, used = len(scenarios) // scenarios.n_weeks, scenarios.weeks.about[: scenarios.n_weeks]
        source = {"weeks_of": scenarios.weeks.split, "weeks": [week["date"] for week in used]}
    else:
        source = {"days": scenarios.days.tolist()}
    load = np.concatenate([scenarios[i].load_p.sum(axis=1) for i in range(0, min(len(scenarios), LOADS * every), every)])
    stats = {"mean": load.mean(), "min": load.min(), "max": load.max()}
    load_mw = {name: round(float(value), 1) for name, value in stats.items()}
    return {"scenarios": len(scenarios), **source, "hash": scenarios.hash(), "load_mw": load_mw}
