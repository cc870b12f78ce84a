"""H-23: what a capture writes goes to scratch, and a pool that comes back with another size is that size for all.

A capture really runs its kernels, and the tables that say where they write still name the slots of the last batch: here
slots 20, 21 and 9000 of 33562. (a) The pool sleeps, wakes as large as before with its contents kept, and the step is
captured anew: slots 20 and 21 are as they were. (b) It wakes with 8316 slots: a lease on slot 9000 is stale, 8315 slots
can be taken (one is set aside as scratch) before the pool is full, and none of them is 8316 or beyond.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.core import Core
from kvfsm.runtime.graphs import GraphRunner, Inputs, Launch
from kvfsm.runtime.requests import GUARD
from kvfsm.runtime.static_tables import StaticTables

KV, BLOCK, SLOTS, SMALLER = "compressed_kv", 16, 33562, 8316
SERVED, MADE_UP = 7, 255


def profile(bench: Any) -> Any:
    return bench.profile(BLOCK, bench.group("full", KV, BLOCK, BLOCK))


class Server:
    """A pool of which slots 20, 21 and 9000 were written by the last batch, and are cached since; 9000 is leased."""

    def __init__(self, bench: Any) -> None:
        self.manager = manager = bench.manager(profile(bench), SLOTS)
        self.tag = np.zeros(1, np.uint8)
        self.runner = GraphRunner(manager, self.step, [4])
        self.runner.capture(4)
        prompts = [manager.keys(np.arange(at, at + BLOCK + 1)) for at in (0, 100, 200)]
        others = [manager.reserve(manager.keys(np.arange(300, 300 + 19 * BLOCK)), 0, 19)]
        rows = [manager.requests.admit(BLOCK), manager.requests.admit(BLOCK)]
        others.append(manager.reserve(manager.keys(np.arange(8978 * BLOCK) % 999), 0, 8978))
        rows.append(manager.requests.admit(BLOCK))
        assert manager.requests.table(KV, rows)[:, 0].tolist() == [20, 21, 9000]
        self.bytes[[20, 21, 9000]] = SERVED
        self.tag[:] = SERVED
        self.runner.replay(rows)
        for row, keys in zip(rows, prompts, strict=True):
            manager.requests.publish(row, keys)
            manager.requests.finish(row)
        for fill in others:
            manager.abandon(fill)
        self.prompts = prompts
        self.lease = manager.acquire(manager.match(prompts[2]))
        assert self.lease.slots[KV].tolist() == [9000]
        self.tag[:] = MADE_UP

    @property
    def bytes(self) -> Any:
        return self.manager.core.pools[KV].arena.bytes

    def step(self, launch: Launch, inputs: Inputs) -> None:
        launch(self.write, inputs.tables[KV], inputs.tables["positions"], self.tag, inputs.part(KV, "rows", 0))

    @staticmethod
    def write(table: Any, positions: Any, tag: Any, rows: Any) -> None:
        for blocks, position in zip(table, positions[:, 0].tolist(), strict=True):
            slot = int(blocks[position // BLOCK])
            assert slot != GUARD
            rows[slot, position % BLOCK] = tag[0]


def same_size(bench: Any) -> None:
    server = Server(bench)
    manager = server.manager
    before = server.bytes.ctypes.data
    manager.reallocate(void=True)
    assert server.bytes.ctypes.data != before and bench.refusal(server.runner.replay, []) == "EPOCH"
    server.runner.capture(4)
    # sign of the defect: the capture writes slot 20
    assert (server.bytes[[20, 21, 9000]] == SERVED).all()
    assert (server.bytes == MADE_UP).any(axis=1).nonzero()[0].tolist() == [manager.set_aside()[KV]]
    with manager.acquire(manager.match(server.prompts[0])) as lease:
        assert lease.slots[KV].tolist() == [20] and (lease.view(KV, "rows", 0) == SERVED).all()
    assert bench.refusal(server.lease.view, KV, "rows", 0) == "STALE"
    bench.audited(manager)


def other_size(bench: Any) -> None:
    server = Server(bench)
    manager = server.manager
    stale = manager.match(server.prompts[2])
    manager.reallocate({KV: SMALLER}, void=True)
    assert bench.refusal(server.lease.view, KV, "rows", 0) == "STALE"
    assert bench.refusal(manager.release, server.lease) == "STALE"
    assert bench.refusal(manager.acquire, stale) == "STALE"
    assert bench.refusal(server.runner.replay, []) == "EPOCH"
    server.runner.capture(4)
    assert server.runner.tables.widths == {KV: SMALLER - 1}

    taken: list[int] = []
    while True:
        keys = manager.keys(np.arange(len(taken), len(taken) + 5 * BLOCK))
        if bench.refusal(lambda: taken.extend(manager.reserve(keys, 0, 5).slots[KV].tolist())) == "POOL_FULL":  # noqa: B023
            break
    assert (SMALLER - 1) % 5 == 0 and len(taken) == len(set(taken)) == SMALLER - 1
    # sign of the defect: id 9000 is issued
    assert max(taken) < SMALLER and manager.set_aside()[KV] not in taken
    bench.audited(manager)


def test_H23_a_capture_leaves_what_the_last_batch_wrote(bench: Any) -> None:
    same_size(bench)


def test_H23_one_capacity_is_known_to_all(bench: Any) -> None:
    other_size(bench)


def test_H23_what_is_held_keeps_the_memory_unless_it_is_given_away(bench: Any) -> None:
    server = Server(bench)
    assert bench.refusal(server.manager.reallocate) == "PINNED"
    assert server.lease.view(KV, "rows", 0).all() and server.manager.memory.epoch == 1
    server.manager.release(server.lease)
    assert server.manager.reallocate() == 2
    bench.audited(server.manager)


def test_H23_control_a_capture_through_old_tables_is_noticed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = StaticTables.point_at_scratch

    def only_when_made(self: StaticTables) -> None:
        if not hasattr(self, "served"):
            filled(self)
        self.served = True  # type: ignore[attr-defined]

    monkeypatch.setattr(StaticTables, "point_at_scratch", only_when_made)
    with pytest.raises(AssertionError, match="False"):
        same_size(bench)


def test_H23_control_a_scheduler_that_goes_by_the_old_size_is_noticed(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Core.make_pools
    monkeypatch.setattr(Core, "make_pools", lambda self, slots, buffers: made(self, {KV: SLOTS}, buffers))
    with pytest.raises(AssertionError, match="33561"):
        other_size(bench)
