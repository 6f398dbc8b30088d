"""python -m ace.preflight PARAMS --workspace FOLDER: every check, then the estimate; exit code 1 if any check fails.

Started by `python -m ace.pipeline.workspace NAME --dry-run`. All checks are made, not only up to the first that fails.
"""

import argparse
import os
import sys
import warnings
from itertools import chain
from pathlib import Path

from ace import config
from ace.preflight import estimate, language, machine, policies, worlds
from ace.preflight.plan import cells, fail, ok

HOME = Path(__file__).resolve().parents[2]


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ace.preflight", description=__doc__.splitlines()[0])
    parser.add_argument("params", type=Path, help="a params.yaml")
    parser.add_argument("--workspace", type=Path, required=True, help="the folder it would run in; need not exist")
    parser.add_argument("--only-failures", action="store_true", help="say nothing of what is well, and make no estimate")
    parser.add_argument("--beside-s", type=float, default=0.0, help="seconds of the stages that neither play nor train")
    parser.add_argument("--stages", nargs="*", help="of the pipeline; default: all that params.yaml could ask for")
    given = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    try:
        params = config.load(given.params)
    except config.ConfigError as error:
        show(fail("parameters", f"{error}; nothing else can be looked at before"))
        return 1
    stages, workspace = given.stages, given.workspace.resolve()
    planned = [cell for cell in cells(params) if stages is None or cell.stage in stages]
    models = stages is None or any(stage.startswith("language_model@") for stage in stages)
    first = ok("parameters", f"{os.path.relpath(given.params)}, scale {params.scale}")
    failed = 0
    # The language model first: a server that is not there is known within seconds, a grid takes some to load.
    looked_at = (
        language.findings(planned, workspace), policies.findings(params, planned, workspace, stages),
        worlds.findings(params), machine.findings(planned, workspace),
    )  # fmt: skip
    for finding in chain([first], *looked_at):
        failed += finding.state == "FAIL"
        if finding.state == "FAIL" or not given.only_failures:
            show(finding)
    if given.only_failures:
        return min(failed, 1)
    try:
        jobs = config.jobs()
    except config.ConfigError:  # a finding of its own
        jobs = 1
    print()
    for line in estimate.lines(params, planned, jobs, given.beside_s, workspace, HOME, models):
        print(line)
    print(f"\nchecks failed: {failed}, see FAIL above" if failed else "\nall checks passed; nothing was run")
    return min(failed, 1)


def show(finding):
    print(f"{finding.state:5s} {finding.what}: {finding.text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
