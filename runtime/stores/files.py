"""The few file operations that a store needs, as a parameter: tests make each of them fail, or let the power go.

`RealFiles` is the operating system. Durability is explicit: bytes are safe after `sync`, names after `sync_directory`;
until then a power cut may keep any part of them, in any order.

Direct reads go past the page cache, in whole blocks and into memory that begins at one. `check_direct` tells whether a
file system really makes them; some open a file for them and read through the cache all the same.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from .store import StoreLocked

Bytes = bytes | bytearray | memoryview
TEMPORARY = ".tmp"  # ending of files that a crash may leave behind; swept at opening
BLOCK_BYTES = 4096
"""What direct reads are made in: the largest block size that common disks ask for."""

_BUFFERS_MAX = 512  # buffers in one call; Linux allows 1024 (IOV_MAX)


class NotDurable(OSError):
    """A file was replaced, but a crash may undo it."""


class Files(Protocol):
    """File operations; all raise OSError, and positions and sizes are in bytes. Handles are plain numbers."""

    def make_directory(self, path: Path) -> None:
        """Make a directory and those above it, durably; one that exists is fine."""
        ...

    def list_directory(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def open(self, path: Path, *, write: bool) -> int:
        """Open for reading, or for reading and writing, and then make the file if it is missing."""
        ...

    def size(self, handle: int) -> int:
        """Length of the file."""
        ...

    def read(self, handle: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        """Fill ``buffers`` from ``offset``; fewer bytes only at the end of the file."""
        ...

    def open_direct(self, path: Path) -> int:
        """Open a file for `read_direct`, and for nothing else. OSError (EINVAL) where the file system has no such."""
        ...

    def read_direct(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        """The same as `read`, past the page cache: offset, lengths and addresses are multiples of ``BLOCK_BYTES``."""
        ...

    def write(self, handle: int, buffers: Sequence[Bytes], offset: int) -> None:
        """Write all of ``buffers`` at ``offset``. After an error any part may have been written."""
        ...

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        ...

    def sync(self, handle: int) -> None:
        """Return when the file's bytes and length are durable; those of a file without a name never are."""
        ...

    def close(self, handle: int) -> None:
        """Close a handle."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Put ``source`` in the place of ``target``, at once."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file's name; open handles go on working."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Return when names made, renamed and removed in ``path`` are durable."""
        ...

    def lock(self, path: Path, holder: str) -> int:
        """Take the lock file for this handle's life and write ``holder`` into it.

        Raises:
            StoreLocked: somebody has it; the message says who.

        """
        ...

    def holds(self, handle: int) -> bool:
        """Whether the lock file of a handle still has its name; else somebody may have made another, and hold that."""
        ...


class RealFiles:
    """The operating system's files (Linux)."""

    def make_directory(self, path: Path) -> None:
        """See `Files`."""
        if not path.is_dir():
            self.make_directory(path.parent)
            path.mkdir(exist_ok=True)
            self.sync_directory(path.parent)

    def list_directory(self, path: Path) -> list[str]:
        """See `Files`."""
        return sorted(os.listdir(path))

    def open(self, path: Path, *, write: bool) -> int:
        """See `Files`."""
        flags = os.O_RDWR | os.O_CREAT if write else os.O_RDONLY
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def size(self, handle: int) -> int:
        """See `Files`."""
        return os.fstat(handle).st_size

    def read(self, handle: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        """See `Files`."""
        left, done = _views(buffers), 0
        while left:
            count = os.preadv(handle, left[:_BUFFERS_MAX], offset + done)
            if count == 0:
                break
            left, done = _skip(left, count), done + count
        return done

    def open_direct(self, path: Path) -> int:
        """See `Files`."""
        return os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)

    def read_direct(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        """See `Files`."""
        left, done = _views(buffers), 0
        while left:
            count = os.preadv(handle, left[:_BUFFERS_MAX], offset + done)
            done += count
            if count % BLOCK_BYTES or not count:  # the file ends here; from within a block nothing can be read
                break
            left = _skip(left, count)
        return done

    def write(self, handle: int, buffers: Sequence[Bytes], offset: int) -> None:
        """See `Files`."""
        left, done = _views(buffers), 0
        while left:
            count = os.pwritev(handle, left[:_BUFFERS_MAX], offset + done)
            if count == 0:
                raise OSError(errno.EIO, "the file takes no more bytes")
            left, done = _skip(left, count), done + count

    def truncate(self, handle: int, size: int) -> None:
        """See `Files`."""
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        """See `Files`."""
        os.fdatasync(handle)  # flushes the length too, when that is needed to read the bytes back (POSIX)
        if not os.fstat(handle).st_nlink:
            raise OSError(errno.ENOENT, "somebody removed the file while it was open")

    def close(self, handle: int) -> None:
        """See `Files`."""
        os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        """See `Files`."""
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        """See `Files`."""
        os.unlink(path)

    def sync_directory(self, path: Path) -> None:
        """See `Files`."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def lock(self, path: Path, holder: str) -> int:
        """See `Files`. The lock is advisory (flock) and ends with the process, however that ends."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            name = holder.encode()
            os.pwrite(handle, name, 0)  # in place: a full disk has room for it where there was a name before
            os.ftruncate(handle, len(name))
        except BlockingIOError as problem:
            owner = os.pread(handle, 4096, 0).decode("utf-8", "replace").strip() or "a process that gave no name"
            os.close(handle)
            raise StoreLocked(f"{path.parent} is in use by {owner}; one writer at a time may open it") from problem
        except BaseException:
            os.close(handle)
            raise
        return handle

    def holds(self, handle: int) -> bool:
        """See `Files`."""
        return os.fstat(handle).st_nlink > 0


def aligned(size: int) -> memoryview:
    """Zeroed memory that begins at a multiple of ``BLOCK_BYTES``: pages of its own."""
    return memoryview(mmap.mmap(-1, size))


def address(buffer: memoryview) -> int:
    """Where the bytes of a buffer begin in memory."""
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def check_direct(files: Files, path: Path) -> None:
    """Read a file that is there, and not empty, past the page cache.

    Raises:
        OSError: that can't be done here; or the file system takes a read that no disk can make, and so makes all of
            them through the page cache (tmpfs), or some (btrfs).

    """
    handle = files.open_direct(path)
    try:
        files.read_direct(handle, [aligned(BLOCK_BYTES)], 0)
        try:
            files.read_direct(handle, [aligned(BLOCK_BYTES)], 1)
        except OSError as problem:
            if problem.errno == errno.EINVAL:
                return
            raise
        raise OSError(errno.EOPNOTSUPP, "the file system reads through the page cache all the same", str(path))
    finally:
        files.close(handle)


def read_file(files: Files, path: Path) -> bytes | None:
    """A small file's bytes; None when it does not exist."""
    try:
        handle = files.open(path, write=False)
    except FileNotFoundError:
        return None
    try:
        data = bytearray(files.size(handle))
        return bytes(data[: files.read(handle, [data], 0)])
    finally:
        files.close(handle)


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """Replace a small file so that after a crash there is the old one or the new one, and after returning the new one.

    Raises:
        NotDurable: the new one is in place, but a crash may bring the old one back.
        OSError: the old one is in place.

    """
    temporary = path.with_name(path.name + TEMPORARY)
    handle = files.open(temporary, write=True)
    try:
        files.truncate(handle, 0)
        files.write(handle, [data], 0)
        files.sync(handle)
    finally:
        files.close(handle)
    files.rename(temporary, path)
    try:
        files.sync_directory(path.parent)
    except OSError as problem:
        raise NotDurable(problem.errno, f"{path.name} was replaced but not synced: {problem.strerror}") from problem


def _views(buffers: Sequence[Bytes]) -> list[memoryview]:
    return [view for view in (memoryview(buffer).cast("B") for buffer in buffers) if len(view)]


def _skip(views: list[memoryview], count: int) -> list[memoryview]:
    """What is left of ``views`` after ``count`` bytes."""
    for number, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[number + 1 :]]
        count -= len(view)
    return []
