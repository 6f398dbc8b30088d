"""Weeks of injections: made from (grid, date, seed), checked and written. `ace.grid.weeks` reads them."""

import importlib.metadata
import io
import json
import zipfile

import numpy as np

from ace.chronics.cases import GENERATOR_VERSION, grid2op_env, grid_of, read_case
from ace.chronics.dispatch import economic_dispatch, units_of
from ace.chronics.errors import ChronicsError
from ace.chronics.injections import index_of, injections
from ace.chronics.losses import ac_pass
from ace.chronics.region import Region
from ace.grid.powerflow import PowerFlow
from ace.grid.weeks import BORDER_PER_MW, REACTIVE, Week, encoded

STEPS_PER_HOUR = 12

PASSES = 3
"""Dispatch with the losses of the pass before, then AC. What the losses still move by falls to the slack: up to 8 MW in one
step after the second pass at 118 substations, which broke its ramp in one of sixteen weeks; 0.7 MW after the third."""

NOTICE = (
    "Injections made with ChroniX2Grid, copyright RTE (https://www.rte-france.com), Mozilla Public License 2.0, and the case "
    "files that it and Grid2Op (RTE, Mozilla Public License 2.0) ship; dispatched and solved by this project. "
    "They are not the official scenarios of any competition."
)


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
        gen_v, gen_max = self.case.gen_v, np.asarray(self.env.gen_pmax, dtype=float)
        if self.region is None:
            return Week(self.grid.env, split, date, seed, load_p, REACTIVE * load_p, gen_p, gen_v, gen_max)
        cut_p, cut_q = self.region.loads_of(load_p, flows)
        border, gens = self.region.border, self.region.gens
        for values in (cut_p, cut_q):
            values[:, border] = np.rint(values[:, border] * BORDER_PER_MW) / BORDER_PER_MW
        return Week(self.grid.env, split, date, seed, cut_p, cut_q, gen_p[:, gens], gen_v[gens], gen_max, border)

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


def write_weeks(path, weeks, files=1):
    """Write weeks of one split to `path` (.npz), and where they come from to a .json beside it. Same weeks, same bytes.

    int16 of 0.1 MW (border: 0.05), as differences along time, in bzip2: a fifth smaller than what `np.savez_compressed` writes,
    and `np.load` reads it as well. files: how many files the split has.
    """
    if len({(week.env, week.split, week.load_p.shape) for week in weeks}) != 1:
        raise ChronicsError(f"{path}: the weeks of one file are of one grid, of one split and of one length")
    first = weeks[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as written:
        for name, values in encoded(weeks).items():
            held = io.BytesIO()
            np.save(held, values)
            written.writestr(zipfile.ZipInfo(f"{name}.npy"), held.getvalue(), zipfile.ZIP_BZIP2)
    beside = {
        "env": first.env, "case": grid_of(first.env).case, "notice": NOTICE, "steps": len(first.load_p),
        "files": files, "versions": _versions(),
        "weeks": [{"split": w.split, "date": w.date, "seed": w.seed, "digest": w.digest()} for w in weeks],
    }  # fmt: skip
    path.with_suffix(".json").write_text(json.dumps(beside, indent=1) + "\n")


def _versions():
    names = ("numpy", "pandas", "scipy", "grid2op", "lightsim2grid")
    return {"ChroniX2Grid": GENERATOR_VERSION, **{name: importlib.metadata.version(name) for name in names}}


def _first(week, names, wrong, says):
    if wrong.any():
        step, gen = (int(i) for i in np.argwhere(wrong)[0])
        raise ChronicsError(f"{week}: {names[gen]} at step {step} {says(step, gen)}")
