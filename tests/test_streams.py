"""The random streams of a run: independent of each other, the same for the same seed."""

import itertools

import numpy as np
import pytest
import torch
from conftest import small_params
from test_coevolve import make

from ace import config
from ace.config.streams import PURPOSES, generator, number


def draws(rng):
    return rng.bit_generator.random_raw(64).tolist()


def test_streams_differ_pairwise_over_purposes_and_seeds():
    streams = {(seed, purpose): draws(generator(seed, purpose)) for seed in range(5) for purpose in PURPOSES}
    for one, other in itertools.combinations(streams.values(), 2):
        assert not set(one) & set(other)
    plain = [draws(np.random.default_rng(entropy)) for seed in range(5) for entropy in (seed, [seed, 0], [seed, 1])]
    assert not {tuple(each) for each in plain} & {tuple(each) for each in streams.values()}


def test_the_same_seed_repeats_and_another_does_not():
    for purpose in PURPOSES:
        assert draws(generator(3, purpose)) == draws(generator(3, purpose)) != draws(generator(4, purpose))
        numbers = [number(seed, purpose, n) for seed in range(5) for n in range(5)]
        assert numbers == [number(seed, purpose, n) for seed in range(5) for n in range(5)]
        assert len(set(numbers)) == 25 and all(0 <= value < 2**31 for value in numbers)
    with pytest.raises(ValueError, match="not in"):
        generator(0, "laundry")


def test_a_further_purpose_leaves_the_others_as_they_were(monkeypatch):
    before = {purpose: draws(generator(0, purpose)) for purpose in PURPOSES}
    monkeypatch.setattr("ace.config.streams.PURPOSES", (*PURPOSES, "later"))
    assert {purpose: draws(generator(0, purpose)) for purpose in PURPOSES} == before


def test_the_learners_stream_is_none_of_the_loops(small_world):
    """`default_rng(seed)`, SAC's of before, and `default_rng([seed, 0])`, which drew the scenarios, were one."""
    settings = config.validated(config.Params, small_params(), "", "params.yaml").settings("ace")
    loop = make(small_world, settings, seed=2)
    streams = [loop.sac.rng, *loop.rng.values()]
    states = {str(rng.bit_generator.state) for rng in streams}
    assert len(states) == len(streams) >= 7
    torch.manual_seed(2)
    as_before = torch.nn.Linear(small_world.features.n, settings.sac.hidden).weight
    assert not torch.equal(loop.sac.policy.first.weight, as_before)
