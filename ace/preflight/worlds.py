"""The grids: does each environment load, and are there scenarios of every split?"""

from ace.config import ConfigError
from ace.grid.environment import World
from ace.grid.scenarios import WeekScenarios
from ace.preflight.plan import fail, note, ok

OFFICIAL = (
    "the official L2RPN chronics are not read: weeks are made with RTE's generator and parameters and our dispatch solver, at "
    "this scale too (docs/guide.md, Paper scale)"
)


def findings(params):
    """One finding for each environment that would be played."""
    for name in params.grid.everywhere:
        what = f"environment {name}"
        try:
            world = World(params.environment(name), params.scenarios, params.base.operator)
            for split in world.sets.values():
                split[len(split) - 1]  # made on demand: the last of them shows that all can be
        except ConfigError as error:
            yield fail(what, f"{error} (environments.{name} in params.yaml)")
            continue
        except Exception as error:  # whatever Grid2Op says: the other checks go on
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            yield fail(what, f"{reason}; is grid2op installed whole?")
            continue
        counts = ", ".join(f"{len(each)} {split} from {source(each)}" for split, each in world.sets.items())
        size = f"{world.env.n_sub} substations, {world.catalogue.n:,} actions"
        yield ok(what, f"{size}; scenarios of {world.spec.horizon} steps: {counts}")
    if params.scale == "paper":
        yield note("official data", OFFICIAL)


def source(scenarios):
    """What the scenarios of a split are made of, as "12 weeks (development_test)" or "2 packaged days"."""
    if isinstance(scenarios, WeekScenarios):
        drawn = "" if scenarios.weeks.split == scenarios.split else f" ({scenarios.weeks.split})"
        return f"{scenarios.n_weeks} week{'s' if scenarios.n_weeks > 1 else ''}{drawn}"
    return f"{len(scenarios.days)} packaged day{'s' if len(scenarios.days) > 1 else ''}"
