"""Before hours are spent: what is missing is named, all of it at once, and the estimate rests on what was measured."""

import http.server
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import yaml
from conftest import parsed, whole_grid
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from ace import config
from ace.llm.models import embedded
from ace.pipeline import kernel, workspace
from ace.preflight import campaign, estimate, language, machine, plan, policies, worlds
from ace.run_files import read_provenance
from tests.conftest import small_params
from tests.made_up_runs import write_seed

ROOT = Path(__file__).resolve().parents[1]
PAPER = ROOT / "profiles/paper/params.yaml"
KEY = "not-a-key-but-secret"


def made(tmp_path, change=None, raw=None):
    """config.Params of a small params.yaml, or of `raw`, with a change."""
    raw = raw or small_params()
    if change:
        change(raw)
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(raw))
    return config.load(path)


def asking(tmp_path, **llm):
    """Cells of the small scale, of six seeds, with these parameters of the language model."""

    def change(raw):
        raw["seeds"] = list(range(6))
        raw["base"]["llm"].update(llm)

    return plan.cells(made(tmp_path, change))


def of_language(tmp_path, folder, **llm):
    """What is said of the one model that the cells ask."""
    found = [f for f in language.findings(asking(tmp_path, **llm), folder) if f.what.startswith("language model")]
    assert len(found) == 1 and "\n" not in found[0].text
    return found[0]


# --- the whole of it --------------------------------------------------------------------------------------------------


def test_a_dry_run_of_quick_passes_and_leaves_nothing():
    before = (ROOT / "quick/params.yaml").is_file()
    command = [sys.executable, "-m", "ace.pipeline.workspace", "quick", "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, env=kernel.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout and "all checks passed; nothing was run" in done.stdout
    assert re.search(r" 2 train$|, 2 train,", done.stdout, re.MULTILINE) and "train@wcci2020-sac" in done.stdout
    assert "measured as a whole: " in done.stdout and "results/runs/wcci2020/ace" in done.stdout
    assert "0 s  language models, 0 in all" in done.stdout
    assert (ROOT / "quick/params.yaml").is_file() == before


def test_the_papers_scale_without_a_model_fails_and_names_all_that_is_missing(tmp_path):
    raw = yaml.safe_load(PAPER.read_text())
    raw["grid"].update(environments=["case14"], variants=["sac", "ace"], ablations={**raw["grid"]["ablations"]})
    raw |= {study: {**raw[study], "variants": ["sac", "ace"]} for study in config.STUDIES}
    raw["environments"] = {"case14": small_params()["environments"]["case14"]}
    raw["environments"]["case14"]["days"]["test"] = [99]
    raw["grid"]["ablations"]["environment"] = "case14"
    raw["base"]["llm"]["model"] = "nobody/no-such-model-7B"
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw))
    command = [sys.executable, "-m", "ace.preflight", str(tmp_path / "params.yaml"), "--workspace", str(tmp_path / "w")]
    env = kernel.environment() | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    said = {line.partition(": ")[0].split(" (")[0]: line for line in done.stdout.splitlines() if line[:4] == "FAIL"}
    assert "[99]" in said["FAIL  environment case14"]
    line = said["FAIL  language model, checkpoint nobody/no-such-model-7B"]
    assert "config.json, tokenizer, weights" in line and "HF_HUB_OFFLINE=0" in line
    assert ("FAIL  GPU" in said) == (not torch.cuda.is_available())
    assert "note  official data: " in done.stdout
    assert "estimate: " in done.stdout, "a failure ends neither the checks nor the estimate"
    assert f"checks failed: {len(said)}," in done.stdout and not (tmp_path / "w").exists()


def test_wrong_parameters_are_one_line(tmp_path, capsys):
    from ace.preflight.__main__ import main

    (tmp_path / "params.yaml").write_text("scale: paper\n")
    assert main([str(tmp_path / "params.yaml"), "--workspace", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("FAIL  parameters: ") and "is missing" in shown and shown.count("\n") == 1


def test_the_papers_profile_says_what_the_paper_says():
    params = config.load(PAPER)
    ace = params.settings("ace")
    assert params.scale == "paper" and len(params.seeds) == 5
    horizons = {name: spec.horizon for name, spec in params.environments.items()}
    assert horizons == {"wcci2020": 864, "neurips2020": 2016, "wcci2022": 864}
    assert 40_000 <= ace.train.decisions <= 50_000 and params.settings("expert_100k").train.decisions >= 100_000
    assert ace.llm.client == "checkpoint" and ace.llm.model.endswith("Qwen2-7B-Instruct") and not ace.llm.masked
    assert (ace.refine.threshold, ace.refine.rounds, ace.finetune.every, ace.finetune.samples) == (0.0, 5, 100, 200)
    assert params.settings("api_ace").llm.client == "server"
    assert {name: spec.weeks for name, spec in params.environments.items()} == {
        name: spec.weeks for name, spec in config.load(ROOT / "params.yaml").environments.items() if spec.weeks
    }, "every scale plays the same weeks"
    assert not [cell for cell in plan.cells(params) if cell.settings.llm.client == "server"], "to be added by hand"


def test_make_paper_runs_it_or_only_looks():
    def recipe(*more):
        command = ["make", "-n", "--no-print-directory", "paper", *more]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return shown.stdout.split("ace.pipeline.workspace ")[1].split()

    assert recipe() == ["paper"] and recipe("DRY=1") == ["paper", "--dry-run"]
    assert workspace.profiles() == ["paper", "quick"]


# --- grids ------------------------------------------------------------------------------------------------------------


def test_an_environment_that_does_not_load_does_not_hide_the_next(tmp_path):
    def change(raw):
        raw["environments"]["wcci2020"]["grid2op"] = "l2rpn_no_such_grid"
        raw["grid"].update(environments=["wcci2020", "case14"])

    bad, good = worlds.findings(made(tmp_path, change))
    assert (bad.state, bad.what) == ("FAIL", "environment wcci2020")
    assert "l2rpn_no_such_grid" in bad.text and "environments.wcci2020" in bad.text
    assert (good.state, good.what) == ("ok", "environment case14") and good.text.endswith("3 test from 1 packaged day")


def test_weeks_are_counted_by_split_and_missing_ones_are_one_failure_that_says_where_they_are(tmp_path):
    def change(raw):
        raw["environments"]["wcci2020"]["packaged_days"] = [7]
        raw["scenarios"].update(train=2, validation=1, test=3, packaged=2)
        raw["environments"]["none"] = json.loads(json.dumps(raw["environments"]["neurips2020"]))
        raw["environments"]["none"]["weeks"]["path"] = "results/chronics/none"
        raw["grid"].update(environments=["wcci2020", "none", "case14"])

    there, missing, _ = worlds.findings(made(tmp_path, change))
    counts = "10 train from 2 weeks, 1 validation from 1 week, 3 test from 3 weeks (development_test)"
    assert there.state == "ok" and there.text.endswith(f"864 steps: {counts}, 2 packaged from 1 packaged day")
    assert (missing.state, missing.what) == ("FAIL", "environment none") and "\n" not in missing.text
    assert "results/chronics/none" in missing.text and "git checkout" in missing.text


# --- the language model -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny model of Qwen2's architecture in two shards, with a tokenizer."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<end>", "action", "substation", "bus", "line"])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<end>").save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    small = Qwen2Config(vocab_size=len(vocabulary), num_key_value_heads=2, **sizes)
    Qwen2ForCausalLM(small).save_pretrained(folder, max_shard_size="60KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    return folder


def copy_of(checkpoint, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    for path in checkpoint.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_a_whole_checkpoint_is_seen_without_being_loaded(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(Qwen2ForCausalLM, "from_pretrained", lambda *a, **k: pytest.fail("the weights were read"))
    found = of_language(tmp_path, checkpoint.parent / "ws", client="checkpoint", model="../tiny")
    assert found.state == "ok", found
    n = sum(p.numel() for p in Qwen2ForCausalLM(Qwen2Config.from_pretrained(checkpoint)).parameters())
    each = 2 if torch.cuda.is_available() else 4
    assert language.weights_gb(str(checkpoint)) == (pytest.approx(n * each / 1e9), "its config")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: (f / "config.json").write_text("{"), ["config.json"]),
        (lambda f: [path.unlink() for path in f.glob("tokenizer*")], ["tokenizer"]),
        (lambda f: sorted(f.glob("model-*.safetensors"))[0].unlink(), ["weights (model-00001-of-", "1 of "]),
        (lambda f: sorted(f.glob("model-*.safetensors"))[1].write_text("version https://git-lfs"), ["model-00002-of-"]),
        (lambda f: (f / "model.safetensors.index.json").unlink(), ["weights (no model.safetensors"]),
    ],
    ids=["config", "tokenizer", "shard", "pointer", "index"],
)
def test_what_a_checkpoint_lacks_is_named(checkpoint, tmp_path, spoil, words):
    folder = copy_of(checkpoint, tmp_path, "spoilt")
    spoil(folder)
    found = of_language(tmp_path, tmp_path, client="checkpoint", model="spoilt")
    assert found.state == "FAIL" and str(folder) in found.what and "give a folder" in found.text
    for word in words:
        assert word in found.text


def test_a_place_that_is_neither_folder_nor_name_is_said_to_be(tmp_path):
    found = of_language(tmp_path, tmp_path, client="checkpoint", model="./models/none")
    assert found.state == "FAIL" and "neither a folder" in found.text


@contextmanager
def server(status, body):
    """An address on loopback that answers every request so; yields it and the list of requests."""
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.headers["Authorization"], json.loads(asked)))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_):
            pass

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.server_address[1]}/v1", seen
    finally:
        listening.shutdown()
        listening.server_close()


def test_a_server_that_answers_is_asked_one_short_question(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    message = {"role": "assistant", "content": "yes"}
    reply = {"id": "1", "object": "chat.completion", "created": 0, "model": "m",
             "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}  # fmt: skip
    with server(200, reply) as (url, seen):
        found = of_language(tmp_path, tmp_path, client="server", path=url, model="m")
    assert found.state == "ok" and "it answered" in found.text and "with a key" in found.text
    ((authorization, asked),) = seen
    assert authorization == f"Bearer {KEY}" and asked["model"] == "m" and asked["max_tokens"] <= 16


def test_a_server_that_refuses_is_named_without_the_key(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with server(401, {"error": {"message": f"Incorrect key {KEY}"}}) as (url, seen):
        found = of_language(tmp_path, tmp_path, client="server", path=url.replace("//", "//ann:pass@"), model="m")
    assert found.state == "FAIL" and "401" in found.text and len(seen) == 1, "asked once, not again and again"
    assert KEY not in str(found) and "ann:pass" not in str(found)


def test_a_server_that_is_not_there_is_found_out_soon(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begin = time.monotonic()
    found = of_language(tmp_path, tmp_path, client="server", path=f"http://127.0.0.1:{port}/v1", model="m")
    assert time.monotonic() - begin < 10
    assert found.state == "FAIL" and f":{port}/v1" in found.what
    assert "without a key" in found.text and "start the server" in found.text
    alike = asking(tmp_path, client="server", path=f"http://127.0.0.1:{port}/v1", model="m")
    alike += [replace(cell, settings=cell.settings.model_copy(
        update={"llm": cell.settings.llm.model_copy(update={"temperature": 0.9})})) for cell in alike]  # fmt: skip
    assert len([f for f in language.findings(alike, tmp_path) if "server" in f.what]) == 1, "told once"
    no_address = of_language(tmp_path, tmp_path, client="server", path="results", model="m")
    assert no_address.state == "FAIL" and "no address" in no_address.text


def test_where_an_address_takes_the_place_of_the_set_of_actions(tmp_path):
    def change(raw):
        raw["grid"]["lm_baselines"] = ["dc_argmin"]
        raw["base"]["llm"].update(client="server", path="nowhere", model="m")

    cells = plan.cells(made(tmp_path, change))
    failed = {f.what: f.text for f in language.findings(cells, tmp_path) if f.state == "FAIL"}
    assert len(failed) == 2, "one line of the address, one of all that reads the set of actions from it"
    text = failed["lm_baseline@case14-dc_argmin"]
    assert embedded.TRAINED in text and "give dc_argmin `llm" in text
    cells = asking(tmp_path)
    assert [f.state for f in language.findings(cells, tmp_path)] == ["ok"], "the pipeline makes the manifest first"


def test_a_replay_wants_every_seeds_transcript(tmp_path):
    found = of_language(tmp_path, tmp_path, client="replay", path="told/{seed}.jsonl.gz")
    assert found.state == "FAIL" and "told/0.jsonl.gz" in found.text
    assert "(6 of 6 transcripts" in found.text
    recorded = "results/runs/wcci2020/ace/seed=0/transcript.jsonl.gz"
    assert of_language(tmp_path, ROOT, client="replay", path=recorded).state == "ok"


def test_a_cell_whose_policies_a_study_lacks_fails_with_the_command_that_makes_them(tmp_path):
    params = made(tmp_path)

    def said(stages=None):
        return {f.what: f for f in policies.findings(params, plan.cells(params), tmp_path, stages)}

    assert [f.state for f in said().values()] == ["ok"], "nothing was run: all will be"
    settings = params.settings("ace").as_recorded()
    entries = {"env": "case14", "variant": "ace", "seed": 0, "settings": settings}
    write_seed(tmp_path / "results", entries, pd.DataFrame({"episode": [0]}))
    found = said()["train@case14-ace"]
    assert found.state == "FAIL" and "`dvc repro -s -f cells/dvc.yaml:train@case14-ace`" in found.text
    assert "no policy of seed 0, which is played by " in found.text and "foresight" in found.text
    assert [f.state for f in said(["train@case14-ace", "report"]).values()] == ["ok"], "no study is run"
    assert said(["measure_foresight@case14"])["train@case14-ace"].text.count("official_score") == 0
    policy = tmp_path / "results/runs/case14/ace/seed=0/policy.safetensors"
    policy.parent.mkdir()
    policy.touch()
    assert [f.state for f in said().values()] == ["ok"]
    policy.unlink()
    write_seed(tmp_path / "results", entries | {"settings": {}}, pd.DataFrame({"episode": [0]}))
    assert [f.state for f in said().values()] == ["ok"], "of other settings: it will be run"
    (tmp_path / "results/runs/case14/ace/manifest.json").write_text("{")
    assert said()["train@case14-ace"].state == "FAIL"


# --- the machine ------------------------------------------------------------------------------------------------------


def of_machine(tmp_path, monkeypatch, free_gb, gpu_gb=None, jobs="1", pooled=False):
    """Findings on a machine with so much memory and disk, and a GPU, for a checkpoint with 15 GB of weights."""
    monkeypatch.setenv("ACE_JOBS", jobs)
    monkeypatch.setattr(machine, "weights_gb", lambda source: (15.0, "its config"))
    sizes = SimpleNamespace(num_hidden_layers=28, hidden_size=3584, intermediate_size=18944)
    monkeypatch.setattr(machine, "config_of", lambda source: sizes)
    monkeypatch.setattr(machine, "_available_gb", lambda: free_gb)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda place: SimpleNamespace(free=free_gb * 1e9))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu_gb is not None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int((gpu_gb or 0) * 1e9), 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    cells = asking(tmp_path, client="checkpoint", model="some/model")
    return {f.what: f for f in machine.findings(cells, tmp_path / "not/there", pooled)}


@pytest.mark.parametrize(("gpu_gb", "state"), [(None, "FAIL"), (20, "FAIL"), (32, "note"), (40, "ok")])
def test_seven_billion_weights_want_a_gpu_with_room_for_two_copies(tmp_path, monkeypatch, gpu_gb, state):
    assert of_machine(tmp_path, monkeypatch, 500, gpu_gb)["GPU"].state == state


def test_every_process_loads_a_copy_and_every_seed_leaves_its_weights_on_the_disk(tmp_path, monkeypatch):
    assert of_machine(tmp_path, monkeypatch, 500, 32, jobs="1")["GPU"].state == "note"
    many = of_machine(tmp_path, monkeypatch, 500, 70, jobs="6")
    assert many["GPU"].state == "FAIL" and "ACE_JOBS=1" in many["GPU"].text
    tight = of_machine(tmp_path, monkeypatch, 12, 140, jobs="1")
    assert (tight["memory"].state, tight["disk"].state) == ("FAIL", "FAIL")
    assert "about 106 GB needed" in tight["disk"].text, "six states and the one being written, and the results"
    assert of_machine(tmp_path, monkeypatch, 500, 140, jobs="none")["processes"].state == "FAIL"


def test_a_campaign_runs_seeds_of_all_cells_at_once(tmp_path, monkeypatch):
    needed = [
        float(of_machine(tmp_path, monkeypatch, 500, jobs="64", pooled=pooled)["memory"].text.split("about ")[1].split()[0])
        for pooled in (False, True)
    ]
    cells = asking(tmp_path, client="checkpoint", model="some/model")
    seeds = [len(cell.seeds) for cell in cells]
    copies = [len(cell.seeds) for cell in cells if cell.settings.uses_llm]
    for found, processes, loaded in zip(needed, (max(seeds), sum(seeds)), (max(copies), sum(copies)), strict=True):
        assert found == pytest.approx(processes * machine.PROCESS_GB + loaded * 15, abs=1)


# --- the estimate -----------------------------------------------------------------------------------------------------


def measured(params, *folders):
    return estimate.Estimate(params, [*folders, ROOT / "results"], ROOT / "results")


def cell_of(params, stage):
    return next(cell for cell in plan.cells(params) if cell.stage == stage)


@pytest.mark.parametrize("environment", config.load(ROOT / "params.yaml").grid.environments)
@pytest.mark.parametrize("variant", ["sac", "ace", "ace_no_critic", "expert_sac"])
def test_the_committed_runs_are_estimated_as_long_as_they_were(variant, environment):
    params = config.load(ROOT / "params.yaml")
    spent = measured(params).of(cell_of(params, f"train@{environment}-{variant}"))
    walls = [noted["wall_s"]["train"] for noted in read_provenance(ROOT / "results", environment, variant).values()]
    assert len(walls) == len(params.seeds_of(variant))
    assert spent.learn_s + spent.calls_s + spent.lora_s == pytest.approx(sum(walls) / len(walls), rel=0.15)


def test_the_packaged_days_are_estimated_where_they_are_played(whole_params):
    params = whole_params
    played, bare = cell_of(params, "train@wcci2020-sac"), params.model_copy(deep=True)
    bare.environments["wcci2020"].packaged_days.clear()
    test, packaged = params.scenarios.test, params.scenarios.packaged
    assert measured(params).of(played).test_s == pytest.approx(measured(bare).of(played).test_s * (test + packaged) / test)
    not_played = cell_of(params, "ablation@wcci2020-ace_rbar_zero")
    assert measured(params).of(not_played).test_s == measured(bare).of(not_played).test_s


def costs():
    return pd.read_csv(ROOT / "results/pretrained_cost.csv").set_index("name")["value"]


def test_an_unmeasured_model_is_charged_with_extrapolated_seconds_and_a_measured_one_with_its_own(tmp_path):
    params = config.load(PAPER)
    cell = cell_of(params, "train@wcci2020-ace")
    found = measured(params)
    spent = found.of(cell)
    assert spent.calls > 500 and spent.calls_s == pytest.approx(spent.calls * costs()["qwen2_7b_call_s"])
    assert spent.lora_s == pytest.approx(spent.rounds * costs()["qwen2_7b_lora_round_s"]) and spent.rounds >= 2
    (source,) = [source for figure, source in found.figures.items() if "s a call" in figure]
    assert source.startswith("results/pretrained_cost.csv") and "extrapolated" in source and "12.8 s, C7" in source

    run = dict(found.measured["wcci2020", "ace"][0])
    run["settings"]["llm"].update(client="checkpoint", model=cell.settings.llm.model)
    run["wall_s"], calls = {**run["wall_s"], "llm": 3036.0}, run["budget"]["train"]["llm_calls"]
    one = pd.DataFrame({"episode": [0]})
    write_seed(tmp_path / "results", {**run, "env": "wcci2020", "variant": "ace", "seed": 0}, one, provenance=run)
    found = measured(params, tmp_path / "results")
    assert found.of(cell).calls_s == pytest.approx(found.of(cell).calls * 3036.0 / calls)
    assert not [source for figure, source in found.figures.items() if "s a call" in figure and "pretrained_cost" in source]


@pytest.mark.parametrize(("given", "form"), [
    ({"path": "results/pretrained_model/{env}"}, "transplanted"),
    ({"model": "checkpoints/pretrained/SmolLM2-135M-Instruct"}, "native"),
])  # fmt: skip
def test_the_model_of_make_pretrained_is_charged_with_its_own_measured_tokens(given, form):
    params, each = config.load(ROOT / "params.yaml"), costs()
    assert params.pretrained_model.form == "transplanted"
    cell = cell_of(params, "train@wcci2020-ace")
    llm = cell.settings.llm.model_copy(update={"client": "checkpoint", **given})
    cell, found = replace(cell, settings=cell.settings.model_copy(update={"llm": llm})), measured(params)
    ran = found.of(cell)
    for place in [place for place in found.measured if place[1] == "ace_pretrained"]:
        del found.measured[place]
    spent = found.of(cell)
    assert (ran == spent) == (form == "native"), "the runs with the tuned model are of the transplanted form"
    prompt, reply = each[f"{form}_prompt_tokens"], each[f"{form}_reply_tokens"]
    call_s = (prompt * each[f"{form}_read_ms"] + reply * each[f"{form}_write_ms"]) / 1e3
    assert spent.calls > 0 and spent.calls_s == pytest.approx(spent.calls * call_s)
    assert spent.rounds > 0 and spent.lora_s == pytest.approx(spent.rounds * 0.2 * (prompt + reply) * each[f"{form}_tune_ms"])


@pytest.mark.parametrize("rows", [None, ["qwen2_7b_lora_round_s"]])
def test_without_the_measured_cost_the_estimate_is_one_line_and_a_campaign_goes_on(tmp_path, monkeypatch, rows):
    """The file or a row of it is missing."""
    for name in ("runs", "provenance"):
        shutil.copytree(ROOT / "results" / name, tmp_path / "results" / name)
    if rows is not None:
        costs().loc[rows].reset_index().to_csv(tmp_path / "results/pretrained_cost.csv", index=False)
    params = config.load(PAPER)
    (line,) = estimate.lines(params, plan.cells(params), 1, 0.0, tmp_path, tmp_path)
    assert line == (
        "time: no estimate, results/pretrained_cost.csv has no row for 'qwen2_7b_call_s': "
        "python -m benchmarks.pretrained_cost writes it"
    )
    monkeypatch.setattr(campaign, "HOME", tmp_path)
    cells = [cell_of(params, f"train@wcci2020-{variant}") for variant in ("sac", "ace")]
    seconds = campaign.expected(params, cells, tmp_path)
    assert len(seconds) == sum(len(cell.seeds) for cell in cells) and min(seconds.values()) > 0.1


def test_more_seeds_than_processes_take_their_turns():
    assert [estimate.waves(5, jobs) for jobs in (1, 2, 4, 5, 16)] == [5, 3, 2, 1, 1]
    assert [estimate.span(s) for s in (12, 3000, 6 * 3600, 72 * 3600)] == ["12 s", "50 min", "6.0 h", "3.0 days"]


def test_without_any_run_there_is_no_estimate(tmp_path):
    params = config.load(PAPER)
    (line,) = estimate.lines(params, plan.cells(params), 1, 0.0, tmp_path, tmp_path)
    assert line.startswith("time: no estimate")


def test_a_variants_own_model_is_made_by_its_stage_and_counted(tmp_path):
    raw = whole_grid(parsed("params.yaml"))
    params = made(tmp_path, lambda raw: raw["grid"].update(other_model=["camel_poor"]), raw)
    cells = [cell for cell in plan.cells(params) if cell.variant == "camel_poor"]
    assert {(cell.stage, cell.seeds) for cell in cells} == {
        (f"other_model@{env}-camel_poor", (*params.seeds,)) for env in ("wcci2020", "neurips2020", "wcci2022")
    }
    (found,) = language.findings(cells, tmp_path)
    assert (found.state, found.text) == ("ok", "nothing needed: the stage language_models makes it")
    told = list(estimate.lines(params, plan.cells(params), 1, 0.0, tmp_path, ROOT))
    assert any(line.endswith("language models, 11 in all") for line in told)


def test_f_llm_by_its_other_rule_is_counted_as_f_llm(whole_params):
    params = whole_params
    ace, elsewhere, expert = (cell_of(params, name) for name in (
        "train@wcci2020-ace", "ablation@wcci2020-ace_elsewhere", "train@wcci2020-expert_sac"
    ))
    assert elsewhere.tunes and not expert.tunes
    calls = [measured(params)._calls(cell) for cell in (ace, elsewhere, expert)]
    assert calls[0] == calls[1] and calls[0][0] > 0 and calls[2] == (0, 0)


def test_camels_questions_are_three_for_each_masked_decision_at_the_most():
    """epsilon falls from 1 to 0 over half of 1,500 decisions: 375 are masked."""
    params = config.load(ROOT / "params.yaml")
    ace = cell_of(params, "train@wcci2020-ace")
    of = lambda name: measured(params)._calls(replace(ace, variant=name, settings=params.settings(name)))  # noqa: E731
    assert of("camel") == (1125, 0) and of("camel_random") == (0, 0)
    calls, rounds = of("ace")
    assert of("camel_ace") == (pytest.approx(calls + 1125, abs=1), rounds)
    reads = [name for name in ("camel", "camel_random", "camel_frequency")
             if replace(ace, settings=params.settings(name)).needs_manifest]  # fmt: skip
    assert reads == ["camel_frequency"], "which is of the corpus without a model"


def test_a_lookup_table_of_a_variants_own_model_is_made_with_it(tmp_path):
    def change(raw):
        raw["language_models"], raw["grid"]["other_model"] = {"own": {}}, ["own"]
        raw["variants"]["own"] = {"refine": {"proposer": "frequency"}, "llm": {"path": "results/language_models/own/{env}"}}

    found = language.findings(plan.cells(made(tmp_path, change)), tmp_path)
    assert not [f for f in found if f.state == "FAIL"]
