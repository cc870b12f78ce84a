"""What a runtime under the scheduler shares, and how its accesses are seen.

The one lock is injected. What is touched without it is seen here: state words, the index, the dictionaries of open
things, and the bytes of slots. Each such access is a switch point.

    ("state",)             words, use, index, pools, epoch: what the manager's lock guards. Whoever holds the lock reads
                           it, and writes it with the first event, stamp or change of the index
    ("lock", name)         a lock whose holder can be interrupted
    (dictionary, key)      an entry of an open-things dictionary; (dictionary,) its membership
    ("bytes", kind, slot)  what lies in one slot
    ("object", id)         an object of the store; ("store",) its epoch

Assumed, and not checked: nothing else is shared. In particular a live request's row is its owner's alone; numbers (of
leases, fills, tickets) and counters (of layers, of failures) are told apart by nobody, and the order in which eviction
finds what it can't take is without consequence. Checked by `CheckedLock`: who is seen to read only changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from kvfsm.runtime.index import Index
from kvfsm.runtime.manager import Manager

from .scheduler import CoopLock, Resource, Scheduler

STATE: Resource = ("state",)
WRITES: Mapping[Resource, bool] = {STATE: True}
GUARDS: Mapping[str, Mapping[Resource, bool]] = {
    "Manager.release": WRITES,  # what is parked is no event
    "Manager.reset": WRITES,  # nor is an epoch
    "Storer.put": {},  # touches the dictionary of failures alone
    "Storer.write_through": {},  # and this the count of them
}
"""What the holder of the manager's lock touches from the start, by the function that takes it; others read."""

Visit = Callable[[str, Any, bool], None]
"""Tells of an access to the bytes of some slots of a kind."""


class Watched(np.ndarray):  # type: ignore[type-arg]
    """Bytes of one kind's slots; what is gathered by an array of slots is told."""

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

    def told(write: bool) -> None:
        if not scheduler.holds(lock):
            scheduler.visit(STATE, write)
        elif write:
            scheduler.touch(STATE, True)

    core = manager.core
    for kind, pool in core.pools.items():
        pool.__class__ = _watched_class(type(pool), (), ("stamp",), told)
        table = _watched_class(type(pool.table), ("fields", "states"), (), told)
        table._apply = _torn(table, scheduler, lock)
        pool.table.__class__ = pool.whole.__class__ = table
        arena = pool.arena.bytes.view(Watched)
        arena.kind, arena.visit = kind, bytes_of
        pool.arena.bytes = arena
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
    attempts = manager.loader.attempts
    attempts._failures = Entries("failures", scheduler, lock, attempts._failures)


def _watched_class(
    base: type, asks: tuple[str, ...], changes: tuple[str, ...], told: Callable[[bool], None]
) -> type:
    """A subclass some of whose methods first tell that the state is read, or written."""
    def telling(name: str, write: bool) -> Callable[..., Any]:
        method = getattr(base, name)

        def tell(self: Any, *given: Any, **named: Any) -> Any:
            told(write)
            return method(self, *given, **named)

        return tell

    methods = {name: telling(name, name in changes) for name in (*asks, *changes)}
    return type(base.__name__, (base,), methods)


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

    def __enter__(self) -> CheckedLock:
        super().__enter__()
        if self.snapshot is not None:
            self._before = self.snapshot()
        return self

    def __exit__(self, *given: object) -> None:
        read_only = self.taken.touched.get(STATE) is not True
        if self.snapshot is not None and read_only and self.snapshot() != self._before:
            self.changed.append(self.taken.name)
        super().__exit__(*given)
