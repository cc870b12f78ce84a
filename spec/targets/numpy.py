"""Expressions as vectorised Python, on int64 and bool arrays of NumPy or of a module like it (CuPy, as ``xp``).

Both sides of ``and``, ``or`` and a choice are computed for every element; a divisor that a guard keeps positive is
therefore held at 1 or more, so that elements which the guard leaves out don't divide by zero.
"""

from __future__ import annotations

from ..language.expressions import Choice, Expr, Extreme
from .infix import Infix, Names, Operator, Printer, Text, operators, plain
from .lowering import (
    simplified,
    with_positive_divisors,
    without_constant_tests,
    without_implies,
    without_membership,
)


def render(expr: Expr, names: Names = plain, xp: str = "np") -> str:
    """One vectorised expression; ``xp`` is the array module's name in the text."""
    plainer = without_constant_tests(without_membership(simplified(without_implies(expr))))
    return _target(xp).render(with_positive_divisors(plainer), names)


def _target(xp: str) -> Infix:
    def choice(printer: Printer, expr: Choice) -> Text:
        return printer.call(f"{xp}.where", expr.condition, expr.then, expr.otherwise)

    def extreme(printer: Printer, expr: Extreme) -> Text:
        return printer.nested_calls(f"{xp}.{expr.op}imum", expr.operands)

    return Infix(
        true=f"{xp}.True_",
        false=f"{xp}.False_",
        operators=operators(
            equality=(1, "== !="),
            ordering=(1, "< <= > >="),
            either=(3, "|"),
            both=(5, "&"),
            addition=(7, "+ -"),
            product=(8, "* // %"),
        )
        | {"not": Operator("~", 9)},
        choice=choice,
        extreme=extreme,
        clashes=frozenset({("or", "and")}),
    )
