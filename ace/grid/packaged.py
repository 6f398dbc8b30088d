"""Scenarios made from the chronics that Grid2Op packages: the split `packaged`, and all splits of a grid without weeks.

The packaged data are one to nine days per grid, so scenarios are resampled: whole days drawn (with replacement) from the
source days of the split, joined with an hour of cross-fade at midnight, loads and renewables disturbed by slow noise,
dispatchable generation rebalanced. `packaged` draws as the test of the first edition of this artifact did.
"""

import hashlib
import warnings
from dataclasses import dataclass

import grid2op
import numpy as np
from lightsim2grid import LightSimBackend
from scipy.signal import lfilter

from ace.config import ConfigError
from ace.grid.scenarios import Scenario, rounded
from ace.grid.weeks import DAY

FADE = 12  # steps of cross-fade at midnight
STREAM = {"train": 0, "validation": 1, "test": 2, "packaged": 2}
"""Of each split's random numbers."""


@dataclass(frozen=True, slots=True)
class Source:
    """All usable source days of an environment: arrays (days, 288, n) in MW, MVAr, kV; `chronic` (days,) where each is from.

    env: Grid2Op's name of it
    """

    env: str
    load_p: np.ndarray
    load_q: np.ndarray
    gen_p: np.ndarray
    gen_v: np.ndarray
    chronic: np.ndarray
    gen_max: np.ndarray
    renewable: np.ndarray
    dispatchable: np.ndarray


def read_source(env, name):
    """Cut the packaged chronics of a Grid2Op environment into days. Raises ConfigError, with its name, where there is none."""
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
        for kind, rows in parts.items():
            values = getattr(data, kind)
            if values is None:  # no voltage set points in the files: the grid's own, as they stand after the reset
                values = np.tile(obs.gen_v, (len(data.load_p), 1))
            rows.append(np.asarray(values, dtype=float)[1 : 1 + days * DAY].reshape(days, DAY, -1))
    if not chronic:
        raise ConfigError(
            f"Grid2Op environment {name!r}: its longest chronic has {max(lengths)} rows, and at least {DAY + 1} are needed: "
            f"one to begin with, then a day of {DAY} steps"
        )
    arrays = [np.concatenate(rows) for rows in parts.values()]
    return Source(
        name, *arrays, np.array(chronic), *(np.asarray(a) for a in (env.gen_pmax, env.gen_renewable, env.gen_redispatchable))
    )


def make_env(name, **more):
    """The Grid2Op environment of that name on lightsim2grid. more: for `grid2op.make`. Raises ConfigError where there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return grid2op.make(name, test=True, backend=LightSimBackend(), **more)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"Grid2Op has no environment {name!r} packaged: {reason}") from None


def read_packaged(name):
    """The Source of a Grid2Op environment's name. Raises ConfigError where there is none."""
    env = make_env(name)
    try:
        return read_source(env, name)
    finally:
        env.close()


class PackagedScenarios:
    """The scenarios of one split: item i is made on demand, always the same for the same parameters.

    read: () -> Source; days: of the source, numbered over its chronics; n: scenarios; noise: config.Scenarios
    """

    def __init__(self, read, split, days, n, horizon, noise):
        self.read, self.split, self.days, self.n, self.horizon, self.noise = read, split, np.array(days), n, horizon, noise

    def __len__(self):
        return self.n

    @property
    def source(self):
        """Raises ConfigError where it does not have the days."""
        source = self.read()
        if self.days.max() >= len(source.chronic):
            key = "packaged_days" if self.split == "packaged" else f"days.{self.split}"
            there = f"{source.env} has the packaged days 0 to {len(source.chronic) - 1}"
            raise ConfigError(f"params.yaml: environments: {key} = {self.days.tolist()}: {there}")
        return source

    def __getitem__(self, index):
        if not 0 <= index < self.n:
            raise IndexError(f"{self.split} scenario {index}: there are {self.n}")
        source, steps = self.source, self.horizon + 2
        rng = np.random.default_rng([self.noise.seed, STREAM[self.split], index])
        # Days of one scenario come from one chronic: no August morning after a February night.
        chronic = source.chronic[rng.choice(self.days)]
        pool = self.days[source.chronic[self.days] == chronic]
        days = rng.choice(pool, size=-(-steps // DAY))
        load_p, load_q, gen_p, gen_v = (
            _join(values, days)[:steps] for values in (source.load_p, source.load_q, source.gen_p, source.gen_v)
        )
        n_load, n_gen = load_p.shape[1], gen_p.shape[1]
        noise = self.noise.resampled
        sd = noise.load_sd / np.sqrt(2)
        load_factor = 1 + _ar1(rng, steps, 1, 0.995, sd) + _ar1(rng, steps, n_load, 0.98, sd)
        renewable_factor = np.exp(_ar1(rng, steps, n_gen, 0.98, noise.renewable_sd))
        new_load_p, new_load_q = load_p * load_factor, load_q * load_factor
        new_gen_p = np.where(source.renewable, np.minimum(gen_p * renewable_factor, source.gen_max), gen_p)
        need = (new_load_p - load_p).sum(axis=1) - (new_gen_p - gen_p).sum(axis=1)
        new_gen_p = _rebalance(new_gen_p, need, source)
        # The forecast for the next step: the truth with a small error, again in balance.
        next_p, next_q, next_gen = (np.roll(a, -1, axis=0) for a in (new_load_p, new_load_q, new_gen_p))
        error = 1 + rng.normal(0, noise.forecast_sd, (steps, n_load))
        next_gen = _rebalance(next_gen, (next_p * (error - 1)).sum(axis=1), source)
        arrays = (new_load_p, new_load_q, new_gen_p, gen_v, next_p * error, next_q * error, next_gen)
        return Scenario(self.split, index, tuple(days.tolist()), *rounded(*arrays))

    def load_means(self):
        """(n_load,) mean |MW| of the source days."""
        return np.abs(self.source.load_p[self.days]).mean(axis=(0, 1))

    @property
    def gen_max(self):
        return self.source.gen_max

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
