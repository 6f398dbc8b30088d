"""Tuning of all weights in the place of LoRA (our measurement).

    python -m ace.studies.pretrained.all_weights wcci2020 [--bodies pretrained] [--sizes 4000] [--seeds 7]

As `finetuned` and `random_weights` of `measure.py`, with the same samples, steps, schedule and rate of the words' rows, but all
weights of the body learn, not LoRA matrices. LoRA's rate is fixed in params.yaml; that of the body is the one of RATES with the
lowest held-out loss in a pilot of PILOT steps, with a schedule and samples of that length, for each body, size and seed. Each is
asked once, not in five rounds. The runs join those of `measure.py`:

    all_weights                  the pretrained body
    all_weights_random_weights   the same shape with new weights: what pretraining is worth where LoRA does not bind the body

With no selection they are of the size and seed of the stage pretrained_model. all_weights.csv, beside runs.json, has the losses,
a row a look: proposer, states, seed, rate, steps of the schedule, step, loss, loss_heldout. A tuning that was killed goes on
where it was; one whose model was being asked begins anew, behind the pilots.
"""

import json
import math
import sys
from functools import partial
from pathlib import Path

import pandas as pd
import torch

from ace import config
from ace.config.errors import validated
from ace.config.files import alone, read_json, written_whole
from ace.config.models import PretrainedModel
from ace.llm.models import checkpoint, embedded, pretrained, tuning
from ace.studies.pretrained.bench import Bench
from ace.studies.pretrained.measure import command, made
from ace.trained_policies import write_rows

BODIES = ("pretrained", "random_weights")
RATES = (3e-5, 1e-4, 3e-4, 1e-3)
PILOT = 100
KEY = ["proposer", "states", "seed"]


class Whole(torch.nn.Module):
    """A model whose body takes the place of LoRA matrices in `tuning.tune`, by name: it learns at `lr`, its rows at `rows_lr`."""

    def __init__(self, model):
        super().__init__()
        self.rows = model.get_input_embeddings().weight
        self.lora_body = model

    @property
    def device(self):
        return self.rows.device

    def get_base_model(self):
        return self.lora_body


def measure(environment, output="results", progress=True, bodies=BODIES, **only):
    """Make the missing runs of all bodies, or of a selection (only: `sizes`, `seeds`); returns the table of `measure.measure`."""
    params = config.load()
    params.environment(environment)
    stage = params.pretrained_model
    if stage.form != "transplanted":
        raise config.ConfigError(f"params.yaml: pretrained_model.form = {stage.form}: this study is of the transplanted form")
    changes = {"sizes": [stage.states], "seeds": [stage.seed], **only}
    settings = validated(PretrainedModel, stage.model_dump() | changes, "", "the study's selection")
    words = config.root() / embedded.TRAINED.format(env=environment)
    pretrained.folder(), embedded.load(words)  # before anything is made
    bench = Bench(params, environment, progress)

    def tuned(body, size, own, state):
        """(model, tokenizer, [{rate, steps, step, loss, loss_heldout}]) of settings `own`."""
        model, tokenizer = checkpoint.in_form("transplanted", words)
        if body == "random_weights":
            model = checkpoint.random_weights(model, own.seed)
        pairs, held = tuning.samples(bench.textmap, *bench.learned(size, own), own)
        losses = tuning.tune(Whole(model), tokenizer, pairs, held, own, state, progress)
        return model.eval(), tokenizer, [{"rate": own.lr, "steps": own.steps, **look} for look in losses]

    def piloted(body, size, own, state):
        """The losses of the pilots. Those of a call that was killed are taken over."""
        kept = state.with_suffix(".json")
        looks = read_json(kept) if kept.is_file() else []
        for rate in RATES:
            short = own.model_copy(update={"lr": rate, "steps": PILOT})
            if (rate, PILOT) in {(look["rate"], look["steps"]) for look in looks}:
                continue
            try:
                looks += tuned(body, size, short, state)[-1]
            except config.ConfigError:  # not finite: this rate is too high
                looks.append({"rate": rate, "steps": PILOT, "step": PILOT, "loss": math.inf, "loss_heldout": math.inf})
            with written_whole(kept) as file:
                file.write_text(json.dumps(looks))
        return [look for look in looks if look["rate"] in RATES and look["steps"] == PILOT]

    def run(proposer, body, size, seed, state):
        own = settings.model_copy(update={"seed": seed})
        looks = piloted(body, size, own, state)
        finite = [look for look in looks if math.isfinite(look["loss_heldout"])]
        if not finite:
            raise config.ConfigError(f"{proposer}: no rate of {RATES} has a finite loss; lower pretrained_model.rows_lr")
        best = min(finite, key=lambda look: look["loss_heldout"])["rate"]
        model, tokenizer, losses = tuned(body, size, own.model_copy(update={"lr": best}), state)
        losses = pd.DataFrame([*looks, *losses]).round({"loss": 4, "loss_heldout": 4})
        _note(environment, output, losses.assign(proposer=proposer, states=size, seed=seed))
        return bench.asked(model, tokenizer, proposer, fast=True, rounds=1, scored=False)

    wanted = {}
    for body in bodies:
        proposer = "all_weights" if body == "pretrained" else f"all_weights_{body}"
        for size in settings.sizes:
            for seed in settings.seeds:
                wanted[f"{proposer}-{size}-{seed}"] = partial(run, proposer, body, size, seed)
    return made(bench, settings, output, wanted, [Path(__file__)])


def _note(environment, output, losses):
    """Put the losses of one run into all_weights.csv, in the place of those that it has of it."""
    path = config.root() / output / "studies" / "pretrained" / environment / "all_weights.csv"
    with alone(config.root() / pretrained.PLACE / "study"):  # calls run side by side
        if path.is_file():
            known = pd.read_csv(path)
            other = known[(known[KEY] != losses[KEY].iloc[0].to_list()).any(axis=1)]
            losses = pd.concat([other, losses]) if len(other) else losses
        columns = [*KEY, "rate", "steps", "step", "loss", "loss_heldout"]
        write_rows(losses[columns].sort_values(columns[:-2]), output, f"pretrained/{environment}", "all_weights")


def main(arguments=None):
    return command(arguments, "all_weights", "All weights in the place of LoRA.", "bodies", BODIES, measure)


if __name__ == "__main__":
    sys.exit(main())
