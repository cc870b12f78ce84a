"""Where cells lie: none in two words, derived ones lowest, and packing loses nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from kvfsm.spec.checking.folding import number
from kvfsm.spec.checking.layout import WORD_BITS, Layout
from kvfsm.spec.checking.system import Cell, System
from kvfsm.spec.language.expressions import INT


def system(*highs: int) -> System:
    cells = tuple(Cell(f"v[{place}].x", "v", place, "x", INT, high, (), True) for place, high in enumerate(highs))
    return System("laid", (), cells, (), (), (), ())


def test_no_cell_lies_in_two_words_and_no_two_cells_share_a_bit() -> None:
    pick = random.Random(11)
    for _ in range(50):
        laid = system(*((1 << pick.randint(0, 64)) - 1 for _ in range(pick.randint(1, 12))))
        layout = Layout(laid)
        used = [0] * layout.word_count
        for cell, spot in zip(laid.cells, layout.spots, strict=True):
            assert spot.shift + cell.bits <= WORD_BITS
            assert used[spot.word] & spot.mask << spot.shift == 0
            used[spot.word] |= spot.mask << spot.shift


def test_packing_and_unpacking_gives_the_state_back() -> None:
    pick = random.Random(12)
    laid = system(5, (1 << 64) - 1, 1, (1 << 40) - 1, 3, (1 << 63) - 1)
    layout = Layout(laid)
    states = [tuple(pick.randint(0, cell.high) for cell in laid.cells) for _ in range(20)]
    words = layout.pack(states)
    assert words.shape == (20, layout.word_count)
    assert [layout.unpack(row) for row in words] == states
    columns = layout.columns(words, np)
    assert columns["v[3].x"].tolist() == [state[3] for state in states]
    assert np.array_equal(layout.packed(columns, np), words)


def test_derived_cells_lie_lowest() -> None:
    laid = replace(system(3, 7, 1), derived=(("v[1].x", number(0)),))
    layout = Layout(laid)
    assert layout.place("v[1].x").shift == 0
    assert (layout.bits, layout.derived_bits) == (6, 3)
    one, other = layout.pack([(2, 0, 1), (2, 7, 1)])[:, 0]
    assert one >> 3 == other >> 3


def test_a_cell_wider_than_a_word_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 65 bits"):
        Layout(system(1 << 64))
