"""Small systems made by hand, for what no shipped protocol has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvfsm.spec.checking.folding import equal, number
from kvfsm.spec.checking.system import NOWHERE, Cell, Claim, Command, System
from kvfsm.spec.language.expressions import BOOL, INT, Expr

Moves = Mapping[str, tuple[Sequence[Expr], Mapping[str, Expr]]]


def cell(name: str, high: int, type_: str = INT, names: tuple[str, ...] = ()) -> Cell:
    """A cell of one slot: "a" is "it[0].a"."""
    return Cell(f"it[0].{name}", "it", 0, name, type_, high, names, True)


def flag(name: str) -> Cell:
    """A cell that is a truth value."""
    return cell(name, 1, BOOL)


def is_(one: Cell, value: int) -> Expr:
    """Whether a cell has a value."""
    return equal(one.read(), number(value))


def claim(kind: str, *exprs: Expr, name: str = "claim") -> Claim:
    """A claim about one choice or several."""
    return Claim(name, kind, None, exprs, ("",) * len(exprs), NOWHERE)


def system(cells: Sequence[Cell], moves: Moves, *claims: Claim) -> System:
    """Cells, moves (name -> guard and the values that cells get), and claims."""
    commands = tuple(
        Command("actor", 0, name, (), "applied", (), tuple(guard), tuple((f"it[0].{c}", v) for c, v in values.items()))
        for name, (guard, values) in moves.items()
    )
    return System("hand_made", (), tuple(cells), commands, claims, (), ())
