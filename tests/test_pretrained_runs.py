"""A pretrained model from its tuning to the runs that ask it, and the study of what it is worth: on case14, with a tiny base."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from conftest import ROOT, run, small_params
from test_experiment import files
from test_legal import textmap_of
from test_pretrained import write_base

from ace import config, experiment
from ace.config.host import processor
from ace.grid.environment import World, scenario_sets
from ace.grid.whatif import WhatIf
from ace.llm.clients import read_transcript
from ace.llm.models import checkpoint, corpus, embedded, pretrained, training, tuning
from ace.llm.models.heldout import save_states
from ace.llm.text import Parsed, TextMap
from ace.report.formatting import rounded
from ace.report.runs import ReportError
from ace.studies.pretrained import all_weights, head, show, transcripts, transfer, variants
from ace.studies.pretrained import bench as proposing
from ace.studies.pretrained import measure as study

TUNED, RUNS = "results/pretrained_model/case14", "results/studies/pretrained/case14/runs.json"
SMALL = {"form": "transplanted", "seed": 7, "states": 30, "heldout_share": 0.2, "heldout": 8, "rank": 2, "batch_size": 4,
         "steps": 30, "lr": 1e-2, "rows_lr": 1e-2, "look_every": 10, "patience": 3,
         "sizes": [10, 30], "seeds": [7, 8]}  # fmt: skip


def parameters(change=None):
    def smaller(raw):
        raw["language_model"].update(
            scan=20, states=40, heldout_states=8, actions=8, shortlist=10, hidden=32, layers=1, heads=2, ffn=64, steps=60
        )
        raw["pretrained_model"] = SMALL
        raw["grid"].update(variants=["sac", "ace", "ace_pretrained_frozen"])
        raw["grid"]["kept"]["variants"] = ["ace_pretrained_frozen"]
        raw["rates"].update(episodes=3)
        raw["environments"]["case14"].update(thermal_factor=0.8)  # milder: else all actions are equally bad
        raw["base"]["finetune"].update(heldout=2)
        raw["base"]["llm"].update(max_new_tokens=40)
        if change:
            change(raw)

    return small_params(smaller)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A workspace with a base, an embedded model and a tuned one."""
    folder = tmp_path_factory.mktemp("pretrained")
    (folder / "params.yaml").write_text(yaml.safe_dump(parameters()))
    write_base(textmap_of("l2rpn_case14_sandbox"), folder / pretrained.PLACE / pretrained.MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ACE_JOBS", "1")
        params = config.load()
        world = World(params.environment("case14"), params.scenarios, params.base.operator)
        training.train(params, corpus.build(params, "case14"), TextMap(world), folder / "results/language_model/case14")
        tuning.make("case14", progress=False)
        yield folder


def test_a_tuning_is_complete_and_the_same_bytes_twice(project, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setenv("ACE_JOBS", "1")
    tuning.make("case14", output="again", progress=False)
    one, two = ({path.name: path.read_bytes() for path in sorted((project / place / "pretrained_model/case14").iterdir())}
                for place in ("results", "again"))  # fmt: skip
    assert one == two
    assert set(one) == {"adapter_model.safetensors", "model_manifest.json", "rows.safetensors", "tokenizer.json",
                        "training_curve.csv", "tuned.json"}  # fmt: skip
    assert str(project) not in "".join(data.decode("latin1") for data in one.values())
    manifest, curve = json.loads(one["model_manifest.json"]), pd.read_csv(project / TUNED / "training_curve.csv")
    assert manifest["budget"]["simulator_calls"] > 0 and manifest["states"] >= 30 and manifest["actions"][0] == 0
    assert curve["loss"].iloc[-1] < curve["loss"].iloc[0]
    tuning.make("case14", output="other", seed=8, progress=False)
    assert (project / "other/pretrained_model/case14/adapter_model.safetensors").read_bytes() != one["adapter_model.safetensors"]
    assert tuning.main(["nowhere"]) == 1
    settings = config.load().pretrained_model
    assert tuning.is_made_with(project / TUNED, settings.model_copy(update={"sizes": [5]})), "the study's sizes change no model"
    assert not tuning.is_made_with(project / TUNED, settings.model_copy(update={"steps": settings.steps + 1}))
    assert not tuning.is_made_with(project / "nowhere", settings)


def test_no_episode_is_learned_from_and_looked_at(project, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setenv("ACE_JOBS", "1")
    made = corpus.build(config.load(), "case14")
    learned, unseen = tuning.parts(made, 10, 0.25)
    assert 10 <= len(learned.visits) < len(made.visits) and len(unseen.episodes) == round(0.25 * len(made.episodes))
    assert not {id(episode) for episode in learned.episodes} & {id(episode) for episode in unseen.episodes}
    whole, _ = tuning.parts(made, 10**6, 0.25)
    assert len(whole.episodes) == len(made.episodes) - len(unseen.episodes)


def test_a_run_asks_it_in_both_roles_and_its_transcript_replays_without_it(project, tmp_path):
    for name in ("results", "checkpoints"):
        shutil.copytree(project / name, tmp_path / name)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(parameters()))
    done = run(tmp_path, "ace_pretrained_frozen", [0])
    assert done.returncode == 0, done.stderr
    first = files(tmp_path, "ace_pretrained_frozen")
    place = tmp_path / "results/runs/case14/ace_pretrained_frozen/seed=0/transcript.jsonl.gz"
    header, *records = read_transcript(place)
    assert header["model"] == "pretrained_model-case14" and {r["role"] for r in records} == {"actor", "critic"}
    assert all(r["parse"] and r["verdict"] != "illegal" for r in records if r["verdict"] not in ("unparsable", None))
    assert first["manifest.json"]["budget"]["corpus"]["simulator_calls"] > 0, "its corpus counts"

    shutil.copy(place, tmp_path / "recorded.gz")
    shutil.rmtree(tmp_path / "checkpoints")

    def replayed(raw):
        raw["variants"]["ace_pretrained_frozen"]["llm"] = {"client": "replay", "path": "recorded.gz"}

    (tmp_path / "params.yaml").write_text(yaml.safe_dump(parameters(replayed)))
    done = run(tmp_path, "ace_pretrained_frozen", [0])
    assert done.returncode == 0, done.stderr
    again = files(tmp_path, "ace_pretrained_frozen")
    for name in ("episodes.csv", "training.csv", "transcript.jsonl.gz"):
        assert again[name] == first[name], name


def test_its_own_answers_tune_it_further(project, tmp_path):
    for name in ("results", "checkpoints"):
        shutil.copytree(project / name, tmp_path / name)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(parameters(lambda raw: raw["base"]["finetune"].update(heldout=0))))
    done = run(tmp_path, "ace_pretrained", [0])
    assert done.returncode == 0, done.stderr
    assert files(tmp_path, "ace_pretrained")["manifest.json"]["finetune_rounds"]


def test_without_the_base_a_run_ends_in_one_line(project, tmp_path, monkeypatch):
    shutil.copytree(project / "results", tmp_path / "results")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(parameters()))
    monkeypatch.setattr(pretrained, "HOME", tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(config.ConfigError, match=r"`make pretrained` fetches it \(93 MB\)$") as error:
        experiment.run_cell("case14", "ace_pretrained", [0])
    assert "\n" not in str(error.value)


def few_states(patch):
    patch.setattr(proposing, "distinct_states", lambda params, world, whatif, name, actions: proposing.heldout_states(
        world, whatif, actions, params.language_model.shortlist, params.base.refine.margin, 8, 7
    )[0])  # fmt: skip


@pytest.fixture(scope="module")
def measured(project):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        patch.setenv("ACE_JOBS", "1")
        few_states(patch)
        yield study.measure("case14", "results", progress=False)


def test_the_study_compares_all_proposers_on_the_same_states(project, measured, monkeypatch):
    assert list(measured.columns) == study.COLUMNS == [
        "grid", "proposer", "states", "metric", "value", "ci_low", "ci_high", "n", "seeds"
    ]  # fmt: skip
    written = pd.read_csv(project / "results/studies/pretrained/case14/pretrained.csv")
    pd.testing.assert_frame_equal(written, measured)
    assert set(zip(measured["proposer"], measured["states"], strict=True)) == {("zero_shot", 0), ("majority", 0)} | {
        (proposer, size) for proposer in study.PROPOSERS[1:] for size in (10, 30)
    }
    rates = measured[measured["metric"].isin(["one_proposal", "five_rounds"])]
    assert len(set(rates["n"])) == 1 and rates["value"].between(0, 1).all()
    value = measured.set_index(["proposer", "states", "metric"])["value"]
    assert ("zero_shot", 0, "one_proposal") in value.index and ("zero_shot", 0, "five_rounds") not in value.index, "asked once"
    for other in ("random_weights", "from_scratch", "fewer_samples", "classifier", "fewer_classifier", "frequency"):
        for metric in ("one_proposal", "five_rounds"):
            difference = value["finetuned", 30, metric] - value[other, 30, metric]
            assert value["finetuned", 30, f"{metric}_minus_{other}"] == pytest.approx(difference, abs=2e-4)
    difference = value["finetuned", 30, "legal_unmasked"] - value["from_scratch", 30, "legal_unmasked"]
    assert value["finetuned", 30, "legal_unmasked_minus_from_scratch"] == pytest.approx(difference, abs=2e-4)
    scored = value["finetuned", 30, "one_proposal_scored"]
    assert value["finetuned", 30, "one_proposal_scored_minus_written"] == pytest.approx(
        scored - value["finetuned", 30, "one_proposal"], abs=2e-4
    )
    with_language = measured[measured["metric"] == "critic_sign"]["proposer"].unique()
    assert set(with_language) == {"majority", "zero_shot", "finetuned", "random_weights", "from_scratch", "fewer_samples"}
    judged = measured[measured["metric"] == "critic_sign"].set_index("proposer")
    assert 0.5 <= judged.loc["majority", "value"] <= 1 and len(set(judged["n"])) == 1
    assert measured[measured["proposer"] == "majority"]["metric"].tolist() == ["critic_sign"]
    drawn = measured.set_index(["proposer", "states"])["seeds"].sort_index()
    assert set(drawn["finetuned", 10]) == {2} and set(drawn["frequency", 10]) == {1}
    # What is kept is not computed again.
    monkeypatch.chdir(project)
    monkeypatch.setenv("ACE_JOBS", "1")
    with monkeypatch.context() as patch:
        patch.setattr(study, "one", pytest.fail)
        pd.testing.assert_frame_equal(study.measure("case14", "results", progress=False), measured)
    kept = json.loads((project / RUNS).read_text())["runs"]
    assert len(kept) == 1 + 2 * (6 * 2 + 1)
    assert set(kept["frequency-30-7"]["values"]["one_proposal"]) | set(kept["finetuned-30-8"]["values"]["five_rounds"]) <= {0, 1}
    assert {run["processor"] for run in kept.values()} == {processor()}
    # A part of it on another machine, and the rest here: the same table.
    part = study.measure("case14", "part", False, ("frequency", "from_scratch"), sizes=[30], seeds=[8])
    assert set(zip(part["proposer"], part["states"], strict=True)) == {("majority", 0), ("frequency", 30), ("from_scratch", 30)}
    place, asked = project / "part/studies/pretrained/case14/runs.json", []
    moved = json.loads(place.read_text())["runs"]
    assert set(moved) == {"frequency-30-7", "from_scratch-30-8"}, "what draws nothing is of the first seed"
    assert moved["from_scratch-30-8"] == kept["from_scratch-30-8"], "the same values again"
    place.write_text((project / RUNS).read_text().replace('"classifier-10-8"', '"classifier-10-9"'))
    with monkeypatch.context() as patch:
        patch.setattr(study, "one", lambda *given: (asked.append(given[1:4]), kept["classifier-10-8"]["values"])[1])
        again = study.measure("case14", "part", False)
    assert asked == [("classifier", 10, 8)] and again["seeds"].max() == 3
    for text, said in (("<<<<<<<", "no JSON"), ("[]", "list indices"), ('{"runs": {}}', "'identity'")):
        place.write_text(text)
        with pytest.raises(config.ConfigError, match=rf"part/studies/pretrained/case14/runs.json: holds no runs: .*{said}"):
            study.measure("case14", "part", False)
    with pytest.raises(config.ConfigError, match=r"^the study's selection: seeds.0 = -1: "):
        study.measure("case14", "part", False, seeds=[-1])


def test_judgements_are_grouped_by_scenario_and_fewer_samples_are_fewer(project, measured, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setenv("ACE_JOBS", "1")
    few_states(monkeypatch)
    bench, steps, fit = study.Bench(config.load(), "case14", progress=False), [], embedded.fit
    kept = json.loads((project / RUNS).read_text())
    assert kept["judged"] == [bench.episodes[e][p].state.scenario for e, p in bench.keys]
    assert len(set(kept["judged"])) < len({e for e, _ in bench.keys}), "several episodes play one scenario"
    monkeypatch.setattr(embedded, "fit", lambda *given, **keys: (steps.append(given[3:5]), fit(*given, **keys)))
    learn = proposing.classifier.fit
    monkeypatch.setattr(
        proposing.classifier, "fit", lambda *given: (steps.append((given[3].steps, given[3].batch_size)), learn(*given))[1]
    )
    both = ("from_scratch", "fewer_samples", "classifier", "fewer_classifier")
    study.measure("case14", "fewer", False, both, sizes=[30], seeds=[7])
    assert steps == [(60, config.load().language_model.batch_size), (SMALL["steps"], SMALL["batch_size"])] * 2


def test_what_was_measured_is_kept_though_another_identity_came_first(project, measured, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setenv("ACE_JOBS", "1")
    place = project / "late/studies/pretrained/case14/runs.json"

    def overtaken(*_):
        place.write_text(place.read_text().replace('"identity": "', '"identity": "x'))
        return {"one_proposal": [1.0] * 8, "five_rounds": [1.0] * 8}

    monkeypatch.setattr(study, "one", overtaken)
    with pytest.raises(config.ConfigError, match=r"identity x\w+, now (\w+): .*measured lies in late/.*/runs-\1.json$"):
        study.measure("case14", "late", False, ("frequency",), sizes=[10])
    (beside,) = place.parent.glob("runs-*.json")
    assert set(json.loads(beside.read_text())["runs"]) == {"frequency-10-7"}


def test_what_is_kept_of_the_study_is_of_its_code_states_and_versions(project, measured, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setenv("ACE_JOBS", "1")
    params = config.load()
    bench = study.Bench(params, "case14", progress=False)

    def identity():
        return proposing.identity_of(bench, params.pretrained_model, pretrained.folder())

    first = identity()
    assert json.loads((project / RUNS).read_text())["identity"] == first
    others = []
    for place, name, value in (
        (proposing, "CODE", b"edited"), (proposing, "versions", dict),
        (bench, "states", bench.states[1:]), (bench, "episodes", bench.episodes[1:]),
        (bench.world, "sets", bench.world.sets | {"validation": bench.world.sets["test"]}),
    ):  # fmt: skip
        with monkeypatch.context() as changed:
            changed.setattr(place, name, value)
            others.append(identity())
    state = bench.states[0]
    monkeypatch.setattr(state, "rho", state.rho + 0.01)
    others.append(identity())
    assert len({first, *others}) == 1 + len(others)
    assert all(Path(name).read_bytes() in proposing.CODE for name in proposing.OWN) and experiment.SOURCE_SHA256 in proposing.CODE
    monkeypatch.setattr(proposing, "CODE", b"edited")
    with pytest.raises(config.ConfigError, match=r"runs.json: identity \w+, now \w+: .* remove it to measure anew$"):
        study.measure("case14", "results", progress=False)


def test_a_killed_tuning_of_the_study_goes_on(project, measured, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setenv("ACE_JOBS", "1")
    save, advance, steps = tuning._Run.save, tuning._Run.advance, []

    def killed(run, path):
        save(run, path)
        raise KeyboardInterrupt

    def again():
        return study.measure("case14", "killed", False, ("finetuned",), sizes=[10], seeds=[9])

    with monkeypatch.context() as patch:
        patch.setattr(tuning._Run, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            again()
    folder = project / pretrained.PLACE / "study/case14"
    (state,) = folder.glob("*.pt")
    assert state.name.endswith("-finetuned-10-9.pt")
    monkeypatch.setattr(tuning._Run, "advance", lambda run, tick: (steps.append(run.step), advance(run, tick)))
    table = again()
    assert steps[0] == SMALL["look_every"] and set(table["proposer"]) == {"finetuned", "majority"}
    assert not state.exists()


def renamed(words, folder):
    """A copy of an embedded model in which one word is another; returns the word that it was."""
    shutil.copytree(words, folder)
    raw = json.loads((folder / checkpoint.WORDS).read_text())
    old = next(word for word in raw["model"]["vocab"] if word.startswith("load "))
    raw["model"]["vocab"] = {("load 99" if word == old else word): i for word, i in raw["model"]["vocab"].items()}
    (folder / checkpoint.WORDS).write_text(json.dumps(raw))
    return old


def test_what_learned_elsewhere_is_asked_with_the_words_of_the_grid(project, measured, tmp_path, monkeypatch):
    monkeypatch.chdir(project)
    tuned, words = project / TUNED, project / "results/language_model/case14"
    model, tokenizer = checkpoint.load(tuned)
    rows, vocabulary = model.get_input_embeddings().weight.detach().clone(), tokenizer.get_vocab()
    place = vocabulary[renamed(words, tmp_path / "words")]
    moved, new = transfer.in_words_of(tmp_path / "words", model, tokenizer)
    found = moved.get_input_embeddings().weight.detach()
    assert new.get_vocab()["load 99"] == place and len(found) == len(rows)
    kept = [i for i in range(len(rows)) if i != place]
    assert torch.equal(found[kept], rows[kept])
    base = checkpoint.in_form("transplanted", tmp_path / "words")[0].get_input_embeddings().weight
    assert torch.equal(found[place], base[place]) and not torch.equal(found[place], rows[place])
    assert moved.get_output_embeddings().weight is moved.get_input_embeddings().weight


def test_what_learned_on_the_grid_itself_answers_as_there(project, measured, monkeypatch, capsys):
    monkeypatch.chdir(project)
    monkeypatch.setenv("ACE_JOBS", "1")
    few_states(monkeypatch)
    shutil.copytree(project / "results/studies/pretrained", project / "moved/studies/pretrained")
    table = transfer.measure("case14", "case14", "moved", progress=False)
    place = project / "moved/studies/pretrained/case14/runs.json"
    kept = json.loads(place.read_text())["runs"]
    for name in ("finetuned", "frequency"):
        there = {k: v for k, v in kept[f"{name}-30-7"]["values"].items() if not k.startswith("one_proposal_scored")}
        assert kept[f"{name}@case14-30-7"]["values"] == there, name
    at = table[table["states"] == 30].set_index(["proposer", "metric"])["value"]
    for name in ("from_scratch", "classifier", "frequency"):  # what learned here, of the same seed
        values = [kept[f"{each}-30-7"]["values"]["one_proposal"] for each in ("finetuned@case14", name)]
        difference = np.subtract(*values, dtype=float).mean()
        assert at["finetuned@case14", f"one_proposal_minus_{name}"] == pytest.approx(difference, abs=2e-4)
    assert ("finetuned@case14", "one_proposal_minus_zero_shot") not in at
    one, other = (at[f"{name}@case14", "one_proposal"] for name in ("finetuned", "from_scratch"))
    assert at["finetuned@case14", "one_proposal_minus_from_scratch@case14"] == pytest.approx(one - other, abs=2e-4)
    rows = {tuple(row[2:4]): row for row in show.cells_of_differences(table)}
    row = rows["Pretrained, fine-tuned, learned on case14", "From scratch (embedded), learned on case14"]
    assert row[1] == "30" and row[4].startswith(f"{100 * (one - other):+.1f} ")
    assert ("Pretrained, fine-tuned", "Pretrained, fine-tuned, learned on case14") in rows
    seeds = table[table["metric"] == "one_proposal_minus_finetuned@case14"].set_index("states")["seeds"]
    assert dict(seeds) == {30: 1}, "of the tuned one's size and seed alone"
    place.write_text(place.read_text().replace('"of":"', '"of":"x'))
    with pytest.raises(config.ConfigError, match=r"finetuned@case14-30-7 was made with another transfer.py, tuned.json, "):
        transfer.measure("case14", "case14", "moved", progress=False)
    assert transfer.main(["case14", "nowhere"]) == 1
    settings = config.load().pretrained_model.model_copy(update={"steps": 31})
    with pytest.raises(config.ConfigError, match=r"model/case14: no model .*: python -m ace.llm.models.tuning case14 makes"):
        proposing.committed("case14", settings)


def test_what_learned_elsewhere_does_without_what_the_grid_lacks(project, measured, tmp_path, monkeypatch, capsys):
    for name in ("results/language_model", "results/pretrained_model", "checkpoints"):
        shutil.copytree(project / name, tmp_path / name)

    def two(raw):
        raw["environments"]["other14"] = dict(raw["environments"]["case14"])

    (tmp_path / "params.yaml").write_text(yaml.safe_dump(parameters(two)))
    renamed(project / "results/language_model/case14", tmp_path / "results/language_model/other14")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACE_JOBS", "1")
    few_states(monkeypatch)
    asked, same = [], transfer.same_actions
    monkeypatch.setattr(transfer, "in_words_of", lambda words, *model: (asked.append(words.name), model)[1])
    monkeypatch.setattr(transfer, "same_actions", lambda ids, *textmaps: (same(ids, *textmaps), None)[1])
    table = transfer.measure("other14", "case14", progress=False)
    assert asked == ["other14"] and set(table["proposer"]) == {"finetuned@case14", "majority"}
    assert "other14 has words or actions that case14 lacks: without frequency and from_scratch" in capsys.readouterr().err


def test_actions_are_moved_by_their_names():
    small, large = textmap_of("l2rpn_case14_sandbox"), textmap_of("l2rpn_wcci_2020")
    ids = [0, 5, int(np.argmax(small.catalogue.sub))]
    assert transfer.same_actions(ids, small, small) == ids
    assert transfer.same_actions([0], small, large) == [0]
    assert transfer.same_actions(ids, small, large) is None, "no such elements"
    moved = SimpleNamespace(parse_action=lambda reply: Parsed(1000 + small.parse_action(reply).value))
    assert transfer.same_actions(ids, small, moved) == [1000 + each for each in ids]


def test_a_head_reads_the_last_token_of_the_prompt(project, monkeypatch):
    monkeypatch.chdir(project)
    params = config.load()
    world = World(params.environment("case14"), params.scenarios, params.base.operator)
    textmap, whatif, states = TextMap(world), WhatIf(world), [visit.state for visit in corpus.build(params, "case14").visits]
    prompts = [head.first_prompt(textmap, whatif, state) for state in states]
    assert all(textmap.state(state) in prompt for state, prompt in zip(states, prompts, strict=True))
    assert all("do nothing : " in prompt for prompt in prompts), "the bad case, as f_LLM is asked"
    model, tokenizer = checkpoint.load(project / TUNED, "case14")
    found = head.hidden_states(model, tokenizer, prompts)
    assert len(found) == len(states) > head.BATCH and found.dtype == np.float32
    for prompt, row in list(zip(prompts, found, strict=True))[::17]:
        with torch.inference_mode():
            alone = model.model(input_ids=tokenizer([prompt], return_tensors="pt")["input_ids"]).last_hidden_state[0, -1]
        assert np.allclose(row, alone, atol=1e-4)
    learned = states[:15]
    features = head.standardised(dict(zip(map(id, states), found, strict=True)), learned)
    rows = np.stack([features(state) for state in states])
    assert rows.dtype == np.float32 and np.allclose(rows[:15].mean(axis=0), 0, atol=1e-3)
    assert not np.allclose(rows.mean(axis=0), 0, atol=1e-2), "by what is learned from alone"


def test_words_with_random_rows_leave_the_body_alone(project, monkeypatch):
    monkeypatch.chdir(project)
    words = project / "results/language_model/case14"
    (model, _), (before, _) = (checkpoint.in_form("transplanted", words) for _ in range(2))
    assert head.random_rows(model, 7) is model and model.lm_head.weight is model.get_input_embeddings().weight
    was, now = (dict(each.named_parameters()) for each in (before, model))
    assert [name for name in was if not torch.equal(was[name], now[name])] == ["model.embed_tokens.weight"]
    old, new = was["model.embed_tokens.weight"], now["model.embed_tokens.weight"]
    assert old.square().mean().sqrt().item() == pytest.approx(new.square().mean().sqrt().item(), rel=0.05)
    assert not torch.equal(head.random_rows(before, 8).get_input_embeddings().weight, new), "drawn by the seed"


def test_heads_join_the_study(project, measured, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setenv("ACE_JOBS", "1")
    few_states(monkeypatch)
    shutil.copytree(project / "results/studies/pretrained", project / "headed/studies/pretrained")
    bodies, read = [], head.hidden_states
    monkeypatch.setattr(head, "hidden_states", lambda model, *given: (bodies.append(model), read(model, *given))[1])
    head.measure("case14", "headed", False, ["pretrained"], sizes=[10], seeds=[8])
    table = head.measure("case14", "headed", progress=False)
    assert len(bodies) == 1 + 1 + 1 + 2 + 2, "once where no weights are drawn, else once a seed"
    rows = table[table["proposer"].str.startswith("head_") & table["metric"].eq("one_proposal")]
    assert set(zip(rows["proposer"], rows["states"], rows["seeds"], strict=True)) == {
        ("head_finetuned", 30, 1),
        *((f"head_{body}", size, 2) for body in ("pretrained", "random_rows", "random_weights") for size in (10, 30)),
    }  # fmt: skip
    at = table[table["states"] == 30].set_index(["proposer", "metric"])["value"]
    difference = at["head_pretrained", "one_proposal"] - at["head_random_weights", "one_proposal"]
    assert at["head_pretrained", "one_proposal_minus_head_random_weights"] == pytest.approx(difference, abs=2e-4)
    named = {name for proposer, name in show.NAMES.items() if not proposer.startswith("all_weights")}
    assert {row[1] for row in show.cells(table)} == named
    with pytest.raises(config.ConfigError, match=r"^the study's selection: seeds.0 = -1: "):
        head.measure("case14", "headed", progress=False, seeds=[-1])
    assert head.main(["nowhere"]) == 1


def test_all_weights_join_the_study(project, measured, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setenv("ACE_JOBS", "1")
    few_states(monkeypatch)
    monkeypatch.setattr(all_weights, "PILOT", 10)
    monkeypatch.setattr(all_weights, "RATES", (1e-9, 1e-2, 1e-8, 1e30))
    shutil.copytree(project / "results/studies/pretrained", project / "whole/studies/pretrained")
    tune, asked, tuned, first = tuning.tune, proposing.Bench.asked, [], []

    def watched(whole, tokenizer, pairs, held, own, state, progress):
        tuned.append((own.lr, own.steps))
        assert state is not None and own.rows_lr == SMALL["rows_lr"]
        before = {name: weight.detach().clone() for name, weight in whole.named_parameters()}
        first.append(next(weight for name, weight in before.items() if name.endswith("q_proj.weight")))
        assert [name for name in before if "lora_" not in name] == ["rows"], "once, though head and rows are tied"
        curve = tune(whole, tokenizer, pairs, held, own, state, progress)
        moved = {name for name, weight in whole.named_parameters() if not torch.equal(weight, before[name])}
        assert moved == set(before) if own.lr == 1e-2 else "rows" in moved, "every weight learns"
        assert whole.lora_body.lm_head.weight is whole.rows
        return curve

    def killed(*given, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "tune", watched)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(proposing.Bench, "asked", killed)
        all_weights.measure("case14", "whole", False, ["pretrained"])
    monkeypatch.setattr(proposing.Bench, "asked", lambda bench, model, *given, **keys: (
        asked(bench, model, *given, **keys) if not model.training else pytest.fail("in training mode")
    ))  # fmt: skip
    table = all_weights.measure("case14", "whole", progress=False)
    pilots, best = [(1e-9, 10), (1e-2, 10), (1e-8, 10)], (1e-2, SMALL["steps"])
    assert [each for each in tuned if each[0] < 1] == [*pilots, best, best, *pilots, best], "behind the pilots"
    base, _ = checkpoint.in_form("transplanted", project / "results/language_model/case14")
    other = checkpoint.random_weights(base, 7)
    for model, found in ((base, first[:6]), (other, first[6:])):
        weight = model.model.layers[0].self_attn.q_proj.weight
        assert found and all(torch.equal(weight, each) for each in found)
    rows = table[table["proposer"].str.startswith("all_weights") & table["metric"].eq("one_proposal")]
    assert set(zip(rows["proposer"], rows["states"], rows["seeds"], strict=True)) == {
        ("all_weights", 30, 1), ("all_weights_random_weights", 30, 1)
    }  # fmt: skip
    runs = json.loads((project / "whole/studies/pretrained/case14/runs.json").read_text())["runs"]
    for proposer in ("all_weights", "all_weights_random_weights"):
        losses = runs[f"{proposer}-30-7"]["losses"]
        pilots = losses["pilots"]
        assert list(pilots) == ["1e-09", "0.01", "1e-08", "1e+30"] and pilots["1e+30"] is None, "a rate that diverges is none"
        assert losses["rate"] == 0.01 and pilots["0.01"] == min(filter(None, pilots.values()))
        assert [look["step"] for look in losses["curve"]] == [10, 20, 30]
    assert not list((project / pretrained.PLACE / "study").rglob("*all_weights*.json")), "nothing is left behind"
    assert all_weights.main(["nowhere"]) == 1


def test_a_killed_tuning_of_all_weights_goes_on(project, measured, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setenv("ACE_JOBS", "1")
    few_states(monkeypatch)
    monkeypatch.setattr(all_weights, "PILOT", 20)
    monkeypatch.setattr(all_weights, "RATES", (1e-3,))
    save, advance, steps, saved = tuning._Run.save, tuning._Run.advance, [], []

    def killed(run, path):
        save(run, path)
        saved.append(run.step)
        if len(saved) in (1, 4):  # in the pilot, and in the tuning behind it
            raise KeyboardInterrupt

    def runs(output):
        all_weights.measure("case14", output, False, ["pretrained"])
        return json.loads((project / output / "studies/pretrained/case14/runs.json").read_text())["runs"]

    whole = runs("in_one_go")
    monkeypatch.setattr(tuning._Run, "save", killed)
    monkeypatch.setattr(tuning._Run, "advance", lambda run, tick: (steps.append(run.step), advance(run, tick)))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            runs("in_parts")
    assert runs("in_parts") == whole and steps == [0, 10, 0, 10, 20]


def test_all_weights_need_a_rate_that_does_not_diverge_and_the_transplanted_form(project, measured, tmp_path, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setenv("ACE_JOBS", "1")
    few_states(monkeypatch)
    monkeypatch.setattr(all_weights, "PILOT", 10)
    monkeypatch.setattr(all_weights, "RATES", (1e30,))
    with pytest.raises(config.ConfigError, match=r"no rate of \(1e\+30,\) has a finite loss; lower pretrained_model.rows_lr$"):
        all_weights.measure("case14", "none", progress=False)
    native = parameters(lambda raw: raw["pretrained_model"].update(form="native"))
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(native))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(config.ConfigError, match=r"pretrained_model.form = native: this study is of the transplanted form$"):
        all_weights.measure("case14", "none", progress=False)


def test_where_the_best_rate_of_the_pilots_diverges_later_the_next_is_taken(project, measured, monkeypatch, capsys):
    monkeypatch.chdir(project)
    monkeypatch.setenv("ACE_JOBS", "1")
    few_states(monkeypatch)
    monkeypatch.setattr(all_weights, "PILOT", 10)
    monkeypatch.setattr(all_weights, "RATES", (1e-2, 1e-3))
    shutil.copytree(project / "results/studies/pretrained", project / "next/studies/pretrained")
    tune = tuning.tune

    def diverging(whole, tokenizer, pairs, held, own, state, progress):
        if own.steps > all_weights.PILOT and own.lr == 1e-2:
            raise config.ConfigError("the loss is not finite")
        return tune(whole, tokenizer, pairs, held, own, state, progress)

    monkeypatch.setattr(tuning, "tune", diverging)
    all_weights.measure("case14", "next", False, ["pretrained"])
    losses = json.loads((project / "next/studies/pretrained/case14/runs.json").read_text())["runs"]["all_weights-30-7"]["losses"]
    assert losses["pilots"]["0.01"] < losses["pilots"]["0.001"] and losses["rate"] == 0.001 and losses["curve"]
    assert "pretrained, rate 0.01: the loss is not finite" in capsys.readouterr().out


def test_variants_are_run_once_and_shown(project, tmp_path, monkeypatch, capsys):
    for name in ("results", "checkpoints"):
        shutil.copytree(project / name, tmp_path / name)

    def longer(raw):
        raw["base"]["finetune"].update(heldout=0)
        raw["scenarios"].update(test=12)

    (tmp_path / "params.yaml").write_text(yaml.safe_dump(parameters(longer)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACE_JOBS", "1")
    assert variants.main(["case14"]) == 1 and "case14 has no weeks" in capsys.readouterr().err
    assert variants.main(["case14", "--seeds", "-1"]) == 1 and "seeds.0 = -1" in capsys.readouterr().err
    monkeypatch.setattr(variants, "_on_development", lambda params, _: params)  # so that these days are played
    shutil.copy(tmp_path / TUNED / "model_manifest.json", tmp_path / "results/language_model/case14")  # of the same corpus
    chosen = ["case14", "--seeds", "1", "--variants", "pretrained_only", "ace_pretrained", "frequency_refine"]
    assert variants.main(chosen) == 0
    assert variants.main(["case14", "--seeds", "1", "2", "--variants", "pretrained_only"]) == 0, "nothing is missing"
    path = tmp_path / "results/studies/pretrained/case14/variants.jsonl"
    pretrained_, alone, lookup = variants.read(path)
    assert [line["variant"] for line in (pretrained_, alone, lookup)] == ["ace_pretrained", "pretrained_only", "frequency_refine"]
    assert alone["budget"]["test"]["llm_calls"] > 0 == alone["budget"]["train"]["llm_calls"]
    assert pretrained_["budget"]["train"]["llm_calls"] > 0 == pretrained_["budget"]["test"]["llm_calls"]
    assert pretrained_["finetunes"] > 0 and pretrained_["tokens"]["actor"] > 0
    assert lookup["tokens"] == {} and lookup["budget"]["corpus"]["simulator_calls"] > 0
    assert len(pretrained_["survival"]) == len(alone["survival"]) > 0
    assert not list((tmp_path / "checkpoints/development").rglob("state.pt"))
    table = show.write_variants(tmp_path / "results", tmp_path / "shown")
    assert table["variant"].tolist() == ["ace_pretrained", "pretrained_only", "frequency_refine"]
    assert table["env_steps"].min() > 0 and table["llm_tokens"].tolist()[2] == 0

    monkeypatch.setattr(variants, "Run", None)
    before = path.read_bytes()
    assert variants.main(chosen) == 0 and path.read_bytes() == before
    variants._run(path, "case14", "results", "frequency_refine", 1)  # as one that has waited for the same run
    assert path.read_bytes() == before
    path.write_text(before.decode().replace(lookup["fingerprint"], "0" * 12))
    capsys.readouterr()
    assert variants.main(chosen) == 1 and "frequency_refine, seed 1, was made with other" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "results/pretrained_model")
    assert variants.main(["case14", "--variants", "ace_pretrained"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert transcripts.main(["case14"]) == 1 and "tuning case14 makes it" in capsys.readouterr().err
    place = tmp_path / pretrained.PLACE / pretrained.MODEL
    (place / "model.safetensors").write_bytes((place / "model.safetensors").read_bytes()[:-1])
    for each in (study, transcripts):
        assert each.main(["case14"]) == 1 and "missing or damaged: model.safetensors: delete it" in capsys.readouterr().err
    (place / pretrained.DIGESTS).write_text("{")
    assert study.main(["case14"]) == 1 and len(capsys.readouterr().err.splitlines()) == 1


def test_development_weeks_are_no_test_weeks(monkeypatch):
    monkeypatch.chdir(ROOT)
    params = variants._on_development(config.load(), "wcci2020")
    assert params.scenarios.test == params.chronics.development_test
    test = scenario_sets(params.environment("wcci2020"), params.scenarios)["test"]
    assert test.weeks.split == "development_test" and len(test) == params.chronics.development_test


def test_variants_are_shown_with_all_that_they_used(tmp_path):
    assert "No variants" in show.variants_as_markdown(show.write_variants(tmp_path, tmp_path / "shown"))
    used = {"simulator_calls": 10, "dc_calls": 20, "llm_calls": 5, "env_steps": 7}
    budget = dict.fromkeys(("train", "corpus", "test", "repeats"), used)
    idle = budget | {"train": dict.fromkeys(used, 0)}
    common = {"budget": budget, "minutes": {"train": 30.0, "evaluate": 1.5}, "tokens": {"actor": 600, "critic": 400}}
    own = {("ace_pretrained", 0): [0.5, 0.9], ("ace_pretrained", 1): [0.6, 1.0], ("ace_pretrained", 2): [0.0, 0.0],
           ("ace_pretrained_frozen", 1): [0.4, 0.6], ("pretrained_only", 0): [0.2, 0.6]}  # fmt: skip
    path = tmp_path / "studies/pretrained/wcci2020/variants.jsonl"
    path.parent.mkdir(parents=True)
    lines = [common | {"variant": v, "seed": s, "survival": survival, "refinements": 3 + s, "finetunes": 2 * s}
             | ({"budget": idle} if v == "pretrained_only" else {}) for (v, s), survival in own.items()]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = show.write_variants(tmp_path, tmp_path / "shown").set_index("variant")
    frozen, alone = table.loc["ace_pretrained_frozen"], table.loc["pretrained_only"]
    own = {"ace_pretrained": 50.0, "ace_pretrained_frozen": 50.0, "pretrained_only": 40.0}
    assert table["survival"].to_dict() == pytest.approx(own) and np.isnan(table.loc["ace_pretrained", "difference"])
    assert frozen["difference"] == pytest.approx(30.0), "80 of the one seed that both have"
    assert alone["difference"] == pytest.approx(10.0), "nothing is learned: minus its one run goes each of the three seeds"
    assert (frozen["simulator_calls"], frozen["llm_calls"], frozen["llm_tokens"], frozen["minutes"]) == (30, 15, 1000, 31.5)
    assert (frozen["env_steps"], alone["env_steps"], alone["simulator_calls"]) == (14, 7, 20)
    assert (frozen["refinements"], frozen["finetunes"], frozen["seeds"], frozen["weeks"]) == (4, 2, 1, 2)
    assert "| Pretrained model alone | 40.0 [" in (tmp_path / "shown/variants.md").read_text()


def test_bodies_with_random_weights_are_compared_with_the_pretrained_one():
    found = {(name, 30): {7: {"one_proposal": values}} for name, values in (
        ("finetuned", [1, 1, 1, 1]), ("all_weights", [1, 1, 1, 0]), ("all_weights_random_weights", [1, 0, 0, 0]),
    )}  # fmt: skip
    found |= {(name, 40): {7: {"one_proposal": values}} for name, values in (
        ("head_pretrained", [1, 1, 0, 0]), ("head_random_rows", [1, 0, 0, 0]), ("classifier", [1, 0, 0, 0]),
    )}  # fmt: skip
    table = study.table_of("case14", found, [1, 2, 3, 4], [])
    shown = [[*row[1:4], row[4].split(" ")[0]] for row in show.cells_of_differences(table)]
    assert shown == [
        ["30", "Pretrained, fine-tuned", "Pretrained, all weights tuned", "+25.0"],
        ["30", "Pretrained, all weights tuned", "Random weights, all tuned", "+50.0"],
        ["40", "Head on the pretrained body", "Classifier", "+25.0"],
        ["40", "Head on the pretrained body", "Head on the pretrained body, random words", "+25.0"],
    ]


def test_the_more_frequent_sign_is_a_baseline_of_the_critic():
    assert study.majority([True, False, True]).tolist() == [True, False, True]
    assert study.majority([False, False, True]).tolist() == [True, True, False]
    assert study.majority([True, False]).mean() == 0.5


def test_what_is_shown_of_the_study(project, measured, tmp_path):
    table = show.write_pretrained(project / "results", tmp_path)
    names = {f"{name}.{end}" for name in ("pretrained", "pretrained_differences") for end in ("csv", "md")}
    names |= {f"pretrained_figure.{end}" for end in ("csv", "md", "pdf", "png")}
    assert {path.name for path in tmp_path.iterdir()} == names
    rows = show.cells(table)
    assert [row[2] for row in rows] == ["0"] * 2 + ["10"] * 7 + ["30"] * 7
    value = measured.set_index(["proposer", "states", "metric"])["value"]
    lookup = rows[-1]
    assert lookup[1] == "Lookup table" and lookup[3].startswith(f"{100 * value['frequency', 30, 'one_proposal']:.1f} ")
    majority = rows[1]
    assert majority[3:5] == [""] * 2 and majority[5].startswith(f"{100 * value['majority', 0, 'critic_sign']:.1f}")
    minus = {(row[1], row[3]): row[4:9] for row in show.cells_of_differences(table)}
    for size in (10, 30):
        for other, name in (("frequency", "Lookup table"), ("zero_shot", "Pretrained, zero-shot")):
            point = value["finetuned", size, f"one_proposal_minus_{other}"]
            assert minus[str(size), name][0].startswith(rounded(100 * point, 1, "+") + " ")
        assert minus[str(size), "Lookup table"][2:] == [""] * 3, "it judges and writes nothing"
    text = (tmp_path / "pretrained_differences.csv").read_text()
    assert "_minus_frequency" in text and "_minus_frequency" not in (tmp_path / "pretrained.csv").read_text()
    assert majority[-3:] == ["–", f"{measured.set_index('proposer')['n']['majority']}", "1"]
    show.draw(table[~table["proposer"].str.startswith("finetuned")], tmp_path / "untuned")
    assert (tmp_path / "untuned/pretrained_figure.png").stat().st_size > 0, "a grid that nothing was tuned on"
    with pytest.raises(ReportError, match="run python -m ace"):
        show.write_pretrained(tmp_path, tmp_path)


def test_transcripts_are_chosen_by_their_rule(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    monkeypatch.setenv("ACE_JOBS", "1")
    place = project / "results/language_model/case14/heldout.npz"
    assert transcripts.main(["case14"]) == 1
    assert "stage language_model makes them" in capsys.readouterr().err
    params = config.load()
    world = World(params.environment("case14"), params.scenarios, params.base.operator)
    manifest = json.loads((project / TUNED / "model_manifest.json").read_text())
    states, _ = proposing.heldout_states(world, WhatIf(world), np.array(manifest["actions"]), 10, params.base.refine.margin, 8, 7)
    save_states(states, place)
    assert transcripts.main(["case14"]) == 0
    path = project / "results/studies/pretrained/case14/transcripts.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert f"{len(lines)} transcripts" in capsys.readouterr().out
    helped = [line["first_helped"] for line in lines]
    assert lines and max(sum(helped), len(helped) - sum(helped)) <= transcripts.EACH
    assert [line["state"] for line in lines] == sorted({line["state"] for line in lines})
    for line in lines:
        assert line["first_helped"] == (line["helped"] and len(line["rounds"]) == 1)
        assert all(set(said) == set(transcripts.SHOWN) and said["verdict"] for said in line["rounds"])
    assert transcripts.write("case14", "again") == lines, "the same twice"
    prompt, shown = show.transcripts_as_markdown(project / "results").split("```\n\n")
    assert lines[0]["rounds"][0]["prompt"] in prompt
    shown = shown.strip().splitlines()
    assert len(shown) == 2 + sum(len(line["rounds"]) for line in lines)
    assert lines[0]["rounds"][0]["verdict"] in shown[2]
    assert "No transcripts" in show.transcripts_as_markdown(project / "nowhere")


class Played:
    """An actor whose replies help at once where the state says so, else in the second round or never."""

    def __init__(self):
        self.recorder = SimpleNamespace(calls=0, records=[])

    def refine(self, cases, seed):
        (case,) = cases
        rounds = {"first": 1, "second": 2, "never": 5}[case.state]
        said = {"prompt": "p", "reply": "r", "parse": "a", "verdict": "v", "tokens": 3}
        self.recorder.records += [said] * rounds
        self.recorder.calls += rounds
        return [None if case.state == "never" else SimpleNamespace(improved=True)]


def test_a_kind_of_transcripts_that_is_full_is_left_out():
    states = ["first", "first", "first", "never", "second", "never", "first"]
    lines = transcripts.choose(Played(), states, 7, each=2)
    assert [line["state"] for line in lines] == [0, 1, 3, 4]
    assert [(line["first_helped"], line["helped"], len(line["rounds"])) for line in lines] == [
        (True, True, 1), (True, True, 1), (False, False, 5), (False, True, 2)
    ]  # fmt: skip
    assert [line["state"] for line in transcripts.choose(Played(), ["never"], 7, each=2)] == [0], "the states end before"


def test_intervals_of_the_study_are_over_scenarios():
    """Two scenarios that differ wholly: the interval is far wider than that of 40 single states."""
    values = np.repeat([1.0, 0.0, 1.0, 0.0], 10)
    tuned = {("finetuned", 5): {7: {"one_proposal": values}}}
    both = {**tuned, ("frequency", 5): {7: {"one_proposal": 1 - values}}}
    table, alone = study.table_of("g", both, np.repeat(range(4), 10), []), study.table_of("g", tuned, range(40), [])
    width = [t["ci_high"][0] - t["ci_low"][0] for t in (table, alone)]
    assert width[0] > 2 * width[1] and table["value"][0] == 0.5
    paired = table.set_index(["proposer", "metric"]).loc[("finetuned", "one_proposal_minus_frequency")]
    assert paired["value"] == pytest.approx(0.0) and paired["n"] == 40


def test_the_difference_of_two_proposers_is_of_the_seeds_that_both_have():
    def run(share):
        return {"one_proposal": (np.arange(40) < 40 * share).astype(int)}

    found = {
        ("finetuned", 5): {7: run(0.5), 8: run(0.7), 9: run(0.9)},
        ("random_weights", 5): {8: run(0.4), 6: run(0.0)}, ("classifier", 5): {6: run(0.2)}, ("frequency", 5): {7: run(0.1)},
    }  # fmt: skip
    rows = study.table_of("g", found, np.tile(range(8), 5), []).set_index(["proposer", "metric"])
    assert rows.loc[("finetuned", "one_proposal"), ["value", "seeds"]].tolist() == [0.7, 3]
    assert rows.loc[("finetuned", "one_proposal_minus_random_weights"), ["value", "seeds"]].tolist() == [0.3, 1]
    assert rows.loc[("finetuned", "one_proposal_minus_frequency"), ["value", "seeds"]].tolist() == [0.6, 3]
    assert ("finetuned", "one_proposal_minus_classifier") not in rows.index
    assert rows["ci_high"].max() <= 1 and (rows["n"] == 40).all()
    # Judgements are paired too, over their scenarios, and only where both judge.
    found["finetuned", 5][8]["critic_sign"], found["random_weights", 5][8]["critic_sign"] = [True] * 6, [True, False] * 3
    both = {key: {8: runs[8]} for key, runs in found.items() if 8 in runs}
    signs = study.table_of("g", both, np.tile(range(8), 5), [1, 1, 2, 2, 3, 3])
    (row,) = signs[signs["metric"] == "critic_sign_minus_random_weights"].itertuples()
    assert (row.value, row.n) == (0.5, 6) and (row.ci_low, row.ci_high) == (0.5, 0.5), "each scenario has the same difference"
    assert not rows.index.get_level_values("metric").str.startswith("critic_sign").any()
