"""Where `transformers` keeps the rows of each part of a profile, and what its numbers mean.

The one table that ties a profile's parts to fields of `transformers` cache layers. A part is found by object, layer
type and name; its ``meaning`` must then be the meaning that the numbers have here, because equal shapes and dtypes
say nothing: ``overlap_gate`` already holds the positional bias while ``buffer_gate`` doesn't (transformers 5.24.0,
models/deepseek_v4/modeling_deepseek_v4.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..layout import Part

__all__ = ["CSA", "FULL", "HCA", "INDEXED", "PLACES", "SLIDING", "Place", "dtype_of"]

SLIDING, FULL, INDEXED = "sliding_attention", "full_attention", "indexed_attention"
CSA, HCA = "compressed_sparse_attention", "heavily_compressed_attention"


@dataclass(frozen=True, slots=True)
class Place:
    """A field of a cache layer that holds rows: ``attribute``, or ``attribute[entry]`` where that is a dict.

    ``keys`` and ``values`` are [1, heads, rows, dim] for rows of [heads, dim]; all else is [1, rows, dim] for rows
    of [dim].
    """

    attribute: str
    entry: str | None
    meaning: str

    def read(self, layer: Any) -> torch.Tensor | None:
        """Rows [rows, ...] without a copy; None when the layer has none yet."""
        held = getattr(layer, self.attribute)
        tensor: torch.Tensor | None = held if self.entry is None else held[self.entry]
        if tensor is None:
            return None
        return tensor[0].transpose(0, 1) if tensor.ndim == 4 else tensor[0]

    def batch(self, layer: Any) -> int:
        """Sequences that the layer holds rows of."""
        held = getattr(layer, self.attribute)
        return int((held if self.entry is None else held[self.entry]).shape[0])

    def write(self, layer: Any, rows: torch.Tensor) -> None:
        """Put rows [rows, ...] there, contiguous and with the axes that the layer expects."""
        tensor = (rows.transpose(0, 1) if rows.ndim == 3 else rows).unsqueeze(0).contiguous()
        if self.entry is None:
            setattr(layer, self.attribute, tensor)
        else:
            getattr(layer, self.attribute)[self.entry] = tensor


_KEYS, _VALUES = Place("keys", None, "key"), Place("values", None, "value")
_ENTRIES = Place("compressed_kv", "compressor", "latent")
_PENDING = {
    "pending_kv": Place("buffer_kv", "compressor", "kv"),
    "pending_gate": Place("buffer_gate", "compressor", "gate_raw"),
}

PLACES: dict[tuple[str, str], dict[str, Place]] = {
    # (object, layer type): part name -> place
    ("compressed_kv", FULL): {"keys": _KEYS, "values": _VALUES},
    ("compressed_kv", INDEXED): {"keys": Place("keys", None, "latent"), "values": Place("values", None, "rope_key")},
    ("compressed_kv", CSA): {"entries": _ENTRIES},
    ("compressed_kv", HCA): {"entries": _ENTRIES},
    ("uncompressed_tail", CSA): {
        "overlap_kv": Place("overlap_kv", "compressor", "kv"),
        "overlap_gate": Place("overlap_gate", "compressor", "gate_bias_folded"),
        "pending_indexer_kv": Place("buffer_kv", "indexer", "index_kv"),
        "pending_indexer_gate": Place("buffer_gate", "indexer", "gate_raw"),
        **_PENDING,
    },
    ("uncompressed_tail", HCA): _PENDING,
    ("swa_window", SLIDING): {"keys": _KEYS, "values": _VALUES},
    ("swa_window", CSA): {"keys": Place("keys", None, "key_and_value")},
    ("swa_window", HCA): {"keys": Place("keys", None, "key_and_value")},
    ("indexer_state", INDEXED): {"keys": Place("indexer_keys", None, "index_key")},
    ("indexer_state", CSA): {
        "keys": Place("compressed_kv", "indexer", "index_key"),
        "overlap_kv": Place("overlap_kv", "indexer", "index_kv"),
        "overlap_gate": Place("overlap_gate", "indexer", "gate_bias_folded"),
    },
}


def dtype_of(part: Part) -> torch.dtype:
    """The torch dtype of a part's elements; AttributeError for one that torch lacks."""
    found = getattr(torch, part.dtype)
    assert isinstance(found, torch.dtype)
    return found
