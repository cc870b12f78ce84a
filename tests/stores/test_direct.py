"""Reads past the page cache: refused where there are none, made in whole blocks, verified like any other."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.arena import Arena
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.profile import Profile
from kvfsm.runtime.profile_plan import GroupPlan, PartPlan, ProfilePlan
from kvfsm.runtime.stores import files, records
from kvfsm.runtime.stores.files import BLOCK_BYTES, RealFiles, address, aligned, check_direct
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.memory import MemoryStore
from kvfsm.runtime.stores.store import Found, Item, Namespace, ObjectId, StoreFailed, Verdict

from . import test_crash
from .faulty_files import FaultyFiles

ROOT = Path("/disk/cache")
NAMESPACE = Namespace("model", {"compressed_kv": "layout a", "swa_window": "layout b"}, "raw")
SIZES = (1, 4095, 4096, 4097, 3 * 4096)


def an_id(number: int) -> ObjectId:
    return ObjectId("compressed_kv", hashlib.sha256(b"%d" % number).digest())


def payload(size: int) -> bytes:
    return bytes(place % 251 + 1 for place in range(size))


def ones(size: int) -> memoryview:
    room = aligned(size)
    room[:] = b"\xff" * size
    return room


def refuse(*_: Any) -> int:
    """What a disk says whose blocks are larger."""
    raise OSError(errno.EINVAL, "invalid argument")


def filled(layer: FaultyFiles | RealFiles, directory: Path = ROOT) -> LocalStore:
    store = LocalStore(directory, NAMESPACE, layer, direct=True)
    store.put_many([Item(an_id(size), payload(size)) for size in SIZES])
    return store


def check(store: LocalStore) -> None:
    """All of it comes back, and nothing is left of what the disk padded it with."""
    rooms = [ones(4 * BLOCK_BYTES) for _ in SIZES]
    for size, found, room in zip(SIZES, store.get_many([an_id(size) for size in SIZES], rooms), rooms, strict=True):
        whole = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        assert (found.verdict, found.length) == (Verdict.OK, size)
        assert room[:size] == payload(size)
        assert not any(room[size:whole]) and set(room[whole:]) <= {255}


def test_objects_of_any_size_come_back_in_whole_blocks() -> None:
    layer = FaultyFiles()
    with filled(layer) as store:
        before = layer.direct_reads
        check(store)
        assert layer.direct_reads == before + len(SIZES)
    with LocalStore(ROOT, NAMESPACE, layer, direct=True) as store:
        check(store)
        store.delete([an_id(1)])
        store.collect(verify=True)
        assert store.get(an_id(4097), ones(4 * BLOCK_BYTES)).verdict is Verdict.OK
    assert layer.handles == {} or all(path.suffix != ".segment" for path, _ in layer.handles.values())


def test_on_a_real_disk_it_works_or_is_refused_by_name(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    probe.write_bytes(b"not empty")
    try:
        check_direct(RealFiles(), probe)
    except OSError:
        with pytest.raises(StoreFailed, match="can't be read past the page cache"):
            LocalStore(tmp_path, NAMESPACE, direct=True)
        return
    with filled(RealFiles(), tmp_path) as store:
        check(store)
        (segment,) = store.path.glob("*.segment")
        short = RealFiles().open_direct(segment)
        try:  # a file may end within a block
            segment.write_bytes(segment.read_bytes()[:5000])
            assert RealFiles().read_direct(short, [aligned(4 * BLOCK_BYTES)], 0) == 5000
        finally:
            RealFiles().close(short)


@pytest.mark.parametrize("what", ["not to be opened", "through the cache", "other blocks"])
def test_a_file_system_without_direct_reads_is_refused_and_let_go(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = FaultyFiles()
    layer.direct, layer.cached = what != "not to be opened", what == "through the cache"
    if what == "other blocks":
        monkeypatch.setattr(FaultyFiles, "read_direct", refuse)
    with pytest.raises(StoreFailed, match=r"can't be read past the page cache: .*; fix: use a directory on a local"):
        LocalStore(ROOT, NAMESPACE, layer, direct=True)
    assert layer.locks == {} and layer.handles == {}, "somebody else may have it"
    with LocalStore(ROOT, NAMESPACE, layer) as store:  # and without it all is as ever
        store.put(an_id(1), b"x", meta={})
        before = layer.direct_reads
        assert store.get(an_id(1), bytearray(1)).verdict is Verdict.OK and layer.direct_reads == before


def test_without_the_second_look_a_cache_would_be_taken_for_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a file that can be opened so is believed."""
    from kvfsm.runtime.stores import local

    layer = FaultyFiles()
    layer.cached = True
    monkeypatch.setattr(local, "check_direct", lambda files, path: files.close(files.open_direct(path)))
    LocalStore(ROOT, NAMESPACE, layer, direct=True).close()


@pytest.mark.parametrize(("start", "size"), [(1, 4096), (64, 8192), (0, 4095), (0, 100)])
def test_a_buffer_off_its_blocks_is_refused_before_anything_is_read(start: int, size: int) -> None:
    layer = FaultyFiles()
    with filled(layer) as store:
        before = layer.reads
        room = ones(4 * BLOCK_BYTES)[start : start + size]
        with pytest.raises(
            ValueError, match=rf"begins at {address(room):#x} and has {size} bytes, .* multiples of 4096"
        ):
            store.get_many([an_id(4096), an_id(1)], [ones(BLOCK_BYTES), room])
        assert layer.reads == before and set(room) == {255}
    with LocalStore(ROOT, NAMESPACE, layer) as store:  # the cache takes any
        assert (store.io_bytes, store.get(an_id(1), room).verdict) == (1, Verdict.OK)


@pytest.mark.parametrize("reopened", [False, True])
def test_damage_has_the_verdicts_that_it_has_through_the_cache(reopened: bool) -> None:
    said = []
    for direct in (False, True):
        layer = FaultyFiles()
        store = LocalStore(ROOT, NAMESPACE, layer, direct=direct)
        for number in range(4):
            store.put(an_id(number), payload(5000), meta={})
        path, record = store.path / "00000001.segment", 3 * BLOCK_BYTES
        layer.flip(path, BLOCK_BYTES + 4999)  # the last byte of the first payload
        layer.flip(path, record + 100)  # the header of the second
        layer.flip(path, 3 * record - 1)  # padding of the third: nothing hangs on it
        layer.shorten(path, 3 * record + BLOCK_BYTES + 4096)
        if reopened:
            store.close()
            store = LocalStore(ROOT, NAMESPACE, layer, direct=direct)
        rooms = [ones(2 * BLOCK_BYTES) for _ in range(4)]
        found = store.get_many([an_id(number) for number in range(4)], rooms)
        said.append([one.verdict for one in found])
        assert not any(rooms[0][:5000]), "nothing of what did not verify is left"
        assert rooms[2][:5000] == payload(5000)
        if direct:
            assert not any(rooms[2][5000:]), "what the disk padded with is not to be seen"
        store.close()
    assert said[0] == said[1] and said[1][0] is Verdict.INTEGRITY and said[1][2] is Verdict.OK


def test_without_its_checksum_a_flipped_bit_would_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    layer = FaultyFiles()
    with filled(layer) as store:
        layer.flip(store.path / "00000001.segment", BLOCK_BYTES)
        monkeypatch.setattr(records, "payload_fits", lambda payload, expected: True)
        room = ones(BLOCK_BYTES)
        assert store.get(an_id(1), room).verdict is Verdict.OK and room[:1] != payload(1)


def test_a_disk_that_asks_for_more_later_condemns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = FaultyFiles()
    with filled(layer) as store:
        with monkeypatch.context() as patch:
            patch.setattr(FaultyFiles, "read_direct", refuse)
            with pytest.raises(StoreFailed, match="nothing was read"):
                store.get(an_id(1), ones(BLOCK_BYTES))
        check(store)
        layer.read_errors[layer.reads] = errno.EIO  # a bad sector is another matter
        assert store.get(an_id(1), ones(BLOCK_BYTES)).verdict is Verdict.INTEGRITY


# ---- a manager -------------------------------------------------------------------------------------------------------


def model(alignment: int) -> Profile:
    named = dict.fromkeys(("name", "title", "source", "identity"), f"aligned to {alignment}")
    parts = (PartPlan("rows", 16, (100,), "uint8", "values"),)
    groups = (GroupPlan("full", "compressed_kv", (0,), parts, 1, 16),)
    return ProfilePlan(**named, granule=16, groups=groups, alignment=alignment).profile()


def manager_over(profile: Profile, layer: FaultyFiles, direct: bool) -> Manager:
    store = LocalStore(ROOT, Namespace.of(profile), layer, direct=direct)
    return Manager(profile, {"compressed_kv": 4}, NumpyBackend(), store=store)


def test_a_layout_in_whole_blocks_is_loaded_straight_into_its_slots() -> None:
    profile, layer = model(4096), FaultyFiles()
    writer = manager_over(profile, layer, direct=True)
    keys = writer.keys(range(48))
    fill = writer.reserve(keys, 0, 3)
    fill.view("compressed_kv", "rows", 0)[:] = 7
    writer.publish(fill)
    assert writer.store is not None
    writer.store.close()
    reader = manager_over(profile, layer, direct=True)
    before = layer.direct_reads
    answer = reader.load(reader.match(keys, 49).plan)
    assert (answer.kind, answer.now) == ("HIT", 48) and layer.direct_reads == before + 3
    with reader.acquire(answer) as lease:
        assert (np.asarray(lease.view("compressed_kv", "rows", 0)) == 7).all()
    assert reader.audit().ok


def test_what_is_staged_for_slots_that_the_host_can_not_touch_lies_at_blocks_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = FaultyFiles()
    manager = manager_over(model(4096), layer, direct=True)
    keys = manager.keys(range(48))
    fill = manager.reserve(keys, 0, 3)
    fill.view("compressed_kv", "rows", 0)[:] = 7
    manager.publish(fill)
    manager.evict("compressed_kv", 3)
    plan, before = manager.match(keys, 49).plan, layer.direct_reads
    with monkeypatch.context() as patch:  # to the backend it is all the same
        patch.setattr(Arena, "is_remote", True)
        answer = manager.load(plan)
    assert answer.now == 48 and layer.direct_reads == before + 3
    with manager.acquire(answer) as lease:
        assert (np.asarray(lease.view("compressed_kv", "rows", 0)) == 7).all()


def test_a_layout_off_the_blocks_is_refused_by_the_layer_of_alignment() -> None:
    profile, layer = model(64), FaultyFiles()
    assert profile.layouts["compressed_kv"].slot_bytes % 4096
    manager = manager_over(profile, layer, direct=True)
    keys = manager.keys(range(48))
    manager.publish(manager.reserve(keys, 0, 3))
    answer = manager.match(keys, 49)
    assert (answer.kind, answer.reason, answer.layer, answer.length) == ("REJECT", "ALIGN", "alignment", 0)
    assert "is not a multiple of 4096 bytes" in answer.detail
    assert manager.store is not None
    manager.store.close()
    assert manager_over(profile, layer, direct=False).match(keys, 49).kind == "HIT_PENDING"  # the cache takes any
    assert MemoryStore().io_bytes == 1


# ---- crashes ---------------------------------------------------------------------------------------------------------


class Direct(LocalStore):
    """Reads past the page cache, and hands on what it read."""

    read_past = 0

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named, direct=True)

    def get(self, id: ObjectId, into: Any) -> Found:
        room = aligned(-(-len(into) // BLOCK_BYTES) * BLOCK_BYTES)
        found = super().get(id, room)
        memoryview(into)[:] = room[: len(into)]
        Direct.read_past += 1
        return found


@pytest.mark.parametrize("name", ["batches", "collect", "reopen"])
def test_no_crash_breaks_a_promise_when_it_is_read_past_the_cache(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_crash, "LocalStore", Direct)
    before = Direct.read_past
    test_crash.test_a_power_cut_at_any_operation_keeps_every_promise(name)
    assert Direct.read_past > before


def test_memory_of_pages_begins_at_a_block() -> None:
    assert all(not address(files.aligned(size)) % BLOCK_BYTES for size in (1, 4096, 10_000))
