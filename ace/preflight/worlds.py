"""The grids: does each environment load, and are there scenarios of every split?"""

from ace.config import ConfigError
from ace.grid.environment import World
from ace.preflight.plan import environments, fail, note, ok

OFFICIAL = (
    "the official L2RPN chronics are not read yet: scenarios are resampled from the days that Grid2Op packages, at this "
    "scale too (docs/guide.md, Paper scale, says what reading them would take)"
)


def findings(params):
    """One finding for each environment that would be played."""
    for name in environments(params):
        what = f"environment {name}"
        try:
            world = World(params.environment(name), params.scenarios, params.base.operator)
            for split in world.sets.values():
                split[len(split) - 1]  # made on demand: the last of them shows that all can be
        except ConfigError as error:
            yield fail(what, f"{error}; correct environments.{name} in params.yaml, or take it out of grid")
            continue
        except Exception as error:  # whatever Grid2Op says: the other checks go on
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            yield fail(what, f"{reason}; is grid2op installed whole?")
            continue
        days = {split: f"{len(s.days)} day{'s' if len(s.days) > 1 else ''}" for split, s in world.sets.items()}
        counts = ", ".join(f"{len(s)} {split} from {days[split]}" for split, s in world.sets.items())
        size = f"{world.env.n_sub} substations, {world.catalogue.n:,} actions"
        said = f"{size}; scenarios of {world.spec.horizon} steps: {counts}"
        if world.spec.days.train == world.spec.days.test:
            yield note(what, f"{said}; all of one packaged day, so no test of other days")
            continue
        yield ok(what, said)
    if params.scale == "paper":
        yield note("official data", OFFICIAL)
