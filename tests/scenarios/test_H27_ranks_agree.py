"""H-27: ranks whose caches evict by themselves restore one length, and none its own."""

from __future__ import annotations

from typing import Any

import pytest

from kvfsm.runtime.agreement import Agreement, Ask
from kvfsm.runtime.ranks import LocalGroup

from ..runtime.side_by_side import side_by_side

A = 256


def shards(bench: Any, lengths: tuple[int, ...]) -> list[Any]:
    """A manager a rank, whose own answers are these lengths in tokens, brought down to whole granules."""
    profile = bench.profile(A, bench.group("full", "compressed_kv", A, A))
    managers = []
    for length in lengths:
        manager = bench.manager(profile, 4)
        keys = manager.keys(bench.tokens(1023))
        bench.put(manager, keys, 0, 3)
        assert manager.evict("compressed_kv", 3 - length // A) == 3 - length // A  # a shard loses entries by itself
        assert manager.match(keys).length == length // A * A
        managers.append(manager)
    return managers


@pytest.mark.parametrize("own", [(768, 768, 512, 768), (768, 700, 768, 768)])
def test_H27_all_ranks_restore_what_each_has(bench: Any, own: tuple[int, ...]) -> None:
    managers, groups = shards(bench, own), LocalGroup.make(len(own))

    def rank(n: int) -> tuple[Any, ...]:
        manager = managers[n]
        agreement = Agreement(groups[n], manager, owner=f"rank {n}")
        [one] = agreement.step([Ask(manager.keys(bench.tokens(1023)))]).agreed
        pins = manager.core.pools["compressed_kv"].table.fields("pins").tolist()
        free = manager.evict("compressed_kv", 4)  # what no lease protects
        held = one.length, one.lease.length, len(manager.receipts), sorted(pins), free
        manager.release(one.lease)
        return held

    found = side_by_side(len(own), rank)
    # sign of the defect: 768 on some rank
    assert [found[n][:2] for n in range(4)] == [(512, 512)] * 4
    # every rank has one lease, on two granules; what it had beyond them can be evicted
    assert [found[n][2:4] for n in range(4)] == [(1, [0, 0, 1, 1])] * 4
    assert [found[n][4] for n in range(4)] == [length // A - 2 for length in own]
    for manager in managers:
        assert not manager.receipts
        bench.audited(manager)
