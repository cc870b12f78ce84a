"""H-15: entries are emitted in decode too, before a raw row may leave the window."""

from __future__ import annotations

from typing import Any


def test_H15_every_position_is_covered_at_every_step(bench: Any) -> None:
    profile = bench.profile(
        128, bench.group("compressed", "compressed_kv", 128, 128, ratio=128), bench.tail(128, 128),
        bench.window(128, 127),
        window=128, window_policy="checkpoint", scores="raw",
    )  # fmt: skip
    manager = bench.manager(profile, 8)
    row = manager.requests.admit(256)
    for n in range(257, 557):
        manager.requests.step([row])
        covered = manager.requests.coverage(row)
        assert (covered.tokens, covered.gaps) == (n, ())
    # sign of the defect: 2 entries at the end, and 256..428 covered by nothing
    assert covered.entries == {128: 4} and covered.compressed == range(0, 512)
    assert (len(covered.tail), covered.window.start) == (44, 429)
    bench.audited(manager)
    manager.requests.finish(row)
    bench.audited(manager)
