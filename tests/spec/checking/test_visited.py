"""Sets of states: exact however their hashes collide, and a perfect index is exact to the bit."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvfsm.spec.checking.engines import engine_c, engine_numpy
from kvfsm.spec.checking.engines.compiling import compiler
from kvfsm.spec.checking.engines.engine_numpy import Queue
from kvfsm.spec.checking.engines.visited import FACTOR, Bits, Table
from kvfsm.spec.checking.exploration import Exploration, Found, Request
from kvfsm.spec.checking.layout import Layout
from tests.spec.checking.searching import assert_agrees, random_system, reference

COLLIDING = 0  # a factor with which every state has the same hash


def filled(rows: list[list[int]], places_bits: int, factor: int) -> tuple[Table, Queue]:
    array = np.array(rows, dtype=np.int64)
    queue = Queue(array.shape[1], np, len(rows))
    queue.append(array, np.zeros(len(rows), dtype=np.int32))
    table = Table(queue, places_bits, np, factor)
    table.add(array, 0)
    return table, queue


@pytest.mark.parametrize("factor", [COLLIDING, FACTOR])
@pytest.mark.parametrize("words", [1, 2])
def test_a_tiny_table_finds_every_row_and_no_other(factor: int, words: int) -> None:
    pick = random.Random(7)
    every = {tuple(pick.randrange(-(1 << 63), 1 << 63) for _ in range(words)) for _ in range(40)}
    rows = [list(row) for row in sorted(every)]
    table, _ = filled(rows[:30], 5, factor)
    assert table.find(np.array(rows, dtype=np.int64)).tolist() == [*range(30), *[-1] * 10]
    assert table.fresh(np.array(rows[28:32], dtype=np.int64)).tolist() == [False, False, True, True]
    assert sorted(table.table.tolist()) == [0, 0, *range(1, 31)]


def test_rows_that_differ_in_the_second_word_only_are_told_apart() -> None:
    table, _ = filled([[5, 1], [5, 2]], 3, COLLIDING)
    assert table.find(np.array([[5, 2], [5, 3], [5, 1]], dtype=np.int64)).tolist() == [1, -1, 0]


def test_bits_take_in_what_shares_a_byte_and_leave_out_derived_cells() -> None:
    bits = Bits(8, 2, np)
    bits.add(np.array([[0 << 2], [3 << 2], [7 << 2], [8 << 2], [255 << 2]], dtype=np.int64), 0)
    bits.add(np.array([[1 << 2], [6 << 2]], dtype=np.int64), 5)
    every = np.array([[place << 2 | 3] for place in range(256)], dtype=np.int64)
    assert np.flatnonzero(~bits.fresh(every)).tolist() == [0, 1, 3, 6, 7, 8, 255]


@pytest.mark.parametrize("seed", [3, 18, 24])
def test_engines_are_exact_when_every_hash_collides(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_numpy, "SMALL_BITS", 0)
    monkeypatch.setattr(engine_c, "SMALL_BITS", 0)
    system = random_system(seed)
    request, expected = Request(Layout(system), factor=COLLIDING), reference(system)
    found: dict[str, Found] = {"numpy": engine_numpy.search(request, np)}
    if compiler() is not None:
        found["c"] = engine_c.search(request)
    for engine, one in found.items():
        assert_agrees(Exploration(request, engine, one, 0.0), expected)
