"""What a scheduler counts: a number for everything that a request met on its way."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from kvfsm.runtime.admission import Limits
from kvfsm.runtime.queues import Queue, Queues
from kvfsm.runtime.scheduler import Scheduler
from kvfsm.runtime.serving_report import StoreReport
from kvfsm.runtime.stores.store import Item, StoreFull

from .bench import HIT, LLAMA, A, Bench
from .serving import ByHand, Shelf, make, prompt


def test_each_way_of_a_request_is_counted() -> None:
    bench = Bench(9, limits=Limits(requests=4, blocks={"store": 9}), queues=Queues(patience=9))
    bench.store.fails = iter([True, False]).__next__  # the first try of the load
    loads, joins, cold = bench.submit(HIT), bench.submit(HIT), bench.submit(prompt(3, 2 * A + 4))
    never, large, given_up = bench.submit(prompt(4, 90 * A)), bench.submit(prompt(5, 8 * A)), bench.submit([1])
    bench.scheduler.cancel(given_up)
    bench.now = 10.0
    bench.scheduler.schedule()
    bench.executor.run_all()
    report = bench.scheduler.report()
    assert report.states == {"ready": 1, "running": 1, "waiting": 2}
    assert report.in_flight == {"requests": 2, "blocks from the store": 0}
    assert report.deferred == {"BUSY": 1, "POOL_FULL": 1} and report.rejected == {"CAPACITY": 1}
    assert (report.loads, report.loads_again, report.loads_failed) == (2, 1, 1)
    waits = {queue: (one.depth, one.admitted, one.waited, one.longest) for queue, one in report.queues.items()}
    assert waits[Queue.DISK] == (1, 1, 9.0, 9.0) and waits[Queue.RESIDENT] == (2, 1, 7.0, 7.0)
    bench.scheduler.preempt(cold)
    bench.over()
    report = bench.scheduler.report()
    assert (report.arrived, report.finished, report.cancelled, report.preempted) == (6, 4, 1, 1)
    assert report.states == {} and sum(one.admitted for one in report.queues.values()) == 5
    assert set(bench.engine.finished) == {loads, joins, cold, large} and never.begun.exception(0) is not None


def test_one_that_ends_for_want_of_room_is_counted_apart() -> None:
    bench = Bench(2)
    live = bench.submit(prompt(3, 2 * A))
    bench.granted()
    bench.scheduler.decode([live])
    report = bench.scheduler.report()
    assert (report.cut_short, report.finished) == (1, 0)
    bench.over()


def test_what_the_store_did_not_take_is_told() -> None:
    store = Full()
    manager = make(24, LLAMA, store)
    scheduler = Scheduler(manager, ByHand())
    lives = [scheduler.submit(manager.keys(prompt(seed, A))) for seed in (3, 4)]
    assert scheduler.report().store == StoreReport(0, None)
    for number, live in enumerate(lives):
        scheduler.schedule()
        assert scheduler.publish(live) == 1  # others find it, in memory
        report = scheduler.report()
        assert report.store == StoreReport(number + 1, f"StoreFull: full for the {number + 1}. time")
        scheduler.finish(live)


class Full(Shelf):
    """Takes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.times = 0

    def put_many(self, items: Sequence[Item], *, at_epoch: int | None = None) -> int:
        self.times += 1
        raise StoreFull(f"full for the {self.times}. time")


def test_a_report_stays_as_it_was() -> None:
    bench = Bench()
    report = bench.scheduler.report()
    bench.submit([1])
    assert report.arrived == 0 and report.states == {}
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.arrived = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        report.deferred["FULL"] = 1  # type: ignore[index]
    bench.over()
