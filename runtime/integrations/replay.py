"""Rebuild a sliding window from tokens, when only the entries that grow with the prompt were kept.

The window rows of layer l at position p depend on the window of layer l - 1 over [p - (W - 1), p], and so on down, so
at least ``layers * (W - 1)`` tokens before the boundary have to be run again, from the start of a granule on:
``policy.replay_range`` counts them. Entries that were kept (compressed KV, full KV, indexer keys, carried rows) are
read but not written: emitting them again from half-built windows would spoil them.

The result is *approximate*: kernels sum over other shapes than in the first run, so rows agree to rounding, about 1e-6
in float32, and not to the bit. Whoever uses it must say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["frozen", "run_frozen"]


@contextmanager
def frozen(cache: Any, start: int) -> Iterator[None]:
    """Within, a forward pass moves windows on from position ``start`` and leaves all that grows as it is.

    Full and indexed layers answer with what they hold, and are masked by position; compressors take nothing in.
    """
    replaced: list[tuple[Any, str]] = []
    counters: list[_Position] = []

    def replace(layer: Any, method: str, by: Any) -> None:
        setattr(layer, method, by)
        replaced.append((layer, method))

    for layer in cache.layers:
        if hasattr(layer, "entry_count"):
            replace(layer, "store_compression_weights", _take_nothing(layer))
        elif not getattr(layer, "is_sliding", False):
            counter = _Position(layer, start)
            counters.append(counter)
            replace(layer, "update", counter.update)
            replace(layer, "get_seq_length", counter.get_seq_length)
            replace(layer, "get_mask_sizes", counter.get_mask_sizes)
            if hasattr(layer, "update_indexer"):
                replace(layer, "update_indexer", lambda new, layer=layer: layer.indexer_keys)
    try:
        yield
    finally:
        for layer, method in replaced:
            delattr(layer, method)  # the class's own method shows again


class _Position:
    """A layer of full attention that answers with what it holds while a position moves over it."""

    def __init__(self, layer: Any, position: int) -> None:
        self.layer = layer
        self.position = position

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.position += keys.shape[-2]
        return self.layer.keys, self.layer.values

    def get_seq_length(self) -> int:
        return self.position

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.layer.keys.shape[-2], 0


def _take_nothing(layer: Any) -> Any:
    def store_compression_weights(
        name: str, kv: torch.Tensor, gate: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        return kv[:, :0], gate[:, :0], layer.entry_count[name] * layer.compress_rate

    return store_compression_weights


@torch.no_grad()
def run_frozen(model: Any, cache: Any, tokens: Sequence[int], start: int, stop: int, chunk: int) -> None:
    """Run tokens [start, stop) in chunks over a frozen cache; afterwards its windows end at ``stop``."""
    with frozen(cache, start):
        for begin in range(start, stop, chunk):
            ids = torch.tensor([list(tokens[begin : min(begin + chunk, stop)])])
            model(input_ids=ids, cache=cache, use_cache=True)
