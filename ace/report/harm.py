"""What a policy loses where reconnection alone survives, and what it gains elsewhere ("do no harm"), on the test episodes.

Where an opponent acts, whether reconnection survives an episode is in part the luck of the attacks: counted on the same draw, it
would regress to its mean, and any method would seem to lose. So each episode has a weight p, the share of other draws of the
opponent that reconnection survived, and the draw that all methods have played decides the rest:

    loss = sum p (reconnect - method) / sum p          gain = sum (1 - p) (method - reconnect) / sum (1 - p)

Without an opponent p is 1 or 0, whether reconnection survived. With the standard deviation of the seeds and no interval: few
episodes have a large p, most seeds lose nothing in them, and intervals of such numbers did not hold what they promise.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from ace.report import notes
from ace.report.formatting import value_with_std, write_csv, write_parts
from ace.report.labels import grid_label, label

BASE = "reconnect"
COLUMNS = ["env", "variant", "surviving", "loss", "loss_sd", "gain", "gain_sd", "n_seeds", "n_episodes", "scale"]
HEAD = ["Method", "Loss where reconnection survives", "Gain elsewhere", "n"]


def weights(runs, env):
    """(E,) share of the draws in which reconnection alone survives each test episode; None where that is not known: an
    opponent acts, and no other draws of it were played."""
    base = runs.of(env, BASE)[0]
    if not base.manifest.get("environment", {}).get("opponent"):
        return (base.episodes["survival"].to_numpy(float) >= 1).astype(float)
    return None if base.redraws is None else (base.redraws >= 1).mean(axis=0)


def loss_and_gain(scores, base, p):
    """(loss, gain), each (S,) points, of scores (S, E) against base (E,), both in percent; nan where no episode counts.

    p: (E,) as of `weights`.
    """
    change = np.asarray(scores, float) - np.asarray(base, float)
    with np.errstate(invalid="ignore"):
        return -(change * p).sum(axis=1) / p.sum(), (change * (1 - p)).sum(axis=1) / (1 - p).sum()


def write_harm(runs, folder):
    """<folder>/harm.{csv,md,tex}: a row for each trained method and grid. Returns the table."""
    rows, parts = [], {}
    for env in runs.environments_of([BASE]):
        p, base = weights(runs, env), runs.scores(env, BASE, "survival")[0]
        trained = [v for v in runs.methods_of(env) if runs.of(env, v)[0].training is not None]
        for variant in trained if p is not None else []:
            scores = runs.scores(env, variant, "survival")
            found = [(each.mean(), each.std(ddof=1) if len(each) > 1 else np.nan) for each in loss_and_gain(scores, base, p)]
            rows.append([env, variant, p.sum(), *found[0], *found[1], *scores.shape, runs.scale])
            said = [value_with_std(*each) for each in found]
            parts.setdefault(f"{grid_label(env)}: reconnection survives {p.sum():.3g} of {len(p)}", (HEAD, []))[1].append(
                [label(variant), *said, f"{scores.shape[0]} x {scores.shape[1]}"]
            )
    table = pd.DataFrame(rows, columns=COLUMNS)
    write_csv(table, Path(folder) / "harm.csv")
    write_parts(folder, "harm", f"Loss where reconnection alone survives, {runs.tested()}", parts, notes.note("main.harm"))
    return table
