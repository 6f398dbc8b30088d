"""A head on the hidden state in the place of a written action (our measurement).

    python -m ace.studies.pretrained.head wcci2020 [--bodies pretrained] [--seeds 7]

The classifier of `studies/rates/classifier.py`, with the same network, labels and samples, reads what a language model's body
makes of f_LLM's first prompt in a state, with doing nothing and its outcome as the bad case: the hidden state of the last token,
standardised over the states that are learned from. The body is not trained further. The runs join those of `measure.py`:

    head_pretrained       the pretrained body in the transplanted form, not tuned
    head_random_rows      the same with new embeddings of the words, as large: those of the transplanted form are much alike
    head_random_weights   the same shape with new weights: what pretraining alone is worth, without any tuning
    head_finetuned        the body that the stage pretrained_model tuned, with as many states and the same seed
"""

import sys
from functools import cache, lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from ace import config
from ace.llm.models import checkpoint, embedded
from ace.llm.policy_actor import outcome_text
from ace.studies.pretrained.bench import Bench, committed
from ace.studies.pretrained.measure import command, each_of, made, selected
from ace.studies.rates import classifier

BODIES = ("pretrained", "finetuned", "random_rows", "random_weights")
DRAWN = ("random_rows", "random_weights")
"""Those that a seed draws."""
BATCH = 16
"""Prompts that are read at once; the hidden states hang on it in their last digits only."""


def measure(environment, output="results", progress=True, bodies=BODIES, **only):
    """Make the missing runs of all bodies, sizes and seeds, or of a selection (only: `sizes`, `seeds`); returns the table of
    `measure.measure`."""
    params, settings = selected(environment, only)
    stage = params.pretrained_model
    words = config.root() / embedded.TRAINED.format(env=environment)
    embedded.load(words)  # before anything is made
    tuned = committed(environment, stage) if "finetuned" in bodies else None
    bench = Bench(params, environment, progress)
    states = [visit.state for visit in bench.corpus.visits] + bench.states

    @cache  # simulated once for all bodies, and not where no run is missing
    def prompts():
        return [first_prompt(bench.textmap, bench.whatif, state) for state in states]

    @lru_cache(maxsize=1)
    def read(body, seed):
        """{id of a state: hidden state}. seed: of the body's weights, None where these are not drawn."""
        if body == "finetuned":
            model, tokenizer = checkpoint.load(tuned, environment)
        else:
            model, tokenizer = checkpoint.in_form("transplanted", words)
        if body in DRAWN:
            model = (random_rows if body == "random_rows" else checkpoint.random_weights)(model, seed)
        return dict(zip(map(id, states), hidden_states(model, tokenizer, prompts(), progress), strict=True))

    def run(body, size, seed, _state):
        found = read(body, seed if body in DRAWN else None)
        learned, _ = bench.learned(size, settings)
        features = standardised(found, [visit.state for visit in learned.visits])
        own = params.language_model.model_copy(update={"seed": seed})
        plain = classifier.fit(learned, bench.textmap, features, own, params.base.sac)
        return bench.ranked(plain.as_actor(bench.whatif.catalogue, bench.whatif, params.base.refine))

    wanted = {}
    for body in bodies:
        # The one body that is tuned is of one size and seed.
        sizes, seeds = ([stage.states], [stage.seed]) if body == "finetuned" else (settings.sizes, settings.seeds)
        wanted |= each_of(f"head_{body}", sizes, seeds, partial(run, body))
    return made(bench, settings, output, wanted, [Path(__file__)])


def random_rows(model, seed):
    """Gives a model new embeddings of its words, of the same root mean square, in place."""
    rows = model.get_input_embeddings().weight.detach()
    new = torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed))
    checkpoint.set_rows(model, new * rows.square().mean().sqrt())
    return model


def first_prompt(textmap, whatif, state):
    """What f_LLM reads in a state where doing nothing is the bad case."""
    return textmap.actor_prompt(textmap.state(state), [(textmap.action(0), outcome_text(whatif.simulate(state, 0)))])


@torch.inference_mode()
def hidden_states(model, tokenizer, prompts, progress=False):
    """(n, width) float32: the last layer at the last token of each prompt."""
    ids = tokenizer(embedded.chat(prompts, tokenizer), add_special_tokens=False)["input_ids"]
    order, found = np.argsort([len(each) for each in ids], kind="stable"), [None] * len(ids)
    for start in tqdm(range(0, len(order), BATCH), desc="hidden states", unit="batch", disable=not progress):
        rows = order[start : start + BATCH]
        batch = torch.full((len(rows), max(len(ids[i]) for i in rows)), tokenizer.pad_token_id)
        for row, i in enumerate(rows):  # padding on the right, where causal attention never looks
            batch[row, : len(ids[i])] = torch.tensor(ids[i])
        hidden = model.model(input_ids=batch.to(model.device), use_cache=False).last_hidden_state
        for row, i in enumerate(rows):
            found[i] = hidden[row, len(ids[i]) - 1].float().cpu().numpy()
    return np.stack(found)


def standardised(found, states):
    """GridState -> (width,) float32: its hidden state, each entry with mean 0 and deviation 1 over `states`."""
    rows = np.stack([found[id(state)] for state in states])
    mean, deviation = rows.mean(axis=0), rows.std(axis=0) + 1e-6
    return lambda state: ((found[id(state)] - mean) / deviation).astype(np.float32)


def main(arguments=None):
    return command(arguments, "head", "A head on the hidden state.", "bodies", BODIES, measure)


if __name__ == "__main__":
    sys.exit(main())
