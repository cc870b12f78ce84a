"""The scheduler: every queue, every end, and a cancel at every moment. Loads run when a test says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from kvfsm.runtime.admission import Limits
from kvfsm.runtime.answers import Answer, ObjectAnswer
from kvfsm.runtime.errors import Broken, Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.policy import WindowPolicy
from kvfsm.runtime.queues import Queue, Queues
from kvfsm.runtime.scheduler import Live, Scheduler, Stepped

from .bench import HIT, LLAMA, A, Bench
from .serving import ByHand, Engine, Shelf, Watched, faults, leaks, make, prompt, run, stored, watch, write

DEEPSEEK = PROFILES["tiny_deepseek_v4"]


# ---- queues ---------------------------------------------------------------------------------------------------------


def test_a_request_waits_for_what_it_misses_first() -> None:
    bench = Bench(cold=8)
    stored_one = bench.submit(HIT)
    packed = prompt(3, 2 * A + 4)
    write(bench.manager, bench.manager.keys(packed), 2)
    assert bench.manager.pack(bench.manager.keys(packed)) == 2
    packed_one, new = bench.submit(packed), bench.submit(prompt(4, 20))
    queues = [bench.scheduler.where(live) for live in (stored_one, packed_one, new)]
    assert queues == [Queue.DISK, Queue.COMPRESSED, Queue.RESIDENT]
    assert bench.granted() == [(3, 0, 20)]
    assert bench.states(stored_one, packed_one, new) == ["admitted", "admitted", "running"]
    bench.executor.run_all()
    assert bench.states(stored_one, packed_one) == ["ready", "ready"]
    assert bench.scheduler.where(stored_one) is Queue.RESIDENT
    assert bench.granted() == [(1, 3 * A, len(HIT)), (2, 2 * A, len(packed))]
    bench.over()


def test_a_window_that_is_kept_nowhere_has_a_queue_of_its_own() -> None:
    bench = Bench(profile=DEEPSEEK, window=WindowPolicy.none())
    tokens = prompt(3, 2 * DEEPSEEK.granule + 4)
    write(bench.manager, bench.manager.keys(tokens), 2)
    live = bench.submit(tokens)
    assert bench.scheduler.where(live) is Queue.TAIL_WINDOW
    (work,) = bench.scheduler.schedule()
    assert (work.start, work.exact) == (2 * DEEPSEEK.granule, False)
    assert work.replay is not None and work.replay.stop == work.start
    bench.over()


def test_indexer_keys_to_compute_again_have_a_queue_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    real = bench.manager.match

    def match(*arguments: Any, **options: Any) -> Answer:
        answer = real(*arguments, **options)
        objects = dict(answer.objects) | {"indexer_state": ObjectAnswer("REBUILD", 0, "memory")}
        return replace(answer, objects=MappingProxyType(objects))

    monkeypatch.setattr(bench.manager, "match", match)
    live = bench.submit(prompt(3, 20))
    assert bench.scheduler.where(live) is Queue.INDEXER
    assert bench.granted() == [(1, 0, 20)]
    bench.over()


def test_who_misses_something_else_by_now_changes_queues() -> None:
    bench = Bench()
    live = bench.submit(HIT)
    assert bench.scheduler.where(live) is Queue.DISK
    bench.store.objects.clear()
    assert bench.granted() == [(1, 0, len(HIT))] and bench.scheduler.wait(0)
    bench.over()


def test_budgets_are_of_one_queue_and_one_round() -> None:
    bench = Bench(budgets={Queue.RESIDENT: 40.0, Queue.DISK: 1.0})
    for seed in range(5):
        bench.submit(prompt(seed + 3, 20))
    bench.submit(HIT), bench.submit(prompt(1, 2 * A + 4))
    assert bench.granted() == [(1, 0, 20), (2, 0, 20)]
    assert len(bench.executor.jobs) == 1  # the first costs more than there is, and has its turn alone
    assert [number for number, _, _ in bench.granted()] == [3, 4]
    bench.over()


def test_owners_have_equal_shares() -> None:
    bench = Bench(64, budgets={Queue.RESIDENT: 20.0}, queues=Queues({"a": 1.0, "b": 1.0}))
    for seed in range(8):
        bench.submit(prompt(seed + 3, 20), owner="a" if seed < 6 else "b")
    order = [number for _ in range(4) for number, _, _ in bench.granted()]
    assert sorted(order) == [1, 2, 7, 8]
    bench.over()


def test_a_stalled_load_holds_up_nobody_else() -> None:
    bench = Bench(12)
    stalled = bench.submit(HIT)
    for seed in range(20):
        live = bench.submit(prompt(seed + 3, 20))
        bench.engine.step()
        assert bench.scheduler.state(live) == "absent"
    assert bench.scheduler.state(stalled) == "admitted"
    bench.over()


def test_while_a_holder_lacks_room_nobody_begins() -> None:
    bench = Bench(6, chunk=2 * A)
    first = bench.submit(prompt(3, 6 * A))
    assert bench.granted() == [(1, 0, 2 * A)]
    bench.now = 100
    held = bench.manager.reserve(bench.manager.keys(prompt(9, 3 * A)), 0, 3)
    later = bench.submit(prompt(4, 4))  # one slot is free for it
    assert bench.granted() == []
    assert bench.states(first, later) == ["running", "waiting"]
    bench.manager.abandon(held)
    assert bench.granted() == [(1, 2 * A, 4 * A), (2, 0, 4)]
    bench.over()


# ---- loads ----------------------------------------------------------------------------------------------------------


def test_two_who_miss_the_same_load_it_once() -> None:
    bench = Bench()
    one, two = bench.submit(HIT), bench.submit(HIT, owner="b")
    bench.granted()
    assert bench.states(one, two) == ["admitted", "waiting"] and len(bench.executor.jobs) == 1
    bench.executor.run_all()
    assert len(bench.store.reads) == len(set(bench.store.reads)) == 3
    assert sorted(bench.granted()) == [(1, 3 * A, len(HIT)), (2, 3 * A, len(HIT))]
    bench.over()


@pytest.mark.parametrize("when", ["before a worker has begun", "while bytes arrive"])
@pytest.mark.parametrize("who", ["opener", "joiner", "both"])
def test_a_load_goes_on_while_one_waits_for_it(who: str, when: str) -> None:
    bench = Bench()
    one, two = bench.submit(HIT), bench.submit(HIT, owner="b")
    bench.granted()
    (ticket,) = bench.manager.tickets.values()

    def cancel() -> None:
        bench.store.during = lambda: None
        for live in {"opener": [one], "joiner": [two], "both": [one, two]}[who]:
            assert bench.scheduler.cancel(live)

    if when == "while bytes arrive":
        bench.store.during = cancel
    else:
        cancel()
        assert ticket.ended is (who == "both")
    bench.executor.run_all()
    assert ticket.state == ("done" if who != "both" else "late" if when == "while bytes arrive" else "quiesced")
    expected = {"opener": [(2, 3 * A, len(HIT))], "joiner": [(1, 3 * A, len(HIT))], "both": []}[who]
    assert bench.granted() == expected
    assert len(bench.store.reads) == (0 if who == "both" and when != "while bytes arrive" else 3)
    bench.over()


@pytest.mark.parametrize("failures", range(5))
@pytest.mark.parametrize("raises", [False, True])
def test_a_load_is_tried_so_often_and_then_the_request_computes(failures: int, raises: bool) -> None:
    bench = Bench(attempts=1)
    left = [failures]

    def fails() -> bool:
        left[0] -= 1
        if left[0] >= 0 and raises:
            raise OSError("the disk has gone")
        return left[0] >= 0

    bench.store.fails = fails
    live = bench.submit(HIT)
    bench.granted()
    bench.executor.run_all()
    assert bench.states(live) == ["ready"]
    reads = failures - max(0, left[0])
    assert reads == min(failures, 2)
    assert bench.granted() == [(1, 3 * A if failures < 2 else 0, len(HIT))]
    assert (live.fault is not None) is (raises and failures > 0)
    bench.over()


def test_a_store_that_cannot_answer_lets_the_request_compute() -> None:
    bench = Bench(attempts=2)
    live = bench.submit(HIT)
    bench.granted()

    def gone(*_: Any) -> Any:
        raise OSError("the disk has gone")

    bench.store.during = gone
    bench.store.contains = gone  # type: ignore[method-assign]
    bench.executor.run_all()
    assert bench.states(live) == ["ready"] and isinstance(live.fault, OSError)
    assert bench.granted() == [(1, 0, len(HIT))]
    bench.scheduler.finish(live)
    assert leaks(bench.scheduler) == []


def test_a_worker_that_is_to_stop_leaves_nobody_behind() -> None:
    bench = Bench(attempts=3)
    live = bench.submit(HIT)
    bench.granted()

    def stop() -> None:
        raise SystemExit

    bench.store.during = stop
    with pytest.raises(SystemExit):
        bench.executor.run()
    assert bench.states(live) == ["ready"] and isinstance(live.fault, SystemExit)
    assert bench.granted() == [(1, 0, len(HIT))]
    bench.over()


@pytest.mark.parametrize("dropped", [False, True])
def test_a_load_that_no_executor_runs_fails(dropped: bool) -> None:
    bench = Bench(attempts=3)
    if not dropped:
        bench.executor.shutdown()
    one, two = bench.submit(HIT), bench.submit(HIT)
    bench.granted()
    if dropped:
        assert bench.states(one, two) == ["admitted", "waiting"]
        bench.executor.shutdown(cancel_futures=True)
    assert bench.states(one)[0] in ("ready", "running") and isinstance(one.fault, RuntimeError)
    bench.over()


def test_a_load_that_somebody_else_ends_is_no_dead_end() -> None:
    bench = Bench(attempts=2)
    live = bench.submit(HIT)
    bench.granted()
    (ticket,) = bench.manager.tickets.values()
    ticket.done(False)
    assert bench.states(live) == ["ready"]
    bench.executor.run_all()
    assert bench.granted() == [(1, 0, len(HIT))] and live.fault is None
    bench.over()


@pytest.mark.parametrize("fails", [False, True])
def test_a_load_that_somebody_else_moves_is_no_dead_end(fails: bool) -> None:
    bench = Bench(attempts=2)
    live = bench.submit(HIT)
    bench.granted()
    (ticket,) = bench.manager.tickets.values()

    def meanwhile() -> None:
        bench.store.during = lambda: None
        with pytest.raises(Refused, match="LEASE"):  # the scheduler's worker finds that it is moved already
            bench.executor.run()
        if fails:
            raise OSError

    bench.store.during = meanwhile
    with pytest.raises(OSError) if fails else nullcontext():
        ticket.transfer()
    assert bench.states(live) == ["ready"] and not bench.executor.jobs
    assert bench.granted() == [(1, 0 if fails else 3 * A, len(HIT))]
    bench.over()


def ends_as_it_opens(bench: Bench, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Somebody else lets each load fail, after something, before the scheduler hears that it is admitted."""
    admit = bench.scheduler.admission.admit

    def admits(*given: Any, **named: Any) -> object:
        decision = admit(*given, **named)
        for ticket in list(bench.manager.tickets.values()):
            meanwhile()
            ticket.done(False)
        return decision

    monkeypatch.setattr(bench.scheduler.admission, "admit", admits)


def test_a_load_that_ends_as_it_opens_is_no_dead_end(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(attempts=2)
    ends_as_it_opens(bench, monkeypatch, lambda: None)
    live = bench.submit(HIT)
    assert bench.granted() == [(1, 0, len(HIT))] and live.fault is None
    assert not bench.executor.jobs
    bench.over()


def test_who_is_left_without_room_by_a_load_that_ends_as_it_opens_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(4)
    write(bench.manager, bench.manager.keys(HIT), 2)
    reader = bench.manager.acquire(bench.manager.match(bench.manager.keys(HIT)))
    ends_as_it_opens(bench, monkeypatch, bench.manager.reset)
    live = bench.submit(HIT)
    assert bench.granted() == [] and bench.states(live) == ["waiting"]  # the reader's slots are not free yet
    bench.manager.release(reader)
    assert bench.granted() == [(1, 0, len(HIT))]
    bench.over()


def test_who_is_given_up_as_its_load_ends_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(4)
    write(bench.manager, bench.manager.keys(HIT), 2)
    reader = bench.manager.acquire(bench.manager.match(bench.manager.keys(HIT)))
    live = bench.submit(HIT)

    def meanwhile() -> None:
        bench.manager.reset()
        bench.scheduler.cancel(live)

    ends_as_it_opens(bench, monkeypatch, meanwhile)
    assert bench.granted() == [] and bench.states(live) == ["absent"]
    bench.manager.release(reader)
    bench.over()


def test_a_reset_while_bytes_arrive_lets_the_request_compute() -> None:
    bench = Bench(4)
    write(bench.manager, bench.manager.keys(HIT), 2)
    reader = bench.manager.acquire(bench.manager.match(bench.manager.keys(HIT)))
    live = bench.submit(HIT)
    bench.granted()
    bench.manager.reset()
    bench.executor.run_all()
    assert bench.states(live) == ["waiting"]  # the reader has the slots still that it had leased, and begins anew
    assert bench.granted() == []
    bench.manager.release(reader)
    assert bench.granted() == [(1, 0, len(HIT))]
    bench.over()


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_load_that_is_too_large_brings_the_most_that_a_limit_lets_in(most: int) -> None:
    bench = Bench(limits=Limits(blocks={"store": most}))
    live = bench.submit(HIT)
    assert bench.scheduler.where(live) is Queue.DISK and bench.granted() == []
    bench.store.fails = iter([True, False]).__next__  # the second try brings the same
    bench.executor.run_all()
    assert bench.granted() == [(1, most * A, len(HIT))]
    assert len(bench.store.reads) == 2 * most
    report = bench.scheduler.report()
    assert (report.loads, report.loads_again, report.loads_cut) == (2, 1, most < 3)
    bench.over()


def test_a_load_is_never_too_large_for_ever() -> None:
    bench = Bench(limits=Limits(bytes={"store": 1}))
    live = bench.submit(HIT)
    assert bench.scheduler.where(live) is Queue.DISK
    assert bench.granted() == [(1, 0, len(HIT))]
    assert bench.store.reads == [] and bench.scheduler.report().loads_cut == 1
    bench.over()


def test_of_boundaries_that_lie_apart_the_greatest_within_a_limit_is_brought() -> None:
    """Windows are stored where fills end; the last one takes more slots than may be under way."""
    profile, slots = DEEPSEEK, dict.fromkeys(DEEPSEEK.kinds, 12)
    store, tokens = Shelf(), prompt(1, 200)
    writer = make(slots, profile, store)
    for start, stop in ((0, 1), (1, 3), (3, 6)):
        writer.publish(writer.reserve(writer.keys(tokens), start, stop))
    manager = make(slots, profile, store, writes="none")
    sizes = [
        sum(map(len, plan.wanted.values()))
        for most in (32, 96, 192)
        if (plan := manager.match(manager.keys(tokens), at_most=most).plan)
    ]
    assert sizes == sorted(set(sizes))
    for most, start in ((sizes[0], 32), (sizes[1], 96), (sizes[2] - 1, 96), (sizes[2], 192)):
        manager, executor = make(slots, profile, store, writes="none"), ByHand()
        scheduler = Scheduler(manager, executor, limits=Limits(blocks={"store": most}))
        scheduler.submit(manager.keys(tokens))
        assert scheduler.schedule() == ()
        executor.run_all()
        (work,) = scheduler.schedule()
        assert work.start == start and scheduler.report().loads_cut == (start < 192)


# ---- steps ----------------------------------------------------------------------------------------------------------


def test_a_prompt_is_computed_in_chunks() -> None:
    bench = Bench(chunk=2 * A)
    live, other = bench.submit(prompt(3, 5 * A + 3)), bench.submit(HIT)
    assert bench.granted() == [(1, 0, 2 * A)]
    assert bench.states(live) == ["running"]
    bench.executor.run_all()
    assert sorted(bench.granted()) == [(1, 2 * A, 4 * A), (2, 3 * A, len(HIT))]
    assert bench.granted() == [(1, 4 * A, 5 * A + 3)]
    assert bench.granted() == []
    with pytest.raises(ValueError, match="not computed yet"):
        early = bench.submit(prompt(4, 3 * A))
        bench.granted()
        bench.scheduler.decode([early])
    assert bench.manager.requests.tokens[[live.row, other.row]].tolist() == [5 * A + 3, len(HIT)]
    bench.over()


def test_who_lacks_room_to_decode_sends_the_youngest_back() -> None:
    bench = Bench(5)
    lives = [bench.submit(prompt(seed, 2 * A)) for seed in (3, 4)]
    assert len(bench.granted()) == 2
    stepped = bench.scheduler.decode(lives)
    assert (stepped.lives, stepped.rows, stepped.back) == ((lives[0],), (lives[0].row,), (lives[1],))
    assert bench.states(*lives) == ["running", "waiting"]
    lives[0].keys.extend([1])
    assert lives[0].computed == 2 * A + 1 and lives[1].fault is None
    assert bench.manager.match(lives[1].keys).now == A  # its granules are found again, but for the last token's
    bench.over()


def test_one_that_no_room_is_left_for_ends_and_says_so() -> None:
    bench = Bench(2)
    live = bench.submit(prompt(3, 2 * A))
    bench.granted()
    assert bench.scheduler.decode([live]).back == (live,)
    assert bench.states(live) == ["absent"] and isinstance(live.fault, Refused)
    bench.over()


def test_where_all_lack_room_for_a_chunk_the_youngest_goes_back() -> None:
    bench = Bench(6, chunk=2 * A)
    one, two = bench.submit(prompt(3, 6 * A)), bench.submit(prompt(4, 6 * A))
    assert sorted(bench.granted()) == [(1, 0, 2 * A), (2, 0, 2 * A)]
    assert bench.granted() == [(1, 2 * A, 4 * A)]
    assert bench.granted() == []
    assert bench.states(one, two) == ["running", "waiting"] and bench.scheduler.wait(0)
    assert bench.granted() == [(1, 4 * A, 6 * A)]
    bench.over()
    assert bench.engine.finished == [one, two]


def test_one_that_runs_alone_waits_for_what_others_hold() -> None:
    bench = Bench(6, chunk=2 * A)
    live = bench.submit(prompt(3, 6 * A))
    bench.granted()
    fill = bench.manager.reserve(bench.manager.keys(prompt(9, 3 * A)), 0, 3)
    assert bench.granted() == [] and bench.states(live) == ["running"]
    bench.manager.abandon(fill)
    assert bench.granted() == [(1, 2 * A, 4 * A)]
    bench.over()


def test_who_is_preempted_is_found_again_and_waits_anew() -> None:
    bench = Bench()
    live = bench.submit(prompt(3, 2 * A + 4))
    bench.granted()
    bench.scheduler.preempt(live)
    assert bench.states(live) == ["waiting"] and live.reservation is None
    assert bench.granted() == [(1, 2 * A, 2 * A + 4)]
    bench.over()


def test_what_can_never_fit_is_told_so() -> None:
    bench = Bench(3)
    live = bench.submit(prompt(3, 4 * A))
    assert bench.granted() == [] and bench.states(live) == ["absent"]
    with pytest.raises(Refused, match="CAPACITY"):
        live.begun.result(0)
    assert not bench.scheduler.cancel(live)
    bench.over()


def test_a_round_that_fails_loses_no_work() -> None:
    bench = Bench()
    one, two = bench.submit(prompt(3, 20)), bench.submit(prompt(4, 20))
    real = bench.manager.match

    def match(keys: Any, *arguments: Any, **options: Any) -> Answer:
        if keys is two.keys:
            raise OSError("the disk has gone")
        return real(keys, *arguments, **options)

    bench.manager.match = match  # type: ignore[method-assign]
    with pytest.raises(OSError, match="gone"):
        bench.scheduler.schedule()
    assert bench.states(one, two) == ["running", "waiting"]
    bench.manager.match = real  # type: ignore[method-assign]
    assert bench.granted() == [(1, 0, 20)] and bench.scheduler.wait(0)
    assert bench.granted() == [(2, 0, 20)]
    bench.over()


def test_rows_that_others_have_taken_are_waited_for() -> None:
    bench = Bench(rows=1)
    row = bench.manager.requests.admit(3)
    live = bench.submit(prompt(3, 20))
    assert bench.granted() == [] and bench.states(live) == ["waiting"]
    bench.manager.requests.finish(row)
    assert bench.granted() == [(1, 0, 20)]
    bench.over()


# ---- giving up ------------------------------------------------------------------------------------------------------


def waiting(bench: Bench) -> Live:
    return bench.submit(HIT)


def admitted(bench: Bench) -> Live:
    live = bench.submit(HIT)
    bench.granted()
    return live


def ready(bench: Bench) -> Live:
    live = admitted(bench)
    bench.executor.run_all()
    return live


def running(bench: Bench) -> Live:
    live = ready(bench)
    bench.granted()
    return live


@pytest.mark.parametrize("state", [waiting, admitted, ready, running])
def test_a_request_can_be_given_up_in_each_state(state: Callable[[Bench], Live]) -> None:
    bench = Bench(limits=Limits(4, {"store": 9}))
    live = state(bench)
    assert bench.states(live) == [state.__name__]
    assert bench.scheduler.cancel(live)
    assert bench.states(live) == ["absent"] and not bench.scheduler.cancel(live)
    assert leaks(bench.scheduler) == []
    assert live.begun.cancelled() is (state is not running)
    bench.over()
    bench.scheduler.finish(live), bench.scheduler.preempt(live)
    assert bench.scheduler.decode([live]) == Stepped((), (), ())


@pytest.mark.parametrize("state", [waiting, admitted, ready])
def test_who_waits_can_not_be_stepped(state: Callable[[Bench], Live]) -> None:
    bench = Bench()
    live = state(bench)
    for call in (bench.scheduler.finish, bench.scheduler.preempt, lambda live: bench.scheduler.decode([live])):
        with pytest.raises(ValueError, match=f"it is {state.__name__}"):
            call(live)
    bench.over()


def test_slots_of_one_given_up_wait_for_the_device() -> None:
    bench = Bench()
    live, device = running(bench), [False]
    assert bench.scheduler.cancel(live, done=lambda: device[0])
    assert bench.states(live) == ["absent"] and bench.manager.given_up
    device[0] = True
    bench.submit(prompt(3, 4))
    bench.over()


@pytest.mark.parametrize("state", [ready, running])
def test_a_device_query_that_raises_changes_nothing(state: Callable[[Bench], Live]) -> None:
    bench = Bench()
    live = state(bench)

    def broken() -> bool:
        raise OSError("no device")

    with pytest.raises(OSError, match="no device"):
        bench.scheduler.cancel(live, done=broken)
    assert bench.states(live) == [state.__name__]
    bench.over()


def story(bench: Bench, subject: int) -> Live:
    """A short life of two requests that miss the same, a long prompt and one who decodes; loads fail once."""
    scheduler, failed = bench.scheduler, [False]

    def fails() -> bool:
        before, failed[0] = failed[0], True
        return not before

    bench.store.fails = fails
    lives = [bench.submit(HIT, owner="a"), bench.submit(HIT, owner="b"), bench.submit(prompt(3, 4 * A))]
    bench.subject = lives[subject]  # type: ignore[attr-defined]
    bench.engine.decode = 2
    run(scheduler, bench.executor, bench.engine)
    bench.executor.run_all()
    return lives[subject]


def give_up_before(step: int, subject: int) -> bool:
    """Cancel a request of the story where the engine, or a worker, asks for the lock so often; False: it never does.

    What another thread would do between two steps is done here.
    """
    bench = Bench(9, chunk=2 * A, every=5)
    count = [0]

    def before() -> None:
        live = getattr(bench, "subject", None)
        rows: Any = bench.scheduler._running.lock
        if live is None or count[0] > step or rows.locked():
            return  # a thread that wants to end a row waits until nobody steps rows
        count[0] += 1
        if count[0] == step + 1:
            count[0] += 1
            bench.scheduler.cancel(live)

    bench.lock.before = before
    live = story(bench, subject)
    assert leaks(bench.scheduler) == [], f"given up before step {step}"
    assert bench.states(live) == ["absent"]
    return count[0] > step


@pytest.mark.parametrize("subject", range(3))
def test_a_request_can_be_given_up_before_many_a_step_under_the_lock(subject: int) -> None:
    steps = range(subject, 200, 7)
    assert sum(give_up_before(step, subject) for step in steps) > 5


@pytest.mark.long
@pytest.mark.parametrize("subject", range(3))
def test_a_request_can_be_given_up_before_any_step_under_the_lock(subject: int) -> None:
    step = 0
    while give_up_before(step, subject):
        step += 1
    assert step > 30


# ---- coroutines -----------------------------------------------------------------------------------------------------


def test_tasks_wait_for_their_turn() -> None:
    bench = Bench()

    async def one(seed: int) -> int:
        live = bench.submit(HIT if seed % 2 else prompt(seed, 20))
        work = await bench.scheduler.begun(live)
        start = work.start
        bench.scheduler.finish(live)
        return start

    async def everybody() -> list[int]:
        tasks = [asyncio.create_task(one(seed)) for seed in range(20)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            bench.scheduler.schedule()
            bench.executor.run_all()
        return await asyncio.gather(*tasks)

    starts = asyncio.run(everybody())
    assert starts.count(3 * A) == 10 and starts.count(0) == 10
    bench.over()


@pytest.mark.parametrize("at", range(5))
def test_a_task_that_is_cancelled_gives_its_request_up(at: int) -> None:
    bench = Bench()

    async def main() -> Live:
        live = bench.submit(HIT)
        task = asyncio.create_task(bench.scheduler.begun(live))
        await asyncio.sleep(0)
        steps = [bench.scheduler.schedule, bench.executor.run_all, bench.scheduler.schedule, lambda: None]
        for number, step in enumerate(steps):
            if number == at:
                task.cancel()
            await asyncio.sleep(0)
            step()
        if at == 4:  # nobody cancels it
            await task
            return live
        with pytest.raises(asyncio.CancelledError):
            await task
        return live

    live = asyncio.run(main())
    assert bench.states(live) == ["running" if at == 4 else "absent"]
    bench.over()


def test_who_is_given_up_by_another_hears_of_it() -> None:
    bench = Bench()

    async def main() -> None:
        live = bench.submit(HIT)
        task = asyncio.create_task(bench.scheduler.begun(live))
        await asyncio.sleep(0)
        bench.scheduler.cancel(live)
        with pytest.raises(asyncio.CancelledError):
            await task
        never = bench.submit(prompt(3, 100 * A))
        bench.scheduler.schedule()
        with pytest.raises(Refused, match="CAPACITY"):
            await bench.scheduler.begun(never)
        closed = bench.submit(HIT)
        waits = bench.scheduler.begun(closed)
        waits.send(None)
        waits.close()
        assert bench.states(closed) == ["absent"]

    asyncio.run(main())
    bench.over()


# ---- threads --------------------------------------------------------------------------------------------------------

PATIENCE = 120.0  # seconds until a thread that nobody wakes counts as stuck


def test_an_engine_that_waits_is_woken_by_whoever_changes_something() -> None:
    """Three threads ask, one gives up, two load, and the engine waits whenever it has nothing to compute."""
    store, lock = Shelf(), Watched()
    prompts = [prompt(seed, (1 + seed % 4) * A + 4) for seed in range(8)]
    stored(store, prompts[:5], LLAMA)
    manager = make(7, LLAMA, store, lock=lambda: lock)
    asked: list[Live] = []
    with ThreadPoolExecutor(2) as executor:
        scheduler = Scheduler(manager, executor, limits=Limits(blocks={"store": 5}), chunk=2 * A)
        watch(scheduler, lock, every=9)
        engine, left = Engine(scheduler, decode=1), [3]

        def ask(number: int) -> None:
            for seed in range(12):
                asked.append(scheduler.submit(manager.keys(prompts[(seed * 3 + number) % 8]), owner=str(number)))
            left[0] -= 1

        def give_up() -> None:
            while left[0]:
                for live in asked[-2:]:
                    scheduler.cancel(live)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
        threads.append(threading.Thread(target=give_up))
        for thread in threads:
            thread.start()
        while scheduler.live or left[0]:
            if not engine.step() and scheduler.live:
                assert scheduler.wait(PATIENCE), [scheduler.state(live) for live in scheduler.live.values()]
        for thread in threads:
            thread.join()
    assert len(asked) == 36 and all(live.begun.done() for live in asked)
    assert leaks(scheduler) == []


# ---- misuse, and controls -------------------------------------------------------------------------------------------


def test_bad_calls_are_named() -> None:
    bench = Bench(requests=1)
    with pytest.raises(ValueError, match="0 tokens"):
        bench.submit([])
    live = bench.submit(HIT)
    with pytest.raises(Refused, match="all are taken"):
        bench.submit(HIT)
    bench.scheduler.cancel(live)
    with pytest.raises(ValueError, match="has ended"):
        bench.scheduler.where(live)
    with pytest.raises(CancelledError):
        live.begun.result(0)
    for options, says in (({"chunk": 5}, "steps of 5"), ({"requests": 0}, "requests=0"), ({"attempts": -1}, "-1")):
        with pytest.raises(ValueError, match=says):
            Scheduler(bench.manager, bench.executor, **options)  # type: ignore[arg-type]
    twice = bench.submit(prompt(3, 20))
    bench.granted()
    with pytest.raises(ValueError, match="more than once"):
        bench.scheduler.decode([twice, twice])
    bench.over()


def test_a_place_is_another_requests_once_it_was_given_back() -> None:
    bench = Bench(requests=2)
    opener, joiner = bench.submit(HIT), bench.submit(HIT)
    bench.granted()
    bench.scheduler.cancel(joiner)
    new = bench.submit(prompt(3, 20))
    assert new.place == joiner.place and bench.states(joiner, new) == ["absent", "waiting"]
    bench.executor.run_all()  # the joiner's call finds another there
    assert bench.states(opener, new) == ["ready", "waiting"]
    assert not bench.scheduler.cancel(joiner)
    bench.over()


class Handover(Watched):
    """Calls ``then`` once, when it has been let go for the next time."""

    then: Callable[[], None] | None = None

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        then, self.then = self.then, None
        if then is not None:
            then()


def test_who_asks_or_gives_up_writes_nothing_that_the_engine_has_still_to_store() -> None:
    rows = Handover()
    bench = Bench(24, lock=lambda: rows)
    bench.manager.writes_through = True
    live, other = bench.submit(prompt(2, 2 * A)), bench.submit(prompt(3, A))
    before = bench.store.usage().objects
    assert len(bench.scheduler.schedule()) == 2
    stored_by_then: list[int] = []

    def meanwhile() -> None:  # on another thread, when rows may be stepped again, and before the engine's call ends
        bench.scheduler.report()
        bench.scheduler.state(other)
        bench.scheduler.cancel(other)
        stored_by_then.append(bench.store.usage().objects)

    rows.then = meanwhile
    bench.scheduler.preempt(live)
    assert stored_by_then == [before]
    assert bench.store.usage().objects == before + 2
    bench.over()


def test_a_request_in_no_queue_would_be_seen() -> None:
    bench = Bench()
    live = bench.submit(HIT)
    bench.lock.after = lambda: None
    bench.scheduler.queues.remove(live.number)
    assert faults(bench.scheduler) == [f"S26: request {live.number} is WAITING and waits for a turn: False"]
    bench.scheduler.queues.put(live.number, Queue.RESIDENT, cost=1, now=0)
    assert "another queue than its word" in faults(bench.scheduler)[0]


def test_a_word_that_refuses_what_must_be_is_told() -> None:
    bench = Bench()
    live = bench.submit(HIT)
    with pytest.raises(Broken, match=r"S26.*refuses 'start'"):
        bench.scheduler._requests.sure("start", live)
    bench.scheduler.cancel(live)
    bench.over()


def test_what_is_left_would_be_seen() -> None:
    bench = Bench(limits=Limits(4))
    live = admitted(bench)
    named = [line.split(":")[0] for line in leaks(bench.scheduler)]
    assert named == ["live", "reservations", "tickets", "words", "budgets", "compressed_kv", "compressed_kv"]
    bench.scheduler.cancel(live)
    assert leaks(bench.scheduler) == []
