"""A perfect index with few gaps: only the values that the cells of one slot or copy may have together are numbered.

A reader that stands still at its first step has all its locals 0; only few of the combinations that their bits could
form ever occur. Which may occur is found by following the commands on the cells of one copy alone, taking for any other
cell any value: more than really occur, and never fewer. An index is then a sum of numbers from small tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...language.bounds import interval
from ...language.expressions import Expr
from ...language.interpreter import evaluate
from ...language.trees import names_in
from ..layout import Layout
from ..system import Cell, Command, System

WIDTH_MAX = 10  # bits of the cells of one copy, whose combinations are listed
GAIN = 0.8  # combinations are numbered where they are no more than so many of all

Values = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A field of the first word, and the part of an index that each of its values makes up."""

    shift: int
    mask: int
    count: int  # of values that it may have
    numbers: tuple[int, ...] | None  # value of the field -> its number, 0 where it never occurs; None: itself


def parts(layout: Layout, derived_bits: int, numbered: bool) -> tuple[Part, ...]:
    """What an index is made of, the lowest first; the product of their counts is its size.

    Args:
        layout: of states of one word.
        derived_bits: lowest bits that are left out.
        numbered: whether combinations may be numbered, which symmetry forbids: it makes combinations of its own.

    """
    found: list[Part] = []
    start, end = derived_bits, layout.bits
    if numbered:
        for cells in _owners(layout, derived_bits):
            spots = [layout.place(cell.name) for cell in cells]
            shift, width = spots[0].shift, sum(cell.bits for cell in cells)
            occurring = _occurring(layout.system, cells)
            if len(occurring) > GAIN * (1 << width):
                continue
            if shift > start:
                found.append(_plain(start, shift))
            numbers = [0] * (1 << width)
            for number, values in enumerate(sorted(occurring)):
                field = sum(value << spot.shift - shift for value, spot in zip(values, spots, strict=True))
                numbers[field] = number
            found.append(Part(shift, (1 << width) - 1, len(occurring), tuple(numbers)))
            start = shift + width
    if end > start or not found:
        found.append(_plain(start, end))
    return tuple(found)


def _plain(start: int, end: int) -> Part:
    return Part(start, (1 << end - start) - 1, 1 << end - start, None)


def _owners(layout: Layout, derived_bits: int) -> list[list[Cell]]:
    """The cells of each slot and copy above ``derived_bits`` that lie side by side, in the order of their bits."""
    cells = sorted(layout.system.cells, key=lambda cell: layout.place(cell.name).shift)
    kept = [cell for cell in cells if layout.place(cell.name).shift >= derived_bits and cell.bits]
    groups = [list(group) for _, group in itertools.groupby(kept, key=lambda cell: (cell.owner, cell.number))]
    return [group for group in groups if sum(cell.bits for cell in group) <= WIDTH_MAX]


def _occurring(system: System, cells: Sequence[Cell]) -> set[Values]:
    """The combinations of values of some cells that may occur."""
    names = [cell.name for cell in cells]
    own = set(names)
    relevant = [command for command in system.commands if any(name in own for name, _ in command.updates)]
    guards = [[part for part in command.guard if _reads_only(part, own)] for command in relevant]
    first = (0,) * len(cells)
    found, waiting = {first}, [first]
    while waiting:
        values = dict(zip(names, waiting.pop(), strict=True))
        for command, guard in zip(relevant, guards, strict=True):
            if all(evaluate(part, values) for part in guard):
                for after in _after(command, cells, values):
                    if after not in found:
                        found.add(after)
                        waiting.append(after)
    return found


def _after(command: Command, cells: Sequence[Cell], values: dict[str, int]) -> Iterator[Values]:
    updates, own = dict(command.updates), set(values)
    options: list[Sequence[int]] = []
    for cell in cells:
        value = updates.get(cell.name)
        if value is None:
            options.append((values[cell.name],))
        elif _reads_only(value, own):
            # What does not fit is of a combination that never occurs: a command's values fit where it can be taken.
            after = int(evaluate(value, values))
            options.append((after,) if 0 <= after <= cell.high else ())
        else:
            low, high = interval(value)
            options.append(range(max(low, 0), min(high, cell.high) + 1))
    return itertools.product(*options)


def _reads_only(expr: Expr, cells: set[str]) -> bool:
    return all(name.name in cells for name in names_in(expr))
