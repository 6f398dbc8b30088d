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

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Whole = Annotated[int, Field(ge=1)]


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
    prior_llm: Annotated[float, Field(ge=0, lt=1)]
    """Share of the policy's prior that follows the actions of D_LLM, once there are many; 0: the prior never moves."""
    bc: Annotated[float, Field(ge=0)]
    """Weight of behaviour cloning on D_LLM; 0: the paper's loss."""


class Buffers(Model):
    capacity_rl: Whole
    capacity_llm: Whole
    beta: Share
    """Share of D_LLM in a batch."""
    tau: Positive
    """Temperature of the weights exp((r_refined - r) / tau) within D_LLM (Eq. 8)."""


class Train(Model):
    share: Annotated[float, Field(gt=0, le=1)]
    """Of the training scenarios, the first ones, that are used at all."""
    reward: Literal["dense", "sparse"]
    """What SAC learns from: the reward of every step, or of a blackout only. Bad cases are dense rewards in any case."""
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
    proposer: Literal["llm", "random", "frequency", "expert"]
    """Who stands in for f_LLM: the model, or as controls a random legal action, the most frequent labels, greedy look-ahead."""


class Shape(Model):
    """g_LLM, the Value Critic."""

    enabled: bool
    start: Share
    """It begins after this share of the decisions."""
    every: Whole
    """Episodes between two that are read."""
    threshold: Share
    """r̿: a decision whose score is above it is a key decision."""
    select: Literal["reward", "state", "action"]
    """The score: abs(r), the state's overload rho_max - 1, or how rare the action is in its episode."""
    describe: bool
    """Whether g_LLM is shown actions as descriptions; else as bare indices."""
    judge: Literal["llm", "random"]
    """Who adjusts: g_LLM, or as a control as many random adjustments at random decisions."""
    K: Positive


class Finetune(Model):
    enabled: bool
    every: Whole
    """Refinements between two LoRA rounds."""
    samples: Whole
    epochs: Whole
    rank: Whole
    lr: Positive
    heldout: Count
    """Validation states on which a round must not lower the one-proposal rate, or it is rolled back; 0: not asked."""


class Teach(Model):
    """LLM4Teach: the policy is pulled towards the model's unvalidated proposals, less and less."""

    enabled: bool
    weight: Positive
    """Of the pull at the start; it falls linearly to 0 at the end of training."""


class Llm(Model):
    client: Literal["embedded", "checkpoint", "server", "replay"]
    path: str
    """Folder of the model (embedded), transcript (replay), base URL (server); `{env}` and `{seed}` are filled in.

    checkpoint: the folder, where `model` is empty.
    """
    model: str
    """server: the model's name there; checkpoint: a folder or a name on the hub, which goes before `path`; else unused."""
    temperature: Annotated[float, Field(ge=0)]
    max_new_tokens: Whole
    masked: bool
    """Whether a local model's tokens that can't lead to a legal, untried action are masked while decoding."""
    timeout_s: Positive
    retries: Count
    concurrency: Whole
    """Requests at once to a server."""
    token_budget: Count
    """Tokens that a run may use, read and written; 0: no limit. Above it the run stops cleanly."""


class Greedy(Model):
    shortlist: Whole


class Settings(Model):
    """One variant, resolved."""

    method: Literal["sac", "do_nothing", "reconnect", "greedy", "dc_argmin", "llm_only"]
    operator: Operator
    sac: Sac
    buffers: Buffers
    train: Train
    refine: Refine
    shape: Shape
    finetune: Finetune
    teach: Teach
    llm: Llm
    greedy: Greedy

    @property
    def uses_llm(self):
        """Whether a language model is asked, in training or (llm_only) in play."""
        return self.method == "llm_only" or (self.method == "sac" and (
            (self.refine.enabled and self.refine.proposer == "llm")
            or (self.shape.enabled and self.shape.judge == "llm")
            or self.teach.enabled
        ))  # fmt: skip

    @property
    def home(self):
        """The list of the grid that it belongs to."""
        homes = {"sac": "variants", "dc_argmin": "lm_baselines", "llm_only": "lm_baselines"}
        return homes.get(self.method, "baselines")


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
    baselines: list[str]
    """Methods that learn nothing: one run."""
    lm_baselines: list[str]
    """The same, on what the stage language_model made."""
    ablations: Ablations


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
            raise ConfigError(f"environment {name!r} is not in params.yaml{meant(name, self.environments)}")
        return self.environments[name]

    def settings(self, variant, source="params.yaml"):
        """The settings of a variant: base with the variant's differences. source: the file's name, for messages."""
        if variant not in self.variants:
            raise ConfigError(f"variant {variant!r} is not in params.yaml{meant(variant, self.variants)}")
        merged = _merge(self.base.model_dump(), self.variants[variant])
        return validated(Settings, merged, f"variants.{variant}", source)


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
    lists = {place: getattr(params.grid, place) for place in ("variants", "baselines", "lm_baselines")}
    for place, names in [*lists.items(), ("variants", params.grid.ablations.variants)]:
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
