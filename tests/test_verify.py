"""`make verify`: what agrees is told, what does not is named, and whoever asks wrongly gets one line."""

import gzip
import json
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT, small_params
from made_up_runs import change_manifest, change_provenance, drop_seed, write_seed
from safetensors.numpy import save_file

from ace.config.host import processor
from ace.pipeline import recompute, workspace
from ace.pipeline.recompute import Cell, choose
from ace.pipeline.workspace import WorkspaceError
from ace.report import compared_values, tables, verify
from ace.report.compared_values import NOT_JUDGED, OUTSIDE, WITHIN
from ace.run_files import POLICY, TRANSCRIPT, SeedFiles, policy_digest, read_cell

TABLE = "env,variant,mean,evidence\ncase14,sac,36.25,ace 81.29\ncase14,ace,81.3,\n"
OTHER = "another processor"


@pytest.fixture
def both(tmp_path):
    """write(path, committed, recomputed=None) -> the two workspaces, with one file in each."""
    roots = tmp_path / "committed", tmp_path / "recomputed"

    def write(path, committed, recomputed=None):
        for root, content in zip(roots, (committed, committed if recomputed is None else recomputed), strict=True):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content if isinstance(content, bytes) else content.encode())
        return roots

    return write


def wrong(items):
    return [(item.place, item.committed, item.recomputed) for item in items if item.verdict == OUTSIDE]


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_table_that_agrees_is_one_line_with_a_count(both):
    (item,) = verify.compare(*both("results/paper/toy/x.csv", TABLE), "results/paper/toy/x.csv")
    assert (item.committed, item.recomputed, item.verdict) == ("12 values", "12 agree", WITHIN)


def test_a_tampered_number_is_named_with_file_row_and_column(both, capsys):
    roots = both("results/paper/toy/x.csv", TABLE.replace("81.3", "91.3"), TABLE)
    code = verify.main([*map(str, roots), "results/paper/toy/x.csv"])
    head, counted, named, *_ = capsys.readouterr().out.splitlines()
    assert code == 1
    assert head.split() == ["item", "committed", "recomputed", "tolerance", "verdict"]
    assert "12 values" in counted and "11 agree" in counted and counted.endswith(OUTSIDE)
    assert " ".join(named.split()) == "results/paper/toy/x.csv, line 3 (case14, ace), mean 91.3 81.3 exact outside"
    assert verify.main([*map(str, roots[1:] * 2), "results/paper/toy/x.csv"]) == 0


@pytest.mark.parametrize(
    ("name", "content", "old", "new", "place"),
    [
        ("x.csv", TABLE, "81.29", "82.29", "line 2 (case14, sac, ace 81.29), evidence"),
        ("x.csv", TABLE, "mean", "median", "line 1 (env, variant, mean), column 3"),
        ("x.md", "# T\n\n| a | 3.1 |\n", "3.1", "3.2", "line 3"),
        ("x.json", json.dumps({"a": {"b": [1, 2.5]}}), "2.5", "2.6", "a.b.1"),
        ("x.json", json.dumps({"a": "true", "b": "same"}), '"true"', "true", None),
    ],
)
def test_every_kind_of_text_file_is_compared_value_by_value(both, name, content, old, new, place):
    path = f"results/paper/toy/{name}"
    items = verify.compare(*both(path, content, content.replace(old, new)), path)
    named = [item.place for item in items[1:]]
    assert (f"{path}, {place}" in named) if place else named == []


def test_what_only_one_side_has_is_outside(both):
    path = "results/paper/toy/x.csv"
    longer = TABLE + "case14,greedy,100,\n"
    places = [place for place, *_ in wrong(verify.compare(*both(path, longer, TABLE), path))]
    assert f"{path}, line 4 (case14, greedy), mean" in places
    assert len(wrong(verify.compare(*both(path, TABLE, longer), path))) == 5  # four cells and the count
    committed, recomputed = both(path, TABLE)
    (recomputed / path).unlink()
    assert wrong(verify.compare(committed, recomputed, path)) == [(path, "there", "missing")]


def test_a_folder_has_the_same_files_on_both_sides(both):
    folder = "results/paper/toy"
    committed, recomputed = both(f"{folder}/x.csv", TABLE)
    (committed / folder / "run.ipynb").write_text("{}")
    assert wrong(verify.compare(committed, recomputed, folder)) == []
    (recomputed / folder / "more.csv").write_text(TABLE)
    assert wrong(verify.compare(committed, recomputed, folder)) == [(f"{folder}/more.csv", "missing", "there")]
    (committed / folder / "x.csv").unlink()
    assert (f"{folder}/x.csv", "missing", "there") in wrong(verify.compare(committed, recomputed, folder))
    for root in (committed, recomputed):
        (root / "results/empty").mkdir()
    assert wrong(verify.compare(committed, recomputed, "results/empty")) == [("results/empty", "empty", "empty")]


def test_a_file_that_is_no_json_is_named(both):
    (item,) = verify.compare(*both("results/paper/toy/x.json", "{}", "{"), "results/paper/toy/x.json")
    assert item.verdict == OUTSIDE and item.place.startswith("results/paper/toy/x.json cannot be compared: ")


def test_the_bytes_of_a_picture_are_shown_and_not_judged(both):
    path = "results/paper/toy/x.png"
    (item,) = verify.compare(*both(path, b"\x89a", b"\x89b"), path)
    assert item.verdict == NOT_JUDGED and item.committed != item.recomputed
    (item,) = verify.compare(*both(path, b"\x89a"), path)
    assert item.verdict == WITHIN


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("36.25", "36.2501", True),
        ("36.25", "36.26", False),
        ("36.25", "", False),
        ("5", "6", False),
        ("0", "0.1", False),
        ("ace 81.2 of 1,000", "ace 81.3 of 1,000", True),  # rounded for people: one unit of the last decimal
        ("ace 81.2 of 1,000", "ace 81.4 of 1,000", False),
        ("ace 81.2 of 1,000", "ace 81.2 of 1,001", False),
        ("ace 81.2", "sac 81.2", False),
    ],
)
def test_the_tolerance_of_other_processors_by_hand(a, b, same):
    assert compared_values.agree(a, b, 1e-5) == same
    assert not compared_values.agree(a, b), "without a tolerance only the same text agrees"


def test_long_texts_are_cut_to_where_they_part():
    a, b = compared_values.difference("a long sentence that ends well", "a long sentence that ends ill", width=20)
    assert a.endswith("ends well") and b.endswith("ends ill") and len(a) <= 20


# --- runs -------------------------------------------------------------------------------------------------------------

RUN = "results/runs/toy/a"


def write_run(root, seed, survival, method="sac", refinements=300, cpu=None):
    """survival: of the first of two episodes, the second survives 0.1 more; or a list, of each."""
    survived = survival if isinstance(survival, list) else [survival, survival + 0.1]
    rewards = [100 * s for s in survived]
    episodes = {"split": "test", "episode": range(len(survived)), "survival": survived, "reward": rewards}
    episodes |= {"reward_mean": 0.5, "decisions": 20}
    budget = {"train": {"simulator_calls": 100, "env_steps": 9}, "test": {"simulator_calls": 10, "llm_calls": 1}}
    manifest = {"env": "toy", "variant": "a", "seed": seed, "test_hash": "abc", "scale": "quick", "budget": budget}
    manifest |= {"settings": {"method": method}, "refinements": refinements}
    noted = {"cpu": cpu or processor(), "wall_s": {"train": 60.0, "evaluate": 30.0}}
    write_seed(root / "results", manifest, pd.DataFrame(episodes), provenance=noted)
    return root


@pytest.fixture
def committed(tmp_path):
    for seed, survival in enumerate((0.3, 0.4, 0.5)):
        write_run(tmp_path / "committed", seed, survival, refinements=300 + 10 * seed)
    return tmp_path / "committed"


def by_place(items):
    return {item.place.strip(): item for item in items}


def test_a_run_is_compared_by_its_numbers_and_bytes(committed, tmp_path):
    again = write_run(tmp_path / "again", 0, 0.3)
    items = by_place(verify.compare(committed, again, f"{RUN}/seed=0"))
    assert {item.verdict for item in items.values()} == {WITHIN}
    assert items["survival, % of the horizon"].committed == "35" == items["survival, % of the horizon"].recomputed
    assert items["simulator calls"].committed == "110" and items["LLM calls"].committed == "1"
    assert items["decisions in the test"].committed == "40"
    assert {"sha256 of episodes.csv", "sha256 of manifest.json"} <= set(items)


def test_a_run_that_differs_is_outside_on_its_own_processor(committed, tmp_path):
    write_run(committed, 0, 0.3001)
    again = write_run(tmp_path / "again", 0, 0.3)
    items = by_place(verify.compare(committed, again, f"{RUN}/seed=0"))
    path = f"{RUN}/seed=0"
    for what in ("survival, % of the horizon", "reward of an episode", "sha256 of episodes.csv"):
        assert items[f"{path}  {what}"].verdict == OUTSIDE, "and the run is named"
    assert items[path].verdict == OUTSIDE and items["refinements"].verdict == WITHIN


def test_a_cell_is_compared_seed_by_seed_and_a_seed_that_is_missing_is_named(committed, tmp_path):
    for seed, survival in enumerate((0.3, 0.4, 0.5)):
        write_run(tmp_path / "again", seed, survival, refinements=300 + 10 * seed)
    items = verify.compare(committed, tmp_path / "again", RUN)
    assert [item.place for item in items if item.place.startswith(RUN)] == [f"{RUN}/seed={seed}" for seed in (0, 1, 2)]
    assert wrong(items) == [] == wrong(verify.compare(committed, tmp_path / "again", "results/runs"))
    drop_seed(tmp_path / "again/results", "toy/a/seed=1")
    assert wrong(verify.compare(committed, tmp_path / "again", RUN)) == [(f"{RUN}/seed=1", "there", "missing")]
    assert wrong(verify.compare(committed, tmp_path / "nothing", f"{RUN}/seed=0")) == [(f"{RUN}/seed=0", "there", "missing")]


def test_a_policy_is_compared_by_its_weights_and_a_transcript_by_its_text(committed, tmp_path):
    again, path = write_run(tmp_path / "again", 0, 0.3), f"{RUN}/seed=0"
    weights = np.linspace(0, 1, 7, dtype=np.float32)
    for root, kind, level in ((committed, np.float32, 1), (again, np.float16, 9)):
        (root / path).mkdir(exist_ok=True)
        save_file({"w": weights.astype(kind)}, root / path / POLICY)
        (root / path / TRANSCRIPT).write_bytes(gzip.compress(b"text", level))
    assert wrong(verify.compare(committed, again, path)) == [], "float32 and float16, packed otherwise: the same"
    save_file({"w": weights + 0.01}, again / path / POLICY)
    (again / path / TRANSCRIPT).write_bytes(gzip.compress(b"texts"))
    named = [place for place, *_ in wrong(verify.compare(committed, again, path))]
    assert named == [path, f"{path}  sha256 of the policy", f"{path}  sha256 of the transcript"]


def test_a_policy_that_is_kept_and_not_committed_is_named(committed, tmp_path):
    again, path = write_run(tmp_path / "again", 0, 0.3), f"{RUN}/seed=0"
    (again / path).mkdir()
    save_file({"w": np.ones(3, np.float16)}, again / path / POLICY)
    digest = policy_digest(again / path / POLICY)
    for root in (committed, again):
        change_manifest(root / "results", "toy/a/seed=0", policy_sha256=digest)
    assert wrong(verify.compare(committed, again, path))[1:] == [(f"{path}  {POLICY}", "missing", "there")]
    assert wrong(verify.compare(again, committed, path)) == [], "one that is committed, but not kept any more"


@pytest.mark.parametrize(
    ("name", "content"),
    [("manifest.json", "{"), ("manifest.json", "[]"), ("manifest.json", '{"seeds": 3}'), ("episodes.csv", "episode\n0\n")],
)
def test_a_run_file_that_cannot_be_read_is_outside_and_named(committed, tmp_path, name, content):
    again = write_run(tmp_path / "again", 0, 0.3)
    (again / RUN / name).write_text(content)
    (item,) = verify.compare(committed, again, f"{RUN}/seed=0")
    assert item.verdict == OUTSIDE and str(again / RUN / name) in item.place and "\n" not in item.place


def test_elsewhere_a_trained_seed_is_held_to_the_range_of_the_committed_ones(committed, tmp_path):
    # means of the seeds 35, 45, 55: s = 10; t(0.995, 2) = 9.9248; 45 +- 9.9248 * 10 * sqrt(4 / 3), and none is negative
    low, high = verify.expected_range([35.0, 45.0, 55.0])
    assert (low, high) == pytest.approx((45 - 114.60, 45 + 114.60), abs=0.01)
    assert verify.expected_range([1500.0] * 3, least=0.02) == pytest.approx((1470, 1530))
    assert verify.expected_range([1500.0] * 3) == (1500, 1500), "no room where none is given"
    for refinements, verdict in ((400, WITHIN), (500, OUTSIDE)):  # 310 +- 114.6
        again = write_run(tmp_path / "again", 0, 0.45, refinements=refinements)
        items = verify.compare(committed, again, f"{RUN}/seed=0", here=OTHER)
        (found,) = [item for item in items if item.place.endswith("refinements")]
        assert found.verdict == verdict and found.tolerance == "195.398 to 424.602"
        items = by_place(items)
        assert items["survival, % of the horizon"].verdict == WITHIN
        assert items["survival, % of the horizon"].tolerance == "0 to 100"
        assert items["sha256 of episodes.csv"].verdict == NOT_JUDGED


def test_elsewhere_too_a_changed_run_file_no_longer_fits_its_provenance(committed, tmp_path):
    noted = {"cpu": "x", "result_sha256": read_cell(committed / RUN)[0].digest()}
    change_provenance(committed / "results", "toy/a/seed=0", noted)
    again = write_run(tmp_path / "again", 0, 0.45)
    assert wrong(verify.compare(committed, again, f"{RUN}/seed=0", here=OTHER)) == []
    change_manifest(committed / "results", "toy/a/seed=0", refinements=301)
    named = [place for place, *_ in wrong(verify.compare(committed, again, f"{RUN}/seed=0", here=OTHER))]
    assert named == [f"{RUN}/seed=0", f"{RUN}/seed=0  all committed results, against the digest noted"]


def test_elsewhere_the_test_scenarios_stay_exact(committed, tmp_path):
    again = write_run(tmp_path / "again", 0, 0.3)
    change_manifest(again / "results", "toy/a/seed=0", test_hash="abd")
    items = verify.compare(committed, again, f"{RUN}/seed=0", here=OTHER)
    assert [place for place, *_ in wrong(items)] == [f"{RUN}/seed=0", f"{RUN}/seed=0  test hash"]


@pytest.mark.parametrize(("x86", "verdict"), [(True, OUTSIDE), (False, WITHIN)])
def test_what_no_network_has_a_part_in_is_exact_on_every_x86_processor(tmp_path, both, monkeypatch, x86, verdict):
    monkeypatch.setattr(verify, "X86", x86)
    committed = write_run(tmp_path / "baseline", 0, 0.3, method="reconnect")
    again = write_run(tmp_path / "again", 0, 0.3001, method="reconnect")
    assert verify.compare(committed, again, f"{RUN}/seed=0", here=OTHER)[0].verdict == verdict
    path = "results/paper/toy/x.csv"
    items = verify.compare(*both(path, TABLE, TABLE.replace("36.25", "36.2501")), path, here=OTHER)
    assert items[0].verdict == verdict
    path = "results/scenarios/x.json"
    items = verify.compare(*both(path, '{"load": 36.25}', '{"load": 36.2501}'), path, here=OTHER)
    assert items[0].verdict == OUTSIDE, "scenarios are the same everywhere"


@pytest.mark.parametrize(
    "path",
    ["language_model/toy/rates", "also_model/toy/curve", "pretrained_model/toy/curve", "studies/lora/toy", "studies/rates/toy"],
)
def test_what_a_model_gives_is_a_range_on_another_processor_and_exact_on_the_same(both, path):
    path = f"results/{path}.csv"
    roots = both(path, TABLE, TABLE.replace("36.25", "38.25"))
    change_provenance(roots[0] / "results", "toy/a/seed=0", {"cpu": "its own"})
    assert wrong(verify.compare(*roots, path, here=OTHER)) == [] != wrong(verify.compare(*roots, path, here="its own"))
    assert wrong(verify.compare(*both(path, TABLE, TABLE.replace("36.25", "66.25")), path, here=OTHER)) != []


# --- the committed results --------------------------------------------------------------------------------------------


def test_the_committed_main_table_is_what_its_run_files_give_and_a_changed_number_is_caught(params, tmp_path):
    again, tampered = tmp_path / "again", tmp_path / "tampered"
    for name in ("runs", "provenance"):
        (again / "results").mkdir(exist_ok=True, parents=True)
        (again / "results" / name).symlink_to(ROOT / "results" / name)
    folder = "results/paper/10_table_main"
    tables.write_main(params, again / "results", again / folder)
    paths = [f"{folder}/{name}" for name in ("main.csv", "paired.csv", "main.md", "main.tex")]
    assert [item for path in paths for item in verify.compare(ROOT, again, path) if item.verdict != WITHIN] == []

    shutil.copytree(ROOT / folder, tampered / folder)
    main = tampered / paths[0]
    lines = main.read_text().split("\n")
    cells = lines[7].split(",")
    assert lines[0].split(",")[3] == "mean"
    cells[3] = f"{float(cells[3]) + 0.1:g}"
    main.write_text("\n".join([*lines[:7], ",".join(cells), *lines[8:]]))
    counted, named = verify.compare(tampered, again, paths[0])
    assert named.place == f"{paths[0]}, line 8 ({', '.join(cells[:3])}), mean"
    assert (named.committed, named.verdict) == (cells[3], OUTSIDE) and counted.verdict == OUTSIDE


# --- which cells ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cells(committed):
    named = {
        "language_model@toy": (["results/language_model/toy"], []),
        "measure_foresight@toy": (["results/studies/foresight/toy.csv"], []),
        "baseline@toy-fast": (["results/runs/toy/fast"], [0]),
        "baseline@toy-slow": (["results/runs/toy/slow"], [0]),
        "train@toy-a": (["results/runs/toy/a"], [0, 1, 2]),
        "paper@main": (["results/paper/main"], []),
    }
    change_provenance(committed / "results", "toy/slow/seed=0", {"cpu": OTHER, "wall_s": {"evaluate": 90.0}})
    found = [Cell(stage, "true", outs, seeds) for stage, (outs, seeds) in named.items()]
    return {cell.name: cell for cell in found}


def test_without_a_cell_all_that_is_cheap_and_one_trained_seed_are_chosen(cells, committed):
    drawn = []
    chosen = choose(cells, committed, draw=lambda options: drawn.append(options) or options[1])
    assert [(cell.name, seeds) for cell, seeds in chosen] == [
        ("paper@main", []),  # ahead of the runs: it must not read recomputed ones, whose times are others
        ("toy/fast", [0]),
        ("toy/a", [1]),
    ]
    assert [(cell.name, seeds) for cell, seeds in drawn[0]] == [("toy/a", [seed]) for seed in (0, 1, 2)]


def test_the_seed_that_is_drawn_took_minutes_at_most_or_there_is_no_such(cells, committed):
    drawn = []

    def draw(options):
        drawn.append([seeds for _, seeds in options])
        return options[0]

    for seed, train_s in enumerate((recompute.SHORT_S + 1, recompute.SHORT_S, recompute.SHORT_S + 2)):
        change_provenance(committed / "results", f"toy/a/seed={seed}", {"wall_s": {"train": train_s, "evaluate": 0.0}})
    choose(cells, committed, draw=draw)
    change_provenance(committed / "results", "toy/a/seed=1", {"wall_s": {"train": recompute.SHORT_S, "evaluate": 1.0}})
    choose(cells, committed, draw=draw)
    assert drawn == [[[1]], [[0], [1], [2]]]


def test_a_named_cell_is_chosen_whole_or_by_seed(cells, committed):
    ((cell, seeds),) = choose(cells, committed, "toy/a")
    for stage in ("train@toy-a", "other_model@toy-a"):
        assert choose(cells, committed, stage) == [(cell, seeds)], "by its stage as well, of whatever kind"
    assert cell.parts(seeds) == [f"results/runs/toy/a/seed={seed}" for seed in (0, 1, 2)]
    ((cell, seeds),) = choose(cells, committed, "toy/a", "2")
    assert cell.parts(seeds) == ["results/runs/toy/a/seed=2"]
    assert recompute.seconds(cell, seeds, committed) == 90.0


def test_all_episodes_of_a_baseline_count_in_its_time_and_not_the_test_alone(tmp_path, monkeypatch):
    rows = [{"split": "test"}] * 2 + [{"split": "redraw_1"}] * 6
    played = SeedFiles({}, rows, None, tmp_path)
    monkeypatch.setattr(recompute, "read_cell", lambda folder: {0: played})
    monkeypatch.setattr(recompute, "noted", lambda *of: [{"wall_s": {"evaluate": 10.0}}])

    def took(kind):
        return recompute.seconds(Cell(f"{kind}@toy-b", "true", ["results/runs/toy/b"], [0]), [0], tmp_path)

    assert (took("baseline"), took("train")) == (40.0, 10.0)
    played.episodes[:2] = []
    assert took("baseline") == 10.0, "no test to compare with"
    monkeypatch.undo()
    monkeypatch.setattr(recompute, "noted", lambda *of: [{"wall_s": {"evaluate": 10.0}}])
    assert took("baseline") == 10.0, "no files: said when they are compared"


@pytest.mark.parametrize(
    ("name", "seed", "said"),
    [
        ("toy/b", "0", r"no cell 'toy/b' with committed results; did you mean toy/a\b.*\? a cell is a folder <environment>"),
        ("gibberish", "0", r"no cell 'gibberish' with committed results; a cell is a folder <environment>/<variant>"),
        ("train@toy-b", "0", r"did you mean .*toy/a"),
        ("toy/a", "7", r"toy/a: no seed '7'; there are: 0, 1, 2"),
        ("toy/a", "x", r"toy/a: no seed 'x'; there are: 0, 1, 2"),
        ("paper@main", "0", r"paper@main: no seed '0'; it has no seeds"),
        ("", "0", r"SEED needs a CELL"),
    ],
)
def test_a_wrong_cell_or_seed_is_one_line_that_names_what_comes_close(cells, committed, name, seed, said):
    with pytest.raises(WorkspaceError, match=said) as raised:
        choose(cells, committed, name, seed)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 300


# --- all of it, on two toy stages -------------------------------------------------------------------------------------

PIPELINE = """
stages:
  train:
    matrix: {variant: [a]}
    cmd: python ace/toy.py train -p seeds []
    outs: [{results/runs/toy/a: {cache: false}}]
  table:
    cmd: python ace/toy.py table
    outs: [{results/paper/toy: {cache: false}}]
  measure_rates:
    cmd: python ace/toy.py measure_rates
    outs: [{results/studies/toy.csv: {cache: false}}]
  planned:
    cmd: python ace/toy.py planned
    outs: [{results/paper/planned: {cache: false}}]
"""
TOY = """
import csv, json, sys
from pathlib import Path

def run(seeds):
    folder = Path("results/runs/toy/a")
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{seed},test,0,0.{seed + 3},30,0.5,20\\n" for seed in seeds)
    (folder / "episodes.csv").write_text("seed,split,episode,survival,reward,reward_mean,decisions\\n" + rows)
    own = {seed: {"budget": {}} for seed in seeds}
    (folder / "manifest.json").write_text(json.dumps({"settings": {"method": "sac"}, "seeds": own}))

if sys.argv[1] == "train":
    run(json.loads(sys.argv[-1]) or [0, 1])
elif sys.argv[1] == "measure_rates":
    Path("results/studies").mkdir(exist_ok=True)
    Path("results/studies/toy.csv").write_text("survival\\n0.1\\n")
    print("minutes of play")
else:
    Path("results/paper/toy").mkdir(exist_ok=True, parents=True)
    found = [row["survival"] for row in csv.DictReader(Path("results/runs/toy/a/episodes.csv").open())]
    Path("results/paper/toy/toy.csv").write_text("survival\\n" + "".join(f"{value}\\n" for value in found))
"""


@pytest.fixture
def project(tmp_path):
    """A repository in small with committed results of a training and a table."""
    for place, text in (
        ("ace/__init__.py", ""),
        ("ace/toy.py", TOY),
        ("notebooks/empty.txt", ""),
        ("dvc.yaml", PIPELINE),
        (".dvcignore", ""),
        ("params.yaml", yaml.safe_dump(small_params())),
    ):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(text)
    for what in (["train", "[]"], ["table"], ["measure_rates"]):
        subprocess.run([sys.executable, "ace/toy.py", *what], cwd=tmp_path, check=True)
    for seed in (0, 1):
        change_provenance(tmp_path / "results", f"toy/a/seed={seed}", {"cpu": processor(), "wall_s": {"train": 1.0}})
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_verify_recomputes_beside_the_committed_results_and_catches_what_was_changed(project, capfd):
    before = contents(project / "results")
    assert recompute.verify(root=project) == 0
    shown = capfd.readouterr().out
    assert "2 of 2 cells agree" in shown and "drawn at random; again: make verify CELL=toy/a SEED=" in shown
    assert "left out, since nothing of it is committed: planned" in shown
    assert "left out, since each takes minutes: measure_rates, and all trained seeds but one" in shown
    assert "minutes of play" not in shown and shown.splitlines()[-1].startswith("verify: more is committed")
    assert contents(project / "results") == before

    table = project / "results/paper/toy/toy.csv"
    table.write_text(table.read_text().replace("0.4", "0.5"))
    assert recompute.verify("table", root=project) == 1
    shown = capfd.readouterr().out
    (line,) = [line for line in shown.splitlines() if "line 3" in line]
    assert " ".join(line.split()) == "results/paper/toy/toy.csv, line 3, survival 0.5 0.4 exact outside"
    assert "left out" not in shown and "0 of 1 cell agree" in shown and shown.splitlines()[-1].endswith("table")
    with pytest.raises(WorkspaceError, match=r"^planned: nothing of it is committed yet"):
        recompute.verify("planned", root=project)

    assert recompute.verify("measure_rates", root=project) == 0
    shown = capfd.readouterr().out
    assert "1 cell, about 7 min" in shown and "minutes of play" in shown, "what takes long shows its progress"

    change_manifest(project / "results", "toy/a/seed=1", settings={"method": "sad"})
    pretrained, inside = project / workspace.PRETRAINED, project / "verify" / workspace.PRETRAINED
    pretrained.mkdir(parents=True)
    assert recompute.verify("toy/a", "0", root=project) == 0, "only the seed that was asked for"
    assert inside.samefile(pretrained) and not inside.parent.is_symlink(), "the model is not copied, nor states beside it shared"
    pretrained.rmdir()
    assert recompute.verify("toy/a", "0", root=project) == 0 and not inside.is_symlink(), "nor a link to nothing left"
    assert recompute.verify("toy/a", "1", root=project) == 1
    assert "seed=1  settings" in capfd.readouterr().out


def test_a_stage_that_fails_is_told_and_its_committed_copy_does_not_pass_for_recomputed(project, capfd):
    (project / "ace/toy.py").write_text("raise SystemExit('out of luck')")
    assert recompute.verify("table", root=project) == 1
    assert "error: out of luck" in capfd.readouterr().out
    assert not (project / "verify/results/paper/toy/toy.csv").exists()
    assert recompute.verify("toy/a", "0", root=project) == 1
    assert "error: its stage failed" in capfd.readouterr().out


def test_weeks_are_left_out_in_a_line_that_names_what_makes_them(project, capfd):
    stages = yaml.safe_load(PIPELINE)["stages"]
    stages["chronics"] = {"matrix": {"env": ["a", "b"]}, "cmd": "exit 1", "outs": ["results/chronics/${item.env}"]}
    (project / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    for name in ("a", "b", "b.making"):
        (project / "results/chronics" / name).mkdir(parents=True)
    with pytest.raises(WorkspaceError, match=r"^chronics@b: .*`make weeks ENV=b`"):
        recompute.verify("chronics@b", root=project)
    with pytest.raises(WorkspaceError, match=r"^chronics: .*`make weeks`"):
        recompute.verify("chronics", root=project)
    with pytest.raises(WorkspaceError, match="no cell 'chronics@c'"):
        recompute.verify("chronics@c", root=project)
    assert recompute.verify("table", root=project) == 0 and "weeks" not in capfd.readouterr().out
    assert recompute.verify(root=project) == 0
    assert "left out, 2 grids: weeks" in capfd.readouterr().out


def test_two_at_once_are_refused(tmp_path):
    with recompute.alone(tmp_path), pytest.raises(WorkspaceError, match="another one is at work"):
        recompute.alone(tmp_path).__enter__()
    with recompute.alone(tmp_path):
        pass  # ended: the next may begin


def test_the_command_line_refuses_a_wrong_cell_in_one_line(project, monkeypatch, capsys):
    monkeypatch.setattr(recompute, "verify", lambda name, seed: choose({}, project, name, seed))
    assert recompute.main(["--cell", "nothing", "--seed", ""]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("verify: no cell 'nothing'") and shown.err.count("\n") == 1 and not shown.out


def made_on(project, *cpus):
    for seed, cpu in enumerate(cpus):
        change_provenance(project / "results", f"toy/a/seed={seed}", {"cpu": cpu})


def test_what_another_maker_made_is_computed_as_there(project, capfd, monkeypatch):
    made_on(project, "AMD of old", "AMD of old")
    asked = []
    monkeypatch.setattr(recompute, "processor", lambda: "Intel(R) Xeon(R)")
    monkeypatch.setattr(recompute, "imitating", lambda maker: asked.append(maker) or {"IMITATED": maker})
    unfinished = project / "verify/checkpoints/results/toy/a/seed=0/state.pt"
    unfinished.parent.mkdir(parents=True)
    unfinished.touch()
    assert recompute.verify("toy/a", root=project) == 0 and asked == ["amd"]
    shown = capfd.readouterr().out
    assert "computed as on AMD of old" in shown and "not judged" not in shown
    assert not unfinished.exists(), "it was computed in another way"


def test_an_unfinished_training_goes_on_in_the_same_way_alone(tmp_path):
    unfinished = tmp_path / "checkpoints/state.pt"
    for name, stays in ((None, False), (None, True), ("AMD of old", False), ("AMD of old", True), (None, False)):
        unfinished.parent.mkdir(exist_ok=True)
        unfinished.touch()
        recompute.only_of(name, tmp_path)
        assert unfinished.exists() == stays


def test_what_cannot_be_imitated_is_compared_with_the_range(project, capfd, monkeypatch):
    made_on(project, "AMD of old", "AMD of old")
    monkeypatch.setattr(recompute, "processor", lambda: "Intel(R) Xeon(R)")

    def refused(maker):
        raise WorkspaceError(f"no {maker} here")

    monkeypatch.setattr(recompute, "imitating", refused)
    assert recompute.verify("toy/a", root=project) == 0
    shown = capfd.readouterr().out
    assert "held to the range of all: no amd here" in shown and "not judged" in shown and "computed as" not in shown

    cell = Cell("train@toy-a", "true", ["results/runs/toy/a"], [0, 1])
    made_on(project, "AMD of old", "Intel(R) Xeon(R)")
    assert recompute.imitated(cell, [0, 1], project) == (None, {})
    assert "of several makers: SEED=... compares each by itself" in capfd.readouterr().out
    made_on(project, "", "")
    for seeds in ([0, 1], [1]):
        assert recompute.imitated(cell, seeds, project) == (None, {}) and not capfd.readouterr().out


def test_a_deployed_policy_is_of_the_processor_on_its_card(project):
    cell = Cell("deployed@toy", "true", ["results/deployed/toy"], [])
    assert recompute.noted_processors(cell, [], project) == set()
    (project / "results/deployed/toy").mkdir(parents=True)
    (project / "results/deployed/toy/card.json").write_text('{"cpu": "AMD of old"}')
    assert recompute.noted_processors(cell, [], project) == {"AMD of old"}
    assert recompute.noted_processors(Cell("table", "true", ["results/paper/toy"], []), [], project) == set()


def test_policies_that_are_the_same_again_are_left_for_the_studies(project):
    cell = Cell("train@toy-a", "true", ["results/runs/toy/a"], [0, 1])
    for seed in (0, 1):
        policy = project / f"verify/checkpoints/results/toy/a/seed={seed}" / POLICY
        policy.parent.mkdir(parents=True)
        save_file({"weights": np.full(3, seed, np.float16)}, policy)
    change_manifest(project / "results", "toy/a/seed=1", policy_sha256=policy_digest(policy))
    recompute.leave_policies(cell, [0, 1], project / "verify", project)
    found = [project / f"checkpoints/results/toy/a/seed={seed}" / POLICY for seed in (0, 1)]
    assert [path.is_file() for path in found] == [False, True] and found[1].read_bytes() == policy.read_bytes()
