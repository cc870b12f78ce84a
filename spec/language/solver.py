"""Can these conditions hold together? Answered exactly where possible, with an example word and arguments.

Four ways, tried in this order:

- ``LINEAR``: comparisons of sums, as guards nearly always are. Alternatives are searched depth first, and each
  conjunction of inequalities is decided by Fourier-Motzkin elimination, which is exact over whole numbers as long as
  one side of every eliminated pair has the factor 1 (Pugh, "The Omega Test", 1991).
- ``ENUMERATED``: every combination of the names that the conditions mention, when there are at most 2 ** 16.
- ``Z3``: where it is installed.
- ``CORNERS``: least and greatest values and the neighbours of constants. An example is an example, but finding none
  proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Any

from .bounds import interval, type_of
from .expressions import (
    BOOL,
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
    Value,
)
from .interpreter import evaluate

_ENUMERATED_MAX = 1 << 16
_BRANCHES_MAX = 20_000
_CONSTRAINTS_MAX = 400


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
    highs = {name: top for condition in conditions for name, top in names_in(condition) if name not in given}
    ways = {Way.LINEAR: _linear, Way.ENUMERATED: _enumerated, Way.Z3: _z3, Way.CORNERS: _corners}
    for attempt in ways if way is None else (way,):
        try:
            example = ways[attempt](conditions, given, highs, high)
        except _WrongWayError as reason:
            if way is not None:
                raise ValueError(f"not decided by way of {way.value}: {reason}") from None
            continue
        return Answer(None if example is None else {**example, **given}, attempt)
    raise AssertionError("corners always answer")


def names_in(expr: Expr) -> Iterator[tuple[str, int]]:
    """Every name in an expression with its greatest value; a name that stands twice comes twice."""
    match expr:
        case Name(name=name, high=high):
            yield name, high
        case Number() | Truth() | Value() | Bound():
            return
        case _:
            for part in parts_of(expr):
                yield from names_in(part)


def parts_of(expr: Expr) -> tuple[Expr, ...]:
    """The expressions that an expression is made of."""
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
        case Remote(index=index):
            return (index,) if index is not None else ()
        case Number() | Truth() | Value() | Bound() | Name():
            return ()


class _WrongWayError(Exception):
    """These conditions are not of the kind that this way decides."""


# Linear.

_ONE = ""  # the name of the constant term


@dataclass(frozen=True, slots=True)
class _AtLeast:
    """``sum of factor * name >= 0``; the name ``""`` stands for 1."""

    terms: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class _All:
    parts: tuple[_Formula, ...]


@dataclass(frozen=True, slots=True)
class _Any:
    parts: tuple[_Formula, ...]


_Formula = _AtLeast | _All | _Any
_Sum = dict[str, int]


def _linear(
    conditions: Sequence[Expr], given: Mapping[str, int], highs: Mapping[str, int], high: bool
) -> dict[str, int] | None:
    translation = _Translation(given)
    goals = [translation.formula(condition, True) for condition in conditions]
    bounds = {name: (0, top) for name, top in (*translation.fresh.items(), *highs.items())}
    for count, (conjunction, ranges) in enumerate(_conjunctions(goals, (), bounds)):
        if count > _BRANCHES_MAX:
            raise _WrongWayError("too many alternatives")
        joined = {name for limit in conjunction for name, _ in limit.terms if name != _ONE}
        lows = [_at_least({name: 1, _ONE: -ranges[name][0]}) for name in joined]
        tops = [_at_least({name: -1, _ONE: ranges[name][1]}) for name in joined]
        example = _eliminate({*conjunction, *lows, *tops}, high) if joined else {}
        if example is not None:
            return {name: example.get(name, ranges[name][high]) for name in highs}
    return None


class _Translation:
    """Conditions -> formulas of inequalities. ``fresh`` are quotients that were named on the way, with their bounds."""

    def __init__(self, given: Mapping[str, int]) -> None:
        self.given = given
        self.fresh: dict[str, int] = {}

    def formula(self, expr: Expr, wanted: bool) -> _Formula:
        """What must hold for ``expr`` to be ``wanted``."""
        match expr:
            case Truth(value=truth):
                return _All(()) if truth == wanted else _Any(())
            case Name():
                amount = self._name(expr)
                return _at_least(_minus(amount, {_ONE: 1})) if wanted else _at_least(_minus({}, amount))
            case Not(operand=operand):
                return self.formula(operand, not wanted)
            case Logic(op="implies", operands=(premise, conclusion)):
                two = (self.formula(premise, not wanted), self.formula(conclusion, wanted))
                return _Any(two) if wanted else _All(two)
            case Logic(op=op, operands=operands):
                parts = tuple(self.formula(operand, wanted) for operand in operands)
                return _All(parts) if (op == "and") == wanted else _Any(parts)
            case Compare(op=op, left=left, right=right):
                return self._compare(op if wanted else _OPPOSITE[op], left, right)
            case Member(item=item, options=options, negated=negated):
                same = wanted != negated
                parts = tuple(self._compare("==" if same else "!=", item, option) for option in options)
                return _Any(parts) if same else _All(parts)
            case Choice(condition=condition, then=then, otherwise=otherwise):
                yes = _All((self.formula(condition, True), self.formula(then, wanted)))
                no = _All((self.formula(condition, False), self.formula(otherwise, wanted)))
                return _Any((yes, no))
            case _:
                raise _WrongWayError("not a condition")

    def _compare(self, op: str, left: Expr, right: Expr) -> _Formula:
        if type_of(left) == BOOL:
            same = op == "=="
            both = _All((self.formula(left, True), self.formula(right, same)))
            neither = _All((self.formula(left, False), self.formula(right, not same)))
            return _Any((both, neither))
        alternatives = []
        for (left_sides, first), (right_sides, second) in product(self._sums(left), self._sums(right)):
            alternatives.append(_All((*left_sides, *right_sides, _relation(op, _minus(first, second)))))
        return alternatives[0] if len(alternatives) == 1 else _Any(tuple(alternatives))

    def _sums(self, expr: Expr) -> list[tuple[tuple[_Formula, ...], _Sum]]:
        """The sums that a number may be, each with what must hold for it."""
        match expr:
            case Number(value=value) | Bound(value=value) | Value(code=value):
                return [((), {_ONE: value})]
            case Name():
                return [((), self._name(expr))]
            case Arithmetic(op=op, left=left, right=right):
                pairs = product(self._sums(left), self._sums(right))
                return [self._arithmetic(op, left, *first, *second) for first, second in pairs]
            case Extreme(op=op, operands=operands):
                relation = "<=" if op == "min" else ">="
                found = []
                for index, operand in enumerate(operands):
                    others = operands[:index] + operands[index + 1 :]
                    sides = tuple(self._compare(relation, operand, other) for other in others)
                    found += [((*own, *sides), amount) for own, amount in self._sums(operand)]
                return found
            case Choice(condition=condition, then=then, otherwise=otherwise):
                yes, no = self.formula(condition, True), self.formula(condition, False)
                taken = [((yes, *sides), amount) for sides, amount in self._sums(then)]
                return taken + [((no, *sides), amount) for sides, amount in self._sums(otherwise)]
            case _:
                raise _WrongWayError("not a number")

    def _arithmetic(
        self,
        op: str,
        dividend: Expr,
        left_sides: tuple[_Formula, ...],
        left: _Sum,
        right_sides: tuple[_Formula, ...],
        right: _Sum,
    ) -> tuple[tuple[_Formula, ...], _Sum]:
        sides = (*left_sides, *right_sides)
        if op == "+":
            return sides, _plus(left, right)
        if op == "-":
            return sides, _minus(left, right)
        if set(right) <= {_ONE}:
            factor = right.get(_ONE, 0)
            return (sides, _times(left, factor)) if op == "*" else self._divided(op, dividend, sides, left, factor)
        if op == "*" and set(left) <= {_ONE}:
            return sides, _times(right, left.get(_ONE, 0))
        raise _WrongWayError("a product or quotient of two names")

    def _divided(
        self, op: str, dividend: Expr, sides: tuple[_Formula, ...], left: _Sum, divisor: int
    ) -> tuple[tuple[_Formula, ...], _Sum]:
        quotient = f"//{len(self.fresh)}"
        self.fresh[quotient] = interval(dividend)[1] // divisor
        rest = _minus(left, {quotient: divisor})
        sides = (*sides, _at_least(rest), _at_least(_minus({_ONE: divisor - 1}, rest)))
        return sides, ({quotient: 1} if op == "//" else rest)

    def _name(self, name: Name) -> _Sum:
        return {_ONE: self.given[name.name]} if name.name in self.given else {name.name: 1}


_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def _relation(op: str, difference: _Sum) -> _Formula:
    """``difference op 0`` as inequalities."""
    below = _at_least(_minus({_ONE: -1}, difference))  # difference <= -1
    above = _at_least(_minus(difference, {_ONE: 1}))
    at_most, at_least = _at_least(_minus({}, difference)), _at_least(difference)
    match op:
        case "==":
            return _All((at_most, at_least))
        case "!=":
            return _Any((below, above))
        case "<":
            return below
        case "<=":
            return at_most
        case ">":
            return above
        case _:
            return at_least


def _conjunctions(
    goals: Sequence[_Formula], taken: tuple[_AtLeast, ...], ranges: Mapping[str, tuple[int, int]]
) -> Iterator[tuple[tuple[_AtLeast, ...], Mapping[str, tuple[int, int]]]]:
    """All ways to make every goal true: each as inequalities between names, and a range for every name."""
    ranges = dict(ranges)
    waiting = list(goals)
    choices: list[_Any] = []
    while waiting:
        goal = _simplified(waiting.pop(), ranges)
        if goal is False:
            return
        if isinstance(goal, _AtLeast):
            if not _tightened(goal, ranges):
                taken = (*taken, goal)
                continue
            waiting.extend((*choices, *taken))
            choices, taken = [], ()
        elif isinstance(goal, _All):
            waiting.extend(goal.parts)
        elif isinstance(goal, _Any):
            choices.append(goal)
    if not choices:
        yield taken, ranges
        return
    choice = min(choices, key=lambda formula: len(formula.parts))
    others = [other for other in choices if other is not choice]
    for part in choice.parts:
        yield from _conjunctions((*others, part), taken, ranges)


def _simplified(formula: _Formula, ranges: Mapping[str, tuple[int, int]]) -> _Formula | bool:
    """The formula without what ``ranges`` decide; True or False when they decide it all."""
    if isinstance(formula, _AtLeast):
        least, most = 0, 0
        for name, factor in formula.terms:
            low, high = (1, 1) if name == _ONE else ranges[name]
            least += factor * (low if factor > 0 else high)
            most += factor * (high if factor > 0 else low)
        return True if least >= 0 else False if most < 0 else formula
    decides = isinstance(formula, _Any)  # the value that one part gives to the whole
    kept = []
    for part in formula.parts:
        simple = _simplified(part, ranges)
        if simple is decides:
            return decides
        if not isinstance(simple, bool):
            kept.append(simple)
    if len(kept) <= 1:
        return kept[0] if kept else not decides
    return _Any(tuple(kept)) if decides else _All(tuple(kept))


def _tightened(limit: _AtLeast, ranges: dict[str, tuple[int, int]]) -> bool:
    """Narrow the range of the one name in ``limit``; whether there was one to narrow."""
    terms = dict(limit.terms)
    constant = terms.pop(_ONE, 0)
    if len(terms) != 1:
        return False
    ((name, factor),) = terms.items()
    low, high = ranges[name]
    ranges[name] = (max(low, -(constant // factor)), high) if factor > 0 else (low, min(high, constant // -factor))
    return True


def _eliminate(constraints: set[_AtLeast], high: bool) -> dict[str, int] | None:
    """Whole numbers that satisfy all inequalities, or None."""
    rounds: list[tuple[str, list[_Sum], list[_Sum]]] = []
    sums = [dict(constraint.terms) for constraint in sorted(constraints, key=lambda item: item.terms)]
    while True:
        names = sorted({name for terms in sums for name in terms if name != _ONE})
        if not names:
            break
        best = min(names, key=lambda name: _cost(name, sums))
        lowers = [terms for terms in sums if terms.get(best, 0) > 0]
        uppers = [terms for terms in sums if terms.get(best, 0) < 0]
        if not (all(terms[best] == 1 for terms in lowers) or all(terms[best] == -1 for terms in uppers)):
            raise _WrongWayError("factors that elimination does not decide exactly")
        rounds.append((best, lowers, uppers))
        rest = {_at_least(terms) for terms in sums if best not in terms}
        for lower, upper in product(lowers, uppers):
            combined = _plus(_times(lower, -upper[best]), _times(upper, lower[best]))
            combined.pop(best, None)
            rest.add(_at_least(combined))
        if len(rest) > _CONSTRAINTS_MAX:
            raise _WrongWayError("too many inequalities")
        sums = [dict(constraint.terms) for constraint in sorted(rest, key=lambda item: item.terms)]
    if any(terms.get(_ONE, 0) < 0 for terms in sums):
        return None
    return _substituted_back(rounds, high)


def _cost(name: str, sums: list[_Sum]) -> tuple[bool, int, str]:
    lowers = [terms[name] for terms in sums if terms.get(name, 0) > 0]
    uppers = [terms[name] for terms in sums if terms.get(name, 0) < 0]
    exact = all(factor == 1 for factor in lowers) or all(factor == -1 for factor in uppers)
    return not exact, len(lowers) * len(uppers) - len(lowers) - len(uppers), name


def _substituted_back(rounds: list[tuple[str, list[_Sum], list[_Sum]]], high: bool) -> dict[str, int]:
    values: dict[str, int] = {}
    for name, lowers, uppers in reversed(rounds):
        low = max(-(_rest(terms, name, values) // terms[name]) for terms in lowers)
        top = min(_rest(terms, name, values) // -terms[name] for terms in uppers)
        assert low <= top
        values[name] = top if high else low
    return values


def _rest(terms: _Sum, name: str, values: Mapping[str, int]) -> int:
    return sum(factor * (1 if other == _ONE else values[other]) for other, factor in terms.items() if other != name)


def _at_least(terms: _Sum) -> _AtLeast:
    """The inequality, divided by what its factors have in common."""
    kept = {name: factor for name, factor in terms.items() if factor or name == _ONE}
    common = math.gcd(*(factor for name, factor in kept.items() if name != _ONE))
    if common > 1:
        kept = {name: factor // common for name, factor in kept.items()}  # floor: exact over whole numbers
    return _AtLeast(tuple(sorted(kept.items())))


def _plus(left: _Sum, right: _Sum) -> _Sum:
    total = {name: left.get(name, 0) + right.get(name, 0) for name in (*left, *right)}
    return {name: factor for name, factor in total.items() if factor}


def _times(terms: _Sum, factor: int) -> _Sum:
    return {name: value * factor for name, value in terms.items() if factor}


def _minus(left: _Sum, right: _Sum) -> _Sum:
    return _plus(left, _times(right, -1))


# Enumerated, Z3, corners.


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
    constants = {value for condition in conditions for value in _constants(condition)}
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


def _constants(expr: Expr) -> Iterator[int]:
    match expr:
        case Number(value=value) | Bound(value=value) | Value(code=value):
            yield value
        case _:
            for part in parts_of(expr):
                yield from _constants(part)


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
        solver.add(_to_z3(condition, {**names, **given}, z3))
    found = solver.check()
    if found == z3.unknown:
        raise _WrongWayError("z3 does not know")
    if found == z3.unsat:
        return None
    model = solver.model()
    return {name: model.eval(variable, model_completion=True).as_long() for name, variable in names.items()}


def _to_z3(expr: Expr, names: Mapping[str, Any], z3: Any) -> Any:
    """The expression in Z3; truth values of names are numbers there."""

    def of(part: Expr) -> Any:
        return _to_z3(part, names, z3)

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
        case Remote():
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
