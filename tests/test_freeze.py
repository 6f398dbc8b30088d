"""The freeze: the test weeks follow from its commit, and what is run is what was frozen."""

import json
import re
import subprocess

import pytest
from conftest import ROOT

from ace import config
from ace.pipeline import freeze
from ace.pipeline.digests import parameters

HASH = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def state(params):
    return freeze.state(ROOT, params)


def test_what_is_run_is_what_was_frozen(params, state):
    if not params.chronics.frozen_at:
        assert not (ROOT / freeze.FREEZE).exists()
        return
    frozen = json.loads((ROOT / freeze.FREEZE).read_text(encoding="utf-8"))
    assert frozen["commit"] == params.chronics.frozen_at
    assert freeze.differences(frozen, state) == []
    assert all(each["why"] for each in frozen["mended"].values())


def test_the_whole_grid_is_the_frozen_one(whole_params):
    about = json.loads((ROOT / freeze.FREEZE).read_text(encoding="utf-8"))
    frozen = about["state"] | {name: each["to"] for name, each in about["mended"].items()}  # which also names cells added since
    now = freeze.state(ROOT, whole_params)
    assert {name: each for name, each in now.items() if name.startswith("cells.")} == {
        name: each for name, each in frozen.items() if name.startswith("cells.")
    }


def test_everything_that_makes_a_cell_is_frozen(params, state):
    assert {f"cells.{env}.{variant}" for _, env, variant in params.grid.cells} <= set(state)
    assert {
        "programs.03_train",
        "programs.00_weeks",
        "sections.language_model",
        "environments.wcci2020",
        "contrasts",
    } <= set(state)


def test_a_cell_with_fewer_seeds_has_the_same_digest(params, state):
    fewer = params.model_copy(update={"seeds": params.seeds[:2]})
    assert freeze.differences({"state": state, "mended": {}}, freeze.state(ROOT, fewer)) == []


def test_differences_are_named_and_fewer_seeds_or_mended_code_are_none(state):
    then = state
    frozen = {"state": dict(then), "mended": {}}
    assert freeze.differences(frozen, then) == []
    cell = "cells.wcci2020.sac"
    value, _, seeds = then[cell].partition(" seeds ")
    assert freeze.differences(frozen, {**then, cell: f"{value} seeds {seeds.split()[0]}"}) == []
    for changed in (f"{value} seeds {seeds} 99", f"0 seeds {seeds}"):
        assert freeze.differences(frozen, {**then, cell: changed}) == [f"{cell}: {changed}, frozen as {then[cell]}"]
    assert freeze.differences(frozen, {**then, "cells.wcci2020.mine": "1 seeds 0"}) == [
        "cells.wcci2020.mine: not in the freeze"
    ]
    now = {**then, "programs.03_train": "of a mended program"}
    assert freeze.differences(frozen, now)
    frozen["mended"] = {"programs.03_train": {"to": "of a mended program", "why": "known issue 1"}}
    assert freeze.differences(frozen, now) == []
    frozen["mended"]["code.split"] = {"to": "of a part that was split off", "why": "known issue 1"}
    assert freeze.differences(frozen, {**now, "code.split": "of a part that was split off"}) == []
    frozen["state"]["weeks.x"] = None
    assert freeze.differences(frozen, {**then, "weeks.x": "made since"}) == ["weeks.x: made since, frozen as None"]
    assert freeze.differences(frozen, {**now, "code.split": "of another"}) == ["code.split: not in the freeze"]
    assert freeze.differences(frozen, {k: v for k, v in now.items() if k != cell}) == [], "not run yet"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    text = re.sub(r'frozen_at: "\w*"', 'frozen_at: ""', (ROOT / "params.yaml").read_text(encoding="utf-8"))
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(freeze, "state", lambda root, params: {"cells.x.y": "1 seeds 0"})
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a commit -qm a"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_freeze_is_of_a_commit_and_happens_once(repository, capsys):
    (repository / "more").write_text("")
    assert freeze.main(["--write"]) == 1 and "1 uncommitted changes" in capsys.readouterr().err
    (repository / "more").unlink()
    assert freeze.main([]) == 0 and capsys.readouterr().out == "nothing is frozen yet\n"
    assert freeze.main(["--write"]) == 0
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    assert config.load().chronics.frozen_at == commit
    noted = json.loads((repository / freeze.FREEZE).read_text(encoding="utf-8"))
    assert noted == {"commit": commit, "state": {"cells.x.y": "1 seeds 0"}, "mended": {}}
    assert freeze.main([]) == 0 and "as frozen at" in capsys.readouterr().out
    assert freeze.main(["--write"]) == 1 and "frozen already" in capsys.readouterr().err


def test_without_git_there_is_one_line(repository, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert freeze.main(["--write"]) == 1 and "git is not installed" in capsys.readouterr().err
    assert not (repository / freeze.FREEZE).exists()


def test_what_differs_is_said_on_stderr(repository, capsys, monkeypatch):
    assert freeze.main(["--write"]) == 0
    monkeypatch.setattr(freeze, "state", lambda root, params: {"cells.x.y": "2 seeds 0"})
    assert freeze.main([]) == 1
    assert capsys.readouterr().err == "differs: cells.x.y: 2 seeds 0, frozen as 1 seeds 0\n"
    path = repository / freeze.FREEZE
    noted = json.loads(path.read_text(encoding="utf-8"))
    noted["mended"] = {"cells.x.y": {"to": "2 seeds 0", "why": "known issue 9"}}
    path.write_text(json.dumps(noted), encoding="utf-8")
    assert freeze.main([]) == 0 and "changed after the freeze: cells.x.y: known issue 9\n" in capsys.readouterr().out


def test_noting_the_commit_changes_nothing_that_is_frozen(params):
    """Else a freeze would be out of date as soon as its commit is noted."""
    noted = params.model_copy(update={"chronics": params.chronics.model_copy(update={"frozen_at": HASH})})
    then, now = parameters(params), parameters(noted)
    assert {key: now[key] for key in then if key != "weeks"} == {key: then[key] for key in then if key != "weeks"}
    assert now["weeks"] != then["weeks"], "the weeks are made anew"
