"""How a claim is measured: from runs to an estimate with interval, its verdict, and what it rests on.

The functions of MEASURES are general; which of them a claim asks for, with which methods, metric and size, stands in
`contrasts.yaml`. Where the declared grid lacks what a claim needs they raise `NotTested`, so that a claim gets its verdict as
soon as its variants are declared and run.
"""

from typing import Literal, NamedTuple

import numpy as np

from ace import stats
from ace.report.runs import EPISODE_METRICS, RUN_METRICS
from ace.report.verdicts import judge, judge_all, judge_range

Metric = Literal[(*EPISODE_METRICS, *RUN_METRICS)]


class NotTested(Exception):
    """Why a claim can't be tested with the declared grid."""


class Measured(NamedTuple):
    """What a claim's row says: estimate in the claim's unit, how many, verdict, evidence in words and files, and the value of "no
    effect", None of a claim about a range."""

    estimate: stats.Estimate
    n: str
    verdict: str
    evidence: str
    null: float | None = 0.0


def difference(runs, better: str, worse: str, metric: Metric, size: float, envs: list[str] | None = None):
    """better - worse on identical episodes, averaged over the environments."""
    envs = _need(runs, [better, worse], envs)

    def found(envs):
        return stats.paired_difference(*_scores(runs, envs, [better, worse], metric))

    estimate = found(envs)
    note = _by_environment(runs, [better, worse], found, size) + _budgets(runs, envs, [better, worse])
    return _measured(runs, envs, [better, worse], metric, estimate, judge(estimate, size), note)


def best_gain(runs, better: str, worse: str, metric: Metric, size: float):
    """The largest gain over the environments, (better - worse) / worse in percent."""

    def found(envs):
        return stats.paired_ratio(*_scores(runs, envs, [better, worse], metric)).rescaled(stats.GAIN)

    gains = {env: found([env]) for env in _need(runs, [better, worse])}
    gains = {env: gain for env, gain in gains.items() if np.isfinite([*gain]).all()}
    if not gains:
        raise NotTested(f"{metric} of {worse} is not significantly above 0, so a gain in percent has no meaning")
    env = max(gains, key=lambda name: gains[name].value)
    note = f"largest of {len(gains)} environments: {env}; {_by_environment(runs, [better, worse], found, size)}"
    note += _budgets(runs, [env], [better, worse])
    return _measured(runs, [env], [better, worse], metric, gains[env], judge(gains[env], size), note)


def ratio(runs, above: str, below: str, metric: Metric, size: float, envs: list[str] | None = None):
    """above / below of the means on identical episodes, averaged over the environments."""
    envs = _need(runs, [above, below], envs)
    if metric == "refinements":
        _not_at_a_cap(runs, envs, [above, below])
    estimate = stats.paired_ratio(*_scores(runs, envs, [above, below], metric))
    _defined(estimate, f"{metric} of {below} is not significantly above 0, or there is a single value: no ratio")
    return _measured(runs, envs, [above, below], metric, estimate, judge(estimate, size, 1.0), null=1.0)


def loss(runs, full: str, without: list[str], metric: Metric, size: float, envs: list[str] | None = None):
    """Loss against full, (full - without) / full in percent, of each of the variants in without."""
    envs = _need(runs, [full, *without], envs)
    whole, *others = _scores(runs, envs, [full, *without], metric)

    each = [stats.paired_ratio(whole, other).rescaled(stats.LOSS) for other in others]
    for name, found in zip(without, each, strict=True):
        _defined(found, f"{metric} of {full} or {name} is not significantly above 0, or there is a single value: no share of it")
    strata = list(zip(whole, *others, strict=True))
    together = stats.estimate(strata, lambda m: m[..., 0] / m[..., 1:].mean(axis=-1), stats.LOG).rescaled(stats.LOSS)
    estimate, verdict, note = _of_all(without, each, together, size)
    return _measured(runs, envs, [full, *without], metric, estimate, verdict, note)


def difference_of_each(runs, better: list[str], worse: str, metric: Metric, size: float):
    """better - worse, of each of the variants in better."""
    envs = _need(runs, [*better, worse])
    *others, reference = _scores(runs, envs, [*better, worse], metric)
    strata = list(zip(*others, reference, strict=True))
    together = stats.estimate(strata, lambda m: m[..., :-1].mean(axis=-1) - m[..., -1])
    each = [stats.paired_difference(other, reference) for other in others]
    estimate, verdict, note = _of_all(better, each, together, size)
    return _measured(runs, envs, [*better, worse], metric, estimate, verdict, note + _adjustments(runs, envs, [*better, worse]))


def _of_all(names, each, together, size):
    """(estimate, verdict, evidence) of a claim that each comparison holds, one for each of names: `judge_all`."""
    said = ", ".join(f"{name} {e.value:.3g} [{e.low:.3g}, {e.high:.3g}]" for name, e in zip(names, each, strict=True))
    return *judge_all(each, together, size), f"each: {said}; " if len(each) > 1 else ""


def narrowing(runs, wide: list[str], narrow: list[str], metric: Metric):
    """(wide[0] - wide[1]) - (narrow[0] - narrow[1]): how much smaller the second gap is. Direction only, no size."""
    envs = _need(runs, [*wide, *narrow])
    strata = list(zip(*_scores(runs, envs, [*wide, *narrow], metric), strict=True))
    estimate = stats.estimate(strata, lambda m: (m[..., 0] - m[..., 1]) - (m[..., 2] - m[..., 3]))
    return _measured(runs, envs, [*wide, *narrow], metric, estimate, judge(estimate, 0.0))


def gain_to_level(runs, full: str, without: str, metric: Metric, level: list[float]):
    """full - without, where the size asked for is that `without` lies in level (low, high)."""
    envs = _need(runs, [full, without])
    a, b = _scores(runs, envs, [full, without], metric)
    estimate = stats.paired_difference(a, b)
    at_level = level[0] <= np.mean([scores.mean() for scores in b]) <= level[1]
    return _measured(runs, envs, [full, without], metric, estimate, judge(estimate, 0.0, reached=at_level))


def count(runs, variant: str, metric: Metric, low: float, high: float):
    """A number of the run, mean over the seeds of each environment, against a range."""
    envs = _need(runs, [variant])
    if metric == "refinements":
        _not_at_a_cap(runs, envs, [variant])
    (scores,) = _scores(runs, envs, [variant], metric)
    verdict = judge_range([stats.mean(values) for values in scores], low, high)
    return _measured(runs, envs, [variant], metric, _averaged(scores), verdict, null=None)


def _averaged(scores):
    """Mean over the environments. scores: a matrix each."""
    return stats.estimate([[values] for values in scores], lambda means: means[..., 0])


def _not_at_a_cap(runs, envs, variants):
    """A number of refinements says nothing where the run's own settings decided on it: where every query was used up, or
    the limit was reached."""
    for variant in variants:
        if any(_at_its_cap(run.manifest) for env in envs for run in runs.of(env, variant)):
            raise NotTested(
                f"{variant} used up all the tries or refinements that its settings allow: they decide the number"
            )


def _at_its_cap(manifest):
    """Whether the settings of a run, not its learning, decided how many refinements it made."""
    if "settings" not in manifest:
        return False
    refine, decisions = manifest["settings"]["refine"], manifest["settings"]["train"]["decisions"]
    tries = decisions // refine["every"] * refine["max_cases"]
    return manifest["refine_tried"] >= 0.95 * tries or manifest["refinements"] >= refine["limit"]


def samples_to_best(runs, variant: str, at_least: float, beside: list):
    """Environment steps until a run's best validation survival, mean over seeds and environments; of `beside` as evidence."""
    envs = _need(runs, [variant])
    steps = []
    for env in envs:
        curves = [run.training for run in runs.of(env, variant)]
        if any(curve is None for curve in curves):
            raise NotTested(f"{variant} has no training.csv")
        if max(curve["env_steps"].max() for curve in curves) < at_least:
            raise NotTested(f"{variant} was trained for fewer than {at_least:,} environment steps")
        steps.append(np.array([[curve.loc[curve["survival"].idxmax(), "env_steps"]] for curve in curves], dtype=float))
    estimate = _averaged(steps)
    verdict = judge(estimate, at_least, null=at_least)
    note = "training.csv"
    for other in [name for name in beside if name in runs.variants]:
        best = [c.loc[c["survival"].idxmax(), "env_steps"] for env in envs for c in (run.training for run in runs.of(env, other))]
        note += f"; {other} by the same measure: {np.mean(best):,.0f}"
    return _measured(runs, envs, [variant], None, estimate, verdict, note, null=at_least)


def test_seconds_ratio(runs, slow: str, fast: str, size: float):
    """Seconds a step of the test, slow over fast: a step, since a method that loses the grid early ends early."""
    envs = _need(runs, [slow, fast])

    def found(envs):
        return stats.paired_ratio(*([_seconds_a_step(runs, env, variant) for env in envs] for variant in (slow, fast)))

    estimate = found(envs)
    _defined(estimate, "one seed each: no interval for a time")
    verdict = judge(estimate, size, null=1.0)
    note = _by_environment(runs, [slow, fast], found, size, null=1.0)
    note += "wall seconds of the test from results/provenance/"
    alone = [variant for variant in (slow, fast) if len(runs.of(envs[0], variant)) == 1]
    if alone:
        note += f"; {', '.join(alone)} was timed once, so its own noise is not in the interval"
    return _measured(runs, envs, [slow, fast], None, estimate, verdict, note, null=1.0)


def seconds_per_call(runs, variant: str, model: str, low: float, high: float, beside: list):
    """Seconds a language-model call in training, against a range; model: what the name of the model must hold; beside: variants
    whose seconds are reported too where they were run."""
    envs = _need(runs, [variant])
    if not all(model.lower() in _model(run).lower() for env in envs for run in runs.of(env, variant)):
        said = [_seconds_a_call(runs, name) for name in (variant, *beside) if name in runs.variants]
        raise NotTested("; ".join([f"{variant} was run without a {model} model", *said]))
    values = [_per_call(runs, env, variant) for env in envs]
    verdict, note = judge_range([stats.mean(scores) for scores in values], low, high), "seconds a call from results/provenance/"
    return _measured(runs, envs, [variant], None, _averaged(values), verdict, note, null=None)


MEASURES = {
    each.__name__: each
    for each in (difference, best_gain, ratio, loss, difference_of_each, narrowing, gain_to_level, count, samples_to_best,
                 test_seconds_ratio, seconds_per_call)
}  # fmt: skip


def _seconds_a_call(runs, variant):
    try:
        values = {env: _per_call(runs, env, variant).mean() for env in _need(runs, [variant])}
    except NotTested as reason:
        return str(reason)
    return f"seconds a call in {variant}: {', '.join(f'{env} {value:.3g}' for env, value in values.items())}"


def _model(run):
    return run.manifest.get("settings", {}).get("llm", {}).get("model", "")


def _seconds(runs, env, variant, key):
    try:
        return np.array([[float(run.provenance["wall_s"][key])] for run in runs.of(env, variant)])
    except (TypeError, KeyError):
        raise NotTested(f"no wall_s.{key} in the provenance of {env}/{variant}") from None


def _seconds_a_step(runs, env, variant):
    steps = [run.episodes["survived_steps"].sum() for run in runs.of(env, variant)]
    return _seconds(runs, env, variant, "evaluate") / np.array(steps, dtype=float)[:, None]


def _per_call(runs, env, variant):
    calls = [run.manifest["budget"].get("train", {}).get("llm_calls", 0) for run in runs.of(env, variant)]
    if not all(calls):
        raise NotTested(f"{env}/{variant} made no language-model call in training")
    return _seconds(runs, env, variant, "llm") / np.array(calls, dtype=float)[:, None]


def _need(runs, variants, envs=None):
    """The environments to measure on, by default all; NotTested if one of them or of the
    variants is not in the declared grid."""
    missing = [variant for variant in dict.fromkeys(variants) if variant not in runs.variants]
    if missing:
        raise NotTested(_absent(*missing))
    absent = [env for env in envs or [] if env not in runs.environments]
    if absent:
        raise NotTested(f"environment {', '.join(absent)} is not in the declared grid")
    found = list(envs or runs.counted(runs.environments_of(variants)))
    if not found:
        raise NotTested(f"no environment in which {', '.join(variants)} were all run")
    return found


def _absent(*variants):
    return f"variant {', '.join(variants)} is not in the declared grid"


def _defined(estimate, reason):
    if not np.isfinite([*estimate]).all():
        raise NotTested(reason)


def _scores(runs, envs, variants, metric):
    """For each variant a list of matrices, one for each environment; methods that learn on the seeds that they share."""
    return [[runs.scores(env, variant, metric, _seeds(runs, env, variants)) for env in envs] for variant in variants]


def _seeds(runs, env, variants):
    """What learns nothing runs once, and is no reason to leave out seeds of the others: then all count, None."""
    alone = [variant for variant in variants if len(runs.of(env, variant)) == 1]
    return None if alone else runs.seeds_of_all(env, variants)


def _budgets(runs, envs, variants):
    """What each method used to learn, on the seeds that count, as evidence with its score."""
    said = []
    for env in envs:
        seeds = _seeds(runs, env, variants)
        for variant in variants:
            steps = runs.scores(env, variant, "env_steps_to_train", seeds).mean()
            calls, asked = (runs.spent(env, variant, what, seeds) for what in ("simulator_calls", "llm_calls"))
            said.append(f"{variant} {steps:,.0f} environment steps, {calls:,.0f} simulator calls, {asked:,.0f} LLM calls")
    return f"a run used, corpus included: {', '.join(said)}"


def _by_environment(runs, variants, found, size, null=0.0):
    """What each environment says by itself, where there are several; found: [env] -> Estimate."""
    said = []
    for env in runs.environments_of(variants):
        e = found([env])
        aside = "" if runs.counted([env]) else " (on its training day, not counted)"
        said.append(f"{env} {e.value:.3g} [{e.low:.3g}, {e.high:.3g}] {judge(e, size, null)}{aside}")
    return f"by environment: {', '.join(said)}; " if len(said) > 1 else ""


def _adjustments(runs, envs, variants):
    """How many rewards g_LLM moved, mean of a run."""
    means = (np.mean([run.manifest.get("shaped", 0) for env in envs for run in runs.of(env, v)]) for v in variants)
    return "adjustments a run: " + ", ".join(f"{v} {mean:.0f}" for v, mean in zip(variants, means, strict=True))


def _measured(runs, envs, variants, metric, estimate, verdict, note="", null=0.0):
    parts = [note.removesuffix("; ")] if note else []
    if metric:
        for env in envs:
            shared = _seeds(runs, env, variants)
            means = [f"{variant} {runs.scores(env, variant, metric, shared).mean():.4g}" for variant in variants]
            parts.append(f"{env} {metric}: {', '.join(means)}")
    if verdict == "not tested":
        parts.append("one value: no interval")
    files = f"results/runs/{_choice(envs)}/{_choice(variants)}/"
    seeds = sorted({len(_seeds(runs, env, variants) or runs.of(env, variant)) for env in envs for variant in variants})
    episodes = sorted({len(runs.of(env, variant)[0].episodes) for env in envs for variant in variants})
    if seeds[0] == 1 and metric in EPISODE_METRICS:
        parts.append("one seed: the interval is of the episodes alone and says nothing about training luck")
    n = f"{len(envs)} env x {'/'.join(map(str, seeds))} seed{'' if seeds == [1] else 's'}"
    if metric in EPISODE_METRICS:
        n += f" x {'/'.join(map(str, episodes))} episodes"
    return Measured(estimate, n, verdict, "; ".join([*parts, files]), null)


def _choice(names):
    names = list(dict.fromkeys(names))
    return names[0] if len(names) == 1 else "{" + ",".join(names) + "}"
