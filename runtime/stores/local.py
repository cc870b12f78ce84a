"""Objects on the local disk: crash-safe, verified on every read, one directory for each namespace.

    DIRECTORY/<namespace digest>/namespace.json      for people and for `kvfsm store`
                                 state.json          reset epoch, and how far the log was durable at the last close
                                 lock                held by the one writer
                                 00000001.segment    see segments.py

A put is acknowledged after its bytes, and the name of the file they are in, are synced; puts that several threads make
at the same time share one sync. Killed or cut off from power at any point, the store reopens with every acknowledged
object, nothing torn, and the group that was being written either whole or gone. How puts are put together is in
``group_commit.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ..arguments import check_count, check_is
from ..generated import KINDS, OndiskPrefixTable
from ..layout import round_up
from ..table import Table
from ..trace import EventTrace
from .census import census, current_epoch
from .collecting import Collector
from .directory import Directory, OpenRead
from .failures import failure
from .files import (
    BLOCK_BYTES,
    TEMPORARY,
    Files,
    NotDurable,
    RealFiles,
    address,
    check_direct,
    read_file,
    replace_file,
)
from .format import EPOCH_MAX, FORMAT_VERSION, Header, Record, Stamp, checksum, stride
from .group_commit import GroupCommit
from .records import Records
from .segments import Mark, Segments
from .state import State, read_state
from .store import (
    Found,
    Item,
    Meta,
    Namespace,
    ObjectId,
    Readable,
    StoreClosed,
    StoreFailed,
    Usage,
    Verdict,
    Writable,
    bytes_of,
)
from .tombstones import pack_tombstones

SEGMENT_BYTES = 256 << 20
FILES_MIN = 8
"""Files of a store with a budget, at least: what frees bytes writes one of them anew."""

_RESET_AGAIN = "a reset is not durable; reset again"  # why the log takes no writes, until a reset goes well


@dataclass(frozen=True, slots=True)
class Collected:
    """What `LocalStore.collect` removed."""

    expired: int  # objects of ended epochs, deleted ones, replaced ones
    corrupt: int
    bytes: int  # by which the files shrank
    evicted: int = 0  # objects that could be served and had to go


class LocalStore:
    """A `Store` in a local directory."""

    def __init__(
        self,
        directory: Path | str,
        namespace: Namespace,
        files: Files | None = None,
        *,
        budget_bytes: int | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        trace: EventTrace | None = None,
        kinds: Mapping[str, type[Table]] = KINDS,
        direct: bool = False,
    ) -> None:
        """Open or make the namespace's directory, take its lock, and settle what a crash left.

        Args:
            directory: shared by all namespaces; made if it is missing.
            namespace: what the objects depend on.
            files: the file layer; default: the operating system's.
            budget_bytes: how much all files with objects may take, besides copies while a file is written anew;
                default: as much as fits. What goes for others is up to ``eviction:`` of ondisk_prefix. Where more is
                found than that, opening takes nothing away; the next write does.
            segment_bytes: when to begin another file, at most an eighth of the budget; a group that is larger gets a
                file of its own.
            trace: records each event of the directory's entries, for `kvfsm validate`.
            kinds: table classes by kind, of a package of one's own; of them ``ondisk_prefix`` counts here.
            direct: `get` reads past the page cache (O_DIRECT), into buffers in whole blocks of 4096 bytes; see
                ``io_bytes``. Writes, opening and collecting go through the cache all the same.

        Raises:
            StoreLocked: another writer has it open; the message names it.
            StoreFull, StoreFailed: the directory can't be read or written, or not past the page cache.
            ValueError: a kind or format that can't be stored, a number of bytes that nothing fits into, or an
                ondisk_prefix whose spec lacks an event or a state that the store goes by.
            TypeError: an argument of another type, such as a number of bytes that is no whole number, or another class
                than one of ondisk_prefix.

        """
        if isinstance(directory, bytes) or not isinstance(directory, str | os.PathLike):
            raise TypeError(f"directory={directory!r}; give the store's folder")
        check_is("namespace", namespace, Namespace, "Namespace.of(profile)")
        budget_bytes = None if budget_bytes is None else check_count("budget_bytes", budget_bytes, stride(1))
        segment_bytes = check_count("segment_bytes", segment_bytes, 1)
        if namespace.format != FORMAT_VERSION:
            raise ValueError(f"this version stores format {FORMAT_VERSION}; the namespace asks for {namespace.format}")
        self.namespace = namespace
        self.path = Path(directory) / namespace.digest
        self.budget_bytes = budget_bytes
        self._files: Files = RealFiles() if files is None else files
        self._stamp = Stamp.of(namespace)
        self._lock = threading.Lock()  # guards the directory and the readers' counts; never held over file operations
        recorder = None if trace is None else trace.source("store")
        machine = cast("type[OndiskPrefixTable]", kinds.get("ondisk_prefix", OndiskPrefixTable))
        if getattr(machine, "MACHINE", None) != "ondisk_prefix":
            raise TypeError(f"kinds['ondisk_prefix'] is {machine!r}; give that of the KINDS of a generated package")
        machine.check_stands_for(OndiskPrefixTable)
        self._directory = Directory(tuple(namespace.layouts), recorder=recorder, machine=machine)
        if recorder is not None:
            recorder.watch([self._directory.table], self._lock)
        if budget_bytes is not None:
            segment_bytes = min(segment_bytes, budget_bytes // FILES_MIN)
        self._direct = direct
        self._log = Segments(self.path, self._files, segment_bytes, direct)
        self._records = Records(self._log, self._stamp)
        self._collector = Collector(self._log, self._records, self._directory, self._lock)
        self._puts = GroupCommit(
            self.path, self._log, self._records, self._directory, self._collector, self._lock, budget_bytes
        )
        self._epoch = 0
        self._closed = False
        self._readable = threading.Condition(self._lock)
        self._writer = threading.Lock()  # guards the log; taken before _lock
        try:
            self._lock_file = self._prepare()
        except OSError as problem:
            raise failure(problem, self.path, "it can't be used as a store") from problem
        try:
            self._recover()
        except BaseException as problem:
            self._log.close()
            self._files.close(self._lock_file)
            if isinstance(problem, OSError):
                raise failure(problem, self.path, "it can't be opened") from problem
            raise

    def __enter__(self) -> LocalStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def epoch(self) -> int:
        """See `Store`."""
        return self._epoch

    @property
    def io_bytes(self) -> int:
        """See `Store`."""
        return BLOCK_BYTES if self._direct else 1

    def bind(self, namespace: Namespace) -> None:
        """See `Store`."""
        self.namespace.check(namespace)

    def contains(self, ids: Sequence[ObjectId]) -> NDArray[np.bool_]:
        """See `Store`."""
        names = self._directory.names(ids)
        with self._lock:
            self._check_open()
            return self._directory.servable(names, self._epoch)

    def put(self, id: ObjectId, payload: Readable, *, meta: Meta, at_epoch: int | None = None) -> None:
        """See `Store`."""
        self.put_many([Item(id, payload, meta)], at_epoch=at_epoch)

    def put_many(self, items: Sequence[Item], *, at_epoch: int | None = None) -> int:
        """See `Store`. One sync for all of them, shared with other threads' puts that wait at the same time."""
        call = self._puts.wait(items, self._epoch if at_epoch is None else at_epoch)
        try:
            with self._writer:
                if not call.done:
                    self._puts.write_waiting(self._epoch, self._refusal())
        except BaseException:
            # Nobody may read the caller's payloads any more, for he may change them: one that changes while it is
            # written would cost its whole group after a crash.
            if not self._puts.withdraw(call) and not call.done:
                with self._writer:  # somebody else is writing it
                    pass
            raise
        if call.error is not None:
            raise call.error
        return call.written

    def get(self, id: ObjectId, into: Writable) -> Found:
        """See `Store`."""
        return self.get_many([id], [into])[0]

    def get_many(self, ids: Sequence[ObjectId], into: Sequence[Writable]) -> list[Found]:
        """See `Store`."""
        views = [bytes_of(buffer) for buffer in into]
        if any(view.readonly for view in views):
            raise ValueError("a read needs a writable buffer")
        if self._direct:
            for view in views:
                _check_blocks(view)
        names = self._directory.names(ids)
        answers: dict[int, Found] = {}
        while len(answers) < len(names):
            # Each name once a turn: the directory takes every slot once, and an id may be asked for twice.
            turn = {name: place for place, name in enumerate(names) if place not in answers}
            answers |= self._read_turn(turn, views)
        return [answers[place] for place in range(len(names))]

    def _read_turn(self, turn: Mapping[bytes, int], views: Sequence[memoryview]) -> dict[int, Found]:
        """Read objects by name into ``views[place]``; those that too many read now are left to the next turn."""
        with self._readable:
            self._check_open()
            epoch = self._epoch
            opened = dict(zip(turn.values(), self._directory.open(tuple(turn), epoch), strict=True))
            if all(one is None for one in opened.values()):
                self._readable.wait()
                return {}
            reads = {place: one for place, one in opened.items() if isinstance(one, OpenRead)}
            segments = {place: self._log.acquire(one.segment) for place, one in reads.items()}
        answers = {place: Found(one) for place, one in opened.items() if isinstance(one, Verdict)}
        headers: dict[int, Header | Verdict] = {}
        names = {place: name for name, place in turn.items()}
        try:
            for place, one in reads.items():
                if one.payload_bytes <= len(views[place]):
                    target, identity = views[place][: one.payload_bytes], self._directory.parts(names[place])
                    room = views[place][: round_up(one.payload_bytes, BLOCK_BYTES)] if self._direct else None
                    headers[place] = self._records.read(segments[place], one.offset, identity, epoch, target, room)
        except OSError as problem:
            raise failure(problem, self.path, "nothing was read") from problem
        finally:
            with self._readable:
                verdicts = [_verdict_of(headers.get(place)) for place in reads]
                ended = self._directory.close(tuple(reads.values()), verdicts)
                for segment in segments.values():
                    self._log.release(segment)
                self._readable.notify_all()
        for (place, one), verdict in zip(reads.items(), ended, strict=True):
            header = headers.get(place)
            if verdict is None:
                answers[place] = Found(Verdict.LAYOUT)  # the caller's slot is too small for the object
            elif isinstance(header, Header) and verdict is Verdict.OK:
                answers[place] = Found(Verdict.OK, header.meta, header.payload_bytes)
            else:
                views[place][: one.payload_bytes] = bytes(one.payload_bytes)
                answers[place] = Found(verdict)
        return answers

    def delete(self, ids: Sequence[ObjectId]) -> int:
        """Remove objects durably. Their bytes are garbage until `collect`. Returns how many there were.

        Raises:
            StoreFull, StoreFailed: nothing was deleted.

        """
        names = self._directory.names(ids)
        with self._writer:
            self._check_writable()
            with self._lock:
                known = self._directory.servable(names, self._epoch)
                names = list(dict.fromkeys(name for name, there in zip(names, known, strict=True) if there))
            if names:
                self._write_tombstones(names)
                with self._lock:
                    self._directory.forget(names)
                if self.budget_bytes is not None and self._log.file_bytes > self.budget_bytes:
                    self._puts.make_room(0, (), self._epoch)  # what says so takes bytes itself
        return len(names)

    def reset(self) -> int:
        """See `Store`. Takes effect after the puts that are being written; their objects end with the epoch.

        Raises:
            StoreFull, StoreFailed: the old epoch goes on, unless the message says that the new one is not durable yet.

        """
        with self._writer:
            self._check_writable()
            if self._epoch >= EPOCH_MAX:
                raise StoreFailed(f"epoch {self._epoch} is the last one; delete {self.path} to begin anew")
            try:
                State(self._epoch + 1, self._log.mark()).write(self._files, self.path)
            except NotDurable as problem:
                self._log.broken = _RESET_AGAIN
                self._end_epoch()
                what = f"epoch {self._epoch} has begun but a power cut may undo it: {problem}; fix: reset again"
                raise StoreFailed(f"{self.path}: {what}") from problem
            except OSError as problem:
                self._try_to_sweep()
                raise failure(problem, self.path, "the epoch was not ended") from problem
            if self._log.broken == _RESET_AGAIN:
                self._log.broken = None
            self._end_epoch()
        return self._epoch

    def collect(self, *, verify: bool = False, most_bytes: int | None = None) -> Collected:
        """Free the bytes of expired, deleted and corrupt objects: copy what is alive out of files that hold garbage.

        Crash-safe: copies are durable before the old files go. Needs room for the copies, whatever the budget says.

        Args:
            verify: read and check every object first, so that corrupt ones are found too.
            most_bytes: evict in the spec's order until what can be served takes so many bytes at most; what is being
                read stays.

        Raises:
            StoreFull, StoreFailed: what was copied so far stays valid; call again.
            TypeError, ValueError: ``most_bytes`` is no whole number of at least 0.

        """
        most_bytes = None if most_bytes is None else check_count("most_bytes", most_bytes, 0)
        with self._writer:
            self._check_writable()
            before = self._log.file_bytes
            try:
                if verify:
                    self._collector.verify_all(self._epoch)
                with self._lock:
                    counts = self._directory.table.count_by_state()
                    self._directory.sweep()
                evicted = self._collector.evict(most_bytes) if most_bytes is not None else 0
                corrupt = counts["corrupt"] + self._collector.compact(self._epoch)
                with self._lock:
                    self._directory.sweep()
            except OSError as problem:
                raise failure(problem, self.path, "collecting stopped") from problem
            return Collected(counts["expired"], corrupt, before - self._log.file_bytes, evicted)

    def usage(self) -> Usage:
        """See `Store`."""
        with self._lock:
            counts = self._directory.table.count_by_state()
            return Usage(
                counts["durable"],
                self._directory.live_bytes(),
                self._log.file_bytes,
                counts["expired"],
                counts["corrupt"],
                self._epoch,
                self.budget_bytes,
                self._collector.evicted,
            )

    def close(self) -> None:
        """See `Store`. Reads that are under way end well; puts that wait are refused."""
        with self._writer:
            with self._readable:
                if self._closed:
                    return
                self._closed = True
                self._readable.notify_all()
            if self._files.holds(self._lock_file):
                with contextlib.suppress(OSError):  # it only saves the next opening a look at the newest group
                    State(self._epoch, self._log.mark()).write(self._files, self.path)
            with self._lock:
                self._log.close()
            self._files.close(self._lock_file)

    # Opening.

    def _prepare(self) -> int:
        """Make the directory and take its lock."""
        files = self._files
        files.make_directory(self.path)
        handle = files.lock(self.path / "lock", f"process {os.getpid()} on {socket.gethostname()}")
        try:
            files.sync_directory(self.path.parent)
            self._sweep_temporaries()
            described = self.path / "namespace.json"
            text = json.dumps(self.namespace.as_json(), indent=2).encode() + b"\n"
            if read_file(files, described) != text:
                replace_file(files, described, text)
            # A killed process may have left names that are visible only: what is served from now on must not go away.
            files.sync_directory(self.path)
            if self._direct:
                self._check_direct(described)
        except BaseException:
            files.close(handle)
            raise
        return handle

    def _check_direct(self, path: Path) -> None:
        try:
            check_direct(self._files, path)
        except OSError as problem:
            what = f"{self.path} can't be read past the page cache: {problem.strerror or problem}"
            raise StoreFailed(f"{what}; fix: use a directory on a local disk, or leave out direct=True") from problem

    def _recover(self) -> None:
        state = read_state(self._files, self.path)
        scans = self._log.open_all()
        self._log.settle(scans, self._stamp.namespace, state.mark if state is not None else Mark())
        self._epoch = current_epoch(scans, self._stamp, state)
        if self._epoch > EPOCH_MAX:
            raise StoreFailed(f"{self.path}: its last epoch has ended; delete it to begin anew")
        entries, verdicts = [], []
        for one in census(self._files, scans, self._stamp, self._epoch):
            if one.header.kind in self._directory.kinds:
                entries.append(self._directory.entry(one.segment.number, one.header))
                verdicts.append(one.verdict)
        self._directory.recover(entries, verdicts)
        now = State(self._epoch, self._log.mark())
        if now != state:
            try:
                now.write(self._files, self.path)
            except OSError:
                if state is None or now.epoch != state.epoch:
                    raise
                self._try_to_sweep()  # it only saves the next opening a look at the newest group

    def _sweep_temporaries(self) -> None:
        """Remove temporary files that an earlier life left."""
        for name in self._files.list_directory(self.path):
            if name.endswith(TEMPORARY):
                self._files.unlink(self.path / name)

    def _try_to_sweep(self) -> None:
        """The same; what can't be removed now is removed at the next opening."""
        with contextlib.suppress(OSError):
            self._sweep_temporaries()

    # Writing; the writer lock is held.

    def _write_tombstones(self, names: Sequence[bytes]) -> None:
        limit = self._log.last_group + 1
        payload = pack_tombstones((*self._directory.parts(name), limit) for name in names)
        header = self._records.header(Record.TOMBSTONES, "", bytes(32), bytes(32), self._epoch, payload)
        try:
            segment, _ = self._records.append([replace(header, payload_checksum=checksum(payload))], [payload])
        except OSError as problem:
            raise failure(problem, self.path, "nothing was deleted") from problem
        segment.tombstones = True

    def _end_epoch(self) -> None:
        with self._lock:
            self._epoch += 1
            self._directory.expire_all()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.path} is closed")

    def _check_writable(self) -> None:
        if (refusal := self._refusal()) is not None:
            raise refusal

    def _refusal(self) -> StoreClosed | StoreFailed | None:
        """Why nothing may be changed; None: it may."""
        if self._closed:
            return StoreClosed(f"{self.path} is closed")
        if self._files.holds(self._lock_file):
            return None
        what = "somebody removed its lock file, and another process may write there by now"
        return StoreFailed(f"{self.path}: {what}; nothing was changed; fix: open it anew")


def _verdict_of(answer: Header | Verdict | None) -> Verdict | None:
    return Verdict.OK if isinstance(answer, Header) else answer


def _check_blocks(view: memoryview) -> None:
    """Raise ValueError unless a buffer begins at a block and is whole blocks."""
    begin = address(view) if len(view) else 0
    if begin % BLOCK_BYTES or len(view) % BLOCK_BYTES:
        what = f"this buffer begins at {begin:#x} and has {len(view)} bytes, and direct reads need multiples of"
        fix = "align and pad it, or open the store without direct=True"
        raise ValueError(f"{what} {BLOCK_BYTES}; {fix}")
