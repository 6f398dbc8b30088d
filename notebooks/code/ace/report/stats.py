from typing import NamedTuple
import numpy as np
RESAMPLES = 2000
SEED = 20250
LEVEL = 0.95

class Estimate(NamedTuple):
    value: float
    low: float
    high: float

class Summary(NamedTuple):
    mean: float
    std: float
    iqm: float
    low: float
    high: float
    n_seeds: int
    n_episodes: int

def iqm(scores):
    ordered = np.sort(np.asarray(scores, dtype=float), axis=-1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut:ordered.shape[-1] - cut].mean(axis=-1)

def interval(draws):
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return (float(low), float(high))

def summary(scores, resamples=RESAMPLES, seed=SEED):
    scores = _matrix(scores)
    n_seeds, n_episodes = scores.shape
    rng = np.random.default_rng(seed)
    rows = rng.integers(n_seeds, size=(resamples, n_seeds))
    columns = rng.integers(n_episodes, size=(resamples, n_episodes))
    draws = iqm(scores[rows[:, :, None], columns[:, None, :]].reshape(resamples, -1))
    low, high = interval(draws) if scores.size > 1 else (np.nan, np.nan)
    std = float(scores.mean(axis=1).std(ddof=1)) if n_seeds > 1 else np.nan
    return Summary(float(scores.mean()), std, float(iqm(scores.ravel())), low, high, n_seeds, n_episodes)

def bootstrap_means(strata, resamples=RESAMPLES, seed=SEED):
    strata = [[_matrix(scores) for scores in methods] for methods in strata]
    rng = np.random.default_rng(seed)
    means, draws = (np.zeros(len(strata[0])), np.zeros((resamples, len(strata[0]))))
    for methods in strata:
        n_episodes = methods[0].shape[1]
        if any((scores.shape[1] != n_episodes for scores in methods)):
            raise ValueError(f'methods have {[scores.shape[1] for scores in methods]} episodes: not paired')
        columns = rng.integers(n_episodes, size=(resamples, n_episodes))
        for m, scores in enumerate(methods):
            rows = rng.integers(len(scores), size=(resamples, len(scores)))
            means[m] += scores.mean() / len(strata)
            draws[:, m] += scores[rows[:, :, None], columns[:, None, :]].mean(axis=(1, 2)) / len(strata)
    return (means, draws if any((scores.size > 1 for methods in strata for scores in methods)) else None)

def estimate(strata, statistic, resamples=RESAMPLES, seed=SEED):
    means, draws = bootstrap_means(strata, resamples, seed)
    value = float(statistic(means))
    if draws is None or not np.isfinite((replicates := statistic(draws))).all():
        return Estimate(value, np.nan, np.nan)
    return Estimate(value, *interval(replicates))

def paired_difference(a, b, **bootstrap):
    return estimate(_pair(a, b), lambda m: m[..., 0] - m[..., 1], **bootstrap)

def paired_ratio(a, b, **bootstrap):
    return estimate(_pair(a, b), lambda m: m[..., 0] / np.where(m[..., 1] > 0, m[..., 1], np.nan), **bootstrap)

def _pair(a, b):
    return list(zip(a, b, strict=True)) if isinstance(a, list) else [(a, b)]

def _matrix(scores):
    scores = np.asarray(scores, dtype=float)
    if scores.ndim != 2 or not scores.size or (not np.isfinite(scores).all()):
        raise ValueError(f'scores must be a finite (seeds, episodes) matrix, not of shape {scores.shape}')
    return scores
