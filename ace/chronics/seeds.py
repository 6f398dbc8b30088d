"""Which (date, seed) each split has: dates spread over the year, seeds that no other split can have.

A seed is a hash of grid, split, number and, for the test weeks, of the commit at which code, parameters and criteria were
frozen: nobody can have looked at those weeks before that commit was made.
"""

import hashlib
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise

import numpy as np

from ace.chronics.errors import ChronicsError

GOLDEN = (5**0.5 - 1) / 2

SPLITS = ("train", "validation", "development_test", "test")


@dataclass(frozen=True, slots=True)
class Plan:
    """One week to make. date: "2012-03-05"; seed: below 2**48."""

    split: str
    date: str
    seed: int


def plan_weeks(env, split, n, year, months=range(1, 13), salt=""):
    """n Plans: the days of `months` are cut into n equal stretches, and a week begins at a random day of each; the first few of
    the Plans are spread over the year as well.

    env: Grid2Op's name of the grid; salt: what the draw depends on beside it, for the test the full hash (40 hexadecimal
    digits) of the commit that froze everything else. A week may run into the next month, not into the next year.
    """
    if split not in SPLITS:
        raise ChronicsError(f"no split {split!r}; there are: {', '.join(SPLITS)}")
    if split == "test" and (len(salt) != 40 or set(salt) - set("0123456789abcdef")):
        raise ChronicsError(f"test weeks are derived from a commit's full hash of 40 hexadecimal digits, not {salt!r}")
    first = date(year, 1, 1)
    year_days = (first + timedelta(days=i) for i in range(365))
    days = [day for day in year_days if day.month in set(months) and day + timedelta(days=8) <= date(year + 1, 1, 1)]
    if n > len(days):
        raise ChronicsError(f"{env}, {split}: {n} weeks wanted, there are {len(days)} days to begin one")
    rng = np.random.default_rng(_hash(salt, env, split))
    edges = np.linspace(0, len(days), n + 1)
    begins = [int(rng.integers(int(a), max(int(b), int(a) + 1))) for a, b in pairwise(edges)]
    plans = [Plan(split, days[day].isoformat(), _hash(salt, env, split, i)) for i, day in enumerate(begins)]
    return [plans[i] for i in spread(n)]


def spread(n):
    """0 to n - 1 in an order of which every beginning is spread over the whole: who uses a few weeks has all seasons."""
    return np.argsort(np.argsort(np.arange(n) * GOLDEN % 1)).tolist()


def plan_test_weeks(env, commit, others, n, year, months=range(1, 13)):
    """The test weeks of a grid. commit: see `salt` in `plan_weeks`; others: Plans of all other splits.

    Raises ChronicsError where one of them has the date and seed of another.
    """
    plans = plan_weeks(env, "test", n, year, months, salt=commit)
    check_disjoint([*others, *plans])
    return plans


def check_disjoint(plans):
    """Raises ChronicsError where two weeks (Plan or Week) of one grid have the same date and seed."""
    seen = {}
    for plan in plans:
        other = seen.setdefault((plan.date, plan.seed), plan)
        if other is not plan:
            raise ChronicsError(f"week of {plan.date}, seed {plan.seed}: in {other.split} and in {plan.split}")


def _hash(*parts):
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:6])
