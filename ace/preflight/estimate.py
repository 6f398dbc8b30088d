"""How long a scale will take: what was measured at another scale, times what this one asks for.

Each figure comes from run files (results/runs, results/provenance), from results/benchmarks.csv, or, where no run of ours asked
such a language model, from results/pretrained_cost.csv, which extrapolates a 7B model from a small one; the list of figures says
which. It is an estimate for planning and no result.
"""

import csv
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from ace.also.roles import MOST_ASKS
from ace.config.errors import OneLine
from ace.llm.models import checkpoint, pretrained
from ace.run_files import cell_folder, provenances, read_cell, seeds_in

MEASURED = ("benchmarks.csv", "pretrained_cost.csv")
"""Of results/: rows with name and value."""
PAPER = {"call": "the paper's: 12.8 s, C7", "lora_round": "the paper's, at second hand: 785 s, its Table 4"}
NATIVE, SAMPLES = (pretrained.PLACE / pretrained.MODEL).as_posix(), 200
"""What `make pretrained` makes, as it comes; samples of a LoRA round in MEASURED."""
MODEL_S = ((600, 120.0), (4000, 600.0))
"""Labelled states and seconds of the stage language_model at the quick and the laptop scale (notebooks/02)."""
ALSO_MODEL_S = 700.0  # of the stage also_model at the laptop scale, on one core (notebooks/06)


class NotMeasured(OneLine, Exception):
    """What an estimate lacks, in one line that says what to do."""


@dataclass(frozen=True)
class Spent:
    """Seconds of one seed: learning, the language model's calls, LoRA rounds, the test. Plus calls and rounds."""

    learn_s: float = 0.0
    calls_s: float = 0.0
    lora_s: float = 0.0
    test_s: float = 0.0
    calls: int = 0
    rounds: int = 0

    @property
    def total_s(self):
        return self.learn_s + self.calls_s + self.lora_s + self.test_s


class Estimate:
    """Times of cells, and in `figures` what they rest on: {figure: source}."""

    def __init__(self, params, folders, results):
        """params: config.Params; folders: of results whose run files count, the nearest first; results: folder with MEASURED."""
        self.params, self.figures, self.step_ms = params, {}, []
        self.measured = {}  # (environment, variant) -> runs
        self.environment = None  # of the cell that is being estimated: its own runs count before those of another
        for folder in folders:
            found = defaultdict(list)
            names = [path.stem for path in sorted(folder.glob("provenance/*.json"))]
            for cell, noted in {(env, name): each for env in names for name, each in provenances(folder, env).items()}.items():
                seeds = cell_folder(folder, *cell)
                runs = read_cell(seeds) if seeds_in(seeds) else {}
                place = {"place": f"{folder.name}/runs/{'/'.join(cell)}"}
                for seed, run in runs.items():
                    if seed in noted:
                        found[cell].append({**run.manifest, **noted[seed], **place})
            for place, runs in found.items():
                self.measured.setdefault(place, runs)
        self.speed = {}
        for path in (results / name for name in MEASURED if (results / name).is_file()):
            with path.open() as lines:
                self.speed |= {row["name"]: float(row["value"]) for row in csv.DictReader(lines)}

    @property
    def is_possible(self):
        """Whether SAC and ACE were ever run, which all else is estimated from."""
        return bool(self.runs("sac") and self.runs("ace"))

    def runs(self, variant):
        """Measured runs of a variant: on this environment, else on the first that has any, else none."""
        places = sorted(place for place in self.measured if place[1] == variant)
        own = (self.environment, variant)
        return self.measured[own if own in places else places[0]] if places else []

    def like(self, cell):
        """The variant whose measured runs stand for a cell's."""
        if self.runs(cell.variant):
            return cell.variant
        if cell.settings.method != "sac":
            return "reconnect" if self.runs("reconnect") else "ace"
        return "ace" if cell.settings.refine.enabled else "sac"

    # --- one seed of a cell -------------------------------------------------------------------------------------------

    def of(self, cell):
        """Spent of one seed of a plan.Cell; NotMeasured where nothing tells it."""
        if not self.is_possible:
            raise NotMeasured("results/provenance has no runs of sac and ace to tell it from: run these first")
        self.environment = cell.environment
        calls, rounds, calls_each = *self._calls(cell), 0.0
        if calls:
            calls_each = self._call_s(cell.settings.llm)
        return Spent(
            learn_s=self._learn_s(cell) if cell.decisions else 0.0,
            calls_s=calls * calls_each,
            lora_s=rounds * self._lora_s(cell.settings.llm) if rounds else 0.0,
            test_s=self._test_s(cell),
            calls=calls,
            rounds=rounds,
        )

    def _mean(self, variant, above, below):
        """Sum of one quantity over that of another, over the measured runs of a variant."""
        runs = self.runs(variant)
        return sum(map(above, runs)) / max(sum(map(below, runs)), 1e-9)

    def _from(self, variant):
        return f"{self.runs(variant)[0]['place']}, {len(self.runs(variant))} seeds"

    def _learn_s(self, cell):
        """Decisions, updates, validations and simulated proposals, without the language model's own time."""
        variant = self.like(cell)
        each = self._mean(
            variant, lambda r: sum(r["wall_s"][k] * s for k, s in (("train", 1), ("llm", -1), ("finetune", -1))),
            lambda r: r["decisions"],
        )  # fmt: skip
        self.figures[f"{1e3 * each:.0f} ms a decision of {variant} (with updates, validations)"] = self._from(variant)
        return each * (cell.decisions + _in_branches(cell.settings.also, cell.decisions))

    def _calls(self, cell):
        """(calls of the language model, LoRA rounds) of one seed, by what ACE took where it was measured."""
        s, ace = cell.settings, self.runs("ace")
        if not s.uses_llm:
            return 0, 0
        if s.method == "llm_only":
            return self._calls_in_test(cell), 0
        calls = rounds = 0
        slots = cell.decisions // s.refine.every * s.refine.max_cases
        if s.refine.enabled and s.refine.by_llm:
            gained = self._mean("ace", lambda r: r["refinements"], lambda r: r["refine_tried"])
            proposals = self._mean("ace", lambda r: r["roles"]["actor"]["proposals"], lambda r: r["refine_tried"])
            tried = min(slots, s.refine.limit / gained)
            calls += tried * proposals
            text = f"{proposals:.1f} proposals a bad case, {gained:.0%} of bad cases refined"
            self.figures[text] = f"manifest of {ace[0]['place']} (the embedded model)"
            if cell.tunes:
                rounds = int(tried * gained // s.finetune.every)
                calls += s.finetune.heldout * (rounds + 1) if rounds else 0
        if s.shape.enabled and s.shape.judge == "llm":

            def exposure(shape, decisions):
                return decisions * (1 - shape["start"]) / shape["every"]

            measured = self._mean(
                "ace", lambda r: r["roles"]["critic"]["prompts"],
                lambda r: exposure(r["settings"]["shape"], r["decisions"]),
            )  # fmt: skip
            calls += measured * exposure(s.shape.model_dump(), cell.decisions)
        if s.teach.enabled:
            calls += slots
        if s.mask.source == "model":  # at the most, as if no two states were alike
            masked = s.mask.epsilon * s.mask.until * cell.decisions / 2
            calls += min(slots * s.refine.rounds, masked * s.mask.answers)
        if s.also.source == "model":
            calls += _points(s.also, cell.decisions) * (1 + MOST_ASKS * (s.also.rounds if s.also.tested else 1))  # at the most
        return math.ceil(calls), rounds

    def _steps_in_test(self, cell):
        """As if every scenario of the test and the packaged days were survived; marks, lower limits and redraws left out."""
        scenarios, environment = self.params.scenarios, self.params.environment(cell.environment)
        bridged = cell.variant in self.params.grid.main and environment.weeks and environment.packaged_days
        return (scenarios.test + (scenarios.packaged if bridged else 0)) * environment.horizon

    def _calls_in_test(self, cell):
        if not self.runs("llm_only"):
            return 0
        each = self._mean(
            "llm_only", lambda r: r["budget"]["test"]["llm_calls"], lambda r: r["budget"]["test"]["env_steps"]
        )
        self.figures[f"{1e3 * each:.0f} calls in 1,000 test steps of llm_only"] = self._from("llm_only")
        return math.ceil(each * self._steps_in_test(cell))

    def _test_s(self, cell):
        variant = self.like(cell)
        each = self._mean(
            variant, lambda r: r["wall_s"]["evaluate"] - (r["wall_s"]["llm"] if variant == "llm_only" else 0),
            lambda r: r["budget"]["test"]["env_steps"],
        )  # fmt: skip
        self.step_ms.append(1e3 * each)
        return each * self._steps_in_test(cell)

    # --- the language model -------------------------------------------------------------------------------------------

    def _same(self, llm):
        """Measured runs that asked a model of this kind: for a server or a checkpoint, that very model; those of ACE on this
        environment, else all on it, else all: prompts differ in length by grid, and variants may be timed on other machines."""
        named = llm.client in ("server", "checkpoint")
        found = [
            (place, run) for place, runs in self.measured.items() for run in runs
            if run["settings"]["llm"]["client"] == llm.client and run["wall_s"]["llm"] > 0
            and (not named or run["settings"]["llm"]["model"] == llm.model)
        ]  # fmt: skip
        here = [(variant, run) for (environment, variant), run in found if environment == self.environment]
        return [run for variant, run in here if variant == "ace"] or [run for _, run in here] or [run for _, run in found]

    def _call_s(self, llm):
        if llm.client == "replay":
            return 0.0
        same = self._same(llm)
        if same:
            calls = sum(run["budget"]["train"]["llm_calls"] + run["budget"]["test"]["llm_calls"] for run in same)
            each = sum(run["wall_s"]["llm"] for run in same) / max(calls, 1)
            self.figures[f"{each:.3g} s a call, client {llm.client}"] = f"wall_s.llm of {len(same)} measured runs"
            return each
        return self._of_costs(llm, "call", "call")

    def _lora_s(self, llm):
        same = [run for run in self._same(llm) if run.get("finetune_rounds")]
        if same:
            each = sum(run["wall_s"]["finetune"] for run in same) / sum(len(run["finetune_rounds"]) for run in same)
            self.figures[f"{each:.3g} s a LoRA round, client {llm.client}"] = (
                f"wall_s.finetune of {len(same)} measured runs"
            )
            return each
        return self._of_costs(llm, "lora_round", f"LoRA round of {SAMPLES} samples")

    def _of_costs(self, llm, what, unit):
        """Seconds of one core by results/pretrained_cost.csv, where no run of ours asked such a model: measured of the model of
        `make pretrained`, extrapolated to Qwen2-7B for all others. what: "call" or "lora_round"; NotMeasured without its rows."""
        form = {checkpoint.TUNED: self.params.pretrained_model.form, NATIVE: "native"}.get(llm.model or llm.path)
        try:
            if form is None:
                seconds, how = self.speed[f"qwen2_7b_{what}_s"], f"Qwen2-7B, extrapolated; a GPU is faster ({PAPER[what]})"
            else:
                names = ("prompt_tokens", "reply_tokens", "read_ms", "write_ms", "tune_ms")
                prompt, reply, read_ms, write_ms, tune_ms = (self.speed[f"{form}_{name}"] for name in names)
                spent_ms = {"call": prompt * read_ms + reply * write_ms, "lora_round": SAMPLES * (prompt + reply) * tune_ms}
                seconds, how = spent_ms[what] / 1e3, f"measured in the {form} form"
        except KeyError as missing:
            file = f"results/{MEASURED[1]}"
            raise NotMeasured(f"{file} has no row for {missing}: python -m benchmarks.pretrained_cost writes it") from None
        asked = f"client {llm.client}, model {llm.model or llm.path!r}"
        self.figures[f"{seconds:,.2f} s a {unit}, {asked}"] = f"results/{MEASURED[1]}, one core: {how}"
        return seconds

    def model_s(self):
        """The stage language_model on one environment."""
        (few, low), (many, high) = MODEL_S
        self.figures["2 to 10 min to make an embedded model, by its states"] = "notebooks/02_language_model.ipynb"
        return max(low + (self.params.language_model.states - few) * (high - low) / (many - few), 30.0)

    def pretrained_s(self):
        """The stage pretrained_model on one environment, where it does not stop before its last step."""
        spec, tuned = self.params.pretrained_model, {"client": "checkpoint", "model": "", "path": checkpoint.TUNED}
        llm = self.params.base.llm.model_copy(update=tuned)
        rounds = spec.steps * spec.batch_size / SAMPLES
        return rounds * self._of_costs(llm, "lora_round", f"LoRA round of {SAMPLES} samples")


def _points(also, decisions):
    return (decisions - 1) // also.every if also.source != "none" and decisions else 0


def _in_branches(also, decisions):
    """Decisions in branches at the most: at each point a control, what is in force, and the candidates of all rounds."""
    branches = 2 if also.source == "guard" else (2 + also.candidates * also.rounds) * also.tested
    return _points(also, decisions) * branches * also.decisions


def waves(n_seeds, jobs):
    """How many times one seed's time a cell takes."""
    return math.ceil(n_seeds / max(min(jobs, n_seeds), 1))


def lines(params, cells, jobs, beside_s, workspace, home, models=True):
    """The estimate as text. beside_s: seconds of all stages without a cell; home: the repository, with results/; models: whether
    the embedded ones are made."""
    results = Path(home) / "results"
    estimate = Estimate(params, [Path(workspace) / "results", results], results)
    try:
        rows = [(cell, estimate.of(cell)) for cell in cells]
        models_s, n_models = _of_models(params, estimate, models)
    except NotMeasured as missing:
        yield f"time: no estimate, {missing}"
        return
    total_s = models_s + beside_s + sum(spent.total_s * waves(len(cell.seeds), jobs) for cell, spent in rows)
    yield f"estimate: {span(total_s)} in all, {jobs} process{'es' if jobs > 1 else ''} at a time on processors like ours:"
    for cell, spent in rows:
        parts = [f"{span(spent.total_s * waves(len(cell.seeds), jobs)):>10s}  {cell.stage:36s} {len(cell.seeds)} x"]
        parts.append(f"{span(spent.total_s)}")
        if spent.calls:
            parts.append(f"of it {spent.calls:,} calls {span(spent.calls_s)}")
        if spent.rounds:
            parts.append(f"{spent.rounds} LoRA rounds {span(spent.lora_s)}")
        yield "  " + ", ".join(parts).replace("x, ", "x ")
    yield f"  {span(models_s):>10s}  language models, {n_models} in all"
    yield f"  {span(beside_s):>10s}  tables, figures and the rest"
    makers = sorted({run["cpu"] for runs in estimate.measured.values() for run in runs})
    yield f"rests on (measured on {', '.join(makers)}):"
    low, high = min(estimate.step_ms), max(estimate.step_ms)
    yield f"  {low:.1f} to {high:.1f} ms a test step, by method: wall_s.evaluate in provenance/"
    for figure, source in estimate.figures.items():
        yield f"  {figure}: {source}"
    yield "  tables, figures and the rest: as at the quick scale (SECONDS in ace/pipeline/repro.py)"
    if params.scale == "quick" and "quick_min" in estimate.speed:
        yield f"  beside it, measured as a whole: {estimate.speed['quick_min']:.1f} min (results/benchmarks.csv, quick_min)"


def _of_models(params, estimate, made):
    """Seconds of the stages that make language models, and how many they make. made: whether those of `language_model`."""
    grid, embedded = params.grid, len(params.grid.environments) * (made + len(params.grid.other_model))
    also, tuned = len(grid.also.environments), len(grid.pretrained.environments)
    spent_s = estimate.model_s() * embedded + ALSO_MODEL_S * also
    return spent_s + (estimate.pretrained_s() * tuned if tuned else 0.0), embedded + also + tuned


def span(seconds):
    """Two figures of it: 45 s, 12 min, 6.5 h, 3.2 days."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
