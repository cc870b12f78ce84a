"""Picking one state out of all that are alike, for many states at a time.

Slots are sorted by a hash of what they hold and of who points at them, whatever the numbers; then copies are sorted.
Slots that compare equal although somebody points at one of them may still differ in how they are tied to others, so
every order of these is tried and the least packed state taken.

A state becomes nothing but a renumbering of itself, so the form never merges states that differ. The other direction
rests on hashes: two slots that nobody points at, that differ and have the same key, keep the order in which they
came, and the search would keep such a state once for each. That costs room, never a verdict, and none is known: tests
compare with a search through every renumbering. ``canonical_c.py`` orders by the same keys, so both pick the same rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

from ..layout import WORD_BITS, Layout
from ..symmetry import Pointer, SlotClass, Symmetry
from ..system import Cell

Columns = dict[str, Any]  # cell -> uint64 [n], arrays of ``xp``
Rows = list[Any]  # one uint64 [n] for each slot or copy
Bundle = tuple[tuple[str, int, int], ...]  # cells of one slot or copy that make one number: (cell, shift, mask)
MIX = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: multiplying by it spreads small numbers over 64 bits


@dataclass(frozen=True, slots=True)
class Renumbering:
    """A symmetry as the engines use it: of each orbit, one state is stored."""

    symmetry: Symmetry
    layout: Layout

    def canonical(self, words: Any, xp: ModuleType) -> Any:
        """The representative of each row: uint64 [n, word_count], arrays of ``xp``."""
        return Canonical(self.symmetry, self.layout, xp)(words)

    def c_text(self) -> str:
        """The same as a C function ``static void canonical(uint64_t *s)``, which changes one row in place."""
        from .canonical_c import canonical_c

        return canonical_c(self.symmetry, self.layout)


def bundles(symmetry: Symmetry, cells: Sequence[str]) -> tuple[Bundle, ...]:
    """Cells of one slot or copy in as few numbers as hold them, the first cell highest."""
    groups: list[list[Cell]] = []
    for cell in map(symmetry.system.cell, cells):
        if not groups or sum(other.bits for other in groups[-1]) + cell.bits > WORD_BITS:
            groups.append([])
        groups[-1].append(cell)
    found = []
    for group in groups:
        places, shift = [], 0
        for cell in reversed(group):
            places.append((cell.name, shift, (1 << cell.bits) - 1))
            shift += cell.bits
        found.append(tuple(places))
    return tuple(found)


def slot_cells(symmetry: Symmetry, part: SlotClass, slot: int) -> list[str]:
    """The cells of a slot in all instances of a class, in the same order for every slot."""
    return [
        cell.name
        for cell in symmetry.system.cells
        if cell.is_slot and cell.owner in part.instances and cell.number == slot
    ]


def copy_cells(symmetry: Symmetry, actor: str, copy: int) -> list[str]:
    """The cells of a copy, in the same order for every copy."""
    return [
        cell.name for cell in symmetry.system.cells if not cell.is_slot and cell.owner == actor and cell.number == copy
    ]


def pointers_of(symmetry: Symmetry) -> dict[str, Pointer]:
    """All locals that name slots which are alike, by their cells."""
    return {pointer.cell: pointer for part in symmetry.slots for pointer in part.pointers}


def weight_of(owner: str, field: str) -> int:
    """A number for a local of an actor, whatever its copy: odd, and seldom the same for two."""
    return 1 + 2 * sum((place + 1) * letter for place, letter in enumerate(f"{owner}.{field}".encode()))


def place_mask(part: SlotClass) -> int:
    """Lowest bits of a slot's key: in C, which slot it is of. The bit above them is whether anybody points there."""
    return (1 << max(len(part.numbers) - 1, 1).bit_length()) - 1


@dataclass(frozen=True)
class Canonical:
    """The canonical form under a symmetry, on packed states: arrays of ``xp``, which is NumPy or a module like it."""

    symmetry: Symmetry
    layout: Layout
    xp: ModuleType

    def __call__(self, words: Any) -> Any:
        """The representative of each: uint64 [n, word_count]."""
        columns = self._awake(self.layout.columns(words, self.xp))
        tied = self.xp.zeros(len(words), bool)
        for part in self.symmetry.slots:
            held = self._u(place_mask(part) + 1)
            for key, after in itertools.pairwise(self._sorted_slots(part, columns)):
                tied = tied | ((key == after) & (key & held != 0))
        found = self._packed(self._copies_sorted(columns))
        rows = self.xp.flatnonzero(tied)
        if len(rows):
            found[rows] = self._least({name: column[rows] for name, column in columns.items()})
        return found

    def _packed(self, columns: Columns) -> Any:
        return self.layout.packed(columns, self.xp)

    def _u(self, value: int) -> Any:
        return self.xp.uint64(value)

    @cached_property
    def _pointers(self) -> dict[str, Pointer]:
        return pointers_of(self.symmetry)

    def _awake(self, columns: Columns) -> Columns:
        """With 0 in every local that names a slot and is dead where its copy stands."""
        for name, pointer in self._pointers.items():
            columns[name] = self.xp.where(self._is_live(pointer, columns), columns[name], self._u(0))
        return columns

    def _is_live(self, pointer: Pointer, columns: Columns) -> Any:
        if pointer.at is None:
            return self.xp.full(columns[pointer.cell].shape, 0 not in pointer.dead)
        steps = self.symmetry.system.cell(pointer.at).high + 1
        live = self.xp.asarray([step not in pointer.dead for step in range(steps)])
        return live[columns[pointer.at].astype(self.xp.int64)]

    # Cells of one slot or copy as numbers.

    def _bundled(self, columns: Columns, cells: Sequence[str]) -> Rows:
        """Cells in as few numbers as hold them: uint64 [n] each."""
        found = []
        for bundle in bundles(self.symmetry, cells):
            (name, _, _), *rest = bundle  # the lowest is not shifted
            total = columns[name]
            for name, shift, _ in rest:
                total = total | columns[name] << self._u(shift)
            found.append(total)
        return found

    def _unbundle(self, columns: Columns, cells: Sequence[str], numbers: Rows) -> None:
        """Put cells back from the numbers that hold them."""
        for bundle, number in zip(bundles(self.symmetry, cells), numbers, strict=True):
            for name, shift, mask in bundle:
                columns[name] = number >> self._u(shift) & self._u(mask)

    def _spread(self, numbers: Rows, start: int) -> Any:
        """Numbers as one that seldom agrees for different ones."""
        total = self._u(start)
        for number in numbers:
            total = (number + total) * self._u(MIX)
            total = total ^ (total >> self._u(29))
        return total

    # Slots.

    def _slot_keys(self, part: SlotClass, columns: Columns) -> Rows:
        """A number for each slot, the same under every renumbering; a bit of it is whether anybody points there."""
        xp = self.xp
        empty = xp.zeros(len(next(iter(columns.values()))), xp.uint64)
        keys = [
            empty + self._spread(self._bundled(columns, slot_cells(self.symmetry, part, slot)), 1)
            for slot in part.numbers
        ]
        held = [empty != empty for _ in part.numbers]
        for pointer in part.pointers:
            cell = self.symmetry.system.cell(pointer.cell)
            rest = [
                other for other in copy_cells(self.symmetry, cell.owner, cell.number) if other not in self._pointers
            ]
            # The same local of another copy weighs the same, another local something else.
            weight = self._spread(self._bundled(columns, rest), weight_of(cell.owner, cell.field))
            live = self._is_live(pointer, columns)
            for row, slot in enumerate(part.numbers):
                points = live & (columns[pointer.cell] == self._u(slot))
                keys[row] = keys[row] + xp.where(points, weight, self._u(0))
                held[row] = held[row] | points
        place = place_mask(part)
        above = self._u(~(2 * place + 1) & (1 << WORD_BITS) - 1)
        return [
            key & above | xp.where(points, self._u(place + 1), self._u(0))
            for key, points in zip(keys, held, strict=True)
        ]

    def _sorted_slots(self, part: SlotClass, columns: Columns) -> Rows:
        """Sort the slots of a class, in ``columns``; returns their keys in the new order."""
        empty = self.xp.zeros(len(next(iter(columns.values()))), self.xp.uint64)
        keys, carried = [], []
        for number, (slot, key) in enumerate(zip(part.numbers, self._slot_keys(part, columns), strict=True)):
            keys.append([key])
            cells = self._bundled(columns, slot_cells(self.symmetry, part, slot))
            carried.append([empty + self._u(number), *cells])
        self._sort(keys, carried)
        for slot, (_, *cells) in zip(part.numbers, carried, strict=True):
            self._unbundle(columns, slot_cells(self.symmetry, part, slot), cells)
        self._follow(part, columns, [order for order, *_ in carried])
        return [key for (key,) in keys]

    def _follow(self, part: SlotClass, columns: Columns, order: Rows) -> None:
        """Point at slots by their new numbers: that of ``numbers[order[k]]`` has become ``numbers[k]``."""
        xp = self.xp
        for pointer in part.pointers:
            old = columns[pointer.cell]
            new = old
            for slot, place in zip(part.numbers, order, strict=True):
                was = xp.asarray(part.numbers, dtype=xp.uint64)[place.astype(xp.int64)]
                new = xp.where(old == was, self._u(slot), new)
            columns[pointer.cell] = xp.where(self._is_live(pointer, columns), new, old)

    # Copies.

    def _copies_sorted(self, columns: Columns) -> Columns:
        """With the copies of every actor in ascending order of their cells."""
        columns = dict(columns)
        for part in self.symmetry.copies:
            cells = [copy_cells(self.symmetry, part.actor, copy) for copy in range(part.count)]
            copies = [self._bundled(columns, names) for names in cells]
            self._sort(copies, [[] for _ in copies])
            for names, numbers in zip(cells, copies, strict=True):
                self._unbundle(columns, names, numbers)
        return columns

    def _sort(self, keys: list[Rows], carried: list[Rows]) -> None:
        """Sort by ``keys``, the first number weighing most, and carry other numbers along; all in place."""
        for last in range(len(keys) - 1, 0, -1):
            for at in range(last):
                swap = self._comes_before(keys[at + 1], keys[at])
                for rows in (keys, carried):
                    for place, (one, other) in enumerate(zip(rows[at], rows[at + 1], strict=True)):
                        rows[at][place] = self.xp.where(swap, other, one)
                        rows[at + 1][place] = self.xp.where(swap, one, other)

    def _comes_before(self, left: Rows, right: Rows) -> Any:
        before: Any = None
        for one, other in zip(reversed(left), reversed(right), strict=True):
            less = one < other
            before = less if before is None else less | ((one == other) & before)
        return self.xp.zeros((), bool) if before is None else before

    # Slots that compare equal.

    def _least(self, columns: Columns) -> Any:
        """The least packed state over every order of slots that compare equal: uint64 [n, word_count]."""
        xp = self.xp
        keys = [self._slot_keys(part, columns) for part in self.symmetry.slots]
        best: Any = None
        orders = (itertools.permutations(range(len(part.numbers))) for part in self.symmetry.slots)
        for choice in itertools.product(*orders):
            moved, allowed = dict(columns), xp.ones(len(next(iter(columns.values()))), bool)
            for part, key, order in zip(self.symmetry.slots, keys, choice, strict=True):
                for place, old in enumerate(order):
                    allowed = allowed & (key[old] == key[place])
                cells = [slot_cells(self.symmetry, part, slot) for slot in part.numbers]
                before = dict(moved)
                for place, old in enumerate(order):
                    moved.update({new: before[was] for new, was in zip(cells[place], cells[old], strict=True)})
                empty = xp.zeros(len(allowed), xp.uint64)
                self._follow(part, moved, [empty + self._u(old) for old in order])
            words = self._packed(self._copies_sorted(moved))
            best = words if best is None else xp.where((allowed & _below(xp, words, best))[:, None], words, best)
        return best


def _below(xp: ModuleType, left: Any, right: Any) -> Any:
    """Whether each row comes before its counterpart, the last word weighing most: bool [n]."""
    below = xp.zeros(len(left), bool)
    for word in range(left.shape[1]):
        below = (left[:, word] < right[:, word]) | ((left[:, word] == right[:, word]) & below)
    return below
