"""Table 3, its figures and the open questions on made-up runs: common seeds, what was not run, rules by hand."""

import json

import numpy as np
import pandas as pd
import pytest
from made_up_runs import bare, change_episodes, change_manifest, change_training, manifest_of
from scipy.stats import t
from test_report import EPISODE_EASE, LEVELS, row, write_run

from ace.report import ablation_figures, ablations, answers, contrasts, labels, notes, questions
from ace.report.runs import ReportError
from ace.stats import Estimate

ENV = "wcci2020"
ROUNDS = [{"round": 1, "accepted": True}, {"round": 2, "accepted": False}]


@pytest.fixture
def make(params, tmp_path):
    """make(levels, seeds=[0, 1]) -> params, results: ACE and its kin with seeds 0 to 2 and ablations with theirs."""

    def make(levels=None, seeds=(0, 1), main=("sac", "ace", "ace_no_actor", "ace_no_critic")):
        levels = levels or {}
        taken_apart = params.grid.ablations.model_copy(
            update={"environment": ENV, "seeds": list(seeds), "variants": list(levels)}
        )
        grid = bare(params.grid, environments=[ENV], variants=list(main), ablations=taken_apart)
        made = params.model_copy(update={"seeds": [0, 1, 2], "grid": grid})
        results = tmp_path / "results"
        for variant in [*main, *levels]:
            for seed in made.seeds_of(variant):
                write_run(results, ENV, variant, seed, trained=True, level=levels.get(variant, LEVELS.get(variant, 0.7)))
                settings = json.loads(made.settings(variant).model_dump_json())
                more = {"settings": settings, "finetune_rounds": ROUNDS, "shaped": 100 + seed}
                change_manifest(results, f"{ENV}/{variant}/seed={seed}", **more)
                columns = {"q_std": [9.0, 0.2, 0.4 + seed], "entropy": [3.0, 2.0, 0.5]}
                change_training(results, f"{ENV}/{variant}/seed={seed}", lambda curve, more=columns: curve.assign(**more))
        return made, results

    return make


def relevel(results, variant, seed, level):
    change_episodes(results, f"{ENV}/{variant}/seed={seed}", lambda table: table.assign(survival=level + EPISODE_EASE))


# --- the table ---


def test_an_ablation_that_a_user_adds_is_in_the_group_other(make):
    params, results = make({"ace_query_high": 0.60})
    grid = params.grid.ablations.model_copy(update={"variants": ["ace_query_high", "ace_ask_twice", "ace_half_sac"]})
    grid = params.grid.model_copy(update={"ablations": grid})
    params = params.model_copy(
        update={"grid": grid, "variants": {**params.variants, "ace_ask_twice": {"refine": {"every": 50}, "shape": {"K": 0.9}}}}
    )
    for seed in (0, 1):
        write_run(results, ENV, "ace_ask_twice", seed, trained=True, level=0.65)
        more = {"settings": json.loads(params.settings("ace_ask_twice").model_dump_json()), "finetune_rounds": ROUNDS}
        change_manifest(results, f"{ENV}/ace_ask_twice/seed={seed}", **more)
    table = ablations.write_ablations(params, results, results / "made")
    found = row(table, group="Other", metric="survival")
    assert (found["variant"], found["reference"], found["difference"]) == ("ace_ask_twice", "ace", pytest.approx(-5))
    assert found["setting"] == "refine.every = 50, shape.K = 0.9"
    text = (results / "made/ablations.md").read_text()
    assert "| Other | ACE, ask twice | refine.every = 50, shape.K = 0.9 | 65.5 [" in text
    assert "`ace_half_sac`" in text, "declared, and shown elsewhere"


def test_a_difference_takes_the_seeds_that_both_have(make):
    params, results = make({"ace_query_high": 0.60})
    relevel(results, "ace", 2, 0.20)  # ace alone has seed 2: it must not enter the difference
    table = ablations.write_ablations(params, results, results / "made")
    found = row(table, variant="ace_query_high", metric="survival")
    assert found["difference"] == pytest.approx(-10)  # 60, 61 less 70, 71; without the pairing 60.5 less 53.7
    half = t.ppf(0.975, 2) * np.sqrt(0.5)  # seeds at 60, 61 and 70, 71; the ease of the episodes cancels out
    assert (found["difference_low"], found["difference_high"]) == pytest.approx((-10 - half, -10 + half))
    assert (found["reference"], found["reference_mean"], found["n_common_seeds"]) == ("ace", pytest.approx(70.5), 2)
    ace = row(table, group="f_LLM query frequency", variant="ace", metric="survival")
    assert (ace["mean"], ace["n_seeds"]) == (pytest.approx((70 + 71 + 20) / 3), 3)
    assert pd.isna(ace["difference"])
    (line,) = [line for line in (results / "made/ablations.md").read_text().splitlines() if "| -10.0 [-1" in line]
    assert "] | 70.5 | " in line, "the reference on the common seeds"


def test_variants_without_a_common_seed_are_refused(make):
    params, results = make({"ace_query_high": 0.60}, seeds=[7, 8])
    with pytest.raises(ReportError, match=r"^ace_query_high, ace have no seed in common in wcci2020: let seeds and"):
        ablations.write_ablations(params, results, results / "made")


def test_a_table_shows_what_was_run_and_names_the_rest_in_one_line(make):
    params, results = make({"ace_query_high": 0.60})
    table = ablations.write_ablations(params, results, results / "made")
    text = (results / "made/ablations.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert not [line for line in rows if "not run" in line or "rarely" in line]
    missing = text.splitlines()[-1]
    assert labels.label("ace_query_low") in missing and labels.label("ace_query_high") not in missing
    assert "Sparse reward" not in set(table["group"])
    assert set(pd.read_csv(results / "made/ablations.csv")["variant"]) == {"ace", "ace_query_high", "ace_no_critic"}
    unknown = params.model_copy(update={"variants": {}})  # the quick scale knows few of them
    ablations.write_ablations(unknown, results, results / "made")
    assert (results / "made/ablations.md").read_text() == text


def test_settings_and_counts_are_those_of_the_run(make):
    params, results = make({"ace_lora_3": 0.7, "ace_no_finetune": 0.7})
    for seed in (0, 1):
        name = f"{ENV}/ace_lora_3/seed={seed}"
        settings = manifest_of(results, name)["settings"]
        settings["finetune"]["every"] = 33  # another than params.yaml has
        change_manifest(results, name, settings=settings)
    table = ablations.write_ablations(params, results, results / "made")
    found = row(table, variant="ace_lora_3", metric="survival")
    assert found["setting"] == "finetune.every = 33"
    assert (found["lora_rounds"], found["lora_rounds_kept"], found["adjustments"]) == (2, 1, 100.5)
    assert (found["simulator_calls_train"], found["llm_calls_train"]) == (1000.5, 40)
    assert row(table, variant="ace_no_finetune", metric="survival")["setting"] == "finetune.enabled = false"
    assert "| finetune.every = 33 |" in (results / "made/ablations.md").read_text()
    assert "| 2.0 (1.0) |" in (results / "made/ablations.md").read_text()


def test_the_answer_follows_from_the_intervals(make):
    levels = {"ace_query_high": 0.58, "ace_query_low": 0.70, "ace_sparse": 0.6, "ace_sparse_sac": 0.35, "expert_100k": 0.5}
    params, results = make(levels, main=("ace", "ace_no_critic", "expert_sac"))
    table = ablations.write_ablations(params, results, results / "made")
    ours, others = ablations.answer(table, "survival").splitlines()[:2]
    assert "2 of 3 differences" in ours and "ACE, f_LLM often minus ACE -12.0 [" in ours and "rarely" not in ours
    assert "2 of 2 differences" in others
    lines = ablations.largest(table, "survival").splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == [
        "ACE, sparse reward", "SAC + expert, trained longer", "ACE, f_LLM often", "ACE without g_LLM", "ACE, f_LLM rarely"
    ]  # fmt: skip
    assert lines[2].endswith(" | 2 |") and lines[3].endswith(" | 3 |")


def test_every_setting_that_is_shown_is_explained(params):
    shown = {key for group in contrasts.load().ablations for key in group.settings}
    shown |= {f"{key.split('.')[0]}.enabled" for key in shown if key.split(".")[0] in ("refine", "shape", "finetune")}
    assert {key for key in shown if not notes.has(f"ablations.{key}")} == set()


def test_a_group_may_have_sac_as_its_reference(make):
    params, results = make({"ace_sparse": 0.6, "ace_sparse_sac": 0.35})
    found = row(ablations.write_ablations(params, results, results / "made"), variant="ace_sparse", metric="survival")
    assert (found["reference"], found["difference"]) == ("ace_sparse_sac", pytest.approx(25))


def test_thresholds_are_compared_with_every_bad_case_refined(make):
    params, results = make({"ace_rbar_neg": 0.6, "ace_rbar_zero": 0.65})
    found = row(ablations.write_ablations(params, results, results / "made"), variant="ace_rbar_neg", metric="survival")
    assert (found["reference"], found["difference"]) == ("ace_rbar_zero", pytest.approx(-5))
    assert found["setting"] == "refine.threshold = -0.3, refine.max_cases = 32"
    zero, usual = (params.settings(name).refine for name in ("ace_rbar_zero", "ace"))
    assert (zero.threshold, zero.max_cases == zero.minibatch, usual.max_cases < usual.minibatch) == (usual.threshold, True, True)


def test_every_declared_variant_of_ace_has_its_place_and_its_name(whole_params):
    params = whole_params
    placed = {variant for group in contrasts.load().ablations for variant in (group.reference, *group.variants)}
    placed |= {*ablation_figures.REASONING, *ablation_figures.SHAPING, *ablation_figures.GENERALISATION}
    ours = {variant for _, _, variant in params.grid.cells if variant.startswith("ace")} - {*params.grid.budget.variants}
    assert ours - placed == {"ace_no_actor"}  # the roles' table
    assert ours <= set(labels.LABELS)
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


@pytest.mark.parametrize("main", [("sac", "ace", "ace_no_actor", "ace_no_critic"), ("sac",)])
def test_everything_is_made_without_any_ablation(make, main):
    params, results = make(main=main)
    table = ablations.write_ablations(params, results, results / "made")
    assert set(table["variant"]) == ({"ace", "ace_no_critic"} if "ace" in main else set()), "alone it compares nothing"
    assert (table[table["metric"] == "survival"].groupby("group").size() > 1).all()
    for draw in (ablation_figures.reasoning, ablation_figures.shaping, ablation_figures.generalisation):
        assert set(draw(params, results, results / "made")["variant"]) <= set(main)
    drawn = ablation_figures.shaping(params, results, results / "made")
    assert len(ablation_figures.shaping_table(drawn)) == 2 * ("ace" in main)
    assert ablation_figures.differences(params, results, ablation_figures.WITH_LESS).empty
    answered = questions.write(params, results, results / "made")
    ablation_figures.open_questions(params, answered, results / "made")
    made = {path.name for path in (results / "made").iterdir()}
    assert made >= {f"{name}.pdf" for name in ("reasoning", "shaping", "generalisation", "open_questions_figure")}
    assert list(dict.fromkeys(answered["id"])) == ["Q1", "Q2", "Q3", "Q4", "Q5", "Q6"]
    assert row(answered, id="Q1")["answer"] == "not run"
    assert np.isnan(row(answered, id="Q1")["estimate"])
    lead = answered[answered["id"] == "Q4"]["answer"].iloc[0]
    assert lead == ("From f_LLM" if "ace" in main else "not run")


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
        (UP, LEVEL, "Yes, the description closes the gap"),
        (UP, UP, "Partly, the description helps"),
        (DOWN, LEVEL, "No, the description lowers survival"),
        (LEVEL, LEVEL, "No significant effect of the description"),
    ],
)
def test_answer_1(text, gap, lead):
    found = estimates("Q1", **{"described minus bare index": text, "reward minus action (described)": gap})
    assert found == lead


def test_answer_2_is_of_rounds_alone():
    one, three, none = (f"five rounds minus {name}" for name in ("one", "three", "none"))
    assert estimates("Q2", **{one: UP, three: LEVEL}) == "Five rounds survive longer than one"
    assert estimates("Q2", **{one: UP, three: UP}) == "Five rounds survive longer than one and three"
    answer = "No significant difference between one, three and five rounds"
    assert estimates("Q2", **{one: LEVEL, three: LEVEL, none: UP}) == answer, "LLM4Teach is another method"
    assert estimates("Q2", **{none: UP}) == "not run"


@pytest.mark.parametrize(
    ("entropy", "fall", "lead"),
    [
        ((0.9, 0.5, 1.2), (2.0, 0.0, 5.0), "Yes, training stays stable"),
        ((0.05, 0.0, 0.09), (2.0, 0.0, 5.0), "No, training does not stay stable"),
        ((0.9, 0.5, 1.2), (20.0, 12.0, 30.0), "No, training does not stay stable"),
        ((0.3, 0.05, 0.9), (2.0, 0.0, 5.0), "Only in part"),
        ((0.9, np.nan, np.nan), (2.0, np.nan, np.nan), "Yes, training stays stable"),  # a single run
        ((0.9, 0.5, 1.2), (7.0, 0.0, 21.0), "Yes, training stays stable on average, but instability is not excluded"),
    ],
)
def test_answer_3(entropy, fall, lead):
    assert estimates("Q3", **{"entropy at the end": entropy, "best minus last validation": fall}).partition(" (")[0] == lead


def test_answers_4_to_6():
    roles = {"f_LLM alone minus neither": UP, "g_LLM alone minus neither": LEVEL}
    assert estimates("Q4", **roles) == "From f_LLM"
    assert estimates("Q4", **dict.fromkeys(roles, UP)) == "From f_LLM and g_LLM"
    assert estimates("Q4", **dict.fromkeys(roles, LEVEL)).startswith("Neither role alone")
    leads = {"Credit assignment": UP, "Worse than noise": DOWN, "Not significantly different from noise": LEVEL}
    for lead, pooled in leads.items():
        assert estimates("Q5", **{"g_LLM minus random, mean over K": pooled}) == lead
    ahead = "half: ACE (often) minus SAC"
    assert estimates("Q6", **{ahead: UP}).startswith("Yes, ") and "not significantly" in estimates("Q6", **{ahead: LEVEL})
    assert estimates("Q6") == "not run"
    assert answers.sign(Estimate(1, 0, 2)) == 0  # it touches 0


def test_contrasts_by_hand(make):
    sweep = {"ace_K01": 0.66, "ace_K02": 0.62, "ace_K08": 0.5}
    control = {f"ace_random_K{k}": 0.5 for k in ("01", "02", "04", "08")}
    params, results = make({**sweep, **control})
    relevel(results, "ace", 2, 0.0)  # no common seed
    table = questions.write(params, results, results / "made")
    pooled = row(table, contrast="g_LLM minus random, mean over K")
    assert pooled["estimate"] == pytest.approx((16 + 12 + 20 + 0) / 4)
    assert pooled["n"] == "1 env x 2 seeds x 8 episodes"
    assert pooled["answer"] == "Credit assignment"
    assert row(table, contrast="K = 0.2: g_LLM minus random")["estimate"] == pytest.approx(12)
    roles = table[table["id"] == "Q4"].set_index("contrast")  # of these, all have three seeds
    assert roles.loc["g_LLM alone minus neither", "n"] == "1 env x 3 seeds x 8 episodes"
    assert roles.loc["interaction", "estimate"] == pytest.approx((70 + 71 + 0) / 3 - 61 - 41 + 41)
    text = (results / "made/open_questions.md").read_text()
    assert not [line for line in text.splitlines() if line.startswith("| Q2 | five rounds minus")]
    assert "Q2 five rounds minus one" in text.splitlines()[-1], "what was not run is one line"
    assert "Q2" in set(table["id"]) and "five rounds minus one" not in set(table["contrast"])


def test_sparse_reward_is_read_from_training(make):
    params, results = make({"ace_sparse": 0.6, "ace_sparse_sac": 0.35})
    table = questions.write(params, results, results / "made")
    assert row(table, contrast="entropy at the end")["estimate"] == pytest.approx(0.5)  # of a target of 1
    assert row(table, contrast="best minus last validation")["estimate"] == pytest.approx(0)
    assert row(table, contrast="ACE minus SAC (sparse)")["answer"].startswith("Yes, training stays stable")


def test_one_question_is_looked_at_alone(make):
    params, results = make()
    table = questions.write(params, results, results / "made")
    one = questions.answered(table, "Q4")
    assert one.startswith("**Q4 ") and "**Q3" not in one and one.count("*Answer*") == 1
    assert questions.answered(table).count("*Answer*") == 6
    assert questions.answered(table) in (results / "made/open_questions.md").read_text()
    with pytest.raises(ReportError, match="no question Q7; there are Q1, Q2"):
        questions.answered(table, "Q7")
