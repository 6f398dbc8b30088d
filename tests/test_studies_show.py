"""The studies' tables and figures, on the made-up results of test_report: numbers by hand, refusals, stable bytes."""

import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from made_up_runs import change_manifest, change_provenance, manifest_of
from test_report import ENVS, EPISODE_EASE, LEVELS, row, small_grid, write_grid, write_run

from ace.report import pretrained as policies
from ace.report import runs
from ace.report.labels import grid_label
from ace.report.runs import ReportError
from ace.studies.foresight import show as foresight
from ace.studies.official_score import show as official

PARAMS = small_grid()


@pytest.fixture
def results(tmp_path):
    return write_grid(tmp_path / "results", PARAMS)


def shown(results):
    """Where the shows of these tests write."""
    return results / "show"


# --- the official score ---


@pytest.fixture
def scored(results):
    """Made-up scores: 100 times what survival is in test_report, less 30; the fixed points at 0 and 80."""
    for env in ENVS[:1]:
        rows = []
        for variant in [*official.FIXED, *runs.declared(PARAMS)]:
            for seed in [0] if variant in official.FIXED else PARAMS.seeds_of(variant):
                for episode, ease in enumerate(EPISODE_EASE):
                    survival = LEVELS.get(variant, 1.0) + (0.01 * seed + ease if variant in LEVELS else 0)
                    score = 100 * survival - 30 if variant in LEVELS else {"grid2op_do_nothing": 0}.get(variant, 80)
                    if variant == "grid2op_do_nothing":
                        survival = 1.0 if episode == 0 else 0.5
                    rows.append({"env": env, "variant": variant, "seed": seed, "episode": episode,
                                 "survival": survival, "score": score})  # fmt: skip
        path = results / "studies" / "official_score" / f"{env}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).to_csv(path, index=False)
    return results


def test_official_scores_by_hand(scored):
    table = official.write_scores(PARAMS, scored, shown(scored))
    found = row(table, env="wcci2020", variant="ace")
    assert found["score"] == pytest.approx(41) and found["std"] == pytest.approx(1)  # seeds at 40, 41, 42
    assert found["survival"] == pytest.approx(71)
    assert found["ci_low"] < 41 < found["ci_high"]
    assert (found["minus_reconnect"], found["minus_sac"]) == pytest.approx((36, 30))
    assert np.isnan(found["minus_frequency_refine"]), "which this grid does not run"
    assert (found["n_seeds"], found["n_episodes"], found["n_safe"]) == (3, len(EPISODE_EASE), 1)
    parts = 41 + 100 * EPISODE_EASE[0], 41 + 100 * np.mean(EPISODE_EASE[1:])
    assert (found["safe"], found["unsafe"]) == pytest.approx(parts), "where Grid2Op's do-nothing agent survives, and elsewhere"
    assert np.isnan(row(table, env="wcci2020", variant="sac")["minus_sac"])
    fixed = row(table, env="wcci2020", variant="grid2op_unprotected")
    assert (fixed["score"], fixed["ci_low"], fixed["ci_high"], fixed["completed"]) == (80, 80, 80, 100)
    text = (shown(scored) / "official_score.md").read_text()
    assert "| WCCI 2020 | ACE | 41.0 ± 1.0 |" in text and "the point 80 | 80.0 |" in text
    first = [(shown(scored) / f"official_score.{end}").read_bytes() for end in ("csv", "md")]
    official.write_scores(PARAMS, scored, shown(scored))
    assert [(shown(scored) / f"official_score.{end}").read_bytes() for end in ("csv", "md")] == first


@pytest.mark.parametrize("missing", ["sac", "greedy", "grid2op_unprotected"])
def test_official_scores_that_are_old_or_missing_are_refused(scored, missing):
    path = scored / "studies/official_score/wcci2020.csv"
    table = pd.read_csv(path)
    table[(table["variant"] != missing) | (table["seed"] == 1)].to_csv(path, index=False)
    remedy = r"run notebooks/studies/official_score_measure.ipynb"
    with pytest.raises(ReportError, match=rf"wcci2020.csv has not the declared seeds of {missing}: {remedy}"):
        official.write_scores(PARAMS, scored, shown(scored))
    path.unlink()
    with pytest.raises(ReportError, match=rf"no results/studies/official_score/wcci2020.csv: {remedy}"):
        official.write_scores(PARAMS, scored, shown(scored))


# --- foresight ---


def write_foresight_of(results, env, gain=0.1, most_played=5):
    made = []
    for variant in PARAMS.played("foresight", env)[1]:
        for seed in PARAMS.seeds_of(variant):
            for most, level in ((1, 0.0), (5, 0.04)):
                made += [
                    [env, variant, seed, "validation", most, 7 + i, LEVELS[variant] + level, 4, 5 * most]
                    for i in range(3)
                ]
            for episode, ease in enumerate(EPISODE_EASE):
                survival = LEVELS[variant] + 0.01 * seed + ease + gain
                made.append([env, variant, seed, "test", most_played, episode, survival, 4, 20])
    made += [[env, "set", 0, "test", 60, episode, 0.5 + ease, 4, 240] for episode, ease in enumerate(EPISODE_EASE)]
    path = results / "studies" / "foresight" / f"{env}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = ["env", "variant", "seed", "split", "n_candidates", "scenario", "survival", "decisions", "dc_calls"]
    pd.DataFrame(made, columns=columns).to_csv(path, index=False)


@pytest.fixture
def foreseen(results):
    for env in ENVS:
        write_foresight_of(results, env)
    return results


def test_foresight_by_hand(foreseen):
    table = foresight.write_foresight(PARAMS, foreseen, shown(foreseen))
    found = row(table, env="case14", variant="ace")
    alone = 100 * (0.71 + EPISODE_EASE.mean())
    assert found["alone"] == pytest.approx(alone) and found["survival"] == pytest.approx(alone + 10)
    # seed by seed and episode by episode the same change: nothing is left to resample
    assert (found["gain"], found["gain_low"], found["gain_high"]) == pytest.approx((10, 10, 10))
    assert found["minus_sac"] == pytest.approx(30)
    assert found["minus_sac_low"] < 30 < found["minus_sac_high"]
    assert (found["n_candidates"], found["dc_calls_a_decision"]) == (5, 5)
    assert (found["n_seeds"], found["n_episodes"]) == (3, len(EPISODE_EASE))
    of_sac, of_set = row(table, env="case14", variant="sac"), row(table, env="case14", variant="set")
    assert np.isnan(of_sac["minus_sac"]) and of_sac["ace_minus"] == pytest.approx(30) and np.isnan(found["ace_minus"])
    assert of_set["survival"] == pytest.approx(100 * (0.5 + EPISODE_EASE.mean())) and np.isnan(of_set["alone"])
    assert (of_set["n_candidates"], of_set["n_seeds"], of_set["dc_calls_a_decision"]) == (60, 1, 60)
    drawn = pd.read_csv(shown(foreseen) / "foresight_figure.csv")
    ours = drawn[(drawn["env"] == "case14") & (drawn["variant"] == "ace")]
    assert ours["n_candidates"].tolist() == [1, 5] and ours["chosen"].tolist() == [0, 1]
    assert ours["survival"].tolist() == pytest.approx([70, 74])
    assert "+30.0 [" in (shown(foreseen) / "foresight.md").read_text()


def test_the_way_is_from_doing_nothing_to_greedy(foreseen):
    table = foresight.write_foresight(PARAMS, foreseen, shown(foreseen))
    played = runs.read(PARAMS, foreseen)
    floor, top = (played.scores("case14", variant, "survival").mean() for variant in ("do_nothing", "greedy"))
    found = row(table, env="case14", variant="ace")
    assert found["way"] == pytest.approx(100 * (found["survival"] - floor) / (top - floor))
    assert found["way_alone"] == pytest.approx(100 * (found["alone"] - floor) / (top - floor))
    higher = played.scores("case14", "reconnect", "survival").mean()
    assert found["way_reconnect"] == pytest.approx(100 * (found["survival"] - higher) / (top - higher))
    without = small_grid()
    without.grid.baselines = ["reconnect"]
    table = foresight.write_foresight(without, foreseen, shown(foreseen))
    assert table[["way", "way_alone", "way_reconnect"]].isna().all(axis=None), "greedy was not played"


def test_an_ablation_with_foresight_is_shown_on_its_environment(results):
    params, env = small_grid(), ENVS[0]
    params.grid.ablations.variants = ["ace_K01"]
    params.foresight.variants.append("ace_K01")
    for seed in params.seeds_of("ace_K01"):
        write_run(results, env, "ace_K01", seed, True, LEVELS["ace"])
    for each in ENVS:
        write_foresight_of(results, each)
    path = results / "studies/foresight" / f"{env}.csv"
    table = pd.read_csv(path)
    more = table[(table["variant"] == "ace") & table["seed"].isin(params.grid.ablations.seeds)].assign(variant="ace_K01")
    pd.concat([table, more]).to_csv(path, index=False)
    shows = foresight.write_foresight(params, results, shown(results))
    found = row(shows, env=env, variant="ace_K01")
    assert found["n_seeds"] == 2 and found["gain"] == pytest.approx(10)
    assert list(shows.loc[shows["variant"] == "ace_K01", "env"]) == [env]


def test_foresight_of_other_scenarios_is_refused(foreseen):
    path = foreseen / "studies/foresight/case14.csv"
    table = pd.read_csv(path)
    table.loc[table["split"] == "test", "scenario"] += 1
    table.to_csv(path, index=False)
    with pytest.raises(
        ReportError, match=r"case14.csv has other test scenarios than the runs: run .*foresight_measure"
    ):
        foresight.write_foresight(PARAMS, foreseen, shown(foreseen))


def test_foresight_of_other_seeds_or_missing_is_refused(foreseen):
    path = foreseen / "studies/foresight/case14.csv"
    table = pd.read_csv(path)
    for kept in ((table["variant"] != "sac") | (table["seed"] != 1), table["variant"] != "sac"):
        table[kept].to_csv(path, index=False)
        with pytest.raises(ReportError, match=r"case14.csv has not the declared seeds of sac: run .*foresight_measure"):
            foresight.write_foresight(PARAMS, foreseen, shown(foreseen))
    path.unlink()
    assert set(foresight.write_foresight(PARAMS, foreseen, shown(foreseen))["env"]) == set(ENVS) - {"case14"}, "not measured yet"
    path.with_name(f"{ENVS[0]}.csv").unlink()
    with pytest.raises(ReportError, match=rf"no results/studies/foresight/{ENVS[0]}.csv: run .*foresight_measure"):
        foresight.write_foresight(PARAMS, foreseen, shown(foreseen))


# --- the policy that learned from the pretrained model ---


@pytest.fixture
def with_pretrained(results):
    """Two variants on case14, one on the other grid, with seeds 1 and 2 of the main grid's three; and the lookup table."""
    params = small_grid()
    params.grid.pretrained = SimpleNamespace(environments=ENVS[::-1], seeds=[1, 2], variants=["ace_pretrained"])
    params.grid.variants.append("frequency_refine")
    for env in ENVS:
        for seed in (1, 2):
            write_run(results, env, "ace_pretrained", seed, True, level=0.75, refinements=200 + seed)
        for seed in (0, 1, 2):
            write_run(results, env, "frequency_refine", seed, True, level=0.8)
    return params


def test_policies_of_the_pretrained_model_by_hand(results, with_pretrained):
    assert with_pretrained.seeds_of("ace_pretrained") == [1, 2]
    budget = manifest_of(results, "case14/ace_pretrained/seed=1")["budget"]
    budget["test"]["env_steps"] = 10**6  # of the test, and so not shown
    change_manifest(results, "case14/ace_pretrained/seed=1", budget=budget, tokens={"actor": 300, "critic": 100})
    change_provenance(results, "case14/ace_pretrained/seed=1", {"wall_s": {"train": 150.0, "llm": 120.0, "finetune": 12.0}})
    table, used = policies.write_policies(with_pretrained, results, shown(results))
    assert list(zip(table["env"], table["minus"], strict=True)) == [(e, m) for e in ENVS for m in policies.COMPARED]
    ace, lookup, sac = (row(table, env="case14", minus=name) for name in policies.COMPARED)
    mean = 100 * EPISODE_EASE.mean()
    assert ace["survival"] == pytest.approx(76.5 + mean) and (ace["n_seeds"], ace["n_episodes"]) == (2, len(EPISODE_EASE))
    assert ace["ci_low"] < ace["survival"] < ace["ci_high"]
    # seeds 1 and 2 of both: the third seed of ACE is left out, in its survival too
    assert ace["minus_survival"] == pytest.approx(71.5 + mean) and ace["difference"] == pytest.approx(5)
    assert lookup["difference"] == pytest.approx(-5) and sac["difference"] == pytest.approx(35) and ace["n_common_seeds"] == 2
    assert used["variant"].tolist() == ["ace_pretrained", *policies.COMPARED] * 2
    ours, ace = (row(used, env="case14", variant=name) for name in ("ace_pretrained", "ace"))
    assert ours["refinements"] == round(201.5) and ace["refinements"] == 310 and ours["env_steps"] == 9045 + 500 + 700
    assert ours["simulator_calls"] == round((1001 + 1002) / 2 + 6000) and (ours["dc_calls"], ours["llm_calls"]) == (50, 40)
    assert (ours["llm_tokens"], ace["llm_tokens"]) == (200, 0), "the mean of a seed with tokens and one without"
    # of the second seed only the language model's 80 s were noted
    minutes = [ours[f"{phase}_minutes"] for phase in policies.PHASES]
    assert minutes == pytest.approx([150 / 60, 100 / 60, 12 / 60]) and np.isnan(ace["train_minutes"])
    text, text_used = ((shown(results) / f"policies{end}.md").read_text() for end in ("", "_used"))
    assert all(line in text + text_used for line in policies.as_markdown(table, used).splitlines())
    assert f"| {grid_label('case14')} | ACE, pretrained model | {76.5 + mean:.1f} [" in text
    assert "|  |  |  |  | SAC + lookup table | 81.5 | -5.0" in text
    assert "| 2.5 | 1.7 | 0.2 |" in text_used and "| – | 1.3 | – |" in text_used
    first = {path.name: path.read_bytes() for path in shown(results).iterdir()}
    policies.write_policies(with_pretrained, results, shown(results))
    assert first == {path.name: path.read_bytes() for path in shown(results).iterdir()}
    assert set(first) == {f"policies{end}" for end in (".csv", ".md", "_used.csv", "_used.md")}


def test_each_variant_of_the_pretrained_model_has_its_rows_and_what_it_is_compared_with_is_counted_once(results, with_pretrained):
    with_pretrained.grid.pretrained.variants.append("ace_pretrained_frozen")
    with pytest.raises(ReportError, match=r"dvc repro cells/dvc\.yaml:pretrained@wcci2020-ace_pretrained_frozen"):
        policies.write_policies(with_pretrained, results, shown(results))
    for env, seed in itertools.product(ENVS, (1, 2)):
        write_run(results, env, "ace_pretrained_frozen", seed, True, level=0.6)
    table, used = policies.write_policies(with_pretrained, results, shown(results))
    assert len(table) == 2 * 2 * 3 and not used.duplicated(["env", "variant"]).any() and len(used) == 2 * 5
    found = row(table, env="case14", variant="ace_pretrained_frozen", minus="ace")
    assert found["difference"] == pytest.approx(-10)


def test_without_runs_of_the_pretrained_model_its_policies_are_told_in_a_line(results):
    found = policies.write_policies(PARAMS, results, shown(results))
    assert all(table.empty for table in found) and not shown(results).exists()
    assert "declares no run" in policies.as_markdown(*found)
