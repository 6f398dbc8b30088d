"""Seconds of one f_LLM call by the pretrained model, by form and by path, and its memory. No part of `make bench`.

Seconds of a core say more than those of the clock where others share the machine.

    python -m benchmarks.pretrained [--tuned FOLDER]     after `make pretrained`

The same prompts (held-out states of WCCI 2020) for all. `each` asks `generate` for one prompt after the other, `batch` for all
at once; `fast` is `ace/llm/decoding.py`. Replies are 57 tokens long in the native form and 19 words in the transplanted one, as
those of a tuned model: the end token is masked before and forced there. tuned: a folder of ace/llm/models/tuning.py, whose free
replies, rounds and rates on the same states are measured in place of the others.
"""

import argparse
import resource
import time
from pathlib import Path

import torch

from ace import config
from ace.grid.environment import World
from ace.grid.whatif import WhatIf
from ace.llm.clients import LocalClient
from ace.llm.decoding import Decoder
from ace.llm.models import checkpoint, embedded
from ace.llm.models.heldout import load_states
from ace.llm.policy_actor import BadCase, PolicyActor
from ace.llm.text import TextMap

ENVIRONMENT = "wcci2020"
LENGTH = {"native": 57, "transplanted": 19}
PROMPTS, ONE_BY_ONE = 16, 4


class EndsAt:
    """Replies of one length."""

    def __init__(self, end, length, start):
        self.end, self.last = end, start + length - 1

    def __call__(self, ids, scores):
        scores = scores.clone()
        scores[:, self.end] = 1e4 if ids.shape[1] == self.last else -torch.inf
        return scores


def timed(name, calls, work):
    started, cpu = time.perf_counter(), time.process_time()
    result = work()
    seconds, cpu = (time.perf_counter() - started) / calls, (time.process_time() - cpu) / calls
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # of the process so far
    took = f"{cpu:8.3f} s of a core a call, {seconds:.3f} s by the clock"
    print(f"{name:30s} {took}, {calls} calls, peak {peak:.1f} GB", flush=True)
    return result


def generate(model, tokenizer, texts, length):
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    width, end = inputs["input_ids"].shape[1], tokenizer.eos_token_id
    return model.generate(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=length, do_sample=False,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=end, logits_processor=[EndsAt(end, length, width)],
    )[:, width:]  # fmt: skip


def measure_form(form, words, prompts):
    model, tokenizer = checkpoint.in_form(form, words)
    texts, length = sorted(embedded.chat(prompts, tokenizer), key=len), LENGTH[form]
    decoder = Decoder(tokenizer)

    def fast(some):
        def ends(start):
            return EndsAt(tokenizer.eos_token_id, length, start)

        return decoder.generate(model, some, length, processor=ends)[0]

    fast(texts[:2])  # reads the instruction, as an earlier round of a run has
    replies = timed(f"{form}, fast", len(texts), lambda: fast(texts))
    batch = timed(f"{form}, generate, batch", len(texts), lambda: generate(model, tokenizer, texts, length))
    some = texts[:: len(texts) // ONE_BY_ONE][:ONE_BY_ONE]
    timed(f"{form}, generate, each", len(some), lambda: [generate(model, tokenizer, [text], length) for text in some])
    print(f"{form}: {float((replies == batch).float().mean()):.4f} of the tokens are those of `generate`")


def measure_tuned(folder, params, world, textmap, states):
    model, tokenizer = checkpoint.load(folder)
    client = LocalClient(model, tokenizer, params.base.llm, "tuned", fast=True)
    actor = PolicyActor(client, textmap, WhatIf(world), params.base.refine)
    started = time.perf_counter()
    found = actor.refine([BadCase(i, state, 0, 0.0) for i, state in enumerate(states)], 0)
    first = sum(r is not None and r.improved and r.rounds == 1 for r in found) / len(states)
    within = sum(r is not None and r.improved for r in found) / len(states)
    print(f"tuned, masked: {client.seconds / client.calls:.3f} s a call over {client.calls} calls of a refinement, "
          f"{time.perf_counter() - started:.0f} s in all; one proposal {first:.3f}, five rounds {within:.3f}, "
          f"{len(states)} states, {dict(actor.counts)}")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretrained")
    parser.add_argument("--tuned", type=Path)
    parser.add_argument("--states", type=int, default=64, help="held-out states that a tuned model is asked in")
    given = parser.parse_args()
    params = config.load()
    world = World(params.environment(ENVIRONMENT), params.scenarios, params.base.operator)
    textmap, words = TextMap(world), config.root() / "results" / "language_model" / ENVIRONMENT
    states = load_states(words / "heldout.npz", given.states)
    prompts = [textmap.actor_prompt(textmap.state(state), [("do nothing", "110 %")]) for state in states[:PROMPTS]]
    with torch.no_grad():
        for form in () if given.tuned else checkpoint.FORMS[::-1]:
            measure_form(form, words, prompts)
    if given.tuned:
        measure_tuned(given.tuned, params, world, textmap, states)


if __name__ == "__main__":
    main()
