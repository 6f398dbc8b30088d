"""A head on the hidden state in the place of a written action (our measurement).

    python -m ace.studies.pretrained.head wcci2020 [--seeds 7]

The classifier of `studies/rates/classifier.py`, with the same network, labels and samples, reads what a language model's body
makes of f_LLM's prompt in a state: the hidden state of its last token, standardised over the states that are learned from. The
body is not trained further. The runs join those of `measure.py`:

    head_pretrained       the pretrained body in the form of `pretrained_model.form`, not tuned
    head_random_weights   the same shape with new weights: what pretraining alone is worth, without any tuning
    head_finetuned        the body that the stage pretrained_model tuned, with as many states as it was tuned on
"""

import argparse
import sys
from functools import lru_cache, partial

import numpy as np
import torch
from tqdm import tqdm

from ace import config
from ace.config.errors import exit_code
from ace.llm.models import checkpoint, embedded
from ace.studies.pretrained.bench import Bench
from ace.studies.pretrained.measure import made
from ace.studies.rates import classifier

BATCH = 16
"""Prompts that are read at once; the hidden states hang on it in their last digits only."""


def measure(environment, output="results", progress=True, seeds=None):
    """Make the missing runs of all heads, sizes and seeds (default: those in params.yaml); returns the table of
    `measure.measure`."""
    params = config.load()
    params.environment(environment)
    settings = params.pretrained_model
    tuned, words = (config.root() / place.format(env=environment) for place in (checkpoint.TUNED, embedded.TRAINED))
    checkpoint.load(tuned, environment)  # before anything is made
    bench = Bench(params, environment, progress)
    states = [visit.state for visit in bench.corpus.visits] + bench.states

    @lru_cache(maxsize=1)
    def read(body, seed):
        """{T_s: hidden state}. seed: of the body's weights, None where these are not drawn."""
        if body == "finetuned":
            model, tokenizer = checkpoint.load(tuned, environment)
        else:
            model, tokenizer = checkpoint.in_form(settings.form, words)
            model = model if seed is None else checkpoint.random_weights(model, seed)
        return hidden_states(model, tokenizer, bench.textmap, states, progress)

    def run(body, size, seed, _state):
        found = read(body, seed if body == "random_weights" else None)
        learned, _ = bench.learned(size, settings)
        own = params.language_model.model_copy(update={"seed": seed})
        features = standardised(found, bench.textmap, [visit.state for visit in learned.visits])
        plain = classifier.fit(learned, bench.textmap, features, own, params.base.sac)
        return bench.ranked(plain.as_actor(bench.whatif.catalogue, bench.whatif, params.base.refine))

    wanted = {}
    for body in ("pretrained", "finetuned", "random_weights"):
        for seed in seeds or settings.seeds:
            for size in [settings.states] if body == "finetuned" else settings.sizes:
                wanted[f"head_{body}-{size}-{seed}"] = partial(run, body, size, seed)
    return made(bench, settings, output, wanted)


@torch.inference_mode()
def hidden_states(model, tokenizer, textmap, states, progress=False):
    """{T_s: (width,) float32}, the last layer at the last token of f_LLM's prompt for a first proposal, without a bad case."""
    texts = sorted({textmap.state(state) for state in states})
    prompts = embedded.chat([textmap.actor_prompt(text, []) for text in texts], tokenizer)
    ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    order, found = np.argsort([len(each) for each in ids], kind="stable"), {}
    for start in tqdm(range(0, len(order), BATCH), desc="hidden states", unit="batch", disable=not progress):
        rows = order[start : start + BATCH]
        batch = torch.full((len(rows), max(len(ids[i]) for i in rows)), tokenizer.pad_token_id)
        for row, i in enumerate(rows):  # padding on the right, where causal attention never looks
            batch[row, : len(ids[i])] = torch.tensor(ids[i])
        hidden = model.model(input_ids=batch.to(model.device), use_cache=False).last_hidden_state
        for row, i in enumerate(rows):
            found[texts[i]] = hidden[row, len(ids[i]) - 1].float().cpu().numpy()
    return found


def standardised(found, textmap, states):
    """GridState -> (width,) float32: its hidden state, each entry with mean 0 and deviation 1 over `states`."""
    rows = np.stack([found[textmap.state(state)] for state in states])
    mean, deviation = rows.mean(axis=0), rows.std(axis=0) + 1e-6
    return lambda state: ((found[textmap.state(state)] - mean) / deviation).astype(np.float32)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ace.studies.pretrained.head", description="A head on the hidden state.")
    parser.add_argument("environment", help="a name under `environments` in params.yaml")
    parser.add_argument("--output", default="results", help="the folder that the table is written below")
    parser.add_argument("--seeds", nargs="+", type=int, help="in the place of `pretrained_model.seeds`")
    given = parser.parse_args(arguments)
    return exit_code(lambda: print(measure(given.environment, given.output, seeds=given.seeds).to_string(index=False)))


if __name__ == "__main__":
    sys.exit(main())
