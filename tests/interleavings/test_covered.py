"""Nothing public is forgotten: each call on shared state is in an operation, each pair of operations is explored."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kvfsm.runtime.admission import Admission
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.lease import Lease
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.requests import RequestTable
from kvfsm.runtime.scheduler import Scheduler as Engine
from kvfsm.runtime.ticket import Ticket

from .operations import BEGINNINGS, HOMES, OPERATIONS, TIMED, home
from .scheduler import Scheduler
from .test_pairs import MISUSE, pairs_with
from .world import WITH_ALL_KINDS, Setting, World, quiet

CLASSES = (Manager, RequestTable, Ticket, Lease, Fill, Admission, Engine)
EXCEPTIONS: Mapping[str, str] = {
    "Admission.behind_transfers": "asked by 'schedule', which holds the lock, of who has lacked room in many turns",
    "Admission.row_behind_transfers": "the same",
    "Manager.table": "makes words before anything is shared",
    "Manager.watch_room": "told once, when a scheduler is made",
    "Scheduler.begun": "awaits a Future, in a loop of asyncio; giving up from there is 'give up'",
    "Scheduler.wait": "waits for the event that 'schedule' clears; no time passes here",
    "Scheduler.where": "reads a word under the lock, as Scheduler.state does",
    "Ticket.slots": "fields that don't change after the ticket was opened",
}
"""Calls that no operation makes, and why none has to."""


def public(classes: tuple[type, ...]) -> dict[str, Callable[..., Any]]:
    """Public methods of some classes by qualified name; properties read a field, or what a method guards."""
    return {
        f"{one.__name__}.{name}": member
        for one in classes
        for name, member in vars(one).items()
        if not name.startswith("_") and inspect.isfunction(member)
    }


def called(classes: tuple[type, ...], operations: Mapping[str, Any], patch: pytest.MonkeyPatch) -> set[str]:
    """What is called, at any depth, while each operation runs after its home and after "p"."""
    found: set[str] = set()
    running: list[Scheduler] = []

    def told(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def tell(*given: Any, **named: Any) -> Any:
            if running and running[-1].inside:
                found.add(name)
            return method(*given, **named)

        return tell

    for one in classes:
        for name, member in public((one,)).items():
            patch.setattr(one, name.partition(".")[2], told(name, member))
    for name, op in operations.items():
        for begin in dict.fromkeys((home(name), "p")):
            world = World(Scheduler(), Setting(WITH_ALL_KINDS, timed=name in TIMED))
            quiet(BEGINNINGS[begin], world)()
            running.append(world.scheduler)
            world.scheduler.run([quiet(op, world)])
    return found


def test_each_public_call_occurs_in_an_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    names = set(public(CLASSES))
    found = called(CLASSES, OPERATIONS, monkeypatch)
    assert sorted(names - found - EXCEPTIONS.keys()) == [], "add an operation, or say why there is none"
    assert sorted(EXCEPTIONS.keys() - (names - found)) == [], "there is an operation after all"


def test_control_what_no_operation_calls_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    names = set(public(CLASSES))
    few = {name: OPERATIONS[name] for name in ("read p", "evict")}
    left = names - called(CLASSES, few, monkeypatch)
    assert {"Manager.reset", "Admission.admit", "Scheduler.cancel", "RequestTable.accept"} <= left
    assert not {"Manager.match", "Manager.acquire", "Manager.evict"} & left


def test_each_beginning_and_each_home_is_known() -> None:
    assert set(HOMES) <= set(BEGINNINGS)
    assert {name for names in HOMES.values() for name in names} <= set(OPERATIONS)
    assert TIMED <= set(OPERATIONS)


def test_each_pair_of_operations_is_explored_from_the_homes_of_both() -> None:
    explored = {(begin, frozenset(pair)) for first in OPERATIONS for begin, pair in pairs_with(first)}
    for pair in itertools.combinations_with_replacement(OPERATIONS, 2):
        if frozenset(pair) not in MISUSE:
            assert {(home(name), frozenset(pair)) for name in pair} <= explored, pair
