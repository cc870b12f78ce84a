"""Expressions as JavaScript: numbers, exact below 2 ** 53, and truth values, which ``==`` compares with 0 and 1."""

from __future__ import annotations

from ..language.expressions import Arithmetic, Choice, Expr, Extreme
from ..language.trees import rewritten
from .infix import Infix, Names, Operator, Printer, Text, operators, plain
from .lowering import simplified, without_implies, without_membership

CHOICE = 1


def render(expr: Expr, names: Names = plain) -> str:
    """One JavaScript expression."""
    return JAVASCRIPT.render(_whole(without_membership(simplified(without_implies(expr)))), names)


def _whole(expr: Expr) -> Expr:
    """With every quotient taken of a multiple of its divisor: ``/`` of numbers leaves a fraction."""

    def rule(part: Expr) -> Expr:
        match part:
            case Arithmetic(op="//", left=left, right=right, at=at):
                return Arithmetic("//", Arithmetic("-", left, Arithmetic("%", left, right, at), at), right, at)
        return part

    return rewritten(expr, rule)


def _choice(printer: Printer, expr: Choice) -> Text:
    then, condition = (printer.inside(part, CHOICE + 1) for part in (expr.then, expr.condition))
    return Text(f"{condition} ? {then} : {printer.inside(expr.otherwise, CHOICE)}", CHOICE)


def _extreme(printer: Printer, expr: Extreme) -> Text:
    return printer.call(f"Math.{expr.op}", *expr.operands)


JAVASCRIPT = Infix(
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
    extreme=_extreme,
    clashes=frozenset({("or", "and")}),
)
