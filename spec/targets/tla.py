"""Expressions as TLA+, over Integers and BOOLEAN."""

from __future__ import annotations

from itertools import permutations

from ..language.expressions import Choice, Expr, Member
from .infix import Infix, Names, Operator, Printer, Text, operators, plain
from .lowering import simplified, without_extremes

CHOICE, COMPARISON = 0, 5


def render(expr: Expr, names: Names = plain) -> str:
    """One TLA+ expression."""
    return TLA.render(without_extremes(simplified(expr)), names)


def _choice(printer: Printer, expr: Choice) -> Text:
    condition, then = printer.text(expr.condition), printer.text(expr.then)
    return Text(f"IF {condition} THEN {then} ELSE {printer.text(expr.otherwise)}", CHOICE)


def _member(printer: Printer, expr: Member) -> Text:
    options = ", ".join(printer.text(option) for option in expr.options)
    sign = "\\notin" if expr.negated else "\\in"
    return Text(f"{printer.inside(expr.item, COMPARISON + 1)} {sign} {{{options}}}", COMPARISON)


TLA = Infix(
    true="TRUE",
    false="FALSE",
    operators=operators(
        implication=(1, "=>"),
        either=(2, r"\/"),
        both=(3, r"/\ "),
        equality=(COMPARISON, "= #"),
        ordering=(COMPARISON, "< <= > >="),
        addition=(10, "+ -"),
        product=(13, r"* \div %"),
    )
    | {"not": Operator("~", 4)},
    choice=_choice,
    member=_member,
    # TLA+ gives /\ and \/, and also * and \div and %, no order among themselves, nor % one beside + and -.
    clashes=frozenset({("or", "and"), ("and", "or"), ("implies", "or"), ("implies", "and")})
    | frozenset(permutations(("*", "//", "%"), 2))
    | frozenset({("+", "%"), ("-", "%")}),
)
