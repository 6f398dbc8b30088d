"""Compares recomputed results with the committed ones, number by number; `make verify` asks it for each cell.

    python -m ace.report.verify COMMITTED RECOMPUTED results/tables/main.csv results/runs/wcci2020/sac/seed=0

COMMITTED and RECOMPUTED are workspaces, the paths are files or run folders in both. What is compared, and how closely:

- On the processor that a run was made on (results/provenance/), everything is exact: each value of a CSV, Markdown, TEX or
  JSON file, each file of a run to the byte.
- On another one, too, wherever no neural network has a part: tables, figures' data, claims, scenarios, baselines. The
  libraries are held to AVX2; seen to be the same to the byte on Intel's and AMD's processors. On other than x86-64, numbers
  may differ by PUT_TOGETHER or, of simulations, SIMULATED.
- Training is another matter: MKL rounds differently on processors of another maker, and learning makes the last bit
  grow. There a trained seed is held to the range in which one more seed is expected, given the committed ones, and the
  bytes of its files are told, not judged. Test scenarios, settings and versions stay exact.
- Pictures are drawn from a CSV beside them, which is compared; whether their bytes are the same is told, not judged.
"""

import csv
import gzip
import hashlib
import json
import platform
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ace.records import _cpu

WITHIN, OUTSIDE, TOLD = "within", "outside", "differs, not judged"
PUT_TOGETHER = 1e-5  # relative: six significant digits are written
SIMULATED = 0.02  # relative: one episode of a run that ends earlier or later
LANGUAGE_MODEL = 0.25  # relative: rates of a language model that was trained on another processor
CONFIDENCE = 0.99  # of the range in which a seed that is trained on another processor is expected
X86 = platform.machine().lower() in {"x86_64", "amd64"}
NETWORKS = ("sac", "llm_only")  # methods that compute with a neural network
VALUES = {".csv", ".json", ".md", ".tex"}
IDENTITY = ("test_hash", "scale", "settings", "environment", "versions")  # of a manifest, exact everywhere

NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?")
WIDTHS = (52, 20, 20, 20)


@dataclass(frozen=True)
class Item:
    """One line of the comparison, as text. verdict: WITHIN, OUTSIDE, or TOLD for what is not judged."""

    place: str
    committed: str
    recomputed: str
    tolerance: str
    verdict: str


# --- values of files --------------------------------------------------------------------------------------------------


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
        return dict(flat(json.loads(text)))
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
    """`line 4 (wcci2020, ace, survival), mean`: with what tells a row of a CSV from others, its first cells of words."""
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


# --- runs -------------------------------------------------------------------------------------------------------------


def run_numbers(folder):
    """The headline numbers of a run, {name: number}, and its manifest. folder: one with episodes.csv, manifest.json."""
    with (folder / "episodes.csv").open(encoding="utf-8", newline="") as file:
        episodes = list(csv.DictReader(file))
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    budget = manifest["budget"].values()
    numbers = {
        "survival, % of the horizon": 100 * mean(episodes, "survival"),
        "reward of an episode": mean(episodes, "reward"),
        "reward of a step": mean(episodes, "reward_mean"),
        "decisions in the test": sum(int(row["decisions"]) for row in episodes),
    }
    counts = {"decisions in training": "decisions", "refinements": "refinements", "shaped decisions": "shaped"}
    numbers |= {name: manifest[key] for name, key in counts.items() if key in manifest}
    calls = {"simulator calls": "simulator_calls", "DC calls": "dc_calls", "LLM calls": "llm_calls"}
    spent = {**calls, "environment steps": "env_steps"}
    return numbers | {name: sum(phase.get(key, 0) for phase in budget) for name, key in spent.items()}, manifest


def mean(episodes, column):
    return float(np.mean([float(row[column]) for row in episodes]))


def expected_range(numbers):
    """In which one more number like these is expected, with CONFIDENCE: (low, high), by Student's t."""
    from scipy.stats import t  # slow to load, and needed on another processor only

    n = len(numbers)
    half = t.ppf(0.5 + CONFIDENCE / 2, n - 1) * np.std(numbers, ddof=1) * np.sqrt(1 + 1 / n)
    return float(np.mean(numbers) - half), float(np.mean(numbers) + half)


def compare_run(name, committed, recomputed, elsewhere, noted=""):
    """Items of one run.

    committed, recomputed: its folders; elsewhere: whether it was committed on another processor; noted: the hash of the
    committed files that was noted when they were made, where it was.
    """
    method = run_numbers(committed)[1]["settings"]["method"]
    elsewhere = elsewhere and not (X86 and method not in NETWORKS)
    items = [*_run_numbers(committed, recomputed, elsewhere), *_run_files(committed, recomputed, elsewhere)]
    items += [_as_noted(committed, noted)] if noted else []
    agreeing = sum(item.verdict == WITHIN for item in items)
    verdict = OUTSIDE if any(item.verdict == OUTSIDE for item in items) else WITHIN
    counted = Item(name, f"{len(items)} items", f"{agreeing} agree", "", verdict)
    return [counted, *(replace(i, place=f"{name if i.verdict == OUTSIDE else ''}  {i.place}") for i in items)]


def _run_numbers(committed, recomputed, elsewhere):
    (numbers, manifest), (again, manifest_again) = run_numbers(committed), run_numbers(recomputed)
    seeds = [run_numbers(folder)[0] for folder in sorted(committed.parent.glob("seed=*"))]
    for what, number in numbers.items():
        other = again.get(what, float("nan"))
        tolerance, within = "exact", number == other
        if elsewhere and len(seeds) > 1:
            low, high = expected_range([seed[what] for seed in seeds])
            low = low if what.startswith("reward") else max(low, 0.0)
            tolerance, within = f"{shown(low)} to {shown(high)}", within or low <= other <= high
        elif elsewhere:
            tolerance, within = f"{SIMULATED:g} relative", within or near(number, other, SIMULATED)
        yield Item(what, shown(number), shown(other), tolerance, WITHIN if within else OUTSIDE)
    for key in IDENTITY:
        a, b = (json.dumps(each.get(key), sort_keys=True) for each in (manifest, manifest_again))
        texts = [text.strip('"') if len(text) <= WIDTHS[1] else digest(text.encode()) for text in (a, b)]
        yield Item(key.replace("_", " "), *texts, "exact", WITHIN if a == b else OUTSIDE)


def _run_files(committed, recomputed, elsewhere):
    for file in sorted({path.name for folder in (committed, recomputed) for path in folder.iterdir()}):
        paths = [folder / file for folder in (committed, recomputed)]
        hashes = [digest(content(path)) if path.is_file() else "(nothing)" for path in paths]
        verdict = WITHIN if hashes[0] == hashes[1] else TOLD if elsewhere else OUTSIDE
        yield Item(f"sha256 of {file}", *hashes, "not judged" if elsewhere else "exact", verdict)


def _as_noted(folder, noted):
    """Whether committed files are those that the run wrote: told on every processor. The hash is `records`'."""
    sha = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        sha.update(content(path))
    verdict = WITHIN if sha.hexdigest() == noted else OUTSIDE
    return Item("all committed files, against the hash noted", sha.hexdigest()[:16], noted[:16], "exact", verdict)


def content(path):
    """The bytes of a file, of a .gz those within: how they are packed depends on a library's version."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def shown(number):
    return f"{number:,}" if isinstance(number, int) else f"{number:,.0f}" if abs(number) >= 1e5 else f"{number:.6g}"


# --- everything -------------------------------------------------------------------------------------------------------


def provenance(committed, path):
    """What was noted when a path's runs were made: a list of dicts, one for each run."""
    folder = committed / "results/provenance"
    one = (folder / Path(path).relative_to("results/runs")).with_suffix(".json") if "seed=" in str(path) else None
    files = [one] if one else sorted(folder.rglob("seed=*.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]


def processors(committed, path):
    """Names of the processors that a path's runs were made on; empty where nobody noted it."""
    return {each.get("cpu") for each in provenance(committed, path)}


def compare(committed, recomputed, path, here=None):
    """Items of one path: a file, a run folder or a folder of runs. committed, recomputed: workspaces; here: processor."""
    old, new = committed / path, recomputed / path
    if old.is_dir() and not (old / "manifest.json").is_file():
        parts = sorted(p.name for p in old.iterdir() if p.is_dir() or p.suffix != ".ipynb")
        return [item for part in parts for item in compare(committed, recomputed, f"{path}/{part}", here)]
    elsewhere = processors(committed, path) != {here or _cpu()}
    if not old.exists() or not new.exists():
        return [Item(path, *("there" if place.exists() else "missing" for place in (old, new)), "exact", OUTSIDE)]
    if old.is_dir():
        (noted,) = provenance(committed, path) or [{}]
        return compare_run(path, old, new, elsewhere, noted.get("result_sha256", ""))
    model = path.startswith(("results/language_model", "results/lora/", "results/proposers/"))  # neural networks
    if old.suffix not in VALUES or (model and elsewhere and old.suffix != ".csv"):
        hashes = [digest(place.read_bytes()) for place in (old, new)]
        judged = model and not elsewhere
        verdict = WITHIN if hashes[0] == hashes[1] else OUTSIDE if judged else TOLD
        return [Item(f"{path}: sha256", *hashes, "exact" if judged else "not judged", verdict)]
    exact = not elsewhere or path.startswith("results/scenarios/") or (X86 and not model)
    relative = 0.0 if exact else LANGUAGE_MODEL if model else PUT_TOGETHER
    return compare_values(path, values(old), values(new), relative)


def lines(items):
    """Items as text lines in columns, with a head."""
    head = Item("item", "committed", "recomputed", "tolerance", "verdict")
    for item in [head, *items]:
        cells = (item.place, item.committed, item.recomputed, item.tolerance)
        yield "  " + " ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)) + " " + item.verdict


def main(arguments=None):
    """Prints every item. Returns 0 where all that is judged is within, else 1."""
    committed, recomputed, *paths = sys.argv[1:] if arguments is None else arguments
    committed, recomputed = Path(committed), Path(recomputed)
    items = [item for path in paths for item in compare(committed, recomputed, path)]
    print("\n".join(lines(items)))
    if any(item.tolerance[:1].isdigit() for item in items):
        made = set().union(*(processors(committed, path) for path in paths))
        known = " and ".join(sorted(map(str, made))) or "an unknown processor"
        print(f"  (committed from {known}, here is {_cpu()}: ace/report/verify.py says what may differ)")
    return int(any(item.verdict == OUTSIDE for item in items))


if __name__ == "__main__":
    sys.exit(main())
