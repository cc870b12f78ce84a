"""H-38: a block that failed cuts every kind, and every request that shares the load, at the same whole granule.

KV blocks span 256 tokens and window blocks 64, so A=256. Of a load of 768 tokens the window block with 320..383 fails.
Both requests end up with 256 tokens, that is one KV block and four window blocks; one of them computes the rest and the
other shares it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.loading import Loader

KV, WINDOW = "compressed_kv", "swa_window"


def scenario(bench: Any, open_store: Any) -> None:
    profile = bench.profile(
        256, bench.group("full", KV, 256, 256), bench.window(64, 64),
        window=769, window_policy="blocks", window_block=64,
    )  # fmt: skip
    store, prompt = open_store(profile), bench.tokens(768)
    writer = bench.manager(profile, 16, store=store)
    fill = writer.reserve(writer.keys(prompt), 0, 3)
    fill.view(KV, "rows", 0)[:] = np.arange(3)[:, None, None] + 1
    fill.view(WINDOW, "rows", 0)[:] = np.arange(12)[:, None, None] + 100
    writer.publish(fill)
    (path,) = store.path.glob("*.segment")
    data = bytearray(path.read_bytes())
    data[data.index(bytes([105]) * 64)] ^= 1  # window block 5: tokens 320..383
    path.write_bytes(data)

    manager = bench.manager(profile, {KV: 8, WINDOW: 32}, store=store)
    one, two = (manager.keys([*prompt, last]) for last in (1, 2))
    ticket = manager.load_begin(manager.match(one).plan, owner="R1")
    assert (manager.match(one).length, manager.match(two).now) == (768, 0)  # R2 waits for the same load
    assert (bench.read_in(manager, ticket, KV), bench.read_in(manager, ticket, WINDOW)) == ([], [5])
    ticket.land(KV)
    ticket.land(WINDOW)
    ticket.done(False, missing={WINDOW: [5]})
    # sign of the defect: 768 for KV, or 320 for the window
    answers = [manager.match(keys) for keys in (one, two)]
    assert [(answer.length, answer.now) for answer in answers] == [(256, 256), (256, 256)]
    assert ticket.kept == 1
    leases = [manager.acquire(manager.match(keys)) for keys in (one, two)]
    for lease in leases:
        assert (lease.length, len(lease.slots[KV]), len(lease.slots[WINDOW])) == (256, 1, 4)
        assert lease.slots[WINDOW].tolist() == leases[0].slots[WINDOW].tolist()
        assert lease.view(WINDOW, "rows", 0)[:, 0, 0].tolist() == [100, 101, 102, 103]
    counts = manager.audit().counts
    assert (counts[KV]["resident"], counts[WINDOW]["resident"]) == (1, 4)  # nothing above 256 is left
    assert (counts[KV]["free"], counts[WINDOW]["free"]) == (7, 28)

    bench.put(manager, one, 1, 3, tag=50, lease=leases[0])
    for lease in leases:
        manager.release(lease)
    with manager.acquire(manager.match(two)) as lease:
        assert lease.length == 768
        assert lease.view(WINDOW, "rows", 0)[:, 0, 0].tolist() == [100, 101, 102, 103] + [50] * 8
        assert lease.view(KV, "rows", 0)[:, 0, 0].tolist() == [1, 50, 50]
    cold = bench.manager(profile, 16, store=store)
    assert cold.match(one).length == 768  # what was computed anew mended the store
    bench.audited(manager)


def test_H38_every_kind_and_sharer_is_cut_at_one_granule(bench: Any, open_store: Any) -> None:
    scenario(bench, open_store)


def test_H38_control_a_failure_that_is_not_heeded_is_noticed(
    bench: Any, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Loader.done
    monkeypatch.setattr(Loader, "done", lambda self, ticket, ok, **given: done(self, ticket, True))
    with pytest.raises(AssertionError, match="768"):
        scenario(bench, open_store)
