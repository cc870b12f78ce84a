"""H-22: a pool whose offsets the kernel can't form is refused when it is made; ids are checked, not just bytes.

With a stride of 1002240 bytes, signed 32-bit offsets reach 2143 slots: slot 2142 is at byte 2146798080, and one more
would wrap around. With 64-bit offsets slot 2143 is at byte 2147800320.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.layout import Layout
from kvfsm.runtime.profile import ProfileError
from kvfsm.runtime.profile_plan import GroupPlan, PartPlan

INDEX, STRIDE = "indexer_state", 1002240


def pool(bench: Any, slots: int, offset_bits: int) -> Any:
    parts = (PartPlan("keys", 1, (STRIDE,), "uint8", "key"),)
    profile = bench.profile(1, GroupPlan("index", INDEX, (0,), parts, 1, 1), offset_bits=offset_bits)
    return bench.manager(profile, slots)


def last_slot(bench: Any, manager: Any, slots: int) -> tuple[int, int]:
    """Slot and offset of the last granule of a prompt that takes the whole pool, after its bytes were read back."""
    keys = manager.keys(np.arange(slots + 1))
    fill = manager.reserve(keys, 0, slots)
    fill.view(INDEX, "keys", 0)[-1] = 7
    manager.publish(fill)
    with manager.acquire(manager.match(keys)) as lease:
        (component,) = lease.state_data_ptrs
        slot, arena = int(component.slots[-1]), manager.core.pools[INDEX].arena
        assert (lease.view(INDEX, "keys", 0)[-1] == 7).all()
    assert component.base == arena.base and (arena.bytes[slot] == 7).all()
    bench.audited(manager)
    return slot, slot * component.stride


def scenario(bench: Any) -> None:
    with pytest.raises(ProfileError, match="use 1 to 2143 slots"):
        pool(bench, 213950, offset_bits=32)
    with pytest.raises(ProfileError):
        pool(bench, 2144, offset_bits=32)
    assert last_slot(bench, pool(bench, 2143, offset_bits=32), 2143) == (2142, 2146798080)
    assert 2146798080 < 1 << 31 <= 2147800320
    # sign of the defect: a negative or wrapped offset for slot 2143
    assert last_slot(bench, pool(bench, 2144, offset_bits=64), 2144) == (2143, 2147800320)


def test_H22_a_pool_ends_where_the_kernels_offsets_end(bench: Any) -> None:
    scenario(bench)


def test_H22_control_a_pool_that_is_too_large_is_noticed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Layout, "most_slots", lambda self, offset_bits: 2144)
    with pytest.raises(AssertionError, match="2144 slots"):
        scenario(bench)
