"""Types and proved bounds of expressions.

Bounds are closed intervals [low, high] by interval arithmetic: what an expression can be when every name takes any
value of its own range, whatever the guard says. ``solver.py`` is sharper, and slower.
"""

from __future__ import annotations

from .expressions import (
    BOOL,
    INT,
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

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1


def type_of(expr: Expr) -> str:
    """INT, BOOL, or the named type."""
    match expr:
        case Number() | Bound() | Arithmetic() | Extreme() | Count():
            return INT
        case Truth() | Not() | Logic() | Compare() | Member():
            return BOOL
        case Name(type=type_) | Value(type=type_) | Remote(type=type_):
            return type_
        case Choice(then=then):
            return type_of(then)


def interval(expr: Expr) -> tuple[int, int]:
    """The least and the greatest value; truth values count as 0 and 1, named values as their codes."""
    match expr:
        case Number(value=value) | Bound(value=value):
            return value, value
        case Truth(value=truth):
            return int(truth), int(truth)
        case Value(code=code):
            return code, code
        case Name(high=high) | Remote(high=high) | Count(high=high):
            return 0, high
        case Not() | Logic() | Compare() | Member():
            return 0, 1
        case Arithmetic(op=op, left=left, right=right):
            return _arithmetic(op, interval(left), interval(right))
        case Extreme(op=op, operands=operands):
            lows, highs = zip(*map(interval, operands), strict=True)
            pick = min if op == "min" else max
            return pick(lows), pick(highs)
        case Choice(then=then, otherwise=otherwise):
            (low, high), (other_low, other_high) = interval(then), interval(otherwise)
            return min(low, other_low), max(high, other_high)


def _arithmetic(op: str, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    """Bounds of ``left op right``.

    A divisor is positive and a dividend not negative wherever the value matters, as the parser proves; in parts that
    turn out never to be reached a divisor may have become 0.
    """
    match op:
        case "+":
            return left[0] + right[0], left[1] + right[1]
        case "-":
            return left[0] - right[1], left[1] - right[0]
        case "*":
            corners = [a * b for a in left for b in right]
            return min(corners), max(corners)
        case "//":
            return left[0] // max(right[1], 1), left[1] // max(right[0], 1)
        case _:
            return 0, max(0, min(left[1], right[1] - 1))
