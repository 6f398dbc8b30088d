"""The files of the runs: what reviewers read, and every table and figure is made from.

    results/runs/<environment>/<variant>/     a cell, all of its seeds
        episodes.csv, training.csv            rows of every seed; the first column says which, `split` what an episode is of
        manifest.json                         what the seeds share, and under "seeds" what each has of its own
        seed=<n>/                             policy.safetensors (policy_<mark>), transcript.jsonl.gz, of what grid.kept names
    results/provenance/<environment>.json     {"<variant>": {"<n>": commit, processor, wall times}}

The same run gives the same bytes. A cell is replaced as a whole, by one process at a time. If that one is killed, the old
cell or the new one is there, or the old one lies beside its place, and the next `pack` brings it back.
"""

import csv
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from safetensors.numpy import load_file

from ace.config.files import alone, json_text, read_json, written_whole
from ace.config.host import processor, versions

CHECKPOINT_RULE = "highest mean survival on the validation scenarios, then highest mean reward, then the earliest"
HOME = Path(__file__).parents[1]
IDENTITY = ("test_hash", "scale", "settings", "environment", "versions")  # of a manifest: runs that differ here don't compare
SHARED = ("env", "variant", *IDENTITY, "packaged_hash", "lower_limits", "frozen_at", "model", "checkpoint_rule",
          "tested_weights")  # fmt: skip
"""Keys of a manifest that the seeds of a cell share; a seed that was run with other values keeps its own."""
POLICY, MARKED, TRANSCRIPT = "policy.safetensors", "policy_{}.safetensors", "transcript.jsonl.gz"
MARK, REDRAW, LOWER = "test@{}", "redraw_{}", "test_lower"  # splits: the test at a mark, in another draw, at lower limits
FINISHED = "finished"  # in a seed's scratch folder: what its run has written, a cell of one seed, and its provenance


@dataclass(frozen=True)
class SeedFiles:
    """What the files of a cell say of one seed.

    manifest: shared and own entries together, `seed` among them; episodes, training: rows as {column: text}, training None for
    methods that don't learn; folder: seed=<n>, where policy and transcript are if they are kept.
    """

    manifest: dict
    episodes: list
    training: list | None
    folder: Path

    def of_split(self, split):
        """The rows of its episodes of a split, "test" or "packaged"."""
        return [row for row in self.episodes if row["split"] == split]

    def policy_digest(self):
        """`policy_digest` of the policy; where the file is not kept, that of the manifest; None for methods without one."""
        path = self.folder / POLICY
        return policy_digest(path) if path.is_file() else self.manifest.get("policy_sha256")

    def transcript_digest(self):
        """SHA-256 of the text of the transcript (how it is packed depends on zlib's version); otherwise as `policy_digest`."""
        path = self.folder / TRANSCRIPT
        return transcript_digest(path) if path.is_file() else self.manifest.get("transcript_sha256")

    def digest(self):
        """Identifies all results of the run."""
        manifest = {name: entry for name, entry in self.manifest.items() if name != "transcript_sha256"}  # see transcript_digest
        parts = [manifest, self.episodes, self.training, [self.policy_digest(), self.transcript_digest()]]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def frame(rows):
    """Rows of SeedFiles as a table, with numbers where the text says numbers."""
    return pd.read_csv(io.StringIO(_csv_text(rows)))


def policy_digest(path):
    """SHA-256 of a policy's weights in float16: the same for a file in float32 and for its copy in float16."""
    sha = hashlib.sha256()
    for name, weights in sorted(load_file(path).items()):
        sha.update(f"{name} {weights.shape}\n".encode())
        sha.update(weights.astype("<f2").tobytes())
    return sha.hexdigest()


def transcript_digest(path):
    return hashlib.sha256(gzip.decompress(Path(path).read_bytes())).hexdigest()


# --- reading ----------------------------------------------------------------------------------------------------------


def cell_folder(results, environment, variant):
    return Path(results) / "runs" / environment / variant


def seeds_in(folder):
    """Seeds of a cell by its manifest, ascending; none where there is no cell."""
    path = Path(folder) / "manifest.json"
    return sorted(_read_manifest(path)[1]) if path.is_file() else []


def read_cell(folder):
    """{seed: SeedFiles} of a cell's folder, ascending.

    Raises FileNotFoundError for a file that is missing, ValueError for one that cannot be read, and for a manifest and a CSV of
    different seeds; one line each.
    """
    folder = Path(folder)
    for name in ("manifest.json", "episodes.csv"):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"no {name} in {folder}")
    shared, own = _read_manifest(folder / "manifest.json")
    episodes = _read_rows(folder / "episodes.csv")
    training = _read_rows(folder / "training.csv") if (folder / "training.csv").is_file() else {}
    for name, found in (("episodes.csv", episodes), ("training.csv", training)):
        if set(found) != set(own) and (found or name == "episodes.csv"):
            raise ValueError(f"{folder}: seeds {sorted(own)} in manifest.json, but {sorted(found)} in {name}")
    return {
        seed: SeedFiles({**shared, **own[seed], "seed": seed}, episodes[seed], training.get(seed), folder / f"seed={seed}")
        for seed in sorted(own)
    }


def read_provenance(results, environment, variant):
    """{seed: what was noted when the run was made}; empty where nothing was."""
    return provenances(results, environment).get(variant, {})


def provenances(results, environment):
    """The same of all variants, {variant: {seed: noted}}."""
    path = Path(results) / "provenance" / f"{environment}.json"
    cells = read_json(path) if path.is_file() else {}
    if not isinstance(cells, dict):
        raise ValueError(f"{path}: has no entry for each variant")
    return {variant: _by_seed(each, path) for variant, each in cells.items()}


def note_provenance(results, environment, variant, noted):
    """Replaces what was noted of a cell. noted: {seed: entry}; {} removes it."""
    folder = Path(results) / "provenance"
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder, f".{environment}.lock"), written_whole(folder / f"{environment}.json") as partial:
        cells = {**provenances(results, environment), variant: noted}
        lines = [f"{json.dumps(name)}: {json.dumps(cells[name], sort_keys=True)}" for name in sorted(cells) if cells[name]]
        partial.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _read_manifest(path):
    """(what the seeds share, {seed: what it has of its own})."""
    shared = read_json(path)
    if not isinstance(shared, dict):
        raise ValueError(f"{path}: no manifest of a cell")
    own = shared.pop("seeds", None)
    return shared, _by_seed(own, path)


def _by_seed(entries, path):
    try:
        return {int(seed): dict(each) for seed, each in entries.items()}
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"{path}: has no entry for each seed") from None


def _read_rows(path):
    """{seed: rows} of a CSV whose first column is the seed; the rows are without it."""
    found = {}
    with path.open(encoding="utf-8", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            seed = row.pop("seed", None) or ""
            if not seed.isdecimal() or None in row or None in row.values():  # other cells than the head has
                raise ValueError(f"{path}: line {line} is not a seed's row, as the head has it")
            found.setdefault(int(seed), []).append(row)
    return found


# --- writing ----------------------------------------------------------------------------------------------------------


def write_cell(folder, seeds, tables_alone=()):
    """Replaces a cell's folder. seeds: {seed: SeedFiles}, with their policies and transcripts but for those in `tables_alone`."""
    folder = Path(folder)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    seeds = dict(sorted(seeds.items()))
    _write_rows(partial / "episodes.csv", {seed: each.episodes for seed, each in seeds.items()})
    learned = {seed: each.training for seed, each in seeds.items() if each.training is not None}
    if learned:
        _write_rows(partial / "training.csv", learned)
    (partial / "manifest.json").write_text(json_text(_packed([each.manifest for each in seeds.values()])))
    for seed, each in seeds.items():
        for path in (each.folder / TRANSCRIPT, *sorted(each.folder.glob("policy*.safetensors"))):
            if path.is_file() and seed not in tables_alone:
                (partial / f"seed={seed}").mkdir(exist_ok=True)
                shutil.copy(path, partial / f"seed={seed}")
    before = _before(folder)
    if folder.exists():
        os.rename(folder, before)
    os.rename(partial, folder)
    shutil.rmtree(before, ignore_errors=True)


def pack(results, environment, variant, finished, whole=None):
    """Brings finished seeds into their cell; seeds of the cell that are not among them stay.

    finished: {seed: folder that `write_finished` filled}; whole: seeds with policies and transcripts, others with their
    digests alone; None: all.
    A provenance is measured once for given results: a rerun that reproduces them leaves it as it is.
    """
    folder = cell_folder(results, environment, variant)
    before = _before(folder)
    if before.exists() and not folder.exists():  # killed between the two renames
        os.rename(before, folder)
    shutil.rmtree(before, ignore_errors=True)
    seeds = read_cell(folder) if (folder / "manifest.json").is_file() else {}
    noted = read_provenance(results, environment, variant)
    for seed, place in finished.items():
        seeds |= read_cell(place)
        new = json.loads((place / "provenance.json").read_text())
        if noted.get(seed, {}).get("result_sha256") != new["result_sha256"]:
            noted[seed] = new
    write_cell(folder, seeds, () if whole is None else set(finished) - set(whole))
    note_provenance(results, environment, variant, noted)


def write_finished(folder, run, variant, started):
    """A run's results as a cell of one seed, and its provenance.json."""
    policies = [MARKED.format(mark["decisions"]) for mark in run.marks] + ([POLICY] if run.learner else [])
    for path in {*run.scratch.glob("policy*.safetensors")} - {run.scratch / name for name in policies}:
        path.unlink()  # of other settings of this name
    (run.scratch / TRANSCRIPT).unlink(missing_ok=True)
    if run.session:
        run.session.recorder.write(run.scratch / TRANSCRIPT)
    played = [e for results in run.plays.results.values() for e in results]
    episodes = pd.DataFrame([e.row() for e in played])
    episodes.insert(0, "episode", episodes.groupby("split").cumcount())
    done = SeedFiles(manifest(run, variant), _rows(episodes), _rows(pd.DataFrame(run.rows)) if run.learner else None, run.scratch)
    write_cell(folder, {run.seed: done})
    (folder / "provenance.json").write_text(json_text(provenance(run, started, done.digest())))


def manifest(run, variant):
    """What a run was and used, without its times."""
    entries = {
        "env": run.environment,
        "variant": variant,
        "seed": run.seed,
        "scale": run.params.scale,
        "settings": run.settings.as_recorded(),
        "environment": run.world.spec.without_making(),
        "test_hash": test_hash(run),
        **({"packaged_hash": test_hash(run, "packaged")} if run.plays.results["packaged"] else {}),
        **({"lower_limits": run.params.scenarios.lower_limits} if run.plays.results["lower"] else {}),
        "versions": versions(),
        "frozen_at": run.params.chronics.frozen_at,
        "model": run.session.model if run.session else None,
        "repeats": {"episodes": len(run.plays.results["repeats"]), "differ": run.plays.differ},
        "budget": run.budget(),
    }
    if run.learner is not None:
        entries |= {
            "refinements": run.learner.count["refined"],
            **{name: run.learner.count[name] for name in ("refine_tried", "shaped", "decisions", "updates")},
            "finetune_rounds": run.finetunes,
            "best_validation": {"survival": run.learner.best[0], "reward_mean": run.learner.best[1]},
            "checkpoint_rule": CHECKPOINT_RULE,
            "policy_sha256": policy_digest(run.scratch / POLICY),
            "tested_weights": "float16",  # runs of before had float32
            "forecast_gap": run.forecast_gap(),
            "marks": [{name: value for name, value in mark.items() if name != "weights"} for mark in run.marks],
        }
    roles = (run.session.counts() if run.session else {}) | {
        name: dict(sorted(role.counts.items())) for name, role in (run.roles() if run.learner else {}).items()
    }
    if roles:
        entries["roles"] = roles
    if run.signal:
        entries["points"] = run.signal.points
    if run.session:
        entries["tokens"] = run.session.recorder.tokens_by_role()
        entries["transcript_sha256"] = transcript_digest(run.scratch / TRANSCRIPT)
    return json.loads(json.dumps(entries))  # as it will be read


def test_hash(run, split="test"):
    """Identifies what was played: its scenarios, the environment they are played in, and when an agent is asked."""
    sha, operator = hashlib.sha256(run.world.sets[split].hash().encode()), run.world.operator
    sha.update(json.dumps([run.world.spec.without_making(), operator.danger, operator.recover], sort_keys=True).encode())
    return sha.hexdigest()[:16]


def provenance(run, started, result):
    """What differs in every run: commit, processor, wall times. started: seconds since 1970; result: digest of the results."""
    test = run.plays.results["test"]
    latency = 1e3 * sum(e.seconds for e in test) / max(sum(e.decisions for e in test), 1)
    return {
        "result_sha256": result,
        "commit": _commit(),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "wall_s": {name: round(seconds, 1) for name, seconds in run.wall.items()},
        "decision_latency_ms": round(latency, 4),
    }


def _packed(manifests):
    """One manifest of those of all seeds, the lowest seed first: entries that all have are shared, with the first's value."""
    shared = {key: manifests[0][key] for key in SHARED if all(key in each for each in manifests)}
    own = {}
    for each in manifests:
        same = {"seed", *(key for key, value in shared.items() if each[key] == value)}
        own[str(each["seed"])] = {key: value for key, value in each.items() if key not in same}
    return {**shared, "seeds": own}


def _before(folder):  # where a cell lies for the moment in which it is replaced
    return folder.with_name(f".{folder.name}.before")


def _rows(table):
    return list(csv.DictReader(io.StringIO(table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))))


def _write_rows(path, seeds):
    path.write_text(_csv_text([{"seed": seed, **row} for seed, rows in seeds.items() for row in rows]), encoding="utf-8")


def _csv_text(rows):
    """Columns in the order in which they first occur; empty where a row lacks one."""
    text = io.StringIO()
    columns = list(dict.fromkeys(column for row in rows for column in row))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _commit():
    try:
        found = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=HOME, capture_output=True, text=True)
        changed = subprocess.run(["git", "status", "--porcelain", "ace"], cwd=HOME, capture_output=True, text=True)
    except OSError:  # no git: a run that is done is not lost for it
        return "unknown"
    return (found.stdout.strip() or "unknown") + ("-dirty" if changed.stdout.strip() else "")
