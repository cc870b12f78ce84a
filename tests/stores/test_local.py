"""The local store: what it serves, what it refuses and by which name, and what is left after a write that failed."""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from kvfsm.runtime.stores import records
from kvfsm.runtime.stores.format import EPOCH_MAX, FORMAT_VERSION, HEADER_BYTES, Record, checksum, stride
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.memory import MemoryStore
from kvfsm.runtime.stores.store import (
    EpochEnded,
    Found,
    Item,
    Meta,
    Namespace,
    ObjectId,
    Store,
    StoreClosed,
    StoreFailed,
    StoreFull,
    StoreLocked,
    Verdict,
)

from .faulty_files import FaultyFiles, everything

ROOT = Path("/disk/cache")
NAMESPACE = Namespace("model", {"compressed_kv": "layout a", "swa_window": "layout b"}, "raw")
PAYLOAD = bytes(range(256)) * 40


def an_id(number: int = 0, salt: bytes = b"") -> ObjectId:
    return ObjectId("compressed_kv", hashlib.sha256(b"%d" % number).digest(), salt)


def read(store: LocalStore, id: ObjectId) -> tuple[Verdict, bytes]:
    """The verdict, and the buffer afterwards; it was full of ones before."""
    into = bytearray(b"\xff" * len(PAYLOAD))
    found = store.get(id, into)
    assert bool(store.contains([id])[0]) == (found.verdict is Verdict.OK), "contains and get must agree after a read"
    return found.verdict, bytes(into)


def stored(meta: Meta | None = None) -> tuple[FaultyFiles, Path]:
    """A closed store with one object, and the path of its segment."""
    files = FaultyFiles()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        store.put(an_id(), PAYLOAD, meta=meta or {})
        return files, store.path / "00000001.segment"


def test_bytes_and_meta_come_back_as_they_were_put() -> None:
    meta: Meta = {"boundary": 7, "lossy": True, "schedule": "chunks of 32", "layers": 3, "exact": False}
    files, _ = stored(meta)
    with LocalStore(ROOT, NAMESPACE, files) as store:
        into = np.zeros((2, len(PAYLOAD)), np.uint8)
        found = store.get(an_id(), into)
        assert (found.verdict, dict(found.meta), found.length) == (Verdict.OK, meta, len(PAYLOAD))
        assert bytes(into[0]) == PAYLOAD
        assert not into[1].any()


def test_an_unknown_key_is_a_miss_and_leaves_the_buffer_alone() -> None:
    with LocalStore(ROOT, NAMESPACE, FaultyFiles()) as store:
        assert read(store, an_id()) == (Verdict.MISS, b"\xff" * len(PAYLOAD))


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("where", ["payload", "last byte of the payload", "header", "meta", "checksum", "version"])
def test_any_flipped_bit_is_refused_for_its_integrity(where: str, reopened: bool) -> None:
    offsets = {"payload": HEADER_BYTES + 5000, "last byte of the payload": HEADER_BYTES + len(PAYLOAD) - 1}
    offsets |= {"header": 100, "meta": 400, "checksum": HEADER_BYTES - 3, "version": 8}
    files = FaultyFiles()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        store.put(an_id(), PAYLOAD, meta={"schedule": "chunks"})
        if not reopened:
            files.flip(store.path / "00000001.segment", offsets[where], bit=3)
            verdict, into = read(store, an_id())
            assert verdict is Verdict.INTEGRITY
            assert not any(into), "bytes that failed verification must not stay in the caller's buffer"
            assert store.usage().corrupt == 1
    if reopened:
        files.flip(store.path / "00000001.segment", offsets[where], bit=3)
        with LocalStore(ROOT, NAMESPACE, files) as store:
            expected = Verdict.INTEGRITY if "payload" in where else Verdict.MISS  # without a header there is no key
            into = bytearray(len(PAYLOAD))
            assert store.get(an_id(), into).verdict is expected
            assert not any(into)


def test_every_bit_of_a_header_matters() -> None:
    files, path = stored({"boundary": 1})
    for position in range(0, HEADER_BYTES * 8, 97):
        files.flip(path, position // 8, position % 8)
        with LocalStore(ROOT, NAMESPACE, files.power_cut(everything)) as store:
            assert store.get(an_id(), bytearray(len(PAYLOAD))).verdict is not Verdict.OK
        files.flip(path, position // 8, position % 8)
    with LocalStore(ROOT, NAMESPACE, files) as store:
        assert read(store, an_id()) == (Verdict.OK, PAYLOAD)


def test_without_checksums_the_flipped_bit_would_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    files, path = stored()
    files.flip(path, HEADER_BYTES + 5000)
    monkeypatch.setattr(records, "payload_fits", lambda payload, expected: True)
    with LocalStore(ROOT, NAMESPACE, files) as store:
        verdict, into = read(store, an_id())
    assert verdict is Verdict.OK
    assert into != PAYLOAD


@pytest.mark.parametrize("reopened", [False, True])
def test_a_shortened_file_is_truncated(reopened: bool) -> None:
    files, path = stored()
    if reopened:
        files.shorten(path, HEADER_BYTES + 5000)
    with LocalStore(ROOT, NAMESPACE, files) as store:
        if not reopened:
            files.shorten(path, HEADER_BYTES + 5000)
        verdict, into = read(store, an_id())
        assert verdict is Verdict.TRUNCATED
        assert into[:5000] != PAYLOAD[:5000]
        store.put(an_id(), PAYLOAD, meta={})  # computing it anew mends the store
        assert read(store, an_id()) == (Verdict.OK, PAYLOAD)
    with LocalStore(ROOT, NAMESPACE, files) as store:
        assert read(store, an_id()) == (Verdict.OK, PAYLOAD)


OTHERS = {
    "model": (replace(NAMESPACE, model_identity="another"), Verdict.IDENTITY),
    "layout": (replace(NAMESPACE, layouts={**NAMESPACE.layouts, "compressed_kv": "layout c"}), Verdict.LAYOUT),
    "meaning": (replace(NAMESPACE, semantics="bias folded in"), Verdict.LAYOUT),
    "other kind's layout": (replace(NAMESPACE, layouts={**NAMESPACE.layouts, "swa_window": "d"}), Verdict.IDENTITY),
}


@pytest.mark.parametrize("what", OTHERS)
def test_unequal_namespaces_share_nothing(what: str) -> None:
    files, path = stored()
    with LocalStore(ROOT, OTHERS[what][0], files) as store:
        assert store.path != path.parent
        assert read(store, an_id())[0] is Verdict.MISS


@pytest.mark.parametrize("what", OTHERS)
def test_a_file_moved_from_another_namespace_is_refused_by_its_headers(what: str) -> None:
    files, path = stored()
    other, verdict = OTHERS[what]
    LocalStore(ROOT, other, files).close()
    files.names[ROOT / other.digest / path.name] = files.names[path]
    with LocalStore(ROOT, other, files) as store:
        assert read(store, an_id())[0] is verdict
        store.put(an_id(), PAYLOAD[::-1], meta={})
        assert read(store, an_id()) == (Verdict.OK, PAYLOAD[::-1])
        assert store.collect().corrupt == 1
        assert read(store, an_id()) == (Verdict.OK, PAYLOAD[::-1])


def test_another_salt_is_refused_as_such_and_is_another_object() -> None:
    files, _ = stored()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        assert read(store, an_id(salt=b"tenant"))[0] is Verdict.SALT
        store.put(an_id(salt=b"tenant"), PAYLOAD[::-1], meta={})
        assert read(store, an_id(salt=b"tenant")) == (Verdict.OK, PAYLOAD[::-1])
        assert read(store, an_id()) == (Verdict.OK, PAYLOAD)


@pytest.mark.parametrize("reopened", [False, True])
def test_nothing_older_than_a_reset_is_served(reopened: bool) -> None:
    files, _ = stored()
    store = LocalStore(ROOT, NAMESPACE, files)
    assert store.reset() == 1
    if reopened:
        store.close()
        store = LocalStore(ROOT, NAMESPACE, files)
    assert store.epoch == 1
    assert read(store, an_id()) == (Verdict.EPOCH, b"\xff" * len(PAYLOAD))
    with pytest.raises(EpochEnded, match="epoch 0; now is 1"):
        store.put(an_id(1), PAYLOAD, meta={}, at_epoch=0)
    assert read(store, an_id(1))[0] is Verdict.MISS
    store.put(an_id(), PAYLOAD, meta={}, at_epoch=1)
    assert read(store, an_id()) == (Verdict.OK, PAYLOAD)


def test_a_later_format_is_refused_and_does_no_harm() -> None:
    files, path = stored()
    block = files.names[path].visible
    block[8:10] = (FORMAT_VERSION + 1).to_bytes(2, "little")
    block[HEADER_BYTES - 16 : HEADER_BYTES] = checksum(bytes(block[: HEADER_BYTES - 16]))
    with LocalStore(ROOT, NAMESPACE, files) as store:
        assert store.get(an_id(), bytearray(len(PAYLOAD))).verdict is Verdict.MISS
    assert len(files.names[path].visible) == stride(len(PAYLOAD)), "what another version wrote is not cut off"
    with LocalStore(ROOT, NAMESPACE, files) as store:
        store.put(an_id(), PAYLOAD, meta={})
    with LocalStore(ROOT, NAMESPACE, files) as store:
        assert read(store, an_id()) == (Verdict.OK, PAYLOAD)


def test_a_header_of_a_later_format_is_refused_as_format() -> None:
    files = FaultyFiles()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        store.put(an_id(), PAYLOAD, meta={})
        block = files.names[store.path / "00000001.segment"].visible
        block[8:10] = (FORMAT_VERSION + 1).to_bytes(2, "little")
        block[HEADER_BYTES - 16 : HEADER_BYTES] = checksum(bytes(block[: HEADER_BYTES - 16]))
        assert read(store, an_id())[0] is Verdict.FORMAT
    with pytest.raises(ValueError, match="stores format 1; the namespace asks for 2"):
        LocalStore(ROOT, replace(NAMESPACE, format=2), files)


def rewritten(files: FaultyFiles, path: Path, record: int, at: int, new: bytes) -> None:
    """Change a header at rest, and have its checksum fit: as memory that failed before it was written."""
    for block in (files.names[path].visible, files.names[path].durable):
        block[record + at : record + at + len(new)] = new
        header = bytes(block[record : record + HEADER_BYTES - 16])
        block[record + HEADER_BYTES - 16 : record + HEADER_BYTES] = checksum(header)


NONSENSE = {
    "kind": (72, "schlüssel".encode()),
    "meta": (312, b"x" * 8),
    "meta that is a list": (312, b"[]      "),
    "payload bytes": (24, (1 << 63).to_bytes(8, "little")),
    "no payload": (24, bytes(8)),
    "epoch": (32, (1 << 40).to_bytes(8, "little")),
    "count": (68, ((1 << 32) - 1).to_bytes(4, "little")),
}


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("what", NONSENSE)
def test_a_header_that_nobody_can_have_meant_costs_its_own_object(what: str, closed: bool) -> None:
    files = FaultyFiles()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        store.put(an_id(1), PAYLOAD, meta={})
        store.put(an_id(2), PAYLOAD, meta={"as": 1})
        if not closed:
            files = files.killed()
    path = store.path / "00000001.segment"
    rewritten(files, path, stride(len(PAYLOAD)), *NONSENSE[what])
    with LocalStore(ROOT, NAMESPACE, files) as store:
        assert read(store, an_id(1)) == (Verdict.OK, PAYLOAD)
        if what != "count" or not closed:  # of what was durable at the close it says nothing
            assert store.get(an_id(2), bytearray(len(PAYLOAD))).verdict is Verdict.MISS
        store.put(an_id(2), PAYLOAD, meta={})
        store.put(an_id(3), PAYLOAD, meta={})
    with LocalStore(ROOT, NAMESPACE, files) as store:
        assert all(read(store, an_id(number)) == (Verdict.OK, PAYLOAD) for number in (1, 2, 3))


@pytest.mark.parametrize("payload", [b"short", "é".encode() * 52])
def test_deletions_that_nobody_can_have_meant_bury_nothing(payload: bytes) -> None:
    files = FaultyFiles()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        store.put(an_id(1), PAYLOAD, meta={})
        header = store._records.header(Record.TOMBSTONES, "", bytes(32), bytes(32), 0, payload)
        store._records.append([replace(header, payload_checksum=checksum(payload))], [payload])
    with LocalStore(ROOT, NAMESPACE, files) as store:
        assert read(store, an_id(1)) == (Verdict.OK, PAYLOAD)
    rewritten(files, store.path / "00000001.segment", stride(len(PAYLOAD)), 24, (1 << 50).to_bytes(8, "little"))
    with LocalStore(ROOT, NAMESPACE, files) as store:
        assert read(store, an_id(1)) == (Verdict.OK, PAYLOAD)


def test_a_copied_record_is_not_taken_for_an_object() -> None:
    files, path = stored()
    copy = bytes(files.names[path].visible)
    files = FaultyFiles()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        store.put(an_id(1), copy, meta={})
    files.flip(path, 20)  # the header before the copy is lost, so opening looks into the payload
    with LocalStore(ROOT, NAMESPACE, files) as store:
        assert read(store, an_id())[0] is Verdict.MISS


def test_a_second_put_changes_nothing() -> None:
    with LocalStore(ROOT, NAMESPACE, FaultyFiles()) as store:
        assert store.put_many([Item(an_id(), PAYLOAD), Item(an_id(), PAYLOAD)]) == 1
        before = store.usage()
        assert store.put_many([Item(an_id(), PAYLOAD[::-1])]) == 0
        assert store.usage() == before
        assert read(store, an_id()) == (Verdict.OK, PAYLOAD)


@pytest.mark.parametrize("make", [MemoryStore, lambda: LocalStore(ROOT, NAMESPACE, FaultyFiles())])
def test_an_object_that_one_call_brings_lossy_and_exact_is_one_object(make: Callable[[], Store]) -> None:
    store = make()
    assert store.put_many([Item(an_id(), PAYLOAD[::-1], {"lossy": True}), Item(an_id(), PAYLOAD)]) == 1
    into = bytearray(len(PAYLOAD))
    assert store.get(an_id(), into).meta == {} and into == PAYLOAD
    assert store.usage().objects == 1


def test_an_exact_object_replaces_a_lossy_one_and_never_the_other_way() -> None:
    with LocalStore(ROOT, NAMESPACE, FaultyFiles()) as store:
        store.put(an_id(), PAYLOAD[::-1], meta={"lossy": True})
        store.put(an_id(), PAYLOAD, meta={"lossy": False})
        assert read(store, an_id()) == (Verdict.OK, PAYLOAD)
        store.put(an_id(), PAYLOAD[::-1], meta={"lossy": True})
        assert read(store, an_id()) == (Verdict.OK, PAYLOAD)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("there", [False, True])
def test_an_error_at_any_operation_of_a_put_refuses_it_whole(code: int, there: bool) -> None:
    def begin() -> tuple[FaultyFiles, LocalStore]:
        files = FaultyFiles()
        store = LocalStore(ROOT, NAMESPACE, files)
        if there:
            store.put(an_id(9), PAYLOAD, meta={})
        return files, store

    items = [Item(an_id(number), PAYLOAD) for number in range(3)]
    files, store = begin()
    first = len(files.operations)
    store.put_many(items)
    for number in range(first, len(files.operations)):
        files, store = begin()
        before, names = store.usage(), files.list_directory(store.path)
        files.errors[number] = code
        with pytest.raises(StoreFull if code in (errno.ENOSPC, errno.EDQUOT) else StoreFailed):
            store.put_many(items)
        assert store.usage() == before
        assert files.list_directory(store.path) == names
        assert not store.contains([item.id for item in items]).any()
        assert store._directory.table.count_by_state()["staging"] == 0
        assert store.put_many(items) == 3, "it works again when the disk does"
        assert store.contains([item.id for item in items]).all()


def test_a_full_disk_refuses_whole_and_leaves_nothing_behind() -> None:
    files = FaultyFiles()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        store.put(an_id(9), PAYLOAD, meta={})
        files.capacity = store.usage().file_bytes + 3 * stride(len(PAYLOAD))
        before, names = store.usage(), files.list_directory(store.path)
        with pytest.raises(StoreFull, match="no space left on device; nothing was kept"):
            store.put_many([Item(an_id(number), PAYLOAD) for number in range(4)])
        assert store.usage() == before
        assert files.list_directory(store.path) == names
        assert read(store, an_id(9)) == (Verdict.OK, PAYLOAD)
        store.put(an_id(0), PAYLOAD, meta={})
    with LocalStore(ROOT, NAMESPACE, files) as store:
        assert store.usage().objects == 2


def test_what_never_fits_the_budget_is_refused_whole_and_nothing_goes_for_it() -> None:
    size = stride(len(PAYLOAD))
    with LocalStore(ROOT, NAMESPACE, FaultyFiles(), budget_bytes=4 * size) as store:
        store.put_many([Item(an_id(number), PAYLOAD) for number in range(3)])
        with pytest.raises(StoreFull, match=f"{5 * size} bytes are more than the budget of .*, {4 * size}"):
            store.put_many([Item(an_id(number), PAYLOAD) for number in range(3, 8)])
        assert store.usage().objects == 3 and store.usage().evicted == 0
        store.put(an_id(3), PAYLOAD, meta={})
        store.reset()
        store.put(an_id(5), PAYLOAD, meta={})  # files without a living object make room by themselves
        assert store.usage().objects == 1 and store.usage().evicted == 0


def test_a_failed_rollback_stops_writing_but_not_reading() -> None:
    files = FaultyFiles()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        store.put(an_id(), PAYLOAD, meta={})
        files.always = {"sync": errno.EIO}
        with pytest.raises(StoreFailed):
            store.put(an_id(1), PAYLOAD, meta={})
        files.always = {}
        with pytest.raises(StoreFailed, match="until it is opened anew"):
            store.put(an_id(2), PAYLOAD, meta={})
        assert read(store, an_id()) == (Verdict.OK, PAYLOAD)
    with LocalStore(ROOT, NAMESPACE, files) as store:
        store.put(an_id(2), PAYLOAD, meta={})
        assert store.contains([an_id(), an_id(2)]).all()


def test_a_sector_that_can_not_be_read_is_a_corrupt_object() -> None:
    files, _ = stored()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        files.always = {"read": errno.EIO}
        assert read(store, an_id())[0] is Verdict.INTEGRITY


@pytest.mark.parametrize(("operation", "code"), [("make_directory", errno.EROFS), ("open", errno.EACCES)])
def test_a_directory_that_can_not_be_written_is_refused_at_opening(operation: str, code: int) -> None:
    files, path = stored()
    files.always = {operation: code}
    with pytest.raises(StoreFailed, match=path.parent.name):
        LocalStore(ROOT, NAMESPACE, files)
    files.always = {}
    with LocalStore(ROOT, NAMESPACE, files) as store:  # the failed opening let go of the lock
        assert read(store, an_id()) == (Verdict.OK, PAYLOAD)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_reset_that_fails_is_either_undone_or_says_that_it_is_not_durable(code: int) -> None:
    files, _ = stored()
    store = LocalStore(ROOT, NAMESPACE, files)
    first = len(files.operations)
    store.reset()
    count = len(files.operations) - first
    for number in range(count):
        files, _ = stored()
        store = LocalStore(ROOT, NAMESPACE, files)
        files.errors[len(files.operations) + number] = code
        with pytest.raises((StoreFull, StoreFailed)):
            store.reset()
        assert not [name for name in files.list_directory(store.path) if name.endswith(".tmp")]
        if store.epoch == 0:
            assert read(store, an_id()) == (Verdict.OK, PAYLOAD)
        else:
            assert read(store, an_id())[0] is Verdict.EPOCH
            with pytest.raises(StoreFailed, match="reset again"):
                store.put(an_id(1), PAYLOAD, meta={})
        store.reset()
        store.put(an_id(1), PAYLOAD, meta={})
        assert read(store, an_id())[0] is Verdict.EPOCH
        store.close()


def test_a_lost_state_file_ends_the_epoch() -> None:
    files, path = stored()
    files.flip(path.parent / "state.json", 3)
    with LocalStore(ROOT, NAMESPACE, files) as store:
        assert store.epoch == 1
        assert read(store, an_id())[0] is Verdict.EPOCH


@pytest.mark.parametrize("text", [
    '{"epoch": 0}', '{"epoch": 0, "mark": {"group": 1, "segment": 1, "size": 1, "more": 1}}', "[]", "x",
    '{"epoch": "0", "mark": {"group": 1, "segment": 1, "size": 1}}',
    '{"epoch": 0, "mark": {"group": 1, "segment": -1, "size": 1}}',
    '{"epoch": 70000, "mark": {"group": 1, "segment": 1, "size": 1}}',
])  # fmt: skip
def test_a_state_file_that_says_something_else_ends_the_epoch(text: str) -> None:
    files, path = stored()
    for data in (files.names[path.parent / "state.json"].visible, files.names[path.parent / "state.json"].durable):
        data[:] = f"{text}\n{checksum(text.encode()).hex()}\n".encode()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        assert (store.epoch, read(store, an_id())[0]) == (1, Verdict.EPOCH)
        store.put(an_id(), PAYLOAD, meta={})
        assert read(store, an_id()) == (Verdict.OK, PAYLOAD)


def test_the_last_epoch_ends_with_its_state_file_and_nothing_is_taken_any_more() -> None:
    files, path = stored()
    rewritten(files, path, 0, 32, EPOCH_MAX.to_bytes(8, "little"))
    files.flip(path.parent / "state.json", 3)
    with pytest.raises(StoreFailed, match="its last epoch has ended; delete it to begin anew"):
        LocalStore(ROOT, NAMESPACE, files)
    assert not files.handles and not files.locks


def test_files_are_found_again_however_high_their_numbers_are() -> None:
    files, path = stored()
    for names in (files.names, files.durable_names):
        names[path.with_name("99999999.segment")] = names.pop(path)
    with LocalStore(ROOT, NAMESPACE, files, segment_bytes=1) as store:
        store.put(an_id(1), PAYLOAD, meta={})
    assert "100000000.segment" in files.list_directory(path.parent)
    with LocalStore(ROOT, NAMESPACE, files) as store:
        assert all(read(store, an_id(number)) == (Verdict.OK, PAYLOAD) for number in (0, 1))


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with LocalStore(tmp_path, NAMESPACE), pytest.raises(StoreLocked, match=r"in use by process \d+ on "):
        LocalStore(tmp_path, NAMESPACE)
    LocalStore(tmp_path, NAMESPACE).close()


def test_a_writer_whose_lock_was_removed_leaves_the_store_to_the_next_one(tmp_path: Path) -> None:
    first = LocalStore(tmp_path, NAMESPACE, segment_bytes=1)
    first.put_many([Item(an_id(0), PAYLOAD)])
    first.put_many([Item(an_id(1), PAYLOAD)])
    (first.path / "lock").unlink()
    with LocalStore(tmp_path, NAMESPACE, segment_bytes=1) as second:
        second.put(an_id(2), PAYLOAD, meta={})
        for act in (
            lambda: first.put(an_id(3), PAYLOAD, meta={}), lambda: first.delete([an_id(1)]), first.reset, first.collect,
        ):  # fmt: skip
            with pytest.raises(StoreFailed, match=r"somebody removed its lock file.*fix: open it anew"):
                act()
        assert read(first, an_id(0)) == (Verdict.OK, PAYLOAD)
        state = (second.path / "state.json").read_bytes()
        first.close()
        assert (second.path / "state.json").read_bytes() == state
        second.put(an_id(3), PAYLOAD, meta={})
    with LocalStore(tmp_path, NAMESPACE) as third:
        assert all(read(third, an_id(number)) == (Verdict.OK, PAYLOAD) for number in range(4))


def test_a_closed_store_says_so() -> None:
    store = LocalStore(ROOT, NAMESPACE, FaultyFiles())
    store.close()
    store.close()
    for call in (
        lambda: store.put(an_id(), PAYLOAD, meta={}),
        lambda: store.get(an_id(), bytearray(9)),
        lambda: store.contains([an_id()]),
        store.reset,
        store.collect,
        lambda: store.delete([an_id()]),
    ):
        with pytest.raises(StoreClosed):
            call()


def test_what_can_not_be_stored_is_refused_before_anything_is_written() -> None:
    files = FaultyFiles()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        before = len(files.operations)
        for item, text in (
            (Item(ObjectId("indexer_state", bytes(32)), b"x"), "stores no 'indexer_state'; it stores compressed_kv"),
            (Item(an_id(), b""), "empty payload"),
            (Item(an_id(), PAYLOAD, {"lossy": 1}), "a bool is expected"),
            (Item(an_id(), PAYLOAD, {"boundary": -1}), "a count of granules"),
            (Item(an_id(), PAYLOAD, {"x": "y" * 5000}), "a header holds"),
            (Item(an_id(), np.zeros((8, 8), np.uint8)[:, ::2]), "C-contiguous"),
        ):
            with pytest.raises(ValueError, match=text):
                store.put_many([Item(an_id(1), PAYLOAD), item])
        with pytest.raises(ValueError, match="writable"):
            store.get(an_id(), memoryview(b"abc"))
        assert len(files.operations) == before
    with pytest.raises(ValueError, match="32 bytes, this one has 5"):
        ObjectId("compressed_kv", b"short")
    with pytest.raises(ValueError, match="'mamba' can't be stored"):
        LocalStore(ROOT, Namespace("m", {"mamba": "x"}, ""), files)


def test_an_object_that_does_not_fit_the_slot_is_of_another_layout() -> None:
    files, _ = stored()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        into = bytearray(b"\xff" * 100)
        assert store.get(an_id(), into).verdict is Verdict.LAYOUT
        assert into == b"\xff" * 100
        assert read(store, an_id()) == (Verdict.OK, PAYLOAD)


def test_in_memory_too_an_object_that_does_not_fit_is_of_another_layout() -> None:
    store, into = MemoryStore(), bytearray(len(PAYLOAD) - 1)
    store.put(an_id(), PAYLOAD, meta={})
    assert store.get(an_id(), into) == Found(Verdict.LAYOUT)
    assert not any(into)


def test_in_memory_too_a_payload_that_is_not_contiguous_is_refused() -> None:
    store = MemoryStore()
    with pytest.raises(ValueError, match="C-contiguous"):
        store.put(an_id(), np.zeros((8, 8), np.uint8)[:, ::2], meta={})
    assert not store.objects


def test_payloads_lie_at_multiples_of_4096_whatever_their_size() -> None:
    """H-21: bytes per slot that are a multiple of 512 and not of 4096."""
    size = 3098112
    first, second = (np.random.default_rng(seed).integers(0, 256, size, np.uint8) for seed in (1, 2))
    with LocalStore(ROOT, NAMESPACE, FaultyFiles()) as store:
        store.put_many([Item(an_id(1), first), Item(an_id(2), second)])
        assert stride(size) == HEADER_BYTES + 3100672
        assert store.usage().file_bytes == 2 * stride(size)
        into = np.zeros(size, np.uint8)
        assert store.get(an_id(2), into).verdict is Verdict.OK
        assert (into == second).all()


def test_a_big_batch_is_synced_once() -> None:
    files = FaultyFiles()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        store.put(an_id(0), PAYLOAD, meta={})
        before = len(files.operations)
        assert store.put_many([Item(an_id(number), b"%d" % number * 100) for number in range(3000)]) == 2999
        assert [name for name, _ in files.operations[before:]] == ["write", "sync"]
        assert store.contains([an_id(number) for number in range(3001)]).tolist() == [True] * 3000 + [False]
    with LocalStore(ROOT, NAMESPACE, files) as store:
        into = bytearray(1000)
        for number in range(1, 3000):
            length = store.get(an_id(number), into).length
            assert into[:length] == b"%d" % number * 100


def test_collecting_keeps_what_lives_and_frees_the_rest(tmp_path: Path) -> None:
    size = stride(len(PAYLOAD))
    with LocalStore(tmp_path, NAMESPACE, segment_bytes=4 * size) as store:
        store.put_many([Item(an_id(number), PAYLOAD, {"boundary": number}) for number in range(3)])
        store.put_many([Item(an_id(number), PAYLOAD, {"boundary": number}) for number in range(3, 9)])
        assert store.delete([an_id(number) for number in (1, 4, 77)]) == 2
        assert read(store, an_id(4))[0] is Verdict.MISS
        assert store.usage().garbage_bytes > 0
        done = store.collect()
        assert (done.expired, done.corrupt) == (2, 0)
        assert store.usage().garbage_bytes == 0
        assert sum(path.stat().st_size for path in store.path.glob("*.segment")) == 7 * size
    with LocalStore(tmp_path, NAMESPACE) as store:
        expected = [Verdict.MISS if number in (1, 4) else Verdict.OK for number in range(9)]
        assert [read(store, an_id(number))[0] for number in range(9)] == expected


def test_a_reader_may_find_what_collecting_finds_at_the_same_moment() -> None:
    class Meanwhile(FaultyFiles):
        during: ClassVar[list[Callable[[], object]]] = []

        def read(self, handle: int, buffers: list[memoryview], offset: int) -> int:  # type: ignore[override]
            if self.during:
                self.during.pop()()
            return super().read(handle, buffers, offset)

    files = Meanwhile()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        store.put_many([Item(an_id(number), PAYLOAD) for number in range(2)])
        files.flip(store.path / "00000001.segment", HEADER_BYTES)
        files.during.append(lambda: read(store, an_id(0)))
        assert store.collect(verify=True).corrupt == 1
        assert read(store, an_id(0))[0] is Verdict.MISS
        assert read(store, an_id(1)) == (Verdict.OK, PAYLOAD)


def test_collecting_finds_and_removes_corrupt_objects() -> None:
    files, path = stored()
    files.flip(path, HEADER_BYTES + 17)
    with LocalStore(ROOT, NAMESPACE, files) as store:
        store.put(an_id(1), PAYLOAD, meta={})
        assert store.collect(verify=True).corrupt == 1
        assert store.usage().file_bytes == stride(len(PAYLOAD))
        assert read(store, an_id(1)) == (Verdict.OK, PAYLOAD)
        assert read(store, an_id())[0] is Verdict.MISS


def test_threads_read_write_delete_reset_and_collect_at_once(tmp_path: Path) -> None:
    """Whatever the order: an OK read gives the object's own bytes, and every put of the last epoch is there."""
    store = LocalStore(tmp_path, NAMESPACE, segment_bytes=64 * 1024)
    bodies = [hashlib.sha256(b"body %d" % number).digest() * 100 for number in range(40)]
    wrong: list[str] = []
    stop = threading.Event()

    def writer(seed: int) -> None:
        chance = np.random.default_rng(seed)
        for _ in range(60):
            numbers = chance.choice(40, 3, replace=False).tolist()
            try:
                store.put_many([Item(an_id(number), bodies[number]) for number in numbers])
            except EpochEnded:
                continue

    def reader(seed: int) -> None:
        chance = np.random.default_rng(seed)
        into = bytearray(3200)
        while not stop.is_set():
            number = int(chance.integers(40))
            found = store.get(an_id(number), into)
            if found.verdict is Verdict.OK and into != bodies[number]:
                wrong.append(f"object {number} has foreign bytes")
            if found.verdict not in (Verdict.OK, Verdict.MISS, Verdict.EPOCH):
                wrong.append(f"object {number}: {found.verdict.name}")

    def keeper() -> None:
        for number in range(12):
            store.delete([an_id(number), an_id(number + 1)])
            store.collect()
            if number % 4 == 3:
                store.reset()

    def guarded(work: Callable[..., None], *args: int) -> None:
        try:
            work(*args)
        except BaseException as problem:
            wrong.append(repr(problem))

    readers = [threading.Thread(target=guarded, args=(reader, seed)) for seed in (1, 2)]
    writers = [threading.Thread(target=guarded, args=(writer, seed)) for seed in (3, 4, 5)]
    writers.append(threading.Thread(target=guarded, args=(keeper,)))
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert wrong == []
    store.put_many([Item(an_id(number), bodies[number]) for number in range(40)])
    counts = store._directory.table.count_by_state()
    assert store._directory.table.fields("pins").max() == 0
    assert counts["staging"] == counts["failed"] == counts["quarantined"] == 0
    store.close()
    with LocalStore(tmp_path, NAMESPACE) as again:
        assert again.contains([an_id(number) for number in range(40)]).all()


def test_a_reader_keeps_its_file_while_it_is_collected_away() -> None:
    class Slow(FaultyFiles):
        during: ClassVar[list[Callable[[], object]]] = []

        def read(self, handle: int, buffers: list[memoryview], offset: int) -> int:  # type: ignore[override]
            if self.during:
                self.during.pop()()
            return super().read(handle, buffers, offset)

    files = Slow()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        store.put_many([Item(an_id(0), PAYLOAD), Item(an_id(1), PAYLOAD)])
        store.delete([an_id(1)])
        files.during.append(store.collect)
        assert read(store, an_id(0)) == (Verdict.OK, PAYLOAD)
        files.during.append(store.reset)
        into = bytearray(b"\xff" * len(PAYLOAD))
        assert store.get(an_id(0), into).verdict is Verdict.EPOCH, "the epoch ended during the read"
        assert not any(into)


def test_a_batch_of_reads_gives_each_object_its_own_verdict() -> None:
    """H-30: a buffer whose read failed is never handed back as if it were filled."""
    files = FaultyFiles()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        store.put_many([Item(an_id(number), bytes([number + 1]) * 9000, {"boundary": number}) for number in range(8)])
        files.flip(store.path / "00000001.segment", 3 * stride(9000) + HEADER_BYTES + 7)
        ids = [*(an_id(number) for number in range(9)), an_id(0), an_id(1, salt=b"x")]
        into = [bytearray(b"\xff" * (100 if number == 5 else 9000)) for number in range(len(ids))]
        found = store.get_many(ids, into)
        names = ["OK", "OK", "OK", "INTEGRITY", "OK", "LAYOUT", "OK", "OK", "MISS", "OK", "SALT"]
        assert [one.verdict.name for one in found] == names
        for number, (one, buffer) in enumerate(zip(found, into, strict=True)):
            if one.verdict is Verdict.OK:
                assert buffer == bytes([number % 9 + 1]) * 9000
                assert one.meta == {"boundary": number % 9}
            else:
                assert set(buffer) == ({0} if one.verdict is Verdict.INTEGRITY else {255})
        assert store.get_many([], []) == []
        assert store._directory.table.fields("pins").max() == 0


def test_more_readers_than_a_slot_counts_wait_for_their_turn() -> None:
    files, _ = stored()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        (name,) = store._directory.names([an_id()])
        held = [store._directory.open([name], 0)[0] for _ in range(255)]
        assert store._directory.open([name], 0) == [None]
        answers: list[tuple[Verdict, bytes]] = []
        waiting = threading.Thread(target=lambda: answers.append(read(store, an_id())))
        waiting.start()
        with store._readable:
            store._directory.close([held.pop()], [None])  # type: ignore[list-item]
            store._readable.notify_all()
        waiting.join()
        assert answers == [(Verdict.OK, PAYLOAD)]


@pytest.mark.parametrize("operation", ["write", "sync", "sync_directory"])
def test_an_interrupted_put_leaves_nothing_behind(operation: str) -> None:
    class Interrupted(FaultyFiles):
        armed = False

        def _changes(self, name: str, path: Path) -> None:
            super()._changes(name, path)
            if self.armed and name == operation:
                self.armed = False
                raise KeyboardInterrupt

    files = Interrupted()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        before, names = store.usage(), files.list_directory(store.path)
        files.armed = True
        with pytest.raises(KeyboardInterrupt):
            store.put_many([Item(an_id(number), PAYLOAD) for number in range(3)])
        assert store.usage() == before
        assert files.list_directory(store.path) == names
        assert store._directory.table.count_by_state()["quarantined"] == 0
        assert store.put_many([Item(an_id(number), PAYLOAD) for number in range(3)]) == 3


def test_who_is_interrupted_while_he_waits_is_not_written_afterwards() -> None:
    class Impatient:
        """A lock; whoever waits for it is interrupted."""

        def __enter__(self) -> None:
            raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None: ...

    with LocalStore(ROOT, NAMESPACE, FaultyFiles()) as store:
        writer, store._writer = store._writer, Impatient()  # type: ignore[assignment]
        rows = bytearray(PAYLOAD)
        with pytest.raises(KeyboardInterrupt):
            store.put(an_id(0), rows, meta={})
        rows[:] = bytes(len(rows))  # they are the caller's again
        store._writer = writer
        assert store.put_many([Item(an_id(1), PAYLOAD)]) == 1
        assert store.contains([an_id(0), an_id(1)]).tolist() == [False, True]


def test_who_is_interrupted_while_another_writes_for_him_has_his_payload_back_only_then() -> None:
    """Rows that change while they are written would cost all of the group after a crash."""

    class Gate(FaultyFiles):
        opened, entered = threading.Event(), threading.Event()

        def write(self, handle: int, buffers: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
            if self.handles[handle][0].suffix == ".segment":
                self.entered.set()
                self.opened.wait()
            super().write(handle, buffers, offset)

    files = Gate()
    with LocalStore(ROOT, NAMESPACE, files) as store:
        writer, rows, acknowledged = store._writer, bytearray(PAYLOAD), []
        other = threading.Thread(target=lambda: acknowledged.append(store.put_many([Item(an_id(1), PAYLOAD)])))

        class Interrupted:
            """The lock; the first who waits for it is interrupted while another one writes for him."""

            first = True

            def __enter__(self) -> None:
                if threading.current_thread() is not other and self.first:
                    self.first = False
                    other.start()
                    files.entered.wait()
                    raise KeyboardInterrupt
                if threading.current_thread() is not other:
                    files.opened.set()
                writer.acquire()

            def __exit__(self, *_: object) -> None:
                writer.release()

        store._writer = Interrupted()  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            store.put(an_id(0), rows, meta={})
        rows[:] = bytes(len(rows))
        files.opened.set()
        other.join()
        store._writer = writer
        assert acknowledged == [1]
        with LocalStore(ROOT, NAMESPACE, files.killed()) as after:
            assert read(after, an_id(1)) == (Verdict.OK, PAYLOAD)


def test_puts_that_wait_share_a_sync_and_one_failure_does_not_spread() -> None:
    class Gate(FaultyFiles):
        opened, entered = threading.Event(), threading.Event()

        def sync(self, handle: int) -> None:
            if self.handles[handle][0].suffix == ".segment":
                self.entered.set()
                self.opened.wait()
            super().sync(handle)

    files = Gate()
    with LocalStore(ROOT, NAMESPACE, files, budget_bytes=5 * stride(len(PAYLOAD))) as store:
        outcomes: dict[str, object] = {}

        def put(name: str, *numbers: int) -> None:
            try:
                outcomes[name] = store.put_many([Item(an_id(number), PAYLOAD) for number in numbers])
            except StoreFull:
                outcomes[name] = "full"

        first = threading.Thread(target=put, args=("first", 0))
        first.start()
        files.entered.wait()
        before = len(files.operations)
        calls = {"a": (1,), "b": (2, 3, 4, 5, 6, 7), "c": (2, 3), "d": (1,)}
        waiting = []
        for name, numbers in calls.items():
            waiting.append(threading.Thread(target=put, args=(name, *numbers)))
            waiting[-1].start()
            while len(store._puts._waiting) < len(waiting):
                pass
        files.opened.set()
        for thread in (first, *waiting):
            thread.join()
        assert outcomes == {"first": 1, "a": 1, "b": "full", "c": 2, "d": 0}
        own = [name for name, path in files.operations[before:] if path.endswith(".segment")]
        assert own.count("write") == 1, "one write for all who waited; the first one's came before"
        assert store.usage().objects == 4


def test_a_new_directory_is_made_with_all_above_it(tmp_path: Path) -> None:
    with LocalStore(tmp_path / "a" / "b", NAMESPACE) as store:
        store.put(an_id(), PAYLOAD, meta={})
    with LocalStore(tmp_path / "a" / "b", NAMESPACE) as store:
        assert read(store, an_id()) == (Verdict.OK, PAYLOAD)


@pytest.mark.parametrize("what", ["lock file", "file while it was open"])
def test_what_was_removed_underneath_takes_nothing_more(what: str, tmp_path: Path) -> None:
    """Bytes in a file without a name are gone with the process, so no put into it may be acknowledged."""
    with LocalStore(tmp_path, NAMESPACE) as store:
        store.put(an_id(1), PAYLOAD, meta={})
        shutil.rmtree(store.path) if what == "lock file" else (store.path / "00000001.segment").unlink()
        assert read(store, an_id(1)) == (Verdict.OK, PAYLOAD)  # what is open can still be read
        with pytest.raises(StoreFailed, match=rf"somebody removed (its|the) {what}"):
            store.put(an_id(2), PAYLOAD, meta={})
        assert read(store, an_id(2))[0] is Verdict.MISS


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda store: LocalStore(ROOT, "model"), "namespace is a str; give Namespace.of"),  # type: ignore[arg-type]
        (lambda store: LocalStore(None, NAMESPACE), "directory=None; give the store's folder"),  # type: ignore[arg-type]
        (lambda store: store.delete(an_id()), "ids is an ObjectId; give a list of ObjectId"),
        (lambda store: store.contains(an_id()), "ids is an ObjectId; give a list of ObjectId"),
        (lambda store: store.delete([an_id().key]), "one of the ids is a bytes; give an ObjectId"),
        (lambda store: store.get(None, bytearray(8)), "one of the ids is None; give an ObjectId"),
        (lambda store: store.put(an_id().key, PAYLOAD, meta={}), "one of the ids is a bytes; give an ObjectId"),
        (lambda store: store.put_many(Item(an_id(), PAYLOAD)), "items is an Item; give a list of Item"),
        (lambda store: store.put_many([(an_id(), PAYLOAD)]), "one of the items is a tuple; give an Item"),
        (lambda store: ObjectId("compressed_kv", "k" * 32), "a content key is a str; give one of Keys.digests"),  # type: ignore[arg-type]
    ],
)
def test_what_is_of_another_type_is_told_by_name(call: Callable[[Any], object], says: str) -> None:
    with LocalStore(ROOT, NAMESPACE, FaultyFiles()) as store:
        store.put(an_id(), PAYLOAD, meta={})
        with pytest.raises(TypeError, match=re.escape(says)):
            call(store)
        assert read(store, an_id())[0] is Verdict.OK
