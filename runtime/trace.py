"""A bounded record of events on state words, for ``kvfsm validate`` to hold against the spec.

The newest calls are kept, each with its arguments and the words before and after it; what falls out is folded into the
words that the record starts from, so that it can be replayed from its middle. The format is in ``trace_lines.py``.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .table import Fired, Table
from .trace_lines import Call, Grown, PoolHead, Recorded, lines

Lock = AbstractContextManager[Any]


class EventTrace:
    """The last events of some managers and stores, and a copy of each pool's words.

    A call takes some 600 bytes, and about 20 more for each of its events.

    Hand it to ``Manager(trace=...)`` and ``LocalStore(trace=...)``, several of them if need be; ``write`` at any time.

    Args:
        capacity: events, a slot each, that are kept; the oldest calls go first, and a call is kept whole or not at all.

    Raises:
        ValueError: a capacity below 1.
    """

    def __init__(self, capacity: int = 1 << 16) -> None:
        if capacity < 1:
            raise ValueError(f"a trace keeps 1 event or more, not {capacity}")
        self.capacity = capacity
        self._mutex = threading.Lock()  # the innermost: nothing else is locked, or called back, under it
        self._sources: list[Source] = []
        self._pools: list[_Pool] = []
        self._calls: deque[Recorded] = deque()
        self._kept = self._dropped = 0
        self._writers = 0

    @property
    def events(self) -> int:
        """Events that are kept."""
        return self._kept

    @property
    def dropped(self) -> int:
        """Events that were kept once and made room for newer ones."""
        return self._dropped

    def source(self, name: str) -> Source:
        """Somebody whose tables will be recorded: their ``on_event``, which is to ``watch`` them before they change."""
        with self._mutex:
            source = Source(self, f"{name} {sum(one.kind == name for one in self._sources) + 1}", name)
            self._sources.append(source)
            return source

    def lines(self) -> Iterator[str]:
        """The trace as text, a line each; not to be asked for under a source's lock."""
        with self._mutex:
            self._writers += 1  # nothing falls out until starts and ends are known
            sources = list(self._sources)
        try:
            ends: dict[int, npt.NDArray[np.int64]] = {}
            limits: dict[str, int] = {}  # calls of each source that its ends include
            for source in sources:
                with source.lock:
                    ends |= {pool: table.words.view(np.int64).copy() for pool, table in source.tables.items()}
                    limits[source.name] = source.calls
            with self._mutex:
                pools = [pool for pool in self._pools if pool.number in ends]
                kept = [
                    one for one in self._calls
                    if one.pool in ends and one.number < limits[self._pools[one.pool].source.name]
                ]  # fmt: skip
                heads, dropped = [pool.head() for pool in pools], self._dropped
                firsts = {source.name: source.first for source in sources}
        finally:
            with self._mutex:
                self._writers -= 1
                self._trim()
        return lines(heads, kept, [ends[pool.number] for pool in pools], firsts, dropped)

    def last(self, calls: int) -> tuple[str, ...]:
        """The newest calls in words, oldest first; of all sources together. Locks nothing but the trace itself."""
        with self._mutex:
            kept = [record for record in list(self._calls)[-calls:] if isinstance(record, Call)]
            pools = [self._pools[record.pool] for record in kept]
        return tuple(pool.says(record) for pool, record in zip(pools, kept, strict=True))

    def write(self, path: str | os.PathLike[str]) -> int:
        """Put the trace in a file, whole or not at all; returns its bytes.

        Raises:
            OSError: it can't be written; what was there before is untouched.
        """
        target = Path(path)
        beside = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            with open(beside, "x", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{line}\n" for line in self.lines())
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            os.replace(beside, target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        return size

    def watch(self, source: Source, table: Table) -> int:
        """For a ``Source``: record a table from its present words on; returns the number of its pool."""
        with self._mutex:
            number = len(self._pools)
            self._pools.append(_Pool(number, source, type(table), table.words.view(np.int64).copy()))
            return number

    def append(self, record: Recorded) -> None:
        """For a ``Source``: keep one record; the oldest fall out."""
        with self._mutex:
            self._calls.append(record)
            self._kept += record.size
            self._trim()

    def _trim(self) -> None:
        """Fold the oldest calls into the words that the record starts from."""
        while self._kept > self.capacity and not self._writers:
            record = self._calls.popleft()
            pool = self._pools[record.pool]
            pool.source.first = record.number + 1
            if isinstance(record, Grown):
                more = record.slots - len(pool.words)
                pool.words = np.concatenate((pool.words, np.zeros(more, np.int64)))
            else:
                pool.words[record.slots] = record.after
            self._kept -= record.size
            self._dropped += record.size


class Source:
    """The recorder of one manager's, or one store's, tables: an ``on_event`` that is called under their lock."""

    def __init__(self, trace: EventTrace, name: str, kind: str) -> None:
        self.trace, self.name, self.kind = trace, name, kind
        self.lock: Lock = threading.Lock()
        self.tables: dict[int, Table] = {}
        self.calls = 0
        self.first = 0  # the oldest call that may be kept still
        self._numbers: dict[str, int] = {}  # machine -> pool

    def watch(self, tables: Sequence[Table], lock: Lock) -> None:
        """Record these tables, one a machine, from their present words on; ``lock`` is held around their changes."""
        self.lock = lock
        for table in tables:
            number = self._numbers[table.MACHINE] = self.trace.watch(self, table)
            self.tables[number] = table

    def replace(self, table: Table) -> None:
        """A table has made room: the same words in a longer array, and free slots behind them."""
        number = self._numbers[table.MACHINE]
        self.tables[number] = table
        self.trace.append(Grown(self._next(), number, len(table)))

    def __call__(self, fired: Fired) -> None:
        """Keep one call."""
        if not len(fired.slots):
            return
        codes = fired.codes.copy() if fired.codes.any() else None
        given = tuple(value.copy() for value in fired.arguments)
        self.trace.append(Call(
            self._next(), self._numbers[fired.machine], fired.event, fired.slots.astype(np.int32), given, codes,
            fired.before, fired.after, fired.held,
        ))  # fmt: skip

    def _next(self) -> int:
        self.calls += 1
        return self.calls - 1


def told(*listeners: Callable[[Fired], None] | None) -> Callable[[Fired], None] | None:
    """One listener for several; None for none."""
    wanted = [listener for listener in listeners if listener is not None]
    if len(wanted) < 2:
        return wanted[0] if wanted else None

    def tell(fired: Fired) -> None:
        for listener in wanted:
            listener(fired)

    return tell


@dataclass(slots=True)
class _Pool:
    """One table: its class, and the words that the kept calls start from."""

    number: int
    source: Source
    table: type[Table]
    words: npt.NDArray[np.int64]

    def says(self, call: Call) -> str:
        """One call in words: where, what it asked for, and what came of it."""
        table, shown = self.table, 6
        names = [one.name for one in table.EVENTS[call.event].given]
        given = ", ".join(f"{name}={_short(value)}" for name, value in zip(names, call.given, strict=True))
        slots = call.slots[:shown].tolist()
        more = f" and {len(call.slots) - shown} more" if len(call.slots) > shown else ""
        state = table.LAYOUT.field("state")
        codes = sorted({int(word) >> state.shift & state.mask for word in call.after})
        states: Any = table.STATES
        came = ", ".join(states(code).name.lower() for code in codes)
        if call.codes is not None:
            refusals: Any = table.REFUSALS
            came = "refused as " + ", ".join(sorted({refusals(int(code)).name for code in call.codes if code}))
        return f"{self.source.name}: {table.MACHINE} {slots}{more} {call.event}({given}): {came}"

    def head(self) -> PoolHead:
        table = self.table
        given = {name: tuple(one.name for one in event.given) for name, event in table.EVENTS.items()}
        fields = {field.name: field.bits for field in table.LAYOUT.fields}
        refusals = tuple(word.name.lower() for word in table.REFUSALS)
        return PoolHead(
            self.number, self.source.name, table.MACHINE, table.DIGEST, fields, refusals, given, self.words.copy()
        )


def _short(value: Any) -> str:
    """An argument: one value, or as many as there is room for."""
    flat = np.ravel(value)
    distinct = np.unique(flat)
    return str(distinct[0]) if len(distinct) == 1 else f"{flat[:6].tolist()}{'...' if len(flat) > 6 else ''}"
