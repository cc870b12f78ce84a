"""Expressions of a system, made smaller: constants are worked out, and what can decide nothing is dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import floordiv, mod, mul

from ..language.bounds import interval
from ..language.expressions import (
    BOOL,
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
    Truth,
    Value,
)
from ..language.trees import names_in, rewritten
from .system import NOWHERE, Claim

TRUE, FALSE = Truth(True, NOWHERE), Truth(False, NOWHERE)


def number(value: int) -> Number:
    """A literal."""
    return Number(value, NOWHERE)


def equal(left: Expr, right: Expr) -> Expr:
    """``left == right``."""
    return _compare(Compare("==", left, right, NOWHERE))


def both(parts: Iterable[Expr]) -> Expr:
    """All of them hold."""
    return _logic("and", tuple(parts))


def either(parts: Iterable[Expr]) -> Expr:
    """One of them holds."""
    return _logic("or", tuple(parts))


def negation(expr: Expr) -> Expr:
    """It does not hold."""
    match expr:
        case Truth(value):
            return FALSE if value else TRUE
        case Not(operand):
            return operand
        case Compare(op, left, right):
            return Compare(OPPOSITE[op], left, right, NOWHERE)
        case Member(item, options, negated):
            return Member(item, options, not negated, NOWHERE)
        case Logic("and", operands):
            return either(map(negation, operands))
        case Logic("or", operands):
            return both(map(negation, operands))
    return Not(expr, NOWHERE)


def conjuncts(expr: Expr) -> tuple[Expr, ...]:
    """The parts of a conjunction; () for true."""
    match expr:
        case Logic("and", operands):
            return operands
        case Truth(True):
            return ()
    return (expr,)


def required(guard: Iterable[Expr]) -> Iterator[tuple[str, int]]:
    """The cells that a guard compares with a number, and the number: with another, the guard does not hold."""
    for part in guard:
        match part:
            case Compare("==", Name(name=name), Number(value)):
                yield name, value


def condition_of(claim: Claim) -> Expr:
    """What a claim asks of a state: all of its conditions, or for a ``sometimes`` one of them."""
    return either(claim.exprs) if claim.kind == "sometimes" else both(claim.exprs)


def with_values(expr: Expr, values: Mapping[str, int]) -> Expr:
    """The expression with some cells fixed."""

    def rule(part: Expr) -> Expr:
        if isinstance(part, Name) and part.name in values:
            value = values[part.name]
            return (TRUE if value else FALSE) if part.type == BOOL else number(value)
        return part

    return folded(rewritten(expr, rule))


def substituted(expr: Expr, updates: Mapping[str, Expr]) -> Expr:
    """What an expression says after some cells were assigned, in terms of the state before."""
    if not any(name.name in updates for name in names_in(expr)):
        return expr
    return folded(rewritten(expr, lambda part: updates.get(part.name, part) if isinstance(part, Name) else part))


def folded(expr: Expr) -> Expr:
    """An equal expression without constant parts, named values, ``implies`` or places."""
    return rewritten(expr, _rule)


def _rule(expr: Expr) -> Expr:
    match expr:
        case Number(value) | Bound(value=value):
            return number(value)
        case Value(code=code):
            return number(code)
        case Truth(value):
            return TRUE if value else FALSE
        case Not(operand):
            return negation(operand)
        case Logic("implies", (left, right)):
            return either((negation(left), right))
        case Logic(op, operands):
            return _logic(op, operands)
        case Compare():
            return _compare(expr)
        case Member():
            return _member(expr)
        case Arithmetic():
            return _arithmetic(expr)
        case Extreme(op, operands):
            return _extreme(op, operands)
        case Choice(condition, then, otherwise):
            if isinstance(condition, Truth):
                return then if condition.value else otherwise
            return then if then == otherwise else Choice(condition, then, otherwise, NOWHERE)
    return expr


def _logic(op: str, operands: tuple[Expr, ...]) -> Expr:
    neutral, final = (TRUE, FALSE) if op == "and" else (FALSE, TRUE)
    found: dict[Expr, None] = {}
    for operand in operands:
        for part in operand.operands if isinstance(operand, Logic) and operand.op == op else (operand,):
            # Of a Logic the negation is of this very kind, and would have been taken apart.
            if part == final or (not isinstance(part, Logic) and negation(part) in found):
                return final
            if part != neutral:
                found[part] = None
    if not found:
        return neutral
    return next(iter(found)) if len(found) == 1 else Logic(op, tuple(found), NOWHERE)


def _compare(expr: Compare) -> Expr:
    op, left, right = expr.op, expr.left, expr.right
    if isinstance(left, Truth) and not isinstance(right, Truth) and op in ("==", "!="):
        left, right = right, left
    if isinstance(right, Truth) and op in ("==", "!=") and not isinstance(left, Truth):
        return left if right.value == (op == "==") else negation(left)
    if left == right:
        return TRUE if op in ("==", "<=", ">=") else FALSE
    (low, high), (other_low, other_high) = interval(left), interval(right)
    match op:
        case "==" | "!=":
            if high < other_low or other_high < low:
                return TRUE if op == "!=" else FALSE
            if low == high == other_low == other_high:
                return TRUE if op == "==" else FALSE
        case "<" | ">=":
            if high < other_low or low >= other_high:
                return TRUE if (high < other_low) == (op == "<") else FALSE
        case _:
            if high <= other_low or low > other_high:
                return TRUE if (high <= other_low) == (op == "<=") else FALSE
    return Compare(op, left, right, NOWHERE)


def _member(expr: Member) -> Expr:
    tests = [equal(expr.item, option) for option in expr.options]
    if TRUE in tests:
        return FALSE if expr.negated else TRUE
    kept = tuple(option for option, test in zip(expr.options, tests, strict=True) if test != FALSE)
    if len(kept) < 2:
        found = either(test for test in tests if test != FALSE)
        return negation(found) if expr.negated else found
    low, high = interval(expr.item)
    if high - low < len(kept) and {number(value) for value in range(low, high + 1)} <= set(kept):
        return FALSE if expr.negated else TRUE
    return Member(expr.item, tuple(dict.fromkeys(kept)), expr.negated, NOWHERE)


def _arithmetic(expr: Arithmetic) -> Expr:
    match expr.op, expr.left, expr.right:
        case "+", Number(left), Number(right):
            return number(left + right)
        case "-", Number(left), Number(right):
            return number(left - right)
        case ("*" | "//" | "%") as op, Number(left), Number(right) if op == "*" or right > 0:
            return number({"*": mul, "//": floordiv, "%": mod}[op](left, right))
        case "+", other, Number(0):
            return other
        case "+", Number(0), other:
            return other
        case "-", other, Number(0):
            return other
        # A counter that a step raised and lowers again: (x + 1) - 1.
        case "-" | "+", Arithmetic("+" | "-" as inner, other, Number(first)), Number(second):
            total = (first if inner == "+" else -first) + (second if expr.op == "+" else -second)
            if total == 0:
                return other
            return Arithmetic("+" if total > 0 else "-", other, number(abs(total)), NOWHERE)
    return Arithmetic(expr.op, expr.left, expr.right, NOWHERE)


def _extreme(op: str, operands: tuple[Expr, ...]) -> Expr:
    pick = min if op == "min" else max
    literal = [part.value for part in operands if isinstance(part, Number)]
    rest = [part for part in operands if not isinstance(part, Number)]
    parts = (*dict.fromkeys(rest), *((number(pick(literal)),) if literal else ()))
    return parts[0] if len(parts) == 1 else Extreme(op, parts, NOWHERE)
