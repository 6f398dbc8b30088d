"""Intervals by hand and against scipy's, verdicts' helpers, contrasts.yaml, populations by simulation, the committed coverage."""

import shutil

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from scipy.stats import t, ttest_1samp, ttest_ind

from ace import config, pool, stats
from ace.config.errors import ConfigError
from ace.report import contrasts
from ace.report.labels import LONGER
from benchmarks import intervals, populations
from benchmarks.populations import Population

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(1, 12), (5, 1)])
def test_scenarios_alone_and_seeds_alone_are_the_t_test(shape):
    scores = RNG.normal(3, 1, shape)
    found, known = stats.mean(scores), ttest_1samp(scores.ravel(), 2.5)
    assert (found.low, found.high) == pytest.approx(tuple(known.confidence_interval()), rel=1e-6)
    assert found.df == pytest.approx(max(shape) - 1) and found.p(2.5) == pytest.approx(known.pvalue, rel=1e-6)


@pytest.mark.parametrize("seeds", [(3, 3), (3, 5), (10, 8)])
def test_two_methods_of_seeds_alone_are_welchs_test(seeds):
    a, b = RNG.normal(1, 1, (seeds[0], 1)), RNG.normal(0, 3, (seeds[1], 1))
    found, known = stats.paired_difference(a, b), ttest_ind(a.ravel(), b.ravel(), equal_var=False)
    assert found.df == pytest.approx(known.df) and found.p() == pytest.approx(known.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(known.confidence_interval()), rel=1e-6)


def test_crossed_variance_by_hand():
    """Rows' means 1 and 3, columns' means 1, 2, 3; nothing is left: se^2 = 2/2 + 1/3."""
    found = stats.mean([[0.0, 1, 2], [2, 3, 4]])
    assert found.se**2 == pytest.approx(2 / 2 + 1 / 3)
    # the seeds' part, 1 of 1 degree of freedom, counts as 1 + 2/1 times as uncertain; not fewer than 1 in all
    assert found.df == pytest.approx(max(1, (4 / 3) ** 2 / (1 * 3 / 1 + (1 / 3) ** 2 / 2)))


def test_crossed_degrees_of_freedom_of_two_methods_by_hand():
    """The first as above; of the second rows' means 0 and 1, and equal columns: se^2 = 2/2 + 0.5/2 + 1/3."""
    found = stats.paired_difference(np.array([[0.0, 1, 2], [2, 3, 4]]), np.array([[0.0, 0, 0], [1, 1, 1]]))
    assert found.value == 1.5 and found.se**2 == pytest.approx(1 + 1 / 4 + 1 / 3)
    assert found.df == pytest.approx((1 + 1 / 4 + 1 / 3) ** 2 / (1**2 / 1 + (1 / 4) ** 2 / 1 + (1 / 3) ** 2 / 2))


def test_what_is_left_is_in_both_parts_and_taken_off_once():
    """[[a, -a], [-a, a]]: no row and no column differs, all is left over: the floor, half of it, stays."""
    assert stats.mean([[1.0, -1], [-1, 1]]).se ** 2 == pytest.approx(stats.FLOOR * 4 / 1 / 4)


def test_spread_between_seeds_does_not_shrink_with_episodes():
    scores = np.repeat([[0.0], [1.0], [2.0]], 500, axis=1)
    value, low, high = stats.mean(scores)
    assert (value, high - value, value - low) == pytest.approx((1, *[t.ppf(0.975, 2) / np.sqrt(3)] * 2))


def test_unpaired_methods_keep_the_spread_of_their_episodes():
    ease = RNG.normal(0, 10, 30)
    a, b = np.stack([ease, ease]) + 1, np.stack([ease, ease])
    assert stats.paired_difference(a, b).se == 0 < stats.paired_difference(a, b, paired=False).se


def test_ratio_gain_and_loss_are_one_interval_and_undefined_where_a_mean_may_be_0():
    assert [*stats.paired_ratio(np.full((2, 3), 6.0), np.full((1, 3), 4.0))] == pytest.approx([1.5] * 3)
    a, b = RNG.normal(6, 1, (3, 9)), RNG.normal(4, 1, (3, 9))
    ratio = stats.paired_ratio(a, b)
    assert ratio.high / ratio.value == pytest.approx(ratio.value / ratio.low)
    assert [*ratio.rescaled(stats.GAIN)] == pytest.approx([100 * (end - 1) for end in ratio])
    assert [*ratio.rescaled(stats.LOSS)] == pytest.approx([100 * (1 - 1 / end) for end in ratio])
    assert ratio.p(1.0) == pytest.approx(ratio.rescaled(stats.GAIN).p())
    undefined = stats.paired_ratio(np.ones((2, 3)), np.array([[-5.0, 1.0, 4.1]]))
    assert np.isfinite(undefined.value) and np.isnan(undefined.low)


@pytest.mark.parametrize("make", ["mean", "difference", "baseline", "ratio", "smallest"])
def test_p_is_below_5_percent_where_the_interval_excludes_no_effect(make):
    rng, seen = np.random.default_rng(3), set()
    for _ in range(200):
        a, b, c = (rng.normal(shift, 1, (3, 6)) + rng.normal(0, 0.5, (3, 1)) for shift in (0.8, 0, 0))
        null = 1.0 if make == "ratio" else 0.0
        found = {
            "mean": lambda a=a: stats.mean(a),
            "difference": lambda a=a, b=b: stats.paired_difference(a, b),
            "baseline": lambda a=a, b=b: stats.paired_difference(a, b[:1]),
            "ratio": lambda a=a, b=b: stats.paired_ratio(a + 9, b + 9),
            "smallest": lambda a=a, b=b, c=c: stats.smallest([stats.paired_difference(a, b), stats.paired_difference(a, c[:1])]),
        }[make]()
        excluded = found.low > null if make == "smallest" else not found.low <= null <= found.high
        assert (found.p(null) < 0.05 and (make != "smallest" or found.tested > 0)) == excluded
        seen.add(excluded)
    assert seen == {True, False}


def test_percentages_stay_within_their_bounds():
    low, high = [*stats.mean(np.array([[100.0] * 9 + [0.0]]), stats.PERCENT)][1:]
    assert 0 < low < 90 < high < 100 and 90 - low > high - 90
    assert [*stats.mean(np.full((2, 3), 100.0), stats.PERCENT)] == [100] * 3


def test_detectable_is_found_with_a_power_of_80_percent():
    """Normal seeds with a mean of exactly what one study called detectable, over many studies."""
    seeds, n = 400, 4000
    effect = stats.mean(RNG.normal(0, 1, (seeds, 1))).detectable()
    lows = stats.mean(RNG.normal(effect, 1, (n, seeds, 1))).low
    assert np.mean(lows > 0) == pytest.approx(0.8, abs=0.06)


def test_interquartile_mean_by_hand():
    value, influence = stats.interquartile_mean(np.array([[0.0, 1, 2, 3], [4, 5, 6, 100]]))
    assert value == (2 + 3 + 4 + 5) / 4 and influence.tolist() == [[4, 4, 4, 6], [8, 10, 10, 10]]


def test_the_smallest_is_above_where_all_are():
    a, b = stats.Estimate(5, 2, 8, 1.0, 30.0), stats.Estimate(3, 1, 5, 0.8, 30.0)
    found = stats.smallest([a, b])
    assert (found.value, found.low, found.se) == (3, 1, 0.8)
    assert found.high == 5 and found.p() == b.p()
    assert stats.smallest([a]) is a


def test_the_smallest_is_tested_by_the_one_with_the_smallest_lower_end():
    """Not by the one with the smallest value: 5 of a standard error of 2.4 is not significant, 3 of 0.8 is."""
    wide, narrow = stats.Estimate(5, 0.1, 9.9, 2.4, 30.0), stats.Estimate(3, 1.4, 4.6, 0.8, 30.0)
    found = stats.smallest([wide, narrow])
    assert (found.value, found.low, found.high) == (3, 0.1, 4.6)
    assert found.p() == wide.p() > narrow.p()


def test_holm_by_hand():
    found = stats.holm([0.01, 0.04, np.nan, 0.03])
    np.testing.assert_allclose(found, [0.03, 0.06, np.nan, 0.06])
    assert stats.holm([0.5, 0.9]).tolist() == [1, 1] and stats.holm([]).tolist() == []


# --- the populations and the simulation ---

SKEWED = Population(1.2, 0.6, 0.8, 1.0)


def simulated(of, n_seeds, n_episodes, n=1, seed=0):
    return intervals.draw(np.random.default_rng(seed), n, [(of, n_seeds, 1.0)], n_episodes)[0]


def test_truths_are_those_of_many_scores():
    scores = simulated(SKEWED, 1, 1, 400_000)
    assert scores.mean() == pytest.approx(populations.survival(SKEWED.mean, SKEWED.sd), abs=0.15)
    value, _ = stats.interquartile_mean(simulated(Population(-0.5, 1.0, 0.0, 0.5), 400_000, 1)[0])
    assert value == pytest.approx(intervals.interquartile_mean(Population(-0.5, 1.0, 0.0, 0.5)), abs=0.3)


def test_covariance_of_two_scores_is_that_of_many_pairs():
    """Scores of one episode and other seeds share the episode's effect alone."""
    scores = simulated(SKEWED, 2, 1, 400_000)[..., 0]
    each, shared = (SKEWED.mean, SKEWED.sd), SKEWED.episode**2 / SKEWED.sd**2
    assert np.cov(scores.T)[0, 1] == pytest.approx(populations.covariance(each, each, shared), rel=0.03)


def test_components_by_hand():
    """Rows' means 1 and 3, columns' means 1, 2, 3, nothing left: 2 and 1. A negative component is 0."""
    np.testing.assert_allclose(populations.components(np.array([[0.0, 1, 2], [2, 3, 4]])), [2, 1, 0], atol=1e-12)
    np.testing.assert_allclose(populations.components(np.array([[1.0, -1], [-1, 1]])), [0, 0, 4], atol=1e-12)


@pytest.mark.parametrize("of", [SKEWED, Population(-0.6, 0.2, 0.9, 0.4), Population(-1.0, 0.0, 0.8, 0.7)])
def test_a_fit_finds_the_population_again(of):
    found = populations.fitted(simulated(of, 600, 600)[0])
    assert [*found] == pytest.approx([*of], abs=0.12)


def test_correlation_of_episodes_is_found_again():
    rng = np.random.default_rng(0)
    a, b = intervals.draw(rng, 1, [(SKEWED, 300, 1.0), (Population(0.2, 0.1, 0.9, 0.5), 300, 0.6)], 3000)
    fits = [populations.fitted(scores[0]) for scores in (a, b)]
    assert populations.together(*fits, a[0], b[0]) == pytest.approx(0.6, abs=0.08)


def test_a_cell_is_fitted_to_its_test_alone(tmp_path, monkeypatch):
    """Packaged days and other draws of the opponent are numbered from 0 too."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    cell = tmp_path / "results/runs/wcci2020/ace"
    cell.mkdir(parents=True)
    rows = [(0, 0, "test", 0.5, 9), (0, 1, "test", 1.0, 4), (1, 0, "test", 0.25, 9), (1, 1, "test", 1.0, 8)]
    rows += [(0, 0, "packaged", 1.0, 1)]
    table = pd.DataFrame(rows, columns=["seed", "episode", "split", "survival", "reward"]).assign(survived_steps=2)
    table.to_csv(cell / "episodes.csv", index=False)
    shutil.copy(ROOT / "results/learner_pilot_episodes.csv.gz", tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    np.testing.assert_allclose(populations.cells()["wcci2020", "ace"], [[50, 100], [25, 100]])
    assert populations.of_rewards()["wcci2020", "ace"] == pytest.approx(np.std([2, 4], ddof=1) / 3)


def test_fits_have_the_means_and_shares_of_the_committed_cells():
    cells, studies = populations.cells(), populations.studies()
    assert {each.env for each in studies} >= {*config.load(ROOT / "params.yaml").grid.environments, "pilot wcci2020"}
    failing = [cell for cell, scores in cells.items() if scores.min() < 100]
    assert [(each.env, each.variant) for each in studies] == failing
    for study in studies:
        of = study.method
        assert populations.survival(of.mean, of.sd) == pytest.approx(cells[study.env, study.variant].mean(), abs=0.01)
        assert (study.reference is None) == (len(cells[study.env, study.variant]) == 1)


def test_the_development_set_shares_no_population_with_the_fits():
    fits = {each.method for each in populations.studies()}
    made = populations.development()
    assert len(made) == 225 and not fits & {each.method for each in made}
    for study in made[::20]:
        mean = populations.survival(study.method.mean, study.method.sd)
        assert study.variant.startswith(f"{mean:.0f} %")
        assert populations.survival(study.reference.mean, study.reference.sd) == pytest.approx(mean - 12)


@pytest.fixture(scope="module")
def committed():
    return pd.read_csv(ROOT / "results/intervals.csv", keep_default_na=False, na_values={"mean": [""]})


def test_the_committed_rows_are_of_the_populations_and_designs_that_the_rule_names(committed):
    assert list(committed.columns) == intervals.COLUMNS
    again = [intervals.used_by(r.statistic, r.population, r.seeds) for r in committed.itertuples()]
    assert committed["used_by"].tolist() == again
    used = committed[committed["used_by"] != ""]
    assert not used["population"].str.startswith((populations.DEVELOPMENT, populations.PILOT)).any()
    assert used["coverage"].between(0.94, 0.965).all()
    assert set(map(tuple, used[["seeds", "episodes"]].to_numpy())) >= set(populations.SIZES)
    means = committed[committed["statistic"] == "mean"].drop_duplicates("population").set_index("population")["mean"]
    for study in populations.studies():
        assert means[study.name] == pytest.approx(populations.survival(study.method.mean, study.method.sd), rel=1e-4)


def test_a_cell_of_few_seeds_is_simulated_with_these_and_used_where_it_is_shown(committed):
    """Those of the pretrained model and of the budget curves; all others at the sizes of the main table."""
    few = {study.name: study.sizes for study in populations.studies() if study.few}
    curves = [f"wcci2020/{variant}" for variant in LONGER]
    assert few == {name: [(5, 50)] for name in ("wcci2020/ace_pretrained", "neurips2020/ace_pretrained", *curves)}
    of_few = committed[(committed["seeds"] == 5) & (committed["population"].isin(few))]
    shown = {"mean", "mean reward", "paired difference"}
    assert set(of_few.loc[of_few["used_by"] != "", "statistic"]) == shown < set(of_few["statistic"])
    assert set(of_few.loc[of_few["population"].isin(curves), "used_by"]) == {"", "budget.csv", "equal_use.csv"}
    assert intervals.used_by("mean reward", "wcci2020/ace_pretrained", 5) == "ablations.csv"
    assert intervals.used_by("paired ratio", "wcci2020/ace_pretrained", 5) == ""


def test_rows_are_the_same_in_the_pool(monkeypatch):
    monkeypatch.setenv("ACE_JOBS", "2")
    several = [study for study in populations.studies() if study.variant == "llm4teach"]
    work = [(intervals.over_grids, "all grids/llm4teach", several, 8, 50, 40), (intervals.of_runs, "a", 0.1, 0.2, 8, 40)]
    rows = pool.run(intervals.of_task, work)
    assert [len(each) for each in rows] == [1, 2]
    for found, task in zip(rows, work, strict=True):
        pd.testing.assert_frame_equal(pd.DataFrame(found), pd.DataFrame(intervals.of_task(*task)))


def test_known_issue_4_quotes_the_measured_coverage(committed):
    text = " ".join((ROOT / "docs/known_issues.md").read_text(encoding="utf-8").split())
    used, pilots = committed[committed["used_by"] != ""], committed[committed["population"].str.startswith(populations.PILOT)]
    low, high = 100 * used["coverage"].min(), 100 * used["coverage"].max()
    assert f"have a coverage of {low:.1f} to {high:.1f} %" in text
    assert pilots["coverage"].min() > 0.935
    outside = (~pilots["coverage"].between(0.94, 0.965)).sum()
    assert f"of {len(pilots)} rows of pilots all but {outside} have 94 to 96.5 %" in text


def test_a_committed_row_is_simulated_anew(committed):
    (study,) = (each for each in populations.studies() if each.name == "wcci2020/sac")
    rows = intervals.of_study(study, 10, 50, 2000)
    assert len(rows) == 6
    for row in rows:
        same = committed[(committed[["statistic", "population", "seeds"]] == [row[0], row[1], 10]).all(axis=1)]
        found = dict(zip(intervals.COLUMNS, row, strict=True))
        assert found["coverage"] == pytest.approx(same["coverage"].item(), abs=0.02)
        assert found["coverage"] + found["truth_below"] + found["truth_above"] == pytest.approx(1)


def test_a_point_that_misses_the_truth_and_a_missing_interval_count_as_misses():
    counts = intervals.Counts(1.0)
    counts.add(stats.Estimate(np.zeros(4), np.array([0.0, 1.5, np.nan, 0.5]), np.array([2.0, 1.5, np.nan, 0.7])))
    assert (counts.held, counts.below, counts.above, counts.n) == (1, 1, 1, 4)


# --- contrasts.yaml ---


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("worse: sac,", "wrose: sac,", ["C2.arguments.wrose", "did you mean 'worse'"]),
        ("size: 18.75", "size: '18.75'", ["C2.arguments.size = '18.75'", "without quotes"]),
        ("metric: survival, size: 18.75", "metric: survivl, size: 18.75", ["C2.arguments.metric = 'survivl'"]),
        ("measure: difference", "measure: diference", ["C2.measure", "did you mean 'difference'"]),
        ("id: C2", "id: C1", ["C1", "more than once"]),
        ("  - id: C3", "  - idd: C3", ["claims.2.idd", "did you mean 'id'"]),
        ("references: [", "references: [[", ["line", "no YAML"]),
    ],
)
def test_a_mistake_in_the_contrasts_is_one_line_with_file_and_key(tmp_path, old, new, said):
    text = contrasts.FILE.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "contrasts.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        contrasts.load(path)
    message = str(error.value)
    assert message.startswith("contrasts.yaml") and "\n" not in message and all(each in message for each in said)


def test_the_contrasts_name_variants_of_the_parameters(tmp_path):
    from ace import config

    shutil.copy(ROOT / "params.yaml", tmp_path)
    known = set(config.load(tmp_path / "params.yaml").variants)
    found = contrasts.load()
    named = {*found.references, *(v for g in found.ablations for v in (g.reference, *g.variants))}
    roles = ("better", "worse", "above", "below", "full", "without", "variant", "slow", "fast", "wide", "narrow")
    for claim in found.claims:
        given = [claim.arguments[role] for role in roles if role in claim.arguments]
        named |= {v for each in given for v in ([each] if isinstance(each, str) else each)}
    assert named <= known
