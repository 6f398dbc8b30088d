"""What a run of the pipeline is made of: its cells, and what a check has found out about one of them."""

from dataclasses import dataclass
from typing import NamedTuple

from ace.config.settings import Settings

SHARES = 3
"""The diagnosis trains ACE with so many shares of D_LLM (ace/studies/diagnosis/measure.py)."""
MODEL_FOLDER = "results/language_model/{env}"
"""Where the stage language_model leaves the embedded model and its manifest, the set of actions."""


class Finding(NamedTuple):
    """What was looked at and what is so. state: "ok", "note" (it runs, but know this) or "FAIL" (it would not run)."""

    state: str
    what: str
    text: str


def ok(what, text):
    return Finding("ok", what, text)


def note(what, text):
    return Finding("note", what, text)


def fail(what, text):
    return Finding("FAIL", what, text)


@dataclass(frozen=True)
class Cell:
    """A variant on an environment with all its seeds. stage: its name in cells/dvc.yaml; decisions: of one run."""

    stage: str
    environment: str
    variant: str
    settings: Settings
    seeds: tuple
    decisions: int

    @property
    def tunes(self):
        """Whether LoRA rounds train a model that runs in this process."""
        s = self.settings
        local = s.llm.client in ("embedded", "checkpoint")
        return local and s.method == "sac" and s.finetune.enabled and s.refine.enabled and s.refine.by_llm

    @property
    def diagnoses(self):
        """Whether its runs are the diagnosis' short ones, which play no test and keep nothing."""
        return self.stage.startswith("measure@diagnosis-")

    @property
    def needs_manifest(self):
        """Whether it reads the language model's set of actions, whoever answers."""
        s = self.settings
        looks_up = (s.refine.enabled and s.refine.proposer == "frequency") or s.mask.source == "frequency"
        return s.method == "dc_argmin" or (s.method == "sac" and looks_up)


def cells(params):
    """All cells of dvc.yaml that play or train, in its order. params: config.Params."""
    found = []

    def add(stage, environment, variant, seeds, decisions=None):
        settings = params.settings(variant)
        most = settings.train.decisions if settings.method == "sac" else 0
        found.append(Cell(stage, environment, variant, settings, tuple(seeds), min(decisions or most, most)))

    for kind, environment, variant in params.grid.cells:
        add(f"{kind}@{environment}-{variant}", environment, variant, params.seeds_of(variant))
    few = min(params.diagnosis.decisions, params.settings("ace").train.decisions // 2)
    for environment in params.grid.environments:
        add(f"measure@diagnosis-{environment}", environment, "ace", range(SHARES * params.diagnosis.seeds), few)
    return found


def environments(params):
    return list(dict.fromkeys([*params.grid.environments, params.grid.ablations.environment]))
