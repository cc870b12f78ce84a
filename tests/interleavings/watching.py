"""What a runtime under the scheduler shares, and how its accesses are seen.

The one lock is injected. What is touched without it is seen here: state words, the index, the dictionaries of open
things, and the bytes of slots. Each such access is a switch point.

    ("state",)             words, use, index, pools, epoch, queues: what the manager's lock guards. Whoever holds the
                           lock reads it, and writes it with the first event, stamp or change of the index
    ("lock", name)         a lock whose holder can be interrupted
    ("live", number)       how far a request of an engine is, by its row too; ("ticket", number) the same of a load
    ("granted",)           work that an engine was granted; ("written through",) what went back and is to be stored
    ("flag",)              whether an engine's turns may have changed; ("jobs",) loads that nobody runs yet
    ("apart",)             whether tenants are told apart
    ("now",)               the time of deadlines; ("clock",) that of uses, where something ends by it
    (dictionary, key)      an entry of an open-things dictionary; (dictionary,) its membership
    ("bytes", kind, slot)  what lies in one slot
    ("object", id)         an object of the store; ("store",) its epoch

Assumed, and not checked: nothing else is shared. In particular a row that an operation makes is its own alone; numbers
(of leases, fills, tickets) and counters (of layers, of failures, of a report) are told apart by nobody, and the order
in which eviction finds what it can't take is without consequence. Checked by `CheckedLock`: who is seen to read only
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from kvfsm.runtime.admission import Admission
from kvfsm.runtime.index import Index
from kvfsm.runtime.isolation import Isolation
from kvfsm.runtime.live_requests import Live, LiveRequests
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.scheduler import Scheduler as Engine
from kvfsm.runtime.ticket import Ticket

from .scheduler import CoopLock, Resource, Scheduler

STATE: Resource = ("state",)
WRITES: Mapping[Resource, bool] = {STATE: True}
GUARDS: Mapping[str, Mapping[Resource, bool]] = {
    "Manager.release": WRITES,  # what is parked is no event
    "Manager.revoke": WRITES,  # the same
    "Manager.reset": WRITES,  # nor is an epoch
    "Manager.reallocate": WRITES,  # nor where memory lies
    "Scheduler.schedule": WRITES,  # nor what was granted and is handed over
    "Storer.put": {},  # touches the dictionary of failures alone
}
"""What the holder of the manager's lock touches from the start, by the function that takes it; others read."""

Visit = Callable[[str, Any, bool], None]
"""Tells of an access to the bytes of some slots of a kind."""


class Watched(np.ndarray):
    """Bytes of one kind's slots; what is gathered by an array of slots is told.

    A single slot is a view, of which nothing is read yet; who reads it, as a store does, tells of that.
    """

    kind = ""
    visit: Visit | None = None

    def __getitem__(self, index: Any) -> Any:
        if self.visit is not None and isinstance(index, np.ndarray):
            self.visit(self.kind, index, False)
        return np.asarray(self)[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.visit is not None and isinstance(index, np.ndarray):
            self.visit(self.kind, index, True)
        np.asarray(self)[index] = value


class Tokens(np.ndarray):
    """How many tokens rows have. They change under the lock; who reads those of a request asks the request."""

    written: Callable[[Any], None] | None = None

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        np.asarray(self)[index] = value
        if self.written is not None:
            self.written(index)


class Line(list[Any]):
    """A list whose uses are told."""

    def __init__(self, told: Callable[[bool], None]) -> None:
        super().__init__()
        self._told = told

    def __len__(self) -> int:
        self._told(False)
        return super().__len__()

    def __iadd__(self, others: Any) -> Line:  # type: ignore[misc]
        if others:
            self._told(True)
        return super().__iadd__(others)

    def pop(self, *given: Any) -> Any:
        self._told(True)
        return super().pop(*given)


class Entries(dict[Any, Any]):
    """A dictionary under the lock, whose uses without it are switch points."""

    def __init__(self, name: str, scheduler: Scheduler, lock: CoopLock, entries: Mapping[Any, Any]) -> None:
        super().__init__(entries)
        self._name, self._scheduler, self._lock = name, scheduler, lock

    def _told(self, write: bool, *key: Any) -> None:
        if not self._scheduler.holds(self._lock):
            self._scheduler.switch()
        self._scheduler.touch((self._name, *key), write)
        if write:
            self._scheduler.touch((self._name,), True)

    def __getitem__(self, key: Any) -> Any:
        self._told(False, key)
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self._told(False, key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._told(False, key)
        return super().__contains__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._told(True, key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        self._told(True, key)
        super().__delitem__(key)

    def pop(self, key: Any, *default: Any) -> Any:
        self._told(True, key)
        return super().pop(key, *default)

    def clear(self) -> None:
        self._told(True)
        super().clear()

    def __iter__(self) -> Iterator[Any]:
        self._told(False)
        return super().__iter__()

    def __len__(self) -> int:
        self._told(False)
        return super().__len__()

    def values(self) -> Any:
        self._told(False)
        return list(super().values())

    def items(self) -> Any:
        self._told(False)
        return list(super().items())


def watch(manager: Manager, scheduler: Scheduler, lock: CoopLock, bytes_of: Visit) -> None:
    """Let a scheduler see what a manager touches without its lock."""
    core, told = manager.core, _telling_state(scheduler, lock)
    watch_memory(manager, scheduler, lock, bytes_of)
    asks = ("locate", "live", "ready", "last", "slots", "trail_slots", "find")
    changes = ("extend", "put", "add", "cut", "sever", "set_ready", "drop", "prune", "prune_below")
    index, begin = _watched_class(Index, asks, changes, told), core._begin

    def begin_watched() -> None:
        begin()
        core.index.__class__ = index

    core._begin = begin_watched  # type: ignore[method-assign]
    core.index.__class__ = index
    manager.lessor.receipts = Entries("receipts", scheduler, lock, manager.receipts)
    manager.filler.fills = Entries("fills", scheduler, lock, manager.fills)
    manager.loader.tickets = Entries("tickets", scheduler, lock, manager.loader.tickets)

    def of(resource: Resource, write: bool) -> None:
        if not scheduler.holds(lock):
            scheduler.switch()
        scheduler.touch(resource, write)

    manager.isolation.__class__ = _with_told_fields(Isolation, ("_apart",), lambda _: ("apart",), of)
    attempts = manager.loader.attempts
    attempts._failures = Entries("failures", scheduler, lock, attempts._failures)
    move = manager.memory.move

    def moved() -> int:
        """All bytes were where they are no longer."""
        for kind, pool in core.pools.items():
            for slot in range(len(pool)):
                scheduler.touch(("bytes", kind, slot), True)
        return move()

    manager.memory.move = moved  # type: ignore[method-assign]


def watch_memory(manager: Manager, scheduler: Scheduler, lock: CoopLock, bytes_of: Visit) -> None:
    """Its words and arenas, where they are now."""
    told = _telling_state(scheduler, lock)
    for kind, pool in manager.core.pools.items():
        if "told" not in vars(type(pool)):
            pool.__class__ = _watched_class(type(pool), (), ("stamp",), told)
            pool.table.__class__ = pool.whole.__class__ = _watched_table(type(pool.table), scheduler, lock)
        arena = pool.arena.bytes.view(Watched)
        arena.kind, arena.visit = kind, bytes_of
        pool.arena.region = arena


def watch_serving(
    admission: Admission, engine: Engine, manager: Manager, scheduler: Scheduler, lock: CoopLock
) -> None:
    """What admission and an engine's scheduler share: words, open reservations, and how far requests and loads are."""
    for table in (admission.words, engine.admission.words, engine._requests.words):
        table.__class__ = _watched_table(type(table), scheduler, lock)

    def told(resource: Resource, write: bool) -> None:
        if not scheduler.holds(lock):
            scheduler.switch()
        scheduler.touch(resource, write)

    fields = (
        "row", "computed", "reservation", "loading", "joined", "rebuild", "rebuilt", "known", "seen", "owed", "ahead",
    )  # fmt: skip
    live = _with_told_fields(Live, fields, lambda one: ("live", one.number), told)
    ticket = _with_told_fields(Ticket, ("state", "moving"), lambda one: ("ticket", one.ticket_id), told)
    engine._requests.arrive = _made(engine._requests.arrive, live)  # type: ignore[method-assign]
    loader = manager.loader
    loader.open = _made(loader.open, ticket)  # type: ignore[method-assign]
    for name in ("join", "leave"):  # who waits for a load is told by no event
        setattr(loader, name, _writing(getattr(loader, name), scheduler))
    requests = _with_told_fields(LiveRequests, ("granted",), lambda one: ("granted",), told)
    engine._requests.__class__ = requests
    _watch_rows(engine, manager, scheduler)
    manager.reservations = Entries("reservations", scheduler, lock, manager.reservations)
    engine.live = engine._requests.by_number = Entries("live", scheduler, lock, engine.live)


def _watch_rows(engine: Engine, manager: Manager, scheduler: Scheduler) -> None:
    """How far rows of an engine's requests are, and what they have published and is to be stored."""
    running, rows = engine._running, manager.requests._rows
    rows_lock: Any = running.lock
    row_of = vars(Live)["row"].__get__  # without telling

    def written(index: Any) -> None:
        changed = set(np.arange(len(rows.tokens))[index].reshape(-1).tolist())
        for live in dict.values(engine.live):
            if row_of(live) in changed:
                scheduler.touch(("live", live.number), True)

    def told(write: bool) -> None:
        if not scheduler.holds(rows_lock):
            scheduler.switch()
        scheduler.touch(("written through",), write)

    tokens = rows.tokens.view(Tokens)
    tokens.written = written
    rows.tokens = tokens
    running._writing = Line(told)


def _telling_state(scheduler: Scheduler, lock: CoopLock) -> Callable[[bool], None]:
    def told(write: bool) -> None:
        if not scheduler.holds(lock):
            scheduler.visit(STATE, write)
        elif write:
            scheduler.touch(STATE, True)

    return told


def _watched_table(base: type, scheduler: Scheduler, lock: CoopLock) -> Any:
    table: Any = _watched_class(base, (), (), _telling_state(scheduler, lock))
    for name in ("fields", "states"):
        setattr(table, name, _telling(getattr(base, name), False, _telling_state(scheduler, lock)))
    table._apply = _torn(table, scheduler, lock)
    return table


def _with_told_fields(
    base: type, names: tuple[str, ...], resource: Callable[[Any], Resource], told: Callable[[Resource, bool], None]
) -> type:
    """A subclass whose instances tell when some of their fields are read or written."""

    def field(name: str) -> property:
        slot = getattr(base, name, None)  # None: it lies in the instance's dictionary

        def read(self: Any) -> Any:
            told(resource(self), False)
            return vars(self)[name] if slot is None else slot.__get__(self)

        def write(self: Any, value: Any) -> None:
            told(resource(self), True)
            if slot is None:
                vars(self)[name] = value
            else:
                slot.__set__(self, value)

        return property(read, write)

    return type(base.__name__, (base,), {"__slots__": (), **{name: field(name) for name in names}})


def _made(make: Callable[..., Any], made: type) -> Callable[..., Any]:
    """What ``make`` makes is of a watched class."""

    def make_watched(*given: Any, **named: Any) -> Any:
        one = make(*given, **named)
        one.__class__ = made
        return one

    return make_watched


def _writing(call: Callable[..., Any], scheduler: Scheduler) -> Callable[..., Any]:
    def told(*given: Any, **named: Any) -> Any:
        scheduler.touch(STATE, True)
        return call(*given, **named)

    return told


def _watched_class(
    base: type, asks: tuple[str, ...], changes: tuple[str, ...], told: Callable[[bool], None]
) -> type:
    """A subclass some of whose methods first tell that the state is read, or written."""
    methods = {name: _telling(getattr(base, name), name in changes, told) for name in (*asks, *changes)}
    return type(base.__name__, (base,), {"told": told, **methods})


def _telling(method: Callable[..., Any], write: bool, told: Callable[[bool], None]) -> Callable[..., Any]:
    def tell(self: Any, *given: Any, **named: Any) -> Any:
        told(write)
        return method(self, *given, **named)

    return tell


def _torn(table: Any, scheduler: Scheduler, lock: CoopLock) -> Callable[..., Any]:
    """Events of a table; without the lock, words are read and written in two steps."""
    whole = table._apply

    def apply(self: Any, event: str, act: Callable[..., Any], slots: Any, *given: Any) -> Any:
        if scheduler.holds(lock):
            if len(slots):
                scheduler.touch(STATE, True)
            return whole(self, event, act, slots, *given)
        scheduler.visit(STATE, False)
        decided = act(self._bits[slots], *given)
        scheduler.visit(STATE, True)
        return whole(self, event, lambda words, *_: decided, slots, *given)

    return apply


class CheckedLock(CoopLock):
    """A lock that looks whether holders who were seen to read only have left everything as it was.

    Attributes:
        snapshot: a digest of what the lock guards; None while nothing is checked.
        changed: functions that took the lock, read only, and changed something.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.snapshot: Callable[[], str] | None = None
        self.changed: list[str] = []
        self._before = ""
        self._from = 0  # the first step of the holder

    def __enter__(self) -> CheckedLock:
        super().__enter__()
        if self.snapshot is not None:
            self._before, self._from = self.snapshot(), len(self._scheduler.steps) - 1
        return self

    def __exit__(self, *given: object) -> None:
        steps = self._scheduler.steps[self._from :]
        read_only = not any(step.touched.get(STATE) for step in steps if step.chosen == self._scheduler.number)
        if self.snapshot is not None and read_only and self.snapshot() != self._before:
            self.changed.append(self.taken.name)
        super().__exit__(*given)
