"""H-17: every reader of a loading object waits for its own layer, readers of index keys too."""

from __future__ import annotations

from typing import Any

from kvfsm.runtime.generated import Refusal


def test_H17_a_layer_is_used_when_all_its_objects_have_landed(bench: Any, open_store: Any) -> None:
    layers = (0, 1, 2, 3)
    profile = bench.profile(
        64,
        bench.group("latent", "compressed_kv", 64, 64, layers),
        bench.group("index", "indexer_state", 64, 64, layers),
    )
    store, prompt = open_store(profile), bench.tokens(257)
    writer = bench.manager(profile, 8, store=store)
    bench.put(writer, writer.keys(prompt), 0, 4)
    manager = bench.manager(profile, 8, store=store)
    answer = manager.match(manager.keys(prompt))
    assert (answer.kind, answer.length, answer.now) == ("HIT_PENDING", 256, 0)

    ticket = manager.load_begin(answer.plan)
    for _ in layers:
        ticket.land("compressed_kv")
    for _ in range(2):
        ticket.land("indexer_state")
    assert ticket.use_layer(1) is None
    # sign of the defect: layer 2 is used although its index keys have not landed
    assert ticket.use_layer(2) is Refusal.PENDING
    assert manager.match(manager.keys(prompt)).now == 0
    ticket.land("indexer_state")
    assert ticket.use_layer(2) is None
    assert ticket.use_layer(3) is Refusal.PENDING
    ticket.land("indexer_state")
    ticket.done()
    hit = manager.match(manager.keys(prompt))
    assert (hit.kind, hit.now) == ("HIT", 256)
    with manager.acquire(hit) as lease:  # pinned with the version of the KV that the keys route to
        slots, core = lease.slots, manager.core
        versions = {kind: core.pools[kind].table.fields("version", slots[kind]).tolist() for kind in slots}
        assert versions["indexer_state"] == versions["compressed_kv"]
    bench.audited(manager)
