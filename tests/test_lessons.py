"""RL teaches the language model: which of the policy's decisions become samples of a LoRA round."""

from types import SimpleNamespace

import numpy as np
import pytest
from test_coevolve import make
from test_coevolve import settings as settings
from test_llm import REFINE, FakeWhatIf, Scripted, grid, say, state_of, textmap  # noqa: F401 (fixtures)

from ace.llm.lessons import KEPT, Lessons
from ace.llm.policy_actor import PolicyActor
from ace.llm.text import Parsed

REWARD = {0: -0.3, 3: 0.1, 5: -0.29, 6: 0.3, 8: -0.6}
"""Simulated reward by action: 3 and 6 beat doing nothing by more than the margin."""


def lessons_of(textmap, replies, draw="d_mix", samples=50):  # noqa: F811
    whatif = FakeWhatIf(textmap, REWARD)
    actor = PolicyActor(Scripted(replies), textmap, whatif, REFINE)
    return Lessons(actor, SimpleNamespace(refine=REFINE, finetune=SimpleNamespace(samples=samples, draw=draw))), whatif


def test_a_lesson_beats_doing_nothing_and_the_models_present_answer(textmap):  # noqa: F811
    lessons, whatif = lessons_of(textmap, [say(textmap, 3), say(textmap, 3)])
    for action in (0, 3, 5, 6, 8):
        lessons.keep(state_of(textmap), action)
    assert [action for _, action in lessons.decisions] == [3, 5, 6, 8], "doing nothing has nothing to teach"
    [lesson] = lessons.draw(np.random.default_rng(0))
    assert textmap.parse_action(lesson.reply) == Parsed(6) and lesson.gain == pytest.approx(0.6)
    assert "Tried\ndo nothing : 106 %\nAnswer" in lesson.prompt == lessons.actor.recorder.records[0]["prompt"]
    assert lesson.reply.splitlines()[1].endswith(", 94 %"), "the reason is what the simulator says"
    assert dict(lessons.counts) == {"looked_at": 4, "better_than_nothing": 2, "taught": 1}
    assert len(whatif.asked) == 4 * 2 + 2 * 2, "two simulations a decision; of the good ones one of the model's answer more"
    assert [record["role"] for record in lessons.actor.recorder.records] == ["lesson"] * 2
    assert not lessons.actor.counts, "they are no refinements"


def test_an_answer_that_cant_be_validated_is_beaten(textmap):  # noqa: F811
    lessons, _ = lessons_of(textmap, ["I don't know"])
    lessons.keep(state_of(textmap), 3)
    assert [textmap.parse_action(each.reply) for each in lessons.draw(np.random.default_rng(0))] == [Parsed(3)]


def test_the_control_has_the_dose_and_weights_but_nobodys_judgement(textmap):  # noqa: F811
    drawn = {}
    for draw in ("d_mix", "random"):
        lessons, _ = lessons_of(textmap, [say(textmap, 5)] * 20, draw)
        for action in [6] * 10 + [8] * 10:
            lessons.keep(state_of(textmap), action)
        drawn[draw] = lessons.draw(np.random.default_rng(0)), dict(lessons.counts)
    (judged, counts), (unjudged, of_control) = drawn["d_mix"], drawn["random"]
    assert counts == of_control and [each.gain for each in judged] == [each.gain for each in unjudged]
    named = [textmap.parse_action(each.reply).value for each in unjudged]
    assert {textmap.parse_action(each.reply).value for each in judged} == {6} and set(named) == {6, 8}


def test_what_is_kept_and_looked_at_is_bounded_and_survives_a_checkpoint(textmap):  # noqa: F811
    lessons, whatif = lessons_of(textmap, [say(textmap, 3)] * 9, samples=4)
    for _ in range(KEPT + 5):
        lessons.keep(state_of(textmap), 8)
    assert len(lessons.decisions) == KEPT and lessons.draw(np.random.default_rng(0)) == []
    assert len(whatif.asked) == 8
    again, _ = lessons_of(textmap, [])
    again.load_state_dict(lessons.state_dict())
    assert repr(list(again.decisions)) == repr(list(lessons.decisions)) and again.counts == lessons.counts


def test_a_round_draws_from_answers_and_lessons_by_their_gain(small_world, settings):
    """With no lesson, and with one of so high a gain that Eq. 8 draws nothing else."""
    for gain, share in ((None, 0), (50.0, 1)):
        tuned = []
        loop = make(small_world, settings, tuned=tuned)
        found = [] if gain is None else [SimpleNamespace(prompt="p", reply="r", gain=gain)]
        loop.lessons = SimpleNamespace(draw=lambda rng, found=found: found, keep=lambda state, action: None)
        rounds = [event.row for event in loop.run() if event.kind == "finetune"]
        assert tuned and all(len(samples) == settings.finetune.samples for samples in tuned)
        assert np.mean([sample == ("p", "r") for samples in tuned for sample in samples]) == share
        assert {row["of_lessons"] for row in rounds} == {share * settings.finetune.samples}
