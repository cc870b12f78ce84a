"""Where each cell of a system lies in a packed state: one or several 64-bit words, and no cell in two of them.

Derived cells lie lowest: of a state in one word the bits above them tell it from every other state, and states sorted
as numbers are sorted by these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .system import State, System

WORD_BITS = 64
Words = npt.NDArray[np.uint64]  # [n, word_count]


class Spot(NamedTuple):
    """Bits [``shift``, ``shift`` + width) of a word; ``mask`` is of the width, not shifted."""

    word: int
    shift: int
    mask: int


class Layout:
    """Packs and unpacks states of one system.

    >>> from ..language.expressions import INT
    >>> from .system import Cell
    >>> cells = tuple(Cell(f"a[{i}].x", "a", i, "x", INT, 5, (), True) for i in range(2))
    >>> layout = Layout(System("two", (), cells, (), (), (), ()))
    >>> layout.pack([(1, 2)]).tolist(), layout.unpack(layout.pack([(1, 2)])[0])
    ([[17]], (1, 2))
    """

    def __init__(self, system: System) -> None:
        self.system = system
        derived = {name for name, _ in system.derived}
        order = sorted(range(len(system.cells)), key=lambda place: system.cells[place].name not in derived)
        spots: dict[int, Spot] = {}
        word = shift = 0
        self.derived_bits = 0  # bits of the derived cells, the lowest of the first word
        for place in order:
            cell = system.cells[place]
            if cell.bits > WORD_BITS:
                raise ValueError(f"{cell.name} needs {cell.bits} bits, more than a word has")
            if shift + cell.bits > WORD_BITS:
                word, shift = word + 1, 0
            spots[place] = Spot(word, shift, (1 << cell.bits) - 1)
            shift += cell.bits
            if cell.name in derived:
                self.derived_bits += cell.bits
        self.word_count = word + 1
        self.bits = word * WORD_BITS + shift  # of a packed state
        self.spots = tuple(spots[place] for place in range(len(system.cells)))  # in the order of the cells

    @cached_property
    def _by_name(self) -> dict[str, Spot]:
        return {cell.name: spot for cell, spot in zip(self.system.cells, self.spots, strict=True)}

    def place(self, name: str) -> Spot:
        """Where the cell of that name lies; KeyError when there is none."""
        return self._by_name[name]

    def pack(self, states: Sequence[State]) -> Words:
        """States as words.

        states   one value a cell, each in the range of its cell
        returns  uint64 [len(states), word_count]
        """
        packed = np.zeros((len(states), self.word_count), dtype=np.uint64)
        for row, state in enumerate(states):
            words = [0] * self.word_count
            for value, spot in zip(state, self.spots, strict=True):
                assert 0 <= value <= spot.mask, (value, spot)
                words[spot.word] |= int(value) << spot.shift
            packed[row] = words
        return packed

    def unpack(self, row: npt.NDArray[np.uint64]) -> State:
        """The state of one row of words, uint64 [word_count]."""
        words = [int(word) for word in row]
        return tuple(words[spot.word] >> spot.shift & spot.mask for spot in self.spots)

    def columns(self, words: Any, xp: ModuleType) -> dict[str, Any]:
        """The values of every cell: uint64 [n] each, of words uint64 [n, word_count]; arrays of ``xp``."""
        return {
            cell.name: words[:, spot.word] >> xp.uint64(spot.shift) & xp.uint64(spot.mask)
            for cell, spot in zip(self.system.cells, self.spots, strict=True)
        }

    def packed(self, columns: Mapping[str, Any], xp: ModuleType) -> Any:
        """Words uint64 [n, word_count] of the values of every cell, uint64 [n] each; there is one cell at least."""
        first = next(iter(columns.values()))
        words = [xp.zeros(first.shape, dtype=xp.uint64) for _ in range(self.word_count)]
        for cell, spot in zip(self.system.cells, self.spots, strict=True):
            words[spot.word] |= columns[cell.name] << xp.uint64(spot.shift)
        return xp.stack(words, axis=1)
