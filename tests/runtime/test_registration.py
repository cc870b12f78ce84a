"""What a transfer engine knows of the memory: every tensor once, in one order, and never longer than it lies there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated import Refusal
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.registration import Registered, Registration

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule


class Engine:
    """Remembers what it knows, and every call; fails at the calls that it is told to.

    ``fails`` counts calls from 1: of this engine, whatever they are.
    """

    def __init__(self) -> None:
        self.known: list[Registered] = []
        self.calls: list[tuple[str, Registered]] = []
        self.fails: set[int] = set()

    def register(self, region: Registered) -> None:
        self._called("register", region)
        assert region not in self.known, "registered twice"
        assert not any(one.base == region.base for one in self.known), "two regions at one address"
        self.known.append(region)

    def deregister(self, region: Registered) -> None:
        self._called("deregister", region)
        self.known.remove(region)

    def _called(self, what: str, region: Registered) -> None:
        self.calls.append((what, region))
        if len(self.calls) in self.fails:
            raise OSError(f"call {len(self.calls)} fails")


def make(slots: int = 8) -> tuple[Manager, Engine, Registration]:
    manager, engine = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, slots), NumpyBackend(), rows=2), Engine()
    return manager, engine, Registration(manager, engine.register, engine.deregister)


def put(manager: Manager) -> Keys:
    keys = manager.keys(np.arange(4 * A))
    for granule in range(2):
        manager.publish(manager.reserve(keys, granule, granule + 1))
    return keys


def refused(refusal: Refusal, call: Callable[[], Any]) -> str:
    with pytest.raises(Refused) as error:
        call()
    assert error.value.refusal is refusal
    return error.value.detail


def test_every_tensor_is_registered_once_in_the_profiles_order() -> None:
    manager, engine, registration = make()
    keys = put(manager)
    registration.register()
    with manager.acquire(manager.match(keys)) as lease:
        pointers = [(one.kind, one.layer, one.part, one.base, one.stride) for one in lease.state_data_ptrs]
    assert [(one.kind, one.layer, one.part, one.base, one.stride) for one in engine.known] == pointers
    assert [one.index for one in engine.known] == list(range(len(pointers)))
    assert tuple(engine.known) == registration.regions
    for one in engine.known:
        arena = manager.core.pools[one.kind].arena
        assert arena.base <= one.base and one.base + one.length <= arena.base + arena.bytes.nbytes
        assert one.length == 7 * one.stride + one.item_bytes  # the last slot's part, and nothing behind it


def test_a_second_registration_is_refused_and_calls_nobody() -> None:
    _, engine, registration = make()
    registration.register()
    calls = len(engine.calls)
    assert "registered already" in refused(Refusal.ILLEGAL, registration.register)
    assert len(engine.calls) == calls


def test_nothing_is_deregistered_that_was_not_registered() -> None:
    _, engine, registration = make()
    refused(Refusal.ILLEGAL, registration.deregister)
    registration.register()
    registration.deregister()
    refused(Refusal.ILLEGAL, registration.deregister)
    assert engine.known == [] and len(engine.calls) == 2 * len({one for _, one in engine.calls})
    registration.register()  # and again
    assert len(engine.known) == len(registration.regions) > 0


def test_nothing_is_deregistered_while_anything_is_open() -> None:
    manager, engine, registration = make()
    keys = put(manager)
    regions = registration.register()
    lease, ended = manager.acquire(manager.match(keys)), list[bool]()
    assert "1 leases" in refused(Refusal.PINNED, registration.deregister)
    manager.release(lease, done=lambda: bool(ended))
    assert "on the device" in refused(Refusal.PINNED, registration.deregister)
    ended.append(True)
    fill = manager.reserve(keys, 2, 3)
    assert "1 fills" in refused(Refusal.PINNED, registration.deregister)
    manager.abandon(fill)
    row = manager.requests.admit(3)
    assert "1 live requests" in refused(Refusal.PINNED, registration.deregister)
    manager.requests.finish(row)
    launch = manager.memory.launch()
    assert "launches" in refused(Refusal.PINNED, registration.deregister)
    manager.memory.retire(launch)
    assert tuple(engine.known) == regions
    registration.deregister()
    assert engine.known == [] and registration.regions == ()


def test_a_poisoned_managers_memory_is_deregistered_whatever_it_holds() -> None:
    manager, engine, registration = make()
    keys = put(manager)
    registration.register()
    manager.acquire(manager.match(keys))
    manager.lock.poison("S1", "a test", "planted")
    registration.deregister()
    assert engine.known == []


@pytest.mark.parametrize("slots", [None, 5])
def test_memory_that_moves_is_registered_where_it_lies_then(slots: int | None) -> None:
    manager, engine, registration = make()
    put(manager)
    before = registration.register()
    engine.calls.clear()
    manager.reallocate(None if slots is None else dict.fromkeys(PROFILE.kinds, slots))
    after = registration.regions
    assert [one for what, one in engine.calls if what == "deregister"] == list(reversed(before))
    assert [one for what, one in engine.calls if what == "register"] == list(after)
    assert [what for what, _ in engine.calls] == ["deregister"] * len(before) + ["register"] * len(after)
    for one in after:
        arena = manager.core.pools[one.kind].arena
        assert arena.base <= one.base < arena.base + arena.stride
        assert one.length == (len(arena.bytes) - 1) * one.stride + one.item_bytes
    assert [(one.kind, one.layer, one.part) for one in before] == [(one.kind, one.layer, one.part) for one in after]


def test_a_refused_move_touches_no_registration() -> None:
    manager, engine, registration = make()
    keys = put(manager)
    registration.register()
    engine.calls.clear()
    lease = manager.acquire(manager.match(keys))
    refused(Refusal.PINNED, manager.reallocate)
    assert engine.calls == []
    manager.reallocate(void=True)
    assert len(engine.calls) == 2 * len(registration.regions)
    with pytest.raises(Refused):
        manager.release(lease)


def components() -> int:
    return len(make()[2].register())


COUNT = components()


@pytest.mark.parametrize("at", range(1, COUNT + 1))
def test_a_register_that_fails_takes_back_what_was_registered(at: int) -> None:
    manager, engine, registration = make()
    engine.fails = {at}
    with pytest.raises(OSError, match=f"call {at} fails"):
        registration.register()
    assert engine.known == [] and registration.regions == ()
    assert manager.audit().ok
    assert tuple(engine.known) != registration.register()
    assert len(engine.known) == COUNT


@pytest.mark.parametrize("at", range(1, COUNT + 1))
def test_a_deregister_that_fails_leaves_all_of_it_registered(at: int) -> None:
    _, engine, registration = make()
    regions = registration.register()
    engine.calls.clear()
    engine.fails = {at}
    with pytest.raises(OSError, match=f"call {at} fails"):
        registration.deregister()
    assert tuple(engine.known) == registration.regions == regions
    registration.deregister()
    assert engine.known == []


@pytest.mark.parametrize("at", range(1, 2 * COUNT + 1))
def test_memory_stays_where_it_is_when_an_engine_fails_at_its_move(at: int) -> None:
    """At each call: while the old regions are forgotten, and while the new ones are made known."""
    manager, engine, registration = make()
    other = Engine()
    second = Registration(manager, other.register, other.deregister)
    keys = put(manager)
    before, bases = second.register(), [pool.arena.base for pool in manager.core.pools.values()]
    registration.register()
    engine.calls.clear()
    engine.fails = {at}
    epoch = manager.memory.epoch
    with pytest.raises(OSError, match=f"call {at} fails"):
        manager.reallocate()
    assert [pool.arena.base for pool in manager.core.pools.values()] == bases and manager.memory.epoch == epoch
    for one, regions in ((engine, registration.regions), (other, second.regions)):
        assert sorted(one.known, key=lambda region: region.index) == list(regions) == list(before)
    assert manager.audit().ok and manager.match(keys).now == 2 * A
    manager.reallocate()  # and the next attempt succeeds
    assert manager.memory.epoch == epoch + 1 and registration.regions != before


def test_an_engine_that_can_not_even_take_back_is_told_what_is_left() -> None:
    _, engine, registration = make()
    engine.fails = {3, 4}
    with pytest.raises(OSError, match="call 4 fails"):
        registration.register()
    assert tuple(engine.known) == registration.regions and len(engine.known) == 2
    refused(Refusal.ILLEGAL, registration.register)
    registration.deregister()
    assert engine.known == [] and len(registration.register()) == COUNT
