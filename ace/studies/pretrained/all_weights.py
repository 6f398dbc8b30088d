"""Tuning of all weights in the place of LoRA (our measurement).

    python -m ace.studies.pretrained.all_weights wcci2020 [--bodies pretrained] [--sizes 300] [--seeds 7]

As `finetuned` and `random_weights` of `measure.py`, with the same samples, steps, schedule and rate of the words' rows, but all
weights of the body learn, not LoRA matrices. LoRA's rate is fixed in params.yaml; that of the body is the one of RATES with the
lowest held-out loss in a pilot of PILOT steps, with a schedule and samples of that length, for each body, size and seed; the next
best where the tuning's loss is not finite. Each model is asked once, not in five rounds. The runs join those of `measure.py`:

    all_weights                  the pretrained body
    all_weights_random_weights   the same shape with new weights: what pretraining is worth where LoRA does not bind the body

With no selection they are of the size and seed of the stage pretrained_model. `losses` of a run in runs.json: the lowest held-out
loss of each pilot by its rate (null: the loss was not finite), the rate that was chosen, and the curve of the tuning. A tuning
that was killed goes on where it was; one whose model was being asked begins anew, behind the pilots.
"""

import json
import math
import sys
from functools import partial
from pathlib import Path

import torch

from ace import config
from ace.config.files import read_json, written_whole
from ace.llm.models import checkpoint, embedded, tuning
from ace.studies.pretrained.bench import Bench
from ace.studies.pretrained.measure import command, each_of, made, selected

BODIES = ("pretrained", "random_weights")
RATES = (3e-5, 1e-4, 3e-4, 1e-3)
PILOT = 100


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
    stage = config.load().pretrained_model
    if stage.form != "transplanted":
        raise config.ConfigError(f"params.yaml: pretrained_model.form = {stage.form}: this study is of the transplanted form")
    params, settings = selected(environment, {"sizes": [stage.states], "seeds": [stage.seed], **only})
    words = config.root() / embedded.TRAINED.format(env=environment)
    embedded.load(words)  # before anything is made
    bench = Bench(params, environment, progress)

    def prepared(body, size, own):
        """What `tuning.tune` takes, with settings `own`: model, tokenizer, samples, those of the held-out loss, settings."""
        model, tokenizer = checkpoint.in_form("transplanted", words)
        if body == "random_weights":
            model = checkpoint.random_weights(model, own.seed)
        return Whole(model), tokenizer, *tuning.samples(bench.textmap, *bench.learned(size, own), own), own

    def piloted(body, size, own, state, kept):
        """{rate: lowest held-out loss}. kept: file of the pilots that are done."""
        found = read_json(kept) if kept.is_file() else {}
        for rate in RATES:
            if f"{rate:g}" not in found:
                given = prepared(body, size, own.model_copy(update={"lr": rate, "steps": PILOT}))
                try:
                    losses = [look["loss_heldout"] for look in tuning.tune(*given, state, progress)]
                except config.ConfigError:  # all that it raises: a loss that is not finite
                    losses = []
                found[f"{rate:g}"] = min(filter(math.isfinite, losses), default=None)
                with written_whole(kept) as file:
                    file.write_text(json.dumps(found))
        return found

    def run(body, size, seed, state):
        own, kept = settings.model_copy(update={"seed": seed}), state.with_suffix(f".{PILOT}.json")
        pilots = piloted(body, size, own, state, kept)
        for best in sorted((rate for rate, loss in pilots.items() if loss is not None), key=pilots.get):
            whole, tokenizer, *given = prepared(body, size, own.model_copy(update={"lr": float(best)}))
            try:
                curve = tuning.tune(whole, tokenizer, *given, state, progress)
                break
            except config.ConfigError as error:
                print(f"{body}, rate {best}: {error}")
        else:
            raise config.ConfigError(f"{body}: no rate of {RATES} has a finite loss; lower pretrained_model.rows_lr")
        found = bench.asked(whole.get_base_model().eval(), tokenizer, f"all_weights_{body}", fast=True, rounds=1, scored=False)
        kept.unlink()
        return {**found, "losses": {"pilots": pilots, "rate": float(best), "curve": curve}}

    wanted = {}
    for body in bodies:
        proposer = "all_weights" if body == "pretrained" else f"all_weights_{body}"
        wanted |= each_of(proposer, settings.sizes, settings.seeds, partial(run, body))
    return made(bench, settings, output, wanted, [Path(__file__)])


def main(arguments=None):
    return command(arguments, "all_weights", "All weights in the place of LoRA.", "bodies", BODIES, measure)


if __name__ == "__main__":
    sys.exit(main())
