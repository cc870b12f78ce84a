"""What lacks room says by its word alone whether to wait: CAPACITY is never, every other word is not now.

Each place that refuses for room is asked twice. What was refused for now is granted once whoever was in the way has
ended; what was refused for good is so with nobody else there, too.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvfsm.runtime.admission import Admission, Deferred, Limits, Rejected, Reservation
from kvfsm.runtime.answers import Plan, Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.reservation import FOR_ROOM
from kvfsm.runtime.scheduler import Scheduler

from .serving import DEEPSEEK, ByHand, Shelf, make, prompt, stored, write

LLAMA = PROFILES["tiny_llama"]
A = LLAMA.granule
Call = Callable[[], object]


def refused(call: Call) -> tuple[str, str]:
    """Reason and layer of what is refused."""
    with pytest.raises(Refused) as found:
        call()
    return found.value.refusal.name, found.value.layer


# ---- never ----------------------------------------------------------------------------------------------------------


def never_reserve() -> Call:
    manager = make(4, LLAMA)
    keys = manager.keys(range(5 * A))
    return lambda: manager.reserve(keys, 0, 5)


def never_reserve_beside_its_own_lease() -> Call:
    """Two of four slots are leased by whoever asks for three more."""
    manager = make(4, LLAMA)
    keys = manager.keys(range(5 * A))
    write(manager, keys, 2)
    lease = manager.acquire(manager.match(keys))
    return lambda: manager.reserve(keys, 2, 5, lease=lease)


def never_a_row() -> Call:
    manager = make(4, LLAMA)
    return lambda: manager.requests.admit(5 * A)


def never_a_row_beside_its_own_lease() -> Call:
    manager = make(4, LLAMA)
    keys = manager.keys(range(5 * A))
    write(manager, keys, 2)
    lease = manager.acquire(manager.match(keys))
    return lambda: manager.requests.admit(5 * A, lease=lease)


def never_a_row_of_none() -> Call:
    manager = make(4, LLAMA, rows=0)
    return lambda: manager.requests.admit(A)


def never_a_chunk() -> Call:
    manager = make(4, LLAMA)
    row = manager.requests.admit(2 * A)
    return lambda: manager.requests.extend(row, 3 * A)


def never_a_step() -> Call:
    manager = make(4, LLAMA)
    row = manager.requests.admit(4 * A)
    return lambda: manager.requests.step([row])


def never_drafts() -> Call:
    manager = make(4, LLAMA)
    row = manager.requests.admit(4 * A - 1)
    return lambda: manager.requests.propose([row], 2)


def never_a_load() -> Call:
    manager, plan = stored_plan(4, slots=3)
    return lambda: manager.load(plan)


def never_packed() -> Call:
    manager = make(4, LLAMA)
    keys = manager.keys(range(3 * A))
    write(manager, keys, 3)
    return lambda: manager.pack(keys)


def never_packed_whole() -> Call:
    manager = make(4, LLAMA, cold=2)
    keys = manager.keys(range(3 * A))
    write(manager, keys, 3)
    return lambda: manager.pack(keys)


NEVER = {
    "reserve": (never_reserve, "pool"),
    "reserve, beside one's own lease": (never_reserve_beside_its_own_lease, "pool"),
    "a row": (never_a_row, "pool"),
    "a row, beside one's own lease": (never_a_row_beside_its_own_lease, "pool"),
    "a row of a table without rows": (never_a_row_of_none, "requests"),
    "a chunk": (never_a_chunk, "pool"),
    "a step": (never_a_step, "pool"),
    "drafts": (never_drafts, "pool"),
    "a load": (never_a_load, "pool"),
    "packed, without cold slots": (never_packed, "pool"),
    "packed, beyond the cold slots": (never_packed_whole, "pool"),
}


@pytest.mark.parametrize("place", NEVER)
def test_what_can_never_be_had_is_refused_for_good(place: str) -> None:
    """Nobody else is there."""
    begin, layer = NEVER[place]
    call = begin()
    assert refused(call) == ("CAPACITY", layer)
    assert refused(call) == ("CAPACITY", layer)


# ---- not now --------------------------------------------------------------------------------------------------------


def stored_plan(granules: int, *, slots: int) -> tuple[Manager, Plan]:
    """A manager that could load a prompt, and the plan."""
    store, tokens = Shelf(), prompt(1, granules * A + 1)
    stored(store, [tokens], LLAMA)
    manager = make(slots, LLAMA, store)
    plan = manager.match(manager.keys(tokens)).plan
    assert plan is not None
    return manager, plan


def busy_reserve() -> tuple[Call, Call]:
    manager = make(4, LLAMA)
    keys = manager.keys(range(4 * A))
    fill = manager.reserve(keys, 0, 3)
    return lambda: manager.reserve(manager.keys(range(9, 9 + 2 * A)), 0, 2), lambda: manager.abandon(fill)


def busy_pool_of_a_row() -> tuple[Call, Call]:
    manager = make(4, LLAMA)
    row = manager.requests.admit(3 * A)
    return lambda: manager.requests.admit(2 * A), lambda: manager.requests.finish(row)


def busy_rows() -> tuple[Call, Call]:
    manager = make(4, LLAMA, rows=1)
    row = manager.requests.admit(A)
    return lambda: manager.requests.admit(A), lambda: manager.requests.finish(row)


def busy_chunk() -> tuple[Call, Call]:
    manager = make(4, LLAMA)
    row, other = manager.requests.admit(A), manager.requests.admit(3 * A)
    return lambda: manager.requests.extend(row, A), lambda: manager.requests.finish(other)


def busy_step() -> tuple[Call, Call]:
    manager = make(4, LLAMA)
    row, other = manager.requests.admit(A), manager.requests.admit(3 * A)
    return lambda: manager.requests.step([row]), lambda: manager.requests.finish(other)


def busy_drafts() -> tuple[Call, Call]:
    manager = make(4, LLAMA)
    row, other = manager.requests.admit(A), manager.requests.admit(3 * A)
    return lambda: manager.requests.propose([row], 2), lambda: manager.requests.finish(other)


def busy_pool_of_a_load() -> tuple[Call, Call]:
    manager, plan = stored_plan(3, slots=4)
    row = manager.requests.admit(2 * A)
    return lambda: manager.load(plan), lambda: manager.requests.finish(row)


def busy_loads() -> tuple[Call, Call]:
    manager, plan = stored_plan(3, slots=8)
    free = manager.loader._free[:]
    manager.loader._free.clear()  # as if they were all open
    return lambda: manager.load(plan), lambda: manager.loader._free.extend(free)


def busy_scheduler() -> tuple[Call, Call]:
    manager = make(4, LLAMA)
    scheduler = Scheduler(manager, ByHand(), requests=1)
    live = scheduler.submit(manager.keys([1]))
    return lambda: scheduler.submit(manager.keys([2])), lambda: scheduler.cancel(live)


def busy_scheduler_of_another() -> tuple[Call, Call]:
    manager = make(4, LLAMA)
    one, other = Scheduler(manager, ByHand()), Scheduler(manager, ByHand())
    live = one.submit(manager.keys([1]))
    return lambda: other.submit(manager.keys([2])), lambda: one.cancel(live)


def busy_rows_of_a_reservation() -> tuple[Call, Call]:
    """The only row is promised; somebody who doesn't ask admission wants it."""
    manager = make(4, LLAMA, rows=1)
    admission, keys = Admission(manager), manager.keys([1])
    reservation = admission.admit(manager.match(keys), 1)
    assert isinstance(reservation, Reservation)
    return lambda: manager.requests.admit(A), lambda: admission.cancel(reservation)


def busy_cold_slots() -> tuple[Call, Call]:
    manager = make(8, LLAMA, cold=3)
    keys, others = manager.keys(range(3 * A)), manager.keys(range(9, 9 + A))
    write(manager, keys, 3)
    write(manager, others, 1)
    assert manager.pack(others) == 1
    return lambda: manager.pack(keys), lambda: manager.expire(others)


NOT_NOW = {
    "reserve": (busy_reserve, "POOL_FULL", "pool"),
    "slots of a row": (busy_pool_of_a_row, "POOL_FULL", "pool"),
    "rows": (busy_rows, "BACKPRESSURE", "requests"),
    "a chunk": (busy_chunk, "POOL_FULL", "pool"),
    "a step": (busy_step, "POOL_FULL", "pool"),
    "drafts": (busy_drafts, "POOL_FULL", "pool"),
    "cold slots": (busy_cold_slots, "POOL_FULL", "pool"),
    "slots of a load": (busy_pool_of_a_load, "POOL_FULL", "pool"),
    "loads": (busy_loads, "BACKPRESSURE", "load"),
    "live requests": (busy_scheduler, "BACKPRESSURE", "scheduler"),
    "another scheduler": (busy_scheduler_of_another, "BACKPRESSURE", "scheduler"),
    "the row of a reservation": (busy_rows_of_a_reservation, "BACKPRESSURE", "requests"),
}


@pytest.mark.parametrize("place", NOT_NOW)
def test_what_is_taken_now_is_granted_once_it_is_given_back(place: str) -> None:
    begin, reason, layer = NOT_NOW[place]
    call, others_end = begin()
    assert refused(call) == (reason, layer)
    assert reason in {word.name for word in FOR_ROOM}
    others_end()
    call()


def test_no_word_means_both() -> None:
    assert Reason.CAPACITY not in FOR_ROOM
    assert Reason.CAPACITY.reason.startswith("never: ")
    assert all(Reason[word.name].reason.startswith("not now: ") for word in FOR_ROOM if isinstance(word, Reason))


# ---- admission ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slots", "rows", "layer"), [(4, 8, "pool"), (9, 0, "requests")])
def test_admission_rejects_what_can_never_begin(slots: int, rows: int, layer: str) -> None:
    manager = make(slots, LLAMA, rows=rows)
    keys = manager.keys(range(5 * A))
    found = Admission(manager).admit(manager.match(keys), 5 * A)
    assert isinstance(found, Rejected) and (found.reason, found.layer) == (Reason.CAPACITY, layer)


def test_admission_defers_for_rows_and_loads_and_says_which() -> None:
    """Who lacks a row lacks room. Who lacks a load does not: other requests may begin meanwhile."""
    manager, _ = stored_plan(3, slots=9)
    keys, admission = manager.keys(prompt(1, 3 * A + 1)), Admission(manager)
    answer = manager.match(keys)
    manager.loader._free.clear()  # as if they were all open
    found = admission.admit(answer, keys.tokens)
    assert isinstance(found, Deferred) and (found.reason, found.layer) == (Reason.BACKPRESSURE, "load")
    assert not found.lacks_room and not manager.reservations
    few = make(9, LLAMA, rows=1)
    few.requests.admit(1)
    found = Admission(few).admit(few.match(few.keys([1])), 1)
    assert isinstance(found, Deferred) and (found.reason, found.layer) == (Reason.BACKPRESSURE, "requests")
    assert found.lacks_room


def test_a_limit_that_is_taken_defers_and_one_that_is_too_small_only_keeps_the_load_away() -> None:
    manager, _ = stored_plan(3, slots=9)
    keys = manager.keys(prompt(1, 3 * A + 1))
    admission = Admission(manager, Limits(requests=1))
    assert isinstance(admission.admit(manager.match(keys), keys.tokens), Reservation)
    other = manager.keys([1])
    found = admission.admit(manager.match(other), 1)
    assert isinstance(found, Deferred) and (found.reason.name, found.layer) == ("FULL", "admission")
    small = Admission(make(9, LLAMA, manager.store), Limits(blocks={"store": 1}))
    decision = small.admit(small._manager.match(keys), keys.tokens)
    assert isinstance(decision, Reservation) and decision.ticket is None  # it computes


def test_the_scheduler_waits_for_rows_and_tells_who_can_never_begin() -> None:
    manager = make(9, DEEPSEEK, rows=1)
    scheduler = Scheduler(manager, ByHand())
    one, two = scheduler.submit(manager.keys([1])), scheduler.submit(manager.keys([2]))
    never = scheduler.submit(manager.keys(range(10 * DEEPSEEK.granule)))
    assert [work.live for work in scheduler.schedule()] == [one]
    assert scheduler.report().deferred == {"BACKPRESSURE": 1} and scheduler.report().rejected == {"CAPACITY": 1}
    assert refused(lambda: never.begun.result(0)) == ("CAPACITY", "pool")
    scheduler.finish(one)
    assert [work.live for work in scheduler.schedule()] == [two]
