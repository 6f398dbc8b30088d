"""`dvc repro` in a folder: its output with overall progress, and an end to all that it started when it is stopped."""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from ruamel.yaml import YAML

from ace.pipeline.kernel import PYTHON, environment

ROOT = Path(__file__).resolve().parents[2]

# Seconds of a stage at the quick scale on 2 cores, by what its name begins with
SECONDS = {
    "scenarios": 10,
    "language_model@": 90,
    "pretrained_model": 3600,
    "baseline": 12,
    "train": 80,
    "ablation": 80,
    "measure_foresight": 45,
    "measure_lora": 25,
    "measure_official_score": 60,
    "measure_rates": 20,
    "measure_environments": 110,
    "environments_table": 15,
    "deployed": 25,
}
SECONDS_OTHER = 5  # tables and figures
STATUS_S = 30.0  # a longer stage shows the time to go again, at most so often
GRACE_S = 10.0  # for DVC and its stage to end when they are asked to
CELLS_FILE = "cells/dvc.yaml"  # stages that make cells; all others are in dvc.yaml
LOCKS = {"dvc.lock": ".dvc/tmp/dvc.lock", "cells/dvc.lock": ".dvc/tmp/cells.lock"}  # and their copies
STAGE = re.compile(rf"^(Running stage|Stage) '(?:{CELLS_FILE}:)?([^']+)'(.*)")
NOTED = re.compile(r"^  (\S.*):\n    ", re.MULTILINE)  # a stage in dvc.lock, with something below its name
NOISE = (
    "Updating lock file",
    "Generating lock file",
    "Use `dvc push`",
    "To track the changes",
    "\tgit add",
    "To enable auto",
    "\tdvc config",
    "WARNING: Process '",  # after a run that was killed: its lock is taken away
)


class WorkspaceError(Exception):
    """A failure whose text is the one line that the user needs."""


def ended(work, command, prefix=""):
    """Exit code of a command: what work() returns, else after one line on stderr, an error's with the prefix."""
    try:
        return work()
    except WorkspaceError as error:
        print(f"{prefix}{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{command}: stopped; the next call goes on from there", file=sys.stderr)
        return 130


def dvc():
    return [PYTHON, "-m", "dvc"]


def surroundings(folder):
    """The environment of the workspace's processes: its own `ace`, this interpreter."""
    return environment() | {"PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1"}


def expected_s(stage):
    """Seconds that a stage takes at the quick scale, before any was measured."""
    return next((seconds for start, seconds in SECONDS.items() if stage.startswith(start)), SECONDS_OTHER)


def minutes(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Clock:
    """Which stage of how many, and the time to go: expected seconds, scaled by how the stages so far compared.

    foretells: whether the time to go is shown; what is expected is of the quick scale.
    """

    def __init__(self, stages, now=time.monotonic, foretells=True):
        self.foretells = foretells
        self.waiting = dict.fromkeys(stages)
        self.total = len(stages)
        self.ran = 0
        self.now = now
        self.begin_s = self.stage_s = now()
        self.present = None
        self.measured_s = self.planned_s = 0.0

    def start(self, stage, runs):
        """A stage starts (runs) or is passed over, because nothing changed for it. Returns the line to show."""
        self.finish()
        self.waiting.pop(stage, None)
        self.present = stage if runs else None
        self.ran += runs
        self.stage_s = self.now()
        return self.status() if runs else f"[{self.total - len(self.waiting)}/{self.total}] {stage}: up to date"

    def status(self):
        """Of the stage that runs: its place, and the times."""
        to_go = f", about {minutes(self.to_go_s())} to go" if self.foretells else ""
        place = f"[{self.total - len(self.waiting)}/{self.total}] {self.present}"
        return f"{place} | {minutes(self.now() - self.begin_s)} elapsed{to_go}"

    def finish(self):
        if self.present:
            self.measured_s += self.now() - self.stage_s
            self.planned_s += expected_s(self.present)
            self.present = None

    def to_go_s(self):
        # Two minutes as expected are taken as seen already: one early stage must not throw the estimate about.
        pace = (self.measured_s + 120) / (self.planned_s + 120)
        here = 0.0
        if self.present:
            plan, spent = pace * expected_s(self.present), self.now() - self.stage_s
            here = max(plan - spent, 0.1 * plan)  # never nothing: a stage that takes longer than expected is not done
            pace = (self.measured_s + max(spent - plan, 0) + 120) / (self.planned_s + 120)  # and tells of those to come
        return here + pace * sum(map(expected_s, self.waiting))


def stage_names(folder, targets=()):
    """Names of a folder's stages, of `targets` only where there are any."""
    command = [*dvc(), "stage", "list", "--all", "--fail", "--name-only"]
    listed = subprocess.run(command, cwd=folder, env=surroundings(folder), capture_output=True, text=True)
    if listed.returncode:
        said = " ".join(listed.stderr.split())
        if "not a git repository" in said:  # an unpacked archive
            said += f"; write `[core]` and `no_scm = true` into {folder / '.dvc/config.local'}, or clone the repository with git"
        raise WorkspaceError(f"dvc stage list: {said}")
    names = [name.removeprefix(f"{CELLS_FILE}:") for name in listed.stdout.split()]
    return [name for name in names if not targets or name in targets]


def kind(stage):
    """Its name in a dvc.yaml, without `@...`."""
    return stage.partition("@")[0]


def addresses(folder, stages):
    """{name as DVC takes it in this folder: name of the stage}."""
    path = folder / CELLS_FILE
    cells = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))["stages"] if path.is_file() else ()
    return {f"{CELLS_FILE}:{stage}" if kind(stage) in cells else stage: stage for stage in stages}


# --- a lock file that outlives a kill ----------------------------------------------------------------------------------


def keep_lock(folder):
    """A copy of each LOCKS, which DVC rewrites in place after every stage: whoever stops it then leaves half a file."""
    for lock, copy in LOCKS.items():
        if (folder / lock).is_file():
            (folder / copy).parent.mkdir(parents=True, exist_ok=True)
            partial = (folder / copy).with_suffix(".partial")
            shutil.copyfile(folder / lock, partial)
            partial.replace(folder / copy)


def noted(lock):
    """Names of the stages in a dvc.lock."""
    return set(NOTED.findall(lock.read_text(encoding="utf-8")))


def repair_lock(folder, kept_now=False):
    """Puts the copy back where one of LOCKS is half a file: empty or cut in a line, or with fewer stages than what was kept_now.

    DVC's own file of locks, which it would not read any more, goes where it is empty.
    """
    rwlock = folder / ".dvc/tmp/rwlock"
    if rwlock.is_file() and not rwlock.stat().st_size:
        rwlock.unlink()
    for name, kept in LOCKS.items():
        lock, copy = folder / name, folder / kept
        if not lock.is_file() or not copy.is_file():
            continue
        fewer = kept_now and not noted(copy) <= noted(lock)
        if fewer or not lock.read_bytes().endswith(b"\n"):
            shutil.copyfile(copy, lock)
            print(f"{name} was stopped halfway; it is that of the last finished stage again", file=sys.stderr)


# --- running it -------------------------------------------------------------------------------------------------------


def repro(folder, targets=()):
    """`dvc repro` in a folder, of all stages or of `targets`. Passes its output on with a line of overall progress.

    Returns DVC's exit code.
    """
    repair_lock(folder)
    keep_lock(folder)
    try:
        return _repro(folder, targets)
    finally:  # also when it is stopped
        repair_lock(folder, kept_now=True)


def _repro(folder, targets):
    clock = Clock(stage_names(folder, targets), foretells=folder.name == "quick")
    with running([*dvc(), "repro", *(addresses(folder, targets) or ["--all-pipelines"])], folder) as process:
        said_s = clock.now()
        for line in process.stdout:
            if stage := STAGE.match(line):
                keep_lock(folder)
                print(clock.start(stage[2], runs=stage[1] == "Running stage"), flush=True)
                said_s = clock.now()
            elif line.strip() and not line.startswith((*NOISE, "> ")):
                print(f"    {line.rstrip()}", flush=True)
                if clock.present and clock.now() - said_s >= STATUS_S:
                    print(clock.status(), flush=True)
                    said_s = clock.now()
    seconds = clock.now() - clock.begin_s
    print(f"{minutes(seconds)} in all", flush=True)
    if process.returncode == 0 and clock.ran == clock.total and not targets and folder != ROOT:
        note_minutes(folder, seconds, clock.total)
    return process.returncode


@contextmanager
def running(command, folder, **options):
    """A process of its own group, with its output as text lines. Whoever ends this process (Ctrl-C, SIGTERM) ends that whole
    group first: DVC, the stage and its workers would go on and hold the locks that the next call needs."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace",
               "env": surroundings(folder), **options}  # fmt: skip
    before = signal.signal(signal.SIGTERM, _stopped)
    try:
        process = subprocess.Popen(command, cwd=folder, start_new_session=True, preexec_fn=_end_with_parent, **options)
        try:
            yield process
            process.wait()
        except BaseException:
            end_group(process)
            raise
        finally:
            process.stdout.close()
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_with_parent():
    """In a new process of Linux: killed as soon as whoever started it is (prctl's PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _stopped(*_):
    raise KeyboardInterrupt


def end_group(process):
    """Ends all processes of a group: asked first, after GRACE_S killed. A notebook's kernel sees that its parent is gone."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def note_minutes(folder, seconds, stages):
    """How long all stages took in one call, none of them up to date before: for benchmarks/run.py."""
    # Not below results/, on which stages depend: the next call would run them again.
    (folder / "minutes.json").write_text(json.dumps({"minutes": round(seconds / 60, 2), "stages": stages}) + "\n")
