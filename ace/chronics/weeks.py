"""Weeks of injections: made from (grid, date, seed), checked, written and read.

Everything is in whole steps of 0.1 MW from the start, so that what is written is what was solved; only what crosses the
border of a cut region is in steps of 0.05, or the region's flows would leave those of the case by nearly 0.1 MW.
"""

import hashlib
import importlib.metadata
import json
import zlib
from dataclasses import dataclass, field
from zipfile import BadZipFile

import numpy as np

from ace.chronics.cases import GENERATOR_VERSION, grid2op_env, grid_of, read_case
from ace.chronics.dispatch import economic_dispatch, units_of
from ace.chronics.errors import ChronicsError
from ace.chronics.injections import index_of, injections
from ace.chronics.losses import REACTIVE, ac_pass
from ace.chronics.region import Region
from ace.grid.powerflow import PowerFlow

STEPS = ("load_p", "gen_p", "border_p", "border_q")
"""Arrays of a file with a week's values step by step."""

PER_MW, BORDER_PER_MW = 10, 20
"""Whole steps in a MW: of loads and generators, and of what crosses a border."""

STEPS_PER_HOUR = 12

PASSES = 3
"""Dispatch with the losses of the pass before, then AC. What the losses still move by falls to the slack: up to 8 MW in one
step after the second pass at 118 substations, which broke its ramp in one of sixteen weeks; 0.7 MW after the third."""

NOTICE = (
    "Injections made with ChroniX2Grid, copyright RTE (https://www.rte-france.com), Mozilla Public License 2.0, and the case "
    "files that it and Grid2Op (RTE, Mozilla Public License 2.0) ship; dispatched and solved by this project. "
    "They are not the official scenarios of any competition."
)


@dataclass(frozen=True, slots=True)
class Week:
    """Injections of consecutive days, row t at date 00:00 plus 5 t minutes; T = 288 days + 2.

    env: Grid2Op's name of the grid; load_p, load_q: (T, n_load) MW, MVAr; gen_p: (T, n_gen) MW, the slack as solved
    gen_v: (n_gen,) kV; border: loads of the grid that stand for the rest of a larger one, empty where none do.
    """

    env: str
    split: str
    date: str
    seed: int
    load_p: np.ndarray
    load_q: np.ndarray
    gen_p: np.ndarray
    gen_v: np.ndarray
    border: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))

    def __str__(self):
        return f"{self.env}, week of {self.date}, seed {self.seed}"

    def digest(self):
        """Identifies the injections: 16 hexadecimal digits."""
        sha = hashlib.sha256()
        for values in _stored(self).values():
            sha.update(values.tobytes())
        return sha.hexdigest()[:16]


class WeekMaker:
    """Makes the weeks of one grid. Needs the generator; every error is a ChronicsError of one line."""

    def __init__(self, env_name):
        self.grid = grid_of(env_name)
        self.case = read_case(self.grid.case)
        self.case_env = grid2op_env(self.case.folder)
        order = list(self.case_env.name_load), list(self.case_env.name_gen)
        if order != (list(self.case.loads["name"]), list(self.case.gens["name"])):
            raise ChronicsError(
                f"case {self.case.name}: its tables and its grid do not list the same loads and generators"
            )
        self.env = grid2op_env(env_name) if self.grid.cut else self.case_env
        self.region = Region(self.case_env, self.env) if self.grid.cut else None
        self.flow = PowerFlow(self.case_env)
        self.env_flow = PowerFlow(self.env) if self.grid.cut else self.flow

    def week(self, split, date, seed, days=7):
        """A Week within limits and, every hour, in balance. date: "2012-03-05", its first day; seed: non-negative."""
        try:
            load_p, gen_p, flows = self.solve_case(date, seed, days)
        except ChronicsError as error:
            raise ChronicsError(f"{self.grid.env}, week of {date}, seed {seed}: {error}") from None
        week = self.cut(split, date, seed, load_p, gen_p, flows)
        check_limits(week, self.env)
        check_balance(week, self.env_flow, every=STEPS_PER_HOUR)
        return week

    def cut(self, split, date, seed, load_p, gen_p, flows):
        """What `solve_case` returned as the Week of the grid: all of it, or the region that the grid is."""
        gen_v = self.case.gen_v
        if self.region is None:
            return Week(self.grid.env, split, date, seed, load_p, REACTIVE * load_p, gen_p, gen_v)
        cut_p, cut_q = self.region.loads_of(load_p, flows)
        border, gens = self.region.border, self.region.gens
        for values in (cut_p, cut_q):
            values[:, border] = np.rint(values[:, border] * BORDER_PER_MW) / BORDER_PER_MW
        return Week(self.grid.env, split, date, seed, cut_p, cut_q, gen_p[:, gens], gen_v[gens], border)

    def solve_case(self, date, seed, days):
        """The stretch on the grid of the case: load_p (T, n_load), gen_p (T, n_gen) MW, and the Flows of its intact grid."""
        load_p, there = injections(self.case, date, seed, days)
        load_p = load_p.round(1)
        units = units_of(self.case, index_of(date, days))
        kinds = self.case.gens["type"].to_numpy()
        by_kind = [np.flatnonzero(kinds == kind) for kind in ("solar", "wind")]
        total = np.column_stack([there[:, members].sum(axis=1) for members in by_kind])
        demand = load_p.sum(axis=1)
        losses = demand * 0.01 * float(self.case.dispatch["losses_pct"])
        for _ in range(PASSES):
            given, used = economic_dispatch(demand + losses, total, units)
            gen_p = np.zeros_like(there)
            gen_p[:, units.index] = given
            for members, there_mw, used_mw in zip(by_kind, total.T, used.T, strict=True):
                gen_p[:, members] = there[:, members] * (used_mw / np.maximum(there_mw, 1e-9))[:, None]
            gen_p = gen_p.round(1)
            flows = ac_pass(self.flow, load_p, REACTIVE * load_p, gen_p, self.case.gen_v)
            losses = flows.losses
        slack = self.flow.slack_gens
        gen_p[:, slack] = flows.gen_p[:, slack].round(1)
        return load_p, gen_p, flows


def check_limits(week, env):
    """Raises ChronicsError, naming step and generator, where one breaks its limits or ramps. env: Grid2Op, of the grid."""
    names, p = env.name_gen, week.gen_p
    low, high = np.asarray(env.gen_pmin, dtype=float), np.asarray(env.gen_pmax, dtype=float)
    _first(week, names, p > high + 1e-4, lambda t, g: f"gives {p[t, g]:.1f} MW, its limit is {high[g]:.1f}")
    _first(week, names, p < low - 1e-4, lambda t, g: f"gives {p[t, g]:.1f} MW, it must give at least {low[g]:.1f}")
    change = np.diff(p, axis=0)
    up, down = np.asarray(env.gen_max_ramp_up, dtype=float), np.asarray(env.gen_max_ramp_down, dtype=float)
    fast = ((change > up + 1e-4) | (change < -down - 1e-4)) & np.asarray(env.gen_redispatchable, dtype=bool)
    _first(
        week, names, fast,
        lambda t, g: f"moves by {change[t, g]:+.1f} MW to the next step, its ramps are {up[g]:.1f} and {-down[g]:.1f}",
    )  # fmt: skip


def check_balance(week, flow, tolerance_mw=0.5, every=1):
    """Largest difference in MW between what the slack has to give in the intact grid and what the week says it gives.

    flow: PowerFlow of the grid. Raises ChronicsError where it is over the tolerance, or where a power flow diverges.
    """
    rows = slice(None, None, every)
    try:
        flows = ac_pass(flow, week.load_p[rows], week.load_q[rows], week.gen_p[rows], week.gen_v)
    except ChronicsError as error:
        raise ChronicsError(f"{week}: {error} of every {every}" if every > 1 else f"{week}: {error}") from None
    gap = np.abs(flows.gen_p - week.gen_p[rows]).max(axis=1)
    step = int(gap.argmax())
    if gap[step] > tolerance_mw:
        raise ChronicsError(f"{week}: out of balance by {gap[step]:.2f} MW at step {step * every}")
    return float(gap[step])


def write_weeks(path, weeks):
    """Write weeks of one grid to `path` (.npz), and where they come from to a .json beside it. Same weeks, same bytes.

    int16 of 0.1 MW (border: 0.05), as differences along time, compressed.
    """
    if len({week.env for week in weeks}) != 1 or len({week.load_p.shape for week in weeks}) != 1:
        raise ChronicsError(f"{path}: the weeks of one file are of one grid and of one length")
    first = weeks[0]
    stored = [_stored(week) for week in weeks]
    changes = {name: np.stack([_differences(each[name]) for each in stored]) for name in stored[0]}
    origin = {"date": np.array([w.date for w in weeks]), "seed": np.array([w.seed for w in weeks], dtype=np.int64)}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path, **changes, **origin, split=np.array([w.split for w in weeks]), env=np.array(first.env),
        gen_v=first.gen_v, border=first.border,
    )  # fmt: skip
    beside = {
        "env": first.env, "case": grid_of(first.env).case, "notice": NOTICE, "steps": len(first.load_p),
        "versions": _versions(),
        "weeks": [{"split": w.split, "date": w.date, "seed": w.seed, "digest": w.digest()} for w in weeks],
    }  # fmt: skip
    path.with_suffix(".json").write_text(json.dumps(beside, indent=1) + "\n")


class WeekFile:
    """The weeks of a file, decoded one at a time (20 MB each at 118 substations): a sequence of Week.

    split, date, seed: of each, in the order of the file. Raises ChronicsError where the file, or the .json beside it, is missing
    or no such file; reading a week raises it where the week is not the one whose digest the .json has.
    """

    def __init__(self, path):
        try:
            with np.load(path) as arrays:
                self._arrays = dict(arrays)
            self.env = str(self._arrays["env"])
            self.split, self.date, self.seed = (self._arrays[name].tolist() for name in ("split", "date", "seed"))
            self._arrays["gen_v"], self._arrays["border"]  # a KeyError where one is missing
            sizes = {len(self._arrays[name]) for name in (*STEPS, "split", "date", "seed")}
        except FileNotFoundError:
            raise ChronicsError(f"{path}: there are no weeks of this grid") from None
        except (KeyError, TypeError, ValueError, OSError, EOFError, BadZipFile, zlib.error) as error:
            raise ChronicsError(f"{path}: holds no weeks: {' '.join(str(error).split())}") from None
        beside = path.with_suffix(".json")
        try:
            self._digests = [each["digest"] for each in json.loads(beside.read_text())["weeks"]]
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise ChronicsError(f"{beside}: has no digests of the weeks: {' '.join(str(error).split())}") from None
        if sizes != {len(self._digests)}:
            raise ChronicsError(f"{path}: holds no weeks: its arrays and the .json beside it are of different numbers of weeks")

    def __len__(self):
        return len(self.seed)

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError(f"week {index}: there are {len(self)}")
        steps = {name: _summed(self._arrays[name][index]) for name in STEPS}
        border = self._arrays["border"]
        load_p = steps["load_p"] / PER_MW
        load_q = REACTIVE * load_p
        load_p[:, border], load_q[:, border] = steps["border_p"] / BORDER_PER_MW, steps["border_q"] / BORDER_PER_MW
        week = Week(
            self.env, self.split[index], self.date[index], self.seed[index], load_p, load_q, steps["gen_p"] / PER_MW,
            self._arrays["gen_v"], border,
        )  # fmt: skip
        if week.digest() != self._digests[index]:
            raise ChronicsError(f"{week}: not the week that was written: its digest is not the one noted")
        return week


def _stored(week):
    """What is written of a week, int16: 0.1 MW, (T, n_load), 0 at the border, and (T, n_gen); 0.05 MW, MVAr, (T, n_border)."""
    inner = week.load_p.copy()
    inner[:, week.border] = 0
    scaled = {
        "load_p": inner * PER_MW, "gen_p": week.gen_p * PER_MW,
        "border_p": week.load_p[:, week.border] * BORDER_PER_MW, "border_q": week.load_q[:, week.border] * BORDER_PER_MW,
    }  # fmt: skip
    for name, values in scaled.items():
        if values.size and np.abs(values).max() > np.iinfo(np.int16).max:
            raise ChronicsError(f"{week}: a value of {name} does not fit the file's integers of 16 bits")
    return {name: np.rint(values).astype(np.int16) for name, values in scaled.items()}


def _differences(values):
    """(T, n) -> (n, T): the first value, then each step's change. An int16 may wrap: the sum wraps back."""
    return np.diff(values.T, axis=1, prepend=values.dtype.type(0))


def _summed(changes):
    return np.cumsum(changes, axis=1, dtype=changes.dtype).T


def _versions():
    names = ("numpy", "pandas", "scipy", "grid2op", "lightsim2grid")
    return {"ChroniX2Grid": GENERATOR_VERSION, **{name: importlib.metadata.version(name) for name in names}}


def _first(week, names, wrong, says):
    if wrong.any():
        step, gen = (int(i) for i in np.argwhere(wrong)[0])
        raise ChronicsError(f"{week}: {names[gen]} at step {step} {says(step, gen)}")
