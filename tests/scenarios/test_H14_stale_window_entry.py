"""H-14: dropping a window block drops what names it in the same step, so freeing its prefix frees no stranger's block.

A prefix loses its window block, and another prefix gets that very block. Freeing the first prefix afterwards must leave
the block with its new owner.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvfsm.runtime.index import Index

WINDOW = "swa_window"


def scenario(bench: Any) -> None:
    profile = bench.profile(
        16, bench.group("full", "compressed_kv", 16, 16), bench.window(16, 16),
        window=17, window_policy="blocks", window_block=16,
    )  # fmt: skip
    manager = bench.manager(profile, {"compressed_kv": 16, WINDOW: 8})
    first, second = (manager.keys(bench.tokens(17, seed)) for seed in (1, 2))
    block = bench.put(manager, first, 0, 1, tag=1).slots[WINDOW].tolist()
    for seed in range(10, 17):
        bench.put(manager, manager.keys(bench.tokens(17, seed)), 0, 1, tag=seed)

    assert manager.evict(WINDOW, 1) == 1  # the first prefix's, the oldest
    assert bench.put(manager, second, 0, 1, tag=2).slots[WINDOW].tolist() == block
    bench.put(manager, first, 0, 1, tag=1, kinds=("compressed_kv",))  # an insert that overlaps the first
    assert manager.expire(first) == 1
    # sign of the defect: the block is free while the second prefix reads it
    bench.audited(manager)
    counts = manager.audit().counts[WINDOW]
    assert (counts["free"], counts["resident"]) == (0, 8)
    with manager.acquire(manager.match(second)) as lease:
        assert lease.slots[WINDOW].tolist() == block
        assert (lease.view(WINDOW, "rows", 0) == 2).all()
    bench.audited(manager)


def test_H14_a_block_stays_with_its_present_owner(bench: Any) -> None:
    scenario(bench)


def test_H14_control_an_entry_that_is_left_behind_is_noticed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drop, dropped = Index.drop, []

    def forgetful(self: Index, *arguments: Any) -> Any:
        if dropped:
            return drop(self, *arguments)
        dropped.append(arguments)
        return None

    monkeypatch.setattr(Index, "drop", forgetful)
    with pytest.raises(AssertionError, match="2 == 1"):
        scenario(bench)
