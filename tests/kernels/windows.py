"""Rows for compressors, of any shape: where windows before lie, and gates in either form."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvfsm.kernels.compress import CARRY, NOTHING, ROWS, Compressor, Windows

CSA = Compressor(512, 4, True, 64, 1e-6, rows_folded=False)
HCA = Compressor(512, 128, False, 64, 1e-6, rows_folded=True)
INDEX = Compressor(128, 4, True, 64, 1e-6, rows_folded=False)
TINY_HCA = Compressor(32, 16, False, 8, 1e-6, rows_folded=False)
ODD = Compressor(20, 5, True, 4, 1e-5, rows_folded=True, carry_folded=False)

POSITIONS = 64


def windows_of(compressor: Compressor, seed: int, entries: int, stride: int = 0) -> Windows[Any]:
    """Random rows in which every kind of origin occurs, with strides wider than the rows."""
    chance = np.random.default_rng(seed)
    row_stride = stride or compressor.width + 4
    carry_stride = compressor.elements + 8
    row_count, carry_count = compressor.ratio * (entries + 1) + 3, compressor.ratio * 2 + 1

    def drawn(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (chance.standard_normal(shape) * scale).astype(np.float32)

    origin = np.full(entries, NOTHING, np.uint8)
    if compressor.overlaps:
        origin[:] = chance.integers(0, 3, entries)
        origin[:3] = [ROWS, CARRY, NOTHING][:entries]
    starts = chance.integers(0, row_count - compressor.ratio + 1, entries)
    there = np.where(origin == CARRY, carry_count, row_count) - compressor.ratio
    return Windows(
        kv=drawn(row_count, row_stride),
        gate=drawn(row_count, row_stride, scale=3),
        row_count=row_count,
        row_stride=row_stride,
        bias=drawn(compressor.ratio, compressor.width),
        weight=1 + drawn(compressor.elements, scale=0.1),
        rotary=drawn(POSITIONS, max(compressor.rope, 1)),
        position_count=POSITIONS,
        current=starts.astype(np.uint32),
        positions=chance.integers(0, POSITIONS, entries).astype(np.uint32),
        origin=origin,
        previous=(chance.random(entries) * (there + 1)).astype(np.uint32),
        most=entries,
        carry_kv=drawn(carry_count, carry_stride),
        carry_gate=drawn(carry_count, carry_stride, scale=3),
        carry_count=carry_count,
        carry_stride=carry_stride,
    )
