"""ACE minus each other method with marks at equal use: of decisions, environment steps or AC power flows.

The policy of a mark of ACE is compared with the other method's at the last mark by which that had used at most as much (means
over the seeds, `ace.report.budget`): where both can't be equal, the other method has used less.
"""

import pandas as pd

from ace import stats
from ace.report.budget import AXES, method, scores_at
from ace.report.formatting import in_points, markdown, thousands, write_table
from ace.report.labels import grid_label
from ace.report.notes import note
from ace.report.style import LONGER

COLUMNS = ["env", "variant", "mark", "other", "measure", "used", "other_mark", "other_used", "survival", "other_survival"]
COLUMNS += ["difference", "difference_low", "difference_high", "detectable", "n_seeds", "n_episodes", "scale"]
HEAD = ["Grid", "ACE minus", "Decisions of ACE", "at equal decisions", "at equal environment steps", "at equal AC power flows"]


def equal_use(runs, table):
    """A row with COLUMNS for each mark of ACE, other method and measure (AXES); none where the other's first mark has used more.

    table: of `budget.budget(runs)`. Survival in percent on common seeds, differences in points with their paired 95 % interval.
    """
    rows, known = [], dict(list(table.groupby(["env", "variant"], sort=False)))
    for (env, ours), marks in known.items():
        if LONGER.get(ours, ours) != "ace":
            continue
        for other in [variant for at, variant in known if at == env and variant != ours]:
            seeds = runs.seeds_of_all(env, [ours, other])
            for own in marks.itertuples():
                a = scores_at(runs, env, ours, own.mark, seeds)
                for measure in AXES:
                    used = getattr(own, measure)
                    within = known[env, other][known[env, other][measure] <= used]
                    if within.empty:
                        continue
                    last = within.iloc[-1]
                    b = scores_at(runs, env, other, last["mark"], seeds)
                    found = stats.paired_difference(a, b)
                    said = [env, ours, own.mark, other, measure, used, last["mark"], last[measure], a.mean(), b.mean()]
                    rows.append([*said, *found, found.detectable(), *a.shape, runs.scale])
    return pd.DataFrame(rows, columns=COLUMNS)


def write_equal_use(runs, table, folder):
    """<folder>/equal_use.{csv,md}; nothing where there is nothing to compare. Returns the rows of `equal_use`."""
    found = equal_use(runs, table)
    if len(found):
        write_table(folder, "equal_use", found, HEAD, cells(found), f"ACE at equal use, {runs.tested()}", note("budget.equal"))
    return found


def cells(found):
    """A row for each grid, other method and mark of ACE; in brackets the other's decisions."""
    rows = []
    for (env, other, mark), here in found.groupby(["env", "other", "mark"], sort=False):
        by = {row["measure"]: f"{in_points(row, 'difference')} ({thousands(row['other_mark'])})" for _, row in here.iterrows()}
        rows.append([grid_label(env), method(other), thousands(mark), *(by.get(measure, "–") for measure in AXES)])
    return rows


def as_markdown(found):
    """The table with its note; nothing where there is nothing to compare."""
    return f"{markdown(HEAD, cells(found))}\n{note('budget.equal')}\n" if len(found) else ""
