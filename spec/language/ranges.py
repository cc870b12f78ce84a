"""Whether a protocol's expression keeps to a range while a guard holds.

Intervals answer first, as they nearly always do; where they leave a doubt, ``solver.py`` decides, at any width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .bounds import interval
from .expressions import Compare, Expr, Name, Number, Remote
from .interpreter import evaluate
from .solver import satisfy
from .trees import names_in, rewritten


@dataclass(frozen=True, slots=True)
class Outside:
    """A value out of range, and what the names in it hold then; None: the guard is too hard to decide with."""

    value: int
    example: Mapping[str, int] | None


def outside(value: Expr, when: Expr | None, high: int) -> Outside | None:
    """What a whole number may be outside of [0, ``high``] while the guard holds; None when it fits, or never holds.

    Equal names that are not seen to be equal only widen the answer.
    """
    low, top = interval(value)
    plain = rewritten(value, _plain)
    guard = [rewritten(when, _plain)] if when is not None else []
    beyond = (("<", 0, low, low < 0), (">", high, top, top > high))
    for op, limit, worst, possible in beyond:
        if not possible:
            continue
        answer = satisfy([*guard, Compare(op, plain, Number(limit, value.at), value.at)], high=op == ">")
        if answer.example is not None:
            own = {name.name: answer.example[name.name] for name in names_in(plain)}
            return Outside(evaluate(plain, own), own)
        if not answer.proved:
            return Outside(worst, None)
    return None


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
