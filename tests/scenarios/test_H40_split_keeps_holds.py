"""H-40: holds sit on pages, so splitting an index entry while it is written out takes no page out of protection.

Eight pages, all that the pool has, are being stored when their entry is split at 5. Nothing can be reclaimed until the
store has ended; then five pages are, and the stored bytes are those of the entry's owner.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvfsm.runtime.storing import Storer

KV, INDEX = "compressed_kv", "indexer_state"


def scenario(bench: Any, open_store: Any) -> None:
    profile = bench.profile(16, bench.group("latent", KV, 16, 16), bench.group("index", INDEX, 16, 16))
    store, prompt = open_store(profile), bench.tokens(129)
    manager = bench.manager(profile, {KV: 8, INDEX: 16}, store=store)
    node, newcomer = manager.keys(prompt), manager.keys(bench.tokens(81, 7))
    branch = manager.keys([*prompt[:80], *bench.tokens(17, 8)])

    def reclaim_and_allocate() -> None:
        bench.put(manager, branch, 5, 6, tag=9, kinds=(INDEX,))  # splits, and takes no page of KV
        assert manager.core.index.locate(node.digests, 5).segment.end == 5
        # sign of the defect: the five pages of the prefix piece are freed
        assert manager.evict(KV, 5) == 0
        assert bench.refusal(manager.reserve, newcomer, 0, 5, kinds=(KV,), owner="R2") == "POOL_FULL"
        bench.audited(manager)

    store.meanwhile = reclaim_and_allocate
    bench.put(manager, node, 0, 8, tag=1)
    assert store.meanwhile is None and manager.core.pools[KV].free == 0
    assert manager.evict(KV, 5) == 5
    bench.put(manager, newcomer, 0, 5, tag=2, kinds=(KV,))
    bench.audited(manager)

    cold = bench.manager(profile, 8, store=store)
    with cold.acquire(cold.load(cold.match(node).plan)) as lease:
        assert lease.length == 128
        assert all((lease.view(kind, "rows", 0) == 1).all() for kind in (KV, INDEX))
    bench.audited(cold)


def test_H40_pages_of_a_split_entry_stay_held(bench: Any, open_store: Any) -> None:
    scenario(bench, open_store)


def test_H40_control_a_store_without_holds_is_noticed(
    bench: Any, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storer, "hold", lambda self, kept: {})
    with pytest.raises(AssertionError, match="== 0"):
        scenario(bench, open_store)
