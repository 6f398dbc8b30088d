"""What the pretrained model costs by phase: reading prompts (inference), writing replies (sampling), LoRA steps (tuning).

    python -m benchmarks.pretrained_cost        writes results/pretrained_cost.csv; minutes, after `make pretrained`

CPU seconds of one thread, prompts of held-out states of WCCI 2020; one run, so no interval. Rows `qwen2_7b_*` are extrapolated
and not measured: seconds per token and parameter times its parameters, as if linear, for the tokens of one call in the
pretrained model's own tokenizer, on the same single core.
"""

import json
import time

import pandas as pd
import torch

from ace import config
from ace.config.host import processor
from ace.grid.environment import World
from ace.llm.decoding import Decoder
from ace.llm.models import checkpoint, embedded, tuning
from ace.llm.models.heldout import load_states
from ace.llm.text import TextMap
from benchmarks.pretrained import ENVIRONMENT, LENGTH, PROMPTS, EndsAt

COLUMNS = ["name", "value", "unit", "tokens", "machine"]
READ, STEPS = 8, 2
"""Prompts that are read at once, and LoRA steps after a first one that is not counted."""
QWEN2_7B = 7.62e9
"""Parameters, of its model card."""
SAMPLES = 200
"""Of a LoRA round (the paper's Table 4, as in ace/preflight/estimate.py)."""


def spent(work):
    """(result, CPU seconds)."""
    started = time.process_time()
    result = work()
    return result, time.process_time() - started


def reading(model, tokenizer, texts):
    """(CPU seconds a token, tokens) of prompts that are read whole, without a shared instruction."""
    ids = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)["input_ids"]
    model.model(input_ids=ids[:1, :16])
    _, seconds = spent(lambda: model.model(input_ids=ids, use_cache=True))
    return seconds / ids.numel(), ids.numel()


def writing(model, tokenizer, texts, length):
    """The same of replies of `length` tokens, a batch: what they take longer than replies of one."""
    decoder = Decoder(tokenizer)

    def generate(n):
        return decoder.generate(model, texts, n, processor=lambda start: EndsAt(tokenizer.eos_token_id, n, start))

    generate(1)  # reads the instruction
    one, whole = (spent(lambda n=n: generate(n))[1] for n in (1, length))
    tokens = len(texts) * (length - 1)
    return (whole - one) / tokens, tokens


def learning(model, tokenizer, pairs, settings, with_rows):
    """The same of LoRA steps, forward, backward and AdamW; tokens: of prompts and replies, without padding."""
    settings = settings.model_copy(update={"steps": STEPS + 1})
    run = tuning._Run(tuning.adapt(model, settings, with_rows), tokenizer, pairs, pairs[:1], settings)
    run.adapted.train()
    tokens = seconds = 0
    for step in range(STEPS + 1):
        batch = next(run.batches)

        def descend(batch=batch):
            embedded.descend(run.optimizer, run.weights.values(), embedded.reply_loss(run.adapted, batch, run.pad))

        _, took = spent(descend)
        if step:
            tokens, seconds = tokens + sum(len(ids) for ids, _ in batch), seconds + took
    return seconds / tokens, tokens


def rows(form, prompts, pairs, words, settings):
    """Rows of COLUMNS of one form, and {phase: CPU seconds a token and parameter}, (tokens of a prompt, of a reply)."""
    model, tokenizer = checkpoint.in_form(form, words)
    texts, n = sorted(embedded.chat(prompts, tokenizer), key=len), model.num_parameters()
    with torch.no_grad():
        phases = {"read": reading(model, tokenizer, texts[:READ]), "write": writing(model, tokenizer, texts, LENGTH[form])}
    phases["tune"] = learning(model, tokenizer, pairs, settings, form == "transplanted")
    table = [[f"{form}_parameters", n, "", ""]]
    for phase, (seconds, tokens) in phases.items():
        table.append([f"{form}_{phase}_ms", 1e3 * seconds, "CPU ms a token", tokens])
        table.append([f"{form}_{phase}_per_parameter", 1e9 * seconds / n, "CPU s a token and 1e9 parameters", tokens])
    lengths = [(start, len(ids) - start) for ids, start in embedded.encode(tokenizer, pairs)]
    prompt, reply = (sum(each) / len(lengths) for each in zip(*lengths, strict=True))
    for name, tokens in (("prompt", prompt), ("reply", reply)):
        table.append([f"{form}_{name}_tokens", tokens, f"mean of {len(pairs)} calls", ""])
    return table, {phase: seconds / n for phase, (seconds, _) in phases.items()}, (prompt, reply)


def main():
    torch.set_num_threads(1)
    params, results = config.load(), config.root() / "results"
    textmap = TextMap(World(params.environment(ENVIRONMENT), params.scenarios, params.base.operator))
    words = results / "language_model" / ENVIRONMENT
    states = load_states(words / "heldout.npz", PROMPTS)
    prompts = [textmap.actor_prompt(textmap.state(state), [("do nothing", "110 %")]) for state in states]
    said = (results / "studies" / "pretrained" / ENVIRONMENT / "transcripts.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [(each["prompt"], each["reply"]) for line in said for each in json.loads(line)["rounds"]]
    table = []
    for form, batch in (("transplanted", 8), ("native", 4)):
        settings = params.pretrained_model.model_copy(update={"batch_size": batch})
        found, each, (prompt, reply) = rows(form, prompts, pairs, words, settings)
        table += found
    call = QWEN2_7B * (each["read"] * prompt + each["write"] * reply)  # of the native form, the last
    table.append(["qwen2_7b_call_s", call, "CPU s a call, extrapolated", prompt + reply])
    table.append(["qwen2_7b_lora_round_s", QWEN2_7B * each["tune"] * SAMPLES * (prompt + reply),
                  f"CPU s a round of {SAMPLES} samples, extrapolated", SAMPLES * (prompt + reply)])  # fmt: skip
    written = pd.DataFrame([[*row, processor()] for row in table], columns=COLUMNS)
    written.to_csv(results / "pretrained_cost.csv", index=False, float_format="%.4g", lineterminator="\n")
    print(written.to_string(index=False))


if __name__ == "__main__":
    main()
