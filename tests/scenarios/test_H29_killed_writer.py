"""H-29: a block is visible exactly when its publication was completed; what a killed writer leaves is swept.

A put is a group of records in a file, and its last byte completes it: until then all its blocks are misses, those that
are whole included. After it, and without a farewell, they are there. A bit that flips at rest makes a miss.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvfsm.runtime.profile_plan import GroupPlan, PartPlan
from kvfsm.runtime.stores import records
from kvfsm.runtime.stores.files import TEMPORARY, Bytes, RealFiles
from kvfsm.runtime.stores.format import HEADER_BYTES
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Namespace, Verdict

KV, BLOCK_BYTES = "compressed_kv", 16384
RECORD = HEADER_BYTES + BLOCK_BYTES


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Mortal(RealFiles):
    """Files of a process that is killed ``left`` bytes after a write began; then nothing happens any more."""

    left: int | None = None
    dead: bool = False
    handles: list[int] = field(default_factory=list)

    def write(self, handle: int, buffers: Sequence[Bytes], offset: int) -> None:
        self._live()
        if self.left is not None:
            super().write(handle, [b"".join(buffers)[: self.left]], offset)
            self.dead = True
            self._live()
        super().write(handle, buffers, offset)

    def truncate(self, handle: int, size: int) -> None:
        self._live()
        super().truncate(handle, size)

    def unlink(self, path: Path) -> None:
        self._live()
        super().unlink(path)

    def open(self, path: Path, *, write: bool) -> int:
        self.handles.append(super().open(path, write=write))
        return self.handles[-1]

    def close(self, handle: int) -> None:
        self.handles.remove(handle)
        super().close(handle)

    def lock(self, path: Path, holder: str) -> int:
        self.handles.append(super().lock(path, holder))
        return self.handles[-1]

    def kill(self) -> None:
        """The system closes what the process had open, the lock included."""
        self.dead = True
        while self.handles:
            os.close(self.handles.pop())

    def _live(self) -> None:
        if self.dead:
            raise Killed


Open = Callable[..., tuple[Any, LocalStore, Any]]


@pytest.fixture
def running(bench: Any, tmp_path: Path) -> Iterator[Open]:
    """A process: a manager over the store in the test's folder, and keys of a prompt of two blocks."""
    parts = (PartPlan("rows", 16, (BLOCK_BYTES // 16,), "uint8", "tag"),)
    profile = bench.profile(16, GroupPlan("full", KV, (0,), parts, 1, 16))
    namespace = Namespace.of(profile)
    stores = []

    def begun(files: RealFiles | None = None) -> tuple[Any, LocalStore, Any]:
        store = LocalStore(tmp_path, namespace, files)
        stores.append((store, files))
        manager = bench.manager(profile, 2, store=store)
        return manager, store, manager.keys(bench.tokens(33))

    yield begun
    for store, files in stores:
        if files is None:
            store.close()


def found_after(bench: Any, running: Open, lookup: int, loaded: int, verdicts: set[Verdict]) -> None:
    """Restart: what is matched and loaded (tokens), the verdict on each block, and what is left after the sweep."""
    manager, store, keys = running()
    answer = manager.match(keys)
    assert answer.length == lookup
    if answer.plan is not None:
        answer = manager.load(answer.plan)
        if answer.plan is not None:  # without what did not verify
            answer = manager.load(answer.plan)
    # sign of the defect: a block that was cut or flipped is served
    assert answer.now == loaded
    if loaded:
        with manager.acquire(answer) as lease:
            for place, row in enumerate(lease.view(KV, "rows", 0)):
                assert hashlib.sha256(row).digest() == hashlib.sha256(bytes([place + 1]) * BLOCK_BYTES).digest()
    names = manager.object_of(keys.digests, keys.salt, KV, manager.core.places(KV, 2))
    into = [bytearray(BLOCK_BYTES) for _ in names]
    assert {found.verdict for found in store.get_many(names, into)} == verdicts
    store.collect()
    left = [path for path in store.path.iterdir() if path.name.endswith(TEMPORARY)]
    sizes = sum(path.stat().st_size for path in store.path.glob("*.segment"))
    usage = store.usage()
    assert left == [] and sizes == usage.file_bytes == usage.bytes == loaded // 16 * RECORD
    bench.audited(manager)


def put(bench: Any, manager: Any, keys: Any) -> None:
    fill = manager.reserve(keys, 0, 2)
    view = fill.view(KV, "rows", 0)
    view[0], view[1] = 1, 2
    manager.publish(fill)


@pytest.mark.parametrize("left", [HEADER_BYTES + 5000, 2 * RECORD - 1])
def test_H29_before_its_publication_is_complete_a_block_is_a_miss(bench: Any, running: Open, left: int) -> None:
    files = Mortal()
    manager, store, keys = running(files)
    files.left = left  # 5000 bytes of the first block; or all of it, and the publication lacks its last byte
    with pytest.raises(Killed):
        put(bench, manager, keys)
    (store.path / f"state.json{TEMPORARY}").write_bytes(b"half a state")
    files.kill()
    found_after(bench, running, lookup=0, loaded=0, verdicts={Verdict.MISS})


def test_H29_after_it_the_block_is_there_with_its_bytes(bench: Any, running: Open) -> None:
    files = Mortal()
    manager, _, keys = running(files)
    put(bench, manager, keys)
    files.kill()
    found_after(bench, running, lookup=32, loaded=32, verdicts={Verdict.OK})


def flipped(bench: Any, running: Open) -> None:
    manager, store, keys = running()
    put(bench, manager, keys)
    store.close()
    (path,) = store.path.glob("*.segment")
    data = bytearray(path.read_bytes())
    data[RECORD + HEADER_BYTES + 9] ^= 4  # in the second block
    path.write_bytes(data)
    found_after(bench, running, lookup=32, loaded=16, verdicts={Verdict.OK, Verdict.INTEGRITY})


def test_H29_a_bit_that_flips_at_rest_makes_a_miss(bench: Any, running: Open) -> None:
    flipped(bench, running)


def test_H29_control_a_block_that_is_not_verified_is_noticed(
    bench: Any, running: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "payload_fits", lambda payload, expected: True)
    with pytest.raises(AssertionError, match="32 == 16"):
        flipped(bench, running)
