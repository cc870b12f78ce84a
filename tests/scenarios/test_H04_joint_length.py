"""H-04: the joint length is valid in every kind, and an outside loader begins exactly there.

Kinds lose their slots independently: KV and index keys were evicted down to 1024 tokens while a checkpoint of the
compressor's carry survived at 3072. What one kind could serve alone is for reports; no loader is told of it.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvfsm.runtime.matching import Matcher


def scenario(bench: Any, open_store: Any) -> None:
    profile = bench.profile(
        512, bench.group("full", "compressed_kv", 512, 16), bench.group("index", "indexer_state", 512, 16),
        bench.tail(4, 512), scores="raw",
    )  # fmt: skip
    store, prompt = open_store(profile), bench.tokens(4097)
    writer = bench.manager(profile, 16, store=store)
    bench.put(writer, writer.keys(prompt), 0, 8, tag=2)

    def left_over(**options: Any) -> Any:
        manager = bench.manager(profile, 16, writes="none", **options)
        keys = manager.keys(prompt)
        for start, stop in ((0, 2), (2, 6)):  # checkpoints at 1024 and 3072
            bench.put(manager, keys, start, stop, tag=1)
        for kind in ("compressed_kv", "indexer_state"):
            assert manager.evict(kind, 4) == 4
        return manager, keys

    manager, keys = left_over()
    answer = manager.match(keys)
    assert answer.objects["uncompressed_tail"].length == 3072
    # sign of the defect: 3072, the greatest of the lengths
    assert (answer.kind, answer.length, 4097 - answer.length) == ("HIT", 1024, 3073)
    assert manager.evict("uncompressed_tail", 1) == 1  # the older checkpoint
    answer = manager.match(keys)
    assert (answer.kind, answer.length) == ("MISS", 0)
    bench.audited(manager)

    manager, keys = left_over(store=store)
    answer = manager.match(keys)
    assert (answer.now, answer.length) == (1024, 4096)
    assert answer.plan.wanted["compressed_kv"].tolist() == answer.plan.wanted["indexer_state"].tolist()
    assert answer.plan.wanted["compressed_kv"].tolist() == [2, 3, 4, 5, 6, 7]  # granules of 512: from 1024 on
    assert manager.load(answer.plan).now == 4096
    with manager.acquire(manager.match(keys)) as lease:
        rows = lease.view("compressed_kv", "rows", 0)
        assert (rows[:2] == 1).all() and (rows[2:] == 2).all()
    bench.audited(manager)


def test_H04_no_kinds_private_length_leaks_out(bench: Any, open_store: Any) -> None:
    scenario(bench, open_store)


def test_H04_control_the_greatest_length_is_noticed(
    bench: Any, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greatest(self: Matcher, found: Any, cap: int, skip: int) -> int:
        (one,) = found
        return max(*one.ready.values(), *(legal(cap) for legal in self.boundary_sets(one.spot)))

    monkeypatch.setattr(Matcher, "_joint", greatest)
    with pytest.raises(AssertionError, match="3072"):
        scenario(bench, open_store)
