"""What a policy loses where reconnection alone survives, and what it gains elsewhere ("do no harm"), on the test episodes.

Where an opponent acts, whether reconnection survives an episode is in part the luck of the attacks: counted on the same draw, it
would regress to its mean, and any method would seem to lose. So each episode has a weight p, the share of other draws of the
opponent that reconnection survived, and the draw that all methods have played decides the rest:

    loss = sum p (reconnect - method) / sum p          gain = sum (1 - p) (method - reconnect) / sum (1 - p)

Without an opponent p is 1 or 0, whether reconnection survived.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from ace import stats
from ace.report import notes
from ace.report.formatting import with_interval, write_csv, write_parts
from ace.report.labels import grid_label, label

BASE = "reconnect"
COLUMNS = ["env", "variant", "surviving", "loss", "loss_low", "loss_high", "gain", "gain_low", "gain_high"]
COLUMNS += ["n_seeds", "n_episodes", "scale"]
HEAD = ["Method", "Loss where reconnection survives [95 % CI]", "Gain elsewhere [95 % CI]", "n"]


def weights(runs, env):
    """(E,) share of the draws in which reconnection alone survives each test episode; None where that is not known: an
    opponent acts, and no other draws of it were played."""
    base = runs.of(env, BASE)[0]
    if not base.manifest.get("environment", {}).get("opponent"):
        return (base.episodes["survival"].to_numpy(float) >= 1).astype(float)
    return None if base.redraws is None else (base.redraws >= 1).mean(axis=0)


def loss_and_gain(scores, base, p):
    """(loss, gain), each an Estimate in points, of scores (S, E) against base (E,), both in percent; nan where no episode counts.

    p: (E,) as of `weights`. Both are ratios of means over the same episodes: one that is drawn more often counts in both.
    """
    change = np.asarray(scores, float) - base
    return weighted(-change * p, p), weighted(change * (1 - p), 1 - p)


def weighted(scores, weight):
    """Mean of scores / mean of weight, an Estimate; nan where no episode counts. scores: (S, E), weight (E,) taken in already."""
    if not weight.any():
        return stats.Estimate(np.nan)
    return stats.estimate([[scores, weight[None]]], lambda means: means[..., 0] / means[..., 1])


def write_harm(runs, folder):
    """<folder>/harm.{csv,md,tex}: a row for each trained method and grid. Returns the table."""
    rows, parts = [], {}
    for env in runs.environments_of([BASE]):
        p, base = weights(runs, env), runs.scores(env, BASE, "survival")[0]
        trained = [v for v in runs.methods_of(env) if runs.of(env, v)[0].training is not None]
        for variant in trained if p is not None else []:
            scores = runs.scores(env, variant, "survival")
            loss, gain = loss_and_gain(scores, base, p)
            rows.append([env, variant, p.sum(), *loss, *gain, *scores.shape, runs.scale])
            said = [with_interval(*each, 1, sign="+") for each in (loss, gain)]
            parts.setdefault(f"{grid_label(env)}: reconnection survives {p.sum():.3g} of {len(p)}", (HEAD, []))[1].append(
                [label(variant), *said, f"{scores.shape[0]} x {scores.shape[1]}"]
            )
    table = pd.DataFrame(rows, columns=COLUMNS)
    write_csv(table, Path(folder) / "harm.csv")
    write_parts(folder, "harm", f"Loss where reconnection alone survives, {runs.tested()}", parts, notes.note("main.harm"))
    return table
