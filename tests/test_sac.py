"""The catalogue distribution, the losses and the learner, against enumeration of all actions."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from ace.config import ConfigError
from ace.rl.buffers import Batch
from ace.rl.distribution import (
    ActionSpace,
    CatalogueDistribution,
    Values,
    best_hub_pattern,
    hub_log_probabilities,
    mode,
    most_probable,
)
from ace.rl.fast_ops import (
    BoundedLogits,
    GatheredQ,
    SoftmaxExpectation,
    bounded_logits,
    expectation,
    gathered_q,
)
from ace.rl.policy import LOGIT_BOUND, load_policy
from ace.rl.sac import SAC, critic_loss, policy_loss, q_of, soft_target, temperature_loss, values_of

F = 4
SETTINGS = SimpleNamespace(
    hidden=16,
    lr=1e-3,
    tau_target=0.01,
    average=0.9,
    grad_clip=5.0,
    alpha_start=0.05,
    target_entropy=1.0,
    prior_do_nothing=0.2,
    bc=0.1,
)


def fake_catalogue(n_enum=7, hub_bits=3, excluded=(2, 5), sub=(-1, 0, 0, 0, 1, 1, 3)):
    codes = np.setdiff1d(np.arange(2**hub_bits), excluded) if hub_bits else np.zeros(0, np.int64)
    sub = np.concatenate([sub, np.full(codes.size, 9)]).astype(np.int16)
    excluded = np.array(excluded if hub_bits else [], np.int32)
    return SimpleNamespace(
        n_enum=n_enum, hub_bits=hub_bits, hub_codes=codes.astype(np.int32), hub_excluded=excluded, sub=sub
    )


SMALL = fake_catalogue()
NO_HUB = fake_catalogue(hub_bits=0)


def legality(space, enum=None, hub=1, free=None, present=0):
    """enum, free: 0/1 lists; present: a code."""
    e, h = space.n_enum, space.n_bits
    vector = np.ones(space.n_legal, np.uint8)
    vector[:e] = 1 if enum is None else enum
    vector[e] = hub
    if h:
        vector[e + 1 : e + 1 + h] = 1 if free is None else free
        vector[e + 1 + h :] = (present >> np.arange(h)) & 1
    return vector


def cases(space):
    """(name, legality) of what may happen at the hub."""
    some = [1, 0, 1, 1, 0, 1, 1]
    return {
        "all free": legality(space, present=1),
        "some enumerated": legality(space, enum=some, present=6),
        "present is a static exclusion": legality(space, present=5),
        "present is out of reach": legality(space, free=[1, 1, 0], present=4),
        "one bit fixed": legality(space, free=[1, 0, 1], present=1),
        "one pattern left": legality(space, free=[0, 0, 1], present=4),
        "no pattern left": legality(space, free=[0, 0, 0], present=0),
        "no pattern left, one bit": legality(space, free=[0, 1, 0], present=0),
        "hub closed": legality(space, enum=some, hub=0, present=3),
        "do nothing only": legality(space, enum=[1, 0, 0, 0, 0, 0, 0], hub=0),
    }


def brute_force(catalogue, logits, legal):
    """(A,) log p of one row, by the definition and one action at a time. logits, legal: 1-d; differentiable."""
    e, h = catalogue.n_enum, catalogue.hub_bits
    free, present = legal[e + 1 : e + 1 + h], legal[e + 1 + h :]
    weights = []
    for code in catalogue.hub_codes:
        bits = [(int(code) >> k) & 1 for k in range(h)]
        legal_pattern = legal[e] and all(b <= f for b, f in zip(bits, free, strict=True)) and bits != present.tolist()
        factors = [torch.sigmoid(logits[e + 1 + k] if b else -logits[e + 1 + k]) for k, b in enumerate(bits) if free[k]]
        product = torch.stack(factors).prod() if factors else logits.new_ones(())
        weights.append(product if legal_pattern else logits.new_zeros(()))
    pattern = torch.stack(weights) if weights else logits.new_zeros(0)
    hub_open = bool((pattern > 0).any())
    allowed = torch.tensor([*(legal[:e] != 0).tolist(), hub_open])
    top = torch.where(allowed, logits[: e + 1].exp(), 0.0)
    top = top / top.sum()
    return torch.cat([top[:e], top[e] * pattern / (pattern.sum() if hub_open else 1.0)])


def all_values(catalogue, values, row):
    """(A,) Q of every action of one row."""
    e, h = catalogue.n_enum, catalogue.hub_bits
    hub = [
        values.top[row, e] + sum(values.bits[row, k] * ((int(c) >> k) & 1) for k in range(h))
        for c in catalogue.hub_codes
    ]
    return torch.cat([values.top[row, :e], torch.stack(hub) if hub else values.top.new_zeros(0)])


def plogp(p):
    return torch.where(p > 0, p * torch.where(p > 0, p, 1.0).log(), 0.0).sum()


def random_rows(space, n, seed=0, scale=3.0, requires_grad=False):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: scale * torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    logits = draw(n, space.n_logits).requires_grad_(requires_grad)
    values = [Values(draw(n, space.n_enum + 1), draw(n, space.n_bits)) for _ in range(2)]
    return logits, values


@pytest.fixture(params=["hub", "no hub"])
def rows(request):
    """(catalogue, space, legal (B, L)): all cases in one batch, so that rows must not mix."""
    catalogue = SMALL if request.param == "hub" else NO_HUB
    space = ActionSpace(catalogue)
    if request.param == "hub":
        legal = list(cases(space).values())
    else:
        legal = [legality(space, hub=0), legality(space, hub=0, enum=[1, 0, 0, 0, 0, 0, 0]), legality(space, hub=1)]
    return catalogue, space, np.stack(legal)


def test_distribution_equals_enumeration(rows):
    catalogue, space, legal = rows
    logits, values = random_rows(space, len(legal))
    dist = CatalogueDistribution(space, logits, legal)
    entropy, expectation, low = dist.entropy(), dist.expectation(values[0]), dist.expectation_of_min(*values)
    for i, vector in enumerate(legal):
        p = brute_force(catalogue, logits[i], vector)
        q1, q2 = (all_values(catalogue, v, i) for v in values)
        single = CatalogueDistribution(
            space, logits[i].expand(space.n_actions, -1), np.tile(vector, (space.n_actions, 1))
        )
        np.testing.assert_allclose(single.log_prob(np.arange(space.n_actions)).exp(), p, atol=1e-12)
        assert p.sum().item() == pytest.approx(1.0)
        assert entropy[i].item() == pytest.approx(-plogp(p).item(), abs=1e-10)
        assert expectation[i].item() == pytest.approx((p * q1).sum().item(), abs=1e-10)
        e = space.n_enum
        hub = torch.minimum((p[e:] * q1[e:]).sum(), (p[e:] * q2[e:]).sum())
        expected = (p[:e] * torch.minimum(q1, q2)[:e]).sum() + hub
        assert low[i].item() == pytest.approx(expected.item(), abs=1e-10)
        assert bool(dist.has_choice[i]) == bool((p[1:] > 0).any())
        best = dist.mode()[i]
        assert p[best] == pytest.approx(p.max().item())


def test_an_illegal_action_has_log_prob_minus_infinity():
    space = ActionSpace(SMALL)
    named = cases(space)
    logits = torch.zeros(1, space.n_logits)

    def log_prob(name, action):
        return CatalogueDistribution(space, logits, named[name][None]).log_prob(np.array([action])).item()

    id_of = {int(code): 7 + i for i, code in enumerate(SMALL.hub_codes)}
    assert log_prob("some enumerated", 1) == -np.inf
    assert log_prob("some enumerated", id_of[6]) == -np.inf  # the present pattern
    assert log_prob("one bit fixed", id_of[3]) == -np.inf  # needs the bit that is not free
    assert log_prob("hub closed", id_of[0]) == -np.inf
    assert log_prob("no pattern left", id_of[0]) == -np.inf
    # 7 enumerated and the hub at 1/8 each; 8 patterns less 2 static and the present one leave 5
    assert log_prob("all free", id_of[7]) == pytest.approx(np.log(1 / 8 / 5), rel=1e-6)


def test_gradients_are_finite_in_every_case_even_float32(rows):
    _, space, legal = rows
    for scale in (1.0, 50.0):
        logits, (values, _) = random_rows(space, len(legal), scale=scale)
        logits = logits.float().requires_grad_()
        dist = CatalogueDistribution(space, logits, legal)
        low = dist.expectation(Values(values.top.float(), values.bits.float()))
        (dist.entropy() + dist.bit_mean.sum(1) + low).sum().backward()
        assert torch.isfinite(logits.grad).all()


def test_full_size_catalogue_sums_to_one_and_matches_enumeration():
    """E = 1306, H = 16, 31 exclusions: all 66,811 ids, vectorised brute force."""
    rng = np.random.default_rng(0)
    excluded = np.sort(rng.choice(2**16, 31, replace=False))
    sub = np.concatenate([[-1], np.sort(rng.integers(0, 35, 1305))])
    catalogue = fake_catalogue(1306, 16, excluded, sub)
    space = ActionSpace(catalogue)
    assert space.n_actions == 66_811
    enum = rng.random(1306) < 0.8
    enum[0] = True
    free = rng.random(16) < 0.9
    free[3] = False
    vectors = [
        legality(space, enum=enum, present=0b1010),
        legality(space, enum=enum, free=free, present=int(space.excluded[0])),
    ]
    legal = np.stack(vectors)
    logits, values = random_rows(space, 2, scale=1.5)
    logits[:, 1306] += 4.0
    dist = CatalogueDistribution(space, logits, legal)
    bits = space.unpack(space.hub_codes)
    # log_prob wants one row per id, 66,811 x 1,323 numbers: in parts, and for the second vector at random ids
    every_id, some_ids = np.arange(space.n_actions), np.sort(rng.choice(space.n_actions, 3000, replace=False))
    for i, (vector, ids) in enumerate(zip(vectors, (every_id, some_ids), strict=True)):
        u, is_free = logits[i, 1307:].numpy(), vector[1307 : 1307 + 16] != 0
        ok = ~(bits[:, ~is_free] > 0).any(1) & ~(bits == vector[1307 + 16 :]).all(1)
        q = np.where(ok, np.exp((bits * u)[:, is_free].sum(1)), 0.0)
        top = np.where(vector[:1307] != 0, np.exp(logits[i, :1307].numpy()), 0.0)
        top /= top.sum()
        p = np.concatenate([top[:1306], top[1306] * q / q.sum()])
        log_p = np.concatenate(
            [
                CatalogueDistribution(space, logits[i].expand(len(part), -1), np.tile(vector, (len(part), 1))).log_prob(
                    part
                )
                for part in np.array_split(ids, 40)
            ]
        )
        if ids is every_id:
            assert np.exp(log_p).sum() == pytest.approx(1.0, abs=1e-9)
        np.testing.assert_allclose(np.exp(log_p), p[ids], atol=1e-12)
        positive = p > 0
        np.testing.assert_allclose(log_p[positive[ids]], np.log(p[ids][positive[ids]]), atol=1e-5)
        assert dist.entropy()[i].item() == pytest.approx(-(p[positive] * np.log(p[positive])).sum(), abs=1e-5)
        v = values[0]
        all_q = np.concatenate([v.top[i, :1306].numpy(), v.top[i, 1306].item() + bits @ v.bits[i].numpy()])
        assert dist.expectation(v)[i].item() == pytest.approx((p * all_q).sum(), abs=1e-5)
        assert p[dist.mode()[i]] == p.max()


def test_sampling_has_the_exact_distribution(rows):
    """Chi-square of 20,000 draws a row; the bound is the 1e-4 point (normal approximation)."""
    catalogue, space, legal = rows
    logits, _ = random_rows(space, len(legal), seed=1, scale=1.0)
    rng = np.random.default_rng(0)
    for i, vector in enumerate(legal):
        n = 20_000
        dist = CatalogueDistribution(space, logits[i].expand(n, -1), np.tile(vector, (n, 1)))
        counts = np.bincount(dist.sample(rng), minlength=space.n_actions)
        p = brute_force(catalogue, logits[i], vector).numpy()
        assert counts[p == 0].sum() == 0
        expected = n * p[p > 0]
        dof = max(len(expected) - 1, 1)
        assert (((counts[p > 0] - expected) ** 2) / expected).sum() < dof + 3.8 * np.sqrt(2 * dof) + 6


def test_sampling_when_nearly_all_mass_is_excluded():
    """Rejection cannot succeed; the exact fall-back must."""
    space = ActionSpace(SMALL)
    legal = np.tile(legality(space, enum=[1, 0, 0, 0, 0, 0, 0], present=7), (2000, 1))
    logits = np.zeros((2000, space.n_logits))
    logits[:, 7] = 50.0
    logits[:, 8:] = 12.0  # p(111) = 1 - 2e-5; left are 0, 1, 3, 4, 6, of which 3 and 6 (one bit off) share the mass
    dist = CatalogueDistribution(space, torch.from_numpy(logits), legal)
    codes = space.codes_of(dist.sample(np.random.default_rng(0)))
    assert set(codes) == {3, 6}
    assert 900 < (codes == 3).sum() < 1100
    assert dist.entropy()[0].item() == pytest.approx(np.log(2), abs=1e-3)


def test_sampling_is_deterministic_by_seed():
    space = ActionSpace(SMALL)
    logits, _ = random_rows(space, 10)
    dist = CatalogueDistribution(space, logits, np.stack(list(cases(space).values())))
    draw = lambda seed: [dist.sample(np.random.default_rng(seed + i)).tolist() for i in range(20)]  # noqa: E731
    assert draw(0) == draw(0) != draw(100)


@pytest.mark.parametrize("catalogue", [SMALL, NO_HUB], ids=["hub", "no hub"])
@pytest.mark.parametrize("at_hub", [-4.0, 0.0, 4.0])
def test_the_most_probable_actions_are_those_of_the_definition(catalogue, at_hub):
    space = ActionSpace(catalogue)
    for number, legal in enumerate(cases(space).values()):
        logits = np.random.default_rng(number).normal(0, 2, space.n_logits).astype(np.float32)
        logits[space.n_enum] += at_hub
        p = brute_force(catalogue, torch.from_numpy(logits).double(), legal).numpy()
        order = [int(a) for a in np.argsort(-p, kind="stable") if p[a] > 0]
        assert order, "do nothing is always legal"
        for n in (1, 2, 5, 100):
            assert most_probable(space, logits, legal, n).tolist() == order[:n]
        assert most_probable(space, logits, legal, 1)[0] == mode(space, logits[None], legal[None])[0]


@pytest.mark.parametrize("seed", range(30))
def test_best_hub_pattern_is_the_best_of_all(seed):
    """With the modal patterns excluded, so that the ordered search has to go deep."""
    rng = np.random.default_rng(seed)
    h = 6
    u, free = rng.normal(size=h), rng.random(h) < 0.8
    likely = hub_log_probabilities(ActionSpace(fake_catalogue(hub_bits=h, excluded=())), u, free, -1).argsort()[::-1]
    n_legal = 2 ** int(free.sum())
    excluded = np.sort(likely[: min(rng.integers(0, 20), n_legal - 2)]) if n_legal > 2 else []
    space = ActionSpace(fake_catalogue(hub_bits=h, excluded=excluded))
    present = int(likely[len(excluded)])
    reading = space.read(legality(space, free=free, present=present)[None])
    code, log_p = best_hub_pattern(space, u, free, present, reading.subtract[0])
    all_log_p = hub_log_probabilities(space, u, free, present)
    assert all_log_p[code] == all_log_p.max()
    assert log_p == pytest.approx(all_log_p.max(), abs=1e-9)


def test_catalogue_that_does_not_add_up_is_refused():
    broken = fake_catalogue()
    broken.hub_codes = broken.hub_codes[1:]
    with pytest.raises(ValueError, match="share out"):
        ActionSpace(broken)


@pytest.mark.parametrize(("catalogue", "n_subs"), [(SMALL, 4), (NO_HUB, 3)])
def test_prior_counts_a_substation_once(catalogue, n_subs):
    prior = np.exp(ActionSpace(catalogue).log_prior(0.2).astype(float))
    assert prior[0] == pytest.approx(0.2)
    np.testing.assert_allclose(prior[1:7], 0.8 / n_subs / np.array([3, 3, 3, 2, 2, 1]), rtol=1e-5)
    assert prior[:7].sum() + (prior[7] if catalogue is SMALL else 0.0) == pytest.approx(1.0)
    assert (prior[8:] == 1.0).all()


# losses ---------------------------------------------------------------------------------------------------------------


def random_batch(space, n, seed=0, n_llm=0):
    rng = np.random.default_rng(seed)
    pool = list(cases(space).values()) if space.n_bits else [legality(space, hub=0)]
    legal, legal_next = (np.stack([pool[i % len(pool)] for i in rng.permutation(n)]) for _ in range(2))
    uniform = CatalogueDistribution(space, torch.zeros(n, space.n_logits), legal)
    return Batch(
        x=rng.normal(size=(n, F)).astype(np.float32),
        legal=legal,
        action=uniform.sample(rng),
        reward=rng.normal(size=n).astype(np.float32),
        discount=np.where(np.arange(n) % 3 == 0, 0.0, 0.81).astype(np.float32),
        x_next=rng.normal(size=(n, F)).astype(np.float32),
        legal_next=legal_next,
        weight=rng.random(n).astype(np.float32),
        is_refined=(np.arange(n) >= n - n_llm).astype(np.float32),
    )


def test_q_of_reads_the_action_from_the_critic_output():
    space = ActionSpace(SMALL)
    output = torch.arange(12.0)[None].expand(3, -1)  # V = 0, adv = 1..7, q0 = 8, w = 9, 10, 11
    hub_110 = 7 + SMALL.hub_codes.tolist().index(0b110)
    assert q_of(space, output, np.array([0, 6, hub_110])).tolist() == [1.0, 7.0, 8.0 + 10.0 + 11.0]
    values = values_of(space, output + torch.tensor([2.0] + [0.0] * 11))
    assert values.top[0].tolist() == [float(v) for v in range(3, 11)]
    assert values.bits[0].tolist() == [9.0, 10.0, 11.0]


def test_critic_loss_by_hand():
    loss, info = critic_loss(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 3.0]), torch.tensor([0.5, 0.0]))
    # (0.25 + 4) / 2 for the first critic, (0.25 + 9) / 2 for the second, halved
    assert loss.item() == pytest.approx(0.5 * (4.25 + 9.25) / 2)
    assert (info["q_mean"].item(), info["q_std"].item()) == (1.0, 1.0)


def test_soft_target_equals_enumeration_and_quiet_state_is_do_nothing():
    space = ActionSpace(SMALL)
    legal = np.stack(list(cases(space).values()))
    logits, values = random_rows(space, len(legal))
    reward = torch.linspace(-1, 1, len(legal), dtype=torch.float64)
    discount = torch.full((len(legal),), 0.81, dtype=torch.float64)
    discount[1] = 0.0  # blackout
    dist = CatalogueDistribution(space, logits, legal)
    target = soft_target(dist, *values, reward, discount, alpha=0.3)
    for i, vector in enumerate(legal):
        p = brute_force(SMALL, logits[i], vector)
        q1, q2 = (all_values(SMALL, v, i) for v in values)
        soft = (p[:7] * torch.minimum(q1, q2)[:7]).sum() + torch.minimum((p[7:] * q1[7:]).sum(), (p[7:] * q2[7:]).sum())
        expected = reward[i] + discount[i] * (soft - 0.3 * plogp(p))
        assert target[i].item() == pytest.approx(expected.item(), abs=1e-10)
    assert target[1] == reward[1]
    quiet = reward[-1] + 0.81 * torch.minimum(values[0].top[-1, 0], values[1].top[-1, 0])
    assert target[-1].item() == pytest.approx(quiet.item())


@pytest.mark.parametrize("bc", [0.0, 0.5])
def test_policy_loss_and_its_gradient_equal_enumeration(rows, bc):
    catalogue, space, legal = rows
    n = len(legal)
    logits, values = random_rows(space, n, scale=1.0, requires_grad=True)
    batch = random_batch(space, n, n_llm=max(n // 2, 1))
    batch.legal = legal
    batch.action = CatalogueDistribution(space, logits, legal).sample(np.random.default_rng(0))
    loss, info = policy_loss(CatalogueDistribution(space, logits, legal), *values, 0.3, bc, batch)
    (gradient,) = torch.autograd.grad(loss, logits)

    per_state, cloned = [], []
    for i, vector in enumerate(legal):
        p = brute_force(catalogue, logits[i], vector)
        q1, q2 = (all_values(catalogue, v, i) for v in values)
        e = space.n_enum
        low = (p[:e] * torch.minimum(q1, q2)[:e]).sum() + torch.minimum((p[e:] * q1[e:]).sum(), (p[e:] * q2[e:]).sum())
        assert info["entropy"][i].item() == pytest.approx(-plogp(p).item(), abs=1e-10)
        if (p[1:] > 0).any():
            per_state.append(0.3 * plogp(p) - low)
        if batch.is_refined[i]:
            cloned.append(-float(batch.weight[i]) * p[batch.action[i]].log())
    expected = torch.stack(per_state).mean() + bc * torch.stack(cloned).mean()
    (expected_gradient,) = torch.autograd.grad(expected, logits)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-9)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-9)


def values_and_gradients(operation, *inputs):
    """inputs: tensors; those of float64 get a gradient, weighted unevenly over the batch."""
    inputs = [x.clone().requires_grad_(x.dtype == torch.float64) for x in inputs]
    out = operation(*inputs)
    (out * torch.linspace(0.5, 2.0, out.numel(), dtype=out.dtype).reshape(out.shape)).sum().backward()
    return [out.detach(), *(x.grad for x in inputs if x.grad is not None)]


def compare(fast, plain, *inputs):
    for ours, theirs in zip(*(values_and_gradients(form, *inputs) for form in (fast, plain)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_gradients_by_hand_are_those_of_autograd():
    torch.manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64)  # noqa: E731
    f = draw(5, 8)

    def fast_expectation(top, hub):
        return SoftmaxExpectation.apply(top, hub, top.detach().softmax(1), torch.cat([f, torch.zeros(5, 1)], 1))

    compare(fast_expectation, lambda top, hub: expectation(top, hub, f), 3 * draw(5, 9), draw(5))
    place, coefficient = torch.randint(11, (5, 4)), draw(5, 4)
    place[0] = 3  # the same output several times
    compare(lambda h, w, b: GatheredQ.apply(h, w, b, place, coefficient),
            lambda h, w, b: gathered_q(h, w, b, place, coefficient), draw(5, 6), draw(11, 6), draw(11))  # fmt: skip
    prior = draw(9)
    compare(lambda raw: BoundedLogits.apply(raw, prior.detach(), LOGIT_BOUND),
            lambda raw: bounded_logits(raw, prior, LOGIT_BOUND), 10 * draw(5, 9))  # fmt: skip


def test_temperature_loss_counts_states_with_a_choice_only():
    log_alpha = torch.tensor(-2.0, requires_grad=True)
    entropy, choice = torch.tensor([1.5, 0.0, 0.9]), torch.tensor([True, False, True])
    loss, info = temperature_loss(log_alpha, entropy, choice, 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(-2.0 * 0.2)
    assert log_alpha.grad.item() == pytest.approx(0.2)  # more random than the target: alpha must fall
    assert info["entropy"].item() == pytest.approx(1.2)
    none, _ = temperature_loss(log_alpha, entropy, torch.zeros(3, dtype=torch.bool), 1.0)
    assert none.item() == 0.0


# learner --------------------------------------------------------------------------------------------------------------


def flat(state, prefix=""):
    if isinstance(state, dict):
        return dict(itertools.chain.from_iterable(flat(v, f"{prefix}/{k}").items() for k, v in state.items()))
    return {prefix: state.numpy().tobytes() if torch.is_tensor(state) else repr(state)}


def train(sac, first, last):
    return [sac.update(random_batch(sac.space, 16, seed=i, n_llm=4)) for i in range(first, last)]


def test_first_policy_is_the_prior():
    sac = SAC(SMALL, F, SETTINGS, seed=0)
    legal = legality(sac.space, present=2)  # present is static-excluded: 6 patterns left
    p = sac.distribution(
        torch.randn(500, F, generator=torch.Generator().manual_seed(0)), np.tile(legal, (500, 1))
    ).p_top
    np.testing.assert_allclose(p.detach().mean(0)[[0, 1, 7]], [0.2, 0.2 / 3, 0.2], rtol=0.03)


def test_logits_stay_bounded():
    sac = SAC(SMALL, F, SETTINGS, seed=0)
    with torch.no_grad():
        sac.policy.head.bias += 1e4
    legal = legality(sac.space)
    gap = sac.distribution(torch.zeros(1, F), legal[None])._logits - sac.log_prior
    np.testing.assert_allclose(gap.detach(), 6.0)


def test_ten_updates_save_load_continue_bit_for_bit(tmp_path):
    sac = SAC(SMALL, F, SETTINGS, seed=3)
    train(sac, 0, 10)
    x, legal = np.ones(F, np.float32), legality(sac.space)
    [sac.act(x, legal, greedy=False) for _ in range(5)]  # moves the generator
    path = tmp_path / "checkpoint.pt"
    torch.save(sac.state_dict(), path)
    resumed = SAC(SMALL, F, SETTINGS, seed=99)
    resumed.load_state_dict(torch.load(path, weights_only=True))
    outcomes = []
    for learner in (sac, resumed):
        infos = train(learner, 10, 20)
        outcomes.append((infos, [learner.act(x, legal, greedy=False) for _ in range(50)], flat(learner.state_dict())))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][2]["/updates"] == "20"


def test_state_dict_is_a_copy():
    sac = SAC(SMALL, F, SETTINGS, seed=3)
    train(sac, 0, 1)
    state = sac.state_dict()
    before = flat(state)
    train(sac, 1, 3)
    assert flat(state) == before != flat(sac.state_dict())


def test_same_seed_same_bytes_and_another_seed_not_and_global_rng_untouched():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    states = []
    for seed in (0, 0, 1):
        sac = SAC(SMALL, F, SETTINGS, seed)
        train(sac, 0, 3)
        states.append(flat(sac.state_dict()))
    assert states[0] == states[1] != states[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_update_reports_and_moves_what_it_should():
    sac = SAC(SMALL, F, SETTINGS, seed=0)
    before = sac.state_dict()
    info = train(sac, 0, 1)[0]
    assert list(info) == ["loss_critic", "loss_policy", "loss_alpha", "q_mean", "q_std", "entropy", "alpha"]
    assert all(type(value) is float for value in info.values())
    assert info["alpha"] == pytest.approx(0.05)
    after = sac.state_dict()
    for name, old in before["target"].items():
        online = after["critic"][name]
        torch.testing.assert_close(after["target"][name], old + 0.01 * (online - old))
        assert not torch.equal(online, before["critic"][name])
    assert after["log_alpha"] != before["log_alpha"]


@pytest.mark.parametrize("bad", ["reward", "x"])
def test_a_loss_that_is_not_finite_changes_nothing(bad):
    sac = SAC(SMALL, F, SETTINGS, seed=0)
    train(sac, 0, 2)
    before = flat(sac.state_dict())
    batch = random_batch(sac.space, 16)
    getattr(batch, bad)[3] = np.nan
    with pytest.raises(FloatingPointError, match=r"^SAC update 3: loss_critic = nan.*no parameter was changed$"):
        sac.update(batch)
    assert flat(sac.state_dict()) == before


def test_a_refined_action_that_is_illegal_is_an_error_not_noise():
    sac = SAC(SMALL, F, SETTINGS, seed=0)
    batch = random_batch(sac.space, 16, n_llm=16)
    batch.legal[0] = legality(sac.space, enum=[1, 0, 0, 0, 0, 0, 0], hub=0)
    batch.action[0] = 3
    with pytest.raises(FloatingPointError, match="loss_policy = inf"):
        sac.update(batch)


def test_numpy_act_is_the_torch_policy_and_follows_the_updates():
    sac = SAC(SMALL, F, SETTINGS, seed=0)
    named = cases(sac.space)
    rng = np.random.default_rng(0)
    for _ in range(2):
        train(sac, 0, 5)
        with torch.no_grad():
            sac.policy.head.bias += torch.from_numpy(rng.normal(size=sac.space.n_logits).astype(np.float32))
        for legal in named.values():
            x = rng.normal(size=F).astype(np.float32)
            dist = sac.distribution(torch.from_numpy(x)[None], legal[None])
            np.testing.assert_allclose(sac.acting.logits(x), dist._logits[0].detach(), atol=1e-5)
            assert sac.act(x, legal, greedy=True) == dist.mode()[0]
            chosen = sac.act(x, legal, greedy=False)
            assert type(chosen) is int
            assert dist.log_prob(np.array([chosen]))[0] > -np.inf


def test_greedy_act_leaves_the_generator_alone():
    sac = SAC(SMALL, F, SETTINGS, seed=0)
    before = repr(sac.rng.bit_generator.state)
    sac.act(np.zeros(F, np.float32), legality(sac.space), greedy=True)
    assert repr(sac.rng.bit_generator.state) == before


def test_deployed_is_the_average_of_the_weights_and_acting_are_the_latest():
    """Of the first 1 / (1 - 0.9) = 10 updates it is the plain mean, then it moves a tenth of the way with each."""
    sac, history = SAC(SMALL, F, SETTINGS, seed=0), []
    deployed = lambda: {name: w.copy() for name, w in sac.deployed.weights.items()}  # noqa: E731
    for i in range(14):
        train(sac, i, i + 1)
        history.append(sac.policy.head.weight.detach().numpy().copy())
        np.testing.assert_array_equal(sac.acting.weights["head.weight"], history[-1])
        if i < 10:
            expected = np.mean(history, axis=0)
        else:
            expected = 0.9 * expected + 0.1 * history[-1]
        np.testing.assert_allclose(deployed()["head.weight"], expected, atol=1e-7)
    assert set(deployed()) == set(sac.acting.weights)
    assert not np.allclose(deployed()["head.weight"], history[-1], atol=1e-4)


def test_without_average_the_deployed_policy_is_the_acting_one():
    plain = SAC(SMALL, F, SimpleNamespace(**vars(SETTINGS) | {"average": 0.0}), seed=0)
    assert plain.deployed is plain.acting
    averaged = SAC(SMALL, F, SETTINGS, seed=0)
    for learner in (plain, averaged):
        train(learner, 0, 5)
    for name, weights in plain.acting.weights.items():  # what is learnt does not depend on it
        np.testing.assert_array_equal(weights, averaged.acting.weights[name])


def test_an_average_of_nothing_is_one_line():
    with pytest.raises(ConfigError, match=r"^sac\.average = 0\.9: there is no average before the first update; take SAC"):
        SAC(SMALL, F, SETTINGS, seed=0).deployed  # noqa: B018


def test_deployed_policy_round_trip(tmp_path):
    sac = SAC(SMALL, F, SETTINGS, seed=0)
    train(sac, 0, 3)
    one, two = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    sac.deployed.save(one)
    sac.deployed.save(two)
    assert one.read_bytes() == two.read_bytes()
    policy = load_policy(one, SMALL)
    train(sac, 3, 4)  # the file must not follow the learner
    x, legal = np.ones(F, np.float32), legality(sac.space)
    assert not np.array_equal(policy.logits(x), sac.deployed.logits(x))
    sac.deployed.save(two)
    reread = load_policy(two, SMALL)
    for name, weights in sac.deployed.weights.items():  # the file is float16, what is read computes in float32
        assert reread.weights[name].dtype == np.float32
        np.testing.assert_array_equal(reread.weights[name], weights.astype(np.float16))
    np.testing.assert_allclose(reread.logits(x), sac.deployed.logits(x), atol=0.02)
    assert reread.act(x, legal, None) == sac.deployed.act(x, legal, None)
    assert policy.act(x, legal, np.random.default_rng(1)) in range(sac.space.n_actions)


def test_deployed_policy_errors_are_one_line(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"^no trained policy at .*gone.safetensors$"):
        load_policy(tmp_path / "gone.safetensors", SMALL)
    path = tmp_path / "p.safetensors"
    SAC(NO_HUB, F, SETTINGS, seed=0).acting.save(path)
    with pytest.raises(ValueError, match=r"another catalogue: hub_bits is 0 there and 3 here$"):
        load_policy(path, SMALL)
    save_file({"weight": np.zeros(3, np.float32)}, str(path))
    with pytest.raises(ValueError, match=r"p.safetensors is no trained policy: it declares no sizes; give the policy"):
        load_policy(path, SMALL)
    path.write_text("a letter")
    with pytest.raises(ValueError, match=r"p.safetensors is no trained policy: .*; give the policy.safetensors of a run$"):
        load_policy(path, SMALL)


@pytest.mark.parametrize("best", [4, 7 + SMALL.hub_codes.tolist().index(0b110)], ids=["enumerated", "hub"])
def test_bandit_finds_the_best_action(best):
    """One state, reward 1 for the best action and, at the hub, 1 - share of wrong bits; own samples only."""
    settings = SimpleNamespace(**vars(SETTINGS) | {"lr": 3e-3, "target_entropy": 0.3, "tau_target": 0.05, "bc": 0.0})
    sac = SAC(SMALL, F, settings, seed=0)
    space = sac.space
    x, legal = np.ones(F, np.float32), legality(space, present=0)
    reward = np.full(space.n_actions, -0.5)
    if best >= space.n_enum:
        bits = space.bits_of(np.arange(space.n_enum, space.n_actions))
        reward[space.n_enum :] = 1.0 - np.abs(bits - space.bits_of(np.array([best]))).mean(1) * 1.5
    reward[best] = 1.0
    batch = random_batch(space, 32)
    batch.legal[:], batch.x[:], batch.discount[:] = legal, x, 0.0
    for step in range(300):
        batch.action[step % 32] = sac.act(x, legal, greedy=False)
        if step >= 32:
            batch.reward[:] = reward[batch.action]
            sac.update(batch)
    assert sac.act(x, legal, greedy=True) == best
    p = sac.distribution(torch.from_numpy(x)[None], legal[None]).log_prob(np.array([best])).exp().item()
    assert p > 0.5
