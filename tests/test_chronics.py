"""Weeks of injections: dispatch, files, seeds and errors; all that are committed; short ones made with the generator."""

import importlib.util
import json
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import grid2op
import numpy as np
import pytest
from lightsim2grid import LightSimBackend

from ace.chronics import cases, forecast, losses, make, region, seeds, weeks
from ace.chronics.dispatch import Units, economic_dispatch
from ace.chronics.errors import ChronicsError
from ace.chronics.region import Region
from ace.config import ConfigError, load
from ace.grid.powerflow import PowerFlow
from ace.grid.scenarios import forecasts
from ace.grid.weeks import REACTIVE, Week, Weeks

ROOT = Path(__file__).resolve().parents[1]
PARAMS = load(ROOT / "params.yaml")
NAMES = [name for name, environment in PARAMS.environments.items() if environment.weeks]
"""The grids of params.yaml that have weeks."""

WCCI2020, NEURIPS2020, WCCI2022 = cases.GRIDS

needs_generator = pytest.mark.skipif(
    importlib.util.find_spec("chronix2grid") is None, reason=f"needs the generator: {cases.INSTALL}"
)


# Dispatch


def units(n_step, cost=(10.0, 50.0), low=(0.0, 0.0), high=(100.0, 100.0), ramp=(1000.0, 1000.0)):
    return Units(
        np.arange(len(cost)), np.array(cost), np.tile(low, (n_step, 1)), np.tile(high, (n_step, 1)), np.array(ramp),
        np.array(ramp),
    )  # fmt: skip


def dispatch(need, there=None, **of_units):
    need = np.array(need, dtype=float)
    there = np.zeros((len(need), 2)) if there is None else np.array(there, dtype=float)
    return economic_dispatch(need, there, units(len(need), **of_units))


def test_cheap_unit_first_then_the_dear_one():
    given, _ = dispatch([60, 130])
    assert given == pytest.approx(np.array([[60, 0], [100, 30]]))


def test_a_ramp_is_prepared_for_a_step_ahead():
    # The cheap unit may move by 20: to reach its 100 at step 1 it starts at 80, and the dear one may not give less than 0.
    given, _ = dispatch([80, 130, 130], ramp=(20.0, 1000.0))
    assert given == pytest.approx(np.array([[80, 0], [100, 30], [100, 30]]))
    # From 40 it reaches 60 and 80, the dear one has the rest.
    given, _ = dispatch([40, 100, 100], ramp=(20.0, 1000.0))
    assert given == pytest.approx(np.array([[40, 0], [60, 40], [80, 20]]))


def test_falling_loads_keep_to_the_downward_ramp():
    given, _ = dispatch([100, 40], ramp=(30.0, 1000.0))
    assert given == pytest.approx(np.array([[70, 30], [40, 0]]))


def test_minimum_generation_curtails_wind_before_sun():
    given, used = dispatch([50, 50], there=[[20, 40], [20, 10]], low=(15.0, 0.0))
    assert given == pytest.approx(np.array([[15, 0], [20, 0]]))
    assert used == pytest.approx(np.array([[20, 15], [20, 10]]))


def test_dispatch_is_optimal_against_brute_force():
    # Two units, three steps, whole MW: every feasible plan tried.
    need, ramp, high = [4, 7, 5], 2, 5
    cost = np.array([3.0, 5.0])
    best = min(
        cost[0] * sum(plan) + cost[1] * sum(n - p for n, p in zip(need, plan, strict=True))
        for plan in np.ndindex(high + 1, high + 1, high + 1)
        if all(abs(b - a) <= ramp for a, b in pairwise(plan))
        and all(0 <= n - p <= high for n, p in zip(need, plan, strict=True))
        and all(abs((m - b) - (n - a)) <= ramp for (n, a), (m, b) in pairwise(zip(need, plan, strict=True)))
    )
    given, _ = dispatch(need, cost=(3.0, 5.0), high=(5.0, 5.0), ramp=(2.0, 2.0))
    assert (given @ cost).sum() == pytest.approx(best)


@pytest.mark.parametrize(
    ("need", "there", "of_units", "says"),
    [
        ([50, 250], None, {}, "step 1 needs 250.0 MW, the generators can give 200.0"),
        ([50, 5], None, {"low": (10.0, 0.0)}, "step 1 needs 5.0 MW, the generators give at least 10.0"),
        ([10, 90], None, {"ramp": (20.0, 20.0)}, "no generation follows the load within the ramps"),
    ],
)
def test_infeasible_dispatch_says_why_in_one_line(need, there, of_units, says):
    with pytest.raises(ChronicsError, match=says) as caught:
        dispatch(need, there, **of_units)
    assert "\n" not in str(caught.value)


# Files


def a_week(seed=3, date="2012-03-05", split="train", border=(1,)):
    rng = np.random.default_rng(seed)
    load_p = rng.uniform(-200, 800, (30, 4)).round(1)
    load_p[5:7] = [[3000.0], [-3000.0]]  # a change over the range of an int16 wraps, and has to wrap back
    load_q = REACTIVE * load_p
    border = np.array(border, dtype=int)
    load_p[:, border], load_q[:, border] = rng.integers(-9999, 9999, (2, 30, len(border))) / 20
    gen_p = rng.uniform(0, 400, (30, 3)).round(1)
    return Week(WCCI2020, split, date, seed, load_p, load_q, gen_p, np.array([147.8, 147.8, 369.6]), np.full(3, 400.0), border)


@pytest.mark.parametrize("border", [(1,), (), (0, 3)])
def test_written_weeks_are_read_as_they_were(tmp_path, border):
    made = [a_week(3, border=border), a_week(4, "2012-07-02", border=border), a_week(5, border=border)]
    weeks.write_weeks(tmp_path / "train_0.npz", made[:2], files=2)
    weeks.write_weeks(tmp_path / "train_1.npz", made[2:], files=2)
    weeks.write_weeks(tmp_path / "validation_0.npz", [a_week(6, split="validation", border=border)])
    read = Weeks(tmp_path, "train")
    assert (len(read), read.env, read.steps) == (3, WCCI2020, 30)
    assert [(about["date"], about["seed"]) for about in read.about] == [("2012-03-05", 3), ("2012-07-02", 4), ("2012-03-05", 5)]
    for one, other in zip(made, read, strict=True):
        assert (one.env, one.split, one.date, one.seed) == (other.env, other.split, other.date, other.seed)
        for name in ("load_p", "load_q", "gen_p", "gen_v", "gen_max", "border"):
            np.testing.assert_allclose(getattr(other, name), getattr(one, name), rtol=0, atol=1e-9, err_msg=name)
        assert one.digest() == other.digest()
    assert read[2].digest() == made[2].digest(), "files are opened in any order"
    assert read.hash() == Weeks(tmp_path, "train").hash() != Weeks(tmp_path, "validation").hash()


def test_eleven_files_are_read_in_their_order(tmp_path):
    for number in range(11):
        weeks.write_weeks(tmp_path / f"train_{number}.npz", [a_week(number)], files=11)
    assert [week.seed for week in Weeks(tmp_path, "train")] == list(range(11))


def test_a_file_tells_where_its_weeks_are_from(tmp_path):
    weeks.write_weeks(tmp_path / "train_0.npz", [a_week()])
    beside = json.loads((tmp_path / "train_0.json").read_text())
    assert (beside["env"], beside["steps"], beside["files"]) == (WCCI2020, 30, 1)
    assert "Mozilla Public License" in beside["notice"] and beside["versions"]["ChroniX2Grid"] == cases.GENERATOR_VERSION
    assert beside["weeks"] == [{"split": "train", "date": "2012-03-05", "seed": 3, "digest": a_week().digest()}]


def test_the_same_weeks_are_the_same_bytes(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        weeks.write_weeks(tmp_path / f"{name}.npz", [a_week(seed)])
    a, b, c = ((tmp_path / f"{name}.npz").read_bytes() for name in "abc")
    assert a == b != c


def test_a_value_too_large_for_the_file_is_refused(tmp_path):
    week = a_week()
    week.gen_p[2, 1] = 3276.8
    with pytest.raises(ConfigError, match="gen_p does not fit"):
        weeks.write_weeks(tmp_path / "train_0.npz", [week])


def arrays_changed(change):
    """Of a file, by a function that changes the dict of them."""

    def changed(path):
        arrays = dict(np.load(path))
        change(arrays)
        np.savez_compressed(path, **arrays)

    return changed


def without(name):
    return arrays_changed(lambda arrays: arrays.pop(name))


def told(**changes):
    """Of a .json: entries of the file, or `of_week`: of its first week."""

    def changed(path):
        beside = json.loads(path.read_text())
        beside["weeks"][0].update(changes.get("of_week", {}))
        path.write_text(json.dumps(beside | {name: value for name, value in changes.items() if name != "of_week"}))

    return changed


def copied(source):
    """Both files of another place, under this one's name."""

    def changed(path):
        for kind in (".json", ".npz"):
            shutil.copy(path.with_name(source + kind), path.with_suffix(kind))

    return changed


def remove_both(path):
    path.unlink()
    path.with_suffix(".npz").unlink()


def text(content):
    return lambda path: path.write_text(content)


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-200])


def damaged(path):
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)  # of the first array's compressed data
    path.write_bytes(bytes(content))


def one_more_week(path):
    beside = json.loads(path.read_text())
    beside["weeks"] *= 2
    path.write_text(json.dumps(beside))


def plus_one(name, *place):
    def change(arrays):
        arrays[name][place] += 1

    return arrays_changed(change)


NOT_WRITTEN = "not the week that was written"


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("train_0.npz", lambda path: path.unlink(), "no such file"),
        ("train_0.npz", text("no archive"), "holds no weeks"),
        ("train_0.npz", cut_short, "holds no weeks"),
        ("train_0.npz", damaged, "holds no weeks"),
        ("train_0.npz", lambda path: np.save(path.open("wb"), np.zeros(3)), "holds no weeks"),
        *(("train_0.npz", without(name), "holds no weeks") for name in ("load_p", "border_q", "gen_v", "gen_max", "border")),
        ("train_0.npz", plus_one("gen_p", 0, 2, 7), f"seed 3: {NOT_WRITTEN}"),
        ("train_0.npz", plus_one("gen_v", 1), f"seed 3: {NOT_WRITTEN}"),
        ("train_0.npz", plus_one("gen_max", 2), f"seed 3: {NOT_WRITTEN}"),
        ("train_0.npz", plus_one("border", 0), f"seed 3: {NOT_WRITTEN}"),
        ("train_0.npz", arrays_changed(lambda a: a.update(border=np.array([4]))), r"border = \[4\]"),
        ("train_0.npz", arrays_changed(lambda a: a.update(border=np.array([1, 2]))), r"border_p is of shape \(1, 1, 30\)"),
        ("train_0.npz", arrays_changed(lambda a: a.update(load_p=a["load_p"][:, :, :20])), r"load_p is of shape \(1, 4, 20\)"),
        ("train_0.npz", arrays_changed(lambda a: a.update(gen_v=a["gen_v"][:2])), NOT_WRITTEN),
        ("train_0.json", text("{"), "does not describe weeks"),
        ("train_0.json", text("[]"), "does not describe weeks"),
        ("train_0.json", text('{"env": "x", "steps": 30, "files": 2, "weeks": [{}]}'), "does not describe weeks"),
        ("train_0.json", told(steps="many"), "does not describe weeks"),
        ("train_0.json", told(of_week={"digest": a_week(9).digest()}), f"seed 3: {NOT_WRITTEN}"),
        ("train_0.json", told(of_week={"date": "2012-03-06"}), NOT_WRITTEN),
        ("train_0.json", told(of_week={"seed": 5}), NOT_WRITTEN),
        ("train_0.json", lambda path: path.unlink(), "no such file"),
        ("train_1.json", one_more_week, r"load_p is of shape \(1, 4, 30\), by the .json beside it \(2, 4, 30\)"),
        ("train_1.json", remove_both, r"30, 2, 'train'\], and in the folder .*30, 1, 'train'\]"),
        ("train_2.json", copied("train_1"), r"30, 2, 'train'\], and in the folder .*30, 3, 'train'\]"),
        ("train_1.json", told(env=WCCI2022), f"{WCCI2022}.* and in the folder .*{WCCI2020}"),
        ("train_1.json", told(steps=10000), "10000, .* and in the folder .*30, "),
        ("train_1.json", copied("validation_0"), "'validation'.* and in the folder .*'train'"),
    ],
)
def test_missing_or_broken_files_are_one_line_that_names_them(tmp_path, name, change, says):
    weeks.write_weeks(tmp_path / "train_0.npz", [a_week()], files=2)
    weeks.write_weeks(tmp_path / "train_1.npz", [a_week(4)], files=2)
    weeks.write_weeks(tmp_path / "validation_0.npz", [a_week(5, split="validation")], files=2)
    change(tmp_path / name)
    with pytest.raises(ConfigError, match=says) as caught:
        list(Weeks(tmp_path, "train"))
    line = str(caught.value)
    assert "\n" not in line and line.startswith(str(tmp_path / "train_"))


def test_steps_of_all_files_are_those_of_the_arrays(tmp_path):
    weeks.write_weeks(tmp_path / "train_0.npz", [a_week()])
    told(steps=10000)(tmp_path / "train_0.json")
    with pytest.raises(ConfigError, match=r"train_0.npz: holds no weeks: load_p is of shape \(1, 4, 30\), .* \(1, 4, 10000\)"):
        list(Weeks(tmp_path, "train"))


@pytest.mark.parametrize("folder", ["grid", "none"])
def test_a_folder_without_the_split_is_one_line_that_names_it(tmp_path, folder):
    weeks.write_weeks(tmp_path / "grid" / "development_test_0.npz", [a_week(split="development_test")])
    with pytest.raises(ConfigError, match="no weeks of the split 'train'") as caught:
        Weeks(tmp_path / folder, "train")
    assert str(caught.value).startswith(str(tmp_path / folder)) and "\n" not in str(caught.value)


def test_before_the_campaign_a_test_on_the_test_weeks_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"test weeks are not made yet: set scenarios\.test_split to 'development_test'"):
        Weeks(tmp_path, "test")


def test_a_message_names_committed_weeks_from_the_workspace_on(monkeypatch):
    monkeypatch.chdir(ROOT / "notebooks")
    with pytest.raises(ConfigError, match=r"^results/chronics/nowhere: "):
        Weeks(ROOT / "results/chronics/nowhere", "train")


def test_weeks_of_different_grids_are_not_written_together(tmp_path):
    with pytest.raises(ChronicsError, match="of one grid"):
        weeks.write_weeks(tmp_path / "train_0.npz", [a_week(), replace(a_week(), env=WCCI2022)])
    with pytest.raises(ChronicsError, match="of one split"):
        weeks.write_weeks(tmp_path / "train_0.npz", [a_week(), a_week(split="validation")])


# Making the weeks of an environment


class FakeMaker:
    """Makes weeks of random numbers."""

    def __init__(self, env):
        self.env, self.made = env, 0

    def week(self, split, date, seed, days):
        self.made += 1
        return replace(a_week(seed, date, split), env=self.env)


@pytest.fixture
def few_weeks(monkeypatch):
    """Parameters of few weeks, before any freeze."""
    monkeypatch.setattr(make, "WeekMaker", FakeMaker)
    monkeypatch.setattr(make, "A_FILE", 2)
    few = {"train": 5, "validation": 2, "frozen_at": ""}
    return PARAMS.model_copy(update={"chronics": PARAMS.chronics.model_copy(update=few)})


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_environment_gets_the_weeks_that_are_planned(tmp_path, few_weeks):
    folder = make.make_weeks(few_weeks, "wcci2020", tmp_path / "grid")
    files = [(split, k) for split, n in (("train", 3), ("validation", 1), ("development_test", 6)) for k in range(n)]
    assert set(contents(folder)) == {f"{split}_{k}.{kind}" for split, k in files for kind in ("npz", "json")}
    for split, plans in make.planned(few_weeks, "wcci2020").items():
        assert [(w.split, w.date, w.seed) for w in Weeks(folder, split)] == [(p.split, p.date, p.seed) for p in plans]
    (folder / "train_9.npz").write_text("of an earlier making")
    for name in ("test_0.npz", "test_0.json", "train_0.csv", "my_train_0.npz", "train_0.npz.md"):
        (folder / name).write_text("of another making")
    before = contents(folder)
    assert make.make_weeks(few_weeks, "wcci2020", tmp_path / "grid") == folder
    before.pop("train_9.npz")
    assert contents(folder) == before


def test_test_weeks_follow_from_the_freeze_and_are_shown_beside_those_in_git(tmp_path, few_weeks, monkeypatch, capsys):
    def frozen(commit):
        return few_weeks.model_copy(update={"chronics": few_weeks.chronics.model_copy(update={"frozen_at": commit, "test": 3})})

    assert "test" not in make.planned(frozen(""), "wcci2020")
    of_zero, of_one = (make.planned(frozen(digit * 40), "wcci2020") for digit in "01")
    assert len(of_zero["test"]) == 3 and of_zero["test"] != of_one["test"]
    assert {split: of_zero[split] for split in make.DRAWN} == {split: of_one[split] for split in make.DRAWN}

    monkeypatch.setattr(make, "root", lambda: tmp_path)
    only = few_weeks.grid.model_copy(update={"environments": ["wcci2020"]})
    zero, one = (frozen(digit * 40).model_copy(update={"grid": only}) for digit in "01")
    make.make_weeks(zero, "wcci2020", tmp_path / zero.environment("wcci2020").weeks.path)
    assert make.show_test_weeks(zero) == 0
    shown = capsys.readouterr().out
    assert "0" * 40 + " | the same in git" in shown and shown.count(str(of_zero["test"][0].seed)) == 2
    assert make.show_test_weeks(one) == 1 and "OTHERS in git" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="nothing is frozen"):
        make.show_test_weeks(frozen(""))


@pytest.mark.parametrize("moved", range(1, 20, 3))
def test_a_making_killed_while_it_replaces_files_is_noticed(tmp_path, few_weeks, monkeypatch, moved):
    folder, places = make.make_weeks(few_weeks, "wcci2020", tmp_path / "grid"), []
    fewer = few_weeks.model_copy(update={"chronics": few_weeks.chronics.model_copy(update={"train": 3})})

    def killed(source, target, replace=make.os.replace):
        places.append(target)
        if len(places) == moved:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(make.os, "replace", killed)
    if moved > 18:  # so many files there are
        make.make_weeks(fewer, "wcci2020", folder)
        assert [len(Weeks(folder, split)) for split in make.DRAWN] == [3, 2, 12]
        return
    with pytest.raises(KeyboardInterrupt):
        make.make_weeks(fewer, "wcci2020", folder)
    with pytest.raises(ConfigError, match="git checkout"):
        [Weeks(folder, split) for split in make.DRAWN]


@pytest.mark.parametrize("failure", [ChronicsError("seed 7: infeasible"), KeyboardInterrupt()])
def test_a_making_that_fails_leaves_the_weeks_as_they_were(tmp_path, few_weeks, monkeypatch, failure):
    folder = make.make_weeks(few_weeks, "wcci2020", tmp_path / "grid")
    before = contents(folder)

    def fails(*_):
        assert [path.name for path in tmp_path.glob("*.making/*_0.npz")] == ["train_0.npz"], "some are written already"
        raise failure

    class Fails(FakeMaker):
        def week(self, *asked):
            return super().week(*asked) if self.made < 3 else fails()

    monkeypatch.setattr(make, "WeekMaker", Fails)
    with pytest.raises(type(failure)):
        make.make_weeks(few_weeks, "wcci2020", tmp_path / "grid")
    assert contents(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["grid"]


def test_what_a_killed_making_left_is_cleared_and_no_file_of_git(tmp_path, few_weeks):
    (tmp_path / "grid.making").mkdir()
    (tmp_path / "grid.making" / "train_7.npz").touch()
    assert "train_7.npz" not in contents(make.make_weeks(few_weeks, "wcci2020", tmp_path / "grid"))
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("not a git repository")
    for environment in (PARAMS.environment(name) for name in NAMES):
        left = f"{environment.weeks.path}.making/train_0.npz"
        assert subprocess.run(["git", "check-ignore", "-q", left], cwd=ROOT).returncode == 0
        assert subprocess.run(["git", "check-ignore", "-q", f"{environment.weeks.path}/train_0.npz"], cwd=ROOT).returncode == 1


def test_a_grid_without_weeks_is_named():
    with pytest.raises(ConfigError, match=r"environments.case14 has no `weeks`"):
        make.planned(PARAMS, "case14")


# Limits and ramps


def limits():
    return SimpleNamespace(
        name_gen=["gen_0", "gen_1", "gen_2"], gen_pmin=[0, 0, 0], gen_pmax=[400, 400, 400], gen_max_ramp_up=[5, 5, 0],
        gen_max_ramp_down=[3, 3, 0], gen_redispatchable=[True, True, False],
    )  # fmt: skip


def steady(change):
    week = a_week()
    week.gen_p[:] = 100.0
    change(week.gen_p)
    return week


def test_a_week_within_limits_passes():
    def change(p):
        p[4:, 1] += 5.0
        p[9:, 1] -= 3.0
        p[6:, 2] += 90.0  # wind has no ramp

    weeks.check_limits(steady(change), limits())


@pytest.mark.parametrize(
    ("step", "gen", "mw", "says"),
    [
        (7, 0, 400.1, "gen_0 at step 7 gives 400.1 MW, its limit is 400.0"),
        (7, 2, -0.1, "gen_2 at step 7 gives -0.1 MW, it must give at least 0.0"),
        (7, 1, 105.1, r"gen_1 at step 6 moves by \+5.1 MW to the next step, its ramps are 5.0 and -3.0"),
        (7, 1, 96.9, r"gen_1 at step 6 moves by -3.1 MW to the next step, its ramps are 5.0 and -3.0"),
    ],
)
def test_a_violation_names_week_step_and_generator(step, gen, mw, says):
    def change(p):
        p[step:, gen] = mw

    with pytest.raises(ChronicsError, match="week of 2012-03-05, seed 3: " + says):
        weeks.check_limits(steady(change), limits())


# Seeds


def test_no_date_and_seed_is_in_two_splits():
    plans = [
        plan
        for env in cases.GRIDS
        for split, n in (("train", 40), ("validation", 8), ("development_test", 12))
        for plan in seeds.plan_weeks(env, split, n, 2012)
    ]
    plans += seeds.plan_test_weeks(WCCI2020, "0123456789" * 4, plans, 50, 2012)
    assert len({plan.seed for plan in plans}) == len(plans) == 3 * 60 + 50
    seeds.check_disjoint(plans)
    with pytest.raises(ChronicsError, match=f"seed {plans[0].seed}: in train and in test"):
        seeds.check_disjoint([*plans, replace(plans[0], split="test")])


def test_weeks_are_spread_over_the_months_that_are_asked_for():
    dates = [plan.date for plan in seeds.plan_weeks(WCCI2020, "train", 48, 2012)]
    assert max(dates) <= "2012-12-24"
    assert all(3 <= sum(date[5:7] == f"{month:02}" for date in dates) <= 5 for month in range(1, 13))
    winter = {plan.date[5:7] for plan in seeds.plan_weeks(WCCI2020, "train", 30, 2012, months=(1, 2, 11))}
    assert winter == {"01", "02", "11"}


@pytest.mark.parametrize("n", [12, 40])
def test_the_first_weeks_are_spread_over_the_year_too(n):
    order = seeds.spread(n)
    assert sorted(order) == list(range(n)) and order != sorted(order)
    for k in range(4, n + 1):  # no part of the year longer than twice the even one is without a week
        edges = np.array([-0.5, *sorted(order[:k]), n - 0.5])
        assert np.diff(edges).max() <= 2 * n / k


def test_test_weeks_follow_from_the_commit_alone():
    one, other = "0" * 40, "0" * 39 + "1"
    plans = seeds.plan_test_weeks(WCCI2020, one, [], 12, 2012)
    assert plans == seeds.plan_test_weeks(WCCI2020, one, [], 12, 2012)
    both = [{(p.date, p.seed) for p in seeds.plan_test_weeks(WCCI2020, c, [], 12, 2012)} for c in (one, other)]
    assert not both[0] & both[1]
    assert (
        seeds.plan_test_weeks(WCCI2022, one, [], 12, 2012)[0].seed != plans[0].seed
    )
    for commit in ("0" * 7, "HEAD", "g" * 40):
        with pytest.raises(ChronicsError, match="full hash"):
            seeds.plan_test_weeks(WCCI2020, commit, [], 12, 2012)
        with pytest.raises(ChronicsError, match="full hash"):
            seeds.plan_weeks(WCCI2020, "test", 12, 2012, salt=commit)
    with pytest.raises(ChronicsError, match="full hash"):
        seeds.plan_weeks(WCCI2020, "test", 12, 2012)


def test_a_test_week_that_another_split_has_is_refused():
    commit = "0123456789" * 4
    others = [plan for of_split in make.planned(PARAMS, "wcci2020").values() for plan in of_split]
    plans = seeds.plan_test_weeks(WCCI2020, commit, others, 12, 2012)
    with pytest.raises(ChronicsError, match="in train and in test"):
        seeds.plan_test_weeks(WCCI2020, commit, [*others, replace(plans[3], split="train")], 12, 2012)


def test_more_weeks_than_days_are_one_line():
    with pytest.raises(ChronicsError, match="40 weeks wanted, there are 31"):
        seeds.plan_weeks(WCCI2020, "train", 40, 2012, months=[1])


# The region


def region_grids(more=(), moved=None):
    """A case with the region's substations in a chain and the lines that are cut, and the region as a grid of its own.

    more: lines of the case beside; moved: a load of the grid that does not stand at its line's end inside.
    """
    inner = list(region.SUBSTATIONS)
    pairs = [*pairwise(inner), *region.BORDER.values(), *more]
    places = {sub: i for i, sub in enumerate(inner)}
    own = np.setdiff1d(np.arange(37), list(region.BORDER))
    at = np.empty(37, dtype=int)
    at[own] = np.arange(len(own))
    for border, pair in region.BORDER.items():
        at[border] = next(places[sub] for sub in pair if sub in places)
    case = SimpleNamespace(
        name="case", n_sub=118, line_or_to_subid=np.array([a for a, _ in pairs]),
        line_ex_to_subid=np.array([b for _, b in pairs]), gen_to_subid=np.array([0, 40]),
        load_to_subid=np.array([5, *(inner[i] for i in range(len(own)))]),
        gen_pmax=np.array([1.0, 2.0]),
    )  # fmt: skip
    if moved is not None:
        at[moved] += 1
    chain = np.arange(len(inner))
    grid = SimpleNamespace(
        name="grid", n_sub=len(inner), n_load=37, line_or_to_subid=chain[:-1], line_ex_to_subid=chain[1:],
        gen_to_subid=np.array([places[40]]), load_to_subid=at, gen_pmax=np.array([2.0]),
    )  # fmt: skip
    return case, grid


def test_a_region_is_matched_line_by_line_and_load_by_load():
    assert list(Region(*region_grids()).border) == list(region.BORDER)
    with pytest.raises(ChronicsError, match="is not the region"):
        Region(*region_grids(more=[(40, 5)]))  # a line that is cut and no load
    for border in region.BORDER:
        if region_grids()[1].load_to_subid[border] < 35:
            with pytest.raises(ChronicsError, match="is not the region"):
                Region(*region_grids(moved=border))


# Errors without the generator


def test_without_the_generator_one_line_names_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ChronicsError) as caught:
        weeks.WeekMaker(WCCI2020)
    assert cases.INSTALL in str(caught.value) and "make weeks" in str(caught.value) and "\n" not in str(caught.value)


def test_without_the_generator_the_weeks_stay_as_they_are(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "train_0.npz").write_text("here")
    with pytest.raises(ChronicsError, match="make weeks"):
        make.make_weeks(PARAMS, "wcci2020", tmp_path / "grid")
    assert contents(tmp_path / "grid") == {"train_0.npz": b"here"}


def test_importing_needs_no_generator():
    code = """
import sys
sys.modules["chronix2grid"] = None
from ace.chronics import cases, dispatch, forecast, injections, losses, make, region, seeds, weeks
print("imported")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.strip() == "imported", ran.stderr


def test_an_unknown_grid_is_one_line():
    with pytest.raises(ChronicsError, match="no generator case for the Grid2Op environment 'l2rpn_2019'; there are: "):
        weeks.WeekMaker("l2rpn_2019")


@needs_generator
def test_a_missing_case_file_is_named(monkeypatch):
    with pytest.raises(ChronicsError, match=r"loads_charac.csv is missing in data/l2rpn_wcci_2020"):
        cases.read_case("l2rpn_wcci_2020")
    monkeypatch.setattr(cases, "GENERATOR_VERSION", "0.9")
    with pytest.raises(ChronicsError, match=r"1.2.0.post1 is installed, the weeks are made with 0.9"):
        cases.read_case(cases.CASE118)


# Power flows and forecasts


@pytest.fixture(scope="module")
def case14():
    env = cases.grid2op_env("l2rpn_case14_sandbox")
    obs = env.reset()
    rows = 6
    injections = [np.tile(np.asarray(v, dtype=float), (rows, 1)) for v in (obs.load_p, obs.load_q, obs.gen_p)]
    injections[0] *= np.linspace(1, 1.1, rows)[:, None]
    return env, PowerFlow(env), injections, np.asarray(obs.gen_v, dtype=float)


def test_what_is_given_is_what_is_taken_and_lost(case14):
    _, flow, (load_p, load_q, gen_p), gen_v = case14
    flows = losses.ac_pass(flow, load_p, load_q, gen_p, gen_v)
    on_lines = (flows.p_or + flows.p_ex).sum(axis=1)
    assert (flows.losses > 0).all()
    np.testing.assert_allclose(flows.losses, on_lines, atol=1e-3)
    others = np.setdiff1d(np.arange(gen_p.shape[1]), flow.slack_gens)
    np.testing.assert_allclose(flows.gen_p[:, others], gen_p[:, others], atol=1e-3)


def test_a_diverging_power_flow_names_its_step(case14):
    _, flow, (load_p, load_q, gen_p), gen_v = case14
    load_p = load_p.copy()
    load_p[4] *= 50
    with pytest.raises(ChronicsError, match="the AC power flow diverges at step 4"):
        losses.ac_pass(flow, load_p, load_q, gen_p, gen_v)


def as_week(case14):
    _, flow, (load_p, load_q, gen_p), gen_v = case14
    solved = losses.ac_pass(flow, load_p, load_q, gen_p, gen_v).gen_p
    gen_max = np.full(gen_p.shape[1], 1e9)
    return Week("l2rpn_case14_sandbox", "train", "2019-01-01", 0, load_p, load_q, solved, gen_v, gen_max)


def test_a_week_out_of_balance_is_found(case14):
    week = as_week(case14)
    assert weeks.check_balance(week, case14[1]) < 1e-2
    week.gen_p[3, 0] += 7.0
    with pytest.raises(ChronicsError, match=r"out of balance by 7\.\d\d MW at step 3"):
        weeks.check_balance(week, case14[1])


def test_forecasts_have_the_spread_that_is_asked_for():
    rng = np.random.default_rng(0)
    load, gen = rng.uniform(10, 90, (4000, 5)), rng.uniform(10, 90, (4000, 3))
    next_p, next_q, next_gen = forecasts(load, 0.7 * load, gen, np.full(3, 1e9), 0.02, rng)
    for ahead, truth in ((next_p, load), (next_q, 0.7 * load), (next_gen, gen)):
        error = np.log(ahead[:-1] / truth[1:])
        assert error.std() == pytest.approx(0.02, rel=0.05) and abs(error.mean()) < 0.001
    assert abs(np.corrcoef((next_p[:-1] / load[1:])[:, 0], (next_q[:-1] / (0.7 * load[1:]))[:, 0])[0, 1]) < 0.1
    exact = forecasts(load, load, gen, np.full(3, 1e9), 0.0, rng)
    np.testing.assert_array_equal(exact[2][:-1], gen[1:])
    assert (forecasts(load, load, gen, np.full(3, 50.0), 0.02, rng)[2] <= 50).all()


def test_a_forecast_error_is_measured_and_matched(case14):
    env, flow, _, _ = case14
    week = as_week(case14)
    assert forecast.week_error(flow, week, env.gen_pmax, 0.0) == 0.0
    target = 0.004
    sd = forecast.matching_sd(flow, [week], env.gen_pmax, target)
    assert forecast.week_error(flow, week, env.gen_pmax, sd) == pytest.approx(target, rel=0.05)


# The committed weeks

N_WEEKS = sum(getattr(PARAMS.chronics, split) for split in (*make.DRAWN, "test"))


@pytest.fixture(scope="module", params=NAMES)
def committed(request):
    """(name of the grid, its part of params.yaml, {split: [Week]}): every committed week, its digest checked as it is read."""
    environment, splits = PARAMS.environment(request.param), make.planned(PARAMS, request.param)
    return request.param, environment, {split: list(Weeks(ROOT / environment.weeks.path, split)) for split in splits}


def test_what_is_planned_is_what_is_committed(committed):
    name, environment, splits = committed
    planned = make.planned(PARAMS, name)
    assert {split: [(w.split, w.date, w.seed) for w in of_split] for split, of_split in splits.items()} == {
        split: [(p.split, p.date, p.seed) for p in of_split] for split, of_split in planned.items()
    }
    everything = [week for of_split in splits.values() for week in of_split]
    seeds.check_disjoint(everything)
    assert len({week.seed for week in everything}) == len({week.digest() for week in everything}) == len(everything) == N_WEEKS
    assert {int(week.date[5:7]) for week in everything} == set(environment.weeks.months)
    assert {week.date[:4] for week in everything} == {str(environment.weeks.year)}
    assert {(week.env, len(week.load_p)) for week in everything} == {(environment.grid2op, 288 * PARAMS.chronics.days + 2)}
    read = sorted(path.name for path in (ROOT / environment.weeks.path).iterdir())
    assert read == sorted(f"{split}_{k}.{kind}" for split in splits for k in range(-(-len(splits[split]) // make.A_FILE))
                          for kind in ("json", "npz"))  # fmt: skip


def test_no_committed_week_breaks_a_limit_a_ramp_or_the_balance(committed):
    _, environment, splits = committed
    env = cases.grid2op_env(environment.grid2op)
    flow, gaps = PowerFlow(env), []
    for of_split in splits.values():
        for week in of_split:
            weeks.check_limits(week, env)
            gaps.append(weeks.check_balance(week, flow, every=5))
            np.testing.assert_array_equal(week.gen_max, np.asarray(env.gen_pmax, dtype=float))
    assert len(gaps) == N_WEEKS and max(gaps) < 0.5


def test_a_committed_week_out_of_its_limits_would_be_found():
    environment = PARAMS.environment("wcci2020")
    env, week = cases.grid2op_env(environment.grid2op), Weeks(ROOT / environment.weeks.path, "validation")[3]
    gen = int(np.flatnonzero(env.gen_redispatchable)[0])
    week.gen_p[1000, gen] += env.gen_max_ramp_up[gen] + env.gen_max_ramp_down[gen] + 0.1
    with pytest.raises(ChronicsError, match=f"{env.name_gen[gen]} at step (999|1000)"):
        weeks.check_limits(week, env)


def test_the_committed_weeks_are_small():
    sizes = [path.stat().st_size for path in (ROOT / "results" / "chronics").glob("*/*") if ".making" not in str(path)]
    assert len(sizes) >= 8 * len(NAMES)
    assert sum(sizes) <= 50e6 and max(sizes) <= 5e6


def test_a_step_ahead_is_forecast_as_well_as_in_the_packaged_chronics(committed):
    _, environment, splits = committed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = grid2op.make(environment.grid2op, test=True, backend=LightSimBackend())
    flow = PowerFlow(env)
    packaged = forecast.packaged_error(env, flow, every=6)
    sd, some = environment.weeks.forecast_sd, splits["train"][:8]
    ours = np.mean([forecast.week_error(flow, week, week.gen_max, sd, every=12) for week in some])
    assert packaged > 1e-3 and ours == pytest.approx(packaged, rel=0.2)


# With the generator

DATE, SEED = "2012-08-06", 7


@pytest.fixture(scope="module")
def a_day():
    """make(env) -> (its WeekMaker, the day as Week, the Flows of the whole case)."""
    made = {}

    def make(env):
        if env not in made:
            maker = weeks.WeekMaker(env)
            solved = maker.solve_case(DATE, SEED, days=1)
            made[env] = maker, maker.cut("train", DATE, SEED, *solved), solved[2]
        return made[env]

    return make


@needs_generator
@pytest.mark.parametrize("env", cases.GRIDS)
def test_a_day_of_each_grid(a_day, env):
    maker, day, _ = a_day(env)
    assert day.load_p.shape == (290, maker.env.n_load) and day.gen_p.shape == (290, maker.env.n_gen)
    weeks.check_limits(day, maker.env)
    assert weeks.check_balance(day, PowerFlow(maker.env)) < 0.5
    sun = np.asarray(maker.env.gen_type) == "solar"
    hourly = day.gen_p[:288, sun].sum(axis=1).reshape(24, 12).mean(axis=1)
    assert hourly[:3].max() < 0.05 * hourly.max() and 9 <= hourly.argmax() <= 16


@needs_generator
def test_another_process_makes_the_same_bytes_and_another_seed_does_not(a_day, tmp_path):
    code = f"""
import sys
from pathlib import Path
from ace.chronics.weeks import WeekMaker, write_weeks
maker = WeekMaker({WCCI2020!r})
for seed in ({SEED}, {SEED + 1}):
    write_weeks(Path(sys.argv[1]) / f"train_{{seed}}.npz", [maker.week("train", {DATE!r}, seed, days=1)])
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, tmp_path], cwd=ROOT, check=True, capture_output=True)
    weeks.write_weeks(tmp_path / "here.npz", [a_day(WCCI2020)[1]])
    here, same, other = (contents(tmp_path)[f"{name}.npz"] for name in ("here", f"train_{SEED}", f"train_{SEED + 1}"))
    assert here == same != other
    assert contents(tmp_path)["here.json"] == contents(tmp_path)[f"train_{SEED}.json"]


@needs_generator
@pytest.mark.parametrize("name", NAMES)
def test_the_first_committed_week_made_anew_is_the_same(a_day, name):
    environment = PARAMS.environment(name)
    noted = Weeks(ROOT / environment.weeks.path, "train").about[0]
    maker = a_day(environment.grid2op)[0]
    assert maker.week("train", noted["date"], noted["seed"], PARAMS.chronics.days).digest() == noted["digest"]


@needs_generator
@pytest.mark.parametrize("env", [WCCI2020, NEURIPS2020])
def test_the_cut_grid_has_the_flows_of_the_whole_one(a_day, env):
    maker, day, whole = a_day(env)
    cut = losses.ac_pass(PowerFlow(maker.env), day.load_p, day.load_q, day.gen_p, day.gen_v)
    lines = maker.region.lines
    assert len(lines) == 59 and np.abs(whole.p_or[:, lines]).max() > 100
    assert np.abs(cut.p_or - whole.p_or[:, lines]).max() < 0.1
    assert np.abs(cut.p_ex - whole.p_ex[:, lines]).max() < 0.1


@needs_generator
def test_a_grid_that_is_not_the_region_is_refused(a_day):
    maker, _, _ = a_day(WCCI2020)
    with pytest.raises(ChronicsError, match="is not the region that is cut from"):
        Region(maker.case_env, maker.case_env)


@needs_generator
def test_a_week_that_the_cut_grid_does_not_balance_is_named(a_day, monkeypatch):
    maker, day, _ = a_day(WCCI2020)
    gen_p = day.gen_p.copy()
    gen_p[24, :] += 3.0
    monkeypatch.setattr(maker, "solve_case", lambda *_: (None, None, None))
    monkeypatch.setattr(maker, "cut", lambda *_: replace(day, gen_p=gen_p))
    monkeypatch.setattr(weeks, "check_limits", lambda *_: None)
    with pytest.raises(ChronicsError, match=r"out of balance by \d+\.\d\d MW at step 24"):
        maker.week("test", DATE, SEED, days=1)


@needs_generator
def test_an_infeasible_week_is_named(a_day, monkeypatch):
    maker, _, _ = a_day(WCCI2020)
    monkeypatch.setattr(maker, "case", replace(maker.case, dispatch={**maker.case.dispatch, "losses_pct": 400}))
    with pytest.raises(
        ChronicsError, match=r"l2rpn_wcci_2020, week of 2012-01-02, seed 1: .* infeasible: step 0 needs"
    ):
        maker.week("train", "2012-01-02", 1, days=1)
