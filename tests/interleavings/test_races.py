"""Races that once were: each by a schedule that showed it, and by every schedule with two preemptions."""

from __future__ import annotations

from typing import Any

import pytest

from kvfsm.runtime.errors import Refused
from kvfsm.runtime.manager import Manager

from .runs import every, once
from .scheduler import Scheduler, explore, preemptions
from .world import World

RACES = {
    "an expiry of a part of what is being packed left freed slots in the index": (
        "p", ("pack p", "expire p end"), [0, 0, 0, 0, 1, 1, 1, 0, 0],
    ),
    "a packing that failed after an expiry lost its slots": (
        "p", ("pack fails", "expire p"), [0, 0, 0, 0, 1, 1, 1, 0, 0],
    ),
    "a packing that failed after a reset lost its slots": ("p", ("pack fails", "reset"), [0, 0, 0, 0, 1, 1, 1, 0, 0]),
    "a row that published over what is being packed was refused half-way": (
        "p", ("pack p", "decode p"), [0, 0, 0, 0, *[1] * 96, 0, 0],
    ),
    "freed slots of the index were taken anew": (
        "p", ("pack p", "expire p end", "fill q end"), [0, 0, 0, 0, 2, 1, 1, 1, 0, 0, *[2] * 10],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RACES)
def test_a_known_race_is_gone(name: str) -> None:
    begin, names, choices = RACES[name]
    _, wrong = once(begin, names, choices)
    assert wrong == []
    found, wrong, count = every(begin, names, 2, most=120)
    print(f"{count} schedules")
    assert (found, wrong) == ([], [])


@pytest.mark.parametrize("names", [("fill q end", "load p"), ("abandon", "load p")])
def test_index_keys_loaded_beside_packed_kv_are_of_its_version(names: tuple[str, str]) -> None:
    begin = "p packed lossy" if names[0] == "fill q end" else "p packed"
    slots = 3 if names[0] == "fill q end" else 4
    for first in range(4, 11):
        _, wrong = once(begin, names, [0] * first + [1] * 40, slots=slots)
        assert wrong == []


def test_bytes_that_come_to_the_store_after_a_reset_are_dropped() -> None:
    counts = {"late": 0}

    def run(choices: Any) -> Any:
        scheduler = Scheduler(choices)
        world = World(scheduler)
        store = world.store
        assert store is not None
        errors = scheduler.run([lambda: world.fill(world.p, 0, 1), lambda: void_reset(world.manager)])
        assert errors == []
        kept = bool(store.objects)
        found = world.manager.match(world.p).now > 0
        assert kept == found, scheduler.choices
        counts["late"] += not kept
        return scheduler.steps

    assert sum(1 for _ in explore(2, run)) > 20
    assert counts["late"] > 0


def void_reset(manager: Manager) -> None:
    manager.reset()


def test_an_abort_while_packed_bytes_are_expanded_ends_the_load_with_a_refusal() -> None:
    choices = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    _, wrong = once("p packed", ("expand p", abort_all), choices)
    assert wrong == []
    found, wrong, _ = every("p packed", ("expand p", abort_all), 2, most=120)
    assert (found, wrong) == ([], [])


def abort_all(world: World) -> None:
    """The owner of every open load goes; whoever moves the bytes says when they have stopped."""
    for ticket in list(world.manager.tickets.values()):
        ticket.abort()


def test_a_lease_that_was_given_back_shows_nothing() -> None:
    scheduler = Scheduler()
    world = World(scheduler)
    world.fill(world.p, 0, 1)
    lease = world.manager.acquire(world.manager.match(world.p))
    world.manager.release(lease)
    with pytest.raises(Refused, match="given back"):
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
    assert world.check([]) == []


def test_a_schedule_replays_from_its_choices() -> None:
    steps, _ = once("p", ("pack p", "decode p"), [0, 1, 0, 1, 1, 0])
    again, _ = once("p", ("pack p", "decode p"), [step.chosen for step in steps])
    assert again == steps
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
