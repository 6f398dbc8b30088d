"""Episodes are scored the same way for every method; a policy runs as a Grid2Op agent under Grid2Op's Runner."""

import subprocess
import sys
import warnings
from dataclasses import replace

import grid2op
import numpy as np
import pytest
from grid2op.Runner import Runner
from lightsim2grid import LightSimBackend

from ace import baselines, evaluate
from ace.grid.environment import GridState, World, scenario_sets
from ace.grid.fastworld import FastWorld
from ace.grid.whatif import WhatIf
from ace.rl.policy import Policy, load_policy
from ace.rl.sac import SAC


@pytest.fixture(scope="module")
def policy(small_world, params):
    return Policy(SAC(small_world.catalogue, small_world.features.n, params.base.sac, seed=0).acting)


def test_survived_steps_and_rewards_add_up(small_world, params):
    results = list(evaluate.play(small_world, baselines.DoNothing(), "test", range(4)))
    assert {r.scenario for r in results} == {0, 1, 2, 3}
    for r in results:
        assert r.survival == r.survived_steps / r.horizon and 0 <= r.survived_steps <= r.horizon == 96
        steps = r.survived_steps + (r.survived_steps < r.horizon)
        assert r.reward == pytest.approx(r.reward_mean * steps)
        assert r.topology_actions == 0 < r.decisions
    assert any(r.survival < 1 for r in results), "the test set holds no hard episode"


def test_a_blackout_counts_up_to_the_step_before(small_world):
    """Grid2Op itself, without our loop: how many steps pass before it says done."""
    result = next(r for r in evaluate.play(small_world, baselines.DoNothing(), "test", range(10)) if r.survival < 1)
    step = small_world.reset("test", result.scenario)
    while not step.over:
        step = small_world.step(0)
    assert step.blackout and result.survived_steps == small_world.t - 1


def test_deployed_policy_asks_nobody_and_repeats_itself(small_world, policy):
    once, again = (list(evaluate.play(small_world, policy, "test", range(3))) for _ in range(2))
    assert [r.row() for r in once] == [r.row() for r in again]
    assert all(r.llm_calls == r.simulator_calls == r.dc_calls == 0 for r in once)


def test_episodes_of_the_fast_world_are_repeated_on_grid2op_and_a_difference_is_noted(small_world, policy):
    plays = evaluate.Plays(small_world, FastWorld(small_world))
    plays.play(policy, "test", number=3)
    plays.repeat(policy, 2)
    used = plays.used()
    assert [e.split for e in plays.results["repeats"]] == ["test_on_grid2op"] * 2 and set(used) == {"test", "repeats"}
    assert used["repeats"]["env_steps"] > 0 and plays.world.env_steps - used["repeats"]["env_steps"] >= 0
    plays.results["test"][1] = replace(plays.results["test"][1], decisions=-1)
    assert plays.differ == []
    plays.results["repeats"].clear()
    plays.repeat(policy, 2)
    assert plays.differ == [1]
    alone = evaluate.Plays(small_world, small_world)
    alone.play(policy, "test", number=1)
    alone.repeat(policy, 2)
    assert set(alone.used()) == {"test"}, "played on Grid2Op already"


def test_fast_and_slow_world_score_alike(small_world, policy):
    slow, fast = (list(evaluate.play(w, policy, "test", range(5))) for w in (small_world, FastWorld(small_world)))
    for a, b in zip(slow, fast, strict=True):
        assert (a.survived_steps, a.decisions, a.topology_actions) == (
            b.survived_steps,
            b.decisions,
            b.topology_actions,
        )
        assert a.reward == pytest.approx(b.reward, abs=0.05)


def test_greedy_beats_doing_nothing_and_is_charged_for_it(small_world):
    greedy = baselines.Greedy(WhatIf(small_world), shortlist=30)
    ours = list(evaluate.play(small_world, greedy, "test", range(6)))
    idle = list(evaluate.play(small_world, baselines.DoNothing(), "test", range(6)))
    assert np.mean([r.survival for r in ours]) > np.mean([r.survival for r in idle])
    assert sum(r.simulator_calls for r in ours) == greedy.whatif.ac_calls > 0
    assert sum(r.dc_calls for r in ours) == greedy.whatif.dc_calls


def test_without_reconnection_do_nothing_is_another_baseline(params):
    operators = [params.settings(name).operator for name in ("do_nothing", "reconnect")]
    assert [o.reconnect for o in operators] == [False, True]
    worlds = [World(params.environment("neurips2020"), params.scenarios, o) for o in operators]
    ends = [[r.survived_steps for r in evaluate.play(w, baselines.DoNothing(), "train", [60, 100])] for w in worlds]
    assert ends[0] != ends[1]


def test_policy_runs_under_grid2ops_own_runner(small_world, policy, params, tmp_path):
    """Saved, loaded and played by Grid2Op's Runner on its packaged chronics, it takes the actions that our loop takes."""
    policy.deployed.save(tmp_path / "policy.safetensors")
    loaded = Policy(load_policy(tmp_path / "policy.safetensors", small_world.catalogue))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = grid2op.make("l2rpn_case14_sandbox", test=True, backend=LightSimBackend())
        env.set_thermal_limit(env.get_thermal_limit() * 0.7)
        agent = evaluate.GridAgent(env.action_space, small_world, loaded)
        runner = Runner(**env.get_params_for_runner(), agentClass=None, agentInstance=agent)
        (_, _, _, steps, horizon, _), *_ = runner.run(nb_episode=1, max_iter=150, add_detailed_output=True)
    assert 0 < steps <= horizon == 150


def test_a_runs_policy_plays_in_one_call(policy, params, tmp_path, monkeypatch):
    """On the small grid: make the agent from a run's file, and step its environment."""
    from conftest import ROOT

    from ace.deploy import grid_agent

    monkeypatch.chdir(ROOT)
    policy.deployed.save(tmp_path / "policy.safetensors")
    agent = grid_agent("case14", tmp_path / "policy.safetensors")
    observation, _, done, info = agent.env.step(agent.act(agent.env.reset(), 0.0))
    assert not done and not info["is_illegal"] and observation.rho.shape == (20,)
    ahead = grid_agent("case14", tmp_path / "policy.safetensors", n_candidates=4)
    observation = ahead.env.reset()
    ahead.env.step(ahead.act(observation, 0.0))
    state = GridState.from_observation(observation)
    legal = ahead.catalogue.legality(state.topo, state.cooldown_sub, True)
    before = ahead.agent.dc_calls
    ahead.agent.act(state, ahead.features(state), legal)
    assert ahead.agent.dc_calls - before == 1 + 4 and agent.agent.dc_calls == 0
    with pytest.raises(FileNotFoundError, match="no trained policy"):
        grid_agent("case14", "no/such/policy.safetensors")
    with pytest.raises(ValueError, match="another catalogue"):
        grid_agent("wcci2020", tmp_path / "policy.safetensors")


def test_a_committed_policy_plays_on_weeks(params, monkeypatch):
    from conftest import ROOT

    from ace.deploy import grid_agent

    monkeypatch.chdir(ROOT)
    agent = grid_agent("wcci2020", "results/runs/wcci2020/ace/seed=0/policy.safetensors")
    observation, done = agent.env.reset(), False
    first = scenario_sets(params.environment("wcci2020"), params.scenarios)["train"][0]
    for step in range(20):
        np.testing.assert_array_equal(observation.load_p, first.load_p[step])
        observation, _, done, info = agent.env.step(agent.act(observation, 0.0))
        assert not done and not info["is_illegal"]


def test_a_script_that_plays_a_policy_ends_without_a_word(policy, tmp_path):
    """Grid2Op closes an environment's parts twice at exit, with a traceback, unless it is closed before."""
    from conftest import ROOT

    policy.deployed.save(tmp_path / "policy.safetensors")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from ace.deploy import grid_agent\n"
        f"closed, left = (grid_agent('case14', {str(tmp_path / 'policy.safetensors')!r}) for _ in range(2))\n"
        "for agent in (closed, left):\n"
        "    observation, reward, done, info = agent.env.step(agent.act(agent.env.reset(), 0.0))\n"
        "    print(done)\n"
        "closed.env.close()\n"
    )
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "False\nFalse\n")
    assert "Traceback" not in run.stderr and "closed" not in run.stderr, run.stderr
