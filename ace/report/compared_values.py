"""Two versions of one text file, value by value: the items of a comparison, and when two texts say the same."""

import csv
import json
import re
from dataclasses import dataclass

from ace.config.files import parsed_json

WITHIN, OUTSIDE, NOT_JUDGED = "within", "outside", "differs, not judged"
WIDTHS = (52, 20, 20, 20)
"""Characters of an item's columns."""

NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Item:
    """One line of the comparison, as text. verdict: WITHIN, OUTSIDE, or NOT_JUDGED for what is not judged."""

    place: str
    committed: str
    recomputed: str
    tolerance: str
    verdict: str


def values(path):
    """What a file says: {place: text}. Places are (line, column) of a CSV, (line,) of a text, (key, ...) of JSON."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            head, *rows = list(csv.reader(file)) or [[]]
        cells = {("line 1", f"column {i}"): name for i, name in enumerate(head, start=1)}
        for line, row in enumerate(rows, start=2):
            names = head if len(row) == len(head) else [f"column {i}" for i in range(1, len(row) + 1)]
            cells |= {(f"line {line}", name): cell for name, cell in zip(names, row, strict=True)}
        return cells
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return dict(flat(parsed_json(text, path)))
    return {(f"line {line}",): content for line, content in enumerate(text.splitlines(), start=1)}


def flat(value, place=()):
    """Nested lists and dicts as pairs (place, text)."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(part, (*place, str(key)))
    else:
        yield place, value if isinstance(value, str) else json.dumps(value)


def near(a, b, relative):
    return abs(a - b) <= relative * max(abs(a), abs(b))


def agree(a, b, relative=0.0):
    """Whether two texts say the same: equal, or with a tolerance equal but for numbers that are near.

    A number within words was rounded for people: there, one unit of the last decimal shown is near, too.
    """
    if a == b or not relative:
        return a == b
    if NUMBER.sub("#", a) != NUMBER.sub("#", b):
        return False
    alone = NUMBER.fullmatch(a)
    for x, y in zip(NUMBER.findall(a), NUMBER.findall(b), strict=True):
        first, second = (float(text.replace(",", "")) for text in (x, y))
        _, point, decimals = x.partition(".")
        unit = 1.001 * 10.0 ** -len(decimals) if point and decimals.isdigit() and not alone else 0.0
        if not (near(first, second, relative) or abs(first - second) <= unit):
            return False
    return True


def compare_values(name, committed, recomputed, relative=0.0):
    """Items of one file: a count, and each value that does not agree. committed, recomputed: see `values`."""
    tolerance = f"{relative:g} relative" if relative else "exact"
    items, agreeing = [], 0
    for place in {**committed, **recomputed}:
        a, b = (cells.get(place, "(nothing)") for cells in (committed, recomputed))
        if agree(a, b, relative):
            agreeing += 1
        else:
            items.append(Item(f"{name}, {place_name(place, committed)}", *difference(a, b), tolerance, OUTSIDE))
    verdict = OUTSIDE if items else WITHIN
    return [Item(name, f"{len(committed):,} values", f"{agreeing:,} agree", tolerance, verdict), *items]


def place_name(place, cells):
    """`line 4 (wcci2020, ace, survival), mean`: with what identifies a row of a CSV, its first cells of words."""
    line, *column = place
    if not column or not line.startswith("line "):
        return ".".join(place)
    words = [text for (other, *_), text in cells.items() if other == line and text and not NUMBER.fullmatch(text)]
    label = ", ".join(word for word in words[:3] if len(word) <= 30)
    return f"{line}{f' ({label})' if label else ''}, {column[0]}"


def difference(a, b, width=WIDTHS[1]):
    """Two long texts, cut to where they part."""
    if max(len(a), len(b)) <= width:
        return a, b
    part = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    begin = max(0, part - 8)
    return tuple(("…" if begin else "") + text[begin : begin + width - 2] for text in (a, b))


def missing(path, *there):
    return Item(path, *("there" if each else "missing" for each in there), "exact", OUTSIDE)
