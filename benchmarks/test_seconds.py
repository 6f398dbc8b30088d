"""Seconds of the test, timed anew: methods of one grid one after another, on one core of one machine.

    python -m benchmarks.test_seconds neurips2020 ace expert_sac llm_only

A run is tested when its training ends, beside others that still train; and cells of a grid may have been run on different
machines. Claims that compare seconds (C5, C6) need them side by side. This plays the test of every run of these methods again,
one seed of each in turn, and writes its seconds into results/provenance/ (`wall_s.evaluate`; `timed`: when, and on what).

Trained methods need the policies that their training left under checkpoints/. All episodes must be the committed ones, or
nothing is written. No score changes.
"""

import sys
import tempfile
import time
from itertools import zip_longest
from pathlib import Path

from tqdm import tqdm

from ace import config, evaluate
from ace.config.host import processor
from ace.experiment import Run
from ace.rl.policy import Policy, load_policy
from ace.run_files import cell_folder, note_provenance, read_cell, read_provenance
from ace.trained_policies import policy_of

SAME = ("survived_steps", "decisions", "topology_actions")


def main(arguments=None):
    environment, *variants = sys.argv[1:] if arguments is None else arguments
    params, root, timed = config.load(), config.root(), {}
    rounds = zip_longest(*([(variant, seed) for seed in params.seeds_of(variant)] for variant in variants))
    for variant, seed in tqdm([run for turn in rounds for run in turn if run], unit="run"):
        try:
            timed[variant, seed] = seconds(params, root, environment, variant, seed)
        except LookupError as problem:
            print(f"test_seconds: results/runs/{environment}/{variant}, seed {seed}: {problem.args[0]}", file=sys.stderr)
            return 1
    for variant in variants:
        noted = read_provenance(root / "results", environment, variant)
        for seed, entry in noted.items():
            entry["wall_s"]["evaluate"] = round(timed[variant, seed], 1)
            entry["timed"] = {"cpu": processor(), "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        note_provenance(root / "results", environment, variant, noted)
    return 0


def seconds(params, root, environment, variant, seed):
    """Wall seconds of one run's test. LookupError without its policy, or where an episode is not the committed one."""
    settings = params.settings(variant)
    policy = policy_of(root, environment, variant, seed) if settings.method == "sac" else ""
    if policy is None:
        raise LookupError("no policy of this run, in git or under checkpoints/")
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(params, settings, environment, seed, root, Path(scratch))
        agent = Policy(load_policy(root / policy, run.world.catalogue)) if policy else run.agent
        started = time.perf_counter()
        played = list(evaluate.play(run.training, agent, "test", range(len(run.world.sets["test"]))))
        taken = time.perf_counter() - started
    committed = read_cell(cell_folder(root / "results", environment, variant))[seed].of_split("test")
    if [tuple(getattr(each, name) for name in SAME) for each in played] != [
        tuple(int(row[name]) for name in SAME) for row in committed
    ]:
        raise LookupError("its test played again gives other episodes than the committed ones")
    return taken


if __name__ == "__main__":
    sys.exit(main())
