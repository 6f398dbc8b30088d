"""A cell's packed files: what is written is read back, seeds come one by one, and a kill leaves the old or the new cell."""

import gzip
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT
from made_up_runs import change_provenance
from safetensors import safe_open
from safetensors.numpy import save_file

from ace import run_files
from ace.rl.policy import load_policy
from ace.rl.sac import SAC
from ace.run_files import SeedFiles, cell_folder, pack, policy_digest, read_cell, read_provenance, seeds_in, write_cell

SHARED = {"env": "toy", "variant": "a", "scale": "quick", "settings": {"method": "sac"}, "test_hash": "abc"}


def seed_files(seed, folder, weights=1.0, survival="0.4"):
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"w": np.full((2, 3), weights, np.float32)}, folder / run_files.POLICY)
    manifest = {**SHARED, "seed": seed, "budget": {"test": {"llm_calls": seed}}}
    episodes = [{"episode": str(i), "survival": survival, "reward": "1e-05"} for i in range(2)]
    return SeedFiles(manifest, episodes, [{"decisions": "10", "gain": ""}], folder)


def finished(tmp_path, seed, commit="one", **more):
    """What a run leaves in its scratch folder."""
    folder = tmp_path / f"scratch/seed={seed}" / run_files.FINISHED
    files = seed_files(seed, folder.parent, **more)
    write_cell(folder, {seed: files})
    noted = {"commit": commit, "result_sha256": files.digest()}
    (folder / "provenance.json").write_text(json.dumps(noted))
    return {seed: folder}


def contents(folder):
    """Of all files but locks."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture
def results(tmp_path):
    """A tree with seeds 0 and 1 of the cell toy/a."""
    pack(tmp_path / "results", "toy", "a", finished(tmp_path, 0) | finished(tmp_path, 1))
    return tmp_path / "results"


def test_a_cell_holds_every_seed_in_one_file_a_kind(results):
    found = contents(results)
    policies = {f"runs/toy/a/seed={seed}/policy.safetensors" for seed in (0, 1)}
    tables = {f"runs/toy/a/{name}" for name in ("episodes.csv", "training.csv", "manifest.json")}
    assert set(found) == {"provenance/toy.json"} | policies | tables
    assert found["runs/toy/a/episodes.csv"].decode().splitlines()[:2] == ["seed,episode,survival,reward", "0,0,0.4,1e-05"]
    manifest = json.loads(found["runs/toy/a/manifest.json"])
    assert manifest == {**SHARED, "seeds": {str(seed): {"budget": {"test": {"llm_calls": seed}}} for seed in (0, 1)}}


def test_what_is_read_is_what_was_written(results, tmp_path):
    read = read_cell(cell_folder(results, "toy", "a"))
    for seed in (0, 1):
        written = seed_files(seed, tmp_path / "scratch" / f"seed={seed}")
        assert replace(read[seed], folder=written.folder) == written
        assert read[seed].digest() == written.digest() == read_provenance(results, "toy", "a")[seed]["result_sha256"]
    assert seeds_in(cell_folder(results, "toy", "a")) == [0, 1] and seeds_in(results / "runs/toy/b") == []
    assert run_files.frame(read[0].episodes)["survival"].tolist() == [0.4, 0.4]


def test_seeds_run_one_after_the_other_give_the_bytes_of_seeds_run_together(results, tmp_path):
    for seed in (1, 0):
        pack(tmp_path / "apart", "toy", "a", finished(tmp_path, seed))
    assert contents(tmp_path / "apart") == contents(results)


def test_a_seed_that_is_run_again_leaves_the_others(results, tmp_path):
    before = read_cell(cell_folder(results, "toy", "a"))
    pack(results, "toy", "a", finished(tmp_path, 1, commit="two", survival="0.9"))
    after = read_cell(cell_folder(results, "toy", "a"))
    assert after[0] == before[0] and after[1].episodes[0]["survival"] == "0.9"
    noted = read_provenance(results, "toy", "a")
    assert (noted[0]["commit"], noted[1]["commit"]) == ("one", "two")


def test_a_cell_that_no_study_plays_keeps_the_digests_of_its_policies_alone(results, tmp_path):
    whole = cell_folder(results, "toy", "a")
    pack(tmp_path / "other", "toy", "a", finished(tmp_path, 0) | finished(tmp_path, 1), whole=())
    lean = cell_folder(tmp_path / "other", "toy", "a")
    assert set(contents(whole)) - set(contents(lean)) == {f"seed={seed}/policy.safetensors" for seed in (0, 1)}
    assert {name: contents(whole)[name] for name in contents(lean)} == contents(lean), "everything else is the same"


def test_a_transcript_that_is_not_kept_is_still_part_of_what_a_run_is(results, tmp_path):
    place = finished(tmp_path, 0)
    for folder, text in ((place[0] / "seed=0", "asked"), (tmp_path / "another", "asked otherwise")):
        folder.mkdir(exist_ok=True)
        with gzip.open(folder / run_files.TRANSCRIPT, "wt") as file:
            file.write(text)
    (whole,) = read_cell(place[0]).values()
    noted = {**whole.manifest, "transcript_sha256": run_files.transcript_digest(whole.folder / run_files.TRANSCRIPT)}
    provenance = (place[0] / "provenance.json").read_text()
    write_cell(place[0], {0: replace(whole, manifest=noted)})
    (place[0] / "provenance.json").write_text(provenance)
    pack(tmp_path / "lean", "toy", "a", place, whole=())
    (lean,) = read_cell(cell_folder(tmp_path / "lean", "toy", "a")).values()
    assert not lean.folder.exists() and lean.transcript_digest() == whole.transcript_digest() is not None
    other = {**noted, "transcript_sha256": run_files.transcript_digest(tmp_path / "another" / run_files.TRANSCRIPT)}
    assert replace(lean, manifest=other).digest() != lean.digest()
    kept = {**whole.manifest, "policy_sha256": policy_digest(whole.folder / run_files.POLICY)}
    assert replace(lean, manifest={**lean.manifest, "policy_sha256": kept["policy_sha256"]}).digest() == replace(
        whole, manifest=kept
    ).digest(), "one digest, kept or not"


def test_a_seed_that_is_run_again_without_policies_leaves_those_of_the_others(results, tmp_path):
    pack(results, "toy", "a", finished(tmp_path, 1, survival="0.9"), whole=())
    kept = [(files.folder / run_files.POLICY).is_file() for files in read_cell(cell_folder(results, "toy", "a")).values()]
    assert kept == [True, False]


def test_a_rerun_with_the_same_results_keeps_what_was_noted(results, tmp_path):
    before = contents(results)
    pack(results, "toy", "a", finished(tmp_path, 0, commit="two"))
    assert contents(results) == before


def test_a_seed_of_other_settings_keeps_them_beside_its_results(results, tmp_path):
    folder = cell_folder(results, "toy", "a")
    seeds = read_cell(folder)
    seeds[1] = replace(seeds[1], manifest={**seeds[1].manifest, "test_hash": "other"})
    write_cell(folder, seeds)
    assert json.loads((folder / "manifest.json").read_text())["seeds"]["1"]["test_hash"] == "other"
    assert [files.manifest["test_hash"] for files in read_cell(folder).values()] == ["abc", "other"]


@pytest.mark.parametrize("has", [0, 1])
def test_an_entry_that_only_one_seed_has_stays_its_own(results, has):
    folder = cell_folder(results, "toy", "a")
    seeds = read_cell(folder)
    seeds[has] = replace(seeds[has], manifest={**seeds[has].manifest, "tested_weights": "float16"})
    write_cell(folder, seeds)
    assert read_cell(folder) == seeds
    assert "tested_weights" in seeds[has].manifest and "tested_weights" not in read_cell(folder)[1 - has].manifest


@pytest.mark.parametrize("dies_at", ["copy", "first rename", "second rename"])
def test_killed_while_it_packs_nothing_is_lost(results, tmp_path, monkeypatch, dies_at):
    folder, before, new = cell_folder(results, "toy", "a"), contents(results), finished(tmp_path, 1, commit="two", survival="0.9")
    renames = []

    def rename(source, target, real=os.rename):
        renames.append(source)
        if len(renames) == {"first rename": 1, "second rename": 2}.get(dies_at):
            raise KeyboardInterrupt
        real(source, target)

    def copy(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(run_files.os, "rename", rename)
        if dies_at == "copy":
            killed.setattr(run_files.shutil, "copy", copy)
        with pytest.raises(KeyboardInterrupt):
            pack(results, "toy", "a", new)
    if dies_at != "second rename":
        assert {f"runs/toy/a/{name}": data for name, data in contents(folder).items()}.items() <= before.items()
        assert seeds_in(folder) == [0, 1]
    pack(results, "toy", "a", new)
    assert read_cell(folder)[0].episodes[0]["survival"] == "0.4" and read_cell(folder)[1].episodes[0]["survival"] == "0.9"
    assert [path.name for path in folder.parent.iterdir()] == ["a"], "nothing is left beside it"


def test_files_that_do_not_belong_together_are_one_line(results):
    folder = cell_folder(results, "toy", "a")
    text = (folder / "episodes.csv").read_text()
    (folder / "episodes.csv").write_text("\n".join(line for line in text.splitlines() if not line.startswith("1,")))
    with pytest.raises(ValueError, match=r"seeds \[0, 1\] in manifest.json, but \[0\] in episodes.csv"):
        read_cell(folder)
    (folder / "episodes.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"no episodes.csv in .*toy/a"):
        read_cell(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("manifest.json", b"{"),
        ("manifest.json", b"\xff"),
        ("manifest.json", b"[1]"),
        ("manifest.json", b"{}"),
        ("manifest.json", b'{"seeds": {"zero": {}}}'),
        ("episodes.csv", b"episode,survival\n0,0.4\n"),
        ("episodes.csv", b"seed,episode,survival\n0,0\n"),
        ("training.csv", b"seed,decisions\n0,10,11\n"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line_that_names_it(results, name, content):
    folder = cell_folder(results, "toy", "a")
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        read_cell(folder)
    assert str(error.value).startswith(f"{folder / name}: ")


@pytest.mark.skipif(not (ROOT / ".git").exists() or not shutil.which("git"), reason="not a git repository")
@pytest.mark.parametrize(("name", "ignored"), [("toy.json.partial", True), (".toy.lock", True), ("toy.json", False)])
def test_git_leaves_out_what_a_killed_writing_of_provenance_left(name, ignored):
    found = subprocess.run(["git", "check-ignore", "-q", f"results/provenance/{name}"], cwd=ROOT)
    assert found.returncode == (0 if ignored else 1)


def test_a_provenance_that_cannot_be_read_is_one_line_that_names_it(results):
    path = results / "provenance/toy.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        read_provenance(results, "toy", "a")
    assert str(error.value).startswith(f"{path}: ")


def test_the_digest_of_a_run_sees_every_change(results, tmp_path):
    run = read_cell(cell_folder(results, "toy", "a"))[0]
    other = tmp_path / "other"
    changed = [
        replace(run, manifest={**run.manifest, "scale": "laptop"}),
        replace(run, episodes=run.episodes[:1]),
        replace(run, training=None),
        replace(run, folder=seed_files(0, other, weights=2.0).folder),
    ]
    assert len({each.digest() for each in [run, *changed]}) == 5
    noted = {**run.manifest, "policy_sha256": policy_digest(run.folder / run_files.POLICY)}
    gone = replace(run, folder=tmp_path / "not_kept", manifest=noted)
    assert gone.policy_digest() == run.policy_digest(), "a policy that is not kept has its digest in the manifest"


def test_what_was_played_is_told_by_weeks_and_not_by_what_made_them(params):
    def told(**changes):
        spec = params.environment("wcci2020")
        spec = spec.model_copy(update={name: value for name, value in changes.items() if name != "weeks"})
        spec = spec.model_copy(update={"weeks": spec.weeks.model_copy(update=changes.get("weeks", {}))})
        sets = {"test": SimpleNamespace(hash=lambda: changes.get("hash", "of these weeks"))}
        world = SimpleNamespace(spec=spec, sets=sets, operator=SimpleNamespace(danger=1.0, recover=0.0))
        return run_files.test_hash(SimpleNamespace(world=world))

    assert told(weeks={"year": 2049, "months": [1]}) == told()
    others = [told(thermal_factor=2.0), told(weeks={"forecast_sd": 0.5}), told(hash="of others")]
    assert len({told(), *others}) == 4


def test_a_provenance_is_read_by_seed(results):
    change_provenance(results, "toy/a/seed=1", None)
    assert list(read_provenance(results, "toy", "a")) == [0] and read_provenance(results, "toy", "b") == {}


# --- policies ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def deployed(small_world, params):
    return SAC(small_world.catalogue, small_world.features.n, params.base.sac, seed=3).acting


def test_a_policy_is_kept_in_float16_and_computes_in_float32(deployed, small_world, tmp_path):
    half, full = tmp_path / "half.safetensors", tmp_path / "full.safetensors"
    deployed.save(half)
    with safe_open(half, framework="numpy") as file:
        metadata, kinds = file.metadata(), {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118 (not a dict)
    assert kinds == {np.dtype(np.float16)}
    save_file({name: np.ascontiguousarray(w) for name, w in deployed.weights.items()}, full, metadata=metadata)
    assert half.stat().st_size < 0.6 * full.stat().st_size
    assert policy_digest(half) == policy_digest(full), "one digest for both forms"
    x = np.linspace(-1, 1, small_world.features.n, dtype=np.float32)
    for path in (half, full):
        loaded = load_policy(path, small_world.catalogue)
        assert {w.dtype for w in loaded.weights.values()} == {np.dtype(np.float32)}
        np.testing.assert_allclose(loaded.logits(x), deployed.logits(x), atol=1e-2)
    np.testing.assert_array_equal(load_policy(full, small_world.catalogue).logits(x), deployed.logits(x))
    loaded = load_policy(half, small_world.catalogue)
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == half.read_bytes(), "rounded once"


def test_a_float16_policy_that_does_not_fit_is_one_line(deployed, small_world, tmp_path):
    path = tmp_path / "policy.safetensors"
    other = SimpleNamespace(n_enum=deployed.space.n_enum + 1, n_bits=deployed.space.n_bits, n_actions=deployed.space.n_actions)
    type(deployed)(other, deployed.weights).save(path)
    with pytest.raises(ValueError, match="is for another catalogue: n_enum is") as error:
        load_policy(path, small_world.catalogue)
    assert "\n" not in str(error.value)
    cut = {**deployed.weights, "head.bias": deployed.weights["head.bias"][:-1]}
    type(deployed)(deployed.space, cut).save(path)
    with pytest.raises(ValueError, match="is damaged") as error:
        load_policy(path, small_world.catalogue)
    assert "\n" not in str(error.value)


def test_a_run_ends_without_git(monkeypatch):
    assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?", run_files._commit())
    monkeypatch.setenv("PATH", "")
    assert run_files._commit() == "unknown"
