"""What is run: the grid of cells, environments times variants times seeds, and what studies play of it."""

from typing import Annotated, Literal

from pydantic import Field

from ace.config.errors import Model
from ace.config.settings import Count, Whole


class MoreSeeds(Model):
    """Seeds that some of the grid's variants have beside those of all."""

    seeds: list[Count]
    variants: list[str]


class Ablations(Model):
    """Variants that take ACE apart, on one environment and with seeds of their own."""

    environment: str
    seeds: Annotated[list[Count], Field(min_length=1)]
    variants: list[str]


class Also(Model):
    """LLM-ALSO's arms, which ask a model that is trained for them (also_model)."""

    environments: list[str]
    variants: list[str]
    """Run on these environments, with the seeds of the main comparison."""
    controls: list[str]
    """Run on the ablations' environment, with their seeds."""


class Pretrained(Model):
    """Variants that ask the pretrained model, tuned on the corpus of these environments; needs `make pretrained`."""

    environments: list[str]
    seeds: Annotated[list[Count], Field(min_length=1)]
    variants: list[str]


class Budget(Model):
    """Variants that leave their policy at marks (`train.marks`), for the budget curves: environments and seeds of their own."""

    environments: list[str]
    seeds: Annotated[list[Count], Field(min_length=1)]
    variants: list[str]


class Kept(Model):
    """Runs whose policies and transcripts git keeps. Others stay in checkpoints/, from where studies play policies."""

    variants: list[str]
    seeds: list[Count]


class Grid(Model):
    """What is run: every method on every environment, the ablations, and the budget curves."""

    environments: Annotated[list[str], Field(min_length=1)]
    variants: list[str]
    """What learns: one run for each seed."""
    more_seeds: MoreSeeds
    other_model: list[str]
    """The same, each with a language model that is made for it: its corpus or shape is another."""
    baselines: list[str]
    """Methods that learn nothing: one run."""
    lm_baselines: list[str]
    """The same, on what the stage language_model made."""
    also: Also
    pretrained: Pretrained
    ablations: Ablations
    budget: Budget
    one_run: list[Literal["also", "camel"]]
    """Arms of which a notebook shows the first run on the ablations' environment; they are run there."""
    kept: Kept

    @property
    def cells(self):
        """(stage of dvc.yaml, environment, variant) of all that is run, in the pipeline's order."""
        kinds = {
            "baseline": self.baselines, "lm_baseline": self.lm_baselines, "train": self.variants, "other_model": self.other_model
        }  # fmt: skip
        found = [(kind, env, variant) for kind, names in kinds.items() for env in self.environments for variant in names]
        found += [("ablation", self.ablations.environment, variant) for variant in self.ablations.variants]
        found += [("also_control", self.ablations.environment, variant) for variant in self.also.controls]
        groups = {"also": self.also, "pretrained": self.pretrained, "budget": self.budget}
        return found + [(kind, env, name) for kind, each in groups.items() for env in each.environments for name in each.variants]

    @property
    def everywhere(self):
        """All environments that something is run in: those of the main comparison, and the ablations' if it is another."""
        return list(dict.fromkeys([*self.environments, self.ablations.environment]))

    @property
    def main(self):
        """The main comparison: what is run on every environment, baselines first."""
        everywhere = self.also.variants if set(self.environments) <= set(self.also.environments) else []
        return [*self.baselines, *self.lm_baselines, *self.variants, *self.other_model, *everywhere]


class Study(Model):
    """A study that plays trained policies again."""

    variants: list[str]
    """What it plays or compares with, of what the grid declares (an ablation only on its own environment): a new variant is
    played where it is named here, and makes no other study's result stale."""


class OfficialScore(Study):
    episodes: Whole
    """Test scenarios, the first ones and at most all."""


class Foresight(Study):
    """Trained policies that look one DC power flow ahead."""

    n_candidates: Annotated[list[Annotated[int, Field(ge=2)]], Field(min_length=1)]
    """How many of a policy's most probable actions are compared: what is chosen from, together with the policy alone."""
    episodes: Whole
    """Validation scenarios that the choice is made on, none of those by which checkpoints were chosen."""


class Rates(Model):
    """Held-out states in which proposers are compared; no policy is played."""

    episodes: Whole
    """Validation scenarios, none of those by which checkpoints were chosen."""


STUDIES = ("foresight", "official_score")
"""Sections of params.yaml with a list of variants that are played again."""
