"""One probability for every action of the catalogue, out of E + 1 + H numbers.

98 % of the catalogue lies at one substation, the hub (65,505 of 66,810 actions on the 36-substation grid), so a softmax
over all ids is slow and, left alone, lives at the hub. Our form (the paper is silent on it):

    top level   softmax over E enumerated actions (do nothing and all other substations) and one entry "act at the hub"
    hub         independent Bernoulli bits, one per element that may move to bus 2, given that the pattern is legal

Conditioning is exact: the illegal patterns X (31 static ones and the present pattern, a no-op) are few, so their mass
is subtracted in closed form from normaliser, bit means and entropy. A bit that is not free is 0 for certain.
What is given up against a plain softmax: within the hub the log-odds are linear in the bits.

`legal` is the vector of `Catalogue.legality`, (L,) uint8, L = E + 1 + 2H: actions legal, hub open, bits free, present
bits.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from ace.rl.fast_ops import SoftmaxExpectation

ILLEGAL = -1.0e9  # added to a logit: p underflows to exactly 0, and unlike -inf it is fast and gives no 0 * inf
TINY_MASS = 1e-12  # floor of the normaliser; reached only where the hub has no legal pattern and is masked anyway
REJECTION_ROUNDS = 32


class Values(NamedTuple):
    """Action values in the same form as the policy: Q(enumerated a) = top[a], Q(hub, b) = top[E] + bits . b."""

    top: torch.Tensor  # (B, E+1)
    bits: torch.Tensor  # (B, H)


class Reading(NamedTuple):
    """A batch of legality vectors, taken apart (numpy)."""

    allowed: np.ndarray  # (B, E+1) bool; the hub only where at least one of its patterns is legal
    free: np.ndarray  # (B, H) bool
    free_code: np.ndarray  # (B,) int64
    present: np.ndarray  # (B,) int64: the hub's present pattern
    subtract: np.ndarray  # (B, m+1) bool: the static exclusions, then the present pattern: reachable, and each once


class ActionSpace:
    """What the learner must know of the catalogue: sizes, the hub's patterns, ids <-> bits.

    catalogue: anything with n_enum (E), hub_bits (H), hub_codes (ascending), hub_excluded (m,) and sub (A,).
    Raises ValueError unless hub_codes and hub_excluded share out the 2**H patterns.
    """

    def __init__(self, catalogue) -> None:
        self.n_enum, self.n_bits = int(catalogue.n_enum), int(catalogue.hub_bits)
        has_hub = self.n_bits > 0
        self.hub_codes = np.asarray(catalogue.hub_codes if has_hub else [], dtype=np.int64)
        self.excluded = np.asarray(catalogue.hub_excluded if has_hub else [], dtype=np.int64)
        self.n_actions = self.n_enum + self.hub_codes.size
        self.n_logits = self.n_enum + 1 + self.n_bits
        self.n_legal = self.n_logits + self.n_bits
        self.sub = np.asarray(catalogue.sub)[: self.n_enum]
        self.powers = np.int64(1) << np.arange(self.n_bits, dtype=np.int64)
        self.is_excluded = np.zeros(1 << self.n_bits, dtype=bool)
        self.is_excluded[self.excluded] = True
        self.hub_id = np.full(1 << self.n_bits, -1, dtype=np.int64)
        self.hub_id[self.hub_codes] = self.n_enum + np.arange(self.hub_codes.size)
        if has_hub and not np.array_equal(self.hub_id >= 0, ~self.is_excluded):
            raise ValueError("the hub's action codes and excluded codes do not share out its 2**H patterns")
        self.excluded_bits = torch.from_numpy(self.unpack(self.excluded))  # (m, H) float64

    def unpack(self, codes: np.ndarray) -> np.ndarray:
        """codes: (n,) -> (n, H) float64 of 0/1; bit k of the code in column k."""
        return ((np.asarray(codes)[:, None] & self.powers) != 0).astype(np.float64)

    def codes_of(self, actions: np.ndarray) -> np.ndarray:
        """actions: (n,) ids -> (n,) hub codes, -1 for enumerated actions."""
        actions = np.asarray(actions, dtype=np.int64)
        codes = np.full(actions.shape, -1, dtype=np.int64)
        at_hub = actions >= self.n_enum
        codes[at_hub] = self.hub_codes[actions[at_hub] - self.n_enum]
        return codes

    def bits_of(self, actions: np.ndarray) -> np.ndarray:
        """actions: (n,) ids -> (n, H) float64 bits, all 0 for enumerated actions."""
        return self.unpack(np.maximum(self.codes_of(actions), 0))

    def log_prior(self, do_nothing: float) -> np.ndarray:
        """(E+1+H,) float32, to be added to the logits: do nothing has probability `do_nothing` (0 < . < 1), the rest is
        uniform over substations and then over the patterns of each; a prior per action would live at the hub."""
        subs, inverse, counts = np.unique(self.sub[1:], return_inverse=True, return_counts=True)
        share = np.log1p(-do_nothing) - np.log(max(subs.size + (self.n_bits > 0), 1))
        prior = np.zeros(self.n_logits)
        prior[0] = np.log(do_nothing)
        prior[1 : self.n_enum] = share - np.log(counts[inverse])
        prior[self.n_enum] = share
        return prior.astype(np.float32)

    def read(self, legal: np.ndarray) -> Reading:
        """legal: (B, L) uint8. Which patterns to subtract, and whether the hub keeps a legal one, in integers."""
        e, h = self.n_enum, self.n_bits
        free = legal[:, e + 1 : e + 1 + h] != 0
        free_code = free @ self.powers
        present = (legal[:, e + 1 + h :] != 0) @ self.powers
        subtract = np.empty((len(legal), self.excluded.size + 1), dtype=bool)
        subtract[:, :-1] = (self.excluded & ~free_code[:, None]) == 0
        # the present pattern may be a static exclusion itself, or out of the free bits' reach: no mass of its own then
        subtract[:, -1] = ((present & ~free_code) == 0) & ~self.is_excluded[present]
        allowed = legal[:, : e + 1] != 0
        allowed[:, e] &= (np.int64(1) << free.sum(1, dtype=np.int64)) > subtract.sum(1)
        return Reading(allowed, free, free_code, present, subtract)


class CatalogueDistribution:
    """Differentiable distribution over the ids, vectorised over the batch.

    logits: (B, E+1+H) tensor, any float type; legal: (B, L) uint8 array. The hub's part is computed in float64, because
    1 - mass(X) cancels where few bits are free; results come back in the logits' type.
    log_top, p_top: (B, E+1) the top level, without gradient; has_choice: (B,) bool, anything but do nothing is legal;
    bit_mean: (B, H) E[b_k | hub, legal].
    """

    def __init__(self, space: ActionSpace, logits: torch.Tensor, legal: np.ndarray) -> None:
        self.space, self._logits, self._legal = space, logits, legal
        self._reading = reading = space.read(legal)
        self._top, bits = logits.split([space.n_enum + 1, space.n_bits], dim=1)
        allowed = torch.from_numpy(reading.allowed)
        self.log_top = torch.where(allowed, self._top.detach(), ILLEGAL).log_softmax(1)
        self.p_top = self.log_top.exp()
        self.has_choice = torch.from_numpy(reading.allowed[:, 1:].any(1))
        # log q(b) = sum_k log p(b_k = 0) + sum_k u_k b_k, over free bits
        self._free = torch.from_numpy(reading.free.astype(np.float64))
        self._u = bits.double() * self._free
        self._softplus = F.softplus(self._u) * self._free  # -log p(b_k = 0)
        self._p_one = torch.sigmoid(self._u) * self._free
        self._log_q0 = -self._softplus.sum(1)
        present = torch.from_numpy(space.unpack(reading.present))
        log_q = torch.cat([self._u @ space.excluded_bits.T, (self._u * present).sum(1, keepdim=True)], 1)
        self._log_q_x = log_q + self._log_q0[:, None]  # (B, m+1)
        self._q_x = self._log_q_x.exp() * torch.from_numpy(reading.subtract.astype(np.float64))
        self._z = (1.0 - self._q_x.sum(1)).clamp_min(TINY_MASS)
        mass_of_ones = self._q_x[:, :-1] @ space.excluded_bits + self._q_x[:, -1:] * present
        self.bit_mean = ((self._p_one - mass_of_ones) / self._z[:, None]).to(logits.dtype)

    def log_prob(self, actions: np.ndarray) -> torch.Tensor:
        """actions: (B,) int64 ids -> (B,) log p; -inf where the action is illegal."""
        space, reading = self.space, self._reading
        codes = space.codes_of(actions)
        at_hub = codes >= 0
        codes, entry = np.maximum(codes, 0), np.minimum(actions, space.n_enum)
        possible = reading.allowed[np.arange(len(entry)), entry]
        possible &= ~at_hub | (((codes & ~reading.free_code) == 0) & (codes != reading.present))
        within = self._log_q0 + (self._u * torch.from_numpy(space.unpack(codes))).sum(1) - self._z.log()
        log_top = self._top.masked_fill(torch.from_numpy(~reading.allowed), ILLEGAL).log_softmax(1)
        top = log_top.gather(1, torch.from_numpy(entry)[:, None])[:, 0]
        log_prob = top + within.to(top.dtype) * torch.from_numpy(at_hub)
        return log_prob.masked_fill(torch.from_numpy(~possible), -torch.inf)

    def _hub_entropy(self) -> torch.Tensor:
        """(B,) nats: of the bits, given a legal pattern at the hub."""
        bernoulli = (self._softplus - self._u * self._p_one).sum(1)
        hub = self._z.log() + (bernoulli + (self._q_x * self._log_q_x).sum(1)) / self._z
        return hub.to(self.p_top.dtype)

    def _low(self, values1: Values, values2: Values) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, E+1) min(Q1, Q2), a new tensor, and (B,) the hub's."""
        hub = [v.top[:, -1] + (v.bits * self.bit_mean).sum(1) for v in (values1, values2)]
        return torch.minimum(values1.top, values2.top), torch.minimum(*hub)

    def entropy(self) -> torch.Tensor:
        """(B,) nats, exact: H(top level) + p(hub) H(bits | legal pattern)."""
        return SoftmaxExpectation.apply(self._top, self._hub_entropy() - self.log_top[:, -1], self.p_top, -self.log_top)

    def expectation(self, values: Values) -> torch.Tensor:
        """(B,) E_a[Q(s, a)], exact."""
        return self.expectation_of_min(values, values)

    def expectation_of_min(self, values1: Values, values2: Values) -> torch.Tensor:
        """(B,) E_a[min(Q1, Q2)], the values without gradient. The minimum is per action where enumerated; at the hub it
        is of the two *expected* values, as a minimum per pattern has no closed form (an upper bound of it; ours)."""
        low, hub = self._low(values1, values2)
        return SoftmaxExpectation.apply(self._top, hub, self.p_top, low)

    def soft_value(self, values1: Values, values2: Values, alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
        """(B,) E_a[min(Q1, Q2)] + alpha H, as `expectation_of_min` and `entropy` give them, in one go; and (B,) H
        without gradient."""
        (low, hub), hub_entropy = self._low(values1, values2), self._hub_entropy()
        with torch.no_grad():
            entropy = self.p_top[:, -1] * hub_entropy - torch.linalg.vecdot(self.p_top, self.log_top)
            low.sub_(self.log_top, alpha=alpha)
        value = SoftmaxExpectation.apply(self._top, hub + alpha * (hub_entropy - self.log_top[:, -1]), self.p_top, low)
        return value, entropy

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """(B,) int64 ids."""
        return sample(self.space, self._logits.detach().numpy(), self._legal, rng)

    def mode(self) -> np.ndarray:
        """(B,) int64: the most probable id."""
        return mode(self.space, self._logits.detach().numpy(), self._legal)


def _top_probabilities(logits: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    top = np.where(allowed, logits[:, : allowed.shape[1]], -np.inf).astype(np.float64)
    p = np.exp(top - top.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def hub_log_probabilities(space: ActionSpace, u: np.ndarray, free: np.ndarray, present: int) -> np.ndarray:
    """One row, all 2**H patterns in order of their code: log p(pattern | hub), -inf where illegal. A millisecond or two
    for H = 16, so only for rows that need it."""
    log_one = np.where(free, -np.logaddexp(0.0, -u), -np.inf)
    log_zero = np.where(free, -np.logaddexp(0.0, u), 0.0)
    log_q = np.zeros(1)
    for zero, one in zip(log_zero, log_one, strict=True):
        log_q = np.concatenate([log_q + zero, log_q + one])
    log_q[space.excluded] = -np.inf
    log_q[present] = -np.inf
    best = log_q.max()
    return log_q - best - np.log(np.exp(log_q - best).sum())


def sample(space: ActionSpace, logits: np.ndarray, legal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """logits: (B, E+1+H), legal: (B, L) -> (B,) int64 ids. Bits by rejection; a row that is rejected too often is drawn
    from its enumerated patterns, which is the same distribution."""
    reading = space.read(legal)
    cumulative = _top_probabilities(logits, reading.allowed).cumsum(1)
    u = np.minimum(rng.random(len(logits)) * cumulative[:, -1], np.nextafter(cumulative[:, -1], 0.0))
    actions = (cumulative <= u[:, None]).sum(1)
    pending = np.flatnonzero(actions == space.n_enum)
    if not pending.size:
        return actions
    bits = logits[:, space.n_enum + 1 :].astype(np.float64)
    p_one = reading.free / (1.0 + np.exp(-bits))
    for _ in range(REJECTION_ROUNDS):
        codes = (rng.random((pending.size, space.n_bits)) < p_one[pending]) @ space.powers
        accepted = ~space.is_excluded[codes] & (codes != reading.present[pending])
        actions[pending[accepted]] = space.hub_id[codes[accepted]]
        pending = pending[~accepted]
        if not pending.size:
            return actions
    for row in pending:
        p = np.exp(hub_log_probabilities(space, bits[row], reading.free[row], reading.present[row]))
        actions[row] = space.hub_id[rng.choice(p.size, p=p / p.sum())]
    return actions


def best_hub_pattern(space: ActionSpace, u: np.ndarray, free: np.ndarray, present: int, subtract: np.ndarray):
    """One row with at least one legal pattern: (code, log p(code | hub)) of the most probable one.

    Patterns are visited in order of falling probability: the modal bits, then the sets of flips in order of their cost
    sum |u_k|. As only m + 1 patterns are illegal, at most m + 2 are visited.
    """
    position = np.flatnonzero(free)
    position = position[np.abs(u[position]).argsort(kind="stable")]
    cost, flip = np.abs(u[position]).tolist(), space.powers[position].tolist()
    modal = int(((u > 0) & free) @ space.powers)
    heap = [(0.0, 0, -1)]  # (cost, flipped bits, place of the dearest flip)
    while True:
        spent, flipped, last = heapq.heappop(heap)
        code = modal ^ flipped
        if not space.is_excluded[code] and code != present:
            break
        if last + 1 < len(cost):
            heapq.heappush(heap, (spent + cost[last + 1], flipped | flip[last + 1], last + 1))
            if last >= 0:  # or the dearest flip moves one place up
                moved = flipped ^ flip[last] ^ flip[last + 1]
                heapq.heappush(heap, (spent + cost[last + 1] - cost[last], moved, last + 1))
    log_q0 = -np.logaddexp(0.0, u[position]).sum()
    illegal_bits = np.concatenate([space.unpack(space.excluded), space.unpack(np.array([present]))])[subtract]
    mass = np.exp(log_q0 + illegal_bits @ u).sum()
    modal_log_q = log_q0 + np.maximum(u[position], 0.0).sum()
    return code, modal_log_q - spent - np.log(max(1.0 - mass, TINY_MASS))


def mode(space: ActionSpace, logits: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """logits: (B, E+1+H), legal: (B, L) -> (B,) int64: the most probable id; on a tie the enumerated action."""
    reading, e = space.read(legal), space.n_enum
    top = np.where(reading.allowed, logits[:, : e + 1], -np.inf)  # a constant above log p: enough to compare
    actions = top[:, :e].argmax(1)
    best = top[np.arange(len(top)), actions]
    # a hub pattern's probability is at most the hub's: only these rows can have their mode there
    for row in np.flatnonzero(top[:, e] > best):
        u = logits[row, e + 1 :].astype(np.float64)
        code, log_p = best_hub_pattern(space, u, reading.free[row], int(reading.present[row]), reading.subtract[row])
        if top[row, e] + log_p > best[row]:
            actions[row] = space.hub_id[code]
    return actions


def most_probable(space: ActionSpace, logits: np.ndarray, legal: np.ndarray, n: int) -> np.ndarray:
    """One row, logits (E+1+H,) and legal (L,): the (<= n,) legal ids of highest probability, that of `mode` first."""
    reading, e = space.read(legal[None]), space.n_enum
    top = np.where(reading.allowed[0], logits[: e + 1], -np.inf).astype(np.float64)
    ids, score = np.arange(e), top[:e]
    last = -np.sort(-score)[n - 1] if n <= e else -np.inf
    if top[e] > last:  # else none of the hub's patterns, each less probable than the hub, can be among them
        within = hub_log_probabilities(space, logits[e + 1 :].astype(np.float64), reading.free[0], int(reading.present[0]))
        best = np.argpartition(-within, min(n, within.size - 1))[:n]
        ids, score = np.concatenate([ids, space.hub_id[best]]), np.concatenate([score, top[e] + within[best]])
    order = np.lexsort((ids, -score))[:n]
    return ids[order[np.isfinite(score[order])]]
