"""Language models that are made here: their corpus, shape and training, as params.yaml has them."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ace.config.errors import Model
from ace.config.settings import Count, Positive, Whole


class Embedded(Model):
    """Shape and training of a model that is made from scratch."""

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


class LanguageModel(Embedded):
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


class AlsoModel(Embedded):
    """The embedded model of LLM-ALSO's two roles: trials on training weeks, and its training."""

    seed: Count
    runs: Annotated[int, Field(ge=3)]
    """SAC runs that trials are made in; the last one but one chooses the weights, the last one is measured on."""
    share: Annotated[float, Field(gt=0, lt=1)]
    """Of the training scenarios, the first ones, that a run learns from; the others score."""
    scored: Whole
    """Of these, how many score a branch."""
    decisions: Whole
    """Of a run."""
    every: Whole
    """Decisions between two points with trials."""
    configurations: Annotated[int, Field(ge=2)]
    """Random configurations tried at a point, each another one, in a branch of `base.also.decisions`."""


class PretrainedModel(Model):
    """The pretrained model's fine-tuning on the corpus of the embedded model."""

    form: Literal["native", "transplanted"]
    """With its own tokenizer and chat template, or its body with the words of the embedded model."""
    seed: Count
    states: Whole
    """Of the corpus, what is learned from at least: whole episodes, or all where there are fewer."""
    heldout_share: Annotated[float, Field(gt=0, lt=1)]
    """Of the corpus' episodes, those that only the held-out loss sees."""
    heldout: Whole
    """Samples of them."""
    rank: Whole
    """Of the LoRA matrices."""
    batch_size: Whole
    steps: Whole
    lr: Positive
    rows_lr: Positive
    """Of the transplanted rows: as means of many pieces they are nearly alike (cosine .97 between the names of lines), and have
    far to go."""
    look_every: Whole
    """Steps between two looks at the held-out loss, at which the run is kept too."""
    patience: Whole
    """It stops after so many looks without a lower held-out loss."""
    sizes: Annotated[list[Whole], Field(min_length=1)]
    """States of the corpus that the study of pretraining (studies/pretrained) tunes with, in the place of `states`."""
    seeds: Annotated[list[Count], Field(min_length=1)]
    """And its seeds."""
