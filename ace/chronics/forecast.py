"""The error of one-step forecasts, measured alike on the packaged chronics and on weeks.

In the packaged chronics the forecast of each load is its next value times a lognormal error of 1 %: MW and MVAr have errors of
their own in the 36-substation files, nearly the same one (correlation above 0.9) on WCCI 2022. There generators are forecast
like loads; in the 36-substation files renewables, nuclear and hydro are forecast to stay as they are, with an error of 1 %,
thermal ones without. Here every grid is treated alike (`ace.grid.scenarios.forecasts`), and the size of the error is matched.
"""

import numpy as np

from ace.chronics.errors import ChronicsError
from ace.grid.scenarios import forecasts


def one_step_error(flow, truth, forecast, every=1):
    """Mean |rho_max by forecast - rho_max as it came| over steps, in the intact grid.

    flow: PowerFlow of the grid; truth, forecast: (load_p, load_q, gen_p, gen_v), rows as in `forecasts`: row t of the
    forecast is compared with row t + 1 of the truth. Raises ChronicsError where a power flow diverges.
    """
    flow.set_topo(np.ones(flow.dim_topo, dtype=np.int32))
    errors = []
    for t in range(0, len(truth[0]) - 1, every):
        errors.append(abs(_rho_max(flow, forecast, t, t) - _rho_max(flow, truth, t + 1, t)))
    return float(np.mean(errors))


def week_error(flow, week, gen_max, sd, seed=0, every=1):
    """`one_step_error` of a Week with forecasts of the given sd."""
    rng = np.random.default_rng([seed, week.seed])
    kv = np.tile(week.gen_v, (len(week.load_p), 1))
    ahead = forecasts(week.load_p, week.load_q, week.gen_p, gen_max, sd, rng)
    return one_step_error(flow, (week.load_p, week.load_q, week.gen_p, kv), (*ahead, kv), every)


def matching_sd(flow, weeks, gen_max, target, every=1, start=0.01):
    """The sd at which the forecasts of `weeks` have the error `target` on average: the error is proportional to it.

    (Two rounds: what bends the line is clipping and the change of the most loaded line only.)
    """
    sd = start
    for _ in range(2):
        sd *= target / float(np.mean([week_error(flow, week, gen_max, sd, every=every) for week in weeks]))
    return sd


def packaged_error(env, flow, every=1):
    """`one_step_error` of the forecasts that Grid2Op packages, over all chronics of `env`: mean over their steps."""
    errors, weights = [], []
    for number in range(len(env.chronics_handler.subpaths)):
        env.set_id(number)
        kv = env.reset().gen_v
        data = env.chronics_handler.real_data.data
        if data.load_p_forecast is None or data.prod_p_forecast is None:
            raise ChronicsError(f"{env.name}: its chronics come without forecasts")
        truth = data.load_p, data.load_q, data.prod_p, _voltages(data.prod_v, kv, data.load_p)
        forecast = (
            data.load_p_forecast, data.load_q_forecast, data.prod_p_forecast, _voltages(data.prod_v_forecast, kv, data.load_p),
        )  # fmt: skip
        errors.append(one_step_error(flow, truth, forecast, every))
        weights.append(len(data.load_p))
    return float(np.average(errors, weights=weights))


def _voltages(values, kv, rows):
    return np.tile(kv, (len(rows), 1)) if values is None else values


def _rho_max(flow, injections, row, step):
    rho_max = flow.rho_max(*(np.asarray(values[row], dtype=np.float32) for values in injections))
    if np.isnan(rho_max):
        raise ChronicsError(f"forecast error: the AC power flow diverges at step {step}")
    return rho_max
