"""Picking one state out of all that are alike, for many states at a time.

Slots are sorted by what they hold and by who points at them, whatever the numbers; then copies are sorted. Slots that
compare equal although somebody points at one of them may still differ in how they are entangled, so every order of
these is tried and the least packed state taken. The result is exact: two states get the same one if and only if some
renumbering turns one into the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

from .layout import Layout
from .symmetry import CopyClass, Pointer, SlotClass, Symmetry

Columns = dict[str, Any]  # cell -> uint64 [n], arrays of ``xp``
MIX = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: multiplying by it spreads small numbers over 64 bits


@dataclass(frozen=True, slots=True)
class Renumbering:
    """A symmetry as the engines use it: each state is stored as the one that stands for all that are like it."""

    symmetry: Symmetry
    layout: Layout

    def canonical(self, words: Any, xp: ModuleType) -> Any:
        """For each row the one that stands for it: uint64 [n, word_count], arrays of ``xp``."""
        return Canonical(self.symmetry, self.layout, xp)(words)

    def c_text(self, layout: Layout) -> str:
        """The same as a C function ``static void canonical(uint64_t *s)``, which changes one row in place."""
        from .canonical_c import canonical_c

        return canonical_c(self.symmetry, layout)


@dataclass(frozen=True)
class Canonical:
    """The canonical form under a symmetry, on packed states.

    ``one(words) -> words``: uint64 [n, word_count], arrays of ``xp`` (NumPy or a module like it).
    """

    symmetry: Symmetry
    layout: Layout
    xp: ModuleType

    def __call__(self, words: Any) -> Any:
        """The state that stands for each: uint64 [n, word_count]."""
        columns = self._awake(self.layout.columns(words, self.xp))
        entangled = self.xp.zeros(len(words), bool)
        for part in self.symmetry.slots:
            keys, held = self._slot_keys(part, columns)
            order = self.xp.argsort(keys, axis=0, kind="stable")
            columns = self._renumbered(part, columns, order)
            keys = self.xp.take_along_axis(keys, order, axis=0)
            held = self.xp.take_along_axis(held, order, axis=0)
            entangled = entangled | ((keys[1:] == keys[:-1]) & (held[1:] | held[:-1])).any(axis=0)
        found = self._packed(self._copies_sorted(columns))
        rows = self.xp.flatnonzero(entangled)
        if len(rows):
            found[rows] = self._least({name: column[rows] for name, column in columns.items()})
        return found

    def _packed(self, columns: Columns) -> Any:
        return self.layout.packed(columns, self.xp)

    def _awake(self, columns: Columns) -> Columns:
        """With 0 in every local that names a slot and is dead where its copy stands."""
        for pointer in self._pointers:
            columns[pointer.cell] = self.xp.where(
                self._is_live(pointer, columns), columns[pointer.cell], _u(self.xp, 0)
            )
        return columns

    def _is_live(self, pointer: Pointer, columns: Columns) -> Any:
        if pointer.at is None:
            return self.xp.full(columns[pointer.cell].shape, 0 not in pointer.dead)
        steps = self.symmetry.system.cell(pointer.at).high + 1
        live = self.xp.asarray([step not in pointer.dead for step in range(steps)])
        return live[columns[pointer.at].astype(self.xp.int64)]

    @cached_property
    def _pointers(self) -> tuple[Pointer, ...]:
        return tuple({pointer.cell: pointer for part in self.symmetry.slots for pointer in part.pointers}.values())

    def _slot_keys(self, part: SlotClass, columns: Columns) -> tuple[Any, Any]:
        """A number for each slot, the same under every renumbering, and whether anybody points at it: [slots, n]."""
        xp = self.xp
        keys = xp.stack([self._spread(columns, self._slot_cells(part, slot)) for slot in part.numbers])
        held = xp.zeros(keys.shape, bool)
        for pointer in part.pointers:
            cell = self.symmetry.system.cell(pointer.cell)
            rest = [other for other in self._copy_cells(cell.owner, cell.number) if other not in self._pointer_names]
            # The same local of another copy weighs the same, another local something else.
            weight = self._spread(columns, rest, start=1 + rank(cell.owner, cell.field))
            live = self._is_live(pointer, columns)
            for row, slot in enumerate(part.numbers):
                points = live & (columns[pointer.cell] == _u(xp, slot))
                keys[row] += xp.where(points, weight, _u(xp, 0))
                held[row] |= points
        return keys, held

    def _spread(self, columns: Columns, cells: Sequence[str], start: int = 1) -> Any:
        """The values of some cells as one number that seldom agrees for different ones."""
        xp = self.xp
        first = next(iter(columns.values()))
        total = xp.full(first.shape, _u(xp, start))
        for cell in cells:
            total = (total + columns[cell] + _u(xp, 1)) * _u(xp, MIX)
            total = total ^ (total >> _u(xp, 29))
        return total

    def _slot_cells(self, part: SlotClass, slot: int) -> list[str]:
        return [
            cell.name
            for cell in self.symmetry.system.cells
            if cell.is_slot and cell.owner in part.instances and cell.number == slot
        ]

    def _copy_cells(self, actor: str, copy: int) -> list[str]:
        return [
            cell.name
            for cell in self.symmetry.system.cells
            if not cell.is_slot and cell.owner == actor and cell.number == copy
        ]

    @cached_property
    def _pointer_names(self) -> frozenset[str]:
        return frozenset(pointer.cell for pointer in self._pointers)

    def _renumbered(self, part: SlotClass, columns: Columns, order: Any) -> Columns:
        """The columns after the slot ``numbers[order[k]]`` has become ``numbers[k]``; ``order`` is [slots, n]."""
        xp, columns = self.xp, dict(columns)
        for cells in zip(*(self._slot_cells(part, slot) for slot in part.numbers), strict=True):
            moved = xp.take_along_axis(xp.stack([columns[cell] for cell in cells]), order, axis=0)
            columns.update(zip(cells, moved, strict=True))
        place = xp.argsort(order, axis=0)  # where each slot went
        for pointer in part.pointers:
            old = columns[pointer.cell]
            new = old
            for row, slot in enumerate(part.numbers):
                numbers = xp.asarray(part.numbers, dtype=xp.uint64)[place[row]]
                new = xp.where(old == _u(xp, slot), numbers, new)
            columns[pointer.cell] = xp.where(self._is_live(pointer, columns), new, old)
        return columns

    def _copies_sorted(self, columns: Columns) -> Columns:
        columns = dict(columns)
        for part in self.symmetry.copies:
            columns.update(self._sorted(part, columns))
        return columns

    def _sorted(self, part: CopyClass, columns: Columns) -> Columns:
        """The cells of the copies of one actor, in ascending order of their values."""
        xp = self.xp
        cells = [self._copy_cells(part.actor, copy) for copy in range(part.count)]
        if not cells[0]:
            return {}
        stacks = [xp.stack([columns[copy[place]] for copy in cells]) for place in range(len(cells[0]))]
        order = xp.broadcast_to(xp.arange(part.count)[:, None], stacks[0].shape)
        for stack in reversed(stacks):  # the last key first, each sort keeps the order of what compares equal
            order = xp.take_along_axis(
                order, xp.argsort(xp.take_along_axis(stack, order, axis=0), axis=0, kind="stable"), axis=0
            )
        found = {}
        for place, stack in enumerate(stacks):
            moved = xp.take_along_axis(stack, order, axis=0)
            found.update({copy[place]: moved[number] for number, copy in enumerate(cells)})
        return found

    def _least(self, columns: Columns) -> Any:
        """The least packed state over every order of slots that compare equal: uint64 [n, word_count]."""
        xp = self.xp
        keys = [self._slot_keys(part, columns)[0] for part in self.symmetry.slots]
        best: Any = None
        orders = (itertools.permutations(range(len(part.numbers))) for part in self.symmetry.slots)
        for choice in itertools.product(*orders):
            moved, allowed = columns, xp.ones(len(next(iter(columns.values()))), bool)
            for part, key, order in zip(self.symmetry.slots, keys, choice, strict=True):
                rows = xp.asarray(order)[:, None]
                allowed = allowed & (xp.take_along_axis(key, xp.broadcast_to(rows, key.shape), axis=0) == key).all(
                    axis=0
                )
                moved = self._renumbered(part, moved, xp.broadcast_to(rows, key.shape))
            words = self._packed(self._copies_sorted(moved))
            best = words if best is None else xp.where((allowed & _below(xp, words, best))[:, None], words, best)
        return best


def _below(xp: ModuleType, left: Any, right: Any) -> Any:
    """Whether each row comes before its counterpart, word by word from the last: bool [n]."""
    below = xp.zeros(len(left), bool)
    for word in range(left.shape[1]):
        below = (left[:, word] < right[:, word]) | ((left[:, word] == right[:, word]) & below)
    return below


def rank(owner: str, field: str) -> int:
    """A number for a local of an actor, whatever its copy."""
    return sum((place + 1) * letter for place, letter in enumerate(f"{owner}.{field}".encode()))


def _u(xp: ModuleType, value: int) -> Any:
    return xp.uint64(value)
