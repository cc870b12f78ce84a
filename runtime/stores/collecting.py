"""How a local store frees bytes: what lives is copied out of files that hold garbage, and then these are removed.

Over its budget a store makes room in three steps, each only as far as the one before did not suffice: files in which
nothing lives go; objects go, in the order of the spec's ``eviction:``; files with much garbage are written anew. A
crash at any point loses nothing that lives: copies are durable before a file goes, and files go oldest first as far as
it matters. Eviction itself writes nothing; what it took is found again at the next opening if its file is still there.
Callers hold the writer lock.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from .directory import Directory
from .format import Header
from .records import Records
from .segments import Segment, Segments

_COPY_BYTES = 16 << 20  # what is copied under one sync


class Collector:
    """Frees the bytes of one store.

    Args:
        log: its files.
        records: reads and writes them.
        directory: its objects.
        lock: guards the directory; not held over file operations.

    Attributes:
        evicted: objects that had to go so far.
    """

    def __init__(self, log: Segments, records: Records, directory: Directory, lock: threading.Lock) -> None:
        self._log, self._records, self._directory, self._lock = log, records, directory, lock
        self.evicted = 0

    def make_room(self, most: int, spared: Collection[bytes], epoch: int) -> None:
        """Bring the files down to ``most`` bytes, if what is being read and what is ``spared`` let it.

        If objects have to go, as many bytes more go with them as one file holds, so that files are seldom written anew.
        If too few may go, none does.

        Raises:
            OSError, StoreFailed: a file could not be copied or removed; nothing that lives is lost.

        """
        self.drop_dead()
        if self._log.file_bytes <= most:
            return
        with self._lock:
            over = self._directory.live_bytes() - most
            if over > 0:
                self.evicted += self._directory.evict(over + self._log.segment_bytes, spared, least=over)
        self.drop_dead()
        while self._log.file_bytes > most and (segment := self._most_garbage()) is not None:
            self._rewrite(segment, epoch)

    def evict(self, most: int) -> int:
        """Evict until the objects that live take ``most`` bytes at most. Returns how many went."""
        with self._lock:
            evicted = self._directory.evict(self._directory.live_bytes() - most, ())
        self.evicted += evicted
        return evicted

    def drop_dead(self) -> None:
        """Remove files in which nothing is alive; costs no copying. Tombstones must outlive what they bury."""
        with self._lock:
            self._directory.sweep()
            live = self._directory.live_bytes_by_segment()
            dead = [s for s in self._log.by_number.values() if s.size and not s.tombstones and s.number not in live]
        for segment in dead:
            try:
                self._log.remove(segment)
            except OSError:
                return  # then there is no more room than before, and who wants it hears so

    def verify_all(self, epoch: int) -> None:
        """Read every object; those that are damaged are condemned."""
        with self._lock:
            slots = self._directory.live().tolist()
        for slot in slots:
            self._salvage(slot, epoch)

    def compact(self, epoch: int) -> int:
        """Copy what is alive out of all files with garbage and remove them. Returns how many corrupt objects it met.

        Files in which nothing lives go first, and the others one by one: on a full disk these make room for the copies.
        """
        self.drop_dead()
        corrupt = 0
        while (segment := self._most_garbage()) is not None:
            corrupt += self._rewrite(segment, epoch)
        return corrupt

    def _most_garbage(self) -> Segment | None:
        """The file that frees the most when it is written anew; None when no file holds garbage.

        One with tombstones is left until no older file has garbage, for that may be what they bury; and each removal is
        durable before the next one.
        """
        with self._lock:
            segments = sorted(self._log.by_number.values(), key=lambda segment: segment.number)
            live = self._directory.live_bytes_by_segment()
            garbage = [segment.size - live.get(segment.number, 0) for segment in segments]
        candidates = [
            (freed, -segment.number, segment)
            for place, (segment, freed) in enumerate(zip(segments, garbage, strict=True))
            if freed > 0 and not (segment.tombstones and any(garbage[:place]))
        ]
        return max(candidates)[2] if candidates else None

    def _rewrite(self, segment: Segment, epoch: int) -> int:
        """Copy what is alive out of a file and remove it. Returns how many corrupt objects it met."""
        corrupt = 0
        with self._lock:
            slots = self._directory.live(segment.number).tolist()
        segment.appendable = False
        batch: list[tuple[int, Header, bytearray]] = []
        for slot in slots:
            salvaged = self._salvage(slot, epoch)
            if salvaged is None:
                corrupt += 1
                continue
            batch.append((slot, *salvaged))
            if sum(header.stride for _, header, _ in batch) >= _COPY_BYTES:
                self._copy(batch)
                batch = []
        self._copy(batch)
        self._log.remove(segment)
        return corrupt

    def _salvage(self, slot: int, epoch: int) -> tuple[Header, bytearray] | None:
        """One durable object's record, or None, and the object is condemned."""
        with self._lock:
            name, number, offset, payload_bytes = self._directory.place(slot)
        payload = bytearray(payload_bytes)
        segment, identity = self._log.by_number[number], self._directory.parts(name)
        header = self._records.read(segment, offset, identity, epoch, memoryview(payload))
        if isinstance(header, Header):
            return header, payload
        with self._lock:
            self._directory.condemn(slot, header)
        return None

    def _copy(self, batch: Sequence[tuple[int, Header, bytearray]]) -> None:
        if not batch:
            return
        segment, placed = self._records.append([header for _, header, _ in batch], [payload for *_, payload in batch])
        with self._lock:
            for (slot, *_), header in zip(batch, placed, strict=True):
                self._directory.move(slot, segment.number, header.offset)
