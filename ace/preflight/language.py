"""The language model: would it answer, where the parameters say that it is?

Files of a checkpoint are looked for and its tokenizer is read, its weights are not. A server gets one request of one word.
"""

import functools
import json
import os
import re
from pathlib import Path

import torch

from ace.config import ConfigError
from ace.llm.clients import ClientError, open_client
from ace.llm.models import checkpoint, embedded, pretrained
from ace.preflight.plan import fail, note, ok

PATIENCE_S = 8.0  # for one word from a server
HUB = re.compile(r"[\w.-]+/[\w.-]+")
SINGLE = ("model.safetensors", "pytorch_model.bin")
VOCABULARY = ("tokenizer.json", "vocab.json", "tokenizer.model")
POINTER_BYTES = 1024  # a weights file below it is a pointer of git-lfs


def findings(cells, workspace):
    """What each model that is asked in some cell lacks, if anything. workspace: the folder that relative paths start from."""
    asked = {}
    for cell in cells:
        if cell.settings.uses_llm:
            llm = cell.settings.llm
            source = source_of(cell, workspace) if llm.client == "checkpoint" else ""
            # a server is asked once, whatever it is asked with: dead, it is dead for all
            who = f"{llm.path} {llm.model}" if llm.client == "server" else llm.model_dump_json()
            asked.setdefault((who, source), []).append(cell)
    checks = {"embedded": _embedded, "checkpoint": _checkpoint, "server": _server, "replay": _replay}
    for group in asked.values():
        llm = group[0].settings.llm
        yield checks[llm.client](llm, group, workspace)
    if not asked:
        yield ok("language model", "no method asks one")
    yield from _manifests(cells, workspace)


MAKERS = {"other_model": "language_models", "also": "also_model", "also_control": "also_model", "pretrained": "pretrained_model"}
"""Kind of cell -> the stage that makes the model it asks, where that is not the one of all others."""


def _of(cells):
    names = list(dict.fromkeys(cell.variant for cell in cells))
    return f"(asked by {', '.join(names[:4])}{' ...' if len(names) > 4 else ''})"


def _maker(llm, cells):
    """The stage that makes the model of these cells, or "" where none does."""
    if llm.path == embedded.TRAINED:
        return "language_model"
    makers = {MAKERS.get(cell.stage.partition("@")[0], "") for cell in cells}
    return makers.pop() if len(makers) == 1 else ""


def _embedded(llm, cells, workspace):
    what = f"language model, embedded {_of(cells)}"
    if stage := _maker(llm, cells):
        return ok(what, f"nothing needed: the stage {stage} makes it")
    places = {cell.environment: workspace / llm.path.replace("{env}", cell.environment) for cell in cells}
    missing = [place for place in places.values() if not (place / "model.safetensors").is_file()]
    if missing:
        return fail(what, f"no model.safetensors in {missing[0]}: set llm.path to {embedded.TRAINED}, which the pipeline makes")
    return ok(what, f"{len(places)} folders with weights")


def _manifests(cells, workspace):
    """The set of actions is read from llm.path, which a server and a replay need for something else."""
    lacking = {}
    for cell in cells:
        path = cell.settings.llm.path
        manifest = workspace / path.replace("{env}", cell.environment) / "model_manifest.json"
        if cell.needs_manifest and not _maker(cell.settings.llm, [cell]) and not manifest.is_file():
            lacking.setdefault(path, []).append(cell)
    for path, found in lacking.items():
        variants = ", ".join(dict.fromkeys(cell.variant for cell in found))
        text = f"read model_manifest.json of the embedded model in llm.path = {_safe(path)!r}, where none is"
        text += f": give {variants} `llm: {{path: {embedded.TRAINED}}}`, and ask servers and replays in variants of their own"
        yield fail(f"{found[0].stage}{f' and {len(found) - 1} more' if len(found) > 1 else ''}", text)


# --- a checkpoint -----------------------------------------------------------------------------------------------------


def source_of(cell, workspace):
    """What transformers would be given: a folder, or a name on the hub. As in `open_client`."""
    llm = cell.settings.llm
    given = llm.model or llm.path.replace("{env}", cell.environment)
    place = Path(os.path.normpath(workspace / given))  # the workspace need not exist yet
    return str(place) if place.is_dir() or not llm.model else llm.model


@functools.cache
def config_of(source):
    """The config of a checkpoint, None where it can't be read."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source)
    except Exception:  # a broken file brings whatever its parser raises
        return None


@functools.cache
def weights_gb(source):
    """(GB that the weights take in memory, what that was read from): of the config alone, without one of the model's name."""
    from transformers import AutoModelForCausalLM

    config = config_of(source)
    if config is None:
        named = re.search(r"(\d+(?:\.\d+)?)[Bb](?![a-z])", source.rpartition("/")[2])
        return (float(named[1]) * 2.2 if named else 0.0), "its name"
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception:
        return 0.0, "nothing: transformers knows no such model"
    kept = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    each = torch.bfloat16.itemsize if torch.cuda.is_available() else kept.itemsize
    return sum(p.numel() for p in model.parameters()) * each / 1e9, "its config"


def _tuned(what, workspace):
    """A folder with an adapter: all it needs beside its own files is the base."""
    try:
        return ok(what, f"an adapter, with its base at {pretrained.folder(workspace)}")
    except ConfigError as error:
        return fail(what, str(error))


def _checkpoint(llm, cells, workspace):
    from transformers import AutoTokenizer

    source = source_of(cells[0], workspace)
    what = f"language model, checkpoint {source} {_of(cells)}"
    if not llm.model and (stage := _maker(llm, cells)):
        return _tuned(what, workspace) if stage == "pretrained_model" else ok(what, f"the stage {stage} makes it")
    if (Path(source) / checkpoint.NOTE).is_file():
        return _tuned(what, workspace)
    if cure := checkpoint.cure(source, cells[0].environment):
        return fail(what, f"no tuned model there{cure}")
    if not Path(source).is_dir() and not HUB.fullmatch(source):
        return fail(what, "neither a folder (paths start from the workspace's) nor a name on the hub: correct llm.model")
    offline = os.environ.get("HF_HUB_OFFLINE", "1") != "0"
    cure = "give a folder that holds it whole"
    if not Path(source).is_dir():
        look = "download it (HF_HUB_OFFLINE=0 in the environment)" if offline else "is the hub reachable?"
        cure = f"{look} or set llm.model to a folder"
    missing = [] if config_of(source) else ["config.json"]
    try:
        AutoTokenizer.from_pretrained(source)
        readable = any(_file(source, name) for name in VOCABULARY)  # without any it makes an empty tokenizer
    except Exception:
        readable = False
    missing += [] if readable else ["tokenizer"]
    size, _ = weights_gb(source)
    absent = _absent_weights(source)
    if absent and not missing and not Path(source).is_dir() and not offline:
        return note(what, f"not downloaded yet: the first run fetches about {size:.1f} GB from the hub")
    if absent:
        missing.append(f"weights ({absent})")
    if missing:
        return fail(what, f"missing or unreadable: {', '.join(missing)}; {cure}")
    return ok(what, f"config, tokenizer and weights are there, {size:.1f} GB in memory")


def _absent_weights(source):
    """The first file of weights that is not there, "" if all are."""
    index = next((name for name in SINGLE if _file(source, f"{name}.index.json")), None)
    if not index:
        return "" if any(_file(source, name) for name in SINGLE) else f"no {SINGLE[0]}, no index of shards"
    try:
        shards = set(json.loads(_file(source, f"{index}.index.json").read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, OSError):
        return f"{index}.index.json can't be read"
    absent = sorted(shard for shard in shards if not _file(source, shard))
    return f"{absent[0]}, {len(absent)} of {len(shards)} shards" if absent else ""


def _file(source, name):
    """Where a file of a checkpoint lies, folder or hub's cache; None where it is not, or is only a pointer to it."""
    from transformers.utils import cached_file

    try:
        found = Path(source) / name
        if not Path(source).is_dir():
            found = Path(cached_file(source, name, local_files_only=True))
        size = found.stat().st_size
    except (OSError, ValueError, TypeError):
        return None
    return found if name.endswith(".json") or size >= POINTER_BYTES else None


# --- a server, a recording --------------------------------------------------------------------------------------------


def _safe(url):
    """Without what stands before an @ in an address: it may be a password."""
    return re.sub(r"//[^/@]*@", "//***@", url)


def _server(llm, cells, workspace):
    what = f"language model, server {_safe(llm.path)}, model {llm.model!r} {_of(cells)}"
    key = "with" if os.environ.get("OPENAI_API_KEY") else "without"
    if not llm.path.startswith(("http://", "https://")):
        return fail(what, "llm.path is no address: give one like http://localhost:8000/v1")
    small = {"retries": 0, "timeout_s": min(llm.timeout_s, PATIENCE_S), "max_new_tokens": min(llm.max_new_tokens, 16)}
    try:
        client = open_client(llm.model_copy(update=small), cells[0].environment, 0, workspace)
        client.complete(["Answer with the word yes."], seed=0)
    except (ClientError, ConfigError) as error:
        cure = "start the server or correct llm.path, llm.model; a key is read from OPENAI_API_KEY"
        return fail(what, f"{_safe(str(error))} ({key} a key); {cure}")
    return ok(what, f"it answered in {client.seconds:.1f} s, {key} a key")


def _replay(llm, cells, workspace):
    what = f"language model, replay {llm.path} {_of(cells)}"
    wanted = sorted({(cell.environment, seed) for cell in cells for seed in cell.seeds})
    wrong = []
    for environment, seed in wanted:
        try:
            open_client(llm, environment, seed, workspace)
        except ConfigError as error:
            wrong.append(str(error))
    if wrong:
        cure = "record it with another client first, or correct llm.path (it starts from the workspace's folder)"
        return fail(what, f"{wrong[0]} ({len(wrong)} of {len(wanted)} transcripts are wanting); {cure}")
    return ok(what, f"{len(wanted)} transcripts can be read")
