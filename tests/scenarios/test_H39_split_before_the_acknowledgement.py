"""H-39: each page is known to be stored by the acknowledgement for that page; a split of its entry changes nothing.

375 pages of one token are being stored when another request splits their entry in the index at 374. All 375 come back
from disk afterwards. When the store fails instead, no piece counts as stored, and it can be stored anew.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvfsm.runtime.stores.store import StoreFailed
from kvfsm.runtime.storing import Storer

PAGES, SPLIT = 375, 374


def scenario(bench: Any, open_store: Any, fails: bool) -> None:
    profile = bench.profile(1, bench.group("full", "compressed_kv", 1, 1))
    store, prompt = open_store(profile), bench.tokens(PAGES)
    manager = bench.manager(profile, 512, store=store)
    node, branch = manager.keys([*prompt, 1001]), manager.keys([*prompt[:SPLIT], 1002, 1003])

    def found(keys: Any) -> int:
        """Tokens that come back from disk: the device is another one, and empty."""
        cold = bench.manager(profile, 512, store=store)
        answer = cold.match(keys, PAGES + 1)
        if answer.plan is None:
            return int(answer.length)
        with cold.acquire(cold.load(answer.plan)) as lease:
            rows = lease.view("compressed_kv", "rows", 0)
            assert (rows[:SPLIT] == 1).all()
            bench.audited(cold)
            return int(lease.length)

    def split() -> None:
        bench.put(manager, branch, SPLIT, PAGES, tag=2)
        assert manager.core.index.locate(node.digests, SPLIT).segment.end == SPLIT
        assert found(branch) == 0  # its page is stored, and none of those before it yet
        if fails:
            raise StoreFailed("no answer")

    store.meanwhile = split
    bench.put(manager, node, 0, PAGES, tag=1)
    # sign of the defect: 0 or 1 while all of it counts as stored
    assert found(node) == found(branch) == (0 if fails else PAGES)
    assert manager.store_failures == int(fails)
    assert manager.persist(node) == (PAGES if fails else 0)
    assert found(node) == found(branch) == PAGES
    bench.audited(manager)


@pytest.mark.parametrize("fails", [False, True])
def test_H39_a_split_changes_nothing_about_what_is_stored(bench: Any, open_store: Any, fails: bool) -> None:
    scenario(bench, open_store, fails)


def test_H39_control_an_acknowledgement_for_the_small_piece_is_noticed(
    bench: Any, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Storer.put

    def small_piece(self: Storer, digests: Any, salt: bytes, kept: Any, epoch: Any) -> int:
        pieces = {kind: (slots[places >= SPLIT], places[places >= SPLIT]) for kind, (slots, places) in kept.items()}
        return put(self, digests, salt, pieces, epoch)

    monkeypatch.setattr(Storer, "put", small_piece)
    with pytest.raises(AssertionError, match="0 == 375"):
        scenario(bench, open_store, False)
