"""Train, validation and test scenarios, made from the chronics that Grid2Op packages.

The packaged data are one to three chronics per grid, which is no honest split. So scenarios are resampled: whole days
drawn (with replacement) from the source days of the split, joined with an hour of cross-fade at midnight, loads and
renewables disturbed by slow noise, dispatchable generation rebalanced. A source day belongs to one split only, but where a grid
is packaged with a single day: there the splits share it, and tell nothing of other days. Our
reading: the paper does not say how its scenarios were made.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from ace.config import ConfigError

DAY = 288  # steps of 5 minutes
FADE = 12  # steps of cross-fade at midnight
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Source:
    """All usable source days of an environment: arrays (days, 288, n) in MW, MVAr, kV; `chronic` (days,) where each is from."""

    load_p: np.ndarray
    load_q: np.ndarray
    gen_p: np.ndarray
    gen_v: np.ndarray
    chronic: np.ndarray
    gen_max: np.ndarray
    renewable: np.ndarray
    dispatchable: np.ndarray


@dataclass(frozen=True, slots=True)
class Scenario:
    """Injections of one episode: rows are steps, one more than the horizon; row t of a forecast is for step t + 1."""

    split: str
    index: int
    days: tuple
    load_p: np.ndarray
    load_q: np.ndarray
    gen_p: np.ndarray
    gen_v: np.ndarray
    next_load_p: np.ndarray
    next_load_q: np.ndarray
    next_gen_p: np.ndarray

    @property
    def arrays(self):
        return (self.load_p, self.load_q, self.gen_p, self.gen_v, self.next_load_p, self.next_load_q, self.next_gen_p)


def read_source(env):
    """Cut the packaged chronics of a Grid2Op environment into days. Raises ConfigError where none holds a whole one."""
    parts, chronic, lengths = {"load_p": [], "load_q": [], "prod_p": [], "prod_v": []}, [], []
    for number in range(len(env.chronics_handler.subpaths)):
        env.set_id(number)
        obs = env.reset()
        data = env.chronics_handler.real_data.data
        lengths.append(len(data.load_p))
        days = (lengths[-1] - 1) // DAY
        if not days:
            continue
        chronic += [number] * days
        for name, rows in parts.items():
            values = getattr(data, name)
            if values is None:  # no voltage set points in the files: the grid's own, as they stand after the reset
                values = np.tile(obs.gen_v, (len(data.load_p), 1))
            rows.append(np.asarray(values, dtype=float)[1 : 1 + days * DAY].reshape(days, DAY, -1))
    if not chronic:
        raise ConfigError(
            f"Grid2Op environment {env.name!r}: its longest chronic has {max(lengths)} rows, and at least {DAY + 1} are needed: "
            f"one to begin with, then a day of {DAY} steps"
        )
    arrays = [np.concatenate(parts[name]) for name in ("load_p", "load_q", "prod_p", "prod_v")]
    return Source(
        *arrays, np.array(chronic), *(np.asarray(a) for a in (env.gen_pmax, env.gen_renewable, env.gen_redispatchable))
    )


class ScenarioSet:
    """The scenarios of one split: item i is made on demand, always the same for the same parameters.

    environment: config.Environment; scenarios: config.Scenarios
    """

    def __init__(self, source, environment, scenarios, split):
        self.source, self.horizon, self.split = source, environment.horizon, split
        self.seed, self.noise, self.n = scenarios.seed, scenarios, getattr(scenarios, split)
        self.days = np.array(getattr(environment.days, split))
        if not len(self.days) or self.days.max() >= len(source.chronic):
            raise ValueError(
                f"split {split!r} wants days {self.days.tolist()}, the chronics have 0 to {len(source.chronic) - 1}"
            )
        if environment.days.train == environment.days.test and len(source.chronic) > 1:
            raise ValueError(f"all splits name day 0, as where one day is packaged; here are {len(source.chronic)}")

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if not 0 <= index < self.n:
            raise IndexError(f"{self.split} scenario {index}: there are {self.n}")
        source, steps = self.source, self.horizon + 2
        rng = np.random.default_rng([self.seed, SPLITS.index(self.split), index])
        # Days of one scenario come from one chronic: no August morning after a February night.
        chronic = source.chronic[rng.choice(self.days)]
        pool = self.days[source.chronic[self.days] == chronic]
        days = rng.choice(pool, size=-(-steps // DAY))
        load_p, load_q, gen_p, gen_v = (
            _join(values, days)[:steps] for values in (source.load_p, source.load_q, source.gen_p, source.gen_v)
        )
        n_load, n_gen = load_p.shape[1], gen_p.shape[1]
        sd = self.noise.load_sd / np.sqrt(2)
        load_factor = 1 + _ar1(rng, steps, 1, 0.995, sd) + _ar1(rng, steps, n_load, 0.98, sd)
        renewable_factor = np.exp(_ar1(rng, steps, n_gen, 0.98, self.noise.renewable_sd))
        new_load_p, new_load_q = load_p * load_factor, load_q * load_factor
        new_gen_p = np.where(source.renewable, np.minimum(gen_p * renewable_factor, source.gen_max), gen_p)
        need = (new_load_p - load_p).sum(axis=1) - (new_gen_p - gen_p).sum(axis=1)
        new_gen_p = _rebalance(new_gen_p, need, source)
        # The forecast for the next step: the truth with a small error, again in balance.
        next_p, next_q, next_gen = (np.roll(a, -1, axis=0) for a in (new_load_p, new_load_q, new_gen_p))
        error = 1 + rng.normal(0, self.noise.forecast_sd, (steps, n_load))
        next_gen = _rebalance(next_gen, (next_p * (error - 1)).sum(axis=1), source)
        arrays = (new_load_p, new_load_q, new_gen_p, gen_v, next_p * error, next_q * error, next_gen)
        return Scenario(self.split, index, tuple(days.tolist()), *(np.round(a, 2).astype(np.float32) for a in arrays))

    def hash(self):
        """Identifies the whole set; stored in every manifest."""
        sha = hashlib.sha256()
        for index in range(self.n):
            for values in self[index].arrays:
                sha.update(np.ascontiguousarray(values).tobytes())
        return sha.hexdigest()[:16]


def _join(values, days):
    """Days in sequence with a cross-fade into each next day's first hour: (len(days) * 288, n)."""
    joined = values[days].copy()
    weight = ((np.arange(FADE) + 1) / (FADE + 1))[:, None]
    for i in range(1, len(days)):
        joined[i, :FADE] = weight * joined[i, :FADE] + (1 - weight) * joined[i - 1, -1]
    return joined.reshape(-1, values.shape[-1])


def _ar1(rng, steps, n, phi, sd):
    """Stationary AR(1) noise with standard deviation sd: (steps, n)."""
    shocks = rng.normal(0, sd * np.sqrt(1 - phi**2), (steps, n))
    shocks[0] = rng.normal(0, sd, n)
    return lfilter([1.0], [1.0, -phi], shocks, axis=0)


def _rebalance(gen_p, need, source):
    """Let dispatchable units take `need` MW (T,) in proportion to their room, within their limits: (T, n_gen)."""
    up = np.where(source.dispatchable, source.gen_max - gen_p, 0).clip(min=0)
    down = np.where(source.dispatchable, gen_p, 0).clip(min=0)
    room = np.where(need[:, None] > 0, up, down)
    share = np.clip(need / np.maximum(room.sum(axis=1), 1e-6), -1, 1)
    return gen_p + share[:, None] * room
