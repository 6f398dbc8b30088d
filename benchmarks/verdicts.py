"""The verdicts that the claims got at a commit, to be shown with today's.

    python -m benchmarks.verdicts

Writes ace/report/verdicts_before.csv (id, measured, verdict) from results/paper/90_claims/claims.csv as it was at COMMIT, the
last one with bootstrap intervals; the claims' table shows both. Needs the history of git back to that commit.
"""

import io
import subprocess

import pandas as pd

from ace import config
from ace.report.claims import BEFORE
from ace.report.formatting import write_csv

COMMIT, TABLE = "8446960ea8112e6bf6116b158eeb4a4fb102dfb7", "results/paper/90_claims/claims.csv"


def main():
    shown = subprocess.run(["git", "show", f"{COMMIT}:{TABLE}"], cwd=config.root(), capture_output=True, text=True)
    if shown.returncode:
        raise SystemExit(f"no {TABLE} at commit {COMMIT}: fetch the history with `git fetch --unshallow`")
    write_csv(pd.read_csv(io.StringIO(shown.stdout))[["id", "measured", "verdict"]], BEFORE)


if __name__ == "__main__":
    main()
