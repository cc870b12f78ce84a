"""What values a protocol's expression can take while a guard holds.

Interval arithmetic first; where that is too coarse and the names have few values, every combination is tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from .bounds import interval
from .expressions import Arithmetic, Choice, Compare, Expr, Extreme, Logic, Member, Name, Not, Number, Remote
from .interpreter import evaluate

_COMBINATIONS_MAX = 1 << 14


def provable_range(value: Expr, when: Expr | None) -> tuple[int, int]:
    """The least and the greatest value; (0, 0) when the guard never holds.

    The answer may be too wide where the names have too many values to try, never too narrow.
    """
    names: dict[str, int] = {}
    parts = [value] if when is None else [value, when]
    plain = [_plain(part, names) for part in parts]
    combinations = 1
    for high in names.values():
        combinations *= high + 1
    if combinations > _COMBINATIONS_MAX:
        return interval(value)
    found = [evaluate(plain[0], given) for given in _all(names) if when is None or evaluate(plain[1], given)]
    return (min(found), max(found)) if found else (0, 0)


def _all(names: Mapping[str, int]) -> list[dict[str, int]]:
    ranges = [range(high + 1) for high in names.values()]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*ranges)]


def _plain(expr: Expr, names: dict[str, int]) -> Expr:
    """The expression with every remote name as a plain one; ``names`` gathers all names and their greatest values."""
    match expr:
        case Remote(type=type_, high=high, at=at):
            name = _label(expr)
            names[name] = high
            return Name(name, "local", type_, high, at)
        case Name(name=name, high=high):
            names[name] = high
            return expr
        case Not(operand=operand):
            return replace(expr, operand=_plain(operand, names))
        case Logic(operands=operands) | Extreme(operands=operands):
            return replace(expr, operands=tuple(_plain(operand, names) for operand in operands))
        case Compare(left=left, right=right) | Arithmetic(left=left, right=right):
            return replace(expr, left=_plain(left, names), right=_plain(right, names))
        case Member(item=item, options=options):
            return replace(expr, item=_plain(item, names), options=tuple(_plain(option, names) for option in options))
        case Choice(condition=condition, then=then, otherwise=otherwise):
            return replace(
                expr,
                condition=_plain(condition, names),
                then=_plain(then, names),
                otherwise=_plain(otherwise, names),
            )
        case _:
            return expr


def _label(remote: Remote) -> str:
    """A text that is equal for equal remote names; equal ones that are not seen to be so only widen the answer."""
    match remote.index:
        case None:
            slot = ""
        case Name(name=name):
            slot = name
        case Number(value=value):
            slot = str(value)
        case other:
            slot = f"{other.at.line}:{other.at.column}"
    return f"{remote.owner}[{slot}].{remote.field}"
