"""Random streams of a run: one for each purpose, all spawned from the run's seed and independent of each other.

Whatever a run draws comes from here. `default_rng(seed)` beside `default_rng([seed, 0])` would be one stream: numpy pads with 0.
"""

import numpy as np

PURPOSES = (
    "weights",  # the learner's networks, before training
    "acting",  # actions that SAC samples
    "scenarios",  # the order of the training scenarios
    "batches",  # D_mix, which SAC learns from
    "cases",  # the mini-batch of D_RL and the bad cases of it that are refined
    "actor",  # what f_LLM, or a control in its place, samples
    "critic",  # what g_LLM, or a control in its place, samples
    "teacher",  # LLM4Teach: states, proposals, and which of them an update imitates
    "samples",  # what a LoRA round learns from
    "lessons",  # which decisions of the policy a LoRA round looks at
    "lora",  # a LoRA round: adapter, order of the samples
    "heldout",  # what the model samples on the held-out states, the same after every round
    "mask",  # CAMEL: which decisions explore inside their mask
    "regions",  # CAMEL: what the model, or a control in its place, samples when it names a region
    "signal",  # LLM-ALSO: what the model samples, and random configurations
)
"""A new purpose goes to the end: a stream is known by its place."""


def sequence(seed, purpose):
    """What `SeedSequence(seed).spawn(len(PURPOSES))` has at this purpose's place; ValueError for one that is not in PURPOSES."""
    return np.random.SeedSequence(seed).spawn(len(PURPOSES))[PURPOSES.index(purpose)]


def generator(seed, purpose):
    """numpy's generator of a purpose, at its start."""
    return np.random.default_rng(sequence(seed, purpose))


def number(seed, purpose, n=0):
    """The n-th seed, 0 <= value < 2**31, for what wants a number: torch, a language model."""
    return int(sequence(seed, purpose).generate_state(n + 1)[n] >> 1)
