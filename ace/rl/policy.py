"""The trained policy alone, in numpy: what acts at deployment ("act once")."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ace.rl.distribution import ActionSpace, mode, sample

LOGIT_BOUND = 6.0
"""Logits are bounded by 6 tanh(l / 6): unbounded, the entropy collapses."""
LAYER_NORM_EPS = 1e-5


class DeployedPolicy:
    """The policy network of `ace.rl.sac`, the forward pass only.

    weights: named as in `Network`, and log_prior.
    """

    def __init__(self, space: ActionSpace, weights: dict[str, np.ndarray]) -> None:
        self.space, self.weights = space, weights

    def logits(self, x: np.ndarray) -> np.ndarray:
        """x: (F,) float32 -> (E+1+H,) float32."""
        w = self.weights
        h = w["first.weight"] @ x + w["first.bias"]
        h = h - h.mean()
        h = h / np.sqrt((h @ h) / h.size + np.float32(LAYER_NORM_EPS)) * w["norm.weight"] + w["norm.bias"]
        h = np.maximum(w["second.weight"] @ np.maximum(h, 0.0) + w["second.bias"], 0.0)
        raw = w["head.weight"] @ h + w["head.bias"]
        return np.float32(LOGIT_BOUND) * np.tanh(raw / np.float32(LOGIT_BOUND)) + w["log_prior"]

    def act(self, x: np.ndarray, legal: np.ndarray, rng: np.random.Generator | None) -> int:
        """x: (F,), legal: (L,) -> action id: sampled with `rng`, or the most probable one without."""
        logits, legal = self.logits(np.asarray(x, np.float32))[None], np.asarray(legal)[None]
        chosen = mode(self.space, logits, legal) if rng is None else sample(self.space, logits, legal, rng)
        return int(chosen[0])

    def save(self, path: Path) -> None:
        """safetensors in float16: half the bytes, and hardly a decision becomes another one (1 of 1,728, of 27 policies).

        The metadata is one JSON string, because several keys would be written in no fixed order.
        """
        space = self.space
        sizes = {"n_features": self.weights["first.weight"].shape[1], "n_enum": space.n_enum, "hub_bits": space.n_bits}
        sizes["n_actions"] = space.n_actions
        tensors = {k: np.ascontiguousarray(v, dtype=np.float16) for k, v in self.weights.items()}
        save_file(tensors, str(path), metadata={"policy": json.dumps(sizes, sort_keys=True)})


class Policy:
    """A trained policy as agent: the most probable legal action. No simulator, no language model ("act once")."""

    simulator_calls = dc_calls = llm_calls = 0

    def __init__(self, deployed: DeployedPolicy) -> None:
        """deployed: of a learner (`SAC.deployed`, `SAC.acting`) or from `load_policy`."""
        self.deployed = deployed

    def act(self, state, x: np.ndarray, legal: np.ndarray) -> int:
        return self.deployed.act(x, legal, None)


def load_policy(path: Path, catalogue) -> DeployedPolicy:
    """The policy of a file in float16 or float32, computing in float32.

    Raises FileNotFoundError without a file, ValueError if it is no policy or of another catalogue; one line each.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no trained policy at {path}")
    space = ActionSpace(catalogue)
    try:
        with safe_open(str(path), framework="numpy") as file:
            sizes = json.loads((file.metadata() or {}).get("policy", "null"))
            weights = {name: file.get_tensor(name).astype(np.float32) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{path} is no trained policy: {error}; give the policy.safetensors of a run") from None
    if sizes is None:
        raise ValueError(f"{path} is no trained policy: it declares no sizes; give the policy.safetensors of a run")
    for key, ours in {"n_enum": space.n_enum, "hub_bits": space.n_bits, "n_actions": space.n_actions}.items():
        if sizes.get(key) != ours:
            raise ValueError(f"policy {path} is for another catalogue: {key} is {sizes.get(key)} there and {ours} here")
    policy = DeployedPolicy(space, weights)
    try:
        fits = policy.logits(np.zeros(sizes["n_features"], np.float32)).shape == (space.n_enum + 1 + space.n_bits,)
    except (KeyError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"policy {path} is damaged: its weights do not have the sizes that it declares")
    return policy
