"""An engine that waits is woken by whoever gives room back, and by nothing else; it never has to poll."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from kvfsm.runtime.errors import Poisoned, Refused
from kvfsm.runtime.scheduler import Live, Scheduler

from .bench import A, Bench
from .serving import prompt, write

OTHERS = prompt(9, 3 * A)


def held_by_a_fill(bench: Bench) -> Callable[[], object]:
    fill = bench.manager.reserve(bench.manager.keys(OTHERS), 0, 3)
    return lambda: bench.manager.abandon(fill)


def held_by_a_writer(bench: Bench) -> Callable[[], object]:
    fill = bench.manager.reserve(bench.manager.keys(OTHERS), 0, 3)
    return lambda: bench.manager.publish(fill)  # from then on it can be evicted


def held_by_a_lease(bench: Bench) -> Callable[[], object]:
    keys = bench.manager.keys(OTHERS)
    write(bench.manager, keys, 3)
    lease = bench.manager.acquire(bench.manager.match(keys, 4 * A))
    return lambda: bench.manager.release(lease)


def held_by_a_row(bench: Bench) -> Callable[[], object]:
    row = bench.manager.requests.admit(3 * A)
    return lambda: bench.manager.requests.finish(row)


def held_by_a_load(bench: Bench) -> Callable[[], object]:
    plan = bench.manager.match(bench.manager.keys(prompt(1, 3 * A + 4))).plan
    assert plan is not None
    ticket = bench.manager.load_begin(plan)
    return lambda: ticket.done(False)


def held_by_the_device(bench: Bench) -> Callable[[], object]:
    device = [False]
    row = bench.manager.requests.admit(3 * A)
    bench.manager.requests.finish(row, done=lambda: device[0])

    def ends() -> None:
        device[0] = True
        bench.scheduler.wake()

    return ends


def too_small(bench: Bench) -> Callable[[], object]:
    held_by_a_row(bench)
    return lambda: bench.manager.reallocate({"compressed_kv": 6}, void=True)


HOLDERS = [
    held_by_a_fill, held_by_a_writer, held_by_a_lease, held_by_a_row, held_by_a_load, held_by_the_device, too_small,
]  # fmt: skip


def waits(bench: Bench) -> Live:
    live = bench.submit(prompt(3, 2 * A + 4))
    for _ in range(3):
        assert bench.granted() == []
    assert not bench.scheduler.wait(0), "an engine with nothing to do would go round and round"
    return live


@pytest.mark.parametrize("holder", HOLDERS)
def test_whoever_gives_room_back_wakes_the_engine(holder: Callable[[Bench], Callable[[], object]]) -> None:
    bench = Bench(4)
    gives = holder(bench)
    live = waits(bench)
    gives()
    assert bench.scheduler.wait(0)
    assert bench.granted() == [(live.number, 0, 2 * A + 4)]
    bench.over()


def test_who_only_looks_wakes_nobody() -> None:
    bench = Bench(4)
    gives = held_by_a_lease(bench)
    waits(bench)
    keys = bench.manager.keys(OTHERS)
    bench.manager.match(keys), bench.manager.audit(), bench.manager.leaks(), bench.scheduler.report()
    lease = bench.manager.acquire(bench.manager.match(keys, 4 * A))
    assert not bench.scheduler.wait(0)
    bench.manager.release(lease)
    gives()
    bench.over()


def test_a_rejection_wakes_the_engine_and_says_why() -> None:
    bench = Bench(4)
    large = bench.submit(prompt(3, 5 * A))
    assert bench.granted() == [] and bench.scheduler.live == {}
    assert bench.scheduler.wait(0), "an engine that waits for the last of its requests would wait for ever"
    assert isinstance(large.fault, Refused) and large.fault.refusal.name == "CAPACITY"
    assert large.begun.exception(0) is large.fault and bench.scheduler.state(large) == "absent"
    assert bench.granted() == [] and not bench.scheduler.wait(0), "it would go round and round"
    bench.over()


def test_a_poisoned_manager_lets_nobody_wait() -> None:
    bench = Bench(4)
    held_by_a_row(bench)
    waits(bench)
    bench.lock.after = lambda: None
    with pytest.raises(AssertionError), bench.manager.lock:
        raise AssertionError("broken")
    for call in (bench.scheduler.wait, bench.scheduler.schedule):
        with pytest.raises(Poisoned):
            call()


@pytest.mark.parametrize("found", ["before", "meanwhile"])
def test_an_engine_that_waits_hears_what_an_audit_found(found: str) -> None:
    bench = Bench(4)
    held_by_a_row(bench)
    live = waits(bench)
    inside = Inside()
    bench.scheduler._changed = inside
    bench.manager.watch_room(inside.set)
    bench.lock.after = lambda: None
    pool = bench.manager.core.pools["compressed_kv"]
    pool.take(1, pool.rules.take())  # a bug: nobody keeps this slot
    if found == "before":
        inside.begun.set()
    auditor = threading.Thread(target=lambda: inside.begun.wait(60) and bench.manager.audit())
    auditor.start()
    if found == "before":
        auditor.join(60)
    with pytest.raises(Poisoned, match="S1"):
        bench.scheduler.wait(60)
    auditor.join(60)
    assert isinstance(live.begun.exception(0), Poisoned)
    assert inside.woken is (True if found == "meanwhile" else None), "it would have waited for ever"


@pytest.mark.parametrize("ends", ["open", "poisoned"])
def test_a_manager_keeps_no_scheduler_that_everybody_else_has_let_go(ends: str) -> None:
    bench, kept = Bench(4), []
    gone = weakref.ref(Scheduler(bench.manager, bench.executor))
    bench.manager.watch_room(lambda: kept.append(None))  # but a function, as nobody else has it
    gc.collect()
    assert gone() is None
    held_by_a_row(bench)()
    assert kept
    if ends == "poisoned":
        with pytest.raises(AssertionError), bench.manager.lock:
            raise AssertionError("broken")
        with pytest.raises(Poisoned):
            bench.scheduler.wait()


class Inside(threading.Event):
    """What an engine waits for; says that it does, and how that ended."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.woken: bool | None = None

    def wait(self, timeout: float | None = None) -> bool:
        self.begun.set()
        self.woken = super().wait(timeout)
        return self.woken


def test_a_refusal_that_told_of_room_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(4)
    held_by_a_row(bench)
    real = bench.scheduler.admission.admit

    def admit(*arguments: object, **options: object) -> object:
        decision = real(*arguments, **options)  # type: ignore[arg-type]
        with bench.manager.lock:
            bench.manager.core.room.given += 1
        return decision

    monkeypatch.setattr(bench.scheduler.admission, "admit", admit)
    with pytest.raises(AssertionError, match="round and round"):
        waits(bench)
