"""Table 4: what each method costs, in samples, language-model calls, LoRA rounds and seconds, with the paper's figures.

Counts are from the manifests of the runs and are the same in every rerun. Seconds are from results/provenance/, noted by the runs
beside others on the same machine; those of the test only where methods were timed one after another (benchmarks/test_seconds.py).
"""

import math
from pathlib import Path

import numpy as np
import pandas as pd

from ace.report import notes
from ace.report.formatting import markdown, thousands, write_csv, write_parts
from ace.report.labels import grid_label, label
from ace.report.runs import adjusted, read
from ace.report.tables import main_methods

TENFOLD = 10
"""Below it, times of decisions that were measured beside other runs are not compared."""
ENDS = ["seconds_per_call", "test_s", "decision_ms"]  # these have the lowest and the highest seed as well as the mean
NUMBERS = [
    *("decisions", "env_steps_train", "env_steps_validation", "env_steps_corpus"),
    *("calls_train", "calls_test", "tokens", "lora_rounds", "lora_kept", "distinct_samples", "lesson_share", "adjustments"),
    *("train_s", "llm_s", "finetune_s", "seconds_per_call", "seconds_per_lora_round"),
    *("test_s", "test_steps", "test_ms_per_step", "decision_ms"),
]
COLUMNS = ["env", "variant", "kind", *NUMBERS, *(f"{name}_{end}" for name in ENDS for end in ("low", "high"))]
COLUMNS += ["n_seeds", "scale", "note", "source"]

PAPER = "ICML 2025, arXiv 2506.02522"
# The paper's own figures, as far as they could be found: its full text was not available.
REPORTED = [
    {"env": "neurips2020", "variant": "ace", "calls_train": 508, "llm_s": 6480.0, "seconds_per_call": 6480 / 508}
    | {"note": "paper, Qwen2-7B: 1 h 48 min", "source": f"{PAPER}; second hand: Table 4"},
    {"variant": "ace", "test_s": 38.7, "note": "paper", "source": f"{PAPER}; second hand: Table 1"},
    {"variant": "expert_sac", "test_s": 46.1, "note": "paper", "source": f"{PAPER}; second hand: Table 1"},
    {"variant": "llm_only", "test_s": 1000.0, "note": "paper: more than this"}
    | {"source": f"{PAPER}; second hand: Table 1, 1480.8 s to thousands"},
]
UNMEASURED = [{"variant": "ace_qwen2_7b", "note": "not measured: no GPU available", "source": ""}]
MORE_LABELS = {"ace_qwen2_7b": "ACE with Qwen2-7B"}


def write_cost(params, results, folder, variants=None):
    """<folder>/cost.{csv,md,tex} of the runs under results, a row a method and grid, then the paper's. Returns the table.

    variants: a selection by name; empty: those of the main comparison. What is not recorded stays empty.
    """
    runs = read(params, results, variants or main_methods(params))
    rows = [measured(runs, env, variant) for env in runs.environments for variant in runs.methods_of(env)]
    rows += [{"kind": "reported", **row} for row in REPORTED] + [{"kind": "not measured", **row} for row in UNMEASURED]
    table = pd.DataFrame(rows, columns=COLUMNS).astype(object)
    write_csv(table.where(table.notna(), None), Path(folder) / "cost.csv")
    parts = {head: (names, _part(table, cells)) for head, (names, cells) in PARTS.items()}
    write_parts(folder, "cost", f"Cost, {runs.tested()}", parts, notes.note("cost"), tex=True)
    return table


def latency(table):
    """Milliseconds of a decision and, where it is at least tenfold, how many times ACE's on the same grid, as Markdown."""
    ours = table[table["kind"] == "measured"]
    base = {row["env"]: row["decision_ms"] for _, row in ours.iterrows() if row["variant"] == "ace"}
    rows = []
    for env in dict.fromkeys(ours["env"]):
        for _, row in ours[ours["env"] == env].sort_values("decision_ms", kind="stable").iterrows():
            times = _over(_known(row["decision_ms"]), _known(base.get(env)))
            far = times if times is not None and times >= TENFOLD else None
            shown = [_shown(row["decision_ms"], "{:.2f}".format), _shown(far, thousands)]
            rows.append([grid_label(env), label(row["variant"]), *shown])
    return markdown(["Grid", "Method", "A decision, ms", "Times ACE's"], rows)


def measured(runs, env, variant):
    """One method on one grid: column -> mean over the seeds, None where nothing was recorded."""
    seeds = [_of_seed(run) for run in runs.of(env, variant)]
    columns = {name: [seed[name] for seed in seeds] for name in NUMBERS}
    row = {name: _mean(values) for name, values in columns.items()}
    for name in ENDS:
        known = [value for value in columns[name] if value is not None]
        if len(known) > 1:
            row |= {f"{name}_low": min(known), f"{name}_high": max(known)}
    identity = {"env": env, "variant": variant, "kind": "measured", "scale": runs.scale, "n_seeds": len(seeds)}
    return {**identity, **row, "source": f"results/runs/{env}/{variant}/, results/provenance/{env}.json"}


def _of_seed(run):
    budget, manifest = run.manifest["budget"], run.manifest
    steps = {phase: budget.get(phase, {}).get("env_steps") for phase in ("train", "validation", "corpus", "test")}
    branches = budget.get("branches", {"env_steps": 0, "decisions": 0})  # of LLM-ALSO, which learn too
    if steps["train"] is not None:
        steps["train"] += branches["env_steps"]
    decisions = manifest.get("decisions")
    calls = {phase: budget.get(phase, {}).get("llm_calls", 0) for phase in ("train", "test")}
    rounds = manifest.get("finetune_rounds", [])
    provenance = run.provenance or {}
    wall = provenance.get("wall_s", {})
    test_s = wall.get("evaluate") if "timed" in provenance else None
    return {
        "decisions": None if decisions is None else decisions + branches["decisions"],
        **{f"env_steps_{phase}": steps[phase] for phase in ("train", "validation", "corpus")},
        **{f"calls_{phase}": number for phase, number in calls.items()},
        "tokens": _tokens(manifest.get("tokens", {})),
        "lora_rounds": len(rounds),
        "lora_kept": sum(round_["accepted"] for round_ in rounds),
        "distinct_samples": _mean([round_.get("distinct") for round_ in rounds]),
        "lesson_share": _mean([100 * round_["of_lessons"] / round_["samples"] for round_ in rounds if round_.get("samples")]),
        "adjustments": adjusted(manifest),
        **{f"{phase}_s": wall.get(phase) for phase in ("train", "llm", "finetune")},
        "seconds_per_call": _over(wall.get("llm"), sum(calls.values())),
        "seconds_per_lora_round": _over(wall.get("finetune"), len(rounds)),
        "test_s": test_s,
        "test_steps": steps["test"],
        "test_ms_per_step": _over(test_s, steps["test"], 1e3),
        "decision_ms": provenance.get("decision_latency_ms"),
    }


def _tokens(by_role):
    """Tokens that a run's language model read and wrote; 0 without one, None where they were not recorded."""
    return None if None in by_role.values() else sum(by_role.values())


def _over(amount, number, unit=1.0):
    return unit * amount / number if amount is not None and number else None


def _known(value):
    return None if value is None or math.isnan(value) else value


def _mean(values):
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _part(table, cells):
    """Rows of one part, as text; a row that has nothing to say there is left out."""
    rows = []
    for _, row in table.iterrows():
        said = cells(row)
        if any(cell not in ("–", "") for cell in said) or row["kind"] == "not measured":
            grid = grid_label(row["env"]) if isinstance(row["env"], str) else ""
            name = MORE_LABELS.get(row["variant"]) or label(row["variant"])
            rows.append([grid, f"{name} ({row['note']})" if isinstance(row["note"], str) else name, *said])
    return rows


def _counts(row):
    rounds = _shown(row["lora_rounds"], lambda n: f"{n:.1f} ({row['lora_kept']:.1f})" if n else "–")
    steps = [_known(row[column]) for column in NUMBERS[1:4]]
    steps = None if set(steps) == {None} else sum(each or 0 for each in steps)
    shares = [_shown(row["distinct_samples"] or None, thousands), _shown(row["lesson_share"], "{:.1f}".format)]
    adjusted_by = _shown(row["adjustments"] or None, thousands)
    calls = (_shown(row[column], thousands) for column in NUMBERS[4:7])
    return [_shown(steps, thousands), *calls, rounds, *shares, adjusted_by]


def _times(row):
    train = [_shown(row[column], _seconds) for column in ("train_s", "llm_s", "finetune_s")]
    test = [_spread(row, "test_s", 1), _shown(row["test_ms_per_step"], "{:.2f}".format)]
    return [*train, _spread(row, "seconds_per_call", 3), *test, _spread(row, "decision_ms", 2)]


COUNTS = ["Env. steps", "LLM calls to train", "LLM calls in the test", "Tokens", "LoRA rounds (kept)"]
COUNTS += ["Distinct samples a round", "Of the policy, %", "Decisions adjusted by g_LLM"]
TIMES = ["Train, s", "LLM, s", "LoRA, s", "An LLM call, s", "Test, s", "A step of the test, ms", "A decision, ms"]
PARTS = {"Samples and calls": (["Grid", "Method", *COUNTS], _counts), "Seconds": (["Grid", "Method", *TIMES], _times)}


def _shown(value, write):
    """A cell; a dash for what is not there."""
    return "–" if value is None or math.isnan(value) else write(value)


def _seconds(value):
    return f"{value:,.0f}" if value else "–"


def _spread(row, name, digits):
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    there = isinstance(low, float) and not math.isnan(low)
    ends = f" [{low:.{digits}f}, {high:.{digits}f}]" if there else ""
    return _shown(row[name], lambda value: f"{value:.{digits}f}{ends}")
