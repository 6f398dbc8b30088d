"""The variants with the pretrained model on development weeks, with ACE and the lookup table (our measurement).

    python -m ace.studies.pretrained.variants wcci2020 [--variants pretrained_only] [--seeds 0 1]

A try of what a campaign would run in full: each run trains as that of a cell, with the same settings and weeks, and plays the
development weeks in the place of the test. Needs `make pretrained`; up to 45 minutes a run with the pretrained model. A run that
was killed goes on where it was. Calls may run side by side.
"""

import argparse
import json
import sys

from ace import config, pool
from ace.config.errors import exit_code
from ace.config.files import alone, written_whole
from ace.config.host import processor
from ace.experiment import Run, fingerprint, scratch_folder
from ace.grid.environment import scenario_sets
from ace.llm.clients import open_client
from ace.studies.pretrained.measure import selected

VARIANTS = ("ace_pretrained", "ace_pretrained_frozen", "pretrained_only", "ace", "frequency_refine")
SEEDS = (0, 1)


def measure(environment, output="results", variants=VARIANTS, seeds=SEEDS):
    """Make the missing runs; of what learns nothing with the first seed only. Returns the lines of
    <output>/studies/pretrained/<environment>/variants.jsonl, a dict a run:

    variant, seed, fingerprint (`experiment.fingerprint`, its first 12 digits), processor, survival (of each development week, a
    share of the horizon), refinements, finetunes (LoRA rounds), budget (`experiment.Run.budget`; "test": the development weeks),
    tokens by role, minutes by phase. ConfigError, before anything is made, where something named is missing, where the grid has
    no weeks, or where a line is of another fingerprint.
    """
    params, selection = selected(environment, {"seeds": list(seeds)})
    params, seeds, root = _on_development(params, environment), selection.seeds, config.root()
    sets = scenario_sets(params.environment(environment), params.scenarios)
    settings = {variant: params.settings(variant) for variant in variants}
    for each in settings.values():
        if each.uses_llm:
            open_client(each.llm, environment, seeds[0], root)
    of = {variant: fingerprint(params, each, environment, sets, root)[:12] for variant, each in settings.items()}
    path = root / output / "studies" / "pretrained" / environment / "variants.jsonl"
    kept = read(path)
    for line in kept:
        if line["fingerprint"] != of.get(line["variant"], line["fingerprint"]):
            made = f"{line['variant']}, seed {line['seed']}, was made with other settings, weeks, code, model or processor"
            raise config.ConfigError(f"{config.named(path)}: {made}; remove its line")
    done = {(line["variant"], line["seed"]) for line in kept}
    # What learns nothing draws nothing: the model's answers hang on the number of the decision.
    drawn = {variant: seeds if each.method == "sac" else seeds[:1] for variant, each in settings.items()}
    wanted = dict.fromkeys((variant, seed) for variant in variants for seed in drawn[variant])
    tasks = [(environment, output, *each) for each in wanted if each not in done]
    if tasks:
        places = [_scratch(*task) for task in tasks]
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
        with pool.Progress(f"{environment}, development weeks", [place / "progress" for place in places]):
            pool.run(_run, [(path, *task) for task in tasks])
    return read(path)


def read(path):
    """Lines of a variants.jsonl in their order; none where there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def _on_development(params, environment):
    """Parameters with the development weeks as the test; ConfigError for a grid without weeks, whose test days would stay."""
    if not params.environment(environment).weeks:
        raise config.ConfigError(f"params.yaml: environments: {environment} has no weeks, so none for development")
    weeks = {"test_split": "development_test", "test": params.chronics.development_test}
    scenarios = params.scenarios.model_copy(update=weeks)
    return params.model_copy(update={"scenarios": scenarios})


def _scratch(environment, output, variant, seed):
    return scratch_folder(config.root(), f"development/{output}", environment, variant) / f"seed={seed}"


def _run(path, *task):
    """One run from its training to the development weeks, added to the file `path` in the place of its checkpoint."""
    scratch, (environment, _, variant, seed) = _scratch(*task), task
    params = _on_development(config.load(), environment)
    with alone(scratch):  # who is at the same run is waited for
        if (variant, seed) in {(line["variant"], line["seed"]) for line in read(path)}:
            return
        run = Run(params, params.settings(variant), environment, seed, config.root(), scratch)
        if run.learner:
            run.train()
        run.test()
        _add(path, {
            "variant": variant,
            "seed": seed,
            "fingerprint": run.fingerprint[:12],
            "processor": processor(),
            "survival": [round(each.survival, 6) for each in run.plays.results["test"]],
            "refinements": run.learner.count["refined"] if run.learner else 0,
            "finetunes": len(run.finetunes),
            "budget": run.budget(),
            "tokens": run.session.recorder.tokens_by_role() if run.session else {},
            "minutes": {name: round(seconds / 60, 1) for name, seconds in run.wall.items() if seconds},
        })  # fmt: skip
        (scratch / "state.pt").unlink(missing_ok=True)


def _add(path, line):
    """Add a run, in the order of VARIANTS and seeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(config.root() / "checkpoints" / "development"):
        lines = sorted([*read(path), line], key=lambda each: (VARIANTS.index(each["variant"]), each["seed"]))
        with written_whole(path) as partial:
            partial.write_text("".join(json.dumps(each, sort_keys=True) + "\n" for each in lines), encoding="utf-8")


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m ace.studies.pretrained.variants", description="Variants with the pretrained model on development weeks."
    )
    parser.add_argument("environment", help="a name under `environments` in params.yaml")
    parser.add_argument("--output", default="results", help="the folder that the file is written below")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, help="only these")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, help="only these")
    given = parser.parse_args(arguments)

    def work():
        for line in measure(given.environment, given.output, given.variants, given.seeds):
            print(line["variant"], line["seed"], f"{100 * sum(line['survival']) / len(line['survival']):.1f} % survived")

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
