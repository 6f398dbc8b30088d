"""The environments and their scenarios, as params.yaml has them."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ace.config.errors import Model
from ace.config.settings import Count, Positive, Share, Whole


class Days(Model):
    """Source days of the packaged chronics, numbered over all of them; disjoint."""

    train: Annotated[list[Count], Field(min_length=1)]
    validation: Annotated[list[Count], Field(min_length=1)]
    test: Annotated[list[Count], Field(min_length=1)]

    @model_validator(mode="after")
    def disjoint(self):
        for a, b in (("train", "validation"), ("train", "test"), ("validation", "test")):
            both = set(getattr(self, a)) & set(getattr(self, b))
            if both:
                raise ValueError(f"days {sorted(both)} are in {a} and in {b}; a source day belongs to one split")
        return self


class Weeks(Model):
    """The committed weeks of a grid, and what makes them."""

    path: str
    """Folder of the files, below the workspace: results/chronics/<name of the environment>."""
    year: Annotated[int, Field(ge=2000, le=2100)]
    months: Annotated[list[Annotated[int, Field(ge=1, le=12)]], Field(min_length=1)]
    """In which a week may begin: with `thermal_factor` it sets the difficulty."""
    forecast_sd: Share
    """Of log(forecast / truth) of each load and generator, one step ahead."""


class Environment(Model):
    grid2op: str
    """Name of the Grid2Op environment."""
    thermal_factor: Positive
    """Thermal limits are multiplied by this; it sets the difficulty smoothly."""
    horizon: Whole
    """Steps of an episode, 5 minutes each."""
    opponent: bool
    """Whether Grid2Op's own opponent attacks lines."""
    weeks: Weeks | None = None
    packaged_days: Annotated[list[Count], Field(default_factory=list)]
    """Of the packaged chronics, for the split `packaged`; beside `weeks` only."""
    days: Days | None = None
    """Of the packaged chronics, for all splits: of a grid that has no weeks."""

    @model_validator(mode="after")
    def one_source(self):
        if (self.weeks is None) == (self.days is None):
            raise ValueError("scenarios are from `weeks` or from `days` of what is packaged: give one of the two")
        if self.days and self.packaged_days:
            raise ValueError("packaged_days belong to a grid with weeks; `days` has the packaged ones already")
        return self

    def without_making(self):
        """As a dict, without what only the making of weeks reads: whoever plays depends on the files."""
        return self.model_dump(exclude={"weeks": {"year", "months"}})


class Resampled(Model):
    """Noise on the packaged days, shares of the value."""

    load_sd: Share
    renewable_sd: Share
    forecast_sd: Share


class Scenarios(Model):
    """How many weeks each split has: a training week gives a scenario for each day to begin with, others one. Where packaged days
    are resampled, how many scenarios."""

    seed: Count
    train: Whole
    validation: Whole
    test: Whole
    packaged: Whole
    redraws: Count
    """Other draws of the opponent, in which reconnection alone plays the test again: where it survives whatever is attacked."""
    repeats: Count
    """Test episodes that a run plays on Grid2Op too, where the fast world plays the test: they must be the same."""
    lower_limits: Annotated[float, Field(gt=0, le=1)]
    """Share of the thermal limits at which every method plays the test once more, where no opponent acts."""
    test_split: Literal["development_test", "test"]
    """Which weeks are tested on: the test weeks are made when everything else is frozen, until then others stand in."""
    resampled: Resampled


class Chronics(Model):
    """How many weeks are made for each grid, by split."""

    days: Annotated[int, Field(ge=1, le=7)]
    """Of a stretch, seven at most: `ace.chronics.seeds.plan_weeks` keeps no more of the year's end free."""
    train: Whole
    validation: Whole
    development_test: Whole
    test: Count
    """Made once `frozen_at` names a commit."""
    frozen_at: Annotated[str, Field(pattern="^([0-9a-f]{40})?$")]
    """The commit that froze code, parameters, contrasts and cells: its hash decides the test weeks. Empty: not frozen yet."""


def misfits(params):
    """What does not fit between environments, scenarios, studies and the weeks that are made: messages. params: config.Params"""
    made, used, found = params.chronics, params.scenarios, []
    for name, environment in params.environments.items():
        if environment.weeks and environment.weeks.path != (place := f"results/chronics/{name}"):
            found.append(f"environments.{name}.weeks.path = {environment.weeks.path!r}: the weeks of this grid are in {place}")
    weekly = [name for name in params.grid.environments if name in params.environments and params.environments[name].weeks]
    for name in weekly:
        horizon, steps = params.environments[name].horizon, 24 * 12 * made.days
        if horizon > steps:
            found.append(f"environments.{name}.horizon = {horizon}: chronics.days = {made.days} are {steps} steps")
    wanted = [("scenarios.train", used.train, "train"), ("scenarios.validation", used.validation, "validation")]
    wanted.append(("scenarios.test", used.test, used.test_split))
    for study in ("foresight", "rates"):
        episodes = getattr(params, study).episodes
        wanted.append((f"scenarios.validation + {study}.episodes", used.validation + episodes, "validation"))
    for key, weeks, split in wanted if weekly else []:
        if weeks > getattr(made, split):
            found.append(f"{key} = {weeks}: chronics.{split} = {getattr(made, split)}, which is how many weeks there are")
    return found
