"""What values a protocol's expression can take while a guard holds.

Every combination is tried where the names have few values; interval arithmetic answers elsewhere.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from .bounds import interval
from .expressions import Expr, Name, Number, Remote
from .interpreter import evaluate
from .trees import names_in, rewritten

_COMBINATIONS_MAX = 1 << 14


def provable_range(value: Expr, when: Expr | None) -> tuple[int, int]:
    """The least and the greatest value; (0, 0) when the guard never holds.

    The answer may be too wide where the names have too many values to try, never too narrow.
    """
    plain = [rewritten(part, _plain) for part in ((value,) if when is None else (value, when))]
    names = {name.name: name.high for part in plain for name in names_in(part)}
    if math.prod(high + 1 for high in names.values()) > _COMBINATIONS_MAX:
        return interval(value)
    found = [evaluate(plain[0], given) for given in _all(names) if when is None or evaluate(plain[1], given)]
    return (min(found), max(found)) if found else (0, 0)


def _all(names: Mapping[str, int]) -> list[dict[str, int]]:
    ranges = [range(high + 1) for high in names.values()]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*ranges)]


def _plain(expr: Expr) -> Expr:
    """A remote name as a plain one, called alike where it is the same."""
    if not isinstance(expr, Remote):
        return expr
    return Name(_label(expr), "local", expr.type, expr.high, expr.at)


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
