"""Can these conditions hold together? Answered exactly where possible, with an example word and arguments.

Four ways, tried in this order:

- ``LINEAR``: comparisons of sums, as guards nearly always are; ``linear.py``.
- ``ENUMERATED``: every combination of the names that the conditions mention, when there are at most 2 ** 16.
- ``Z3``: where it is installed.
- ``CORNERS``: least and greatest values and the neighbours of constants. An example is an example, but finding none
  proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Any

from .expressions import (
    BOOL,
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
from .interpreter import evaluate
from .linear import NotLinearError, example_of
from .trees import names_in, walked

_ENUMERATED_MAX = 1 << 16


class Way(Enum):
    """How an answer was found."""

    LINEAR = "linear"
    ENUMERATED = "enumerated"
    Z3 = "z3"
    CORNERS = "corners"


@dataclass(frozen=True, slots=True)
class Answer:
    """``example`` maps every name in the conditions to a value; None: no values do (unless ``way`` is CORNERS)."""

    example: Mapping[str, int] | None
    way: Way

    @property
    def proved(self) -> bool:
        """Whether the answer is certain."""
        return self.example is not None or self.way is not Way.CORNERS


def satisfy(
    conditions: Sequence[Expr], fixed: Mapping[str, int] | None = None, high: bool = False, way: Way | None = None
) -> Answer:
    """Look for values that make every condition true; each name takes [0, its ``high``].

    Args:
        conditions: of type BOOL, without remote names.
        fixed: names whose value is given.
        high: prefer great values to small ones in the example.
        way: use this way only.

    Returns:
        The answer, with the way in which it was found.

    Raises:
        ValueError: ``way`` is given, and does not decide conditions of this kind.

    >>> from .problems import Place
    >>> at = Place("a.yaml", 1, 1)
    >>> pins = Name("pins", "field", "int", 7, at)
    >>> satisfy([Compare(">", pins, Number(5, at), at)])
    Answer(example={'pins': 6}, way=<Way.LINEAR: 'linear'>)
    >>> satisfy([Compare(">", pins, Number(7, at), at)])
    Answer(example=None, way=<Way.LINEAR: 'linear'>)

    """
    given = dict(fixed or {})
    highs = {name.name: name.high for condition in conditions for name in names_in(condition) if name.name not in given}
    ways = {Way.LINEAR: example_of, Way.ENUMERATED: _enumerated, Way.Z3: _z3, Way.CORNERS: _corners}
    for attempt in ways if way is None else (way,):
        try:
            example = ways[attempt](conditions, given, highs, high)
        except (NotLinearError, _WrongWayError) as reason:
            if way is not None:
                raise ValueError(f"not decided by way of {way.value}: {reason}") from None
            continue
        return Answer(None if example is None else {**example, **given}, attempt)
    raise AssertionError("corners always answer")


class _WrongWayError(Exception):
    """These conditions are not of the kind that this way decides."""


def _enumerated(
    conditions: Sequence[Expr], given: Mapping[str, int], highs: Mapping[str, int], high: bool
) -> dict[str, int] | None:
    if math.prod(top + 1 for top in highs.values()) > _ENUMERATED_MAX:
        raise _WrongWayError("too many combinations")
    ranges = {name: range(top, -1, -1) if high else range(top + 1) for name, top in highs.items()}
    return _first(conditions, given, ranges)


def _corners(
    conditions: Sequence[Expr], given: Mapping[str, int], highs: Mapping[str, int], high: bool
) -> dict[str, int] | None:
    constants = {value for condition in conditions for part in walked(condition) for value in _constant(part)}
    near = {0, 1, *(value + step for value in constants for step in (-1, 0, 1))}
    ranges = {
        name: sorted({min(max(value, 0), top) for value in (*near, top - 1, top)}, reverse=high)
        for name, top in highs.items()
    }
    while math.prod(len(values) for values in ranges.values()) > _ENUMERATED_MAX:
        widest = max(ranges, key=lambda name: len(ranges[name]))
        ranges[widest] = ranges[widest][::2]
    return _first(conditions, given, ranges)


def _first(
    conditions: Sequence[Expr], given: Mapping[str, int], ranges: Mapping[str, Sequence[int]]
) -> dict[str, int] | None:
    for values in product(*ranges.values()):
        example = dict(zip(ranges, values, strict=True))
        names = {**example, **given}
        if all(evaluate(condition, names) for condition in conditions):
            return example
    return None


def _constant(expr: Expr) -> tuple[int, ...]:
    match expr:
        case Number(value=value) | Bound(value=value) | Value(code=value):
            return (value,)
    return ()


def _z3(
    conditions: Sequence[Expr], given: Mapping[str, int], highs: Mapping[str, int], high: bool
) -> dict[str, int] | None:
    if find_spec("z3") is None:
        raise _WrongWayError("z3-solver is not installed")
    z3: Any = import_module("z3")
    names = {name: z3.Int(name) for name in highs}
    solver = z3.Solver()
    solver.set("random_seed", 0)
    for name, top in highs.items():
        solver.add(names[name] >= 0, names[name] <= top)
    for condition in conditions:
        solver.add(to_z3(condition, {**names, **given}, z3))
    found = solver.check()
    if found == z3.unknown:
        raise _WrongWayError("z3 does not know")
    if found == z3.unsat:
        return None
    model = solver.model()
    return {name: model.eval(variable, model_completion=True).as_long() for name, variable in names.items()}


def to_z3(expr: Expr, names: Mapping[str, Any], z3: Any) -> Any:
    """The expression in Z3, the module that is handed; ``names`` are whole numbers there, truth values 0 and 1."""

    def of(part: Expr) -> Any:
        return to_z3(part, names, z3)

    match expr:
        case Number(value=value) | Bound(value=value) | Value(code=value):
            return z3.IntVal(value)
        case Truth(value=truth):
            return z3.BoolVal(truth)
        case Name(name=name, type=type_):
            return names[name] == 1 if type_ == BOOL else names[name]
        case Not(operand=operand):
            return z3.Not(of(operand))
        case Logic(op="implies", operands=(premise, conclusion)):
            return z3.Implies(of(premise), of(conclusion))
        case Logic(op=op, operands=operands):
            return (z3.And if op == "and" else z3.Or)(*map(of, operands))
        case Compare(op=op, left=left, right=right):
            return _Z3_OPERATORS[op](of(left), of(right))
        case Member(item=item, options=options, negated=negated):
            found = z3.Or(*(of(item) == of(option) for option in options))
            return z3.Not(found) if negated else found
        case Arithmetic(op=op, left=left, right=right):
            return _Z3_OPERATORS[op](of(left), of(right))
        case Extreme(op=op, operands=operands):
            best = of(operands[0])
            for operand in map(of, operands[1:]):
                best = z3.If(operand < best if op == "min" else operand > best, operand, best)
            return best
        case Choice(condition=condition, then=then, otherwise=otherwise):
            return z3.If(of(condition), of(then), of(otherwise))
        case Remote() | Count():
            raise _WrongWayError("a name of a protocol")


_Z3_OPERATORS: Mapping[str, Any] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "//": lambda left, right: left / right,  # whole numbers: the language divides nothing negative
    "%": lambda left, right: left % right,
}
