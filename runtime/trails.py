"""Where trailing kinds (window, tail) are resident along one index segment, and which boundaries that makes valid.

A trailing kind is asked only for what the next query reads, at exactly one boundary. Two ways to keep it:

* ``Marks``: a slot holds the state of exactly one boundary (a tail, a checkpointed window).
* ``Runs``: a slot holds one block of rows; a boundary is valid when the ``need`` blocks that end there are resident.

Boundaries are in granules, blocks in window blocks; ``per`` blocks make a granule. Both are absolute, counted from the
start of the sequence, so that splitting a segment changes no number in it. Everything here is O(log n) a query.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Slots32 = NDArray[np.int32]
N = TypeVar("N", int, NDArray[np.int64])
NO_SLOT = -1
"""In arrays of slots: nothing is resident here."""


@dataclass(frozen=True, slots=True)
class TrailSpec:
    """A slot a boundary (``blocks`` False), or ``per`` blocks a granule and ``need`` of them a window."""

    blocks: bool
    per: int = 1
    need: int = 1

    def first(self, boundary: int) -> int:
        """The first place that the boundary needs; it needs [first, last of the boundary]."""
        return max(0, boundary * self.per - self.need) if self.blocks else boundary

    def stop(self, boundary: N) -> N:
        """The place after the last that the boundary needs: places before it are those of granules before it.

        >>> TrailSpec(False).stop(3), TrailSpec(True, per=2, need=3).stop(3)
        (4, 6)
        """
        return boundary * self.per if self.blocks else boundary + 1

    def granule(self, place: N) -> N:
        """The granule that a place belongs to.

        >>> TrailSpec(False).granule(3), TrailSpec(True, per=2, need=3).granule(5)
        (2, 2)
        """
        return place // self.per if self.blocks else place - 1

    def new(self, base: int, end: int) -> Marks | Runs:
        """An empty trail of a segment over granules [base, end)."""
        return Runs(self, base, end) if self.blocks else Marks(self, base, end)

    def valid(self, starts: NDArray[np.int64], stops: NDArray[np.int64], at_most: int) -> NDArray[np.int64]:
        """Boundaries in (0, at_most] that are valid where the places [start, stop) of all runs are resident, ascending.

        Runs ascend and don't overlap; neighbours that touch count as one.

        >>> window = TrailSpec(True, per=2, need=3)
        >>> window.valid(np.array([0, 5, 8]), np.array([5, 6, 20]), 9).tolist()
        [1, 2, 3, 6, 7, 8, 9]
        """
        if not self.blocks:
            marks: NDArray[np.int64] = starts[starts <= at_most]
            return marks
        if not len(starts):
            return starts
        apart = starts[1:] != stops[:-1]
        starts, stops = starts[np.concatenate(([True], apart))], stops[np.concatenate((apart, [True]))]
        low = np.where(starts == 0, 1, -(-(starts + self.need) // self.per))
        high = np.minimum(stops // self.per, at_most) + 1
        counts = np.maximum(0, high - low)
        before = np.cumsum(counts) - counts
        found: NDArray[np.int64] = np.arange(counts.sum()) + np.repeat(low - before, counts)
        return found


class Marks:
    """Boundaries in (base, end], one slot each, sorted."""

    __slots__ = ("base", "end", "places", "slots", "spec")

    def __init__(self, spec: TrailSpec, base: int, end: int) -> None:
        self.spec, self.base, self.end = spec, base, end
        self.places: list[int] = []
        self.slots: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.places)

    def last(self, at_most: int, lead: int) -> int | None:
        """The greatest valid boundary <= ``at_most`` in this segment."""
        i = bisect_right(self.places, at_most)
        return self.places[i - 1] if i else None

    def add(self, places: Sequence[int], slots: Slots32) -> NDArray[np.bool_]:
        """Make places resident; True where one already was, whose slot stays."""
        held = np.zeros(len(places), np.bool_)
        for n, (place, slot) in enumerate(zip(places, slots.tolist(), strict=True)):
            i = bisect_left(self.places, place)
            if i < len(self.places) and self.places[i] == place:
                held[n] = True
            else:
                self.places.insert(i, place)
                self.slots.insert(i, slot)
        return held

    def find(self, place: int) -> int | None:
        """The slot at a place."""
        i = bisect_left(self.places, place)
        return self.slots[i] if i < len(self.places) and self.places[i] == place else None

    def between(self, low: int, high: int) -> Slots32:
        """Slots of places [low, high), all of which are resident."""
        i, j = bisect_left(self.places, low), bisect_left(self.places, high)
        return np.array(self.slots[i:j], np.int32)

    def drop(self, low: int, high: int) -> Slots32:
        """Make places [low, high) not resident; returns the slots of those that were."""
        i, j = bisect_left(self.places, low), bisect_left(self.places, high)
        slots = np.array(self.slots[i:j], np.int32)
        del self.places[i:j], self.slots[i:j]
        return slots

    def everything(self) -> tuple[NDArray[np.int64], Slots32]:
        """All resident places and their slots, in order."""
        return np.array(self.places, np.int64), np.array(self.slots, np.int32)

    def runs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Starts and stops of runs of resident places, in order; here of one place each."""
        places = np.array(self.places, np.int64)
        return places, places + 1

    def split(self, at: int) -> Marks:
        """Cut off and return the head [base, at); this keeps [at, end)."""
        head = Marks(self.spec, self.base, at)
        i = bisect_right(self.places, at)
        head.places, self.places = self.places[:i], self.places[i:]
        head.slots, self.slots = self.slots[:i], self.slots[i:]
        self.base = at
        return head

    @property
    def reach(self) -> int:
        """Granules from the start of the sequence up to the last resident place; ``base`` when there is none."""
        return self.places[-1] if self.places else self.base

    @property
    def nbytes(self) -> int:
        """Bytes held, estimated."""
        return 16 * len(self.places) + 120


class Runs:
    """Blocks in [base * per, end * per), kept as maximal runs of resident blocks beside an array of their slots.

    ``low``/``high`` are all runs; ``long`` has the starts of those that hold a valid boundary by themselves. A run that
    begins at the segment's first block goes on into the ancestors: ``lead`` tells by how many blocks.
    """

    __slots__ = ("_slots", "base", "end", "high", "long", "low", "spec")

    def __init__(self, spec: TrailSpec, base: int, end: int) -> None:
        self.spec, self.base, self.end = spec, base, end
        self.low: list[int] = []
        self.high: list[int] = []
        self.long: list[int] = []
        self._slots: Slots32 = np.empty(0, np.int32)

    def __bool__(self) -> bool:
        return bool(self.low)

    def last(self, at_most: int, lead: int) -> int | None:
        """The greatest valid boundary <= ``at_most``; ``lead`` resident blocks end right before this segment."""
        at_most = min(at_most, self.end)
        limit = at_most * self.spec.per
        i = bisect_left(self.long, limit)
        found = None
        for start in reversed(self.long[max(0, i - 2) : i]):  # a cut by the limit may leave the last one too short
            if (found := self._within(self.high[bisect_left(self.low, start)], start, at_most)) is not None:
                break
        if self.low and self.low[0] == self.base * self.spec.per and self.low[0] < limit:
            first = self._within(self.high[0], self.low[0] - lead, at_most)
            if first is not None and (found is None or first > found):
                found = first
        return found

    def add(self, places: Sequence[int], slots: Slots32) -> NDArray[np.bool_]:
        """Make places resident; True where one already was, whose slot stays."""
        if not len(places):
            return np.zeros(0, np.bool_)
        origin = self.base * self.spec.per
        at = np.asarray(places, np.intp) - origin
        if int(at[-1]) >= len(self._slots):
            room = min((self.end - self.base) * self.spec.per, max(int(at[-1]) + 1, 2 * len(self._slots)))
            grown = np.full(max(room, int(at[-1]) + 1), NO_SLOT, np.int32)
            grown[: len(self._slots)] = self._slots
            self._slots = grown
        held: NDArray[np.bool_] = self._slots[at] != NO_SLOT
        fresh = at[~held]
        self._slots[fresh] = slots[~held]
        for start, stop in _runs(fresh + origin):
            self._join(start, stop)
        return held

    def find(self, place: int) -> int | None:
        """The slot at a place."""
        i = place - self.base * self.spec.per
        slot = int(self._slots[i]) if 0 <= i < len(self._slots) else NO_SLOT
        return None if slot == NO_SLOT else slot

    def between(self, low: int, high: int) -> Slots32:
        """Slots of places [low, high), all of which are resident."""
        origin = self.base * self.spec.per
        return self._slots[low - origin : high - origin].copy()

    def drop(self, low: int, high: int) -> Slots32:
        """Make places [low, high), all of which are resident, not resident; returns their slots."""
        slots = self.between(low, high)
        origin = self.base * self.spec.per
        self._slots[low - origin : high - origin] = NO_SLOT
        n = bisect_right(self.low, low) - 1
        start, stop = self.low[n], self.high[n]
        self._remove(n)
        if high < stop:
            self._insert(high, stop)
        if start < low:
            self._insert(start, low)
        return slots

    def everything(self) -> tuple[NDArray[np.int64], Slots32]:
        """All resident places and their slots, in order."""
        at = np.flatnonzero(self._slots != NO_SLOT)
        return at + self.base * self.spec.per, self._slots[at].copy()

    def runs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Starts and stops of the maximal runs of resident places, in order."""
        return np.array(self.low, np.int64), np.array(self.high, np.int64)

    def split(self, at: int) -> Runs:
        """Cut off and return the head [base, at); this keeps [at, end)."""
        head = Runs(self.spec, self.base, at)
        places, slots = self.everything()
        i = int(np.searchsorted(places, at * self.spec.per))
        self.base = at
        self.low, self.high, self.long, self._slots = [], [], [], np.empty(0, np.int32)
        head.add(places[:i].tolist(), slots[:i])
        self.add(places[i:].tolist(), slots[i:])
        return head

    @property
    def reach(self) -> int:
        """Granules from the start of the sequence up to the last resident place; ``base`` when there is none."""
        return -(-self.high[-1] // self.spec.per) if self.high else self.base

    @property
    def trailing(self) -> int:
        """Resident blocks that end with the segment's last block."""
        if not self.high or self.high[-1] != self.end * self.spec.per:
            return 0
        return self.high[-1] - self.low[-1]

    @property
    def nbytes(self) -> int:
        """Bytes held, estimated."""
        return int(self._slots.nbytes) + 16 * len(self.low) + 8 * len(self.long) + 200

    def _within(self, high: int, start: int, at_most: int) -> int | None:
        """The greatest valid boundary <= ``at_most`` of a run [start, high), in this segment."""
        boundary = min(at_most, high // self.spec.per)
        return boundary if boundary > self.base and start <= self.spec.first(boundary) else None

    def _is_long(self, start: int, stop: int) -> bool:
        return start <= self.spec.first(stop // self.spec.per) and stop // self.spec.per > self.base

    def _join(self, start: int, stop: int) -> None:
        """Add a run whose blocks were not resident, merged with its neighbours."""
        i = bisect_left(self.low, start)
        if i < len(self.low) and self.low[i] == stop:
            stop = self.high[i]
            self._remove(i)
        if i and self.high[i - 1] == start:
            start = self.low[i - 1]
            self._remove(i - 1)
        self._insert(start, stop)

    def _insert(self, start: int, stop: int) -> None:
        i = bisect_left(self.low, start)
        self.low.insert(i, start)
        self.high.insert(i, stop)
        if self._is_long(start, stop):
            self.long.insert(bisect_left(self.long, start), start)

    def _remove(self, i: int) -> None:
        start = self.low.pop(i)
        self.high.pop(i)
        n = bisect_left(self.long, start)
        if n < len(self.long) and self.long[n] == start:
            del self.long[n]


def _runs(places: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Maximal runs [start, stop) of ascending places."""
    if not len(places):
        return []
    cuts = np.flatnonzero(np.diff(places) != 1) + 1
    starts = places[np.concatenate(([0], cuts))].tolist()
    stops = (places[np.concatenate((cuts - 1, [len(places) - 1]))] + 1).tolist()
    return list(zip(starts, stops, strict=True))
