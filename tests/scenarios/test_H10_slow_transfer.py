"""H-10: what a slow transfer read is published only if it is the very object whose read began, whole.

A read of one block of 16 KiB stops in its middle. Meanwhile the object is deleted, the space under it is used for
others, and the same key is put again elsewhere with other bytes (generation 2). That the key exists when the transfer
ends says nothing: the entry that was opened is of an ended generation, so the bytes are dropped, and generation 2 is
loaded by whoever asks again. Collecting garbage alone harms nobody: a read keeps its file. Where the space is
overwritten without asking anybody, the digest tells.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.profile_plan import GroupPlan, PartPlan
from kvfsm.runtime.stores import records
from kvfsm.runtime.stores.directory import Directory
from kvfsm.runtime.stores.files import RealFiles
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Namespace, Verdict

KV, BLOCK_BYTES = "compressed_kv", 16384


@dataclass
class Slow(RealFiles):
    """Files of which one read stops in the middle of a block, for ``meanwhile``."""

    meanwhile: Callable[[], None] | None = None

    def read(self, handle: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        call, self.meanwhile = self.meanwhile, None
        if call is None:
            return super().read(handle, buffers, offset)
        header, payload = buffers
        half = memoryview(payload)[: BLOCK_BYTES // 2]
        count = super().read(handle, [header, half], offset)
        call()
        return count + super().read(handle, [memoryview(payload)[BLOCK_BYTES // 2 :]], offset + count)


@dataclass
class World:
    """Two managers over one store: the one that loads, and the one of whoever puts again."""

    bench: Any
    files: Slow
    store: LocalStore
    manager: Any
    other: Any

    @property
    def keys(self) -> Any:
        return self.manager.keys(self.bench.tokens(17))

    @property
    def name(self) -> Any:
        return self.name_of(0)

    def name_of(self, seed: int) -> Any:
        """Id of the block of a prompt."""
        keys = self.manager.keys(self.bench.tokens(17, seed))
        return self.manager.object_of(keys.digests, keys.salt, KV, np.array([0]))[0]

    def put(self, tag: int, seed: int = 0) -> None:
        """Compute and store a block of one tag; the other manager forgets what it had in memory."""
        self.other.expire(keys := self.other.keys(self.bench.tokens(17, seed)))
        self.bench.put(self.other, keys, 0, 1, tag=tag)

    def evict_and_put_again(self) -> None:
        """t=6 evicted, t=6.5 the space is used by others, t=6.8 the key is put again."""
        assert self.store.delete([self.name]) == 1
        for seed in range(1, 4):
            self.put(50 + seed, seed)
        self.store.collect()
        self.put(2)
        assert self.store.contains([self.name]).all()  # at t=7 the key exists

    def read(self) -> list[int]:
        """Tags of what is found now."""
        with self.manager.acquire(self.manager.match(self.keys)) as lease:
            return sorted(set(np.unique(lease.view(KV, "rows", 0)).tolist()))

    @property
    def nothing_left(self) -> bool:
        pool = self.manager.core.pools[KV]
        return self.manager.match(self.keys).now == 0 and pool.free == pool.hot


@pytest.fixture
def world(bench: Any, tmp_path: Path) -> Iterator[World]:
    parts = (PartPlan("rows", 16, (BLOCK_BYTES // 16,), "uint8", "tag"),)
    profile = bench.profile(16, GroupPlan("full", KV, (0,), parts, 1, 16))
    files = Slow()
    with LocalStore(tmp_path, Namespace.of(profile), files) as store:
        made = World(
            bench, files, store, bench.manager(profile, 2, store=store, writes="none"),
            bench.manager(profile, 8, store=store),
        )  # fmt: skip
        made.put(9, seed=9)  # the first record of the file, so that the space before ours can be collected
        made.put(1)
        yield made
        bench.audited(made.manager)
        bench.audited(made.other)


def at_once(world: World) -> None:
    world.manager.load(world.manager.match(world.keys).plan, owner="R1")


def in_steps(world: World) -> None:
    """By an engine's own loader."""
    manager = world.manager
    ticket = manager.load_begin(manager.match(world.keys).plan, owner="R1")
    if missing := world.bench.read_in(manager, ticket, KV):
        ticket.done(False, missing={KV: missing})
    else:
        ticket.land(KV)
        ticket.done()


def put_again(world: World, drive: Callable[[World], None]) -> None:
    world.files.meanwhile = world.evict_and_put_again
    drive(world)
    # sign of the defect: generation 1, or half of it, published because the key exists
    assert world.nothing_left
    assert world.manager.load(world.manager.match(world.keys).plan).now == 16
    assert world.read() == [2]


DRIVES = pytest.mark.parametrize("drive", [at_once, in_steps])


@DRIVES
def test_H10_an_object_that_was_put_again_meanwhile_is_not_the_one_that_was_read(
    world: World, drive: Callable[[World], None]
) -> None:
    put_again(world, drive)


@DRIVES
def test_H10_an_object_that_was_evicted_meanwhile_is_computed(world: World, drive: Callable[[World], None]) -> None:
    world.files.meanwhile = lambda: none(world.store.delete([world.name]))
    drive(world)
    assert world.nothing_left
    assert world.manager.match(world.keys).kind == "MISS"


@DRIVES
def test_H10_space_is_not_taken_from_under_a_read(world: World, drive: Callable[[World], None]) -> None:
    """The other way to be right: eviction waits for the reader, here by leaving him the old file."""

    def collect() -> None:
        before = sorted(world.store.path.glob("*.segment"))
        assert world.store.delete([world.name_of(9)]) == 1
        world.store.collect()
        assert not set(before) & set(world.store.path.glob("*.segment"))  # moved, and the old file has no name

    world.files.meanwhile = collect
    drive(world)
    assert world.read() == [1]


def overwritten(world: World, drive: Callable[[World], None]) -> None:
    """Space that a store gives away without a word: half of a block is another's."""

    def overwrite() -> None:
        (path,) = world.store.path.glob("*.segment")
        data = path.read_bytes()
        at = data.index(bytes([1]) * BLOCK_BYTES)
        handle = os.open(path, os.O_WRONLY)
        os.pwrite(handle, bytes([77]) * BLOCK_BYTES, at)
        os.close(handle)

    world.files.meanwhile = overwrite
    drive(world)
    # sign of the defect: rows 0..7 of generation 1 and rows 8..15 of another object
    assert world.nothing_left
    assert world.store.get(world.name, bytearray(BLOCK_BYTES)).verdict is Verdict.INTEGRITY
    assert world.manager.match(world.keys).kind == "MISS"
    world.put(3)  # it computes, and stores
    assert world.manager.load(world.manager.match(world.keys).plan).now == 16
    assert world.read() == [3]


@DRIVES
def test_H10_bytes_of_two_objects_are_dropped(world: World, drive: Callable[[World], None]) -> None:
    overwritten(world, drive)


@DRIVES
def test_H10_an_epoch_that_ended_meanwhile_takes_its_bytes_along(
    world: World, drive: Callable[[World], None]
) -> None:
    def reset() -> None:
        world.manager.reset()
        world.put(2)

    world.files.meanwhile = reset
    drive(world)
    assert world.nothing_left
    assert world.manager.load(world.manager.match(world.keys).plan).now == 16
    assert world.read() == [2]


def test_H10_an_aborted_read_leaves_nothing_though_the_key_exists(world: World) -> None:
    ticket = world.manager.load_begin(world.manager.match(world.keys).plan, owner="R1")

    def abort() -> None:
        world.evict_and_put_again()
        ticket.abort()

    world.files.meanwhile = abort
    ticket.transfer()
    assert ticket.state == "late" and world.nothing_left


@DRIVES
def test_H10_control_trusting_that_the_key_exists_is_noticed(
    world: World, drive: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Directory.close

    def trusting(self: Directory, handles: Any, verdicts: Any) -> Any:
        close(self, handles, verdicts)
        there = self.servable([self.name(KV, world.name.key, world.name.salt)], world.store._epoch)
        return [Verdict.OK] * len(handles) if all(there) else list(verdicts)

    monkeypatch.setattr(Directory, "close", trusting)
    with pytest.raises(AssertionError, match="nothing_left"):
        put_again(world, drive)


@DRIVES
def test_H10_control_bytes_that_nobody_verifies_are_noticed(
    world: World, drive: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "payload_fits", lambda payload, expected: True)
    with pytest.raises(AssertionError, match="nothing_left"):
        overwritten(world, drive)


def none(_: object) -> None:
    """Nothing is returned."""
