"""Leases, fills and loads in a caller's hands: what can't be written, given back twice, or lost without a name."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.admission import Admission
from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.handle import Handle
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.lease import Lease
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.registration import Registration
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Namespace
from kvfsm.runtime.ticket import Ticket

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule
KIND = "compressed_kv"


def make(**options: Any) -> tuple[Manager, Keys]:
    manager = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 16), NumpyBackend(), **options)
    keys = manager.keys(np.random.default_rng(0).integers(0, 256, 4 * A + 1))
    for granule in range(3):
        manager.publish(manager.reserve(keys, granule, granule + 1))
    return manager, keys


def open_load(path: Path, **options: Any) -> tuple[Manager, Ticket]:
    """A load of two granules that the store has and memory lacks."""
    store = LocalStore(path, Namespace.of(PROFILE), budget_bytes=1 << 30)
    manager, keys = make(store=store, **options)
    for kind in PROFILE.kinds:
        manager.evict(kind, 99)
    plan = manager.match(keys).plan
    assert plan is not None
    return manager, manager.load_begin(plan, owner="loader")


def refused(text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(Refused, match=text) as error:
        call()
    assert error.value.refusal is Reason.LEASE


# ---- views ----------------------------------------------------------------------------------------------------------


def test_a_leases_view_is_not_written_to() -> None:
    manager, keys = make()
    with manager.acquire(manager.match(keys)) as lease:
        view = lease.view(KIND, "entries", 2)
        assert np.may_share_memory(view, manager.core.pools[KIND].arena.bytes)
        with pytest.raises(ValueError, match="read-only"):
            view[:] = 1
        with pytest.raises(ValueError, match="read-only"):
            view[1:][0, 0, 0] = 1
    manager.core.pools[KIND].arena.bytes[:] = 3  # the slots themselves are no view of a reader


def test_a_gathered_view_is_not_written_to_either() -> None:
    """Otherwise a mistake would show where slots happen to lie side by side, and nowhere else."""
    manager, keys = make()
    for granule, cut in ((2, 1), (2, 2)):
        manager.expire(keys, cut)
        between = manager.reserve(manager.keys(np.arange(A)), 0, 1)
        for at in range(cut, granule + 1):
            manager.publish(manager.reserve(keys, at, at + 1))
        manager.abandon(between)
    with manager.acquire(manager.match(keys)) as lease:
        slots = np.diff(lease.slots[KIND])
        view = lease.view(KIND, "entries", 2)
        assert len(set(slots.tolist())) == 2 and not np.may_share_memory(view, manager.core.pools[KIND].arena.bytes)
        assert not view.flags.writeable


@pytest.mark.parametrize("end", ["publish", "abandon"])
def test_a_fills_view_is_written_to_until_it_is_published_or_given_up(end: str) -> None:
    manager, keys = make()
    fill = manager.reserve(keys, 3, 4)
    view = fill.view(KIND, "entries", 2)
    view[:] = 9
    getattr(manager, end)(fill)
    with pytest.raises(ValueError, match="read-only"):
        view[:] = 1
    refused("published or abandoned already", lambda: fill.view(KIND, "entries", 2))


def test_a_fill_whose_publication_is_refused_is_still_written_to() -> None:
    manager, keys = make()
    fill = manager.reserve(keys, 3, 4)
    view = fill.view(KIND, "entries", 2)
    manager.expire(keys, 1)
    with pytest.raises(Refused, match="GAP"):
        manager.publish(fill)
    view[:] = 9
    manager.abandon(fill)


def test_pointers_of_a_lease_that_was_given_back_are_refused() -> None:
    manager, keys = make()
    lease = manager.acquire(manager.match(keys))
    assert lease.state_data_ptrs
    manager.release(lease)
    refused("released already", lambda: lease.state_data_ptrs)
    row = manager.requests.admit(3 * A + 1, lease=(taken := manager.acquire(manager.match(keys))))
    refused("taken over by a live request", lambda: taken.state_data_ptrs)
    manager.requests.finish(row)


@pytest.mark.parametrize("end", ["publish", "abandon"])
def test_pointers_of_a_fill_are_those_of_its_slots_until_it_ends(end: str) -> None:
    manager, keys = make()
    fill = manager.reserve(keys, 3, 4)
    pointers = fill.state_data_ptrs
    assert {one.kind: one.slots.tolist() for one in pointers if len(one.slots)} == {
        kind: held.tolist() for kind, held in fill.slots.items()
    }
    (mine,) = (one for one in pointers if (one.kind, one.part, one.layer) == (KIND, "entries", 2))
    view = fill.view(KIND, "entries", 2)
    assert view.ctypes.data == mine.base + int(mine.slots[0]) * mine.stride and view[0].nbytes == mine.item_bytes
    getattr(manager, end)(fill)
    refused("published or abandoned already", lambda: fill.state_data_ptrs)


# ---- receipts -------------------------------------------------------------------------------------------------------


def test_a_release_is_refused_twice_late_and_by_others() -> None:
    (manager, keys), (other, same) = make(), make()
    lease = manager.acquire(manager.match(keys), owner="a")
    foreign = other.acquire(other.match(same))
    refused("another manager", lambda: manager.release(foreign))
    refused("belongs to 'a', not to 'b'", lambda: manager.release(lease, owner="b"))
    manager.release(lease, owner="a")
    refused("released already", lambda: manager.release(lease))
    late = manager.acquire(manager.match(keys))
    manager.reallocate(void=True)
    with pytest.raises(Refused, match="before the memory was allocated anew"):
        manager.release(late)
    other.release(foreign)
    assert manager.audit().ok and other.audit().ok and not manager.receipts and not other.receipts


def test_a_fill_is_ended_once_and_by_its_manager() -> None:
    (manager, keys), (other, _) = make(), make()
    fill = manager.reserve(keys, 3, 4)
    for call in (other.publish, other.abandon):
        refused("another manager", lambda call=call: call(fill))  # type: ignore[misc]
    manager.publish(fill)
    for call in (manager.publish, manager.abandon):
        refused("published or abandoned already", lambda call=call: call(fill))  # type: ignore[misc]
    given_up = manager.reserve(keys, 3, 4)
    manager.abandon(given_up)
    for call in (manager.publish, manager.abandon):
        refused("published or abandoned already", lambda call=call: call(given_up))  # type: ignore[misc]
    late = manager.reserve(keys, 3, 4)
    manager.reallocate(void=True)
    for call in (manager.publish, manager.abandon):
        with pytest.raises(Refused, match="before the memory was allocated anew"):
            call(late)
    assert manager.audit().ok and not manager.fills


def test_a_fill_of_the_same_number_is_not_taken_for_this_managers() -> None:
    (manager, keys), (other, same) = make(), make()
    mine, foreign = manager.reserve(keys, 3, 4), other.reserve(same, 3, 4)
    assert mine.fill_id == foreign.fill_id
    refused("another manager", lambda: manager.abandon(foreign))
    manager.abandon(mine)
    other.abandon(foreign)
    assert manager.audit().ok and other.audit().ok


@pytest.mark.parametrize("end", ["done", "failed", "aborted"])
def test_a_load_is_ended_once(end: str, tmp_path: Path) -> None:
    manager, ticket = open_load(tmp_path)
    if end == "done":
        ticket.transfer()
    elif end == "failed":
        ticket.done(False)
    else:
        ticket.abort()
        refused("aborted", lambda: ticket.land(KIND))
        refused("aborted", ticket.abort)
        ticket.quiesce()
    free = {kind: pool.free for kind, pool in manager.core.pools.items()}
    for call in (ticket.done, lambda: ticket.done(False), ticket.abort, ticket.quiesce, lambda: ticket.land(KIND)):
        refused("ticket", call)
    assert {kind: pool.free for kind, pool in manager.core.pools.items()} == free
    assert manager.audit().ok and not manager.tickets


def test_a_completion_after_the_abort_frees_once_and_publishes_nothing(tmp_path: Path) -> None:
    manager, ticket = open_load(tmp_path)
    ticket.abort()
    ticket.done()
    refused("ticket", ticket.quiesce)
    refused("ticket", ticket.done)
    assert all(pool.free == 16 for pool in manager.core.pools.values()) and manager.audit().ok


# ---- leaks ----------------------------------------------------------------------------------------------------------


def here() -> str:
    return __file__


def lease_of(manager: Manager, keys: Keys) -> Lease:
    return manager.acquire(manager.match(keys), owner="reader")


def test_in_debug_mode_whatever_is_open_says_which_call_opened_it(tmp_path: Path) -> None:
    manager, ticket = open_load(tmp_path, debug=True)
    ticket.transfer()
    keys = manager.keys(np.random.default_rng(0).integers(0, 256, 4 * A + 1))
    held, fill = lease_of(manager, keys), manager.reserve(keys, 3, 4, owner="writer")
    found = {leak.what: leak for leak in manager.leaks()}
    assert set(found) == {"lease", "fill"}
    site = found["lease"].site
    assert site is not None and site.startswith(f"{here()}:") and " in lease_of < " in site
    assert "test_in_debug_mode" in site and "manager.py" not in site
    assert (found["lease"].owner, found["lease"].number) == ("reader", held.lease_id)
    assert found["fill"].site is not None and "test_in_debug_mode" in found["fill"].site.split(" < ")[0]
    assert "fill" in str(found["fill"]) and f"is open, opened at {here()}" in str(found["fill"])
    manager.release(held)
    manager.abandon(fill)
    assert manager.leaks() == ()


def test_in_debug_mode_a_load_says_who_opened_it(tmp_path: Path) -> None:
    manager, ticket = open_load(tmp_path, debug=True)
    (leak,) = manager.leaks()
    assert (leak.what, leak.number, leak.owner) == ("load", ticket.ticket_id, "loader")
    assert leak.site is not None and " in open_load < " in leak.site
    ticket.done(False)
    assert manager.leaks() == ()


def admit_for(manager: Manager, owner: str) -> int:
    return manager.requests.admit(A, owner=owner)


def test_live_requests_and_reservations_are_open_too_and_named_by_what_they_are_in_the_way_of() -> None:
    manager, _ = make(debug=True)
    registration = Registration(manager, lambda region: None, lambda region: None)
    registration.register()
    row = admit_for(manager, "chat")
    (leak,) = manager.leaks()
    assert (leak.what, leak.number, leak.owner, leak.receipt) == ("request", row, "chat", None)
    assert leak.site is not None and leak.site.startswith(f"{here()}:") and " in admit_for < " in leak.site
    admission = Admission(manager)
    admission.admit(manager.match(keys_of_another(manager)), A, owner="queue")
    (reservation,) = manager.reservations.values()
    found = {leak.what: leak for leak in manager.leaks()}
    assert (found["reservation"].owner, found["reservation"].number) == ("queue", reservation.number)
    with pytest.raises(Refused, match=r"request 0 of 'chat' is open, opened at .* in admit_for") as error:
        registration.deregister()
    assert "reservation" in str(error.value) and "of 'queue'" in str(error.value)
    with pytest.raises(Refused, match=r"reservation .* of 'queue'") as error:
        manager.reallocate(void=True)
    assert "'chat'" not in str(error.value)  # what is void is not in the way
    admission.cancel(reservation)
    rows = [admit_for(manager, f"reader {n}") for n in range(3)]
    with pytest.raises(Refused, match="; 1 more, see leaks"):
        registration.deregister()
    for each in (row, *rows):
        manager.requests.finish(each)
    registration.deregister()
    assert manager.leaks() == () and manager.audit().ok


def test_a_reservation_says_who_asked_whatever_it_holds(tmp_path: Path) -> None:
    """One that holds slots alone, one with a lease, and one with a load."""
    manager, ticket = open_load(tmp_path, debug=True)
    ticket.done(False)
    loading = manager.keys(np.random.default_rng(0).integers(0, 256, 4 * A + 1))
    assert manager.match(loading).plan is not None
    leasing = keys_of_another(manager)
    manager.publish(manager.reserve(leasing, 0, 1))
    admission = Admission(manager)
    for keys, tokens in ((manager.keys([1]), 1), (leasing, A + 1), (loading, loading.tokens)):
        admission.admit(manager.match(keys, tokens), tokens, owner="queue")
    held = list(manager.reservations.values())
    assert [(one.lease is not None, one.ticket is not None) for one in held] == [
        (False, False), (True, False), (False, True),
    ]  # fmt: skip
    sites = [leak.site for leak in manager.leaks() if leak.what == "reservation"]
    assert len(sites) == 3
    for site in sites:
        assert site is not None and site.startswith(f"{here()}:")
        assert site.split(" < ")[0].endswith("test_a_reservation_says_who_asked_whatever_it_holds")
    for one in held:
        admission.cancel(one)


def keys_of_another(manager: Manager) -> Keys:
    return manager.keys(np.random.default_rng(5).integers(0, 256, A))


def test_the_audit_says_where_a_dropped_lease_was_taken() -> None:
    for debug in (True, False):
        manager, keys = make(debug=debug)
        lease_of(manager, keys)
        gc.collect()
        (told,) = manager.audit().dropped
        assert "lease" in told and "'reader' was dropped without release" in told
        assert (f"opened at {here()}:" in told and " in lease_of" in told) is debug


def test_without_debug_mode_no_stack_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the stack was asked for")

    monkeypatch.setattr(sys, "_getframe", fail)
    manager, keys = make()
    manager.release(lease_of(manager, keys))
    fill = manager.reserve(keys, 3, 4)
    assert [leak.site for leak in manager.leaks()] == [None]
    manager.abandon(fill)
    debugging, keys = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 16), NumpyBackend(), debug=True), keys
    with pytest.raises(AssertionError, match="the stack was asked for"):  # control
        debugging.reserve(keys, 0, 1)


def test_dropping_a_fill_or_a_load_frees_nothing(tmp_path: Path) -> None:
    manager, ticket = open_load(tmp_path)
    fill = manager.reserve(manager.keys(np.arange(A)), 0, 1)
    free = {kind: pool.free for kind, pool in manager.core.pools.items()}
    del ticket, fill
    gc.collect()
    assert {kind: pool.free for kind, pool in manager.core.pools.items()} == free
    assert [leak.what for leak in manager.leaks()] == ["fill", "load"] and manager.audit().ok


def test_manager_and_layouts_are_said_once() -> None:
    for kind in (Lease, Fill):
        assert issubclass(kind, Handle) and not {"manager", "layouts"} & set(vars(kind))
