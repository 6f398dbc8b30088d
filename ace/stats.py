"""The one place where intervals are made and put into words. Every interval of the project comes from `estimate`.

Scores are matrices (S, E): one row for each training seed, one column for each test episode. All methods of an environment
play the same E episodes, so seeds and episodes are crossed random effects; seeds of two methods are independent of each other
(in the committed runs the seeds' means of two methods correlate by -0.03 on average). (S, 1) is a number of the run, (1, E) a
method that learns nothing. Environments are strata: each weighs the same.

A statistic of the methods' means is linearised (delta method): c_m x_m[s, e] are its influence values, c_m its derivative by
the mean of method m. With MS_seed,m the variance between the rows' means of method m, MS_ep the variance between episodes of the
sum of the methods' columns' means, and MS_res,m the variance of what is left, the crossed analysis of variance gives

    se^2 = sum_m MS_seed,m / S_m  +  MS_ep / E  -  sum_m MS_res,m / (S_m E),   at least half of the last sum,

as the first two both contain the last. The interval is that of a t distribution with the degrees of freedom of Satterthwaite
(Biometrics Bulletin 2, 1946), of two methods' seeds alone Welch's. Means in percent have it on the scale of the logit.

Two choices are for few seeds: the floor, and that a single method's seeds count as more uncertain in `_freedom`. They are of an
earlier simulation and were kept on the development set of `benchmarks/populations.py`, where other values did no better; in the
populations fitted to committed runs coverage was measured afterwards, once, of mean rewards twice (`benchmarks/populations.py`).
results/intervals.csv holds both.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy.special import expit
from scipy.stats import t, trim_mean

LEVEL = 0.95  # of the intervals
POWER = 0.8  # of the smallest effect that could have been detected
FLOOR = 0.5  # of se^2, as a share of the part that is neither the seeds' nor the episodes'
TRIM = 0.25  # of the interquartile mean, at each end


class Scale(NamedTuple):
    """Where an interval is symmetric: u = forward(value), du/dvalue = slope(value), value = inverse(u), increasing."""

    forward: Callable
    slope: Callable
    inverse: Callable


IDENTITY = Scale(lambda x: x, np.ones_like, lambda u: u)
LOG = Scale(np.log, lambda x: 1 / x, np.exp)  # a ratio
# of a / b in percent: a / b - 1, how much more a has, and 1 - b / a, how much less b has
GAIN = Scale(lambda x: np.log1p(x / 100), lambda x: 1 / (100 + x), lambda u: 100 * np.expm1(u))
LOSS = Scale(lambda x: -np.log1p(-x / 100), lambda x: 1 / (100 - x), lambda u: -100 * np.expm1(-u))
# a share or a percentage: its interval stays within 0 to 1 or 100 and is longer on the side of the middle
SHARE = Scale(lambda x: np.log(x / (1 - x)), lambda x: 1 / (x * (1 - x)), expit)
PERCENT = Scale(lambda x: np.log(x / (100 - x)), lambda x: 100 / (x * (100 - x)), lambda u: 100 * expit(u))


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, in the unit of the scores; unpacks as value, low, high.

    nan ends: there is one score, or the statistic is undefined. Length 0: all scores are equal, which makes no value certain.
    se and df belong to the scale of the interval; both are nan where only the ends are known. tested: the value that `p` tests,
    where that is not the value itself (`smallest`).
    """

    value: float
    low: float = np.nan
    high: float = np.nan
    se: float = np.nan
    df: float = np.nan
    scale: Scale = field(default=IDENTITY, repr=False)
    tested: float | None = None

    def __iter__(self):
        return iter((self.value, self.low, self.high))

    def __neg__(self):
        """Of a difference: taken the other way round."""
        return replace(self, value=-self.value, low=-self.high, high=-self.low)

    def rescaled(self, scale):
        """A ratio as a gain or a loss in percent, which have the same logarithm."""
        ends = (float(scale.inverse(self.scale.forward(end))) for end in self)
        return Estimate(*ends, self.se, self.df, scale)

    def p(self, null=0.0):
        """Two-sided p value of "the value is null"; nan without an interval or without any spread."""
        with np.errstate(divide="ignore", invalid="ignore"):
            tested = self.value if self.tested is None else self.tested
            distance = np.abs(self.scale.forward(tested) - self.scale.forward(null))
            return float(2 * t.sf(distance / self.se, self.df)) if self.se > 0 else np.nan

    def detectable(self, null=0.0):
        """The smallest value above null that would have been significant with a probability of 80 %; nan as `p`."""
        if not self.se >= 0:
            return np.nan
        reach = t.ppf((1 + LEVEL) / 2, self.df) + t.ppf(POWER, self.df) if self.se > 0 else 0.0
        return float(self.scale.inverse(self.scale.forward(null) + reach * self.se))


class Summary(NamedTuple):
    """One method on one environment; std is over the seeds' means (nan for one seed), low and high belong to the mean."""

    mean: float
    std: float
    iqm: float
    low: float
    high: float
    n_seeds: int
    n_episodes: int


def sign(low, high):
    """1 or -1 where an interval lies above or below 0; 0 where it holds or touches 0, or where there is none (nan)."""
    return int(low > 0) - int(high < 0)


def describe_interval(low, high):
    """An interval of a difference in words: "significant" where it excludes 0, else "not significant"."""
    return "significant" if sign(low, high) else "not significant"


def holm(p):
    """Holm's correction of the p values (n,) of a table's contrasts; nan stays nan and counts for nothing."""
    p = np.asarray(p, dtype=float)
    adjusted, places = np.full_like(p, np.nan), np.flatnonzero(~np.isnan(p))
    order = places[np.argsort(p[places], kind="stable")]
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)))
    return adjusted


def average(scores):
    """Of each matrix (..., S, E) the mean (...) and its influence values (..., S, E)."""
    return scores.mean(axis=(-2, -1)), scores


def interquartile_mean(scores):
    """As `average`, of the interquartile mean of all S x E scores. Where a quarter of them or more lie at a bound and the rest
    doesn't, the linear approximation is poor (results/intervals.csv)."""
    ordered = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    n = ordered.shape[-1]
    cut = int(TRIM * n)
    low, high = ordered[..., cut, None, None], ordered[..., n - 1 - cut, None, None]
    return trim_mean(ordered, TRIM, axis=-1), np.clip(scores, low, high) / (1 - 2 * cut / n)


def estimate(strata, statistic, scale=IDENTITY, location=average, paired=True):
    """A statistic of the methods' means with its interval.

    strata: one entry for each environment, each a sequence of M matrices (..., S_m, E) with a common E, leading axes being
    independent repetitions. statistic: takes (..., M) means, averaged over the strata, and gives (...). scale: on which the
    interval is symmetric. location: `average` or `interquartile_mean`. paired: whether the columns of the methods are the same
    episodes. Returns Estimate; nan ends where nothing varies or the statistic is undefined (nan).
    """
    strata = [[_matrix(scores) for scores in methods] for methods in strata]
    for methods in strata:
        if paired and len({scores.shape[-1] for scores in methods}) > 1:
            raise ValueError(f"methods have {[scores.shape[-1] for scores in methods]} episodes: not paired")
    found = [[location(scores) for scores in methods] for methods in strata]
    means = np.stack([np.mean(each, axis=0) for each in zip(*([m for m, _ in methods] for methods in found), strict=True)], -1)
    slopes = _slopes(statistic, means) / len(strata)
    influence = [[c[..., None, None] * psi for c, (_, psi) in zip(np.moveaxis(slopes, -1, 0), methods, strict=True)]
                 for methods in found]  # fmt: skip
    value = statistic(means)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance, df = _variance(influence if paired else [[psi] for methods in influence for psi in methods])
        variance = np.where(variance < (1e-9 * np.abs(slopes * means).max(axis=-1)) ** 2, 0.0, variance)  # rounding
        se = np.where(variance > 0, np.sqrt(variance) * scale.slope(value), variance)
        reach = np.where(se > 0, t.ppf((1 + LEVEL) / 2, df) * se, se)
        low, high = (np.where(se > 0, scale.inverse(scale.forward(value) + side * reach), value + se) for side in (-1, 1))
    made = (value, low, high, se, np.where(se > 0, df, np.nan))
    return Estimate(*(made if np.ndim(value) else map(float, made)), scale)


def _slopes(statistic, means):
    """Derivatives of the statistic by the means, (..., M), by central differences."""
    columns = []
    for m in range(means.shape[-1]):
        step = np.zeros_like(means)
        step[..., m] = 1e-5 * (1 + np.abs(means[..., m]))
        columns.append((statistic(means + step) - statistic(means - step)) / (2 * step[..., m]))
    return np.stack(columns, axis=-1)


def _variance(strata):
    """Squared standard error of the sum of the means of the influence values, and its degrees of freedom; nan without any.

    strata: lists of matrices (..., S_m, E) with common columns in each.
    """
    seeds, episodes, rest = [], [], []  # (component of the variance, its degrees of freedom)
    for methods in strata:
        n = methods[0].shape[-1]
        if n > 1:
            columns = sum(psi.mean(axis=-2) for psi in methods)
            episodes.append((columns.var(axis=-1, ddof=1) / n, n - 1))
        for psi in methods:
            rows = psi.shape[-2]
            if rows == 1:
                continue
            seeds.append((psi.mean(axis=-1).var(axis=-1, ddof=1) / rows, rows - 1))
            if n > 1:
                rest.append((residual(psi) / (rows * n), (rows - 1) * (n - 1)))
    if not seeds and not episodes:
        return np.nan, np.nan
    total = [sum(q for q, _ in part) for part in (seeds, episodes, rest)]
    variance = np.maximum(total[0] + total[1] - total[2], FLOOR * total[2])
    return variance, _freedom(seeds, [*episodes, *rest], np.maximum(variance, total[2]))


def residual(scores):
    """MS_res (...) of scores (..., S, E): what neither their rows nor their columns explain."""
    rows, n = scores.shape[-2:]
    left = scores - scores.mean(axis=-1, keepdims=True) - scores.mean(axis=-2, keepdims=True)
    left += scores.mean(axis=(-2, -1), keepdims=True)
    return (left**2).sum(axis=(-2, -1)) / ((rows - 1) * (n - 1))


def _freedom(seeds, others, variance):
    """Satterthwaite's degrees of freedom of a variance, the sum of components: (value, degrees of freedom) each. Not fewer than
    the fewest of a method's seeds.

    Where one method alone has seeds, their component counts as 1 + 2/f times as uncertain as it looks: by the formula as it is,
    intervals of means of three seeds are too short in the development set.
    """
    if not seeds:
        return variance**2 / sum(q**2 / f for q, f in others)
    fewest = min(f for _, f in seeds)
    care = 1 + 2 / fewest if len(seeds) == 1 else 1.0
    uncertainty = sum(q**2 / f for q, f in others) + care * sum(q**2 / f for q, f in seeds)
    return np.where(uncertainty > 0, np.maximum(variance**2 / uncertainty, fewest), fewest)


def mean(scores, scale=IDENTITY, location=average):
    """Mean of one method's scores (S, E), or their IQM, with its interval. scale: PERCENT for a percentage. Returns Estimate."""
    return estimate([[scores]], lambda means: means[..., 0], scale, location)


def summary(scores, scale=IDENTITY):
    """Paper protocol (mean, std of the seeds' means) with the mean's interval, and the IQM.

    scores: (S, E), or (S, 1) for a number that belongs to the run rather than to an episode. Returns Summary.
    """
    found, scores = mean(scores, scale), _matrix(scores)
    std = float(scores.mean(axis=1).std(ddof=1)) if len(scores) > 1 else np.nan
    return Summary(found.value, std, float(trim_mean(scores.ravel(), TRIM)), found.low, found.high, *scores.shape)


def mean_interval(values, groups=None):
    """Mean of single values and its interval, to four digits: {value, ci_low, ci_high}, nan where there are no values.

    values: (n,) numbers, or bool, whose interval is that of a SHARE; groups: (n,) labels. With them whole groups were drawn,
    each with all its values: a ratio of two means over the groups, sum of the values and their number.
    """
    scale, values = SHARE if np.asarray(values).dtype == bool else IDENTITY, np.asarray(values, dtype=float)
    if not len(values):
        return {"value": np.nan, "ci_low": np.nan, "ci_high": np.nan}
    labels = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1]
    sums, sizes = np.bincount(labels, values), np.bincount(labels)
    found = estimate([[sums[None], sizes[None]]], lambda means: means[..., 0] / means[..., 1], scale)
    return dict(zip(("value", "ci_low", "ci_high"), (round(float(end), 4) for end in found), strict=True))


def paired_difference(a, b, **how):
    """mean(a) - mean(b) on the same episodes. a: (S_a, E), b: (S_b, E), or lists of such, one for each environment."""
    return estimate(_pair(a, b), lambda m: m[..., 0] - m[..., 1], **how)


def paired_ratio(a, b):
    """mean(a) / mean(b) on the same episodes; nan ends unless both means are significantly above 0: it orders nothing then.

    On the scale of its logarithm; `rescaled` makes a gain or a loss of it.
    """
    pairs = _pair(a, b)
    found = estimate(pairs, lambda m: m[..., 0] / m[..., 1], LOG)
    means = [estimate([[pair[i]] for pair in pairs], lambda m: m[..., 0]) for i in (0, 1)]
    return found if all((m.value if np.isnan(m.low) else m.low) > 0 for m in means) else Estimate(found.value)


def smallest(estimates):
    """The smallest of several estimates, by value and by both ends; se, df and p of the one with the smallest lower end.

    The lower end decides "all of them are above null" and errs in at most 2.5 % of cases whatever they are (intersection-union
    test, Berger, Technometrics 24, 1982). The upper end errs more often where several are alike. Arrays (n,) are n independent
    cases.
    """
    if len(estimates) == 1:
        return estimates[0]
    ends = [np.min([getattr(each, end) for each in estimates], axis=0) for end in ("value", "low", "high")]
    if np.ndim(ends[0]):
        return Estimate(*ends)
    binding, (value, low, high) = min(estimates, key=lambda each: each.low), map(float, ends)
    return replace(binding, value=value, low=low, high=high, tested=binding.value)


def _pair(a, b):
    return list(zip(a, b, strict=True)) if isinstance(a, list) else [(a, b)]


def _matrix(scores):
    scores = np.asarray(scores, dtype=float)
    if scores.ndim < 2 or not scores.size or not np.isfinite(scores).all():
        raise ValueError(f"scores must be a finite (seeds, episodes) matrix, not of shape {scores.shape}")
    return scores
