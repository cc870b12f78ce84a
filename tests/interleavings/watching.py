"""What a runtime under the scheduler shares, and how its accesses are seen.

The one lock is injected. What is touched without it is seen here: state words, the index, the dictionaries of open
things, and the bytes of slots. Each such access is a switch point.

    ("state",)             words, index, pools, rows, epoch: everything that the manager's lock guards
    ("lock", name)         a lock whose holder can be interrupted
    (dictionary, key)      an entry of an open-things dictionary; (dictionary,) its membership
    ("bytes", kind, slot)  what lies in one slot
    ("object", id)         an object of the store; ("store",) its epoch

Assumed, and not checked: nothing else is shared. In particular numbers (of leases, fills, tickets), counters of layers
and of failures are told apart by nobody, so that counting them up in another order leads to the same. Checked by
`CheckedLock`: who is said to read only changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from kvfsm.runtime.index import Index
from kvfsm.runtime.manager import Manager

from .scheduler import CoopLock, Resource, Scheduler

STATE: Resource = ("state",)
READS: Mapping[Resource, bool] = {STATE: False}
GUARDS: Mapping[str, Mapping[Resource, bool]] = {
    "Matcher.match": READS,
    "Matcher._plan": READS,
    "Loader.use_layer": READS,
    "RequestTable.resolve": READS,
    "Loader._count_failure": {},  # touches the dictionary of failures alone
    "Manager._put": {},  # the same
}
"""What the holder of the manager's lock touches beside dictionaries, by the function that takes it; others write."""

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

    def unlocked(write: bool) -> None:
        if not scheduler.holds(lock):
            scheduler.visit(STATE, write)

    core = manager.core
    for kind, pool in core.pools.items():
        table = _watched_class(type(pool.table), ("fields", "states"), (), unlocked)
        table._apply = _torn(table, scheduler, lock)
        pool.table.__class__ = pool.whole.__class__ = table
        arena = pool.arena.bytes.view(Watched)
        arena.kind, arena.visit = kind, bytes_of
        pool.arena.bytes = arena
    asks = ("locate", "live", "ready", "last", "slots", "trail_slots", "find")
    changes = ("extend", "put", "add", "cut", "sever", "set_ready", "drop", "prune", "prune_below")
    index, begin = _watched_class(Index, asks, changes, unlocked), core._begin

    def begin_watched() -> None:
        begin()
        core.index.__class__ = index

    core._begin = begin_watched  # type: ignore[method-assign]
    core.index.__class__ = index
    manager.receipts = Entries("receipts", scheduler, lock, manager.receipts)
    manager.fills = Entries("fills", scheduler, lock, manager.fills)
    manager.loader.tickets = Entries("tickets", scheduler, lock, manager.loader.tickets)
    manager.loader._failures = Entries("failures", scheduler, lock, manager.loader._failures)


def _watched_class(base: type, asks: tuple[str, ...], changes: tuple[str, ...], unlocked: Callable[[bool], None]) -> type:
    """A subclass some of whose methods first tell that the state is read, or written."""

    def told(name: str, write: bool) -> Callable[..., Any]:
        method = getattr(base, name)

        def tell(self: Any, *given: Any, **named: Any) -> Any:
            unlocked(write)
            return method(self, *given, **named)

        return tell

    methods = {name: told(name, name in changes) for name in (*asks, *changes)}
    return type(base.__name__, (base,), methods)


def _torn(table: Any, scheduler: Scheduler, lock: CoopLock) -> Callable[..., Any]:
    """Events of a table; without the lock, words are read and written in two steps."""
    whole = table._apply

    def apply(self: Any, event: str, act: Callable[..., Any], slots: Any, *given: Any) -> Any:
        if scheduler.holds(lock):
            return whole(self, event, act, slots, *given)
        scheduler.visit(STATE, False)
        decided = act(self._bits[slots], *given)
        scheduler.visit(STATE, True)
        return whole(self, event, lambda words, *_: decided, slots, *given)

    return apply


class CheckedLock(CoopLock):
    """A lock that looks whether holders who are said to read only leave everything as it was."""

    snapshot: Callable[[], str] | None = None
    changed: list[str]

    def __enter__(self) -> CheckedLock:
        super().__enter__()
        touched = self.taken.touched
        self._before = self.snapshot() if self.snapshot is not None and touched.get(STATE) is not True else None
        return self

    def __exit__(self, *given: object) -> None:
        if self._before is not None and self.snapshot is not None and self.snapshot() != self._before:
            self.changed.append(self.taken.name)
        super().__exit__(*given)
