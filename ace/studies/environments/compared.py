"""What is packaged with Grid2Op against the weeks: load, generation, loading of the intact grid, and survival by season.

All weeks here are training weeks. Nothing is written: notebook 01 draws it (`ace.studies.environments.show`).
"""

import numpy as np
import pandas as pd

from ace.episodes import decisions, do_nothing
from ace.grid.fastworld import FastWorld
from ace.grid.powerflow import PowerFlow
from ace.grid.scenarios import WeekScenarios
from ace.grid.weeks import DAY
from ace.studies.environments.choice import HOUR, described, in_order, one_a_week, season_of, world_of

PACKAGED, WEEKS = "packaged days", "weeks"
KINDS = ("wind", "solar", "hydro", "nuclear", "thermal")


def hourly(world):
    """A row for each hour of all packaged days and all training weeks that the scale uses.

    source: PACKAGED or WEEKS; day: number within the source; hour: 0 to 23; load_mw and <kind>_mw for each of KINDS: means of the
    hour; rho_max: of the intact grid at the hour's first step by AC power flow, share of the limit, nan where it diverges
    """
    flow, kind = PowerFlow(world.env), np.asarray(world.env.gen_type)
    flow.set_topo(np.ones(flow.dim_topo, dtype=np.int32))
    parts = []
    for source, load_p, load_q, gen_p, gen_v in _stretches(world):
        table = pd.DataFrame({"source": source, "load_mw": _by_hour(load_p)})
        table = table.assign(**{f"{each}_mw": _by_hour(gen_p[:, kind == each]) for each in KINDS})
        rows = range(0, len(load_p), HOUR)
        parts.append(table.assign(rho_max=[flow.rho_max(load_p[t], load_q[t], gen_p[t], gen_v[t]) for t in rows]))
    hours = pd.concat(parts, ignore_index=True)
    place = hours.groupby("source").cumcount()
    return hours.assign(day=place // 24, hour=place % 24)


def mix(hours):
    """Share of each of KINDS in the energy of a source, percent: a column a source."""
    energy = hours.groupby("source", sort=False)[[f"{kind}_mw" for kind in KINDS]].sum()
    share = 100 * energy.div(energy.sum(axis=1), axis=0)
    return share.rename(columns=lambda name: name.removesuffix("_mw")).T


def survival_by_season(environment):
    """Of do nothing and of reconnection alone, in an episode of each training week: a row for each episode and method.

    Played on the fast world, so no opponent acts: what the injections alone do. season: of the week's date; "all" where the
    scenarios are resampled packaged days. survival: percent
    """
    rows = []
    for method in ("do_nothing", "reconnect"):
        world = FastWorld(world_of(environment, method, opponent=False))
        for index in one_a_week(world.sets["train"]):
            for _ in decisions(world, world.reset("train", index), do_nothing):
                pass
            survived = (world.t - int(world.blackout)) / world.spec.horizon
            week = described(world.scenario, world.env.gen_type)["week"]
            rows.append({"season": season_of(week), "method": method, "survival": 100 * survived})
    found = pd.DataFrame(rows)
    return found.assign(season=in_order(found["season"].tolist()))


def _stretches(world):
    """(source, load_p, load_q, gen_p, gen_v) of each packaged day and each training week: (T, n) float32, whole days.

    Of a grid without weeks packaged days alone, and weeks alone where no packaged ones are declared.
    """
    train = world.sets["train"]
    weekly = isinstance(train, WeekScenarios)
    packaged = world.sets.get("packaged") if weekly else train
    if packaged is not None:
        days = packaged.source
        for day in zip(days.load_p, days.load_q, days.gen_p, days.gen_v, strict=True):
            yield PACKAGED, *(values.astype(np.float32) for values in day)
    for week in (train.weeks[number] for number in range(train.n_weeks)) if weekly else ():
        whole = slice(len(week.load_p) // DAY * DAY)
        arrays = week.load_p[whole], week.load_q[whole], week.gen_p[whole]
        kv = np.broadcast_to(week.gen_v, arrays[2].shape)
        yield WEEKS, *(values.astype(np.float32) for values in (*arrays, kv))


def _by_hour(values):
    """Sum of the columns, mean of each hour: (T, n) -> (T / 12,)."""
    return values.sum(axis=1).reshape(-1, HOUR).mean(axis=1)
