"""H-09: a release touches its own holds only, and all of them."""

from __future__ import annotations

from typing import Any

import pytest

from kvfsm.runtime.errors import Refused


def test_H09_two_lookups_and_one_retrieval(bench: Any) -> None:
    profile = bench.profile(16, bench.group("full", "compressed_kv", 16, 16))
    manager = bench.manager(profile, 4)
    keys = manager.keys(bench.tokens(65))
    bench.put(manager, keys, 0, 4)
    table = manager.core.pools["compressed_kv"].table
    slots = bench.slots(manager, "compressed_kv", keys, 0, 4)

    a = manager.acquire(manager.match(keys, at_most=48), owner="A")
    b = manager.acquire(manager.match(keys), owner="B")
    assert table.fields("pins", slots).tolist() == [2, 2, 2, 1]
    manager.release(a)
    assert table.fields("pins", slots).tolist() == [1, 1, 1, 1]
    # sign of the defect: the first eviction frees anything, for A's release took B's pins too
    assert manager.evict("compressed_kv", 4) == 0

    # B reads granules 3 and 4 only, for it has the others elsewhere: its release gives all four back all the same
    assert len(b.view("compressed_kv", "rows", 0)[2:]) == 2
    manager.release(b)
    assert table.fields("pins", slots).tolist() == [0, 0, 0, 0]
    with pytest.raises(Refused, match="released already"):
        manager.release(a)
    assert table.fields("pins", slots).tolist() == [0, 0, 0, 0]
    # sign of the defect: only 2 go, for 1 and 2 stay pinned for ever
    assert manager.evict("compressed_kv", 4) == 4
    bench.audited(manager)
