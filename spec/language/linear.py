"""Can these conditions hold together? Decided exactly where they compare sums, as guards nearly always do.

Conditions become inequalities; alternatives are searched depth first, and each conjunction of inequalities is decided
by Fourier-Motzkin elimination, which is exact over whole numbers as long as one side of every eliminated pair has the
factor 1 (Pugh, "The Omega Test", 1991).

Why not leave it to Z3: the rules ask some 2,600 questions of the shipped spec, which take one second here and fifteen
there, and most are about fields of 20 bits and more, too wide to enumerate; so a spec is checked without a package that
not everybody has. ``solver.py`` tries its other ways on what is not linear, and tests compare all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from .bounds import interval, type_of
from .expressions import (
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

_BRANCHES_MAX = 20_000
_CONSTRAINTS_MAX = 400


class NotLinearError(Exception):
    """These conditions are not of the kind that is decided here, or need too many steps."""


def example_of(
    conditions: Sequence[Expr], given: Mapping[str, int], highs: Mapping[str, int], high: bool
) -> dict[str, int] | None:
    """Values of the names in ``highs``, which ``given`` leaves out, that make all conditions true; None if none do.

    Args:
        conditions: of type BOOL.
        given: names whose value is given.
        highs: the greatest value of every other name; the least is 0.
        high: prefer great values to small ones.

    Raises:
        NotLinearError: they are not decided here.

    """
    translation = _Translation(given)
    goals = [translation.formula(condition, True) for condition in conditions]
    bounds = {name: (0, top) for name, top in (*translation.fresh.items(), *highs.items())}
    for count, (conjunction, ranges) in enumerate(_conjunctions(goals, (), bounds)):
        if count > _BRANCHES_MAX:
            raise NotLinearError("too many alternatives")
        joined = {name for limit in conjunction for name, _ in limit.terms if name != _ONE}
        lows = [_at_least({name: 1, _ONE: -ranges[name][0]}) for name in joined]
        tops = [_at_least({name: -1, _ONE: ranges[name][1]}) for name in joined]
        example = _eliminate({*conjunction, *lows, *tops}, high) if joined else {}
        if example is not None:
            return {name: example.get(name, ranges[name][high]) for name in highs}
    return None


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
                return self._compare(op if wanted else OPPOSITE[op], left, right)
            case Member(item=item, options=options, negated=negated):
                same = wanted != negated
                parts = tuple(self._compare("==" if same else "!=", item, option) for option in options)
                return _Any(parts) if same else _All(parts)
            case Choice(condition=condition, then=then, otherwise=otherwise):
                yes = _All((self.formula(condition, True), self.formula(then, wanted)))
                no = _All((self.formula(condition, False), self.formula(otherwise, wanted)))
                return _Any((yes, no))
            case _:
                raise NotLinearError("not a condition")

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
                raise NotLinearError("not a number")

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
        raise NotLinearError("a product or quotient of two names")

    def _divided(
        self, op: str, dividend: Expr, sides: tuple[_Formula, ...], left: _Sum, divisor: int
    ) -> tuple[tuple[_Formula, ...], _Sum]:
        if divisor <= 0:  # other guards keep this from being computed
            return (*sides, _at_least({_ONE: -1})), {}
        quotient = f"//{len(self.fresh)}"
        self.fresh[quotient] = interval(dividend)[1] // divisor
        rest = _minus(left, {quotient: divisor})
        sides = (*sides, _at_least(rest), _at_least(_minus({_ONE: divisor - 1}, rest)))
        return sides, ({quotient: 1} if op == "//" else rest)

    def _name(self, name: Name) -> _Sum:
        return {_ONE: self.given[name.name]} if name.name in self.given else {name.name: 1}


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
            raise NotLinearError("factors that elimination does not decide exactly")
        rounds.append((best, lowers, uppers))
        rest = {_at_least(terms) for terms in sums if best not in terms}
        for lower, upper in product(lowers, uppers):
            combined = _plus(_times(lower, -upper[best]), _times(upper, lower[best]))
            combined.pop(best, None)
            rest.add(_at_least(combined))
        if len(rest) > _CONSTRAINTS_MAX:
            raise NotLinearError("too many inequalities")
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
