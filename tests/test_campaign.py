"""`make campaign`: which cells are stale, in which order their runs start, and what is said where there is nothing to do."""

import json
import subprocess
from types import SimpleNamespace

import pandas as pd
import pytest
from conftest import ROOT

from ace import config, experiment
from ace.pipeline import campaign
from ace.preflight import campaign as runs
from ace.preflight import language, machine, plan


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    """make(stale, only) -> what a campaign played; DVC and its stages are made up."""

    def make(stale, only="*"):
        played = []
        names = ["digests", "scenarios@a", "also_model@a", "baseline@a-x", "train@a-y", "also@a-z", "paper@z"]
        monkeypatch.setattr(campaign, "check", lambda *_: None)
        monkeypatch.setattr(campaign, "check_weeks", lambda *_: None)
        monkeypatch.setattr(campaign, "stage_names", lambda _: names)
        monkeypatch.setattr(campaign, "repro", lambda _, targets: played.append(list(targets)) or 0)
        monkeypatch.setattr(campaign, "play", lambda _, cells: played.append(list(cells)) or 0)

        def status(command, **_):
            return SimpleNamespace(returncode=0, stdout=json.dumps({name: [] for name in command if name in stale}))

        monkeypatch.setattr(subprocess, "run", status)
        assert campaign.run(tmp_path, only) == 0
        return played

    return make


def test_what_cells_need_is_made_first_then_all_stale_cells_are_one_campaign(pipeline):
    made = ["digests", "scenarios@a", "also_model@a"]
    assert pipeline({"digests", "train@a-y", "baseline@a-x"}) == [made, ["baseline@a-x", "train@a-y"]]
    assert pipeline({"also_model@a", "also@a-z"}) == [made, ["also@a-z"]]
    assert pipeline({"train@a-y", "paper@z"}) == [["train@a-y"]]


def test_some_cells_by_their_names_with_only_what_these_need(pipeline):
    stale = {"digests", "also_model@a", "train@a-y", "baseline@a-x"}
    assert pipeline(stale, only="*@a-y") == [["digests", "scenarios@a"], ["train@a-y"]]
    assert pipeline(stale, only="*-y,base*")[1] == ["baseline@a-x", "train@a-y"]
    with pytest.raises(campaign.WorkspaceError, match="no cell has a name like 'train@b-"):
        pipeline(stale, only="train@b-*")
    assert campaign.is_needed("scenarios@b", ["train@b-y"]) and not campaign.is_needed("scenarios@a", ["train@b-y"])


def test_without_a_stale_cell_it_says_so(pipeline, capsys):
    assert pipeline(set()) == [] and capsys.readouterr().out == "no stale cell: nothing to run\n"


def test_all_seeds_of_all_cells_go_into_one_pool_the_longest_first(workspace, monkeypatch):
    folder = workspace(lambda raw: raw.update(seeds=[0, 1]))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(language, "findings", lambda *_: [])
    asked = []
    monkeypatch.setattr(experiment, "run_seeds", lambda *arguments: asked.append(arguments))
    stages = ["baseline@case14-reconnect", "train@case14-sac", "train@case14-ace"]
    assert runs.run(config.load(), stages, folder) == 0
    ((order, output, title, weights),) = asked
    assert [each[1:] for each in order] == [("ace", 0), ("ace", 1), ("sac", 0), ("sac", 1), ("reconnect", 0)]
    assert output == "results" and title == "3 cells, 5 runs" and weights == sorted(weights, reverse=True)


def test_what_is_no_cell_or_lacks_something_is_said_before_any_run(workspace, monkeypatch, capsys):
    folder = workspace()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(experiment, "run_seeds", None)
    assert runs.main(["train@case14-none"]) == 1
    assert capsys.readouterr().err == "no cell of params.yaml: train@case14-none\n"
    monkeypatch.setattr(machine, "findings", lambda *_, pooled: [plan.fail("memory", "too little")] * pooled)
    monkeypatch.setattr(language, "findings", lambda *_: [])
    assert runs.main(["train@case14-sac"]) == 1
    assert capsys.readouterr().out == "FAIL  memory: too little\n"


def test_what_was_measured_of_a_campaign_is_what_is_said_of_it():
    found = pd.read_csv(ROOT / "results/campaign.csv").set_index("name")
    share = found.loc["campaign", "value"] / found.loc["dvc_repro", "value"]
    said = " ".join((ROOT / "benchmarks/README.md").read_text(encoding="utf-8").split())
    assert f"the campaign takes {100 * share:.0f} % of `dvc repro`'s time" in said
    for name, of in {
        "computed_after_campaign": "of 8 runs",
        "campaign_differs": "of 16",
        "killed_differs": "of 16",
    }.items():
        assert found.loc[name, "value"] == 0 and found.loc[name, "unit"].startswith(of), name
