"""Evidence for the learner's defaults: short runs on training weeks, played on validation weeks that choose no checkpoint.

    python -m benchmarks.learner_pilot wcci2020        every pilot of an environment, then the tables
    python -m benchmarks.learner_pilot                 the tables alone

A run plays each start of the last eight validation weeks (40 episodes), on the world it was trained on; no test week is opened.
The language model is one of its own, from a corpus of training weeks (five to eight minutes). Finished runs wait under
checkpoints/, so a stopped call goes on. Two to seven minutes a run and core; ACE_JOBS sets the processes.

results/learner_pilot_runs.csv: a row a trained run, with its whole budget; learner_pilot_episodes.csv.gz: a row an episode;
learner_pilot.csv, in points of survival (of 100) or, for the rate, of proposals: env, variant, against, metric, value, ci_low,
ci_high, n_seeds, with `metric`

    seed_sd                         standard deviation of the seeds' means; interval by chi-square
    mean_change                     variant minus `against`, of the seeds that both have; interval over seeds and weeks
    loss_where_reconnect_survives   reconnection alone minus variant, where that survives. Where an opponent acts, a start counts
                                    by the share of the eight other draws in which reconnection survives. `against` a variant:
                                    minus its loss, in the draws and seeds that both played. No interval: see ace/report/harm.py
    loss_as_drawn                   the same by the draw that was played alone: starts that reconnection survives in it
    gain_elsewhere                  variant minus reconnection alone, in the other starts; without an interval as well
    llm_rate_gain                   share of 200 held-out states helped by the model's first proposal, after the last LoRA round
                                    minus before the first; `against`: minus that gain of another variant; t interval over seeds
"""

import functools
import json
import sys
import warnings

import numpy as np
import pandas as pd
import torch
from scipy.stats import chi2

from ace import baselines, config, evaluate, stats
from ace.config.errors import validated
from ace.config.host import processor
from ace.config.settings import Settings
from ace.experiment import SOURCE_SHA256, Run
from ace.grid.environment import World
from ace.grid.fastworld import training_world
from ace.grid.scenarios import Redrawn, WeekScenarios
from ace.grid.whatif import WhatIf
from ace.llm.clients import Recorder
from ace.llm.models import corpus, training
from ace.llm.models.heldout import heldout_states, load_states, one_proposal, save_states
from ace.llm.session import fingerprint_of_model
from ace.llm.text import TextMap
from ace.report import harm
from ace.report.formatting import number, write_csv
from ace.trained_policies import play_tasks

STRONG = {"every": 50, "epochs": 5, "lr": 1.0e-3}
"""Of `finetune`: twice as many rounds, five epochs in place of one, three times the learning rate."""
WITH_RECOVERY = ("ace", "sac")
"""Variants with the operator's reflex that puts substations back: all others were tried before it was the default."""
OF_A_PILOT = {
    "ace_strong_lora": ("ace", {"finetune": STRONG}),
    "ace_strong_lora_own": ("ace", {"finetune": {**STRONG, "draw": "d_llm"}}),
    "ace_strong_lora_random": ("ace", {"finetune": {**STRONG, "draw": "random"}}),
    "sac_no_recover": ("sac", {}),
}
"""Variants that params.yaml does not have: one that it has, and differences to it."""
OF_FIVE_SEEDS = ["ace_no_critic", "ace_shape_rl", "ace_random_K04", "ace_own_answers", "ace_random_lessons"]
OF_FIVE_SEEDS += ["ace_strong_lora", "ace_strong_lora_own", "ace_strong_lora_random"]
OF_MORE = ["ace", "sac", "ace_no_recover", "sac_no_recover", "ace_before"]
PILOTS = {
    "wcci2020": dict.fromkeys(OF_MORE, 10) | dict.fromkeys(OF_FIVE_SEEDS, 5),
    "neurips2020": dict.fromkeys([*OF_MORE, *OF_FIVE_SEEDS], 5),
}
"""environment -> variant -> number of seeds."""
LESSONS = {
    "ace_no_recover": ["ace_own_answers", "ace_random_lessons"],
    "ace_strong_lora": ["ace_strong_lora_own", "ace_strong_lora_random"],
}

START = ["env", "variant", "seed", "draw", "week", "start"]
EPISODES = [*START, "survived_steps", "survival", "decisions"]
RUNS = ["env", "variant", "seed", "env_steps", "simulator_calls", "llm_calls", "refined", "shaped", "rounds", "accepted"]
RUNS += ["distinct", "lessons", "rate_before", "rate_after", "model", "cpu"]  # model: digest; both were not noted at first
COLUMNS = ["env", "variant", "against", "metric", "value", "ci_low", "ci_high", "n_seeds"]
DRAWS = {"reconnect": 9, "ace": 9, **dict.fromkeys(["sac", "ace_no_recover", "sac_no_recover"], 3)}
"""Where an opponent acts, draws of it in which a variant plays all starts; others play the first, 0."""
BASE = "reconnect"
HELDOUT, MODEL = 200, "checkpoints/learner_pilot/{env}/model"


class UnseenStarts:
    """Every start of the validation weeks from number `first` on. Their numbers, which seed the forecasts, are no other's."""

    def __init__(self, scenarios, first):
        """scenarios: grid.scenarios.WeekScenarios of the validation weeks."""
        weeks = scenarios.weeks
        self.every = WeekScenarios(weeks, "train", len(weeks), scenarios.horizon, scenarios.seed + 1, scenarios.forecast_sd)
        self.first = first * scenarios.starts

    def __len__(self):
        return len(self.every) - self.first

    def __getitem__(self, index):
        return self.every[self.first + index]


def playing(world, params):
    """The world that agents train on, with the unseen starts as its validation scenarios."""
    found = training_world(world)
    found.sets = {"validation": UnseenStarts(world.sets["validation"], params.scenarios.validation)}
    return found


def settings_of(params, variant):
    """config.settings.Settings with the pilots' language model."""
    of_params, own = OF_A_PILOT.get(variant, (variant, {}))
    found = params.settings(of_params).model_dump()
    without = {} if variant in WITH_RECOVERY else {"operator": {"recover": 0.0}}
    for section, changes in {**own, **without, "llm": {"path": MODEL}}.items():
        found[section] = {**found[section], **changes}
    return validated(Settings, found, variant, "pilot")


def make_model(environment):
    """The pilots' language model, from training weeks, and states of unseen starts that gate no LoRA round. Once."""
    params, folder = config.load(), config.root() / MODEL.format(env=environment)
    if (folder / "model_manifest.json").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    made = corpus.build(params, environment, progress=True)
    world = World(params.environment(environment), params.scenarios, params.base.operator)
    whatif, settings = WhatIf(world), params.language_model
    training.train(params, made, textmap := TextMap(world), folder, progress=True)
    for name, at, size in (("heldout", world, params.base.finetune.heldout), ("unseen", playing(world, params), HELDOUT)):
        states, _ = heldout_states(at, whatif, made.actions, settings.shortlist, params.base.refine.margin, size, settings.seed)
        save_states(states, folder / f"{name}.npz")
    actions, ranking = ([*map(int, each)] for each in (made.actions, training.frequency_ranking(textmap, made)))
    manifest = {"environment": environment, "budget": made.budget, "actions": actions, "ranking": ranking}
    (folder / "model_manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def pilot(environment, variant, seed):
    """{"run": its row, None if nothing is trained; "episodes": rows}; read from its file if that is of this code and settings."""
    torch.set_num_threads(1)
    params, root = config.load(), config.root()
    settings = settings_of(params, variant)
    scratch = root / "checkpoints" / "learner_pilot" / environment / variant / f"seed={seed}"
    scratch.mkdir(parents=True, exist_ok=True)
    done, version = scratch / "pilot.json", settings.model_dump_json() + SOURCE_SHA256.hex()
    if done.is_file() and (found := json.loads(done.read_text()))["version"] == version:
        return found
    names = dict(zip(START, (environment, variant, seed), strict=False))
    draws = DRAWS.get(variant, 1) if params.environment(environment).opponent else 1
    found = {"version": version, "run": None}
    if settings.method == "sac":
        run = Run(params, settings, environment, seed, root, scratch)
        before = rate(run, seed)
        run.train()
        found["run"] = names | of_run(run) | {"rate_before": before, "rate_after": rate(run, seed), "cpu": processor()}
        world, agent = run.world, run.agent
    else:
        world, agent = World(params.environment(environment), params.scenarios, settings.operator), baselines.DoNothing()
    world = playing(world, params)
    unseen = world.sets["validation"]
    found["episodes"] = []
    for draw in range(draws):
        world.sets = {"validation": Redrawn(unseen, draw)}
        for i, result in enumerate(evaluate.play(world, agent, "validation", range(len(unseen)))):
            week, start = unseen[i].origin
            found["episodes"].append({**names, "draw": draw, "week": week, "start": start, **result.row()})
    done.write_text(json.dumps(found))
    return found


def rate(run, seed):
    """One-proposal rate of the run's present model on the unseen states; None where no model is tuned."""
    if not (run.session and run.learner.tuner):
        return None
    states = load_states(run.root / MODEL.format(env=run.environment) / "unseen.npz", HELDOUT)
    client = Recorder(run.session.client)  # a record of its own: these are calls of the pilot, not of the run
    hits = one_proposal(client, run.session.textmap, WhatIf(run.world), states, run.settings.refine, seed)
    return sum(hits) / len(hits)


def of_run(run):
    """What a run used and did: part of RUNS."""
    count, rounds = run.learner.count, run.finetunes
    simulator, _, asked = run._calls()
    return {
        "env_steps": count["env_steps"] + run.validation_steps, "simulator_calls": simulator, "llm_calls": asked,
        "refined": count["refined"], "shaped": count["shaped"], "rounds": len(rounds),
        "accepted": sum(each["accepted"] for each in rounds), "lessons": sum(each["lessons"] for each in rounds),
        "model": fingerprint_of_model(run.settings.llm, run.environment, run.root)[:12] if run.session else None,
        "distinct": float(np.mean([each["distinct"] for each in rounds])) if rounds else None,
    }  # fmt: skip


def summarise(episodes, runs):
    """The table with COLUMNS of the rows of all pilots."""
    rows = []
    for env, played in episodes.groupby("env"):
        trained = runs[runs["env"] == env].set_index("seed")
        for found in of_environment(played, trained):
            variant, against, metric, estimate, n_seeds = found
            rows.append([env, variant, against, metric, *(float(f"{x:.4g}") for x in estimate), n_seeds])
    return pd.DataFrame(rows, columns=COLUMNS)


def of_environment(played, trained):
    """(variant, against, metric, (value, low, high), seeds) of each row of an environment's pilots."""
    base, p = reconnection(played)
    weekly = {variant: matrix(rows) for variant, rows in played[played["draw"] == 0].groupby("variant")}
    gains = {variant: 100 * (rows["rate_after"] - rows["rate_before"]) for variant, rows in trained.groupby("variant")}
    places = ["draw", "week", "start"]
    starts = {v: rows.pivot_table(index="seed", columns=places, values="survival") for v, rows in played.groupby("variant")}
    for variant in gains:
        n = len(weekly[variant])
        yield variant, "", "seed_sd", deviation(weekly[variant].mean(axis=1)), n
        common = {other: n if other == BASE else min(n, len(weekly[other])) for other in compared(variant, weekly)}
        for other, both in common.items():
            difference = stats.paired_difference(weekly[variant][:both], weekly[other][:both])
            yield variant, other, "mean_change", difference, both
        loss, gain = loss_and_gain(starts[variant], base, p)
        yield variant, BASE, "loss_where_reconnect_survives", (loss, np.nan, np.nan), n
        as_drawn = loss_and_gain(starts[variant], base, (base >= 1).astype(float), base.loc[[0]].index)[0]
        yield variant, BASE, "loss_as_drawn", (as_drawn, np.nan, np.nan), n
        yield variant, BASE, "gain_elsewhere", (gain, np.nan, np.nan), n
        for other, both in common.items():
            if other != BASE:
                played_both = [starts[each].iloc[:both] for each in (variant, other)]
                own, of_other = (loss_and_gain(each, base, p, starts[other].columns)[0] for each in played_both)
                yield variant, other, "loss_where_reconnect_survives", (own - of_other, np.nan, np.nan), both
        if gains[variant].notna().all():
            yield variant, "", "llm_rate_gain", over_seeds(gains[variant]), n
        for other in LESSONS.get(variant, []):
            both = (gains[variant] - gains[other]).dropna()  # seeds that both have
            yield variant, other, "llm_rate_gain", over_seeds(both), len(both)


def loss_and_gain(starts, base, p, among=None):
    """Means over the seeds of harm.loss_and_gain. starts: a row a seed, a column a (draw, week, start); among: only these."""
    places = starts.columns if among is None else starts.columns.intersection(among)
    return [each.mean() for each in harm.loss_and_gain(100 * starts[places], 100 * base[places], p[places].to_numpy())]


def compared(variant, others):
    """What a variant is compared with: ACE with the main alternatives, ACE without recovery with all that were without it too."""
    if variant not in ("ace", "ace_no_recover"):
        return [BASE]
    alike = {BASE, *OF_MORE} if variant == "ace" else set(others) - set(WITH_RECOVERY)
    return sorted(set(others) & alike - {variant})


def matrix(played):
    """Survival in percent, (S, number of weeks): seeds and weeks ascending, mean of a week's starts."""
    return 100 * played.pivot_table(index="seed", columns="week", values="survival").to_numpy(float)


def deviation(values):
    sd, free = values.std(ddof=1), len(values) - 1
    return (sd, *(sd * np.sqrt(free / chi2.ppf(p, free)) for p in (0.975, 0.025)))


def reconnection(played):
    """Of reconnection alone, by (draw, week, start): survival, and the share of the other draws of the opponent in which it
    survives this start; without other draws, whether it does."""
    survival = played[played["variant"] == BASE].set_index(["draw", "week", "start"])["survival"]
    survives, others = survival >= 1, survival.index.get_level_values("draw").nunique() - 1
    if not others:
        return survival, survives.astype(float)
    return survival, (survives.groupby(level=["week", "start"]).transform("sum") - survives) / others


def over_seeds(values):
    return stats.mean(values.to_numpy()[:, None])


def replaced(path, rows, environment, variants):
    """The rows of a CSV with those of an environment's variants in place of its own; written and returned."""
    others = pd.read_csv(path) if path.is_file() else rows[:0]
    others = others[~((others["env"] == environment) & others["variant"].isin(variants))]
    table = pd.concat([each for each in (others, rows) if len(each)])
    table = table.sort_values([c for c in START if c in table], kind="stable")
    packed = {"compression": {"method": "gzip", "mtime": 0}} if path.suffix == ".gz" else {}
    table.astype(object).map(number).to_csv(path, index=False, lineterminator="\n", **packed)
    return pd.read_csv(path)


def main(environment="", *variants):
    warnings.simplefilter("ignore")
    results = config.root() / "results"
    paths = [results / f"learner_pilot_{name}" for name in ("episodes.csv.gz", "runs.csv")]
    if environment:
        if environment not in PILOTS:
            raise SystemExit(f"no pilots of {environment!r}: give one of {', '.join(PILOTS)}")
        make_model(environment)
        counts = {BASE: 1, **PILOTS[environment]}
        if unknown := set(variants) - set(counts):
            raise SystemExit(f"no pilot {min(unknown)!r} of {environment}: there are {', '.join(counts)}")
        variants = variants or tuple(counts)
        tasks = [(variant, seed) for variant in variants for seed in range(counts[variant])]
        tasks.sort(key=lambda task: task[1])  # every variant's first seed first
        found = play_tasks(functools.partial(pilot, environment), tasks, f"{environment} pilots")
        episodes = pd.DataFrame([row for each in found for row in each["episodes"]])[EPISODES]
        runs = pd.DataFrame([each["run"] for each in found if each["run"]], columns=RUNS)
        rows = zip(paths, (episodes, runs), strict=True)
        tables = [replaced(path, rows, environment, variants) for path, rows in rows]
    else:
        tables = [pd.read_csv(path) for path in paths]
    write_csv(summarise(*tables), results / "learner_pilot.csv")


if __name__ == "__main__":
    main(*sys.argv[1:])
