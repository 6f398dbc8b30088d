"""The settings of one run, as `base` in params.yaml has them all; a variant overrides."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ace.config.errors import Model

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Whole = Annotated[int, Field(ge=1)]


class Operator(Model):
    danger: Positive
    """The agent is asked when some line is loaded above this share of its limit."""
    reconnect: bool
    """Reconnect lines as soon as their cooldown allows it."""
    recover: Annotated[float, Field(ge=0, le=1)]
    """While all loadings are below this share, put one substation a step back to the reference topology; 0: never."""


class Sac(Model):
    gamma: Annotated[float, Field(ge=0, lt=1)]
    hidden: Whole
    lr: Positive
    tau_target: Share
    average: Annotated[float, Field(ge=0, lt=1)]
    """Share of the past in the average of the policy's weights, by update: what is validated, kept and tested. 0: the weights of
    the latest update."""
    grad_clip: Positive
    alpha_start: Positive
    target_entropy: Annotated[float, Field(ge=0)]
    prior_do_nothing: Annotated[float, Field(gt=0, lt=1)]
    bc: Annotated[float, Field(ge=0)]
    """Weight of behaviour cloning on refined rows; 0: the paper's loss."""


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
    marks: list[Whole]
    """Numbers of decisions, ascending, at which the policy is kept and later tested, with what it had used by then."""

    @model_validator(mode="after")
    def marks_ascend_to_the_end(self):
        if self.marks != sorted({mark for mark in self.marks if mark <= self.decisions}):
            raise ValueError(f"marks = {self.marks} must ascend, to decisions = {self.decisions} at the most")
        return self


class Refine(Model):
    """f_LLM, the Policy Actor."""

    enabled: bool
    threshold: Annotated[float, Field(ge=-1, le=1)]
    """r̄: transitions with a reward below it are bad cases."""
    every: Whole
    """Decisions between two calls of f_LLM."""
    minibatch: Whole
    """Transitions looked at in one call."""
    max_cases: Whole
    """Bad cases refined in one call at the most."""
    draw: Literal["random", "oldest"]
    """Which of them, where there are more; oldest: as in the results up to 63061d2, a defect."""
    rounds: Annotated[int, Field(ge=1, le=5)]
    margin: Annotated[float, Field(ge=0)]
    """A refined action must gain more reward than this to enter D_LLM."""
    limit: Whole
    """Refined samples in a run at the most."""
    bad_case: bool
    """Whether the prompt shows the bad action and its outcome."""
    proposer: Literal["llm", "llm_elsewhere", "random", "frequency", "expert"]
    """Who proposes: the model (llm_elsewhere: with a new substation in each further round), or as controls a random legal
    action, the most frequent labels, greedy look-ahead."""

    @property
    def by_llm(self):
        return self.proposer in ("llm", "llm_elsewhere")

    @property
    def new_substation_each_round(self):
        """Whether each further round of f_LLM is kept to substations where nothing was validated yet."""
        return self.proposer == "llm_elsewhere"


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
    into: Literal["d_llm", "d_rl"]
    """Adjusted decisions enter D_LLM, drawn by Eq. 8; or (d_rl) their rows in D_RL change."""
    K: Positive


class Finetune(Model):
    enabled: bool
    every: Whole
    """Refinements between two LoRA rounds."""
    samples: Whole
    epochs: Whole
    rank: Whole
    lr: Positive
    draw: Literal["d_mix", "d_llm", "random"]
    """What a round learns from: f_LLM's validated answers in D_LLM alone; those and good decisions of the policy (d_mix); as a
    control, those and as many of the policy's decisions that nobody judged."""
    heldout: Count
    """Validation states on which a round must not lower the one-proposal rate, or it is rolled back; 0: not asked."""


class Teach(Model):
    """LLM4Teach: the policy is distilled from the model's unvalidated proposals, with a weight that falls."""

    enabled: bool
    weight: Positive
    """Of the distillation loss at the start; it falls linearly to 0 at the end of training."""


class Mask(Model):
    """CAMEL: with a probability that falls to 0, training explores inside a mask of named substations (our reading)."""

    source: Literal["none", "model", "random", "frequency"]
    """Who names them: nobody (no masks), the language model; as controls as many at random, or the corpus' most frequent ones."""
    answers: Annotated[int, Field(ge=1, le=5)]
    """Asked for about a state; the mask is the union of the substations that they name."""
    epsilon: Share
    """Probability at the start that a decision explores inside its mask."""
    until: Annotated[float, Field(gt=0, le=1)]
    """Share of the decisions at which it has fallen to 0, linearly."""


class Also(Model):
    """LLM-ALSO: shaping of the reward that is proposed while training and tested in branches (our reading)."""

    source: Literal["none", "model", "random", "guard"]
    """Who proposes: nobody (no shaping), the language model, as a control configurations at random; guard: nobody, but g_LLM's
    adjustments go through the test."""
    tested: bool
    """Whether a configuration has to beat an unshaped branch; else the first one is in force at once."""
    every: Whole
    """Decisions between two points."""
    candidates: Annotated[int, Field(ge=1, le=5)]
    """New configurations to be tested in a round of a point."""
    rounds: Annotated[int, Field(ge=1, le=5)]
    decisions: Whole
    """Of a branch."""
    margin: Annotated[float, Field(ge=0)]
    """By which a branch has to beat the control, in unshaped return by step, as step rewards in [-1, 1]. The model of LLM-ALSO's
    roles learns to propose what gained more."""


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
    """Constrained decoding: in a local model's answer line only tokens that can still complete a legal, untried action.
    Without it, or with a server, `refine.proposer: llm_elsewhere` is the same as `llm`."""
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
    mask: Mask
    also: Also
    llm: Llm
    greedy: Greedy

    @model_validator(mode="after")
    def a_mask_without_a_teacher(self):
        if self.teach.enabled and self.mask.source != "none":
            raise ValueError(f"mask.source = {self.mask.source!r}, but teach.enabled: no proposal outside a mask can be imitated")
        return self

    @model_validator(mode="after")
    def a_guard_with_somebody_to_guard(self):
        if self.also.source == "guard" and not (self.shape.enabled and self.shape.into == "d_llm"):
            raise ValueError("also.source = 'guard' tests g_LLM's rows in D_LLM: it needs shape.enabled and shape.into = 'd_llm'")
        if self.also.source == "guard" and not self.also.tested:
            raise ValueError("also.tested = false, but also.source = 'guard': a guard is nothing but the test")
        return self

    @model_validator(mode="after")
    def branches_without_masks_and_teachers(self):
        if self.also.source != "none" and (self.mask.source != "none" or self.teach.enabled):
            other = "teach.enabled" if self.teach.enabled else f"mask.source = {self.mask.source!r}"
            raise ValueError(f"also.source = {self.also.source!r}, but {other}: branches learn without masks and teachers")
        return self

    @property
    def uses_llm(self):
        """Whether a language model is asked, in training or (llm_only) in play."""
        return self.method == "llm_only" or (self.method == "sac" and (
            (self.refine.enabled and self.refine.by_llm)
            or (self.shape.enabled and self.shape.judge == "llm")
            or self.teach.enabled
            or self.mask.source == "model"
            or self.also.source == "model"
        ))  # fmt: skip

    def as_recorded(self):
        """As manifests and digests have it: without masks and shaping where there are none, as before there were any."""
        return self.model_dump(exclude={name for name in ("mask", "also") if getattr(self, name).source == "none"})

    @property
    def home(self):
        """The list of the grid that it belongs to."""
        homes = {"sac": "variants", "dc_argmin": "lm_baselines", "llm_only": "lm_baselines"}
        return homes.get(self.method, "baselines")
