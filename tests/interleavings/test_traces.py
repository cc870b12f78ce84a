"""What happens in each schedule is held against the model, and the model is what it is held against."""

from __future__ import annotations

from collections import Counter

import numpy as np

from .operations import BEGINNINGS
from .runs import every, once
from .scheduler import Scheduler
from .world import VALIDATED, Setting, World, quiet, seeded

WINDOW = "swa_window"


def test_every_schedule_has_events_that_are_held_against_the_model() -> None:
    before = Counter(VALIDATED)
    found = every("p", ["evict", "fill q"], bound=1, most=40)
    assert not found.wrong
    judged = VALIDATED - before
    assert min(judged[kind] for kind in ("compressed_kv", "indexer_state", "uncompressed_tail", WINDOW)) >= 40


def test_the_store_on_disk_is_held_against_its_model_too() -> None:
    before = Counter(VALIDATED)
    _, wrong = once("p stored", ["load p", "reset"], setting=Setting(store="local"))
    assert wrong == []
    assert (VALIDATED - before)["ondisk_prefix"] > 0


def prepared(seed: int = 0) -> World:
    scheduler = Scheduler((), seeded(seed, 0.3))
    world = World(scheduler, Setting())
    quiet(BEGINNINGS["p"], world)()
    return world


def test_a_word_that_changes_without_an_event_is_wrong() -> None:
    world = prepared()
    assert world.illegal() == []
    world.manager.core.pools[WINDOW].table.words[0] ^= np.uint64(1 << 40)
    (told,) = world.illegal()
    assert told.startswith("trace: changed_without_event: the word of slot 0 of swa_window changed")


def pin_openly(world: World) -> None:
    """An event without the lock: between its look at the words and its write, another one fits."""
    pool = world.manager.core.pools[WINDOW]
    held = np.flatnonzero(pool.in_state(np.arange(len(pool)), "resident"))[:1]
    words = pool.table.fields("boundary", held)
    pool.fire("pin", held, expected=pool.generations(held), at=words)


def test_two_events_without_the_lock_lose_an_update_in_some_schedule() -> None:
    told: list[str] = []
    for seed in range(20):
        world = prepared(seed)
        assert world.scheduler.run([quiet(pin_openly, world)] * 2) == []
        told += world.illegal()
    assert told and len(told) < 20
    assert all(one.startswith("trace: other_word: 'pin' left another word in slot") for one in told), told
    assert all(one.endswith("pins 2 -> 1") for one in told), told
