"""Makes the weeks that an environment of params.yaml declares, and writes the files that `ace.grid.weeks` reads.

python -m ace.chronics.make     dates and seeds of the test weeks, as they follow from the freeze's commit and as they are in git
"""

import os
import re
import shutil
import sys

from tqdm import tqdm

from ace.chronics.errors import ChronicsError
from ace.chronics.seeds import check_disjoint, plan_test_weeks, plan_weeks
from ace.chronics.weeks import WeekMaker, write_weeks
from ace.config import ConfigError, load, root
from ace.config.errors import exit_code
from ace.grid.weeks import Weeks

DRAWN = ("train", "validation", "development_test")
"""The splits that are made at any time; the test weeks are once `chronics.frozen_at` names a commit, from which they follow."""

A_FILE = 20
"""Weeks in a file: 4 MB at 118 substations."""


def planned(params, name):
    """{split: [Plan]} of an environment. Raises ConfigError where it has no weeks, ChronicsError where two would be the same."""
    environment = params.environment(name)
    if environment.weeks is None:
        raise ConfigError(
            f"params.yaml: environments.{name} has no `weeks`: it is played on the days that Grid2Op packages"
        )
    weeks, chronics = environment.weeks, params.chronics
    year = {"year": weeks.year, "months": weeks.months}
    plans = {split: plan_weeks(environment.grid2op, split, getattr(chronics, split), **year) for split in DRAWN}
    others = [plan for split in plans.values() for plan in split]
    check_disjoint(others)
    if chronics.frozen_at:
        plans["test"] = plan_test_weeks(environment.grid2op, chronics.frozen_at, others, chronics.test, **year)
    return plans


def make_weeks(params, name, folder=None):
    """Make all weeks of an environment and write <folder>/<split>_<k>.{npz,json}. folder: default that of params.yaml.

    What lay in the folder stays until every week is made; files of other splits and other names stay in any case. Returns the
    folder. Raises ChronicsError where the generator is missing or a week cannot be made.
    """
    plans = planned(params, name)
    environment = params.environment(name)
    folder = folder or root() / environment.weeks.path
    maker, beside = WeekMaker(environment.grid2op), folder.with_name(f"{folder.name}.making")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        with tqdm(total=sum(map(len, plans.values())), desc=f"weeks of {name}", unit="week") as bar:
            for split, of_split in plans.items():
                firsts = range(0, len(of_split), A_FILE)
                for number, first in enumerate(firsts):
                    weeks = []
                    for plan in of_split[first : first + A_FILE]:
                        weeks.append(maker.week(plan.split, plan.date, plan.seed, params.chronics.days))
                        bar.update()
                    write_weeks(beside / f"{split}_{number}.npz", weeks, len(firsts))
        _replace(folder, beside, plans)
    finally:  # a process that is killed outright leaves it: git ignores it, and the next call clears it
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _replace(folder, beside, splits):
    """The files of `beside` for those of the splits in `folder`. Killed half way it leaves too few .json, which Weeks refuses."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in list(folder.iterdir()):
        if re.fullmatch(rf"({'|'.join(splits)})_\d+\.(npz|json)", path.name):
            path.unlink()
    for path in sorted(beside.iterdir(), key=lambda path: path.suffix, reverse=True):  # .json last
        os.replace(path, folder / path.name)


def show_test_weeks(params):
    """Prints both; returns an exit code, 1 where they differ. Raises ConfigError while nothing is frozen."""
    commit, differ = params.chronics.frozen_at, []
    if not commit:
        raise ConfigError("params.yaml: chronics.frozen_at is empty: nothing is frozen, so there are no test weeks yet")
    for name in params.grid.environments:
        derived = [(plan.date, plan.seed) for plan in planned(params, name)["test"]]
        made = [
            (week["date"], week["seed"]) for week in Weeks(root() / params.environment(name).weeks.path, "test").about
        ]
        print(f"{name}, test weeks that follow from {commit} | {'the same' if derived == made else 'OTHERS'} in git")
        for both in zip(derived, made, strict=False):
            print("  " + " | ".join(f"{date} {seed:15d}" for date, seed in both))
        differ += [name] * (derived != made)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(exit_code(lambda: show_test_weeks(load()), errors=(ConfigError, ChronicsError)))
