"""CAMEL's masks: renormalised losses against brute force, the schedule, who names regions and how often, and the loop."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import small_params
from test_coevolve import make
from test_sac import SETTINGS, F, all_values, brute_force, fake_catalogue, legality, plogp, random_rows

from ace import config
from ace.config import ConfigError
from ace.llm.clients import Client, Recorder
from ace.llm.regions import FrequencyRegions, ModelRegions, RandomRegions, Regions, likeness, make_regions
from ace.llm.text import TextMap
from ace.rl.buffers import Batch
from ace.rl.distribution import ActionSpace, CatalogueDistribution
from ace.rl.mask import MaskedExploration, epsilon, legal_inside
from ace.rl.sac import SAC, values_of

CATALOGUE = fake_catalogue()
CATALOGUE.hub = 9
REGIONS = ([0], [1], [3, 9], [9], [0, 1, 3, 9], [7])


def with_mask(name="camel_random", **changes):
    def change(raw):
        raw["variants"][name] = {**raw["variants"][name], "mask": {**raw["variants"][name]["mask"], **changes}}

    return config.validated(config.Params, small_params(change), "", "params.yaml").settings(name)


@pytest.fixture(scope="module")
def settings():
    return with_mask()


# --- the distribution and the losses ----------------------------------------------------------------------------------


def renormalised(logits, legal, region):
    """(A,) p of one row by the definition: pi over what is legal, restricted to the mask, divided by its mass."""
    p = brute_force(CATALOGUE, logits, legal)
    inside = np.isin(CATALOGUE.sub, region)
    inside[0] = True
    p = torch.where(torch.from_numpy(inside), p, 0.0)
    return p / p.sum()


@pytest.mark.parametrize("region", REGIONS, ids=str)
@pytest.mark.parametrize("legal_of", [{}, {"enum": [1, 0, 1, 1, 0, 0, 1], "present": 6}, {"free": [1, 0, 1]}, {"hub": 0}])
def test_a_mask_is_the_policy_renormalised_inside(region, legal_of):
    space = ActionSpace(CATALOGUE)
    legal = legality(space, **legal_of)
    before = legal.copy()
    inside = legal_inside(CATALOGUE, legal, region)
    np.testing.assert_array_equal(legal, before, err_msg="the state's own legality is not the mask's")
    (logits, *_), _ = random_rows(space, 1)
    p = renormalised(logits, legal, region)
    rows = CatalogueDistribution(space, logits.expand(space.n_actions, -1), np.tile(inside, (space.n_actions, 1)))
    np.testing.assert_allclose(rows.log_prob(np.arange(space.n_actions)).exp(), p, atol=1e-12)
    assert rows.entropy()[0].item() == pytest.approx(-plogp(p).item(), abs=1e-10)
    assert p[0] > 0, "do nothing is in every mask"


def test_the_losses_of_a_masked_row_are_renormalised_and_its_target_is_not():
    """One update of three rows, masked in three ways, against the sum over all actions; and the critics' loss without masks."""
    rng = np.random.default_rng(0)
    space, n = ActionSpace(CATALOGUE), 3
    x, x_next = rng.normal(size=(2, n, F)).astype(np.float32)
    full = np.tile(legality(space, present=1), (n, 1))
    regions = ([1], [3, 9], [7])  # two actions; one and the hub; none but do nothing
    masked = np.stack([legal_inside(CATALOGUE, row, region) for row, region in zip(full, regions, strict=True)])
    action = np.array([4, 6, 0])

    def update(legal):
        sac = SAC(CATALOGUE, F, SETTINGS, seed=0)
        with torch.no_grad():  # away from the prior, so that actions differ
            sac.policy.head.weight.mul_(100.0)
            sac.critic.one.head.weight.mul_(100.0)
        logits = sac.distribution(torch.from_numpy(x), full)._logits.detach().double()
        outputs = [net(torch.from_numpy(x)).detach().double() for net in (sac.critic.one, sac.critic.two)]
        r, ones = np.full(n, 0.3, np.float32), np.ones(n, np.float32)
        refined = np.array([1.0, 0.0, 0.0], np.float32)
        batch = Batch(x, legal, action, r, 0.9 * ones, x_next, full, 0.5 * ones, refined)
        return sac.update(batch), logits, [values_of(space, o) for o in outputs]

    info, logits, values = update(masked)
    alpha, e, total, entropies, p_cloned = SETTINGS.alpha_start, space.n_enum, 0.0, [], None
    for i, region in enumerate(regions):
        p = renormalised(logits[i], full[i], region)
        q1, q2 = (all_values(CATALOGUE, v, i) for v in values)
        low = (p * torch.minimum(q1, q2))[:e].sum() + torch.minimum((p * q1)[e:].sum(), (p * q2)[e:].sum())
        if i < 2:  # the third has no choice, and counts in no loss of the policy
            total += float(low - alpha * plogp(p))
            entropies.append(-float(plogp(p)))
        p_cloned = float(p[action[0]]) if i == 0 else p_cloned
    cloning = SETTINGS.bc * 0.5 * -np.log(p_cloned)
    assert info["loss_policy"] == pytest.approx(-total / 2 + cloning, abs=1e-5)
    assert info["entropy"] == pytest.approx(np.mean(entropies), abs=1e-5)
    free, *_ = update(full)
    assert info["loss_critic"] == free["loss_critic"], "neither the taken action's value nor the target is masked"
    assert abs(info["loss_policy"] - free["loss_policy"]) > 0.01


@pytest.mark.parametrize(("decisions", "expected"), [(0, 0.8), (150, 0.6), (300, 0.4), (599, 0.8 / 600), (600, 0.0), (900, 0.0)])
def test_epsilon_falls_linearly_to_nothing(decisions, expected):
    mask = SimpleNamespace(epsilon=0.8, until=0.6)
    assert epsilon(decisions, mask, 1000) == pytest.approx(expected, abs=1e-12)


# --- a decision -------------------------------------------------------------------------------------------------------


class Fixed(Regions):
    """A region that the test hands it."""

    def __init__(self, catalogue, settings, region):
        super().__init__(catalogue, settings, 0)
        self.region = region

    def of(self, state, legal, decisions):
        return self.region


def exploration(region, settings, seed=0):
    sac = SAC(CATALOGUE, F, SETTINGS, seed)
    return MaskedExploration(sac, CATALOGUE, Fixed(CATALOGUE, settings, region), settings, seed)


def a_decision(legal):
    return SimpleNamespace(state=None, observation=(np.zeros(F, np.float32), legal))


@pytest.fixture
def fake_legal_ids(monkeypatch):
    """`Catalogue.legal_ids` of the small catalogue, by the definition."""
    space = ActionSpace(CATALOGUE)

    def legal_ids(legal):
        return np.flatnonzero(brute_force(CATALOGUE, torch.zeros(space.n_logits, dtype=torch.float64), legal).numpy())

    monkeypatch.setattr(CATALOGUE, "legal_ids", legal_ids, raising=False)


@pytest.mark.usefixtures("fake_legal_ids")
def test_a_masked_decision_is_played_inside_and_stored_with_its_mask():
    settings = with_mask(epsilon=1.0, until=1.0)
    legal = legality(ActionSpace(CATALOGUE), present=1)
    mask, played = exploration([1, 3], settings), set()
    mask.rng = SimpleNamespace(random=lambda: 0.0)
    for _ in range(60):
        decision = a_decision(legal)
        played.add(mask.choose(decision))
        np.testing.assert_array_equal(decision.observation[1], legal_inside(CATALOGUE, legal, [1, 3]))
    assert set(played) == {0, 4, 5, 6}, "do nothing, two actions of substation 1, the one of substation 3"
    assert mask.counts["decisions"] == mask.counts["masked"] == 60 and mask.counts["only_do_nothing"] == 0
    assert mask.counts["substations"] == 2 * 60 and mask.counts["actions"] == 4 * 60


@pytest.mark.usefixtures("fake_legal_ids")
def test_a_mask_without_a_legal_action_does_nothing_and_is_counted():
    settings = with_mask(epsilon=1.0, until=1.0)
    legal = legality(ActionSpace(CATALOGUE), enum=[1, 1, 1, 1, 0, 0, 1])  # substation 1 is in cooldown
    mask = exploration([1], settings)
    mask.rng = SimpleNamespace(random=lambda: 0.0)
    assert [mask.choose(a_decision(legal)) for _ in range(20)] == [0] * 20
    assert mask.counts["only_do_nothing"] == mask.counts["masked"] == 20


@pytest.mark.usefixtures("fake_legal_ids")
def test_without_a_region_or_above_epsilon_the_policy_is_free_and_draws_the_same(settings):
    legal = legality(ActionSpace(CATALOGUE), present=1)
    plain = SAC(CATALOGUE, F, SETTINGS, 0)
    expected = [plain.act(np.zeros(F, np.float32), legal, greedy=False) for _ in range(40)]
    faded = with_mask(epsilon=0.0)
    for mask in (exploration([], settings), exploration([1], faded)):
        decisions = [a_decision(legal) for _ in range(40)]
        assert [mask.choose(decision) for decision in decisions] == expected
        assert all(decision.observation[1] is legal for decision in decisions)
        assert mask.counts["masked"] == 0 and mask.row()["masked"] == 0.0
    assert faded.mask.epsilon == 0.0 and len(set(expected)) > 5


# --- regions ----------------------------------------------------------------------------------------------------------


def legal_of(world, state):
    return world.catalogue.legality(state.topo, state.cooldown_sub, True)


@pytest.fixture(scope="module")
def states(small_world):
    """States of danger that random actions lead to, of more than one kind."""
    found, rng = [], np.random.default_rng(0)
    for index in range(20):
        step = small_world.reset("train", index)
        while not step.over and len(found) < 80:
            found.append(step.state)
            step = small_world.step(int(rng.choice(small_world.catalogue.legal_ids(legal_of(small_world, step.state)))))
    assert len({likeness(state) for state in found}) > 3
    return found


def test_like_states_have_the_same_most_loaded_line_and_lost_lines():
    state = lambda rho, status: SimpleNamespace(rho=np.array(rho), line_status=np.array(status))  # noqa: E731
    assert likeness(state([0.5, 1.2, 0.9, 0.0], [True, True, True, False])) == (1, 3)
    assert likeness(state([0.9, 1.1, 0.2, 0.0], [True, True, True, False])) == (1, 3), "how loaded they are does not matter"
    assert likeness(state([1.3, 1.2, 0.9, 0.0], [True, True, True, False])) == (0, 3)
    assert likeness(state([0.5, 1.2, 0.0, 0.0], [True, True, False, False])) == (1, 2, 3)


def test_each_kind_of_state_is_asked_about_once_and_never_above_what_f_llm_may_ask(small_world, settings, states):
    """every 8 decisions f_LLM may ask 2 rounds of 4 cases: 8 answers, of which a region takes 3."""
    refine = settings.refine
    assert (refine.every, refine.max_cases, refine.rounds, settings.mask.answers) == (8, 4, 2, 3)
    regions, named = RandomRegions(small_world.catalogue, settings, 0), []
    name = regions.name
    regions.name = lambda state, *rest: named.append(likeness(state)) or name(state, *rest)
    kinds = {likeness(state): state for state in states}
    answers = [regions.of(state, legal_of(small_world, state), 7) for state in kinds.values()]
    assert answers == [[]] * len(kinds) and regions.counts == {"over_cap": len(kinds)}, "none before f_LLM's first call"
    for decisions in range(8, 8 + 10 * len(kinds)):
        for state in states:
            regions.of(state, legal_of(small_world, state), decisions)
            assert regions.counts["answers"] <= decisions // 8 * 8
    assert sorted(named) == sorted(kinds) and regions.counts["states"] == len(kinds)
    assert regions.counts["answers"] == 3 * len(kinds)
    like = [regions.of(state, legal_of(small_world, state), 10**6) for state in states]
    assert like == [regions.known[likeness(state)] for state in states] and all(len(set(each)) == 3 for each in like)


def test_where_only_do_nothing_is_legal_nobody_is_asked(small_world, settings, states):
    regions = RandomRegions(small_world.catalogue, settings, 0)
    waiting = np.ones(small_world.catalogue.n_sub, int)
    legal = small_world.catalogue.legality(states[0].topo, waiting, True)
    assert regions.of(states[0], legal, 100) == [] and regions.counts == {"no_choice": 1} and not regions.known


def test_random_regions_are_of_legal_substations_and_all_of_them_occur(small_world, settings, states):
    regions, catalogue = RandomRegions(small_world.catalogue, settings, 0), small_world.catalogue
    legal = legal_of(small_world, states[0])
    may = set(catalogue.sub[catalogue.legal_ids(legal)].tolist()) - {-1}
    drawn = [regions.name(states[0], legal, 3, seed) for seed in range(200)]
    assert all(len(set(region)) == 3 and set(region) <= may for region in drawn)
    assert set().union(*map(set, drawn)) == may
    share = np.mean([[sub in region for sub in sorted(may)] for region in drawn], axis=0)
    assert np.abs(share - 3 / len(may)).max() < 0.15


def test_frequent_regions_follow_the_corpus(small_world, settings, states):
    catalogue = small_world.catalogue
    of = lambda sub, k=0: int(np.flatnonzero(catalogue.sub == sub)[k])  # noqa: E731
    subs = [int(sub) for sub in np.unique(catalogue.sub[1:])][:5]
    a, b, c, d, _ = subs
    ranking = [of(c), 0, of(a), of(c, 1), of(d), of(b)]
    regions = FrequencyRegions(catalogue, settings, 0, ranking)
    assert regions.subs == [c, a, d, b], "by its most frequent action; do nothing is no substation"
    state, waiting = states[0], np.zeros(catalogue.n_sub, int)
    assert regions.name(state, catalogue.legality(state.topo, waiting, True), 3, 0) == [c, a, d]
    waiting[a] = 3
    assert regions.name(state, catalogue.legality(state.topo, waiting, True), 3, 0) == [c, d, b]


class Scripted(Client):
    """Answers in turn what the test wrote, ten tokens each; keeps what it was asked with."""

    def __init__(self, settings, replies):
        super().__init__(settings.llm, "scripted")
        self.replies, self.asked = list(replies), []

    def _complete(self, prompts, seed, guides):
        asked = zip(prompts, guides, strict=True)
        self.asked += [(prompt, seed, set(guide.avoided), guide.forbidden.tolist()) for prompt, guide in asked]
        self.tokens += 10 * len(prompts)
        return [self.replies.pop(0) for _ in prompts]


def test_the_model_names_a_region_by_f_llms_prompt_and_every_call_is_counted(small_world, settings, states):
    textmap, catalogue, state = TextMap(small_world), small_world.catalogue, states[0]
    subs = [int(sub) for sub in np.unique(catalogue.sub[1:])]
    says = lambda sub: f"action : {textmap.action(int(np.flatnonzero(catalogue.sub == sub)[1]))}"  # noqa: E731
    for replies, region, counted in (
        ([says(subs[0]), says(subs[2]), says(subs[1])], [subs[0], subs[2], subs[1]], {}),
        ([says(subs[1]), "action : do nothing", says(subs[1])], [subs[1]], {"nothing": 1}),
        ([says(subs[1]), "I can't say", says(subs[0])], [subs[1], subs[0]], {"unparsable": 1}),
        (["", "?", "action : do nothing"], [], {"unparsable": 2, "nothing": 1, "unnamed": 1}),
    ):
        client = Scripted(settings, replies)
        recorder = Recorder(client)
        regions = ModelRegions(catalogue, settings, 0, recorder, textmap)
        assert regions.of(state, legal_of(small_world, state), 100) == region
        assert regions.of(state, legal_of(small_world, state), 100) == region
        assert recorder.calls == regions.counts["answers"] == 3 and recorder.tokens_by_role() == {"mask": 30}
        assert {k: n for k, n in regions.counts.items() if n and k in ("nothing", "unparsable")} == {
            k: n for k, n in counted.items() if k != "unnamed"}  # fmt: skip
        assert regions.counts["unnamed"] == 2 * counted.get("unnamed", 0), "both decisions were free"
        prompts, seeds, avoided, forbidden = zip(*client.asked, strict=True)
        assert set(prompts) == {textmap.actor_prompt(textmap.state(state), [])} and len(set(seeds)) == 3
        assert forbidden == ([0], [0], [0]) and avoided[0] == set()
        assert avoided[1] == set(region[:1]) and avoided[2] <= set(region)


def test_the_source_decides_who_names(small_world, settings):
    catalogue, session = small_world.catalogue, SimpleNamespace(recorder="recorder", textmap="textmap")
    kinds = {"none": type(None), "model": ModelRegions, "random": RandomRegions, "frequency": FrequencyRegions}
    for source, kind in kinds.items():
        made = make_regions(with_mask(source=source), catalogue, session, lambda: [3, 5], 0)
        assert type(made) is kind


# --- settings ---------------------------------------------------------------------------------------------------------


def different(one, other, place=""):
    """Keys in which two nested dicts differ."""
    return [
        key
        for name in one
        for key in (
            different(one[name], other[name], f"{place}{name}.")
            if isinstance(one[name], dict)
            else [f"{place}{name}"] * (one[name] != other[name])
        )
    ]


def test_the_arm_and_its_controls_differ_in_one_key(params):
    of = lambda name: params.settings(name).model_dump()  # noqa: E731
    for control in ("camel_random", "camel_frequency"):
        assert different(of("camel"), of(control)) == ["mask.source"]
    assert different(of("camel"), of("camel_poor")) == ["llm.path"]
    assert different(of("camel_ace"), of("ace")) == ["mask.source"] == different(of("camel"), of("sac"))
    assert {name: params.settings(name).uses_llm for name in ("camel", "camel_random", "camel_frequency", "camel_ace")} == {
        "camel": True, "camel_random": False, "camel_frequency": False, "camel_ace": True}  # fmt: skip


def test_where_no_mask_is_on_manifests_and_digests_read_as_before(params):
    assert "mask" not in params.settings("ace").as_recorded()
    as_is = params.settings("ace").model_dump()
    assert params.settings("ace").as_recorded() == {name: each for name, each in as_is.items() if name not in ("mask", "also")}
    assert params.settings("camel").as_recorded()["mask"]["source"] == "model"


def test_camels_cells_alone_have_a_mask(whole_params):
    cells = {variant for _, _, variant in whole_params.grid.cells}
    masked = {variant for variant in cells if whole_params.settings(variant).mask.source != "none"}
    assert masked == {variant for variant in cells if variant.startswith("camel")} >= {"camel", "camel_ace"}


def test_a_mask_and_a_teacher_do_not_go_together():
    def change(raw):
        raw["variants"]["both"] = {"teach": {"enabled": True}, "mask": {"source": "random"}}

    params = config.validated(config.Params, small_params(change), "", "params.yaml")
    with pytest.raises(ConfigError, match=r"variants.both: mask.source = 'random'") as error:
        params.settings("both")
    assert "\n" not in str(error.value)


# --- the loop ---------------------------------------------------------------------------------------------------------


def masked_loop(world, settings, actor=False, critic=False, seed=0):
    loop = make(world, settings, actor=actor, critic=critic, seed=seed)
    regions = make_regions(settings, world.catalogue, None, list, seed)
    loop.mask = MaskedExploration(loop.sac, world.catalogue, regions, settings, seed)
    loop.choose = loop.mask.choose
    return loop


def test_in_a_run_masked_rows_hold_their_mask_and_every_next_state_is_free(small_world, settings):
    loop = masked_loop(small_world, settings)
    list(loop.run())
    c, n = {name: column[: len(loop.d_rl)] for name, column in loop.d_rl.columns.items()}, len(loop.d_rl)
    assert n == loop.d_rl.next_uid and loop.mask.counts["decisions"] == loop.count["decisions"]
    catalogue, masked, met = small_world.catalogue, 0, 0
    for i in range(n - 1):
        assert catalogue.is_legal(c["legal"][i], int(c["action"][i]))
        if not c["is_decision"][i + 1] or not (c["x"][i + 1] == c["x_next"][i]).all():
            continue
        met += 1
        inside, whole = set(catalogue.legal_ids(c["legal"][i + 1])), set(catalogue.legal_ids(c["legal_next"][i]))
        assert 0 in inside and inside <= whole
        if inside < whole:
            masked += 1
            assert len({int(catalogue.sub[a]) for a in inside} - {-1}) <= settings.mask.answers
            assert inside == {a for a in whole if a == 0 or catalogue.sub[a] in set(catalogue.sub[list(inside)])}
    share = loop.mask.counts["masked"] / loop.count["decisions"]
    assert met > 50 and masked > 10
    # half of the run with a mean of one half, less what was over the cap
    assert 0.1 < share < 0.4 and loop.mask.epsilon == 0.0 and loop.mask.row()["mask_substations"] == 3


def test_a_mask_with_epsilon_0_leaves_every_byte_of_a_run_as_it_was(small_world):
    settings = with_mask(epsilon=0.0)
    plain, faded = make(small_world, settings), masked_loop(small_world, settings, actor=True, critic=True)
    assert [repr(event) for event in plain.run()] == [repr(event) for event in faded.run()]
    for ours, theirs in ((plain.d_rl, faded.d_rl), (plain.d_llm, faded.d_llm)):
        for name, column in ours.columns.items():
            np.testing.assert_array_equal(column, theirs.columns[name], err_msg=name)
    for name, weights in plain.sac.acting.weights.items():
        np.testing.assert_array_equal(weights, faded.sac.acting.weights[name])
    assert plain.sac.updates > 100


def test_stopped_while_epsilon_falls_it_goes_on_to_the_same_end(small_world, settings):
    whole = masked_loop(small_world, settings)
    expected = [repr(event) for event in whole.run()]
    first, second, before = masked_loop(small_world, settings), masked_loop(small_world, settings), []
    for event in first.run():
        before.append(repr(event))
        if event.kind == "episode" and 0 < first.mask.epsilon < 0.6 and first.mask.regions.known:
            break
    assert 0 < first.mask.counts["masked"] < whole.mask.counts["masked"]
    second.load_state_dict(first.state_dict())
    second.mask.load_state_dict(first.mask.state_dict())
    assert before + [repr(event) for event in second.run()] == expected
    assert second.mask.state_dict() == whole.mask.state_dict() and second.mask.counts == whole.mask.counts
    for name, column in whole.d_rl.columns.items():
        np.testing.assert_array_equal(column, second.d_rl.columns[name], err_msg=name)


def test_who_names_the_regions_does_not_move_the_draws_of_epsilon(small_world):
    state, drawn = small_world.reset("train", 0).state, []
    for source in ("random", "frequency"):
        mask, draws = masked_loop(small_world, with_mask(source=source)).mask, []
        draw = mask.rng.random
        mask.rng = SimpleNamespace(random=lambda draw=draw, draws=draws: draws.append(draw()) or draws[-1])
        for _ in range(50):
            observation = np.zeros(small_world.features.n, np.float32), legal_of(small_world, state)
            mask.choose(SimpleNamespace(state=state, observation=observation))
        drawn.append(draws)
    assert drawn[0] == drawn[1] and len(set(drawn[0])) == 50
