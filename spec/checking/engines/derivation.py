"""Which commands are sure to keep derived cells what they are derived as, so that no successor need be checked for it.

A command keeps a cell ``d`` derived as ``e`` if it changes ``d - e`` by nothing. That is decided on the expressions:
both differences are written as sums, with what the guard says of single cells filled in, and compared term by term.
Where it can't be seen like that, the engines check the successors of the command.
"""

from __future__ import annotations

from collections import Counter

from ...language.expressions import Arithmetic, Choice, Expr, Number, Truth
from ..folding import number, substituted, with_values
from ..system import Command, System
from .conditions import fixed_cells


class Mismatch(Exception):
    """A derived cell has not the value that its claim says, so that it can't be left out of the index."""


def unproven(system: System) -> tuple[int, ...]:
    """The numbers of the commands whose successors have to be checked."""
    return tuple(index for index, command in enumerate(system.commands) if not _keeps(system, command))


def _keeps(system: System, command: Command) -> bool:
    fixed = fixed_cells(command.guard)
    updates = dict(command.updates)
    for name, value in system.derived:
        cell = system.cell(name).read()
        before = [with_values(expr, fixed) for expr in (cell, value)]
        after = [with_values(substituted(expr, updates), fixed) for expr in (cell, value)]
        if _difference(*before) != _difference(*after):
            return False
    return True


def _difference(left: Expr, right: Expr) -> dict[Expr, int]:
    terms: Counter[Expr] = Counter()
    _add(terms, left, 1)
    _add(terms, right, -1)
    return {term: count for term, count in terms.items() if count}


def _add(terms: Counter[Expr], expr: Expr, times: int) -> None:
    """Put the terms of a sum into ``terms``; numbers stand under the number 1."""
    match expr:
        case Number(value):
            terms[number(1)] += times * value
        case Truth(value):
            terms[number(1)] += times * int(value)
        case Arithmetic("+" | "-" as op, left, right):
            _add(terms, left, times)
            _add(terms, right, times if op == "+" else -times)
        case Choice(condition, Number(then), Number(otherwise)):
            terms[condition] += times * (then - otherwise)
            terms[number(1)] += times * otherwise
        case _:
            terms[expr] += times
