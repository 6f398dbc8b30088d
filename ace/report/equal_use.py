"""ACE minus each other method with marks at equal use: the distance between their curves in the budget figure, at ACE's marks.

Between two of its marks the other method's survival is interpolated, linearly in the logarithm of what it had used (mean over the
seeds, `ace.report.budget`), as its line in the figure is. In equal_use.csv its policy of the last mark stands for all that comes
after; equal_use.md has a dash there.
"""

from itertools import product

import numpy as np
import pandas as pd

from ace import stats
from ace.report.budget import AXES, scores_at, used_at
from ace.report.formatting import in_points, markdown, thousands, write_table
from ace.report.labels import grid_label, label, method
from ace.report.notes import note

COLUMNS = ["env", "variant", "mark", "other", "measure", "used", "other_used", "survival", "other_survival"]
COLUMNS += ["difference", "difference_low", "difference_high", "detectable", "n_seeds", "n_episodes", "scale"]
MEASURES = ["decisions", "own_flows", *list(AXES)[1:]]
HEAD = ["Grid", "ACE minus, points", "Seeds", "ACE's decisions", "ACE's AC power flows", "at equal decisions"]
HEAD += ["AC power flows of the runs alone", "environment steps, corpus included", "AC power flows, corpus included"]


def equal_use(runs):
    """A row with COLUMNS for each mark of ACE, other method and measure (MEASURES); none where the other's first mark used more.

    other_used is less than used where the other's last mark is. All of it is of common seeds: survival in percent, differences in
    points with their paired 95 % interval.
    """
    rows = []
    for env in runs.environments:
        marked = {variant: runs.of(env, variant)[0].at_marks for variant in runs.methods_of(env)}
        of_ace = [variant for variant, marks in marked.items() if marks and method(variant) == "ace"]
        others = [variant for variant, marks in marked.items() if marks and variant not in of_ace]
        for ours, other in product(of_ace, others):
            common = runs.seeds_of_all(env, [ours, other])
            of_ours, of_other = runs.of(env, ours, common), runs.of(env, other, common)
            theirs = pd.DataFrame([used_at(mark, of_other) for mark in marked[other]])
            at_marks = np.stack([scores_at(mark, of_other) for mark in marked[other]])
            for mark in marked[ours]:
                own, a = used_at(mark, of_ours), scores_at(mark, of_ours)
                for measure in MEASURES:
                    used, theirs_used = own[measure], theirs[measure].to_numpy(float)
                    if used < theirs_used[0]:
                        continue
                    b = interpolated(used, theirs_used, at_marks)
                    found = stats.paired_difference(a, b)
                    said = [env, ours, mark, other, measure, used, min(used, theirs_used[-1]), a.mean(), b.mean()]
                    rows.append([*said, *found, found.detectable(), *a.shape, runs.scale])
    return pd.DataFrame(rows, columns=COLUMNS)


def interpolated(used, at, scores):
    """Scores (S, E) where `used` was used. at: (M,) use at the marks, ascending; scores: (M, S, E)."""
    place = np.interp(np.log(used), np.log(at), np.arange(len(at)))
    before, after = int(np.floor(place)), int(np.ceil(place))
    return scores[before] + (place - before) * (scores[after] - scores[before])


def write_equal_use(runs, folder):
    """<folder>/equal_use.{csv,md}; nothing where there is nothing to compare. Returns the rows of `equal_use`."""
    found = equal_use(runs)
    if len(found):
        write_table(folder, "equal_use", found, HEAD, cells(found), f"ACE at equal use, {runs.tested()}", note("budget.equal"))
    return found


def cells(found):
    """A row for each grid, other method and mark of ACE; "–" where the other's curve does not reach."""
    rows = []
    for (env, other, mark), here in found.groupby(["env", "other", "mark"], sort=False):
        reached = here[here["other_used"] == here["used"]]
        by = {row["measure"]: in_points(row, "difference") for _, row in reached.iterrows()}
        flows, seeds = here.set_index("measure")["used"].get("power_flows"), str(here["n_seeds"].iloc[0])
        flows = "–" if flows is None else thousands(flows)  # None: the other's first mark used more
        rows.append([grid_label(env), label(method(other)), seeds, thousands(mark), flows, *(by.get(m, "–") for m in MEASURES)])
    return rows


def as_markdown(found):
    """The table with its note; nothing where there is nothing to compare."""
    return f"{markdown(HEAD, cells(found))}\n{note('budget.equal')}\n" if len(found) else ""
