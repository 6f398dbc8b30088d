"""How numbers and tables are written: cells, CSV, Markdown, LaTeX.

Numbers have six significant digits in a CSV, so that the same run files give the same bytes.
"""

import math
from pathlib import Path

import numpy as np
import pandas as pd


def number(value):
    """Six significant digits, no exponent, nothing for nan: the one way a number gets into a CSV."""
    if value is None or value is pd.NA:
        return ""
    if isinstance(value, (str, int, np.integer)):
        return str(value)
    if not math.isfinite(value):
        return ""
    text = np.format_float_positional(float(value), precision=6, unique=False, fractional=False, trim="-")
    return "0" if text in ("-0", "0") else text


def write_csv(table, path):
    """UTF-8, \\n at line ends, cells by `number`."""
    text = table.astype(object).map(number).to_csv(index=False, lineterminator="\n")
    write_text(path, text)


def markdown(head, rows):
    """A Markdown table; cells are strings."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def latex(head, rows, caption):
    """A booktabs table; the caption is ours, to be edited where it is used."""
    body = [" & ".join(_tex(cell) for cell in row) + " \\\\\n" for row in [head, *rows]]
    columns = "ll" + "r" * (len(head) - 2)
    return (
        f"% {caption}; needs booktabs\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n"
        f"{body[0]}\\midrule\n{''.join(body[1:])}\\bottomrule\n\\end{{tabular}}\n"
    )


def with_interval(value, low, high, digits, sign=""):
    """value [low, high], without the brackets where there is no interval; nothing for nan.

    sign: as of `rounded`.
    """
    if math.isnan(value):
        return ""
    shown = [rounded(each, digits, sign) for each in (value, low, high)]
    return shown[0] if math.isnan(low) else "{} [{}, {}]".format(*shown)


def rounded(value, digits, sign=""):
    """sign="+" shows it always, but of what rounds to 0: +0.0 would name a side that it may not be on."""
    text = f"{value:z.{digits}f}"  # z: no -0.0
    return f"{sign}{text}" if float(text) > 0 else text


def in_points(row, column):
    """A row's difference in points, signed, with the interval of its columns <column>_low and <column>_high."""
    return with_interval(row[column], row[f"{column}_low"], row[f"{column}_high"], 1, sign="+")


def value_with_std(value, std, digits=1):
    """value ± std; the value alone where there is no std; nothing for nan."""
    if math.isnan(value):
        return ""
    return f"{value:z.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")


def thousands(value):
    """Thousands in full, a dash for nan."""
    return f"{round(value):,}" if math.isfinite(value) else "–"


def _tex(cell):
    for plain, command in (("%", "\\%"), ("_", "\\_"), ("±", "$\\pm$"), (" x ", " $\\times$ ")):
        cell = cell.replace(plain, command)
    return cell


def write_table(folder, name, table, head, rows, title, note, tex=False):
    """<folder>/<name>.csv holds `table`; .md shows `rows` (strings) under `head` with `note` below. tex: .tex shows them too."""
    folder = Path(folder)
    write_csv(table, folder / f"{name}.csv")
    write_text(folder / f"{name}.md", f"# {title}\n\n{markdown(head, rows)}\n{note}\n")
    if tex:
        write_text(folder / f"{name}.tex", latex(head, rows, title))


def write_parts(folder, name, title, parts, note, lead="", tex=False):
    """A table in several parts: <folder>/<name>.md, with tex .tex too. parts: heading -> (head, rows); lead: above the first."""
    folder = Path(folder)
    text = "\n".join(f"## {part}\n\n{markdown(head, rows)}" for part, (head, rows) in parts.items())
    write_text(folder / f"{name}.md", f"# {title}\n\n{lead}{text}\n{note}\n")
    if tex:
        write_text(folder / f"{name}.tex", "\n".join(latex(*rows, f"{title}: {part}") for part, rows in parts.items()))


def write_text(path, text):
    """UTF-8, \\n at line ends; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
