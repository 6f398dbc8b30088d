"""The official score: the same as Grid2Op's scorer gives on folders of chronics, its fixed points, and runs as rows."""

import bz2
import itertools
import json
import shutil
import warnings

import grid2op
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from grid2op.Agent import DoNothingAgent, RecoPowerlineAgent
from grid2op.utils import ScoreL2RPN2020
from lightsim2grid import LightSimBackend

from ace import baselines, config, evaluate, trained_policies
from ace.config.errors import ConfigError
from ace.grid.environment import GridState, Operator, World
from ace.grid.whatif import WhatIf
from ace.rl.sac import SAC
from ace.run_files import cell_folder, frame, policy_digest, read_cell
from ace.studies import policies
from ace.studies.official_score import measure as official
from ace.studies.official_score.measure import AgentAsOperator, Played, Score, ScoredWorld, fixed_point

FILES = {"load_p": "load_p", "load_q": "load_q", "prod_p": "gen_p", "prod_v": "gen_v"}
FORECASTS = {"load_p": "next_load_p", "load_q": "next_load_q", "prod_p": "next_gen_p", "prod_v": "gen_v"}
SPLIT, N = "test", 3


class Some:
    """Acts by what it sees: a topology action that differs from state to state, or nothing."""

    simulator_calls = dc_calls = llm_calls = 0

    def __init__(self, catalogue):
        self.catalogue = catalogue

    def act(self, state, x, legal):
        ids = self.catalogue.legal_ids(legal)
        return int(ids[int(1000 * state.rho_max) % len(ids)])


@pytest.fixture(scope="module")
def world(params):
    """Limits at which doing nothing loses the grid at once in two of the scenarios, and keeps it to the end in one."""
    spec = params.environment("case14").model_copy(update={"horizon": 60, "thermal_factor": 0.78})
    return World(spec, params.scenarios, params.base.operator)


def play(scored, agent, index):
    (result,) = evaluate.play(scored, agent, SPLIT, [index])
    return result, scored.played()


@pytest.fixture(scope="module")
def points(world):
    """Both fixed points of each scenario: [(Played, Played)]."""
    worlds = [fixed_point(world, name) for name in official.FIXED]
    return [tuple(play(scored, baselines.DoNothing(), index)[1] for scored in worlds) for index in range(N)]


@pytest.fixture(scope="module")
def scorers(world, points):
    return [Score(world.env, *pair) for pair in points]


def write_folder(world, folder):
    """Grid2Op's own files of the environment, with our scenarios in place of its chronics."""
    source = world.env.get_path_env()
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("chronics", "_statistics*", "__pycache__"))
    env = world.env
    names = {"load": env.name_load, "prod": env.name_gen}
    for index in range(N):
        chronics = folder / "chronics" / f"{index:04d}"
        chronics.mkdir(parents=True)
        (chronics / "start_datetime.info").write_text("2019-01-01 00:00\n")
        (chronics / "time_interval.info").write_text("00:05\n")
        scenario = world.sets[SPLIT][index]
        for ending, columns in (("", FILES), ("_forecasted", FORECASTS)):
            for name, attribute in columns.items():
                rows = getattr(scenario, attribute)
                text = [";".join(names[name[:4]]), *(";".join(f"{value:.2f}" for value in row) for row in rows)]
                with bz2.open(chronics / f"{name}{ending}.csv.bz2", "wt") as file:
                    file.write("\n".join(text) + "\n")


@pytest.fixture(scope="module")
def theirs(world, tmp_path_factory):
    """Grid2Op's scorer as it is, on folders: function of an agent -> (scores, steps played) of all scenarios."""
    folder = tmp_path_factory.mktemp("grid2op") / "case14_of_ours"
    write_folder(world, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = grid2op.make(str(folder), backend=LightSimBackend())
        env.set_thermal_limit(world.env.get_thermal_limit())
        steps = world.spec.horizon
        scorer = ScoreL2RPN2020(env, nb_scenario=N, env_seeds=[0] * N, agent_seeds=[0] * N, max_step=steps)

    def score(agent, operator):
        shell = evaluate.GridAgent(env.action_space, world, agent)
        shell.operator = operator
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return scorer.get(shell)[:2]

    yield score
    env.close()


@pytest.mark.parametrize("name", ["do_nothing", "some"])
def test_grid2ops_scorer_on_folders_gives_the_same_scores(world, theirs, scorers, params, name):
    settings = params.settings("do_nothing" if name == "do_nothing" else "reconnect")
    agent, operator = Some(world.catalogue) if name == "some" else baselines.DoNothing(), Operator(settings.operator)
    scores, steps = theirs(agent, operator)
    found = [play(ScoredWorld(world, operator), agent, index)[1] for index in range(N)]
    assert [len(played.costs) for played in found] == steps
    assert [scorer(played) for scorer, played in zip(scorers, found, strict=True)] == pytest.approx(scores, abs=1e-3)
    if name == "some":
        assert len({round(score) for score in scores}) == N, "scores that differ, or nothing is shown"


# --- the scale ---


def test_the_fixed_points_are_those_of_the_scale(world, points, scorers, params):
    ended = [do_nothing.survived_steps == world.spec.horizon for do_nothing, _ in points]
    assert sorted(ended) == [False, False, True]
    operator = Operator(params.settings("do_nothing").operator)
    for index, (scorer, (do_nothing, unprotected)) in enumerate(zip(scorers, points, strict=True)):
        assert (scorer(do_nothing), scorer(unprotected)) == (0, 0 if ended[index] else 80)
        assert unprotected.survived_steps == len(unprotected.costs) == world.spec.horizon
        result, played = play(ScoredWorld(world, operator), baselines.DoNothing(), index)
        assert (scorer(played), result.survived_steps) == (0, do_nothing.survived_steps)


def test_between_the_points_by_hand(world, points, scorers):
    """The formula once more: costs of the steps but the last, then the whole load."""
    price = float(np.max(world.env.gen_cost_per_MW))
    for scorer, (do_nothing, unprotected) in zip(scorers, points, strict=True):
        loads = unprotected.load_p[1:].sum(axis=1, dtype=float)

        def cost(played, loads=loads):
            return played.costs[:-1].sum(dtype=float) + price * loads[len(played.costs) :].sum()

        ends, at = [0.0, cost(unprotected), cost(do_nothing), price * loads.sum()], [100, 80, 0, -100]
        if ends[1] == ends[2]:  # doing nothing plays it to the end: no scale from 0 to 80
            del ends[1], at[1]
        assert ends == sorted(ends)
        for n in (1, 2, 30, 59, 60):
            for factor in (0.5, 1, 2):
                played = Played(n - 1, (factor * unprotected.costs[:n]).astype(np.float32))
                expected = np.interp(cost(played), ends, at)
                assert scorer(played) == pytest.approx(expected, abs=0.01)


def test_longer_is_better_and_free_is_100(world, points, scorers):
    for scorer, (do_nothing, unprotected) in zip(scorers, points, strict=True):
        top = scorer(unprotected)
        assert top == (80 if len(do_nothing.costs) < world.spec.horizon else 0)
        scores = [scorer(Played(n, unprotected.costs[:n])) for n in range(1, world.spec.horizon + 1)]
        assert scores == sorted(scores) and scores[0] < -60 and scores[-1] == top
        assert scorer(Played(world.spec.horizon, np.zeros(world.spec.horizon, dtype=np.float32))) == 100


def test_costs_are_losses_at_the_price_of_the_dearest_running_unit(world, points):
    _, unprotected = points[0]
    prices = world.env.gen_cost_per_MW
    for t in (0, 20, 59):
        gen, load = unprotected.gen_p[t + 1], unprotected.load_p[t + 1]
        expected = (gen.sum(dtype=float) - load.sum(dtype=float)) * prices[gen > 0].max() * 5 / 60
        assert unprotected.costs[t] == pytest.approx(expected, rel=1e-3)


# --- where the numbers come from ---


def test_the_shared_world_keeps_its_protections(world, points):
    assert not world.env.parameters.NO_OVERFLOW_DISCONNECTION
    WhatIf(world)  # refuses a world without them
    scored = fixed_point(world, "grid2op_unprotected")
    assert scored.env is not world.env and scored.env.parameters is not world.env.parameters


def test_a_scored_world_plays_as_the_world_itself(world, params):
    agent = Some(world.catalogue)
    for index in range(N):
        result, _ = play(ScoredWorld(world, world.operator), agent, index)
        assert result.row() == play_plain(world, agent, index).row()


def play_plain(world, agent, index):
    (result,) = evaluate.play(world, agent, SPLIT, [index])
    return result


def test_lines_are_put_back_as_grid2ops_agent_does(world):
    """Two lines out and ready at once: its choice, by simulation, and not ours, the first one."""
    scored = fixed_point(world, "grid2op_unprotected")
    scored.scenario, scored.t = scored.sets[SPLIT][0], 0
    scored._first_state(0)
    space = scored.env.action_space
    for line in (3, 12):
        obs, _, done, _ = scored.env.step(space({"set_line_status": [(line, -1)]}))
    while obs.time_before_cooldown_line.any():
        obs, _, done, _ = scored.env.step(space())
    assert not done
    state = GridState.from_observation(obs)
    chosen = RecoPowerlineAgent(space).act(obs, 0.0).line_set_status
    assert np.flatnonzero(chosen).tolist() == [scored.operator.reconnection(state)]
    idle = AgentAsOperator(scored.env, DoNothingAgent)
    assert idle.reconnection(state) is None and not scored.operator.in_danger(state)


# --- from policies to rows ---


@pytest.fixture
def project(workspace, small_world, params, monkeypatch):
    """A workspace with an untrained policy in place of that of a run."""

    def change(raw):
        raw["grid"].update(variants=["sac"], baselines=["do_nothing", "reconnect", "greedy"])

    folder = workspace(change)
    run = folder / "results/runs/case14/sac/seed=0"
    run.mkdir(parents=True)
    policy = SAC(small_world.catalogue, small_world.features.n, params.base.sac, seed=3).acting
    policy.save(run / "policy.safetensors")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ACE_JOBS", "1")
    trained_policies.world_of.cache_clear()
    yield folder
    trained_policies.world_of.cache_clear()


def test_rows_of_all_runs(project, capsys):
    table = official.play_official("case14", episodes=5)
    written = project / "results/studies/official_score/case14.csv"
    first = written.read_bytes()
    assert "100%" in capsys.readouterr().err
    back = pd.read_csv(written)
    methods = [*official.FIXED, "do_nothing", "reconnect", "greedy", "sac"]
    assert list(back.columns) == official.COLUMNS and list(dict.fromkeys(back["variant"])) == methods
    assert back["episode"].tolist() == [0, 1, 2] * len(methods) and len(table) == len(back)  # 3 test scenarios
    np.testing.assert_allclose(back["survival"], back["survived_steps"] / 96, atol=1e-5)
    means = back.groupby("variant")["score"].mean()
    assert means["do_nothing"] == means["grid2op_do_nothing"] == 0 < means["greedy"]
    assert back["score"].between(-100, 100).all()
    official.play_official("case14", episodes=5)
    assert written.read_bytes() == first


def test_what_is_slow_is_left_out(params):
    idle, learned = params.played("official_score", "wcci2020")
    assert idle == ["do_nothing", "reconnect", "greedy", "dc_argmin"]
    assert learned == ["sac", "ace", "ace_no_critic", "frequency_refine"]


def test_a_missing_policy_is_named_before_anything_is_played(project, monkeypatch):
    (project / "results/runs/case14/sac/seed=0/policy.safetensors").unlink()
    monkeypatch.setattr(official, "_play", None)
    with pytest.raises(FileNotFoundError, match=r"no results/runs/case14/sac/seed=0/policy.safetensors"):
        official.play_official("case14")


def test_a_policy_that_its_cell_does_not_keep_is_that_of_its_training(project):
    kept = project / "results/runs/case14/sac/seed=0/policy.safetensors"
    left = project / "checkpoints/results/case14/sac/seed=0/policy.safetensors"
    left.parent.mkdir(parents=True)
    kept.rename(left)
    params, cell = config.load(), project / "results/runs/case14/sac"
    (cell / "episodes.csv").write_text("seed,episode\n0,0\n")
    for digest, found in ((policy_digest(left), str(left.relative_to(project))), ("of another run", None)):
        (cell / "manifest.json").write_text(json.dumps({"seeds": {"0": {"policy_sha256": digest}}}))
        assert trained_policies.policy_of(project, "case14", "sac", 0) == found
    with pytest.raises(FileNotFoundError, match=r"no results/runs/case14/sac/seed=0/policy.safetensors"):
        policies.tasks_of(params, "case14", [], ["sac"])


def test_what_asks_a_language_model_is_not_played_as_doing_nothing(params, small_world):
    with pytest.raises(ConfigError, match="'llm_only' can't be played again"):
        trained_policies.agent_of(params.settings("llm_only"), "case14", small_world, None)


def test_a_grid_of_another_competition_is_refused(workspace, monkeypatch):
    folder = workspace(lambda raw: raw["environments"]["case14"].update(grid2op="l2rpn_wcci_2022_dev"))
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=r"case14: l2rpn_wcci_2022_dev is of a later competition"):
        official.play_official("case14")


def test_no_score_where_an_opponent_acts(workspace, monkeypatch):
    folder = workspace(lambda raw: raw["environments"]["case14"].update(opponent=True))
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=r"case14: its opponent would attack"):
        official.play_official("case14")


def test_committed_scores_are_of_the_committed_runs(params):
    """Played again for the score, on Grid2Op itself, every run lasts as long as in its own test, but one (deviation 15)."""
    other = {}
    env = params.grid.ablations.environment
    table = pd.read_csv(ROOT / "results/studies/official_score" / f"{env}.csv")
    for (variant, seed), rows in table[~table["variant"].isin(official.FIXED)].groupby(["variant", "seed"]):
        test = frame(read_cell(cell_folder(ROOT / "results", env, variant))[seed].of_split("test")).set_index("episode")
        assert len(rows) == params.official_score.episodes
        steps = rows.set_index("episode")["survived_steps"]
        differs = steps[steps != test.loc[steps.index, "survived_steps"]]
        other |= {(variant, seed, episode): (n, test["survived_steps"][episode]) for episode, n in differs.items()}
    assert other == {("ace_no_critic", 9, 18): (10, 11)}
    methods = [*official.FIXED, *itertools.chain(*params.played("official_score", env))]
    assert list(dict.fromkeys(table["variant"])) == methods
    fixed = table.groupby("variant")["score"]
    assert fixed.min()["grid2op_do_nothing"] == fixed.max()["grid2op_do_nothing"] == 0
