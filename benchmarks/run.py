"""`make bench`: all benchmarks, printed as a table and written to results/benchmarks.csv."""

import json
from itertools import chain

import pandas as pd

from ace import config
from benchmarks import learning, whatif
from benchmarks.whatif import _row

COLUMNS = ["name", "value", "unit", "reference", "reference_value", "ratio", "n", "machine"]


def show(row):
    ratio = "" if row["ratio"] is None else f"{row['ratio']:8.3g}"
    print(
        f"{row['name']:24s} {row['value']:12.5g} {row['unit']:28s} {row['reference']:46s} {row['reference_value']:10.5g} {ratio}",
        flush=True,
    )


def quick(root):
    """The row of the last `make quick` that ran every stage, as the workspace noted it; none without."""
    path = root / "quick/minutes.json"
    if not path.is_file():
        print("quick_min: not measured; `rm -rf quick && make quick` notes it, then `make bench` again")
        return
    noted = json.loads(path.read_text())
    yield _row("quick_min", noted["minutes"], f"min, {noted['stages']} stages", "bar", 10, noted["minutes"] / 10, 1)


def main():
    root, table = config.root(), []
    for row in chain(quick(root), learning.rows(), whatif.rows()):
        show(row)
        table.append(row)
    path = root / "results" / "benchmarks.csv"
    pd.DataFrame(table, columns=COLUMNS).to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
    print(f"written: {path.relative_to(root)}")


if __name__ == "__main__":
    main()
