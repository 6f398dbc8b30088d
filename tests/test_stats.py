"""Intervals by hand and against scipy's, verdicts' helpers, contrasts.yaml, and the committed coverage."""

import shutil

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from scipy.stats import t, ttest_1samp, ttest_ind

from ace import stats
from ace.config.errors import ConfigError
from ace.report import contrasts
from benchmarks import intervals

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(1, 12), (5, 1)])
def test_scenarios_alone_and_seeds_alone_are_the_t_test(shape):
    scores = RNG.normal(3, 1, shape)
    found, known = stats.mean(scores), ttest_1samp(scores.ravel(), 2.5)
    assert (found.low, found.high) == pytest.approx(tuple(known.confidence_interval()), rel=1e-6)
    assert found.df == pytest.approx(max(shape) - 1) and found.p(2.5) == pytest.approx(known.pvalue, rel=1e-6)


def test_two_methods_of_many_seeds_alone_are_welchs_test():
    a, b = RNG.normal(1, 1, (60, 1)), RNG.normal(0, 3, (40, 1))
    found, known = stats.paired_difference(a, b), ttest_ind(a.ravel(), b.ravel(), equal_var=False)
    assert found.df == pytest.approx(known.df, rel=0.02)
    assert (found.low, found.high) == pytest.approx(tuple(known.confidence_interval()), rel=0.01)


def test_crossed_variance_by_hand():
    """Rows' means 1 and 3, columns' means 1, 2, 3; nothing is left: se^2 = 2/2 + 1/3."""
    found = stats.mean([[0.0, 1, 2], [2, 3, 4]])
    assert found.se**2 == pytest.approx(2 / 2 + 1 / 3)
    # the seeds' part, 1 of 1 degree of freedom, counts as 1 + 2/1 times as uncertain; not fewer than 1 in all
    assert found.df == pytest.approx(max(1, (4 / 3) ** 2 / (1 * 3 / 1 + (1 / 3) ** 2 / 2)))


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
    assert found.high == pytest.approx(3 + t.isf(stats.SMALLEST, 30) * 0.8)
    assert stats.smallest([a]) is a


def test_holm_by_hand():
    found = stats.holm([0.01, 0.04, np.nan, 0.03])
    np.testing.assert_allclose(found, [0.03, 0.06, np.nan, 0.06])
    assert stats.holm([0.5, 0.9]).tolist() == [1, 1] and stats.holm([]).tolist() == []


# --- the simulation ---


def test_the_committed_intervals_cover_what_they_promise_wherever_a_table_uses_them():
    table = pd.read_csv(ROOT / "results/intervals.csv", keep_default_na=False)
    assert list(table.columns) == intervals.COLUMNS and set(table["seeds"]) >= {2, 3, 5, 8, 10}
    used = table[table["used_by"] != ""]
    assert used["coverage"].between(0.94, 0.965).all() and len(used) > 90
    assert set(map(tuple, used[["seeds", "episodes"]].to_numpy())) >= intervals.SIZES
    again = [intervals.used_by(r.statistic, r.scores, r.seeds, r.episodes) for r in table.itertuples()]
    assert table["used_by"].tolist() == again


def test_a_row_is_simulated_anew_and_its_truth_is_that_of_many_scores(monkeypatch):
    committed = pd.read_csv(ROOT / "results/intervals.csv")
    row = ("paired difference", "survival", "mixed", 5, 30)
    found = committed[(committed[intervals.COLUMNS[:5]] == pd.Series(row, index=intervals.COLUMNS[:5])).all(axis=1)]
    monkeypatch.setattr(intervals, "N", 2000)
    assert intervals.coverage(*row)[0] == pytest.approx(found["coverage"].item(), abs=0.02)
    (scores,) = intervals.draw(np.random.default_rng(1), 200_000, (0.6,), "mixed", 1, 1, "normal")
    sd = np.sqrt(0.6 + 1.0)  # one row has no effect of the seed
    survival = 100 * np.exp(np.minimum(scores, 0))
    assert scores.std() == pytest.approx(sd, rel=0.02)
    assert survival.mean() == pytest.approx(intervals.truth(0.6, "mixed", "survival", seeds=False), rel=0.01)


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
