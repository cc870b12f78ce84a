"""How much room packed slots take, on real key-values of the tiny models: ``python tests/benchmarks/packed_form.py``.

Beside the packed form stands what a host alone could do: the same planes, deflated. No GPU kernel expands that.
"""

from __future__ import annotations

import warnings
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from kvfsm.kernels.floats import to_bf16
from kvfsm.kernels.fp8_rows import v4_row
from kvfsm.kernels.packed_slot import pack_slots
from kvfsm.runtime.integrations.tiny_models import DTYPES, NAMES, build, fix_threads
from kvfsm.runtime.layout import Layout, Part

TOKENS = 256
Bytes = npt.NDArray[np.uint8]


def key_values(name: str, dtype: str) -> list[torch.Tensor]:
    """Compressed entries, and keys and values of full attention, of one prompt."""
    model, _ = build(name, seed=3, dtype=DTYPES[dtype])
    cache = transformers.DynamicCache(config=model.config)
    tokens = torch.randint(0, 256, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model(input_ids=tokens, use_cache=True, past_key_values=cache)
    found: list[Any] = []
    for layer in cache.layers:
        if hasattr(layer, "compressed_kv"):
            found += layer.compressed_kv.values()
        elif layer.keys.shape[-2] == TOKENS:
            found += [layer.keys, layer.values]
    return [tensor for tensor in found if tensor is not None]


def layout_of(tensors: list[torch.Tensor], dtype: str) -> tuple[Layout, Bytes]:
    """A slot that holds them, one after the other."""
    parts, pieces, at = [], [], 0
    for n, tensor in enumerate(tensors):
        data = tensor.contiguous().reshape(-1, tensor.shape[-1]).view(torch.uint8).numpy()
        parts.append(Part("rows", n, at, len(data), data.shape[1], (tensor.shape[-1],), dtype, "rows"))
        pieces.append(data.reshape(-1))
        at += pieces[-1].size
    return Layout("compressed_kv", 1, tuple(parts), at, 1), np.concatenate(pieces)[None]


def deflated(layout: Layout, slot: Bytes) -> int:
    item = {"float32": 4, "bfloat16": 2}[layout.parts[0].dtype]
    planes = b"".join(slot[part.offset : part.end].reshape(-1, item).T.tobytes() for part in layout.parts)
    return len(zlib.compress(planes, 1))


def fp8_rows() -> float:
    """Of a page of V4 rows of normal numbers, which is FP8 already."""
    rows = to_bf16(np.random.default_rng(1).standard_normal((64, 512)).astype(np.float32))
    data, scales = v4_row(rows)
    parts = (
        Part("data", 0, 0, 64, 576, (576,), "uint8", "latent_e4m3_rope_bf16"),
        Part("scale", 0, 64 * 576, 64, 8, (8,), "uint8", "scale_ue8m0"),
    )
    layout = Layout("compressed_kv", 1, parts, 64 * 584, 16)
    slot = np.concatenate((data.reshape(-1), scales.reshape(-1)))[None]
    return len(pack_slots(layout, slot)[0]) / slot.size


def main() -> None:
    fix_threads()
    print(f"{'bytes packed / bytes':34} {'lossless':>9} {'deflate':>9} {'FP8':>9}")
    for name in NAMES:
        for dtype in DTYPES:
            layout, slot = layout_of(key_values(name, dtype), dtype)
            sizes = [
                len(pack_slots(layout, slot)[0]),
                deflated(layout, slot[0]),
                len(pack_slots(layout, slot, True)[0]),
            ]
            print(f"{name + ', ' + dtype:34} " + " ".join(f"{size / slot.size:9.3f}" for size in sizes))
    print(f"{'64 rows of DeepSeek-V4, FP8':34} {fp8_rows():9.3f}")


if __name__ == "__main__":
    main()
