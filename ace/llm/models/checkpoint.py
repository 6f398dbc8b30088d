"""Checkpoints of other makers: any causal model of transformers, a pretrained model that was tuned here, and its two forms.

    native         its own tokenizer and chat template: what any checkpoint of the hub is
    transplanted   its body with the one-word-one-token vocabulary of the embedded model: prompts are six times shorter

What was tuned here is a folder with an adapter, the transplanted rows and `tuned.json`, which says of what base; the base itself
is made by `make pretrained`.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ace.config import ConfigError
from ace.config.files import written_whole
from ace.llm.models import embedded, pretrained

FORMS = ("native", "transplanted")
TUNED = "results/pretrained_model/{env}"
"""Where ace/llm/models/tuning.py leaves what it has tuned, and what variants that ask it name as `llm.path`."""
NOTE, ROWS, WORDS, ADAPTER = "tuned.json", "rows.safetensors", "tokenizer.json", "adapter_model.safetensors"


def load(source, environment=None):
    """(model, tokenizer) of a folder or a name on the hub. A folder of `save_tuned` stands for base, rows and adapter together.

    environment: the grid that it is to be asked on; ConfigError where it was tuned on another one. None: asked anywhere.
    """
    if (Path(source) / NOTE).is_file():
        return load_tuned(Path(source), environment)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    embedded.without_bars()
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", "auto")
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype).to(device).eval()
    except (OSError, ValueError) as error:
        raise ConfigError(f"no checkpoint at {source!r}: {' '.join(str(error).split())[:300] or 'unreadable'}") from None
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def cure(place, environment):
    """What to do where a checkpoint is asked for at a place and is not there: the end of an error message."""
    ours = str(place).endswith(TUNED.replace("{env}", environment))
    return f": python -m ace.llm.models.tuning {environment} makes it, after `make pretrained`" if ours else ""


# --- forms ------------------------------------------------------------------------------------------------------------


def transplant(model, tokenizer, words):
    """Give a model another vocabulary, in place: the row of each word is the mean of the rows of its pieces.

    tokenizer: of the model; words: the new tokenizer, of `embedded.make_tokenizer`. Input and output rows are tied. An end is an
    end in both, padding is never read, and a word that is not known begins as the old tokenizer's unknown one.
    """
    old = model.get_input_embeddings().weight.detach()
    special = {words.eos_token_id: tokenizer.eos_token_id, words.pad_token_id: tokenizer.pad_token_id,
               words.unk_token_id: tokenizer.unk_token_id}  # fmt: skip
    rows = old.new_zeros((len(words), old.shape[1]))
    for word, i in words.get_vocab().items():
        if i in special:
            pieces = [tokenizer.eos_token_id if special[i] is None else special[i]]
        else:  # in a line a word stands after a space
            pieces = tokenizer(word if word == "\n" else " " + word, add_special_tokens=False)["input_ids"]
        rows[i] = old[pieces].mean(dim=0)
    set_rows(model, rows)
    model.config.pad_token_id, model.config.eos_token_id = words.pad_token_id, words.eos_token_id
    model.config.bos_token_id = None
    return model


def set_rows(model, rows):
    """Make `rows`, (V, width), the embedding and, tied to it, the head of a model."""
    embedding = torch.nn.Embedding(*rows.shape, dtype=rows.dtype, device=rows.device)
    embedding.weight = torch.nn.Parameter(rows)
    head = torch.nn.Linear(rows.shape[1], rows.shape[0], bias=False, dtype=rows.dtype, device=rows.device)
    model.set_input_embeddings(embedding)
    model.set_output_embeddings(head)
    model.config.vocab_size, model.config.tie_word_embeddings = len(rows), True
    model.tie_weights()


def random_weights(model, seed):
    """A model of the same shape and vocabulary with new weights: what pretraining is compared with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return type(model)(model.config).eval()


def in_form(form, words=None, base=None):
    """(model, tokenizer) of the pretrained base in one of FORMS. words: folder of an embedded model, whose words the transplanted
    form takes; base: folder of the base, default: that of `make pretrained`."""
    model, tokenizer = pretrained.load(base or pretrained.folder())
    if form == "native":
        return model, tokenizer
    path = Path(words) / WORDS
    if not path.is_file():
        raise ConfigError(f"no vocabulary at {path}: the transplanted form takes that of the stage language_model")
    new = embedded.wrap(tokenizer_file=str(path))
    return transplant(model, tokenizer, new), new


# --- tuned ------------------------------------------------------------------------------------------------------------


def save_tuned(adapted, tokenizer, folder, note):
    """Write adapter and, of a transplanted model, rows and words, in float16: what `load_tuned` reads.

    adapted: a PeftModel on a model of `in_form`; note: what NOTE holds: form, environment, base_sha256 and whatever else there is
    to say. The folder is complete where it has NOTE, which is written last.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NOTE).unlink(missing_ok=True)
    from peft import get_peft_model_state_dict

    weights = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    weights = {name: w.detach().half().contiguous() for name, w in sorted(weights.items()) if "lora_" in name}
    _save(weights, folder / ADAPTER)
    settings = next(iter(adapted.peft_config.values()))
    lora = {"r": settings.r, "lora_alpha": settings.lora_alpha, "target_modules": sorted(settings.target_modules)}
    if note["form"] == "transplanted":
        rows = adapted.get_base_model().get_input_embeddings().weight
        _save({"rows": rows.detach().half().contiguous()}, folder / ROWS)
        tokenizer.backend_tokenizer.save(str(folder / WORDS))
    files = {name: pretrained.sha256(folder / name) for name in (ADAPTER, ROWS, WORDS) if (folder / name).is_file()}
    (folder / NOTE).write_text(json.dumps({**note, "lora": lora, "sha256": files}, indent=1) + "\n")


def load_tuned(folder, environment=None, base=None):
    """(model, tokenizer) of a folder of `save_tuned`: the base in its form, the adapter merged, in float32.

    ConfigError where a file is missing or not the one that was written, or where base or grid are other ones.
    """
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

    folder = Path(folder)
    try:
        note = json.loads((folder / NOTE).read_text())
        for name, digest in note["sha256"].items():
            if pretrained.sha256(folder / name) != digest:
                raise ConfigError(f"{folder}: {name} is not the file that was written: `git checkout` it, or tune again")
        weights = load_file(folder / ADAPTER)
        rows = load_file(folder / ROWS)["rows"].float() if note["form"] == "transplanted" else None
    except (OSError, KeyError, TypeError, json.JSONDecodeError, SafetensorError) as error:
        raise ConfigError(f"{folder} holds no tuned model: {' '.join(str(error).split())[:200]}") from None
    if environment is not None and note["environment"] != environment:
        raise ConfigError(f"{folder} was tuned on {note['environment']}, not on {environment}")
    base = base or pretrained.folder()
    if (found := weights_digest(base)) != note["base_sha256"]:
        wanted = note["base_sha256"][:8]
        raise ConfigError(f"{folder} was tuned on another base than {base.name} (sha256 {wanted}, not {found[:8]})")
    model, tokenizer = in_form(note["form"], folder, base)
    if note.get("weights") == "random":
        model = random_weights(model, note["seed"])
    if rows is not None:
        set_rows(model, rows)
    adapted = get_peft_model(model, LoraConfig(**note["lora"], task_type="CAUSAL_LM"))
    missing = set_peft_model_state_dict(adapted, {name: w.float() for name, w in weights.items()})
    if missing.unexpected_keys or any("lora_" in key for key in missing.missing_keys):
        raise ConfigError(f"{folder}: the adapter does not fit the base")
    return adapted.merge_and_unload().eval(), tokenizer


def weights_digest(base):
    """sha256 of the base's weights, as `make pretrained` noted it."""
    return json.loads((base / pretrained.DIGESTS).read_text())["model.safetensors"]


def _save(tensors, path):
    with written_whole(path) as partial:
        save_file(tensors, partial, metadata={"format": "pt"})
        partial.chmod(0o644)
