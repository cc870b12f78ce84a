"""Sets of packed states, on arrays of NumPy or a module like it: which of many states are new, all at once.

``Bits`` is a bit for every state that could be, without derived cells; ``Table`` is open addressing into the queue
of states, for words of any number. Both take int64 rows [n, words]; ``add`` takes rows that are new and differ.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

FACTOR = -7046029254386353131  # 2**64 divided by the golden ratio, as a signed number: neighbours land far apart
SMALL_BITS = 27  # a bit a state is taken at once where all bits together are 16 MB
LOAD = 2  # a table has at least so many places a state


class Bits:
    """One bit a state; exact, and without hashing."""

    def __init__(self, bits: int, derived_bits: int, xp: ModuleType) -> None:
        self.xp, self.derived_bits = xp, derived_bits
        self.bytes = max(1, 1 << bits >> 3)
        self.table = xp.zeros(self.bytes, dtype=xp.uint8)

    def fresh(self, rows: Any) -> Any:
        """Which rows are not in the set; bool [n]."""
        place = rows[:, 0] >> self.derived_bits
        return (self.table[place >> 3] >> (place & 7).astype(self.xp.uint8)) & 1 == 0

    def add(self, rows: Any, first: int) -> None:
        """Take in rows sorted by their first word; ``first`` is for ``Table``."""
        xp = self.xp
        if not rows.shape[0]:
            return
        place = rows[:, 0] >> self.derived_bits
        byte, bit = place >> 3, xp.left_shift(1, place & 7)
        last = xp.append(xp.flatnonzero(byte[1:] != byte[:-1]), place.shape[0] - 1)
        # Bits of one byte are neighbours and differ, so that the or of them is their sum.
        total = xp.cumsum(bit)[last]
        total[1:] -= total[:-1].copy()
        self.table[byte[last]] |= total.astype(xp.uint8)


class Table:
    """Places that hold the number of a state in the queue, counted from 1; 0 is an empty place."""

    def __init__(self, queue: Any, places_bits: int, xp: ModuleType, factor: int = FACTOR) -> None:
        self.queue, self.xp, self.factor = queue, xp, factor
        self.places_bits = places_bits
        wide = queue.capacity >= (1 << 31) - 1
        self.table = xp.zeros(1 << places_bits, dtype=xp.int64 if wide else xp.int32)
        self.bytes = int(self.table.nbytes)

    def find(self, rows: Any) -> Any:
        """The number of each row's state in the queue, -1 where it is not in the set; int64 [n]."""
        xp = self.xp
        place, found = self._places(rows), xp.full(rows.shape[0], -1, dtype=xp.int64)
        open_ = xp.arange(rows.shape[0])
        while open_.size:
            here = self.table[place].astype(xp.int64) - 1
            used = here >= 0
            open_, place, here = open_[used], place[used], here[used]
            same = (self.queue.rows[here] == rows[open_]).all(axis=1)
            found[open_[same]] = here[same]
            other = ~same
            open_, place = open_[other], self._next(place[other])
        return found

    def fresh(self, rows: Any) -> Any:
        """Which rows are not in the set; bool [n]."""
        return self.find(rows) < 0

    def add(self, rows: Any, first: int) -> None:
        """Take in rows that stand in the queue from ``first`` on."""
        xp = self.xp
        place = self._places(rows)
        value = (xp.arange(rows.shape[0]) + (first + 1)).astype(self.table.dtype)
        while value.size:
            empty = self.table[place] == 0
            self.table[place[empty]] = value[empty]  # of several, one stays
            lost = self.table[place] != value
            place, value = self._next(place[lost]), value[lost]

    def _places(self, rows: Any) -> Any:
        mixed = rows[:, 0] * self.factor
        for word in range(1, rows.shape[1]):
            mixed = (mixed ^ rows[:, word]) * self.factor
        mixed = (mixed ^ (mixed >> 32)) * self.factor
        return (mixed >> (64 - self.places_bits)) & ((1 << self.places_bits) - 1)

    def _next(self, place: Any) -> Any:
        return (place + 1) & ((1 << self.places_bits) - 1)
