"""Every number that steers a run, typed and checked before any work starts.

The numbers live in params.yaml and nowhere else: no field below has a default, but an environment may go without a section.
A *variant* is a name and its differences from `base`; `Params.settings(name)` merges and validates it. Whatever is wrong ends
in one line (`ConfigError`) that names the key, what was given and what is allowed.
"""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ace.config.declared import STUDIES, Foresight, Grid, OfficialScore, Rates
from ace.config.environments import Chronics, Environment, Scenarios, misfits
from ace.config.errors import ConfigError, Model, meant, validated
from ace.config.models import AlsoModel, LanguageModel, PretrainedModel
from ace.config.settings import Count, Finetune, Settings


class Params(Model):
    scale: Literal["quick", "laptop", "paper"]
    seeds: Annotated[list[Count], Field(min_length=1)]
    grid: Grid
    environments: dict[str, Environment]
    scenarios: Scenarios
    chronics: Chronics
    base: Settings
    language_model: LanguageModel
    language_models: dict[str, dict[str, Any]]
    """Of variants under `grid.other_model`: name -> differences to `language_model`."""
    pretrained_model: PretrainedModel
    also_model: AlsoModel
    lora: dict[str, dict[str, Any]]
    """Settings that LoRA rounds are tried with in a shifted world, besides a run's: name -> differences to `base.finetune`.

    The rounds are made in any case and none is rolled back: `enabled` and `heldout` have no meaning here.
    """
    official_score: OfficialScore
    foresight: Foresight
    rates: Rates
    variants: dict[str, dict[str, Any]]

    def environment(self, name):
        if name not in self.environments:
            raise ConfigError(f"environment {name!r} is not in params.yaml{meant(name, self.environments)}")
        return self.environments[name]

    def seeds_of(self, variant):
        """Seeds that a variant is run with: one where nothing is learned, those of the ablations for what is declared there."""
        grid = self.grid
        if variant in [*grid.variants, *grid.other_model, *grid.also.variants]:
            return [*self.seeds, *(grid.more_seeds.seeds if variant in grid.more_seeds.variants else [])]
        for names, seeds in (
            (grid.ablations.variants, grid.ablations.seeds), (grid.also.controls, grid.ablations.seeds),
            (grid.pretrained.variants, grid.pretrained.seeds), (grid.budget.variants, grid.budget.seeds),
        ):  # fmt: skip
            if variant in names:
                return list(seeds)
        return list(self.seeds) if variant in self.variants and self.settings(variant).method == "sac" else [0]

    def played(self, study, environment):
        """What a study, by its name here, plays on an environment: (methods without training, learned variants), in its order."""
        grid = self.grid
        learned = [*grid.variants, *(grid.ablations.variants if environment == grid.ablations.environment else [])]
        unlearned = [*grid.baselines, *grid.lm_baselines]
        scored = study != "official_score" or environment == grid.ablations.environment  # one competition is scored so
        listed = getattr(self, study).variants if scored else []
        return [name for name in listed if name in unlearned], [name for name in listed if name in learned]

    def kept_seeds(self, environment, variant):
        """Seeds of a cell whose policies and transcripts lie beside its tables; others' stay under checkpoints/, not in git."""
        of_grid = (environment, variant) in {tuple(cell) for _, *cell in self.grid.cells}
        kept = self.grid.kept.seeds if of_grid and variant in self.grid.kept.variants else []
        return [seed for seed in kept if seed in self.seeds_of(variant)]

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


def named(path):
    """A path as a message names it: from the workspace on where it lies inside, else whole."""
    path = Path(path)
    return path.relative_to(root()) if path.is_relative_to(root()) else path


def load(path=None):
    """Read and check params.yaml, every variant included. path: a file, default: the workspace's.

    Raises ConfigError that names all mistakes of a section, or, where each section is right, all between them.
    """
    path = Path(path) if path else root() / "params.yaml"
    source = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path.name
    try:
        raw = YAML(typ="safe").load(path.read_text())  # YAML 1.2, as DVC reads it: 1e-3 is a number, no is a word
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except YAMLError as error:
        said, _, _ = str(error).partition("To suppress this check")
        said = " ".join(said.split()).replace('"<unicode string>"', source)
        raise ConfigError(f"{source} is not valid YAML: {said}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{source} holds no keys")
    params = validated(Params, raw, "", source)
    if mistakes := _mistakes(params, source):
        raise ConfigError("; ".join(mistakes))
    return params


def _mistakes(params, source):
    """What is wrong between sections, each of which is right by itself: list of messages."""
    grid, ablations = params.grid, params.grid.ablations
    found = [f"{source}: {misfit}" for misfit in misfits(params)]

    def attempt(make, name):
        try:
            return make(name, source)
        except ConfigError as error:
            found.append(str(error))

    def known(key, name, names, what):
        if name not in names:
            found.append(f"{source}: {key} = {name!r}: no such {what}{meant(name, names)}")

    groups = {"ablations": grid.ablations, "pretrained": grid.pretrained, "budget": grid.budget}
    of_groups = {f"grid.{name}.seeds": each.seeds for name, each in groups.items()}
    more = {"seeds + grid.more_seeds.seeds": [*params.seeds, *grid.more_seeds.seeds]} if grid.more_seeds.seeds else {}
    for key, seeds in {"seeds": params.seeds, **more, **of_groups}.items():
        if len(set(seeds)) < len(seeds):
            found.append(f"{source}: {key} = {seeds}: each seed once")
    for key in ("environments", "variants", "language_models"):
        for name in getattr(params, key):
            if not re.fullmatch(r"\w+", name, re.ASCII):
                found.append(f"{source}: {key}: {name!r}: a name is made of letters, digits and _: it becomes that of a folder")
    variants = {name: attempt(params.settings, name) for name in params.variants}
    trains = {"base": params.base.train} | {f"variants.{name}": each.train for name, each in variants.items() if each}
    for key, train in trains.items():
        if train.warmup >= train.decisions and (key == "base" or train != params.base.train):  # said once of what all inherit
            found.append(
                f"{source}: {key}.train: warmup = {train.warmup} must be below decisions = {train.decisions}: "
                "no update would be made, and the deployed policy is an average over the updates"
            )
    for make, names in ((params.lora_settings, params.lora), (params.with_model, params.language_models)):
        for name in names:
            attempt(make, name)
    for i, name in enumerate(grid.environments):
        known(f"grid.environments.{i}", name, params.environments, "environment")
    for key, names in {"pretrained": grid.pretrained.environments, "also": grid.also.environments}.items():
        for i, name in enumerate(names):
            if name not in grid.environments:  # which makes what its model is made of
                found.append(f"{source}: grid.{key}.environments.{i} = {name!r}: it is not under grid.environments")
    if grid.also.controls and ablations.environment not in grid.also.environments:
        found.append(f"{source}: grid.also.controls: they need {ablations.environment!r} under grid.also.environments")
    known("grid.ablations.environment", ablations.environment, params.environments, "environment")
    for i, name in enumerate(grid.budget.environments):
        known(f"grid.budget.environments.{i}", name, params.environments, "environment")
    lists = {
        "grid.variants": (grid.variants, "variants"), "grid.other_model": (grid.other_model, "variants"),
        "grid.ablations.variants": (ablations.variants, "variants"), "grid.baselines": (grid.baselines, "baselines"),
        "grid.lm_baselines": (grid.lm_baselines, "lm_baselines"), "grid.budget.variants": (grid.budget.variants, "variants"),
        "grid.also.variants": (grid.also.variants, "variants"), "grid.also.controls": (grid.also.controls, "variants"),
        "grid.pretrained.variants": (grid.pretrained.variants, "variants"),
        "grid.kept.variants": (grid.kept.variants, "variants"),
    }  # fmt: skip
    for key, (names, home) in lists.items():
        for i, name in enumerate(names):
            known(f"{key}.{i}", name, params.variants, "variant")
            settings = variants.get(name)
            if settings and settings.home != home:
                found.append(f"{source}: {key}.{i} = {name!r}: it belongs to {settings.home}")
    for i, name in enumerate(grid.more_seeds.variants):
        if name not in grid.variants:
            found.append(f"{source}: grid.more_seeds.variants.{i} = {name!r}: it is not under grid.variants")
    run_by = {}
    for key in ("variants", "ablations.variants", "also.variants", "also.controls", "pretrained.variants", "budget.variants"):
        for name in dict.fromkeys(lists[f"grid.{key}"][0]):
            if name in run_by:
                found.append(f"{source}: grid.{key}: {name!r} stands under grid.{run_by[name]} too, which would run it twice")
            run_by.setdefault(name, key)
    for i, name in enumerate(grid.budget.variants):
        if variants.get(name) and not variants[name].train.marks:
            found.append(f"{source}: grid.budget.variants.{i} = {name!r}: variants.{name}.train.marks is empty: no curve")
    for study in STUDIES:
        for i, name in enumerate(names := getattr(params, study).variants):
            key = f"{study}.variants.{i}"
            known(key, name, params.variants, "variant")
            if name in params.variants and (problem := _not_playable(params, name, variants.get(name))):
                found.append(f"{source}: {key} = {name!r}: {problem}")
            if name in names[:i]:
                found.append(f"{source}: {key} = {name!r}: each variant once")
    for name in grid.other_model:
        if name not in params.language_models:
            found.append(f"{source}: grid.other_model: {name!r} has no entry under language_models")
        own, settings = f"results/language_models/{name}/{{env}}", variants.get(name)
        if settings and settings.llm.path != own:
            found.append(f"{source}: variants.{name}.llm.path: its own model is at {own}")
        if name in [*grid.variants, *ablations.variants]:
            found.append(f"{source}: grid.other_model: {name!r} stands under variants too, which would run it twice")
    return found


def _not_playable(params, variant, settings):
    """Why no study can play a variant of params.yaml, or None. settings: its own, None where they are wrong."""
    grid = params.grid
    if variant in grid.other_model:
        return "studies play what shares one language model, and it has its own"
    if settings and settings.method == "llm_only":
        return "it asks a language model in play, and studies ask none"
    run = [*grid.baselines, *grid.lm_baselines, *grid.variants, *grid.ablations.variants]
    return None if variant in run else "it is not in the grid, which would run it"


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
