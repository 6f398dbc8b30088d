"""A wrong parameter ends in one line that names the key, what was given and what is allowed."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import parsed, whole_grid

from ace import config

ROOT = Path(__file__).parent.parent


def altered(tmp_path, change):
    raw = whole_grid(parsed("params.yaml"))
    change(raw)
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def environment(raw, name="wcci2020"):
    return raw["environments"][name]


def with_own_model(raw):
    """`camel_poor` in the grid, which asks a language model of its own."""
    raw["grid"]["other_model"] = ["camel_poor"]
    return raw


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
        (lambda p: p["base"]["train"].update(warmup=1500), ["base.train: warmup = 1500", "below decisions = 1500", "no update"]),
        (lambda p: p["variants"]["ace"].update(train={"decisions": 200}), ["variants.ace.train: warmup", "below decisions"]),
        (lambda p: p["base"]["shape"].update(into="d_mix"), ["base.shape.into = 'd_mix'", "'d_llm' or 'd_rl'"]),
        (lambda p: p["base"]["refine"].update(rounds=6), ["base.refine.rounds = 6", "less than or equal to 5"]),
        (lambda p: p["base"]["sac"].update(lr="quick"), ["base.sac.lr = 'quick'", "number"]),
        (lambda p: p["base"]["sac"].pop("gamma"), ["base.sac.gamma", "missing"]),
        (lambda p: p["base"]["sac"].update(average=1.0), ["base.sac.average = 1.0", "less than 1"]),
        (lambda p: p["base"]["train"].update(marks=[500, 100]), ["base.train", "marks = [500, 100]", "ascend"]),
        (lambda p: p["base"]["train"].update(marks=[500, 1501]), ["base.train", "marks = [500, 1501]", "decisions = 1500"]),
        (lambda p: p["variants"]["ace"].update(refine={"treshold": 0}), ["variants.ace.refine.treshold", "threshold"]),
        (lambda p: p["variants"]["sac"].update(method="ppo"), ["variants.sac.method = 'ppo'", "'sac'"]),
        (
            lambda p: p["grid"]["environments"].insert(0, "neurips202"),
            ["grid.environments.0 = 'neurips202': no such environment; did you mean 'neurips2020'"],
        ),
        (
            lambda p: p["grid"]["ablations"].update(environment="wci2020"),
            ["grid.ablations.environment = 'wci2020': no such environment; did you mean 'wcci2020'"],
        ),
        (lambda p: p["grid"]["variants"].insert(0, "ace_no_actr"), ["grid.variants.0 = 'ace_no_actr'", "'ace_no_actor'"]),
        (lambda p: p["grid"]["baselines"].insert(0, "sac"), ["grid.baselines.0 = 'sac'", "belongs to variants"]),
        (lambda p: environment(p, "case14")["days"].update(test=[0]), ["environments.case14.days", "[0]", "train", "test"]),
        (lambda p: environment(p, "case14")["days"].update(test=[]), ["environments.case14.days.test = []", "at least 1"]),
        (
            lambda p: environment(p, "case14").update(days={"train": [1], "validation": [1], "test": [1]}),
            ["environments.case14.days", "[1]", "one split"],
        ),
        (lambda p: environment(p).pop("weeks"), ["environments.wcci2020", "`weeks`", "`days`", "one of the two"]),
        (
            lambda p: environment(p).update(days={"train": [0], "validation": [1], "test": [2]}),
            ["environments.wcci2020", "`weeks`", "`days`", "one of the two"],
        ),
        (lambda p: environment(p, "case14").update(packaged_days=[0]), ["environments.case14", "packaged_days", "`days`"]),
        (lambda p: environment(p).update(packaged_days=[-1]), ["environments.wcci2020.packaged_days.0 = -1"]),
        (lambda p: environment(p)["weeks"].update(months=[1, 13]), ["environments.wcci2020.weeks.months.1 = 13"]),
        (lambda p: environment(p)["weeks"].update(months=[]), ["environments.wcci2020.weeks.months = []", "at least 1"]),
        (lambda p: environment(p)["weeks"].update(year=50), ["environments.wcci2020.weeks.year = 50"]),
        (lambda p: environment(p)["weeks"].update(forcast_sd=0.1), ["environments.wcci2020.weeks.forcast_sd", "'forecast_sd'"]),
        (lambda p: environment(p)["weeks"].pop("path"), ["environments.wcci2020.weeks.path", "missing"]),
        (lambda p: p["scenarios"].update(test_split="tst"), ["scenarios.test_split = 'tst'", "'development_test' or 'test'"]),
        (lambda p: p["scenarios"].update(load_sd=0.04), ["scenarios.load_sd: no such parameter"]),
        (lambda p: p["scenarios"]["resampled"].update(load_sd=2), ["scenarios.resampled.load_sd = 2"]),
        (lambda p: p["chronics"].update(days=0), ["chronics.days = 0"]),
        (lambda p: p["chronics"].update(frozen_at="e8e0639e"), ["chronics.frozen_at = 'e8e0639e'"]),
        (lambda p: p["grid"]["more_seeds"].update(seeds=[0]), ["seeds + grid.more_seeds.seeds", "each seed once"]),
        (lambda p: p["grid"]["more_seeds"].update(variants=["acee"]), ["grid.more_seeds.variants.0 = 'acee'", "grid.variants"]),
        (lambda p: p["chronics"].update(days=400), ["chronics.days = 400", "less than or equal to 7"]),
        (lambda p: p["chronics"].update(days=2), ["environments.wcci2022.horizon = 864", "chronics.days = 2 are 576 steps"]),
        *(
            (lambda p, path=path: environment(p)["weeks"].update(path=path), [f"weeks.path = {path!r}", "/chronics/wcci2020"])
            for path in ("results", "results/chronics/neurips2020", "/results/chronics/wcci2020", "")
        ),
        (lambda p: p["scenarios"].update(train=41), ["scenarios.train = 41: chronics.train = 40"]),
        (
            lambda p: p["scenarios"].update(validation=17),
            ["scenarios.validation = 17: chronics.validation = 16", "scenarios.validation + rates.episodes = 25"],
        ),
        (lambda p: p["scenarios"].update(test=51), ["scenarios.test = 51: chronics.test = 50"]),
        (
            lambda p: p["scenarios"].update(test=13, test_split="development_test"),
            ["scenarios.test = 13: chronics.development_test = 12"],
        ),
        (lambda p: p["foresight"].update(episodes=9), ["scenarios.validation + foresight.episodes = 17: chronics.validation"]),
        (lambda p: p["rates"].update(episodes=9), ["scenarios.validation + rates.episodes = 17: chronics.validation"]),
        (lambda p: p.update(seeds=[-1]), ["seeds.0 = -1"]),
        (lambda p: p["language_models"]["camel_poor"].update(state=1), ["language_models.camel_poor.state", "no such parameter"]),
        (lambda p: p["grid"]["pretrained"].update(environments=["case14"]), ["grid.pretrained.environments.0 = 'case14': it is"]),
        (lambda p: p["grid"]["also"].update(environments=["case14"]), ["grid.also.environments.0 = 'case14': it is not under"]),
        (lambda p: p["grid"]["also"].update(environments=["wcci2022"]), ["grid.also.controls: they need 'wcci2020' under"]),
        (lambda p: p["grid"]["also"].update(variants=["ace"]), ["grid.also.variants: 'ace' stands under grid.variants too"]),
        (lambda p: p["language_model"].update(heads=3), ["language_model: hidden = 128 must be a multiple of 2 x heads = 6"]),
        (lambda p: p["also_model"].update(heads=3), ["also_model: hidden = 128 must be a multiple of 2 x heads = 6"]),
        (lambda p: with_own_model(p)["language_models"].clear(), ["grid.other_model", "'camel_poor' has no entry"]),
        (
            lambda p: with_own_model(p)["variants"]["camel_poor"].clear(),
            ["variants.camel_poor.llm.path", "language_models/camel_poor/{env}"],
        ),
        (
            lambda p: with_own_model(p)["grid"]["variants"].append("camel_poor"),
            ["grid.other_model", "'camel_poor' stands under variants too"],
        ),
        (lambda p: p["seeds"].append(0), ["params.yaml: seeds = [0, 1, 2, 3, 4, 5, 6, 7, 0]: each seed once"]),
        (lambda p: p["grid"]["ablations"].update(seeds=[1, 1]), ["grid.ablations.seeds = [1, 1]: each seed once"]),
        (lambda p: p["grid"]["ablations"]["variants"].append("ace"), ["ablations.variants: 'ace' stands under grid.variants"]),
        (lambda p: p["grid"]["budget"]["variants"].append("ace"), ["grid.budget.variants: 'ace' stands under grid.variants"]),
        (lambda p: p["grid"]["budget"]["variants"].append("ace_K01"), ["'ace_K01' stands under grid.ablations.variants"]),
        (
            lambda p: p["grid"]["budget"]["variants"].append("also_pretrained"),
            ["grid.budget.variants.3", "train.marks is empty"],
        ),
        (lambda p: p["grid"]["budget"].update(environments=["wci2020"]), ["grid.budget.environments.0", "mean 'wcci2020'"]),
        (lambda p: p["grid"]["budget"].update(seeds=[1, 1]), ["grid.budget.seeds = [1, 1]: each seed once"]),
        (
            lambda p: p["foresight"]["variants"].append("llm_only"),
            ["foresight.variants.9 = 'llm_only'", "language model in play"],
        ),
        (
            lambda p: with_own_model(p)["foresight"].update(variants=["camel_poor"]),
            ["foresight.variants.0 = 'camel_poor'", "one language model"],
        ),
        (
            lambda p: p["grid"]["variants"].remove("frequency_refine"),
            ["foresight.variants.8 = 'frequency_refine': it is not in the grid"],
        ),
        (lambda p: p["foresight"].update(variants=["ace", "ace"]), ["foresight.variants.1 = 'ace': each variant once"]),
        (lambda p: p["lora"]["lr_1e-2"].update(learning_rate=1.0), ["lora.lr_1e-2.learning_rate", "no such parameter"]),
    ],
)
def test_one_line_that_names_the_key(tmp_path, change, words):
    with pytest.raises(config.ConfigError) as error:
        config.load(altered(tmp_path, change))
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p["scenarios"].update(test=13),
        lambda p: (
            p["scenarios"].update(train=41),
            p["grid"].update(environments=["case14"]),
            [p["grid"][group].update(environments=[]) for group in ("also", "pretrained", "budget")],
            p["grid"]["also"].update(controls=[]),
        ),
    ],
)
def test_numbers_that_no_declared_weeks_limit_are_allowed(tmp_path, change):
    config.load(altered(tmp_path, change))


def test_what_plays_weeks_does_not_depend_on_what_only_makes_them(params):
    spec = params.environment("wcci2020")
    made_otherwise = spec.model_copy(update={"weeks": spec.weeks.model_copy(update={"year": 2049, "months": [1]})})
    other = spec.model_copy(update={"weeks": spec.weeks.model_copy(update={"forecast_sd": 0.5})})
    assert made_otherwise.without_making() == spec.without_making() != other.without_making()
    assert params.environment("case14").without_making() == params.environment("case14").model_dump()


def test_all_mistakes_are_named_at_once(tmp_path):
    def change(p):
        p["base"]["sac"].update(hidden=0)
        p["base"]["sac"]["gama"] = p["base"]["sac"].pop("gamma")
        p["base"]["train"].update(warmup=-1)

    with pytest.raises(config.ConfigError) as error:
        config.load(altered(tmp_path, change))
    for word in ("base.sac.gama: no such", "base.sac.gamma: is missing", "base.sac.hidden = 0", "base.train.warmup = -1"):
        assert word in str(error.value)

    def change(p):
        p["grid"]["environments"][0] = "wci2020"
        p["variants"]["ace_K01"]["shape"].update(K=-1)
        p["variants"]["ace_K02"]["shape"].update(k=1)

    with pytest.raises(config.ConfigError) as error:
        config.load(altered(tmp_path, change))
    for word in ("'wci2020'", "variants.ace_K01.shape.K = -1", "variants.ace_K02.shape.k: no such"):
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_seeds_of_a_variant_are_those_of_where_it_is_declared(whole_params):
    params = whole_params
    grid, ablation = params.grid, params.grid.ablations.variants[0]
    for variant, seeds in {
        "ace_literal": params.seeds, "ace": [*params.seeds, *grid.more_seeds.seeds], ablation: grid.ablations.seeds,
        "ace_pretrained": grid.pretrained.seeds, "ace_40k": grid.budget.seeds, "also": params.seeds,
        "also_random": grid.ablations.seeds, "greedy": [0], "llm_only": [0], "grid2op_do_nothing": [0],
    }.items():  # fmt: skip
        assert params.seeds_of(variant) == seeds, variant
    more = config.declared.MoreSeeds(seeds=[8, 9], variants=["sac"])
    with_more = params.model_copy(update={"grid": params.grid.model_copy(update={"more_seeds": more})})
    assert with_more.seeds_of("sac") == [*params.seeds, 8, 9] and with_more.seeds_of("ace") == params.seeds
    by_hand = params.model_copy(update={"variants": {**params.variants, "mine": {}, "idle": {"method": "reconnect"}}})
    assert by_hand.seeds_of("mine") == params.seeds and by_hand.seeds_of("idle") == [0]


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("lr: 1e-3", None),
        ("lr: '1e-3'", "base.sac.lr = '1e-3': input should be a valid number; this is text: write it without quotes"),
        ("lr: 1.0e-3\n    lr: 2.0e-3", 'found duplicate key "lr"'),
    ],
)
def test_numbers_are_read_as_dvc_reads_them(tmp_path, written, answer):
    text = (ROOT / "params.yaml").read_text()
    assert text.count("    lr: 1.0e-3\n") == 1
    (tmp_path / "params.yaml").write_text(text.replace("    lr: 1.0e-3\n", f"    {written}\n"))
    if answer is None:
        assert config.load(tmp_path / "params.yaml") == config.load(ROOT / "params.yaml")
        return
    with pytest.raises(config.ConfigError) as error:
        config.load(tmp_path / "params.yaml")
    assert answer in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("word", ["no", "yes", "off"])
def test_a_word_for_a_switch_is_answered_with_the_two_that_there_are(tmp_path, word):
    text = (ROOT / "params.yaml").read_text()
    assert "refine: {enabled: true" in text
    (tmp_path / "params.yaml").write_text(text.replace("refine: {enabled: true", f"refine: {{enabled: {word}", 1))
    with pytest.raises(config.ConfigError, match=rf"base\.refine\.enabled = '{word}': .*write true or false"):
        config.load(tmp_path / "params.yaml")


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
    ours, shared = (params.with_model(name).language_model.model_dump() for name in ("camel_poor", ""))
    assert {key for key in shared if ours[key] != shared[key]} == {"scan", "states", "steps"}
    with pytest.raises(config.ConfigError, match=r"'camel_por' is not in params\.yaml; did you mean 'camel_poor'"):
        params.with_model("camel_por")


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


@pytest.mark.parametrize("name", ["ace-2", "ace/2", "two words", "ä", ""])
def test_a_name_that_is_no_folders_is_one_error(tmp_path, name):
    with pytest.raises(config.ConfigError, match="letters, digits and _") as raised:
        config.load(altered(tmp_path, lambda raw: raw["variants"].update({name: {}})))
    assert repr(name) in str(raised.value) and "\n" not in str(raised.value)


def test_broken_yaml_is_told_by_the_files_name_and_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("a: 1\nb: {c\nd: 2\n")
    with pytest.raises(config.ConfigError) as raised:
        config.load(path)
    assert "in mine.yaml, line" in str(raised.value) and "string>" not in str(raised.value)
