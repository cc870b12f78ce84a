"""Walking and rewriting expressions: the one place that knows what every kind of node is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from .expressions import (
    Arithmetic,
    Bound,
    Choice,
    Compare,
    Count,
    Expr,
    Extreme,
    Logic,
    Member,
    Name,
    Not,
    Number,
    Remote,
    Truth,
    Value,
)


def parts_of(expr: Expr) -> tuple[Expr, ...]:
    """The expressions that an expression is made of, from left to right."""
    match expr:
        case Not(operand=operand):
            return (operand,)
        case Logic(operands=operands) | Extreme(operands=operands):
            return operands
        case Compare(left=left, right=right) | Arithmetic(left=left, right=right):
            return left, right
        case Member(item=item, options=options):
            return item, *options
        case Choice(condition=condition, then=then, otherwise=otherwise):
            return condition, then, otherwise
        case Count(condition=condition):
            return (condition,)
        case Remote(index=index):
            return (index,) if index is not None else ()
        case Number() | Truth() | Value() | Bound() | Name():
            return ()


def walked(expr: Expr) -> Iterator[Expr]:
    """The expression and everything in it, outermost first."""
    yield expr
    for part in parts_of(expr):
        yield from walked(part)


def names_in(expr: Expr) -> Iterator[Name]:
    """Every name in an expression; one that stands twice comes twice."""
    return (part for part in walked(expr) if isinstance(part, Name))


def actors_in(expr: Expr) -> dict[str, None]:
    """The actors that an expression reads, in the order of first mention, without those that a ``count`` goes through.

    >>> from .problems import Place
    >>> here = Place("a.yaml", 1, 1)
    >>> used = Remote("reader", None, "busy", "bool", 1, here)
    >>> list(actors_in(used)), list(actors_in(Count("reader", used, 2, here)))
    (['reader'], [])
    """
    match expr:
        case Remote(owner=owner, index=None):
            return {owner: None}
        case Count(actor=actor, condition=condition):
            return {name: None for name in actors_in(condition) if name != actor}
    return {name: None for part in parts_of(expr) for name in actors_in(part)}


def rewritten(expr: Expr, rule: Callable[[Expr], Expr]) -> Expr:
    """``expr`` with ``rule`` applied to every node, leaves first."""

    def inner(part: Expr) -> Expr:
        return rewritten(part, rule)

    match expr:
        case Not():
            expr = replace(expr, operand=inner(expr.operand))
        case Logic() | Extreme():
            expr = replace(expr, operands=tuple(inner(operand) for operand in expr.operands))
        case Compare() | Arithmetic():
            expr = replace(expr, left=inner(expr.left), right=inner(expr.right))
        case Member():
            expr = replace(expr, item=inner(expr.item), options=tuple(inner(option) for option in expr.options))
        case Choice():
            expr = replace(
                expr, condition=inner(expr.condition), then=inner(expr.then), otherwise=inner(expr.otherwise)
            )
        case Count():
            expr = replace(expr, condition=inner(expr.condition))
        case Remote(index=index) if index is not None:
            expr = replace(expr, index=inner(index))
    return rule(expr)
