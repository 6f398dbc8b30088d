"""Weeks of injections as they are committed: what they hold, how they are written, and reading them.

`ace.chronics` makes them, which needs RTE's generator; nothing here does. Everything is in whole steps of 0.1 MW, so that what is
read is what was solved; only what crosses the border of a cut region is in steps of 0.05, or the region's flows would
leave those of its case by nearly 0.1 MW.
"""

import hashlib
import json
import zlib
from dataclasses import dataclass, field
from zipfile import BadZipFile

import numpy as np

from ace.config import ConfigError, named

DAY = 288  # steps of 5 minutes

STEPS = ("load_p", "gen_p", "border_p", "border_q")
"""Arrays of a file with a week's values step by step."""

FIXED = ("gen_v", "gen_max", "border")
"""Arrays of a file that all its weeks share."""

PER_MW, BORDER_PER_MW = 10, 20
"""Whole steps in a MW: of loads and generators, and of what crosses a border."""

REACTIVE = 0.7
"""MVAr of a load per MW, as in all packaged chronics."""


@dataclass(frozen=True, slots=True)
class Week:
    """Injections of consecutive days, row t at date 00:00 plus 5 t minutes; T = 288 days + 2.

    env: Grid2Op's name of the grid; load_p, load_q: (T, n_load) MW, MVAr; gen_p: (T, n_gen) MW, the slack as solved
    gen_v: (n_gen,) kV; gen_max: (n_gen,) MW; border: loads that stand for the rest of a larger grid, empty where none do.
    """

    env: str
    split: str
    date: str
    seed: int
    load_p: np.ndarray
    load_q: np.ndarray
    gen_p: np.ndarray
    gen_v: np.ndarray
    gen_max: np.ndarray
    border: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))

    def __str__(self):
        return f"{self.env}, week of {self.date}, seed {self.seed}"

    def digest(self):
        """Identifies all that the week holds: 16 hexadecimal digits."""
        sha = hashlib.sha256(json.dumps([self.env, self.split, self.date, self.seed]).encode())
        fixed = {name: getattr(self, name).astype("<i8" if name == "border" else "<f8") for name in FIXED}
        for values in (fixed | stored(self)).values():
            sha.update(str(values.shape).encode() + values.tobytes())
        return sha.hexdigest()[:16]


class Weeks:
    """The weeks of one split of a grid, a sequence of Week: <folder>/<split>_<k>.npz with a .json beside each.

    What the .json files tell (env, steps, how many files the split has, and split, date, seed and digest of each week) is read at
    once, a week when it is asked for. Raises ConfigError, one line, where a file is missing, damaged, or not the one described.
    """

    def __init__(self, folder, split):
        self.folder, self.split, self.about, self._places, self._open = folder, split, [], [], {}
        paths = [folder / f"{split}_{k}.json" for k in range(len(list(folder.glob(f"{split}_*.json"))))]
        if not paths and split == "test":
            raise ConfigError(f"{named(folder)}: the test weeks are not made yet: set scenarios.test_split to 'development_test'")
        if not paths:
            where = named(folder)
            raise ConfigError(f"{where}: holds no weeks of the split {split!r}: git has them, `git checkout {where}`")
        for number, path in enumerate(paths):
            if not path.is_file():
                raise ConfigError(f"{named(path)}: no such file: git has it, `git checkout {named(path)}`")
            try:
                beside = json.loads(path.read_text(encoding="utf-8"))
                weeks = [{name: week[name] for name in ("split", "date", "seed", "digest")} for week in beside["weeks"]]
                said = [beside["env"], int(beside["steps"]), int(beside["files"]), *sorted({week["split"] for week in weeks})]
            except (KeyError, TypeError, ValueError, OSError) as error:
                raise ConfigError(f"{named(path)}: does not describe weeks: {' '.join(str(error).split())}") from None
            self.env, self.steps = (self.env, self.steps) if number else said[:2]
            if said != (there := [self.env, self.steps, len(paths), split]):
                where = f"{said}, and in the folder {there}: git has them, `git checkout {named(folder)}`"
                raise ConfigError(f"{named(path)}: env, steps, number of files and split are {where}")
            self.about += weeks
            self._places += [(path.with_suffix(".npz"), i) for i in range(len(weeks))]

    def __len__(self):
        return len(self.about)

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError(f"week {index} of {self.split}: there are {len(self)}")
        path, place = self._places[index]
        if path not in self._open:  # all that were asked for stay: 12 MB each at 118 substations
            self._open[path] = read_arrays(path, sum(path == other for other, _ in self._places), self.steps)
        week = decoded(self._open[path], self.env, self.about[index], place)
        if week.digest() != self.about[index]["digest"]:
            raise ConfigError(f"{named(path)}: {week}: not the week that was written, its digest is not the one noted")
        return week

    def hash(self):
        """Identifies all weeks of the split."""
        return hashlib.sha256(json.dumps([week["digest"] for week in self.about]).encode()).hexdigest()[:16]


def read_arrays(path, weeks, steps):
    """{name: array} of a file of so many weeks of so many steps, these still as differences."""
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in STEPS + FIXED}
        border, n_load = arrays["border"], arrays["load_p"].shape[1]
        for name in STEPS:
            shape = weeks, len(border) if name.startswith("border") else arrays[name].shape[1], steps
            if arrays[name].shape != shape:
                raise ValueError(f"{name} is of shape {arrays[name].shape}, by the .json beside it {shape}")
        if border.dtype.kind != "i" or not np.isin(border, range(n_load)).all():
            raise ValueError(f"border = {border.tolist()} are not numbers of its {n_load} loads")
    except FileNotFoundError:
        raise ConfigError(f"{named(path)}: no such file: git has it, `git checkout {named(path)}`") from None
    except (KeyError, IndexError, TypeError, ValueError, OSError, EOFError, BadZipFile, zlib.error) as error:
        raise ConfigError(f"{named(path)}: holds no weeks: {' '.join(str(error).split())}") from None
    return arrays


def decoded(arrays, env, about, place):
    """The Week at a place of a file's arrays. about: its split, date, seed."""
    steps = {name: _summed(arrays[name][place]) for name in STEPS}
    border = arrays["border"]
    load_p = steps["load_p"] / PER_MW
    load_q = REACTIVE * load_p
    load_p[:, border], load_q[:, border] = steps["border_p"] / BORDER_PER_MW, steps["border_q"] / BORDER_PER_MW
    return Week(
        env, about["split"], about["date"], about["seed"], load_p, load_q, steps["gen_p"] / PER_MW,
        arrays["gen_v"], arrays["gen_max"], border,
    )  # fmt: skip


def encoded(weeks):
    """What `read_arrays` reads back: of weeks of one grid and one length."""
    steps = [stored(week) for week in weeks]
    changes = {name: np.stack([_differences(each[name]) for each in steps]) for name in STEPS}
    return changes | {name: getattr(weeks[0], name) for name in FIXED}


def stored(week):
    """What is written of a week, int16: 0.1 MW, (T, n_load), 0 at the border, and (T, n_gen); 0.05 MW, MVAr, (T, n_border)."""
    inner = week.load_p.copy()
    inner[:, week.border] = 0
    scaled = {
        "load_p": inner * PER_MW, "gen_p": week.gen_p * PER_MW,
        "border_p": week.load_p[:, week.border] * BORDER_PER_MW, "border_q": week.load_q[:, week.border] * BORDER_PER_MW,
    }  # fmt: skip
    for name, values in scaled.items():
        if values.size and np.abs(values).max() > np.iinfo(np.int16).max:
            raise ConfigError(f"{week}: a value of {name} does not fit the file's integers of 16 bits")
    return {name: np.rint(values).astype(np.int16) for name, values in scaled.items()}


def _differences(values):
    """(T, n) -> (n, T): the first value, then each step's change. An int16 may wrap: the sum wraps back."""
    return np.diff(values.T, axis=1, prepend=values.dtype.type(0))


def _summed(changes):
    return np.cumsum(changes, axis=1, dtype=changes.dtype).T
