"""The populations in which the coverage of intervals is measured: every committed cell, fitted by moments.

A score is 100 exp(min(x, 0)) percent of survival, x = mean + seed + episode + rest, the three effects normal and independent
(crossed random effects, censored at the end of the episode). The rule was written down before any coverage in these populations
was computed:

- every cell with two seeds or more in results/runs/ (main table and ablations) and in results/learner_pilot_episodes.csv.gz (draw
  0); and every method without seeds, for its own mean;
- mean and standard deviation of x by the mean survival and the share of episodes at 100 %, which is taken to be at least half an
  episode and at most all but half of one;
- how it divides into seeds, episodes and rest by the shares of the three components of variance of survival (crossed analysis of
  variance, negative components 0), the covariance of two scores with a common effect being that of two censored normals;
- a method is compared with `ace` of its grid, `ace` with `sac`, and each with `reconnect`, which has no seeds. The correlation of
  both methods' episode effects is that which gives the covariance of the episodes' means, within 0 to 1;
- all are simulated with the seeds and episodes of the tables (SIZES); cells of fewer seeds, of which there were none then, with
  their own number of them;
- numbers of a run are log-normal, with the standard deviation of the logarithm of the refinements of each cell.

Rewards were at first simulated as survival. After greedy's mean reward had a coverage of 90 % so, they are survival times a
factor of the week, normal around 1 and the same for all seeds, whose relative standard deviation is that of the cell's reward a
step in episodes survived in full. An approximation: a blackout costs more than its steps, and where reward is high more survives.

A cell in which no episode fails has no interval and no fit.

Methods and constants of `ace.stats` were chosen on a development set that shares no number with these fits (`development`);
results/intervals.csv has every seventh of its populations.
"""

import itertools
import json
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.stats import norm

from ace import config
from ace.stats import residual

PILOT = "pilot"  # before the grid's name, of the learner pilots
REFERENCE, OF_REFERENCE, BASELINE = "ace", "sac", "reconnect"
DEVELOPMENT = "development"
DEVELOPMENT_SIZES = [(2, 30), (3, 30), (5, 30), (8, 50), (10, 50), (10, 100)]
SIZES = [(8, 50), (10, 50)]  # seeds and episodes
NODES = norm.ppf((np.arange(2000) + 0.5) / 2000)  # of the standard normal distribution, equally probable


class Population(NamedTuple):
    """Of x: its mean, and the standard deviations of the effects of seeds and episodes and of the rest."""

    mean: float
    seed: float
    episode: float
    rest: float

    @property
    def sd(self):
        return float(np.hypot(np.hypot(self.seed, self.episode), self.rest))


def has_few(n_seeds):
    """Whether a cell of so many seeds has fewer than SIZES; a method without seeds has not."""
    return 1 < n_seeds < SIZES[0][0]


class Study(NamedTuple):
    """A method of a grid, with what it is compared with, and the correlations of their episode effects with its own.

    reference and baseline are None, and their correlations nan, of a method without seeds. of_reward: relative standard
    deviation of the reward of a week; nan of a pilot. few: the number of seeds of a cell that has fewer than SIZES; else 0.
    """

    env: str
    variant: str
    method: Population
    reference: Population | None = None
    with_reference: float = np.nan
    baseline: Population | None = None
    with_baseline: float = np.nan
    of_reward: float = np.nan
    few: int = 0

    @property
    def name(self):
        return f"{self.env}/{self.variant}"

    @property
    def sizes(self):
        own = [(self.few, SIZES[0][1])] if self.few else SIZES
        return DEVELOPMENT_SIZES if self.env == DEVELOPMENT else own


def survival(mean, sd):
    """Mean of 100 exp(min(x, 0)) of a normal x, in percent."""
    return 100 * (norm.cdf(mean / sd) + np.exp(mean + sd**2 / 2 + norm.logcdf(-mean / sd - sd)))


def covariance(first, second, shared):
    """Of the survival of two scores whose x, each (mean, sd), are correlated by 0 <= shared < 1."""
    given = [survival(mean + np.sqrt(shared) * sd * NODES, np.sqrt(1 - shared) * sd) for mean, sd in (first, second)]
    return float(np.mean((given[0] - survival(*first)) * (given[1] - survival(*second))))


def components(scores):
    """Components of the variance of scores (S, E): seeds, episodes, rest; of one row all is the episodes'."""
    rows, columns = scores.shape
    if rows == 1:
        return np.array([0.0, scores.var(ddof=1), 0.0])
    rest = residual(scores)
    seeds = scores.mean(axis=1).var(ddof=1) - rest / columns
    return np.maximum([seeds, scores.mean(axis=0).var(ddof=1) - rest / rows, rest], 0)


def fitted(scores):
    """Population of scores (S, E) in percent."""
    least = 0.5 / scores.size
    z = norm.ppf(np.clip((scores >= 100).mean(), least, 1 - least))
    sd = np.exp(brentq(lambda log_sd: survival(z * np.exp(log_sd), np.exp(log_sd)) - scores.mean(), -12, 6))
    of = components(scores)
    whole = covariance((z * sd, sd), (z * sd, sd), 1 - 1e-9)
    shared = [_correlation((z * sd, sd), (z * sd, sd), share * whole) for share in of[:2] / of.sum()]
    shared = np.array(shared) / max(1.0, sum(shared))
    return Population(float(z * sd), *(float(sd * np.sqrt(r)) for r in shared), float(sd * np.sqrt(1 - sum(shared))))


def together(first, second, a, b):
    """Correlation of the episode effects of two populations that were fitted to a (S_a, E) and b (S_b, E)."""
    of_means = np.cov(a.mean(axis=0), b.mean(axis=0))[0, 1]
    possible = first.episode * second.episode / (first.sd * second.sd)
    if not possible:
        return 0.0
    return min(1.0, _correlation((first.mean, first.sd), (second.mean, second.sd), of_means) / possible)


def _correlation(first, second, wanted):
    """The correlation of two x for which `covariance` is as wanted, between 0 and almost 1."""
    most = 1 - 1e-6
    if wanted <= 0:
        return 0.0
    if covariance(first, second, most) <= wanted:
        return most
    return brentq(lambda shared: covariance(first, second, shared) - wanted, 0, most)


def cells():
    """(grid, variant) -> survival in percent (S, E) in the test of all committed cells; a pilot's grid starts with PILOT."""
    results, found = config.root() / "results", {}
    for path in sorted((results / "runs").glob("*/*/episodes.csv")):
        rows = pd.read_csv(path).query("split == 'test'")
        table = rows.pivot_table(index="seed", columns="episode", values="survival")
        found[path.parts[-3], path.parts[-2]] = 100 * table.to_numpy(float)
    pilots = pd.read_csv(results / "learner_pilot_episodes.csv.gz")
    for (env, variant), rows in pilots[pilots["draw"] == 0].groupby(["env", "variant"]):
        table = rows.pivot_table(index="seed", columns=["week", "start"], values="survival")
        found[f"{PILOT} {env}", variant] = 100 * table.to_numpy(float)
    return found


def of_rewards():
    """(grid, variant) -> relative standard deviation of the reward a step over the test episodes survived in full."""
    found = {}
    for path in sorted((config.root() / "results" / "runs").glob("*/*/episodes.csv")):
        full = pd.read_csv(path).query("split == 'test' and survival == 1")
        found[path.parts[-3], path.parts[-2]] = float((full["reward"] / full["survived_steps"]).agg(lambda x: x.std() / x.mean()))
    return found


def studies():
    """A Study of every committed cell in which an episode fails, in the order of `cells`."""
    scores = {key: each for key, each in cells().items() if each.min() < 100}
    fits = {key: fitted(each) for key, each in scores.items()}
    found, rewards = [], of_rewards()
    for (env, variant), own in scores.items():
        compared = []
        if len(own) > 1:
            for other in (OF_REFERENCE if variant == REFERENCE else REFERENCE, BASELINE):
                fit, theirs = fits[env, other], scores[env, other]
                compared += [fit, together(fits[env, variant], fit, own, theirs)]
        few = len(own) if has_few(len(own)) and not env.startswith(PILOT) else 0
        found.append(Study(env, variant, fits[env, variant], *compared, of_reward=rewards.get((env, variant), np.nan), few=few))
    return found


def numbers_of_runs():
    """Of each cell, "grid/variant": standard deviation, over the seeds, of the logarithm of its number of refinements."""
    found = {}
    for path in sorted((config.root() / "results" / "runs").glob("*/*/manifest.json")):
        seeds = json.loads(path.read_text(encoding="utf-8"))["seeds"].values()
        numbers = np.array([each.get("refinements") or 0 for each in seeds], dtype=float)
        if len(numbers) > 1 and numbers.all() and numbers.std():
            found["/".join(path.parts[-3:-1])] = float(np.log(numbers).std(ddof=1))
    return found


def development():
    """Studies of a generic grid: means of 25 to 95 % against 12 points less, three standard deviations of x, none to 70 % of its
    variance the seeds', 10 to 80 % the episodes', whose effects are correlated by 0.5 and 1 by turns."""
    found, grid = [], itertools.product((25, 55, 70, 87, 95), (0.8, 1.7, 3.4), (0, 0.05, 0.15, 0.4, 0.7), (0.1, 0.5, 0.8))
    for at, (mean, sd, seeds, episodes) in enumerate(grid):
        shares = np.array([seeds, min(episodes, 1 - seeds)])
        effects = sd * np.sqrt([*shares, max(0.0, 1 - shares.sum())])
        x, lower = (brentq(lambda x, m, sd: survival(x, sd) - m, -60, 60, args=(m, sd)) for m in (mean, mean - 12))
        shared = (0.5, 1.0)[at % 2]
        reference, baseline = Population(lower, *effects), Population(lower, 0.0, sd, 0.0)
        name = f"{mean} % sd {sd} seeds {seeds} episodes {episodes}"
        found.append(Study(DEVELOPMENT, name, Population(x, *effects), reference, shared, baseline, shared))
    return found
