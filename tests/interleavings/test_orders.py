"""Pairs and triples of all operations, by seeds: bytes, flags, conservation and progress hold in every order."""

from __future__ import annotations

import itertools
import random

import pytest

from .operations import BEGINNINGS, OPERATIONS
from .runs import every, once
from .world import seeded

PAIRS = sorted(itertools.combinations_with_replacement(OPERATIONS, 2))


@pytest.mark.parametrize("begin", BEGINNINGS)
def test_every_pair_of_operations_keeps_what_must_hold(begin: str) -> None:
    for number, names in enumerate(PAIRS):
        chance = random.Random(f"{begin} {number}")
        slots, seed = chance.choice((3, 4, 6)), chance.randrange(10**9)
        steps, wrong = once(begin, names, slots=slots, pick=seeded(seed, 0.8))
        assert wrong == [], (begin, names, slots, [step.chosen for step in steps])


@pytest.mark.parametrize("seed", range(3))
def test_triples_of_operations_keep_what_must_hold(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(120):
        begin, names = chance.choice(list(BEGINNINGS)), chance.choices(list(OPERATIONS), k=3)
        slots, mix = chance.choice((3, 4, 6)), chance.randrange(10**9)
        steps, wrong = once(begin, names, slots=slots, pick=seeded(mix, chance.choice((0.5, 0.8, 0.9))))
        assert wrong == [], (begin, names, slots, [step.chosen for step in steps])


@pytest.mark.parametrize(
    ("begin", "names"),
    [
        ("p", ("read p", "evict")),
        ("p", ("read p", "pack p lossy")),
        ("p", ("read p", "reset")),
        ("p packed lossy", ("expand p", "read p")),
        ("p packed", ("expand p", "expire p")),
        ("p stored", ("load p", "reset")),
        ("p and q", ("decode q reusing", "pack p")),
    ],
)
def test_all_orders_with_two_preemptions(begin: str, names: tuple[str, str]) -> None:
    found, wrong, count = every(begin, names, 2, most=80)
    print(f"{count} schedules")
    assert (found, wrong) == ([], [])
