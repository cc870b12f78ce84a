"""Races that once were: none of the schedules shows them any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kvfsm.runtime.errors import Refused

from .doubles import SplitStore
from .exploring import Outcome, explore
from .operations import void
from .runs import once
from .scheduler import Pick, Scheduler, preemptions
from .shortest import check
from .world import Setting, World, quiet

RACES = {
    "an expiry of a part of what is being packed left freed slots in the index": ("p", ("pack p", "expire p end")),
    "a packing that failed after an expiry lost its slots": ("p", ("pack fails", "expire p")),
    "a packing that failed after a reset lost its slots": ("p", ("pack fails", "reset")),
    "a row that published over what is being packed was refused half-way": ("p", ("pack p", "decode p")),
    "freed slots of the index were taken anew": ("p", ("pack p", "expire p end", "fill q end")),
    "an abort while packed bytes were expanded did not end in a refusal": ("p packed", ("expand p", "abort all")),
}


@pytest.mark.parametrize("name", RACES)
def test_a_known_race_is_gone(name: str) -> None:
    print(check(*RACES[name]))


@pytest.mark.parametrize("names", [("fill q end", "load p"), ("abandon", "load p")])
def test_index_keys_loaded_beside_packed_kv_are_of_its_version(names: tuple[str, str]) -> None:
    begin = "p packed lossy" if names[0] == "fill q end" else "p packed"
    slots = 3 if names[0] == "fill q end" else 4
    print(check(begin, names, Setting(slots=slots)))


def test_bytes_that_come_to_the_store_after_a_reset_are_dropped() -> None:
    late: list[bool] = []

    def run(choices: Sequence[int], pick: Pick | None, given_up: Callable[[], bool]) -> Outcome:
        scheduler = Scheduler(choices, pick)
        world = World(scheduler)
        store = world.store
        assert isinstance(store, SplitStore)
        scheduler.run([quiet(lambda world: world.fill(world.p, 0, 1), world), lambda: void(world.manager.reset())])
        wrong = () if bool(store.objects) == (world.manager.match(world.p).now > 0) else ("kept in one place alone",)
        if not given_up():
            late.append(not store.objects)
        return Outcome(scheduler.steps, wrong, None if given_up() else world.snapshot())

    explored = explore(run)
    assert (explored.complete, explored.wrong) == (True, ())
    assert True in late and False in late


def test_a_lease_that_was_given_back_shows_nothing() -> None:
    scheduler = Scheduler()
    world = World(scheduler)
    world.fill(world.p, 0, 1)
    lease = world.manager.acquire(world.manager.match(world.p))
    world.manager.release(lease)
    with pytest.raises(Refused, match="released already"):
        lease.view("swa_window", "rows", 0)


def test_a_row_whose_publication_is_refused_is_as_before() -> None:
    scheduler = Scheduler()
    world = World(scheduler)
    manager = world.manager
    world.fill(world.p, 0, 1)
    row = manager.requests.admit(manager.profile.granule)
    pool = manager.core.pools["indexer_state"]
    slot = manager.requests._manager.core.index.slots(1, manager.core.index.locate(world.p.digests, 1), 0, 1)
    word, field = int(pool.table.words[slot[0]]), pool.table.LAYOUT.field("pins")
    full = word | field.high << field.shift
    pool.table.words[slot[0]] = full
    before = manager.requests.table("compressed_kv", [row]).tolist()
    with pytest.raises(Refused):
        manager.requests.publish(row, world.p)
    assert manager.requests.table("compressed_kv", [row]).tolist() == before
    pool.table.words[slot[0]] = word
    assert manager.audit().violations == ()
    assert manager.requests.publish(row, world.p) == 1
    manager.requests.finish(row)
    assert world.check() == []


def test_a_schedule_replays_from_its_choices() -> None:
    steps, _ = once("p", ("pack p", "decode p"), [0, 1, 0, 1, 1, 1])
    again, _ = once("p", ("pack p", "decode p"), [step.chosen for step in steps])
    assert [(step.chosen, step.name) for step in again] == [(step.chosen, step.name) for step in steps]
    assert preemptions(steps) >= 3


def test_what_is_computed_from_lossy_bytes_is_never_answered_exact() -> None:
    scheduler = Scheduler()
    world = World(scheduler)
    manager = world.manager
    world.fill(world.p, 0, 2)
    manager.pack(world.p, lossy=True)
    manager.expand(world.p)
    with manager.acquire(manager.match(world.p)) as lease:
        assert not lease.exact
        manager.publish(manager.reserve(world.p, 2, 3, lease=lease))
    assert not manager.match(world.p).exact
    for kind in manager.profile.kinds:
        manager.evict(kind, 99)
    answer = manager.match(world.p)
    assert answer.plan is not None
    restored = manager.load(answer.plan)
    assert (restored.now, restored.exact) == (2 * manager.profile.granule, True)  # the third was not stored
