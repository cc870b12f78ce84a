"""Tickets: what waits for one, who ends it and when, and what is left of a load that fails in its middle."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.answers import AnswerKind, Plan
from kvfsm.runtime.errors import Broken, Poisoned, Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.loading import Loader
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.matching import Request
from kvfsm.runtime.stores.store import Found, ObjectId, Verdict
from kvfsm.runtime.ticket import Ticket

from .test_loading import A, Shelf, audited, check_bytes, make, prompt_keys, put, stored

PROFILE = PROFILES["tiny_deepseek_v4"]


class Meddled(Shelf):
    """A store that lets a test act while objects are read, once, after so many reads of a kind."""

    def __init__(self, objects: Shelf) -> None:
        super().__init__()
        self.objects = objects.objects
        self.reads = 0
        self.act: Callable[[], None] | None = None

    def get_many(self, ids: Sequence[ObjectId], into: Sequence[Any]) -> list[Found]:
        self.reads += len(ids)
        found = super().get_many(ids, into)
        act, self.act = self.act, None
        if act is not None:
            act()
        return found


def meddled(granules: int = 4) -> tuple[Meddled, Manager, Keys]:
    store = Meddled(stored(granules))
    manager = make(store, writes="none")
    return store, manager, prompt_keys(manager, granules)


def plan_of(manager: Manager, keys: Keys) -> Plan:
    plan = manager.match(keys).plan
    assert plan is not None
    return plan


def frozen(manager: Manager) -> Any:
    """All that a refusal may not change: words, free stacks, open tickets, and what the index holds."""
    pools = {
        kind: (pool.table.words.tolist(), pool.free_slots.tolist()) for kind, pool in manager.core.pools.items()
    }
    tickets = {number: one.state for number, one in manager.tickets.items()}, manager.loader.words.words.tolist()
    return pools, tickets, manager.core.index.nbytes


def refused(manager: Manager, call: Callable[..., object], *given: Any, **named: Any) -> str:
    """The word of a refusal, which changed nothing."""
    before = frozen(manager)
    with pytest.raises(Refused) as error:
        call(*given, **named)
    assert frozen(manager) == before
    return error.value.refusal.name


def held(manager: Manager) -> dict[str, int]:
    return {kind: pool.hot - pool.free for kind, pool in manager.core.pools.items()}


def land_all(manager: Manager, ticket: Ticket) -> None:
    for kind in manager.core.paged:
        for layer in range(len(manager.profile.layouts[kind].layers)):
            ticket.land(kind, layer)
    for kind in manager.core.trailing:
        ticket.land(kind)


# ---- a load as a step of a larger one -------------------------------------------------------------------------------


def test_a_load_and_what_stands_beside_it_get_room_together_or_not_at_all() -> None:
    manager = make(stored(), slots=6, writes="none")
    other = prompt_keys(manager, 3, seed=9)
    put(manager, other, 0, 3)  # in the way, and evictable
    plan = plan_of(manager, prompt_keys(manager, 4))
    with manager.lock:
        for beside, why in (({"compressed_kv": 3}, "CAPACITY"), ({"swa_window": 6}, "CAPACITY")):
            assert refused(manager, manager.loader.open, plan, "r", beside=beside) == why
    lease = manager.acquire(manager.match(other))
    with manager.lock:
        assert refused(manager, manager.loader.open, plan, "r", beside={"indexer_state": 0}) == "POOL_FULL"
    manager.release(lease)
    with manager.lock:
        ticket = manager.loader.open(plan, "r", beside={"compressed_kv": 2, "uncompressed_tail": 5})
        slots = manager.take({"compressed_kv": 2, "uncompressed_tail": 5}, "take")
    assert {kind: len(taken) for kind, taken in slots.items()} == {"compressed_kv": 2, "uncompressed_tail": 5}
    assert manager.match(other).now == 0  # evicted, in both kinds that were asked for more than was free
    for kind, taken in slots.items():
        pool = manager.core.pools[kind]
        pool.abandon(taken)
    ticket.transfer()
    assert manager.match(prompt_keys(manager, 4)).now == 4 * A
    audited(manager)


def test_what_the_device_has_left_is_room_for_a_load() -> None:
    manager = make(stored(), slots=4, writes="none")
    fill = manager.reserve(prompt_keys(manager, 4, seed=9), 0, 4)
    plan, over = plan_of(manager, prompt_keys(manager, 4)), False
    manager.abandon(fill, done=lambda: over)
    assert refused(manager, manager.load_begin, plan) == "POOL_FULL"
    over = True
    manager.load_begin(plan).transfer()
    assert manager.match(prompt_keys(manager, 4)).now == 4 * A
    audited(manager)


def test_memory_is_asked_alone_and_leased_in_the_same_step() -> None:
    class Unasked(Shelf):
        def contains(self, ids: Sequence[ObjectId]) -> Any:
            raise AssertionError("the store was asked")

    manager = make(Unasked(), writes="none")
    keys = prompt_keys(manager, 4)
    put(manager, keys, 0, 3)
    with manager.lock:
        answer = manager.matcher.in_memory(Request(keys, None))
        (lease,) = manager.acquire_now(answer, "r")
        shorter = manager.matcher.in_memory(Request(keys, None), at_most=2 * A + 5)
        nothing = manager.matcher.in_memory(Request(prompt_keys(manager, 4, seed=5), None))
        assert refused(manager, manager.acquire_now, nothing, "r") == "INTERSECT"
        foreign = manager.matcher.in_memory(Request(Keys(A, "another model", np.arange(100)), None))
    assert (answer.kind, answer.length, answer.plan) == (AnswerKind.HIT, 3 * A, None)
    assert (shorter.kind, shorter.length, nothing.kind) == (AnswerKind.HIT, 2 * A, AnswerKind.MISS)
    assert (foreign.kind, foreign.reason) == (AnswerKind.REJECT, "IDENTITY")
    assert (lease.length, lease.owner) == (3 * A, "r")
    check_bytes(lease)
    manager.release(lease)
    audited(manager)


class Unclean(NumpyBackend):
    """A backend that can clear slots so many times, and then fails."""

    left: int | None = None

    def scrub(self, *given: Any) -> None:
        if self.left is not None:
            if not self.left:
                raise OSError("can't be cleared")
            self.left -= 1
        super().scrub(*given)


def test_a_load_whose_slots_cannot_be_cleared_takes_none() -> None:
    backend, failed = Unclean(), 0
    manager = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 8), backend, store=Shelf(), cold=8)
    prompt = np.arange(4 * A + 3)
    ours, theirs = (manager.keys(prompt, salt=salt) for salt in (b"a", b"b"))
    put(manager, ours, 0, 4)
    assert manager.pack(ours, 1) == 3
    manager.evict("indexer_state", 3)
    manager.evict("uncompressed_tail", 4)
    put(manager, theirs, 0, 3)
    manager.expire(theirs)
    plan = plan_of(manager, ours)
    assert plan.expand and len(plan.wanted) == 2
    for calls in itertools.count():
        backend.left = calls
        before = held(manager)
        try:
            ticket = manager.load_begin(plan)
        except OSError:
            failed += 1
            assert held(manager) == before and not manager.tickets
            assert not manager.core.pools["compressed_kv"].table.fields("holds").any()
            audited(manager)
        else:
            break
    assert failed == 2  # at the expansion's slots, and at the indexer's behind them
    backend.left = None
    ticket.transfer()
    assert manager.match(ours).now == 4 * A
    audited(manager)


# ---- then ------------------------------------------------------------------------------------------------------------


ENDINGS: dict[str, Callable[[Manager, Ticket], None]] = {
    "done": lambda manager, ticket: ticket.transfer(),
    "failed": lambda manager, ticket: ticket.done(False),
    "late": lambda manager, ticket: (ticket.abort(), ticket.done())[0],
    "quiesced": lambda manager, ticket: (ticket.abort(), ticket.quiesce())[0],
}


@pytest.mark.parametrize("state", ENDINGS)
def test_who_asked_is_told_once_in_the_step_in_which_a_ticket_ends(state: str) -> None:
    lock = threading.Lock()
    manager = make(stored(), writes="none", lock=lambda: lock)
    keys, told = prompt_keys(manager, 4), []
    ticket = manager.load_begin(plan_of(manager, keys), owner="r")

    def tell(name: str) -> Callable[[Ticket], None]:
        def call(ended: Ticket) -> None:
            assert ended is ticket and ended.ended and ended.ticket_id not in manager.tickets
            assert lock.locked()
            now = manager.matcher.in_memory(Request(keys, None)).now
            assert now == (4 * A if state == "done" else 0)
            assert (sum(held(manager).values()) == 0) == (state != "done")
            told.append((name, ended.state))

        return call

    with manager.lock:
        ticket.then(tell("first"))
        ticket.then(tell("second"))
    assert told == []
    ENDINGS[state](manager, ticket)
    assert told == [("first", state), ("second", state)]
    with manager.lock:
        ticket.then(tell("afterwards"))
    assert told[2:] == [("afterwards", state)]
    for call in (ticket.done, ticket.abort, ticket.quiesce, ticket.transfer):
        assert refused(manager, call) == "LEASE"
    assert len(told) == 3
    audited(manager)


def test_one_who_is_told_can_lease_before_anybody_evicts() -> None:
    manager = make(stored(), slots=4, writes="none")
    keys, leases = prompt_keys(manager, 4), []
    ticket = manager.load_begin(plan_of(manager, keys))
    with manager.lock:
        ticket.then(lambda _: leases.extend(manager.acquire_now(manager.matcher.in_memory(Request(keys, None)), "r")))
    ticket.transfer()
    for kind in PROFILE.kinds:
        manager.evict(kind, 9)
    check_bytes(leases[0])
    manager.release(leases[0])
    audited(manager)


def test_all_are_told_though_one_of_them_raises() -> None:
    manager = make(stored(), writes="none")
    ticket, told = manager.load_begin(plan_of(manager, prompt_keys(manager, 4))), []

    def fails(_: Ticket) -> None:
        raise OSError("one of them")

    with manager.lock:
        for call in (lambda _: told.append(1), fails, lambda _: told.append(2)):
            ticket.then(call)
    with pytest.raises(OSError, match="one of them"):
        ticket.transfer()
    assert (told, ticket.state) == ([1, 2], "done")
    assert manager.match(prompt_keys(manager, 4)).now == 4 * A
    audited(manager)


# ---- transfer --------------------------------------------------------------------------------------------------------


def test_a_transfer_that_breaks_fails_its_ticket_and_blames_no_object() -> None:
    store, manager, keys = meddled()
    ticket = manager.load_begin(plan_of(manager, keys))

    def breaks() -> None:
        raise OSError("the wire")

    store.act = breaks
    with pytest.raises(OSError, match="the wire"):
        ticket.transfer()
    assert (ticket.state, ticket.kept, manager.loader.attempts.failing) == ("failed", 0, 0)
    assert sum(held(manager).values()) == 0
    assert manager.load(plan_of(manager, keys)).now == 4 * A
    audited(manager)


def test_an_abort_stops_a_transfer_after_the_kind_that_is_being_read() -> None:
    store, manager, keys = meddled()
    ticket = manager.load_begin(plan_of(manager, keys))

    def abort() -> None:
        ticket.abort()
        assert manager.audit().counts["compressed_kv"]["quarantined"] == 4
        assert refused(manager, ticket.quiesce) == "LEASE"  # bytes may still come

    store.act = abort
    ticket.transfer()
    assert (ticket.state, store.reads, sum(held(manager).values())) == ("late", 4, 0)
    assert manager.match(keys).now == 0
    audited(manager)


def test_a_load_that_is_aborted_before_its_transfer_begins_reads_nothing() -> None:
    store, manager, keys = meddled()
    ticket = manager.load_begin(plan_of(manager, keys))
    ticket.abort()
    ticket.transfer()
    assert (ticket.state, store.reads, sum(held(manager).values())) == ("late", 0, 0)
    audited(manager)


def test_nobody_else_ends_a_load_while_its_transfer_runs() -> None:
    store, manager, keys = meddled()
    ticket, words = manager.load_begin(plan_of(manager, keys)), []

    def meddle() -> None:
        words.extend(refused(manager, call) for call in (ticket.done, ticket.quiesce, ticket.transfer))
        words.append(refused(manager, ticket.done, False, missing={}))
        words.append(refused(manager, ticket.land, "compressed_kv"))
        words.append(refused(manager, ticket.miss, "compressed_kv", [0]))

    store.act = meddle
    ticket.transfer()
    assert words == ["LEASE"] * 6
    assert (ticket.state, ticket.kept) == ("done", 4)
    with manager.acquire(manager.match(keys)) as lease:
        check_bytes(lease)
    audited(manager)


def test_bytes_of_an_ended_epoch_are_dropped_when_their_transfer_ends() -> None:
    store, manager, keys = meddled()
    ticket = manager.load_begin(plan_of(manager, keys))
    store.act = lambda: void(manager.reset())
    ticket.transfer()
    assert (ticket.state, ticket.kept, manager.match(keys).kind) == ("failed", 0, AnswerKind.MISS)
    assert sum(held(manager).values()) == 0
    audited(manager)


def void(_: object) -> None:
    """Nothing is returned."""


@pytest.mark.parametrize("length", [0, 1, -1])
def test_an_object_of_another_length_is_as_good_as_missing(length: int) -> None:
    class Short(Shelf):
        def get(self, id: ObjectId, into: Any) -> Found:
            found = super().get(id, into)
            return Found(found.verdict, found.meta, length if length >= 0 else found.length - 1)

    store = Short()
    store.objects = stored(1).objects
    manager = make(store, writes="none")
    ticket = manager.load_begin(plan_of(manager, prompt_keys(manager, 1)))
    ticket.transfer()
    assert ticket.state == "failed" and sum(held(manager).values()) == 0
    audited(manager)


# ---- at every step ---------------------------------------------------------------------------------------------------


PAGED = ("compressed_kv", "indexer_state")
LANDINGS = [(kind, layer) for kind in PAGED for layer in range(len(PROFILE.layouts[kind].layers))]
STEPS = len(LANDINGS) + 1  # and the end


def steps_of(ticket: Ticket) -> list[Callable[[], object]]:
    """What an engine's own loader tells of a load that goes well."""
    return [*(partial(ticket.land, kind, layer) for kind, layer in LANDINGS), ticket.done]


@pytest.mark.parametrize("end", ["done", "failed", "quiesced"])
@pytest.mark.parametrize("at", range(STEPS))
def test_an_abort_at_any_step_frees_every_slot_once(at: int, end: str) -> None:
    manager = make(stored(), slots=4, writes="none")
    keys = prompt_keys(manager, 4)
    ticket = manager.load_begin(plan_of(manager, keys))
    steps = steps_of(ticket)
    for step in steps[:at]:
        step()
    ticket.abort()
    assert refused(manager, manager.reserve, keys, 0, 1) == "POOL_FULL"  # bytes may still come to the slots
    for step in steps[at:-1]:
        assert refused(manager, step) == "LEASE"
    assert refused(manager, ticket.abort) == "LEASE"
    if end == "quiesced":
        ticket.quiesce()
    else:
        ticket.done(end == "done")
    assert ticket.state == ("quiesced" if end == "quiesced" else "late")
    assert sum(held(manager).values()) == 0 and not manager.tickets
    for step in (*steps, ticket.quiesce, lambda: ticket.done(False)):
        assert refused(manager, step) == "LEASE"
    assert manager.match(keys).now == 0
    audited(manager)


@pytest.mark.parametrize("at", range(STEPS))
def test_a_landing_that_is_told_twice_or_too_early_changes_nothing(at: int) -> None:
    manager = make(stored(), writes="none")
    keys = prompt_keys(manager, 4)
    ticket = manager.load_begin(plan_of(manager, keys))
    steps = steps_of(ticket)
    for step in steps[:at]:
        step()
    landed = Counter(kind for kind, _ in LANDINGS[:at])
    for early in LANDINGS[at:]:
        if early[1] > landed[early[0]]:
            assert refused(manager, ticket.land, *early) == "GAP"
    for late in steps[:at]:
        assert refused(manager, late) == "GAP"
    if at < STEPS - 1:
        assert refused(manager, ticket.done) == "INCOMPLETE"
    for step in steps[at:]:
        step()
    assert manager.match(keys).now == 4 * A
    for step in steps:
        assert refused(manager, step) == "LEASE"
    audited(manager)


def test_a_completion_of_another_managers_load_means_nothing_here() -> None:
    managers = [make(stored(), writes="none") for _ in range(2)]
    tickets = [manager.load_begin(plan_of(manager, prompt_keys(manager, 4))) for manager in managers]
    assert tickets[0].ticket_id == tickets[1].ticket_id
    assert refused(managers[0], managers[0].loader.done, tickets[1], False) == "LEASE"
    assert refused(managers[0], managers[0].loader.abort, tickets[1]) == "LEASE"
    for manager, ticket in zip(managers, tickets, strict=True):
        ticket.transfer()
        audited(manager)


# ---- several who wait ------------------------------------------------------------------------------------------------


def test_of_two_who_wait_the_last_to_leave_aborts() -> None:
    manager = make(stored(), writes="none")
    keys = prompt_keys(manager, 4)
    ticket = manager.load_begin(plan_of(manager, keys), owner="one")
    assert plan_of(manager, keys).ticket == ticket.ticket_id
    with manager.lock:
        ticket.join("two")
        assert refused(manager, ticket.leave, "three") == "LEASE"
        assert not ticket.leave("one")
        assert refused(manager, ticket.leave, "one") == "LEASE"
    assert (ticket.state, ticket.waiting) == ("open", ["two"])
    with manager.lock:
        assert ticket.leave("two")
        assert refused(manager, ticket.join, "four") == "LEASE"
    assert ticket.state == "aborted"
    assert plan_of(manager, keys).ticket is None
    ticket.quiesce()
    assert sum(held(manager).values()) == 0
    audited(manager)


def word_of(ticket: Ticket) -> tuple[str, int]:
    """State of a ticket's word, and how many wait for it."""
    words, at = ticket.loader.words, [ticket.word.place]
    return words.STATES(int(words.states(at)[0])).name.lower(), int(words.fields("waiters", at)[0])


def test_a_tickets_word_goes_with_it_and_is_anothers_afterwards() -> None:
    _, manager, keys = meddled()
    ticket = manager.load_begin(plan_of(manager, keys), owner="one")
    with manager.lock:
        ticket.join("two")
    assert word_of(ticket) == ("open", 2)
    ticket.land("compressed_kv")
    assert word_of(ticket) == ("landing", 2)
    with manager.lock:
        ticket.leave("one")
        assert word_of(ticket) == ("landing", 1)
        ticket.leave("two")
    assert word_of(ticket) == ("aborted", 0)
    ticket.quiesce()
    assert word_of(ticket) == ("absent", 0)

    after = manager.load_begin(plan_of(manager, keys), owner="three")
    assert after.word.place == ticket.word.place and after.word.generation == ticket.word.generation + 1
    assert refused(manager, ticket.done) == "LEASE"
    ended: list[tuple[str, int]] = []
    with manager.lock:
        after.then(lambda one: ended.append(word_of(one)))
    after.transfer()
    assert ended == [("absent", 0)] and after.state == "done"  # read by all who waited, in one step


def test_control_a_word_that_has_ended_keeps_its_ticket_from_ending() -> None:
    """What ``state`` says is not enough: the word decides."""
    _, manager, keys = meddled()
    ticket = manager.load_begin(plan_of(manager, keys))
    with manager.lock:
        words, at = manager.loader.words, [ticket.word.place]
        assert not words.complete(at, expected=ticket.word.generation, of=ticket.word.of, ok=False).any()
    with pytest.raises(Broken, match="S27 is broken: the word of ticket 1 refuses 'land'"):
        ticket.transfer()
    with pytest.raises(Poisoned):
        manager.match(keys)


def test_more_loads_than_there_are_words_are_refused() -> None:
    _, manager, keys = meddled()
    manager.loader._free.clear()
    assert refused(manager, manager.load_begin, plan_of(manager, keys)) == "BACKPRESSURE"


def test_who_stays_gets_what_the_other_no_longer_wants() -> None:
    manager = make(stored(), writes="none")
    keys = prompt_keys(manager, 4)
    ticket = manager.load_begin(plan_of(manager, keys), owner="one")
    with manager.lock:
        ticket.join("two")
        ticket.join("two")  # twice: it leaves twice
        for owner in ("one", "two"):
            assert not ticket.leave(owner)
    ticket.transfer()
    assert (ticket.state, manager.match(keys).now) == ("done", 4 * A)
    with manager.lock:
        assert not ticket.leave("two")  # too late to abort, and nobody's harm
    audited(manager)


@pytest.mark.parametrize("seed", range(8))
def test_threads_that_join_and_leave_while_bytes_move_lose_nothing(seed: int) -> None:
    """The load ends as done or as late, everybody is told once, and whoever stayed to the end finds it."""
    _, manager, keys = meddled()
    ticket, told, waits = manager.load_begin(plan_of(manager, keys), owner="0"), [], seed % 4
    start, said = threading.Barrier(6), threading.Barrier(7)

    def wait_for_it(name: str, leaves: bool) -> None:
        start.wait()
        with manager.lock:
            try:
                if name != "0":
                    ticket.join(name)
            except Refused:
                told.append(name)  # it has ended, or is about to
            else:
                ticket.then(lambda _: told.append(name))
                if leaves:
                    ticket.leave(name)
        said.wait()

    def work() -> None:
        start.wait()
        ticket.transfer()
        said.wait()

    threads = [threading.Thread(target=wait_for_it, args=(str(n), n >= waits)) for n in range(5)]
    threads.append(threading.Thread(target=work))
    for thread in threads:
        thread.start()
    said.wait()
    for thread in threads:
        thread.join()
    assert sorted(told) == list("01234")
    assert ticket.state == "done" if waits else ticket.state in ("done", "late")
    assert manager.match(keys).now == (4 * A if ticket.state == "done" else 0)
    assert sum(held(manager).values()) == (10 if ticket.state == "done" else 0)
    audited(manager)


# ---- what is left of a load that fails -------------------------------------------------------------------------------


class Gappy(Shelf):
    """A store that says it has what it can't give."""

    def __init__(self, objects: Shelf) -> None:
        super().__init__()
        self.objects = dict(objects.objects)
        self.lost: set[ObjectId] = set()

    def get(self, id: ObjectId, into: Any) -> Found:
        if id in self.lost:
            into[:] = 0
            return Found(Verdict.INTEGRITY)
        return super().get(id, into)


GPT = PROFILES["tiny_gpt_oss"]
GRANULES = 4


def of_blocks(store: Shelf | None, **options: Any) -> tuple[Manager, Keys]:
    """A manager of a model whose windows are kept in blocks, so that every boundary can be restored."""
    manager = Manager(GPT, dict.fromkeys(GPT.kinds, 64), NumpyBackend(), store=store, **options)
    return manager, manager.keys(np.arange(GRANULES * GPT.granule + 1))


def in_blocks() -> tuple[Gappy, Manager, Keys]:
    store = Shelf()
    writer, keys = of_blocks(store)
    fill = writer.reserve(keys, 0, GRANULES)
    for kind in fill.kinds:
        for part in GPT.layouts[kind].parts:
            view = fill.view(kind, part.name, part.layer)
            for n, place in enumerate(fill.places[kind].tolist()):
                view[n] = place + 1
    writer.publish(fill)
    gappy = Gappy(store)
    manager, keys = of_blocks(gappy, writes="none")
    return gappy, manager, keys


def place_counts() -> list[tuple[str, int]]:
    _, manager, keys = in_blocks()
    return [(kind, place) for kind, places in plan_of(manager, keys).wanted.items() for place in places.tolist()]


def granule_of(manager: Manager, kind: str, place: int) -> int:
    return int(manager.core.granules(kind, np.array([place]))[0])


def check_left(manager: Manager, keys: Keys, ticket: Ticket, cut: int) -> None:
    """Only what lies before a granule is left, and it can be read as far as windows go."""
    index, core = manager.core.index, manager.core
    spot = index.locate(keys.digests, GRANULES)
    for n, kind in enumerate(core.paged):
        assert index.live(n, spot) <= cut
        wanted = ticket.plan.wanted.get(kind, np.empty(0))
        assert int(np.count_nonzero(wanted < cut)) == held(manager)[kind]
    for trail in range(len(core.trailing)):
        assert index.last(trail, spot, GRANULES) <= cut
    with manager.lock:
        answer = manager.matcher.in_memory(Request(keys, None))
    assert answer.now <= cut * GPT.granule
    if answer.now:
        with manager.acquire(answer) as lease:
            for kind, slots in lease.slots.items():
                places = core.places(kind, answer.now // GPT.granule)
                for part in GPT.layouts[kind].parts:
                    rows = lease.view(kind, part.name, part.layer)
                    assert [set(np.unique(rows[n])) for n in range(len(slots))] == [{place + 1} for place in places]
    audited(manager)


@pytest.mark.parametrize("by_hand", [False, True], ids=["transfer", "by hand"])
@pytest.mark.parametrize(("kind", "place"), place_counts())
def test_of_a_load_with_a_hole_the_whole_granules_before_it_are_left(kind: str, place: int, by_hand: bool) -> None:
    store, manager, keys = in_blocks()
    plan = plan_of(manager, keys)
    (lost,) = manager.object_of(keys.digests, keys.salt, kind, np.array([place]))
    store.lost.add(lost)
    ticket, cut = manager.load_begin(plan), granule_of(manager, kind, place)
    if by_hand:
        fill_by_hand(manager, ticket)
        ticket.miss(kind, [place])
        land_all(manager, ticket)
        assert refused(manager, ticket.done) == "INCOMPLETE"
        ticket.done(False, missing={kind: [place]})
    else:
        ticket.transfer()
    assert (ticket.state, ticket.kept) == ("failed", cut)
    check_left(manager, keys, ticket, cut)
    assert manager.loader.attempts.failing == 1  # the others are sound
    store.lost.clear()
    store.objects.pop(lost)
    left = manager.match(keys)  # the store has found out: the answer is shorter now
    assert left.length <= max(cut, left.now // GPT.granule) * GPT.granule


def fill_by_hand(manager: Manager, ticket: Ticket) -> None:
    """Move the bytes of a ticket as somebody else's loader would."""
    assert manager.store is not None
    claim = ticket.plan.claim
    for kind, places in ticket.plan.wanted.items():
        names = manager.object_of(claim.digests, claim.salt, kind, places)
        arena = manager.core.pools[kind].arena.bytes
        manager.store.get_many(names, [arena[slot] for slot in ticket.slots(kind).tolist()])


def test_every_set_of_holes_cuts_at_the_first() -> None:
    random = np.random.default_rng(4)
    everything = place_counts()
    for _ in range(30):
        store, manager, keys = in_blocks()
        lost = [everything[n] for n in random.choice(len(everything), random.integers(1, 5), replace=False)]
        for kind, place in lost:
            store.lost.update(manager.object_of(keys.digests, keys.salt, kind, np.array([place])))
        ticket = manager.load_begin(plan_of(manager, keys))
        ticket.transfer()
        cut = min(granule_of(manager, *one) for one in lost)
        assert (ticket.state, ticket.kept) == ("failed", cut), lost
        check_left(manager, keys, ticket, cut)


@pytest.mark.parametrize("landed", range(4))
def test_layers_that_have_not_landed_are_missing_too(landed: int) -> None:
    _, manager, keys = in_blocks()
    ticket = manager.load_begin(plan_of(manager, keys))
    fill_by_hand(manager, ticket)
    (kv,), (window,) = manager.core.paged, manager.core.trailing
    layers = len(GPT.layouts[kv].layers)
    for layer in range(layers if landed & 1 else layers - 1):
        ticket.land(kv, layer)
    if landed & 2:
        ticket.land(window)
    ticket.done(False, missing={kv: [3]})
    assert ticket.kept == (0, 2, 0, 3)[landed]  # windows are wanted from granule 2 on
    check_left(manager, keys, ticket, ticket.kept)


@pytest.mark.parametrize("missing", [None, {}, {"compressed_kv": []}])
def test_of_a_failure_without_reasons_nothing_is_left(missing: Any) -> None:
    _, manager, keys = in_blocks()
    ticket = manager.load_begin(plan_of(manager, keys))
    fill_by_hand(manager, ticket)
    land_all(manager, ticket)
    ticket.done(False, missing=missing)
    assert (ticket.state, ticket.kept, sum(held(manager).values())) == ("failed", 0, 0)
    assert manager.loader.attempts.failing == (ticket.plan.objects if missing is None else 0)
    check_left(manager, keys, ticket, 0)


def test_a_reader_of_layers_waits_for_what_is_missing() -> None:
    _, manager, keys = in_blocks()
    ticket = manager.load_begin(plan_of(manager, keys))
    ticket.miss("compressed_kv", [2])
    ticket.land("compressed_kv")
    assert ticket.use_layer(0) is not None
    ticket.done(False)
    assert ticket.kept == 0  # the windows have not landed
    audited(manager)


def test_a_hole_that_an_earlier_load_left_is_all_that_the_next_one_brings() -> None:
    store, manager, keys = in_blocks()
    (lost,) = manager.object_of(keys.digests, keys.salt, "compressed_kv", np.array([2]))
    store.lost.add(lost)
    first = plan_of(manager, keys)
    manager.load(first)
    store.lost.clear()
    second = plan_of(manager, keys)
    assert second.wanted["compressed_kv"].tolist() == [2, 3]
    assert manager.load(second).now == GRANULES * GPT.granule
    assert manager.loader.attempts.failing == 0
    audited(manager)


def test_an_expansion_is_cut_with_the_load_that_it_is_part_of() -> None:
    def packed() -> tuple[Manager, Keys, Gappy]:
        store = Gappy(stored())
        manager = make(store, cold=8, writes="none")
        keys = prompt_keys(manager, 4)
        put(manager, keys, 0, 4)
        assert manager.pack(keys, 1) == 3
        manager.evict("indexer_state", 3)
        return manager, keys, store

    manager, keys, store = packed()
    plan = plan_of(manager, keys)
    assert (plan.expand, plan.wanted["indexer_state"].tolist()) == (range(1, 4), [1, 2, 3])
    assert manager.load(plan).now == 4 * A

    for place in (1, 2, 3):
        manager, keys, store = packed()
        store.lost.update(manager.object_of(keys.digests, keys.salt, "indexer_state", np.array([place])))
        ticket = manager.load_begin(plan_of(manager, keys))
        ticket.transfer()
        assert (ticket.state, ticket.kept) == ("failed", place)
        counts = manager.audit().counts["compressed_kv"]
        assert (counts["resident"], counts["packed"]) == (place, 4 - place)
        spot = manager.core.index.locate(keys.digests, 4)
        assert [manager.core.index.ready(n, spot) for n in range(2)] == [place, place]
        assert manager.match(keys).now == place * A
        audited(manager)


def test_control_a_load_that_is_kept_behind_its_hole_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Loader._whole
    monkeypatch.setattr(Loader, "_whole", lambda self, ticket: whole(self, ticket) + 1)
    with pytest.raises(AssertionError):
        test_of_a_load_with_a_hole_the_whole_granules_before_it_are_left("swa_window", 2, False)


def test_what_is_left_is_evictable_and_comes_back() -> None:
    store, manager, keys = in_blocks()
    (lost,) = manager.object_of(keys.digests, keys.salt, "swa_window", np.array([plan_windows(manager, keys)[-1]]))
    store.lost.add(lost)
    for _ in range(2):
        manager.load(plan_of(manager, keys))
        for kind in GPT.kinds:
            manager.evict(kind, 99)
        assert sum(held(manager).values()) == 0
        audited(manager)


def plan_windows(manager: Manager, keys: Keys) -> list[int]:
    found: list[int] = plan_of(manager, keys).wanted["swa_window"].tolist()
    return found


def test_endings_are_all_that_there_are() -> None:
    """The table of endings above names each state that a ticket can end in."""
    manager = make(stored(), writes="none")
    keys, seen = prompt_keys(manager, 4), set()
    for ok, aborted, quiesced in itertools.product([True, False], repeat=3):
        ticket = manager.load_begin(plan_of(manager, keys))
        land_all(manager, ticket)
        if aborted:
            ticket.abort()
        if aborted and quiesced:
            ticket.quiesce()
        else:
            ticket.done(ok)
        seen.add(ticket.state)
        for kind in PROFILE.kinds:
            manager.evict(kind, 99)
        manager.loader.attempts.forget()
    assert seen == set(ENDINGS)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_what_was_said_to_be_missing_is_so_for_a_transfer_that_finds_it(missing: int) -> None:
    _, manager, keys = in_blocks()
    ticket = manager.load_begin(plan_of(manager, keys))
    ticket.miss("compressed_kv", [missing])
    ticket.transfer()
    assert (ticket.state, ticket.moving, len(manager.tickets)) == ("failed", False, 0)
    assert ticket.kept <= missing
    check_left(manager, keys, ticket, ticket.kept)
