"""The embedded language model: Qwen2's architecture, small, with a tokenizer of its own, trained from scratch.

It stands where the paper has Qwen2-7B, so that everything runs on two cores without a download. Its language is the one
of `text.py`: a word is a name ("line 12 (16-21)", "substation 16", "108 %") or a plain word, and the task prefix of a
prompt file, which never changes, is a single token. What applies to any causal model (the loss, LoRA) is written so
that it serves a checkpoint of Qwen2-7B as well.
"""

import copy
import math
import re
import string
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
from tqdm import tqdm

from ace.config import ConfigError
from ace.llm.text import MOST_SHOWN, template

# The models of transformers, and peft, are imported where one is made, read or tuned: that takes seconds, and most
# processes do none of it.

PAD, END, UNKNOWN = "[PAD]", "[END]", "[UNK]"
WORD = (
    r"line \d+ \(\d+-\d+\)|(?:line|load|generator|storage|substation|decision) \d+|\d+ %|[+-]\d\.\d|\d+|"
    r": bus 2 :|: all on bus 1|do nothing|(?:problem|help|action|off|cooldown|adjustments|reward)(?: :)?|"
    r"[A-Za-z]+|\n|[^\sA-Za-z\d]"
)
"""Names and the fixed turns of the language are one word each: three tokens in ten are saved, and the time for them."""
PREFIX_LENGTH = 40
"""Fixed stretches of a prompt file longer than this many characters become one token."""
CONTEXT = 1024
TRAINED = "results/language_model/{env}"
"""Where its stage leaves it, with its manifest: the set of actions."""
LAST = 0.02  # of the highest learning rate, what is left of it at the end


# --- tokenizer --------------------------------------------------------------------------------------------------------


def make_tokenizer(textmap, texts, roles=("actor", "critic"), turns=()):
    """Word-level tokenizer of one grid. texts: samples of all that is written, for the plain words; roles: of the prompts;
    turns: further stretches of text that are one word each."""
    words = Regex("|".join([*map(re.escape, turns), WORD]))
    splitter = pre_tokenizers.Split(words, behavior="removed", invert=True)
    vocabulary = [PAD, END, UNKNOWN, "\n", *(f"{n} %" for n in range(MOST_SHOWN + 1)), *textmap.line]
    vocabulary += [f"{kind} {n}" for kind, count in textmap.counts.items() for n in range(count)]
    vocabulary += [f"decision {n}" for n in range(1, 100)] + [f"{n / 10:+.1f}" for n in range(-10, 11)] + ["-0.0"]
    vocabulary += [*(str(n) for n in range(10)), *turns]  # digits of an action's index
    fixed = [part.strip() for role in roles for part, *_ in string.Formatter().parse(template(role))]
    fixed = [part for part in fixed if len(part) > PREFIX_LENGTH]
    seen = {word for text in texts for word, _ in splitter.pre_tokenize_str(_without(text, fixed))}
    vocabulary = list(dict.fromkeys([*vocabulary, *sorted(seen)]))
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = splitter
    tokenizer.add_tokens([AddedToken(part, normalized=False) for part in fixed])
    return wrap(tokenizer_object=tokenizer)


def _without(text, fixed):
    for part in fixed:
        text = text.replace(part, " ")
    return text


def wrap(**source):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        **source, pad_token=PAD, eos_token=END, unk_token=UNKNOWN, padding_side="left",
        clean_up_tokenization_spaces=False, model_max_length=CONTEXT,
    )  # fmt: skip


# --- model ------------------------------------------------------------------------------------------------------------


def make_model(tokenizer, settings):
    """A new model. settings: config.LanguageModel."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=settings.hidden, intermediate_size=settings.ffn,
        num_hidden_layers=settings.layers, num_attention_heads=settings.heads, num_key_value_heads=settings.heads,
        max_position_embeddings=CONTEXT, tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return Qwen2ForCausalLM(config)


def save(model, tokenizer, folder):
    """model.safetensors (float16), config.json, tokenizer.json."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    without_bars()
    copy.deepcopy(model).half().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes it for the owner only
    (folder / "generation_config.json").unlink(missing_ok=True)  # decoding is set in params.yaml
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))


def load(folder):
    """(model, tokenizer) of a folder written by `save`; the model computes in float32."""
    folder = Path(folder)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            stage = "also_model" if "also_model" in folder.parts else "language_model"
            raise ConfigError(f"no language model in {folder}: {name} is missing; the stage {stage} makes it")
    from transformers import AutoModelForCausalLM

    without_bars()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    return model, wrap(tokenizer_file=str(folder / "tokenizer.json"))


def without_bars():
    """transformers' own bars would stand between ours."""
    from transformers.utils import logging

    logging.disable_progress_bar()


# --- training ---------------------------------------------------------------------------------------------------------


@contextmanager
def one_thread():
    """torch computes with one thread: below two million parameters a second one gains nothing, and sums would differ."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def encode(tokenizer, samples):
    """[(token ids, length of the prompt)] of (prompt, reply) pairs, in the tokenizer's chat template if it has one."""
    prompts = chat([prompt for prompt, _ in samples], tokenizer)
    prompt_ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    reply_ids = tokenizer([reply for _, reply in samples], add_special_tokens=False)["input_ids"]
    return [(p + r + [tokenizer.eos_token_id], len(p)) for p, r in zip(prompt_ids, reply_ids, strict=True)]


def chat(prompts, tokenizer):
    """Prompts as the model was taught to read them."""
    if not tokenizer.chat_template:
        return list(prompts)
    return [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
        for p in prompts
    ]


def reply_loss(model, batch, pad, reduction="mean"):
    """Cross-entropy of the replies' tokens, nats per token; batch: of `encode`d samples."""
    width = max(len(ids) for ids, _ in batch)
    ids = torch.full((len(batch), width), pad)
    is_reply = torch.zeros((len(batch), width), dtype=torch.bool)
    for row, (tokens, start) in enumerate(batch):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        is_reply[row, start : len(tokens)] = True
    ids, is_reply = ids.to(model.device), is_reply.to(model.device)
    # Padding is on the right, where causal attention never looks: no mask is needed. The head sees replies only.
    core = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = core.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    logits = core.lm_head(hidden[is_reply[:, 1:]])
    return torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:][is_reply[:, 1:]], reduction=reduction)


def fit(model, tokenizer, samples, steps, batch_size, lr, seed, heldout=(), progress=False, keep_best=False):
    """Train in place on (prompt, reply) samples: AdamW, cosine rate, loss on the reply. Returns the training curve.

    heldout: samples whose loss is put on the curve; keep_best: the weights are those of its lowest value, not the last ones. The
    curve: rows of {step, loss, loss_heldout}, 20 of them.
    """
    encoded, unseen = encode(tokenizer, samples), encode(tokenizer, heldout) if heldout else []
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=lr, weight_decay=0.01, betas=(0.9, 0.98))
    batches = length_batches(encoded, batch_size, np.random.default_rng(seed))
    every, curve, recent = max(1, steps // 20), [], []
    best, kept = math.inf, None
    model.train()
    bar = tqdm(total=steps, desc="language model", unit="step", disable=not progress)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = lr * share_of_rate(step, steps)
        loss = reply_loss(model, next(batches), tokenizer.pad_token_id)
        descend(optimizer, weights, loss)
        recent.append(float(loss.detach()))
        bar.update()
        if step % every == 0 or step == steps:
            row = {"step": step, "loss": float(np.mean(recent)), "loss_heldout": math.nan}
            if unseen:
                row["loss_heldout"] = mean_loss(model, unseen, tokenizer.pad_token_id)
            bar.set_postfix(loss=f"{row['loss']:.3f}", heldout=f"{row['loss_heldout']:.3f}")
            curve.append(row)
            recent = []
            if keep_best and row["loss_heldout"] < best:
                best, kept = row["loss_heldout"], copy.deepcopy(model.state_dict())
    bar.close()
    if kept:
        model.load_state_dict(kept)
    model.eval()
    return curve


def share_of_rate(step, steps):
    """The rate at a step (from 1), as a share of the highest: it rises in a twentieth of the steps, then falls as a cosine."""
    return min(step / max(1, steps // 20), 0.5 * (1 + math.cos(math.pi * step / steps)) * (1 - LAST) + LAST)


def descend(optimizer, weights, loss):
    """One step of an optimizer down a loss, its gradient by `weights` clipped."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer.step()


def mean_loss(model, encoded, pad):
    """Mean loss per reply token over encoded samples."""
    model.eval()
    with torch.no_grad():
        total = sum(float(reply_loss(model, encoded[i : i + 64], pad, "sum")) for i in range(0, len(encoded), 64))
    model.train()
    return total / sum(len(ids) - start for ids, start in encoded)


def length_batches(encoded, size, rng):
    """Endless batches; samples of like length go together (little padding), in an order that is random."""
    while True:
        order = rng.permutation(len(encoded))
        batches = []
        for i in range(0, len(order), 50 * size):
            block = sorted(order[i : i + 50 * size], key=lambda j: len(encoded[j][0]))
            batches += [block[j : j + size] for j in range(0, len(block), size)]
        for i in rng.permutation(len(batches)):
            yield [encoded[j] for j in batches[i]]


def count_parameters(model):
    return sum(p.numel() for p in model.parameters())
