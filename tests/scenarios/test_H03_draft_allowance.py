"""H-03: the draft's allowance is taken once, and matching is idempotent."""

from __future__ import annotations

from typing import Any


def test_H03_the_allowance_is_taken_once(bench: Any) -> None:
    profile = bench.profile(
        16, bench.group("full", "compressed_kv", 16, 16), bench.window(16, 16),
        window=64, window_policy="blocks", window_block=16,
    )  # fmt: skip
    manager = bench.manager(profile, 32)
    keys = manager.keys(bench.tokens(200))
    bench.put(manager, keys, 0, 10)
    first = manager.match(keys, 200, draft=16)
    again = manager.match(keys, 200, at_most=first.length)
    # sign of the defect: 0, after each round of the search took the allowance again; or 128 the second time
    assert (first.length, again.length) == (144, 144)
    with manager.acquire(first) as lease:
        assert {kind: len(slots) for kind, slots in lease.slots.items()} == {"compressed_kv": 9, "swa_window": 4}
    bench.audited(manager)
