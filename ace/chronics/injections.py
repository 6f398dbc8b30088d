"""Loads, wind and sun of a stretch of days, by ChroniX2Grid's own generators: unpatched, seeded.

Row t is date 00:00 plus 5 t minutes. There are two rows more than steps: a scenario needs the row that it begins with and,
for the forecast at its last step, the one after it.
"""

import contextlib
import io
import warnings
from datetime import datetime, timedelta

import numpy as np
import pandas as pd

from ace.chronics.cases import generator_folder
from ace.grid.weeks import DAY


def index_of(date, days):
    """The times of a stretch: a DatetimeIndex of 288 days + 2 rows. date: "2012-03-05"."""
    return pd.date_range(date, periods=DAY * days + 2, freq="5min")


def injections(case, date, seed, days):
    """(load_p, renewable_p): (T, n_load) and (T, n_gen) float64 MW, before curtailment; not renewable generators are 0.

    seed: a non-negative integer. The same case, date, seed and days give the same bytes; a date has a noise of its own.
    """
    generator_folder()  # or one clear line
    from chronix2grid.generation.consumption import ConsumptionGeneratorBackend
    from chronix2grid.generation.renewable import RenewableBackend

    start = datetime.fromisoformat(date)
    # The generator makes one row more than it keeps.
    end = start + (DAY * days + 2) * timedelta(minutes=5)
    period = {"start_date": start, "end_date": end, "T": int((end - start).total_seconds() // 60)}
    of_loads, of_renewables = (int(s) for s in np.random.SeedSequence([seed, start.toordinal()]).generate_state(2))
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        load, *_ = ConsumptionGeneratorBackend(
            out_path=None, seed=of_loads, params={**case.load, **period}, loads_charac=case.loads,
            load_config_manager=None, write_results=False,
        ).run(load_weekly_pattern=case.weekly.copy(), use_legacy=False)  # fmt: skip
        sun, _, wind, *_ = RenewableBackend(
            out_path=None, seed=of_renewables, params={**case.renewable, **period}, loads_charac=case.gens,
            res_config_manager=None, write_results=False,
        ).run(solar_pattern=case.sun.copy(), tol_zero=1e-3)  # fmt: skip
    renewable = pd.concat([sun, wind], axis=1).reindex(columns=case.gens["name"], fill_value=0.0)
    limit = case.gens["Pmax"].to_numpy(float)
    return load[case.loads["name"]].to_numpy(float), np.clip(renewable.to_numpy(float), 0.0, limit)
