"""H-26: what is in flight stays below its limit, and who is refused is told so and comes again.

A host pool of 200 blocks, of which loads may have 160 in flight, and 24 requests of 40 blocks that are all on disk. At
most four load at any time, twenty are put off at first, all finish, and nothing of the pool is in use at the end. Where
room is taken without a limit a fifth load is in flight, and the pool has nothing left for a step.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any

from kvfsm.runtime.admission import Admission, Deferred, Limits, Reservation
from kvfsm.runtime.generated import Refusal
from kvfsm.runtime.scheduler import Scheduler

KV = "compressed_kv"
GRANULE = 4
POOL, LIMIT, REQUESTS, BLOCKS = 200, 160, 24, 40


class InOrder(Executor):
    """Runs loads one by one, when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.jobs.append(lambda: fn(*args, **kwargs))
        return Future()


def stored(bench: Any, open_store: Any, **options: Any) -> tuple[Any, list[Any]]:
    """A manager over a store that has all prompts, and their keys."""
    profile = bench.profile(GRANULE, bench.group("full", KV, GRANULE, GRANULE))
    store = open_store(profile)
    writer = bench.manager(profile, POOL, store=store)
    manager = bench.manager(profile, POOL, store=store, **options)
    prompts = [manager.keys(bench.tokens(BLOCKS * GRANULE + 1, seed)) for seed in range(REQUESTS)]
    for keys in prompts:
        bench.put(writer, keys, 0, BLOCKS)
    return manager, prompts


def test_twenty_of_twenty_four_are_told_to_wait(bench: Any, open_store: Any) -> None:
    manager, prompts = stored(bench, open_store)
    admission = Admission(manager, Limits(blocks={"store": LIMIT}))
    found = [admission.admit(manager.match(keys), keys.tokens) for keys in prompts]
    admitted = [one for one in found if isinstance(one, Reservation)]
    deferred = [one for one in found if isinstance(one, Deferred)]
    assert (len(admitted), len(deferred)) == (4, 20)
    assert all(one.reason is Refusal.FULL and "160 are allowed" in one.detail for one in deferred)
    for one in admitted:
        assert one.ticket is not None
        one.ticket.transfer()
        admission.cancel(one)
    bench.audited(manager)


def test_at_most_four_are_in_flight_and_all_finish(bench: Any, open_store: Any) -> None:
    most = [0]

    def look(_: object) -> None:
        pool = manager.core.pools[KV]
        most[0] = max(most[0], int(pool.in_state(range(POOL), "loading").sum()))

    manager, prompts = stored(bench, open_store, on_event=look)
    executor = InOrder()
    scheduler = Scheduler(manager, executor, limits=Limits(blocks={"store": LIMIT}))
    lives = [scheduler.submit(keys) for keys in prompts]
    assert scheduler.schedule() == ()
    states = [scheduler.state(live) for live in lives]
    assert (states.count("admitted"), states.count("waiting")) == (4, 20)
    finished = []
    while scheduler.live:
        executor.jobs.pop(0)()
        for work in scheduler.schedule():
            assert work.start == BLOCKS * GRANULE
            scheduler.finish(work.live)
            finished.append(work.live)
    assert sorted(live.number for live in finished) == [live.number for live in lives]
    assert most == [LIMIT]
    assert not executor.jobs and not manager.tickets
    manager.reset()
    assert manager.core.pools[KV].free == POOL
    bench.audited(manager)


def test_without_a_limit_a_fifth_load_takes_the_rest(bench: Any, open_store: Any) -> None:
    """The control: loads begin as they come."""
    manager, prompts = stored(bench, open_store)
    tickets = []
    for keys in prompts:
        if bench.refusal(lambda keys=keys: tickets.append(manager.load_begin(manager.match(keys).plan))):
            break
    assert len(tickets) == 5 and manager.core.pools[KV].free == 0
    assert bench.refusal(manager.requests.admit, 1) == "POOL_FULL"
    for ticket in tickets:
        ticket.transfer()
