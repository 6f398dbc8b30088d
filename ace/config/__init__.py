"""Every number that steers a run, typed and checked before any work starts.

The numbers live in params.yaml and nowhere else: no field below has a default. A *variant* is a name and its differences
from `base`; `Params.settings(name)` merges and validates it. Whatever is wrong ends in one line (`ConfigError`) that
names the key, what was given and what is allowed.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from ace.checked import ConfigError, Model, meant, validated
from ace.config.settings import Count, Finetune, Positive, Settings, Share, Whole


class Days(Model):
    """Source days of the packaged chronics, numbered over all of them; disjoint, or [0] thrice where one day is packaged."""

    train: list[Count]
    validation: list[Count]
    test: list[Count]

    @model_validator(mode="after")
    def disjoint(self):
        only_day = self.train == self.validation == self.test == [0]
        for a, b in (("train", "validation"), ("train", "test"), ("validation", "test")):
            both = set(getattr(self, a)) & set(getattr(self, b))
            if both and not only_day:
                raise ValueError(f"days {sorted(both)} are in {a} and in {b}; a source day belongs to one split")
        return self


class Environment(Model):
    grid2op: str
    """Name of the Grid2Op environment."""
    thermal_factor: Positive
    """Thermal limits are multiplied by this; it sets the difficulty smoothly."""
    horizon: Whole
    """Steps of an episode, 5 minutes each."""
    opponent: bool
    """Whether Grid2Op's own opponent attacks lines."""
    days: Days


class Scenarios(Model):
    seed: Count
    train: Whole
    validation: Whole
    test: Whole
    load_sd: Share
    renewable_sd: Share
    forecast_sd: Share


class LanguageModel(Model):
    """The embedded model: its corpus, shape and training."""

    seed: Count
    scan: Whole
    """States in which the whole catalogue is screened, to choose the actions from."""
    states: Whole
    """States of danger in which all chosen actions are simulated: the labels."""
    heldout_states: Whole
    """Of validation scenarios, for the proposal rates."""
    actions: Whole
    """Size of the set of actions, chosen by coverage on training states, from which the labels come."""
    shortlist: Whole
    """Candidates simulated in a scanned state."""
    hidden: Whole
    layers: Whole
    heads: Whole
    ffn: Whole
    batch_size: Whole
    steps: Whole
    lr: Positive

    @model_validator(mode="after")
    def heads_share_hidden(self):
        if self.hidden % (2 * self.heads):
            raise ValueError(f"hidden = {self.hidden} must be a multiple of 2 x heads = {2 * self.heads}")
        return self


class Ablations(Model):
    """Variants that take ACE apart, on one environment and with seeds of their own."""

    environment: str
    seeds: Annotated[list[Count], Field(min_length=1)]
    variants: list[str]


class Grid(Model):
    """What is run: every method on every environment, and the ablations."""

    environments: Annotated[list[str], Field(min_length=1)]
    variants: list[str]
    """What learns: one run for each seed."""
    other_model: list[str]
    """The same, each with a language model that is made for it: its corpus or shape is another."""
    baselines: list[str]
    """Methods that learn nothing: one run."""
    lm_baselines: list[str]
    """The same, on what the stage language_model made."""
    ablations: Ablations


class Outages(Model):
    """Test episodes without one of the lines."""

    lines: Whole
    """Lines that are taken out, one at a time."""
    episodes: Whole
    """Test scenarios, the first ones and at most all, each of them without one of the lines, in turn."""


class OfficialScore(Model):
    episodes: Whole
    """Test scenarios, the first ones and at most all."""


class Foresight(Model):
    """Trained policies that look one DC power flow ahead."""

    most: Annotated[list[Annotated[int, Field(ge=2)]], Field(min_length=1)]
    """How many of a policy's most probable actions are compared: what is chosen from, beside the policy alone."""
    episodes: Whole
    """Validation scenarios that the choice is made on, none of those by which checkpoints were chosen."""


class Diagnosis(Model):
    labels: Annotated[list[Whole], Field(min_length=1)]
    """How many labels are imitated, at most as many as a run has decisions."""
    steps: Whole
    """Gradient steps of an imitation."""
    decisions: Whole
    """Of a short training run, at most half of a run's."""
    states: Whole
    """Held-out states, and states of each visitor."""
    seeds: Whole
    """Of imitations and of short runs."""


class Params(Model):
    scale: Literal["quick", "laptop", "paper"]
    seeds: Annotated[list[Count], Field(min_length=1)]
    grid: Grid
    environments: dict[str, Environment]
    scenarios: Scenarios
    base: Settings
    language_model: LanguageModel
    language_models: dict[str, dict[str, Any]]
    """Of variants under `grid.other_model`: name -> differences to `language_model`."""
    lora: dict[str, dict[str, Any]]
    """Settings that LoRA rounds are tried with in a shifted world, beside a run's: name -> differences to `base.finetune`.

    The rounds are made in any case and none is rolled back: `enabled` and `heldout` have no meaning here.
    """
    outages: Outages
    official_score: OfficialScore
    foresight: Foresight
    diagnosis: Diagnosis
    variants: dict[str, dict[str, Any]]

    def environment(self, name):
        if name not in self.environments:
            raise ConfigError(f"environment {name!r} is not in params.yaml{meant(name, self.environments)}")
        return self.environments[name]

    def settings(self, variant, source="params.yaml"):
        """The settings of a variant: base with the variant's differences. source: the file's name, for messages."""
        if variant not in self.variants:
            raise ConfigError(f"variant {variant!r} is not in params.yaml{meant(variant, self.variants)}")
        merged = _merge(self.base.model_dump(), self.variants[variant])
        return validated(Settings, merged, f"variants.{variant}", source)

    def with_model(self, variant, source="params.yaml"):
        """These parameters with the language model of a variant under `language_models`; as they are for ""."""
        if not variant:
            return self
        if variant not in self.language_models:
            raise ConfigError(f"language model {variant!r} is not in {source}{meant(variant, self.language_models)}")
        merged = {**self.language_model.model_dump(), **self.language_models[variant]}
        return self.model_copy(
            update={"language_model": validated(LanguageModel, merged, f"language_models.{variant}", source)}
        )

    def lora_settings(self, name, source="params.yaml"):
        """config.settings.Finetune of one of `lora`, or of a run by any other name. source: the file's name, for messages."""
        changes = self.lora.get(name, {})
        for key in {"enabled", "heldout"} & set(changes):
            raise ConfigError(f"{source}: lora.{name}.{key}: the rounds are always made here, and none is rolled back")
        merged = {**self.base.finetune.model_dump(), **changes}
        return validated(Finetune, merged, f"lora.{name}", source)


def root():
    """The workspace: the nearest folder, from here upwards, that holds params.yaml."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "params.yaml").is_file():
            return folder
    raise ConfigError(f"no params.yaml in {here} or above: run this inside the repository")


def load(path=None):
    """Read and check params.yaml, every variant included. path: a file, default: the workspace's."""
    path = Path(path) if path else root() / "params.yaml"
    source = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path.name
    try:
        raw = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{source} holds no keys")
    params = validated(Params, raw, "", source)
    if len(set(params.seeds)) < len(params.seeds):
        raise ConfigError(f"{source}: seeds = {params.seeds}: each seed once")
    for name in params.variants:
        params.settings(name, source)
    for name in params.lora:
        params.lora_settings(name, source)
    for name in params.language_models:
        params.with_model(name, source)
    for name in params.grid.other_model:
        if name not in params.language_models:
            raise ConfigError(f"{source}: grid.other_model: {name!r} has no entry under language_models")
        own = f"results/language_models/{name}/{{env}}"
        if params.settings(name, source).llm.path != own:
            raise ConfigError(f"{source}: variants.{name}.llm.path: its own model is at {own}")
        if name in [*params.grid.variants, *params.grid.ablations.variants]:
            raise ConfigError(f"{source}: grid.other_model: {name!r} stands under variants too, which would run it twice")
    lists = {place: getattr(params.grid, place) for place in ("variants", "baselines", "lm_baselines")}
    for place, names in [*lists.items(), ("variants", params.grid.other_model), ("variants", params.grid.ablations.variants)]:
        for name in names:
            home = params.settings(name, source).home
            if home != place:
                raise ConfigError(f"{source}: grid.{place}: {name!r} belongs to {home}")
    for name in [*params.grid.environments, params.grid.ablations.environment]:
        params.environment(name)
    return params


def digest(model):
    """Short hash of settings, so that a checkpoint of other settings is never continued."""
    return hashlib.sha256(json.dumps(model.model_dump(), sort_keys=True).encode()).hexdigest()[:16]


def jobs():
    """Processes to use: ACE_JOBS, or the number of cores."""
    given = os.environ.get("ACE_JOBS", "")
    if given and (not given.isdigit() or int(given) < 1):
        raise ConfigError(f"ACE_JOBS = {given!r}: give a whole number of processes, 1 or more")
    return int(given) if given else os.cpu_count() or 1


def _merge(base, changes):
    return {**base, **{k: _merge(base[k], v) if isinstance(v, dict) and isinstance(base.get(k), dict) else v
                       for k, v in changes.items()}}  # fmt: skip
