"""Recomputes cells of the pipeline in verify/ and tells for each number whether it agrees with the committed one.

    python -m ace.pipeline.recompute                                    all that is cheap, and a short trained seed at random
    python -m ace.pipeline.recompute --cell wcci2020/ace --seed 0       one cell, one seed
    python -m ace.pipeline.recompute --cell paper@10_table_main         any other stage with results

A cell is named by what it is, environment/variant, whichever stage of dvc.yaml makes it. What runs is the stage's own command,
in a workspace that holds a copy of the committed results without those of the cell itself: a table is recomputed from the
committed run files. `ace.report.verify` compares. A training that was killed goes on where it was; all else starts afresh.
Policies that are the same again are left in checkpoints/, where studies look for those that git does not keep.
"""

import argparse
import difflib
import fcntl
import random
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ace.config.files import read_json
from ace.config.host import maker, processor
from ace.pipeline.kernel import PYTHON
from ace.pipeline.repro import ROOT, WorkspaceError, ended, minutes, running, surroundings
from ace.pipeline.vendor import imitating
from ace.pipeline.workspace import (
    MAKING,
    PRETRAINED,
    TRAINED,
    WEEKS,
    check,
    copy_changed,
    link,
    prepare,
    read_pipeline,
)  # fmt: skip
from ace.run_files import POLICY, note_provenance, policy_digest, read_cell, read_provenance, seeds_in

FOLDER, RUNS = "verify", "results/runs/"
LONG = {"language_model", "language_models", "pretrained_model", "also_model", "deployed"}
LONG |= {f"measure_{study}" for study in ("environments", "foresight", "lora", "official_score", "rates")}
"""They train or play for minutes: only by name."""
CHEAP_S = 25.0  # a method that learns nothing is cheap if its run took no longer
SHORT_S = 180.0  # the trained seed that is drawn at random took no longer
CHEAP_OTHER_S, LONG_S = 10.0, 400.0  # what a table or figure takes, and one of LONG, for the estimate
ALL_SEEDS = "-p seeds []"  # in the command of a stage that makes runs: those of params.yaml


@dataclass(frozen=True)
class Cell:
    """A stage whose results are committed. outs: paths in the workspace; seeds: of its runs, empty for other stages."""

    stage: str
    command: str
    outs: list
    seeds: list

    @property
    def name(self):
        """As a user names it: wcci2020/ace for runs, else the stage."""
        return self.outs[0].removeprefix(RUNS) if self.outs[0].startswith(RUNS) else self.stage

    @property
    def kind(self):
        return self.stage.partition("@")[0]

    def parts(self, seeds):
        """The paths that are recomputed and compared: all outs, or the folders of some seeds."""
        return [f"{out}/seed={seed}" for out in self.outs for seed in seeds] if self.seeds else self.outs


# --- which cells ------------------------------------------------------------------------------------------------------


def read_cells(folder, root):
    """Stages of the workspace `folder` with results, in the order of dvc.yaml, and the names of those without any in `root`.

    Returns ({name: Cell}, [name]). A stage of whose results a part is missing is a cell: the comparison will say what.
    """
    from dvc.repo import Repo  # takes half a second

    with Repo(str(folder)) as repo:
        stages = [(stage.name, stage.cmd, [out.def_path for out in stage.outs]) for stage in repo.index.stages]
    cells, without = {}, []
    for name, command, outs in stages:
        found = sorted(seed for out in outs if out.startswith(RUNS) for seed in seeds_in(root / out))
        cell = Cell(name, command, outs, found)
        if any((root / out).exists() for out in outs):
            cells[cell.name] = cell
        else:
            without.append(cell.name)
    return cells, without


def noted(cell, seeds, root):
    """What results/provenance/ says of each of these runs: a list of dicts, empty where nothing was noted."""
    cells = [read_provenance(root / "results", *out.split("/")[2:]) for out in cell.outs]
    return [runs.get(seed, {}) for runs in cells for seed in seeds]


def seconds(cell, seeds, root):
    """What a cell took when its results were made, from results/provenance/; a guess for a table or figure."""
    if not cell.seeds:
        return LONG_S if cell.kind in LONG else CHEAP_OTHER_S
    walls = [each.get("wall_s", {}) for each in noted(cell, seeds, root)]
    return sum(wall.get("train", 0.0) + wall.get("evaluate", 0.0) for wall in walls) * _played(cell, root)


def _played(cell, root):
    """All episodes of a baseline's cell, as a multiple of the test's, which alone were timed (other draws, lower limits, ...);
    1 of a trained cell, in whose time they count little, and where the runs can't be read, which the comparison will say."""
    try:
        runs = [run for out in cell.outs for run in read_cell(root / out).values()] if cell.kind not in TRAINED else []
    except (OSError, ValueError):
        return 1.0
    test = sum(len(run.of_split("test")) for run in runs)
    return sum(len(run.episodes) for run in runs) / test if test else 1.0


def choose(cells, root, name="", seed="", draw=random.choice):
    """What to recompute: [(cell, seeds)]. name, seed: as the user gave them, or empty. Raises WorkspaceError."""
    if not name:
        if seed:
            raise WorkspaceError("SEED needs a CELL, as in: make verify CELL=wcci2020/ace SEED=0")
        cheap = [(cell, cell.seeds) for cell in cells.values() if is_cheap(cell, root)]
        cheap.sort(key=lambda chosen: bool(chosen[0].seeds))  # a table is made from the committed runs and their times
        trained = [(cell, [number]) for cell in cells.values() if cell.kind in TRAINED for number in cell.seeds]
        short = [each for each in trained if seconds(*each, root) <= SHORT_S]
        return cheap + ([draw(short or trained)] if trained else [])
    cell = named(cells, name)
    if cell is None:
        close = difflib.get_close_matches(name.rpartition("@")[2].replace("-", "/"), cells, n=4, cutoff=0.7)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        kinds = "a cell is a folder <environment>/<variant> of results/runs/, other stages are in `.venv/bin/dvc stage list`"
        raise WorkspaceError(f"no cell {name!r} with committed results; {hint}{kinds}")
    if not seed:
        return [(cell, cell.seeds)]
    if seed not in map(str, cell.seeds):
        has = f"there are: {', '.join(map(str, cell.seeds))}" if cell.seeds else "it has no seeds"
        raise WorkspaceError(f"{name}: no seed {seed!r}; {has}")
    return [(cell, [int(seed)])]


def named(cells, name):
    """The cell of that name, also one of runs whose stage is of another kind than said (train@wcci2020-camel_poor), or None."""
    of = name.partition("@")[2]
    found = [cell for cell in cells.values() if cell.stage == name or (cell.seeds and of == cell.stage.partition("@")[2])]
    return cells.get(name) or (found[0] if found else None)


def is_cheap(cell, root):
    if cell.seeds:
        return cell.kind not in TRAINED and seconds(cell, cell.seeds, root) <= CHEAP_S
    return cell.kind not in LONG


def of_weeks(environments):
    """One line: how the weeks, which verify/ takes as they are, are made anew and compared."""
    one = f" ENV={environments[0]}" if len(environments) == 1 else ""
    return (
        f"weeks are not made in {FOLDER}/: `make weeks{one}` makes them again in {WEEKS}/ (six minutes a grid, with RTE's "
        f"generator), and `git status {WEEKS}` shows whether a byte differs"
    )


# --- running and comparing --------------------------------------------------------------------------------------------


def bring_results(root, folder):
    """Copies the committed results into the workspace and removes what else lies there: copies, since runs are rewritten."""
    kept = set()
    for path in sorted((root / "results").rglob("*")):
        inside = path.relative_to(root)
        if path.is_file() and inside.parts[1] != "notebooks":
            copy_changed(path, folder / inside)
            kept.add(inside)
    for path in sorted((folder / "results").rglob("*")):
        if path.is_file() and path.relative_to(folder) not in kept:
            path.unlink()


def imitated(cell, seeds, root):
    """(name, variables): of another maker's processor, if all these runs were made there and this one can imitate it, and the
    environment variables for that; else (None, {}), and they are compared as of this processor. Prints which.
    """
    names = {name for name in noted_processors(cell, seeds, root) if name}
    makers = {maker(name) for name in names}
    if len(makers) > 1:
        print("  made on processors of several makers: SEED=... compares each by itself", flush=True)
    if len(names) != 1 or makers == {maker(processor())}:
        return None, {}
    (name,) = names
    try:
        variables = imitating(maker(name))
    except WorkspaceError as error:
        print(f"  made on {name}, so trained seeds are only held to the range of all: {error}", flush=True)
        return None, {}
    print(f"  computed as on {name}, where it was made (ace/pipeline/vendor.py)", flush=True)
    return name, variables


def noted_processors(cell, seeds, root):
    """Names of the processors that trained what a cell needs: its own runs, or the run that is deployed."""
    if cell.kind == "deployed":
        cards = [root / out / "card.json" for out in cell.outs]
        return {read_json(card).get("cpu") for card in cards if card.is_file()}
    return {each.get("cpu") for each in noted(cell, seeds, root)} if cell.kind in TRAINED else set()


def only_of(name, folder):
    """Forgets trainings in the workspace that were left unfinished as on another processor: name, of `imitated`."""
    marker, name = folder / "checkpoints/imitated", name or ""
    if not marker.exists() or marker.read_text() != name:
        shutil.rmtree(marker.parent, ignore_errors=True)
        marker.parent.mkdir()
        marker.write_text(name)


def leave_policies(cell, seeds, folder, root):
    """Puts the policies of these runs, if they are the same, where studies look for those that git does not keep."""
    for out in cell.outs if cell.kind in TRAINED else []:
        committed = read_cell(root / out)
        for seed in seeds:
            policy = Path("checkpoints") / out.replace("/runs/", "/") / f"seed={seed}" / POLICY
            if (folder / policy).is_file() and policy_digest(folder / policy) == committed[seed].manifest.get("policy_sha256"):
                copy_changed(folder / policy, root / policy)


def recompute(cell, seeds, folder, variables):
    """Runs one cell in the workspace under these environment variables. Returns None, or in one line what went wrong."""
    for out in cell.outs:  # of a cell all seeds: only those asked for come back
        path = folder / out
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if cell.seeds:
            note_provenance(folder / "results", *out.split("/")[2:], {})
    command = cell.command
    if cell.seeds:
        if ALL_SEEDS not in command:
            return f"its command in cells/dvc.yaml has no {ALL_SEEDS!r}"
        command = command.replace(ALL_SEEDS, f"-p seeds '{seeds}'")
    # As DVC does: the notebook then ends with this process. What runs for minutes shows its progress.
    said, shown = [], cell.seeds or cell.kind in LONG
    with running(command, folder, shell=True, env=surroundings(folder) | variables | {"DVC_STAGE": cell.stage}) as stage:
        for line in stage.stdout:
            said.append(line)
            if shown:
                print(line, end="", flush=True)
    if stage.returncode and shown:
        return "its stage failed, see above"
    if stage.returncode:
        return " ".join("".join(said).split())[-300:] or f"its stage ended with {stage.returncode}"
    return None


def compare(cell, seeds, folder, root, here):
    """Prints committed and recomputed side by side. here: of `imitated`. Returns whether all is within."""
    command = [PYTHON, "-m", "ace.report.verify", str(root), str(folder), *cell.parts(seeds)]
    command += [f"--here={here}"] if here else []
    return subprocess.run(command, cwd=ROOT, env=surroundings(ROOT)).returncode == 0


def verify(name="", seed="", root=ROOT):
    """Recomputes and compares what was asked for. Returns an exit code: 0 if every number agrees."""
    check(ROOT, root / "params.yaml")
    (root / FOLDER).mkdir(exist_ok=True)
    with alone(root / FOLDER):
        return _verify(name, seed, root, prepare(FOLDER, root / "params.yaml", root))


@contextmanager
def alone(folder):
    """Two at once would take each other's results for their own."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WorkspaceError(f"another one is at work in {folder.name}/: wait until it has ended") from None
        yield


def _verify(name, seed, root, folder):
    cells, without = read_cells(folder, root)
    made = MAKING in read_pipeline(root)["stages"]
    weeks = sorted(path.name for path in (root / WEEKS).glob("*") if made and not path.suffix)
    asked = [each for each in weeks if name in (MAKING, f"{MAKING}@{each}")]
    if asked:
        raise WorkspaceError(f"{name}: {of_weeks(asked)}")
    if name in without:
        raise WorkspaceError(f"{name}: nothing of it is committed yet: `make repro` makes what is missing")
    chosen = choose(cells, root, name, seed)
    if not chosen:
        raise WorkspaceError("nothing to verify: no results are committed")
    bring_results(root, folder)
    about_min = max(1, round(sum(seconds(cell, seeds, root) for cell, seeds in chosen) / 60))
    many = "1 cell" if len(chosen) == 1 else f"{len(chosen)} cells"
    print(f"verify: {many}, about {about_min} min in {FOLDER}/; results/ is not touched")
    if without and not name:
        print(f"left out, since nothing of it is committed: {', '.join(without)}")
    if weeks and not name:
        print(f"left out, {len(weeks)} grids: {of_weeks(weeks)}")
    long = [cell.name for cell in cells.values() if cell.kind not in TRAINED and not is_cheap(cell, root)]
    if long and not name:
        some = f", and all trained seeds but one of those that took up to {SHORT_S / 60:.0f} minutes"
        undrawn = some if any(cell.kind in TRAINED for cell in cells.values()) else ""
        print(f"left out, since each takes minutes: {', '.join(long)}{undrawn}; CELL=... recomputes one")
    wrong, begin_s = [], time.monotonic()
    for number, (cell, seeds) in enumerate(chosen, start=1):
        title = cell.name + (f", seed {', '.join(map(str, seeds))}" if cell.seeds else "")
        print(f"\n[{number}/{len(chosen)}] {title} | {minutes(time.monotonic() - begin_s)} elapsed", flush=True)
        if cell.kind in TRAINED and not name:
            print(f"  drawn at random; again: make verify CELL={cell.name} SEED={seeds[0]}", flush=True)
        here, variables = imitated(cell, seeds, root)
        if cell.kind in {*TRAINED, "deployed"}:
            only_of(here, folder)
            link(folder / PRETRAINED, root / PRETRAINED)
        problem = recompute(cell, seeds, folder, variables)
        if problem:
            print(f"  error: {problem}", flush=True)
        if problem or not compare(cell, seeds, folder, root, here):
            wrong.append(title)
        else:
            leave_policies(cell, seeds, folder, root)
    print(f"\nverify: {minutes(time.monotonic() - begin_s)}, {len(chosen) - len(wrong)} of {many} agree")
    if (long or weeks) and not name:
        print("verify: more is committed than was recomputed here, see what was left out above")
    for title in wrong:
        print(f"verify: does not agree or failed: {title}")
    return int(bool(wrong))


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ace.pipeline.recompute", description="Recompute and compare.")
    parser.add_argument("--cell", default="", help="a cell, as wcci2020/ace, or a stage with results")
    parser.add_argument("--seed", default="", help="one of the cell's seeds")
    given = parser.parse_args(arguments)
    return ended(lambda: verify(given.cell, given.seed), "verify", "verify: ")


if __name__ == "__main__":
    sys.exit(main())
