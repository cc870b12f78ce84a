"""H-13: a block that a store still reads is not free, so it can't come back to the request that dropped it.

A window of 64 tokens over a pool of 6 blocks. Block 0 is being stored when it leaves the window; the tokens that follow
go to blocks 5 and 1, never to 0. At the end there are six free blocks and no duplicate, and giving one back again, or
one twice in a call, is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.errors import Broken, DuplicateSlots
from kvfsm.runtime.storing import Storer

WINDOW = "swa_window"


def scenario(bench: Any, open_store: Any) -> None:
    profile = bench.profile(
        16, bench.group("full", "compressed_kv", 16, 16), bench.window(16, 16),
        window=64, window_policy="blocks", window_block=16,
    )  # fmt: skip
    store = open_store(profile)
    manager = bench.manager(profile, {"compressed_kv": 16, WINDOW: 6}, store=store)
    keys = manager.keys(bench.tokens(113))
    pool, seen = manager.core.pools[WINDOW], []

    def append(block: int) -> list[int]:
        slots: list[int] = bench.put(manager, keys, block, block + 1, tag=block + 1).slots[WINDOW].tolist()
        return slots

    def while_block_0_is_stored() -> None:
        assert [append(block) for block in range(1, 5)] == [[1], [2], [3], [4]]
        assert manager.free_out_of_window(keys, 80) == 1  # the first needed is 17: block 0 leaves
        assert pool.free == 1 and 0 not in pool.free_slots
        # sign of the defect: tokens 80..95, or 96..111, go to block 0
        assert append(5) == [5]
        assert manager.free_out_of_window(keys, 96) == 1  # the first needed is 33: block 1 leaves
        assert append(6) == [1]
        bench.audited(manager)
        seen.append("all")

    store.meanwhile = while_block_0_is_stored
    assert append(0) == [0] and seen == ["all"]
    assert pool.free_slots.tolist() == [0]  # the store has ended
    manager.expire(keys)
    # sign of the defect: a free count of 7
    assert sorted(pool.free_slots.tolist()) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(DuplicateSlots):
        pool.release("evict", np.array([0, 0]))
    with pytest.raises(Broken, match=r"S2 is broken: .* ILLEGAL"):
        pool.release("evict", np.array([0]))
    assert sorted(pool.free_slots.tolist()) == [0, 1, 2, 3, 4, 5]
    bench.audited(manager)

    found = manager.match(keys)  # what was stored is block 0's own bytes
    assert found.plan is not None and manager.load(found.plan).now == 112
    back = bench.manager(profile, 16, store=store)
    plan = back.match(keys, at_most=16).plan
    assert back.load(plan).now == 16
    with back.acquire(back.match(keys, at_most=16)) as lease:
        assert (lease.view(WINDOW, "rows", 0) == 1).all()


def test_H13_a_block_that_is_being_stored_does_not_come_back(bench: Any, open_store: Any) -> None:
    scenario(bench, open_store)


def test_H13_control_a_store_without_holds_is_noticed(
    bench: Any, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storer, "hold", lambda self, kept: {})
    with pytest.raises(AssertionError, match="2 == 1"):
        scenario(bench, open_store)
