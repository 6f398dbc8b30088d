"""The freeze: what was fixed before any test week was made, and whether it still is.

    python -m ace.pipeline.freeze          what is run otherwise than it was frozen
    python -m ace.pipeline.freeze --write  freezes the present commit: results/freeze.json, and chronics.frozen_at in params.yaml
    python -m ace.chronics.make            test weeks, as they follow from that commit and as they are in git

Frozen are the programs that make weeks, models and cells, their parameters, the training and validation weeks, the packages, and
what judges: contrasts, intervals, verdicts. Tables and figures are made of the cells by these. What turns out wrong is mended in
the open: its new digest stands under `mended` with the reason, which `docs/known_issues.md` tells.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

from ace import config
from ace.config.errors import exit_code
from ace.pipeline.digests import DigestError, digest, parameters, programs, without_prose

FREEZE, CONTRASTS = Path("results/freeze.json"), Path("ace/report/contrasts.yaml")
PROGRAMS = ["00_weeks", "01_grids_and_actions", "02_language_model", "03_train", "03_train_baseline", "03_train_lm_baseline"]
PROGRAMS += ["05_pretrained_model", "06_also_model", "foresight_measure"]
MODELS = ["language_model", "also_model", "pretrained_model", "foresight"]
JUDGING = ["ace/stats.py", "ace/report/measure.py", "ace/report/verdicts.py"]
"""How intervals and verdicts are made."""


def state(root, params):
    """{name: digest} of all that is frozen, a cell's with its seeds: "programs.03_train", "cells.wcci2020.ace", ..."""
    code, read = programs(root), parameters(params)
    found = {f"programs.{name}": code[name] for name in PROGRAMS}
    found |= {f"code.{name}": digest(without_prose((root / name).read_text(encoding="utf-8"))) for name in JUDGING}
    found |= {f"sections.{name}": read["sections"][name] for name in MODELS}
    found |= {f"environments.{name}": read["environments"][name] for name in params.grid.environments}
    found |= {f"weeks.{name}": _weeks(root, params.environment(name).weeks) for name in params.grid.environments}
    found |= {f"language_models.{name}": read["language_models"][name] for name in params.grid.other_model}
    for environment, variant in dict.fromkeys((env, variant) for _, env, variant in params.grid.cells):
        seeds = " ".join(map(str, params.seeds_of(variant)))
        found[f"cells.{environment}.{variant}"] = f"{digest(params.settings(variant).as_recorded())} seeds {seeds}"
    found["contrasts"] = digest(YAML(typ="safe").load((root / CONTRASTS).read_text(encoding="utf-8")))
    found["requirements"] = digest((root / "requirements.lock").read_text(encoding="utf-8"))
    return found


def _weeks(root, weeks):
    """Digest of what the training and validation weeks hold, None where the environment has no weeks."""
    if weeks is None:
        return None
    paths = sorted([*(root / weeks.path).glob("train_*.json"), *(root / weeks.path).glob("validation_*.json")])
    return digest([json.loads(path.read_text(encoding="utf-8"))["weeks"] for path in paths])


def differences(frozen, now):
    """What is run otherwise than it was frozen and not mended: messages. A cell may have fewer seeds, or not be run yet."""
    found = []
    for name, value in now.items():
        then, mended = (frozen[kind].get(name) for kind in ("state", "mended"))
        if mended and value == mended["to"]:
            continue
        if name not in frozen["state"]:
            found.append(f"{name}: not in the freeze")
        elif value != then:
            (now_is, is_cell, seeds), (then_was, _, all_seeds) = (str(each).partition(" seeds ") for each in (value, then))
            if not (is_cell and now_is == then_was and set(seeds.split()) <= set(all_seeds.split())):
                found.append(f"{name}: {value}, frozen as {then}")
    return found


def freeze(root):
    """Freeze the commit of the working tree. Raises ConfigError if there is a change that it does not hold, or was one before."""
    params = config.load(root / "params.yaml")
    if params.chronics.frozen_at:
        raise config.ConfigError(f"params.yaml: chronics.frozen_at = {params.chronics.frozen_at}: frozen already")
    changed = _git(root, "status", "--porcelain")
    if changed:
        raise config.ConfigError(
            f"{len(changed.splitlines())} uncommitted changes: a freeze is of a commit; commit them first"
        )
    commit, path = _git(root, "rev-parse", "HEAD"), root / "params.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r'(?m)^(chronics: .*\bfrozen_at: )""', rf'\1"{commit}"', text), encoding="utf-8")
    about = {"commit": commit, "state": state(root, config.load(path)), "mended": {}}
    (root / FREEZE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(f"frozen: {commit}; now make the test weeks, `make weeks`")
    return 0


def check(root):
    """Say what differs from the freeze. Returns an exit code."""
    params = config.load(root / "params.yaml")
    commit = params.chronics.frozen_at
    if not commit:
        print("nothing is frozen yet")
        return 0
    frozen = json.loads((root / FREEZE).read_text(encoding="utf-8"))
    now = state(root, params)
    wrong = differences(frozen, now) if frozen["commit"] == commit else [f"{FREEZE} is of {frozen['commit']}"]
    for line in wrong:
        print(f"differs: {line}", file=sys.stderr)
    if not wrong:
        print(f"as frozen at {commit}: {len(params.grid.cells)} cells, what makes them, and what judges them")
        for name, each in frozen["mended"].items():
            print(f"changed after the freeze: {name}: {each['why']}")
    if unrun := [name for name in frozen["state"] if name.startswith("cells.") and name not in now]:
        print(f"frozen and not in the grid: {', '.join(unrun)}")
    return 1 if wrong else 0


def _git(root, *arguments):
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        raise config.ConfigError("git is not installed: a freeze is of a commit; install it") from None
    if done.returncode:
        raise config.ConfigError(f"git {arguments[0]}: {' '.join(done.stderr.split())}")
    return done.stdout.strip()


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ace.pipeline.freeze", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="freeze the present commit")
    write = parser.parse_args(arguments).write

    def run():
        try:
            return (freeze if write else check)(Path.cwd())
        except DigestError as error:
            raise config.ConfigError(str(error)) from None

    return exit_code(run)


if __name__ == "__main__":
    sys.exit(main())
