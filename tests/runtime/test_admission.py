"""Admission: all or nothing, within limits, and every way that a load can end leaves room for the first step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.admission import Admission, Deferred, Limits, Rejected, Reservation, Stage
from kvfsm.runtime.answers import Answer, Reason
from kvfsm.runtime.audit import audit
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated import Refusal
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.policy import WindowPolicy

from .serving import DEEPSEEK, Shelf, Watched, make, prompt, reserved, stored, within, words, write

A = DEEPSEEK.granule
LLAMA = PROFILES["tiny_llama"]
MODELS = [
    PROFILES[name] for name in ("tiny_deepseek_v4", "tiny_deepseek_v32", "tiny_gemma3", "tiny_gpt_oss", "tiny_llama")
]


def begin(
    slots: Any = 12, *, profile: Any = DEEPSEEK, granules: int = 3, limits: Limits | None = None, **options: Any
) -> tuple[Manager, Admission, Keys, Shelf]:
    """An empty manager over a store that has a prompt's whole granules; each step under the lock is looked at."""
    store, tokens = Shelf(), prompt(1, granules * profile.granule + 4)
    stored(store, [tokens], profile, **({"window": options["window"]} if "window" in options else {}))
    lock = Watched()
    manager = make(slots, profile, store, lock=lambda: lock, **options)
    admission = Admission(manager, limits)

    def look() -> None:
        wrong = [*reserved(manager), *within(admission), *audit(manager).violations]
        assert not wrong, wrong

    lock.after = look
    return manager, admission, manager.keys(tokens), store


def admitted(admission: Admission, answer: Answer, tokens: int, **options: Any) -> Reservation:
    found = admission.admit(answer, tokens, **options)
    assert isinstance(found, Reservation), found
    return found


def over(manager: Manager, admission: Admission) -> None:
    """Nothing is held any more."""
    held = (manager.receipts, manager.reservations, dict(manager.tickets), manager.parked, manager.given_up)
    assert not any(held) and not manager.requests.active.any()
    assert not admission.words.fields("count").any()
    assert manager.audit().violations == ()


@pytest.mark.parametrize("profile", MODELS, ids=lambda one: one.name)
@pytest.mark.parametrize("step", [None, 1, 2])
def test_a_load_and_its_row_are_reserved_at_once(profile: Any, step: int | None) -> None:
    manager, admission, keys, _ = begin(24, profile=profile, limits=Limits(2, {"store": 60}, {"store": 1 << 30}))
    answer = manager.match(keys)
    one = admitted(admission, answer, keys.tokens, step=None if step is None else step * profile.granule)
    assert one.stage is Stage.LOADING and admission.taken("requests") == 1
    assert answer.plan is not None and admission.taken("blocks from the store") == answer.plan.objects
    assert admission.taken("bytes from the store") == admission.bytes_of(answer)
    assert one.ticket is not None
    one.ticket.transfer()
    assert (one.stage, one.loaded, one.lease is not None and one.lease.length) == (Stage.READY, True, answer.length)
    assert admission.taken("blocks from the store") == admission.taken("bytes from the store") == 0
    row = admission.enter(one)
    assert manager.requests.tokens[row] == one.first == keys.tokens
    manager.requests.finish(row)
    admission.leave(one)
    over(manager, admission)


@pytest.mark.parametrize("profile", MODELS, ids=lambda one: one.name)
@pytest.mark.parametrize("how", ["nothing", "half", "raises", "reset", "aborted"])
def test_a_load_that_fails_leaves_room_to_compute(profile: Any, how: str) -> None:
    """The pools are just as large as what is reserved, so that a slot too few would show."""
    manager, admission, keys, store = begin(40, profile=profile, granules=4)
    one = admitted(admission, manager.match(keys), keys.tokens)
    ticket = one.ticket
    assert ticket is not None
    exact = {kind: len(ticket.all_slots(kind)) + len(held) for kind, held in one.slots.items()}
    manager, admission, keys, store = begin(exact, profile=profile, granules=4)
    one = admitted(admission, manager.match(keys), keys.tokens)
    ticket = one.ticket
    assert ticket is not None and all(manager.core.pools[kind].free == 0 for kind in exact)
    if how == "half":
        lost = {id for id in store.objects if id.kind == "compressed_kv"}
        for id in manager.object_of(keys.digests, keys.salt, "compressed_kv", np.arange(2, 4)):
            assert id in lost
            del store.objects[id]
        ticket.transfer()
    elif how == "raises":

        def gone() -> None:
            raise OSError("the disk has gone")

        store.during = gone
        with pytest.raises(OSError, match="gone"):
            ticket.transfer()
    elif how == "reset":
        manager.reset()
        ticket.transfer()
    elif how == "aborted":
        ticket.abort()
        assert one.stage is Stage.LOADING
        ticket.quiesce()
    else:
        ticket.done(False)
    assert (one.stage, one.loaded) == (Stage.READY, False)
    reused = 0 if one.lease is None else one.lease.length
    assert reused <= (2 * profile.granule if how == "half" else 0)
    row = admission.enter(one)
    assert manager.requests.tokens[row] == keys.tokens
    manager.requests.finish(row)
    admission.leave(one)
    over(manager, admission)


def test_what_arrived_of_a_load_that_failed_is_leased() -> None:
    manager, admission, keys, store = begin(40, profile=LLAMA, granules=4)
    one = admitted(admission, manager.match(keys), keys.tokens)
    (third,) = manager.object_of(keys.digests, keys.salt, "compressed_kv", np.array([2]))
    del store.objects[third]
    assert one.ticket is not None
    one.ticket.transfer()
    assert (one.loaded, one.lease is not None and one.lease.length) == (False, 2 * LLAMA.granule)
    assert {kind: len(slots) for kind, slots in one.slots.items()} == {"compressed_kv": 3}
    admission.cancel(one)
    over(manager, admission)


def test_a_refused_admission_changes_nothing() -> None:
    manager, admission, keys, _ = begin({"compressed_kv": 5}, profile=LLAMA, limits=Limits(3, {"store": 9}))
    held = manager.reserve(manager.keys(prompt(7, 100)), 0, 3)
    before = words(manager, admission)
    found = admission.admit(manager.match(keys), keys.tokens)
    assert isinstance(found, Deferred) and found.reason is Reason.POOL_FULL
    assert words(manager, admission) == before
    manager.abandon(held)
    one = admitted(admission, manager.match(keys), keys.tokens)
    admission.cancel(one)
    assert one.ticket is not None
    one.ticket.quiesce()
    over(manager, admission)


def test_a_stale_answer_takes_nothing() -> None:
    manager, admission, _, _ = begin(12)
    other = manager.keys(prompt(9, 70))
    write(manager, other, 2)
    answer = manager.match(other)
    assert answer.now
    manager.expire(other)
    before = words(manager, admission)
    with pytest.raises(Refused, match="STALE"):
        admission.admit(answer, other.tokens)
    assert words(manager, admission) == before


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (Limits(requests=1), "requests"),
        (Limits(blocks={"store": 12}), "blocks from the store"),
        (Limits(bytes={"store": 1}), "bytes from the store"),
    ],
)
def test_who_is_above_a_limit_waits_until_others_have_ended(limits: Limits, name: str) -> None:
    manager, admission, keys, store = begin(24, limits=limits)
    if name.startswith("bytes"):
        admission = Admission(manager, Limits(bytes={"store": int(admission.bytes_of(manager.match(keys)))}))
    second = prompt(2, keys.tokens)
    stored(store, [second])
    other = manager.keys(second)
    one = admitted(admission, manager.match(keys), keys.tokens)
    before = words(manager, admission)
    found = admission.admit(manager.match(other), other.tokens)
    assert isinstance(found, Deferred) and found.reason is Refusal.FULL and name in found.detail
    assert words(manager, admission) == before
    assert one.ticket is not None
    one.ticket.transfer()
    if name == "requests":
        admission.cancel(one)
    two = admitted(admission, manager.match(other), other.tokens)
    assert two.ticket is not None
    two.ticket.transfer()
    for each in (one, two):
        if each.stage is Stage.READY:
            admission.cancel(each)
    over(manager, admission)


def test_a_load_that_is_too_large_for_its_limit_computes() -> None:
    manager, admission, keys, store = begin(24, limits=Limits(blocks={"store": 3}))
    one = admitted(admission, manager.match(keys), keys.tokens)
    assert (one.stage, one.ticket, one.lease, store.reads) == (Stage.READY, None, None, [])
    admission.cancel(one)
    over(manager, admission)


def test_a_hit_that_does_not_fit_beside_the_row_computes() -> None:
    """The window of the boundary and the row's own don't fit into a pool of one."""
    manager, admission, keys, store = begin(
        {kind: 8 if kind in ("compressed_kv", "indexer_state") else 1 for kind in DEEPSEEK.kinds}
    )
    one = admitted(admission, manager.match(keys), keys.tokens)
    assert (one.stage, one.lease, store.reads) == (Stage.READY, None, [])
    admission.cancel(one)
    write(manager, keys, 1)
    assert manager.match(keys).now == A
    two = admitted(admission, manager.match(keys), keys.tokens)
    assert (two.stage, two.lease) == (Stage.READY, None)
    row = admission.enter(two)
    manager.requests.finish(row)
    admission.leave(two)
    over(manager, admission)


@pytest.mark.parametrize("step", [None, LLAMA.granule])
def test_what_never_fits_is_rejected_and_not_put_off(step: int | None) -> None:
    manager, admission, keys, _ = begin({"compressed_kv": 3}, profile=LLAMA)
    before = words(manager, admission)
    found = admission.admit(manager.match(keys), keys.tokens, step=step)
    assert isinstance(found, Rejected) and found.reason is Reason.CAPACITY and "4 slots" in found.detail
    assert words(manager, admission) == before
    assert isinstance(admission.admit(manager.match(keys, 40), 40, step=step), Reservation)


def test_rows_are_reserved_too() -> None:
    manager, admission, keys, _ = begin(24, rows=1)
    one = admitted(admission, manager.match(keys), keys.tokens)
    other = manager.keys(prompt(5, 20))
    found = admission.admit(manager.match(other), other.tokens)
    assert isinstance(found, Deferred) and found.reason is Reason.BACKPRESSURE and found.lacks_room
    admission.cancel(one)
    assert one.ticket is not None
    one.ticket.quiesce()
    two = admitted(admission, manager.match(other), other.tokens)
    with pytest.raises(Refused, match="all 1 rows are taken, or promised"):
        manager.requests.admit(3)  # somebody who doesn't ask here
    manager.requests.finish(admission.enter(two))
    admission.leave(two)
    over(manager, admission)


def test_a_load_is_tried_again_with_what_is_reserved() -> None:
    manager, admission, keys, store = begin(24, limits=Limits(1, {"store": 12}))
    one = admitted(admission, manager.match(keys), keys.tokens)
    store.fails = lambda: True
    assert one.ticket is not None
    one.ticket.transfer()
    assert one.stage is Stage.READY and one.loaded is False
    store.fails = lambda: False
    assert admission.reload(one, manager.match(keys))
    assert one.stage is Stage.LOADING and admission.taken("requests") == 1
    one.ticket.transfer()
    assert one.loaded is True and one.lease is not None and one.lease.length == 3 * A
    assert not admission.reload(one, manager.match(keys))  # there is nothing to load any more
    admission.cancel(one)
    over(manager, admission)


def test_a_second_load_after_a_reset_begins_where_nothing_is_read() -> None:
    manager, admission, keys, store = begin(24, profile=LLAMA)
    step = LLAMA.granule
    write(manager, keys, 2)
    one = admitted(admission, manager.match(keys), keys.tokens, step=step)
    store.fails = lambda: True
    assert one.ticket is not None and one.first == 3 * step
    one.ticket.transfer()
    assert one.first == 3 * step and one.lease is not None
    manager.reset()
    stored(store, [prompt(1, keys.tokens)], LLAMA)
    store.fails = lambda: False
    assert admission.reload(one, manager.match(keys))
    assert one.stage is Stage.LOADING and one.lease is None and one.first == step
    one.ticket.transfer()
    assert one.lease is not None and one.first == keys.tokens
    admission.cancel(one)
    over(manager, admission)


def test_a_second_load_for_which_there_is_no_room_leaves_the_first_reservation() -> None:
    manager, admission, keys, store = begin(24, profile=LLAMA, limits=Limits(blocks={"store": 3}))
    one = admitted(admission, manager.match(keys), keys.tokens)
    store.fails = lambda: True
    assert one.ticket is not None
    one.ticket.transfer()
    second = prompt(2, keys.tokens)
    stored(store, [second], LLAMA)
    other = manager.keys(second)
    two = admitted(admission, manager.match(other), other.tokens)
    held = {kind: len(slots) for kind, slots in one.slots.items()}
    assert not admission.reload(one, manager.match(keys))
    assert one.stage is Stage.READY and {kind: len(slots) for kind, slots in one.slots.items()} == held
    for each in (one, two):
        admission.cancel(each)
    assert two.ticket is not None
    two.ticket.quiesce()
    over(manager, admission)


@pytest.mark.parametrize("done", [False, True])
def test_bytes_that_still_arrive_keep_their_slots_quarantined(done: bool) -> None:
    manager, admission, keys, store = begin(24, limits=Limits(2, {"store": 12}))
    one = admitted(admission, manager.match(keys), keys.tokens)
    ticket, device = one.ticket, [False]
    assert ticket is not None

    def cancel() -> None:
        store.during = lambda: None
        admission.cancel(one, done=(lambda: device[0]) if done else None)
        quarantined = manager.audit().counts["compressed_kv"]["quarantined"]
        assert (one.stage, ticket.state, quarantined) == (Stage.ENDED, "aborted", 3)
        assert admission.taken("requests") == 0 and admission.taken("blocks from the store") == ticket.plan.objects
        assert bool(manager.given_up) is done

    store.during = cancel
    ticket.transfer()
    assert ticket.state == "late" and admission.taken("blocks from the store") == 0
    device[0] = True
    manager.evict("compressed_kv", 0)
    over(manager, admission)
    assert manager.match(keys).now == 0


def test_a_load_that_others_wait_for_goes_on() -> None:
    manager, admission, keys, _ = begin(24)
    one = admitted(admission, manager.match(keys), keys.tokens, owner="a")
    found = admission.admit(manager.match(keys), keys.tokens, owner="b")
    assert isinstance(found, Deferred) and found.reason is Refusal.BUSY and found.ticket is one.ticket
    with manager.lock:
        found.ticket.join("b")
    admission.cancel(one)
    assert found.ticket.state == "open"
    found.ticket.transfer()
    two = admitted(admission, manager.match(keys), keys.tokens, owner="b")
    assert two.stage is Stage.READY and two.lease is not None and two.lease.length == 3 * A
    admission.cancel(two)
    over(manager, admission)


def cancelled(manager: Manager, admission: Admission, one: Reservation) -> None:
    admission.cancel(one)


def entered(manager: Manager, admission: Admission, one: Reservation) -> None:
    manager.requests.finish(admission.enter(one))
    admission.leave(one)


@pytest.mark.parametrize("end", [cancelled, entered])
def test_what_has_ended_is_refused(end: Callable[[Manager, Admission, Reservation], None]) -> None:
    manager, admission, keys, _ = begin(24)
    one = admitted(admission, manager.match(keys, 20), 20)
    end(manager, admission, one)
    for call in (
        admission.enter,
        admission.leave,
        admission.cancel,
        lambda one: admission.reload(one, manager.match(keys)),
    ):
        with pytest.raises(Refused, match="LEASE"):
            call(one)
    over(manager, admission)


def test_what_a_device_query_raises_leaves_a_reservation_as_it_was() -> None:
    manager, admission, keys, _ = begin(24)
    one = admitted(admission, manager.match(keys, 20), 20)

    def broken() -> bool:
        raise OSError("no device")

    with pytest.raises(OSError, match="no device"):
        admission.cancel(one, done=broken)
    assert one.stage is Stage.READY
    admission.cancel(one)
    over(manager, admission)


def test_a_clock_that_raises_leaves_a_reservation_as_it_was() -> None:
    broken = [False]
    count = itertools.count(1)

    def clock() -> int:
        if broken[0]:
            raise OSError("no clock")
        return next(count)

    manager, admission, keys, _ = begin(24, clock=clock)
    fill = manager.reserve(keys, 0, 1)
    write(manager, keys, 1)
    manager.publish(fill)
    one = admitted(admission, manager.match(keys, A + 1), A + 1)
    assert one.lease is not None
    before = words(manager, admission)
    broken[0] = True
    for call in (admission.cancel, admission.enter):
        with pytest.raises(OSError, match="no clock"):
            call(one)
        assert one.stage is Stage.READY and words(manager, admission) == before
    broken[0] = False
    admission.cancel(one)
    over(manager, admission)


@pytest.mark.parametrize("limit", [{"at_most": 2 * A}, {"draft": A}, {"tokens": 2 * A + 1}], ids=str)
def test_what_a_match_was_told_holds_when_its_load_has_ended(limit: dict[str, Any]) -> None:
    """S10, S11, S28: others may have published more meanwhile."""
    manager, admission, keys, _ = begin(24)
    answer = manager.match(keys, **limit)
    assert answer.length == 2 * A and answer.plan is not None
    one = admitted(admission, answer, limit.get("tokens", keys.tokens))
    fill = manager.reserve(keys, 0, 3)
    write(manager, keys, 3)
    manager.publish(fill)
    assert one.ticket is not None
    one.ticket.transfer()
    assert one.lease is not None and one.lease.length == one.answer.now == 2 * A
    entered(manager, admission, one)


def test_a_load_answers_within_the_limits_of_its_match() -> None:
    manager, _, keys, _ = begin(24)
    answer = manager.match(keys, at_most=2 * A)
    fill = manager.reserve(keys, 0, 3)
    write(manager, keys, 3)
    manager.publish(fill)
    assert answer.plan is not None and manager.load(answer.plan).length == 2 * A


def test_a_window_that_is_kept_nowhere_is_replayed() -> None:
    manager, admission, keys, _ = begin(24, window=WindowPolicy.none())
    one = admitted(admission, manager.match(keys), keys.tokens)
    assert one.ticket is not None
    one.ticket.transfer()
    assert one.lease is not None and one.lease.replay is not None and not one.lease.exact
    entered(manager, admission, one)
    over(manager, admission)


def test_packed_kv_is_expanded_under_its_own_limit() -> None:
    manager = make(24, LLAMA, cold=8)
    admission = Admission(manager, Limits(blocks={"packed": 3}))
    keys = manager.keys(prompt(1, 3 * LLAMA.granule + 4))
    write(manager, keys, 3)
    assert manager.pack(keys, 1) == 2
    assert manager.match(keys).now == LLAMA.granule
    one = admitted(admission, manager.match(keys), keys.tokens)
    assert (one.stage, admission.taken("blocks from the packed")) == (Stage.LOADING, 2)
    assert one.ticket is not None
    one.ticket.transfer()
    assert one.lease is not None and one.lease.length == 3 * LLAMA.granule
    admission.cancel(one)
    over(manager, admission)


def test_a_reset_between_load_and_step_interrupts_nobody() -> None:
    manager, admission, keys, _ = begin(24)
    one = admitted(admission, manager.match(keys), keys.tokens)
    assert one.ticket is not None
    one.ticket.transfer()
    manager.reset()
    assert one.stage is Stage.READY and one.lease is not None and one.lease.length == 3 * A
    entered(manager, admission, one)
    over(manager, admission)


def test_after_a_reset_others_may_read_what_a_failed_load_had_leased() -> None:
    """Then there may be too little room to compute in: the reservation ends, and nothing is left of it."""
    manager, admission, keys, _ = begin({"compressed_kv": 6}, profile=LLAMA, granules=5)
    write(manager, keys, 3)
    other = manager.acquire(manager.match(keys))
    store_only = manager.match(keys)
    assert (store_only.now, store_only.length) == (3 * LLAMA.granule, 5 * LLAMA.granule)
    one = admitted(admission, store_only, keys.tokens)
    assert one.ticket is not None
    manager.reset()
    one.ticket.transfer()
    assert one.stage is Stage.ENDED
    manager.release(other)
    over(manager, admission)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (lambda: Limits(requests=0), "at most 0 requests"),
        (lambda: Limits(blocks={"tape": 1}), "tiers \\['tape'\\]"),
        (lambda: Limits(bytes={"store": 0}), "0 bytes from the store"),
    ],
)
def test_bad_limits_are_named(limits: Callable[[], Limits], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        limits()


def test_bad_calls_are_named() -> None:
    manager, admission, keys, _ = begin(24)
    answer = manager.match(keys)
    with pytest.raises(ValueError, match="the answer covers 96"):
        admission.admit(answer, 96)
    with pytest.raises(ValueError, match="a prompt of 99 tokens, and the match was told 100"):
        admission.admit(answer, 99)
    with pytest.raises(ValueError, match="steps of 5 tokens"):
        admission.admit(answer, 100, step=5)
    with pytest.raises(ValueError, match="several requests"):
        admission.admit(manager.match_shared([(keys, 70), (keys, 80)]), 100)
    pool = manager.core.pools["compressed_kv"]
    with manager.lock, pytest.raises(ValueError, match="-2 slots of compressed_kv"):
        pool.take(-2, pool.rules.take())


def test_a_limit_that_is_passed_would_be_seen() -> None:
    manager, admission, _, _ = begin(24, limits=Limits(requests=1))
    with manager.lock:
        admission.words.take([0], amount=np.array([2]), limit=np.array([9]))
        assert within(admission) == ["S25: 2 requests, at most 1"]
        admission.words.give_back([0], amount=np.array([2]))


def test_a_reservation_that_is_too_small_would_be_seen() -> None:
    manager, admission, keys, _ = begin(24)
    one = admitted(admission, manager.match(keys, 20), 20)
    held, one.slots = one.slots, {kind: slots[:0] for kind, slots in one.slots.items()}
    assert "is ready with" in reserved(manager)[0]
    one.slots = held
    admission.cancel(one)


def test_another_managers_answer_is_refused_before_anything_is_taken() -> None:
    manager, admission, keys, _ = begin()
    other, *_ = begin()
    answer = other.match(keys)
    assert answer.plan is not None
    with pytest.raises(Refused, match="another manager"):
        admission.admit(answer, keys.tokens)
    over(manager, admission)
