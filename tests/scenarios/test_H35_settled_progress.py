"""H-35: what may be stored is counted from the tokens of this incarnation of a request, never from a running sum.

A prompt of 50 tokens in blocks of 16. The first incarnation computes 32 and is preempted; the second computes 40 and
then the last 10. After 40 there is nothing new to store, for block 2 has 8 rows; 32 and 40 are no 72. After 50 block 2
is stored with its 16 rows, and block 3 is not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.requests import RequestTable

KV, BLOCK = "compressed_kv", 16


def scenario(bench: Any, open_store: Any) -> None:
    profile = bench.profile(
        BLOCK, bench.group("plain", KV, BLOCK, BLOCK, (0,)), bench.group("compressed", KV, BLOCK, BLOCK, (1,), ratio=4),
        bench.tail(4, BLOCK, (1,)), scores="raw",
    )  # fmt: skip
    store = open_store(profile)
    manager = bench.manager(profile, 8, store=store, writes="none")  # what is stored when is asked for
    keys = manager.keys(bench.tokens(50))
    names = manager.object_of(keys.digests, keys.salt, KV, np.arange(3))

    def compute(row: int, start: int, stop: int, tag: int) -> None:
        """Rows [start, stop) of the plain layer."""
        slots = manager.requests.table(KV, [row])[0]
        rows = manager.read(KV, "rows", 0, slots).copy()
        rows.reshape(-1)[start:stop] = tag
        manager.write(KV, "rows", 0, slots, rows)

    first = manager.requests.admit(32)
    compute(first, 0, 32, tag=1)
    assert manager.requests.publish(first, keys) == 2
    assert manager.persist(keys) == 3  # two blocks, and the tail at 32
    manager.requests.finish(first)

    second = manager.requests.admit(40)
    compute(second, 0, 40, tag=2)
    # sign of the defect: block 2 is stored with 8 rows of its own and 8 of whoever had its slot before
    assert manager.requests.publish(second, keys) == 2
    assert manager.persist(keys) == 0
    assert store.contains(names).tolist() == [True, True, False]
    compute(second, 40, 50, tag=3)
    for _ in range(10):
        manager.requests.step([second])
    assert manager.requests.publish(second, keys) == 3
    assert manager.persist(keys) == 1
    assert store.contains(names).all() and len(keys) == 3
    manager.requests.finish(second)

    stored = np.zeros(profile.layouts[KV].slot_bytes, np.uint8)
    for name, rows in zip(names, ([1] * 16, [1] * 16, [2] * 8 + [3] * 8), strict=True):
        assert store.get(name, stored).verdict == 0
        assert stored[:BLOCK].tolist() == rows
    bench.audited(manager)


def test_H35_a_half_filled_block_is_never_stored(bench: Any, open_store: Any) -> None:
    scenario(bench, open_store)


def test_H35_control_a_running_sum_is_noticed(bench: Any, open_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    publish, sums = RequestTable.publish, [0]

    def of_all_incarnations(self: RequestTable, row: int, keys: Any) -> int:
        settled = int(self.tokens[row])
        sums[0] += settled
        self.tokens[row] = min(sums[0], len(keys) * BLOCK)
        try:
            return publish(self, row, keys)
        finally:
            self.tokens[row] = settled

    monkeypatch.setattr(RequestTable, "publish", of_all_incarnations)
    with pytest.raises(AssertionError, match="3 == 2"):
        scenario(bench, open_store)
