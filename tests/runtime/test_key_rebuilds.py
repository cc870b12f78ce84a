"""Requests whose indexer keys are missing compute those keys alone, and go on with the entries that stayed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from kvfsm.runtime.admission import Limits
from kvfsm.runtime.answers import Answer
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.key_rebuilds import KeyRebuilds
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.profile import Profile
from kvfsm.runtime.queues import Queue
from kvfsm.runtime.scheduler import Live, Scheduler, Work

from .indexer_keys import BOTH, KEYS, KV, V4, V32, Events, audited, behind, keys_read, make, mark, prompt, put, states
from .serving import ByHand, Shelf, Watched, leaks, watch

A = V4.granule


def scene(
    profile: Profile = V4, granules: int = 5, lost: int = 3, slots: int = 24, **options: object
) -> tuple[Manager, Keys]:
    """A chain of so many granules, of which the last keys were evicted and all entries stay."""
    manager = make(profile, slots, **options)
    keys = prompt(manager, granules)
    put(manager, keys, 0, granules)
    manager.evict(KEYS, lost)
    return manager, keys


def serve(manager: Manager, **options: object) -> Scheduler:
    return Scheduler(manager, ByHand(), **options)  # type: ignore[arg-type]


def fill_of(work: Work) -> Fill:
    assert work.rebuild is not None
    return work.rebuild


def compute(scheduler: Scheduler, live: Live) -> list[tuple[bool, int, int]]:
    """Serve a request to its end; what was computed: keys alone or not, from, to."""
    done = []
    for _ in range(20):
        for work in scheduler.schedule():
            if work.rebuild is not None:
                mark(scheduler.manager, work.rebuild)
            done.append((work.rebuild is not None, work.start, work.stop))
            scheduler.publish(work.live)
        if live.row is not None and live.computed == live.tokens:
            scheduler.finish(live)
        if not scheduler.live:
            assert leaks(scheduler) == []
            return done
    raise AssertionError(f"{live} is {scheduler.state(live)} after {done}")


@BOTH
def test_keys_alone_are_computed_and_the_request_goes_on_with_all_entries(profile: Profile) -> None:
    entries, a = Events(KV), profile.granule
    manager, keys = scene(profile, on_event=entries)
    held = manager.core.index.slots(0, manager.core.index.locate(keys.digests, 5), 0, 5).tolist()
    scheduler = serve(manager)
    live = scheduler.submit(keys)
    assert (scheduler.where(live), scheduler.queues.cost(live.number)) == (Queue.INDEXER, 3 * a)
    taken = entries.seen["take"]
    (work,) = scheduler.schedule()
    assert (work.row, work.start, work.stop, work.exact) == (None, 2 * a, 5 * a, True)
    fill = fill_of(work)
    assert (fill.kinds, fill.places[KEYS].tolist()) == ((KEYS,), [2, 3, 4])
    assert scheduler.state(live) == "rebuilding" and scheduler.where(live) is Queue.INDEXER and live.row is None
    assert scheduler.schedule() == ()
    mark(manager, fill)
    assert scheduler.publish(live) == 0
    assert (scheduler.state(live), scheduler.where(live)) == ("waiting", Queue.RESIDENT)
    (work,) = scheduler.schedule()
    assert work.row is not None and (work.rebuild, work.start, work.stop) == (None, 5 * a, keys.tokens)
    assert entries.seen["take"] == taken + 1  # for the tokens behind the last granule
    assert manager.requests.table(KV, [work.row])[0, :5].tolist() == held
    scheduler.finish(live)
    assert keys_read(manager, manager.match(keys)) == [1, 2, 3, 4, 5]
    report = scheduler.report()
    assert (report.rebuilds, report.rebuilds_failed) == (1, 0)
    assert [report.queues[queue].admitted for queue in (Queue.INDEXER, Queue.RESIDENT)] == [1, 1]
    assert leaks(scheduler) == []


def test_without_any_keys_the_whole_prefix_is_rebuilt() -> None:
    manager, keys = scene(V32, lost=5)
    live = (scheduler := serve(manager)).submit(keys)
    assert compute(scheduler, live) == [(True, 0, 5 * V32.granule), (False, 5 * V32.granule, keys.tokens)]


def test_a_step_computes_no_more_keys_than_tokens_of_a_prompt() -> None:
    manager, keys = scene(V32)
    a = V32.granule
    live = (scheduler := serve(manager, chunk=a)).submit(keys)
    assert scheduler.queues.cost(live.number) == a
    assert compute(scheduler, live) == [
        *((True, n * a, (n + 1) * a) for n in (2, 3, 4)),
        (False, 5 * a, keys.tokens),
    ]
    assert scheduler.report().rebuilds == 3


def test_where_no_boundary_lies_between_a_rebuild_is_one_piece() -> None:
    """Tails and windows say where one can go on."""
    manager = make(slots=24)
    keys = prompt(manager, 5)
    for start, stop in ((0, 2), (2, 5)):
        manager.publish(manager.reserve(keys, start, stop))
    manager.evict(KEYS, 3)
    live = (scheduler := serve(manager, chunk=A)).submit(keys)
    assert compute(scheduler, live) == [(True, 2 * A, 5 * A), (False, 5 * A, keys.tokens)]


def test_a_budget_counts_the_tokens_of_rebuilds() -> None:
    manager, keys = scene(V32)
    other = prompt(manager, 5, seed=2)
    put(manager, other, 0, 5)
    manager.evict(KEYS, 3)
    scheduler = serve(manager, budgets={Queue.INDEXER: 3.0 * V32.granule})
    lives = [scheduler.submit(one) for one in (keys, other)]
    assert [scheduler.where(live) for live in lives] == [Queue.INDEXER] * 2
    assert [work.live for work in scheduler.schedule()] == lives[:1]
    assert [work.live for work in scheduler.schedule()] == lives[1:]


def test_stale_keys_are_rebuilt_where_they_lie() -> None:
    """S16: entries that were made anew leave keys of another version behind."""
    events = Events()
    manager = make(slots=24, on_event=events)
    keys = prompt(manager, 5)
    behind(manager, keys, 5)
    assert states(manager) == {"stale": 5}
    live = (scheduler := serve(manager)).submit(keys)
    assert compute(scheduler, live)[0] == (True, 0, 5 * A)
    assert events.seen["rebuild_begin"] == events.seen["rebuild_done"] == 5
    assert states(manager) == {"resident": 5} and manager.match(keys).now == 5 * A


def test_keys_that_others_rebuilt_meanwhile_are_not_computed_again() -> None:
    manager, keys = scene()
    live = (scheduler := serve(manager)).submit(keys)
    manager.publish(manager.rebuild_begin(manager.match(keys)))
    (work,) = [work for _ in range(2) for work in scheduler.schedule()]
    assert (work.live, work.start) == (live, 5 * A)
    scheduler.finish(live)
    assert scheduler.report().rebuilds == 0


def test_two_who_miss_the_same_keep_the_keys_of_the_first() -> None:
    manager, keys = scene()
    scheduler = serve(manager)
    one, two = scheduler.submit(keys), scheduler.submit(manager.keys(keys_tokens(manager, keys)))
    works = scheduler.schedule()
    assert [work.live for work in works] == [one, two]
    for work in reversed(works):
        mark(manager, fill_of(work), by=100 * (work.live is two))
        scheduler.publish(work.live)
    assert keys_read(manager, manager.match(keys)) == [1, 2, 103, 104, 105]
    assert [work.start for work in scheduler.schedule()] == [5 * A, 5 * A]
    for live in (one, two):
        scheduler.finish(live)
    assert leaks(scheduler) == []


def keys_tokens(manager: Manager, keys: Keys) -> np.ndarray:
    """The tokens of ``prompt``."""
    return np.random.default_rng(1).integers(0, 256, keys.tokens)


# ---- what comes in between ------------------------------------------------------------------------------------------


def test_keys_that_are_evicted_again_before_it_begins_are_computed_with_the_row() -> None:
    """T5: nobody rebuilds the same for ever."""
    manager, keys = scene()
    live = (scheduler := serve(manager)).submit(keys)
    scheduler.schedule()
    scheduler.publish(live)
    manager.evict(KEYS, 3)
    assert compute(scheduler, live) == [(False, 2 * A, 5 * A), (False, 5 * A, keys.tokens)]
    assert scheduler.report().rebuilds == 1


def test_entries_that_are_gone_before_its_turn_are_computed_with_the_row() -> None:
    manager, keys = scene()
    live = (scheduler := serve(manager)).submit(keys)
    manager.evict(KV, 5)
    assert compute(scheduler, live)[0] == (False, 0, 5 * A)
    assert scheduler.report().rebuilds == 0


def test_a_match_that_is_stale_by_its_turn_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    manager, keys = scene()
    live = (scheduler := serve(manager)).submit(keys)
    real, evicted = KeyRebuilds.begin, list[int]()

    def begin(self: KeyRebuilds, live: Live, answer: Answer) -> object:
        if not evicted:
            evicted.append(manager.evict(KEYS, 1))
        return real(self, live, answer)

    monkeypatch.setattr(KeyRebuilds, "begin", begin)
    assert compute(scheduler, live)[0] == (True, A, 5 * A) and evicted == [1]


def expired(manager: Manager, keys: Keys) -> None:
    manager.expire(keys, 3)


def reset(manager: Manager, _: Keys) -> None:
    manager.reset()


@pytest.mark.parametrize(("lose", "why", "left"), [(expired, "STALE", 2), (reset, "EPOCH", 0)])
@pytest.mark.parametrize("in_place", [False, True])
def test_keys_whose_entries_are_gone_are_given_up(
    lose: Callable[[Manager, Keys], None], why: str, left: int, in_place: bool
) -> None:
    manager, keys = scene()
    if in_place:
        manager = make(slots=24)
        behind(manager, keys, 5)
        left = 0
    live = (scheduler := serve(manager)).submit(keys)
    scheduler.schedule()
    lose(manager, keys)
    scheduler.publish(live)
    audited(manager)
    assert isinstance(live.fault, Refused) and live.fault.refusal.name == why
    assert scheduler.state(live) == "waiting" and not manager.fills and not manager.receipts
    assert compute(scheduler, live)[0][:2] == (False, left * A)
    report = scheduler.report()
    assert (report.rebuilds, report.rebuilds_failed) == (1, 1)


# ---- giving up ------------------------------------------------------------------------------------------------------


def waits(scheduler: Scheduler, live: Live) -> None:
    """Nothing was granted."""


def granted(scheduler: Scheduler, live: Live) -> None:
    """A turn was, and the engine has not heard of it."""
    with pytest.raises(OSError, match="gone"):
        broken_off(scheduler)
    assert scheduler.state(live) == "rebuilding" and live.owed


def computes(scheduler: Scheduler, live: Live) -> None:
    assert [work.live for work in scheduler.schedule()] == [live]


def shared(scheduler: Scheduler, live: Live) -> None:
    computes(scheduler, live)
    scheduler.publish(live)


def broken_off(scheduler: Scheduler) -> None:
    """A round in which a store raises once the first turn was granted."""
    real = scheduler._turns._begin

    def begin(live: Live, queue: Queue) -> None:
        real(live, queue)
        raise OSError("gone")

    scheduler._turns._begin = begin  # type: ignore[method-assign]
    try:
        scheduler.schedule()
    finally:
        scheduler._turns._begin = real  # type: ignore[method-assign]


STEPS = pytest.mark.parametrize("step", [waits, granted, computes, shared], ids=lambda step: step.__name__)


@STEPS
@pytest.mark.parametrize("stale", [False, True])
def test_who_is_given_up_leaves_nothing(step: Callable[[Scheduler, Live], None], stale: bool) -> None:
    lock = Watched()
    manager, keys = scene(lock=lambda: lock)
    if stale:
        manager = make(slots=24, lock=lambda: lock)
        behind(manager, keys, 5)
    scheduler = serve(manager)
    watch(scheduler, lock)
    live, ended = scheduler.submit(keys), [False]
    before = states(manager)
    step(scheduler, live)
    assert scheduler.cancel(live, done=lambda: ended[0]) and not scheduler.cancel(live)
    assert scheduler.state(live) == "absent"
    assert scheduler.schedule() == ()
    if step is computes:  # the device may write still
        assert manager.given_up and manager.core.pools[KEYS].free < 24 - len(before)
    ended[0] = True
    manager.evict(KEYS, 0)
    assert not manager.given_up and leaks(scheduler) == []
    scheduler.publish(live)  # late
    assert leaks(scheduler) == []


@pytest.mark.parametrize("step", [granted, computes])
def test_who_is_put_back_rebuilds_anew(step: Callable[[Scheduler, Live], None]) -> None:
    manager, keys = scene()
    live = (scheduler := serve(manager)).submit(keys)
    step(scheduler, live)
    before, ended = live.rebuild, [False]
    scheduler.preempt(live, done=lambda: ended[0])
    assert (scheduler.state(live), scheduler.report().preempted) == ("waiting", 1)
    audited(manager)
    (work,) = [work for _ in range(3) for work in scheduler.schedule()]
    assert work.rebuild is not before and work.start == 2 * A
    ended[0] = True
    scheduler.publish(live)
    assert compute(scheduler, live) == [(False, 5 * A, keys.tokens)]


def test_what_the_engine_was_not_told_to_compute_is_not_published() -> None:
    manager, keys = scene()
    live = (scheduler := serve(manager)).submit(keys)
    granted(scheduler, live)
    scheduler.publish(live)
    assert scheduler.state(live) == "rebuilding" and manager.match(keys).now == 2 * A
    assert compute(scheduler, live) == [(True, 2 * A, 5 * A), (False, 5 * A, keys.tokens)]


def test_who_rebuilds_does_not_run() -> None:
    manager, keys = scene()
    live = (scheduler := serve(manager)).submit(keys)
    scheduler.schedule()
    for call in (scheduler.finish, lambda live: scheduler.decode([live])):
        with pytest.raises(ValueError, match="it is rebuilding"):
            call(live)
    scheduler.cancel(live)
    assert leaks(scheduler) == []


def test_who_waits_to_begin_hears_of_the_row() -> None:
    manager, keys = scene()
    scheduler = serve(manager)

    async def begins() -> Work:
        live = scheduler.submit(keys)
        begun = asyncio.ensure_future(scheduler.begun(live))
        scheduler.schedule()
        await asyncio.sleep(0)
        assert not begun.done()
        scheduler.publish(live)
        scheduler.schedule()
        return await begun

    work = asyncio.run(begins())
    assert work.row is not None and work.start == 5 * A


def test_one_that_is_given_up_while_a_store_writes_its_keys_stays_given_up() -> None:
    store = Shelf()
    manager, keys = scene(store=store, writes="none")
    store.objects.clear()
    manager.writes_through = True
    scheduler = serve(manager)
    live, real = scheduler.submit(keys), store.put_many

    def put_many(*given: object, **options: object) -> int:
        assert scheduler.cancel(live)
        return real(*given, **options)  # type: ignore[arg-type]

    store.put_many = put_many  # type: ignore[method-assign]
    scheduler.schedule()
    scheduler.publish(live)
    assert scheduler.state(live) == "absent" and leaks(scheduler) == []
    assert manager.match(keys).now == 5 * A
    assert store.contains(manager.object_of(keys.digests, keys.salt, KEYS, np.arange(2, 5))).all()


# ---- memory and faults ----------------------------------------------------------------------------------------------


def test_an_engine_that_sleeps_gives_rebuilds_up() -> None:
    manager, keys = scene()
    live = (scheduler := serve(manager)).submit(keys)
    scheduler.schedule()
    assert scheduler.preempt_all()
    manager.reallocate()
    assert compute(scheduler, live) == [(True, 2 * A, 5 * A), (False, 5 * A, keys.tokens)]


@pytest.mark.parametrize("late", [False, True])
def test_memory_that_goes_takes_rebuilds_with_it(late: bool) -> None:
    manager, keys = scene()
    live = (scheduler := serve(manager)).submit(keys)
    scheduler.schedule()
    manager.reallocate(void=True)
    if late:
        scheduler.publish(live)
        assert isinstance(live.fault, Refused) and live.fault.refusal.name == "STALE"
    audited(manager)
    assert compute(scheduler, live)[-1] == (False, 5 * A, keys.tokens)
    assert scheduler.report().voided == (not late)


def test_keys_that_could_not_be_published_are_its_own_still() -> None:
    times = iter(range(1, 1 << 20))
    fails = [False]

    def clock() -> int:
        if fails[0]:
            raise OSError("no clock")
        return next(times)

    manager, keys = scene(clock=clock)
    live = (scheduler := serve(manager)).submit(keys)
    scheduler.schedule()
    fails[0] = True
    for call in (scheduler.publish, scheduler.preempt, scheduler.cancel):
        with pytest.raises(OSError, match="no clock"):
            call(live)
        assert scheduler.state(live) == "rebuilding" and live.rebuild is not None
    fails[0] = False
    audited(manager)
    scheduler.publish(live)
    assert compute(scheduler, live) == [(False, 5 * A, keys.tokens)]


def test_a_store_that_breaks_takes_no_keys_away() -> None:
    store = Shelf()
    manager, keys = scene(store=store, writes="none")
    manager.writes_through = True

    def put_many(*given: object, **options: object) -> int:
        raise RuntimeError("a bug of the store")

    store.put_many = put_many  # type: ignore[method-assign]
    live = (scheduler := serve(manager)).submit(keys)
    scheduler.schedule()
    with pytest.raises(RuntimeError, match="a bug"):
        scheduler.publish(live)
    assert scheduler.state(live) == "waiting" and manager.match(keys).now == 5 * A
    manager.writes_through = False
    assert compute(scheduler, live) == [(False, 5 * A, keys.tokens)]


# ---- room -----------------------------------------------------------------------------------------------------------


def test_who_lacks_room_for_its_keys_waits_with_nothing() -> None:
    manager, keys = scene(slots=6)
    other = manager.reserve(prompt(manager, 3, seed=2), 0, 3, kinds=(KEYS,))
    live = (scheduler := serve(manager)).submit(keys)
    assert scheduler.schedule() == ()
    assert (scheduler.state(live), dict(scheduler.report().deferred)) == ("waiting", {"POOL_FULL": 1})
    assert not manager.receipts
    manager.abandon(other)
    assert scheduler.wait(0)
    assert compute(scheduler, live)[0] == (True, 2 * A, 5 * A)


def test_who_rebuilds_counts_among_those_who_have_slots() -> None:
    manager, keys = scene()
    scheduler = serve(manager, limits=Limits(requests=1))
    live = scheduler.submit(keys)
    second = scheduler.submit(prompt(manager, 1, seed=2))
    assert [work.live for work in scheduler.schedule()] == [live]
    assert dict(scheduler.report().in_flight) == {"requests": 1}
    assert dict(scheduler.report().deferred) == {"FULL": 1}
    scheduler.publish(live)
    assert dict(scheduler.report().in_flight) == {"requests": 0}
    scheduler.cancel(live)
    assert compute(scheduler, second) == [(False, 0, A), (False, A, A + 1)]


def test_what_can_never_be_admitted_rebuilds_nothing() -> None:
    manager, keys = scene(slots=6)
    longer = manager.keys([*keys_tokens(manager, keys).tolist(), *range(3 * A)])
    scheduler = serve(manager)
    live = scheduler.submit(longer)
    assert scheduler.where(live) is Queue.INDEXER and scheduler.schedule() == ()
    assert scheduler.state(live) == "absent" and scheduler.report().rebuilds == 0
    assert isinstance(live.begun.exception(), Refused)
