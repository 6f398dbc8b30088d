"""Whether a campaign pays, and what killing it costs: four cells of two seeds at the quick scale, 120 decisions each.

    python -m benchmarks.campaign          about six minutes on two cores, on which nothing else should run

What cells need is made once, and copied. Then, one after the other: `dvc repro` of the cells, `make campaign` of the same,
`dvc repro` after it, which should compute nothing; and a campaign whose main process is killed by signal 9 five times, at moments
drawn evenly between its start and its end. Writes results/campaign.csv: wall seconds, runs computed, files that differ from those
of `dvc repro`.
"""

import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
from ruamel.yaml import YAML

from ace import config
from ace.config.host import processor
from ace.pipeline import repro, workspace
from ace.pipeline.campaign import NEEDED
from ace.run_files import provenances

VARIANTS = ["sac", "ace", "ace_no_actor", "ace_no_critic"]
SEEDS, DECISIONS, KILLS = [0, 1], 120, 5
PLACE = "checkpoints/campaign_benchmark"
COLUMNS = ["name", "value", "unit", "machine"]


def prepared(root):
    """A workspace in which all is made that the cells need, and the names of their stages."""
    raw = YAML(typ="safe").load((root / "profiles/quick/params.yaml").read_text(encoding="utf-8"))
    raw["seeds"] = SEEDS
    raw["grid"].update(variants=VARIANTS, baselines=[])
    for study in ("official_score", "foresight"):
        raw[study]["variants"] = ["sac", "ace"]
    raw["base"]["train"].update(decisions=DECISIONS, validate_every=60, warmup=40, marks=[])
    place = root / PLACE
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    with (place / "params.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(raw, file)
    shutil.copy(root / "profiles/quick/pipeline.yaml", place)
    folder = workspace.prepare(f"{PLACE}/needed", place / "params.yaml", root)
    stages = repro.stage_names(folder)
    done(repro.repro(folder, targets=[name for name in stages if repro.kind(name) in NEEDED]))
    return folder, [name for name in stages if repro.kind(name) == "train"]


def campaign(folder):
    command = [repro.PYTHON, "-m", "ace.pipeline.campaign"]
    return subprocess.Popen(command, cwd=folder, env=repro.surroundings(folder))


def collect(folder, cells):
    done(repro.repro(folder, targets=cells))


def done(code):
    if code:
        raise SystemExit(f"benchmarks.campaign: a stage or a campaign ended with exit code {code}, see above")


def timed(call, *arguments):
    started = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - started


def computed(folder, since):
    """(runs that were started after that time, of how many), by their provenance, in whole seconds of UTC."""
    names = [path.stem for path in folder.glob("results/provenance/*.json")]
    cells = [cell for name in names for cell in provenances(folder / "results", name).values()]
    started = [run["started"] for cell in cells for run in cell.values()]
    return sum(each > since for each in started), len(started)


def files(folder):
    place = folder / "results/runs"
    return {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def differing(folder, other):
    """Number of files of results/runs that one of two workspaces lacks, or that are not the same."""
    ours, theirs = files(folder), files(other)
    return sum(ours.get(name) != theirs.get(name) for name in {*ours, *theirs})


def main():
    root = config.root()
    needed, cells = prepared(root)
    one_by_one, pooled, killed = (needed.with_name(name) for name in ("one_by_one", "pooled", "killed"))
    for folder in (one_by_one, pooled, killed):
        shutil.copytree(needed, folder, symlinks=True)
    rows = [("dvc_repro", timed(collect, one_by_one, cells), "s")]
    rows.append(("campaign", timed(lambda: done(campaign(pooled).wait())), "s"))
    rows.append(("campaign_share", rows[1][1] / rows[0][1], "of dvc_repro"))
    ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    rows.append(("dvc_repro_after_campaign", timed(collect, pooled, cells), "s"))
    again, runs = computed(pooled, ended)
    rows.append(("computed_after_campaign", again, f"of {runs} runs"))
    rows.append(("campaign_differs", differing(pooled, one_by_one), f"of {len(files(one_by_one))} files"))
    moments = np.random.default_rng(0).uniform(0, rows[1][1], KILLS)
    for moment in moments:
        process = campaign(killed)
        time.sleep(moment)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done(campaign(killed).wait())
    collect(killed, cells)
    rows.append(("killed_differs", differing(killed, one_by_one), f"of {len(files(one_by_one))} files, killed {KILLS} times"))
    table = pd.DataFrame([(*row, processor()) for row in rows], columns=COLUMNS)
    path = root / "results" / "campaign.csv"
    table.to_csv(path, index=False, float_format="%.4g", lineterminator="\n")
    print(table.to_string(index=False))
    shutil.rmtree(root / PLACE)
    print(f"written: {path.relative_to(root)}")


if __name__ == "__main__":
    sys.exit(main())
