"""Expressions as SMT-LIB 2 text, over Int and Bool."""

from __future__ import annotations

from ..language.expressions import (
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
from .infix import Names, plain
from .lowering import simplified, without_extremes, without_membership

OPERATORS = {"implies": "=>", "==": "=", "//": "div", "%": "mod"}  # SMT-LIB's div is floor for a positive divisor


def render(expr: Expr, names: Names = plain) -> str:
    """One S-expression."""
    return _text(without_extremes(without_membership(simplified(expr))), names)


def _text(expr: Expr, names: Names) -> str:
    def call(function: str, *operands: Expr) -> str:
        return f"({function} {' '.join(_text(operand, names) for operand in operands)})"

    match expr:
        case Number(value):
            return str(value) if value >= 0 else f"(- {-value})"
        case Truth(value):
            return "true" if value else "false"
        case Name() | Value() | Bound() | Remote():
            return names(expr)
        case Not(operand):
            return call("not", operand)
        case Logic(op, operands):
            return call(OPERATORS.get(op, op), *operands)
        case Compare("!=", left, right):
            return call("distinct", left, right)
        case Compare(op, left, right) | Arithmetic(op, left, right):
            return call(OPERATORS.get(op, op), left, right)
        case Choice(condition, then, otherwise):
            return call("ite", condition, then, otherwise)
        case Member() | Extreme():
            raise AssertionError("lowered above")
        case Count():
            raise AssertionError("counts are spelled out before printing")
