"""Four ways to ask a language model, with one interface, and the recorder that writes down every call.

    complete(prompts: list[str], seed: int, guides: list[legal.Guide | legal.Verdict] | None) -> list[str]

`calls`, `tokens` (read and written) and `seconds` count what was asked; `name` says who answers. The embedded model and
a checkpoint differ in their folder only; a server is any that speaks OpenAI's protocol; a replay reads a transcript.
"""

import gzip
import hashlib
import io
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path

import torch

from ace.config import ConfigError
from ace.llm.constrained_decoding import LegalDecoding, Spelling
from ace.llm.decoding import Decoder, can_decode
from ace.llm.models import checkpoint, embedded, pretrained
from ace.llm.text import template

BATCH = 64
"""Prompts generated at once by a local model."""
DECODING = ("temperature", "max_new_tokens", "masked")
"""Parameters that a reply depends on; `masked` is one of local models only."""


class ClientError(RuntimeError):
    """The language model did not answer. One line, without secrets."""


def open_client(settings, env, seed, root):
    """The client that the parameters ask for. settings: config.settings.Llm; root: folder that relative paths start from."""
    place = settings.path.replace("{env}", env).replace("{seed}", str(seed))
    if settings.client == "server":
        return ServerClient(settings, place)
    path = Path(root) / place
    if settings.client == "replay":
        return ReplayClient(settings, path)
    if settings.client == "embedded":
        return LocalClient(*embedded.load(path), settings, f"embedded-{env}")
    folder = checkpoint_folder(settings, place, root)
    if not folder.is_dir() and (not settings.model or settings.model.startswith((".", "/")) or settings.model.count("/") > 1):
        key, given = ("model", settings.model) if settings.model else ("path", place)
        raise ConfigError(f"llm.{key}: no checkpoint at {given!r}: there is no such folder{checkpoint.cure(given, env)}")
    source = folder if folder.is_dir() or not settings.model else settings.model
    loaded = checkpoint.load(str(source), env)
    # Transcripts show the folder's name, not where it lies on this machine.
    name = settings.model if source is not folder else folder.name if folder.name != env else f"{folder.parent.name}-{env}"
    return LocalClient(*loaded, settings, name, fast=True)


def checkpoint_folder(settings, place, root):
    """Where a checkpoint lies, if it is here and not a name on the hub. place: `settings.path`, filled in. ConfigError where it
    is the pretrained model and that was not fetched."""
    if Path(settings.model or place) == pretrained.PLACE / pretrained.MODEL:
        return pretrained.folder(root)
    return Path(root) / (settings.model or place)


class Client:
    """What all clients share: the counters and the decoding parameters. settings: config.settings.Llm."""

    def __init__(self, settings, name):
        self.settings, self.name = settings, name
        self.calls, self.tokens, self.seconds = 0, 0, 0.0

    def complete(self, prompts, seed, guides=None):
        """Replies to prompts, in their order. Local models and replays answer the same to the same prompts and seed.

        guides: a legal.Guide or Verdict for each prompt, or None; local models obey them if `masked`, all others can't. Raises
        ClientError if there is no answer, or if the tokens used reach the budget: what was answered before is kept.
        """
        budget = self.settings.token_budget
        if prompts and 0 < budget <= self.tokens:
            raise ClientError(f"{self.name} has used {self.tokens} tokens of llm.token_budget = {budget}: the run stops here")
        started = time.perf_counter()
        replies = self._complete(list(prompts), seed, guides) if prompts else []
        self.calls += len(replies)
        self.seconds += time.perf_counter() - started
        return replies

    @property
    def decoding(self):
        """What a reply depends on, apart from model and prompt."""
        return {name: getattr(self.settings, name) for name in DECODING[:2]}

    def key(self, prompt):
        """Identifies a call: hash of model, decoding parameters and prompt."""
        return short_hash(json.dumps([[self.name, *self.decoding.values()], prompt]))


class LocalClient(Client):
    """A transformers model in this process: the embedded one, or a checkpoint with its chat template."""

    def __init__(self, model, tokenizer, settings, name, fast=False):
        """fast: by `decoding.Decoder`, for models of many layers, where the model allows it; else by transformers' `generate`."""
        super().__init__(settings, name)
        self.model, self.tokenizer = model, tokenizer
        self.decoder = Decoder(tokenizer) if fast and can_decode(model) else None

    @property
    def decoding(self):
        return {name: getattr(self.settings, name) for name in DECODING}

    @cached_property
    def _spelling(self):
        return Spelling(self.tokenizer)

    def _complete(self, prompts, seed, guides):
        texts = embedded.chat(prompts, self.tokenizer)
        guides = guides if guides and self.settings.masked else [None] * len(texts)
        # Prompts of like length are generated together: less padding, and a batch ends with its longest reply.
        order = sorted(range(len(texts)), key=lambda i: (len(texts[i]), i))
        replies = [""] * len(texts)
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            torch.manual_seed(seed)
            for i in range(0, len(order), BATCH):
                chunk = order[i : i + BATCH]
                made = self._generate([texts[j] for j in chunk], [guides[j] for j in chunk])
                for j, reply in zip(chunk, made, strict=True):
                    replies[j] = reply
        return replies

    def _generate(self, texts, guides):
        end, masked = self.tokenizer.eos_token_id, any(guide is not None for guide in guides)
        if self.decoder:
            masks = partial(LegalDecoding, guides, self._spelling, end) if masked else None
            out, read = self.decoder.generate(
                self.model, texts, self.settings.max_new_tokens, self.settings.temperature, masks
            )
            return self._said(read, out)
        inputs = self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        ids, mask = inputs["input_ids"].to(self.model.device), inputs["attention_mask"].to(self.model.device)
        sampling = {"do_sample": False}
        if self.settings.temperature > 0:
            sampling = {"do_sample": True, "temperature": self.settings.temperature, "top_k": 0, "top_p": 1.0}
        width = ids.shape[1]
        masks = [LegalDecoding(guides, self._spelling, end, width)] if masked else []
        out = self.model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=self.settings.max_new_tokens,
            pad_token_id=self.tokenizer.pad_token_id, eos_token_id=end, logits_processor=masks, **sampling,
        )[:, width:]  # fmt: skip
        return self._said(int(mask.sum()), out)

    def _said(self, read, out):
        """Replies of token ids (B, T), padded; counts them and the tokens of the prompts, `read`."""
        self.tokens += read + int((out != self.tokenizer.pad_token_id).sum())
        return self.tokenizer.batch_decode(out, skip_special_tokens=True)


class ServerClient(Client):
    """Any server with OpenAI's chat protocol. The key comes from OPENAI_API_KEY and is never written anywhere."""

    def __init__(self, settings, base_url):
        """base_url: for example http://localhost:8000/v1; `settings.model` names the model there."""
        import openai

        super().__init__(settings, settings.model)
        # Local servers need no key, but the package insists on one.
        self._key = os.environ.get("OPENAI_API_KEY") or "none"
        self._errors = (openai.OpenAIError, ValueError, TypeError, AttributeError, IndexError)
        self._openai = openai.OpenAI(
            api_key=self._key, base_url=base_url, timeout=settings.timeout_s, max_retries=settings.retries
        )

    def _complete(self, prompts, seed, guides):
        with ThreadPoolExecutor(self.settings.concurrency) as pool:
            asked = [pool.submit(self._ask, prompt, seed + i) for i, prompt in enumerate(prompts)]
            try:
                answers = [each.result() for each in asked]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # a server that fails is not asked the rest
                raise
        self.tokens += sum(tokens for _, tokens in answers)
        return [reply for reply, _ in answers]

    def _ask(self, prompt, seed):
        """(reply, tokens) of one prompt; called from several threads."""
        for attempt in range(self.settings.retries + 1):
            try:
                answer = self._openai.chat.completions.create(
                    model=self.settings.model, messages=[{"role": "user", "content": prompt}], seed=seed,
                    temperature=self.settings.temperature, max_tokens=self.settings.max_new_tokens,
                )  # fmt: skip
                reply = answer.choices[0].message.content or ""
                return str(reply), int(answer.usage.total_tokens) if answer.usage else 0
            except self._errors as error:
                # The package has retried what the network did (429, 5xx, timeouts). A body that is no answer is ours.
                if hasattr(error, "request") or attempt == self.settings.retries:
                    raise ClientError(self._without_key(f"{self._openai.base_url}: {_one_line(error)}")) from None
                time.sleep(min(0.1 * 2**attempt, 5.0))
        raise AssertionError("unreachable")

    def _without_key(self, text):
        return text.replace(self._key, "***") if len(self._key) > 4 else text


class ReplayClient(Client):
    """Answers from a transcript that `Recorder` wrote; no model is asked.

    The n-th call with the same model, decoding parameters and prompt gets the n-th recorded reply.
    """

    def __init__(self, settings, path):
        if not Path(path).is_file():
            raise ConfigError(f"no transcript at {path}")
        try:
            header, *records = read_transcript(path)
            super().__init__(settings, header["model"])
            self._decoding = [name for name in DECODING if name in header]
            self._recorded = {}
            for record in records:
                self._recorded.setdefault(record["key"], []).append((record["reply"], record["tokens"]))
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is no transcript: {_one_line(error)}") from None
        self.path, self._used = Path(path), {}

    @property
    def decoding(self):
        return {name: getattr(self.settings, name) for name in self._decoding}

    def _complete(self, prompts, seed, guides):
        return [self._ask(prompt) for prompt in prompts]

    def _ask(self, prompt):
        key = self.key(prompt)
        number = self._used.get(key, 0)
        if number >= len(self._recorded.get(key, [])):
            raise ClientError(
                f"{self.path.name} holds no reply number {number + 1} of model {self.name!r} to the prompt with hash "
                f"{short_hash(prompt)} at these decoding parameters: was the run recorded with other settings, or was a model "
                "tuned on the way, which replay can't do (finetune.enabled: false)?"
            )
        self._used[key] = number + 1
        reply, tokens = self._recorded[key][number]
        self.tokens += tokens
        return reply

    def state_dict(self):
        return {"used": dict(self._used)}

    def load_state_dict(self, state):
        self._used = dict(state["used"])


class Recorder:
    """Writes down every call of a client. The counts survive a resume, because they are part of its state.

    A record has role, key, template (hash of the role's prompt file), prompt_hash, prompt, reply, tokens, parse and verdict
    (the last two are filled in by the role that asked) and no times: two runs with the same seed have the same transcript.
    """

    def __init__(self, client):
        self.client, self.records, self._seconds_before = client, [], 0.0

    @property
    def name(self):
        return self.client.name

    @property
    def calls(self):
        return len(self.records)

    @property
    def tokens(self):
        return sum(record["tokens"] for record in self.records)

    def tokens_by_role(self):
        """{role: tokens read and written in all of its calls}."""
        roles = sorted({record["role"] for record in self.records})
        return {role: sum(record["tokens"] for record in self.records if record["role"] == role) for role in roles}

    @property
    def seconds(self):
        return self._seconds_before + self.client.seconds

    def ask(self, task, prompts, seed, guides=None, role=None):
        """Complete, record, and return the new records.

        task: of `text.template`; role: what the records call it, the task's name unless told. The others as of `Client.complete`.
        """
        tokens_before = self.client.tokens
        replies = self.client.complete(prompts, seed, guides)
        used = self.client.tokens - tokens_before
        # The client counts a batch; the shares are even, the sum is exact.
        share = [used // len(replies) + (i < used % len(replies)) for i in range(len(replies))]
        prompt_file, role = short_hash(template(task)), role or task
        new = [
            {"role": role, "key": self.client.key(prompt), "template": prompt_file, "prompt_hash": short_hash(prompt),
             "prompt": prompt, "reply": reply, "tokens": tokens, "parse": None, "verdict": None}
            for prompt, reply, tokens in zip(prompts, replies, share, strict=True)
        ]  # fmt: skip
        self.records += new
        return new

    def state_dict(self):
        inner = self.client.state_dict() if hasattr(self.client, "state_dict") else {}
        return {"records": [dict(record) for record in self.records], "seconds": self.seconds, "client": inner}

    def load_state_dict(self, state):
        self.records = [dict(record) for record in state["records"]]
        self.client.tokens = self.tokens  # the budget is that of the whole run
        self._seconds_before = state["seconds"] - self.client.seconds
        if hasattr(self.client, "load_state_dict"):
            self.client.load_state_dict(state["client"])

    def write(self, path):
        """The transcript: JSON lines, gzip without a time stamp; the first line says which model and decoding."""
        header = {"model": self.name, **self.client.decoding}
        lines = [json.dumps(item, ensure_ascii=False, sort_keys=True) + "\n" for item in (header, *self.records)]
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as stream:
            stream.write("".join(lines).encode())
        Path(path).write_bytes(buffer.getvalue())


def read_transcript(path):
    """Header and records of a transcript."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def short_hash(text):
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _one_line(error):
    return " ".join(str(error).split())[:300] or type(error).__name__
