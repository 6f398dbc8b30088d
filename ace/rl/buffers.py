"""The paper's buffers: D_RL (what the agent did), D_LLM (validated refinements and judged decisions), D_mix (batches of both).

A row is one decision and the quiet steps after it (semi-Markov, our reading): reward = (1-gamma) sum_i gamma^i
r_{t+i+1} over its n steps, discount = gamma^n, 0 on blackout. Rows are named by a uid that counts up from 0 and is
never used twice, so that others may keep what belongs to a row (its GridState) and learn when it has been overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np


@dataclass(slots=True)
class Transition:
    """One row. x: (F,) float32; legal: (L,) uint8 as `Catalogue.legality` gives it."""

    x: np.ndarray
    legal: np.ndarray
    action: int
    reward: float  # return of the decision, normalised by 1 - gamma
    discount: float  # gamma^n, 0 on blackout only
    x_next: np.ndarray
    legal_next: np.ndarray
    r_step: float  # reward of the first step after the decision, in [-1, 1]: bad cases are chosen on it
    is_decision: bool  # False: only do nothing was legal, so there is nothing to refine


@dataclass(slots=True)
class Batch:
    """B rows of D_mix, those of D_RL first."""

    x: np.ndarray  # (B, F) float32
    legal: np.ndarray  # (B, L) uint8
    action: np.ndarray  # (B,) int64
    reward: np.ndarray  # (B,) float32
    discount: np.ndarray  # (B,) float32
    x_next: np.ndarray  # (B, F) float32
    legal_next: np.ndarray  # (B, L) uint8
    weight: np.ndarray  # (B,) float32: D_LLM rows max(r_refined - r_original, 0), read by cloning only; 1 elsewhere
    is_refined: np.ndarray  # (B,) float32: 1.0 for rows that f_LLM refined, which cloning imitates

    def __len__(self) -> int:
        return len(self.action)


class Ring:
    """Fixed number of rows in numpy columns; the row of a uid is uid % capacity, so the newest overwrites the oldest.

    extra: further scalar columns, name -> dtype. Memory: about 8 (F + L / 4) bytes a row, taken as rows are written.
    """

    def __init__(self, capacity: int, n_features: int, n_legal: int, extra: dict[str, type]) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.capacity, self.next_uid = capacity, 0
        self.columns = {
            "x": np.zeros((capacity, n_features), np.float32),
            "legal": np.zeros((capacity, n_legal), np.uint8),
            "action": np.zeros(capacity, np.int64),
            "reward": np.zeros(capacity, np.float32),
            "discount": np.zeros(capacity, np.float32),
            "x_next": np.zeros((capacity, n_features), np.float32),
            "legal_next": np.zeros((capacity, n_legal), np.uint8),
            "r_step": np.zeros(capacity, np.float32),
            "is_decision": np.zeros(capacity, bool),
        } | {name: np.zeros(capacity, dtype) for name, dtype in extra.items()}

    def __len__(self) -> int:
        return min(self.next_uid, self.capacity)

    def _append(self, transition: Transition, **extra) -> int:
        uid, slot = self.next_uid, self.next_uid % self.capacity
        for field in fields(Transition):
            self.columns[field.name][slot] = getattr(transition, field.name)
        for name, value in extra.items():
            self.columns[name][slot] = value
        self.next_uid += 1
        return uid

    def holds(self, uid: int) -> bool:
        """False if the row has been overwritten, or never was."""
        return max(self.next_uid - self.capacity, 0) <= uid < self.next_uid

    def uids(self, slots: np.ndarray) -> np.ndarray:
        """(n,) slots -> (n,) int64 uids of the rows that lie there now."""
        newest = self.next_uid - 1
        return newest - (newest - np.asarray(slots, dtype=np.int64)) % self.capacity

    def transition(self, uid: int) -> Transition:
        """The row (a copy). Raises KeyError if it is gone."""
        return Transition(**{field.name: self.value(uid, field.name) for field in fields(Transition)})

    def value(self, uid: int, column: str):
        """One stored value (a copy). Raises KeyError if the row is gone."""
        if not self.holds(uid):
            raise KeyError(f"transition {uid} is no longer in the buffer")
        return self.columns[column][uid % self.capacity].copy()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Numpy arrays only: the written part of each column, and next_uid, from which the ring's position follows."""
        state = {name: column[: len(self)].copy() for name, column in self.columns.items()}
        return state | {"next_uid": np.array(self.next_uid, np.int64), "capacity": np.array(self.capacity, np.int64)}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Raises ValueError if the state is of a buffer with other columns or another capacity."""
        if int(state["capacity"]) != self.capacity or set(state) - {"next_uid", "capacity"} != set(self.columns):
            raise ValueError("the stored buffer has another capacity or other columns than this one")
        before, self.next_uid = len(self), int(state["next_uid"])
        for name, column in self.columns.items():
            if state[name].shape != (len(self), *column.shape[1:]) or state[name].dtype != column.dtype:
                raise ValueError(f"column {name} of the stored buffer has another shape or type than this one")
            column[: len(self)] = state[name]
            column[len(self) : before] = 0  # what was never written is zero, and takes no memory


class ReplayBuffer(Ring):
    """D_RL."""

    def __init__(self, capacity: int, n_features: int, n_legal: int) -> None:
        super().__init__(capacity, n_features, n_legal, {"refined": bool})

    def add(self, transition: Transition) -> int:
        """Returns the row's uid."""
        return self._append(transition, refined=False)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """(n,) slots, uniform, with replacement. Raises ValueError while empty."""
        if not len(self):
            raise ValueError("cannot sample from an empty replay buffer")
        return rng.integers(len(self), size=n)

    def adjust(self, uid: int, delta: float) -> bool:
        """Adds `delta` to the stored return (g_LLM's +-K, +-2K in the unit of `reward`; multiply a change of one step's
        reward by 1 - gamma first). r_step stays as measured. False if the row has been overwritten."""
        if not self.holds(uid):
            return False
        self.columns["reward"][uid % self.capacity] += np.float32(delta)
        return True

    def mark_refined(self, uid: int) -> bool:
        """The row is not offered as a bad case again, whether or not its refinement succeeded. False if overwritten."""
        if not self.holds(uid):
            return False
        self.columns["refined"][uid % self.capacity] = True
        return True

    def bad_cases(self, rng: np.random.Generator, n: int, threshold: float) -> np.ndarray:
        """(k,) uids in random order, k <= n: of a mini-batch of n sampled rows those with r_step < threshold (the paper's
        r-bar) that are decisions and not marked as refined. Empty while the buffer is empty."""
        if not len(self):
            return np.zeros(0, np.int64)
        slots = np.unique(self.sample(n, rng))
        c = self.columns
        bad = (c["r_step"][slots] < np.float32(threshold)) & c["is_decision"][slots] & ~c["refined"][slots]
        return rng.permutation(self.uids(slots[bad]))  # whoever takes some of them takes a random draw, not the oldest


class RefinedBuffer(Ring):
    """D_LLM: what the language model made of transitions. f_LLM's rows (is_refined) hold another, validated action; g_LLM's
    the action as it was played and its adjusted reward.

    Weight of a row (paper Eq. 8, at second hand): w = exp(r_refined / tau) / exp(r_original / tau). Of an action refined
    both rewards come from the same what-if engine, so that they compare; of one judged, r_refined is r_original +- K, 2K.
    """

    def __init__(self, capacity: int, n_features: int, n_legal: int) -> None:
        super().__init__(capacity, n_features, n_legal, {"r_original": np.float32, "r_refined": np.float32, "is_refined": bool})

    def add(self, transition: Transition, r_original: float, r_refined: float, is_refined: bool = True) -> int:
        """Returns the row's uid. Raises ValueError if a reward is not finite."""
        if not np.isfinite([r_original, r_refined]).all():
            raise ValueError(f"rewards of a refinement must be finite, not {r_original} and {r_refined}")
        return self._append(transition, r_original=r_original, r_refined=r_refined, is_refined=is_refined)

    def gain(self) -> np.ndarray:
        """(len,) float64 r_refined - r_original."""
        return self.columns["r_refined"][: len(self)].astype(np.float64) - self.columns["r_original"][: len(self)]

    def is_refined(self) -> np.ndarray:
        """(len,) bool: the rows that f_LLM refined."""
        return self.columns["is_refined"][: len(self)]

    def probabilities(self, tau: float) -> np.ndarray:
        """(len,) float64."""
        return priorities(self.gain(), tau)

    def sample(self, n: int, rng: np.random.Generator, tau: float) -> np.ndarray:
        """(n,) slots, proportional to w, with replacement. Raises ValueError while the buffer is empty."""
        if not len(self):
            raise ValueError("cannot sample from D_LLM: it is empty")
        return draw(self.probabilities(tau), n, rng)


def priorities(gain: np.ndarray, tau: float) -> np.ndarray:
    """Eq. 8: w / sum w of w = exp(gain / tau), by log-sum-exp, so that no gain and no tau overflows. gain: (n,), n > 0."""
    log_w = np.asarray(gain, np.float64) / tau
    w = np.exp(log_w - log_w.max())
    return w / w.sum()


def draw(probabilities: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """(n,) indices, with replacement."""
    cumulative = probabilities.cumsum()
    return np.minimum(np.searchsorted(cumulative, rng.random(n) * cumulative[-1], side="right"), len(cumulative) - 1)


@dataclass(slots=True)
class MixedSampler:
    """D_mix: each row of a batch comes from D_LLM with probability beta (from D_RL alone while D_LLM is empty)."""

    d_rl: ReplayBuffer
    d_llm: RefinedBuffer
    beta: float  # share of D_LLM, 0..1
    tau: float  # temperature of Eq. 8 in units of reward, > 0; the paper seems to use one letter for both

    def __post_init__(self) -> None:
        if not 0.0 <= self.beta <= 1.0:
            raise ValueError(f"beta must lie in 0..1, not {self.beta}")
        if not self.tau > 0.0:
            raise ValueError(f"tau must be above 0, not {self.tau}")

    def sample(self, batch_size: int, rng: np.random.Generator) -> Batch:
        """The weights of Eq. 8 act through the sampling alone; no loss is multiplied by them again."""
        n_llm = int(rng.binomial(batch_size, self.beta)) if len(self.d_llm) else 0
        n_rl = batch_size - n_llm
        rl = self.d_rl.sample(n_rl, rng) if n_rl else np.zeros(0, np.int64)
        llm = self.d_llm.sample(n_llm, rng, self.tau) if n_llm else np.zeros(0, np.int64)
        gain = np.maximum(self.d_llm.gain()[llm], 0.0)
        shared = [f.name for f in fields(Batch) if f.name in self.d_rl.columns]
        return Batch(
            **{name: np.concatenate([self.d_rl.columns[name][rl], self.d_llm.columns[name][llm]]) for name in shared},
            weight=np.concatenate([np.ones(n_rl), gain]).astype(np.float32),
            is_refined=np.concatenate([np.zeros(n_rl), self.d_llm.is_refined()[llm]]).astype(np.float32),
        )
