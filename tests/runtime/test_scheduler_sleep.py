"""An engine sleeps and wakes: memory goes away under requests in every state, and they go on afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvfsm.runtime.admission import Limits
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.running_rows import RunningRows
from kvfsm.runtime.scheduler import Live

from .bench import HIT, A, Bench
from .serving import leaks, prompt

SLOTS = {"compressed_kv": 30}


def runs(bench: Bench, seed: int = 3) -> Live:
    live = bench.submit(prompt(seed, 2 * A + 4))
    while bench.states(live) != ["running"]:
        bench.scheduler.schedule()
    return live


# ---- memory that is voided under requests ---------------------------------------------------------------------------


def void(bench: Bench, *, taken: bool) -> int | None:
    """The memory is allocated anew under what runs; another may have the rows' numbers then."""
    bench.manager.reallocate(SLOTS, void=True)
    return bench.manager.requests.admit(A) if taken else None


def test_a_row_that_is_voided_while_ranks_vote_on_its_way_back_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(limits=Limits(requests=2))
    live = runs(bench)
    rows: list[int | None] = []

    def votes(running: RunningRows, here: bool) -> bool:
        rows.append(void(bench, taken=True))
        return here

    monkeypatch.setattr(RunningRows, "_everywhere", votes)
    assert not bench.scheduler.rollback(live, live.tokens)
    assert rows == [live.row] and bench.manager.requests.tokens[live.row] == A and bench.manager.audit().ok


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("verb", ["finish", "cancel", "preempt", "publish", "decode", "rollback", "schedule"])
def test_a_request_whose_row_was_voided_ends_or_waits_anew(verb: str, taken: bool) -> None:
    bench = Bench(limits=Limits(requests=2))
    live = runs(bench)
    other = void(bench, taken=taken)
    assert other is None or other == live.row
    scheduler = bench.scheduler
    calls: dict[str, Callable[[], object]] = {
        "finish": lambda: scheduler.finish(live),
        "cancel": lambda: scheduler.cancel(live),
        "preempt": lambda: scheduler.preempt(live),
        "publish": lambda: scheduler.publish(live),
        "decode": lambda: scheduler.decode([live]).back,
        "rollback": lambda: scheduler.rollback(live, A),
        "schedule": lambda: [work.live for work in scheduler.schedule()],
    }
    says = calls[verb]()
    assert says == {"cancel": True, "publish": 0, "decode": (live,), "rollback": False, "schedule": [live]}.get(verb)
    ends = verb in ("finish", "cancel")
    assert bench.states(live) == ["absent" if ends else "running" if verb == "schedule" else "waiting"]
    assert scheduler.report().voided == (not ends)
    assert bench.manager.requests.active.sum() == (verb == "schedule") + taken
    if other is not None:
        assert bench.manager.requests.tokens[other] == A  # it is another's, and goes on
        bench.manager.requests.finish(other)
    bench.over()
    assert ends or live in bench.engine.finished


def test_work_of_a_row_that_was_voided_is_not_handed_out() -> None:
    bench = Bench()
    bench.submit(prompt(3, 20)), bench.submit(prompt(4, 20))
    real, calls = bench.manager.match, [0]

    def match(*arguments: object, **options: object) -> object:
        calls[0] += 1
        if calls[0] == 2:
            raise OSError("the disk has gone")
        return real(*arguments, **options)  # type: ignore[arg-type]

    bench.manager.match = match  # type: ignore[assignment,method-assign]
    with pytest.raises(OSError, match="gone"):
        bench.scheduler.schedule()
    void(bench, taken=False)
    assert sorted(bench.granted()) == [(1, 0, 20), (2, 0, 20)]  # the first of them once
    bench.over()


# ---- a scheduler that lets go first ---------------------------------------------------------------------------------


def everything(bench: Bench) -> list[Live]:
    """A request that runs, one that is in the middle of its prompt, one that loads, one that waits for that load."""
    running = runs(bench)
    long = bench.submit(prompt(4, 6 * A))
    loads, joins = bench.submit(HIT, owner="a"), bench.submit(HIT, owner="b")
    bench.scheduler.schedule()
    assert bench.states(running, long, loads, joins) == ["running", "running", "admitted", "waiting"]
    return [running, long, loads, joins]


def sleep(bench: Bench) -> None:
    assert bench.manager.tickets == {} and bench.manager.reservations == {}
    assert not bench.manager.requests.active.any()
    bench.manager.reallocate(SLOTS)


def test_all_that_is_held_goes_back_before_an_engine_sleeps() -> None:
    bench = Bench(chunk=3 * A, limits=Limits(requests=3))
    lives = everything(bench)
    with pytest.raises(Refused, match="PINNED"):
        bench.manager.reallocate(SLOTS)
    assert bench.scheduler.preempt_all()
    assert bench.states(*lives) == ["waiting"] * 4
    sleep(bench)
    late = bench.submit(prompt(9, 20))
    bench.over()
    assert sorted(live.number for live in bench.engine.finished) == [live.number for live in (*lives, late)]
    assert len(bench.store.reads) == 3  # the joiner's and the opener's, once


def test_who_is_ready_lets_go_too() -> None:
    bench = Bench()
    live = bench.submit(HIT)
    bench.scheduler.schedule()
    bench.executor.run_all()
    assert bench.states(live) == ["ready"] and bench.scheduler.preempt_all()
    assert bench.states(live) == ["waiting"] and leaks(bench.scheduler)[:3] == [
        f"live: {bench.scheduler.live}", "queues: 1", "words: 1",
    ]  # fmt: skip
    sleep(bench)
    bench.over()
    assert bench.engine.finished == [live]


@pytest.mark.parametrize("then", ["wait", "cancel", "again"])
def test_bytes_that_arrive_are_waited_for_and_nobody_waits_under_the_lock(then: str) -> None:
    bench = Bench(chunk=3 * A)
    lives, told = everything(bench), list[bool]()

    def while_bytes_arrive() -> None:
        bench.store.during = lambda: None
        told.append(bench.scheduler.preempt_all())
        assert bench.states(*lives) == ["waiting", "waiting", "loading", "waiting"]
        if then == "cancel":
            assert bench.scheduler.cancel(lives[2]) and bench.states(lives[2]) == ["draining"]
        elif then == "again":
            told.append(bench.scheduler.preempt_all())

    bench.store.during = while_bytes_arrive
    bench.executor.run_all()
    assert told == [False] * len(told) and bench.scheduler.wait(0)
    assert bench.scheduler.preempt_all()
    sleep(bench)
    bench.over()
    left = [live for live in lives if then != "cancel" or live is not lives[2]]
    assert sorted(live.number for live in bench.engine.finished) == [live.number for live in left]


def test_slots_that_the_device_uses_wait_for_it() -> None:
    bench, device = Bench(), [False]
    runs(bench)
    assert bench.scheduler.preempt_all(done=lambda: device[0])
    with pytest.raises(Refused, match="on the device"):
        bench.manager.reallocate(SLOTS)
    device[0] = True
    sleep(bench)
    bench.over()


@pytest.mark.parametrize("at", range(4))
def test_a_load_that_was_let_go_disturbs_no_later_one(at: int) -> None:
    """Somebody outside joined it, so that it goes on; the request has another load by then."""
    bench = Bench()
    live = bench.submit(HIT)
    bench.scheduler.schedule()
    (first,) = bench.manager.tickets.values()
    with bench.manager.lock:
        first.join("outside")
    bench.scheduler.preempt_all()
    assert bench.states(live) == ["waiting"] and first.state == "open"
    steps = [bench.executor.run, bench.scheduler.schedule, bench.scheduler.schedule]
    steps.insert(at, lambda: bench.manager.expire(live.keys))
    for step in steps:
        step()
    bench.over()
    assert bench.engine.finished == [live]


def test_memory_can_go_away_again_and_again() -> None:
    bench = Bench(12, chunk=2 * A)
    for seed in range(8):
        bench.submit(prompt(seed + 3, (1 + seed % 5) * A + 4))
        bench.submit(HIT if seed % 2 else prompt(1, 2 * A + 4))
    for times in range(40):
        bench.engine.step()
        if times % 3 == 0 and bench.executor.jobs:
            bench.executor.run()
        if times % 5 == 0:
            assert bench.scheduler.preempt_all()
            bench.manager.reallocate({"compressed_kv": 12 + times % 3})
        elif times % 7 == 0 and not bench.manager.tickets and not bench.manager.reservations:
            bench.manager.reallocate(void=True)
    bench.over()
    assert len(bench.engine.finished) == 16
