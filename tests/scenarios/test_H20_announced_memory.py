"""H-20: what is copied follows declared bases and strides, and whoever announces the memory otherwise is refused.

All keys lie before all values: 4 blocks of 1024 bytes each, keys from byte 0, values from byte 65536. A copier that
believed a shape in which keys and values alternate would move the wrong bytes, although kernels read the right ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.runtime import matching
from kvfsm.runtime.layout import Layout, Part
from kvfsm.runtime.profile import Group, Profile, ProfileError

KV, BLOCK, BLOCKS, BYTES = "compressed_kv", 16, 4, 1024


def layout(keys: range, values: range, slot_bytes: int) -> Layout:
    """Keys and values of each block at the given bytes; one slot has all blocks."""
    starts = [("keys", keys[n], n) for n in range(BLOCKS)] + [("values", values[n], n) for n in range(BLOCKS)]
    parts = [
        Part(f"{name}.{n}", 0, start, BLOCK, BYTES // BLOCK, (BYTES // BLOCK,), "uint8", name)
        for name, start, n in sorted(starts, key=lambda one: one[1])
    ]
    return Layout(KV, 1, tuple(parts), slot_bytes, 64)


APART = layout(range(0, 4096, BYTES), range(65536, 69632, BYTES), 69632)
INTERLEAVED = layout(range(0, 8192, 2048), range(1024, 8192 + 1024, 2048), 69632)


def describe(laid_out: Layout, block: int, base: int = 0) -> list[tuple[int, int]]:
    """(first byte, bytes) that a copier moves for one block."""
    ranges = zip(laid_out.parts, laid_out.copy_ranges(0, base), strict=True)
    return [one for part, one in ranges if part.name.endswith(f".{block}")]


def scenario(bench: Any) -> None:
    group = Group("full", KV, (0,), 1, BLOCK)
    named = dict.fromkeys(("name", "title", "source", "identity"), "scenario")
    profile = Profile(
        **named, granule=BLOCK * BLOCKS, groups=(group,), layouts={KV: APART},
        window=None, window_policy=None, window_block=None, retained=0,
    )  # fmt: skip
    memory = np.zeros(APART.slot_bytes, np.uint8)
    manager = bench.manager(profile, 1, buffers={KV: memory})
    keys = manager.keys(bench.tokens(BLOCK * BLOCKS + 1))
    fill = manager.reserve(keys, 0, 1)
    for part in APART.parts:
        fill.view(KV, part.name, 0)[:] = int(part.name[-1]) + (10 if part.meaning == "keys" else 20)
    manager.publish(fill)

    # sign of the defect: [(4096, 2048)], which is nobody's memory here
    assert describe(APART, 2) == [(2048, 1024), (67584, 1024)]
    assert [memory[start : start + size].tolist() for start, size in describe(APART, 2)] == [[12] * 1024, [22] * 1024]
    answer = manager.match(keys, asks={KV: APART.digest})
    with manager.acquire(answer) as lease:
        registered = {one.part: (one.base, one.item_bytes) for one in lease.state_data_ptrs}
        addresses = [registered["keys.2"], registered["values.2"]]
        assert addresses == describe(APART, 2, base=memory.ctypes.data)

    with pytest.raises(ProfileError, match="in another order"):
        APART.check_same(INTERLEAVED)
    refused = manager.match(keys, asks={KV: INTERLEAVED.digest})
    assert (refused.kind, refused.reason, refused.length) == ("REJECT", "LAYOUT", 0)
    bench.audited(manager)


def test_H20_memory_is_copied_as_it_is_declared(bench: Any) -> None:
    scenario(bench)


def test_H20_control_a_layout_that_nobody_compares_is_noticed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "kernel_abi", lambda layouts, asks: None)
    with pytest.raises(AssertionError, match="REJECT"):
        scenario(bench)
