"""Expressions as Promela: C's operators, and ``(c -> a : b)`` for a choice.

Promela numbers are 32-bit; the exports narrow fields far below that.
"""

from __future__ import annotations

from ..language.expressions import Choice, Expr
from .c import C
from .infix import Infix, Names, Printer, Text, plain
from .lowering import simplified, without_extremes, without_implies, without_membership


def render(expr: Expr, names: Names = plain) -> str:
    """One Promela expression."""
    return PROMELA.render(without_extremes(without_membership(simplified(without_implies(expr)))), names)


def _choice(printer: Printer, expr: Choice) -> Text:
    condition, then, otherwise = (printer.inside(part, 2) for part in (expr.condition, expr.then, expr.otherwise))
    return Text(f"({condition} -> {then} : {otherwise})")


PROMELA = Infix(true=C.true, false=C.false, operators=C.operators, choice=_choice, clashes=C.clashes)
