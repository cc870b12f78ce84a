"""Append-only files of records, written in groups that are synced once, and what is left of them after a crash.

    00000001.segment    record | record | record ...      every record starts at a multiple of 4096

A *group* is what one sync makes durable. Groups are numbered, and one is begun only when all before it are synced; so
after a crash only the newest is in doubt: `settle` keeps it if it is whole, byte for byte, and cuts it off otherwise.
Names, epochs and verdicts of objects belong to ``local.py``. Writers call under one lock; reading needs none.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .files import Bytes, Files
from .format import ALIGNMENT, HEADER_BYTES, Header, Record, checksum, parse
from .store import StoreFailed, Verdict

SUFFIX = ".segment"


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes [start, stop) of a segment that hold no record, and what is wrong with them."""

    start: int
    stop: int
    verdict: Verdict


@dataclass(slots=True)
class Segment:
    """One open file. ``size`` is where the next record goes; ``readers`` keep the handle open after ``removed``."""

    number: int
    path: Path
    handle: int
    size: int
    name_durable: bool
    tombstones: bool = False
    appendable: bool = True
    readers: int = 0
    removed: bool = False
    direct: int | None = None  # a handle of its own for direct reads; None: there are none


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the log was known to be durable when the state file was written: the last group, and where it ends."""

    group: int = 0
    segment: int = 0
    size: int = 0


@dataclass(slots=True)
class Scan:
    """What lies in one segment."""

    segment: Segment
    headers: list[Header] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)

    def end(self, group: int, namespace: bytes) -> int:
        """Where the last record of our groups up to ``group`` ends."""
        mine = [h for h in self.headers if h.stamp_namespace == namespace and h.group <= group]
        return max((h.offset + h.stride for h in mine), default=0)


class Segments:
    """The segment files of one directory."""

    def __init__(self, directory: Path, files: Files, segment_bytes: int, direct: bool = False) -> None:
        """No files yet: `open_all` finds those that exist. ``direct``: they can be read past the page cache, too."""
        self.directory = directory
        self.files = files
        self.segment_bytes = segment_bytes
        self.direct = direct
        self.by_number: dict[int, Segment] = {}
        self.last_group = 0  # greatest number that was given to a group
        self._durable_group = 0
        self._readers_lock = threading.Lock()
        self.broken: str | None = None  # why nothing more may be written
        self._next_number = 1

    @property
    def file_bytes(self) -> int:
        """Bytes of all segment files; any thread may ask while others come and go."""
        return sum(segment.size for segment in tuple(self.by_number.values()))

    def open_all(self) -> list[Scan]:
        """Open and scan the files that exist, in the order of their numbers. Their names must be durable."""
        scans = []
        for name in self.files.list_directory(self.directory):
            number = segment_number(name)
            if number is None:
                continue
            segment = self._opened(number, name_durable=True)
            self._next_number = max(self._next_number, number + 1)
            scans.append(scan(self.files, segment))
            segment.tombstones = any(header.record is Record.TOMBSTONES for header in scans[-1].headers)
        return scans

    def settle(self, scans: Sequence[Scan], namespace: bytes, mark: Mark) -> None:
        """Decide about what a crash left: keep the newest group, durably, or cut it off; remove bytes past the end."""
        top, last = newest_group(scans, namespace)
        self.last_group = self._durable_group = max(top, mark.group)
        self._next_number = max(self._next_number, mark.segment + 1)
        if last is not None and top > mark.group:
            if is_whole(self.files, last, namespace, top):
                # The process may have been killed between writing and syncing: served only once it is durable. It is
                # written anew, because after a sync that failed the system may take bytes for synced that are not.
                rewrite(self.files, last, namespace, top)
                self.files.sync(last.segment.handle)
            else:
                self._cut(last, last.end(top - 1, namespace), mark)
        active = last.segment.number if last is not None else mark.segment
        for scanned in scans:
            foreign = any(header.stamp_namespace != namespace for header in scanned.headers)
            if scanned.segment.number >= active and not foreign:
                self._cut(scanned, scanned.end(self.last_group, namespace), mark)
            # A record that lost its end would hide what is written over it.
            scanned.segment.appendable = all(is_all_there(scanned.segment, header) for header in scanned.headers)
            if scanned.segment.appendable:
                scanned.segment.size += -scanned.segment.size % ALIGNMENT

    def reserve(self, size: int) -> tuple[Segment, int]:
        """The segment and offset at which a group of ``size`` bytes will be written."""
        if self.broken is not None:
            raise StoreFailed(f"{self.directory} takes no more writes until it is opened anew: {self.broken}")
        newest = self.by_number[max(self.by_number)] if self.by_number else None
        if newest is not None and newest.appendable and (newest.size == 0 or newest.size + size <= self.segment_bytes):
            return newest, newest.size
        return self.start(), 0

    def start(self) -> Segment:
        """A new, empty segment, which the next group goes to."""
        segment = self._opened(self._next_number, name_durable=False)
        self._next_number += 1
        return segment

    def _opened(self, number: int, *, name_durable: bool) -> Segment:
        """A file with its handles; it is made if it is missing."""
        path = self.directory / segment_name(number)
        segment = Segment(number, path, self.files.open(path, write=True), 0, name_durable=name_durable)
        try:
            segment.size = self.files.size(segment.handle)
            segment.direct = self.files.open_direct(path) if self.direct else None
        except BaseException:
            self.files.close(segment.handle)
            raise
        self.by_number[number] = segment
        return segment

    def _close(self, segment: Segment) -> None:
        self.files.close(segment.handle)
        if segment.direct is not None:
            self.files.close(segment.direct)

    def write(self, segment: Segment, buffers: Sequence[Bytes], size: int) -> None:
        """Write one group at the end of ``segment``; durable when this returns.

        Raises:
            OSError: it was not written, and as far as the disk still obeys nothing of it is left.

        """
        try:
            self.files.write(segment.handle, buffers, segment.size)
            self.files.sync(segment.handle)
            if not segment.name_durable:
                self.files.sync_directory(self.directory)
                segment.name_durable = True
        except BaseException as problem:
            self._roll_back(segment, problem)
            raise
        segment.size += size
        self._durable_group = self.last_group

    def next_group(self) -> int:
        """The number of the group that is written next. Numbers are not used again, failed groups included."""
        self.last_group += 1
        return self.last_group

    def read(self, segment: Segment, offset: int, buffers: Sequence[bytearray | memoryview]) -> int:
        """Fill ``buffers``; fewer bytes at the end of the file."""
        return self.files.read(segment.handle, buffers, offset)

    def read_direct(self, segment: Segment, offset: int, buffers: Sequence[memoryview]) -> int:
        """The same past the page cache, where these files can be read so."""
        assert segment.direct is not None, "the files were not opened for direct reads"
        return self.files.read_direct(segment.direct, buffers, offset)

    def acquire(self, number: int) -> Segment:
        """A segment with one reader more."""
        segment = self.by_number[number]
        with self._readers_lock:
            segment.readers += 1
        return segment

    def release(self, segment: Segment) -> None:
        """One reader less; the last one closes a removed file."""
        with self._readers_lock:
            segment.readers -= 1
            last = segment.removed and not segment.readers
        if last:
            self._close(segment)

    def remove(self, segment: Segment) -> None:
        """Take a file out of the directory, durably; open reads go on. After an error it can be called again."""
        with contextlib.suppress(FileNotFoundError):  # it is gone already, and that is to be made durable
            self.files.unlink(segment.path)
        self.files.sync_directory(self.directory)
        del self.by_number[segment.number]
        self._retire(segment)

    def close(self) -> None:
        """Close all files that nobody reads; readers close theirs."""
        for segment in self.by_number.values():
            self._retire(segment)
        self.by_number.clear()

    def mark(self) -> Mark:
        """How far the log is durable now."""
        if not self.by_number:
            return Mark(self._durable_group)
        newest = self.by_number[max(self.by_number)]
        return Mark(self._durable_group, newest.number, newest.size)

    def _retire(self, segment: Segment) -> None:
        with self._readers_lock:
            segment.removed = True
            last = not segment.readers
        if last:
            self._close(segment)

    def _cut(self, scanned: Scan, end: int, mark: Mark) -> None:
        """Cut a segment's leftovers off, or the whole file when nothing else is in it."""
        segment = scanned.segment
        if segment.number == mark.segment:
            end = max(end, mark.size)  # what was durable at the last close is no leftover, whatever it looks like now
        if segment.removed or segment.size < end or (segment.size == end and end > 0):
            return
        if end == 0:
            self.remove(segment)
        else:
            self.files.truncate(segment.handle, end)
            self.files.sync(segment.handle)
            segment.size = end
        scanned.headers = [header for header in scanned.headers if header.offset < end]
        scanned.holes = [hole for hole in scanned.holes if hole.start < end]

    def _roll_back(self, segment: Segment, problem: BaseException) -> None:
        """Take an unfinished group out of its file. Where that fails too, nothing more may be written after it."""
        segment.appendable = False
        try:
            self.files.truncate(segment.handle, segment.size)
            self.files.sync(segment.handle)
        except OSError as second:
            self.broken = f"a write failed ({problem}) and could not be taken back ({second})"
            return
        if segment.size == 0:
            with contextlib.suppress(OSError):  # an empty file does no harm; the next opening removes it
                self.remove(segment)


def segment_name(number: int) -> str:
    """The name of a segment file."""
    return f"{number:08d}{SUFFIX}"


def segment_number(name: str) -> int | None:
    """The number in a segment file's name; None for other files."""
    stem = name.removesuffix(SUFFIX)
    number = int(stem) if stem != name and len(stem) <= 18 and stem.isascii() and stem.isdigit() else None
    return number if number is not None and name == segment_name(number) else None


def newest_group(scans: Sequence[Scan], namespace: bytes) -> tuple[int, Scan | None]:
    """The greatest number of a group of ours, and the segment with it; (0, None) when there is none."""
    mine = [(h.group, s) for s in scans for h in s.headers if h.stamp_namespace == namespace]
    return max(mine, key=lambda pair: (pair[0], pair[1].segment.number), default=(0, None))


def is_whole(files: Files, scanned: Scan, namespace: bytes, group: int) -> bool:
    """Whether every record of the group is there, padding included, and its payload is what was written."""
    records = [h for h in scanned.headers if h.stamp_namespace == namespace and h.group == group]
    if any(h.count != len(records) or h.index != index for index, h in enumerate(records)):
        return False
    segment = scanned.segment
    return all(is_all_there(segment, header) and payload_is_sound(files, segment, header) for header in records)


def rewrite(files: Files, scanned: Scan, namespace: bytes, group: int) -> None:
    """Write the records of a group once more, as they are and where they are."""
    for header in scanned.headers:
        if header.stamp_namespace == namespace and header.group == group:
            record = bytearray(header.stride)
            files.read(scanned.segment.handle, [record], header.offset)
            files.write(scanned.segment.handle, [record], header.offset)


def is_all_there(segment: Segment, header: Header) -> bool:
    """Whether the file goes on to the end of this record; a record ends with its padding."""
    return header.offset + header.stride <= segment.size


def payload_is_sound(files: Files, segment: Segment, header: Header) -> bool:
    """Whether a record's payload is there and is what was written."""
    payload = bytearray(header.payload_bytes)
    if files.read(segment.handle, [payload], header.offset + HEADER_BYTES) < len(payload):
        return False
    return checksum(payload) == header.payload_checksum


def scan(files: Files, segment: Segment) -> Scan:
    """Read all headers of a segment. After damage, the next sound header at a multiple of 4096 is where it goes on."""
    found = Scan(segment)
    hole: Hole | None = None
    for offset, parsed in _blocks(files, segment):
        if isinstance(parsed, Header):
            found.headers.append(parsed)
            hole = None
        elif hole is None:
            hole = Hole(offset, min(offset + ALIGNMENT, segment.size), parsed)
            found.holes.append(hole)
        else:
            hole = Hole(hole.start, min(offset + ALIGNMENT, segment.size), hole.verdict)
            found.holes[-1] = hole
    return found


def _blocks(files: Files, segment: Segment) -> Iterator[tuple[int, Header | Verdict]]:
    block = bytearray(HEADER_BYTES)
    offset = 0
    while offset < segment.size:
        count = files.read(segment.handle, [block], offset)
        parsed = parse(memoryview(block)[:count], offset)
        yield offset, parsed
        offset += parsed.stride if isinstance(parsed, Header) else ALIGNMENT
