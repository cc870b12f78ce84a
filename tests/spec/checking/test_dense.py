"""The index without gaps: every state that can be reached has a place of its own, and there are few others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvfsm.spec.checking.engines.dense import Part, parts
from kvfsm.spec.checking.folding import equal, number
from kvfsm.spec.checking.layout import Layout
from kvfsm.spec.checking.system import System

from .searching import random_system, reference
from .shipped import grounded

TOCTOU = grounded("toctou")
OF_ONE_WORD = [seed for seed in range(60) if Layout(random_system(seed)).word_count == 1]


def place_of(index: Sequence[Part], word: int) -> int:
    place, stride = 0, 1
    for part in index:
        field = word >> part.shift & part.mask
        place += (field if part.numbers is None else part.numbers[field]) * stride
        stride *= part.count
    return place


def assert_places_differ(system: System) -> int:
    layout = Layout(system)
    index = parts(layout, layout.derived_bits, True)
    size = math.prod(part.count for part in index)
    words = layout.pack(sorted(reference(system).states))[:, 0]
    places = {place_of(index, int(word)) for word in words}
    assert len(places) == len(words)
    assert all(0 <= place < size for place in places)
    return size


def test_each_state_of_toctou_has_its_place_among_few() -> None:
    layout = Layout(TOCTOU)
    plain = parts(layout, layout.derived_bits, False)
    assert [part.numbers for part in plain] == [None]
    assert math.prod(part.count for part in plain) == 1 << (layout.bits - layout.derived_bits)
    # 16 values of a block, 25 of a reader: 1 at its first step, 3 steps with 2 slots and 4 epochs; 3 of the compressor.
    assert assert_places_differ(TOCTOU) == 16**2 * 25**2 * 3


def test_most_random_systems_are_of_one_word() -> None:
    assert len(OF_ONE_WORD) == 43


@pytest.mark.parametrize("seed", OF_ONE_WORD)
def test_each_state_of_a_random_system_has_its_place(seed: int) -> None:
    assert_places_differ(random_system(seed))


def test_a_combination_that_another_command_brings_about_has_a_place() -> None:
    jump = replace(TOCTOU.commands[0], guard=(), updates=(("reader[0].slot", number(1)), ("reader[0].seen", number(3))))
    system = replace(TOCTOU, commands=(jump,), derived=())
    layout = Layout(system)
    index = parts(layout, 0, True)
    first, after = (
        int(word) for word in layout.pack([system.initial, next(system.successors(system.initial))[1]])[:, 0]
    )
    assert {place_of(index, first), place_of(index, after)} == {0, 1}
    assert math.prod(part.count for part in index) >> 8 < 1 << 12


def test_steps_that_cannot_be_taken_make_no_places() -> None:
    never = equal(number(1), number(2))
    stuck = replace(TOCTOU, commands=tuple(replace(item, guard=(*item.guard, never)) for item in TOCTOU.commands))
    assert assert_places_differ(replace(stuck, derived=())) == 1
