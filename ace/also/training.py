"""LLM-ALSO's embedded model, trained on trials: both roles in one model, as f_LLM and g_LLM are.

    python -m ace.also.training wcci2020 [--output results]        writes <output>/also_model/wcci2020/

    Critic       a summary -> the failure whose statistic is furthest on its bad side of the median of all summaries, in
                 interquartile ranges
    Generator    diagnosis, some of a point's trials that did not beat `base.also.margin` -> one of its configurations that did

The weights are those of the lowest loss on one held-out run; the rates are of another one, by which nothing was chosen. Finished
runs of trials wait under checkpoints/, so a call that was killed goes on. All is charged to the arm, as its corpus.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from ace import config, pool
from ace.also import roles
from ace.also.roles import FAILURES, Trial, configuration_prompt, configuration_text, diagnosis_prompt, diagnosis_text
from ace.also.summary import TURNS, Summary
from ace.also.trials import make_run
from ace.config.errors import exit_code
from ace.config.host import processor, versions
from ace.grid.environment import own_world, scenario_sets
from ace.llm.clients import LocalClient
from ace.llm.models import embedded
from ace.llm.text import Parsed, TextMap

ROLES = ("diagnosis", "configuration")
CRITIC_SHARE = 0.9
"""Of the samples: to find the worst of nine numbers is more to learn than what helped against it, and of that there are few
different samples. With more of them the held-out loss is lowest before the Critic has learned."""
AS_THEY_WERE = 8
"""One in so many summaries is as it was; of the others each statistic is of another summary."""
UNSEEN = 256
"""Samples for the held-out loss, by which the weights are chosen."""
MOST_SHOWN = 3
"""Trials in a sample's prompt."""
OF_TRIALS = {"seed", "share", "scored", "decisions", "every", "configurations"}
"""Of the section also_model, what trials depend on."""


# --- samples ----------------------------------------------------------------------------------------------------------


class Rule:
    """The failure of a summary, by what is usual in the summaries of the trials."""

    def __init__(self, summaries):
        table = pd.DataFrame(summaries)
        self.median = table.median()
        self.width = (table.quantile(0.75) - table.quantile(0.25)).clip(lower=1.0)

    def failure(self, summary):
        """A name of FAILURES. summary: summary.Summary."""
        far = {
            name: way * (getattr(summary, statistic) - self.median[statistic]) / self.width[statistic]
            for name, (statistic, way) in FAILURES.items()
        }
        return max(far, key=far.get)


def samples(runs, rule, margin, n, rng):
    """n (prompt, reply) pairs of both roles. runs: of `make_run`; margin: of settings.Also; rng: a numpy generator."""
    of_critic = round(CRITIC_SHARE * n)
    found, pairs = [each for run in runs for each in run["summaries"]], []
    for number in range(of_critic):
        summary = found[int(rng.integers(len(found)))]
        if number % AS_THEY_WERE:
            summary = {name: found[int(rng.integers(len(found)))][name] for name in summary}
        summary = Summary(**summary)
        pairs.append((diagnosis_prompt(summary), diagnosis_text(rule.failure(summary), summary)))
    points = [(diagnosis_by(rule, point["summary"]), trials_of(point)) for run in runs for point in run["points"]]
    answers = _answers(points, margin)
    return pairs + [_of_generator(*answers[number % len(answers)], margin, rng) for number in range(n - of_critic)]


def diagnosis_by(rule, summary):
    """The rule's diagnosis as text. summary: as `make_run` has it."""
    summary = Summary(**summary)
    return diagnosis_text(rule.failure(summary), summary)


def trials_of(point):
    """[Trial] of a point of `make_run`, without the control."""
    return [Trial(each["configuration"], each["gain"]) for each in point["trials"][1:]]


def _answers(points, margin):
    """[(diagnosis, trials of the point, the one that is the answer)]: each trial above the margin; where no point has one, as may
    be at a small scale, the best of each."""
    above = [(*point, trial) for point in points for trial in point[1] if (trial.gain or 0) > margin]
    best = [(*point, trial) for point in points if (trial := roles.best_of(point[1]))]
    if not best:
        raise config.ConfigError("also_model: every branch of the trials died: there is nothing to learn from")
    return above or best


def _of_generator(diagnosis, trials, answer, margin, rng):
    lost = [trial for trial in trials if trial is not answer and not (trial.gain or 0) > margin]
    shown = [lost[i] for i in rng.permutation(len(lost))[: int(rng.integers(MOST_SHOWN + 1))]]
    return configuration_prompt(diagnosis, shown), configuration_text(answer.configuration)


# --- the model --------------------------------------------------------------------------------------------------------


def make(environment, output="results", progress=True):
    """Trials, training, rates: writes <output>/also_model/<environment>/ and returns (folder, trials as a table, manifest).

    The folder gets the model as `embedded.save` has it, trials.csv, training_curve.csv and model_manifest.json.
    """
    params = config.load()
    given, root = params.also_model, config.root()
    runs = _runs(params, environment, given, root, progress)
    learned, choosing, unseen = runs[:-2], runs[-2:-1], runs[-1:]
    rule = Rule([each for run in learned for each in run["summaries"]])
    parts = (learned, given.steps * given.batch_size), (choosing, UNSEEN)
    margin = params.base.also.margin
    pairs, held = (samples(part, rule, margin, n, np.random.default_rng([given.seed, n])) for part, n in parts)
    world = own_world(params.environment(environment), params.scenarios, params.base.operator)
    tokenizer = embedded.make_tokenizer(TextMap(world), [text for pair in pairs + held for text in pair], ROLES, TURNS)
    model = embedded.make_model(tokenizer, given)
    with embedded.one_thread():
        sizes = given.steps, given.batch_size, given.lr, given.seed
        curve = embedded.fit(model, tokenizer, pairs, *sizes, held, progress, keep_best=True)
    folder = root / output / "also_model" / environment
    embedded.save(model, tokenizer, folder)
    pd.DataFrame(curve).round(4).to_csv(folder / "training_curve.csv", index=False, lineterminator="\n")
    table = trials_table(runs, rule)
    table.to_csv(folder / "trials.csv", index=False, float_format="%.6g", lineterminator="\n")
    client = LocalClient(*embedded.load(folder), params.base.llm, f"also-{environment}")
    used = {name: sum(run["used"][name] for run in runs) for name in runs[0]["used"]}
    manifest = {
        "environment": environment, "scale": params.scale, "architecture": "Qwen2, from scratch, one word one token",
        "parameters": embedded.count_parameters(model), "vocabulary": len(tokenizer), "settings": given.model_dump(),
        "branch": params.base.also.decisions, "split": "train",
        "trials": int((table["configuration"] != roles.weights_text({})).sum()), **used,  # controls are branches too
        "budget": {"simulator_calls": 0, "dc_calls": 0, "env_steps": used["env_steps"], "episodes": 0},
        "rates": rates(client, unseen, rule, given.seed),
    }  # fmt: skip
    (folder / "model_manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return folder, table, manifest


def _runs(params, environment, given, root, progress):
    shown = params.model_dump(include={"environments", "scenarios"}) | {"given": given.model_dump(include=OF_TRIALS)}
    said = json.dumps([shown, params.settings("sac").model_dump(), environment, versions()])
    said += "".join([scenario_sets(params.environment(environment), params.scenarios)["train"].hash(), processor()])
    code = pool.source_sha256({"also", "chronics", "studies", "report", "preflight", "pipeline"})
    code += b"".join((Path(__file__).parent / f"{name}.py").read_bytes() for name in ("branches", "summary", "terms", "trials"))
    place = root / "checkpoints" / "also_model" / environment / hashlib.sha256(said.encode() + code).hexdigest()[:16]
    tasks = [(environment, number, str(place)) for number in range(given.runs)]
    work, hidden = pool.finished(make_run, tasks), not progress
    with tqdm(work, total=len(tasks), desc=f"{environment}, trials", unit="run", disable=hidden) as bar:
        found = dict(bar)
    return [found[number] for number in range(given.runs)]


def trials_table(runs, rule):
    """A row a trial: run, decisions, failure, configuration, gain over the control in unshaped return, survival in scoring."""
    return pd.DataFrame(
        {"run": number, "decisions": point["decisions"], "failure": rule.failure(Summary(**point["summary"])),
         "configuration": roles.weights_text(each["configuration"]),
         "gain": each["gain"], "survival": each["survival"]}
        for number, run in enumerate(runs) for point in run["points"] for each in point["trials"]
    )  # fmt: skip


def rates(client, runs, rule, seed):
    """Shares of replies on runs that were not learned from: diagnoses that parse and that are the rule's, configurations that
    parse; and `mean_rank`. runs: of `make_run`."""
    summaries = [Summary(**each) for run in runs for each in run["summaries"]]
    replies = client.complete([diagnosis_prompt(each) for each in summaries], seed)
    parsed = [roles.parse_diagnosis(reply, each) for reply, each in zip(replies, summaries, strict=True)]
    right = [isinstance(p, Parsed) and p.value == rule.failure(each) for p, each in zip(parsed, summaries, strict=True)]
    prompts = [configuration_prompt(diagnosis_by(rule, each), []) for run in runs for each in run["summaries"]]
    proposed = [roles.parse_configuration(reply) for reply in client.complete(prompts, seed)]
    shares = {
        "diagnosis_parsed": [isinstance(p, Parsed) for p in parsed], "diagnosis_of_the_rule": right,
        "configuration_parsed": [isinstance(p, Parsed) for p in proposed],
    }  # fmt: skip
    found = {"states": len(summaries), **{name: float(np.mean(each)) for name, each in shares.items()}}
    points = [point for run in runs for point in run["points"]]
    return {**found, "points": len(points), "best_likelier": mean_rank(client, points, rule)}


def mean_rank(client, points, rule):
    """How often the Generator deems the best trial of a point likelier than another one of it, mean over points: 0.5 for one
    that knows nothing of gains, 1 if the best is always first; None where no point has two that lived. It is shown no trials."""
    shares = []
    for point in points:
        trials = [trial for trial in trials_of(point) if trial.gain is not None]
        if len(trials) > 1:
            prompt, best = configuration_prompt(diagnosis_by(rule, point["summary"]), []), roles.best_of(trials)
            of_best, *others = (
                _log_likelihood(client, prompt, configuration_text(each.configuration))
                for each in [best, *(trial for trial in trials if trial is not best)]
            )
            shares.append(np.mean([of_best > other for other in others]))
    return float(np.mean(shares)) if shares else None


def _log_likelihood(client, prompt, reply):
    """Of a whole reply, nats."""
    with torch.no_grad():
        encoded = embedded.encode(client.tokenizer, [(prompt, reply)])
        return -float(embedded.reply_loss(client.model, encoded, client.tokenizer.pad_token_id, "sum"))


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ace.also.training", description="LLM-ALSO's model, from trials.")
    parser.add_argument("environment", help="a name under `environments` in params.yaml")
    parser.add_argument("--output", default="results", help="the folder that also_model/ is in")
    given = parser.parse_args(arguments)

    def work():
        folder, table, manifest = make(given.environment, given.output)
        print(f"{config.named(folder)}: {len(table)} trials, rates {manifest['rates']}")

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
