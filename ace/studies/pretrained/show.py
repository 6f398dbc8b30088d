"""The tables and figure of what pretraining is worth, from results/studies/pretrained/<env>/pretrained.csv (`measure.py`), a
table of its variants on development weeks (`variants.py`), and its transcripts (`transcripts.py`)."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ace import stats
from ace.report.formatting import in_points, markdown, thousands, with_interval, write_table
from ace.report.labels import GRIDS, grid_label, label
from ace.report.notes import note
from ace.report.runs import AFTER_THE_TEST, ReportError
from ace.report.style import LINES, legend_at_foot, theme, write_figure

NAMES = {
    "zero_shot": "Pretrained, zero-shot",
    "finetuned": "Pretrained, fine-tuned",
    "random_weights": "Same body, random weights",
    "from_scratch": "From scratch (embedded)",
    "fewer_samples": "From scratch, as few samples",
    "classifier": "Classifier",
    "fewer_classifier": "Classifier, as few samples",
    "frequency": "Lookup table",
    "majority": "More frequent sign",
    "head_pretrained": "Head on the pretrained body",
    "head_finetuned": "Head on the tuned body",
    "head_random_rows": "Head on the pretrained body, random words",
    "head_random_weights": "Head on random weights",
    "all_weights": "Pretrained, all weights tuned",
    "all_weights_random_weights": "Random weights, all tuned",
}
LOOK = {
    "zero_shot": ("#4477aa", "v"),
    "finetuned": ("#0072b2", "o"),
    "random_weights": ("#999999", "s"),
    "from_scratch": ("#e69f00", "D"),
    "classifier": ("#117733", "^"),
    "frequency": (LINES["frequency_refine"][0], "h"),
}
"""Colour and marker of those in the figure."""
MEASURED = {
    "one_proposal": "First proposal",
    "five_rounds": "One of five",
    "critic_sign": "Signs of g_LLM",
    "parse_unmasked": "Parsed, unmasked",
    "legal_unmasked": "Legal, unmasked",
}
HEAD = ["Grid", "Proposer", "States", *(f"{name}, % [95 % CI]" for name in MEASURED.values())]
HEAD += ["Held-out states", "Key decisions", "Seeds"]
HEAD_MINUS = ["Grid", "States", "Proposer", "Minus", *(f"{name}, points [95 % CI]" for name in MEASURED.values()), "Seeds"]
SAID = ["Grid", "State", "Round", "Reply", "Simulator's verdict"]
REFERENCE = "ace_pretrained"
COUNTS = ["refinements", "finetunes", "env_steps", "simulator_calls", "dc_calls", "llm_calls", "llm_tokens"]
DEVELOPED = ["env", "variant", "survival", "ci_low", "ci_high", "difference", "difference_low", "difference_high", *COUNTS]
DEVELOPED += ["minutes", "seeds", "weeks"]
NOTHING = [np.nan] * 3
HEAD_DEVELOPED = ["Grid", "Method", "Survival, % [95 % CI]", "ACE, pretrained model, minus it, points [95 % CI]", "Refinements"]
HEAD_DEVELOPED += ["LoRA rounds", "Env. steps", "Simulator calls", "DC power flows", "LLM calls", "LLM tokens", "Minutes", "n"]


def read(results):
    """The tables of all grids that were measured, one below the other, or ReportError where none was."""
    paths = _of_all_grids(results, "pretrained.csv")
    if not paths:
        raise ReportError("no results/studies/pretrained/<env>/pretrained.csv: run python -m ace.studies.pretrained.measure")
    return pd.concat([pd.read_csv(path) for path in paths], ignore_index=True)


def write_pretrained(results, folder):
    """Writes pretrained.{csv,md} in percent, pretrained_differences.{csv,md} in points and pretrained_figure.{png,pdf,csv,md}
    into folder. Returns the table as read."""
    table = read(results)
    written = table.assign(**{name: 100 * table[name] for name in ("value", "ci_low", "ci_high")})
    apart = table["metric"].str.contains("_minus_")
    write_table(folder, "pretrained", written[~apart], HEAD, cells(table), "A pretrained language model", note("pretrained"))
    title, said = "A pretrained language model: paired differences", note("pretrained.differences")
    write_table(folder, "pretrained_differences", written[apart], HEAD_MINUS, cells_of_differences(table), title, said)
    draw(table, Path(folder))
    return table


def as_markdown(table):
    """The table and its note, the differences and theirs."""
    parts = (HEAD, cells(table), "pretrained"), (HEAD_MINUS, cells_of_differences(table), "pretrained.differences")
    return "\n".join(f"{markdown(head, rows)}\n{note(name)}\n" for head, rows, name in parts)


def cells(table):
    """A row a grid, number of states and proposer. table: of `read`."""
    rows, keys = [], ["grid", "states", "proposer"]
    at = dict(iter(table.groupby(keys)))
    for env, size, proposer in _order(table, keys):
        found = at[env, size, proposer].set_index("metric")
        measured = [_percent(found, metric) for metric in MEASURED]
        of = [thousands(found["n"].get(metric, np.nan)) for metric in ("one_proposal", "critic_sign")]
        rows.append([grid_label(env), _named(proposer), thousands(size), *measured, *of, str(found["seeds"].iloc[0])])
    return rows


def differences(table):
    """Those rows of a table of `read` that are paired differences, with two more columns: measured, other (what it is minus)."""
    said = table["metric"].str.extract(r"^(?P<measured>.+?)_minus_(?P<other>.+)$")
    return table.join(said)[said["measured"].isin(MEASURED)]


def cells_of_differences(table):
    """A row a grid, number of states and pair of proposers. table: of `read`."""
    rows, minus, keys = [], differences(table), ["grid", "states", "proposer", "other"]
    at = dict(iter(minus.groupby(keys)))
    for env, size, proposer, other in _order(minus, keys):
        found = at[env, size, proposer, other].set_index("measured")
        points = [_percent(found, metric, sign="+") for metric in MEASURED]
        rows.append([grid_label(env), thousands(size), _named(proposer), _named(other), *points, str(found["seeds"].iloc[0])])
    return rows


def write_variants(results, folder):
    """Writes variants.{csv,md} into folder, where some were run. Returns the table with DEVELOPED, a row a grid and variant."""
    rows = [row for path in _of_all_grids(results, "variants.jsonl") for row in _developed(path)]
    table = pd.DataFrame(rows, columns=DEVELOPED)
    if rows:
        title = "The pretrained model's variants on development weeks"
        write_table(folder, "variants", table, HEAD_DEVELOPED, cells_of_variants(table), title, note("pretrained.variants"))
    return table


def _developed(path):
    """Rows of one grid. path: its variants.jsonl."""
    runs = {}
    for line in _lines(path):
        runs.setdefault(line["variant"], {})[line["seed"]] = line
    for variant, lines in runs.items():
        own, other = _scores(lines), runs.get(REFERENCE, {}) if variant != REFERENCE else {}
        learns = any(line["budget"]["train"]["env_steps"] for line in lines.values())
        common = [seed for seed in other if seed in lines or not learns]  # what learns nothing has one run, which goes with each
        minus = [_scores(other, common), _scores(lines, common if learns else None)] if common else []
        used = [np.mean([_used(line, what) for line in lines.values()]) for what in COUNTS]
        minutes = np.mean([line["minutes"].get("train", 0.0) + line["minutes"]["evaluate"] for line in lines.values()])
        estimates = *stats.mean(own, stats.PERCENT), *(stats.paired_difference(*minus) if minus else NOTHING)
        yield [path.parent.name, variant, *estimates, *map(round, used), minutes, *own.shape]


def _scores(lines, seeds=None):
    """(seeds, weeks) survival in percent. lines: {seed: line}; seeds: default all."""
    return 100 * np.array([lines[seed]["survival"] for seed in seeds or lines])


def _used(line, what):
    """Of one run, all phases and roles together; environment steps without those of the weeks that it is scored on."""
    if what in ("refinements", "finetunes"):
        return line[what]
    if what == "llm_tokens":
        return sum(line["tokens"].values())
    left_out = {*AFTER_THE_TEST, *(["test"] if what == "env_steps" else [])}
    return sum(used.get(what, 0) for phase, used in line["budget"].items() if phase not in left_out)


def cells_of_variants(table):
    """A row a grid and variant. table: of `write_variants`."""
    return [
        [
            grid_label(row["env"]), label(row["variant"]), with_interval(row["survival"], row["ci_low"], row["ci_high"], 1),
            in_points(row, "difference"), *(thousands(row[what]) for what in COUNTS), f"{row['minutes']:.1f}",
            f"{row['seeds']} x {row['weeks']}",
        ]
        for _, row in table.iterrows()
    ]  # fmt: skip


def variants_as_markdown(table):
    """The table and its note, or a line that says that there is none."""
    if table.empty:
        return "No variants on development weeks: python -m ace.studies.pretrained.variants <environment>"
    return f"{markdown(HEAD_DEVELOPED, cells_of_variants(table))}\n{note('pretrained.variants')}\n"


def transcripts_as_markdown(results):
    """The first prompt, then every round of results/studies/pretrained/<env>/transcripts.jsonl as a row; or a line that says that
    there is none."""
    rows, prompt = [], ""
    for path in _of_all_grids(results, "transcripts.jsonl"):
        for line in _lines(path):
            prompt = prompt or line["rounds"][0]["prompt"]
            for number, said in enumerate(line["rounds"], start=1):
                place = [grid_label(path.parent.name), str(line["state"])] if number == 1 else ["", ""]
                rows.append([*place, str(number), " ".join(said["reply"].split()), said["verdict"]])
    if not rows:
        return "No transcripts: python -m ace.studies.pretrained.transcripts <environment>"
    return f"The prompt of the first row:\n\n```\n{prompt}\n```\n\n{markdown(SAID, rows)}"


def _lines(path):
    return map(json.loads, path.read_text(encoding="utf-8").splitlines())


def _of_all_grids(results, name):
    """results/studies/pretrained/<env>/<name> of all environments, in the order of all tables."""
    found = {path.parent.name: path for path in sorted((Path(results) / "studies" / "pretrained").glob(f"*/{name}"))}
    return [found[env] for env in dict.fromkeys([*GRIDS, *found]) if env in found]


def _order(table, names):
    """Different values of the columns `names`: grid, states, then proposers; grids as in the table."""
    keys = table[names].drop_duplicates().itertuples(index=False, name=None)
    grids = list(table["grid"].drop_duplicates())
    return sorted(keys, key=lambda key: (grids.index(key[0]), key[1], *map(_place, key[2:])))


def _place(proposer):
    """Where it stands in a table: those that learned on another grid after the others."""
    name, elsewhere, _ = proposer.partition("@")
    return elsewhere, list(NAMES).index(name)


def _named(proposer):
    name, _, learned = proposer.partition("@")
    return NAMES[name] + (f", learned on {grid_label(learned)}" if learned else "")


def _percent(rows, metric, **sign):
    if metric not in rows.index:
        return ""
    row = rows.loc[metric]
    return with_interval(100 * row["value"], 100 * row["ci_low"], 100 * row["ci_high"], 1, **sign)


def draw(table, folder):
    """A panel for each grid that a model was tuned on, or where there is none, for each grid: first proposal filled, one of five
    open, by states of the corpus."""
    tuned = table.loc[table["proposer"] == "finetuned", "grid"]
    grids = list(dict.fromkeys(tuned if len(tuned) else table["grid"]))
    shown = table[table["metric"].isin(["one_proposal", "five_rounds"]) & table["proposer"].isin(LOOK)]
    shown = shown[shown["grid"].isin(grids)]
    with theme():
        figure = Figure(figsize=(1.0 + 5.6 * len(grids), 3.9), layout="constrained")
        panels = figure.subplots(1, len(grids), sharey=True, squeeze=False)[0]
        for panel, env in zip(panels, grids, strict=True):
            here = shown[shown["grid"] == env]
            sizes = sorted(here["states"].unique())
            for number, (proposer, (colour, marker)) in enumerate(LOOK.items()):
                for metric, face, aside in (("one_proposal", colour, 0.0), ("five_rounds", "white", 0.03)):
                    rows = here[(here["proposer"] == proposer) & (here["metric"] == metric)].sort_values("states")
                    if rows.empty:
                        continue
                    x = [sizes.index(size) + 0.11 * (number - (len(LOOK) - 1) / 2) + aside for size in rows["states"]]
                    y = 100 * rows["value"].to_numpy()
                    ends = 100 * np.array([rows["value"] - rows["ci_low"], rows["ci_high"] - rows["value"]])
                    panel.errorbar(x, y, yerr=ends, color=colour, marker=marker, mfc=face, ls="", capsize=2, ms=5,
                                   label=NAMES[proposer] if metric == "one_proposal" else None)  # fmt: skip
            panel.set_xticks(range(len(sizes)), [thousands(size) for size in sizes])
            panel.set(ylim=(-3, 104), xlim=(-0.6, len(sizes) - 0.4), xlabel="Labelled states of the corpus")
            panel.set_title(grid_label(env), fontsize="medium")
            panel.grid(axis="x", visible=False)
        panels[0].set_ylabel("Held-out states helped, %")
        legend_at_foot(figure, panels[0])
        write_figure(figure, shown, folder / "pretrained_figure", "What pretraining is worth", note("pretrained.figure"))
