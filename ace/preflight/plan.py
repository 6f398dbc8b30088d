"""What a run of the pipeline is made of: its cells, and what a check has found out about one of them."""

from dataclasses import dataclass
from typing import NamedTuple

from ace.config.settings import Settings


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
    """A variant on an environment with all its seeds. stage: its name in cells/dvc.yaml."""

    stage: str
    environment: str
    variant: str
    settings: Settings
    seeds: tuple

    @property
    def decisions(self):
        """Of one run."""
        return self.settings.train.decisions if self.settings.method == "sac" else 0

    @property
    def tunes(self):
        """Whether LoRA rounds train a model that runs in this process."""
        s = self.settings
        local = s.llm.client in ("embedded", "checkpoint")
        return local and s.method == "sac" and s.finetune.enabled and s.refine.enabled and s.refine.by_llm

    @property
    def needs_manifest(self):
        """Whether it reads the language model's set of actions, whoever answers."""
        s = self.settings
        looks_up = (s.refine.enabled and s.refine.proposer == "frequency") or s.mask.source == "frequency"
        return s.method == "dc_argmin" or (s.method == "sac" and looks_up)


def cells(params):
    """All cells of cells/dvc.yaml that play or train, in its order. params: config.Params."""
    return [
        Cell(f"{kind}@{environment}-{variant}", environment, variant, params.settings(variant), tuple(params.seeds_of(variant)))
        for kind, environment, variant in params.grid.cells
    ]
