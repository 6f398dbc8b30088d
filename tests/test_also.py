"""LLM-ALSO: terms by hand, the grammar, what a branch may touch, the promotion rule, the guard, and runs that are killed."""

import copy
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import small_params
from test_coevolve import make

from ace import config
from ace.also import branches as branches_module
from ace.also import training as also_training
from ace.also.branches import Branch, gain, unseen_validation, unshaped_return
from ace.also.roles import (
    FAILURES,
    MOST_ASKS,
    Critic,
    Generator,
    Trial,
    configuration_prompt,
    configuration_text,
    diagnosis_prompt,
    diagnosis_text,
    parse_configuration,
    parse_diagnosis,
    trial_text,
)
from ace.also.signal import LearningSignal
from ace.also.summary import Summary, summarise, text
from ace.also.terms import LEVELS, MOST_TERMS, TERMS, ShapedSampler, Terms, as_weights, random_configuration
from ace.also.training import Rule, mean_rank, samples
from ace.baselines import DoNothing
from ace.coevolve import CoEvolution
from ace.config import ConfigError
from ace.episodes import decisions, do_nothing
from ace.evaluate import play
from ace.grid.environment import World, scenario_sets
from ace.llm.clients import Client, Recorder
from ace.llm.models import embedded
from ace.llm.text import Parsed, ParseFailure
from ace.report import contrasts
from ace.rl import checkpoint
from ace.rl.buffers import Batch
from ace.rl.sac import SAC

SUMMARY = Summary(35, 40, 90, 30, 10, 45, 5, 80, 120)


def with_also(name="also_random", **changes):
    def change(raw):
        raw["base"]["buffers"]["capacity_llm"] = 1000  # nothing is overwritten
        raw["base"]["also"].update(decisions=12, candidates=2)
        raw["variants"][name] = {**raw["variants"][name], "also": {**raw["variants"][name]["also"], **changes}}

    return config.validated(config.Params, small_params(change), "", "params.yaml").settings(name)


def loop_of(world, settings, **roles):
    given = {"actor": False, "critic": False, **roles}
    return make(world, settings, **given)


# --- terms ------------------------------------------------------------------------------------------------------------


def features(rho, timers, lost, bus_2):
    """x of a grid with two lines and three elements."""
    return np.array([*rho, *timers, *lost, *bus_2, 9.0], np.float32)


def test_potentials_by_hand():
    terms = Terms(n_line=2, dim_topo=3, gamma=0.9)
    x = np.stack([features([1.2, 0.5], [0.25, 0.5], [0, 1], [1, 0, 1]), features([3.0, 2.0], [2, 0], [0, 0], [0, 0, 0])])
    np.testing.assert_allclose(terms.measures(x), [[1.2, 0.2, 1, 2, 2], [3.0, 3.0, 0, 0, 8]], atol=1e-6)
    np.testing.assert_allclose(terms.potentials(x), [[-0.6, -0.2, -0.25, -0.1, -0.5], [-1, -1, 0, 0, -1]], atol=1e-6)


def batch_of(x, x_next, action, discount):
    n, ones = len(action), np.ones(len(action), np.float32)
    legal = np.zeros((n, 1), np.uint8)
    return Batch(x, legal, np.array(action), 0.5 * ones, np.array(discount, np.float32), x_next, legal, ones, ones)


def test_shaping_by_hand_and_nothing_remains_of_a_closed_loop():
    terms = Terms(n_line=2, dim_topo=3, gamma=0.9)
    a = features([1.2, 0.5], [0, 0], [0, 0], [0, 0, 0])
    b = features([0.8, 0.5], [0, 0], [0, 1], [0, 0, 0])
    weights = as_weights({"margin": 0.5, "lost": 0.2, "acting": 0.3})
    batch = batch_of(np.stack([a, b, a]), np.stack([b, a, a]), [0, 4, 0], [0.81, 0.9, 0.0])
    # a: Phi = -0.6 for margin, 0 for lost; b: -0.4 and -0.25; an action costs 1 - gamma times its weight; Phi' = 0 of a blackout
    expected = [
        0.5 * (0.81 * -0.4 + 0.6) + 0.2 * (0.81 * -0.25),
        0.5 * (0.9 * -0.6 + 0.4) + 0.2 * 0.25 - 0.3 * 0.1,
        0.5 * 0.6,
    ]  # fmt: skip
    np.testing.assert_allclose(terms.shaping(weights, batch), expected, atol=1e-6)
    # without discount and cost of acting, what is given on the way out is taken on the way back
    loop = batch_of(np.stack([a, b]), np.stack([b, a]), [0, 4], [1.0, 1.0])
    assert terms.shaping(np.array([0.5] * 5 + [0.0]), loop).sum() == pytest.approx(0.0, abs=1e-6)


def test_the_sampler_shapes_what_is_drawn_and_the_buffer_keeps_what_was_measured(finished):
    loop, *_ = finished
    d_rl = copy.deepcopy(loop.d_rl.columns)
    terms = Terms(loop.world.catalogue.n_line, loop.world.catalogue.dim_topo, 0.9)
    sampler = ShapedSampler(loop.d_mix, terms)
    plain = loop.d_mix.sample(32, np.random.default_rng(0))
    unshaped = sampler.sample(32, np.random.default_rng(0))
    np.testing.assert_array_equal(plain.reward, unshaped.reward)
    sampler.weights = as_weights({"overload": 0.3})
    shaped = sampler.sample(32, np.random.default_rng(0))
    assert shaped.reward.dtype == np.float32
    np.testing.assert_allclose(shaped.reward - plain.reward, terms.shaping(sampler.weights, plain), atol=1e-6)
    assert np.abs(shaped.reward - plain.reward).max() > 0.01
    for name, column in d_rl.items():
        np.testing.assert_array_equal(column, loop.d_rl.columns[name])


@pytest.mark.parametrize("configuration", [{"margin": 0.6}, {"margin": 0.05}, {"margin": -0.1}, {"speed": 0.1}])
def test_a_configuration_outside_its_bounds_is_none(configuration):
    with pytest.raises(ValueError, match="no term of margin, overload"):
        as_weights(configuration)


def test_more_terms_than_random_draws_have_are_outside_the_bounds():
    four = dict.fromkeys(TERMS[:4], 0.1)
    with pytest.raises(ValueError, match="4 terms, and at most 3 have a weight"):
        as_weights(four)
    assert parse_configuration(configuration_text(four)) == ParseFailure("outside the bounds")
    assert MOST_TERMS == 3 and "one to three terms" in configuration_prompt("", [])


def test_random_configurations_lie_within_the_bounds():
    rng = np.random.default_rng(0)
    found = [random_configuration(rng) for _ in range(200)]
    assert {len(each) for each in found} == {1, 2, 3} and {term for each in found for term in each} == set(TERMS)
    assert all(as_weights(each).max() <= 0.5 for each in found)
    single = [{term: level} for term in TERMS for level in LEVELS]
    assert all(random_configuration(rng, single) not in single for _ in range(50))


# --- grammar ----------------------------------------------------------------------------------------------------------


def test_texts_come_back():
    for failure in FAILURES:
        assert parse_diagnosis(f"some reasons\n{diagnosis_text(failure, SUMMARY)}\n", SUMMARY) == Parsed(failure)
    for configuration in ({"margin": 0.3}, {"lost": 0.5, "acting": 0.1}):
        assert parse_configuration(configuration_text(configuration)) == Parsed(configuration)
    assert "lines lost in : 45 %" in text(SUMMARY).split("\n")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "no two lines of failure and evidence"),
        ("failure : lost lines", "no two lines of failure and evidence"),
        ("failure : bad luck\nevidence : lines lost in : 45 %", "not a failure of the list"),
        ("failure : lost lines\nevidence : lines lost in : 40 %", "evidence that the training does not show"),
        ("failure : lost lines\nevidence : overload : 10 %", "evidence that the training does not show"),
    ],
)
def test_a_diagnosis_must_be_of_the_list_and_show_what_is_so(reply, reason):
    assert parse_diagnosis(reply, SUMMARY) == ParseFailure(reason)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("margin +0.3", "no line of a configuration"),
        ("configuration : none", "not a list of terms and weights"),
        ("configuration : margin 0.3", "not a list of terms and weights"),
        ("configuration : margin +0.3 , margin +0.1", "a term named twice"),
        ("configuration : margin +0.9", "outside the bounds"),
        ("configuration : speed +0.1", "outside the bounds"),
    ],
)
def test_a_configuration_that_is_none(reply, reason):
    assert parse_configuration(reply) == ParseFailure(reason)


def test_trials_are_told_with_their_gain():
    assert trial_text(Trial({"margin": 0.3}, 0.026)) == "margin +0.3 : better by 3 %"
    assert trial_text(Trial({"margin": 0.3}, -0.014)) == "margin +0.3 : worse by 1 %"
    assert trial_text(Trial({"acting": 0.1}, 0.004)) == "acting +0.1 : the same"
    assert trial_text(Trial({"acting": 0.1}, None)) == "acting +0.1 : failed"


class Says(Client):
    """Answers diagnoses with one reply, and configurations with those of a list in turn; "-" is the summary's own."""

    def __init__(self, settings, diagnosis=None, configurations=("configuration : margin +0.3",)):
        super().__init__(settings, "says")
        self.diagnosis, self.configurations, self.prompts = diagnosis, configurations, []

    def _complete(self, prompts, seed, guides):
        self.prompts += prompts
        replies = []
        for prompt in prompts:
            if "\nTrials\n" in prompt:
                number = sum("\nTrials\n" in each for each in self.prompts) - len(prompts) + len(replies)
                replies.append(self.configurations[number % len(self.configurations)])
            else:
                shown = prompt.split("Training\n")[1]
                line = next(line for line in shown.split("\n") if line.startswith("acting in"))
                replies.append(self.diagnosis or f"failure : restless\nevidence : {line}")
        return replies


def test_what_the_roles_count(settings):
    said = ("configuration : margin +0.9", "nonsense", "configuration : lost +0.1", "configuration : lost +0.1")
    recorder = Recorder(Says(settings.llm, "failure : bad luck\nevidence : x", said))
    critic, generator = Critic(recorder), Generator(recorder)
    assert critic.diagnose(SUMMARY, 0) is None
    seeds = iter(range(99))
    assert generator.propose("failure : restless", [], [{"margin": 0.1}], 4, lambda: next(seeds)) == [{"lost": 0.1}]
    assert critic.counts == {"diagnoses": 1, "unparsable_diagnoses": 1}
    assert generator.counts == {"configurations": MOST_ASKS, "out_of_bounds": 4, "unparsable": 4, "repeated": 7}
    verdicts = [record["verdict"] for record in recorder.records]
    assert verdicts[:6] == ["unparsable", "unparsable", "unparsable", "proposed", "repeated", "unparsable"]
    assert next(seeds) == 5, "4 asked at first, then four times the 3 that are missing, with a new seed each time"


def test_the_generator_is_asked_until_there_are_as_many_new_ones(settings):
    said = [f"configuration : {each}" for each in ("lost +0.1", "lost +0.1", "none", "margin +0.3", "acting +0.2")]
    generator = Generator(Recorder(Says(settings.llm, configurations=said)))
    assert generator.propose("", [], [{"margin": 0.3}], 2, lambda: 0) == [{"lost": 0.1}, {"acting": 0.2}]
    assert generator.counts == {"configurations": 5, "out_of_bounds": 0, "unparsable": 1, "repeated": 2}


# --- summary ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def settings():
    return with_also()


@pytest.fixture(scope="module")
def finished(small_world, settings):
    """A plain run, its training episodes and its events."""
    loop = loop_of(small_world, settings)
    events = list(loop.run())
    return loop, [(e.row["steps"], e.row["blackout"]) for e in events if e.kind == "episode"], events


def test_a_summary_by_hand(finished):
    loop, episodes, _ = finished
    terms = Terms(loop.world.catalogue.n_line, loop.world.catalogue.dim_topo, 0.9)
    horizon = loop.world.spec.horizon
    made = summarise(loop, terms, [(horizon, False)] * 8 + [(24, True), (49, True), *[(horizon, False)] * 6], horizon)
    assert (made.survival, made.before, made.blackouts) == (5 * round(20 * (23 + 48 + 6 * 96) / 8 / 96), 100, 25)
    assert made.end == 5 * round(20 * (24 + 49) / 2 / 96)
    c = {name: column[: len(loop.d_rl)] for name, column in loop.d_rl.columns.items()}
    last = np.flatnonzero(c["is_decision"])[-200:]
    assert made.acting == 5 * round(20 * (c["action"][last] != 0).mean())
    n = loop.world.catalogue.n_line
    assert made.lost == 5 * round(20 * (c["x"][last, 2 * n : 3 * n].sum(1) > 0).mean())
    assert summarise(loop, terms, episodes, horizon).entropy > 0


# --- branches ---------------------------------------------------------------------------------------------------------


def same(a, b):
    """Whether two states are the same to the byte."""
    if isinstance(a, dict):
        return set(a) == set(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "numpy"):
        return a.numpy().tobytes() == b.numpy().tobytes()
    return a.tobytes() == b.tobytes() if isinstance(a, np.ndarray) else a == b or (a != a and b != b)


def run_until(loop, decisions):
    for event in loop.run():
        if event.kind == "episode" and loop.count["decisions"] >= decisions:
            return
    raise AssertionError("the run ended before")


def test_branches_change_nothing_of_the_run_and_make_as_many_decisions(small_world, settings):
    loop, control = loop_of(small_world, settings), loop_of(small_world, settings)
    run_until(loop, 60)
    terms = Terms(loop.world.catalogue.n_line, loop.world.catalogue.dim_topo, 0.9)
    before, steps = copy.deepcopy(loop.state_dict()), loop.world.env_steps
    branches = branches_module.Branches(loop, terms, 25)
    state = loop.state_dict()  # one for all, as a point has it
    made = [branches.run(state, as_weights(each)) for each in ({}, {"margin": 0.5, "acting": 0.5}, {})]
    assert same(before, loop.state_dict()) and loop.world.env_steps == steps
    assert [each.decisions for each in made] == [25] * 3 and all(each.scoring_steps > 0 for each in made)
    assert made[0] == made[2], "the same branch twice is the same"
    assert [each.updates for each in made] == [25] * 3 and branches.twin.count["updates"] == loop.count["updates"] + 25
    run_until(control, 60)
    for _ in loop.run():
        pass
    for _ in control.run():
        pass
    assert same(loop.state_dict(), control.state_dict()), "a run with branches ends as one without"


def test_with_an_opponent_a_branch_leaves_nothing_behind_in_the_environment(params, settings):
    """The run and its branches then share Grid2Op's environment, which a branch leaves in the middle of an episode."""
    spec = params.environment("neurips2020").model_copy(update={"horizon": 60, "thermal_factor": 0.75})
    scenarios = params.scenarios.model_copy(update={"validation": 1})
    settings = settings.model_copy(update={"train": settings.train.model_copy(update={"decisions": 24, "warmup": 4})})
    runs = []
    for with_branches in (True, False):
        world = World(spec, scenarios, settings.operator)
        sac = SAC(world.catalogue, world.features.n, settings.sac, 0)
        loop = CoEvolution(world, sac, settings, 0, lambda: (0.5, 0.1))
        run_until(loop, 8)
        if with_branches:
            branches, state, steps = branches_module.Branches(loop, Terms.of(loop), 6), loop.state_dict(), world.env_steps
            made = [branches.run(state, as_weights(each)) for each in ({}, {"margin": 0.5}, {})]
            assert made[0] == made[2] and {each.decisions for each in made} == {6} and world.env_steps == steps
            assert not branches.twin.world._done, "left in the middle of an episode"
        for _ in loop.run():
            pass
        runs.append(loop.state_dict())
    assert same(*runs)


def test_branches_are_scored_on_validation_scenarios_that_choose_no_checkpoint(small_world, settings, params):
    loop = loop_of(small_world, settings)
    chosen = loop.world.sets["validation"]
    found = unseen_validation(loop.world)
    assert len(found) == len(chosen) and len(loop.world.sets["validation"]) == len(chosen)
    seen = [chosen[i].load_p.tobytes() for i in range(len(chosen))]
    assert not {found[i].load_p.tobytes() for i in range(len(found))} & {*seen}
    run_until(loop, 60)
    branches, asked = branches_module.Branches(loop, Terms.of(loop), 5), []
    branches.scoring.sets["validation"] = Asked(found, asked)
    branches.run(loop.state_dict(), as_weights({}))
    assert asked == list(range(len(found)))
    # on weeks: those beyond the first ones, as many as there are
    for n, beyond in ((8, range(8, 16)), (12, range(12, 16)), (16, range(16))):
        scenarios = params.scenarios.model_copy(update={"validation": n})
        sets = scenario_sets(params.environment("wcci2020"), scenarios)
        found = unseen_validation(SimpleNamespace(sets=sets))
        assert [found[i].index for i in range(len(found))] == list(beyond)


class Asked:
    """A set of scenarios that notes which are asked for."""

    def __init__(self, scenarios, asked):
        self.scenarios, self.asked = scenarios, asked

    def __len__(self):
        return len(self.scenarios)

    def __getitem__(self, index):
        self.asked.append(index)
        return self.scenarios[index]


def test_the_score_is_the_return_that_is_trained_with_an_absorbing_blackout(small_world):
    by_hand = {"survived_steps": [10, 2], "reward": [4.0, 0.5 + 0.5 - 1.0]}
    for n, expected, sparse in ((0, 0.4, 0.0), (1, (0.5 + 0.5 - 1.0 - 7.0) / 10, -0.8)):
        result = SimpleNamespace(horizon=10, **{name: values[n] for name, values in by_hand.items()})
        assert unshaped_return(result, "dense") == pytest.approx(expected)
        assert unshaped_return(result, "sparse") == pytest.approx(sparse)
    world, kinds = copy.copy(small_world), set()
    for horizon in (2, 96):  # before they die, and after it
        world.spec = world.spec.model_copy(update={"horizon": horizon})
        (result,) = play(world, DoNothing(), "validation", [0])
        start = world.reset("validation", 0)
        rewards = [*start.rewards, *(r for d in decisions(world, start, do_nothing) for r in d.step.rewards)]
        rewards += [-1.0] * (horizon - len(rewards))
        assert unshaped_return(result, "dense") == pytest.approx(np.mean(rewards), abs=1e-6)
        kinds.add(world.blackout)
    assert kinds == {True, False}


def test_configurations_differ_in_what_is_learned_alone(small_world, settings):
    loop = loop_of(small_world, settings)
    run_until(loop, 60)
    branches = branches_module.Branches(loop, Terms(loop.world.catalogue.n_line, loop.world.catalogue.dim_topo, 0.9), 25)
    weights = []
    for configuration in ({}, {"margin": 0.5}):
        branches.run(loop.state_dict(), as_weights(configuration))
        weights.append(branches.twin.sac.state_dict()["critic"])
    assert not same(*weights)


def test_a_branch_that_dies_is_told_and_harms_nobody(small_world, settings, monkeypatch):
    signal = LearningSignal(loop_of(small_world, settings), settings, 0)
    run_until(signal.learner, 60)
    before = copy.deepcopy(signal.learner.state_dict())

    def broken(*_):
        raise FloatingPointError("loss_critic = nan")

    monkeypatch.setattr(signal.branches.twin.sac, "update", broken)
    signal.after_episode({"steps": 10, "blackout": True})
    (point,) = signal.points
    assert {trial["died"] for trial in point["trials"]} == {"loss_critic = nan"} and point["promoted"] == {}
    assert signal.counts["died"] == signal.counts["branches"] == len(point["trials"]) == 5
    assert not signal.sampler.weights.any() and same(before, signal.learner.state_dict())


# --- promotion --------------------------------------------------------------------------------------------------------


class Scripted:
    """Branches whose scores the test names: of no configuration at all, and of others in the order in which they come."""

    def __init__(self, control, others):
        self.control, self.others, self.asked = control, list(others), []

    def run(self, state, weights, judgements=None):
        self.asked.append((weights.tolist(), judgements))
        score = self.others.pop(0) if weights.any() or judgements else self.control
        return Branch(score, score, None if score is not None else "dead", 12, 11, 30, 50)


def at_a_point(world, settings, control, others, said=None):
    recorder = Recorder(Says(settings.llm, configurations=said)) if said else None
    signal = LearningSignal(loop_of(world, settings), settings, 0, recorder)
    run_until(signal.learner, 60)
    signal.branches = Scripted(control, others)
    signal.after_episode({"steps": 10, "blackout": True})
    return signal


SAID = tuple(f"configuration : {each}" for each in ("margin +0.3", "lost +0.1", "acting +0.2", "topology +0.5"))


def test_the_best_that_beats_the_control_by_the_margin_is_in_force(small_world):
    signal = at_a_point(small_world, with_also("also", margin=0.01), 0.20, [0.215, 0.23], SAID)
    assert signal.configuration == {"lost": 0.1} and signal.sampler.weights.tolist() == as_weights({"lost": 0.1}).tolist()
    assert signal.counts["branches"] == 3 and signal.counts["promoted"] == 1
    assert signal.used == {"decisions": 36, "updates": 33, "env_steps": 90, "scoring_steps": 150}
    assert signal.budget == {"decisions": 36, "updates": 33, "env_steps": 240}
    assert signal.row()["weight_lost"] == 0.1 and signal.row()["branch_decisions"] == 36
    # at the next point what is in force has to beat the control again
    signal.branches = Scripted(0.20, [0.19, 0.1, 0.1, 0.1, 0.1])
    signal.learner.count["decisions"] = 90
    signal.after_episode({"steps": 10, "blackout": True})
    assert signal.branches.asked[1][0] == as_weights({"lost": 0.1}).tolist()
    assert signal.configuration == {} and not signal.sampler.weights.any()


def test_who_does_not_beat_the_margin_is_told_so_and_asked_again(small_world):
    signal = at_a_point(small_world, with_also("also", margin=0.05), 0.20, [0.24, 0.10, 0.18, None], SAID)
    assert signal.configuration == {} and signal.counts["branches"] == 5 and signal.counts["promoted"] == 0
    prompts = signal.generator.recorder.client.prompts
    assert len(prompts) == 1 + 2 * 2 and prompts[1].endswith("Trials\nnone\nAnswer\n")
    assert prompts[3].split("Trials\n")[1] == "margin +0.3 : better by 4 %\nlost +0.1 : worse by 10 %\nAnswer\n"
    assert signal.counts["configurations"] == 4


@pytest.mark.parametrize("said", [("nonsense",), ("configuration : margin +0.9",), ("configuration : none",)])
def test_without_a_proposal_the_run_goes_on_unchanged(small_world, said):
    signal = at_a_point(small_world, with_also("also"), 0.2, [], said)
    assert signal.counts["branches"] == 0 and signal.points[0]["promoted"] is None and not signal.sampler.weights.any()
    assert signal.counts["configurations"] == 2 * MOST_ASKS, "asked again in both rounds"
    assert {name: signal.counts[name] for name in ("died", "promoted", "repeated")} == {"died": 0, "promoted": 0, "repeated": 0}


@pytest.mark.parametrize(("score", "kept"), [(0.3, True), (0.1, False)])
def test_what_is_in_force_is_tested_again_where_a_diagnosis_does_not_parse(small_world, score, kept):
    signal = at_a_point(small_world, with_also("also"), 0.2, [0.3, 0.1], SAID)
    assert signal.configuration == {"margin": 0.3}
    signal.critic.recorder.client.diagnosis, signal.branches = "nothing", Scripted(0.2, [score])
    signal.learner.count["decisions"] = 90
    signal.after_episode({"steps": 10, "blackout": True})
    assert [weights for weights, _ in signal.branches.asked] == [[0.0] * 6, as_weights({"margin": 0.3}).tolist()]
    assert signal.configuration == ({"margin": 0.3} if kept else {}) and signal.counts["unparsable_diagnoses"] == 1


@pytest.mark.parametrize("in_force", [{}, {"margin": 0.3}])
def test_the_model_and_random_draws_make_equally_many_branches_at_a_point(small_world, in_force):
    """Though it repeats itself, and names what is in force."""
    repeating = [SAID[0], SAID[0], "nonsense", SAID[1], SAID[1], SAID[2], SAID[3], "configuration : lost +0.5"]
    asked = {}
    for name in ("also", "also_random"):
        recorder = Recorder(Says(with_also(name).llm, configurations=repeating)) if name == "also" else None
        signal = LearningSignal(loop_of(small_world, with_also(name)), with_also(name), 0, recorder)
        run_until(signal.learner, 60)
        signal.branches, signal.configuration = Scripted(0.2, [0.1] * 9), in_force
        signal.after_episode({"steps": 10, "blackout": True})
        asked[name] = [tuple(weights) for weights, _ in signal.branches.asked]
        assert len(set(asked[name])) == len(asked[name]), "no configuration twice"
    assert len(asked["also"]) == len(asked["also_random"]) == 1 + bool(in_force) + 2 * 2


def test_untested_the_first_configuration_is_in_force_without_a_branch(small_world):
    signal = at_a_point(small_world, with_also("also_untested"), 0.2, [], SAID)
    assert signal.configuration == {"margin": 0.3} and signal.branches.asked == []


def test_a_gain_needs_two_that_live():
    alive, dead = Branch(0.3, 0.3, None, 1, 1, 1, 1), Branch(None, None, "nan", 1, 1, 1, 1)
    assert gain(alive, Branch(0.1, 0.1, None, 1, 1, 1, 1)) == pytest.approx(0.2)
    assert gain(alive, dead) is gain(dead, alive) is None


# --- the guard --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("score", "enter"), [(0.3, True), (0.1, False), (None, False)])  # None: a branch that died
def test_the_guard_holds_judgements_back_until_a_branch_has_proved_them(small_world, score, enter):
    settings = with_also("ace_guarded", every=40)
    loop = loop_of(small_world, settings, critic=True)
    signal = LearningSignal(loop, settings, 0)
    signal.branches = Scripted(0.2, [score] * 9)
    for event in loop.run():
        if event.kind == "episode":
            signal.after_episode(event.row)
            assert len(loop.d_llm) == (signal.counts["judgements_promoted"] if enter else 0)
    counts, tested = signal.counts, [judgements for _, judgements in signal.branches.asked if judgements]
    assert counts["judgements_tested"] == sum(map(len, tested)) > 5 and counts["judgements_untested"] > 0
    assert counts["judgements_tested"] + counts["judgements_untested"] == loop.count["shaped"]
    assert counts["judgements_promoted"] == counts["judgements_tested"] * enter
    assert len(signal.branches.asked) == 2 * sum(bool(point["trials"]) for point in signal.points)
    change = 2 * settings.shape.K
    d, raw = loop.d_llm, loop.d_rl.columns
    np.testing.assert_allclose(d.gain(), change, atol=1e-5)
    assert not d.is_refined().any()
    for uid in range(min(len(d), 5)):
        row = np.flatnonzero((raw["x"] == d.value(uid, "x")).all(1) & raw["is_decision"])
        changes = d.value(uid, "reward") - raw["reward"][row]
        assert np.isclose(changes, (1 - settings.sac.gamma) * change, atol=1e-5).any()


def test_a_branch_of_the_guard_has_the_judgements_and_the_control_has_not(small_world, monkeypatch):
    settings = with_also("ace_guarded", every=40)
    loop = loop_of(small_world, settings, critic=True)
    signal, seen = LearningSignal(loop, settings, 0), []
    train = signal.branches._train
    monkeypatch.setattr(signal.branches, "_train", lambda: seen.append(len(signal.branches.twin.d_llm)) or train())
    for event in loop.run():
        if event.kind == "episode":
            held, before = len(signal.held), len(loop.d_llm)
            signal.after_episode(event.row)
            if seen:
                assert seen == [before, before + held] and held > 0
                return
    raise AssertionError("no point")


def test_a_guard_needs_g_llm():
    with pytest.raises(ConfigError, match="guard' tests g_LLM's rows in D_LLM"):
        with_also("also_random", source="guard")
    with pytest.raises(ConfigError, match=r"also\.tested = false, but also\.source = 'guard'"):
        with_also("ace_guarded", tested=False)


@pytest.mark.parametrize(
    ("section", "said"),
    [({"mask": {"source": "random"}}, "mask.source = 'random'"), ({"teach": {"enabled": True}}, "teach.enabled")],
)
def test_branches_go_with_neither_masks_nor_a_teacher(section, said):
    def change(raw):
        raw["variants"]["both"] = {**raw["variants"]["also_random"], **section}

    params = config.validated(config.Params, small_params(change), "", "params.yaml")
    with pytest.raises(ConfigError, match=f"also.source = 'random', but {said}: branches learn without") as error:
        params.settings("both")
    assert "\n" not in str(error.value)


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["also_random", "also", "ace_guarded"])
def test_a_run_that_goes_on_from_its_checkpoint_ends_with_the_same_bytes(small_world, name, tmp_path):
    settings = with_also(name, every=40)

    def fresh():
        loop = loop_of(small_world, settings, critic=name == "ace_guarded")
        recorder = Recorder(Says(settings.llm, configurations=SAID)) if name == "also" else None
        return loop, LearningSignal(loop, settings, 0, recorder)

    def play(loop, signal, until):
        for event in loop.run():
            if event.kind == "episode":
                signal.after_episode(event.row)
                if loop.count["decisions"] >= until:
                    return

    whole = fresh()
    play(*whole, 10**9)
    first = fresh()
    play(*first, 90)
    state, second = {"loop": first[0].state_dict(), "signal": first[1].state_dict()}, fresh()
    if name == "also":  # as the session keeps it; where the client stands is kept here
        state["recorder"] = first[1].critic.recorder.state_dict()
        second[1].critic.recorder.client.prompts = list(first[1].critic.recorder.client.prompts)
    checkpoint.save(state, tmp_path / "state.pt")
    kept = checkpoint.load(tmp_path / "state.pt")
    second[0].load_state_dict(kept["loop"])
    second[1].load_state_dict(kept["signal"])
    if name == "also":
        second[1].critic.recorder.load_state_dict(kept["recorder"])
    play(*second, 10**9)
    assert len(whole[1].points) >= 3 and whole[1].counts["branches"] > 2
    assert same(whole[0].state_dict(), second[0].state_dict()) and same(whole[1].state_dict(), second[1].state_dict())
    if name == "also":
        assert whole[1].critic.recorder.records == second[1].critic.recorder.records


def test_arms_and_controls_differ_in_one_key():
    params = config.load()
    also = params.settings("also").model_dump()
    keys = {"also_random": ("also", "source"), "also_untested": ("also", "tested"), "also_sparse": ("train", "reward")}
    for name, key in keys.items():
        other = params.settings(name).model_dump()
        different = [(s, k) for s in also if isinstance(also[s], dict) for k in also[s] if also[s][k] != other[s][k]]
        assert different == [key] and also["method"] == other["method"]


def test_arms_are_compared_with_their_random_controls_and_with_sac_apart():
    groups = [group for group in contrasts.load().ablations if "CAMEL" in group.title or "LLM-ALSO" in group.title]
    compared = {(each, group.reference) for group in groups for each in group.variants if each != group.reference}
    assert compared >= {("also", "also_random"), ("camel", "camel_random"), ("also", "sac"), ("camel", "sac")}
    assert ("camel_ace", "ace") in compared
    assert {("camel_random", "sac"), ("camel", "camel_frequency"), ("also_sparse", "ace_sparse_sac")} <= compared
    assert all(len(group.settings) == 1 for group in groups if group.reference == "sac"), "one key tells who proposes"


# --- what the model learns from ---------------------------------------------------------------------------------------


def test_the_rule_and_the_samples_by_hand():
    usual = {"survival": 50, "before": 50, "blackouts": 50, "end": 50, "overload": 10, "lost": 20, "moved": 5}
    usual |= {"acting": 80, "entropy": 90}
    summaries = [{**usual, "lost": lost} for lost in (10, 20, 20, 30)] + [usual]
    rule = Rule(summaries)
    assert rule.failure(Summary(**{**usual, "lost": 40})) == "lost lines"
    assert rule.failure(Summary(**{**usual, "acting": 60})) == "passive"
    assert rule.failure(Summary(**{**usual, "acting": 99})) == "restless"
    control = {"configuration": {}, "gain": 0.0, "survival": 0.5}
    trials = [({"margin": 0.1}, 0.02), ({"lost": 0.3}, 0.05), ({"acting": 0.5}, -0.04), ({"overload": 0.2}, None)]
    trials.append(({"lost": 0.1}, 0.01))
    trials = [{"configuration": c, "gain": g, "survival": 0.5} for c, g in trials]
    runs = [{"summaries": summaries, "points": [{"decisions": 40, "summary": usual, "trials": [control, *trials]}]}]
    pairs = samples(runs, rule, 0.01, 400, np.random.default_rng(0))
    of_generator = [(prompt, reply) for prompt, reply in pairs if "\nTrials\n" in prompt]
    assert len(of_generator) == len(pairs) // 10 == 40
    # as it is asked: what is shown did not beat the margin, what is learned did
    assert {reply for _, reply in of_generator} == {"configuration : margin +0.1", "configuration : lost +0.3"}
    shown = [prompt.split("Trials\n")[1].removesuffix("\nAnswer\n").split("\n") for prompt, _ in of_generator]
    failed = {"acting +0.5 : worse by 4 %", "overload +0.2 : failed", "lost +0.1 : better by 1 %"}
    assert {line for lines in shown for line in lines} == failed | {"none"} and {len(lines) for lines in shown} == {1, 2, 3}
    highest = samples(runs, rule, 0.06, 400, np.random.default_rng(0))[-40:]
    assert {reply for _, reply in highest} == {"configuration : lost +0.3"}, "where none beats the margin, the best"
    dead = [{**runs[0], "points": [{**runs[0]["points"][0], "trials": [control, {**trials[0], "gain": None}]}]}]
    with pytest.raises(ConfigError, match="every branch of the trials died"):
        samples(dead, rule, 0.01, 400, np.random.default_rng(0))
    for prompt, reply in pairs:
        if "\nTrials\n" not in prompt:
            shown = dict(line.rsplit(" : ", 1) for line in prompt.split("Training\n")[1].split("\n")[:9])
            statistic, value = reply.split("evidence : ")[1].rsplit(" : ", 1)
            assert shown[statistic] == value


def test_the_rank_of_the_best_configuration(monkeypatch):
    """0.5 for who knows nothing of gains, 1 for who has the best one first."""
    rule = SimpleNamespace(failure=lambda summary: "restless")
    gains = {0.1: 0.0, 0.2: 0.1, 0.3: -0.1, 0.4: None, 0.5: 0.05}
    tried = [{"configuration": {"margin": weight}, "gain": gain} for weight, gain in gains.items()]
    point = {"summary": asdict(SUMMARY), "trials": [{"configuration": {}, "gain": 0.0}, *tried]}
    said = {"+0.1": -3.0, "+0.2": -2.0, "+0.3": -1.0, "+0.4": 0.0, "+0.5": -4.0}  # the best one, +0.2, before two of three others
    monkeypatch.setattr(also_training, "_log_likelihood", lambda client, prompt, reply: said[reply.split()[-1]])
    assert mean_rank(None, [point], rule) == pytest.approx(2 / 3)
    assert mean_rank(None, [{**point, "trials": point["trials"][:2]}], rule) is None


def test_likelihood_is_of_the_reply():
    tokenizer = embedded.make_tokenizer(SimpleNamespace(line=[], counts={}), ["configuration : margin +0.3"], ("configuration",))
    model = embedded.make_model(tokenizer, SimpleNamespace(hidden=16, ffn=16, layers=1, heads=2, seed=0))
    pairs = [("Answer\n", "configuration : margin +0.3")]
    client, others = SimpleNamespace(model=model, tokenizer=tokenizer), [f"configuration : margin +0.{n}" for n in (1, 2)]
    embedded.fit(model, tokenizer, pairs, 300, 1, 1e-2, 0)
    found = [also_training._log_likelihood(client, "Answer\n", reply) for reply in (pairs[0][1], *others)]
    assert 0 > found[0] > -0.5 and max(found[1:]) < found[0] - 1


def test_prompts_hold_all_terms_and_failures():
    prompt = configuration_prompt(diagnosis_text("passive", SUMMARY), [])
    assert all(term in prompt for term in TERMS)
    assert all(failure in diagnosis_prompt(SUMMARY) for failure in FAILURES)
