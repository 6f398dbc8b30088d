"""The paper's claims C1 to C14: what it says, by what criterion we judge, what we measured, and the verdict.

Claims and criteria stand in `contrasts.yaml`; code applies them (`ace/report/measure.py`, `verdicts.py`).

`python -m ace.report.claims` prints the table of the present workspace, with a folder that of another (`quick`).
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from ace import stats
from ace.report import contrasts, measure
from ace.report.claims_text import full_markdown, headline, print_claims, summary_line, update_readme
from ace.report.formatting import markdown, thousands, with_interval, write_csv, write_text
from ace.report.labels import grid_label, label
from ace.report.runs import ReportError, read
from ace.report.tables import write_numbers
from ace.report.verdicts import VERDICTS

COLUMNS = ["id", "claim", "paper_value", "source", "measured", "ci_low", "ci_high", "n", "scale", "test"]
# detectable: the smallest value that the contrast would have shown to differ from no effect with a probability of 80 %, of C3
# and C7 the smallest distance from their range; p: of "no effect", p_holm: corrected for the number of claims; verdict_before:
# see `before`
COLUMNS += ["criterion", "verdict", "evidence", "detectable", "p", "p_holm", "verdict_before"]
NUMBERS = ["measured", "ci_low", "ci_high", "detectable", "p", "p_holm"]
BEFORE = Path(__file__).with_name("verdicts_before.csv")
LITERAL = "ace_literal"
WITHOUT_CLONING = ("sac", "ace_no_actor")  # hold nothing to clone: LITERAL differs from them by its mechanisms alone
WRITTEN = Path("paper") / "90_claims"  # under results/


def evaluate(runs, ids=None):
    """Judge the claims. runs: `runs.read`; ids: a selection, default all. Returns a table, a row a claim."""
    rows = []
    for claim in [claim for claim in contrasts.load().claims if not ids or claim.id in ids]:
        said = [claim.id, claim.claim, claim.paper, claim.source]
        try:
            found, n, verdict, evidence, null = claim.measured(runs)
            evidence += _literal(claim, runs)
            ends, seen = [*found], [found.detectable(null or 0.0), np.nan if null is None else found.p(null)]
        except measure.NotTested as reason:
            ends, n, verdict, evidence, seen = [None] * 3, "", "not tested", f"not tested: {reason}", [np.nan] * 2
        rows.append([*said, *ends, n, runs.scale, runs.test(), claim.criterion, verdict, evidence, *seen])
    table = pd.DataFrame(rows, columns=COLUMNS[:-2])
    return _with_units(table.assign(p_holm=stats.holm(table["p"]), verdict_before=""))


def before(table, path=BEFORE):
    """verdict_before filled in: what the results before the campaign (packaged days, commit 1ba29be) got by today's intervals
    and verdicts; empty at another scale than theirs. verdict_earlier: by the intervals and verdicts of that time (8446960)."""
    earlier = pd.read_csv(path).set_index("id").reindex(table["id"])
    same = np.equal(table["scale"].to_numpy(), earlier["scale"].to_numpy())
    rules = {"verdict_earlier": "earlier", "verdict_before": "anew"}
    return table.assign(**{name: np.where(same, earlier[column].fillna(""), "") for name, column in rules.items()})


def _literal(claim, runs):
    """The same measure for ACE with the paper's loss alone, without our cloning term, where that was run."""
    names = ("better", "above", "full")
    swapped = {name: LITERAL for name in names if claim.arguments.get(name) == "ace"}
    others = {claim.arguments.get(name) for name in ("worse", "below")} - {None}
    without = claim.arguments.get("without", [])
    others |= {without} if isinstance(without, str) else {*without}
    if not swapped or LITERAL not in runs.variants or not others <= set(WITHOUT_CLONING):
        return ""
    try:
        (value, low, high), _, verdict, *_ = claim.measured(runs, **swapped)
    except measure.NotTested as reason:
        return f"; with the paper's loss alone ({LITERAL}): not tested ({reason})"
    return f"; with the paper's loss alone ({LITERAL}): {value:.3g} [{low:.3g}, {high:.3g}], {verdict}"


BY_GRID = ["Grid", "Compared", "Survival, %", "Difference [95 % CI]", "Verdict of this row alone", "Env. steps to train", "Seeds"]


def by_grid(runs):
    """What the evidence of C2 says, as a Markdown table: each pair that it compares, grid by grid."""
    (claim,) = (each for each in contrasts.load().claims if each.id == "C2")
    rows = []
    for pair in (("ace", "sac"), (LITERAL, "sac")):
        for env in runs.environments_of(pair) if {*pair} <= {*runs.variants} else []:
            seeds = runs.seeds_of_all(env, pair)
            survival, steps = (
                [runs.scores(env, variant, metric, seeds).mean() for variant in pair]
                for metric in ("survival", "env_steps_to_train")
            )
            measured, _, verdict, *_ = claim.measured(runs, better=pair[0], worse=pair[1], envs=[env])
            cells = [" and ".join(f"{value:.1f}" for value in survival), with_interval(*measured, 1, sign="+")]
            used = [" and ".join(map(thousands, steps)), str(len(seeds))]
            rows.append([grid_label(env), " minus ".join(map(label, pair)), *cells, verdict, *used])
    return markdown(BY_GRID, rows) if rows else ""


def write(params, results, folder):
    """Judge all claims on the declared grid; writes <folder>/claims.{csv,md} and numbers.json. Returns the table."""
    runs = read(params, results)
    table = before(evaluate(runs))
    write_csv(table[COLUMNS], Path(folder) / "claims.csv")
    text = f"# The paper's claims, {runs.tested()}\n\n{summary_line(table)}\n\n"
    write_text(Path(folder) / "claims.md", text + full_markdown(table, {"C2": by_grid(runs)}))
    write_numbers(runs, {verdict: int((table["verdict"] == verdict).sum()) for verdict in VERDICTS}, folder)
    return table


def read_written(results):
    """results/paper/90_claims/claims.csv, as `write` left it."""
    path = Path(results) / WRITTEN / "claims.csv"
    if not path.is_file():
        workspace = Path(results).parent.resolve().name
        raise ReportError(f"no results/{WRITTEN}/claims.csv in {workspace}: run `make quick` or `make repro`")
    empty = dict.fromkeys(NUMBERS, "")  # elsewhere an empty cell is an empty text
    return _with_units(pd.read_csv(path, dtype={"n": str}, keep_default_na=False, na_values=empty))


def _with_units(table):
    units = {claim.id: claim.unit for claim in contrasts.load().claims}
    return table.assign(unit=table["id"].map(units)).astype(dict.fromkeys(NUMBERS, float))


def main(arguments=None):
    """Print the claims of a workspace and where to look next; --readme also renews README's table. Exit code."""
    from ace.config import ConfigError, root

    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        given = [argument for argument in arguments if argument != "--readme"]
        if unknown := [argument for argument in given if not Path(argument).is_dir()] or given[1:]:
            raise ReportError(f"unknown argument {unknown[0]}; there are --readme and the folder of a workspace")
        workspace = Path(given[0]) if given else root()
        results = workspace / "results"
        table = read_written(results)
        print("".join(f"{line}\n" for line in headline(results)))
        print_claims(table)
        if "--readme" in arguments:
            changed = update_readme(workspace / "README.md", table)
            print("README.md: table renewed" if changed else "README.md: up to date")
    except (ReportError, ConfigError) as error:
        print(f"claims: {error}", file=sys.stderr)
        return 1
    print("\nWhere to look next:")
    for place, what in (
        ("paper/10_table_main/main_figure.png", "survival in the test, by method, with intervals"),
        ("report.html", "everything on one page, for a browser"),
        ("paper/10_table_main/main.md", "all methods with intervals and budgets"),
        (WRITTEN / "claims.md", "the claims with criteria and evidence"),
        ("paper/20_figure_learning/learning_curves.png", "learning curves, on validation"),
        ("notebooks/", "the executed notebooks"),
    ):
        if (results / place).exists():
            print(f"  {Path(*given, 'results', place)!s:56} {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
