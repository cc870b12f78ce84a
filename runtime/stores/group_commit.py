"""Puts that wait at the same time are written as one group, with one sync: which of them fit, and who is told what.

A call is served whole or refused whole, and what one asks too much costs no other one: those that don't fit beside the
others, or whose group the disk refused, are written by themselves. Calls wait under a lock of their own; the rest is
done by whoever holds the writer lock.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..arguments import check_is
from .collecting import Collector
from .directory import Directory, Entry
from .failures import failure
from .format import Record, checksum, digest, parent_key, split_meta, stride
from .records import Records
from .segments import Segments
from .store import EpochEnded, Item, Meta, ObjectId, StoreError, StoreFailed, StoreFull, bytes_of


@dataclass(frozen=True, slots=True)
class Prepared:
    """An item that is ready to be written."""

    name: bytes
    id: ObjectId
    payload: memoryview
    checksum: bytes
    lossy: bool
    boundary: int | None
    extra: Meta
    parent: bytes | None  # name of what stands before it in its chain

    @property
    def bytes(self) -> int:
        """Of its record."""
        return stride(len(self.payload))


@dataclass(slots=True, eq=False)
class Call:
    """One call of `put_many` on its way through a group; ``epoch`` is that of its bytes."""

    items: Sequence[Prepared]
    epoch: int
    done: bool = False
    written: int = 0
    error: Exception | None = field(default=None)


class GroupCommit:
    """The writes of one store.

    Args:
        path: its directory.
        log: its files.
        records: writes them.
        directory: its objects.
        collector: makes room.
        lock: guards the directory; not held over file operations.
        budget_bytes: that the files may take; None: as much as fits.
    """

    def __init__(
        self,
        path: Path,
        log: Segments,
        records: Records,
        directory: Directory,
        collector: Collector,
        lock: threading.Lock,
        budget_bytes: int | None,
    ) -> None:
        self._path, self._log, self._records, self._directory = path, log, records, directory
        self._collector, self._lock, self._budget_bytes = collector, lock, budget_bytes
        self._epoch = 0  # while something is written
        self._waiting: list[Call] = []
        self._waiting_lock = threading.Lock()

    def wait(self, items: Sequence[Item], epoch: int) -> Call:
        """A call that waits from now on, for whoever writes next. ValueError for what can't be stored."""
        call = Call(self._prepared(items), epoch)
        with self._waiting_lock:
            self._waiting.append(call)
        return call

    def withdraw(self, call: Call) -> bool:
        """Whether the call still waited, and so is written no more."""
        with self._waiting_lock:
            if call in self._waiting:
                self._waiting.remove(call)
                return True
        return False

    def write_waiting(self, epoch: int, refusal: StoreError | None) -> None:
        """Write what all who wait by now ask for, and settle each; the caller holds the writer lock.

        Args:
            epoch: the current one.
            refusal: why nothing may be written; None: it may.
        """
        self._epoch = epoch
        group: list[Call] = []
        try:
            with self._waiting_lock:
                group, self._waiting = self._waiting, []
            if refusal is None:
                self._commit(group)
            for call in group:
                if refusal is not None:
                    call.done, call.error = True, refusal
        except BaseException:
            for call in group:  # nobody else will see to them
                if not call.done:
                    call.done, call.error = True, StoreFailed("the writer was interrupted; nothing was kept")
            raise

    def make_room(self, need: int, spared: Collection[bytes], epoch: int) -> str:
        """Bring the files down so far that ``need`` bytes more fit the budget. Returns why that could not be done."""
        assert self._budget_bytes is not None
        try:
            self._collector.make_room(self._budget_bytes - need, spared, epoch)
        except (OSError, StoreFailed) as problem:
            return f"no room could be made: {problem}"
        return "what is left is being read, or is what this would stand behind"

    def _prepared(self, items: Sequence[Item]) -> list[Prepared]:
        prepared = []
        check_is("items", items, Sequence, "a list of Item")
        for item in items:
            check_is("one of the items", item, Item, "an Item")
        names = self._directory.names([item.id for item in items])
        for item, name in zip(items, names, strict=True):
            payload = bytes_of(item.payload)
            if not len(payload):
                raise ValueError(f"an empty payload can't be stored: {item.id.kind} {item.id.key.hex()}")
            lossy, boundary, extra = split_meta(item.meta)
            key = parent_key(extra)
            if key == item.id.key:
                raise ValueError(f"an object can't stand behind itself: {item.id.kind} {key.hex()}")
            parent = None if key is None else self._directory.name(item.id.kind, key, digest(item.id.salt))
            prepared.append(Prepared(name, item.id, payload, checksum(payload), lossy, boundary, extra, parent))
        return prepared

    # Writing; the writer lock is held.

    def _commit(self, calls: Sequence[Call]) -> None:
        """Write what ``calls`` ask for as one group, and settle each of them."""
        with self._lock:
            self._directory.touch(item.name for call in calls for item in call.items)
            chosen, later = self._choose(calls, self._budget_bytes)
        need, why = sum(item.bytes for item in chosen), ""
        if self._budget_bytes is not None and self._log.file_bytes + need > self._budget_bytes:
            items = [item for call in calls for item in call.items]
            spared = {name for item in items for name in (item.name, item.parent) if name is not None}
            why = self.make_room(need, spared, self._epoch)
            together = [call for call in calls if call not in later]
            with self._lock:
                chosen, crowded = self._choose(together, self._budget_bytes - self._log.file_bytes, why)
            later += crowded
        together = [call for call in calls if call not in later]
        self._write_for(together, chosen)
        for call in later:  # it would fit, but not beside the others
            self._commit([call])

    def _choose(self, calls: Sequence[Call], room: int | None, why: str = "") -> tuple[list[Prepared], list[Call]]:
        """Which items are to be written in ``room`` bytes, and the calls that do not fit in beside the others.

        A call that can't be served even by itself gets its error; the others go on.
        """
        chosen: dict[bytes, Prepared] = {}
        later = []
        for call in calls:
            call.written = 0
            if call.epoch != self._epoch:
                call.error = EpochEnded(f"the bytes are of epoch {call.epoch}; now is {self._epoch}")
                continue
            whole = sum({item.name: item.bytes for item in call.items}.values())
            if self._budget_bytes is not None and whole > self._budget_bytes:
                what = f"{whole} bytes are more than the budget of {self._path}, {self._budget_bytes}"
                call.error = StoreFull(f"{what}; give it a greater budget_bytes, or put less at once")
                continue
            trial, own = dict(chosen), set()
            present = self._directory.servable([item.name for item in call.items], self._epoch)
            for item, there in zip(call.items, present, strict=True):
                if there and (item.lossy or not self._directory.is_lossy(item.name)):
                    continue
                if item.name in trial and (item.lossy or not trial[item.name].lossy):
                    continue
                trial[item.name] = item
                own.add(item.name)
            call.written = len(own)
            size = sum(item.bytes for item in trial.values())
            if room is not None and size > room and call.written:
                if len(calls) == 1:
                    size += self._log.file_bytes
                    what = f"{self._path} would take {size} bytes, its budget is {self._budget_bytes}"
                    call.error = StoreFull(f"{what}; {why}")
                else:
                    later.append(call)
                continue
            chosen = trial
        return list(chosen.values()), later

    def _write_for(self, calls: Sequence[Call], chosen: Sequence[Prepared]) -> None:
        """Write the chosen items, and settle the calls that they are of."""
        with self._lock:
            slots = self._directory.begin([i.name for i in chosen], self._epoch, [i.lossy for i in chosen])
        if chosen:
            try:
                entries = self._write_group(chosen)
            except OSError as problem:
                with self._lock:
                    self._directory.fail(slots)
                self._refused_by_disk(calls, problem)
                return
            except StoreFailed as problem:
                with self._lock:
                    self._directory.fail(slots)
                for call in calls:
                    call.done, call.error = True, call.error or problem
                return
            except BaseException:
                with self._lock:
                    self._directory.abandon(slots)
                    if self._log.broken is None:  # the log has taken the bytes back
                        self._directory.quiesce(slots)
                raise
            with self._lock:
                self._directory.finish(slots, entries)
        for call in calls:
            call.done = True

    def _refused_by_disk(self, calls: Sequence[Call], problem: OSError) -> None:
        """Settle a group that the disk refused: a small put must not fail because a big one shared its group."""
        for call in calls:
            if call.error is not None:
                call.done = True
            elif len(calls) > 1:
                self._commit([call])
            else:
                call.done, call.error = True, failure(problem, self._path, "nothing was kept")

    def _write_group(self, items: Sequence[Prepared]) -> list[Entry]:
        headers, payloads = [], []
        for item in items:
            header = self._records.header(
                Record.OBJECT, item.id.kind, item.id.key, digest(item.id.salt), self._epoch, item.payload
            )
            header = replace(header, lossy=item.lossy, boundary=item.boundary, extra=item.extra)
            headers.append(replace(header, payload_checksum=item.checksum))
            payloads.append(item.payload)
        segment, placed = self._records.append(headers, payloads)
        return [self._directory.entry(segment.number, header) for header in placed]
