"""Rewrites that a target may need before printing: each gives an equal expression with fewer kinds of node.

``simplified`` is for the reader's sake (``not a == b`` becomes ``a != b``); the others serve targets that lack a
construct.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add, floordiv, mod, mul, sub

from ..language.expressions import (
    OPPOSITE,
    Arithmetic,
    Bound,
    Choice,
    Compare,
    Expr,
    Extreme,
    Logic,
    Member,
    Name,
    Not,
    Number,
    Remote,
    Truth,
)
from ..language.interpreter import evaluate
from ..language.trees import rewritten, walked

FOLD = {"+": add, "-": sub, "*": mul, "//": floordiv, "%": mod}


def negated(expr: Expr) -> Expr:
    """The opposite of a truth value, without ``not`` where a comparison can be turned round."""
    match expr:
        case Not(operand):
            return operand
        case Compare(op=op):
            return replace(expr, op=OPPOSITE[op])
        case Member(negated=was):
            return replace(expr, negated=not was)
        case Truth(value):
            return replace(expr, value=not value)
    return Not(expr, expr.at)


def simplified(expr: Expr) -> Expr:
    """Without ``not`` before a comparison, comparisons with ``true``, lists of one option, and sums of literals."""

    def rule(part: Expr) -> Expr:
        match part:
            case Arithmetic(op, Number(left), Number(right), at):
                return Number(FOLD[op](left, right), at)
            case Not(operand):
                return negated(operand)
            case Compare(op="==" | "!=" as op, left=left, right=Truth(value)):
                return left if value == (op == "==") else negated(left)
            case Member(item, (only,), was):
                return Compare("!=" if was else "==", item, only, part.at)
        return part

    return rewritten(expr, rule)


def without_constant_tests(expr: Expr) -> Expr:
    """Comparisons that read no name as ``true`` or ``false``: elsewhere they would be of another type than arrays."""

    def rule(part: Expr) -> Expr:
        match part:
            case Compare(at=at) if reads_no_name(part):
                return Truth(bool(evaluate(part, {})), at)
        return part

    return rewritten(expr, rule)


def reads_no_name(expr: Expr) -> bool:
    """Whether an expression always has the same value."""
    return not any(isinstance(part, Name | Remote) for part in walked(expr))


def without_implies(expr: Expr) -> Expr:
    """``a implies b`` as ``not a or b``."""

    def rule(part: Expr) -> Expr:
        match part:
            case Logic("implies", (left, right)):
                return Logic("or", (negated(left), right), part.at)
        return part

    return rewritten(expr, rule)


def without_membership(expr: Expr) -> Expr:
    """``x in [a, b]`` as ``x == a or x == b``."""

    def rule(part: Expr) -> Expr:
        match part:
            case Member(item, options, was):
                tests = tuple(Compare("!=" if was else "==", item, option, part.at) for option in options)
                return tests[0] if len(tests) == 1 else Logic("and" if was else "or", tests, part.at)
        return part

    return rewritten(expr, rule)


def with_positive_divisors(expr: Expr) -> Expr:
    """Every divisor held at 1 or more, for targets that compute both sides of a choice: there no guard keeps it so."""

    def rule(part: Expr) -> Expr:
        match part:
            case Arithmetic("//" | "%" as op, left, right, at) if not isinstance(right, Number | Bound):
                return Arithmetic(op, left, Extreme("max", (right, Number(1, at)), at), at)
        return part

    return rewritten(expr, rule)


def without_extremes(expr: Expr) -> Expr:
    """``min(a, b)`` as ``a if a < b else b``, and so for more than two."""

    def rule(part: Expr) -> Expr:
        match part:
            case Extreme(op, operands, at):
                sign = "<" if op == "min" else ">"
                return reduce(lambda best, next_: Choice(Compare(sign, best, next_, at), best, next_, at), operands)
        return part

    return rewritten(expr, rule)
