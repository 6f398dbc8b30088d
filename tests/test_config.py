"""A wrong parameter ends in one line that names the key, what was given and what is allowed."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ace import config

ROOT = Path(__file__).parent.parent


def altered(tmp_path, change):
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    change(raw)
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda p: p["base"]["refine"].update(treshold=0.1),
            ["base.refine.treshold", "no such parameter", "'threshold'"],
        ),
        (
            lambda p: p["base"]["shape"].update(threshold=-0.5),
            ["base.shape.threshold = -0.5", "greater than or equal to 0"],
        ),
        (lambda p: p["base"]["refine"].update(rounds=6), ["base.refine.rounds = 6", "less than or equal to 5"]),
        (lambda p: p["base"]["sac"].update(lr="1e-3"), ["base.sac.lr = '1e-3'", "number"]),
        (lambda p: p["base"]["sac"].pop("gamma"), ["base.sac.gamma", "missing"]),
        (lambda p: p["variants"]["ace"].update(refine={"treshold": 0}), ["variants.ace.refine.treshold", "threshold"]),
        (lambda p: p["variants"]["sac"].update(method="ppo"), ["variants.sac.method = 'ppo'", "'sac'"]),
        (lambda p: p["grid"]["environments"].append("wci2020"), ["'wci2020'", "did you mean 'wcci2020'"]),
        (lambda p: p["grid"]["variants"].append("ace_no_actr"), ["'ace_no_actr'", "ace_no_actor"]),
        (lambda p: p["environments"]["wcci2020"]["days"].update(test=[0]), ["days", "[0]", "train", "test"]),
        (
            lambda p: p["environments"]["wcci2020"].update(days={"train": [1], "validation": [1], "test": [1]}),
            ["days", "[1]", "one split"],
        ),
        (lambda p: p.update(seeds=[-1]), ["seeds.0 = -1"]),
        (lambda p: p["language_models"]["ace_lean"].update(state=1), ["language_models.ace_lean.state", "no such parameter"]),
        (lambda p: p["language_models"].clear(), ["grid.other_model", "'ace_lean' has no entry"]),
        (lambda p: p["variants"]["ace_lean"].clear(), ["variants.ace_lean.llm.path", "language_models/ace_lean/{env}"]),
        (lambda p: p["grid"]["variants"].append("ace_lean"), ["grid.other_model", "'ace_lean' stands under variants too"]),
        (lambda p: p["lora"]["lr_1e-2"].update(learning_rate=1.0), ["lora.lr_1e-2.learning_rate", "no such parameter"]),
    ],
)
def test_one_line_that_names_the_key(tmp_path, change, words):
    with pytest.raises(config.ConfigError) as error:
        config.load(altered(tmp_path, change))
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_variants_differ_from_base_by_what_they_say_only():
    params = config.load(ROOT / "params.yaml")
    ace, sac = params.settings("ace").model_dump(), params.settings("sac").model_dump()
    assert ace == params.base.model_dump()
    differing = {key for key in ace if ace[key] != sac[key]}
    assert differing == {"refine", "shape", "finetune"}
    assert not params.settings("sac").uses_llm and params.settings("ace_no_actor").uses_llm
    elsewhere = params.settings("ace_elsewhere")
    assert elsewhere.model_dump() == {**ace, "refine": {**ace["refine"], "proposer": "llm_elsewhere"}}
    by_llm = {
        name: elsewhere.refine.model_copy(update={"proposer": name}).by_llm
        for name in ("llm_elsewhere", "llm", "expert", "random")
    }
    assert by_llm == {"llm_elsewhere": True, "llm": True, "expert": False, "random": False}
    assert elsewhere.model_copy(update={"shape": params.settings("sac").shape}).uses_llm, "with f_LLM alone too"


def test_a_language_model_of_a_variants_own_differs_by_what_it_says_only():
    params = config.load(ROOT / "params.yaml")
    ours, shared = (params.with_model(name).language_model.model_dump() for name in ("ace_lean", ""))
    assert {key for key in shared if ours[key] != shared[key]} == {"scan", "states", "actions"}
    with pytest.raises(config.ConfigError, match=r"'ace_lan' is not in params\.yaml; did you mean 'ace_lean'"):
        params.with_model("ace_lan")


def test_quick_scale_has_the_same_keys():
    quick = config.load(ROOT / "profiles" / "quick" / "params.yaml")
    assert quick.scale == "quick" and config.load(ROOT / "params.yaml").scale == "laptop"


def test_broken_yaml_and_missing_file_are_one_line(tmp_path):
    (tmp_path / "params.yaml").write_text("a: [1")
    for path in (tmp_path / "params.yaml", tmp_path / "none.yaml"):
        with pytest.raises(config.ConfigError) as error:
            config.load(path)
        assert "\n" not in str(error.value) and path.name in str(error.value)


def test_outside_a_workspace(tmp_path):
    code = "from ace import config; config.load()"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 1 and "no params.yaml" in run.stderr


def test_jobs(monkeypatch):
    monkeypatch.setenv("ACE_JOBS", "3")
    assert config.jobs() == 3
    monkeypatch.setenv("ACE_JOBS", "many")
    with pytest.raises(config.ConfigError, match="many"):
        config.jobs()
