"""The language model's table: put together from what the stages measured; its verdicts follow from the intervals."""

import shutil
from types import SimpleNamespace

import pandas as pd
import pytest
from conftest import ROOT

from ace.config import Grid
from ace.report import language
from ace.report.runs import ReportError


class MadeUpGrid(SimpleNamespace):
    main, cells = Grid.main, Grid.cells


def test_table_of_the_language_model_is_made_of_the_grids_rates(tmp_path):
    params = SimpleNamespace(
        scale="quick",
        scenarios=SimpleNamespace(test=4, test_split="development_test"),
        environment=lambda env: SimpleNamespace(weeks=None),
        grid=MadeUpGrid(
            environments=["a", "b"],
            variants=["ace"],
            baselines=[],
            lm_baselines=[],
            other_model=[],
            ablations=SimpleNamespace(environment="a", variants=[]),
            budget=SimpleNamespace(environments=[], variants=[]),
            also=SimpleNamespace(environments=[], variants=[], controls=[]),
            pretrained=SimpleNamespace(environments=[], variants=[]),
        ),
        lora={"fast": {"lr": 0.01}},
    )
    tried = pd.DataFrame(columns=[*language.COLUMNS, "setting"])
    for setting, value in (("as_run", 0.1), ("fast", 0.2)):
        tried.loc[len(tried)] = ["a", "model_after_lora", "lora_gain", value, 0.0, 0.3, 9, setting]
    (tmp_path / "studies" / "lora").mkdir(parents=True)
    for env in "ab":
        tried.assign(grid=env).to_csv(tmp_path / "studies" / "lora" / f"{env}.csv", index=False)
        folder = tmp_path / "language_model" / env
        folder.mkdir(parents=True)
        pd.DataFrame([[env, "model", "one_proposal", 0.5, 0.4, 0.6, 30]], columns=language.COLUMNS).to_csv(
            folder / "rates.csv", index=False
        )
        (tmp_path / "studies" / "rates").mkdir(exist_ok=True)
        shutil.copy(folder / "rates.csv", tmp_path / "studies" / "rates" / f"{env}.csv")
    language.write_language_model(params, tmp_path, tmp_path / "made")
    assert (tmp_path / "made" / "language_model.csv").read_text().splitlines() == [
        "grid,proposer,metric,value,ci_low,ci_high,n_states", "a,model,one_proposal,0.5,0.4,0.6,30",
        "b,model,one_proposal,0.5,0.4,0.6,30", "a,model_after_lora,lora_gain_as_run,0.1,0,0.3,9",
        "a,model_after_lora,lora_gain_fast,0.2,0,0.3,9", "b,model_after_lora,lora_gain_as_run,0.1,0,0.3,9",
        "b,model_after_lora,lora_gain_fast,0.2,0,0.3,9",
    ]  # fmt: skip
    text = (tmp_path / "made/language_model.md").read_text()
    assert "| b | Language model | 0.500 [0.400, 0.600] |  | 30 |" in text
    assert "| a | Language model |" in text
    again = pd.DataFrame([["b", "model", "one_proposal", 0.7, 0.6, 0.8, 300]], columns=language.COLUMNS)
    again.to_csv(tmp_path / "studies" / "rates" / "b.csv", index=False)
    written = language.write_language_model(params, tmp_path, tmp_path / "made")
    assert written[["grid", "value", "n_states"]].to_numpy().tolist()[:2] == [["a", 0.5, 30], ["b", 0.7, 300]], "measured again"
    again.loc[1] = ["b", "classifier", "one_proposal", 0.9, 0.8, 1.0, 300]
    again.to_csv(tmp_path / "studies" / "rates" / "b.csv", index=False)
    written = language.write_language_model(params, tmp_path, tmp_path / "made")
    assert written[["grid", "proposer", "value"]].to_numpy().tolist()[:3] == [
        ["a", "model", 0.5], ["b", "model", 0.7], ["b", "classifier", 0.9]
    ], "what only the stage measure_rates has measured"  # fmt: skip
    tried.iloc[:1].to_csv(tmp_path / "studies" / "lora" / "b.csv", index=False)
    with pytest.raises(ReportError, match=r"lora/b.csv is missing or old"):
        language.write_language_model(params, tmp_path, tmp_path / "made")
    (tmp_path / "studies" / "rates" / "b.csv").unlink()
    with pytest.raises(ReportError, match=r"no results/studies/rates/b\.csv: run notebooks/studies/rates_measure\.ipynb"):
        language.write_language_model(params, tmp_path, tmp_path / "made")
    (tmp_path / "language_model" / "b" / "rates.csv").unlink()
    with pytest.raises(ReportError, match=r"no results.language_model"):
        language.write_language_model(params, tmp_path, tmp_path / "made")


def made_up_rates(**ends):
    """Two grids; rates of 0.5 +- 0.1 unless given as proposer__metric=(low, high)."""
    names = ["model__one_proposal", "random__one_proposal", "frequency__one_proposal", "model__critic_sign"]
    names += ["majority__critic_sign", "model__critic_sign_state_index", "majority__critic_sign_state_index"]
    names += ["model_before_lora__one_proposal", "model_after_lora__lora_gain", "model__alone_minus_do_nothing"]
    given = {name: ends.get(name, (0.4, 0.6)) for name in names}
    rows = [["a", *name.split("__"), sum(each) / 2, *each, 30] for name, each in given.items()]
    return pd.DataFrame([*rows, ["b", "model", "one_proposal", 0.5, 0.4, 0.6, 30]], columns=language.COLUMNS)


def test_rates_of_the_rounds_settings_and_of_each_proposer():
    table = made_up_rates(random__one_proposal=(0.1, 0.3), frequency__one_proposal=(0.55, 0.7))
    others = [["a", "model_after_lora", f"lora_gain_{name}", low + 0.1, low, low + 0.2, 30]
              for name, low in (("as_run", 0.5), ("fast", 0.01), ("slow", -0.1))]  # fmt: skip
    more = pd.concat([table, pd.DataFrame(others, columns=language.COLUMNS)])
    declared = SimpleNamespace(environments=["a"])
    changed = SimpleNamespace(grid=declared, lora={"fast": {"lr": 0.01}, "slow": {"lr": 1e-5}})
    assert language.settings_tried(changed, more).splitlines()[2:] == [
        "| as in a run | +0.600 [+0.500, +0.700] |",
        "| lr 0.01 | +0.110 [+0.010, +0.210] |",
        "| lr 1e-05 | 0.000 [-0.100, +0.100] |",
    ]
    more_rates = pd.concat(
        [table, pd.DataFrame([["a", "classifier", "one_proposal", 0.7, 0.65, 0.75, 30]], columns=language.COLUMNS)]
    )
    assert "| a | Classifier on the same corpus | 0.700 [" in language.proposals(more_rates, "one_proposal")
    elsewhere = [["a", f"{name}_elsewhere", "five_rounds", mean, mean - 0.05, mean + 0.05, 30]
                 for name, mean in (("model", 0.9), ("frequency", 0.7), ("classifier", 0.95))]  # fmt: skip
    more_rates = pd.concat([table, pd.DataFrame(elsewhere, columns=language.COLUMNS)])
    assert "| a | Lookup table, new substation each round | 0.700 [" in language.proposals(more_rates, "five_rounds")
    first = more_rates.replace({"metric": {"five_rounds": "one_proposal"}})
    assert "new substation" not in language.proposals(first[first["proposer"] != "model_elsewhere"], "one_proposal")
    shown = language.proposals(table, "one_proposal")
    assert "| a | Lookup table | 0.625 [" in shown and "before" not in shown and shown.count("\n") == 2 + 4
    assert language.signs(table).splitlines()[2:] == [
        "| a | state | bare index | 0.500 [0.400, 0.600] | 0.500 [0.400, 0.600] | 30 |"
    ], "critic_sign by itself is not shown"
    shifted = language.shift(table)
    assert "before the LoRA rounds | 0.500 [0.400, 0.600] | 30 states |" in shifted
    assert "+0.5 [+0.4, +0.6] | 30 episodes |" in shifted and "| b |" not in shifted


def test_committed_rates_can_be_put_together(params):
    table = language.rates(params, ROOT / "results")
    assert set(table["grid"]) == set(params.grid.environments)
    for _, found in table.groupby("grid"):
        assert {"model", "random", "frequency", "classifier"} <= set(found["proposer"])
        assert {f"{name}_elsewhere" for name in ("model", "frequency", "classifier")} <= set(found["proposer"])
