"""What pretraining is worth: a pretrained model's proposals and judgements, tuned on ever more of the corpus (our measurement).

Every proposer is asked in the same held-out states, and each learns from the same states of the corpus:

    zero_shot        the pretrained model in its native form, as it comes
    finetuned        the same in the form that `pretrained_model.form` names, LoRA on the corpus (llm/models/tuning.py); where the
                     stage pretrained_model has made one so, that one
    random_weights   a body of the same shape with new weights, fine-tuned alike: without it nothing is said about pretraining
    from_scratch     the embedded model, trained on these states
    classifier       a plain network on the same labels (studies/proposers/classifier.py)
    frequency        the lookup table: the actions most often best in these states
    majority         no proposer: of g_LLM's signs, always the one that is right more often in the judged decisions

    python -m ace.studies.pretrained.measure wcci2020 [--proposers finetuned frequency] [--sizes 4000] [--seeds 7]

Hours, so no stage runs it: results/studies/pretrained/<env>/runs.json keeps the values of every run (proposer, size, seed), and a
call makes what is asked for and missing. A tuning that was killed goes on where it was. Several calls may run side by side.
"""

import argparse
import json
import sys

import numpy as np
import pandas as pd

from ace import config
from ace.config.errors import exit_code
from ace.config.files import alone, read_json, written_whole
from ace.config.host import processor
from ace.llm.models import pretrained
from ace.stats import mean_interval
from ace.studies.pretrained.bench import LEARNING, PROPOSERS, Bench, identity_of, one
from ace.trained_policies import write_rows

COLUMNS = ["grid", "proposer", "states", "metric", "value", "ci_low", "ci_high", "n", "seeds"]
UNDRAWN = ("zero_shot", "frequency")
"""Of one seed: nothing is drawn in what they learn."""


def measure(environment, output="results", progress=True, proposers=PROPOSERS, **only):
    """Make the missing runs of all proposers, sizes and seeds, or of a selection (only: `sizes`, `seeds`).

    Writes <output>/studies/pretrained/<environment>/pretrained.csv of all runs that are kept, and returns it.

    A table with COLUMNS: states is how many of the corpus were learned from, 0 for zero_shot and majority; n held-out states or,
    of critic_sign, key decisions; seeds how many runs. Values are means over the seeds, intervals 95 % over scenarios (of
    critic_sign over episodes). one_proposal_minus_<proposer>, of finetuned: the paired difference on the same states, both of the
    same size. one_proposal_scored[_minus_written]: the action with the highest score in the place of the one that was written.
    """
    params = config.load()
    params.environment(environment)
    base = pretrained.folder()  # before anything is made
    bench, settings = Bench(params, environment, progress), params.pretrained_model.model_copy(update=only)
    place = config.root() / pretrained.PLACE / "study" / environment
    place.mkdir(parents=True, exist_ok=True)
    path = config.root() / output / "studies" / "pretrained" / environment / "runs.json"
    identity = identity_of(bench, settings, base)
    _read(path, identity)
    sizes = settings.sizes
    for proposer, size in [("zero_shot", 0), *((each, size) for size in sizes for each in LEARNING)]:
        for seed in settings.seeds[:1] if proposer in UNDRAWN else settings.seeds:
            name = f"{proposer}-{size}-{seed}"
            if proposer in proposers and name not in _read(path, identity):
                columns = one(bench, proposer, size, seed, place / f"{identity}-{name}.pt")
                _keep(path, identity, name, columns)
    found = {("majority", 0): [{"critic_sign": majority(bench.truth)}]}
    for name, run in _read(path, identity).items():
        proposer, size, _ = name.split("-")
        found.setdefault((proposer, int(size)), []).append(run["values"])
    table = table_of(environment, found, bench.groups, [e for e, _ in bench.keys])
    write_rows(table, output, f"pretrained/{environment}", "pretrained")
    return table


def majority(truth):
    """(n,) whether the sign that is right more often is right, in each judged decision. truth: (n,) bool, the right signs."""
    truth = np.asarray(truth, dtype=bool)
    return truth == (truth.mean() >= 0.5)


def _read(path, identity):
    """{"<proposer>-<size>-<seed>": {"processor": text, "values": {metric: [value of each state]}}} of runs.json; ConfigError
    where it is of another identity."""
    if not path.is_file():
        return {}
    kept = read_json(path)
    if kept["identity"] != identity:
        raise config.ConfigError(
            f"{config.named(path)}: identity {kept['identity']}, now {identity}: code, parameters, states or model files have "
            "changed since; remove it to measure anew"
        )
    return kept["runs"]


def _keep(path, identity, name, columns):
    """Add a run to runs.json: a line each, in the order of their names."""
    values = {metric: [round(float(v), 6) for v in each] for metric, each in columns.items()}
    values = {metric: [int(v) if v.is_integer() else v for v in each] for metric, each in values.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(config.root() / pretrained.PLACE / "study"):
        runs = _read(path, identity) | {name: {"processor": processor(), "values": values}}
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(runs[key], separators=(',', ':'))}" for key in sorted(runs))
        with written_whole(path) as partial:
            partial.write_text(f'{{"identity": "{identity}",\n"runs": {{\n{lines}\n}}}}\n')


def table_of(environment, found, groups, episodes):
    """Rows of `measure`. found: {(proposer, states): [{metric: (n,) values} of each seed]}; groups: scenario of each held-out
    state; episodes: of each key decision."""
    means = {key: {metric: np.mean([run[metric] for run in runs], axis=0) for metric in runs[0]} for key, runs in found.items()}
    rows = []
    for (proposer, size), columns in sorted(means.items(), key=lambda each: (each[0][1], each[0][0])):
        compared = {}
        if proposer == "finetuned":
            others = {"zero_shot": 0, **dict.fromkeys(LEARNING[1:], size)}
            compared = {
                f"one_proposal_minus_{other}": columns["one_proposal"] - means[other, of]["one_proposal"]
                for other, of in others.items() if (other, of) in means
            }  # fmt: skip
        for metric, values in {**columns, **compared}.items():
            interval = mean_interval(np.asarray(values), (episodes if metric == "critic_sign" else groups)[: len(values)])
            rows.append([environment, proposer, size, metric, *interval.values(), len(values), len(found[proposer, size])])
    return pd.DataFrame(rows, columns=COLUMNS)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ace.studies.pretrained.measure", description="What pretraining is worth.")
    parser.add_argument("environment", help="a name under `environments` in params.yaml")
    parser.add_argument("--output", default="results", help="the folder that the table is written below")
    parser.add_argument("--proposers", nargs="+", choices=PROPOSERS, default=PROPOSERS, help="only these")
    for name in ("sizes", "seeds"):
        parser.add_argument(f"--{name}", nargs="+", type=int, help=f"in the place of `pretrained_model.{name}`")
    given = parser.parse_args(arguments)

    def work():
        only = {name: each for name in ("sizes", "seeds") if (each := getattr(given, name))}
        print(measure(given.environment, given.output, True, given.proposers, **only).to_string(index=False))

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
