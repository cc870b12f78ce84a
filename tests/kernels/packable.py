"""Layouts with parts of every width and awkward places, and slots of awkward bytes, for the packed form."""

from __future__ import annotations

import numpy as np

from kvfsm.kernels.floats import to_bf16
from kvfsm.runtime.layout import Layout, Part


def part(name: str, offset: int, rows: int, elements: int, dtype: str, item: int) -> Part:
    return Part(name, 0, offset, rows, elements * item, (elements,), dtype, name)


MIXED = Layout(
    "compressed_kv",
    1,
    (
        part("bytes", 3, 7, 41, "uint8", 1),  # off any vector, and not a multiple of 4 long
        part("halves", 302, 3, 100, "bfloat16", 2),
        part("singles", 908, 3, 25, "float32", 4),
        part("longs", 1216, 2, 19, "int64", 8),
        part("doubles", 1528, 1, 3, "float64", 8),
        part("one", 1552, 1, 1, "float32", 4),
        part("aligned bytes", 1568, 2, 256, "uint8", 1),
        part("aligned halves", 2080, 2, 300, "bfloat16", 2),
        part("aligned singles", 3280, 2, 256, "float32", 4),
        part("aligned longs", 5328, 2, 150, "int64", 8),
    ),
    7744,
    16,
)
ONE_BYTE = Layout("compressed_kv", 1, (part("one", 0, 1, 1, "uint8", 1),), 16, 16)
LAYOUTS = {"mixed": MIXED, "one byte": ONE_BYTE}


def random_slots(layout: Layout, seed: int, count: int) -> np.ndarray:
    """Slots of numbers, of noise, of equal bytes, of few bits: another kind in each part of each slot."""
    chance = np.random.default_rng(seed)
    data = chance.integers(0, 256, (count, layout.slot_bytes)).astype(np.uint8)
    for slot in data:
        for one in layout.parts:
            kind = chance.integers(5)
            target = slot[one.offset : one.end]
            if kind == 0:
                target[:] = chance.integers(256)
            elif kind == 1:
                target[:] = chance.integers(0, 2 ** int(chance.integers(1, 8)), len(target))
            elif kind == 2 and one.dtype in ("float32", "bfloat16"):
                numbers = chance.standard_normal(len(target)) * 10.0 ** chance.integers(-30, 30)
                numbers[chance.random(len(target)) < 0.05] = 0
                made = numbers.astype(np.float32)
                source = made if one.dtype == "float32" else to_bf16(made)
                target[:] = source.view(np.uint8)[: len(target)]
    return data
