"""D_RL, D_LLM, D_mix: invariants of the ring, uids, and the sampling distribution against its formula."""

import dataclasses

import numpy as np
import pytest

from ace.rl.buffers import MixedSampler, RefinedBuffer, ReplayBuffer, Transition

F, L = 3, 5


def transition(i: int, r_step: float = 0.0, is_decision: bool = True) -> Transition:
    """Every field tells the row's number."""
    return Transition(
        x=np.full(F, i, np.float32),
        legal=np.full(L, i % 2, np.uint8),
        action=i,
        reward=i / 100,
        discount=0.9,
        x_next=np.full(F, i + 0.5, np.float32),
        legal_next=np.full(L, (i + 1) % 2, np.uint8),
        r_step=r_step,
        is_decision=is_decision,
    )


def replay(n: int, capacity: int = 10) -> ReplayBuffer:
    buffer = ReplayBuffer(capacity, F, L)
    for i in range(n):
        assert buffer.add(transition(i)) == i
    return buffer


def refined(rewards, capacity: int = 10) -> RefinedBuffer:
    buffer = RefinedBuffer(capacity, F, L)
    for i, (original, better) in enumerate(rewards):
        buffer.add(transition(1000 + i), original, better)
    return buffer


@pytest.mark.parametrize(
    ("n", "kept"), [(0, []), (4, [0, 1, 2, 3]), (10, range(10)), (13, range(3, 13)), (47, range(37, 47))]
)
def test_ring_keeps_the_newest_rows_whole(n, kept):
    buffer = replay(n)
    assert len(buffer) == len(kept)
    assert [uid for uid in range(-2, n + 3) if buffer.holds(uid)] == list(kept)
    uids = buffer.uids(np.arange(len(buffer)))
    assert sorted(uids) == list(kept)
    columns = buffer.columns
    for slot, uid in enumerate(uids):
        assert columns["action"][slot] == uid == columns["x"][slot, 0] == columns["x_next"][slot, 2] - 0.5
        assert columns["legal"][slot, 0] == uid % 2 != columns["legal_next"][slot, 0]
        assert buffer.value(uid, "reward") == np.float32(uid / 100)


def test_column_types():
    types = {name: column.dtype for name, column in replay(1).columns.items()}
    assert types["x"] == types["reward"] == np.float32
    assert types["legal"] == types["legal_next"] == np.uint8
    assert types["action"] == np.int64


def test_adjust_changes_one_row_and_refuses_overwritten_ones():
    buffer = replay(13)
    assert buffer.adjust(5, -0.2)
    assert buffer.value(5, "reward") == pytest.approx(0.05 - 0.2)
    others = [uid for uid in range(3, 13) if uid != 5]
    assert [buffer.value(uid, "reward") for uid in others] == [np.float32(uid / 100) for uid in others]
    assert buffer.value(5, "r_step") == 0.0
    before = buffer.columns["reward"].copy()
    assert not buffer.adjust(2, 1.0)  # overwritten by 12, which must not be touched
    assert not buffer.adjust(13, 1.0)
    assert not buffer.mark_refined(2)
    np.testing.assert_array_equal(buffer.columns["reward"], before)
    assert not buffer.columns["refined"].any()
    with pytest.raises(KeyError, match="transition 2 is no longer"):
        buffer.value(2, "reward")


def test_bad_cases_are_unrefined_decisions_below_the_threshold():
    buffer = ReplayBuffer(100, F, L)
    for i in range(40):
        buffer.add(transition(i, r_step=-0.5 if i % 2 else 0.3, is_decision=i % 4 != 1))
    expected = [i for i in range(40) if i % 4 == 3]
    rng = np.random.default_rng(0)
    assert sorted(buffer.bad_cases(rng, 2000, 0.0)) == expected
    assert sorted(buffer.bad_cases(rng, 2000, 0.3)) == expected  # strictly below
    assert buffer.bad_cases(rng, 2000, -0.5).tolist() == []
    assert buffer.mark_refined(7)
    assert sorted(buffer.bad_cases(rng, 2000, 0.0)) == [i for i in expected if i != 7]
    few = buffer.bad_cases(rng, 5, 0.0)
    assert len(few) <= 5
    assert set(few) <= set(expected)


def test_the_first_bad_cases_of_a_mini_batch_are_as_old_as_any():
    buffer = ReplayBuffer(1000, F, L)
    for i in range(1000):
        buffer.add(transition(i, r_step=-0.5))
    rng = np.random.default_rng(0)
    ages = 999 - np.concatenate([buffer.bad_cases(rng, 64, 0.0)[:8] for _ in range(500)])
    assert abs(np.median(ages) - 499.5) < 0.1 * 499.5  # the oldest eight of 64: a median of about 930


def test_judged_rows_are_drawn_by_their_gain_and_not_cloned():
    rl, llm = replay(4), refined([(0.0, 0.5)])
    judged = rl.transition(2)
    for delta in (0.8, -0.8):
        llm.add(judged, 0.1, 0.1 + delta, is_refined=False)
    np.testing.assert_allclose(llm.gain(), [0.5, 0.8, -0.8], atol=1e-6)
    w = np.exp(np.array([0.5, 0.8, -0.8]) / 0.5)
    np.testing.assert_allclose(llm.probabilities(0.5), w / w.sum(), rtol=1e-5)
    batch = MixedSampler(rl, llm, 1.0, 0.5).sample(400, np.random.default_rng(0))
    assert 0.3 < batch.is_refined.mean() < 0.4
    np.testing.assert_array_equal(batch.is_refined == 0, batch.action == judged.action)


def test_a_new_row_does_not_inherit_the_mark_of_the_row_it_overwrites():
    buffer = ReplayBuffer(1, F, L)
    buffer.mark_refined(buffer.add(transition(0, r_step=-1.0)))
    buffer.add(transition(1, r_step=-1.0))
    assert buffer.bad_cases(np.random.default_rng(0), 4, 0.0).tolist() == [1]


def test_empty_buffer():
    buffer = replay(0)
    assert buffer.bad_cases(np.random.default_rng(0), 8, 1.0).size == 0
    with pytest.raises(ValueError, match="empty replay buffer"):
        MixedSampler(buffer, refined([]), 0.0, 1.0).sample(4, np.random.default_rng(0))


def test_probabilities_are_the_formula():
    rewards = [(0.0, 0.1), (-1.0, 0.5), (0.2, 0.9), (0.3, 0.3)]
    w = np.array([np.exp(better / 0.5) / np.exp(original / 0.5) for original, better in rewards])
    np.testing.assert_allclose(refined(rewards).probabilities(0.5), w / w.sum(), rtol=1e-6)


@pytest.mark.parametrize("tau", [1e-6, 1e6])
def test_probabilities_survive_extreme_differences(tau):
    p = refined([(-1e4, 1e4), (1e4, -1e4), (-1e4, 1e4)]).probabilities(tau)
    assert np.isfinite(p).all()
    np.testing.assert_allclose(p.sum(), 1.0)
    np.testing.assert_allclose(
        p, [0.5, 0.0, 0.5] if tau < 1 else np.exp([0.02, -0.02, 0.02]) / np.exp([0.02, -0.02, 0.02]).sum()
    )


def test_mixture_has_the_distribution_of_its_formula():
    """Chi-square over all 6 + 4 rows, one run of 40,000 draws; 27.88 is the 0.1 % point at 9 degrees of freedom."""
    beta, tau = 0.3, 0.4
    rewards = [(0.0, 0.1), (-0.4, 0.5), (0.2, 0.9), (0.3, 0.3)]
    sampler = MixedSampler(replay(6), refined(rewards), beta, tau)
    rng = np.random.default_rng(3)
    w = np.exp([(better - original) / tau for original, better in rewards])
    expected = np.concatenate([np.full(6, (1 - beta) / 6), beta * w / w.sum()])
    batches = [sampler.sample(100, rng) for _ in range(400)]
    actions = np.concatenate([b.action for b in batches])
    counts = np.array([(actions == a).sum() for a in [*range(6), *range(1000, 1004)]])
    assert counts.sum() == 40_000
    assert (((counts - expected * 40_000) ** 2) / (expected * 40_000)).sum() < 27.88
    n_llm = np.array([b.is_refined.sum() for b in batches])
    # binomial, not a fixed share: variance 100 beta (1 - beta) = 21
    assert 15 < n_llm.var() < 28


def test_batch_columns_belong_together():
    sampler = MixedSampler(replay(13), refined([(0.0, 0.25), (0.5, 0.25)]), 0.5, 1.0)
    batch = sampler.sample(200, np.random.default_rng(0))
    assert len(batch) == 200
    assert [getattr(batch, f.name).dtype for f in dataclasses.fields(batch)] == [
        *(np.float32, np.uint8, np.int64, np.float32, np.float32, np.float32, np.uint8, np.float32, np.float32)
    ]
    np.testing.assert_array_equal(batch.x[:, 0], batch.action)
    np.testing.assert_array_equal(batch.legal_next[:, 1], (batch.action + 1) % 2)
    np.testing.assert_array_equal(batch.is_refined, batch.action >= 1000)
    assert (np.diff(batch.is_refined) >= 0).all()
    # the weight is the gain; a refinement that made it worse is not cloned away from
    expected = np.select([batch.action == 1000, batch.action == 1001], [0.25, 0.0], 1.0)
    np.testing.assert_allclose(batch.weight, expected)


@pytest.mark.parametrize(("beta", "n_refined", "share"), [(0.0, 2, 0.0), (1.0, 2, 1.0), (1.0, 0, 0.0)])
def test_extreme_shares(beta, n_refined, share):
    sampler = MixedSampler(replay(3), refined([(0.0, 0.5)] * n_refined), beta, 1.0)
    assert sampler.sample(50, np.random.default_rng(0)).is_refined.mean() == share


@pytest.mark.parametrize(
    ("beta", "tau", "message"), [(-0.1, 1.0, "beta"), (1.1, 1.0, "beta"), (0.5, 0.0, "tau"), (0.5, np.nan, "tau")]
)
def test_bad_mixing_parameters(beta, tau, message):
    with pytest.raises(ValueError, match=message):
        MixedSampler(replay(1), refined([]), beta, tau)


def test_a_refinement_must_be_finite():
    with pytest.raises(ValueError, match="must be finite"):
        refined([(0.0, np.nan)])


def test_same_seed_same_batches_and_another_seed_not():
    sampler = MixedSampler(replay(13), refined([(0.0, 0.5), (0.1, 0.2)]), 0.4, 0.5)
    first, again, other = (sampler.sample(64, np.random.default_rng(seed)) for seed in (1, 1, 2))
    for field in dataclasses.fields(first):
        np.testing.assert_array_equal(getattr(first, field.name), getattr(again, field.name))
    assert not np.array_equal(first.action, other.action)


@pytest.mark.parametrize("n", [0, 4, 13])
def test_state_round_trip_and_same_continuation(n):
    old_rl, old_llm = replay(n), refined([(0.0, 0.1 * i) for i in range(n)])
    if n:
        old_rl.mark_refined(n - 1)
        old_rl.adjust(n - 2, 0.7)
    new_rl, new_llm = replay(10), refined([(0.0, 1.0)] * 10)  # what they hold must vanish
    for old, new in ((old_rl, new_rl), (old_llm, new_llm)):
        state = old.state_dict()
        assert all(isinstance(value, np.ndarray) for value in state.values())
        new.load_state_dict(state)
    for i in range(5):
        for buffer in (old_rl, new_rl):
            assert buffer.add(transition(n + i)) == n + i
        for buffer in (old_llm, new_llm):
            assert buffer.add(transition(n + i), 0.0, 0.3) == n + i
    for old, new in ((old_rl, new_rl), (old_llm, new_llm)):
        assert len(old) == len(new)
        for name in old.columns:
            np.testing.assert_array_equal(old.columns[name], new.columns[name], err_msg=name)
    one, two = (
        MixedSampler(*pair, 0.5, 1.0).sample(32, np.random.default_rng(0))
        for pair in ((old_rl, old_llm), (new_rl, new_llm))
    )
    np.testing.assert_array_equal(one.x, two.x)


def test_state_is_a_copy_and_of_this_buffer_only():
    buffer = replay(4)
    state = buffer.state_dict()
    buffer.adjust(0, 5.0)
    assert state["reward"][0] == 0.0
    with pytest.raises(ValueError, match="another capacity"):
        replay(0, capacity=11).load_state_dict(state)
    with pytest.raises(ValueError, match="other columns"):
        refined([]).load_state_dict(state)
    with pytest.raises(ValueError, match="column x "):
        ReplayBuffer(10, F + 1, L).load_state_dict(state)
