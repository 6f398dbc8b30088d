"""g_LLM: key decisions, adjustments, its control, and its signs against the simulator; LoRA rounds that are rolled back."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import small_params
from test_llm import FakeWhatIf, Scripted, grid, say, textmap, visit  # noqa: F401 (fixtures)
from test_text import state_of

from ace import config
from ace.grid.environment import World
from ace.grid.whatif import WhatIf
from ace.llm import session
from ace.llm.clients import Recorder
from ace.llm.controls import RandomCritic
from ace.llm.models import critic_rates, heldout, lora_under_shift
from ace.llm.text import MULTIPLES, Decision, adjustment
from ace.llm.value_critic import ValueCritic, key_decisions, scores
from ace.stats import mean_interval

SHAPE = config.settings.Shape(
    enabled=True, start=0.5, every=1, threshold=0.5, select="reward", describe=True, judge="llm", into="d_llm", K=0.4
)


def episode_of(textmap, rewards):  # noqa: F811
    return [Decision(state_of(textmap), 0, r, 1.0) for r in rewards]


def test_critic_adjusts_key_decisions_by_multiples_of_k(textmap):  # noqa: F811
    # Numbers are those within the stretch that is shown: two decisions before the key one, three after it.
    client = Scripted([f"adjustments :\n{adjustment(n, k)}" for n, k in ((2, -2), (3, 1), (3, 2))])
    critic = ValueCritic(client, textmap, SHAPE)
    episode = episode_of(textmap, [0.1, -0.9, 0.0, 0.7, 0.2, 0.2, 0.0, -1.0])
    assert critic.keys(episode) == [1, 3, 7]
    assert critic.shape(episode, seed=0) == {1: -0.8, 3: 0.4, 7: 0.8}
    assert client.sizes == [3]
    shown = [[line[-4:] for line in p.split("\n") if re.match(r"decision \d+ : line", line)] for p in client.prompts]
    assert shown == [["+0.1", "-0.9", "+0.0", "+0.7", "+0.2"], ["-0.9", "+0.0", "+0.7", "+0.2", "+0.2", "+0.0"],
                     ["+0.2", "+0.0", "-1.0"]]  # fmt: skip
    assert client.prompts[2].endswith("reward -1.0\ndecision 3\nAnswer")
    assert critic.counts == {"prompts": 3, "adjusted": 3}
    assert [r["parse"] for r in critic.recorder.records] == ["-2 K", "+1 K", "+2 K"]


@pytest.mark.parametrize("reply", ["", "adjustments :\ndecision 1 : + 5 K", "adjustments :\ndecision 2 : + K", "+ 2 K"])
def test_critic_that_makes_no_sense_changes_nothing(textmap, reply):  # noqa: F811
    critic = ValueCritic(Scripted([reply]), textmap, SHAPE)
    assert critic.shape(episode_of(textmap, [-0.9, 0.1]), seed=0) == {}
    assert critic.counts == {"prompts": 1, "unparsable": 1}
    assert ValueCritic(Scripted([]), textmap, SHAPE).shape(episode_of(textmap, [0.1]), seed=0) == {}


def test_key_decisions_by_reward_state_and_action(textmap):  # noqa: F811
    n_line = textmap.catalogue.n_line
    states = [state_of(textmap, np.full(n_line, rho)) for rho in (0.9, 1.3, 2.5, 1.1)]
    episode = [Decision(s, a, r, 1.0) for s, a, r in zip(states, (0, 0, 7, 0), (0.6, -0.2, 0.1, -1.0), strict=True)]
    assert scores(episode, "reward").tolist() == [0.6, 0.2, 0.1, 1.0]
    assert scores(episode, "state") == pytest.approx([0, 0.3, 1, 0.1], abs=1e-6)
    assert scores(episode, "action").tolist() == [0.25, 0.25, 0.75, 0.25]
    assert [key_decisions(episode, s, 0.25) for s in ("reward", "state", "action")] == [[0, 3], [1, 2], [2]]


def test_bare_indices_reach_the_prompt(textmap):  # noqa: F811
    client = Scripted([""])
    episode = [Decision(state_of(textmap), 12, 0.9, 1.0)]
    ValueCritic(client, textmap, SHAPE.model_copy(update={"describe": False})).shape(episode, seed=0)
    assert " : action 1 2 : " in client.prompts[0] and textmap.action(12) not in client.prompts[0]


def test_random_critic_adjusts_as_many_random_decisions(textmap):  # noqa: F811
    episode, critic = episode_of(textmap, [0.9] * 5 + [0.1] * 15), RandomCritic(SHAPE)
    drawn = [critic.shape(episode, seed) for seed in range(200)]
    assert drawn[3] == RandomCritic(SHAPE).shape(episode, 3) != drawn[4]
    assert {len(deltas) for deltas in drawn} == {5}
    assert {p for deltas in drawn for p in deltas} == set(range(20))  # not the key decisions only
    multiples = [round(delta / SHAPE.K) for deltas in drawn for delta in deltas.values()]
    assert np.bincount(np.array(multiples) + 2, minlength=5) / 1000 == pytest.approx(
        [0.25, 0.25, 0, 0.25, 0.25], abs=0.06
    )
    assert set(multiples) == set(MULTIPLES)
    assert critic.shape(episode_of(textmap, [0.1]), 0) == critic.shape([], 0) == {}


def test_signs_are_compared_with_the_simulated_counterfactual(textmap):  # noqa: F811
    """Action 11 helps, 12 harms, and 11 would have helped where nothing was done: + - -, whatever the corpus says."""
    whatif = FakeWhatIf(textmap, {0: -0.3, 11: 0.5, 12: -0.8})
    episode = [visit(textmap, [1.0, 1.0, 1.0], action) for action in (11, 12, 0)]
    assert [critic_rates.truth_of(whatif, v, np.array([0, 11, 12])) for v in episode] == [2, -2, -2]

    def rows(reply):
        client = Scripted(
            lambda p: f"adjustments :\ndecision {p.split(chr(10) + 'decision ')[-1].split(chr(10))[0]} : {reply}"
        )
        found = critic_rates.critic_rows(whatif, textmap, client, [episode] * 2, np.array([0, 11, 12]), SHAPE, 300, seed=0)
        return {(row["proposer"], row["metric"]): row for row in found}

    found = rows("- 2 K")
    assert (
        found["model", "critic_sign"]["value"]
        == pytest.approx(2 / 3, abs=1e-4)
        == found["majority", "critic_sign"]["value"]
    )
    assert found["model", "critic_sign"]["n_states"] == 6 and found["random", "critic_sign"]["value"] == 0.5
    assert {f"critic_sign_{s}{f}" for s in critic_rates.SELECTIONS for f in ("", "_index")} <= {m for _, m in found}
    assert rows("+ 2 K")["model", "critic_sign_state_index"]["value"] == pytest.approx(1 / 3, abs=1e-4)
    nonsense = rows("?")
    assert nonsense["model", "critic_parse"]["value"] == 0 and ("model", "critic_sign") not in nonsense


def test_intervals_over_groups_are_wider_where_groups_are_alike():
    values, groups = np.repeat([0, 1] * 10, 20), np.repeat(np.arange(20), 20)
    alone, together = mean_interval(values), mean_interval(values, groups)
    assert alone["value"] == together["value"] == 0.5
    assert together["ci_high"] - together["ci_low"] > 3 * (alone["ci_high"] - alone["ci_low"])


# --- LoRA rounds ------------------------------------------------------------------------------------------------------


def test_held_out_states_come_back_from_disk(tmp_path, textmap):  # noqa: F811
    states = [state_of(textmap, np.full(textmap.catalogue.n_line, rho)) for rho in (1.1, 1.2, 1.3)]
    for name in "ab":
        heldout.save_states(states, tmp_path / f"{name}.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    again = heldout.load_states(tmp_path / "a.npz", 2)
    assert [s.rho_max for s in again] == pytest.approx([1.1, 1.2]) and again[1].topo.dtype == np.int8
    assert all(np.array_equal(v, getattr(states[1], k)) for k, v in again[1].to_arrays().items())
    with pytest.raises(config.ConfigError, match="stage language_model"):
        heldout.load_states(tmp_path / "none.npz", 2)


def tuned_session(textmap, monkeypatch, says):  # noqa: F811
    """A team whose n-th weights always propose action says[n]; action 5 helps, action 3 does not."""
    settings = config.validated(config.Params, small_params(), "", "params.yaml").settings("ace")
    client = Scripted(lambda prompt: say(textmap, says[client.model]))
    client.model, client.tokenizer = 0, None
    made = object.__new__(session.LlmSession)
    vars(made).update(
        settings=settings, seed=0, client=client, recorder=Recorder(client), textmap=textmap, rounds=0, rate=None, finetune_s=0.0,
        folder=None,
        whatif=FakeWhatIf(textmap, {0: -0.3, 3: -0.6, 5: 0.4}), heldout=[state_of(textmap)] * 4,
    )  # fmt: skip
    rounds = iter(range(1, 9))
    monkeypatch.setattr(session, "lora_round", lambda *_: next(rounds))
    return made


def test_a_lora_round_that_lowers_the_rate_is_rolled_back(textmap, monkeypatch):  # noqa: F811
    made = tuned_session(textmap, monkeypatch, says=[3, 5, 3, 5])
    rows = [made.finetune([("p", "r")]) for _ in range(3)]
    assert [(r["rate_before"], r["rate_after"], r["accepted"]) for r in rows] == [
        (0.0, 1.0, True), (1.0, 0.0, False), (1.0, 1.0, True),
    ]  # fmt: skip
    assert made.client.model == 3
    # The rate before the first round, and one after each: all counted and marked in the record.
    assert len(made.recorder.records) == made.client.calls == 4 * 4
    assert {r["role"] for r in made.recorder.records} == {"heldout"}


def test_without_held_out_states_every_round_is_kept(textmap, monkeypatch):  # noqa: F811
    made = tuned_session(textmap, monkeypatch, says=[5, 3])
    made.heldout = []
    row = made.finetune([("p", "r")])
    assert (row["rate_before"], row["rate_after"], row["accepted"], made.client.model) == (None, None, True, 1)
    assert made.recorder.calls == 0


def test_in_the_shifted_world_limits_are_others_and_a_line_stays_out(params):
    small = params.model_copy(
        update={"environments": {"case14": params.environment("case14").model_copy(update={"horizon": 96})}}
    )
    plain = World(small.environment("case14"), small.scenarios, small.base.operator)
    loading = SimpleNamespace(state=SimpleNamespace(rho=np.arange(plain.catalogue.n_line)))
    shifted = lora_under_shift.shifted_world(small, "case14", [loading], seed=3)
    factors = WhatIf(shifted).limit / WhatIf(plain).limit
    assert (factors >= 0.85 - 1e-6).all() and (factors <= 1.1 + 1e-6).all() and np.ptp(factors) > 0.1
    step = shifted.reset("train", 0)
    for _ in range(5):
        if step.over:
            break
        assert not step.state.line_status[shifted.line] and step.state.rho[shifted.line] == 0
        step = shifted.step(0)
    assert shifted.t > 0 and not shifted.state.line_status[shifted.line]  # nobody has put it back
