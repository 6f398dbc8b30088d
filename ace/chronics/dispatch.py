"""Economic dispatch: what each controllable generator gives at each step, as one linear program over the whole stretch.

The program is ChroniX2Grid's: least cost; limits and ramps with its safety margins; hydro between its guide curves;
limits of the slack; wind and sun may be curtailed; no network. There it is solved by pypsa and cbc, here by HiGHS' dual
simplex in scipy, whose result is a vertex and the same in every run.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scipy.optimize import linprog

from ace.chronics.errors import ChronicsError

CURTAIL_COST = (0.0, 0.1)
"""Cost of a MWh of sun and of wind, as there: where too much is given, wind is curtailed first."""

PMAX_MARGIN_MW, RAMP_MARGIN_MW = 1.0, 0.1
"""Kept free by the generator, so that noise and rounding break no limit."""


@dataclass(frozen=True, slots=True)
class Units:
    """Controllable generators. index: (G,) their places among all generators; cost: (G,)
    low, high: (T, G) MW; ramp_up, ramp_down: (G,) MW per step, both positive.
    """

    index: np.ndarray
    cost: np.ndarray
    low: np.ndarray
    high: np.ndarray
    ramp_up: np.ndarray
    ramp_down: np.ndarray


def units_of(case, times):
    """The Units of a case at `times`, a DatetimeIndex."""
    gens, opf = case.gens, case.dispatch
    index = np.flatnonzero(~gens["type"].isin(["wind", "solar"]))
    gens = gens.iloc[index]
    names, kinds, limit = gens["name"].to_numpy(), gens["type"].to_numpy(), gens["Pmax"].to_numpy(float)
    share = float(opf.get("RampErrorCorrRatio", 1.0))
    top = (limit - PMAX_MARGIN_MW) * float(opf.get("PmaxErrorCorrRatio", 1.0))
    ramp_up, ramp_down = (
        (gens[name].to_numpy(float) - RAMP_MARGIN_MW) / limit * share * top for name in ("max_ramp_up", "max_ramp_down")
    )
    low, high = np.zeros((len(times), len(gens))), np.tile(top, (len(times), 1))
    key = pd.MultiIndex.from_arrays([times.month, times.day, times.hour, times.minute])
    guide = case.hydro.reindex(key).ffill().bfill().to_numpy()  # there is no 29 February
    hydro = kinds == "hydro"
    low[:, hydro], high[:, hydro] = guide[:, :1] * top[hydro], guide.max(axis=1, keepdims=True) * top[hydro]
    if "slack_name" in opf:
        if opf["slack_name"] not in names:
            raise ChronicsError(f"case {case.name}: its slack {opf['slack_name']} is no controllable generator")
        slack = int(np.flatnonzero(names == opf["slack_name"])[0])
        shrink = top[slack] / (limit[slack] - PMAX_MARGIN_MW)
        low[:, slack], high[:, slack] = opf["slack_pmin"] * shrink, min(opf["slack_pmax"] * shrink, top[slack])
        ramp_up[slack] *= opf["slack_ramp_limit_ratio"]
        ramp_down[slack] *= opf["slack_ramp_limit_ratio"]
    return Units(index, gens["marginal_cost"].to_numpy(float), low, high, ramp_up, ramp_down)


def economic_dispatch(need, renewable, units):
    """Least-cost generation: (T, G) MW of the units and (T, 2) MW of sun and wind that are used.

    need: (T,) MW, loads and losses; renewable: (T, 2) MW of sun and wind that are there.
    Raises ChronicsError where no generation fulfils all limits.
    """
    n_step, n_unit = units.low.shape
    width = n_unit + 2  # variables of a step: the units, sun, wind
    low = np.hstack([units.low, np.zeros((n_step, 2))])
    high = np.hstack([units.high, renewable])
    balance = sp.kron(sp.eye(n_step), np.ones((1, width)), format="csr")
    change = sp.diags([-1.0, 1.0], [0, 1], shape=(n_step - 1, n_step))
    ramps = sp.kron(change, sp.eye(n_unit, width), format="csr")
    solved = linprog(
        np.tile(np.concatenate([units.cost, CURTAIL_COST]), n_step),
        A_ub=sp.vstack([ramps, -ramps], format="csr"),
        b_ub=np.concatenate([np.tile(units.ramp_up, n_step - 1), np.tile(units.ramp_down, n_step - 1)]),
        A_eq=balance, b_eq=need, bounds=np.column_stack([low.ravel(), high.ravel()]), method="highs-ds",
    )  # fmt: skip
    if solved.status:
        raise ChronicsError(f"the economic dispatch {_reason(need, low.sum(axis=1), high.sum(axis=1), solved)}")
    power = np.clip(solved.x.reshape(n_step, width), low, high)
    return power[:, :n_unit], power[:, n_unit:]


def _reason(need, least, most, solved):
    for step in np.flatnonzero((need > most) | (need < least)):
        if need[step] > most[step]:
            return f"is infeasible: step {step} needs {need[step]:.1f} MW, the generators can give {most[step]:.1f}"
        return f"is infeasible: step {step} needs {need[step]:.1f} MW, the generators give at least {least[step]:.1f}"
    if solved.status == 2:
        return "is infeasible: no generation follows the load within the ramps"
    return f"failed: {' '.join(solved.message.split())}"
