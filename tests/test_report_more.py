"""Cost on the made-up results of test_report, numbers by hand and refusals; what is said of the grids and drawn."""


import numpy as np
import pandas as pd
import pytest
from made_up_runs import change_manifest, change_provenance, manifest_of
from test_report import row, small_grid, write_grid

from ace.report import cost, environments

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
    change_provenance(results, cell, {"wall_s": wall, "decision_latency_ms": 0.5 + seed, "timed": {"cpu": "a"}})


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


def test_what_branches_took_is_training_and_only_promoted_judgements_are_adjustments(results):
    for seed in (0, 1, 2):
        rich_run(results, seed)
        cell = f"case14/ace/seed={seed}"
        budget = manifest_of(results, cell)["budget"] | {"branches": {"decisions": 600, "updates": 590, "env_steps": 7000}}
        signal = {"judgements_promoted": 0, "judgements_tested": 40, "judgements_untested": 5}
        change_manifest(results, cell, budget=budget, shaped=45, roles={"signal": signal})
    found = row(cost.write_cost(PARAMS, results, results / "made"), env="case14", variant="ace", kind="measured")
    assert (found["decisions"], found["env_steps_train"], found["adjustments"]) == (1510 + 600, 9030 + 7000, 0)


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
    assert one_lost["llm_s"] == pytest.approx(80)  # of the two seeds that are left
    assert np.isnan(one_lost["test_s"]) and np.isnan(one_lost["test_ms_per_step"]), "noted by the runs, beside others"
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


def test_latencies_are_compared_only_where_they_are_far_apart(results):
    for seed in (0, 1, 2):
        rich_run(results, seed)
    for variant, slower in (("greedy", 10.1), ("reconnect", 9.9)):
        change_provenance(results, f"case14/{variant}/seed=0", {"wall_s": {}, "decision_latency_ms": slower * 1.5})
    text = cost.latency(cost.write_cost(PARAMS, results, results / "made"))
    assert "| case14 | ACE | 1.50 | – |" in text
    assert "| case14 | Greedy look-ahead | 15.15 | 10 |" in text and "| case14 | Reconnect lines | 14.85 | – |" in text
    assert "| case14 | SAC | – | – |" in text, "its time was not recorded"


# --- environments ---


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
