"""Table 3, its figures and the open questions on made-up runs: common seeds, what was not run, rules by hand."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import ROOT
from matplotlib.figure import Figure
from test_report import EPISODE_EASE, LEVELS, change_manifest, row, write_run

from ace.report import ablation_figures, ablations, answers, claims, labels, questions, runs
from ace.report.runs import ReportError
from ace.report.stats import Estimate

ENV = "wcci2020"
ROUNDS = [{"round": 1, "accepted": True}, {"round": 2, "accepted": False}]


@pytest.fixture
def make(params, tmp_path):
    """make(levels, seeds=[0, 1]) -> params, results: ACE and its kin with seeds 0 to 2 and ablations with theirs."""

    def make(levels=None, seeds=(0, 1), main=("sac", "ace", "ace_no_actor", "ace_no_critic")):
        levels = levels or {}
        changed = {"environments": [ENV], "variants": list(main), "baselines": [], "lm_baselines": [], "other_model": []}
        changed["ablations"] = params.grid.ablations.model_copy(
            update={"environment": ENV, "seeds": list(seeds), "variants": list(levels)}
        )
        made = params.model_copy(update={"seeds": [0, 1, 2], "grid": params.grid.model_copy(update=changed)})
        results = tmp_path / "results"
        for variant in [*main, *levels]:
            for seed in runs.seeds_of(made, variant):
                write_run(results, ENV, variant, seed, trained=True, level=levels.get(variant, LEVELS.get(variant)))
                settings = json.loads(made.settings(variant).model_dump_json())
                more = {"settings": settings, "finetune_rounds": ROUNDS, "shaped": 100 + seed}
                change_manifest(results, f"{ENV}/{variant}/seed={seed}", **more)
                path = results / "runs" / ENV / variant / f"seed={seed}" / "training.csv"
                curve = pd.read_csv(path).assign(q_std=[9.0, 0.2, 0.4 + seed], entropy=[3.0, 2.0, 0.5])
                curve.to_csv(path, index=False)
        return made, results

    return make


def relevel(results, variant, seed, level):
    path = results / "runs" / ENV / variant / f"seed={seed}" / "episodes.csv"
    pd.read_csv(path).assign(survival=level + EPISODE_EASE).to_csv(path, index=False)


# --- the table ---


def test_what_is_declared_and_has_no_group_is_named(make):
    params, results = make({"ace_query_high": 0.60, "ace_half_sac": 0.50})
    ablations.write_ablations(params, results)
    said = (results / "tables/ablations.md").read_text()
    assert "Declared, and in no group of this table: `ace_half_sac`.\n" in said
    fewer = params.grid.ablations.model_copy(update={"variants": ["ace_query_high"]})
    fewer = params.model_copy(update={"grid": params.grid.model_copy(update={"ablations": fewer})})
    ablations.write_ablations(fewer, results)
    assert "in no group" not in (results / "tables/ablations.md").read_text()


def test_a_difference_takes_the_seeds_that_both_have(make):
    params, results = make({"ace_query_high": 0.60})
    relevel(results, "ace", 2, 0.20)  # ace alone has seed 2: it must not enter the difference
    table = ablations.write_ablations(params, results)
    found = row(table, variant="ace_query_high", metric="survival")
    assert found["difference"] == pytest.approx(-10)  # 60, 61 less 70, 71; without the pairing 60.5 less 53.7
    assert -11.1 < found["difference_low"] < found["difference_high"] < -8.9  # the ease of the episodes cancels out
    assert (found["reference"], found["reference_mean"], found["n_common_seeds"]) == ("ace", pytest.approx(70.5), 2)
    ace = row(table, group="f_LLM query frequency", variant="ace", metric="survival")
    assert (ace["mean"], ace["n_seeds"]) == (pytest.approx((70 + 71 + 20) / 3), 3)
    assert pd.isna(ace["difference"])
    assert "| 70.5 | -10.0 [-1" in (results / "tables/ablations.md").read_text()


def test_variants_without_a_common_seed_are_refused(make):
    params, results = make({"ace_query_high": 0.60}, seeds=[7, 8])
    with pytest.raises(ReportError, match=r"^ace_query_high, ace have no seed in common in wcci2020: let seeds and"):
        ablations.write_ablations(params, results)


def test_what_was_not_run_is_said_and_not_in_the_csv(make):
    params, results = make({"ace_query_high": 0.60})
    table = ablations.write_ablations(params, results)
    text = (results / "tables/ablations.md").read_text()
    assert "| f_LLM query frequency | ACE, f_LLM seldom | refine.every = 75 | not run |" in text
    assert set(pd.read_csv(results / "tables/ablations.csv")["variant"]) == {
        "ace",
        "ace_query_high",
        "ace_no_critic",
        "sac",
    }
    assert "ace_query_low" in ablations.summary(table) and "ace_query_high" not in ablations.summary(table)
    unknown = params.model_copy(update={"variants": {}})  # the quick scale knows few of them
    ablations.write_ablations(unknown, results)
    assert "| ACE, f_LLM seldom | – | not run |" in (results / "tables/ablations.md").read_text()


def test_settings_and_counts_are_those_of_the_run(make):
    params, results = make({"ace_lora_3": 0.7, "ace_no_finetune": 0.7})
    for seed in (0, 1):
        name = f"{ENV}/ace_lora_3/seed={seed}"
        settings = json.loads((results / "runs" / name / "manifest.json").read_text())["settings"]
        settings["finetune"]["every"] = 33  # another than params.yaml has
        change_manifest(results, name, settings=settings)
    table = ablations.write_ablations(params, results)
    found = row(table, variant="ace_lora_3", metric="survival")
    assert found["setting"] == "finetune.every = 33"
    assert (found["lora_rounds"], found["lora_rounds_kept"], found["adjustments"]) == (2, 1, 100.5)
    assert (found["simulator_calls_train"], found["llm_calls_train"]) == (1000.5, 40)
    assert row(table, variant="ace_no_finetune", metric="survival")["setting"] == "finetune.enabled = false"
    assert "| finetune.every = 33 |" in (results / "tables/ablations.md").read_text()
    assert "| 2.0 (1.0) |" in (results / "tables/ablations.md").read_text()


def test_the_answer_follows_from_the_intervals(make):
    params, results = make({"ace_query_high": 0.58, "ace_query_low": 0.70, "ace_sparse": 0.6, "ace_sparse_sac": 0.35})
    table = ablations.write_ablations(params, results)
    ours, others, luck = (line for line in ablations.answer(table, "survival").splitlines() if line)
    assert ours.startswith("- Settings of ACE: in 2 of 3 comparisons the difference of survival to the reference excludes 0 (")
    assert "ACE, f_LLM often minus ACE -12.0 [" in ours and ours.endswith("in the other 1 it does not (ACE, f_LLM seldom).")
    assert others.startswith("- Other conditions and methods: in 2 of 2 ") and others.endswith("in the other 0 it does not.")
    assert "By luck alone 0.3 of 5 intervals at 95 % would" in luck  # 5 % of 5 are 0.25
    lines = ablations.largest(table, "survival").splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == [
        "SAC", "ACE, sparse reward", "ACE, f_LLM often", "ACE without g_LLM", "ACE, f_LLM seldom"
    ]  # fmt: skip
    assert lines[1].endswith(" | 2 |") and lines[0].endswith(" | 3 |")


def test_every_setting_that_is_shown_is_explained(params):
    shown = {key for group in ablations.GROUPS for key in group.settings}
    shown |= {f"{key.split('.')[0]}.enabled" for key in shown if key.split(".")[0] in ("refine", "shape", "finetune")}
    assert set(ablations.KEYS) - {"base"} == shown


def test_a_group_may_have_sac_as_its_reference(make):
    params, results = make({"ace_sparse": 0.6, "ace_sparse_sac": 0.35})
    found = row(ablations.write_ablations(params, results), variant="ace_sparse", metric="survival")
    assert (found["reference"], found["difference"]) == ("ace_sparse_sac", pytest.approx(25))


def test_thresholds_are_compared_with_every_bad_case_refined(make):
    params, results = make({"ace_rbar_neg": 0.6, "ace_rbar_zero": 0.65})
    found = row(ablations.write_ablations(params, results), variant="ace_rbar_neg", metric="survival")
    assert (found["reference"], found["difference"]) == ("ace_rbar_zero", pytest.approx(-5))
    assert found["setting"] == "refine.threshold = -0.3, refine.most = 32"
    zero, usual = (params.settings(name).refine for name in ("ace_rbar_zero", "ace"))
    assert (zero.threshold, zero.most == zero.minibatch, usual.most < usual.minibatch) == (usual.threshold, True, True)


def test_every_declared_variant_of_ace_has_its_place_and_its_name(params):
    placed = {variant for group in ablations.GROUPS for variant in (group.reference, *group.variants)}
    placed |= {*ablation_figures.REASONING, *ablation_figures.SHAPING, *ablation_figures.GENERALISATION}
    ours = {name for name in params.variants if name.startswith("ace")}
    assert ours - placed == {"ace_no_actor"}  # the roles' table
    assert {name for name in ours if labels.label(name) == name} == set()
    asked = {variant for q in questions.QUESTIONS for c in q.contrasts for variant in c.weights}
    assert placed | asked <= set(params.variants)


def test_a_name_that_holds_a_number_tells_the_setting(params):
    for name in [name for name in params.variants if "_K0" in name]:
        assert labels.label(name).endswith(f"K = {params.settings(name).shape.K}")
    rounds = {"ace_rounds_1": "one", "ace_rounds_3": "three"}
    numbers = {"one": 1, "three": 3}
    for name, word in rounds.items():
        assert word in labels.label(name) and params.settings(name).refine.rounds == numbers[word]
    assert params.settings("ace").refine.rounds == 5  # "five rounds" in question 2


# --- figures ---


def test_measures_of_training_by_hand():
    training = {"decisions": [250, 500, 750, 1000, 1250, 1500], "q_std": [9, 9, 9, 9, 0.2, 0.4]}
    training = pd.DataFrame({**training, "survival": [0.1, 0.72, 0.70, 0.8, 0.5, 0.79]})
    assert ablation_figures.late_q_std(training) == pytest.approx(0.3)  # beyond 1000, two thirds of 1500
    assert ablation_figures.decisions_to_converge(training) == 500  # 0.72 = 90 % of 0.8
    training.loc[1, "survival"] = 0.71
    assert ablation_figures.decisions_to_converge(training) == 1000


def test_points_of_the_shaping_figure(make):
    params, results = make({"ace_K01": 0.5, "ace_random_K01": 0.4})
    data = ablation_figures.shaping(params, results)
    assert set(data["variant"]) == {"ace_K01", "ace", "ace_random_K01", "ace_no_critic"}
    mean = data[data["seed"].isna()]
    found = row(mean, variant="ace_random_K01", metric="q_std")
    assert (found["K"], found["judge"], found["n_seeds"]) == (0.1, "random", 2)
    assert found[["value", "low", "high"]].tolist() == pytest.approx([0.9, 0.4, 1.4])  # the last of three rows
    ace = row(mean, variant="ace", metric="survival")
    assert (ace["value"], ace["n_seeds"], ace["K"]) == (pytest.approx(70.5), 2, 0.4)  # of three seeds the common two
    assert pd.isna(row(mean, variant="ace_no_critic", metric="survival")["K"])  # of a role that is off it means nothing
    seeds = data[(data["variant"] == "ace") & (data["metric"] == "survival") & data["seed"].notna()]
    assert seeds["value"].tolist() == pytest.approx([70, 71])
    written = (results / "figures/shaping.csv").read_text().split("\n")
    assert written[0] == "env,variant,metric,seed,value,low,high,n_seeds,n_episodes,K,judge"


def test_figures_are_the_same_bytes_twice_and_name_what_is_missing(make):
    params, results = make({"ace_half_query_high": 0.5, "ace_query_high": 0.6})
    ablation_figures.generalisation(params, results)
    first = {path.name: path.read_bytes() for path in (results / "figures").iterdir()}
    assert set(first) == {f"generalisation.{kind}" for kind in ("csv", "png", "svg", "pdf")}
    data = ablation_figures.generalisation(params, results)
    assert first == {path.name: path.read_bytes() for path in (results / "figures").iterdir()}
    assert row(data[data["seed"].isna()], variant="ace_half_query_high")["share"] == 0.5
    assert "ace_half_sac" not in set(data["variant"])


def test_what_the_figure_of_reasoning_tells(make):
    params, results = make({"ace_rounds_1": 0.60, "ace_no_bad_case": 0.70})
    table, told = ablation_figures.reasoning_told(params, results)
    found = row(table, variant="ACE, one round")
    assert found["minus ACE, points"] == pytest.approx(-10) and (found["seeds"], len(table)) == (2, 2)
    below, level = told.split("\n")
    assert below.startswith("- Below ACE: ACE, one round (-10.0 [") and level.startswith("- Not told apart from ACE: ACE without")
    assert "three rounds" not in told


def test_what_the_figure_of_generalisation_tells(make):
    params, results = make({"ace_query_low": 0.6, "ace_half_query_low": 0.4, "ace_half_sac": 0.405})
    told = ablation_figures.generalisation_told(params, results)
    assert "ACE, f_LLM seldom -20.0 [-21" in told and "points, a loss; SAC +0.5 [" in told
    assert told.endswith("points, not told apart from 0.") and "often" not in told
    named = ablation_figures._draw_generalisation(ablation_figures.generalisation(params, results), scenarios=7)
    (panel,) = named.axes
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["100 % (7 scenarios)", "50 % (4 scenarios)"]
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["ACE, f_LLM seldom (every 75 decisions)", "SAC"]


def test_what_the_figure_of_shaping_tells(make):
    control = {"ace_random_K01": 0.65, "ace_random_K04": 0.70}
    params, results = make({"ace_K01": 0.5, "ace_K08": 0.8, **control})
    path = results / "runs" / ENV / "ace_K08" / "seed=0" / "training.csv"
    for seed in (0, 1):
        path = path.parent.parent / f"seed={seed}" / "training.csv"
        pd.read_csv(path).assign(q_std=[1, 2, 5.0 + seed]).to_csv(path, index=False)
    drawn = ablation_figures.shaping(params, results)
    told = ablation_figures.shaping_told(params, results, drawn)
    assert "Q, g_LLM**: 0.900 at K = 0.1 and 5.500 at K = 0.8; the ranges of their seeds lie apart, more with a larger K" in told
    assert "Q, random control**: 0.900 at K = 0.1 and 0.900 at K = 0.4; the ranges of their seeds overlap. Over all K" in told
    assert "Q, g_LLM beside random control**: the ranges of the seeds overlap at 2 of 2 K." in told
    assert "the second minus the first is +30.0 [" in told and "points, more with a larger K. Over all K" in told
    assert "above 0 at 0, below 0 at 1 and not told apart from 0 at 1 of 2 K (means from -15.0 to +0.0 points)" in told
    table = ablation_figures.shaping_table(drawn)
    names = ["g_LLM, K = 0.1", "g_LLM, K = 0.4", "g_LLM, K = 0.8", "random control, K = 0.1", "random control, K = 0.4"]
    assert list(table.index) == [*names, "no shaping"]
    assert table.loc["g_LLM, K = 0.8"].tolist() == pytest.approx([5.5, 500, 80.5], abs=1)


@pytest.mark.parametrize("bottom", [0.0, 40.0])
def test_an_axis_of_survival_says_where_it_starts(bottom):
    panel = Figure().subplots()
    ablation_figures._survival_axis(panel, pd.DataFrame({"value": [bottom + 15], "low": [bottom + 12.0]}))
    assert panel.get_ylim()[0] == bottom
    assert ("the axis starts at 40" in panel.get_ylabel()) == bool(bottom)


@pytest.mark.parametrize("main", [("sac", "ace", "ace_no_actor", "ace_no_critic"), ("sac",)])
def test_everything_is_made_without_any_ablation(make, main):
    params, results = make(main=main)
    table = ablations.write_ablations(params, results)
    assert set(table["variant"]) == {"ace", "ace_no_critic", "sac"} & set(main)
    assert "not run: ace_query_high" in ablations.summary(table)
    for draw in (ablation_figures.reasoning, ablation_figures.shaping, ablation_figures.generalisation):
        assert set(draw(params, results)["variant"]) <= set(main)
    drawn = ablation_figures.shaping(params, results)
    assert ablation_figures.shaping_told(params, results, drawn) == "Nothing can be said: not run."
    assert len(ablation_figures.shaping_table(drawn)) == 2 * ("ace" in main)
    assert ablation_figures.reasoning_told(params, results)[1] == "Nothing can be said: not run."
    assert ablation_figures.generalisation_told(params, results).endswith("can't be said: not run.")
    answered = questions.write(params, results)
    ablation_figures.open_questions(answered, results)
    made = {path.name for path in (results / "figures").iterdir()}
    assert made >= {f"{name}.pdf" for name in ("reasoning", "shaping", "generalisation", "open_questions")}
    assert list(dict.fromkeys(answered["id"])) == ["Q1", "Q2", "Q3", "Q4", "Q5", "Q6"]
    assert "not run" in row(answered, id="Q1")["answer"]
    assert np.isnan(row(answered, id="Q1")["estimate"])
    lead = answered[answered["id"] == "Q4"]["answer"].iloc[0]
    assert lead.startswith("From f_LLM:" if "ace" in main else "Nothing can be said: not run.")


# --- open questions ---


def estimates(question, **given):
    """Answer of a question: contrast -> (value, low, high); those not given were not run."""
    names = {c.name for q in questions.QUESTIONS if q.id == question for c in q.contrasts}
    assert set(given) <= names
    answer = next(q.answer for q in questions.QUESTIONS if q.id == question)
    return answer({name: Estimate(*given[name]) if name in given else None for name in sorted(names)})


UP, DOWN, LEVEL = (5.0, 2.0, 8.0), (-5.0, -8.0, -2.0), (1.0, -3.0, 5.0)


@pytest.mark.parametrize(
    ("text", "gap", "lead"),
    [
        (UP, LEVEL, "Yes, the description closes the gap:"),
        (UP, UP, "Partly, the description helps:"),
        (DOWN, LEVEL, "No, the description costs survival:"),
        (LEVEL, LEVEL, "It is not seen that the description helps:"),
    ],
)
def test_answer_1(text, gap, lead):
    found = estimates("Q1", **{"described minus bare index": text, "reward minus action (described)": gap})
    assert found.startswith(lead)


def test_answer_2_names_what_is_worse_and_what_was_not_run():
    given = {"five rounds minus one": UP, "five rounds minus three": LEVEL, "five: calls": (2026, 2000, 2100)}
    found = estimates("Q2", **given)
    assert found.startswith(
        "It matters: five rounds survive longer than one, that they do longer than three is not seen"
    )
    assert "five 2,026)" in found and "five rounds minus none: not run" in found
    found = estimates("Q2", **given, **{"the corpus: calls": (341580, 341580, 341580)})
    assert "five 2,026, on top of the 341,580 of the language model's corpus" in found
    assert estimates("Q2", **{"five rounds minus one": LEVEL}).startswith("It is not seen to matter")


@pytest.mark.parametrize(
    ("entropy", "fall", "lead"),
    [
        ((0.9, 0.5, 1.2), (2.0, 0.0, 5.0), "Yes, training stays stable: the entropy did not collapse"),
        ((0.05, 0.0, 0.09), (2.0, 0.0, 5.0), "No, training does not stay stable: the entropy collapsed"),
        ((0.9, 0.5, 1.2), (20.0, 12.0, 30.0), "No, training does not stay stable: the entropy did not collapse"),
        ((0.3, 0.05, 0.9), (2.0, 0.0, 5.0), "Only in part: the entropy collapsed in some runs"),
        ((0.9, np.nan, np.nan), (2.0, np.nan, np.nan), "Yes, training stays stable"),  # a single run
        ((0.9, 0.5, 1.2), (7.0, 0.0, 21.0), "Yes, training stays stable in the mean, but instability is not excluded (the"),
    ],
)
def test_answer_3(entropy, fall, lead):
    assert estimates("Q3", **{"entropy at the end": entropy, "best minus last validation": fall}).startswith(lead)


def test_answers_4_to_6():
    roles = {"f_LLM alone minus neither": UP, "g_LLM alone minus neither": LEVEL}
    assert estimates("Q4", **roles).startswith("From f_LLM:")
    assert estimates("Q4", **dict.fromkeys(roles, UP)).startswith("From f_LLM and g_LLM:")
    assert estimates("Q4", **dict.fromkeys(roles, LEVEL)).startswith("From neither")
    leads = {"Credit assignment:": UP, "Worse than noise:": DOWN, "Not told apart from noise:": LEVEL}
    for lead, pooled in leads.items():
        assert estimates("Q5", **{"g_LLM minus random, mean over K": pooled}).startswith(lead)
    names = ("half: ACE (often) minus SAC", "ACE (often): all minus half", "ACE (seldom): all minus half")
    assert estimates("Q6", **dict(zip(names, (UP, UP, LEVEL), strict=True))).startswith("Yes, ")
    assert ", at a loss" not in estimates("Q6", **dict(zip(names, (UP, LEVEL, LEVEL), strict=True)))
    seldom = estimates("Q6", **dict(zip(names, (UP, LEVEL, UP), strict=True)))
    assert "stays ahead of SAC, at a loss where f_LLM is asked seldom: " in seldom
    assert "ACE (seldom): all minus half +5.0 [+2.0, +8.0] points, above 0" in seldom
    assert "not seen ahead" in estimates("Q6", **dict(zip(names, (LEVEL, UP, UP), strict=True)))
    assert answers.sign(Estimate(1, 0, 2)) == 0  # it touches 0


def test_contrasts_by_hand(make):
    sweep = {"ace_K01": 0.66, "ace_K02": 0.62, "ace_K08": 0.5}
    control = {f"ace_random_K{k}": 0.5 for k in ("01", "02", "04", "08")}
    params, results = make({**sweep, **control})
    relevel(results, "ace", 2, 0.0)  # no common seed
    table = questions.write(params, results)
    pooled = row(table, contrast="g_LLM minus random, mean over K")
    assert pooled["estimate"] == pytest.approx((16 + 12 + 20 + 0) / 4)
    assert pooled["n"] == "1 env x 2 seeds x 8 episodes"
    assert pooled["answer"].startswith("Credit assignment:")
    assert row(table, contrast="K = 0.2: g_LLM minus random")["estimate"] == pytest.approx(12)
    roles = table[table["id"] == "Q4"].set_index("contrast")  # of these, all have three seeds
    assert roles.loc["g_LLM alone minus neither", "n"] == "1 env x 3 seeds x 8 episodes"
    assert roles.loc["both beyond the sum", "estimate"] == pytest.approx((70 + 71 + 0) / 3 - 61 - 41 + 41)
    text = (results / "tables/open_questions.md").read_text()
    assert "| Q2 | five rounds minus one | not run: ace_rounds_1 |" in text
    assert text.count("not run: not in the declared set") == 1
    assert "Q2" in set(table["id"]) and "five rounds minus one" not in set(table["contrast"])


def test_sparse_reward_is_read_from_training(make):
    params, results = make({"ace_sparse": 0.6, "ace_sparse_sac": 0.35})
    table = questions.write(params, results)
    assert row(table, contrast="entropy at the end")["estimate"] == pytest.approx(0.5)  # of a target of 1
    assert row(table, contrast="best minus last validation")["estimate"] == pytest.approx(0)
    assert row(table, contrast="ACE minus SAC (sparse)")["answer"].startswith("Yes, training stays stable:")


def test_outages_are_taken_from_their_table_once_it_is_there(make):
    params, results = make()
    assert "With a line out: ACE minus SAC: not run" in questions.write(params, results)["answer"].iloc[-1]
    columns = ["env", "outage", "variant", "minus_sac", "minus_sac_low", "minus_sac_high"]
    lines = [[ENV, "all", "ace", 12.0, 4.0, 20.0], [ENV, "line 1", "ace", 1.0, 0.0, 2.0]]
    outages = pd.DataFrame(lines, columns=columns).assign(change=-3.0, change_low=-5.0, change_high=-1.0)
    (results / "tables").mkdir(exist_ok=True)
    outages.assign(n_seeds=5, n_episodes=15).to_csv(results / "tables/outages.csv", index=False)
    found = row(questions.write(params, results), contrast="outages: ACE minus SAC")
    assert (found["estimate"], found["ci_low"], found["n"]) == (12, 4, "1 env x 5 seeds x 15 episodes")
    assert "With a line out: ACE minus SAC +12.0 [+4.0, +20.0] points, above 0" in found["answer"]
    assert "SAC + expert minus ACE: not run" in found["answer"]  # such a table has no column minus_ace either
    control = outages.assign(variant=["expert_sac", "ace"], minus_ace=-4.0, minus_ace_low=-9.0, minus_ace_high=1.0)
    control.assign(n_seeds=5, n_episodes=15).to_csv(results / "tables/outages.csv", index=False)
    found = row(questions.write(params, results), contrast="outages: SAC + expert minus ACE")
    assert "SAC + expert minus ACE -4.0 [-9.0, +1.0] points, not told apart from 0" in found["answer"]


def test_one_question_is_looked_at_alone(make):
    params, results = make()
    table = questions.write(params, results)
    one = questions.answered(table, "Q4")
    assert one.startswith("**Q4 ") and "**Q3" not in one and one.count("*Answer.*") == 1
    assert questions.answered(table).count("*Answer.*") == 6
    text = (results / "tables/open_questions.md").read_text()
    assert questions.answered(table) + "\n" + questions.contrasts(results) == text.split("\n\n", 1)[1]
    assert questions.contrasts(results).startswith("| Question | Contrast |")
    with pytest.raises(ReportError, match="no question Q7; there are Q1, Q2"):
        questions.answered(table, "Q7")


def test_every_claim_names_a_stage_that_runs_its_notebook():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for claim in claims.CLAIMS:
        assert f"notebooks/{claim.notebook}.ipynb" in stages[claim.stage]["cmd"], claim.id
