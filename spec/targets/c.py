"""Expressions as C: signed 64-bit numbers and ``bool``.

Floor division needs no care: the language lets only a number that is not negative be divided by a positive one.
"""

from __future__ import annotations

from ..language.expressions import Choice, Expr, Number
from .infix import Infix, Names, Operator, Printer, Text, operators, plain
from .lowering import simplified, without_extremes, without_implies, without_membership

CHOICE = 1


def render(expr: Expr, names: Names = plain) -> str:
    """One C expression; literals are plain ``int`` where they fit, so operands must be 64-bit."""
    return C.render(without_extremes(without_membership(simplified(without_implies(expr)))), names)


def _choice(printer: Printer, expr: Choice) -> Text:
    then, condition = (printer.inside(part, CHOICE + 1) for part in (expr.then, expr.condition))
    if isinstance(expr.then, Number) and isinstance(expr.otherwise, Number):
        then += "LL"  # else the choice would be an int, and so would what is computed from it
    return Text(f"{condition} ? {then} : {printer.inside(expr.otherwise, CHOICE)}", CHOICE)


C = Infix(
    true="true",
    false="false",
    operators=operators(
        either=(2, "||"),
        both=(3, "&&"),
        equality=(6, "== !="),
        ordering=(7, "< <= > >="),
        addition=(9, "+ -"),
        product=(10, "* / %"),
    )
    | {"not": Operator("!", 11)},
    choice=_choice,
    clashes=frozenset({("or", "and"), ("==", "<"), ("==", ">"), ("==", "<="), ("==", ">=")}),  # as -Wparentheses asks
)
