"""What pretraining is worth: a pretrained model's proposals and judgements, tuned on ever more of the corpus (our measurement).

Every proposer is asked in the same held-out states, and each learns from the same states of the corpus:

    zero_shot        the pretrained model in its native form, as it comes
    finetuned        the same in the form that `pretrained_model.form` names, LoRA on the corpus (llm/models/tuning.py); where the
                     stage pretrained_model has made one so, that one
    random_weights   a body of the same shape with new weights, fine-tuned alike: without it nothing is said about pretraining
    from_scratch     the embedded model, trained on these states
    classifier       a plain network on the same labels (studies/rates/classifier.py)
    fewer_samples    from_scratch in as many steps of as few samples as finetuned: by itself it learns from several times as many
                     samples of these states. Its rate is that of its larger batches
    fewer_classifier the same of classifier
    frequency        the lookup table: the actions most often best in these states
    majority         no proposer: of g_LLM's signs, always the one that is right more often in the judged decisions

    python -m ace.studies.pretrained.measure wcci2020 [--proposers finetuned frequency] [--sizes 4000] [--seeds 7]

Hours, so no stage runs it: results/studies/pretrained/<env>/runs.json keeps the values of every run (proposer, size, seed), and a
call makes what is asked for and missing. A tuning that was killed goes on where it was. Calls may run side by side, each with a
selection of its own, and on several machines: runs.json is what they hand on. Its identity is that of code, parameters, weeks,
states, model files and versions (`bench.identity_of`); runs of different ones do not compare.
"""

import argparse
import copy
import hashlib
import json
import sys
from functools import partial

import numpy as np
import pandas as pd

from ace import config
from ace.config.errors import exit_code, validated
from ace.config.files import alone, read_json, written_whole
from ace.config.host import processor
from ace.config.models import PretrainedModel
from ace.llm.models import pretrained
from ace.stats import mean_interval
from ace.studies.pretrained import bench as proposing
from ace.studies.pretrained.bench import Bench, identity_of, one
from ace.trained_policies import write_rows

FEWER = {"fewer_samples": "from_scratch", "fewer_classifier": "classifier"}
PROPOSERS = (*proposing.PROPOSERS, *FEWER)
COLUMNS = ["grid", "proposer", "states", "metric", "value", "ci_low", "ci_high", "n", "seeds"]
COMPARED = {
    "finetuned": (*(name for name in PROPOSERS if name != "finetuned"), "head_finetuned", "all_weights"),
    "finetuned@": ("from_scratch@", "frequency@", "from_scratch", "classifier", "frequency"),
    "head_pretrained": ("head_random_rows", "head_random_weights", "classifier"),
    "head_finetuned": ("head_random_weights", "classifier"),
    "all_weights": ("all_weights_random_weights",),
}
"""Who is compared with which others that learned from as many states (zero_shot: from none); what learned on another grid
(`transfer.py`, @) with what learned there too and with what learned here, and finetuned with finetuned@<grid>."""
PAIRED = ("one_proposal", "five_rounds", "parse_unmasked", "legal_unmasked", "critic_sign")
UNDRAWN = ("zero_shot", "frequency", "majority")
"""Of one seed, the first in params.yaml: nothing is drawn in what they learn."""


def measure(environment, output="results", progress=True, proposers=PROPOSERS, **only):
    """Make the missing runs of all proposers, sizes and seeds, or of a selection (only: `sizes`, `seeds`).

    Writes <output>/studies/pretrained/<environment>/pretrained.csv of all runs that are kept, and returns it.

    A table with COLUMNS: states is how many of the corpus were learned from, 0 for zero_shot and majority; n held-out states or,
    of critic_sign, key decisions; seeds how many runs. Values are means over the seeds, intervals 95 % over scenarios: what other
    seeds would change is in none. <metric>_minus_<proposer>, of those in COMPARED and PAIRED: the paired difference on the same
    states, both of the same size, over the seeds that both have.
    one_proposal_scored[_minus_written]: the action with the highest score in the place of the one that was written.
    """
    params, settings = selected(environment, only)
    bench, wanted = Bench(params, environment, progress), {}
    for proposer in proposers:
        sizes = [0] if proposer == "zero_shot" else settings.sizes
        seeds = params.pretrained_model.seeds[:1] if proposer in UNDRAWN else settings.seeds
        few = proposer in FEWER
        learn = partial(one, _with_fewer_samples(bench) if few else bench, FEWER.get(proposer, proposer))
        wanted |= each_of(proposer, sizes, seeds, learn)
    return made(bench, settings, output, wanted)


def _with_fewer_samples(bench):
    """A Bench on which what learns from scratch has the steps and the batch size of the pretrained model."""
    params, other = bench.params, copy.copy(bench)
    fewer = params.pretrained_model.model_dump(include={"steps", "batch_size"})
    other.params = params.model_copy(update={"language_model": params.language_model.model_copy(update=fewer)})
    return other


def selected(environment, only):
    """(params, config.PretrainedModel with the values of `only`), or ConfigError: before anything is made, where the environment,
    the selection or the pretrained model is missing or wrong."""
    params = config.load()
    params.environment(environment)
    settings = validated(PretrainedModel, params.pretrained_model.model_dump() | only, "", "the study's selection")
    check_base()
    return params, settings


def check_base():
    """ConfigError where a file of the pretrained model is missing or is not the one that was converted."""
    place = pretrained.folder()
    try:
        noted = read_json(place / pretrained.DIGESTS)
        wrong = [name for name, digest in noted.items() if pretrained.sha256(place / name) != digest]
    except (OSError, ValueError) as error:
        wrong = [" ".join(str(error).split())]
    if wrong:
        said = f"missing or damaged: {', '.join(wrong)}: delete it and `make pretrained`"
        raise config.ConfigError(f"{config.named(place)}: {said}")


def each_of(proposer, sizes, seeds, run):
    """{"<proposer>-<size>-<seed>": (file for a state) -> {metric: values}} for `made`. run: (size, seed, file for a state) ->
    {metric: values}."""
    return {f"{proposer}-{size}-{seed}": partial(run, size, seed) for seed in seeds for size in sizes}


def made(bench, settings, output, wanted, files=()):
    """Make the missing ones of wanted (`each_of`) and return the table of all runs that are kept.

    settings: config.PretrainedModel; files: what these runs hang on beyond the identity, code and models; ConfigError where one
    was made with others. A run may return, beside its metrics, a tuning's `losses`: runs.json keeps them as they are.
    """
    place = config.root() / pretrained.PLACE / "study" / bench.environment
    place.mkdir(parents=True, exist_ok=True)
    path = config.root() / output / "studies" / "pretrained" / bench.environment / "runs.json"
    identity = identity_of(bench, settings, pretrained.folder())
    of = {"of": hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()[:12]} if files else {}
    table = _add(path, identity, {}, bench)
    for name, values in wanted.items():
        with alone(place, f"{identity}-{name}.lock"):  # who is at the same run is waited for
            kept = _read(path, identity).get(name)
            if kept is None:
                found = values(place / ("-".join([identity, name, *of.values()]) + ".pt"))
                losses = {"losses": found.pop("losses")} if "losses" in found else {}
                run = {"processor": processor(), **of, **losses, "values": _plain(found)}
                table = _add(path, identity, {name: run}, bench)
            elif kept.get("of") != of.get("of"):
                names = ", ".join(each.name for each in files)
                raise config.ConfigError(f"{config.named(path)}: {name} was made with another {names}; remove its line")
    return table


def majority(truth):
    """(n,) whether the sign that is right more often is right, in each judged decision. truth: (n,) bool, the right signs."""
    truth = np.asarray(truth, dtype=bool)
    return truth == (truth.mean() >= 0.5)


def _plain(columns):
    """{metric: [number]}: 0 and 1 without a point."""
    values = {metric: [round(float(v), 6) for v in each] for metric, each in columns.items()}
    return {metric: [int(v) if v.is_integer() else v for v in each] for metric, each in values.items()}


def _read(path, identity):
    """{"<proposer>-<size>-<seed>": {"processor": text, "values": {metric: [value of each state]}, ...}} of runs.json;
    ConfigError where it can't be read or is of another identity."""
    if not path.is_file():
        return {}
    try:
        kept = read_json(path)
        runs, other = kept["runs"], kept["identity"]
    except (ValueError, KeyError, TypeError) as error:
        raise config.ConfigError(f"{config.named(path)}: holds no runs: {error}; `git checkout` or remove it") from None
    if other != identity:
        raise config.ConfigError(
            f"{config.named(path)}: identity {other}, now {identity}: code, parameters, weeks, states, model files or versions "
            "have changed since; remove it to measure anew"
        )
    return runs


def _add(path, identity, runs, bench):
    """Add runs to runs.json, a line each in the order of their names, and write the table of all beside it. Returns the table.

    Where another call has put runs of another identity there by now, these are left in a file beside it, and ConfigError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(config.root() / pretrained.PLACE / "study"):
        try:
            runs = _read(path, identity) | runs
        except config.ConfigError as error:
            if not runs:
                raise
            beside = path.with_name(f"runs-{identity}.json")
            _write(beside, identity, _read(beside, identity) | runs, bench)
            raise config.ConfigError(f"{error}; what was just measured lies in {config.named(beside)}") from None
        _write(path, identity, runs, bench)
        table = tabled(path, bench.environment)
        write_rows(table, path.parents[3], f"pretrained/{bench.environment}", "pretrained")
    return table


def _write(path, identity, runs, bench):
    """With what the table needs besides: scenarios of the states and of the key decisions, and the latter's right signs."""
    about = {"identity": identity, "scenarios": [int(group) for group in bench.groups]}
    about["judged"] = [int(bench.episodes[e][p].state.scenario) for e, p in bench.keys]
    about["signs"] = [int(good) for good in bench.truth]
    head, lines = (
        ",\n".join(f"{json.dumps(key)}: {json.dumps(each[key], separators=(',', ':'))}" for key in sorted(each))
        for each in (about, runs)
    )
    with written_whole(path) as partial:
        partial.write_text(f'{{{head},\n"runs": {{\n{lines}\n}}}}\n')


def tabled(path, environment):
    """The table of `measure` of a runs.json."""
    kept = read_json(path)
    found = {("majority", 0): {0: {"critic_sign": majority(kept["signs"])}}}
    for name, run in kept["runs"].items():
        proposer, size, seed = name.rsplit("-", 2)
        found.setdefault((proposer, int(size)), {})[int(seed)] = run["values"]
    return table_of(environment, found, kept["scenarios"], kept["judged"])


def table_of(environment, found, groups, judged):
    """Rows of `measure`. found: {(proposer, states): {seed: {metric: (n,) values}}}; groups: scenario of each held-out state;
    judged: of each key decision."""
    rows = []
    for (proposer, size), runs in sorted(found.items(), key=lambda each: each[0][::-1]):
        columns = {metric: [run[metric] for run in runs.values()] for metric in next(iter(runs.values()))}
        stem, at, grid = proposer.partition("@")
        elsewhere = sorted({name for name, _ in found if name.startswith("finetuned@")}) if proposer == "finetuned" else []
        for other in [*(name + grid * name.endswith("@") for name in COMPARED.get(stem + at, ())), *elsewhere]:
            pairs = _pairs(runs, found.get((other, 0 if other == "zero_shot" else size), {}), other)
            for metric in PAIRED:
                if pairs and all(metric in run for pair in pairs for run in pair):
                    columns[f"{metric}_minus_{other}"] = [np.subtract(a[metric], b[metric], dtype=float) for a, b in pairs]
        for metric, each in columns.items():
            labels = (judged if metric.startswith("critic_sign") else groups)[: len(each[0])]
            values = np.concatenate(each)
            if "_minus_" not in metric and np.isin(values, (0, 1)).all():
                values = values.astype(bool)  # a share has an interval of its own
            interval = mean_interval(values, np.tile(labels, len(each)))
            rows.append([environment, proposer, size, metric, *interval.values(), len(each[0]), len(each)])
    return pd.DataFrame(rows, columns=COLUMNS)


def _pairs(runs, others, other):
    """[(values of a run, those of the other with the same seed)]; the one run of what draws nothing goes with each."""
    undrawn = other.partition("@")[0] in UNDRAWN
    of = {seed: next(iter(others.values())) for seed in runs} if others and undrawn else others
    return [(runs[seed], of[seed]) for seed in sorted(set(runs) & set(of))]


def command(arguments, module, description, kind, choices, work):
    """Exit code of a command that makes a selection of the runs and prints the table.

    kind: what its option --<kind> selects among choices; work: `measure` of the module.
    """
    parser = argparse.ArgumentParser(prog=f"python -m ace.studies.pretrained.{module}", description=description)
    parser.add_argument("environment", help="a name under `environments` in params.yaml")
    parser.add_argument("--output", default="results", help="the folder that the table is written below")
    parser.add_argument(f"--{kind}", dest="chosen", nargs="+", choices=choices, default=choices, help="only these")
    for name in ("sizes", "seeds"):
        parser.add_argument(f"--{name}", nargs="+", type=int, help=f"in the place of `pretrained_model.{name}`")
    given = parser.parse_args(arguments)

    def table():
        only = {name: each for name in ("sizes", "seeds") if (each := getattr(given, name))}
        print(work(given.environment, given.output, True, given.chosen, **only).to_string(index=False))

    return exit_code(table)


def main(arguments=None):
    return command(arguments, "measure", "What pretraining is worth.", "proposers", PROPOSERS, measure)


if __name__ == "__main__":
    sys.exit(main())
