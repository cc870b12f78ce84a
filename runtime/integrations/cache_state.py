"""What a `transformers` cache holds, as named tensors and numbers, so that two caches can be compared to the last bit.

Everything that a later forward pass could read is listed: keys and values, compressed entries, buffers, carried rows,
counters, and whether values and keys are one tensor. Floats are compared as bytes: -0.0 is not 0.0, and NaN is itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["CacheState", "as_bytes", "capture", "first_difference", "greatest_error", "sha256"]

CacheState = Mapping[str, "torch.Tensor | int"]
"""Names are ``layer.field`` or ``layer.field.entry``, such as ``2.overlap_kv.indexer``."""

# Of these nothing is read by a forward pass that isn't also in another field.
_LEFT_OUT = frozenset({"device", "indexer_device", "indexer_dtype", "_sliding_window_tensor"})


def capture(cache: Any) -> dict[str, torch.Tensor | int]:
    """All state of a cache. Tensors are copies, so later forward passes leave the result alone."""
    found: dict[str, torch.Tensor | int] = {}
    for index, layer in enumerate(cache.layers):
        for field, value in vars(layer).items():
            entries = value.items() if isinstance(value, dict) else [(None, value)]
            for entry, item in entries:
                name = f"{index}.{field}" if entry is None else f"{index}.{field}.{entry}"
                if field in _LEFT_OUT or item is None or callable(item):
                    continue
                found[name] = item.detach().clone().contiguous() if isinstance(item, torch.Tensor) else int(item)
        found[f"{index}.values_are_keys"] = int(layer.keys is not None and layer.values is layer.keys)
    return found


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor as uint8 [elements x item bytes], row-major."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def sha256(state: CacheState) -> str:
    """Digest over names, dtypes, shapes and bytes, as 64 hex digits."""
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name]
        if isinstance(value, torch.Tensor):
            digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}:".encode())
            digest.update(as_bytes(value).numpy().tobytes())
        else:
            digest.update(f"{name}={value};".encode())
    return digest.hexdigest()


def first_difference(ours: CacheState, theirs: CacheState) -> str | None:
    """A sentence about the first name in which two states differ; None when every bit is the same."""
    for name in sorted(set(ours) | set(theirs), key=_by_layer):
        if name not in ours or name not in theirs:
            return f"{name} is only in the {'second' if name in theirs else 'first'} cache"
        left, right = ours[name], theirs[name]
        if isinstance(left, torch.Tensor) != isinstance(right, torch.Tensor):
            return f"{name} is a tensor in one cache only"
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
            if left.dtype != right.dtype or left.shape != right.shape:
                return f"{name} is {left.dtype}{tuple(left.shape)} against {right.dtype}{tuple(right.shape)}"
            if not torch.equal(as_bytes(left), as_bytes(right)):
                worst = float((left.double() - right.double()).abs().max())
                return f"{name} differs, by up to {worst:.3g}"
        elif left != right:
            return f"{name} is {left} against {right}"
    return None


def greatest_error(ours: CacheState, theirs: CacheState, field: str | None = None) -> float:
    """The greatest absolute difference over the tensors of all fields or of one, in all layers; 0.0 without any.

    Infinite where shapes differ; names in one state only are for ``first_difference`` to tell.
    """
    worst = 0.0
    for name, left in ours.items():
        right = theirs.get(name)
        if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
            continue
        if field in (None, name.split(".")[1]) and left.numel():
            same = left.shape == right.shape
            worst = max(worst, float((left.double() - right.double()).abs().max()) if same else math.inf)
    return worst


def _by_layer(name: str) -> tuple[int, str]:
    layer, _, rest = name.partition(".")
    return int(layer), rest
