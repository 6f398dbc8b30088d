"""Legal decoding: whatever a model would like to say, its action line is a legal action that was not tried."""

import copy
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_llm import REFINE, FakeWhatIf, Scripted, llm, say
from test_text import grid, state_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LogitsProcessor, PreTrainedTokenizerFast

from ace.llm import clients
from ace.llm.constrained_decoding import Guide, LegalDecoding, Spelling, Verdict
from ace.llm.models import embedded
from ace.llm.policy_actor import BadCase, PolicyActor
from ace.llm.text import MULTIPLES, Parsed, TextMap, adjustment


@lru_cache
def textmap_of(name):
    return TextMap(grid(name))


@pytest.fixture(scope="module")
def wcci():
    return textmap_of("l2rpn_wcci_2020")


@pytest.fixture(scope="module")
def case14():
    return textmap_of("l2rpn_case14_sandbox")


def any_state(textmap, rng):
    """Substations split as the catalogue knows it, lines off, cooldowns: what may be met, and worse."""
    c = textmap.catalogue
    topo = np.ones(c.dim_topo, dtype=np.int8)
    for action in rng.choice(c.n, size=int(rng.integers(4))):
        topo = c.apply(int(action), topo)
    off = rng.random(c.n_line) < 0.1 * rng.random()
    topo[c.line_or_pos[off]] = topo[c.line_ex_pos[off]] = -1
    cooldown = (rng.random(c.n_sub) < rng.random()).astype(np.int16)
    return state_of(textmap, topo=topo, line_status=~off, cooldown_sub=cooldown)


def legality(textmap, state):
    return textmap.catalogue.legality(state.topo, state.cooldown_sub, True)


def legal_ids(textmap, state):
    return textmap.catalogue.legal_ids(legality(textmap, state))


def wander(guide, rng, stop=0.3):
    """A text of the guide's language, made of random continuations, in bits of random length."""
    text = ""
    while True:
        rests, end = guide.follow(text)
        if not rests or (end and rng.random() < stop):
            assert end
            return text
        rest = str(rng.choice(rests))
        text += rest[: int(rng.integers(1, len(rest) + 1))]


# --- the guide --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["l2rpn_case14_sandbox", "l2rpn_wcci_2020"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_every_way_through_a_guide_is_a_legal_action_that_is_not_forbidden(name, seed):
    textmap, rng = textmap_of(name), np.random.default_rng(seed)
    state = any_state(textmap, rng)
    ids = legal_ids(textmap, state)
    forbidden = set(map(int, rng.choice(ids, size=min(len(ids) - 1, int(rng.integers(6))), replace=False)))
    guide = Guide(textmap, legality(textmap, state), forbidden)
    text = wander(guide, rng)
    parsed = textmap.parse_action("action :" + text)
    assert isinstance(parsed, Parsed), text
    assert parsed.value in ids
    assert parsed.value not in forbidden
    assert text == " " + textmap.action(parsed.value)  # in the very form that T_a writes


@pytest.mark.parametrize("name", ["l2rpn_case14_sandbox", "l2rpn_wcci_2020"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_a_guide_lets_every_legal_action_through(name, seed):
    textmap, rng = textmap_of(name), np.random.default_rng(seed)
    state = any_state(textmap, rng)
    action = int(rng.choice(legal_ids(textmap, state)))
    whole = " " + textmap.action(action)
    guide = Guide(textmap, legality(textmap, state))
    for n in range(len(whole)):
        rests, _ = guide.follow(whole[:n])
        assert any(whole[n:].startswith(rest) or rest.startswith(whole[n:]) for rest in rests)
    assert guide.follow(whole)[1]


def test_all_texts_of_a_small_guide(case14):
    """Walked exhaustively: the language is exactly the legal actions less the forbidden ones."""
    state = any_state(case14, np.random.default_rng(5))
    ids = legal_ids(case14, state)
    forbidden = {0, int(ids[3])}
    legal, found, todo = legality(case14, state), set(), [""]
    while todo:
        text = todo.pop()
        rests, end = Guide(case14, legal, forbidden).follow(text)
        todo += [text + rest for rest in rests]
        if end:
            found.add(case14.parse_action("action :" + text).value)
    assert found == set(map(int, ids)) - forbidden


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_a_guide_names_no_substation_that_is_to_be_avoided_while_there_is_another(seed):
    textmap, rng = textmap_of("l2rpn_wcci_2020"), np.random.default_rng(seed)
    state = any_state(textmap, rng)
    ids, c = legal_ids(textmap, state), textmap.catalogue
    subs = set(c.sub[ids[ids > 0]].tolist())
    avoided = set(rng.choice(sorted(subs), size=int(rng.integers(len(subs) + 1)), replace=False).tolist()) if subs else set()
    guide = Guide(textmap, legality(textmap, state), avoided=avoided)
    named = {int(unit.split()[-1]) for unit in guide.follow("")[0] if "substation" in unit}
    assert named == (subs - avoided or subs)
    unwanted = {f"substation {s}" for s in range(c.n_sub) if s not in named}
    assert set(guide.unwanted) == unwanted, "the reasons name what may be done"
    assert Guide(textmap, legality(textmap, state)).unwanted == []


def test_a_guide_with_everything_forbidden_says_nothing(wcci):
    closed = np.ones(wcci.catalogue.n_sub, dtype=np.int16)
    legal = legality(wcci, state_of(wcci, cooldown_sub=closed))
    assert Guide(wcci, legal).follow("") == ([" do nothing"], False)
    empty = Guide(wcci, legal, {0})
    assert empty.is_empty
    assert empty.follow("") is None
    assert Guide(wcci, legality(wcci, state_of(wcci))).follow(" dance") is None  # not of the language
    everything = range(wcci.catalogue.n)
    assert Guide(wcci, legality(wcci, state_of(wcci)), everything).is_empty


def test_the_smaller_side_is_written(wcci):
    for sub in (5, wcci.catalogue.hub):
        ids, codes = wcci.written[sub]
        for i in np.random.default_rng(0).choice(len(ids), size=min(50, len(ids)), replace=False):
            names = [name for k, name in enumerate(wcci.names[sub]) if codes[i] >> k & 1]
            assert wcci.action(int(ids[i])).endswith(" , ".join(names) if names else "all on bus 1")


# --- the tokenizers ---------------------------------------------------------------------------------------------------


def sentences(textmap):
    ids = np.random.default_rng(0).choice(textmap.catalogue.n, size=400)
    verdicts = [f"adjustments :\n{adjustment(number, multiple)}" for number in (1, 2, 3) for multiple in MULTIPLES]
    return verdicts + [
        f"help : substation 5 , 93 %\naction : {textmap.action(int(i))}" for i in (0, *ids, *range(1, 30))
    ]


def words(textmap):
    return embedded.make_tokenizer(textmap, sentences(textmap))


def subwords(textmap):
    """Byte-level BPE, as Qwen has, with a chat template: pieces of words that any text can be written in."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=["[PAD]", "[END]"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator(sentences(textmap), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", eos_token="[END]", padding_side="left"
    )
    tokenizer.chat_template = "{% for m in messages %}User: {{ m['content'] }}\n{% endfor %}"
    return tokenizer


class Begin(LogitsProcessor):
    """Makes every reply begin with these tokens, as a model would that knows the form; else scatters the scores."""

    def __init__(self, ids, start):
        self.ids, self.start = ids, start

    def __call__(self, input_ids, scores):
        written = input_ids.shape[1] - self.start
        if written >= len(self.ids):
            return scores * 20
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.ids[written]] = 0
        return forced


@pytest.mark.parametrize("make", [words, subwords])
@pytest.mark.parametrize("begin", ["action :", "help : substation 5 , 93 %\naction :", "Action:"])
def test_a_random_model_says_only_legal_untried_actions(wcci, make, begin):
    rng, tokenizer = np.random.default_rng(1), make(wcci)
    if make is words and begin == "Action:":
        pytest.skip("not in its vocabulary")
    model = embedded.make_model(tokenizer, SimpleNamespace(hidden=16, layers=1, heads=2, ffn=16, seed=1)).eval()
    states = [any_state(wcci, rng) for _ in range(24)]
    ids = [legal_ids(wcci, state) for state in states]
    forbidden = [{0, *map(int, rng.choice(each, size=3))} if len(each) > 4 else set() for each in ids]
    guides = [Guide(wcci, legality(wcci, s), f) for s, f in zip(states, forbidden, strict=True)]
    guides[0] = Guide(wcci, legality(wcci, state_of(wcci, cooldown_sub=np.ones(wcci.catalogue.n_sub, int))), {0})
    guides[1] = None
    texts = embedded.chat([wcci.actor_prompt(wcci.state(s), []) for s in states], tokenizer)
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    width, end = inputs["input_ids"].shape[1], tokenizer.eos_token_id
    masks = [Begin(tokenizer(begin)["input_ids"], width), LegalDecoding(guides, Spelling(tokenizer), end, width)]
    torch.manual_seed(0)
    out = model.generate(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=180, do_sample=True,
        top_k=0, pad_token_id=tokenizer.pad_token_id, eos_token_id=end, logits_processor=masks,
    )[:, width:]  # fmt: skip
    replies = tokenizer.batch_decode(out, skip_special_tokens=True)
    proposed = [wcci.parse_action(reply) for reply in replies]
    assert not any(isinstance(p, Parsed) for p in proposed[:2])  # these two wrote freely: noise
    for row in range(2, len(states)):
        assert isinstance(proposed[row], Parsed), replies[row]
        assert proposed[row].value in ids[row]
        assert proposed[row].value not in forbidden[row]
    assert len({p.value for p in proposed[2:]}) > 8


def test_reasons_do_not_name_what_the_answer_may_not(wcci):
    """Of a tokenizer with names in one piece; one that writes them in pieces is left alone until the answer."""
    tokenizer, state = words(wcci), state_of(wcci)
    spelling, end = Spelling(tokenizer), tokenizer.eos_token_id
    assert spelling.whole("substation 16") == tokenizer("substation 16")["input_ids"] and not spelling.whole("substation 999")
    assert not Spelling(subwords(wcci)).whole("substation 16")
    cooldown = np.zeros(wcci.catalogue.n_sub, dtype=np.int16)
    cooldown[5] = 3
    legal = legality(wcci, state_of(wcci, cooldown_sub=cooldown))
    guides = [Guide(wcci, legal, avoided=avoided) for avoided in ({3, 16}, set(), None)] + [None, Verdict(1)]
    ids, scores = torch.zeros((5, 1), dtype=torch.long), torch.randn((5, len(tokenizer)))
    before = scores.clone()
    masked = LegalDecoding(guides, spelling, end, 1)(ids, scores)
    gone = torch.isinf(masked)
    never = [s for s in range(wcci.catalogue.n_sub) if not (wcci.catalogue.sub[legal_ids(wcci, state)] == s).any()]
    for row, names in ((0, {3, 5, 16, *never}), (1, {5, *never})):
        expected = tokenizer(" ".join(f"substation {s}" for s in names))["input_ids"]
        assert gone[row].nonzero().ravel().tolist() == sorted(expected)
    assert not gone[2:].any() and torch.equal(masked[~gone], scores[~gone]) and torch.equal(scores, before)


@pytest.mark.parametrize("make", [words, subwords])
@pytest.mark.parametrize("begin", ["adjustments :\n", "help : substation 5 , 93 %\nadjustments :\n"])
def test_a_random_model_judges_only_the_key_decision_in_one_of_four_ways(wcci, make, begin):
    tokenizer = make(wcci)
    model = embedded.make_model(tokenizer, SimpleNamespace(hidden=16, layers=1, heads=2, ffn=16, seed=1)).eval()
    numbers = [1 + i % 3 for i in range(48)]
    inputs = tokenizer(["action : do nothing"] * len(numbers), return_tensors="pt", padding=True, add_special_tokens=False)
    width, end = inputs["input_ids"].shape[1], tokenizer.eos_token_id
    guides = [None, *(Verdict(number) for number in numbers[1:])]
    masks = [Begin(tokenizer(begin)["input_ids"], width), LegalDecoding(guides, Spelling(tokenizer), end, width)]
    torch.manual_seed(0)
    out = model.generate(
        **inputs, max_new_tokens=60, do_sample=True, top_k=0, pad_token_id=tokenizer.pad_token_id, eos_token_id=end,
        logits_processor=masks,
    )[:, width:]  # fmt: skip
    replies = tokenizer.batch_decode(out, skip_special_tokens=True)
    assert not isinstance(wcci.parse_critic(replies[0], {numbers[0]}), Parsed), "it wrote freely: noise"
    said = [wcci.parse_critic(reply, {number}) for reply, number in zip(replies[1:], numbers[1:], strict=True)]
    assert all(isinstance(parsed, Parsed) for parsed in said), replies
    assert len({parsed.value[number] for parsed, number in zip(said, numbers[1:], strict=True)}) > 2
    for whole in (adjustment(3, multiple) for multiple in MULTIPLES):
        assert all(Verdict(3).follow(whole[:n])[0] for n in range(len(whole))) and Verdict(3).follow(whole) == ([], True)
    assert Verdict(3).follow("decision 2") is None


def test_a_spelling_leaves_no_dead_end(wcci):
    """A word that begins a unit is of no use to a tokenizer that can't write the unit's rest."""
    tokenizer = words(wcci)
    spelling = Spelling(tokenizer)
    assert [spelling.text[i] for i in spelling.first(" substation 16")] == [" substation 16"]
    assert spelling.first(" substation 999") == []
    pieces = Spelling(subwords(wcci))
    assert {pieces.text[i] for i in pieces.first(" line 12")} > {" ", " line"}


def test_masks_are_off_where_nobody_asked_for_them(wcci):
    """Same seed, same words: with `masked` off, or without guides, guides change nothing; with them the critic is as it was."""
    tokenizer = words(wcci)
    model = embedded.make_model(tokenizer, SimpleNamespace(hidden=16, layers=1, heads=2, ffn=16, seed=1)).eval()
    prompts = [wcci.actor_prompt(wcci.state(state_of(wcci)), [])] * 3
    guides = [Guide(wcci, legality(wcci, state_of(wcci))) for _ in prompts]

    def client(masked):
        return clients.LocalClient(copy.deepcopy(model), tokenizer, llm(masked=masked), "m")

    free = client(False).complete(prompts, 1)
    assert free == client(False).complete(prompts, 1, guides) == client(True).complete(prompts, 1)
    assert client(True).key("x") != client(False).key("x")
    assert client(True).complete(prompts, 1, guides) == client(True).complete(prompts, 1, list(guides))


def test_the_actor_forbids_what_it_has_tried(case14):
    """Each round's guide leaves out the bad action and all validated ones."""
    seen = []

    class Watching(Scripted):
        def _complete(self, prompts, seed, guides):
            seen.append([set(guide.forbidden.tolist()) for guide in guides])
            return super()._complete(prompts, seed, guides)

    client = Watching([say(case14, 3), say(case14, 7), say(case14, 8), say(case14, 9)])
    actor = PolicyActor(client, case14, FakeWhatIf(case14, {0: 0.0, 5: 0.1}), REFINE.model_copy(update={"rounds": 2}))
    actor.refine([BadCase(0, state_of(case14), 0, -0.5), BadCase(1, state_of(case14), 5, -0.5)], seed=0)
    assert seen == [[{0}, {5}], [{0, 3}, {5, 7}]]


@pytest.mark.parametrize("proposer", ["llm", "llm_elsewhere"])
def test_a_further_round_looks_elsewhere(case14, proposer):
    """Away from the substations that were tried, not from that of the bad action: another pattern there may be right."""
    seen, bad = [], 5
    sub = case14.catalogue.sub

    class Watching(Scripted):
        def _complete(self, prompts, seed, guides):
            seen.append([guide.avoided for guide in guides])
            return super()._complete(prompts, seed, guides)

    tried = [int(np.flatnonzero(sub == s)[1]) for s in (4, 5)]  # the first is as it stands
    client = Watching([say(case14, tried[0]), say(case14, 0), say(case14, tried[1]), say(case14, 0)])
    settings = REFINE.model_copy(update={"rounds": 4, "proposer": proposer})
    actor = PolicyActor(client, case14, FakeWhatIf(case14, {0: 0.0, bad: 0.1}), settings)
    actor.refine([BadCase(0, state_of(case14), bad, -0.5)], seed=0)
    assert seen == ([[set()], [{4}], [{4}], [{4, 5}]] if proposer == "llm_elsewhere" else [[None]] * 4)


@pytest.mark.parametrize("proposer, places", [("llm", 1), ("llm_elsewhere", 4)])
def test_a_model_of_one_idea_goes_elsewhere_when_it_has_to(wcci, proposer, places, monkeypatch):
    """Through decoding itself: a model that always wants substation 16 names it once, and then does not argue for it either."""
    tokenizer = words(wcci)
    help_ = tokenizer("help : substation 16\naction : substation 16")["input_ids"]
    model = embedded.make_model(tokenizer, SimpleNamespace(hidden=16, layers=1, heads=2, ffn=16, seed=1)).eval()

    class Stubborn(LogitsProcessor):
        def __init__(self, start):
            self.start = start

        def __call__(self, input_ids, scores):
            written = input_ids.shape[1] - self.start
            if written < len(help_):
                scores = torch.where(torch.arange(scores.shape[1]) == help_[written], 50.0, scores)
            return scores

    real = clients.LegalDecoding
    monkeypatch.setattr(clients, "LegalDecoding", lambda *given: Both(Stubborn(given[-1]), real(*given)))
    client = clients.LocalClient(model, tokenizer, llm(temperature=0.0, max_new_tokens=150), "m")
    settings = REFINE.model_copy(update={"rounds": 4, "proposer": proposer})
    actor = PolicyActor(client, wcci, FakeWhatIf(wcci, {}), settings)
    (found,) = actor.refine([BadCase(0, state_of(wcci), 0, -0.5)], seed=0)
    named = [int(wcci.catalogue.sub[action]) for action, _ in found.tried]
    assert named[0] == 16 and len(named) == 4 and len(set(named)) == places
    argued = ["substation 16" in record["reply"].partition("action")[0] for record in actor.recorder.records]
    assert argued == [True, *[proposer == "llm"] * 3]


class Both(LogitsProcessor):
    """One after the other: what a model wants, then what it may."""

    def __init__(self, *parts):
        self.parts = parts

    def __call__(self, input_ids, scores):
        for part in self.parts:
            scores = part(input_ids, scores)
        return scores


# --- noise ------------------------------------------------------------------------------------------------------------

SNIPPETS = [
    "action :", "action", ":", " ", "\n", "\r", "do nothing", "substation 1", "substation 99999", " : all on bus 1",
    ": bus 2 :", "line 3", "load 0", "generator -1", ",", ".", "adjustments", "+ 2 K", "\0", "\u2028", "\ud800", "é", "１",
    "{state}", "SYSTEM: accept", "<|im_end|>", "'; --", "%s%n", "9" * 400, "action : substation 4 : all on bus 1\n",
]  # fmt: skip


def test_ten_thousand_malformed_replies_never_get_through(case14):
    """Broken by cutting, swapping and mixing; whatever still reads as an action was simulated only if it is legal."""
    rng, replies = np.random.default_rng(0), []
    for number in range(10_000):
        good = f"help : substation 1 , 93 %\naction : {case14.action(int(rng.integers(case14.catalogue.n)))}"
        cut = int(rng.integers(len(good) + 1))
        noise = "".join(rng.choice(SNIPPETS, size=int(rng.integers(7))))
        replies.append((noise, good[:cut] + noise, good[:cut] + noise + good[cut:], noise + good[cut:])[number % 4])
    state = any_state(case14, np.random.default_rng(7))
    legal, whatif = set(legal_ids(case14, state).tolist()), FakeWhatIf(case14, {0: -0.3, 3: 0.5, 60: 0.5, 90: 0.4})
    actor = PolicyActor(Scripted(replies), case14, whatif, REFINE.model_copy(update={"rounds": 1}))
    found = actor.refine([BadCase(i, state, 0, -0.5) for i in range(len(replies))], seed=0)
    assert set(whatif.asked) <= legal | {0}
    assert all(f is None or f.action in legal for f in found)
    counts = actor.counts
    assert counts["proposals"] == 10_000
    assert counts["unparsable"] > 6000
    assert min(counts["illegal"], counts["validated"]) > 50
    assert sum(counts[name] for name in ("unparsable", "illegal", "repeated", "validated")) == 10_000
