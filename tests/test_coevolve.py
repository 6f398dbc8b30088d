"""The co-evolution loop itself, with a language model that says what the test wants."""

import numpy as np
import pytest
from conftest import small_params

from ace import config
from ace.coevolve import CoEvolution
from ace.grid.fastworld import FastWorld
from ace.grid.whatif import WhatIf
from ace.llm.clients import Client
from ace.llm.policy_actor import PolicyActor
from ace.llm.text import TextMap
from ace.llm.value_critic import ValueCritic
from ace.rl.buffers import Transition
from ace.rl.sac import SAC


class Oracle(Client):
    """Proposes the best of the whole catalogue, by looking into the state that the test hands it; judges everything + 2 K."""

    def __init__(self, settings, textmap, whatif):
        super().__init__(settings, "oracle")
        self.textmap, self.whatif, self.states = textmap, whatif, {}

    def _complete(self, prompts, seed, guides):
        return [self._critic(p) if "Decisions\n" in p else self._actor(p) for p in prompts]

    def _actor(self, prompt):
        state = self.states[prompt.split("State\n")[1].split("\nTried")[0]]
        legal = self.textmap.catalogue.legality(state.topo, state.cooldown_sub, True)
        return f"action : {self.textmap.action(int(self.whatif.best(state, legal, 40)[0][0]))}"

    @staticmethod
    def _critic(prompt):
        number = prompt.split("\ndecision ")[-1].split("\n")[0]
        return f"adjustments :\ndecision {number} : + 2 K"


@pytest.fixture(scope="module")
def settings():
    raw = small_params()
    raw["base"]["buffers"]["capacity_llm"] = 1000  # for all that both roles put into it
    return config.validated(config.Params, raw, "", "params.yaml").settings("ace")


def make(world, settings, actor=True, critic=True, tuned=None, seed=0):
    fast = FastWorld(world)
    whatif, textmap = WhatIf(world), TextMap(world)
    oracle = Oracle(settings.llm, textmap, WhatIf(world))
    remember = textmap.state
    textmap.state = lambda state: oracle.states.setdefault(remember(state), state) and remember(state)
    return CoEvolution(
        fast, SAC(world.catalogue, world.features.n, settings.sac, seed), settings, seed, lambda: (0.5, 0.1),
        actor=PolicyActor(oracle, textmap, whatif, settings.refine) if actor else None,
        critic=ValueCritic(oracle, textmap, settings.shape) if critic else None,
        tuner=(lambda samples: tuned.append(samples) or {"loss": 0.0}) if tuned is not None else None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(small_world, settings):
    tuned = []
    loop = make(small_world, settings, tuned=tuned)
    return loop, list(loop.run()), tuned


def test_only_validated_improvements_enter_d_llm(finished, small_world, settings):
    loop, _, _ = finished
    d = loop.d_llm
    assert loop.count["refined"] == d.is_refined().sum() > 5
    assert loop.count["refined"] + loop.count["shaped"] == len(d) == d.next_uid
    gain = d.gain()[d.is_refined()]
    assert (gain > settings.refine.margin).all()
    for i in range(len(d)):
        assert small_world.catalogue.is_legal(d.columns["legal"][i], int(d.columns["action"][i]))


def test_bad_cases_are_below_the_threshold_and_refined_once(finished, settings):
    loop, _, _ = finished
    c = loop.d_rl.columns
    refined = np.flatnonzero(c["refined"])
    assert 0 < len(refined) <= loop.count["refine_tried"]
    assert (c["r_step"][refined] < settings.refine.threshold).all() and c["is_decision"][refined].all()


def test_refined_transition_is_one_simulated_step(finished, settings):
    loop, _, _ = finished
    gamma = settings.sac.gamma
    c = {name: column[: len(loop.d_llm)][loop.d_llm.is_refined()] for name, column in loop.d_llm.columns.items()}
    done = c["discount"] == 0
    np.testing.assert_allclose(c["reward"][~done], (1 - gamma) * c["r_refined"][~done], rtol=1e-5)
    np.testing.assert_allclose(c["discount"][~done], gamma, rtol=1e-6)


def test_returns_of_decisions(settings):
    class Loop:
        pass

    Loop.settings = settings
    assert settings.sac.gamma == 0.9 and settings.train.reward == "dense"

    value, discount = CoEvolution._return(Loop, [1.0, 0.5], False)
    assert value == pytest.approx(0.1 * (1.0 + 0.9 * 0.5)) and discount == pytest.approx(0.81)
    # A blackout at the second step: reward -1 there and for ever, so that the whole sum is bounded by [-1, 1].
    value, discount = CoEvolution._return(Loop, [1.0, -1.0], True)
    assert value == pytest.approx(0.1 * (1.0 - 0.9) - 0.81) and discount == 0.0
    value, _ = CoEvolution._return(Loop, [-1.0], True)
    assert value == pytest.approx(-1.0)
    # Sparse: nothing but the blackout counts.
    Loop.settings = settings.model_copy(update={"train": settings.train.model_copy(update={"reward": "sparse"})})
    assert CoEvolution._return(Loop, [1.0, 0.5], False) == (0.0, pytest.approx(0.81))
    value, _ = CoEvolution._return(Loop, [1.0, -1.0], True)
    assert value == pytest.approx(0.1 * 0.9 * -1.0 - 0.81)


@pytest.mark.parametrize("into", ["d_rl", "d_llm"])
def test_g_llm_moves_rewards_by_2k_late_and_only_of_key_decisions(small_world, settings, into):
    settings = settings.model_copy(update={"shape": settings.shape.model_copy(update={"into": into})})
    shaped, plain = make(small_world, settings), make(small_world, settings, critic=False)
    start = settings.shape.start * settings.train.decisions
    for loop in (shaped, plain):
        loop._learn = lambda: None  # the same random policy in both, so that their transitions are the same
        loop._refine = lambda: iter(())
        for event in loop.run():
            if loop is shaped and event.kind == "episode" and loop.count["decisions"] < start:
                assert loop.count["shaped"] == 0
    n = len(plain.d_rl)
    if into == "d_llm":  # copies of rows, whose originals stay
        np.testing.assert_array_equal(shaped.d_rl.columns["reward"], plain.d_rl.columns["reward"])
        judged = {name: column[: len(shaped.d_llm)] for name, column in shaped.d_llm.columns.items()}
        assert len(shaped.d_llm) == shaped.count["shaped"] > 0 and not judged["is_refined"].any()
        np.testing.assert_allclose(shaped.d_llm.gain(), 2 * settings.shape.K, atol=1e-5)
        assert (np.abs(judged["r_original"]) > settings.shape.threshold).all()
        rows = {name: column[:n] for name, column in plain.d_rl.columns.items()}
        for i, x in enumerate(judged["x"]):
            same = (rows["x"] == x).all(1) & (rows["r_step"] == judged["r_original"][i]) & rows["is_decision"]
            change = judged["reward"][i] - rows["reward"][same]
            assert np.isclose(change, (1 - settings.sac.gamma) * 2 * settings.shape.K, atol=1e-5).any()
        return
    moved = shaped.d_rl.columns["reward"][:n] - plain.d_rl.columns["reward"][:n]
    changed = np.abs(moved) > 1e-6
    assert shaped.count["shaped"] == changed.sum() > 0
    # In units of a step's reward, of which the stored return holds 1 - gamma.
    np.testing.assert_allclose(moved[changed], (1 - settings.sac.gamma) * 2 * settings.shape.K, atol=1e-5)
    assert (np.abs(plain.d_rl.columns["r_step"][:n][changed]) > settings.shape.threshold).all()


def test_lora_rounds_come_every_so_many_refinements_with_the_models_own_answers(finished, settings):
    loop, events, tuned = finished
    assert len(tuned) == loop.count["finetune_rounds"] == sum(e.kind == "finetune" for e in events) >= 1
    assert len(tuned) <= loop.count["refined"] // settings.finetune.every
    for prompt, reply in tuned[0]:
        assert "Tried" in prompt and reply.startswith("action : ")
    assert all(len(samples) == settings.finetune.samples for samples in tuned)


def test_switches_switch(small_world, settings):
    neither = make(small_world, settings, actor=False, critic=False)
    list(neither.run())
    assert not len(neither.d_llm) and not neither.count["refine_tried"] and not neither.count["shaped"]
    assert not neither.bad_states and not neither.recent


def test_validations_and_best_checkpoint(small_world, settings):
    loop = make(small_world, settings, actor=False, critic=False)
    scores = iter([(0.2, 0.0), (0.9, 0.1), (0.9, 0.0), (0.1, 0.0), (0.1, 0.0)])
    kept = []
    loop.validate = lambda: kept.append({k: v.copy() for k, v in loop.policy.weights.items()}) or next(scores)
    rows = [e.row for e in loop.run() if e.kind == "validation"]
    assert len(rows) == 3 and rows[-1]["decisions"] >= settings.train.decisions
    assert loop.best == [0.9, 0.1]
    for name, value in loop.best_policy.items():
        np.testing.assert_array_equal(value, kept[1][name])


def test_a_share_of_the_training_scenarios_can_be_used(small_world, settings):
    used = set()
    for share in (0.1, 1.0):
        s = settings.model_copy(update={"train": settings.train.model_copy(update={"share": share})})
        loop, seen = make(small_world, s, actor=False, critic=False), []
        reset = loop.world.reset
        loop.world.reset = lambda split, index, reset=reset, seen=seen: (seen.append((split, index)), reset(split, index))[1]
        list(loop.run())
        used.add((max(index for _, index in seen) < 0.1 * len(small_world.sets["train"]), {s for s, _ in seen} == {"train"}))
    assert used == {(True, True), (False, True)}


def test_bad_cases_are_drawn_and_not_the_oldest(small_world, settings):
    """The median age of what is refined is that of all bad cases, within a tenth; of the oldest it is twice that."""
    loop, n = make(small_world, settings), 400
    x, legal = np.zeros(small_world.features.n, np.float32), np.zeros(small_world.catalogue.n_legal, np.uint8)
    for _ in range(n):
        loop.d_rl.add(Transition(x, legal, 0, -0.5, 0.9, x, legal, -0.5, True))
    ages = []
    for _ in range(300):
        loop.bad_states = dict.fromkeys(range(n), (None, 0))
        cases = loop._bad_cases()
        assert len(cases) == settings.refine.max_cases == len({case.uid for case in cases})
        ages += [n - 1 - case.uid for case in cases]
        loop.d_rl.columns["refined"][:] = False
    assert np.median(ages) == pytest.approx((n - 1) / 2, rel=0.1)


def test_the_forecast_gap_is_between_the_original_action_simulated_and_played(small_world, settings):
    loop, cases, found = make(small_world, settings), [], []
    refine = loop.actor.refine
    loop.actor.refine = lambda bad, seed: (cases.extend(bad), found.extend(refine(bad, seed)), found[-len(bad) :])[-1]
    rows = [event.row for event in loop.run() if event.kind == "validation"]
    expected = [abs(f.r_original - case.reward) for case, f in zip(cases, found, strict=True) if f is not None]
    assert loop.forecast_gap == [pytest.approx(sum(expected)), len(expected)] and len(expected) > 5
    assert 0 < np.mean(expected) < 0.5 and [row["forecast_gap"] for row in rows if row["forecast_gap"] > 0]
    for case in cases[-3:]:
        assert case.reward == loop.d_rl.value(case.uid, "r_step")


def test_a_mark_keeps_the_deployed_policy_of_that_decision(small_world, settings):
    marked = settings.model_copy(update={"train": settings.train.model_copy(update={"marks": [10, 50, 120]})})
    loop, plain = make(small_world, marked), make(small_world, settings)
    events = list(loop.run())
    marks = [event.row for event in events if event.kind == "mark"]
    assert [row["decisions"] for row in marks] == [10, 50, 120]
    assert [repr(e) for e in events if e.kind != "mark"] == [repr(e) for e in plain.run()], "to look changes nothing"
    assert 0 < marks[0]["env_steps"] < marks[1]["env_steps"] < marks[2]["env_steps"] <= loop.count["env_steps"]
    again, learn = make(small_world, marked), CoEvolution._learn
    now = {}

    def watched():
        learn(again)
        now[again.count["decisions"]] = {name: w.copy() for name, w in again.policy.weights.items()}

    again._learn = watched
    for event in again.run():
        if event.kind == "mark":
            for name, weights in event.row["weights"].items():
                np.testing.assert_array_equal(weights, now[event.row["decisions"]][name])
    assert not np.array_equal(now[50]["head.weight"], now[120]["head.weight"])


def test_refinements_stop_at_the_limit(small_world, settings):
    few = settings.model_copy(update={"refine": settings.refine.model_copy(update={"limit": 2})})
    loop = make(small_world, few)
    list(loop.run())
    assert loop.count["refined"] == 2


def test_stopped_after_any_episode_it_goes_on_to_the_same_end(small_world, settings):
    """Carry the state into a new loop after this and that episode, also just ahead of a validation: the rest is the same."""
    rows = lambda loop: [e.row for e in loop.run() if e.kind == "validation"]  # noqa: E731
    whole = make(small_world, settings)
    expected = rows(whole)
    assert len(expected) == 3 and whole.count["refined"] > 0
    episodes = whole.count["episodes"]
    boundaries = {1, episodes // 2, episodes}
    probe = make(small_world, settings)
    for event in probe.run():  # the episodes after which a validation follows
        if event.kind == "episode" and probe.count["validations"] < probe._validations_due():
            boundaries.add(probe.count["episodes"])
    assert len(boundaries) >= 4
    for stop in sorted(boundaries):
        first, second, before = make(small_world, settings), make(small_world, settings), []
        for event in first.run():
            if event.kind == "validation":
                before.append(event.row)
            if event.kind == "episode" and first.count["episodes"] == stop:
                break
        second.load_state_dict(first.state_dict())
        after = before + rows(second)
        assert repr(after) == repr(expected), f"stopped after episode {stop}"
        assert second.count == whole.count and second.best == whole.best
        for name, column in whole.d_rl.columns.items():
            np.testing.assert_array_equal(column, second.d_rl.columns[name], err_msg=name)
        assert second.forecast_gap == whole.forecast_gap
        for ours, theirs in ((whole.sac.deployed, second.sac.deployed), (whole.sac.acting, second.sac.acting)):
            for name, value in ours.weights.items():
                np.testing.assert_array_equal(value, theirs.weights[name])


def test_one_role_does_not_disturb_the_draws_of_others(small_world, settings):
    """Until the first refinement or adjustment changes what is learnt, all variants see the same scenarios and batches."""
    loops = [make(small_world, settings, actor=a, critic=c) for a, c in ((False, False), (True, False), (False, True))]
    for loop in loops:
        loop._learn = lambda: None
        if loop.actor:
            loop._keep = lambda case, found: None
        list(loop.run())
    for loop in loops[1:]:
        np.testing.assert_array_equal(loop.d_rl.columns["action"], loops[0].d_rl.columns["action"])
        assert loop.rng["scenarios"].bit_generator.state == loops[0].rng["scenarios"].bit_generator.state
