"""The diagnosis: its measures by hand, its parts against brute force, all of it on 14 substations, and its figure."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from made_up_runs import write_seed

from ace import config, trained_policies
from ace.config import ConfigError
from ace.grid.environment import World
from ace.rl.sac import SAC
from ace.studies.diagnosis import labelled_states
from ace.studies.diagnosis import measure as diagnosis
from ace.studies.diagnosis import show as drawn

SIZES = {"labels": [6, 12], "steps": 10, "decisions": 60, "states": 10, "seeds": 2, "output": "out"}
ACTIONS = [0, 3, 8, 20, 57, 90, 120, 150]


@pytest.fixture(scope="module")
def project(tmp_path_factory, params):
    """A workspace with two untrained policies and a set of actions; ACE is refinement by frequency, without a model."""
    import yaml
    from conftest import small_params

    raw = small_params()
    raw["variants"]["ace"] = {
        "refine": {"proposer": "frequency"}, "shape": {"enabled": False}, "finetune": {"enabled": False}
    }  # fmt: skip
    raw["base"]["train"].update(decisions=80, warmup=10, validate_every=20)
    raw["environments"]["case14"].update(thermal_factor=0.82)  # milder: else all actions are equally bad
    folder = tmp_path_factory.mktemp("diagnosis")
    (folder / "params.yaml").write_text(yaml.safe_dump(raw))
    place = folder / "results/language_model/case14"
    place.mkdir(parents=True)
    budget = {"simulator_calls": 1, "dc_calls": 1, "env_steps": 1}
    (place / "model_manifest.json").write_text(json.dumps({"actions": ACTIONS, "ranking": ACTIONS[::-1], "budget": budget}))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ACE_JOBS", "1")
        bench = labelled_states.DiagnosisSetup("case14")
        for number, variant in enumerate(("sac", "ace")):
            run = folder / "results/runs/case14" / variant / "seed=0"
            run.mkdir(parents=True)
            learner = SAC(bench.catalogue, bench.world.features.n, params.base.sac, seed=number)
            learner.acting.save(run / "policy.safetensors")
            curve = {"seed": 0, "decisions": [25, 45, 81], "entropy": [2.0, 1.0, number], "acted": [0.5, 0.7, 1.0]}
            pd.DataFrame(curve).to_csv(run.parent / "training.csv", index=False)
            pd.DataFrame({"seed": [0], "episode": [0]}).to_csv(run.parent / "episodes.csv", index=False)
            (run.parent / "manifest.json").write_text(json.dumps({"seeds": {"0": {}}}))
        yield folder, bench


@pytest.fixture(scope="module")
def whole(project):
    """(table, its bytes, the splits that were played)."""
    folder, _ = project
    splits, reset = set(), World.reset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "reset", lambda world, split, index: (splits.add(split), reset(world, split, index))[1])
        table = diagnosis.diagnose("case14", **SIZES)
    return table, (folder / "out/studies/diagnosis/case14.csv").read_bytes(), splits


def value(table, series, x):
    found = table[(table["series"] == series) & (table["x"] == str(x))]
    assert len(found) == 1, (series, x)
    return found["value"].iloc[0]


# --- measures by hand -------------------------------------------------------------------------------------------------


def test_rank_correlation():
    assert diagnosis.rank_correlation([1, 2, 3, 4], [1, 10, 11, 500]) == pytest.approx(1)
    assert diagnosis.rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert diagnosis.rank_correlation([1, 2, 3], [2, 1, 3]) == pytest.approx(0.5)
    assert diagnosis.rank_correlation([1, 1, 2], [1, 2, 3]) == pytest.approx(np.sqrt(3) / 2), "ties share their mean rank"
    assert diagnosis.rank_correlation([1, 1, 1], [1, 2, 3]) == 0.0


def test_bias_is_what_the_reward_does_not_explain():
    rewards, held = np.array([-1.0, 0.0, 1.0, -1.0, 0.0, 1.0]), np.array([1, 1, 1, 0, 0, 0], bool)
    assert diagnosis.bias_of(2 * rewards - 3, rewards, held) == pytest.approx(0, abs=1e-9)
    raised = 2 * rewards + held  # the same rewards on both sides: the slope stays and all of it is bias
    assert diagnosis.bias_of(raised, rewards, held) == pytest.approx(1 / raised.std())
    assert diagnosis.bias_of(10 * raised + 7, rewards, held) == pytest.approx(1 / raised.std()), "no unit"
    assert diagnosis.bias_of(2 * rewards - held, rewards, held) < 0
    for nothing in (np.zeros(6, bool), np.ones(6, bool)):
        assert diagnosis.bias_of(raised, rewards, nothing) == 0.0


def test_curves_are_read_at_common_decisions():
    rows = diagnosis.curve("a", [10, 20], [([10, 30], [0.0, 2.0]), ([5, 20], [1.0, 4.0])])
    assert [(r[2], r[3], r[-1]) for r in rows] == [(10, pytest.approx(1.0), 2), (20, pytest.approx(2.5), 2)]


# --- parts ------------------------------------------------------------------------------------------------------------


def test_labelled_states_hold_what_the_simulator_says(project):
    _, bench = project
    states = bench.met("validation", 6)
    assert len(states) == 6
    for j in states:
        assert j.ids[0] == 0 and set(j.ids) <= set(ACTIONS)
        assert all(bench.catalogue.is_legal(j.legal, int(a)) for a in j.ids)
        outcomes = [bench.whatif.simulate(j.state, int(a)) for a in j.ids]
        np.testing.assert_array_equal(j.rewards, [o.reward for o in outcomes])
        assert (j.rho <= labelled_states.LOST).all() and np.isfinite(j.rho).all()
        kept = [o.next_state.line_status.sum() == j.state.line_status.sum() and not o.done for o in outcomes]
        alike = [min(o.next_state.rho_max, labelled_states.LOST) for o in outcomes]
        np.testing.assert_allclose(j.rho[kept], np.array(alike)[kept], atol=2e-3)
        assert labelled_states.SetArgmin(bench).act(j.state, j.x, j.legal) == j.ids[j.rho.argmin()]


def test_a_power_flow_without_a_solution_counts_as_lost(project, monkeypatch):
    _, bench = project
    monkeypatch.setattr(bench.whatif, "ac", lambda state, ids: np.array([np.nan, 0.9, 7.0, np.inf], np.float32))
    np.testing.assert_allclose(bench.rho(None, range(4)), [labelled_states.LOST, 0.9, labelled_states.LOST, labelled_states.LOST])


def test_states_of_an_episode_are_few_and_seen_by_the_visitor(project):
    _, bench = project
    asked = []
    states = bench.visited(lambda x, legal: asked.append(x) or 0, seed=0)
    assert 0 < len(states) <= labelled_states.AN_EPISODE * len(bench.world.sets["validation"])
    assert {bench.world.features(s).tobytes() for s in states} <= {x.tobytes() for x in asked}


def test_imitation_learns_its_labels(project):
    """The network, taught a few labels for long enough, gives them back; untaught it does not."""
    _, bench = project
    labelled = bench.met("train", 8)
    goal = [int(j.ids[j.rho.argmin()]) for j in labelled]
    said = {
        steps: [
            diagnosis.imitate(bench, labelled, 0, steps, rated=False).act(j.x, j.legal, None) == a
            for j, a in zip(labelled, goal, strict=True)
        ]
        for steps in (0, 100)
    }
    assert np.mean(said[100]) > 0.9 > np.mean(said[0])


def test_rated_labels_are_of_the_set_and_the_better_the_likelier(project):
    _, bench = project
    j = bench.met("train", 1)[0]
    j.rho = np.full(len(j.ids), 1.0)
    j.rho[[1, 2]] = [0.98, 0.96]
    rng = np.random.default_rng(0)
    counts = pd.Series([diagnosis._label(j, rng) for _ in range(4000)]).value_counts()
    assert set(counts.index) == set(j.ids)
    assert counts[j.ids[2]] / counts[j.ids[1]] == pytest.approx(np.e, rel=0.15)
    assert counts[j.ids[1]] / counts[j.ids[0]] == pytest.approx(np.e, rel=0.35)


def test_there_are_never_more_labels_than_decisions(project, monkeypatch):
    _, bench = project
    few = bench.settings.model_copy(update={"train": bench.settings.train.model_copy(update={"decisions": 15})})
    monkeypatch.setattr(bench, "settings", few)
    rows = diagnosis.representation(bench, bench.met("validation", 4), [6, 500], 3, 1)
    assert {x for _, series, x, *_ in rows if series.startswith("fit")} == {6, 15}


# --- all of it --------------------------------------------------------------------------------------------------------


def test_no_test_scenario_is_played(whole):
    assert whole[2] == {"train", "validation"}


def test_five_questions_and_their_numbers(whole):
    table, _, _ = whole
    assert list(table.columns) == diagnosis.COLUMNS
    assert list(dict.fromkeys(table["question"])) == [
        "representation",
        "credit",
        "distribution",
        "mixing",
        "exploration",
    ]
    assert table["value"].notna().all() and not table.duplicated(["question", "series", "x"]).any()
    inside = table["ci_low"].isna() | (
        (table["ci_low"] <= table["value"] + 1e-9) & (table["value"] <= table["ci_high"] + 1e-9)
    )
    assert inside.all()
    percent = table["series"].str.startswith(("survival", "accuracy", "at the hub", "do nothing"))
    assert table.loc[percent, "value"].between(0, 100).all() and percent.sum() > 10
    assert table.loc[table["series"] == "rank correlation", "value"].between(-1, 1).all()
    assert (table.loc[table["series"] == "regret: do nothing", "value"] >= 0).all()
    counts = table.set_index(["series", "x"])["n"]
    assert counts["accuracy: rated set", "12"] == 2 * 10 and counts["survival: rated set", "12"] == 2 * 2
    assert counts["rank correlation", "sac"] == 2 * 10 and counts["effective actions: ace", "40"] == 1


def test_curves_of_the_run_files(whole):
    table, _, _ = whole
    assert value(table, "effective actions: sac", 40) == pytest.approx(np.exp(1) + (np.exp(2) - np.exp(1)) * 0.25)
    assert value(table, "effective actions: ace", 80) == pytest.approx(np.exp(1), rel=0.01)
    assert value(table, "do nothing: sac", 80) == pytest.approx(100 * 0.3 / 36, rel=0.01)


def test_without_rows_of_d_llm_in_its_batches_ace_is_sac(whole):
    """Here ACE shapes nothing, so that beta alone makes the difference."""
    table, _, _ = whole
    for series in ("rank correlation", "bias for D_LLM", "regret of the best-rated"):
        assert value(table, series, "ace, beta 0") == value(table, series, "sac")
    assert value(table, "rank correlation", "ace, beta 0.5") != value(table, "rank correlation", "sac")
    assert value(table, "survival", "0.0") == value(table, "survival", "sac")
    assert value(table, "rows of D_LLM", "0.0") > 0 and value(table, "gain of a row", "0.0") > 0.02


def test_the_same_bytes_whatever_a_process_has_done_before(project, whole, monkeypatch):
    folder, _ = project
    backwards = lambda function, tasks: [(n, function(*task)) for n, task in reversed([*enumerate(tasks)])]  # noqa: E731
    monkeypatch.setattr(trained_policies.pool, "finished", backwards)
    diagnosis.diagnose("case14", **SIZES)
    assert (folder / "out/studies/diagnosis/case14.csv").read_bytes() == whole[1]


def test_what_is_missing_is_named_before_anything_is_measured(project, monkeypatch):
    folder, _ = project
    monkeypatch.setattr(labelled_states.DiagnosisSetup, "met", None)
    policy = folder / "results/runs/case14/ace/seed=0/policy.safetensors"
    kept = policy.read_bytes()
    policy.unlink()
    with pytest.raises(FileNotFoundError, match=r"no results/runs/case14/ace/seed=0/policy\.safetensors"):
        diagnosis.diagnose("case14", **SIZES)
    policy.write_bytes(kept)
    (folder / "results/chronics").symlink_to(ROOT / "results/chronics")
    with pytest.raises(ConfigError, match=r"no model_manifest\.json at results/language_model/wcci2020"):
        diagnosis.diagnose("wcci2020", **SIZES)
    assert config.load().scale == "quick"


def test_an_ablation_is_read_with_its_own_seeds(whole_params, tmp_path, monkeypatch):
    params = whole_params
    ablations = params.grid.ablations.model_copy(update={"seeds": [3, 7]})
    params = params.model_copy(update={"grid": params.grid.model_copy(update={"ablations": ablations})})
    variant, settings = ablations.variants[0], params.settings("ace")
    for seed in ablations.seeds:
        curve = pd.DataFrame({"decisions": [0, 9999], "entropy": [0.0, 0.0], "acted": [seed / 10] * 2})
        write_seed(tmp_path / "results", {"env": "a", "variant": variant, "seed": seed}, pd.DataFrame({"episode": [0]}), curve)
    monkeypatch.setattr(diagnosis, "share_at_hub", lambda policy, heldout: 25.0)
    bench = SimpleNamespace(params=params, root=tmp_path, environment="a", settings=settings)
    rows = diagnosis.exploration(bench, {variant: [None, None]}, [], [])
    nothing = [row for row in rows if row[1] == f"do nothing: {variant}"]
    assert nothing[0][3] == pytest.approx(50) and nothing[0][-1] == 2
    assert rows[-1][1:4] == [f"at the hub: {variant}", "trained", 25.0]


# --- the figure and the words -----------------------------------------------------------------------------------------


def test_figure_and_its_data(whole, tmp_path):
    table, text, _ = whole
    for folder in (tmp_path / "a", tmp_path / "b"):
        drawn.write_figure(table, folder, "case14")
    kinds = ("png", "pdf", "md")
    for kind in (*kinds, "csv", *(f"_2.{kind}" for kind in kinds)):
        first, second = (tmp_path / name / f"diagnosis_case14{kind if '.' in kind else f'.{kind}'}" for name in "ab")
        assert first.read_bytes() == second.read_bytes() and first.stat().st_size > 1000
    assert (tmp_path / "a/diagnosis_case14.csv").read_bytes() == text
