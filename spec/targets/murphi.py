"""Expressions as Murphi, as Rumur and CMurphi read it: ``=`` compares, ``&`` and ``|`` join truth values."""

from __future__ import annotations

from ..language.expressions import Choice, Expr
from .infix import Infix, Names, Operator, Printer, Text, operators, plain
from .lowering import simplified, without_extremes, without_membership

COMPARISON = 6


def render(expr: Expr, names: Names = plain) -> str:
    """One Murphi expression."""
    return MURPHI.render(without_extremes(without_membership(simplified(expr))), names)


def _choice(printer: Printer, expr: Choice) -> Text:
    condition, then, otherwise = (printer.inside(part, 2) for part in (expr.condition, expr.then, expr.otherwise))
    return Text(f"({condition} ? {then} : {otherwise})")


MURPHI = Infix(
    true="true",
    false="false",
    operators=operators(
        implication=(2, "->"),
        either=(3, "|"),
        both=(4, "&"),
        equality=(COMPARISON, "= !="),
        ordering=(COMPARISON, "< <= > >="),
        addition=(8, "+ -"),
        product=(9, "* / %"),
    )
    | {"not": Operator("!", 5)},
    choice=_choice,
    # Whether ! binds tighter than a comparison differs between readers of Murphi; & in | is for the reader's sake.
    clashes=frozenset({("or", "and"), ("implies", "or"), ("implies", "and")})
    | frozenset(("not", op) for op in ("==", "!=", "<", "<=", ">", ">=")),
)
