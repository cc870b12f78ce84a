"""A file layer in memory that fails on demand: power cuts and kills at any operation, errors, flipped bits.

`FaultyFiles` keeps what is *visible* (page cache, names as they are now) apart from what is *durable* (what `sync` and
`sync_directory` have made safe). A power cut starts from what is durable and lets any part of the rest survive, in any
order: writes by blocks of 4096 bytes, truncations, and new, renamed and removed names each for itself.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvfsm.runtime.stores.files import address
from kvfsm.runtime.stores.store import StoreLocked

BLOCK = 4096


class PowerCut(BaseException):
    """The machine stops here. Not an Exception: nothing that handles errors may run on."""


@dataclass(slots=True)
class Inode:
    visible: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes] | int] = field(default_factory=list)  # (offset, bytes), or a size to cut to

    def write(self, offset: int, data: bytes) -> None:
        apply(self.visible, (offset, data))
        starts = range(offset, offset + len(data), BLOCK)
        self.pending += [(start, data[start - offset : start - offset + BLOCK]) for start in starts]

    def truncate(self, size: int) -> None:
        apply(self.visible, size)
        self.pending.append(size)

    def sync(self) -> None:
        for change in self.pending:
            apply(self.durable, change)
        self.pending.clear()


def apply(data: bytearray, change: tuple[int, bytes] | int) -> None:
    if isinstance(change, int):
        del data[change:]
        data.extend(bytes(change - len(data)))
        return
    offset, new = change
    data.extend(bytes(max(0, offset + len(new) - len(data))))
    data[offset : offset + len(new)] = new


# Which of so many unsynced changes survive a power cut, as booleans.
Survival = Callable[[int], list[bool]]


def nothing(count: int) -> list[bool]:
    return [False] * count


def everything(count: int) -> list[bool]:
    return [True] * count


def some(seed: int) -> Survival:
    chance = random.Random(seed)
    return lambda count: [chance.random() < 0.5 for _ in range(count)]


def all_but_first(count: int) -> list[bool]:
    return [number > 0 for number in range(count)]


def all_but_last(count: int) -> list[bool]:
    return [number < count - 1 for number in range(count)]


class FaultyFiles:
    """`Files` in memory. ``operations`` lists every call that changes something, in order, as (name, path)."""

    def __init__(self) -> None:
        self.names: dict[Path, Inode] = {}
        self.durable_names: dict[Path, Inode] = {}
        self.pending_names: list[tuple[Path, Inode | None]] = []
        self.directories: set[Path] = set()
        self.handles: dict[int, tuple[Path, Inode]] = {}
        self.locks: dict[Path, str] = {}
        self.operations: list[tuple[str, str]] = []
        self.cut_before: int | None = None  # number of the operation at which the power goes
        self.errors: dict[int, int] = {}  # number of an operation -> errno it raises
        self.always: dict[str, int] = {}  # name of an operation -> errno it always raises
        self.capacity: int | None = None  # bytes of all files; a write past it is short and fails
        self.forgets = False  # a sync that fails drops what it was to write, and the next one says that all is well
        self.reads = 0
        self.read_errors: dict[int, int] = {}  # number of a read, from 0 -> errno it raises
        self.direct = True  # whether files can be opened for direct reads
        self.cached = False  # whether these go through the page cache, and so take any address
        self.direct_reads = 0
        self.dead = False
        self._next_handle = 3

    # Faults.

    def power_cut(self, survives: Survival) -> FaultyFiles:
        """The machine after a power cut, as a new layer. ``survives`` chooses among the unsynced changes."""
        after = FaultyFiles()
        after.directories = set(self.directories)
        kept = survives(len(self.pending_names))
        names = dict(self.durable_names)
        for (path, inode), keep in zip(self.pending_names, kept, strict=True):
            if keep and inode is None:
                names.pop(path, None)
            elif keep and inode is not None:
                names[path] = inode
        inodes: dict[int, Inode] = {}
        for path, inode in names.items():
            if id(inode) not in inodes:
                data = bytearray(inode.durable)
                for change, keep in zip(inode.pending, survives(len(inode.pending)), strict=True):
                    if keep:
                        apply(data, change)
                inodes[id(inode)] = Inode(bytearray(data), bytearray(data))
            after.names[path] = inodes[id(inode)]
        after.durable_names = dict(after.names)
        return after

    def killed(self) -> FaultyFiles:
        """The machine after the process alone was killed: everything visible stays, unsynced as it was."""
        after = FaultyFiles()
        after.directories, after.names = set(self.directories), dict(self.names)
        after.durable_names, after.pending_names = dict(self.durable_names), list(self.pending_names)
        return after

    def flip(self, path: Path, offset: int, bit: int = 0) -> None:
        """Change one bit at rest."""
        for data in (self.names[path].visible, self.names[path].durable):
            data[offset] ^= 1 << bit

    def shorten(self, path: Path, size: int) -> None:
        """Lose the end of a file at rest."""
        for data in (self.names[path].visible, self.names[path].durable):
            del data[size:]

    def _changes(self, name: str, path: Path) -> None:
        number = len(self.operations)
        if self.dead or (self.cut_before is not None and number >= self.cut_before):
            self.dead = True
            raise PowerCut(f"before operation {number}: {name} {path.name}")
        self.operations.append((name, path.name))
        code = self.errors.get(number, self.always.get(name))
        if code is not None:
            raise OSError(code, errno.errorcode[code])

    # The protocol.

    def make_directory(self, path: Path) -> None:
        self._changes("make_directory", path)
        self.directories.add(path)

    def list_directory(self, path: Path) -> list[str]:
        self._alive()
        return sorted(name.name for name in self.names if name.parent == path)

    def open(self, path: Path, *, write: bool) -> int:
        self._alive()
        if path not in self.names:
            if not write:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            self._changes("create", path)
            self.names[path] = Inode()
            self.pending_names.append((path, self.names[path]))
        if "open" in self.always:
            raise OSError(self.always["open"], errno.errorcode[self.always["open"]])
        self._next_handle += 1
        self.handles[self._next_handle] = (path, self.names[path])
        return self._next_handle

    def size(self, handle: int) -> int:
        return len(self.handles[handle][1].visible)

    def read(self, handle: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        self._alive()
        if "read" in self.always:
            raise OSError(self.always["read"], errno.errorcode[self.always["read"]])
        self.reads += 1
        if (code := self.read_errors.get(self.reads - 1)) is not None:
            raise OSError(code, errno.errorcode[code])
        data, done = self.handles[handle][1].visible, 0
        for buffer in buffers:
            piece = data[offset + done : offset + done + len(buffer)]
            memoryview(buffer)[: len(piece)] = piece
            done += len(piece)
        return done

    def open_direct(self, path: Path) -> int:
        self._alive()
        if not self.direct:
            raise OSError(errno.EINVAL, "invalid argument", str(path))
        return self.open(path, write=False)

    def read_direct(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        """As a disk that asks for whole blocks."""
        sound = [not address(one) % BLOCK and not len(one) % BLOCK for one in buffers]
        if not self.cached and (offset % BLOCK or not all(sound)):
            raise OSError(errno.EINVAL, "invalid argument", str(self.handles[handle][0]))
        self.direct_reads += 1
        return self.read(handle, buffers, offset)

    def write(self, handle: int, buffers: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        path, inode = self.handles[handle]
        data = b"".join(buffers)
        number = len(self.operations)
        try:
            self._changes("write", path)
        except OSError:
            inode.write(offset, data[: (number % 4) * len(data) // 4])  # a failing write leaves any part behind
            raise
        used = sum(len(inode.visible) for inode in set_of(self.names))
        there = max(0, len(inode.visible) - offset)  # bytes that are written over need no room
        room = len(data) if self.capacity is None else self.capacity - used + there
        if room < len(data):
            inode.write(offset, data[: max(0, room)])
            raise OSError(errno.ENOSPC, "no space left on device")
        inode.write(offset, data)

    def truncate(self, handle: int, size: int) -> None:
        path, inode = self.handles[handle]
        self._changes("truncate", path)
        inode.truncate(size)

    def sync(self, handle: int) -> None:
        path, inode = self.handles[handle]
        try:
            self._changes("sync", path)
        except OSError:
            if self.forgets:
                inode.pending.clear()
            raise
        inode.sync()

    def close(self, handle: int) -> None:
        path, _ = self.handles.pop(handle)
        if path.name == "lock":
            self.locks.pop(path, None)

    def rename(self, source: Path, target: Path) -> None:
        self._changes("rename", target)
        inode = self.names.pop(source)
        self.names[target] = inode
        self.pending_names += [(source, None), (target, inode)]

    def unlink(self, path: Path) -> None:
        self._changes("unlink", path)
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        del self.names[path]
        self.pending_names.append((path, None))

    def sync_directory(self, path: Path) -> None:
        self._changes("sync_directory", path)
        later = []
        for name, inode in self.pending_names:
            if name.parent != path:
                later.append((name, inode))
            elif inode is None:
                self.durable_names.pop(name, None)
            else:
                self.durable_names[name] = inode
        self.pending_names = later

    def lock(self, path: Path, holder: str) -> int:
        self._alive()
        if path in self.locks:
            raise StoreLocked(f"{path.parent} is in use by {self.locks[path]}")
        self.names.setdefault(path, Inode())
        self.locks[path] = holder
        self._next_handle += 1
        self.handles[self._next_handle] = (path, self.names[path])
        return self._next_handle

    def holds(self, handle: int) -> bool:
        path, inode = self.handles[handle]
        return self.names.get(path) is inode

    def _alive(self) -> None:
        if self.dead:
            raise PowerCut("the machine is off")


def set_of(names: dict[Path, Inode]) -> list[Inode]:
    return list({id(inode): inode for inode in names.values()}.values())
