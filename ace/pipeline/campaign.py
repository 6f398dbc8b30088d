"""All seeds of all stale cells in one pool: for a rerun of many cells, and for a cluster (ACE_BACKEND).

    python -m ace.pipeline.campaign           of the folder that this is called in: the repository, or a workspace
    python -m ace.pipeline.campaign quick     of the workspace of that scale, which is made first
    ... --only 'train@wcci2020-*,baseline@*'  of the cells alone whose stage has such a name

`dvc repro` alone runs one cell after the other. Here what cells need is made first (digests, scenarios, language models), then
the runs of all of them, which wait below checkpoints/ for `dvc repro`: that collects them without computing. An interrupted
campaign resumes when it is called again.
"""

import argparse
import codecs
import json
import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

from ace.pipeline import workspace
from ace.pipeline.kernel import PYTHON
from ace.pipeline.notebook import Progress
from ace.pipeline.repro import (
    CELLS_FILE,
    ROOT,
    WorkspaceError,
    addresses,
    dvc,
    ended,
    kind,
    repro,
    running,
    stage_names,
    surroundings,
)
from ace.pipeline.workspace import check, check_weeks, prepare, profiles

NEEDED = ("digests", "chronics", "scenarios", "language_model", "language_models", "also_model", "pretrained_model")
CELLS = workspace.CELLS - {*NEEDED}
FOR = {"language_models": {"other_model"}, "also_model": {"also", "also_control"}, "pretrained_model": {"pretrained"}}
"""Models that only some kinds of cells need."""


def run(folder, only="*"):
    """The campaign of a folder's cells with names like `only`. Returns an exit code."""
    check(folder, folder / "params.yaml")
    check_weeks(folder)
    stages = stage_names(folder)
    needed, cells = ([name for name in stages if kind(name) in kinds] for kinds in (NEEDED, CELLS))
    patterns = [each.removeprefix(f"{CELLS_FILE}:") for each in only.split(",")]
    cells = [name for name in cells if any(fnmatch(name, each) for each in patterns)]
    if not cells:
        raise WorkspaceError(f"no cell has a name like {only!r}; `dvc stage list --all --name-only` shows all")
    needed = [name for name in needed if is_needed(name, cells)]
    if stale(folder, needed):
        code = repro(folder, needed)
        if code:
            return code
    cells = stale(folder, cells)
    if not cells:
        print("no stale cell: nothing to run")
        return 0
    print(f"stale: {', '.join(cells)}", flush=True)
    code = play(folder, cells)
    if not code:
        print(
            "all of their runs are finished; `make repro`, or the scale's own target, collects them without computing,"
        )
        print(f"or these cells alone: .venv/bin/dvc repro {' '.join(addresses(folder, cells))}")
    return code


def is_needed(stage, cells):
    """Whether one of the cells needs this stage, which none of them is."""
    of_grid = [cell for cell in cells if "@" not in stage or grid(cell) == grid(stage)]
    return any(kind(cell) in FOR.get(kind(stage), CELLS) for cell in of_grid)


def grid(stage):
    return stage.partition("@")[2].partition("-")[0]


def stale(folder, stages):
    """Those of the stages that DVC finds changed, in their order."""
    named = addresses(folder, stages)
    command = [*dvc(), "status", "--json", *named]
    done = subprocess.run(command, cwd=folder, env=surroundings(folder), capture_output=True, text=True)
    if done.returncode:
        raise WorkspaceError(f"dvc status: {' '.join(done.stderr.split())}")
    found = json.loads(done.stdout)
    return [stage for name, stage in named.items() if name in found]


def play(folder, cells):
    """The runs of these cells, in a process of its own, with its progress passed on. Returns its exit code."""
    shown, decode = Progress(sys.stdout), codecs.getincrementaldecoder("utf-8")("replace")
    command = [PYTHON, "-m", "ace.preflight.campaign", *cells]
    with running(command, folder, text=False, errors=None) as process:
        while part := os.read(process.stdout.fileno(), 65536):
            shown.write(decode.decode(part))
            shown.flush()
        shown.close()
    return process.returncode


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ace.pipeline.campaign", description=__doc__.splitlines()[0])
    parser.add_argument("scale", nargs="?", choices=profiles(), help="a folder of profiles/; else this one")
    parser.add_argument("--only", default="*", metavar="NAMES", help="of cells; * for any part, commas between")
    given = parser.parse_args(arguments)

    def folder():
        return prepare(given.scale, ROOT / "profiles" / given.scale / "params.yaml") if given.scale else Path.cwd()

    return ended(lambda: run(folder(), given.only), "campaign")


if __name__ == "__main__":
    sys.exit(main())
