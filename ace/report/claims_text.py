"""The claims table for people: terminal, Markdown, README. The tables come from `ace.report.claims`.

A table here has the columns of claims.csv and the unit of each claim.
"""

import sys
from collections import Counter
from pathlib import Path
from textwrap import shorten
from unicodedata import combining

import pandas as pd

from ace.report.formatting import markdown, with_interval
from ace.report.labels import grid_label, label
from ace.report.notes import note
from ace.report.runs import ReportError
from ace.report.verdicts import VERDICTS
from ace.stats import describe_interval

HEAD = ["Claim", "Paper", "Here [95 % CI]", "Detectable", "Verdict"]
START, END = "<!-- claims:start -->", "<!-- claims:end -->"


def ours(row):
    """measured [low, high] unit; "–" where nothing was measured."""
    value, low, high = (_short(end, row.unit) for end in (row.measured, row.ci_low, row.ci_high))
    return f"{value}{f' [{low}, {high}]' if low else ''} {row.unit}" if value else "–"


def detectable(row):
    """The smallest effect that would have been detected with a power of 80 %, of a number that is to lie in a range as ± it."""
    value = _short(row.detectable, row.unit)
    return ("" if pd.notna(row.p) else "± ") + value if value else "–"


def _short(value, unit):
    """Points, percent and what is 10 or more with one decimal, what is 100 or more with none, ratios with two."""
    if pd.isna(value):
        return ""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 or unit.startswith(("%", "pts")) else 2
    return f"{round(value, digits) + 0.0:,.{digits}f}"


def summary_line(table):
    """How many claims got which verdict, in one line."""
    counts = Counter(table["verdict"])
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS) + "."


def sentences(table):
    """Reported against measured, a sentence a claim, as Markdown: for the last part of a notebook."""
    lines = []
    for row in table.itertuples():
        found = f"measured {ours(row)} (n: {row.n})" if row.n else row.evidence
        reported = f"the paper reports {row.paper_value}"
        lines.append(f"- **{row.id}** {row.claim}: {reported}; {found}. Scale {row.scale}: **{row.verdict}**.")
    return "\n".join(lines)


def full_markdown(table, by_grid=None):
    """The table of README with n, then criterion, evidence and source of each claim. by_grid: id -> the evidence as a
    table, which is shown in place of the sentence in claims.csv."""
    rows = [[*cells[:-1], row.n, cells[-1]] for cells, row in zip(_short_rows(table), table.itertuples(), strict=True)]
    text = markdown([*HEAD[:-1], "n", HEAD[-1]], rows)
    text += f"\n{note('claims')}\n"
    if any(table["verdict_before"]):
        text += f"\n## Earlier verdicts\n\n{note('claims.anew')}\n\n"
        columns = ["id", "verdict_earlier", "verdict_before", "verdict"]
        head = ["Claim", "Packaged days, earlier rules", "Packaged days, today's rules", "Here"]
        text += markdown(head, table[columns].to_numpy().tolist())
    for row in table.itertuples():
        shown = (by_grid or {}).get(row.id, "")
        evidence = "the table below; with calls and files in `claims.csv`" if shown else row.evidence
        text += f"\n## {row.id} {row.claim}\n\n- Criterion: {row.criterion}\n- Evidence: {evidence}\n- Source: {row.source}\n"
        text += f"\n{shown}" if shown else ""
    return text


def readme_table(table):
    """The table of README's first screen: one short line a claim."""
    return f"Scale {_scale(table, '`')}: {summary_line(table)}\n\n{markdown(HEAD, _short_rows(table))}"


def _scale(table, quote=""):
    """Scale and test of the claims; older tables do not say what was tested on."""
    scale = ", ".join(dict.fromkeys(table["scale"]))
    return ", ".join([f"{quote}{scale}{quote}", *filter(None, dict.fromkeys(table.get("test", ())))])


def _short_rows(table):
    """Cells under HEAD."""
    return [
        [f"{row.id} {row.claim}", row.paper_value, ours(row) if row.n else _reason(row), detectable(row), row.verdict]
        for row in table.itertuples()
    ]


def _reason(row):
    """Why a claim was not tested, without further evidence."""
    why = row.evidence.removeprefix("not tested: ").split("; ")[0]
    return "not run yet" if why.endswith("is not in the declared grid") else why


def update_readme(readme, table):
    """Write the table between the two markers. Returns whether the file changed; raises ReportError without markers."""
    text = Path(readme).read_text(encoding="utf-8")
    if text.count(START) != 1 or text.count(END) != 1 or text.index(START) > text.index(END):
        raise ReportError(f"{Path(readme).name} needs {START} and, after it, {END}, once each")
    before, after = text.split(START)[0], text.split(END)[1]
    fresh = f"{before}{START}\n{readme_table(table)}{END}{after}"
    if fresh != text:
        Path(readme).write_text(fresh, encoding="utf-8", newline="\n")
    return fresh != text


def readme_is_stale(readme, table):
    """What is wrong with README's table, in a line, or None: it must be what `update_readme` would write."""
    text = Path(readme).read_text(encoding="utf-8")
    if f"{START}\n{readme_table(table)}{END}" in text:
        return None
    return f"{Path(readme).name} does not show the claims as judged: run `python -m ace.report.claims --readme`"


def headline(results, methods=("reconnect", "sac", "ace", "greedy")):
    """Survival of these methods, and ACE minus SAC: two lines a grid, from results/paper/10_table_main/; none without it."""
    folder, lines = Path(results) / "paper" / "10_table_main", []
    if not (folder / "main.csv").is_file():
        return lines
    main, paired = (pd.read_csv(folder / name).query("metric == 'survival'") for name in ("main.csv", "paired.csv"))
    for env, rows in main.groupby("env", sort=False):
        means = rows.set_index("variant")["mean"]
        shown = ", ".join(f"{label(name)} {means[name]:.1f}" for name in methods if name in means)
        lines.append(f"{grid_label(env)}, survival in the test, %: {shown}")
        for row in paired[(paired["env"] == env) & (paired["a"] == "ace") & (paired["b"] == "sac")].itertuples():
            gain = with_interval(row.difference, row.ci_low, row.ci_high, 1, sign="+")
            verdict = describe_interval(row.ci_low, row.ci_high)
            lines.append(f"  ACE minus SAC: {gain} points, {verdict} (detectable: {row.detectable:.1f})")
    return lines


def print_claims(table, file=None):
    """The claims that were tested, in a terminal of 120 columns."""
    file = file or sys.stdout
    widths, tested = (4, 34, 22, 33, 10, 12), table[table["n"].astype(bool)]
    for line in [("id", "claim", "paper", "here [95 % CI]", "detectable", "verdict"), *_terminal_rows(tested)]:
        cells = [_fitted(cell, width) for cell, width in zip(line, widths, strict=True)]
        print(" ".join(cells).rstrip(), file=file)
    print(f"\n{summary_line(table)} Scale: {_scale(table)}.", file=file)
    if set(table["scale"]) == {"quick"}:
        print("This scale shows that all of it runs; it is too small to judge a claim.", file=file)


def _fitted(text, width):
    text = shorten(text, width, placeholder="…")
    return text.ljust(width + sum(map(bool, map(combining, text))))  # the bar of r̄ takes no column


def _terminal_rows(table):
    return [(row.id, row.claim, row.paper_value, ours(row), detectable(row), row.verdict) for row in table.itertuples()]
