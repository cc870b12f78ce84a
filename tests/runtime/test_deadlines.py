"""Leases with a deadline: past it nothing is read or published through them, and nothing freed behind their reader."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.lease import Lease
from kvfsm.runtime.manager import Manager

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule
KIND = "compressed_kv"


class Time:
    """Stands still until it is told otherwise; counts how often it was asked."""

    def __init__(self) -> None:
        self.time = 0.0
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.time


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def manager(time: Time) -> Manager:
    manager = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 16), NumpyBackend(), now=time)
    put(manager, keys_of(manager), 0, 3)
    return manager


def keys_of(manager: Manager, seed: int = 0) -> Keys:
    return manager.keys(np.random.default_rng(seed).integers(0, 256, 5 * A + 1))


def put(manager: Manager, keys: Keys, start: int, stop: int) -> None:
    for granule in range(start, stop):
        fill = manager.reserve(keys, granule, granule + 1)
        for kind, slots in fill.slots.items():
            manager.core.pools[kind].arena.bytes[slots] = granule + 1
        manager.publish(fill)


def take(manager: Manager, deadline: float | None = 5.0, owner: str = "reader") -> Lease:
    return manager.acquire(manager.match(keys_of(manager)), owner=owner, deadline=deadline)


def refused(text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(Refused, match=text) as error:
        call()
    assert error.value.refusal is Reason.LEASE


def pins(manager: Manager) -> int:
    return int(sum(pool.table.fields("pins").sum() for pool in manager.core.pools.values()))


def test_an_overdue_lease_is_read_through_no_more_and_its_slots_stay(manager: Manager, time: Time) -> None:
    lease = take(manager)
    before = lease.view(KIND, "entries", 2).copy()
    time.time = 5.0  # at its deadline it is still good
    assert (lease.view(KIND, "entries", 2) == before).all() and lease.state_data_ptrs
    asked = time.asked
    assert lease.generations[KIND].tolist() == [1, 1, 1] and time.asked == asked + 1  # one look says all of it
    time.time = 5.1
    refused("overdue: its deadline was 5.0, it is 5.1; release it", lambda: lease.view(KIND, "entries", 2))
    refused("overdue", lambda: lease.state_data_ptrs)
    refused("overdue", lambda: manager.renew(lease, 99.0))  # nor does it come back to life
    assert manager.evict(KIND, 99) == 0 and pins(manager) > 0
    manager.expire(keys_of(manager))
    assert manager.evict(KIND, 99) == 0 and manager.audit().ok
    manager.release(lease)
    assert pins(manager) == 0 and manager.core.pools[KIND].free == 16 and manager.audit().ok


def test_nothing_goes_on_from_an_overdue_lease(manager: Manager, time: Time) -> None:
    keys, lease = keys_of(manager), take(manager)
    fill = manager.reserve(keys, 3, 4, lease=lease)
    time.time = 6.0
    refused("overdue", lambda: manager.reserve(keys, 3, 4, lease=lease))
    refused("overdue", lambda: manager.requests.admit(4 * A, lease=lease))
    refused("overdue", lambda: manager.publish(fill))
    assert manager.match(keys).now == 3 * A and manager.fills
    manager.abandon(fill)
    manager.release(lease)
    assert manager.audit().ok and not manager.receipts


def test_a_fill_is_published_under_a_lease_that_was_renewed_in_time(manager: Manager, time: Time) -> None:
    keys, lease = keys_of(manager), take(manager)
    fill = manager.reserve(keys, 3, 4, lease=lease)
    time.time = 4.0
    manager.renew(lease, 8.0)
    time.time = 7.0
    manager.publish(fill)
    assert manager.match(keys).now == 4 * A
    manager.renew(lease, None)
    time.time = 1e9
    assert lease.view(KIND, "entries", 2).shape[0] == 3 and manager.overdue() == ()
    manager.release(lease)
    refused("released already", lambda: manager.renew(lease, 2e9))


def test_overdue_leases_are_listed_oldest_first(manager: Manager, time: Time) -> None:
    leases = [take(manager, deadline, str(deadline)) for deadline in (7.0, None, 3.0, 9.0)]
    time.time = 8.0
    assert [(one.owner, one.deadline) for one in manager.overdue()] == [("3.0", 3.0), ("7.0", 7.0)]
    manager.release(leases[2])
    assert [one.owner for one in manager.overdue()] == ["7.0"]
    for lease in (leases[0], leases[1], leases[3]):
        manager.release(lease)


def test_a_revoked_lease_is_free_once_the_device_has_ended(manager: Manager, time: Time) -> None:
    lease, ended = take(manager), list[bool]()
    time.time = 6.0
    manager.revoke(lease, done=lambda: bool(ended))
    assert lease.revoked and not manager.receipts and len(manager.parked) == 1
    assert manager.evict(KIND, 99) == 0 and manager.audit().ok
    refused("revoked after its deadline", lambda: manager.release(lease))
    refused("revoked", lambda: lease.view(KIND, "entries", 2))
    refused("revoked", lambda: manager.revoke(lease))
    ended.append(True)
    assert manager.evict(KIND, 99) == 3 and pins(manager) == 0
    refused("revoked", lambda: manager.release(lease))
    assert manager.audit().ok


def test_a_lease_is_revoked_by_what_overdue_says_of_it(manager: Manager, time: Time) -> None:
    lease = take(manager)
    time.time = 3.0
    manager.renew(lease, 5.5)
    time.time = 6.0
    (receipt,) = manager.overdue()
    manager.revoke(receipt)
    refused("is not open here", lambda: manager.revoke(receipt))
    refused("revoked", lambda: manager.release(lease))
    assert pins(manager) == 0 and manager.audit().ok


def test_nobody_takes_a_lease_from_a_reader_in_time(manager: Manager, time: Time) -> None:
    timed, endless = take(manager), take(manager, None)
    refused("is held, and its deadline is 5.0", lambda: manager.revoke(timed))
    other = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 16), NumpyBackend(), now=time)
    put(other, keys_of(other), 0, 3)
    foreign = take(other, 1.0)
    time.time = 1e9
    refused("is held, and its deadline is None", lambda: manager.revoke(endless))
    refused("another manager", lambda: manager.revoke(foreign))
    (receipt,) = other.overdue()
    refused("is not open here", lambda: manager.revoke(receipt))
    assert len(manager.receipts) == 2 and len(other.receipts) == 1
    manager.release(timed)
    manager.release(endless)


def test_a_lease_that_was_dropped_is_revoked_without_a_deadline(manager: Manager) -> None:
    lease = take(manager, None, "forgetful")
    del lease
    gc.collect()
    (leak,) = manager.leaks()
    assert leak.dropped and manager.evict(KIND, 99) == 0
    receipt, _ = manager.receipts[leak.number]
    manager.revoke(receipt)
    assert manager.leaks() == () and manager.evict(KIND, 99) == 3 and manager.audit().ok


def test_a_dropped_lease_is_revoked_by_what_leaks_says_of_it(manager: Manager) -> None:
    lease = take(manager, None)
    (leak,) = manager.leaks()
    refused("is held", lambda: manager.revoke(leak))
    del lease
    gc.collect()
    fill = manager.reserve(keys_of(manager, 7), 0, 1, owner="writer")
    (leak, other) = manager.leaks()
    assert leak.dropped
    refused("only a lease can be revoked", lambda: manager.revoke(other))
    manager.revoke(leak)
    refused("is not open here", lambda: manager.revoke(leak))
    manager.abandon(fill)
    assert manager.leaks() == () and manager.evict(KIND, 99) == 3 and manager.audit().ok


def test_what_rests_on_a_revoked_lease_is_not_published(manager: Manager, time: Time) -> None:
    """The prefix is published again meanwhile, so that the chain alone looks as before."""
    keys, lease = keys_of(manager), take(manager)
    fill, other = manager.reserve(keys, 3, 4, lease=lease), manager.reserve(keys, 3, 4)
    time.time = 6.0
    manager.revoke(lease)
    manager.expire(keys)
    manager.evict(KIND, 99)
    put(manager, keys, 0, 3)
    refused("rests on lease .*, which was revoked", lambda: manager.publish(fill))
    assert manager.match(keys).now == 3 * A
    manager.abandon(fill)
    manager.publish(other)  # control: the chain itself is no reason
    assert manager.match(keys).now == 4 * A and manager.audit().ok


@pytest.mark.parametrize("late", [False, True])
def test_what_rests_on_a_lease_that_was_released_too_late_is_not_published(
    manager: Manager, time: Time, late: bool
) -> None:
    """Its holder gives it back himself, overdue, and would have been refused a moment before."""
    keys, lease = keys_of(manager), take(manager)
    fill = manager.reserve(keys, 3, 4, lease=lease)
    time.time = 6.0 if late else 5.0
    manager.release(lease)
    time.time = 6.0
    if late:
        refused("rests on lease .*, which was revoked, or released too late", lambda: manager.publish(fill))
        manager.abandon(fill)
    else:
        manager.publish(fill)
    assert manager.match(keys).now == (3 if late else 4) * A and manager.audit().ok


def test_a_failing_device_query_revokes_nothing(manager: Manager, time: Time) -> None:
    lease = take(manager)
    time.time = 6.0

    def broken() -> bool:
        raise RuntimeError("the device is gone")

    with pytest.raises(RuntimeError, match="the device is gone"):
        manager.revoke(lease, done=broken)
    assert not lease.revoked and len(manager.overdue()) == 1
    manager.release(lease)
    assert manager.audit().ok


def test_a_request_that_took_a_lease_over_in_time_goes_on(manager: Manager, time: Time) -> None:
    row = manager.requests.admit(3 * A + 1, lease=take(manager))
    time.time = 6.0
    assert manager.overdue() == ()
    manager.requests.step([row])
    manager.requests.finish(row)
    assert pins(manager) == 0 and manager.audit().ok


def test_all_leases_of_a_shared_answer_have_the_deadline(manager: Manager, time: Time) -> None:
    keys = keys_of(manager)
    leases = manager.acquire_all(manager.match_shared([(keys, None), (keys, 3 * A + 1)]), deadline=2.0)
    time.time = 3.0
    assert len(manager.overdue()) == len(leases) == 2
    for lease in leases:
        manager.release(lease)


def test_a_deadline_that_has_passed_already_is_refused(manager: Manager, time: Time) -> None:
    time.time = 6.0
    refused("the deadline 5.0 has passed already, it is 6.0", lambda: take(manager, 5.0))
    assert pins(manager) == 0 and manager.leaks() == ()
    lease = take(manager, 6.0, "late")  # at the last moment
    assert repr(lease) == f"<Lease {lease.lease_id} of 'late': {lease.length} tokens>"
    fill = manager.reserve(keys_of(manager, 7), 0, 1, owner="writer")
    assert repr(fill).startswith(f"<Fill {fill.fill_id} of 'writer': granules [0, 1) of compressed_kv")


def test_without_deadlines_nobody_asks_for_the_time(manager: Manager, time: Time) -> None:
    with take(manager, None) as lease:
        lease.view(KIND, "entries", 2)
        manager.publish(manager.reserve(keys_of(manager), 3, 4, lease=lease))
    assert time.asked == 0


def test_a_deadline_that_is_no_time_is_refused(manager: Manager) -> None:
    with pytest.raises(ValueError, match="deadline=nan"):
        take(manager, float("nan"))
    lease = take(manager)
    with pytest.raises(ValueError, match="deadline=nan"):
        manager.renew(lease, float("nan"))
    manager.release(lease)
    assert manager.audit().ok


class Jumping(Time):
    """Far later from the look number ``at`` on, counted from 1 after ``arm``."""

    def __init__(self) -> None:
        super().__init__()
        self.at: int | None = None

    def arm(self, at: int) -> None:
        self.at, self.asked = at, 0

    def __call__(self) -> float:
        self.asked += 1
        return 10.0 if self.at is not None and self.asked >= self.at else self.time


@pytest.mark.parametrize("at", range(1, 6))
def test_a_deadline_that_passes_while_a_row_is_admitted_leaves_all_or_nothing(at: int) -> None:
    time = Jumping()
    manager = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 16), NumpyBackend(), now=time)
    put(manager, keys_of(manager), 0, 3)
    lease = manager.acquire(manager.match(keys_of(manager)), deadline=5.0)
    free = {kind: pool.free for kind, pool in manager.core.pools.items()}
    time.arm(at)
    try:
        row = manager.requests.admit(4 * A, lease=lease)
    except Refused as refused:
        assert at == 1 and refused.refusal is Reason.LEASE
        assert {kind: pool.free for kind, pool in manager.core.pools.items()} == free
        manager.revoke(lease)
    else:
        assert time.asked == 1, "one look a call: what was in time stays so"
        manager.requests.finish(row)
    assert manager.audit().ok and not manager.receipts


def test_what_is_overdue_is_so_at_one_moment() -> None:
    time = Jumping()
    manager = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 16), NumpyBackend(), now=time)
    put(manager, keys_of(manager), 0, 3)
    taken = [manager.acquire(manager.match(keys_of(manager)), deadline=5.0) for _ in range(2)]
    time.arm(2)
    assert manager.overdue() == () and time.asked == 1
    assert len(manager.overdue()) == len(taken)
