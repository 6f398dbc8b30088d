"""Which files the generator reads for each grid: from the installed packages, never copied.

A case is a folder of ChroniX2Grid: loads and generators with their place, size, ramps and costs (MW, MW per step of 5
minutes, currency per MWh), the parameters of its noise and of its dispatch. The 118-bus case of the NeurIPS 2020 data lies
in ChroniX2Grid's wheel, that of WCCI 2022 in Grid2Op's package. The patterns (weekly load, sun, hydro) lie in the wheel.
"""

import importlib.metadata
import importlib.util
import json
import warnings
from dataclasses import dataclass
from pathlib import Path

import grid2op
import numpy as np
import pandas as pd
from grid2op.Chronics import ChangeNothing
from grid2op.Opponent import BaseOpponent
from lightsim2grid import LightSimBackend

from ace.chronics.errors import ChronicsError

GENERATOR_VERSION = "1.2.0.post1"
INSTALL = f"pip install --no-deps Chronix2Grid=={GENERATOR_VERSION}"
"""Without its dependencies: those are of a dispatch that is not used here, and they do not install beside ours."""

INPUT = "getting_started/example/input/generation"
CASE118 = "case118_l2rpn_neurips_1x"

SLACK118 = {"slack_name": "gen_68_37", "slack_pmin": 40.0, "slack_pmax": 300.0, "slack_ramp_limit_ratio": 0.5}
"""The 118-bus case of the wheel sets no limits for its slack, and in August the dispatch would drive it to zero and the
losses below: these are the limits of the WCCI 2022 case, whose slack is the same generator."""


@dataclass(frozen=True, slots=True)
class Grid:
    """env: what Grid2Op calls it; case: which case its weeks are made on; cut: only the region of that case is kept."""

    env: str
    case: str
    cut: bool


GRIDS = {
    "l2rpn_wcci_2020": Grid("l2rpn_wcci_2020", CASE118, True),
    "l2rpn_neurips_2020_track1": Grid("l2rpn_neurips_2020_track1", CASE118, True),
    "l2rpn_wcci_2022": Grid("l2rpn_wcci_2022", "l2rpn_wcci_2022_dev", False),
}


@dataclass(frozen=True, slots=True)
class Case:
    """loads, gens: one row an element, in the grid's order; gen_v: (n_gen,) kV, set points of the generators
    load, renewable, dispatch: parameters of the generator's three models
    weekly: load pattern of a year, 5 minutes; sun: (8761,) hourly; hydro: p_min_u, p_max_u by (month, day, hour, minute)
    """

    name: str
    folder: Path
    loads: pd.DataFrame
    gens: pd.DataFrame
    gen_v: np.ndarray
    load: dict
    renewable: dict
    dispatch: dict
    weekly: pd.DataFrame
    sun: np.ndarray
    hydro: pd.DataFrame


def generator_folder():
    """Where ChroniX2Grid is installed. Raises ChronicsError where it is not, or in another version."""
    spec = importlib.util.find_spec("chronix2grid")
    if spec is None or spec.origin is None:
        raise ChronicsError(
            f"making weeks needs RTE's generator ChroniX2Grid, which is not installed: `make weeks` does, or `{INSTALL}`"
        )
    version = importlib.metadata.version("Chronix2Grid")
    if version != GENERATOR_VERSION:
        raise ChronicsError(
            f"ChroniX2Grid {version} is installed, the weeks are made with {GENERATOR_VERSION}: `{INSTALL}`"
        )
    return Path(spec.origin).parent


def grid_of(name):
    """The Grid of a Grid2Op environment's name. Raises ChronicsError where no case is known for it."""
    if name not in GRIDS:
        raise ChronicsError(f"no generator case for the Grid2Op environment {name!r}; there are: {', '.join(GRIDS)}")
    return GRIDS[name]


def read_case(name):
    """A Case. Raises ChronicsError, naming the file, where one is missing."""
    inputs = generator_folder() / INPUT
    in_wheel = name == CASE118
    folder = inputs / name if in_wheel else Path(grid2op.__file__).parent / "data" / name
    loads, gens = (pd.read_csv(_file(folder, f"{kind}_charac.csv")) for kind in ("loads", "prods"))
    shared = _json(folder, "params.json")
    shared = {"dt": int(shared["dt"]), "planned_std": float(shared["planned_std"])}
    dispatch = _json(folder, "params_opf.json")
    patterns = inputs / "patterns"
    return Case(
        name, folder, loads, gens,
        gen_v=gens["V"].to_numpy(float) * (1.04 if in_wheel else 1.0),  # as the packaged chronics of these grids have it
        load={**_json(folder, "params_load.json"), **shared},
        renewable={**_json(folder, "params_res.json"), **shared},
        dispatch={**dispatch, **SLACK118} if in_wheel else dispatch,
        weekly=pd.read_csv(_file(patterns, "load_weekly_pattern.csv")),
        sun=np.load(_file(patterns, "solar_pattern.npy")),
        hydro=_hydro(_file(patterns, "hydro_french.csv")),
    )  # fmt: skip


def grid2op_env(name):
    """The grid of a folder or of a packaged environment, without opponent; its chronics never change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = grid2op.make(
            str(name), test=True, backend=LightSimBackend(), chronics_class=ChangeNothing,
            opponent_init_budget=0.0, opponent_budget_per_ts=0.0, opponent_class=BaseOpponent,
        )  # fmt: skip
        env.reset()
    return env


def _file(folder, name):
    if not (folder / name).is_file():
        raise ChronicsError(f"the generator's case file {name} is missing in {folder.parent.name}/{folder.name}")
    return folder / name


def _json(folder, name):
    return json.loads(_file(folder, name).read_text())


def _hydro(path):
    table = pd.read_csv(path, usecols=["datetime", "p_min_u", "p_max_u"])
    at = pd.to_datetime(table.pop("datetime"), format="%Y-%m-%d %H:%M")
    table.index = pd.MultiIndex.from_arrays([at.dt.month, at.dt.day, at.dt.hour, at.dt.minute])
    return table[~table.index.duplicated()]
