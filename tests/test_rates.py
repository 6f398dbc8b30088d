"""Rates of proposers in held-out states, and the classifier among them, against brute force on 14 substations."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from conftest import small_params

from ace import config
from ace.grid.environment import World
from ace.grid.fastworld import FastWorld
from ace.grid.whatif import WhatIf
from ace.llm.controls import ControlActor
from ace.llm.models import corpus, training
from ace.llm.models.samples import CRITIC_SHARE, Writer
from ace.llm.text import TextMap
from ace.studies.rates import classifier
from ace.studies.rates import measure as rates

ACTIONS, MODEL = 6, "results/language_model/case14"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A workspace with a tiny language model: (folder, params, world, corpus, textmap, manifest)."""
    raw = small_params()
    raw["language_model"].update(
        scan=20, states=40, heldout_states=6, actions=ACTIONS, shortlist=10, hidden=32, layers=1, heads=2, ffn=64, steps=40
    )
    raw["rates"].update(episodes=3)
    raw["environments"]["case14"].update(thermal_factor=0.8)  # milder: else all actions are equally bad
    folder = tmp_path_factory.mktemp("rates")
    (folder / "params.yaml").write_text(yaml.safe_dump(raw))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ACE_JOBS", "1")
        patch.setattr(rates, "PASSES", 2)
        params = config.load()
        world = World(params.environment("case14"), params.scenarios, params.base.operator)
        textmap, place = TextMap(world), folder / MODEL
        made = corpus.build(params, "case14")
        training.train(params, made, textmap, place)
        training.measure(params, "case14", made, world, WhatIf(world), textmap, place)
        yield folder, params, world, made, textmap, json.loads((place / "model_manifest.json").read_text())


@pytest.fixture(scope="module")
def whole(project):
    """(rates, the (split, scenario) that were played)."""
    played, reset = set(), World.reset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "reset", lambda world, *place: (played.add(place), reset(world, *place))[1])
        return rates.measure("case14", "out"), played


def states_of(project, n=12):
    world = project[2]
    fast, states = FastWorld(world), []
    for index in range(2):
        step = fast.reset("validation", index)
        while not step.over and len(states) < n:
            states.append(step.state)
            step = fast.step(0)
    return states


@pytest.mark.parametrize("a_pass, passes, n", [(18, 1, 18), (6, 3, 18), (1, 9, 9)])
def test_held_out_states_are_different_and_come_from_more_passes_where_one_gives_too_few(
    project, plain, monkeypatch, a_pass, passes, n
):
    _, params, world, _, textmap, manifest = project
    asked, worlds, state = [], [], states_of(project, 1)[0]

    def few(one, whatif, actions, shortlist, margin, wanted, seed):
        asked.append((wanted, seed - params.language_model.seed))
        worlds.append(one)
        others = [replace(state, t=100 * len(asked) + i, scenario=i % 2) for i in range(a_pass)]
        return [state, state, *others, *others][: 2 * a_pass + 2], []

    monkeypatch.setattr(rates, "heldout_states", few)
    monkeypatch.setattr(rates, "PASSES", 9)
    seen = []
    outcomes = {(name, metric): [0.0, 1.0] for name in ("model", "frequency") for metric in rates.HELPED}
    monkeypatch.setattr(
        rates, "outcomes", lambda whatif, textmap, client, states, *more: (seen.append(states), (outcomes, None))[1]
    )
    actors = {}

    def of(params, name, actor, states):
        actors[name] = actor
        seen.append(states)
        return {(name, metric): [1.0, 1.0] for metric in rates.HELPED}

    monkeypatch.setattr(rates, "outcomes_of", of)
    monkeypatch.setattr(rates, "tabled", lambda environment, columns, groups: (columns, groups))
    columns, groups = rates.measure_rates(params, "case14", world, textmap, manifest, plain)
    assert len(seen) == 5 and len(columns) == 2 * (2 + 4 + 5)
    assert groups == [state.scenario for state in seen[0]], "the intervals are over scenarios"
    assert set(groups) == {0, 1} or a_pass == 1
    for metric in ("one_proposal", "five_rounds"):
        assert columns["model", f"{metric}_minus_frequency"].tolist() == [0.0, 0.0]
        assert columns["model_elsewhere", f"{metric}_minus_model"].tolist() == [1.0, 0.0]
        assert columns["model", f"{metric}_minus_classifier"].tolist() == [-1.0, 0.0]
    assert list(actors) == ["classifier", "model_elsewhere", "frequency_elsewhere", "classifier_elsewhere"]
    assert actors["model_elsewhere"].new_substation_each_round and isinstance(actors["model_elsewhere"], rates.PolicyActor)
    legal, sub = world.catalogue.legality(state.topo, state.cooldown_sub, True), world.catalogue.sub
    order = {name: list(actors[name].propose(state, legal, None)) for name in actors if name != "model_elsewhere"}
    plain_order = {"classifier": order["classifier"], "frequency": [a for a in manifest["ranking"] if a in order["classifier"]]}
    for name, ranked in plain_order.items():
        firsts = [a for i, a in enumerate(ranked) if sub[a] not in sub[ranked[:i]]]
        assert 1 < len(firsts) < len(ranked) and order[f"{name}_elsewhere"][: len(firsts)] == firsts
    found, (fresh,) = seen[0], {id(one.sets["validation"]): one.sets["validation"] for one in worlds}.values()
    others = world.sets["validation"]
    assert len(fresh) == 3 and len(others) == 2
    assert not any(np.array_equal(ours.arrays[0], theirs.arrays[0]) for ours in fresh for theirs in others)
    assert all(states is found for states in seen), "the others' states are the model's"
    assert asked == [(12, number) for number in range(passes)]
    assert len(found) == min(18, 1 + a_pass * passes) >= n
    assert len({(s.scenario, s.t) for s in found}) == len(found)


def test_rates_are_of_validation_scenarios_and_of_as_many_states_as_there_are(whole):
    table, played = whole
    assert {split for split, _ in played} <= {"train", "validation"}, "no test scenario"
    (n,) = set(table["n_states"])
    assert 6 < n <= 18
    assert set(table.loc[table["proposer"] == "classifier", "metric"]) == {"one_proposal", "five_rounds"}
    paired = table["metric"].str.contains("_minus_")
    assert {"one_proposal", "five_rounds", "legal_unmasked"} <= set(table["metric"])
    assert table["value"][~paired].between(0, 1).all()
    value = table.set_index(["proposer", "metric"])["value"]
    for name, other in rates.PAIRED:
        for metric in ("one_proposal", "five_rounds"):
            assert value[name, f"{metric}_minus_{other}"] == pytest.approx(value[name, metric] - value[other, metric], abs=2e-4)
    assert paired.sum() == 2 * 5 and set(table.loc[paired, "proposer"]) == {"model", "model_elsewhere"}


# --- the classifier ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(project):
    return fitted(project)


def fitted(project, **changes):
    """The classifier, where the manifest of the language model says otherwise: `changes`."""
    _, params, world, _, textmap, manifest = project
    return rates.fit_classifier(params, "case14", world, textmap, {**manifest, **changes})


def test_the_classifier_learns_the_labels_of_the_language_model(project, plain):
    _, params, world, made, *_ = project
    writer = Writer(TextMap(world), made)
    labels = np.array([made.actions[writer.label(visit, [0])] for visit in made.visits])
    taught = params.language_model.model_copy(update={"steps": 600})
    longer = classifier.fit(made, TextMap(world), world.features, taught, params.base.sac)
    right = np.mean([longer.ranking(visit.state)[0] == a for visit, a in zip(made.visits, labels, strict=True)])
    assert right > 0.8 > 0.65 > np.bincount(labels).max() / len(labels), "better than to name always the same"
    assert sorted(plain.ranking(made.visits[0].state)) == sorted(made.actions)


def test_the_classifier_is_trained_on_as_many_samples_as_f_llm(project, monkeypatch):
    _, params, world, made, *_ = project
    drawn = []
    monkeypatch.setattr(
        classifier.torch.nn.functional, "cross_entropy", lambda logits, label: (drawn.append(len(label)), logits.sum())[1]
    )
    classifier.fit(made, TextMap(world), world.features, params.language_model, params.base.sac)
    n_critic = round(CRITIC_SHARE * params.language_model.steps * params.language_model.batch_size)
    assert sum(drawn) == params.language_model.steps * params.language_model.batch_size - n_critic


def test_the_classifier_is_the_same_each_time_and_leaves_the_draws_of_others_alone(project, plain):
    before = torch.random.get_rng_state()
    again = fitted(project)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(plain.network.parameters(), again.network.parameters(), strict=True))


@pytest.mark.parametrize("backwards", [False, True])
def test_the_classifiers_rates_by_hand(project, plain, backwards):
    _, params, world, *_ = project
    whatif, refine, states = WhatIf(world), params.base.refine, states_of(project)
    asked = classifier.Classifier(plain.network, plain.features, plain.actions)
    if backwards:  # the least probable first, so that the first proposal seldom helps
        asked.ranking = lambda state: plain.ranking(state)[::-1]
    helped = {1: [], refine.rounds: []}
    for state in states:
        legal = world.catalogue.legality(state.topo, state.cooldown_sub, True)
        tries = [int(a) for a in asked.ranking(state) if a and world.catalogue.is_legal(legal, int(a))]
        wanted = whatif.simulate(state, 0).reward + refine.margin
        for rounds, found in helped.items():
            found.append(any(whatif.simulate(state, a).reward > wanted for a in tries[:rounds]))
    actor = asked.as_actor(world.catalogue, whatif, refine)
    columns = rates.outcomes_of(params, "classifier", actor, states)
    assert columns == dict(zip([("classifier", "one_proposal"), ("classifier", "five_rounds")], helped.values(), strict=True))
    one, five = map(np.mean, columns.values())
    assert (one < five) == backwards and five > 0


def test_a_control_elsewhere_takes_the_first_action_at_each_substation_and_then_the_rest(project):
    _, params, world, made, *_ = project
    sub, state = world.catalogue.sub, states_of(project, 1)[0]
    tries = made.actions[1:].tolist()
    assert len({int(sub[a]) for a in tries}) < len(tries), "some share a substation"
    actor = ControlActor(lambda state, legal, rng: tries, world.catalogue, WhatIf(world), params.base.refine)
    other = rates.elsewhere(actor)
    order = list(other.propose(state, None, None))
    firsts = [a for i, a in enumerate(tries) if sub[a] not in [sub[b] for b in tries[:i]]]
    assert order == [*firsts, *(a for a in tries if a not in firsts)]
    assert (other.catalogue, other.whatif, other.settings) == (actor.catalogue, actor.whatif, actor.settings)


@pytest.mark.parametrize("change", [{"actions": [0, 1]}, {"budget": {}}])
def test_a_corpus_that_is_not_that_of_the_model_is_refused(project, change):
    with pytest.raises(config.ConfigError, match=r"no longer the one .* run the stage language_model"):
        fitted(project, **change)


def test_the_same_bytes_each_time(project, whole):
    path = project[0] / "out/studies/rates/case14.csv"
    first = path.read_bytes()
    rates.measure("case14", "out")
    assert path.read_bytes() == first


def test_a_missing_model_is_named_before_anything_is_computed(project, monkeypatch):
    monkeypatch.setattr(rates, "fit_classifier", lambda *given: pytest.fail("begun before it was looked"))
    manifest = project[0] / MODEL / "model_manifest.json"
    other = manifest.rename(manifest.with_suffix(".away"))
    try:
        with pytest.raises(config.ConfigError, match="the stage language_model makes it"):
            rates.measure("case14", "out")
    finally:
        other.rename(manifest)
