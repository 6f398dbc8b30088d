"""Cost, environments and unseen outages, on the made-up results of test_report: numbers by hand, refusals, stable bytes."""

import gzip
import json
import re

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from test_report import ENVS, EPISODE_EASE, LEVELS, change_manifest, row, small_grid, write_run

from ace import config
from ace.report import cost, environments, foresight, official, outages, runs
from ace.report.runs import ReportError

PARAMS = small_grid()


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    for env in ENVS:
        for variant in runs.declared(PARAMS):
            for seed in runs.seeds_of(PARAMS, variant):
                write_run(folder, env, variant, seed, trained=variant not in PARAMS.grid.baselines)
    return folder


# --- cost ---


def rich_run(results, seed, rounds=2, tokens=(30, 50)):
    """What the made-up run of ACE lacks: decisions, LoRA rounds, a transcript, the test's steps, more seconds."""
    cell = f"case14/ace/seed={seed}"
    manifest = json.loads((results / "runs" / cell / "manifest.json").read_text())
    manifest["budget"]["test"]["env_steps"] = 2000
    told = [{"round": i, "accepted": i == 1} for i in range(1, rounds + 1)]
    change_manifest(results, cell, budget=manifest["budget"], decisions=1500 + 10 * seed, finetune_rounds=told)
    lines = [{"model": "m"}, *({"role": "actor", "tokens": used} for used in tokens)]
    with gzip.open(results / "runs" / cell / "transcript.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    wall = {"train": 100.0 + seed, "llm": 80.0, "finetune": 6.0, "evaluate": 10.0 + seed}
    path = results / "provenance" / f"{cell}.json"
    path.write_text(json.dumps({"wall_s": wall, "decision_latency_ms": 0.5 + seed}))


def test_cost_by_hand(results):
    for seed in (0, 1, 2):
        rich_run(results, seed)
    found = row(cost.write_cost(PARAMS, results), env="case14", variant="ace", kind="measured")
    assert (found["decisions"], found["env_steps_train"]) == (1510, 9030)
    assert (found["env_steps_validation"], found["env_steps_corpus"]) == (500, 700)
    assert (found["calls_train"], found["calls_test"], found["tokens"]) == (40, 0, 80)
    assert (found["lora_rounds"], found["lora_kept"]) == (2, 1)
    assert found["seconds_per_call"] == pytest.approx(2) and found["seconds_per_lora_round"] == pytest.approx(3)
    assert (found["test_s"], found["test_s_low"], found["test_s_high"]) == (11, 10, 12)
    assert found["test_ms_per_step"] == pytest.approx(11 / 2000 * 1e3)
    assert (found["decision_ms"], found["decision_ms_low"], found["decision_ms_high"]) == (1.5, 0.5, 2.5)
    assert found["n_seeds"] == 3


def test_calls_of_the_test_count_for_a_model_in_the_loop(results):
    path = results / "runs/case14/greedy/seed=0/manifest.json"
    budget = json.loads(path.read_text())["budget"]
    change_manifest(results, "case14/greedy/seed=0", budget={"test": {**budget["test"], "llm_calls": 160}})
    found = row(cost.write_cost(PARAMS, results), env="case14", variant="greedy", kind="measured")
    assert (found["calls_train"], found["calls_test"]) == (0, 160)
    assert found["seconds_per_call"] == pytest.approx(80 / 160)


def test_what_is_not_recorded_stays_empty(results):
    rich_run(results, 0, tokens=(30, None))
    (results / "provenance/wcci2020/ace/seed=0.json").unlink()
    cost.write_cost(PARAMS, results)
    table = pd.read_csv(results / "tables/cost.csv")
    one_lost = row(table, env="wcci2020", variant="ace", kind="measured")
    assert one_lost["test_s"] == pytest.approx(11.5)  # of the two seeds that are left
    assert np.isnan(one_lost["test_steps"]) and np.isnan(one_lost["test_ms_per_step"])
    half = row(table, env="case14", variant="ace", kind="measured")
    assert half["tokens"] == 0  # of the seeds that have no transcript, which means no calls; the third one is not known
    assert half["lora_rounds"] == pytest.approx(2 / 3) and half["seconds_per_lora_round"] == pytest.approx(3)


def test_the_papers_figures_stand_apart(results):
    table = cost.write_cost(PARAMS, results, ["sac", "ace"])
    assert table["kind"].value_counts().to_dict() == {"measured": 4, "reported": 4, "not measured": 1}
    paper = table[table["kind"] == "reported"]
    assert paper["source"].str.contains("second hand").all() and paper["note"].str.startswith("paper").all()
    per_call = paper["seconds_per_call"].dropna().tolist()
    assert per_call == pytest.approx([(3600 + 48 * 60) / 508])
    text = (results / "tables/cost.md").read_text()
    assert "| ACE with Qwen2-7B |" in text and "not measured: no GPU at hand" in text
    assert [line for line in text.split("\n") if "12.756" in line and "paper" not in line] == []
    unmeasured = row(table, variant="ace_qwen2_7b")
    assert not [name for name in cost.NUMBERS if unmeasured[name] is not None and not pd.isna(unmeasured[name])]


def test_latency_beside_aces_and_the_share_of_the_agent(results):
    for seed in (0, 1, 2):
        rich_run(results, seed)
    read = runs.read(PARAMS, results)
    text = cost.latency(cost.write_cost(PARAMS, results))
    assert "| case14 | ACE | 1.50 | 1 | 2,000 | 5.50 |" in text
    assert "| case14 | SAC | – | – |" in text, "nobody took its time"
    # 0.5, 1.5, 2.5 ms for each of 8 x 20 decisions, in tests of 10, 11, 12 seconds
    share = np.mean([100 * 0.160 * ms / s for ms, s in ((0.5, 10), (1.5, 11), (2.5, 12))])
    assert f"grid: of ACE {share:.0f} to {share:.0f} %." in cost.share_of_the_agent(read)
    assert cost.share_of_the_agent(read, ["greedy", "llm_only"]) == ""


# --- unseen outages ---


def write_outages_of(results, env, cost_of_outage=0.2, variants=("reconnect", "sac", "ace")):
    rows = []
    for variant in variants:
        for seed in runs.seeds_of(PARAMS, variant):
            for episode in range(6):
                survival = LEVELS[variant] + 0.01 * seed + EPISODE_EASE[episode] - cost_of_outage
                rows.append({"env": env, "variant": variant, "seed": seed, "outage": episode % 2, "line": "ab"[episode % 2],
                             "episode": episode, "survival": survival})  # fmt: skip
    path = results / "outages" / f"{env}.csv"
    path.parent.mkdir(exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False)


@pytest.fixture
def played(results):
    for env in ENVS:
        write_outages_of(results, env)
    return results


def test_outages_by_hand(played):
    table = outages.write_outages(PARAMS, played)
    assert list(table["outage"].unique()) == ["all", "a", "b"]
    found = row(table, env="case14", variant="ace", outage="all")
    ease = EPISODE_EASE[:6].mean()
    assert found["survival"] == pytest.approx(100 * (0.71 + ease - 0.2))
    assert found["intact"] == pytest.approx(100 * (0.71 + ease))
    # seed by seed and episode by episode the same change: nothing is left to resample
    assert (found["change"], found["change_low"], found["change_high"]) == pytest.approx((-20, -20, -20))
    assert found["minus_sac"] == pytest.approx(30)
    assert found["minus_sac_low"] < 30 < found["minus_sac_high"] < 32
    assert (found["n_seeds"], found["n_episodes"]) == (3, 6)
    of_line = row(table, env="case14", variant="ace", outage="b")
    assert of_line["n_episodes"] == 3
    assert of_line["survival"] == pytest.approx(100 * (0.71 + EPISODE_EASE[[1, 3, 5]].mean() - 0.2))
    assert np.isnan(row(table, env="case14", variant="sac", outage="all")["minus_sac"])
    assert "+30.0 [" in (played / "tables/outages.md").read_text()
    assert re.search(r"\*\*case14\*\*: ACE survives .* change of -20.0 .* \+30.0", outages.sentences(PARAMS, table))


def test_outages_without_sac_have_no_lead(played):
    for env in ENVS:
        write_outages_of(played, env, variants=("ace",))
    table = outages.write_outages(PARAMS, played)
    assert table["minus_sac"].isna().all()
    assert table["intact_minus_sac"].isna().all() and table["minus_ace"].isna().all()
    assert "over SAC" not in outages.sentences(PARAMS, table)


def test_each_outage_in_turn_is_not_all_lines_at_once(played):
    table = outages.write_outages(PARAMS, played)
    text = (played / "tables/outages.md").read_text()
    assert "| case14 | ACE | each in turn |" in text and "| all |" not in text and "Points above SAC [95 %]" in text
    assert set(table["outage"]) == {"all", "a", "b"}  # which the open questions read


def test_the_lead_with_all_lines_and_without_one(played):
    write_outages_of(played, "case14", variants=("reconnect",))
    path = played / "outages/case14.csv"
    rows = [pd.read_csv(path)]
    for variant, cost_of_outage in (("sac", 0.0), ("ace", 0.3)):
        write_outages_of(played, "case14", cost_of_outage, (variant,))
        rows.append(pd.read_csv(path))
    pd.concat(rows).to_csv(path, index=False)
    table = outages.write_outages(PARAMS, played)
    found = row(table, env="case14", variant="ace", outage="all")
    assert (found["intact_minus_sac"], found["minus_sac"]) == pytest.approx((30, 0))
    assert row(table, env="case14", variant="sac", outage="all")["minus_ace"] == pytest.approx(0)
    first, second = outages.sentences(PARAMS, table).splitlines()[:2]
    texts = {line.split("**")[1]: line for line in (first, second)}
    assert "it had a lead, and without a line none can be told from 0" in texts["case14"]
    assert all("it keeps a lead" in text for env, text in texts.items() if env != "case14")


def outage_row(**other):
    row = {"env": "case14", "outage": "all", "variant": "ace", "survival": 60.0}
    for column in ("change", "minus_sac", "intact_minus_sac", "minus_ace"):
        row |= {column: 5.0, f"{column}_low": 1.0, f"{column}_high": 9.0}
    return row | other


@pytest.mark.parametrize(
    "intact_low, out_low, told",
    [
        (1.0, 1.0, "it keeps a lead."),
        (1.0, 0.0, "none can be told from 0."),
        (-1.0, 1.0, "with all lines, without one there is one."),
        (-1.0, np.nan, "nor without one."),
    ],
)
def test_the_intervals_decide_on_the_lead(intact_low, out_low, told):
    table = pd.DataFrame([outage_row(intact_minus_sac_low=intact_low, minus_sac_low=out_low)])
    assert outages.sentences(PARAMS, table).endswith(told)


def test_controls_that_do_as_well_are_named_and_those_behind_are_not():
    table = pd.DataFrame(
        [
            outage_row(),
            outage_row(variant="frequency_refine", survival=61.0),
            outage_row(variant="expert_sac", survival=62.0, minus_ace_low=-1.0),
            outage_row(variant="random_refine", survival=63.0, minus_ace_low=-9.0, minus_ace_high=-1.0),
        ]
    )
    text = outages.sentences(PARAMS, table)
    assert "SAC + frequency refinement survives 61.0 %, a difference to ACE of +5.0 [+1.0, +9.0] points: it is ahead." in text
    assert "SAC + expert survives 62.0 %, a difference to ACE of +5.0 [-1.0, +9.0] points: no difference can be told." in text
    assert "random" not in text


def test_outages_of_other_seeds_or_missing_are_refused(played):
    path = played / "outages/case14.csv"
    table = pd.read_csv(path)
    table[table["seed"] != 1].to_csv(path, index=False)
    with pytest.raises(
        ReportError, match=r"case14.csv has not the declared seeds of sac: run `dvc repro outages@case14`"
    ):
        outages.write_outages(PARAMS, played)
    path.unlink()
    with pytest.raises(ReportError, match=r"no results/outages/case14.csv: run `dvc repro outages@case14`"):
        outages.write_outages(PARAMS, played)


def test_what_is_not_declared_is_not_shown(played):
    path = played / "outages/case14.csv"
    table = pd.read_csv(path)
    stranger = table[table["variant"] == "ace"].assign(variant="ace_query_low")
    pd.concat([table, stranger]).to_csv(path, index=False)
    assert "ace_query_low" not in set(outages.write_outages(PARAMS, played)["variant"])


# --- the official score ---


@pytest.fixture
def scored(results):
    """Made-up scores: 100 times what survival is in test_report, less 30; the fixed points at 0 and 80."""
    for env in ENVS[:1]:
        rows = []
        for variant in [*official.FIXED, *runs.declared(PARAMS)]:
            for seed in [0] if variant in official.FIXED else runs.seeds_of(PARAMS, variant):
                for episode, ease in enumerate(EPISODE_EASE):
                    survival = LEVELS.get(variant, 1.0) + (0.01 * seed + ease if variant in LEVELS else 0)
                    score = 100 * survival - 30 if variant in LEVELS else {"grid2op_do_nothing": 0}.get(variant, 80)
                    rows.append({"env": env, "variant": variant, "seed": seed, "episode": episode,
                                 "survival": survival, "score": score})  # fmt: skip
        path = results / "official_score" / f"{env}.csv"
        path.parent.mkdir(exist_ok=True)
        pd.DataFrame(rows).to_csv(path, index=False)
    return results


def test_official_scores_by_hand(scored):
    table = official.write_scores(PARAMS, scored)
    found = row(table, env="wcci2020", variant="ace")
    assert found["score"] == pytest.approx(41) and found["std"] == pytest.approx(1)  # seeds at 40, 41, 42
    assert found["survival"] == pytest.approx(71)
    assert found["ci_low"] < 41 < found["ci_high"]
    assert (found["minus_sac"], found["minus_reconnect"]) == pytest.approx((30, 36))
    assert (found["n_seeds"], found["n_episodes"]) == (3, len(EPISODE_EASE))
    assert np.isnan(row(table, env="wcci2020", variant="sac")["minus_sac"])
    fixed = row(table, env="wcci2020", variant="grid2op_unprotected")
    assert (fixed["score"], fixed["ci_low"], fixed["ci_high"], fixed["completed"]) == (80, 80, 80, 100)
    text = (scored / "tables/official_score.md").read_text()
    assert "| wcci2020 | ACE | 41.0 ± 1.0 |" in text and "the point 80 | 80.0 |" in text
    assert re.search(
        r"\*\*wcci2020\*\*: ACE scores 41.0 \[.*\+36.0 .* from Reconnect lines; \+30.0", official.sentences(table)
    )
    assert official.sentences(table).endswith("Higher means: Greedy look-ahead 60.0 [56.6, 63.4]; "
                                              "the intervals of Greedy look-ahead do not overlap its own.")  # fmt: skip
    assert "all of their intervals overlap" in official.sentences(table.assign(ci_high=99.0))
    assert "No method has a higher mean." in official.sentences(table, "greedy")
    assert official.scored(PARAMS) == "Only wcci2020 was scored, not case14."
    first = [(scored / f"tables/official_score.{end}").read_bytes() for end in ("csv", "md", "tex")]
    official.write_scores(PARAMS, scored)
    assert [(scored / f"tables/official_score.{end}").read_bytes() for end in ("csv", "md", "tex")] == first


@pytest.mark.parametrize("missing", ["sac", "greedy", "grid2op_unprotected"])
def test_official_scores_that_are_old_or_missing_are_refused(scored, missing):
    path = scored / "official_score/wcci2020.csv"
    table = pd.read_csv(path)
    table[(table["variant"] != missing) | (table["seed"] == 1)].to_csv(path, index=False)
    remedy = r"run `dvc repro official_score`"
    with pytest.raises(ReportError, match=rf"wcci2020.csv has not the declared seeds of {missing}: {remedy}"):
        official.write_scores(PARAMS, scored)
    path.unlink()
    with pytest.raises(ReportError, match=rf"no results/official_score/wcci2020.csv: {remedy}"):
        official.write_scores(PARAMS, scored)


# --- environments ---


@pytest.fixture(scope="module")
def small_params():
    """Two small grids: one declared, with a card as it was written, and one that is measured anew."""
    params = config.load(ROOT / "params.yaml")
    hard = params.environment("case14").model_copy(update={"horizon": 96, "thermal_factor": 0.7})
    grid = params.grid.model_copy(update={"environments": ["case14"], "lm_baselines": [], "variants": ["sac", "ace"]})
    return params.model_copy(update={"environments": {"case14": hard, "again": hard}, "grid": grid})


@pytest.fixture
def card_of_case14():
    split = {"scenarios": 7, "source_days": [0, 4], "hash": "x", "load_mw": {"mean": 1234.5, "min": 1.0, "max": 2000.0}}
    sizes = {"substations": 14, "lines": 20, "loads": 11, "generators": 6, "actions": 10, "hub": None, "hub_share": 0.7}
    rest = {"thermal_factor": 0.7, "horizon": 96, "opponent": False, "source_days": 3}
    splits = dict.fromkeys(("train", "validation", "test"), split)
    return {"grid2op": "g", **sizes, "actions_by_substation": [1, 7, 2], **rest, "splits": splits}


def test_environments(small_params, card_of_case14, tmp_path):
    results = tmp_path / "results"
    for variant in small_params.grid.baselines:
        write_run(results, "case14", variant, 0, trained=False)
    (results / "scenarios").mkdir()
    (results / "scenarios/case14.json").write_text(json.dumps(card_of_case14))
    table = environments.write_environments(small_params, results)
    assert list(table["env"]) == ["case14", "again"]
    ours, again = (row(table, env=env) for env in table["env"])
    assert (ours["actions"], ours["hub"], ours["hub_share"], ours["days_train"]) == (10, 1, 0.7, "0 4")
    assert (ours["load_mean_mw_test"], ours["scenarios_validation"]) == (1234.5, 7)
    survival = [ours[f"survival_{variant}"] for variant in ("do_nothing", "reconnect", "greedy")]
    assert survival == pytest.approx([30, 35, 90])
    assert (again["actions"], again["substations"], again["lines"]) == (178, 14, 20)
    assert again["scenarios_train"] == small_params.scenarios.train  # though fewer were made
    assert again["load_mean_mw_train"] < again["load_max_mw_train"]
    assert again["survival_reconnect"] is None and not again["run_here"]
    text = (results / "tables/environments.md").read_text()
    assert "| Property | case14 | again |" in text, "a grid is a column"
    cells = [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| ")][2:]
    assert cells[:11] == ["g", "14", "20", "11", "6", "10", "1", "70.0 %", "0.7", "96", "no"]
    assert cells[11:] == [*["0, 4"] * 3, *["1,234 (2,000)"] * 3, "30.0", "35.0", "90.0"]
    assert "| Survival, %: do nothing | 30.0 | – |" in text
    drawn = pd.read_csv(results / "figures/environments.csv")
    catalogue = drawn[drawn["what"] == "actions"]
    assert catalogue.groupby("env")["value"].sum().to_dict() == {"again": 178, "case14": 10}
    loading = drawn[drawn["what"] == "loading_percent"]
    assert len(loading) == 20 and loading["value"].max() > 100  # drawn at a moment of danger
    before = {path: path.read_bytes() for kind in ("tables", "figures") for path in sorted((results / kind).iterdir())}
    assert len(before) == 7  # the figure as PDF too
    environments.write_environments(small_params, results)
    assert [path.name for path, content in before.items() if path.read_bytes() != content] == []


def test_catalogues_beside_the_papers():
    row = {"env": "x", "grid2op": "l2rpn_wcci_2020", "actions": 60_001, "hub": 3, "hub_share": 0.98}
    row |= {"survival_do_nothing": 12.34, "survival_reconnect": None, "survival_greedy": 90.0}
    large = row | {"grid2op": "other", "survival_do_nothing": None, "survival_greedy": None}
    table = pd.DataFrame([row, large, large | {"actions": 60_000}])
    ours, other, small = environments.sentences(table).splitlines()
    assert ours == (
        "- **x** has 60,001 actions, where the paper says more than 60,000 and names this grid. 98.0 % are at substation 3. "
        "Survival: doing nothing 12.3 %, greedy look-ahead 90.0 % of a test episode."
    )
    assert "is our reading" in other and other.endswith("Nothing was run on it at this scale.")
    assert "has 60,000 actions, fewer than" in small and "not one of the paper's" in small


def test_parallel_lines_share_a_label():
    texts = []

    class Plain:
        line_or_to_subid, line_ex_to_subid, rho = [0, 1, 1], [1, 0, 2], [0.5, 0.25, 1.024]

    plot = environments.GridPlot.__new__(environments.GridPlot)
    for line in range(3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(environments.PlotMatplot, "draw_powerline", lambda *given: texts.append(given[6]))
            plot.draw_powerline(None, Plain, line, "", True, 1.0, "%")
    assert texts == ["50 / 25", None, "102"]


def test_a_missing_card_is_named(small_params, tmp_path):
    with pytest.raises(ReportError, match=r"no results/scenarios/case14.json: run `dvc repro scenarios@case14`"):
        environments.write_environments(small_params, tmp_path / "results")


# --- foresight ---


def write_foresight_of(results, env, gain=0.1, variants=("sac", "ace"), most_played=5):
    made = []
    for variant in variants:
        for seed in runs.seeds_of(PARAMS, variant):
            for most, level in ((1, 0.0), (5, 0.04)):
                made += [[env, variant, seed, "validation", most, 7 + i, LEVELS[variant] + level, 4, 5 * most] for i in range(3)]
            for episode, ease in enumerate(EPISODE_EASE):
                survival = LEVELS[variant] + 0.01 * seed + ease + gain
                made.append([env, variant, seed, "test", most_played, episode, survival, 4, 20])
    made += [[env, "set", 0, "test", 60, episode, 0.5 + ease, 4, 240] for episode, ease in enumerate(EPISODE_EASE)]
    path = results / "foresight" / f"{env}.csv"
    path.parent.mkdir(exist_ok=True)
    columns = ["env", "variant", "seed", "split", "most", "scenario", "survival", "decisions", "dc_calls"]
    pd.DataFrame(made, columns=columns).to_csv(path, index=False)


@pytest.fixture
def foreseen(results):
    for env in ENVS:
        write_foresight_of(results, env)
    return results


def test_foresight_by_hand(foreseen):
    table = foresight.write_foresight(PARAMS, foreseen)
    found = row(table, env="case14", variant="ace")
    alone = 100 * (0.71 + EPISODE_EASE.mean())
    assert found["alone"] == pytest.approx(alone) and found["survival"] == pytest.approx(alone + 10)
    # seed by seed and episode by episode the same change: nothing is left to resample
    assert (found["gain"], found["gain_low"], found["gain_high"]) == pytest.approx((10, 10, 10))
    assert found["minus_sac"] == pytest.approx(30) and found["minus_set"] == pytest.approx(100 * (0.71 + 0.1 - 0.5))
    # both gain the same everywhere
    assert (found["lead_change"], found["lead_change_low"], found["lead_change_high"]) == pytest.approx((0, 0, 0), abs=1e-9)
    assert found["minus_sac_low"] < 30 < found["minus_sac_high"]
    assert (found["most"], found["dc_calls_a_decision"]) == (5, 5)
    assert (found["n_seeds"], found["n_episodes"]) == (3, len(EPISODE_EASE))
    of_sac, of_set = row(table, env="case14", variant="sac"), row(table, env="case14", variant="set")
    assert np.isnan(of_sac["minus_sac"]) and of_sac["ace_minus"] == pytest.approx(30) and np.isnan(found["ace_minus"])
    assert of_set["survival"] == pytest.approx(100 * (0.5 + EPISODE_EASE.mean())) and np.isnan(of_set["alone"])
    assert (of_set["most"], of_set["n_seeds"], of_set["dc_calls_a_decision"]) == (60, 1, 60)
    drawn = pd.read_csv(foreseen / "figures/foresight.csv")
    ours = drawn[(drawn["env"] == "case14") & (drawn["variant"] == "ace")]
    assert ours["most"].tolist() == [1, 5] and ours["chosen"].tolist() == [0, 1]
    assert ours["survival"].tolist() == pytest.approx([70, 74])
    text = foresight.sentences(PARAMS, table)
    assert re.search(r"\*\*case14\*\*: ACE survives .* a gain of \+10.0 .*: it helps\. SAC gains \+10.0", text)
    assert "+30.0 [" in (foreseen / "tables/foresight.md").read_text()


def test_the_way_is_from_doing_nothing_to_greedy(foreseen):
    table = foresight.write_foresight(PARAMS, foreseen)
    played = runs.read(PARAMS, foreseen)
    floor, top = (played.scores("case14", variant, "survival").mean() for variant in ("do_nothing", "greedy"))
    found = row(table, env="case14", variant="ace")
    assert found["way"] == pytest.approx(100 * (found["survival"] - floor) / (top - floor))
    assert found["way_alone"] == pytest.approx(100 * (found["alone"] - floor) / (top - floor))
    higher = played.scores("case14", "reconnect", "survival").mean()
    assert found["way_reconnect"] == pytest.approx(100 * (found["survival"] - higher) / (top - higher))
    without = small_grid()
    without.grid.baselines = ["reconnect"]
    table = foresight.write_foresight(without, foreseen)
    assert table[["way", "way_alone", "way_reconnect"]].isna().all(axis=None), "greedy was not played"


@pytest.mark.parametrize(
    ("column", "low", "high", "told"),
    [("gain", 1.0, 9.0, "a gain of +5.0 [+1.0, +9.0] points: it helps."),
     ("gain", -9.0, -1.0, "points: it harms."), ("gain", -1.0, 1.0, "[-1.0, +1.0] points: no difference can be told."),
     ("minus_sac", 2.0, 3.0, "points above it: it leads;"), ("minus_sac", -3.0, -2.0, "points above it: it is behind;"),
     ("lead_change", -3.0, -2.0, "its lead changes by -2.5 [-3.0, -2.0]: it shrinks."),
     ("lead_change", 2.0, 3.0, ": it grows."), ("lead_change", -2.0, 3.0, "[-2.0, +3.0]: no difference can be told."),
     ("minus_set", 0.5, 3.0, ": the policy does more than the set."), ("minus_set", -3.0, -2.0, ": the set alone does more.")],
)  # fmt: skip
def test_foresight_is_told_by_its_intervals(foreseen, column, low, high, told):
    table = foresight.write_foresight(PARAMS, foreseen)
    table.loc[table["variant"] == "ace", [column, f"{column}_low", f"{column}_high"]] = [(low + high) / 2, low, high]
    assert told in foresight.sentences(PARAMS, table)


def test_who_is_level_with_ace_and_who_is_above(foreseen):
    for env in ENVS:
        write_foresight_of(foreseen, env, variants=("sac", "ace", "ace_no_critic", "ace_no_actor"))
    table = foresight.write_foresight(PARAMS, foreseen)
    table.loc[table["variant"] == "ace_no_critic", ["ace_minus_low", "ace_minus_high"]] = [-1.0, 1.0]
    assert "Not told from it: ACE without g_LLM." in foresight.sentences(PARAMS, table)
    table.loc[table["variant"] == "ace_no_critic", ["ace_minus_low", "ace_minus_high"]] = [-2.0, -1.0]
    text = foresight.sentences(PARAMS, table)
    assert "Above it: ACE without g_LLM." in text and "Not told from it" not in text


def test_a_policy_that_acts_alone_is_said_to_and_without_sac_there_is_no_lead(foreseen):
    for env in ENVS:
        write_foresight_of(foreseen, env, gain=0.0, variants=("ace",), most_played=1)
    text = foresight.sentences(PARAMS, foresight.write_foresight(PARAMS, foreseen))
    assert "points: it acts alone." in text and "SAC" not in text


def test_foresight_of_other_scenarios_is_refused(foreseen):
    path = foreseen / "foresight/case14.csv"
    table = pd.read_csv(path)
    table.loc[table["split"] == "test", "scenario"] += 1
    table.to_csv(path, index=False)
    with pytest.raises(ReportError, match=r"case14.csv has other test scenarios than the runs: run `dvc repro foresight@case14`"):
        foresight.write_foresight(PARAMS, foreseen)


def test_foresight_of_other_seeds_or_missing_is_refused(foreseen):
    path = foreseen / "foresight/case14.csv"
    table = pd.read_csv(path)
    table[(table["variant"] != "sac") | (table["seed"] != 1)].to_csv(path, index=False)
    with pytest.raises(ReportError, match=r"case14.csv has not the declared seeds of sac: run `dvc repro foresight@case14`"):
        foresight.write_foresight(PARAMS, foreseen)
    path.unlink()
    with pytest.raises(ReportError, match=r"no results/foresight/case14.csv: run `dvc repro foresight@case14`"):
        foresight.write_foresight(PARAMS, foreseen)
