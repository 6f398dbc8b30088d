"""The paper's claims C1 to C14: what it says, by what criterion we judge, what we measured, and the verdict.

The criteria were written down before the runs they judge, by sign and size; code applies them (`ace/report/measure.py`).
Five changes came afterwards. C5 and C6: seconds a step of the test in place of its seconds, because a policy that loses the
grid early is done early. C3, after its numbers were known: refinements of ace_rbar_zero in place of ace, whose settings and
not its learning decide the number. wcci2022, whose test scenarios were of its training day, counted for no claim, after ACE and
SAC had been run there; since it is tested on weeks of its own it counts again (C1, C2 and whatever is measured on all grids),
before any run on weeks. Where the paper gives an effect, the size asked for is at least half of it. The paper's full text was
not available: values are those that could be found, and a second-hand source is named as such.

`python -m ace.report.claims` prints the table of the present workspace, with a folder that of another (`quick`).
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from ace.report import measure
from ace.report.claims_text import full_markdown, print_claims, summary_line, update_readme
from ace.report.formatting import markdown, thousands, with_interval, write_csv, write_text
from ace.report.labels import grid_label, label
from ace.report.runs import ReportError, read, tested
from ace.report.tables import write_numbers

PAPER = "ICML 2025, arXiv 2506.02522"
COLUMNS = ["id", "claim", "paper_value", "source", "measured", "ci_low", "ci_high", "n", "scale", "test"]
COLUMNS += ["criterion", "verdict", "evidence"]
NUMBERS = ["measured", "ci_low", "ci_high"]
LITERAL = "ace_literal"
WITHOUT_CLONING = ("sac", "ace_no_actor")  # hold nothing to clone: LITERAL differs from them by its mechanisms alone
# ACE against plain SAC trained for longer, with fewer or as many environment steps as ACE takes in all, and with many more; both
# trained for longer
LONGER = (("ace", "sac_5k"), ("ace", "sac_20k"), ("ace_long", "ace_long_sac"))
WRITTEN = Path("paper") / "90_claims"  # under results/


@dataclass(frozen=True)
class Claim:
    """measure: Runs -> Measured, or raises NotTested. unit: of measured."""

    id: str
    claim: str
    paper_value: str
    source: str
    criterion: str
    unit: str
    measure: callable


CLAIMS = [
    Claim(
        "C1",
        "Best gain of ACE over expert-guided RL",
        "up to +145 %",
        f"{PAPER}; second hand: Table 1, WCCI 2022",
        "In the environment with the largest gain ace survives more than "
        "expert_sac with an interval above 0; size: at least 72.5 % more. Survival is our reading, the paper's metric is "
        "not known. The interval takes no account of the choice of the largest.",
        "% more survival",
        partial(measure.best_gain, better="ace", worse="expert_sac", metric="survival", size=72.5),
    ),
    Claim(
        "C2",
        "Survival of ACE against plain RL",
        "77 % against 39.5 %",
        f"{PAPER}; one table, number not known to us",
        "Survival of ace minus sac on identical test episodes, averaged over the environments, "
        "has an interval above 0; size: at least 18.75 points, half of the paper's 37.5.",
        "pts above SAC",
        partial(measure.difference, better="ace", worse="sac", metric="survival", size=18.75),
    ),
    Claim(
        "C3",
        "Refinements that ACE needs",
        "287 to 682",
        f"{PAPER}; table not known to us",
        "The mean number of refined samples a run of ace_rbar_zero uses lies between 287 and 682: in every environment "
        "reproduced, in some partly, in none not reproduced. It refines every bad case of a mini-batch, as the paper "
        "does; ace itself at most 8, which alone would decide its number.",
        "a run (ace_rbar_zero)",
        partial(measure.count, variant="ace_rbar_zero", metric="refinements", low=287, high=682),
    ),
    Claim(
        "C4",
        "Samples that expert-guided RL needs",
        "more than 100,000",
        f"{PAPER}; second hand: Table 1, 100K to 200K",
        "expert_100k, which is expert_sac trained for longer, reaches its best validation survival only after more than "
        "100,000 environment steps, interval above that.",
        "environment steps (expert_100k)",
        partial(measure.samples_to_best, variant="expert_100k", at_least=100_000),
    ),
    Claim(
        "C5",
        "Test time, expert-guided RL against ACE",
        "1.19 (46.1 s / 38.7 s)",
        f"{PAPER}; second hand: Table 1",
        "Seconds a step of the test, expert_sac over ace, have an interval above 1; size: at least 1.095, half of the "
        "paper's excess of 0.19. By the step, as who loses the grid early is done early.",
        "times ACE's seconds a step",
        partial(measure.test_seconds_ratio, slow="expert_sac", fast="ace", size=1.095),
    ),
    Claim(
        "C6",
        "Test time with an LLM in the loop",
        "over 26 (1000 s / 38.7)",
        f"{PAPER}; second hand: Table 1, 1480.8 s to thousands",
        "Seconds a step of the test, llm_only over ace, have an interval above 1; size: at least 12.9, half of "
        "1000 / 38.7. The embedded model is some 10,000 times smaller than the paper's.",
        "times ACE's seconds a step",
        partial(measure.test_seconds_ratio, slow="llm_only", fast="ace", size=12.9),
    ),
    Claim(
        "C7",
        "Training overhead of the LLM",
        "1 h 48 min for 508 calls",
        f"{PAPER}; second hand: Table 4, NeurIPS 2020",
        "Seconds an inference of ace with a 7B model (by its name, base.llm.model) lie within a factor of 2 of 12.8. The "
        "embedded model's are no test of it and are only reported.",
        "s an inference",
        partial(measure.seconds_per_call, variant="ace", model="7B", low=6.4, high=25.5),
    ),
    Claim(
        "C8",
        "Episode reward of ACE, WCCI 2020",
        "1.445 (69.8 / 48.3)",
        f"{PAPER}; second hand: Table 2",
        "The paper's unit of reward is not known, so the ratio to the row without f_LLM is judged (paper 1.445): "
        "episode reward, ace over ace_no_actor on wcci2020, has an interval above 1; size: at least 1.22.",
        "times that without f_LLM",
        partial(measure.ratio, above="ace", below="ace_no_actor", metric="reward", size=1.22, envs=["wcci2020"]),
    ),
    Claim(
        "C9",
        "Reward lost without f_LLM, WCCI 2020",
        "30.8 % (69.8 to 48.3)",
        f"{PAPER}; second hand: Table 2",
        "Loss of episode reward from ace to ace_no_actor on wcci2020, in percent of ace's, has an interval above 0; "
        "size: at least 15 %. The same two arms as C8.",
        "% less reward than ACE",
        partial(measure.loss, full="ace", without=["ace_no_actor"], metric="reward", size=15.0, envs=["wcci2020"]),
    ),
    Claim(
        "C10",
        "Refined samples at r̄ = 0.3 and -0.3",
        "6.1 (510 / 83)",
        f"{PAPER}; second hand: Table 3",
        "Refined samples a run, ace_rbar_pos over ace_rbar_neg, have an interval above 1; size: at least 3.07, half "
        "of the paper's ratio of 6.1. Both refine every bad case of a mini-batch, as the paper does.",
        "times the count at -0.3",
        partial(measure.ratio, above="ace_rbar_pos", below="ace_rbar_neg", metric="refinements", size=3.07),
    ),
    Claim(
        "C11",
        "r̄ = 0 is best, the extremes lose",
        "about 6 %",
        f"{PAPER}; second hand: Table 3",
        "The smaller of the two losses of survival, from ace_rbar_zero to ace_rbar_pos and to ace_rbar_neg, in percent "
        "of ace_rbar_zero's, has an interval above 0; size: at least 3 %. All three refine every bad case of a "
        "mini-batch. Survival is our reading.",
        "% lost at the better extreme",
        partial(
            measure.loss, full="ace_rbar_zero", without=["ace_rbar_pos", "ace_rbar_neg"], metric="survival", size=3.0
        ),
    ),
    Claim(
        "C12",
        "Survival without fine-tuning the LLM",
        "plateau at about 77 %",
        f"{PAPER}; second hand: Table 3, +10.9 % after fine-tuning",
        "Survival of ace minus ace_no_finetune has an interval above 0; size: ace_no_finetune itself survives 67 to "
        "87 %.",
        "pts above no fine-tuning",
        partial(measure.gain_to_level, full="ace", without="ace_no_finetune", metric="survival", level=(67.0, 87.0)),
    ),
    Claim(
        "C13",
        "Trajectories chosen by action are worst",
        "clearly (an order)",
        f"{PAPER}, Table 3",
        "The smaller of the two differences in survival, ace (selects by reward) and ace_select_state minus "
        "ace_select_action, has an interval above 0; size: at least 2 points.",
        "pts, the smaller lead",
        partial(
            measure.smallest_difference,
            better=["ace", "ace_select_state"],
            worse="ace_select_action",
            metric="survival",
            size=2.0,
        ),
    ),
    Claim(
        "C14",
        "LLM query rate matters less on unseen",
        "gap narrows (288 of 576)",
        f"{PAPER}; figure not known to us",
        "The gap in survival between ace_query_high and ace_query_low, less the gap between ace_half_query_high and "
        "ace_half_query_low (trained on half of the scenarios), has an interval above 0. No size is claimed. A weak "
        "test: a run plays some 150 episodes, all arms are tested on unseen weeks, and the language model's corpus is the "
        "same, of all training weeks.",
        "pts that the gap narrows",
        partial(
            measure.narrowing,
            wide=["ace_query_high", "ace_query_low"],
            narrow=["ace_half_query_high", "ace_half_query_low"],
            metric="survival",
        ),
    ),
]


def evaluate(runs, ids=None):
    """Judge the claims. runs: `runs.read`; ids: a selection, default all. Returns a table, a row a claim."""
    rows = []
    for claim in [claim for claim in CLAIMS if not ids or claim.id in ids]:
        try:
            measured, n, verdict, evidence = claim.measure(runs)
            evidence += _literal(claim, runs) + _longer(claim, runs)
        except measure.NotTested as reason:
            measured, n, verdict, evidence = (None, None, None), "", "not tested", f"not tested: {reason}"
        said = [claim.id, claim.claim, claim.paper_value, claim.source]
        rows.append([*said, *measured, n, runs.scale, runs.test, claim.criterion, verdict, evidence])
    return _with_units(pd.DataFrame(rows, columns=COLUMNS))


def _literal(claim, runs):
    """The same measure for ACE with the paper's loss alone, without our cloning term, where that was run."""
    names = ("better", "above", "full")
    swapped = {name: LITERAL for name in names if claim.measure.keywords.get(name) == "ace"}
    others = {claim.measure.keywords.get(name) for name in ("worse", "below")} - {None}
    others |= set(claim.measure.keywords.get("without", []))
    if not swapped or LITERAL not in runs.variants or not others <= set(WITHOUT_CLONING):
        return ""
    try:
        (value, low, high), _, verdict, _ = claim.measure(runs, **swapped)
    except measure.NotTested as reason:
        return f"; with the paper's loss alone ({LITERAL}): not tested ({reason})"
    return f"; with the paper's loss alone ({LITERAL}): {value:.3g} [{low:.3g}, {high:.3g}], {verdict}"


def _longer(claim, runs):
    """The same measure between runs that had more decisions, where they were made: as evidence, and not judged."""
    if claim.measure.keywords.get("worse") != "sac":
        return ""
    text = ""
    for better, worse in [pair for pair in LONGER if {*pair} <= {*runs.variants}]:
        (value, low, high), n, _, evidence = claim.measure(runs, better=better, worse=worse)
        text += f"; {better} against {worse}: {value:.3g} [{low:.3g}, {high:.3g}] ({n}; {evidence})"
    return text


BY_GRID = ["Grid", "Compared", "Survival, %", "Difference [95 % CI]", "Verdict of this row alone", "Env. steps to train", "Seeds"]


def by_grid(runs):
    """What the evidence of C2 says, as a Markdown table: each pair that it compares, grid by grid."""
    (claim,) = (each for each in CLAIMS if each.id == "C2")
    rows = []
    for pair in (("ace", "sac"), (LITERAL, "sac"), *LONGER):
        for env in runs.environments_of(pair) if {*pair} <= {*runs.variants} else []:
            seeds = runs.seeds_of_all(env, pair)
            survival, steps = (
                [runs.scores(env, variant, metric, seeds).mean() for variant in pair]
                for metric in ("survival", "env_steps_to_train")
            )
            measured, _, verdict, _ = claim.measure(runs, better=pair[0], worse=pair[1], envs=[env])
            cells = [" and ".join(f"{value:.1f}" for value in survival), with_interval(*measured, 1, sign="+")]
            used = [" and ".join(map(thousands, steps)), str(len(seeds))]
            rows.append([grid_label(env), " minus ".join(map(label, pair)), *cells, verdict, *used])
    return markdown(BY_GRID, rows) if rows else ""


def write(params, results, folder):
    """Judge all claims on the declared grid; writes <folder>/claims.{csv,md} and numbers.json. Returns the table."""
    runs = read(params, results)
    table = evaluate(runs)
    write_csv(table[COLUMNS], Path(folder) / "claims.csv")
    text = f"# The paper's claims, {tested(params)}\n\n{summary_line(table)}\n\n"
    write_text(Path(folder) / "claims.md", text + full_markdown(table, {"C2": by_grid(runs)}))
    write_numbers(runs, {verdict: int((table["verdict"] == verdict).sum()) for verdict in measure.VERDICTS}, folder)
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
    units = {claim.id: claim.unit for claim in CLAIMS}
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
        print_claims(table)
        if "--readme" in arguments:
            changed = update_readme(workspace / "README.md", table)
            print("README.md: table renewed" if changed else "README.md: up to date")
    except (ReportError, ConfigError) as error:
        print(f"claims: {error}", file=sys.stderr)
        return 1
    print("\nWhere to look next:")
    for place, what in (
        ("report.html", "everything on one page, for a browser"),
        (WRITTEN / "claims.md", "the claims with criteria and evidence"),
        ("paper/10_table_main/main.md", "all methods with intervals and budgets"),
        ("paper/11_table_roles/ablation_roles.md", "with and without f_LLM and g_LLM"),
        ("paper/13_table_ablations/ablations.md", "ACE taken apart"),
        ("paper/30_open_questions/open_questions.md", "the open questions, each with an answer"),
        ("paper/20_figure_learning/learning_curves.png", "learning curves"),
        ("notebooks/", "the executed notebooks"),
    ):
        if (results / place).exists():
            print(f"  {Path(*given, 'results', place)!s:56} {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
