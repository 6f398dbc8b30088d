"""Cost and environments, on the made-up results of test_report: numbers by hand, refusals, stable bytes."""

import json

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from made_up_runs import change_manifest, change_provenance, manifest_of
from test_report import row, small_grid, write_grid, write_run

from ace import config
from ace.report import cost, environments, runs
from ace.report.runs import ReportError

PARAMS = small_grid()


@pytest.fixture
def results(tmp_path):
    return write_grid(tmp_path / "results", PARAMS)


# --- cost ---


def rich_run(results, seed, rounds=2, tokens=(30, 50)):
    """What the made-up run of ACE lacks: decisions, LoRA rounds, tokens, the test's steps, more seconds."""
    cell = f"case14/ace/seed={seed}"
    budget = manifest_of(results, cell)["budget"]
    budget["test"]["env_steps"] = 2000
    rounds = [{"round": i, "accepted": i == 1} for i in range(1, rounds + 1)]
    used = dict(zip(("actor", "critic"), tokens, strict=True))
    change_manifest(results, cell, budget=budget, decisions=1500 + 10 * seed, finetune_rounds=rounds, tokens=used)
    wall = {"train": 100.0 + seed, "llm": 80.0, "finetune": 6.0, "evaluate": 10.0 + seed}
    change_provenance(results, cell, {"wall_s": wall, "decision_latency_ms": 0.5 + seed})


def test_cost_by_hand(results):
    for seed in (0, 1, 2):
        rich_run(results, seed)
    found = row(cost.write_cost(PARAMS, results, results / "made"), env="case14", variant="ace", kind="measured")
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
    budget = manifest_of(results, "case14/greedy/seed=0")["budget"]
    change_manifest(results, "case14/greedy/seed=0", budget={"test": {**budget["test"], "llm_calls": 160}})
    found = row(cost.write_cost(PARAMS, results, results / "made"), env="case14", variant="greedy", kind="measured")
    assert (found["calls_train"], found["calls_test"]) == (0, 160)
    assert found["seconds_per_call"] == pytest.approx(80 / 160)


def test_what_is_not_recorded_stays_empty(results):
    rich_run(results, 0, tokens=(30, None))
    change_provenance(results, "wcci2020/ace/seed=0", None)
    cost.write_cost(PARAMS, results, results / "made")
    table = pd.read_csv(results / "made/cost.csv")
    one_lost = row(table, env="wcci2020", variant="ace", kind="measured")
    assert one_lost["test_s"] == pytest.approx(11.5)  # of the two seeds that are left
    assert np.isnan(one_lost["test_steps"]) and np.isnan(one_lost["test_ms_per_step"])
    half = row(table, env="case14", variant="ace", kind="measured")
    assert half["tokens"] == 0  # of the seeds that asked no model; the third one is not known
    assert half["lora_rounds"] == pytest.approx(2 / 3) and half["seconds_per_lora_round"] == pytest.approx(3)


def test_the_papers_figures_stand_apart(results):
    table = cost.write_cost(PARAMS, results, results / "made", ["sac", "ace"])
    assert table["kind"].value_counts().to_dict() == {"measured": 4, "reported": 4, "not measured": 1}
    paper = table[table["kind"] == "reported"]
    assert paper["source"].str.contains("second hand").all() and paper["note"].str.startswith("paper").all()
    per_call = paper["seconds_per_call"].dropna().tolist()
    assert per_call == pytest.approx([(3600 + 48 * 60) / 508])
    text = (results / "made/cost.md").read_text()
    assert "| ACE with Qwen2-7B (not measured" in text and "| ACE (paper) |" in text
    assert [line for line in text.split("\n") if "12.756" in line and "paper" not in line] == []
    unmeasured = row(table, variant="ace_qwen2_7b")
    assert not [name for name in cost.NUMBERS if unmeasured[name] is not None and not pd.isna(unmeasured[name])]


def test_latency_relative_to_aces_and_the_share_of_the_agent(results):
    for seed in (0, 1, 2):
        rich_run(results, seed)
    read = runs.read(PARAMS, results)
    text = cost.latency(cost.write_cost(PARAMS, results, results / "made"))
    assert "| case14 | ACE | 1.50 | 1 | 2,000 | 5.50 |" in text
    assert "| case14 | SAC | – | – |" in text, "its time was not recorded"
    # 0.5, 1.5, 2.5 ms for each of 8 x 20 decisions, in tests of 10, 11, 12 seconds
    share = np.mean([100 * 0.160 * ms / s for ms, s in ((0.5, 10), (1.5, 11), (2.5, 12))])
    assert f"grid: of ACE {share:.0f} to {share:.0f} %." in cost.share_of_the_agent(read)
    assert cost.share_of_the_agent(read, ["greedy", "llm_only"]) == ""


# --- environments ---


@pytest.fixture(scope="module")
def small_params():
    """Two small grids: one declared, with a card as it was written, and one that is measured here."""
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
    table = environments.write_environments(small_params, results, results / "made")
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
    text = (results / "made/environments.md").read_text()
    assert "| Property | case14 | again |" in text, "a grid is a column"
    cells = [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| ")][2:]
    assert cells[:11] == ["g", "14", "20", "11", "6", "10", "1", "70.0 %", "0.7", "96", "no"]
    assert cells[11:] == [*["0, 4"] * 3, *["1,234 (2,000)"] * 3, "30.0", "35.0", "90.0"]
    assert "| Survival, %: do nothing | 30.0 | – |" in text
    drawn = pd.read_csv(results / "made/environments_figure.csv")
    catalogue = drawn[drawn["what"] == "actions"]
    assert catalogue.groupby("env")["value"].sum().to_dict() == {"again": 178, "case14": 10}
    loading = drawn[drawn["what"] == "loading_percent"]
    assert len(loading) == 20 and loading["value"].max() > 100  # drawn at a moment of danger
    before = {path: path.read_bytes() for path in sorted((results / "made").iterdir())}
    assert len(before) == 8  # the table in three formats, the figure in three, its data and its note
    environments.write_environments(small_params, results, results / "made")
    assert [path.name for path, content in before.items() if path.read_bytes() != content] == []


def test_actions_against_the_papers():
    row = {"env": "x", "grid2op": "l2rpn_wcci_2020", "actions": 60_001, "hub": 3, "hub_share": 0.98}
    row |= {"survival_do_nothing": 12.34, "survival_reconnect": None, "survival_greedy": 90.0}
    large = row | {"grid2op": "other", "survival_do_nothing": None, "survival_greedy": None}
    table = pd.DataFrame([row, large, large | {"actions": 60_000}])
    ours, other, small = environments.sentences(table).splitlines()
    assert "60,001 actions" in ours and "names this grid" in ours and "98.0 % are at substation 3" in ours
    assert "doing nothing 12.3 %, greedy look-ahead 90.0 %" in ours and "reconnection" not in ours
    assert "our reading" in other and "not one of the paper's" in small


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


def test_a_loading_is_printed_near_the_middle_of_its_line_away_from_others():
    own, crossing = np.array([[0.0, 0], [1000, 0]]), np.array([[500.0, -90], [500, 90]])
    assert environments.free_place(own, [], []).tolist() == [500, 0]
    beside = environments.free_place(own, [crossing], [])
    assert beside[1] == 0 and environments.FREE <= abs(beside[0] - 500) < 200
    assert environments.free_place(own, [crossing], [beside]).tolist() != beside.tolist()


def test_a_missing_card_is_named(small_params, tmp_path):
    with pytest.raises(ReportError, match=r"no results/scenarios/case14.json: run "):
        environments.write_environments(small_params, tmp_path / "results", tmp_path / "made")
