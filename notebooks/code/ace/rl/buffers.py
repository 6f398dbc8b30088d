from __future__ import annotations
from dataclasses import dataclass, fields
import numpy as np

@dataclass(slots=True)
class Transition:
    x: np.ndarray
    legal: np.ndarray
    action: int
    reward: float
    discount: float
    x_next: np.ndarray
    legal_next: np.ndarray
    r_step: float
    is_decision: bool

@dataclass(slots=True)
class Batch:
    x: np.ndarray
    legal: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    x_next: np.ndarray
    legal_next: np.ndarray
    weight: np.ndarray
    is_llm: np.ndarray

    def __len__(self) -> int:
        return len(self.action)

class Ring:

    def __init__(self, capacity: int, n_features: int, n_legal: int, extra: dict[str, type]) -> None:
        if capacity < 1:
            raise ValueError(f'capacity must be at least 1, not {capacity}')
        self.capacity, self.next_uid = (capacity, 0)
        self.columns = {'x': np.zeros((capacity, n_features), np.float32), 'legal': np.zeros((capacity, n_legal), np.uint8), 'action': np.zeros(capacity, np.int64), 'reward': np.zeros(capacity, np.float32), 'discount': np.zeros(capacity, np.float32), 'x_next': np.zeros((capacity, n_features), np.float32), 'legal_next': np.zeros((capacity, n_legal), np.uint8), 'r_step': np.zeros(capacity, np.float32), 'is_decision': np.zeros(capacity, bool)} | {name: np.zeros(capacity, dtype) for name, dtype in extra.items()}

    def __len__(self) -> int:
        return min(self.next_uid, self.capacity)

    def _append(self, transition: Transition, **extra) -> int:
        uid, slot = (self.next_uid, self.next_uid % self.capacity)
        for field in fields(Transition):
            self.columns[field.name][slot] = getattr(transition, field.name)
        for name, value in extra.items():
            self.columns[name][slot] = value
        self.next_uid += 1
        return uid

    def holds(self, uid: int) -> bool:
        return max(self.next_uid - self.capacity, 0) <= uid < self.next_uid

    def uids(self, slots: np.ndarray) -> np.ndarray:
        newest = self.next_uid - 1
        return newest - (newest - np.asarray(slots, dtype=np.int64)) % self.capacity

    def value(self, uid: int, column: str):
        if not self.holds(uid):
            raise KeyError(f'transition {uid} is no longer in the buffer')
        return self.columns[column][uid % self.capacity].copy()

    def state_dict(self) -> dict[str, np.ndarray]:
        state = {name: column[:len(self)].copy() for name, column in self.columns.items()}
        return state | {'next_uid': np.array(self.next_uid, np.int64), 'capacity': np.array(self.capacity, np.int64)}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        if int(state['capacity']) != self.capacity or set(state) - {'next_uid', 'capacity'} != set(self.columns):
            raise ValueError('the stored buffer has another capacity or other columns than this one')
        self.next_uid = int(state['next_uid'])
        for name, column in self.columns.items():
            if state[name].shape != (len(self), *column.shape[1:]) or state[name].dtype != column.dtype:
                raise ValueError(f'column {name} of the stored buffer has another shape or type than this one')
            column[:len(self)] = state[name]
            column[len(self):] = 0

class ReplayBuffer(Ring):

    def __init__(self, capacity: int, n_features: int, n_legal: int) -> None:
        super().__init__(capacity, n_features, n_legal, {'refined': bool})

    def add(self, transition: Transition) -> int:
        return self._append(transition, refined=False)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        if not len(self):
            raise ValueError('cannot sample from an empty replay buffer')
        return rng.integers(len(self), size=n)

    def adjust(self, uid: int, delta: float) -> bool:
        if not self.holds(uid):
            return False
        self.columns['reward'][uid % self.capacity] += np.float32(delta)
        return True

    def mark_refined(self, uid: int) -> bool:
        if not self.holds(uid):
            return False
        self.columns['refined'][uid % self.capacity] = True
        return True

    def bad_cases(self, rng: np.random.Generator, n: int, threshold: float) -> np.ndarray:
        if not len(self):
            return np.zeros(0, np.int64)
        slots = np.unique(self.sample(n, rng))
        c = self.columns
        bad = (c['r_step'][slots] < np.float32(threshold)) & c['is_decision'][slots] & ~c['refined'][slots]
        return np.sort(self.uids(slots[bad]))

class RefinedBuffer(Ring):

    def __init__(self, capacity: int, n_features: int, n_legal: int) -> None:
        super().__init__(capacity, n_features, n_legal, {'r_original': np.float32, 'r_refined': np.float32})

    def add(self, transition: Transition, r_original: float, r_refined: float) -> int:
        if not np.isfinite([r_original, r_refined]).all():
            raise ValueError(f'rewards of a refinement must be finite, not {r_original} and {r_refined}')
        return self._append(transition, r_original=r_original, r_refined=r_refined)

    def gain(self) -> np.ndarray:
        return self.columns['r_refined'][:len(self)].astype(np.float64) - self.columns['r_original'][:len(self)]

    def probabilities(self, tau: float) -> np.ndarray:
        log_w = self.gain() / tau
        w = np.exp(log_w - log_w.max())
        return w / w.sum()

    def sample(self, n: int, rng: np.random.Generator, tau: float) -> np.ndarray:
        cumulative = self.probabilities(tau).cumsum()
        drawn = np.searchsorted(cumulative, rng.random(n) * cumulative[-1], side='right')
        return np.minimum(drawn, len(self) - 1)

@dataclass(slots=True)
class MixedSampler:
    d_rl: ReplayBuffer
    d_llm: RefinedBuffer
    beta: float
    tau: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.beta <= 1.0:
            raise ValueError(f'beta must lie in 0..1, not {self.beta}')
        if not self.tau > 0.0:
            raise ValueError(f'tau must be above 0, not {self.tau}')

    def sample(self, batch_size: int, rng: np.random.Generator) -> Batch:
        n_llm = int(rng.binomial(batch_size, self.beta)) if len(self.d_llm) else 0
        n_rl = batch_size - n_llm
        rl = self.d_rl.sample(n_rl, rng) if n_rl else np.zeros(0, np.int64)
        llm = self.d_llm.sample(n_llm, rng, self.tau) if n_llm else np.zeros(0, np.int64)
        gain = np.maximum(self.d_llm.gain()[llm], 0.0)
        shared = [f.name for f in fields(Batch) if f.name in self.d_rl.columns]
        return Batch(**{name: np.concatenate([self.d_rl.columns[name][rl], self.d_llm.columns[name][llm]]) for name in shared}, weight=np.concatenate([np.ones(n_rl), gain]).astype(np.float32), is_llm=np.repeat(np.array([0.0, 1.0], np.float32), [n_rl, n_llm]))
