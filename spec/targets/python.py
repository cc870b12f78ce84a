"""Expressions as Python, on ints and bools."""

from __future__ import annotations

from ..language.expressions import Choice, Expr, Extreme, Member
from .infix import Infix, Names, Operator, Printer, Text, operators, plain
from .lowering import simplified, without_implies

CHOICE, COMPARISON = 1, 5


def render(expr: Expr, names: Names = plain) -> str:
    """One Python expression."""
    return PYTHON.render(simplified(without_implies(expr)), names)


def _choice(printer: Printer, expr: Choice) -> Text:
    then, condition = (printer.inside(part, CHOICE + 1) for part in (expr.then, expr.condition))
    return Text(f"{then} if {condition} else {printer.inside(expr.otherwise, CHOICE)}", CHOICE)


def _member(printer: Printer, expr: Member) -> Text:
    options = ", ".join(printer.text(option) for option in expr.options)
    verb = "not in" if expr.negated else "in"
    return Text(f"{printer.inside(expr.item, COMPARISON + 1)} {verb} ({options})", COMPARISON)


def _extreme(printer: Printer, expr: Extreme) -> Text:
    return printer.call(expr.op, *expr.operands)


PYTHON = Infix(
    true="True",
    false="False",
    operators=operators(
        either=(2, "or"),
        both=(3, "and"),
        equality=(COMPARISON, "== !="),
        ordering=(COMPARISON, "< <= > >="),
        addition=(7, "+ -"),
        product=(8, "* // %"),
    )
    | {"not": Operator("not ", 4)},
    choice=_choice,
    member=_member,
    extreme=_extreme,
    clashes=frozenset({("or", "and")}),
)
