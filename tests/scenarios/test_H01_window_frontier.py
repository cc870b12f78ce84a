"""H-01: the frontier for freeing window slots and the published boundary are counted in one unit."""

from __future__ import annotations

from typing import Any


def test_H01_the_window_of_the_published_boundary_stays_whole(bench: Any) -> None:
    profile = bench.profile(
        64, bench.group("full", "compressed_kv", 64, 64), bench.window(64, 64),
        window=127, window_policy="blocks", window_block=64,
    )  # fmt: skip
    manager = bench.manager(profile, 64)
    keys = manager.keys(bench.tokens(1023))  # a key entry less than the sequence has tokens
    first = bench.put(manager, keys, 0, len(keys), tag=1)
    assert first.boundary == 960

    assert manager.free_out_of_window(keys, 1024) == 13
    bench.audited(manager)
    trail = manager.core.trailing.index("swa_window")
    spot = manager.core.index.locate(keys.digests, 15)
    live = [block for block in range(15) if manager.core.index.find(trail, spot, block) is not None]
    # sign of the defect: frontier 896, that is block 14 alone, 64 positions < W - 1
    assert live == [13, 14]  # positions 832..959

    # sign of the defect: a match shorter than 960
    answer = manager.match(keys, 1024)
    assert (answer.kind, answer.length) == ("HIT", 960)

    kept = bench.slots(manager, "compressed_kv", keys, 0, 15)
    second = bench.put(manager, keys, 0, len(keys), tag=2)
    # sign of the defect: the insert takes the tree's own range for a duplicate and frees it
    assert bench.slots(manager, "compressed_kv", keys, 0, 15) == kept == first.slots["compressed_kv"].tolist()
    assert not set(second.slots["compressed_kv"].tolist()) & set(kept)
    counts = manager.audit().counts["compressed_kv"]
    assert (counts["free"], counts["resident"]) == (49, 15)
    bench.audited(manager)
    with manager.acquire(manager.match(keys, 1024)) as lease:
        assert (lease.view("compressed_kv", "rows", 0) == 1).all()
        assert (lease.view("swa_window", "rows", 0) == 1).all()
