"""Conditions and updates of a system as operations on packed words: text that C and NumPy both read.

A test of one cell is a test of some bits of a word, ``(s0 & mask) == value``, and a conjunction of such tests is one
test as well. What can't be put like that is printed by the target's own printer, over cells read by shift and mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ...language.bounds import interval, type_of
from ...language.expressions import (
    BOOL,
    INT,
    Arithmetic,
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
)
from ...language.interpreter import evaluate
from ...language.trees import names_in, rewritten
from ...targets.infix import Leaf
from ..folding import FALSE, TRUE, both, conjuncts, either, folded, negation, number
from ..layout import WORD_BITS, Layout, Spot
from ..system import NOWHERE, Command

ALL = (1 << WORD_BITS) - 1
CASES_MAX = 16  # a comparison of choices with more values than these stays one
TABLE_MAX = 1 << 12  # cells with more values than these are compared as numbers
Cube = tuple[int, int]  # (mask, value) of the low bits: those x with x & mask == value


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a target writes what the two don't share."""

    literal: Callable[[int], str]  # a pattern of 64 bits
    read: Callable[[str], str]  # a shifted and masked word, as a signed number
    bits: Callable[[str, bool], str]  # a printed value, a truth value if the flag says so, as a word
    render: Callable[[Expr], str]  # an expression whose leaves are printed already


@dataclass(frozen=True, slots=True)
class Known:
    """What a guard says of single cells: the values that it leaves each, and the bits of words that these fix."""

    values: Mapping[str, frozenset[int]]
    words: Mapping[int, Cube]

    def possible(self, cell: str, high: int) -> Iterable[int]:
        """Values of a cell."""
        return self.values.get(cell, range(high + 1))


class Conditions:
    """Prints the expressions of one system over words; ``word`` is what they are called, by default ``s0``, ``s1``."""

    def __init__(self, layout: Layout, spelling: Spelling, word: str = "s{}") -> None:
        self.layout, self.spelling, self.word = layout, spelling, word.format

    # Conditions.

    def condition(self, expr: Expr) -> str | bool:
        """The text of a condition, or whether it holds where that is the same in every state."""
        test = folded(self._test(_plain(expr)))  # a test of one cell may have turned out constant
        return test.value if isinstance(test, Truth) else self.spelling.render(test)

    def known(self, guard: Iterable[Expr]) -> Known:
        """What a guard fixes."""
        values = _values_left(guard)
        return Known(values, self._merged(values, True)[0])

    def _test(self, expr: Expr) -> Expr:
        """The same condition with its tests of single cells printed."""
        if isinstance(expr, Truth):
            return expr
        if isinstance(expr, Logic):
            conjunction = expr.op == "and"
            # A disjunction is the negation of a conjunction: where that one is one test of bits, so is this one.
            parts = expr.operands if conjunction else tuple(map(negation, expr.operands))
            values, others = _singles(parts)
            words, tests = self._merged(values, conjunction)
            bits = [self._bits(word, cube, conjunction) for word, cube in sorted(words.items())]
            rest = [self._test(part if conjunction else negation(part)) for part in others]
            return (both if conjunction else either)((*bits, *tests, *rest))
        values, others = _singles((expr,))
        if not others:
            words, tests = self._merged(values, True)
            return both((*(self._bits(word, cube, True) for word, cube in words.items()), *tests))
        match expr:
            case Compare("==" | "!=" as op, Name(name=left), Name(name=right)):
                if self.layout.place(left).mask == self.layout.place(right).mask:
                    return self._same(self.layout.place(left), self.layout.place(right), op)
            case Not(operand):
                return Not(self._test(operand), NOWHERE)
            case Name(name=name):  # a truth value
                spot = self.layout.place(name)
                return self._bits(spot.word, (spot.mask << spot.shift, spot.mask << spot.shift), True)
        return self._value(expr)

    def _merged(self, values: Mapping[str, frozenset[int]], conjunction: bool) -> tuple[dict[int, Cube], list[Expr]]:
        """Tests of single cells as cubes of words, and the tests of those that are no cube.

        ``values`` are the values that each cell may have; for a disjunction, those that it must not have.
        """
        words: dict[int, Cube] = {}
        tests: list[Expr] = []
        for name, allowed in values.items():
            spot, high = self.layout.place(name), self.layout.system.cell(name).high
            if not allowed:
                tests.append(FALSE if conjunction else TRUE)
                continue
            cube = _cube(allowed, high)
            if cube is not None:
                mask, value = words.get(spot.word, (0, 0))
                words[spot.word] = mask | cube[0] << spot.shift, value | cube[1] << spot.shift
                continue
            rest = frozenset(range(high + 1)) - allowed
            cube = _cube(rest, high)
            if cube is not None:
                shifted = cube[0] << spot.shift, cube[1] << spot.shift
                tests.append(self._bits(spot.word, shifted, not conjunction))
            elif high < WORD_BITS - 1:
                table = sum(1 << value for value in allowed)
                found = f"({self.spelling.literal(table)} >> {self._read(spot)} & 1) {'!=' if conjunction else '=='} 0"
                tests.append(_text(f"({found})", BOOL))
            else:
                options = tuple(number(value) for value in sorted(allowed))
                tests.append(Member(_text(self._read(spot), INT, high), options, not conjunction, NOWHERE))
        return words, tests

    def _bits(self, word: int, cube: Cube, equal: bool) -> Expr:
        mask, value = map(self.spelling.literal, cube)
        if cube[0] == 0:
            return TRUE if equal else FALSE
        return _text(f"(({self.word(word)} & {mask}) {'==' if equal else '!='} {value})", BOOL)

    def _same(self, left: Spot, right: Spot, op: str) -> Expr:
        """Whether two cells of one width have the same value: whether their bits differ nowhere."""
        low, high = sorted((left, right), key=lambda spot: spot.shift)
        by = high.shift - low.shift
        moved = f"({self.word(high.word)} >> {by})" if by else self.word(high.word)
        mask = self.spelling.literal(low.mask << low.shift)
        return _text(f"((({self.word(low.word)} ^ {moved}) & {mask}) {op} 0)", BOOL)

    def _read(self, spot: Spot) -> str:
        shifted = f"{self.word(spot.word)} >> {spot.shift}" if spot.shift else self.word(spot.word)
        return self.spelling.read(f"({shifted} & {self.spelling.literal(spot.mask)})")

    def _value(self, expr: Expr) -> Expr:
        """An expression with its leaves printed; conditions inside it are tests."""

        def inner(part: Expr) -> Expr:
            leaf = isinstance(part, Name | Truth)
            return self._test(part) if type_of(part) == BOOL and not leaf else self._value(part)

        match expr:
            case Name(name=name, type=type_, high=high):
                return _text(self._read(self.layout.place(name)), INT if type_ == BOOL else type_, high)
            case Truth(value):
                return number(int(value))
            case Compare(op, left, right):
                return Compare(op, inner(left), inner(right), NOWHERE)
            case Arithmetic(op, left, right):
                return Arithmetic(op, inner(left), inner(right), NOWHERE)
            case Member(item, options, negated):
                return Member(inner(item), tuple(map(inner, options)), negated, NOWHERE)
            case Choice(condition, then, otherwise):
                return Choice(self._test(condition), inner(then), inner(otherwise), NOWHERE)
            case Not() | Logic():
                return self._test(expr)
            case Extreme(op, operands):
                return Extreme(op, tuple(map(inner, operands)), NOWHERE)
        assert isinstance(expr, Number), expr
        return expr

    # Updates.

    def updated(self, command: Command) -> tuple[str, ...]:
        """The words after a command, in states where its guard holds."""
        known = self.known(command.guard)
        words = [_Word() for _ in range(self.layout.word_count)]
        for name, value in command.updates:
            self._update(words, name, _plain(value), known)
        return tuple(self._written(word, parts, known.words.get(word, (0, 0))) for word, parts in enumerate(words))

    def moves(self, command: Command) -> bool:
        """Whether the command is sure to lead to another state."""
        known = self.known(command.guard)
        for name, value in command.updates:
            value = _plain(value)
            cell = self.layout.system.cell(name)
            if isinstance(value, Number | Truth) and int(value.value) not in known.possible(name, cell.high):
                return True
            if _step(name, value, known, cell.high) is not None:
                return True
        return False

    def _update(self, words: list[_Word], name: str, value: Expr, known: Known) -> None:
        spot, cell = self.layout.place(name), self.layout.system.cell(name)
        word = words[spot.word]
        if isinstance(value, Number | Truth):
            word.cleared |= spot.mask << spot.shift
            word.set |= (int(value.value) & spot.mask) << spot.shift
            return
        step = _step(name, value, known, cell.high)
        if step is not None:
            word.added += step << spot.shift
            return
        word.cleared |= spot.mask << spot.shift
        if isinstance(value, Name) and value.high <= cell.high:
            word.parts.append(self._copied(self.layout.place(value.name), spot))
            return
        is_truth = type_of(value) == BOOL
        shown = folded(self._test(value) if is_truth else self._value(value))
        if isinstance(shown, Number | Truth):
            word.set |= (int(shown.value) & spot.mask) << spot.shift
            return
        text = self.spelling.bits(self.spelling.render(shown), is_truth)
        low, high = interval(value)
        if low < 0 or high > cell.high:
            text = f"({text} & {self.spelling.literal(spot.mask)})"
        word.parts.append(f"({text} << {spot.shift})" if spot.shift else text)

    def _copied(self, source: Spot, target: Spot) -> str:
        """The bits of one cell where another cell lies."""
        word, by = self.word(source.word), target.shift - source.shift
        moved = f"({word} {'<<' if by > 0 else '>>'} {abs(by)})" if by else word
        return f"({moved} & {self.spelling.literal((source.mask & target.mask) << target.shift)})"

    def _written(self, word: int, parts: _Word, known: Cube) -> str:
        mask, value = known
        # Bits that the guard fixes need no clearing: they are flipped where they differ.
        cleared = parts.cleared & ~mask
        flipped = (value & parts.cleared & mask) ^ parts.set
        text = self.word(word)
        if cleared:
            text = f"({text} & {self.spelling.literal(ALL ^ cleared)})"
        if flipped:
            text = f"({text} ^ {self.spelling.literal(flipped)})"
        if parts.added:
            text = f"({text} + {self.spelling.literal(parts.added & ALL)})"
        for part in parts.parts:
            text = f"({text} | {part})"
        return text


@dataclass
class _Word:
    """What an update does to a word: bits cleared, then bits set, numbers added, and computed parts."""

    cleared: int = 0
    set: int = 0
    added: int = 0

    def __post_init__(self) -> None:
        self.parts: list[str] = []


def fixed_cells(guard: Iterable[Expr]) -> dict[str, int]:
    """The cells of which a guard leaves one value, and that value."""
    return {name: min(allowed) for name, allowed in _values_left(guard).items() if len(allowed) == 1}


def _values_left(guard: Iterable[Expr]) -> dict[str, frozenset[int]]:
    return _singles(conjuncts(both(map(_plain, guard))))[0]


@lru_cache(1 << 16)
def _plain(expr: Expr) -> Expr:
    """Folded, with choices between truth values, and comparisons of choices, as logic.

    "The state of the slot that ``x`` names is 1" becomes "x is 0 and the state of slot 0 is 1, or x is 1 and ..", in
    which each part is a test of some bits.
    """

    def rule(part: Expr) -> Expr:
        match part:
            case Choice(condition, then, otherwise) if type_of(then) == BOOL:
                return either((both((condition, then)), both((negation(condition), otherwise))))
            case Compare(op, left, right):
                ways = [
                    both((one, other, folded(Compare(op, first, second, NOWHERE))))
                    for one, first in _cases(left)
                    for other, second in _cases(right)
                ]
                return either(ways) if 1 < len(ways) <= CASES_MAX else part
            case Member(item, options, negated):
                ways = [both((one, folded(Member(first, options, negated, NOWHERE)))) for one, first in _cases(item)]
                return either(ways) if 1 < len(ways) <= CASES_MAX else part
        return part

    return folded(rewritten(folded(expr), rule))


def _cases(expr: Expr) -> list[tuple[Expr, Expr]]:
    """The values between which a chain of choices chooses, each with when it is taken."""
    cases: list[tuple[Expr, Expr]] = []
    earlier: tuple[Expr, ...] = ()
    while isinstance(expr, Choice) and type_of(expr.then) != BOOL:
        cases.append((both((*earlier, expr.condition)), expr.then))
        earlier, expr = (*earlier, negation(expr.condition)), expr.otherwise
    return [*cases, (both(earlier), expr)]


def _singles(parts: Iterable[Expr]) -> tuple[dict[str, frozenset[int]], list[Expr]]:
    """Of a conjunction, the values left to each cell by the parts that read no other cell; and the other parts."""
    values: dict[str, frozenset[int]] = {}
    others: list[Expr] = []
    for part in parts:
        found = _table(part)
        if found is None:
            others.append(part)
        else:
            name, allowed = found
            values[name] = values.get(name, allowed) & allowed
    return values, others


@lru_cache(1 << 16)
def _table(expr: Expr) -> tuple[str, frozenset[int]] | None:
    """For a condition of one cell, its name and the values with which it holds."""
    cells = {name.name: name.high for name in names_in(expr)}
    if len(cells) != 1:
        return None
    ((name, high),) = cells.items()
    if high >= TABLE_MAX:
        return None
    return name, frozenset(value for value in range(high + 1) if evaluate(expr, {name: value}))


def _cube(allowed: frozenset[int], high: int) -> Cube | None:
    """The bits that tell ``allowed`` from the rest of [0, high], if there are such bits."""
    if not allowed:
        return None
    first, fixed = min(allowed), (1 << high.bit_length()) - 1
    for value in allowed:
        fixed &= ~(value ^ first)
    value = first & fixed
    if all(other in allowed for other in range(high + 1) if other & fixed == value):
        return fixed, value
    return None


def _step(name: str, value: Expr, known: Known, high: int) -> int | None:
    """The number that an update adds to its own cell, where that is sure to stay within the cell."""
    match value:
        case Arithmetic("+" | "-" as op, Name(name=read), Number(by)) if read == name and by:
            step = by if op == "+" else -by
            if all(0 <= before + step <= high for before in known.possible(name, high)):
                return step
    return None


def _text(text: str, type_: str, high: int = 1) -> Name:
    """A leaf that is printed already."""
    return Name(text, "text", type_, high, NOWHERE)


def printed(leaf: Leaf) -> str:
    """What a renderer is told of such leaves, the only ones that are left."""
    assert isinstance(leaf, Name)
    return leaf.name
