"""How often the 95 % intervals of `ace.stats` hold the truth, by simulation.

    python -m benchmarks.intervals

Writes results/intervals.csv, a row for each statistic, population, number of seeds and of episodes: coverage, its standard
error, how often the truth lies below and above the interval, the intervals' median length, and used_by, the tables with intervals
of that kind, size and cell. Of the population, the method's: mean and share of episodes at 100 %, in percent, and the standard
deviations of the effects of seeds, episodes and rest (`benchmarks/populations.py`, with the rule by which they were fixed).
Truths are computed, not simulated. Where no score varies the interval is a point, and counts like any other.

Of rewards the mean is simulated; their differences have intervals as those of survival. No table has intervals of the development
set, on which methods were chosen, or of the pilots on development weeks. Ten minutes on two busy cores; no power flow.
"""

import operator
import zlib

import numpy as np
import pandas as pd
from scipy.stats import norm
from tqdm import tqdm

from ace import config, pool, stats
from ace.report.formatting import write_csv
from ace.report.labels import LONGER
from benchmarks import populations
from benchmarks.populations import DEVELOPMENT, REFERENCE, survival

N, N_DEVELOPMENT, BLOCK = 20_000, 4_000, 2_000  # simulated studies a row; at a time
COLUMNS = ["statistic", "population", "mean", "at_100", "sd_seeds", "sd_episodes", "sd_rest", "seeds", "episodes", "coverage"]
COLUMNS += ["coverage_se", "truth_below", "truth_above", "median_length", "n", "used_by"]
REWARD = "mean reward"
MEANS, PAIRS = "main.csv, ablation_roles.csv, ablations.csv", "paired.csv, ablation_roles.csv, ablations.csv, claims.csv"
OF_FEW = {"mean": "ablations.csv, policies.csv", REWARD: "ablations.csv", "paired difference": "ablations.csv, policies.csv"}
AT_MARKS = {"mean": "budget.csv", "paired difference": "equal_use.csv"}


def ratio(a, b):
    return stats.estimate([(a, b)], lambda m: m[..., 0] / m[..., 1], stats.LOG)


def to_mean_of_two(reference, method, twin):
    return stats.paired_difference(reference, (method + twin) / 2)


def percent(scores):
    return stats.mean(scores, stats.PERCENT)


def iqm(scores):
    return stats.mean(scores, location=stats.interquartile_mean)


def unpaired(a, b):
    return stats.paired_difference(a, b, paired=False)


# statistic: the matrices that it takes, its interval, the truth from the matrices' means, tables that have it
STATISTICS = {
    "mean": (["method"], percent, float, MEANS),
    REWARD: (["reward"], stats.mean, float, MEANS),
    "paired difference": (["method", "reference"], stats.paired_difference, operator.sub, PAIRS),
    "paired ratio": (["method", "reference"], ratio, operator.truediv, "claims.csv"),
    "difference to the mean of two": (["reference", "method", "twin"], to_mean_of_two, lambda a, b, _: a - b, "claims.csv"),
    "difference to a baseline": (["method", "baseline"], stats.paired_difference, operator.sub, "paired.csv"),
    "IQM": (["method"], iqm, float, ""),
    "unpaired difference": (["method", "apart"], unpaired, operator.sub, ""),
}
OF_DEVELOPMENT = ["mean", "paired difference", "difference to a baseline", "IQM", "unpaired difference"]
OF_A_BASELINE = ["mean", REWARD]
OVER_GRIDS, OF_A_RUN, RATIO_OF_A_RUN = "paired difference over the grids", "mean of a run", "ratio of a run"


def used_by(statistic, population, n_seeds):
    """Tables with intervals of this kind, size and cell; "" of none."""
    if population.startswith((DEVELOPMENT, populations.PILOT)):
        return ""
    if populations.has_few(n_seeds):
        marked = population.split("/")[-1] in LONGER
        return (AT_MARKS if marked else OF_FEW).get(statistic, "")
    if statistic == OVER_GRIDS:
        return "claims.csv"
    if statistic in (OF_A_RUN, RATIO_OF_A_RUN):
        return "main.csv, claims.csv" if statistic == OF_A_RUN else "claims.csv"
    return "main.csv" if n_seeds == 1 else STATISTICS[statistic][3]


def draw(rng, n, methods, n_episodes):
    """Matrices (n, S, E) of survival in percent. methods: (Population, S, correlation of its episodes with the first's) each."""
    found, first = [], rng.standard_normal((n, 1, n_episodes))
    for of, n_seeds, shared in methods:
        x = of.rest * rng.standard_normal((n, n_seeds, n_episodes))
        x += of.mean + of.seed * rng.standard_normal((n, n_seeds, 1))
        x += of.episode * (shared * first + np.sqrt(1 - shared**2) * rng.standard_normal((n, 1, n_episodes)))
        found.append(100 * np.exp(np.minimum(x, 0)))
    return found


def interquartile_mean(of):
    """Of a population's scores."""
    u = np.linspace(stats.TRIM, 1 - stats.TRIM, 100_001)
    return np.trapezoid(100 * np.exp(np.minimum(of.mean + of.sd * norm.ppf(u), 0)), u) / (1 - 2 * stats.TRIM)


class Counts:
    """Of the intervals of a row: how many lie where, and how long they are."""

    def __init__(self, truth):
        self.truth, self.held, self.below, self.above, self.n, self.lengths = truth, 0, 0, 0, 0, []

    def add(self, found):
        self.held += int(((found.low <= self.truth) & (self.truth <= found.high)).sum())
        self.below += int((self.truth < found.low).sum())
        self.above += int((self.truth > found.high).sum())
        self.n += len(found.low)
        self.lengths.append(found.high - found.low)

    def row(self, statistic, population, of, n_seeds, n_episodes):
        """With COLUMNS. of: the method's Population, or None of what has none of its own."""
        shape = [survival(of.mean, of.sd), 100 * norm.cdf(of.mean / of.sd), *of[1:]] if of else [np.nan] * 5
        held, below, above = (each / self.n for each in (self.held, self.below, self.above))
        rates = [held, np.sqrt(held * (1 - held) / self.n), below, above, np.median(np.concatenate(self.lengths)), self.n]
        return [statistic, population, *shape, n_seeds, n_episodes, *rates, used_by(statistic, population, n_seeds)]


def blocks(n, *seed):
    """A generator of random numbers, the same for the same names, and BLOCK, until n are done."""
    rng = np.random.default_rng([zlib.crc32(str(each).encode()) for each in seed])
    yield from ((rng, min(BLOCK, n - done)) for done in range(0, n, BLOCK))


def of_study(study, n_seeds, n_episodes, n):
    """Rows of a study; of a method without seeds that of its own mean."""
    alone = study.reference is None
    parts = {"method": (study.method, n_seeds, 1.0)}
    if not alone:
        parts |= {"twin": parts["method"], "reference": (study.reference, n_seeds, study.with_reference)}
        parts |= {"baseline": (study.baseline, 1, study.with_baseline), "apart": (study.reference, n_seeds, 0.0)}
    wanted = OF_A_BASELINE if alone else OF_DEVELOPMENT if study.env == DEVELOPMENT else list(STATISTICS)[:6]
    wanted = [statistic for statistic in wanted if statistic != REWARD or np.isfinite(study.of_reward)]
    taken = [name for name in parts if any(name in STATISTICS[statistic][0] for statistic in wanted)]
    counts = {}
    for statistic in wanted:
        names, _, of_means, _ = STATISTICS[statistic]
        location = interquartile_mean if statistic == "IQM" else lambda of: survival(of.mean, of.sd)
        counts[statistic] = Counts(of_means(*(location(parts.get(name, parts["method"])[0]) for name in names)))
    for rng, some in blocks(n, study.name, n_seeds, n_episodes):
        scores = dict(zip(taken, draw(rng, some, [parts[name] for name in taken], n_episodes), strict=True))
        if REWARD in wanted:
            scores["reward"] = scores["method"] * (1 + study.of_reward * rng.standard_normal((some, 1, n_episodes)))
        for statistic, of in counts.items():
            names, interval, *_ = STATISTICS[statistic]
            of.add(interval(*(scores[name] for name in names)))
    return [of.row(statistic, study.name, study.method, n_seeds, n_episodes) for statistic, of in counts.items()]


def over_grids(name, several, n_seeds, n_episodes, n):
    """The row of a method's difference to its reference, averaged over its grids. several: its studies."""
    means = [[survival(of.mean, of.sd) for of in (each.method, each.reference)] for each in several]
    counts = Counts(np.mean([a - b for a, b in means]))
    for rng, some in blocks(n, name, n_seeds, n_episodes):
        drawn = [draw(rng, some, [(each.method, n_seeds, 1.0), (each.reference, n_seeds, each.with_reference)], n_episodes)
                 for each in several]  # fmt: skip
        counts.add(stats.paired_difference(*map(list, zip(*drawn, strict=True))))
    return [counts.row(OVER_GRIDS, name, None, n_seeds, n_episodes)]


def of_runs(name, sd, sd_reference, n_seeds, n):
    """Two rows, of log-normal numbers of the runs: a mean, and its ratio to the reference's."""
    counts = [Counts(np.exp(sd**2 / 2)), Counts(np.exp(sd**2 / 2 - sd_reference**2 / 2))]
    for rng, some in blocks(n, name, n_seeds, 1):
        a, b = (np.exp(each * rng.standard_normal((some, n_seeds, 1))) for each in (sd, sd_reference))
        counts[0].add(stats.mean(a))
        counts[1].add(ratio(a, b))
    return [of.row(kind, name, None, n_seeds, 1) for kind, of in zip((OF_A_RUN, RATIO_OF_A_RUN), counts, strict=True)]


def grids_of(studies):
    """(name, studies) of each method that is on all grids, of the runs and of the pilots."""
    for pilot in (False, True):
        mine = [each for each in studies if each.env.startswith(populations.PILOT) is pilot and each.reference]
        every = len({each.env for each in mine})
        for variant in dict.fromkeys(each.variant for each in mine):
            several = [each for each in mine if each.variant == variant]
            if len(several) == every:
                yield f"{'pilot ' * pilot}all grids/{variant}", several


def tasks():
    """Functions with their arguments that give the rows of the table, in its order."""
    studies, numbers = populations.studies(), populations.numbers_of_runs()
    for study in studies:
        sizes = study.sizes if study.reference else {(1, n_episodes) for _, n_episodes in study.sizes}
        yield from ((of_study, study, *size, N) for size in sizes)
    for name, several in grids_of(studies):
        yield from ((over_grids, name, several, *size, N) for size in several[0].sizes)
    for name, sd in numbers.items():
        reference = numbers[f"{name.partition('/')[0]}/{REFERENCE}"]
        yield from ((of_runs, name, sd, reference, n_seeds, N) for n_seeds, _ in populations.SIZES)
    for study in populations.development()[::7]:
        yield from ((of_study, study, *size, N_DEVELOPMENT) for size in study.sizes)


def of_task(function, *arguments):
    return function(*arguments)


def main():
    work = list(tasks())
    rows = dict(tqdm(pool.finished(of_task, work), desc="coverage", unit="design", total=len(work)))
    table = pd.DataFrame([row for number in range(len(work)) for row in rows[number]], columns=COLUMNS)
    write_csv(table, config.root() / "results" / "intervals.csv")
    used = table[table["used_by"] != ""].groupby(["statistic", "seeds"], sort=False)["coverage"]
    print(used.describe(percentiles=[0.05, 0.5, 0.95]).round(3).to_string())


if __name__ == "__main__":
    main()
