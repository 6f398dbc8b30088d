"""Checkpoints: nested dicts of arrays, numbers and strings, written so that a kill at any moment leaves a whole file."""

import numpy as np
import torch

from ace.config.files import written_whole


def save(state, path):
    with written_whole(path) as partial:
        torch.save(_to_tensors(state), partial)


def load(path):
    """The state, or None if there is no checkpoint. No code is ever run from the file (`weights_only`)."""
    return _to_arrays(torch.load(path, weights_only=True)) if path.exists() else None


def _to_tensors(value):
    if isinstance(value, np.ndarray):
        return {"__array__": torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))}
    if isinstance(value, dict):
        return {key: _to_tensors(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_tensors(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _to_arrays(value):
    if isinstance(value, dict):
        if "__array__" in value:
            return value["__array__"].numpy()
        return {key: _to_arrays(item) for key, item in value.items()}
    return [_to_arrays(item) for item in value] if isinstance(value, list) else value
