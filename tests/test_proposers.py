"""Proposers alone and their rates: who plays what, against brute force; all of it on 14 substations; the table, its sentences,
its figure."""

import contextlib
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from conftest import small_params
from made_up_runs import write_seed

from ace import config
from ace.grid.environment import World
from ace.grid.fastworld import FastWorld
from ace.grid.whatif import WhatIf
from ace.llm.controls import ControlActor
from ace.llm.models import corpus, training
from ace.llm.models.samples import CRITIC_SHARE, Writer
from ace.llm.text import TextMap
from ace.report.runs import ReportError
from ace.rl.sac import SAC
from ace.studies.proposers import classifier, rates
from ace.studies.proposers import measure as proposers
from ace.studies.proposers import show as drawn

ACTIONS = 6


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A workspace with a tiny language model and two policies, hardly trained but the other of different weights."""
    raw = small_params()
    raw["language_model"].update(
        scan=20, states=40, heldout_states=6, actions=ACTIONS, shortlist=10, hidden=32, layers=1, heads=2, ffn=64, steps=40
    )
    raw["proposers"].update(episodes=3)
    raw["environments"]["case14"].update(thermal_factor=0.8)  # milder: else all actions are equally bad
    folder = tmp_path_factory.mktemp("proposers")
    (folder / "params.yaml").write_text(yaml.safe_dump(raw))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ACE_JOBS", "1")
        patch.setattr(rates, "PASSES", 2)
        rates.bench.cache_clear()
        params = config.load()
        world = World(params.environment("case14"), params.scenarios, params.base.operator)
        textmap, place = TextMap(world), folder / "results/language_model/case14"
        made = corpus.build(params, "case14")
        training.train(params, made, textmap, place)
        training.measure(params, "case14", made, world, WhatIf(world), textmap, place)
        for number, variant in enumerate(("sac", "ace")):
            run = folder / "results/runs/case14" / variant / "seed=0"
            run.mkdir(parents=True)
            SAC(world.catalogue, world.features.n, params.base.sac, seed=number).acting.save(run / "policy.safetensors")
            calls = {name: {"simulator_calls": 100 * number + i} for i, name in enumerate(("train", "validation", "corpus"))}
            own = {"0": {"budget": {**calls, "test": {"simulator_calls": 7}}}}
            (run.parent / "manifest.json").write_text(json.dumps({"seeds": own}))
            pd.DataFrame({"seed": [0], "episode": [0]}).to_csv(run.parent / "episodes.csv", index=False)
        yield folder, params, world, made
    rates.bench.cache_clear()


@pytest.fixture(scope="module")
def whole(project):
    """(table, rates, the (split, scenario) that were played in all, and of them by those who play alone)."""
    played, alone, reset, play = set(), set(), World.reset, proposers.evaluate.play

    def noted(world, agent, split, indices):
        alone.update((split, index) for index in indices)
        return play(world, agent, split, indices)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "reset", lambda world, *place: (played.add(place), reset(world, *place))[1])
        patch.setattr(proposers.evaluate, "play", noted)
        return proposers.measure("case14", "out"), rates.measure("case14", "out"), played, alone


def test_everyone_plays_the_validation_scenarios_and_nobody_those_of_the_test(project, whole):
    _, _params, _world, _ = project
    table, _, played, others = whole
    assert {split for split, _ in played} <= {"train", "validation"}
    validated = {index for split, index in others if split == "validation"}
    assert validated == {2, 3, 4}, "as many as declared, after the run's own"
    alone = table[table["learnt"] == ""]["proposer"].tolist()
    sets = [f"set_{n}" for n in (2, 6, 12, 24)]
    assert alone == [
        "nobody", "random", "frequency", "expert", "classifier", "model_unvalidated", "model", "model_elsewhere", *sets, "greedy"
    ]  # fmt: skip
    assert table[table["learnt"] != ""][["proposer", "learnt"]].to_numpy().tolist() == [["nobody", "sac"], ["model", "ace"]]
    assert set(table["n_episodes"]) == {3} and set(table["n_seeds"]) == {1}
    assert list(table.columns) == proposers.COLUMNS


def test_what_an_ablation_spent_is_that_of_its_own_seeds(project):
    folder, params, *_ = project
    ablations = params.grid.ablations.model_copy(update={"seeds": [3], "variants": ["ace_K01"]})
    params = params.model_copy(update={"grid": params.grid.model_copy(update={"ablations": ablations})})
    budget = {name: {"simulator_calls": calls} for name, calls in (("train", 5), ("validation", 7), ("corpus", 11))}
    entries = {"env": "case14", "variant": "ace_K01", "seed": 3, "budget": budget}
    write_seed(folder / "results", entries, pd.DataFrame({"episode": [0]}))
    assert list(proposers._spent(params, "case14", "ace_K01")) == [23]


def test_the_scenarios_begin_with_those_of_a_runs_validation(project):
    _, _params, world, _ = project
    scenarios = rates.bench("case14")[2]
    assert len(world.sets["validation"]) == 2 < len(scenarios) == 5
    for index in range(2):
        pairs = zip(scenarios[index].arrays, world.sets["validation"][index].arrays, strict=True)
        assert all(np.array_equal(ours, theirs) for ours, theirs in pairs)


def test_who_simulates_and_who_is_asked(project, whole):
    rows = {(r["proposer"], r["learnt"]): r for r in whole[0].to_dict("records")}
    silent = {("nobody", ""), ("model_unvalidated", ""), ("nobody", "sac"), ("model", "ace")}
    assert {key for key, row in rows.items() if row["simulator_calls"] == 0} == silent
    assert {key for key, row in rows.items() if row["llm_calls"] > 0} == {
        (name, "") for name in ("model", "model_unvalidated", "model_elsewhere")
    }  # fmt: skip
    assert {key for key, row in rows.items() if row["dc_calls"] > 0} == {("expert", ""), ("greedy", "")}
    assert rows["nobody", "sac"]["simulator_calls_before"] == 0 + 1 + 2
    manifest = json.loads((project[0] / "results/language_model/case14/model_manifest.json").read_text())
    corpus_calls = manifest["budget"]["simulator_calls"]
    assert {p for p in ("frequency", "classifier", "model") if rows[p, ""]["simulator_calls_before"] == corpus_calls > 0} == {
        "frequency", "classifier", "model"
    }  # fmt: skip
    assert rows["model", "ace"]["simulator_calls_before"] == 100 + 101 + 102, "without the test"


def test_differences_are_paired_with_sac_and_with_the_proposer(whole):
    rows = {(r["proposer"], r["learnt"]): r for r in whole[0].to_dict("records")}
    assert rows["model", ""]["minus_sac"] == pytest.approx(rows["model", ""]["survival"] - rows["nobody", "sac"]["survival"])
    ace, difference = rows["model", "ace"], rows["model", "ace"]["survival"] - rows["model", ""]["survival"]
    assert ace["minus_proposer"] == pytest.approx(difference)
    assert ace["minus_proposer_low"] <= difference <= ace["minus_proposer_high"]
    assert np.isnan(rows["nobody", "sac"]["minus_sac"]) and np.isnan(rows["model", ""]["minus_proposer"])


def test_survival_is_that_of_the_run_by_hand(project, whole):
    _, _params, world, made = project
    fast, whatif = FastWorld(world), WhatIf(world)
    fast.sets = {**world.sets, "validation": rates.bench("case14")[2]}
    survived = []
    for index in (2, 3, 4):
        step = fast.reset("validation", index)
        while not step.over:
            rho = np.nan_to_num(whatif.ac(step.state, made.actions), nan=np.inf)
            rho[~corpus.legal_of(world.catalogue, step.state, made.actions)] = np.inf
            step = fast.step(int(made.actions[rho.argmin()]))
        survived.append(100 * (fast.t - step.blackout) / world.spec.horizon)
    row = whole[0].set_index("proposer").loc[f"set_{ACTIONS}"]
    assert row["survival"] == pytest.approx(np.mean(survived))


def test_a_set_of_the_language_models_size_is_the_language_models(project):
    """So the sets of other sizes are chosen as it was."""
    _, params, _, made = project
    sets = proposers.choose_sets(params, "case14")
    assert list(sets) == [2, 6, 12, 24]
    assert np.array_equal(sets[6][0], made.actions) and sets[6][1] < made.budget["simulator_calls"]


def states_of(project, n=12):
    _, _, world, _ = project
    fast, states = FastWorld(world), []
    for index in range(2):
        step = fast.reset("validation", index)
        while not step.over and len(states) < n:
            states.append(step.state)
            step = fast.step(0)
    return states


def test_alone_plays_the_first_try_that_gains_the_margin_or_nothing(project):
    _, params, world, made = project
    whatif, refine, tries = WhatIf(world), params.base.refine, made.actions[1:4].tolist()
    actor = ControlActor(lambda state, legal, rng: tries, world.catalogue, whatif, refine)
    agent, seen = proposers.Alone(actor, whatif), set()
    for state in states_of(project):
        wanted = whatif.simulate(state, 0).reward + refine.margin
        good = [a for a in tries[: refine.rounds] if whatif.simulate(state, a).reward > wanted]
        expected = good[0] if good else 0
        assert agent.act(state, None, None) == expected
        seen.add(expected)
    assert 0 in seen and len(seen) > 1, "the states show both"


def test_a_proposal_without_validation_is_played_as_it_is():
    given = iter([5, None])
    actor = SimpleNamespace(propose=lambda states, seed: [next(given)], recorder=None)
    agent = proposers.AsProposed(actor, SimpleNamespace(ac_calls=0, dc_calls=0))
    assert [agent.act("a state", None, None), agent.act("another", None, None)] == [5, 0]


def test_look_ahead_within_a_set_does_nothing_where_all_fail(project, monkeypatch):
    _, _, world, made = project
    whatif, state = WhatIf(world), states_of(project, 1)[0]
    agent = proposers.SetLookAhead(whatif, made.actions)
    monkeypatch.setattr(whatif, "ac", lambda state, ids: np.full(len(ids), np.nan))
    assert agent.act(state, None, None) == 0


@pytest.mark.parametrize("a_pass, passes, n", [(18, 1, 18), (6, 3, 18), (1, 9, 9)])
def test_held_out_states_are_different_and_come_from_more_passes_where_one_gives_too_few(
    project, plain, monkeypatch, a_pass, passes, n
):
    _, params, _, _ = project
    asked, worlds, state = [], [], states_of(project, 1)[0]

    def few(world, whatif, actions, shortlist, margin, wanted, seed):
        asked.append((wanted, seed - params.language_model.seed))
        worlds.append(world)
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
    columns, groups = rates.measure_rates("case14", plain)
    assert len(seen) == 5 and len(columns) == 2 * (2 + 4 + 5)
    assert groups == [state.scenario for state in seen[0]], "the intervals are over scenarios"
    assert set(groups) == {0, 1} or a_pass == 1
    for metric in ("one_proposal", "five_rounds"):
        assert columns["model", f"{metric}_minus_frequency"].tolist() == [0.0, 0.0]
        assert columns["model_elsewhere", f"{metric}_minus_model"].tolist() == [1.0, 0.0]
        assert columns["model", f"{metric}_minus_classifier"].tolist() == [-1.0, 0.0]
    assert list(actors) == ["classifier", "model_elsewhere", "frequency_elsewhere", "classifier_elsewhere"]
    assert actors["model_elsewhere"].new_substation_each_round and isinstance(actors["model_elsewhere"], rates.PolicyActor)
    legal, sub = project[2].catalogue.legality(state.topo, state.cooldown_sub, True), project[2].catalogue.sub
    order = {name: list(actors[name].propose(state, legal, None)) for name in actors if name != "model_elsewhere"}
    ranking = json.loads((project[0] / "results/language_model/case14/model_manifest.json").read_text())["ranking"]
    plain_order = {"classifier": order["classifier"], "frequency": [a for a in ranking if a in order["classifier"]]}
    for name, ranked in plain_order.items():
        firsts = [a for i, a in enumerate(ranked) if sub[a] not in sub[ranked[:i]]]
        assert 1 < len(firsts) < len(ranked) and order[f"{name}_elsewhere"][: len(firsts)] == firsts
    found, (fresh,) = seen[0], {id(world.sets["validation"]): world.sets["validation"] for world in worlds}.values()
    others = rates.bench("case14")[2]
    assert len(fresh) == 3 and len(others) == 2 + 3
    assert not any(np.array_equal(ours.arrays[0], theirs.arrays[0]) for ours in fresh for theirs in others)
    assert all(states is found for states in seen), "the others' states are the model's"
    assert asked == [(12, number) for number in range(passes)]
    assert len(found) == min(18, 1 + a_pass * passes) >= n
    assert len({(s.scenario, s.t) for s in found}) == len(found)


def test_rates_are_of_validation_scenarios_and_of_as_many_states_as_there_are(whole):
    table = whole[1]
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
    return rates.fit_classifier("case14")


def test_the_classifier_learns_the_labels_of_the_language_model(project, plain):
    _, params, world, made = project
    writer = Writer(TextMap(world), made)
    labels = np.array([made.actions[writer.label(visit, [0])] for visit in made.visits])
    taught = params.language_model.model_copy(update={"steps": 600})
    longer = classifier.fit(made, TextMap(world), world.features, taught, params.base.sac)
    right = np.mean([longer.ranking(visit.state)[0] == a for visit, a in zip(made.visits, labels, strict=True)])
    assert right > 0.8 > 0.65 > np.bincount(labels).max() / len(labels), "better than to name always the same"
    assert sorted(plain.ranking(made.visits[0].state)) == sorted(made.actions)


def test_the_classifier_is_trained_on_as_many_samples_as_f_llm(project, monkeypatch):
    _, params, world, made = project
    drawn = []
    monkeypatch.setattr(
        classifier.torch.nn.functional, "cross_entropy", lambda logits, label: (drawn.append(len(label)), logits.sum())[1]
    )
    classifier.fit(made, TextMap(world), world.features, params.language_model, params.base.sac)
    n_critic = round(CRITIC_SHARE * params.language_model.steps * params.language_model.batch_size)
    assert sum(drawn) == params.language_model.steps * params.language_model.batch_size - n_critic


def test_the_classifier_is_the_same_each_time_and_leaves_the_draws_of_others_alone(project, plain):
    before = torch.random.get_rng_state()
    again = rates.fit_classifier("case14")
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(plain.network.parameters(), again.network.parameters(), strict=True))


@pytest.mark.parametrize("backwards", [False, True])
def test_the_classifiers_rates_by_hand(project, plain, backwards):
    _, params, world, _ = project
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
    _, params, world, made = project
    sub, state = world.catalogue.sub, states_of(project, 1)[0]
    tries = made.actions[1:].tolist()
    assert len({int(sub[a]) for a in tries}) < len(tries), "some share a substation"
    actor = ControlActor(lambda state, legal, rng: tries, world.catalogue, WhatIf(world), params.base.refine)
    other = rates.elsewhere(actor)
    order = list(other.propose(state, None, None))
    firsts = [a for i, a in enumerate(tries) if sub[a] not in [sub[b] for b in tries[:i]]]
    assert order == [*firsts, *(a for a in tries if a not in firsts)]
    assert (other.catalogue, other.whatif, other.settings) == (actor.catalogue, actor.whatif, actor.settings)


def test_the_model_elsewhere_is_asked_by_its_rule(project, monkeypatch):
    asked, made = [], proposers.PolicyActor
    monkeypatch.setattr(proposers, "PolicyActor", lambda *given: (asked.append(given[-1].proposer), made(*given))[1])
    for name in proposers.MODELS:
        proposers._play("case14", name, None)
    assert asked == ["llm", "llm", "llm_elsewhere"]


@pytest.mark.parametrize("change", [{"actions": [0, 1]}, {"budget": {}}])
def test_a_corpus_that_is_not_that_of_the_model_is_refused(project, change):
    path = project[0] / "results/language_model/case14/model_manifest.json"
    card = path.read_text()
    rates.bench.cache_clear()
    try:
        path.write_text(json.dumps({**json.loads(card), **change}))
        with pytest.raises(config.ConfigError, match=r"no longer the one .* run the stage language_model"):
            rates.fit_classifier("case14")
    finally:
        path.write_text(card)
        rates.bench.cache_clear()


def test_the_classifier_alone_plays_its_first_legal_action_that_gains_and_never_tries_doing_nothing(project, monkeypatch):
    _, params, world, made = project
    whatif, refine, seen = WhatIf(world), params.base.refine, set()
    order = np.array([0, *reversed(made.actions[1:].tolist())])
    stub = classifier.Classifier(None, None, order)
    stub.ranking = lambda state: order
    agent = proposers.Alone(stub.as_actor(world.catalogue, whatif, refine), whatif)
    for state in states_of(project):
        legal = world.catalogue.legality(state.topo, state.cooldown_sub, True)
        tries = [int(a) for a in order[1:] if world.catalogue.is_legal(legal, int(a))][: refine.rounds]
        wanted = whatif.simulate(state, 0).reward + refine.margin
        expected = next((a for a in tries if whatif.simulate(state, a).reward > wanted), 0)
        calls = whatif.ac_calls
        assert agent.act(state, None, None) == expected
        simulated = tries.index(expected) + 1 if expected else len(tries)
        assert whatif.ac_calls - calls == 1 + simulated, "doing nothing, and the tries"
        seen.add(expected)
    assert len(seen) > 1


@contextlib.contextmanager
def away(path):
    """Without this file or folder."""
    other = path.rename(path.with_suffix(".away"))
    try:
        yield
    finally:
        other.rename(path)


def test_the_same_bytes_each_time_and_rates_need_no_policy(project, whole):
    folder, *_ = project
    paths = [folder / f"out/studies/{study}/case14.csv" for study in ("proposers", "rates")]
    first = [path.read_bytes() for path in paths]
    proposers.measure("case14", "out")
    with away(folder / "results/runs"):
        rates.measure("case14", "out")
    assert [path.read_bytes() for path in paths] == first


def test_what_is_missing_is_named_before_anything_is_computed(project, monkeypatch):
    folder, *_ = project
    for place in (proposers, rates):
        monkeypatch.setattr(place, "fit_classifier", lambda environment: pytest.fail("begun before it was looked"))
    policy = "results/runs/case14/ace/seed=0/policy.safetensors"
    with away(folder / policy), pytest.raises(FileNotFoundError, match=f"no {policy}"):
        proposers.measure("case14", "out")
    with away(folder / "results/language_model/case14/model_manifest.json"):
        for place in (proposers, rates):
            with pytest.raises(config.ConfigError, match="the stage language_model makes it"):
                place.measure("case14", "out")


# --- the table and the figure -----------------------------------------------------------------------------------------


def of_report(tmp_path, changes=()):
    """params and a results folder of one grid; changes: {(proposer, learnt): {column: value}}."""
    ends = dict.fromkeys(("minus_sac", "minus_sac_low", "minus_sac_high"), 20.0)
    ends |= dict(zip(("minus_proposer", "minus_proposer_low", "minus_proposer_high"), (-3.0, -8.0, 2.0), strict=True))
    counts = {"n_seeds": 1, "n_episodes": 4, "simulator_calls_before": 5000, "simulator_calls": 40, "dc_calls": 0, "llm_calls": 8}
    rows = []
    for survival, proposer, learnt in (
        (30, "nobody", ""), (60, "model", ""), (70, "set_24", ""), (80, "greedy", ""),
        (40, "nobody", "sac"), (57, "model", "ace"),
    ):  # fmt: skip
        row = {"grid": "case14", "proposer": proposer, "learnt": learnt, "survival": survival, "ci_low": survival - 5}
        rows.append({**row, "ci_high": survival + 5, **ends, **counts, **dict(changes).get((proposer, learnt), {})})
    (tmp_path / "studies/proposers").mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows, columns=proposers.COLUMNS).to_csv(tmp_path / "studies/proposers/case14.csv", index=False)
    return config.validated(config.Params, small_params(), "", "params.yaml")


def test_a_line_for_each_proposer_with_the_policy_that_learnt_from_it(tmp_path):
    params = of_report(tmp_path)
    table = drawn.write_proposers(params, tmp_path, tmp_path / "show")
    lines = (tmp_path / "show/proposers.md").read_text().splitlines()
    row = next(line for line in lines if "as f_LLM" in line)
    assert row == (
        "| case14 | Language model, as f_LLM | 60.0 [55.0, 65.0] | +20.0 [+20.0, +20.0] | 10 | ACE | "
        "57.0 [52.0, 62.0] | -3.0 [-8.0, +2.0] |"
    )
    assert any("| Look-ahead within 24 actions | 70.0" in line for line in lines)
    assert len(table) == 6 and set(table["scale"]) == {"quick"}
    assert len(pd.read_csv(tmp_path / "show/proposers_figure.csv")) == 6


def test_the_figure_has_the_same_bytes_twice_and_a_missing_file_is_named(tmp_path):
    params = of_report(tmp_path)
    drawn.write_proposers(params, tmp_path, tmp_path / "show")
    first = {p.name: p.read_bytes() for p in (tmp_path / "show").iterdir()}
    drawn.write_proposers(params, tmp_path, tmp_path / "show")
    assert first == {p.name: p.read_bytes() for p in (tmp_path / "show").iterdir()} and len(first) == 6
    (tmp_path / "studies/proposers/case14.csv").unlink()
    with pytest.raises(ReportError, match=r"run notebooks/studies/proposers_measure\.ipynb"):
        drawn.write_proposers(params, tmp_path, tmp_path / "show")
