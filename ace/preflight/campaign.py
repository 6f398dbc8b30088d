"""python -m ace.preflight.campaign STAGE...: all seeds of these cells in one pool, the longest first.

Started by ace/pipeline/campaign.py in the folder that the cells belong to. What the cells need is looked at before.
"""

import argparse
import sys
import warnings
from pathlib import Path

from ace import config, experiment, pool
from ace.config.errors import exit_code
from ace.preflight import language, machine, plan
from ace.preflight.__main__ import HOME, show
from ace.preflight.estimate import Estimate, NotMeasured

DECISION_S, ASKING, EPISODE_S = 0.03, 2, 0.3
"""Seconds of a decision of SAC, how much more ACE takes, and of a test episode; used where no run was measured."""


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ace.preflight.campaign", description=__doc__.splitlines()[0])
    parser.add_argument("stages", nargs="+", metavar="STAGE", help="of cells/dvc.yaml: train@wcci2020-ace")
    stages = parser.parse_args(arguments).stages
    warnings.filterwarnings("ignore")
    return exit_code(lambda: run(config.load(), stages, config.root()))


def run(params, stages, root):
    """params: config.Params; stages: names of stages of cells in `root`. Returns an exit code."""
    pool.check()
    cells = [cell for cell in plan.cells(params) if cell.stage in stages]
    if unknown := set(stages) - {cell.stage for cell in cells}:
        raise config.ConfigError(f"no cell of params.yaml: {', '.join(sorted(unknown))}")
    findings = [*language.findings(cells, root), *machine.findings(cells, root, pooled=True)]
    if wrong := [finding for finding in findings if finding.state == "FAIL"]:
        for finding in wrong:
            show(finding)
        return 1
    seconds = expected(params, cells, root)
    order = sorted(seconds, key=lambda each: -seconds[each])  # the longest first: none is left for the end
    experiment.run_seeds(order, "results", f"{len(cells)} cells, {len(order)} runs", [seconds[each] for each in order])
    return 0


def expected(params, cells, root):
    """{(environment, variant, seed): seconds}, from what such runs took, else by their decisions and episodes."""
    results = Path(HOME) / "results"
    estimate = Estimate(params, [root / "results", results], results)
    found = {}
    for cell in cells:
        try:
            each = estimate.of(cell).total_s
        except NotMeasured:
            each = DECISION_S * cell.decisions * (ASKING if cell.settings.uses_llm else 1) + EPISODE_S * params.scenarios.test
        found |= {(cell.environment, cell.variant, seed): max(each, 0.1) for seed in cell.seeds}
    return found


if __name__ == "__main__":
    sys.exit(main())
