from __future__ import annotations
import json
from pathlib import Path
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from ace.rl.distribution import ActionSpace, mode, sample
LOGIT_BOUND = 6.0
LAYER_NORM_EPS = 1e-05

class DeployedPolicy:

    def __init__(self, space: ActionSpace, weights: dict[str, np.ndarray]) -> None:
        self.space, self.weights = (space, weights)

    def logits(self, x: np.ndarray) -> np.ndarray:
        w = self.weights
        h = w['first.weight'] @ x + w['first.bias']
        h = h - h.mean()
        h = h / np.sqrt(h @ h / h.size + np.float32(LAYER_NORM_EPS)) * w['norm.weight'] + w['norm.bias']
        h = np.maximum(w['second.weight'] @ np.maximum(h, 0.0) + w['second.bias'], 0.0)
        raw = w['head.weight'] @ h + w['head.bias']
        return np.float32(LOGIT_BOUND) * np.tanh(raw / np.float32(LOGIT_BOUND)) + w['log_prior']

    def act(self, x: np.ndarray, legal: np.ndarray, rng: np.random.Generator | None) -> int:
        logits, legal = (self.logits(np.asarray(x, np.float32))[None], np.asarray(legal)[None])
        chosen = mode(self.space, logits, legal) if rng is None else sample(self.space, logits, legal, rng)
        return int(chosen[0])

    def save(self, path: Path) -> None:
        space = self.space
        card = {'n_features': self.weights['first.weight'].shape[1], 'n_enum': space.n_enum, 'hub_bits': space.n_bits}
        card['n_actions'] = space.n_actions
        tensors = {k: np.ascontiguousarray(v) for k, v in self.weights.items()}
        save_file(tensors, str(path), metadata={'policy': json.dumps(card, sort_keys=True)})

def load_policy(path: Path, catalogue) -> DeployedPolicy:
    if not Path(path).is_file():
        raise FileNotFoundError(f'no trained policy at {path}')
    space = ActionSpace(catalogue)
    try:
        with safe_open(str(path), framework='numpy') as file:
            card = json.loads((file.metadata() or {}).get('policy', 'null'))
            weights = {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise ValueError(f'{path} is no trained policy: {error}; give the policy.safetensors of a run') from None
    if card is None:
        raise ValueError(f'{path} is no trained policy: it has no card; give the policy.safetensors of a run')
    for key, ours in {'n_enum': space.n_enum, 'hub_bits': space.n_bits, 'n_actions': space.n_actions}.items():
        if card.get(key) != ours:
            raise ValueError(f'policy {path} is for another catalogue: {key} is {card.get(key)} there and {ours} here')
    return DeployedPolicy(space, weights)
