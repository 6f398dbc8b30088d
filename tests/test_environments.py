"""How hard the scenarios are: what stands for a split, what is measured, the tables made of it; packaged days against weeks."""

import copy
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT, parsed

from ace import config, evaluate, stats
from ace.baselines import DoNothing
from ace.grid.card import environment_card
from ace.grid.environment import Operator, World, scenario_sets
from ace.report import environments
from ace.report.runs import ReportError
from ace.report.style import theme
from ace.studies.environments import choice, compared, measure, show

WEEKS = 3


@pytest.fixture(scope="module")
def few(params):
    """The scenarios section with WEEKS weeks of each split, the test of development weeks."""
    few = {"train": WEEKS, "validation": WEEKS, "test": WEEKS, "packaged": 2, "test_split": "development_test"}
    return params.scenarios.model_copy(update=few)


@pytest.fixture(scope="module")
def world(params, few):
    return World(params.environment("wcci2020"), few, params.base.operator)


# --- what stands for a split ---


def test_one_episode_of_each_training_week(params, few):
    train, validation, _, packaged = scenario_sets(params.environment("wcci2020"), few).values()
    chosen = choice.one_a_week(train)
    assert [index // train.starts for index in chosen] == list(range(WEEKS))
    assert choice.one_a_week(train) == chosen, "drawn once and for all"
    many = scenario_sets(params.environment("wcci2020"), params.scenarios)["train"]
    days = [index % many.starts for index in choice.one_a_week(many)]
    assert choice.one_a_week(many)[:WEEKS] == chosen and set(days) == set(range(many.starts))
    assert choice.one_a_week(validation) == list(range(WEEKS)) and choice.one_a_week(packaged) == [0, 1]


def test_the_test_has_the_name_of_its_weeks(params, few):
    for scenarios, name in ((few, "development_test"), (params.scenarios, "test")):
        names = [choice.name_of(split, params.environment("wcci2020"), scenarios) for split in ("train", "test", "packaged")]
        assert names == ["train", name, "packaged"]
    assert choice.name_of("test", params.environment("case14"), few) == "test"


def test_what_a_scenario_asks_of_the_grid(world):
    scenario, kind = world.sets["train"][WEEKS + 5], np.array(world.env.gen_type)
    found = choice.described(scenario, kind)
    load = scenario.load_p.astype(float)
    assert (found["week"], found["start"]) == scenario.origin
    assert found["mean_load_mw"] == pytest.approx(load.sum(axis=1).mean(), rel=1e-5)
    assert found["peak_load_mw"] == pytest.approx(max(row.sum() for row in load), rel=1e-5)
    energy = {name: scenario.gen_p[:, kind == name].astype(float).sum() for name in set(kind)}
    share = (energy["wind"] + energy["solar"]) / sum(energy.values())
    assert found["renewable_share"] == pytest.approx(share, rel=1e-5) and energy["hydro"] > 0
    packaged = choice.described(world.sets["packaged"][0], kind)
    assert packaged["start"] is None and set(packaged["week"].split()) <= {"7", "8"}


@pytest.mark.parametrize(
    ("week", "season"), [("2050-12-31", "winter"), ("2050-03-01", "spring"), ("2050-08-31", "summer"), ("7 8 7", "all")]
)
def test_seasons(week, season):
    assert choice.season_of(week) == season


# --- what is measured ---


def test_measured_episodes_are_those_of_evaluate(workspace, monkeypatch):
    def smaller(raw):
        raw["scenarios"].update(train=3, validation=1, test=2)
        raw["variants"]["do_nothing"] = {"method": "do_nothing", "operator": {"reconnect": False}}
        raw["base"]["greedy"]["shortlist"] = 10

    folder = workspace(smaller)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ACE_JOBS", "1")
    choice.world_of.cache_clear()
    table, agreement = measure.measure_environment("case14", "out", compared=2)
    choice.world_of.cache_clear()
    assert list(table.columns) == measure.COLUMNS and list(agreement.columns) == measure.AGREEMENT
    assert table.groupby("split", sort=False).size().to_dict() == {"train": 9, "validation": 3, "test": 6}
    assert list(table["variant"][:3]) == ["do_nothing", "reconnect", "greedy"]
    params = config.load()
    reference = World(params.environment("case14"), params.scenarios, params.settings("reconnect").operator)
    for number, row in enumerate(table[(table["split"] == "test") & (table["variant"] == "reconnect")].to_dict("records")):
        (result,) = evaluate.play(reference, DoNothing(), "test", [number])
        assert (row["survived_steps"], row["decisions"]) == (result.survived_steps, result.decisions)
        assert row["simulator_calls"] == row["dc_calls"] == 0
    greedy = table[table["variant"] == "greedy"]
    assert (greedy["simulator_calls"] > 0).all() and (greedy["dc_calls"] > greedy["simulator_calls"]).all()
    written = pd.read_csv(folder / "out/studies/environments/case14.csv")
    assert written["survived_steps"].tolist() == table["survived_steps"].tolist()
    assert agreement["steps_grid2op"].tolist() == agreement["steps_fast_world"].tolist()
    assert agreement["lost"].any() and agreement["reward_difference"].max() < 1e-4
    assert (folder / "out/studies/environments/case14_agreement.csv").is_file()


# --- the card ---


def test_the_card_says_which_weeks(world):
    card = environment_card(world)
    splits = card["splits"]
    assert list(splits) == ["train", "validation", "test", "packaged"] and "source_days" not in card
    assert splits["train"]["scenarios"] == len(world.sets["train"]) > len(splits["train"]["weeks"]) == WEEKS
    assert splits["test"]["weeks_of"] == "development_test" and splits["packaged"]["days"] == [7, 8]
    assert splits["validation"]["weeks"] == [world.sets["validation"][i].origin[0] for i in range(WEEKS)]
    for split, about in splits.items():
        assert about["hash"] == world.sets[split].hash()
    starts = world.sets["train"].starts
    load = np.concatenate([world.sets["train"][starts * week].load_p.sum(axis=1) for week in range(WEEKS)])
    assert splits["train"]["load_mw"]["mean"] == pytest.approx(load.mean(), abs=0.1)
    assert json.loads(json.dumps(card)) == card


# --- packaged days against weeks ---


@pytest.fixture(scope="module")
def hours(world):
    return compared.hourly(world)


def test_hours_of_packaged_days_and_weeks(world, hours):
    source, week = world.sets["packaged"].source, world.sets["train"].weeks[1]
    counts = hours.groupby("source").size().to_dict()
    assert counts == {compared.PACKAGED: 24 * len(source.load_p), compared.WEEKS: 24 * 7 * WEEKS}
    packaged, weeks = (hours[hours["source"] == name].set_index(["day", "hour"]) for name in (compared.PACKAGED, compared.WEEKS))
    assert packaged.loc[(2, 5), "load_mw"] == pytest.approx(source.load_p[2, 60:72].sum(axis=1).mean(), rel=1e-5)
    steps = slice(288 + 12 * 20, 288 + 12 * 21)  # the second day of the second week, eight in the evening
    wind = week.gen_p[steps][:, np.array(world.env.gen_type) == "wind"].sum(axis=1).mean()
    assert weeks.loc[(7 + 1, 20), "wind_mw"] == pytest.approx(wind, rel=1e-5)
    assert hours["rho_max"].notna().all()


def test_a_grid_with_weeks_and_no_packaged_days_shows_weeks_alone(world, hours):
    alone = copy.copy(world)
    alone.sets = {split: scenarios for split, scenarios in world.sets.items() if split != "packaged"}
    found = compared.hourly(alone)
    pd.testing.assert_frame_equal(found, hours[hours["source"] == compared.WEEKS].reset_index(drop=True))
    with theme():
        assert len(show.draw_compared(found, "x").axes[1].lines) == 1


def test_a_grid_of_packaged_days_shows_them_alone(params, small_world):
    found = compared.hourly(small_world)
    assert set(found["source"]) == {compared.PACKAGED} and len(found) == 24 * len(small_world.sets["train"].source.load_p)


def test_the_loading_is_that_of_grid2op(world, hours):
    asked_at_once = copy.copy(world)
    asked_at_once.operator = Operator(SimpleNamespace(danger=0.0, recover=0.0, reconnect=True))
    state = asked_at_once.reset("train", world.sets["train"].starts).state
    second = hours[(hours["source"] == compared.WEEKS) & (hours["day"] == 7)].iloc[0]
    assert state.t == 0 and second["rho_max"] == pytest.approx(state.rho_max, abs=1e-3)


def test_the_mix_is_of_energy(hours):
    table = compared.mix(hours)
    assert list(table.columns) == [compared.PACKAGED, compared.WEEKS] and list(table.index) == list(compared.KINDS)
    assert table.sum().tolist() == pytest.approx([100, 100])
    rows = hours[hours["source"] == compared.WEEKS]
    total = sum(rows[f"{kind}_mw"].sum() for kind in compared.KINDS)
    assert table.loc["hydro", compared.WEEKS] == pytest.approx(100 * rows["hydro_mw"].sum() / total)


def test_survival_by_season_and_its_pictures(hours, tmp_path, monkeypatch):
    raw = parsed("params.yaml")
    raw["scenarios"]["train"] = WEEKS
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw))
    (tmp_path / "results").mkdir()
    (tmp_path / "results/chronics").symlink_to(ROOT / "results/chronics")
    monkeypatch.chdir(tmp_path)
    choice.world_of.cache_clear()
    found = compared.survival_by_season("wcci2020")
    world = choice.world_of("wcci2020", "reconnect", opponent=False)
    choice.world_of.cache_clear()
    dates = [world.sets["train"].weeks.about[week]["date"] for week in range(WEEKS)]
    of = found[found["method"] == "reconnect"]
    assert of["season"].tolist() == [choice.season_of(date) for date in dates]
    played = evaluate.play(world, DoNothing(), "train", choice.one_a_week(world.sets["train"]))
    assert of["survival"].tolist() == pytest.approx([100 * result.survival for result in played])
    with theme():
        panels = show.draw_compared(hours, "x").axes
        bars = show.draw_seasons(found, "x").axes[0].patches
    by_hour = hours[hours["source"] == compared.WEEKS].groupby("hour")["load_mw"].mean()
    assert panels[1].lines[1].get_ydata() == pytest.approx(by_hour.to_numpy())
    means = found.groupby(["method", "season"], observed=True)["survival"].mean()
    assert sorted(bar.get_height() for bar in bars) == pytest.approx(sorted(means))


# --- the table ---


def episodes(env, steps, horizon=100):
    """A measured table. steps: {split: {variant: steps of each week}}."""
    rows = []
    for split, of in steps.items():
        for variant, survived in of.items():
            for week, n in enumerate(survived):
                row = {"env": env, "split": split, "week": f"2050-{week + 1:02d}-03", "start": 1, "mean_load_mw": 500 + week}
                row |= {"peak_load_mw": 700 + week, "renewable_share": 0.1 * (week + 1), "variant": variant}
                row |= {"horizon": horizon, "survived_steps": n, "survival": n / horizon, "decisions": 3}
                rows.append(row | {"simulator_calls": 1000 if variant == "greedy" else 0, "dc_calls": 0})
    return pd.DataFrame(rows, columns=measure.COLUMNS)


MADE_UP = {
    "train": {"do_nothing": [5, 5, 5, 5], "reconnect": [100, 50, 99, 10], "greedy": [100, 11, 12, 100]},
    "development_test": {"do_nothing": [1, 2], "reconnect": [100, 100], "greedy": [100, 100]},
}


def write_measured(results, env, steps=None, same=(True, True)):
    folder = results / "studies" / "environments"
    folder.mkdir(parents=True, exist_ok=True)
    episodes(env, steps or MADE_UP).to_csv(folder / f"{env}.csv", index=False)
    rows = [[env, f"2050-0{i + 1}-03", 1, 40, 40 if ok else 41, True, 0.0] for i, ok in enumerate(same)]
    pd.DataFrame(rows, columns=measure.AGREEMENT).to_csv(folder / f"{env}_agreement.csv", index=False)


@pytest.fixture
def grid(params, few):
    """One declared grid with weeks, one that is in params.yaml only."""
    both = {name: params.environment(name) for name in ("wcci2020", "case14")}
    declared = params.grid.model_copy(update={"environments": ["wcci2020"]})
    return params.model_copy(update={"environments": both, "grid": declared, "scenarios": few})


@pytest.fixture
def results(tmp_path, world):
    results = tmp_path / "results"
    write_measured(results, "wcci2020", same=(True, False))
    (results / "scenarios").mkdir()
    (results / "scenarios/wcci2020.json").write_text(json.dumps(environment_card(world)))
    return results


def test_the_table_by_hand(grid, results):
    _, grids = environments.write_environments(grid, results, results / "made")
    written = pd.read_csv(results / "made/environments.csv")
    assert written.columns.tolist() == [
        "env", "split", "weeks", "mean_load_mw", "peak_load_mw", "renewable_share",
        "reconnect", "reconnect_low", "reconnect_high", "greedy", "greedy_low", "greedy_high", "easy_share", "hopeless_share",
    ]  # fmt: skip
    train, test = written.to_dict("records")
    assert [train["env"], train["split"], train["weeks"]] == ["wcci2020", "train", 4]
    assert [test["env"], test["split"], test["weeks"]] == ["wcci2020", "development_test", 2]
    assert (train["mean_load_mw"], train["peak_load_mw"], train["renewable_share"]) == (501.5, 703, 25)
    assert (train["reconnect"], train["greedy"]) == pytest.approx(((100 + 50 + 99 + 10) / 4, (100 + 11 + 12 + 100) / 4))
    _, low, high = stats.mean(np.array([[100.0, 50, 99, 10]]), stats.PERCENT)
    assert (train["reconnect_low"], train["reconnect_high"]) == pytest.approx((low, high), rel=1e-5) and low < 64.75 < high
    assert (train["easy_share"], train["hopeless_share"]) == (25, 25), "12 steps are the hour"
    assert (test["easy_share"], test["hopeless_share"]) == (100, 0)
    text = (results / "made/environments.md").read_text()
    row = next(line for line in text.splitlines() if "| development test |" in line)
    assert row.startswith("| WCCI 2020 | development test | 2 | 500 (701) | 15.0 | 1.5 |") and row.endswith("| 1,000 |")
    assert "WCCI 2020 1 of 2 (2 of them end in a blackout)" in text
    assert grids["run_here"].tolist() == [True, False] and grids["actions"].tolist() == [66810, 178]
    before = {path: path.read_bytes() for path in sorted((results / "made").iterdir())}
    assert len(before) == 8  # two tables as CSV and Markdown, the figure in two formats, its data and its note
    environments.write_environments(grid, results, results / "made")
    assert [path.name for path, content in before.items() if path.read_bytes() != content] == []


@pytest.mark.parametrize("name", ["wcci2020.csv", "wcci2020_agreement.csv"])
def test_what_was_not_measured_is_named(grid, results, name):
    (results / "studies/environments" / name).unlink()
    with pytest.raises(ReportError, match=rf"no results/studies/environments/{name}: run .*measure_environments@wcci2020`"):
        environments.write_environments(grid, results, results / "made")


def test_a_missing_card_is_named(grid, results):
    (results / "scenarios/wcci2020.json").unlink()
    with pytest.raises(ReportError, match=r"no results/scenarios/wcci2020.json: run "):
        environments.write_environments(grid, results, results / "made")


def test_episodes_of_other_test_weeks_are_refused(grid, results):
    write_measured(results, "wcci2020", {"train": MADE_UP["train"], "test": MADE_UP["development_test"]})
    with pytest.raises(ReportError, match="no episodes of the split 'development_test'"):
        environments.write_environments(grid, results, results / "made")


def test_by_season():
    table = choice.by_season(episodes("x", MADE_UP))  # two weeks in winter, two in spring
    assert table.loc["winter", "weeks"] == 2 and table.loc["winter", "reconnect"] == 75
    assert table[["easy", "hopeless"]].to_numpy().tolist() == [[50, 50], [0, 0]]
