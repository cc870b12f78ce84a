"""H-25: a load is admitted only with all that its first step needs; two loads that took everything would stand still.

Seven blocks. A loads 4 and its first step needs one more, B loads 3 and needs one more. A is admitted with 5 reserved
and B waits with nothing; A runs and ends, and then B does. Reserved piecemeal, A and B both load, nothing is free, and
neither can go on.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any

import pytest

from kvfsm.runtime.errors import Refused
from kvfsm.runtime.scheduler import Scheduler

KV = "compressed_kv"
GRANULE = 16
BLOCKS = {"A": 4, "B": 3}


class OneByOne(Executor):
    """Runs a load when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.jobs.append(lambda: fn(*args, **kwargs))
        return Future()


def stored(bench: Any, open_store: Any) -> tuple[Any, dict[str, Any]]:
    """A manager of seven blocks over a store that has both prompts; their keys, each a step longer than its load."""
    profile = bench.profile(GRANULE, bench.group("full", KV, GRANULE, GRANULE))
    store = open_store(profile)
    manager = bench.manager(profile, 7, store=store)
    keys = {}
    for seed, (name, count) in enumerate(BLOCKS.items(), 1):
        keys[name] = manager.keys(bench.tokens(count * GRANULE + 4, seed))
        bench.put(bench.manager(profile, 7, store=store), keys[name], 0, count)
    return manager, keys


@pytest.mark.parametrize("order", ["AB", "BA"])
def test_the_second_waits_with_nothing_and_both_finish(bench: Any, open_store: Any, order: str) -> None:
    manager, keys = stored(bench, open_store)
    executor = OneByOne()
    scheduler = Scheduler(manager, executor)
    first, second = (scheduler.submit(keys[name]) for name in order)
    pool = manager.core.pools[KV]
    assert scheduler.schedule() == ()
    need = BLOCKS[order[0]] + 1
    assert (scheduler.state(first), scheduler.state(second)) == ("admitted", "waiting")
    assert 7 - pool.free == need and second.reservation is None
    executor.jobs.pop()()
    assert scheduler.state(first) == "ready"
    (work,) = scheduler.schedule()
    assert (work.live, work.start) == (first, BLOCKS[order[0]] * GRANULE)
    scheduler.finish(first)
    scheduler.schedule()
    executor.jobs.pop()()
    (work,) = scheduler.schedule()
    assert (work.live, work.start) == (second, BLOCKS[order[1]] * GRANULE)
    scheduler.finish(second)
    assert not scheduler.live
    bench.audited(manager)


def test_reserved_piecemeal_both_stand_still(bench: Any, open_store: Any) -> None:
    """The control: each takes what its load needs, and then asks for its step."""
    manager, keys = stored(bench, open_store)
    tickets = [manager.load_begin(manager.match(keys[name]).plan) for name in "AB"]
    leases = []
    for name, ticket in zip("AB", tickets, strict=True):
        ticket.transfer()
        leases.append(manager.acquire(manager.match(keys[name])))
    assert manager.core.pools[KV].free == 0 and not manager.tickets
    for name, lease in zip("AB", leases, strict=True):
        with pytest.raises(Refused, match="POOL_FULL"):
            manager.requests.admit(keys[name].tokens, lease=lease)
    for lease in leases:
        manager.release(lease)
