"""The scenarios of an environment: what its episodes are made of, by split.

A scenario is a stretch of consecutive days of one week (`ace.grid.weeks`), as it stands, with a forecast for the next step.
A week belongs to one split. Validation and test scenarios have a week each; a training week gives one scenario for each day that
an episode can begin with. The split `packaged`, and all splits of a grid without weeks, come from the few days that
Grid2Op packages (`ace.grid.packaged`). Our reading: the paper does not say how its scenarios were made.
"""

import hashlib
import json
from dataclasses import dataclass, replace

import numpy as np

from ace.config import ConfigError, named
from ace.grid.weeks import DAY

SPLITS = ("train", "validation", "test", "packaged")
SALTS = 200
DRAWS_APART = 1000
"""More than a split has scenarios: redrawn numbers are no other scenario's."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Injections of one episode: rows are steps, two more than the horizon; row t of a forecast is for step t + 1.

    origin: where it is from, (date of the week, number of its first day) or the numbers of the packaged days
    load_p, load_q, gen_p, gen_v: (T, n) MW, MVAr, MW, kV, float32
    salt: below SALTS, of the seed of Grid2Op's own random numbers, the opponent's among them
    """

    split: str
    index: int
    origin: tuple
    load_p: np.ndarray
    load_q: np.ndarray
    gen_p: np.ndarray
    gen_v: np.ndarray
    next_load_p: np.ndarray
    next_load_q: np.ndarray
    next_gen_p: np.ndarray
    salt: int = 0

    @property
    def arrays(self):
        return (self.load_p, self.load_q, self.gen_p, self.gen_v, self.next_load_p, self.next_load_q, self.next_gen_p)


def rounded(*arrays):
    """As scenarios have them: 0.01 MW, float32."""
    return (np.round(values, 2).astype(np.float32) for values in arrays)


class WeekScenarios:
    """The scenarios of one split, made on demand, always the same for the same parameters.

    weeks: grid.weeks.Weeks; n: how many of them, the first ones, which are spread over the year; horizon: steps
    forecast_sd: of log(forecast / truth)
    """

    def __init__(self, weeks, split, n, horizon, seed, forecast_sd):
        self.weeks, self.split, self.n_weeks, self.horizon = weeks, split, n, horizon
        self.seed, self.forecast_sd = seed, forecast_sd
        self.salt = int(weeks.hash(), 16) % SALTS if weeks.split == "test" else 0
        """Of all random numbers of a test scenario: that they, too, follow from the freeze, as the weeks do."""
        self.starts = (weeks.steps - horizon - 2) // DAY + 1
        """Days of a week that an episode can begin with."""
        if self.starts < 1:
            there = f"the weeks of {named(weeks.folder)} have {weeks.steps - 2} steps"
            raise ConfigError(f"params.yaml: environments: horizon = {horizon}: {there}")
        if n > len(weeks):
            there = f"{named(weeks.folder)} holds {len(weeks)} weeks of the split {weeks.split!r}"
            raise ConfigError(f"params.yaml: scenarios.{split} = {n}: {there}")

    def __len__(self):
        return self.n_weeks * self.starts if self.split == "train" else self.n_weeks

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError(f"{self.split} scenario {index}: there are {len(self)}")
        rng = np.random.default_rng([self.seed, SPLITS.index(self.split), index, *([self.salt] if self.salt else [])])
        number, start = divmod(index, self.starts) if self.split == "train" else (index, int(rng.integers(self.starts)))
        week, rows = self.weeks[number], slice(start * DAY, start * DAY + self.horizon + 2)
        truth = week.load_p[rows], week.load_q[rows], week.gen_p[rows]
        ahead = forecasts(*truth, week.gen_max, self.forecast_sd, rng)
        kv = np.tile(week.gen_v, (len(truth[0]), 1))
        return Scenario(self.split, index, (week.date, start), *rounded(*truth, kv, *ahead), self.salt)

    def load_means(self):
        """(n_load,) mean |MW| of all weeks there are, however few are used: the scale of features is the grid's own."""
        return np.mean([np.abs(week.load_p).mean(axis=0) for week in self.weeks], axis=0)

    @property
    def gen_max(self):
        return self.weeks[0].gen_max

    def hash(self):
        """Identifies the whole set; stored in every manifest."""
        said = [self.weeks.hash(), self.split, self.n_weeks, self.horizon, self.seed, self.forecast_sd]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


class Redrawn:
    """The scenarios of a set under another draw of the opponent, `draw` = 1, 2, ... (0: the usual one); all else is the same."""

    def __init__(self, scenarios, draw):
        self.scenarios, self.draw = scenarios, draw

    def __len__(self):
        return len(self.scenarios)

    def __getitem__(self, index):
        scenario = self.scenarios[index]
        return replace(scenario, index=scenario.index + DRAWS_APART * self.draw)  # its number seeds the opponent


class Beyond:
    """The scenarios of a set from number `first` on, as a set; each keeps its own number, and with it its opponent's draws."""

    def __init__(self, scenarios, first):
        self.scenarios, self.first = scenarios, first

    def __len__(self):
        return len(self.scenarios) - self.first

    def __getitem__(self, index):
        return self.scenarios[self.first + index]


def forecasts(load_p, load_q, gen_p, gen_max, sd, rng):
    """(next_load_p, next_load_q, next_gen_p): row t is what is forecast at t for t + 1; the last row has none and repeats.

    MW and MVAr of each load and MW of each generator have lognormal errors of their own, renewables included: on no grid quite as
    in the packaged forecasts. What is then out of balance falls to the slack.

    load_p, load_q: (T, n_load) MW, MVAr; gen_p: (T, n_gen) MW; gen_max: (n_gen,) MW
    sd: of log(forecast / truth), by grid the one at which the error in rho_max is the packaged one's (`ace.chronics.forecast`)
    """
    ahead = np.minimum(np.arange(1, len(load_p) + 1), len(load_p) - 1)

    def disturbed(values):
        return values * np.exp(rng.normal(0.0, sd, values.shape))

    return disturbed(load_p[ahead]), disturbed(load_q[ahead]), np.minimum(disturbed(gen_p[ahead]), gen_max)
