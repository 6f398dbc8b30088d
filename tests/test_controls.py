"""The controls of f_LLM and the agents without learning that build on the corpus."""

import json

import numpy as np
import pytest
import torch
from conftest import small_params
from test_coevolve import make
from test_experiment import files, run

from ace import baselines, config
from ace.grid.whatif import WhatIf
from ace.llm.controls import control
from ace.llm.policy_actor import BadCase
from ace.rl.llm4teach import Distillation
from ace.rl.sac import DistillationBatch, distillation_loss


@pytest.fixture(scope="module")
def settings():
    return config.validated(config.Params, small_params(), "", "params.yaml").settings("ace")


@pytest.fixture(scope="module")
def cases(small_world):
    """States of danger of training scenarios, each with doing nothing as its bad case."""
    found = []
    for index in range(12):
        step = small_world.reset("train", index)
        while not step.over and len(found) < 30:
            found.append(BadCase(len(found), step.state, 0, -0.1))
            step = small_world.step(0)
    assert len(found) >= 10
    return found


def make_control(name, world, settings, ranking=()):
    return control(name, world, WhatIf(world), settings.refine, 40, list(ranking))


def test_the_random_control_may_also_do_nothing(small_world, settings, cases):
    legal = small_world.catalogue.legality(cases[0].state.topo, cases[0].state.cooldown_sub, True)
    propose, rng = make_control("random", small_world, settings).propose, np.random.default_rng(3)
    drawn = [propose(cases[0].state, legal, rng) for _ in range(60)]
    assert any(0 in ids for ids in drawn) and all(len(set(ids)) == len(ids) for ids in drawn)


@pytest.mark.parametrize("name", ["expert", "random", "frequency"])
def test_every_proposal_of_a_control_is_legal_simulated_and_counted(name, small_world, settings, cases):
    ranking = np.random.default_rng(0).permutation(small_world.catalogue.n)[:30]
    actor = make_control(name, small_world, settings, ranking)
    found = actor.refine(cases, seed=1)
    tried = sum(len(r.tried) for r in found if r is not None)
    assert actor.counts["validated"] == tried > 0
    simulated = tried + len(cases)
    # The expert's shortlists are counted power flows as well.
    assert actor.whatif.ac_calls >= simulated if name == "expert" else actor.whatif.ac_calls == simulated
    check = WhatIf(small_world)
    for case, refinement in zip(cases, found, strict=True):
        if refinement is None:
            continue
        legal = small_world.catalogue.legality(case.state.topo, case.state.cooldown_sub, True)
        assert len(refinement.tried) <= settings.refine.rounds and case.action not in dict(refinement.tried)
        for action, reward in refinement.tried:
            assert small_world.catalogue.is_legal(legal, action)
            assert check.simulate(case.state, action).reward == pytest.approx(reward, abs=1e-6)
        assert refinement.reward == max(reward for _, reward in refinement.tried)
        assert refinement.improved == (refinement.reward > refinement.r_original + settings.refine.margin)


def test_the_expert_beats_random_and_random_depends_on_the_seed(small_world, settings, cases):
    improved = {}
    for name in ("expert", "random"):
        actor = make_control(name, small_world, settings)
        improved[name] = sum(r is not None and r.improved for r in actor.refine(cases, seed=0))
    assert improved["expert"] > improved["random"]
    random = make_control("random", small_world, settings)
    tries = [[r.tried for r in random.refine(cases, seed) if r] for seed in (0, 0, 1)]
    assert tries[0] == tries[1] != tries[2]


def test_the_frequency_control_goes_down_its_list(small_world, settings, cases):
    ranking = np.random.default_rng(1).permutation(np.arange(1, small_world.catalogue.n))[:40].tolist()
    for case, found in zip(cases, make_control("frequency", small_world, settings, ranking).refine(cases, 0), strict=True):
        legal = small_world.catalogue.legality(case.state.topo, case.state.cooldown_sub, True)
        allowed = [a for a in ranking if small_world.catalogue.is_legal(legal, a)]
        assert [a for a, _ in found.tried] == allowed[: len(found.tried)]


def test_a_run_with_a_control_learns_from_it(small_world, settings):
    loop = make(small_world, settings, actor=False, critic=False)
    loop.actor = make_control("expert", small_world, settings)
    list(loop.run())
    assert loop.count["refined"] == len(loop.d_llm) > 3


def test_dc_argmin_picks_the_lowest_of_its_set_and_simulates_nothing(small_world, cases):
    whatif, catalogue = WhatIf(small_world), small_world.catalogue
    actions = np.concatenate([[0], np.random.default_rng(2).choice(np.arange(1, catalogue.n), 25, replace=False)])
    agent = baselines.DcArgmin(whatif, catalogue, actions)
    for case in cases:
        legal = catalogue.legality(case.state.topo, case.state.cooldown_sub, True)
        chosen = agent.act(case.state, None, legal)
        rho = WhatIf(small_world).dc(case.state)
        allowed = [a for a in actions if catalogue.is_legal(legal, int(a))]
        assert chosen in allowed and rho[chosen] == rho[allowed].min()
    assert agent.simulator_calls == 0 < agent.dc_calls


def test_the_model_alone_plays_what_gains_and_else_nothing(small_world, settings, cases):
    actor = make(small_world, settings).actor
    agent, check, acted = baselines.LlmOnly(actor, actor.whatif), WhatIf(small_world), 0
    for case in cases:
        legal = small_world.catalogue.legality(case.state.topo, case.state.cooldown_sub, True)
        before = agent.simulator_calls, agent.llm_calls
        action = agent.act(case.state, None, legal)
        assert agent.simulator_calls > before[0] and agent.llm_calls > before[1], "both are counted"
        nothing = check.simulate(case.state, 0).reward
        assert action == 0 or check.simulate(case.state, action).reward > nothing + settings.refine.margin
        acted += action != 0
    assert acted


def test_distillation_raises_the_probability_of_what_was_proposed(small_world, settings):
    loop = make(small_world, settings, actor=False, critic=False)
    list(loop.run())
    sac, rows = loop.sac, slice(0, 16)
    x, legal = loop.d_rl.columns["x"][rows], loop.d_rl.columns["legal"][rows]
    decisions = loop.d_rl.columns["is_decision"][rows]
    x, legal = x[decisions], legal[decisions]
    proposal = np.array([int(small_world.catalogue.legal_ids(row)[3]) for row in legal])
    distillation = DistillationBatch(x, legal, proposal, 1.0)
    loss = lambda: float(distillation_loss(sac.distribution(torch.from_numpy(x), legal), distillation).detach())  # noqa: E731
    before, batch = loss(), loop.d_mix.sample(16, np.random.default_rng(0))
    for _ in range(20):
        sac.update(batch, distillation)
    assert loss() < 0.5 * before


def test_a_teacher_is_asked_without_validation_and_its_weight_fades(small_world, settings):
    loop, asked = make(small_world, settings, actor=False, critic=False), []

    def teacher(states, seed):
        asked.append(len(states))
        return [None if i % 2 else int(small_world.catalogue.legal_ids(small_world.observe(s)[1])[1])
                for i, s in enumerate(states)]  # fmt: skip

    loop.teaching = Distillation(teacher, settings, loop.rng["teacher"])
    weights, draw = [], loop.teaching.batch
    loop.teaching.batch = lambda decisions: weights.append(draw(decisions)) or weights[-1]
    list(loop.run())
    assert asked and max(asked) <= settings.refine.max_cases and loop.teaching.proposals
    assert not len(loop.d_llm), "what is not validated does not enter D_LLM"
    used = [p.weight for p in weights if p is not None]
    assert used == sorted(used, reverse=True) and used[-1] < 0.05
    again = make(small_world, settings, actor=False, critic=False)
    again.teaching = Distillation(teacher, settings, again.rng["teacher"])
    again.load_state_dict(loop.state_dict())
    assert repr(again.teaching.proposals) == repr(loop.teaching.proposals)


@pytest.mark.parametrize("variant", ["expert_sac", "random_refine", "frequency_refine", "dc_argmin"])
def test_a_cell_of_a_control_writes_its_budget(variant, workspace):
    folder = workspace()
    place = folder / "results" / "language_model" / "case14"
    place.mkdir(parents=True)
    corpus = {"simulator_calls": 77, "dc_calls": 1, "env_steps": 2}
    (place / "model_manifest.json").write_text(json.dumps({"actions": [0, 3, 8, 20], "ranking": [8, 20, 3, 0], "budget": corpus}))
    done = run(folder, variant, [0] if variant != "dc_argmin" else None)
    assert done.returncode == 0, done.stderr
    manifest = files(folder, variant)["manifest.json"]
    charged = manifest["budget"]["corpus"]["simulator_calls"]
    assert charged == (0 if variant in ("expert_sac", "random_refine") else 77), "who builds on the corpus pays for it"
    if variant != "dc_argmin":
        simulated = manifest["roles"]["actor"]["validated"] + manifest["refine_tried"]
        spent = manifest["budget"]["train"]["simulator_calls"]
        assert spent > simulated if variant == "expert_sac" else spent == simulated, "shortlists of the expert count too"


def test_without_a_model_manifest_it_says_which_stage_makes_it(workspace):
    done = run(workspace(), "dc_argmin")
    assert done.returncode != 0
    assert "language_model makes it" in done.stderr.strip().splitlines()[-1]
