"""How often a 95 % interval of a paired difference leaves out 0 where there is no difference.

    python -m benchmarks.intervals

Both methods get the same episodes; seeds and episodes vary as much as each other. Prints a table and writes
results/intervals.csv: seeds, episodes, share_excluding_zero, n. No power flow is involved.
"""

import numpy as np
import pandas as pd

from ace import config, stats

EPISODES, DRAWS, RESAMPLES = 30, 400, 400


def exclusions(seeds, rng):
    """Share of draws whose interval leaves out 0."""
    out = 0
    for _ in range(DRAWS):
        ease = rng.normal(size=EPISODES)
        a, b = (ease + rng.normal(size=(seeds, 1)) + 0.5 * rng.normal(size=(seeds, EPISODES)) for _ in range(2))
        found = stats.paired_difference(a, b, resamples=RESAMPLES)
        out += not found.low <= 0 <= found.high
    return out / DRAWS


def main():
    rng = np.random.default_rng(0)
    rows = [{"seeds": s, "episodes": EPISODES, "share_excluding_zero": exclusions(s, rng), "n": DRAWS} for s in (3, 5, 10)]
    table = pd.DataFrame(rows)
    print(table.to_string(index=False))
    table.to_csv(config.root() / "results" / "intervals.csv", index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
