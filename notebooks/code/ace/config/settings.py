from typing import Annotated, Literal
from pydantic import Field
from ace.checked import Model
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Whole = Annotated[int, Field(ge=1)]

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
    proposer: Literal['llm', 'llm_elsewhere', 'random', 'frequency', 'expert']

    @property
    def by_llm(self):
        return self.proposer in ('llm', 'llm_elsewhere')

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
        return self.method == 'llm_only' or (self.method == 'sac' and (self.refine.enabled and self.refine.by_llm or (self.shape.enabled and self.shape.judge == 'llm') or self.teach.enabled))

    @property
    def home(self):
        homes = {'sac': 'variants', 'dc_argmin': 'lm_baselines', 'llm_only': 'lm_baselines'}
        return homes.get(self.method, 'baselines')
