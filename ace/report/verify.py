"""Compares recomputed results with the committed ones, number by number; `make verify` asks it for each cell.

    python -m ace.report.verify COMMITTED RECOMPUTED results/paper/10_table_main results/runs/wcci2020/sac/seed=0 [--here=CPU]

COMMITTED and RECOMPUTED are workspaces. A path is a file or folder in both, a cell of runs, or a cell's name with /seed=<n>
behind it, for one seed of it. What is compared, and how closely:

- On the processor that a run was made on (results/provenance/), everything is exact: each value of a CSV, Markdown, TEX or
  JSON file, all rows and entries of a run, the text of its transcript, and the weights of its policy in float16. So it is
  on one that imitated it (ace/pipeline/vendor.py): --here then names the other.
- On another one, too, wherever no neural network has a part: tables, figures' data, claims, scenarios, baselines (AVX2 on
  Intel's and AMD's processors). On other than x86-64, numbers may differ by PUT_TOGETHER or, of simulations, SIMULATED.
- Not so for training: MKL rounds differently on processors of another maker, and learning amplifies it. There a trained
  seed is held to the range in which one more seed is expected, given the committed ones, and the contents of its files
  are compared, not judged. Test scenarios, settings and versions stay exact.
- A folder has the same files on both sides, apart from executed notebooks; an empty one is outside.
- Pictures are drawn from a CSV in the same folder, which is judged; whether their bytes are the same is shown, not judged.
"""

import argparse
import hashlib
import json
import platform
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from ace.config.host import processor
from ace.report.compared_values import NOT_JUDGED, OUTSIDE, WIDTHS, WITHIN, Item, compare_values, missing, near, values
from ace.run_files import IDENTITY, POLICY, SeedFiles, cell_folder, provenances, read_cell, read_provenance, seeds_in

PUT_TOGETHER = 1e-5  # relative: six significant digits are written
SIMULATED = 0.02  # relative: one episode of a run that ends earlier or later
LANGUAGE_MODEL = 0.25  # relative: rates of a language model that was trained on another processor
CONFIDENCE = 0.99  # of the range in which a seed that is trained on another processor is expected
LEAST = {"decisions in training": 0.02}  # seeds hardly differ in them: only by where the last episode ends
X86 = platform.machine().lower() in {"x86_64", "amd64"}
NETWORKS = ("sac", "llm_only")  # methods that compute with a neural network
VALUES = {".csv", ".json", ".md", ".tex"}
MODELS = tuple(f"results/{of}" for of in ("language_model", "also_model", "pretrained_model", "studies/lora/", "studies/rates/"))
"""Computed by neural networks."""
RUN = re.compile(r"results/runs/(?P<environment>[^/]+)/(?P<variant>[^/]+)(/seed=(?P<seed>\d+))?")


# --- runs -------------------------------------------------------------------------------------------------------------


def run_numbers(run):
    """The headline numbers of a run, {name: number}. run: SeedFiles."""
    manifest, budget = run.manifest, run.manifest["budget"].values()
    test, packaged = run.of_split("test"), run.of_split("packaged")
    numbers = {
        "survival, % of the horizon": 100 * mean(test, "survival"),
        "reward of an episode": mean(test, "reward"),
        "reward of a step": mean(test, "reward_mean"),
        "decisions in the test": sum(int(row["decisions"]) for row in test),
    }
    numbers |= {"survival on packaged days, %": 100 * mean(packaged, "survival")} if packaged else {}
    counts = {"decisions in training": "decisions", "refinements": "refinements", "shaped decisions": "shaped"}
    numbers |= {name: manifest[key] for name, key in counts.items() if key in manifest}
    calls = {"simulator calls": "simulator_calls", "DC calls": "dc_calls", "LLM calls": "llm_calls"}
    spent = {**calls, "environment steps": "env_steps"}
    return numbers | {name: sum(phase.get(key, 0) for phase in budget) for name, key in spent.items()}


def mean(rows, column):
    return float(np.mean([float(row[column]) for row in rows]))


def expected_range(numbers, least=0.0):
    """In which one more number like these is expected, with CONFIDENCE: (low, high), by Student's t.

    least: half of its width at least, as a share of the mean.
    """
    from scipy.stats import t  # slow to load, and needed on another processor only

    n = len(numbers)
    half = t.ppf(0.5 + CONFIDENCE / 2, n - 1) * np.std(numbers, ddof=1) * np.sqrt(1 + 1 / n)
    half = max(half, least * abs(np.mean(numbers)))
    return float(np.mean(numbers) - half), float(np.mean(numbers) + half)


def compare_run(name, committed, recomputed, seed, elsewhere, noted=""):
    """Items of one run.

    committed: {seed: SeedFiles} of the whole cell; recomputed: SeedFiles; elsewhere: whether it was committed on another
    processor; noted: the digest of the committed results that was noted when they were made, where it was.
    """
    run = committed[seed]
    elsewhere = elsewhere and not (X86 and run.manifest["settings"]["method"] not in NETWORKS)
    cell = [run_numbers(each) for each in committed.values()]
    items = [*_compare_numbers(run, recomputed, cell, elsewhere), *_compare_contents(run, recomputed, elsewhere)]
    if (recomputed.folder / POLICY).is_file() and not (run.folder / POLICY).is_file():  # a cell that keeps its policies
        items.append(missing(POLICY, False, True))
    if noted:
        found, verdict = run.digest(), WITHIN if run.digest() == noted else OUTSIDE
        items.append(Item("all committed results, against the digest noted", found[:16], noted[:16], "exact", verdict))
    agreeing = sum(item.verdict == WITHIN for item in items)
    verdict = OUTSIDE if any(item.verdict == OUTSIDE for item in items) else WITHIN
    counted = Item(name, f"{len(items)} items", f"{agreeing} agree", "", verdict)
    return [counted, *(replace(i, place=f"{name if i.verdict == OUTSIDE else ''}  {i.place}") for i in items)]


def _compare_numbers(run, recomputed, cell, elsewhere):
    again = run_numbers(recomputed)
    for what, number in run_numbers(run).items():
        other = again.get(what, float("nan"))
        tolerance, within = "exact", number == other
        if elsewhere and len(cell) > 1:
            low, high = expected_range([seed[what] for seed in cell if what in seed], LEAST.get(what, 0.0))
            low = low if what.startswith("reward") else max(low, 0.0)
            high = min(high, 100.0) if what.startswith("survival") else high
            tolerance, within = f"{shown(low)} to {shown(high)}", within or low <= other <= high
        elif elsewhere:
            tolerance, within = f"{SIMULATED:g} relative", within or near(number, other, SIMULATED)
        yield Item(what, shown(number), shown(other), tolerance, WITHIN if within else OUTSIDE)
    more = [key for key in ("packaged_hash", "lower_limits") if any(key in each.manifest for each in (run, recomputed))]
    for key in (*IDENTITY, *more):
        a, b = (json.dumps(each.manifest.get(key), sort_keys=True) for each in (run, recomputed))
        texts = [text.strip('"') if len(text) <= WIDTHS[1] else digest(text.encode()) for text in (a, b)]
        yield Item(key.replace("_", " "), *texts, "exact", WITHIN if a == b else OUTSIDE)


def _compare_contents(run, recomputed, elsewhere):
    """Everything that the files say of the seed, and the policy's weights in float16."""
    for what, content in CONTENTS.items():
        found = [content(each) for each in (run, recomputed)]
        if found != [None, None]:
            hashes = ["(nothing)" if each is None else each[:16] for each in found]
            verdict = WITHIN if found[0] == found[1] else NOT_JUDGED if elsewhere else OUTSIDE
            yield Item(f"sha256 of {what}", *hashes, "not judged" if elsewhere else "exact", verdict)


def _hashed(part):
    return None if part is None else hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()


CONTENTS = {
    "episodes.csv": lambda run: _hashed(run.episodes),
    "training.csv": lambda run: _hashed(run.training),
    "manifest.json": lambda run: _hashed(run.manifest),
    "the policy": SeedFiles.policy_digest,
    "the transcript": SeedFiles.transcript_digest,
}


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def shown(number):
    return f"{number:,}" if isinstance(number, int) else f"{number:,.0f}" if abs(number) >= 1e5 else f"{number:.6g}"


# --- everything -------------------------------------------------------------------------------------------------------


def split_run(path):
    """(environment, variant, seed) of results/runs/<environment>/<variant>[/seed=<n>], seed None for all; None of others."""
    found = RUN.fullmatch(path)
    return found and (found["environment"], found["variant"], int(found["seed"]) if found["seed"] else None)


def provenance(committed, path):
    """What was noted when the runs that a path is about were made: a list of dicts, one for each run."""
    run = split_run(path)
    if run:
        noted = read_provenance(committed / "results", *run[:2])
        return [each for seed, each in noted.items() if run[2] in (None, seed)]
    environments = [path.stem for path in sorted((committed / "results/provenance").glob("*.json"))]
    cells = [cell for name in environments for cell in provenances(committed / "results", name).values()]
    return [each for cell in cells for each in cell.values()]


def processors(committed, path):
    """Names of the processors that a path's runs were made on; empty where it was not noted."""
    return {each.get("cpu") for each in provenance(committed, path)}


def compare(committed, recomputed, path, here=None):
    """Items of one path: a file, a folder, a cell of runs or one seed of it. here: name of the processor that recomputed."""
    path, here = str(path), here or processor()
    try:
        return (compare_cell if split_run(path) else _compare_files)(committed, recomputed, path, here)
    except (ValueError, OSError, EOFError) as error:
        return [Item(f"{path} cannot be compared: {error}", "", "", "exact", OUTSIDE)]


def _compare_files(committed, recomputed, path, here):
    old, new = committed / path, recomputed / path
    if old.is_dir() or new.is_dir():
        parts = sorted({part.name for folder in (old, new) if folder.is_dir() for part in folder.iterdir()})
        compared = [f"{path}/{part}" for part in parts if not part.endswith(".ipynb")]
        empty = [] if parts else [Item(path, "empty", "empty", "exact", OUTSIDE)]
        return empty + [item for part in compared for item in compare(committed, recomputed, part, here)]
    if not old.exists() or not new.exists():
        return [missing(path, old.exists(), new.exists())]
    elsewhere = processors(committed, path) != {here}
    model = path.startswith(MODELS)
    if old.suffix not in VALUES or (model and elsewhere and old.suffix != ".csv"):
        hashes = [digest(place.read_bytes()) for place in (old, new)]
        judged = not elsewhere and (model or old.suffix == ".safetensors")
        verdict = WITHIN if hashes[0] == hashes[1] else OUTSIDE if judged else NOT_JUDGED
        return [Item(f"{path}: sha256", *hashes, "exact" if judged else "not judged", verdict)]
    exact = not elsewhere or path.startswith("results/scenarios/") or (X86 and not model)
    relative = 0.0 if exact else LANGUAGE_MODEL if model else PUT_TOGETHER
    return compare_values(path, values(old), values(new), relative)


def compare_cell(committed, recomputed, path, here):
    """Items of a cell's seeds, or of the one that the path names."""
    environment, variant, seed = split_run(path)
    folders = [cell_folder(root / "results", environment, variant) for root in (committed, recomputed)]
    old, new = (read_cell(folder) if seeds_in(folder) else {} for folder in folders)
    items = []
    for each in sorted({*old, *new} or {0}) if seed is None else [seed]:
        name = f"results/runs/{environment}/{variant}/seed={each}"
        if each not in old or each not in new:
            items.append(missing(name, each in old, each in new))
            continue
        (noted,) = provenance(committed, name) or [{}]
        items += compare_run(name, old, new[each], each, noted.get("cpu") != here, noted.get("result_sha256", ""))
    return items


def lines(items):
    """Items as text lines in columns, with a head."""
    head = Item("item", "committed", "recomputed", "tolerance", "verdict")
    for item in [head, *items]:
        cells = (item.place, item.committed, item.recomputed, item.tolerance)
        yield "  " + " ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)) + " " + item.verdict


def main(arguments=None):
    """Prints every item. Returns 0 where all that is judged is within, else 1."""
    parser = argparse.ArgumentParser(prog="python -m ace.report.verify", description="Compare recomputed results.")
    parser.add_argument("committed", type=Path)
    parser.add_argument("recomputed", type=Path)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--here", default=processor(), help="the processor that recomputed, by default this one")
    given = parser.parse_args(arguments)
    committed, paths = given.committed, given.paths
    items = [item for path in paths for item in compare(committed, given.recomputed, path, given.here)]
    print("\n".join(lines(items)))
    if any(item.tolerance[:1].isdigit() for item in items):
        made = set().union(*(processors(committed, path) for path in paths))
        known = " and ".join(sorted(map(str, made))) or "an unknown processor"
        print(f"  (committed from {known}, here is {given.here}: ace/report/verify.py says what may differ; a trained seed is")
        print("  only held to the range of the committed ones, a weak check: on the same kind of processor all is exact)")
    return int(any(item.verdict == OUTSIDE for item in items))


if __name__ == "__main__":
    sys.exit(main())
