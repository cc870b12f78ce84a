"""H-12: what a load may still write stays quarantined after its owner was aborted, until the transfer has ended.

R1 loads 8 blocks, all that the pool has, and is aborted. R2 gets none of them until the late write has landed, and what
R2 then writes is what its readers find; nothing of R1 can be matched.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvfsm.runtime.loading import Loader
from kvfsm.runtime.requests import GUARD

KV, WINDOW = "compressed_kv", "swa_window"


def scenario(bench: Any, open_store: Any) -> None:
    profile = bench.profile(
        16, bench.group("full", KV, 16, 16), bench.window(16, 16),
        window=64, window_policy="blocks", window_block=16,
    )  # fmt: skip
    store, ours, theirs = open_store(profile), bench.tokens(129, 1), bench.tokens(129, 2)
    writer = bench.manager(profile, 16, store=store)
    bench.put(writer, writer.keys(ours), 0, 8, tag=1)
    manager = bench.manager(profile, {KV: 8, WINDOW: 12}, store=store, writes="none")
    pools = manager.core.pools

    ticket = manager.load_begin(manager.match(manager.keys(ours)).plan, owner="R1")
    ticket.abort()
    # sign of the defect: R2 gets blocks that R1's transfer still writes
    assert bench.refusal(manager.requests.admit, 127, owner="R2") == "POOL_FULL"
    assert pools[KV].free == 0
    counts = manager.audit().counts
    assert (counts[KV]["quarantined"], counts[WINDOW]["quarantined"]) == (8, 4)
    bench.audited(manager)

    for kind in (KV, WINDOW):
        assert bench.read_in(manager, ticket, kind) == []  # the late write lands
    ticket.done()
    assert (pools[KV].free, pools[WINDOW].free) == (8, 12)
    assert manager.match(manager.keys(ours)).now == 0

    row = manager.requests.admit(127, owner="R2")
    tables = {KV: manager.requests.table(KV, [row])[0], WINDOW: manager.requests.window_table([row])[0]}
    for kind, table in tables.items():
        held = table[table != GUARD]
        manager.write(kind, "rows", 0, held, manager.read(kind, "rows", 0, held) * 0 + 2)
    manager.requests.step([row])
    keys = manager.keys(theirs)
    assert manager.requests.publish(row, keys) == 8
    with manager.acquire(manager.match(keys)) as lease:
        assert lease.length == 128
        assert all((lease.view(kind, "rows", 0) == 2).all() for kind in (KV, WINDOW))
    assert manager.match(manager.keys(ours)).now == 0
    bench.audited(manager)


def test_H12_blocks_of_an_aborted_load_wait_for_its_end(bench: Any, open_store: Any) -> None:
    scenario(bench, open_store)


def test_H12_control_blocks_that_are_free_at_once_are_noticed(
    bench: Any, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Loader, "abort", lambda self, ticket: self.done(ticket, False))
    with pytest.raises(AssertionError, match="POOL_FULL"):
        scenario(bench, open_store)
