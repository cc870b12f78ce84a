"""H-07: a transfer never writes a sealed block; an external store's last, partial chunk counts for nothing."""

from __future__ import annotations

from typing import Any

from kvfsm.runtime.chunks import plan_load

BLOCK, CHUNK = 16, 256


def cached(bench: Any, open_store: Any, local: int, external: int) -> tuple[Any, Any]:
    """A manager with ``local`` tokens in memory and the whole chunks of ``external`` tokens in its store."""
    profile = bench.profile(BLOCK, bench.group("full", "compressed_kv", BLOCK, BLOCK))
    store, prompt = open_store(profile), bench.tokens(max(local, external) + 1)
    writer = bench.manager(profile, 1024, store=store)
    bench.put(writer, writer.keys(prompt), 0, external // CHUNK * CHUNK // BLOCK, tag=2)
    manager = bench.manager(profile, 1024, store=store, writes="none")
    keys = manager.keys(prompt)
    bench.put(manager, keys, 0, local // BLOCK, tag=1)
    return manager, keys


def test_H07_nothing_is_loaded_when_memory_holds_more_whole_chunks(bench: Any, open_store: Any) -> None:
    plan = plan_load(14816, 14820, CHUNK, BLOCK)
    # sign of the defect: [14592, 14820) is read over blocks that are sealed and shared
    assert (len(plan.tokens), len(plan.blocks)) == (0, 0)
    manager, keys = cached(bench, open_store, 14816, 14820)
    answer = manager.match(keys, 14821)
    assert (answer.kind, answer.length, answer.plan) == ("HIT", 14816, None)
    assert 14821 - answer.length == 5


def test_H07_a_load_begins_where_memory_ends(bench: Any, open_store: Any) -> None:
    plan = plan_load(288, 512, CHUNK, BLOCK)
    assert (plan.tokens, plan.blocks) == (range(288, 512), range(18, 32))
    manager, keys = cached(bench, open_store, 288, 512)
    before = bench.slots(manager, "compressed_kv", keys, 0, 18)
    answer = manager.match(keys, 513)
    assert answer.plan is not None
    # sign of the defect: a sealed block, 16 or 17, among the destinations
    assert answer.plan.wanted["compressed_kv"].tolist() == list(plan.blocks)
    ticket = manager.load_begin(answer.plan)
    assert not set(ticket.slots("compressed_kv").tolist()) & set(before)
    ticket.done(ok=False)
    assert manager.load(answer.plan).length == 512
    assert bench.slots(manager, "compressed_kv", keys, 0, 18) == before
    with manager.acquire(manager.match(keys, 513)) as lease:
        rows = lease.view("compressed_kv", "rows", 0)
        assert (rows[:18] == 1).all() and (rows[18:] == 2).all()
    bench.audited(manager)
