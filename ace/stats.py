"""The one place where intervals are made and put into words: means, interquartile means, bootstrap over seeds x episodes.

Scores are matrices (S, E): one row for each training seed, one column for each test episode. All methods of an
environment play the same E episodes, so seeds and episodes are crossed, not nested.

What is resampled, and why. Two things would differ if the study were repeated: the seeds that were trained, and the
scenarios that were drawn for the test. So each bootstrap replicate draws S rows and, independently of them, E columns,
both with replacement, and keeps the scores at the crossings. Drawing (seed, episode) pairs as if they were S*E
independent results would make the intervals too narrow: a hard scenario is hard for every seed.
Environments are strata: none is drawn away, and each weighs the same.
A comparison of methods draws the same columns for all of them (that is the pairing: the difficulty of an episode
cancels out) but draws the rows of each method by themselves. Runs of one seed begin alike in all methods, until their
mechanisms differ, and go apart soon: pairing the rows as well would hardly narrow the intervals, and is not done.

Percentile intervals. With few seeds (3 to 5) they are too narrow (results/intervals.csv); with one seed they say nothing
about training luck, only about the episodes: read them with the `n` that is printed with them.
"""

from typing import NamedTuple

import numpy as np
from scipy.stats import trim_mean

RESAMPLES = 2000  # bootstrap replicates: the ends of an interval then move by about 0.05 of its width between seeds
SEED = 20250  # of the bootstrap; fixed, so that tables have the same bytes each time
LEVEL = 0.95  # of the intervals


class Estimate(NamedTuple):
    """A number with its interval, in the unit of the scores; nan ends where there is nothing to resample."""

    value: float
    low: float
    high: float


class Summary(NamedTuple):
    """One method on one environment; std is over the seeds' means (nan for one seed), low and high belong to iqm."""

    mean: float
    std: float
    iqm: float
    low: float
    high: float
    n_seeds: int
    n_episodes: int


def iqm(scores):
    """Interquartile mean over the last axis: of n scores floor(n/4) are left out at each end. (..., n) -> (...)."""
    return trim_mean(scores, 0.25, axis=-1)


def interval(draws):
    """Percentile interval of bootstrap replicates (R,) at LEVEL. Returns (low, high)."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def sign(low, high):
    """1 or -1 where an interval lies above or below 0; 0 where it holds or touches 0, or where there is none (nan)."""
    return int(low > 0) - int(high < 0)


def describe_interval(low, high):
    """An interval of a difference in words: "significant" where it excludes 0, else "not significant"."""
    return "significant" if sign(low, high) else "not significant"


def summary(scores, resamples=RESAMPLES, seed=SEED):
    """Paper protocol (mean, std of the seeds' means) and IQM with its interval.

    scores: (S, E), or (S, 1) for a number that belongs to the run rather than to an episode. Returns Summary.
    """
    scores = _matrix(scores)
    n_seeds, n_episodes = scores.shape
    rng = np.random.default_rng(seed)
    rows = rng.integers(n_seeds, size=(resamples, n_seeds))
    columns = rng.integers(n_episodes, size=(resamples, n_episodes))
    draws = iqm(scores[rows[:, :, None], columns[:, None, :]].reshape(resamples, -1))
    low, high = interval(draws) if scores.size > 1 else (np.nan, np.nan)
    std = float(scores.mean(axis=1).std(ddof=1)) if n_seeds > 1 else np.nan
    return Summary(float(scores.mean()), std, float(iqm(scores.ravel())), low, high, n_seeds, n_episodes)


def mean(scores, **bootstrap):
    """Mean of one method's scores (S, E) with its interval. Returns Estimate."""
    return estimate([[scores]], lambda means: means[..., 0], **bootstrap)


def mean_interval(values, seed, groups=None):
    """Mean of single values and its interval, to four digits: {value, ci_low, ci_high}, nan where there are no values.

    values: (n,) numbers or bool; groups: (n,) labels. With them whole groups are drawn, each with all its values.
    """
    values = np.asarray(values, dtype=float)
    if not len(values):
        return {"value": np.nan, "ci_low": np.nan, "ci_high": np.nan}
    labels = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1]
    sums, sizes = np.bincount(labels, values), np.bincount(labels)
    drawn = np.random.default_rng([seed, 6]).integers(len(sums), size=(RESAMPLES, len(sums)))
    low, high = interval(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    return {"value": round(float(values.mean()), 4), "ci_low": round(low, 4), "ci_high": round(high, 4)}


def bootstrap_means(strata, resamples=RESAMPLES, seed=SEED):
    """Means of several methods, with replicates that share their episodes.

    strata: one entry for each environment; each entry a sequence of M matrices (S_m, E) on the same E episodes.
    Returns (means (M,), draws (R, M)), both averaged over the strata; draws is None where nothing can be resampled.
    """
    strata = [[_matrix(scores) for scores in methods] for methods in strata]
    rng = np.random.default_rng(seed)
    means, draws = np.zeros(len(strata[0])), np.zeros((resamples, len(strata[0])))
    for methods in strata:
        n_episodes = methods[0].shape[1]
        if any(scores.shape[1] != n_episodes for scores in methods):
            raise ValueError(f"methods have {[scores.shape[1] for scores in methods]} episodes: not paired")
        columns = rng.integers(n_episodes, size=(resamples, n_episodes))
        for m, scores in enumerate(methods):
            rows = rng.integers(len(scores), size=(resamples, len(scores)))
            means[m] += scores.mean() / len(strata)
            draws[:, m] += scores[rows[:, :, None], columns[:, None, :]].mean(axis=(1, 2)) / len(strata)
    return means, draws if any(scores.size > 1 for methods in strata for scores in methods) else None


def estimate(strata, statistic, resamples=RESAMPLES, seed=SEED):
    """A statistic of the methods' means, with interval.

    strata: as in `bootstrap_means`. statistic: takes (..., M) means, gives (...). Returns Estimate; nan ends if the
    statistic is undefined (nan) in any replicate.
    """
    means, draws = bootstrap_means(strata, resamples, seed)
    value = float(statistic(means))
    if draws is None or not np.isfinite(replicates := statistic(draws)).all():
        return Estimate(value, np.nan, np.nan)
    return Estimate(value, *interval(replicates))


def paired_difference(a, b, **bootstrap):
    """mean(a) - mean(b) on the same episodes. a: (S_a, E), b: (S_b, E), or lists of such, one for each environment."""
    return estimate(_pair(a, b), lambda m: m[..., 0] - m[..., 1], **bootstrap)


def paired_ratio(a, b, **bootstrap):
    """mean(a) / mean(b) on the same episodes; nan where mean(b) is not positive: the ratio then orders nothing."""
    return estimate(_pair(a, b), lambda m: m[..., 0] / np.where(m[..., 1] > 0, m[..., 1], np.nan), **bootstrap)


def _pair(a, b):
    return list(zip(a, b, strict=True)) if isinstance(a, list) else [(a, b)]


def _matrix(scores):
    scores = np.asarray(scores, dtype=float)
    if scores.ndim != 2 or not scores.size or not np.isfinite(scores).all():
        raise ValueError(f"scores must be a finite (seeds, episodes) matrix, not of shape {scores.shape}")
    return scores
