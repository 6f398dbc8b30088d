"""The committed results belong together: README, tables, run files and parameters."""

import json

import pandas as pd
import pytest
from conftest import ROOT

from ace import config
from ace.report import claims, claims_text, runs
from ace.run_files import POLICY, cell_folder, read_cell, read_provenance

RESULTS = ROOT / "results"
MAIN = RESULTS / "paper" / "10_table_main"


@pytest.fixture(scope="module")
def committed(params):
    """All cells of the grid: `runs.read` reads an ablation on one environment only."""
    return runs.read_cells(params, RESULTS, list(dict.fromkeys((env, variant) for _, env, variant in params.grid.cells)))


def test_readme_shows_the_committed_claims():
    assert claims_text.readme_is_stale(ROOT / "README.md", claims.read_written(RESULTS)) is None


def test_every_survival_in_the_main_table_is_the_mean_of_its_run_files(params):
    table = pd.read_csv(MAIN / "main.csv")
    rows = table[table["metric"] == "survival"]
    assert {"do_nothing", "reconnect", "greedy", "sac", "ace"} <= set(rows["variant"])
    for row in rows.itertuples():
        seeds = params.seeds_of(row.variant)
        episodes = pd.read_csv(cell_folder(RESULTS, row.env, row.variant) / "episodes.csv").query("split == 'test'")
        means = episodes[episodes["seed"].isin(seeds)].groupby("seed")["survival"].mean()
        assert row.mean == pytest.approx(100 * means.mean(), rel=1e-4)
        assert row.n_seeds == len(seeds) and row.scale == params.scale


def test_committed_runs_are_those_of_the_grid_and_of_their_provenance(committed):
    cells = sorted(path.parent for path in RESULTS.glob("runs/*/*/manifest.json"))
    declared = {(env, name) for env in committed.environments for name in committed.methods_of(env)}
    assert {(folder.parent.name, folder.name) for folder in cells} == declared
    for folder in cells:
        runs_, noted = read_cell(folder), read_provenance(RESULTS, folder.parent.name, folder.name)
        assert set(noted) == set(runs_)
        seed = min(runs_)  # of each cell one: every policy is half a minute
        assert runs_[seed].digest() == noted[seed]["result_sha256"], folder


def test_every_policy_that_git_keeps_is_there(params, committed):
    for env in committed.environments:
        for variant in committed.methods_of(env):
            for seed in params.kept_seeds(env, variant):
                assert (cell_folder(RESULTS, env, variant) / f"seed={seed}" / POLICY).is_file(), (env, variant, seed)


def test_all_methods_played_the_same_test_episodes(committed):
    for env in committed.environments:
        of_env = [run for variant in committed.methods_of(env) for run in committed.of(env, variant)]
        assert len({run.manifest["test_hash"] for run in of_env}) == 1
        assert len({tuple(run.episodes["scenario"]) for run in of_env}) == 1


def test_runs_are_of_the_parameters_as_they_stand(params, committed):
    for env in committed.environments:
        declared = json.loads(json.dumps(params.environment(env).without_making()))
        for variant in committed.methods_of(env):
            settings = json.loads(json.dumps(params.settings(variant).as_recorded()))
            for run in committed.of(env, variant):
                assert run.manifest["settings"] == settings and run.manifest["environment"] == declared, (env, variant)


def test_deployed_policies_asked_neither_simulator_nor_model(committed):
    for env in committed.environments:
        for variant in committed.methods_of(env):
            for run in committed.of(env, variant):
                if run.training is not None:
                    test = run.manifest["budget"]["test"]
                    assert test["llm_calls"] == test["simulator_calls"] == test["dc_calls"] == 0


def test_the_fast_world_and_grid2op_gave_the_same_episodes(params, committed):
    """Of those that were repeated. A loading within rounding of a limit may decide otherwise: in one of 200."""
    cells = [(env, name) for env in committed.environments for name in committed.methods_of(env)]
    none = {"episodes": 0, "differ": []}
    found = [run.manifest.get("repeats", none) for cell in cells for run in committed.of(*cell)]
    repeated = [env for env in committed.environments if not params.environment(env).opponent]
    trained = [run for env, name in cells for run in committed.of(env, name) if env in repeated and run.training is not None]
    assert trained and all(run.manifest["repeats"]["episodes"] == params.scenarios.repeats for run in trained)
    assert sum(len(each["differ"]) for each in found) <= sum(each["episodes"] for each in found) / 200


def test_every_claim_is_there_with_a_verdict():
    table = claims.read_written(RESULTS)
    assert list(table["id"]) == [f"C{i}" for i in range(1, 15)]
    assert set(table["verdict"]) <= {"reproduced", "partly", "contradicted", "inconclusive", "not tested"}
    assert config.load(ROOT / "params.yaml").scale == table["scale"].iloc[0]


def test_claims_and_paired_differences_tell_the_same(params):
    """One number must not have two intervals, significant here and not significant there."""
    claim = claims.read_written(RESULTS).set_index("id").loc["C2"]
    evidence = claim["evidence"]
    pairs = pd.read_csv(MAIN / "paired.csv").set_index(["env", "a", "b", "metric"])
    if len(params.grid.environments) == 1:  # then no grid's is told beside the mean over the grids
        evidence = "{} {measured:.3g} [{ci_low:.3g}, {ci_high:.3g}]".format(*params.grid.environments, **claim)
    for env in params.grid.environments:
        row = pairs.loc[(env, "ace", "sac", "survival")]
        assert f"{env} {row['difference']:.3g} [{row['ci_low']:.3g}, {row['ci_high']:.3g}]" in evidence
