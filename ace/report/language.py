"""The language model's table: how good each proposer is, grid by grid, and what the model alone adds to doing nothing.

The rates were measured by the stages language_model (results/language_model/<env>/rates.csv), measure_rates
(results/studies/rates/<env>.csv: the same measure on more states, a classifier's, and with a new substation each
round) and lora (results/studies/lora/<env>.csv) and are only put together here. alone_minus_do_nothing is computed from the
run files of llm_only and reconnect, where both are in the declared grid.
"""

from pathlib import Path

import pandas as pd

from ace import stats
from ace.report import notes
from ace.report.formatting import latex, markdown, with_interval, write_csv, write_text
from ace.report.labels import grid_label
from ace.report.runs import ReportError, declared, read

COLUMNS = ["grid", "proposer", "metric", "value", "ci_low", "ci_high", "n_states"]
AS_RUN = "as_run"
"""The row of results/studies/lora/ with the settings of a run."""
ALONE, REFERENCE = "llm_only", "reconnect"
PROPOSERS = {
    "model": "Language model",
    "model_elsewhere": "Language model, new substation each round",
    "classifier": "Classifier on the same corpus",
    "classifier_elsewhere": "Classifier, new substation each round",
    "frequency": "Lookup table",
    "frequency_elsewhere": "Lookup table, new substation each round",
    "random": "Random action",
    "random_same_substation": "Random action, same substation",
}
SAME_FIRST = {"frequency_elsewhere", "classifier_elsewhere"}  # their first proposals are those without the rule
JUDGES = {"model": "Language model", "majority": "More frequent sign"}  # chance is 0.5
SHIFT = {  # (proposer, metric) -> what it says
    ("model_before_lora", "one_proposal"): "One proposal, before the LoRA rounds",
    ("model_after_lora", "one_proposal"): "One proposal, after the LoRA rounds",
    ("model_after_lora", "lora_gain"): "Gain from the LoRA rounds",
    ("model", "alone_minus_do_nothing"): "Alone, points of survival above reconnecting lines",
}
RATES = {"one_proposal": "One proposal [95 % CI]", "five_rounds": "Five rounds [95 % CI]"}
PROPOSALS_HEAD = ["Grid", "Proposer", *RATES.values(), "Held-out states"]


def rates(params, results):
    """All rates of the declared environments, one below the other, or ReportError where some are missing.

    Where the stage measure_rates has measured a rate of rates.csv again, on different states only, its row replaces that one;
    what it alone has measured comes last.
    """
    tables = []
    for env in params.grid.environments:
        table = _read(results, f"language_model/{env}/rates.csv", "02_language_model")
        again = _read(results, f"studies/rates/{env}.csv", "studies/rates_measure")
        keys = ["proposer", "metric"]
        first = pd.concat([again, table]).drop_duplicates(keys).set_index(keys, drop=False)
        order = pd.concat([table[keys], again[keys]]).drop_duplicates()
        tables.append(first.loc[pd.MultiIndex.from_frame(order)])
    return pd.concat(tables, ignore_index=True)


def _read(results, place, notebook):
    path = Path(results) / place
    if not path.is_file():
        raise ReportError(f"no results/{place}: run notebooks/{notebook}.ipynb")
    table = pd.read_csv(path)
    if list(table.columns) != COLUMNS:
        raise ReportError(f"results/{place} is old: run notebooks/{notebook}.ipynb")
    return table


def tried(params, results):
    """Rows with COLUMNS of the LoRA rounds by their settings, or ReportError where they were not measured."""
    rows = []
    for env in params.grid.environments:
        path = Path(results) / "studies" / "lora" / f"{env}.csv"
        table = pd.read_csv(path) if path.is_file() else pd.DataFrame({"setting": []})
        if list(table["setting"]) != [AS_RUN, *params.lora]:
            raise ReportError(f"results/studies/lora/{env}.csv is missing or old: run notebooks/studies/lora_measure.ipynb")
        for row in table.itertuples():
            measured = [row.value, row.ci_low, row.ci_high, row.n_states]
            rows.append([row.grid, row.proposer, f"{row.metric}_{row.setting}", *measured])
    return rows


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


def write_language_model(params, results, folder):
    """<folder>/language_model.{csv,md,tex} of what the stages measured. Returns the table; tex shows the proposals."""
    table = rates(params, results)
    more = tried(params, results) + alone(params, results)
    if more:
        table = pd.concat([table, pd.DataFrame(more, columns=COLUMNS)], ignore_index=True)
    folder, title = Path(folder), f"The language model, scale {params.scale}"
    write_csv(table, folder / "language_model.csv")
    rows, note = _proposal_rows(table), notes.note("language_model")
    parts = [f"# {title}", markdown(PROPOSALS_HEAD, rows), note]
    parts += ["## g_LLM", signs(table), notes.note("language_model.signs")]
    parts += ["## LoRA rounds in a shifted world", shift(table), notes.note("language_model.shift")]
    parts += ["## LoRA rounds with other settings", settings_tried(params, table), notes.note("language_model.settings")]
    write_text(folder / "language_model.md", "\n\n".join(part.strip() for part in parts) + "\n")
    write_text(folder / "language_model.tex", latex(PROPOSALS_HEAD, rows, title))
    return table


def proposals(table, metric):
    """One metric of all proposers, as Markdown; the shifted world's rates are not among them."""
    rows = [
        [grid_label(r.grid), PROPOSERS[r.proposer], with_interval(r.value, r.ci_low, r.ci_high, 3), str(r.n_states)]
        for r in table[table["metric"] == metric].itertuples()
        if r.proposer in PROPOSERS and (metric != "one_proposal" or r.proposer not in SAME_FIRST)
    ]
    return markdown(["Grid", "Proposer", f"{metric} [95 % CI]", "Held-out states"], rows)


def _proposal_rows(table):
    """Rows of PROPOSALS_HEAD: the RATES of all proposers that were measured."""
    rows = []
    for grid in dict.fromkeys(table["grid"]):
        for proposer, name in PROPOSERS.items():
            found = {metric: _row(table, grid, proposer, metric) for metric in RATES}
            if proposer in SAME_FIRST:
                found["one_proposal"] = None
            if not any(found.values()):
                continue
            cells = [with_interval(row.value, row.ci_low, row.ci_high, 3) if row else "" for row in found.values()]
            n = dict.fromkeys(str(row.n_states) for row in found.values() if row)
            rows.append([grid_label(grid), name, *cells, " / ".join(n)])
    return rows


def signs(table):
    """g_LLM's signs against chance, by the selection of key decisions and the form in which actions are shown, as Markdown.

    critic_sign by itself repeats the selection that the settings name, and is left out.
    """
    rows = []
    chosen = table[table["metric"].str.startswith("critic_sign_")]
    for (grid, metric), found in chosen.groupby(["grid", "metric"], sort=False):
        cells = {r.proposer: with_interval(r.value, r.ci_low, r.ci_high, 3) for r in found.itertuples()}
        select, _, index = metric.removeprefix("critic_sign_").partition("_")
        shown = "bare index" if index else "described"
        judged = [cells.get(judge, "") for judge in JUDGES]
        rows.append([grid_label(grid), select, shown, *judged, str(found["n_states"].iloc[0])])
    return markdown(
        ["Grid", "Selection by", "Actions", *(f"{name} [95 % CI]" for name in JUDGES.values()), "Adjustments"], rows
    )


def shift(table):
    """LoRA rounds in a shifted world, and the model alone, as Markdown."""
    rows = []
    for grid in dict.fromkeys(table["grid"]):
        for (proposer, metric), what in SHIFT.items():
            row = _row(table, grid, proposer, metric)
            if row is not None:
                points, n = metric == "alone_minus_do_nothing", f"{row.n_states}"
                sign = "+" if metric in ("lora_gain", "alone_minus_do_nothing") else ""
                value = with_interval(row.value, row.ci_low, row.ci_high, 1 if points else 3, sign)
                rows.append([grid_label(grid), what, value, f"{n} {'episodes' if points else 'states'}"])
    return markdown(["Grid", "What", "Value [95 % CI]", "n"], rows)


def settings_tried(params, table):
    """The gain of LoRA rounds with each setting that was tried, as Markdown: that of a run first."""
    grids = params.grid.environments
    rows = []
    for name in (AS_RUN, *params.lora):
        changes = ", ".join(f"{key} {value:g}" for key, value in params.lora.get(name, {}).items()) or "as in a run"
        found = [_row(table, env, "model_after_lora", f"lora_gain_{name}") for env in grids]
        rows.append([changes, *(with_interval(row.value, row.ci_low, row.ci_high, 3, "+") for row in found)])
    return markdown(["Changed", *(f"{grid_label(env)} [95 % CI]" for env in grids)], rows)


def _row(table, grid, proposer, metric):
    """The one row, or None."""
    found = table[(table["grid"] == grid) & (table["proposer"] == proposer) & (table["metric"] == metric)]
    return next(found.itertuples(), None)
