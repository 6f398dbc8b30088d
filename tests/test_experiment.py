"""A cell of the experiment end to end, on case14 with a tiny language model that was trained for it.

Same seed, same bytes; another seed, other bytes; killed and resumed, the same bytes as not killed; and for whoever makes a
mistake, one line.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import yaml
from conftest import ROOT, copy_tree, run, small_params, started

from ace import config, experiment, pool, run_files
from ace.also import training as also_training
from ace.grid.environment import World
from ace.grid.whatif import WhatIf
from ace.llm.clients import read_transcript
from ace.llm.models import corpus, training
from ace.llm.text import TextMap
from ace.run_files import cell_folder, frame, read_cell, read_provenance
from ace.studies.neighbours import show as neighbours

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "ACE_JOBS": "1", "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """results/language_model/case14 of a model of some 20,000 weights, trained on 120 states."""
    folder = tmp_path_factory.mktemp("lm")
    raw = small_params()
    raw["scenarios"].update(validation=12)  # held-out states are rare where the grid is this weak
    raw["language_model"].update(
        scan=20,
        states=120,
        heldout_states=12,
        actions=12,
        shortlist=15,
        hidden=48,
        layers=1,
        heads=2,
        ffn=96,
        batch_size=16,
        steps=250,
    )
    params = config.validated(config.Params, raw, "", "params.yaml")
    os.environ["ACE_JOBS"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = corpus.build(params, "case14")
        world = World(params.environment("case14"), params.scenarios, params.settings("ace").operator)
        textmap = TextMap(world)
        training.train(params, made, textmap, folder)
        training.measure(params, "case14", made, world, WhatIf(world), textmap, folder)
    return folder


@pytest.fixture
def equipped(workspace, language_model):
    """workspace() with the language model in its place."""

    def make(change=None, name="ws"):
        folder = workspace(change, name)
        copy_tree(language_model, folder / "results" / "language_model" / "case14")
        return folder

    return make


def files(folder, variant, seed=0):
    """What a cell holds of one seed."""
    run = read_cell(cell_folder(folder / "results", "case14", variant))[seed]
    found = {"episodes.csv": run.episodes, "training.csv": run.training, "manifest.json": run.manifest}
    found |= {path.name: path.read_bytes() for path in sorted(run.folder.glob("*"))}
    return {name: content for name, content in found.items() if content is not None}


@pytest.fixture(scope="module")
def reference(tmp_path_factory, language_model):
    """An ACE run of seeds 0 and 1 that nobody disturbed."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "params.yaml").write_text(yaml.safe_dump(small_params()))
    copy_tree(language_model, folder / "results" / "language_model" / "case14")
    done = run(folder, "ace", [0, 1])
    assert done.returncode == 0, done.stderr
    return folder


def test_run_files_say_what_was_used(reference):
    written = files(reference, "ace")
    assert set(written) == {"episodes.csv", "training.csv", "manifest.json", "policy.safetensors", "transcript.jsonl.gz"}
    manifest = written["manifest.json"]
    place = reference / "results" / "runs" / "case14" / "ace" / "seed=0"
    records = read_transcript(place / "transcript.jsonl.gz")[1:]
    assert sum(manifest["tokens"].values()) == sum(r["tokens"] for r in records) > 0
    assert set(manifest["tokens"]) == {r["role"] for r in records}
    assert 0 < manifest["forecast_gap"] < 0.5 and manifest["marks"] == []
    budget = manifest["budget"]
    assert budget["train"]["llm_calls"] == len(records) > 0
    assert {r["role"] for r in records} == {"actor", "critic", "heldout", "lesson"}
    validated = sum("reward" in (r["verdict"] or "") for r in records)
    measured = sum(r["role"] in ("heldout", "lesson") for r in records)
    judged = 2 * manifest["roles"]["lessons"]["looked_at"]  # the policy's action, and doing nothing
    # Each validated proposal is one power flow, and so is each original action, of a bad case, a held-out state or a lesson.
    assert budget["train"]["simulator_calls"] == validated + manifest["refine_tried"] + measured + judged
    rounds = manifest["finetune_rounds"]
    assert rounds and all(r["accepted"] == (r["rate_after"] >= r["rate_before"]) for r in rounds)
    assert (reference / f"checkpoints/results/case14/ace/seed=0/lora/round={len(rounds)}/adapter_model.safetensors").exists()
    assert budget["test"]["llm_calls"] == budget["test"]["simulator_calls"] == 0
    assert budget["corpus"]["simulator_calls"] > 0 and budget["corpus"]["env_steps"] > 0
    episodes, curve = frame(written["episodes.csv"]), frame(written["training.csv"])
    assert episodes["split"].tolist() == ["test"] * 3 + ["test_on_grid2op"] + ["test_lower"] * 3
    assert episodes["survival"].between(0, 1).all()
    first, again = (episodes.drop(columns=["split", "reward", "reward_mean"]).iloc[i].tolist() for i in (0, 3))
    assert first == again and budget["repeats"]["env_steps"] >= episodes["survived_steps"].iloc[3] > 0
    assert curve["decisions"].is_monotonic_increasing and curve["decisions"].iloc[-1] >= 160
    assert manifest["best_validation"]["survival"] == pytest.approx(curve["survival"].max(), abs=1e-5)
    provenance = read_provenance(reference / "results", "case14", "ace")
    assert set(provenance) == {0, 1} and provenance[0]["wall_s"]["train"] > 0 and "commit" in provenance[0]


def test_a_variant_with_a_model_of_its_own_reads_no_other(workspace, language_model, reference):
    """Neither its manifest nor the held-out states of its LoRA rounds: there is no other here."""
    own = "results/language_models/camel_poor/{env}"
    folder = workspace(lambda raw: raw["variants"].update(ace={"llm": {"path": own}}))
    copy_tree(language_model, folder / own.replace("{env}", "case14"))
    done = run(folder, "ace", [0])
    assert done.returncode == 0, done.stderr
    ours, theirs = files(folder, "ace"), files(reference, "ace")
    assert ours["policy.safetensors"] == theirs["policy.safetensors"] and ours["manifest.json"] != theirs["manifest.json"]


def test_same_seed_same_bytes_other_seed_other_bytes(reference, equipped):
    folder = equipped()
    assert run(folder, "ace", [0]).returncode == 0
    assert files(folder, "ace") == files(reference, "ace")
    assert files(reference, "ace", 0)["training.csv"] != files(reference, "ace", 1)["training.csv"]


def with_controls(p):
    """Variants whose roles a checkpoint has to hold beside, or without, those of the language model; one with marks and masks,
    too, and one that is in branches most of its time."""
    p["variants"]["ace_guarded"]["also"]["every"] = 20
    p["variants"]["controls"] = {
        "refine": {"proposer": "frequency"}, "shape": {"judge": "random"}, "mask": {"source": "model"},
        "train": {"marks": [40, 50, 100, 160]},
    }  # fmt: skip


@pytest.fixture(scope="module")
def model_of_also(tmp_path_factory):
    """A workspace with LLM-ALSO's model, of few trials, and what it took to make: (folder, trials, manifest)."""
    folder = tmp_path_factory.mktemp("also")
    few = {"runs": 5, "decisions": 100, "every": 50, "configurations": 2, "scored": 2, "steps": 400,
           "hidden": 64, "layers": 1, "heads": 2, "ffn": 96, "batch_size": 16}  # fmt: skip
    (folder / "params.yaml").write_text(yaml.safe_dump(small_params(lambda p: p["also_model"].update(few))))
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACE_JOBS", "1")
        return also_training.make("case14", progress=False)


@pytest.mark.parametrize("variant", ["ace", "controls", "llm4teach", "ace_guarded"])
def test_killed_and_resumed_ends_with_the_same_bytes(variant, reference, equipped):
    undisturbed = reference
    if variant != "ace":
        undisturbed = equipped(with_controls, "undisturbed")
        done = run(undisturbed, variant, [0])
        assert done.returncode == 0, done.stderr
        manifest = files(undisturbed, variant)["manifest.json"]
        assert all(sum(counts.values()) > 0 for counts in manifest["roles"].values() if counts) and manifest["roles"]
        assert variant != "ace_guarded" or manifest["roles"]["signal"]["branches"] > 4
        assert variant != "controls" or manifest["roles"]["mask"]["masked"] > 4
    folder = equipped(with_controls)
    state = folder / "checkpoints" / "results" / "case14" / variant / "seed=0" / "state.pt"
    often = {"CHECKPOINT_EVERY_S": 0.0}
    process = started(folder, often, experiment.run_seed, "case14", variant, 0, folder, "results")
    progress = state.with_name("progress")
    deadline = time.monotonic() + 120
    while not (progress.exists() and progress.read_text() and int(progress.read_text().split()[0]) >= 60):
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.join()
    assert state.exists() and not (folder / "results" / "runs").exists()
    done = run(folder, variant, [0])
    assert done.returncode == 0 and "starting anew" not in done.stdout + done.stderr
    assert files(folder, variant) == files(undisturbed, variant)
    assert not state.exists(), "a finished cell must not be continued by the next run"


def test_cells_of_camel_say_what_the_masks_took(equipped):
    """The model's questions are its calls; the control asks nobody; who builds on the corpus pays for it."""
    folder = equipped()
    for variant in ("camel", "camel_random", "camel_frequency"):
        done = run(folder, variant, [0])
        assert done.returncode == 0, done.stderr
        written = files(folder, variant)
        manifest, mask = written["manifest.json"], written["manifest.json"]["roles"]["mask"]
        by_model = variant == "camel"
        assert manifest["budget"]["train"]["llm_calls"] == (mask["answers"] if by_model else 0) < 160 // 8 * 8
        assert ("transcript_sha256" in manifest) == by_model == (manifest.get("tokens", {}).get("mask", 0) > 0)
        assert (manifest["budget"]["corpus"]["simulator_calls"] > 0) == (variant != "camel_random")
        assert manifest["budget"]["train"]["simulator_calls"] == 0, "no answer is simulated"
        assert 0 < mask["states"] <= mask["answers"] // 3 and mask["masked"] <= mask["substations"] <= 3 * mask["masked"]
        assert 0 < mask["masked"] < mask["decisions"] == manifest["decisions"]
        curve = frame(written["training.csv"])
        assert curve["epsilon"].is_monotonic_decreasing and curve["epsilon"].iloc[-1] == 0
        assert curve["masked"].iloc[-1] == pytest.approx(mask["masked"] / mask["decisions"], abs=1e-5)
    shown = neighbours.write_camel(read_cell(cell_folder(folder / "results", "case14", "camel"))[0], folder / "shown")
    assert 0 < shown["regions"].sum() <= files(folder, "camel")["manifest.json"]["roles"]["mask"]["answers"]
    assert {path.name for path in (folder / "shown").iterdir()} == {"run.png", "run.pdf", "run.md", "named.csv"}


def test_a_cell_of_llm_also_says_what_its_branches_took(equipped, model_of_also):
    """From trials on training scenarios to its model, and from that to a run: what both used is charged."""
    folder, (made, table, corpus_of_trials) = equipped(lambda p: p["base"]["train"].update(marks=[30, 160])), model_of_also
    copy_tree(made, folder / "results" / "also_model" / "case14")
    assert {path.name for path in made.iterdir()} >= {"model.safetensors", "trials.csv", "model_manifest.json"}
    assert (table["gain"].notna() & (table["configuration"] == "none")).sum() == len(table) / 3
    assert corpus_of_trials["trials"] == 2 / 3 * corpus_of_trials["branches"] == 2 / 3 * len(table)
    assert corpus_of_trials["rates"]["points"] == 1 and 0 <= corpus_of_trials["rates"]["best_likelier"] <= 1
    done = run(folder, "also", [0])
    assert done.returncode == 0, done.stderr
    manifest = files(folder, "also")["manifest.json"]
    counts, points, budget = manifest["roles"]["signal"], manifest["points"], manifest["budget"]
    assert len(points) == 3 and counts["diagnoses"] == 3
    assert budget["train"]["llm_calls"] == counts["diagnoses"] + counts["configurations"]
    assert {"died", "promoted", "repeated", "out_of_bounds"} <= set(counts), "what is 0 is there"
    assert budget["corpus"]["env_steps"] == corpus_of_trials["env_steps"] > 300 and budget["train"]["simulator_calls"] == 0
    trials = [trial for point in points for trial in point["trials"]]
    used = {name: sum(each[name] for each in trials) for name in ("decisions", "updates", "env_steps", "scoring_steps")}
    assert budget["branches"]["env_steps"] == used["env_steps"] + used["scoring_steps"]
    assert budget["branches"]["decisions"] == used["decisions"] >= budget["branches"]["updates"] == used["updates"] > 0
    first, last = manifest["marks"]
    assert first["branch_decisions"] == 0, "before the first point"
    assert {name: last[f"branch_{name}"] for name in ("decisions", "updates", "env_steps")}.items() <= budget["branches"].items()
    assert counts["branches"] == len(trials) > 0 and all(each["decisions"] == 20 for each in trials)
    curve = frame(files(folder, "also")["training.csv"])
    assert curve["branch_decisions"].iloc[-1] == 20 * len(trials)
    shown = neighbours.write_also(read_cell(cell_folder(folder / "results", "case14", "also"))[0], folder / "shown")
    assert len(shown) == sum(max(len(point["trials"]), 1) for point in points)
    assert {path.name for path in (folder / "shown").iterdir()} == {"run.png", "run.pdf", "run.md", "points.csv"}


def test_a_checkpoint_of_other_settings_is_not_continued(reference, equipped):
    folder = equipped(lambda p: p["base"]["sac"].update(lr=0.002))
    scratch = folder / "checkpoints" / "results" / "case14" / "sac" / "seed=0"
    scratch.mkdir(parents=True)
    params = config.load(folder / "params.yaml")
    other = config.validated(config.Params, small_params(), "", "params.yaml")
    stale = experiment.Run(other, other.settings("sac"), "case14", 0, folder, scratch)
    stale._save()
    done = run(folder, "sac", [0])
    assert done.returncode == 0 and "starting anew" in done.stdout
    assert params.settings("sac") != other.settings("sac")


def test_a_checkpoint_is_of_the_weeks_that_are_played(params, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    started = experiment.Run(params, params.settings("reconnect"), "wcci2020", 0, ROOT, tmp_path)
    for split in ("train", "validation"):
        before = started._fingerprint()
        assert before == started._fingerprint()
        started.world.sets[split].weeks.about[3]["digest"] = "0" * 16
        assert started._fingerprint() != before
    before = started._fingerprint()
    monkeypatch.setattr(run_files, "processor", lambda: "of another maker")
    assert started._fingerprint() != before, "where training takes another course"


def test_a_checkpoint_is_of_the_code_that_ran_not_of_the_code_on_disk_when_it_was_saved(workspace, tmp_path, monkeypatch, capsys):
    """The source is edited during the run: the code that ran continues the checkpoint, the edited code begins again."""
    folder = workspace()
    copy_tree(ROOT / "ace", tmp_path / "code" / "ace")
    edited = tmp_path / "code" / "ace" / "coevolve.py"
    scratch = experiment.scratch_folder(folder, "results", "case14", "sac") / "seed=0"
    scratch.mkdir(parents=True)
    code = (
        "from pathlib import Path\nfrom ace import config, experiment\nparams = config.load()\n"
        f"run = experiment.Run(params, params.settings('sac'), 'case14', 0, Path('.').resolve(), Path({str(scratch)!r}))\n"
        f"with open({str(edited)!r}, 'a') as file: file.write('EDITED = True\\n')\nrun._save()"
    )
    environment = {**ENVIRONMENT, "PYTHONPATH": str(tmp_path / "code")}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "EDITED" in edited.read_text(), done.stderr
    monkeypatch.chdir(folder)
    params = config.load()
    for ran, anew in ((ROOT / "ace" / "pool.py", False), (edited.with_name("pool.py"), True)):
        monkeypatch.setattr(pool, "__file__", str(ran))
        monkeypatch.setattr(experiment, "SOURCE_SHA256", pool.source_sha256(experiment.NO_PART_OF_A_RUN))
        experiment.Run(params, params.settings("sac"), "case14", 0, folder, scratch)._load()
        assert ("starting anew" in capsys.readouterr().out) == anew


def test_what_a_checkpoint_does_not_depend_on_is_what_no_run_loads():
    """And every other room is one that a run loads: an edit there must mark a checkpoint as stale."""
    code = "import sys, ace.experiment; print(*{name.split('.')[1] for name in sys.modules if name.startswith('ace.')})"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    loaded = set(done.stdout.split()) - {"experiment"}
    assert "coevolve" in loaded and not loaded & experiment.NO_PART_OF_A_RUN, done.stderr
    rooms = {path.parent.name for path in (ROOT / "ace").glob("*/__init__.py")}
    assert rooms - loaded == experiment.NO_PART_OF_A_RUN


def test_policies_at_marks_are_kept_and_tested_with_what_they_had_used(workspace):
    plain, marked = workspace(None, "plain"), workspace(lambda p: p["base"]["train"].update(marks=[50, 120]), "marked")
    for folder in (plain, marked):
        done = run(folder, "sac", [0])
        assert done.returncode == 0, done.stderr
    without, found = files(plain, "sac"), files(marked, "sac")
    assert set(found) - set(without) == {"policy_50.safetensors", "policy_120.safetensors"}
    assert found["policy.safetensors"] == without["policy.safetensors"] and found["training.csv"] == without["training.csv"]
    episodes = frame(found["episodes.csv"])
    splits = episodes.groupby("split", sort=False)
    assert list(splits.groups) == ["test", "test@50", "test@120", "test_on_grid2op", "test_lower"]
    assert splits.size().to_dict() == {"test": 3, "test@50": 3, "test@120": 3, "test_on_grid2op": 1, "test_lower": 3}
    assert found["episodes.csv"][:3] == without["episodes.csv"][:3], "the test itself is not another one"
    marks, manifest = found["manifest.json"]["marks"], found["manifest.json"]
    played = manifest["budget"].pop("marks")
    assert [mark["decisions"] for mark in marks] == [50, 120] and manifest["budget"] == without["manifest.json"]["budget"]
    assert played["env_steps"] >= sum(splits.get_group(f"test@{mark}")["survived_steps"].sum() for mark in (50, 120)) > 0
    assert 0 < marks[0]["env_steps"] < marks[1]["env_steps"] < manifest["budget"]["train"]["env_steps"]
    assert all(mark["simulator_calls"] == mark["llm_calls"] == 0 for mark in marks)
    place = marked / "results/runs/case14/sac/seed=0"
    for mark in marks:
        assert mark["policy_sha256"] == run_files.policy_digest(place / f"policy_{mark['decisions']}.safetensors")
    assert len({mark["policy_sha256"] for mark in marks}) == 2
    (place / "policy_50.safetensors").unlink()
    done = run(marked, "sac", [0])
    assert done.returncode == 0
    again = files(marked, "sac")
    assert again["manifest.json"]["budget"].pop("marks") == played and again == found


def test_baselines_run_once_and_are_charged_for_their_simulations(workspace):
    folder = workspace()
    for variant in ("reconnect", "greedy"):
        done = run(folder, variant)
        assert done.returncode == 0, done.stderr
        assert set(files(folder, variant)) == {"episodes.csv", "manifest.json"}
    budgets = [files(folder, v)["manifest.json"]["budget"]["test"] for v in ("reconnect", "greedy")]
    assert budgets[0]["simulator_calls"] == 0 < budgets[1]["simulator_calls"]
    hashes = {files(folder, v)["manifest.json"]["test_hash"] for v in ("reconnect", "greedy")}
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("call", "change", "words"),
    [
        (("nowhere", "sac"), None, ["'nowhere'", "not in params.yaml"]),
        (("case14", "scc"), None, ["'scc'", "did you mean 'sac'"]),
        (("case14", "ace"), None, ["language model", "missing"]),
        (("case14", "sac"), lambda p: p["base"]["refine"].update(threshold=-2), ["base.refine.threshold = -2"]),
        (("case14", "ace"), lambda p: p["base"]["llm"].update(client="replay", path="none.gz"), ["none.gz"]),
        (("case14", "ace"), lambda p: p["base"]["llm"].update(client="checkpoint", path="no/such"), ["no/such"]),
    ],
)
def test_mistakes_end_in_one_line_before_any_work(workspace, monkeypatch, call, change, words):
    monkeypatch.chdir(workspace(change))
    with pytest.raises(config.ConfigError) as error:
        experiment.run_cell(*call)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_replay_of_a_transcript_gives_the_bytes_of_the_recorded_run(reference, equipped):
    """ace without LoRA, because a recording has no weights to tune."""

    def change(p):
        p["base"]["finetune"]["enabled"] = False

    recorded = equipped(change, "recorded")
    assert run(recorded, "ace", [0]).returncode == 0

    def replayed(p):
        change(p)
        p["base"]["llm"].update(client="replay", path="recorded.gz")

    folder = equipped(replayed, "replayed")
    transcript = recorded / "results/runs/case14/ace/seed=0/transcript.jsonl.gz"
    shutil.copy(transcript, folder / "recorded.gz")
    done = run(folder, "ace", [0])
    assert done.returncode == 0, done.stderr
    for name in ("episodes.csv", "training.csv", "transcript.jsonl.gz"):
        assert files(folder, "ace")[name] == files(recorded, "ace")[name], name


def test_a_cell_tells_a_time_to_go_only_once_it_has_one(tmp_path, capsys):
    with pool.Progress("case14 sac", [tmp_path / "progress"]):
        pass
    first, *_, last = [line for line in capsys.readouterr().err.replace("\r", "\n").split("\n") if line.strip()]
    assert first.startswith("case14 sac   0 %") and "estimating" in first and "?" not in first
    assert last.startswith("case14 sac 100 %") and "00:00 to go" in last


# --- the packaged days ---


def test_the_packaged_days_are_played_after_the_test_and_counted_apart(workspace, monkeypatch):
    """case14 has no such split: its validation scenarios stand in."""
    root = workspace()
    monkeypatch.chdir(root)
    params, scratch = config.load(), root / "scratch"
    scratch.mkdir()

    def played(packaged):
        run = experiment.Run(params, params.settings("greedy"), "case14", 0, root, scratch)
        if packaged:
            run.world.sets["packaged"] = run.world.sets["validation"]
        run.test()
        run.play_packaged()
        run_files.write_finished(scratch / run_files.FINISHED, run, "greedy", time.time())
        return read_cell(scratch / run_files.FINISHED)[0]

    without, with_them = played(False), played(True)
    assert with_them.of_split("test") == without.of_split("test") and not without.of_split("packaged")
    found = with_them.of_split("packaged")
    assert [row["episode"] for row in found] == ["0", "1"] and len(with_them.episodes) == 3 + 2 + 1
    budget = with_them.manifest["budget"]
    assert {phase: used for phase, used in budget.items() if phase != "packaged"} == without.manifest["budget"]
    assert budget["packaged"]["simulator_calls"] == sum(int(row["simulator_calls"]) for row in found) > 0
    assert budget["packaged"]["env_steps"] >= sum(int(row["survived_steps"]) for row in found) > 0
    assert with_them.manifest["packaged_hash"] != with_them.manifest["test_hash"] == without.manifest["test_hash"]
    assert "packaged_hash" not in without.manifest


def at_lower_limits(root, method, limits, seed=0):
    """(SeedFiles of the test and the test at these lower limits, the agents of both, the engine's limits of the normal world)."""
    params, scratch = config.load(), root / "scratch" / f"{method}-{seed}"
    scratch.mkdir(parents=True, exist_ok=True)
    params = params.model_copy(update={"scenarios": params.scenarios.model_copy(update={"lower_limits": limits})})
    run, asked = experiment.Run(params, params.settings(method), "case14", seed, root, scratch), []
    play = run.plays.play
    run.plays.play = lambda agent, *given, **named: (asked.append(agent), play(agent, *given, **named))
    run.test()
    run.play_lower()
    run_files.write_finished(scratch / run_files.FINISHED, run, method, time.time())
    return read_cell(scratch / run_files.FINISHED)[seed], (asked[0], asked[-1]), run.whatif.limit


def test_a_baseline_simulates_with_the_lower_limits_that_it_plays_at(workspace, monkeypatch):
    root = workspace()
    monkeypatch.chdir(root)
    played, (normal, lower), limit = at_lower_limits(root, "greedy", 0.7)
    np.testing.assert_allclose(normal.whatif.limit, limit)
    np.testing.assert_allclose(lower.whatif.limit, 0.7 * limit, rtol=1e-6)
    assert played.manifest["lower_limits"] == 0.7
    whole, harder = (played.of_split(split) for split in ("test", run_files.LOWER))
    assert [row["scenario"] for row in whole] == [row["scenario"] for row in harder]
    survived = [sum(int(row["survived_steps"]) for row in rows) for rows in (whole, harder)]
    assert survived[1] < survived[0]
    calls = sum(int(row["simulator_calls"]) for row in harder)
    assert played.manifest["budget"]["lower"]["simulator_calls"] == calls > 0


def test_each_seed_of_a_cell_keeps_the_lower_limits_that_it_was_played_at(workspace, monkeypatch):
    root = workspace()
    monkeypatch.chdir(root)
    for seed, limits in enumerate((0.95, 0.9)):
        at_lower_limits(root, "reconnect", limits, seed)
        place = root / f"scratch/reconnect-{seed}" / run_files.FINISHED
        run_files.pack(root / "results", "case14", "reconnect", {seed: place})
    cell = read_cell(run_files.cell_folder(root / "results", "case14", "reconnect"))
    assert [cell[seed].manifest["lower_limits"] for seed in (0, 1)] == [0.95, 0.9]
    assert cell[0].manifest["test_hash"] == cell[1].manifest["test_hash"]


def test_only_the_main_comparison_plays_the_packaged_days(workspace, monkeypatch):
    root = workspace(lambda raw: raw["grid"].update(baselines=["reconnect"]))
    monkeypatch.chdir(root)
    asked = []
    monkeypatch.setattr(experiment.Run, "play_packaged", lambda run: asked.append(run.settings.operator.reconnect))
    for variant in ("reconnect", "do_nothing"):  # the second is not in the grid
        experiment.run_seed("case14", variant, 0, root, "results")
    assert asked == [True]
