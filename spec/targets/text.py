"""Expressions as the spec writes them: for labels, comments and messages."""

from __future__ import annotations

from ..language.expressions import Bound, Choice, Count, Expr, Extreme, Member, Value
from ..language.model import LeadsTo
from .infix import Infix, Leaf, Operator, Printer, Text, operators, plain

CHOICE, COMPARISON = 1, 6


def render(expr: Expr) -> str:
    """The expression in the spec's own language."""
    return SPEC.render(expr, _names)


def promise_text(promise: LeadsTo) -> str:
    """A promise with what it rests on: "a leads to b (fair: x, y; strong: z)"."""
    kinds = (("fair", promise.fair), ("strong", promise.strong))
    rests = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds if names)
    return f"{render(promise.source)} leads to {render(promise.target)}{rests and f' ({rests})'}"


def _names(leaf: Leaf) -> str:
    match leaf:
        case Value(name=name):
            return name
        case Bound(field=field):
            return f"max({field})"
    return plain(leaf)


def _choice(printer: Printer, expr: Choice) -> Text:
    then, condition = (printer.inside(part, CHOICE + 1) for part in (expr.then, expr.condition))
    return Text(f"{then} if {condition} else {printer.inside(expr.otherwise, CHOICE)}", CHOICE)


def _member(printer: Printer, expr: Member) -> Text:
    options = ", ".join(printer.text(option) for option in expr.options)
    verb = "not in" if expr.negated else "in"
    return Text(f"{printer.inside(expr.item, COMPARISON + 1)} {verb} [{options}]", COMPARISON)


def _extreme(printer: Printer, expr: Extreme) -> Text:
    return printer.call(expr.op, *expr.operands)


def _count(printer: Printer, expr: Count) -> Text:
    return Text(f"count({expr.actor}, {printer.text(expr.condition)})")


SPEC = Infix(
    true="true",
    false="false",
    operators=operators(
        implication=(2, "implies"),
        either=(3, "or"),
        both=(4, "and"),
        equality=(COMPARISON, "== !="),
        ordering=(COMPARISON, "< <= > >="),
        addition=(7, "+ -"),
        product=(8, "* // %"),
    )
    | {"not": Operator("not ", 5)},
    choice=_choice,
    member=_member,
    extreme=_extreme,
    count=_count,
)
