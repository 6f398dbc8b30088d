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
    train: list[Count]
    validation: list[Count]
    test: list[Count]

    @model_validator(mode='after')
    def disjoint(self):
        only_day = self.train == self.validation == self.test == [0]
        for a, b in (('train', 'validation'), ('train', 'test'), ('validation', 'test')):
            both = set(getattr(self, a)) & set(getattr(self, b))
            if both and (not only_day):
                raise ValueError(f'days {sorted(both)} are in {a} and in {b}; a source day belongs to one split')
        return self

class Environment(Model):
    grid2op: str
    thermal_factor: Positive
    horizon: Whole
    opponent: bool
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
    reconnect: bool

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
    bc: Annotated[float, Field(ge=0)]

class Buffers(Model):
    capacity_rl: Whole
    capacity_llm: Whole
    beta: Share
    tau: Positive

class Train(Model):
    share: Annotated[float, Field(gt=0, le=1)]
    reward: Literal['dense', 'sparse']
    decisions: Whole
    warmup: Count
    batch_size: Whole
    updates_per_decision: Positive
    validate_every: Whole

class Refine(Model):
    enabled: bool
    threshold: Annotated[float, Field(ge=-1, le=1)]
    every: Whole
    minibatch: Whole
    most: Whole
    rounds: Annotated[int, Field(ge=1, le=5)]
    margin: Annotated[float, Field(ge=0)]
    limit: Whole
    bad_case: bool
    proposer: Literal['llm', 'random', 'frequency', 'expert']

class Shape(Model):
    enabled: bool
    start: Share
    every: Whole
    threshold: Share
    select: Literal['reward', 'state', 'action']
    describe: bool
    judge: Literal['llm', 'random']
    K: Positive

class Finetune(Model):
    enabled: bool
    every: Whole
    samples: Whole
    epochs: Whole
    rank: Whole
    lr: Positive
    heldout: Count

class Teach(Model):
    enabled: bool
    weight: Positive

class Llm(Model):
    client: Literal['embedded', 'checkpoint', 'server', 'replay']
    path: str
    model: str
    temperature: Annotated[float, Field(ge=0)]
    max_new_tokens: Whole
    masked: bool
    timeout_s: Positive
    retries: Count
    concurrency: Whole
    token_budget: Count

class Greedy(Model):
    shortlist: Whole

class Settings(Model):
    method: Literal['sac', 'do_nothing', 'reconnect', 'greedy', 'dc_argmin', 'llm_only']
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
        return self.method == 'llm_only' or (self.method == 'sac' and (self.refine.enabled and self.refine.proposer == 'llm' or (self.shape.enabled and self.shape.judge == 'llm') or self.teach.enabled))

    @property
    def home(self):
        homes = {'sac': 'variants', 'dc_argmin': 'lm_baselines', 'llm_only': 'lm_baselines'}
        return homes.get(self.method, 'baselines')

class LanguageModel(Model):
    seed: Count
    scan: Whole
    states: Whole
    heldout_states: Whole
    actions: Whole
    shortlist: Whole
    hidden: Whole
    layers: Whole
    heads: Whole
    ffn: Whole
    batch_size: Whole
    steps: Whole
    lr: Positive

    @model_validator(mode='after')
    def heads_share_hidden(self):
        if self.hidden % (2 * self.heads):
            raise ValueError(f'hidden = {self.hidden} must be a multiple of 2 x heads = {2 * self.heads}')
        return self

class Ablations(Model):
    environment: str
    seeds: Annotated[list[Count], Field(min_length=1)]
    variants: list[str]

class Grid(Model):
    environments: Annotated[list[str], Field(min_length=1)]
    variants: list[str]
    baselines: list[str]
    lm_baselines: list[str]
    ablations: Ablations

class Params(Model):
    scale: Literal['quick', 'laptop', 'paper']
    seeds: Annotated[list[Count], Field(min_length=1)]
    grid: Grid
    environments: dict[str, Environment]
    scenarios: Scenarios
    base: Settings
    language_model: LanguageModel
    variants: dict[str, dict[str, Any]]

    def environment(self, name):
        if name not in self.environments:
            raise ConfigError(f'environment {name!r} is not in params.yaml{meant(name, self.environments)}')
        return self.environments[name]

    def settings(self, variant, source='params.yaml'):
        if variant not in self.variants:
            raise ConfigError(f'variant {variant!r} is not in params.yaml{meant(variant, self.variants)}')
        merged = _merge(self.base.model_dump(), self.variants[variant])
        return validated(Settings, merged, f'variants.{variant}', source)

def root():
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / 'params.yaml').is_file():
            return folder
    raise ConfigError(f'no params.yaml in {here} or above: run this inside the repository')

def load(path=None):
    path = Path(path) if path else root() / 'params.yaml'
    source = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path.name
    try:
        raw = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f'{path} does not exist') from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f'{source} holds no keys')
    params = validated(Params, raw, '', source)
    if len(set(params.seeds)) < len(params.seeds):
        raise ConfigError(f'{source}: seeds = {params.seeds}: each seed once')
    for name in params.variants:
        params.settings(name, source)
    lists = {place: getattr(params.grid, place) for place in ('variants', 'baselines', 'lm_baselines')}
    for place, names in [*lists.items(), ('variants', params.grid.ablations.variants)]:
        for name in names:
            home = params.settings(name, source).home
            if home != place:
                raise ConfigError(f'{source}: grid.{place}: {name!r} belongs to {home}')
    for name in [*params.grid.environments, params.grid.ablations.environment]:
        params.environment(name)
    return params

def digest(model):
    return hashlib.sha256(json.dumps(model.model_dump(), sort_keys=True).encode()).hexdigest()[:16]

def jobs():
    given = os.environ.get('ACE_JOBS', '')
    if given and (not given.isdigit() or int(given) < 1):
        raise ConfigError(f'ACE_JOBS = {given!r}: give a whole number of processes, 1 or more')
    return int(given) if given else os.cpu_count() or 1

def _merge(base, changes):
    return {**base, **{k: _merge(base[k], v) if isinstance(v, dict) and isinstance(base.get(k), dict) else v for k, v in changes.items()}}
