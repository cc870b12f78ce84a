"""What a scheduler refuses, and says: requests of others, options and keys that can't be meant, and poison."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvfsm.runtime.errors import Poisoned, Refused
from kvfsm.runtime.limits import Limits
from kvfsm.runtime.queues import Queue, Queues
from kvfsm.runtime.scheduler import Live, Scheduler

from .bench import A, Bench
from .serving import prompt

CALLS: dict[str, Callable[[Scheduler, Live], object]] = {
    "cancel": lambda scheduler, live: scheduler.cancel(live),
    "state": lambda scheduler, live: scheduler.state(live),
    "where": lambda scheduler, live: scheduler.where(live),
    "begun": lambda scheduler, live: asyncio.run(scheduler.begun(live)),
    "publish": lambda scheduler, live: scheduler.publish(live),
    "decode": lambda scheduler, live: scheduler.decode([live]),
    "propose": lambda scheduler, live: scheduler.propose([live], 1),
    "accept": lambda scheduler, live: scheduler.accept([live], 0),
    "reject": lambda scheduler, live: scheduler.reject([live]),
    "rollback": lambda scheduler, live: scheduler.rollback(live, 1),
    "finish": lambda scheduler, live: scheduler.finish(live),
    "preempt": lambda scheduler, live: scheduler.preempt(live),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_request_of_another_scheduler_is_refused(call: str) -> None:
    bench, other = Bench(), Bench()
    mine, foreign = bench.submit(prompt(3, 20)), other.submit(prompt(3, 20))
    bench.granted(), other.granted()
    assert (mine.place, mine.generation, mine.row) == (foreign.place, foreign.generation, foreign.row)
    with pytest.raises(Refused, match=f"request {foreign.number} is another scheduler's") as refused:
        CALLS[call](bench.scheduler, foreign)
    assert refused.value.refusal.name == "LEASE"
    assert bench.states(mine) == other.states(foreign) == ["running"] and mine.computed == 20
    bench.over(), other.over()
    with pytest.raises(Refused, match="another"):  # nor once both have ended
        CALLS[call](bench.scheduler, foreign)


@pytest.mark.parametrize("call", CALLS)
def test_work_is_no_request(call: str) -> None:
    bench = Bench()
    bench.submit(prompt(3, 20))
    (work,) = bench.scheduler.schedule()
    with pytest.raises(TypeError, match=r"this is a Work and no request; give its \.live"):
        CALLS[call](bench.scheduler, work)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="this is a int and no request; give what submit"):
        CALLS[call](bench.scheduler, work.live.number)  # type: ignore[arg-type]
    bench.over()


def test_budgets_that_grant_nothing_are_refused() -> None:
    bench = Bench()
    for budgets, says in (({"foo": 3.0}, r"\['foo'\]; queues are disk"), ({Queue.RESIDENT: 0.0}, "0.0 for 'resident'"),
                          ({Queue.DISK: float("nan")}, "nan for"), ({Queue.DISK: -1.0}, "above 0")):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            Scheduler(bench.manager, bench.executor, budgets=budgets)  # type: ignore[arg-type]
    Scheduler(bench.manager, bench.executor, budgets={Queue.DISK: float("inf")})


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"executor": None}, "executor.submit is None; give an executor, such as ThreadPoolExecutor"),
    ({"limits": {"requests": 2}}, r"limits is a dict; give Limits\(...\), or None"),
    ({"queues": {"a": 1}}, r"queues is a dict; give Queues\(...\), or None"),
    ({"budgets": [Queue.DISK]}, "budgets is a list; give numbers by queue"),
    ({"budgets": {Queue.DISK: "1"}}, "the budget of 'disk' is a str; give a number above 0"),
    ({"chunk": 2.0 * A}, f"chunk is {2.0 * A}; give a multiple of the granule, {A}, or None"),
    ({"boundaries": 1}, "boundaries is an? int; give True or False"),
    ({"attempts": 1.5}, "attempts is 1.5; give a whole number"),
    ({"requests": True}, "requests is True; give a whole number"),
    ({"clock": 5.0}, "clock is a float; give what says the time"),
    ({"lock": threading.Lock()}, "lock is a .*lock; give what makes a lock"),
]


@pytest.mark.parametrize(("option", "says"), OPTIONS, ids=[next(iter(option)) for option, _ in OPTIONS])
def test_options_of_another_type_are_refused_at_once(option: dict[str, Any], says: str) -> None:
    bench, queues = Bench(), Queues()
    with pytest.raises(TypeError, match=says):
        Scheduler(bench.manager, **({"executor": bench.executor, "queues": queues} | option))
    Scheduler(bench.manager, bench.executor, queues=queues)  # which are nobody's yet


@pytest.mark.parametrize(
    ("limits", "kind", "says"),
    [
        ({"requests": 2.5}, TypeError, "requests is 2.5; give a whole number of at least 1, or no limit"),
        ({"requests": True}, TypeError, "requests is True"),
        ({"blocks": 3}, TypeError, "blocks is an? int; give whole numbers by tier"),
        ({"blocks": {"store": "3"}}, TypeError, "blocks from the store is '3'"),
        ({"bytes": {"packed": 1e6}}, TypeError, "bytes from the packed is 1000000.0"),
        ({"bytes": {"store": 1 << 48}}, ValueError, f"{1 << 48} bytes from the store; give 1 to {(1 << 48) - 1}"),
    ],
)
def test_limits_that_can_not_be_counted(limits: dict[str, Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        Limits(**limits)


def test_queues_serve_one_scheduler() -> None:
    bench, queues = Bench(), Queues()
    Scheduler(bench.manager, bench.executor, queues=queues)
    with pytest.raises(ValueError, match="these queues are another scheduler's"):
        Scheduler(bench.manager, bench.executor, queues=queues)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tokens": 50.5}, "tokens is 50.5; give a whole number, or None"),
        ({"tokens": 20.0}, "tokens is 20.0"),
        ({"tokens": True}, "tokens is True"),
        ({"tokens": "20"}, "tokens is '20'"),
        ({"owner": None}, "owner is None; give a name"),
        ({"owner": 3}, "owner is an? int"),
    ],
)
def test_what_a_request_can_not_be_is_refused_when_it_comes(given: dict[str, Any], says: str) -> None:
    bench = Bench()
    good = bench.submit(prompt(3, 20))
    keys = bench.manager.keys(prompt(4, 60))
    with pytest.raises(TypeError, match=says):
        bench.scheduler.submit(keys, **given)
    assert list(bench.scheduler.live.values()) == [good]
    bench.scheduler.submit(keys, np.int64(60), owner="a")  # type: ignore[arg-type]  # a whole number all the same
    assert [number for number, *_ in bench.granted()] == [1, 2]
    bench.over()


def test_keys_cover_the_prompt() -> None:
    bench = Bench()
    keys = bench.manager.keys(prompt(3, 2 * A))
    with pytest.raises(ValueError, match=f"keys of {2 * A} tokens for a prompt of {3 * A}"):
        bench.scheduler.submit(keys, 3 * A)
    assert bench.scheduler.live == {}
    bench.scheduler.submit(keys, 3 * A - 1)
    bench.over()


def test_tokens_are_no_keys() -> None:
    bench = Bench()
    for call in (bench.scheduler.submit, bench.manager.match, lambda some: bench.manager.reserve(some, 0, 1)):
        with pytest.raises(TypeError, match="is a list; give keys"):
            call(prompt(3, 20))  # type: ignore[arg-type]
    bench.over()


def test_a_request_is_short_to_read() -> None:
    bench = Bench()
    live = bench.submit(prompt(3, 20))
    assert repr(live) == "<Live: request 1, 20 tokens>"
    (work,) = bench.scheduler.schedule()
    assert repr(live) == "<Live: request 1, 20 tokens in row 0>"
    assert repr(work) == "<Work: tokens [0, 20) of request 1 in row 0>"
    bench.over()


# ---- poison ---------------------------------------------------------------------------------------------------------


def poison(bench: Bench) -> None:
    bench.lock.after = lambda: None
    with pytest.raises(AssertionError), bench.manager.lock:
        raise AssertionError("broken")


def test_poison_is_told_to_those_who_wait_to_begin() -> None:
    bench = Bench()
    lives = [bench.submit(prompt(3, 20)), bench.submit(prompt(4, 20))]
    keys = bench.manager.keys(prompt(5, 20))
    told: list[str] = []
    # It is told out of the manager's lock: what a callback calls is refused, and doesn't wait for ever.
    lives[0].begun.add_done_callback(lambda _: told.append(str(bench.lock.held)))
    poison(bench)
    for live in lives:
        assert isinstance(live.begun.exception(0), Poisoned)
    assert told == ["False"]
    calls: list[Callable[[], object]] = [
        bench.scheduler.wait,
        bench.scheduler.schedule,
        lambda: bench.scheduler.submit(keys),
        lambda: bench.scheduler.state(lives[1]),
        lambda: asyncio.run(bench.scheduler.begun(lives[1])),
    ]
    for call in calls:
        with pytest.raises(Poisoned):
            call()


@pytest.mark.parametrize("how", ["in a call", "in an audit"])
def test_who_awaits_its_begin_hears_of_poison(how: str) -> None:
    bench = Bench()
    live, given_up = bench.submit(prompt(3, 20)), bench.submit(prompt(4, 20))

    async def story() -> None:
        waits = asyncio.create_task(bench.scheduler.begun(live))
        leaves = asyncio.create_task(bench.scheduler.begun(given_up))
        await asyncio.sleep(0)
        if how == "in a call":
            poison(bench)
        else:
            pool = bench.manager.core.pools["compressed_kv"]
            pool.take(1, pool.rules.take())  # a bug: nobody keeps this slot
            bench.lock.after = lambda: None
            assert not bench.manager.audit().ok
        leaves.cancel()  # whoever leaves now leaves as ever
        with pytest.raises(asyncio.CancelledError):
            await leaves
        with pytest.raises(Poisoned):
            await asyncio.wait_for(waits, 60)

    asyncio.run(story())


def test_an_engine_that_waits_hears_of_it() -> None:
    bench = Bench()
    live = bench.submit(prompt(3, 20))
    bench.scheduler.schedule()
    other = bench.submit(prompt(4, 20))
    bench.scheduler._changed.clear()
    heard: list[BaseException] = []

    def waits() -> None:
        with pytest.raises(Poisoned) as poisoned:
            bench.scheduler.wait()
        heard.append(poisoned.value)

    engine = threading.Thread(target=waits)
    engine.start()
    poison(bench)
    engine.join(60)
    assert len(heard) == 1
    assert isinstance(other.begun.exception(0), Poisoned)
    assert live.begun.result(0).live is live  # it had begun



LAUNCHED = ("publish", "decode", "propose", "accept", "reject", "rollback", "preempt")


def beside(
    first: Callable[[], object], inside: threading.Event, go_on: threading.Event, then: Callable[[], None]
) -> None:
    """Do ``then`` while ``first`` is under way in another thread, which sets ``inside`` and waits for ``go_on``."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            first()
        except BaseException as error:  # to the test, of whatever kind
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert inside.wait(60)
        then()
    finally:
        go_on.set()
        thread.join(60)
    assert not thread.is_alive() and not failed, failed


@pytest.mark.parametrize("call", [*LAUNCHED, "preempt_all", "schedule"])
def test_what_takes_granted_work_for_computed_is_refused_beside_a_schedule(call: str) -> None:
    bench = Bench()
    inside, go_on = threading.Event(), threading.Event()
    live = bench.submit(prompt(3, 20))
    bench.granted()
    waiting = bench.submit(prompt(5, 20))
    contains = bench.store.contains

    def slowly(*given: object) -> object:
        inside.set()
        assert go_on.wait(60)
        return contains(*given)  # type: ignore[arg-type]

    bench.store.contains = slowly  # type: ignore[method-assign, assignment]

    def meet() -> None:
        with pytest.raises(RuntimeError, match=f"'{call}' while 'schedule' is under way: .*give both to one thread"):
            CALLS[call](bench.scheduler, live) if call in CALLS else getattr(bench.scheduler, call)()
        assert bench.states(live, waiting) == ["running", "waiting"] and live.computed == 20
        assert bench.scheduler.cancel(waiting)  # which may meet it

    beside(bench.scheduler.schedule, inside, go_on, meet)
    bench.store.contains = contains  # type: ignore[method-assign]
    assert bench.scheduler.publish(live) == 20 // A  # and afterwards it is as ever
    bench.over()


@pytest.mark.parametrize("call", ["preempt", "preempt_all"])
def test_a_schedule_is_refused_beside_one_that_gives_room_back(call: str) -> None:
    bench = Bench()
    inside, go_on = threading.Event(), threading.Event()
    live = bench.submit(prompt(3, 20))
    bench.granted()

    def done() -> bool:
        inside.set()
        return go_on.wait(60)

    def meet() -> None:
        with pytest.raises(RuntimeError, match=f"'schedule' while '{call}' is under way"):
            bench.scheduler.schedule()

    given = () if call == "preempt_all" else (live,)
    beside(lambda: getattr(bench.scheduler, call)(*given, done=done), inside, go_on, meet)
    assert bench.states(live) == ["waiting"] and [number for number, *_ in bench.granted()] == [1]
    bench.over()
