"""Every number that steers a run, typed and checked before any work starts.

The numbers live in params.yaml and nowhere else: no field below has a default. A *variant* is a name and its differences
from `base`; `Params.settings(name)` merges and validates it. Whatever is wrong ends in one line (`ConfigError`) that
names the key, what was given and what is allowed.
"""

import difflib
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Whole = Annotated[int, Field(ge=1)]


class ConfigError(ValueError):
    """A parameter is wrong. The message is one line for the person who wrote it."""


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Days(Model):
    """Source days of the packaged chronics, numbered over all of them; disjoint between the splits."""

    train: list[Count]
    validation: list[Count]
    test: list[Count]

    @model_validator(mode="after")
    def disjoint(self):
        for a, b in (("train", "validation"), ("train", "test"), ("validation", "test")):
            both = set(getattr(self, a)) & set(getattr(self, b))
            if both:
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


class Operator(Model):
    danger: Positive
    """The agent is asked when some line is loaded above this share of its limit."""
    reconnect: bool
    """Reconnect lines as soon as their cooldown allows it."""


class Sac(Model):
    gamma: Annotated[float, Field(ge=0, lt=1)]
    hidden: Whole
    lr: Positive
    tau_target: Share
    grad_clip: Positive
    alpha_start: Positive
    target_entropy: Annotated[float, Field(ge=0)]
    prior_do_nothing: Annotated[float, Field(gt=0, lt=1)]
    bc: Annotated[float, Field(ge=0)]


class Buffers(Model):
    capacity_rl: Whole
    capacity_llm: Whole
    beta: Share
    """Share of D_LLM in a batch."""
    tau: Positive
    """Temperature of the weights exp((r_refined - r) / tau) within D_LLM (Eq. 8)."""


class Train(Model):
    decisions: Whole
    warmup: Count
    batch_size: Whole
    updates_per_decision: Positive
    validate_every: Whole


class Refine(Model):
    """f_LLM, the Policy Actor."""

    enabled: bool
    threshold: Annotated[float, Field(ge=-1, le=1)]
    """r̄: transitions with a reward below it are bad cases."""
    every: Whole
    """Decisions between two calls of f_LLM."""
    minibatch: Whole
    """Transitions looked at in one call."""
    most: Whole
    """Bad cases refined in one call at the most."""
    rounds: Annotated[int, Field(ge=1, le=5)]
    margin: Annotated[float, Field(ge=0)]
    """A refined action must gain more reward than this to enter D_LLM."""
    limit: Whole
    """Refined samples in a run at the most."""
    bad_case: bool
    """Whether the prompt shows the bad action and its outcome."""


class Shape(Model):
    """g_LLM, the Value Critic."""

    enabled: bool
    start: Share
    """It begins after this share of the decisions."""
    every: Whole
    """Episodes between two that are read."""
    threshold: Share
    """r̿: a decision with abs(r) above it is a key decision."""
    K: Positive


class Finetune(Model):
    enabled: bool
    every: Whole
    """Refinements between two LoRA rounds."""
    samples: Whole
    epochs: Whole
    rank: Whole
    lr: Positive


class Llm(Model):
    client: Literal["embedded", "checkpoint", "server", "replay"]
    path: str
    """Folder of the model (embedded, checkpoint), transcript (replay), base URL (server); `{env}` and `{seed}` are filled in."""
    model: str
    temperature: Annotated[float, Field(ge=0)]
    max_new_tokens: Whole
    timeout_s: Positive
    retries: Count


class Greedy(Model):
    shortlist: Whole


class Settings(Model):
    """One variant, resolved."""

    method: Literal["sac", "do_nothing", "reconnect", "greedy"]
    operator: Operator
    sac: Sac
    buffers: Buffers
    train: Train
    refine: Refine
    shape: Shape
    finetune: Finetune
    llm: Llm
    greedy: Greedy

    @property
    def uses_llm(self):
        return self.method == "sac" and (self.refine.enabled or self.shape.enabled)


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


class Grid(Model):
    """What is run: every method on every environment."""

    environments: Annotated[list[str], Field(min_length=1)]
    variants: list[str]
    baselines: list[str]
    """Methods that learn nothing, hence need no seeds."""


class Params(Model):
    scale: Literal["quick", "laptop", "paper"]
    seeds: Annotated[list[Count], Field(min_length=1)]
    grid: Grid
    environments: dict[str, Environment]
    scenarios: Scenarios
    base: Settings
    language_model: LanguageModel
    variants: dict[str, dict[str, Any]]

    def environment(self, name):
        if name not in self.environments:
            raise ConfigError(f"environment {name!r} is not in params.yaml{_meant(name, self.environments)}")
        return self.environments[name]

    def settings(self, variant):
        """The settings of a variant: base with the variant's differences."""
        if variant not in self.variants:
            raise ConfigError(f"variant {variant!r} is not in params.yaml{_meant(variant, self.variants)}")
        merged = _merge(self.base.model_dump(), self.variants[variant])
        return _validate(Settings, merged, f"variants.{variant}")


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
    try:
        raw = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path.name} holds no keys")
    params = _validate(Params, raw, "")
    if len(set(params.seeds)) < len(params.seeds):
        raise ConfigError(f"params.yaml: seeds = {params.seeds}: each seed once")
    for name in (*params.grid.variants, *params.grid.baselines, *params.variants):
        learns = params.settings(name).method == "sac"
        if (learns and name in params.grid.baselines) or (not learns and name in params.grid.variants):
            raise ConfigError(f"params.yaml: grid: {name!r} belongs to {'variants' if learns else 'baselines'}")
    for name in params.grid.environments:
        params.environment(name)
    return params


def digest(model):
    """Short hash of settings, so that a checkpoint of other settings is never continued."""
    import hashlib

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


def _validate(model, raw, prefix):
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in (*([prefix] if prefix else []), *first["loc"]))
        if first["type"] == "extra_forbidden":
            known = _fields_at(model, first["loc"][:-1])
            message = f"params.yaml: {place}: no such parameter{_meant(str(first['loc'][-1]), known)}"
        elif first["type"] == "missing":
            message = f"params.yaml: {place}: is missing"
        else:
            message = f"params.yaml: {place} = {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}"
        more = error.error_count() - 1
        raise ConfigError(message + (f" (and {more} more)" if more else "")) from None


def _fields_at(model, location):
    for part in location:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if annotation and getattr(annotation, "__origin__", None) is dict:
            model = annotation.__args__[1]
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return list(model.model_fields) if hasattr(model, "model_fields") else []


def _meant(given, known):
    known = list(known)
    close = difflib.get_close_matches(given, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(known)}"
