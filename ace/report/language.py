"""The language model's table: what each proposer is good for, by grid, and what the model alone adds to doing nothing.

The rates were measured by the stages language_model (results/language_model/<env>/rates.csv) and are only put together
here. alone_minus_do_nothing is made from the run files of llm_only and reconnect, where both are in the declared grid.
"""

from pathlib import Path

import pandas as pd

from ace.report import stats
from ace.report.runs import ReportError, declared, named, read
from ace.report.typeset import markdown, with_interval, write_csv, write_text

COLUMNS = ["grid", "proposer", "metric", "value", "ci_low", "ci_high", "n_states"]
ALONE, REFERENCE = "llm_only", "reconnect"
NOTE = (
    "one_proposal, five_rounds: share of the held-out states in which a proposal gains more reward than doing nothing "
    "does, by the margin of a refinement, both simulated; only states in which some action would. The held-out states are "
    "taken from validation episodes in their order, played by all of the corpus's behaviours, at most eight from each; "
    "the intervals take them as independent, and are too narrow for it (some ten scenarios of one or two source days, of "
    "wcci2022 the training's). random draws from all actions alike, with replacement, and may repeat itself in five "
    "rounds, the model may not. critic_sign: share of g_LLM's adjustments whose sign is that of the counterfactual, by "
    "the way in which key decisions are selected; _index: actions shown as bare indices; proposer majority always gives "
    "the more frequent sign, random is a coin. lora_gain: paired difference of one_proposal after and before LoRA rounds "
    "under a shift. alone_minus_do_nothing: points of survival, paired over test episodes (its n counts episodes), "
    "against doing nothing with line reconnection. Intervals: 95 % bootstrap, of critic_sign over episodes."
)


def rates(params, results):
    """All rates.csv of the declared environments, one below the other, or ReportError where one is missing."""
    tables = []
    for env in params.grid.environments:
        path = Path(results) / "language_model" / env / "rates.csv"
        if not path.is_file():
            raise ReportError(f"no results/language_model/{env}/rates.csv: run `dvc repro language_model@{env}`")
        table = pd.read_csv(path)
        if list(table.columns) != COLUMNS:
            raise ReportError(f"results/language_model/{env}/rates.csv is old: run `dvc repro language_model@{env}`")
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def alone(params, results):
    """Rows with COLUMNS of alone_minus_do_nothing, in points of survival; none where a variant is not declared."""
    if not {ALONE, REFERENCE} <= set(declared(params)):
        return []
    runs = read(params, results, [ALONE, REFERENCE])
    rows = []
    for env in runs.environments:
        ours, reference = (runs.scores(env, variant, "survival") for variant in (ALONE, REFERENCE))
        rows.append([env, "model", "alone_minus_do_nothing", *stats.paired_difference(ours, reference), ours.shape[1]])
    return rows


def write_language_model(params, results):
    """Writes tables/language_model.{csv,md} under results. Returns the table."""
    table = rates(params, results)
    more = alone(params, results)
    if more:
        table = pd.concat([table, pd.DataFrame(more, columns=COLUMNS)], ignore_index=True)
    folder = Path(results) / "tables"
    write_csv(table, folder / "language_model.csv")
    rows = [
        [named(params, r.grid), r.proposer, r.metric, with_interval(r.value, r.ci_low, r.ci_high, 3), str(r.n_states)]
        for r in table.itertuples()
    ]
    text = markdown(["Grid", "Proposer", "Metric", "Value [95 %]", "n"], rows)
    write_text(folder / "language_model.md", f"# The language model, scale {params.scale}\n\n{text}\n{NOTE}\n")
    return table
