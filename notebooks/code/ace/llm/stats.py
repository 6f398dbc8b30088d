import numpy as np
BOOTSTRAPS = 2000

def mean_interval(values, seed, groups=None):
    values = np.asarray(values, dtype=float)
    if not len(values):
        return {'value': np.nan, 'ci_low': np.nan, 'ci_high': np.nan}
    labels = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1]
    sums, sizes = (np.bincount(labels, values), np.bincount(labels))
    drawn = np.random.default_rng([seed, 6]).integers(len(sums), size=(BOOTSTRAPS, len(sums)))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return {'value': round(float(values.mean()), 4), 'ci_low': round(float(low), 4), 'ci_high': round(float(high), 4)}
