"""Fast generation for models of many layers: the replies of transformers' `generate`, for a fraction of its work.

1. The instruction, the same in every prompt, is read once; its keys and values are kept and shared by all prompts.
2. Prompts are read in chunks of like length, so that little padding is computed.
3. Keys and values are written into buffers that have room for the reply. `generate` copies all of them at every token.
4. A row that has ended is not computed any more; `generate` goes on with it until the longest reply is written.

Draws are those of `generate`, row by row: the same seed gives the same replies, up to ties that floating-point addition decides
(a test compares both). Embedded models are too small to gain from it and use `generate`.
"""

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

from ace.config import ConfigError
from ace.llm.models.embedded import chat
from ace.llm.text import template

CHUNK = 16
"""Prompts read at once."""
WORTH_SHARING = 16
"""Tokens of an instruction from which on keeping its keys and values pays."""


class Buffer(DynamicLayer):
    """Keys and values of one layer in a buffer with room for more: (B, heads, room, width)."""

    def __init__(self, keys, values, room):
        """keys, values: (1 or B, heads, length, width), of what was read so far; room: tokens that will be held at most."""
        super().__init__()
        self.length, self.is_initialized = keys.shape[-2], True
        self.dtype, self.device = keys.dtype, keys.device
        self.buffers = [each.new_zeros((*each.shape[:2], room, each.shape[3])) for each in (keys, values)]
        self._write(keys, values, 0)

    def _write(self, keys, values, start):
        self.length = start + keys.shape[-2]
        for buffer, new in zip(self.buffers, (keys, values), strict=True):
            buffer[:, :, start : self.length] = new
        self.keys, self.values = (buffer[:, :, : self.length] for buffer in self.buffers)

    def update(self, key_states, value_states, *_, **__):
        self._write(key_states, value_states, self.length)
        return self.keys, self.values

    def get_seq_length(self):
        return self.length

    def keep(self, rows):
        """Only these rows of the batch, (n,) int64, go on."""
        self.buffers = [buffer[rows] for buffer in self.buffers]
        self.keys, self.values = (buffer[:, :, : self.length] for buffer in self.buffers)


def can_decode(model):
    """Whether every layer attends to all that is before; models with sliding windows or states keep to `generate`."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)


class Decoder:
    """Generates with one tokenizer, and keeps what it has read of the instructions for the weights that it was last used with."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        texts = chat([template(role) for role in ("actor", "critic")], tokenizer)
        self.instructions = tokenizer(texts, add_special_tokens=False)["input_ids"]
        self._weights, self._read = None, {}

    @torch.no_grad()
    def generate(self, model, texts, max_new_tokens, temperature=0.0, processor=None):
        """Replies as token ids, (B, T) int64, padded at the end, and how many tokens the prompts have. Draws from torch's global
        generator.

        texts: prompts, in the chat template where there is one; temperature: 0 for the most probable token; processor: made by
        processor(start) for prompts of `start` tokens, a LogitsProcessor of the whole batch, or None. ConfigError where a prompt
        and its reply exceed the model's context, or where the model gives numbers that are not finite.
        """
        encoded = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        self._check_context(model, encoded, max_new_tokens)
        prefix = self._shared(encoded)
        pad, end, device = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, model.device
        width, n = max(map(len, encoded)), len(encoded)
        ids = torch.full((n, width), pad, device=device)
        mask = torch.zeros((n, width), dtype=torch.long, device=device)
        for row, tokens in enumerate(encoded):
            # The shared instruction on the left, then the padding, then the rest of the prompt.
            ids[row, :prefix], mask[row, :prefix] = torch.tensor(tokens[:prefix], device=device), 1
            rest = len(tokens) - prefix
            ids[row, width - rest :], mask[row, width - rest :] = torch.tensor(tokens[prefix:], device=device), 1
        cache, logits = self._prefill(model, ids, mask, prefix, [len(tokens) for tokens in encoded], max_new_tokens)
        masks = processor(width) if processor else None
        alive = torch.arange(n, device=device)  # rows that are computed, of which some may have ended
        ended = torch.zeros(n, dtype=torch.bool, device=device)
        while True:
            scores = logits.new_zeros((n, logits.shape[1]))
            scores[alive] = logits
            token = torch.where(ended, pad, _choose(masks(ids, scores) if masks else scores, temperature))
            ids = torch.cat([ids, token[:, None]], dim=1)
            ended |= token == end
            if ended.all() or ids.shape[1] - width == max_new_tokens:
                return ids[:, width:], sum(map(len, encoded))
            going = ~ended[alive]
            if 4 * int(going.sum()) <= 3 * len(alive):  # what is kept is copied
                rows = going.nonzero().ravel()
                alive = alive[rows]
                for layer in cache.layers:
                    layer.keep(rows)
            mask = torch.cat([mask, mask.new_ones((n, 1))], dim=1)
            out = model(
                input_ids=token[alive, None], attention_mask=mask[alive], past_key_values=cache, use_cache=True,
                position_ids=mask[alive].sum(1, keepdim=True) - 1,
            )  # fmt: skip
            logits = _finite(out.logits[:, -1].float())

    def read(self, model, prefix):
        """Keys and values of the tokens `prefix`, read once for these weights: a DynamicCache that must not be changed."""
        # Weights that were exchanged, or written to in place.
        weights = (model, sum(p._version for p in model.parameters()))
        if self._weights != weights:
            self._weights, self._read = weights, {}
        key = tuple(prefix)
        if key not in self._read:
            cache = DynamicCache(config=model.config)
            model.base_model(input_ids=torch.tensor([prefix], device=model.device), past_key_values=cache, use_cache=True)
            self._read[key] = cache
        return self._read[key]

    @torch.no_grad()
    def mean_log_probability(self, model, text, answers):
        """Of each answer's tokens after a prompt: (n,) float64 numpy, nats per token. answers: lists of token ids, the end
        included."""
        prompt = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        self._check_context(model, [prompt], max(map(len, answers)))
        # The last token of the prompt is read once more with each answer: what follows it is what is scored.
        shared = min(self._shared([prompt]), len(prompt) - 1)
        read = self.read(model, prompt[:shared]) if shared else None
        part = _expand(read, 1, len(prompt) - 1) if shared else DynamicCache(config=model.config)
        if shared < len(prompt) - 1:
            rest = torch.tensor([prompt[shared:-1]], device=model.device)
            places = torch.arange(shared, len(prompt) - 1, device=model.device)[None]
            model.base_model(input_ids=rest, past_key_values=part, position_ids=places, use_cache=True)
        n, width = len(answers), max(map(len, answers))
        ids = torch.full((n, width + 1), self.tokenizer.pad_token_id, device=model.device)
        ids[:, 0] = prompt[-1]
        scored = torch.zeros((n, width), dtype=torch.bool, device=model.device)
        for row, answer in enumerate(answers):
            ids[row, 1 : len(answer) + 1], scored[row, : len(answer)] = torch.tensor(answer, device=model.device), True
        # Padding is at the end, where causal attention never looks.
        places = torch.arange(len(prompt) - 1, len(prompt) - 1 + width, device=model.device)[None].expand(n, -1)
        cache = _expand(part, n, len(prompt) - 1 + width)
        hidden = model.base_model(input_ids=ids[:, :-1], past_key_values=cache, position_ids=places, use_cache=True)[0]
        logits = _finite(model.get_output_embeddings()(hidden[scored]).float())
        each = torch.zeros((n, width), dtype=torch.float64, device=model.device)
        each[scored] = torch.log_softmax(logits.double(), dim=-1).gather(1, ids[:, 1:][scored][:, None])[:, 0]
        return (each.sum(1) / scored.sum(1)).cpu().numpy()

    def _shared(self, encoded):
        """How many tokens all prompts share with the instruction of a role: 0 where it is not worth it."""
        longest = max(min(_common(each, tokens) for tokens in encoded) for each in self.instructions)
        longest = min(longest, min(map(len, encoded)) - 1)  # the last token is computed, for its logits
        return longest if longest >= WORTH_SHARING else 0

    def _prefill(self, model, ids, mask, prefix, lengths, max_new_tokens):
        """(cache of all rows, logits of the next token): reads the prompts in chunks, each with its own padding only."""
        n, width = ids.shape
        read = self.read(model, ids[0, :prefix].tolist()) if prefix else None
        cache, logits = None, None
        for i in range(0, n, CHUNK):
            rows = slice(i, i + CHUNK)
            own = max(lengths[rows]) - prefix
            part = _expand(read, len(lengths[rows]), prefix + own) if prefix else DynamicCache(config=model.config)
            seen = torch.cat([mask[rows, :prefix], mask[rows, width - own :]], dim=1)
            out = model(
                input_ids=ids[rows, width - own :], attention_mask=seen, past_key_values=part, use_cache=True,
                position_ids=(seen.cumsum(1) - 1).clamp(min=0)[:, prefix:], logits_to_keep=1,
            )  # fmt: skip
            if cache is None:
                cache = _room(part, n, width + max_new_tokens, width)
                logits = out.logits.new_zeros((n, out.logits.shape[-1]), dtype=torch.float32)
            logits[rows] = out.logits[:, -1].float()
            for whole, new in zip(cache.layers, part.layers, strict=True):
                for buffer, states in zip(whole.buffers, (new.keys, new.values), strict=True):
                    buffer[rows, :, :prefix] = states[:, :, :prefix]
                    buffer[rows, :, width - own : width] = states[:, :, prefix:]
        return cache, _finite(logits)

    def _check_context(self, model, encoded, max_new_tokens):
        most, room = max(map(len, encoded)), getattr(model.config, "max_position_embeddings", None)
        if room and most + max_new_tokens > room:
            raise ConfigError(
                f"a prompt of {most} tokens and a reply of up to {max_new_tokens} (llm.max_new_tokens) exceed the model's "
                f"context of {room}"
            )


def _common(a, b):
    """Length of the beginning that two lists share."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _expand(read, n, room):
    """A cache of n rows that all begin with what was read, as buffers."""
    layers = [
        Buffer(layer.keys.expand(n, -1, -1, -1), layer.values.expand(n, -1, -1, -1), room) for layer in read.layers
    ]
    return Cache(layers=layers)


def _room(part, n, room, length):
    """An empty cache like `part`, of n rows, which is about to hold `length` tokens and has room for more."""
    layers = []
    for layer in part.layers:
        nothing = [each.new_zeros((n, each.shape[1], length, each.shape[3])) for each in (layer.keys, layer.values)]
        layers.append(Buffer(*nothing, room))
    return Cache(layers=layers)


def _choose(scores, temperature):
    """The next token of every row. Of ended rows too, so that the draws of the others are those of `generate`."""
    if temperature == 0:
        return scores.argmax(dim=-1)
    return torch.multinomial(torch.softmax(scores / temperature, dim=-1), num_samples=1).squeeze(1)


def _finite(logits):
    if not torch.isfinite(logits).all():
        raise ConfigError("the language model's logits are not finite: its weights are damaged, or too large for their type")
    return logits
