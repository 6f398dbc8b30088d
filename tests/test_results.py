"""The committed results belong together: README, tables, run files and parameters."""

import json

import pandas as pd
import pytest
from conftest import ROOT

from ace import config
from ace.report import claims, runs, show

RESULTS = ROOT / "results"


@pytest.fixture(scope="module")
def committed(params):
    return runs.read(params, RESULTS)


def test_readme_shows_the_committed_claims():
    assert show.readme_is_stale(ROOT / "README.md", claims.read_written(RESULTS)) is None


def test_readme_shows_files_that_are_there():
    text = (ROOT / "README.md").read_text()
    for place in [part.split(")")[0] for part in text.split("](")[1:]]:
        assert place.startswith("http") or (ROOT / place).exists(), place


def test_every_survival_in_the_main_table_is_the_mean_of_its_run_files(params):
    table = pd.read_csv(RESULTS / "tables" / "main.csv")
    rows = table[table["metric"] == "survival"]
    assert {"do_nothing", "reconnect", "greedy", "sac", "ace"} <= set(rows["variant"])
    for row in rows.itertuples():
        seeds = params.seeds if row.variant in [*params.grid.variants, *params.grid.other_model] else [0]
        means = []
        for seed in seeds:
            episodes = pd.read_csv(RESULTS / "runs" / row.env / row.variant / f"seed={seed}" / "episodes.csv")
            means.append(100 * episodes["survival"].mean())
        assert row.mean == pytest.approx(sum(means) / len(means), rel=1e-4)
        assert row.n_seeds == len(seeds) and row.scale == params.scale


def test_all_methods_played_the_same_test_episodes(committed):
    for env in committed.environments:
        of_env = [run for variant in committed.methods_of(env) for run in committed.of(env, variant)]
        assert len({run.manifest["test_hash"] for run in of_env}) == 1
        assert len({tuple(run.episodes["scenario"]) for run in of_env}) == 1


def test_runs_are_of_the_parameters_as_they_stand(params, committed):
    for env in committed.environments:
        for variant in committed.methods_of(env):
            for run in committed.of(env, variant):
                assert run.manifest["settings"] == json.loads(params.settings(variant).model_dump_json())
                assert run.manifest["environment"] == json.loads(params.environment(env).model_dump_json())


def test_deployed_policies_asked_nobody(committed):
    for env in committed.environments:
        for variant in committed.methods_of(env):
            for run in committed.of(env, variant):
                if run.training is not None:
                    test = run.manifest["budget"]["test"]
                    assert test["llm_calls"] == test["simulator_calls"] == test["dc_calls"] == 0


def test_every_claim_is_there_with_a_verdict():
    table = claims.read_written(RESULTS)
    assert list(table["id"]) == [f"C{i}" for i in range(1, 15)]
    assert set(table["verdict"]) <= {"reproduced", "partly", "not reproduced", "not tested"}
    assert config.load(ROOT / "params.yaml").scale == table["scale"].iloc[0]


def test_claims_and_paired_differences_tell_the_same(params):
    """One number must not have two intervals, an above-0 here and a not-told-apart there."""
    evidence = claims.read_written(RESULTS).set_index("id").loc["C2", "evidence"]
    pairs = pd.read_csv(RESULTS / "tables" / "paired.csv").set_index(["env", "a", "b", "metric"])
    own, _, longer = evidence.partition("ace against sac_5k: ")
    for env in params.grid.environments:
        for other, told in (("sac", own), ("sac_5k", longer)):
            row = pairs.loc[(env, "ace", other, "survival")]
            assert f"{env} {row['difference']:.3g} [{row['ci_low']:.3g}, {row['ci_high']:.3g}]" in told
