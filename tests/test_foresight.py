"""Foresight: the DC power flow from an observation, the choice among a policy's actions, and runs that come out as rows."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT

from ace import config, evaluate, trained_policies
from ace.grid.dcflow import DcFlow
from ace.grid.environment import World, scenario_sets
from ace.grid.powerflow import PowerFlow
from ace.grid.scenarios import Beyond
from ace.grid.whatif import WhatIf
from ace.llm.models.corpus import in_turn
from ace.rl import foresight as agent_foresight
from ace.rl.distribution import most_probable
from ace.rl.policy import Policy
from ace.rl.sac import SAC
from ace.studies.foresight import measure as foresight


@pytest.fixture(scope="module")
def states(small_world):
    """States in which an agent is asked, on different topologies: every fourth legal action is played."""
    found = []
    for index in range(8):
        step = small_world.reset("train", index)
        while not step.over:
            found.append(step.state)
            legal = small_world.catalogue.legal_ids(small_world.observe(step.state)[1])
            step = small_world.step(int(legal[4 * len(found) % len(legal)]))
    assert len(found) > 15 and any((state.topo == 2).any() for state in found)
    return found


# --- the DC power flow ---


def test_active_flows_are_those_of_lightsim2grid(small_world, states):
    ours, theirs = DcFlow(small_world), PowerFlow(small_world.env)
    catalogue, grid, compared, moved = small_world.catalogue, theirs._grid, 0, 0
    slack = theirs.gen_pos[theirs.slack_gens]
    of_slack = [a for a in range(1, catalogue.n) if (catalogue.apply(a, states[0].topo)[slack] == 2).any()]
    assert of_slack, "no action that moves the slack's generator to bus 2"
    for number, state in enumerate(states):
        for action in [*range(1, catalogue.n, 7), *of_slack]:
            topo = catalogue.apply(action, state.topo)
            theirs.set_injections(state.load_p, state.load_q, state.gen_p, state.gen_v)
            theirs.set_topo(topo)
            grid.tell_solver_need_reset()
            solved = len(grid.dc_pf(np.ones_like(theirs._flat), 10, 1e-8))
            found = ours._active(state, topo)
            assert bool(solved) == (found is not None), f"state {number}, action {action}"
            if solved:
                expected = np.concatenate([grid.get_line_res1()[0], grid.get_trafo_res1()[0]])
                np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=f"state {number}, action {action}")
                compared += 1
                moved += action in of_slack
    assert compared > 100 and moved > 10


def test_to_do_nothing_leaves_the_observed_loading(small_world, states):
    flow = DcFlow(small_world)
    for state in states:
        assert flow.rho_max(state, [0])[0] == pytest.approx(state.rho_max, rel=1e-6)


def test_expected_loadings_order_actions_as_the_simulator_does(small_world, states):
    flow, whatif = DcFlow(small_world), WhatIf(small_world)
    regret, chance = [], []
    for state in states:
        ids = small_world.catalogue.legal_ids(small_world.observe(state)[1])
        simulated = whatif.ac(state, ids)
        expected, known = flow.rho_max(state, ids), np.isfinite(simulated)
        best = ids[np.argmin(np.where(known, expected, np.inf))]
        regret.append(simulated[ids == best][0] - np.nanmin(simulated))
        chance.append(np.nanmedian(simulated) - np.nanmin(simulated))
    assert np.mean(regret) < 0.4 * np.mean(chance)


def test_calls_are_the_flows_solved_and_no_simulation(small_world, states):
    flow, whatif = DcFlow(small_world), WhatIf(small_world)
    flow.rho_max(states[0], [0, 5, 9])
    flow.rho_max(states[1], np.arange(4))
    assert flow.calls == (1 + 3) + (1 + 4) and whatif.ac_calls == whatif.dc_calls == 0


@pytest.mark.parametrize("together", [1, 2], ids=["one substation", "an island of two"])
def test_a_grid_in_two_parts_is_no_choice(small_world, states, together):
    """One substation's matrix is singular to the bit, an island's only nearly so."""
    catalogue, flow, state = small_world.catalogue, DcFlow(small_world), states[0]
    ends = np.stack([catalogue.sub_of_element[catalogue.line_or_pos], catalogue.sub_of_element[catalogue.line_ex_pos]])
    slack = catalogue.sub_of_element[flow._slack]
    line = next(i for i in range(catalogue.n_line) if slack not in ends[:, i])
    island = ends[:together, line]
    topo = np.minimum(state.topo, 1)
    assert flow._active(state, topo) is not None
    for other in np.flatnonzero(np.isin(ends, island).sum(0) == 1):
        topo[[catalogue.line_or_pos[other], catalogue.line_ex_pos[other]]] = -1
    lost = SimpleNamespace(topo=topo, rho=state.rho, load_p=state.load_p, gen_p=state.gen_p)
    assert flow._active(lost, topo) is None
    assert np.isinf(flow.rho_max(lost, [0, 1])).all()


# --- the agent ---


@pytest.fixture(scope="module")
def deployed(small_world, params):
    return SAC(small_world.catalogue, small_world.features.n, params.base.sac, seed=3).acting


def test_the_lowest_expected_loading_of_the_most_probable_is_played(small_world, states, deployed):
    agent, other = agent_foresight.with_foresight(deployed, small_world, 6), 0
    for state in states:
        x, legal = small_world.observe(state)
        candidates = most_probable(deployed.space, deployed.logits(x), legal, 6)
        loading = DcFlow(small_world).rho_max(state, candidates)
        assert agent.act(state, x, legal) == candidates[loading.argmin()]
        other += candidates[loading.argmin()] != deployed.act(x, legal, None)
    assert other > 3, "as if it were the policy alone"
    assert (agent.simulator_calls, agent.llm_calls) == (0, 0) and agent.dc_calls == (1 + 6) * len(states)


@pytest.mark.parametrize("level", [np.inf, 1.2], ids=["all fall apart", "all are as good"])
def test_where_nothing_is_better_the_preferred_action_is_played(level):
    flow = SimpleNamespace(calls=0, rho_max=lambda state, ids: np.full(len(ids), level))
    assert agent_foresight.Foresight(lambda x, legal: np.array([7, 3, 9]), flow).act(None, None, None) == 7


def test_compared_with_nothing_the_policy_acts_alone(small_world, states, deployed):
    x, legal = small_world.observe(states[0])
    alone = agent_foresight.with_foresight(deployed, small_world, 1)
    assert isinstance(alone, Policy) and alone.act(states[0], x, legal) == deployed.act(x, legal, None)
    for wrong in (0, -1, 2.5, "20"):
        with pytest.raises(ValueError, match=rf"^n_candidates = {wrong!r}: a whole number of actions, 1 or more$"):
            agent_foresight.with_foresight(deployed, small_world, wrong)


def test_within_the_set_its_legal_actions_and_doing_nothing_are_compared(small_world, states):
    actions, flow = [5, 0, 40, 90, 130], DcFlow(small_world)
    agent = agent_foresight.within_set(small_world, actions)
    for state in states:
        x, legal = small_world.observe(state)
        ids = [0, *(a for a in actions[:1] + actions[2:] if small_world.catalogue.is_legal(legal, a))]
        assert agent.candidates(x, legal).tolist() == ids
        assert agent.act(state, x, legal) == ids[flow.rho_max(state, ids).argmin()]


def test_it_is_a_grid2op_agent(small_world, deployed):
    small_world.reset("validation", 0)
    ahead = agent_foresight.with_foresight(deployed, small_world, 5)
    agent = evaluate.GridAgent(small_world.env.action_space, small_world, ahead)
    info = small_world.env.step(agent.act(small_world.env.get_obs(), 0.0))[3]
    assert not info["is_illegal"] and not info["is_ambiguous"]


# --- the choice ---


def rows(variant, split, survivals):
    """survivals: number of actions -> survival of each scenario."""
    common = {"variant": variant, "split": split}
    return [{**common, "n_candidates": n, "survival": s} for n, of_scenarios in survivals.items() for s in of_scenarios]


def test_the_choice_is_the_best_on_validation_and_of_equals_the_fewest():
    table = pd.DataFrame(
        rows("sac", "validation", {20: [0.5, 0.7], 1: [0.2, 0.9], 5: [0.6, 0.6]})
        + rows("ace", "validation", {1: [1.0, 1.0], 5: [1.0, 0.9], 20: [1.0, 1.0]})
        + rows("sac", "test", {1: [1.0, 1.0]})
        + rows("ace", "test", {20: [1.0, 1.0]})
    )
    assert foresight.choose(table) == {"sac": 5, "ace": 1}


# --- scenarios that chose no checkpoint ---


@pytest.fixture
def weeks(params, monkeypatch):
    """What `unseen_validation` reads of a world of WCCI 2020, with its committed weeks."""
    monkeypatch.chdir(ROOT)
    spec = params.environment("wcci2020")
    return SimpleNamespace(spec=spec, sets=scenario_sets(spec, params.scenarios))


def test_unseen_scenarios_are_of_weeks_that_chose_no_checkpoint(weeks, params):
    seen, n = weeks.sets["validation"], params.scenarios.validation
    found = trained_policies.unseen_validation(weeks, params.scenarios, 2, "foresight.episodes")
    beyond = Beyond(found, n)
    assert (len(seen), len(found), len(beyond)) == (n, n + 2, 2)
    dates = [week["date"] for week in seen.weeks.about]
    assert [found[i].origin[0] for i in (0, n, n + 1)] == [dates[i] for i in (0, n, n + 1)] and len(set(dates)) == len(dates)
    assert np.array_equal(beyond[1].load_p, found[n + 1].load_p) and np.array_equal(found[0].load_p, seen[0].load_p)


def test_more_unseen_weeks_than_there_are_is_a_mistake_that_names_key_and_number(weeks, params):
    spare = len(weeks.sets["validation"].weeks) - params.scenarios.validation
    with pytest.raises(config.ConfigError, match=rf"foresight\.episodes = {spare + 1}: .*at most {spare}$") as error:
        trained_policies.unseen_validation(weeks, params.scenarios, spare + 1, "foresight.episodes")
    assert "\n" not in str(error.value) and str(ROOT) not in str(error.value)


def test_scenarios_are_played_week_by_week_in_turn(weeks):
    train = weeks.sets["train"]
    n, starts = train.n_weeks, train.starts
    order = [in_turn(train, number) for number in range(len(train) + 1)]
    assert [index // starts for index in order[:n]] == list(range(n)), "each week once"
    assert sorted(order[:-1]) == list(range(n * starts)) and order[-1] == order[0] and order[n] == 1
    assert [in_turn(range(3), number) for number in range(5)] == [0, 1, 2, 0, 1], "of other sets one after the other"


# --- from policies to rows ---


@pytest.fixture
def project(workspace, small_world, params, monkeypatch):
    """A workspace with untrained policies in place of those of a run."""

    def change(raw):
        raw["grid"].update(variants=["sac", "ace", "ace_no_critic"], baselines=["reconnect"])

    folder = workspace(change)
    for variant in ("sac", "ace"):
        run = folder / "results/runs/case14" / variant / "seed=0"
        run.mkdir(parents=True)
        policy = SAC(small_world.catalogue, small_world.features.n, params.base.sac, seed=len(variant)).acting
        policy.save(run / "policy.safetensors")
    manifest = folder / "results/language_model/case14/model_manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"actions": [5, 40, 90]}')
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ACE_JOBS", "1")
    trained_policies.world_of.cache_clear()
    yield folder
    trained_policies.world_of.cache_clear()


def test_rows_of_all_runs(project, monkeypatch, capsys):
    seen, reset = [], World.reset
    monkeypatch.setattr(World, "reset", lambda world, split, index: (seen.append((split, index)), reset(world, split, index))[1])
    table = foresight.play_foresight("case14", [4, 12], 2)
    assert "100%" in capsys.readouterr().err
    # validation scenarios 0 and 1 chose the checkpoints; nothing is played on the test before all choices are made
    assert {index for split, index in seen if split == "validation"} == {2, 3}
    tests = [split == "test" for split, _ in seen]
    assert tests == sorted(tests) and sum(tests) == 3 * 3 and len(tests) == 2 * 3 * 2 + 3 * 3
    written = project / "results/studies/foresight/case14.csv"
    first, back = written.read_bytes(), pd.read_csv(written)
    assert list(back.columns) == foresight.COLUMNS and len(back) == len(table) == len(tests)
    assert (back[["llm_calls", "simulator_calls"]] == 0).all(axis=None)
    alone = back["n_candidates"] == foresight.ALONE
    assert (back.loc[alone, "dc_calls"] == 0).all()
    played = back[~alone]
    assert (played["dc_calls"] > 2 * played["decisions"]).all() and (played["dc_calls"] <= 13 * played["decisions"]).all()
    assert back.loc[back["variant"] == foresight.WITHIN_SET, "n_candidates"].tolist() == [3] * 3
    tested = back[(back["split"] == "test") & (back["variant"] != foresight.WITHIN_SET)]
    chosen = tested.groupby("variant")["n_candidates"].unique()
    assert {variant: n.tolist() for variant, n in chosen.items()} == {v: [n] for v, n in foresight.choose(back).items()}
    foresight.play_foresight("case14", [4, 12], 2)
    assert written.read_bytes() == first


def test_a_missing_policy_is_named_before_anything_is_played(project, monkeypatch):
    (project / "results/runs/case14/ace/seed=0/policy.safetensors").unlink()
    monkeypatch.setattr(foresight, "play_tasks", None)
    with pytest.raises(FileNotFoundError, match=r"no results/runs/case14/ace/seed=0/policy.safetensors"):
        foresight.play_foresight("case14", [4], 2)


def test_one_action_is_nothing_to_compare(workspace):
    folder = workspace(lambda raw: raw["foresight"].update(n_candidates=[5, 1], episodes=2))
    with pytest.raises(config.ConfigError, match=r"foresight.n_candidates.1 = 1"):
        config.load(folder / "params.yaml")
