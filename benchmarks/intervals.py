"""How often the 95 % intervals of `ace.stats` hold the truth, by simulation.

    python -m benchmarks.intervals

Writes results/intervals.csv, a row for each statistic, kind of scores, ratio of variances, number of seeds and of episodes:
coverage, its standard error, the median length of the intervals, and used_by, the tables with intervals of that kind and size,
of the committed runs (3 or 5 seeds, 30 episodes) and of the next ones (8 or 10 seeds, 50 episodes). Scores are crossed, mean +
seed + episode + rest, with the variances of VARIANCES. `normal` are these numbers themselves; `survival` is 100 min(1,
exp(score)), about two thirds at 100 % and the others skewed; `near 100` the same with nine tenths at 100 %; `time` is exp(score
/ 4). The second method is worse and, unless unpaired, plays the same episodes. Truths are computed, not simulated. About three
minutes on one core; no power flow is involved.
"""

import numpy as np
import pandas as pd
from scipy.stats import norm

from ace import config, stats
from ace.report.formatting import write_csv

# of seeds, episodes, rest; "seeds" makes the seeds' means of survival vary by 16 points, of committed cells on WCCI 2020 by 0
# to 31 (ACE 13)
VARIANCES = {"seeds": (0.8, 0.2, 1.0), "mixed": (0.3, 0.6, 1.0), "episodes": (0.01, 1.2, 0.25), "seeds alone": (1.0, 0.0, 0.0),
             "no seeds": (0.0, 1.2, 0.25)}  # fmt: skip
CROSSED = ("seeds", "mixed", "episodes")
MEANS, NEAR_100 = (0.6, -0.3), 1.8  # of the two methods: 79 and 63 % of survival; of one method: 95 %
SEEDS, EPISODES = (2, 3, 5, 8, 10), (30, 50, 100)
N, BLOCK = 20_000, 2_000  # simulated studies a row; at a time
COLUMNS = ["statistic", "scores", "variances", "seeds", "episodes", "coverage", "coverage_se", "median_length", "n", "used_by"]
SINGLE, CLAIMS = ("mean", "IQM", "mean of a run", "mean of a baseline"), "claims.csv"
MEAN_OF, PAIRS = "main.csv, ablation_roles.csv, ablations.csv", "paired.csv, ablation_roles.csv, ablations.csv, claims.csv"
USED = {
    ("mean", "survival"): MEAN_OF,
    ("mean", "normal"): MEAN_OF,
    ("mean of a baseline", "survival"): "main.csv",
    ("mean of a baseline", "normal"): "main.csv",
    ("difference to a baseline", "survival"): "paired.csv",
    ("difference to a baseline", "normal"): "paired.csv",
    ("paired difference", "survival"): PAIRS,
    ("paired difference", "normal"): PAIRS,
    ("paired ratio", "survival"): CLAIMS,
    ("smallest of two differences", "survival"): CLAIMS,
    ("mean of a run", "normal"): "main.csv, claims.csv",
    ("ratio of a run", "time"): CLAIMS,
}
SIZES = {(3, 30), (5, 30), (8, 50), (10, 50)}  # seeds and episodes of tables


def rows():
    """(statistic, scores, variances, seeds, episodes) of all rows."""
    both, alone = ("normal", "survival"), ("survival",)
    kinds = {"mean": (*both, "near 100"), "IQM": both, "difference to a baseline": both, "paired difference": both}
    kinds |= {"unpaired difference": both, "paired difference of IQMs": both, "paired ratio": alone}
    kinds |= {"smallest of two differences": both}
    for statistic, of in kinds.items():
        yield from ((statistic, scores, v, s, e) for scores in of for v in CROSSED for s in SEEDS for e in EPISODES)
    for statistic, scores in (("mean of a run", "normal"), ("ratio of a run", "time")):
        yield from ((statistic, scores, "seeds alone", s, 1) for s in SEEDS)
    yield from (("mean of a baseline", scores, "no seeds", 1, e) for scores in both for e in EPISODES)


def used_by(statistic, scores, n_seeds, n_episodes):
    sizes = {(s if n_seeds > 1 else 1, e if n_episodes > 1 else 1) for s, e in SIZES}
    fewest = 5 if statistic == "difference to a baseline" else 0  # the ablations' three seeds are compared with none
    return USED.get((statistic, scores), "") if (n_seeds, n_episodes) in sizes and n_seeds >= fewest else ""


def draw(rng, n, means, variances, n_seeds, n_episodes, scores, paired=True):
    """A list of matrices (n, S, E), one for each method; n_seeds: one for all, or one each."""
    seed, episode, rest = np.sqrt(VARIANCES[variances])
    found, ease = [], None
    for mean, rows in zip(means, np.broadcast_to(n_seeds, len(means)), strict=True):
        if ease is None or not paired:
            ease = rng.standard_normal((n, 1, n_episodes))
        x = rng.standard_normal((n, rows, n_episodes))
        x *= rest
        x += mean + (seed if rows > 1 else 0) * rng.standard_normal((n, rows, 1)) + episode * ease
        found.append(x if scores == "normal" else np.exp(x / 4) if scores == "time" else 100 * np.exp(np.minimum(x, 0)))
    return found


def truth(mean, variances, scores, location=stats.average, seeds=True):
    """Mean or interquartile mean of one method's scores over all seeds (of one without seeds) and episodes that there could
    be."""
    of_seeds, *others = VARIANCES[variances]
    sd = np.sqrt(of_seeds * seeds + sum(others))
    if scores == "normal":
        return mean
    if scores == "time":
        return np.exp(mean / 4 + (sd / 4) ** 2 / 2)
    if location is stats.average:
        return 100 * (norm.cdf(mean / sd) + np.exp(mean + sd**2 / 2) * norm.cdf(-mean / sd - sd))
    u = np.linspace(stats.TRIM, 1 - stats.TRIM, 100_001)
    return np.trapezoid(100 * np.exp(np.minimum(mean + sd * norm.ppf(u), 0)), u) / (1 - 2 * stats.TRIM)


def ends(statistic, scores, methods):
    """(low, high), arrays (n,), as tables make them."""
    location = stats.interquartile_mean if "IQM" in statistic else stats.average
    if statistic.startswith("smallest"):
        found = stats.smallest([stats.paired_difference(methods[0], other) for other in methods[1:]])
    elif statistic in SINGLE:
        percent = statistic != "IQM" and scores in ("survival", "near 100")
        found = stats.mean(methods[0], stats.PERCENT if percent else stats.IDENTITY, location)
    elif "ratio" in statistic:
        found = stats.estimate([methods], lambda m: m[..., 0] / m[..., 1], stats.LOG)
    else:
        found = stats.paired_difference(*methods, location=location, paired=not statistic.startswith("unpaired"))
    return found.low, found.high


def coverage(statistic, scores, variances, n_seeds, n_episodes):
    """(share of N intervals that hold the truth, their median length)."""
    means = (NEAR_100,) if scores == "near 100" else MEANS[:1] if statistic in SINGLE else MEANS
    means = (*MEANS, MEANS[1]) if statistic.startswith("smallest") else means  # both differences alike
    n_seeds = (n_seeds, 1) if statistic == "difference to a baseline" else n_seeds
    location = stats.interquartile_mean if "IQM" in statistic else stats.average
    of_methods = zip(means, np.broadcast_to(n_seeds, len(means)), strict=True)
    true = [truth(mean, variances, scores, location, s > 1) for mean, s in of_methods]
    wanted = true[0] / true[1] if "ratio" in statistic else true[0] - (true[1] if len(true) > 1 else 0)
    rng, held, lengths = np.random.default_rng(0), 0, []
    for _ in range(N // BLOCK):
        paired = not statistic.startswith("unpaired")
        low, high = ends(statistic, scores, draw(rng, BLOCK, means, variances, n_seeds, n_episodes, scores, paired))
        held += ((low <= wanted) & (wanted <= high)).sum()
        lengths.append(high - low)
    return held / N, np.nanmedian(lengths)


def main():
    table = []
    for row in rows():
        statistic, scores, _, n_seeds, n_episodes = row
        share, length = coverage(*row)
        used = used_by(statistic, scores, n_seeds, n_episodes)
        table.append([*row, share, np.sqrt(share * (1 - share) / N), length, N, used])
    table = pd.DataFrame(table, columns=COLUMNS)
    write_csv(table, config.root() / "results" / "intervals.csv")
    used = table[table["used_by"] != ""]
    print(table.to_string(index=False))
    print(f"\nIn tables: {len(used)} rows, coverage {used['coverage'].min():.3f} to {used['coverage'].max():.3f}")


if __name__ == "__main__":
    main()
