"""Runs the pipeline in a directory of its own, so that another scale or a check leaves the committed results alone.

    python -m ace.pipeline.workspace quick              the smallest scale, in quick/
    python -m ace.pipeline.workspace paper              the paper's, in paper/; each folder of profiles/ is such a scale
    python -m ace.pipeline.workspace paper --dry-run    only looks whether all is there, and estimates the time
    python -m ace.pipeline.workspace repro              not elsewhere: brings the committed results up to date (`make repro`)

A workspace holds a copy of what the pipeline reads (`ace/`, the notebooks, the weeks, each dvc.yaml), its own params.yaml and its
own DVC state and results. Its dvc.yaml makes no weeks: all else is computed, by the code as it is now.
Inside, `python -m ace...` and the notebooks import the workspace's copy of `ace`: the current folder comes first on the path,
and kernel.py hands the kernel the folder that it came from itself.
The environment is the caller's, linked as .venv, so that `dvc repro` also works by hand in there.
"""

import argparse
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from ruamel.yaml import YAML

from ace.pipeline.kernel import PREFIX, PYTHON
from ace.pipeline.repro import (
    CELLS_FILE,
    LOCKS,
    ROOT,
    WorkspaceError,
    dvc,
    ended,
    expected_s,
    noted,
    repair_lock,
    repro,
    stage_names,
    surroundings,
)

WEEKS = "results/chronics"
PRETRAINED = "checkpoints/pretrained/SmolLM2-135M-Instruct"  # what `make pretrained` leaves
COPIED = ("ace", "notebooks", "docs", WEEKS, "README.md", ".dvcignore", CELLS_FILE)
GENERATED = {"__pycache__", ".ipynb_checkpoints"}
MAKING = "chronics"  # the stage of the weeks
BY_HAND = "show_pretrained"  # shows what was measured by hand, of which another scale has nothing
DIGESTS = "results/digests.json"  # of programs and parameters, on which stages depend

TRAINED = {"train", "ablation", "other_model", "also", "also_control", "pretrained", "budget"}
"""Stages, by the name ahead of `@`, whose runs learn."""
CELLS = {*TRAINED, "baseline", "lm_baseline", "language_model", "also_model", "pretrained_model"}
"""Stages that ace.preflight estimates itself."""

# Run as a process of its own: the pipeline imports nothing of what it starts.
CHECK = """
import sys
from ace import config, pool
try:
    config.load(sys.argv[1])
    config.jobs()
    pool.check()
except config.ConfigError as error:
    sys.exit(str(error))
"""

DVC_CONFIG = "[core]\n    no_scm = True\n    analytics = false\n    check_update = false\n"


# --- its files --------------------------------------------------------------------------------------------------------


def sources(root):
    """Relative paths of the files that a workspace copies."""
    for name in COPIED:
        top = root / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            inside = path.relative_to(root)
            if path.is_file() and not GENERATED.intersection(inside.parts) and path.parent.suffix != ".making":
                yield inside


def copy_changed(source, target):
    """Copies a file where the bytes differ; an unchanged file keeps its time, so that DVC need not hash it again."""
    write_changed(source.read_bytes(), target)


def write_changed(data, target):
    if not target.is_file() or target.read_bytes() != data:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def read_pipeline(root):
    """dvc.yaml of a folder as a dict."""
    return YAML(typ="safe", pure=True).load((root / "dvc.yaml").read_text(encoding="utf-8"))


def otherwise(params_file):
    """What a scale does otherwise than dvc.yaml: profiles/<name>/pipeline.yaml as a dict, {} where there is none.

    given: stages whose committed results are copied, as inputs; without: stages, or keys of a foreach, that are left out.
    """
    path = params_file.with_name("pipeline.yaml")
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8")) if path.is_file() else {}


def pipeline_for(root, params_file):
    """dvc.yaml of a workspace, as bytes: weeks are an input; `otherwise` says what else is, and which stages are left out."""
    pipeline = read_pipeline(root)
    keys = {stage: set(each.get("foreach", ())) for stage, each in pipeline["stages"].items()}
    changes = otherwise(params_file)
    if params_file.read_bytes() != (root / "params.yaml").read_bytes():
        pipeline["stages"].pop(BY_HAND, None)
    pipeline["stages"].pop(MAKING, None)
    for name in (*changes.get("given", ()), *changes.get("without", ())):
        stage, _, key = name.partition("@")
        if stage not in keys or (key and key not in keys[stage]):
            raise WorkspaceError(
                f"{params_file.with_name('pipeline.yaml')}: {name}: no stage of dvc.yaml, or no key of its `foreach`; "
                "environments and cells are left out in params.yaml"
            )
        if key and stage in pipeline["stages"]:
            pipeline["stages"][stage]["foreach"].pop(key, None)
        else:
            pipeline["stages"].pop(stage, None)
    text, yaml = io.StringIO(), YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = False, False
    yaml.width = 1000  # else commands are folded anew
    yaml.dump(pipeline, text)
    return text.getvalue().encode("utf-8")


def given(root, params_file):
    """Folders of committed results that a workspace takes as they are. WorkspaceError where its scale would make others."""
    read = YAML(typ="safe", pure=True).load
    ours, theirs = (read(path.read_text(encoding="utf-8")) for path in (params_file, root / "params.yaml"))
    places = []
    for stage in otherwise(params_file).get("given", ()):
        for env in ours["grid"]["environments"]:
            different = [key for key in (stage, f"environments.{env}") if _at(ours, key) != _at(theirs, key)]
            if different or not (root / "results" / stage / env).is_dir():
                what = f"{different[0]} differs from params.yaml's" if different else f"no results/{stage}/{env}"
                where = params_file.with_name("pipeline.yaml")
                raise WorkspaceError(f"{where}: given: {stage}: {what}: take the stage out of this list, to make it")
            places.append(Path("results") / stage / env)
    return places


def _at(params, key):
    for name in key.split("."):
        params = params[name]
    return params


def remove_stale(folder, kept):
    """Removes files of earlier copies that the sources no longer have."""
    for name in COPIED:
        for path in sorted((folder / name).rglob("*")):
            inside = path.relative_to(folder)
            if path.is_file() and inside not in kept and not GENERATED.intersection(inside.parts):
                path.unlink()


def prepare(name, params_file, root=ROOT):
    """Makes or renews the workspace <root>/<name> with params_file as its params.yaml. Returns its path."""
    params_file = Path(params_file)
    if not params_file.is_file():
        raise WorkspaceError(f"{params_file}: no such file")
    folder = root / name
    kept = set(sources(root))
    for inside in sorted(kept):
        copy_changed(root / inside, folder / inside)
    remove_stale(folder, kept)
    copy_changed(params_file, folder / "params.yaml")
    write_changed(pipeline_for(root, params_file), folder / "dvc.yaml")
    for place in given(root, params_file):
        for path in sorted((root / place).iterdir()):
            copy_changed(path, folder / place / path.name)
    link(folder / ".venv", Path(PREFIX))
    link(folder / PRETRAINED, root / PRETRAINED)
    if not (folder / ".dvc/config").is_file():
        subprocess.run([*dvc(), "init", "-q", "--no-scm"], cwd=folder, env=surroundings(folder), check=True)
        (folder / ".dvc/config").write_text(DVC_CONFIG)
    return folder


def link(path, target):
    """Makes path a link to a folder that is not copied, where that exists; a folder of the workspace's own stays."""
    if path.is_symlink() and not path.exists():
        path.unlink()
    if target.is_dir() and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(target.absolute(), path.parent.resolve()))


# --- running it -------------------------------------------------------------------------------------------------------


def check(root, params_file):
    """Raises WorkspaceError with the one line that says what is wrong in params_file.

    DVC deletes the outputs of a stage before it starts the stage, which would notice the mistake only then.
    """
    repair_lock(root)
    command = [PYTHON, "-c", CHECK, str(params_file)]
    done = subprocess.run(command, cwd=root, env=surroundings(root), capture_output=True, text=True)
    if done.returncode:
        raise WorkspaceError(done.stderr.strip())


def preflight(root, params_file, folder):
    """All that a dry run looks at, before DVC touches anything. Prints what is wrong; WorkspaceError if anything is."""
    check(root, params_file)
    command = [PYTHON, "-m", "ace.preflight", str(params_file), "--workspace", str(folder), "--only-failures"]
    if subprocess.run(command, cwd=root, env=surroundings(root)).returncode:
        raise WorkspaceError("nothing was run and no result was touched: see FAIL above")


def check_weeks(root):
    """Raises WorkspaceError if weeks would be made and RTE's generator is not installed. Else writes DIGESTS anew."""
    if MAKING not in read_pipeline(root)["stages"] or importlib.util.find_spec("chronix2grid"):
        return
    digests = root / DIGESTS
    before = digests.read_bytes() if digests.is_file() else None
    for command in ([PYTHON, "-m", "ace.pipeline.digests"], [*dvc(), "status", "--json", MAKING]):
        done = subprocess.run(command, cwd=root, env=surroundings(root), capture_output=True, text=True)
        if done.returncode:
            raise WorkspaceError(" ".join(done.stderr.split()))
    stale = [stage.partition("@")[2] for stage in json.loads(done.stdout) if stage.startswith(f"{MAKING}@")]
    if stale:
        if before is not None:
            digests.write_bytes(before)
        raise WorkspaceError(
            f"weeks of {', '.join(stale)}: their files, parameters or the code that makes them changed, and making them needs "
            f"RTE's generator, which is not installed: `git checkout {WEEKS}` brings changed files back, "
            f"`make weeks ENV={stale[0]}` installs it and makes them"
        )


def announce(folder):
    """Says what will run and how long it takes. The time is of 2 cores."""
    params = YAML(typ="safe").load((folder / "params.yaml").read_text())
    grid = params["grid"]
    stages = stage_names(folder)
    expected_min = max(1, round(sum(map(expected_s, stages)) / 60))
    used = ", ".join(otherwise(ROOT / "profiles" / folder.name / "params.yaml").get("given", ()))
    about = f"about {expected_min} minutes on 2 cores" if folder.name == "quick" else "`--dry-run` tells how long,"
    print(f"workspace: {folder.name}/ (the committed results are not touched)")
    print(f"scale {params['scale']}: {', '.join(grid['environments'])}; seeds {', '.join(map(str, params['seeds']))}")
    print(f"methods: {', '.join([*grid['baselines'], *grid['lm_baselines'], *grid['variants']])}")
    if used:
        print(f"not made but taken from the committed results, as it takes minutes: {used}")
    print(f"{len(stages)} stages, {about} from scratch; stop and go on at any time", flush=True)


def profiles(root=ROOT):
    return sorted(path.parent.name for path in root.glob("profiles/*/params.yaml"))


def run(name, root=ROOT):
    """The whole pipeline with profiles/<name>/params.yaml, in <name>/. Returns an exit code."""
    params_file = root / "profiles" / name / "params.yaml"
    preflight(root, params_file, root / name)
    folder = prepare(name, params_file, root)
    announce(folder)
    code = repro(folder)
    if code:
        print(f"{name}: a stage failed or was stopped, see above; `make {name}` goes on from there", file=sys.stderr)
        return code
    # Asked from here, where the user is: the paths that it prints begin with the workspace's name.
    claims = [PYTHON, "-m", "ace.report.claims", folder.name]
    code = subprocess.run(claims, cwd=root, env=surroundings(root)).returncode
    print(f"\nAll of it lies in {folder.name}/results/. The committed results, at the laptop's scale, lie in results/.")
    return code


# --- or only looking --------------------------------------------------------------------------------------------------


def dry_run(name, root=ROOT):
    """Checks what profiles/<name>/ needs and estimates its time; runs and leaves nothing. Returns an exit code."""
    params_file = root / "profiles" / name / "params.yaml"
    check(root, params_file)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_changed(pipeline_for(root, params_file), folder / "dvc.yaml")
        for source, target in ((root / CELLS_FILE, CELLS_FILE), (params_file, "params.yaml")):
            copy_changed(source, folder / target)
        subprocess.run([*dvc(), "init", "-q", "--no-scm"], cwd=folder, env=surroundings(root), check=True)
        stages = stage_names(folder)
    kinds = Counter(stage.partition("@")[0] for stage in stages)
    beside_s = sum(expected_s(stage) for stage in stages if stage.partition("@")[0] not in CELLS)
    print(f"{name}/: {len(stages)} stages would run: " + ", ".join(f"{n} {kind}" for kind, n in kinds.items()))
    locks = [root / name / lock for lock in LOCKS if (root / name / lock).is_file()]
    if before := set(stages).intersection(*[set().union(*map(noted, locks))]):
        print(f"{len(before)} of them are noted as run before in {name}/: those whose inputs are the same are passed over")
    command = [PYTHON, "-m", "ace.preflight", str(params_file), "--workspace", str(root / name)]
    command += ["--beside-s", str(beside_s), "--stages", *stages]
    sys.stdout.flush()
    return subprocess.run(command, cwd=root, env=surroundings(root)).returncode


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ace.pipeline.workspace", description="Run in a folder of its own.")
    parser.add_argument("command", choices=[*profiles(), "repro"])
    parser.add_argument("--dry-run", action="store_true", help="only look whether all is there, and estimate the time")
    given = parser.parse_args(arguments)
    if given.command == "repro":
        return ended(repro_here, "repro")
    return ended(lambda: dry_run(given.command) if given.dry_run else run(given.command), given.command)


def repro_here():
    """`dvc repro` of the repository itself, after all checks. Returns an exit code."""
    preflight(ROOT, ROOT / "params.yaml", ROOT)
    check_weeks(ROOT)
    return repro(ROOT)


if __name__ == "__main__":
    sys.exit(main())
