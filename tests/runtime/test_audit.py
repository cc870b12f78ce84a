"""The audit sees each fault that it is there for; every other test relies on its silence."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.lease import Lease
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.pool import Pool

PROFILE = PROFILES["tiny_deepseek_v4"]
KIND = "compressed_kv"


@pytest.fixture
def lease() -> Lease:
    """On two granules, the rest of the pool is free."""
    manager = Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 8), NumpyBackend())
    keys = manager.keys(np.arange(3 * PROFILE.granule))
    for granule in range(2):
        manager.publish(manager.reserve(keys, granule, granule + 1))
    return manager.acquire(manager.match(keys), owner="reader")


def set_field(pool: Pool, slot: int, name: str, value: int) -> None:
    word = pool.table.LAYOUT.replaced(int(pool.table.words[slot]), {name: value})
    pool.table.words[slot] = word


def stack_a_slot_twice(manager: Manager, pool: Pool, held: int, free: int) -> None:
    pool.give_back(np.array([free]))


def stack_more_than_there_are(manager: Manager, pool: Pool, held: int, free: int) -> None:
    pool._free[0].top = pool.hot + 1


def lose_a_free_slot(manager: Manager, pool: Pool, held: int, free: int) -> None:
    pool._free[0].top -= 1


def pin_a_free_slot(manager: Manager, pool: Pool, held: int, free: int) -> None:
    set_field(pool, free, "pins", 1)


def hold_a_free_slot(manager: Manager, pool: Pool, held: int, free: int) -> None:
    set_field(pool, free, "holds", 1)


def take_what_nobody_keeps(manager: Manager, pool: Pool, held: int, free: int) -> None:
    pool.take(1, pool.rules.take())


def own_what_the_index_has(manager: Manager, pool: Pool, held: int, free: int) -> None:
    manager.core.orphans[KIND] = np.array([held])


def own_what_is_free(manager: Manager, pool: Pool, held: int, free: int) -> None:
    manager.core.orphans[KIND] = np.array([free])


def take_a_leased_slot_anew(manager: Manager, pool: Pool, held: int, free: int) -> None:
    set_field(pool, held, "generation", pool.generation(held) + 1)


def forget_a_pin(manager: Manager, pool: Pool, held: int, free: int) -> None:
    set_field(pool, held, "pins", 0)


FAULTS: dict[Callable[[Manager, Pool, int, int], None], str] = {
    stack_a_slot_twice: "S1: a slot is on the free stack twice",
    stack_more_than_there_are: "S1: 9 slots are counted as free, the stack has 8",
    lose_a_free_slot: "S1: 5 slots on the free stack, 6 words are free",
    pin_a_free_slot: "S2: a free slot has pins",
    hold_a_free_slot: "S2: a free slot has holds",
    take_what_nobody_keeps: "S1: slots in use that nobody knows: ",
    own_what_the_index_has: "S1: a slot is known twice among ",
    own_what_is_free: "known slots that are free: ",
    take_a_leased_slot_anew: "S3: lease 3 covers slots that were taken anew",
    forget_a_pin: "has 0 pins, leases account for 1",
}


CHANGE_WORDS = {pin_a_free_slot, hold_a_free_slot, take_a_leased_slot_anew, forget_a_pin}


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        pytest.param(plant, told, id=plant.__name__, marks=[pytest.mark.plants_words] if plant in CHANGE_WORDS else [])
        for plant, told in FAULTS.items()
    ],
)
def test_a_planted_fault_is_told(plant: Callable[[Manager, Pool, int, int], None], told: str, lease: Lease) -> None:
    manager = lease.manager
    assert manager.audit().violations == ()
    pool = manager.core.pools[KIND]
    plant(manager, pool, int(lease.slots[KIND][0]), int(pool.free_slots[0]))
    found = manager.audit()
    assert not found.ok
    assert any(told in text and KIND in text for text in found.violations), found.violations
