"""Which episodes stand for a split, what is said of each, and the worlds in which they are played."""

from functools import lru_cache

import numpy as np
import pandas as pd

from ace import config
from ace.grid.environment import World
from ace.grid.scenarios import SPLITS, WeekScenarios

VARIANTS = ("do_nothing", "reconnect", "greedy")

RENEWABLE = ("wind", "solar")
"""Of Grid2Op's gen_type. Hydro, which its gen_renewable counts in, is dispatched by the operator and left out."""

SEASONS = {"winter": (12, 1, 2), "spring": (3, 4, 5), "summer": (6, 7, 8), "autumn": (9, 10, 11)}
HOUR = 12  # steps


def one_a_week(scenarios):
    """Indices of a split's scenarios: all of them, of training weeks one each, its first day drawn from the scenarios' seed."""
    if not isinstance(scenarios, WeekScenarios) or scenarios.split != "train":
        return list(range(len(scenarios)))
    starts = scenarios.starts
    draws = [np.random.default_rng([scenarios.seed, len(SPLITS), week]) for week in range(scenarios.n_weeks)]
    return [week * starts + int(rng.integers(starts)) for week, rng in enumerate(draws)]


def name_of(split, environment, scenarios):
    """What a split is called in tables: the test by the weeks that it is made of.

    environment, scenarios: the sections of `config`.
    """
    return scenarios.test_split if split == "test" and environment.weeks else split


def described(scenario, gen_type):
    """Where a scenario is from and what it asks of the grid: a dict with six of COLUMNS. gen_type: (n_gen,) str."""
    load_mw, gen_mw = scenario.load_p.sum(axis=1), scenario.gen_p.sum(axis=0)
    weekly = isinstance(scenario.origin[0], str)
    week, start = scenario.origin if weekly else (" ".join(map(str, scenario.origin)), None)
    return {
        "week": week, "start": start, "mean_load_mw": float(load_mw.mean()), "peak_load_mw": float(load_mw.max()),
        "renewable_share": float(gen_mw[np.isin(gen_type, RENEWABLE)].sum() / gen_mw.sum()),
    }  # fmt: skip


@lru_cache(maxsize=len(VARIANTS) + 1)
def world_of(environment, variant, opponent=True):
    """The World of an environment with a variant's reflexes; made once a process.

    opponent: whether it acts where the environment has one.
    """
    params = config.load()
    spec = params.environment(environment)
    spec = spec if opponent else spec.model_copy(update={"opponent": False})
    return World(spec, params.scenarios, params.settings(variant).operator)


def season_of(week):
    """Of a date, by the month in which the week begins; "all" where it is no date: scenarios of packaged days."""
    if "-" not in week:
        return "all"
    month = int(week.split("-")[1])
    return next(season for season, months in SEASONS.items() if month in months)


def in_order(seasons):
    """A list of seasons as ordered categories: those that it has, from winter on."""
    return pd.Categorical(seasons, [season for season in (*SEASONS, "all") if season in set(seasons)], ordered=True)


def easy_and_hopeless(episodes):
    """Shares of weeks, percent: reconnection lasts to the end of the episode; greedy look-ahead loses the grid within an hour.

    episodes: rows of `measure.measure_environment`, an episode a week
    """
    lasted, greedy = (episodes[episodes["variant"] == variant] for variant in ("reconnect", "greedy"))
    easy, hopeless = lasted["survived_steps"] >= lasted["horizon"], greedy["survived_steps"] < HOUR
    return 100 * easy.mean(), 100 * hopeless.mean()


def by_season(episodes):
    """Of measured training episodes: weeks, mean survival of each method, easy and hopeless weeks (percent), a row a season.

    episodes: as `measure.measure_environment` returns them
    """
    train = episodes[episodes["split"] == "train"]
    train = train.assign(season=in_order(train["week"].map(season_of).tolist()), survival=100 * train["survival"])
    table = train.pivot_table(index="season", columns="variant", values="survival", observed=True)[list(VARIANTS)]
    table.insert(0, "weeks", train.loc[train["variant"] == "reconnect", "season"].value_counts())
    shares = [easy_and_hopeless(train[train["season"] == season]) for season in table.index]
    return table.assign(**dict(zip(("easy", "hopeless"), np.array(shares).T, strict=True)))
