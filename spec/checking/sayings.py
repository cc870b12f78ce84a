"""Whether commands and claims say the same once two slots are exchanged.

Two ways to see it. As written: cells are renamed, and what is asked of a local that names a slot is a table of answers,
one for each slot, whose slots are exchanged. This takes no longer with more locals, but sees through nothing else.
What it leaves open is compared slot by slot: for all values of all these locals at once, of which there may be many.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from ..language.expressions import (
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
from ..language.trees import names_in
from .folding import FALSE, conjuncts, required, with_values

VALUES_MAX = 1 << 14
"""Of the locals that one command or claim reads: past that it counts as telling slots apart, which is always safe."""


@dataclass(frozen=True, slots=True)
class Saying:
    """What a command does or what a claim asks.

    ``name`` tells a claim from every other and from commands. Where one of ``holds`` comes to ``void`` nothing is said:
    a command whose guard is false, a claim that is true of itself. ``updates`` are without those of no account.
    """

    name: str
    void: Expr
    holds: tuple[Expr, ...]
    updates: tuple[tuple[str, Expr], ...] = ()

    def facts(self, pointers: Mapping[str, int]) -> Iterator[Fact]:
        """What is said for all values of the ``pointers`` that are read: cells that name slots, and their greatest."""
        known = dict(required(self.holds)) if self.void == FALSE else {}
        read = self.read(pointers)
        for numbers in itertools.product(*((known[it],) if it in known else range(pointers[it] + 1) for it in read)):
            values = dict(zip(read, numbers, strict=True))
            holds = [with_values(expr, values) for expr in self.holds]
            if self.void in holds:
                continue
            fixed = {expr: None for part in holds for expr in conjuncts(part)}
            updates = tuple((name, with_values(value, values)) for name, value in self.updates)
            yield Fact(self.name, tuple(values.items()), tuple(fixed), updates)

    def values(self, pointers: Mapping[str, int]) -> int:
        """How many values these pointers have together."""
        return prod(pointers[name] + 1 for name in self.read(pointers))

    def read(self, pointers: Mapping[str, int]) -> dict[str, None]:
        """The pointers that are read, in the order of first mention."""
        exprs = (*self.holds, *(value for _, value in self.updates))
        return dict.fromkeys(name.name for expr in exprs for name in names_in(expr) if name.name in pointers)


@dataclass(frozen=True, slots=True)
class Fact:
    """What is said for given numbers of slots."""

    name: str
    values: tuple[tuple[str, int], ...]
    holds: tuple[Expr, ...]
    updates: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Two slots exchanged: new names of their cells, and the number of the other for each.

    What it turns into another saying it turns back into the first.
    """

    cells: Mapping[str, str]
    numbers: Mapping[int, int]

    @property
    def moved(self) -> frozenset[object]:
        """The leaves of keys that it changes."""
        return frozenset((*map(_Cell, self.cells), *map(_Slot, self.numbers)))

    def of(self, key: object) -> object:
        """A key of what is said after the exchange."""
        match key:
            case tuple():
                return tuple(map(self.of, key))
            case frozenset():
                return frozenset(map(self.of, key))
            case _Cell(name):
                return _Cell(self.cells.get(name, name))
            case _Slot(number):
                return _Slot(self.numbers.get(number, number))
        return key


class Sayings:
    """Commands and claims of a system, to be compared with themselves after exchanges."""

    def __init__(self, sayings: Iterable[Saying], pointers: Mapping[str, int]):
        self._keys = _Keys(pointers)
        groups: dict[object, list[Saying]] = {}
        for saying in sayings:
            groups.setdefault((saying.name, frozenset(saying.read(pointers))), []).append(saying)
        found = (_Group.of(tuple(sayings), self._keys) for sayings in groups.values())
        self._groups = sorted(found, key=lambda group: group.facts_count)  # what is seen soonest comes first

    def unchanged_by(self, exchange: Exchange) -> bool:
        """Whether all of them together say the same after the exchange; False also where that takes too long to see."""
        moved = exchange.moved
        return all(self._same(group, exchange, moved) for group in self._groups)

    def _same(self, group: _Group, exchange: Exchange, moved: frozenset[object]) -> bool:
        # Those that are turned into one another as they are written are closed under the exchange, and so are the rest.
        rest = [
            saying
            for saying, written in zip(group.sayings, group.written, strict=True)
            if written is None
            or not (moved.isdisjoint(written.leaves) or exchange.of(written.key) in group.written_keys)
        ]
        if rest and group.too_many:
            return False
        try:
            facts = frozenset(self._keys.of_fact(fact) for saying in rest for fact in saying.facts(self._keys.pointers))
        except _NotUnderstood:
            return False
        return exchange.of(facts) == facts


@dataclass(frozen=True, slots=True)
class _Written:
    """A key, and the cells and slots that it speaks of."""

    key: object
    leaves: frozenset[object]


@dataclass(frozen=True, slots=True)
class _Group:
    """Sayings of one name that read the same pointers: only these can be turned into one another."""

    sayings: tuple[Saying, ...]
    written: tuple[_Written | None, ...]
    written_keys: frozenset[object]
    facts_count: int  # to compare; 1 each where there are too many
    too_many: bool

    @classmethod
    def of(cls, sayings: tuple[Saying, ...], keys: _Keys) -> _Group:
        written = tuple(map(keys.of_saying, sayings))
        values = sayings[0].values(keys.pointers)
        too_many = values > VALUES_MAX
        count = len(sayings) * (1 if too_many else values)
        return cls(sayings, written, frozenset(each.key for each in written if each is not None), count, too_many)


# Keys are nested tuples and frozensets with these leaves.


@dataclass(frozen=True, slots=True)
class _Cell:
    name: str


@dataclass(frozen=True, slots=True)
class _Slot:
    number: int


class _NotUnderstood(Exception):
    """A slot's number is used in a way that a key can't say."""


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys that are equal for expressions that differ in the order of their operands only."""

    pointers: Mapping[str, int]  # cells that name slots, and their greatest

    def of_saying(self, saying: Saying) -> _Written | None:
        try:
            key = frozenset(map(self.of, saying.holds)), self._updates(saying.updates)
        except _NotUnderstood:
            return None
        return _Written(key, frozenset(_leaves(key)))

    def of_fact(self, fact: Fact) -> object:
        values = frozenset((name, _Slot(number)) for name, number in fact.values)
        return values, frozenset(map(self.of, fact.holds)), self._updates(fact.updates)

    def _updates(self, updates: tuple[tuple[str, Expr], ...]) -> object:
        return frozenset((_Cell(name), self._assigned(name, value)) for name, value in updates)

    def _assigned(self, name: str, value: Expr) -> object:
        if name not in self.pointers:
            return self.of(value)
        match value:
            case Number(number):
                return _Slot(number)
            case Name(name=other) if other in self.pointers:
                return "slot of", other
        raise _NotUnderstood  # a number that is computed

    def of(self, expr: Expr) -> object:
        pointer = self._asked(expr)
        if pointer is not None:
            return self._answers(pointer, expr)
        match expr:
            case Number(value) | Truth(value):
                return value
            case Name(name=name):
                return _Cell(name)
            case Not(operand):
                return "not", self.of(operand)
            case Logic(op, operands) | Extreme(op, operands):
                return op, frozenset(map(self.of, operands))
            case Compare("==" | "!=" as op, Name(name=left), Name(name=right)) if {left, right} <= self.pointers.keys():
                return op, frozenset((left, right))
            case Compare("==" | "!=" as op, left, right):
                return op, frozenset((self.of(left), self.of(right)))
            case Compare("<" | "<=" | ">" | ">=" as op, left, right):
                one, other = (left, right) if op[0] == "<" else (right, left)
                return "<" + op[1:], self.of(one), self.of(other)
            case Arithmetic("+"):
                return "+", frozenset(Counter(map(self.of, _summands(expr))).items())
            case Arithmetic(op, left, right):
                return op, self.of(left), self.of(right)
            case Member(item, options, negated):
                return "in", self.of(item), frozenset(map(self.of, options)), negated
            case Choice(condition, then, otherwise):
                pointer = self._asked(condition)
                if pointer is None:
                    return "if", self.of(condition), self.of(then), self.of(otherwise)
                return pointer, frozenset((_Slot(slot), self.of(value)) for slot, value in self._each(pointer, expr))
        raise AssertionError(f"no such node in a system: {expr}")

    def _answers(self, pointer: str, expr: Expr) -> object:
        """What is commonest, and the slots with another answer: so that it speaks of no others."""
        if isinstance(expr, Name):
            raise _NotUnderstood  # the number itself
        answers = [(slot, self.of(value)) for slot, value in self._each(pointer, expr)]
        usual, _ = max(Counter(answer for _, answer in answers).items(), key=lambda item: (item[1], item[0]))
        return pointer, usual, frozenset((_Slot(slot), answer) for slot, answer in answers if answer != usual)

    def _asked(self, expr: Expr) -> str | None:
        """The pointer that an expression reads, if it reads nothing else."""
        names = {name.name for name in names_in(expr)}
        return names.pop() if len(names) == 1 and names <= self.pointers.keys() else None

    def _each(self, pointer: str, expr: Expr) -> Iterator[tuple[int, Expr]]:
        """What an expression comes to for each slot that a pointer can name."""
        return ((slot, with_values(expr, {pointer: slot})) for slot in range(self.pointers[pointer] + 1))


def _leaves(key: object) -> Iterator[object]:
    match key:
        case tuple() | frozenset():
            for part in key:
                yield from _leaves(part)
        case _Cell() | _Slot():
            yield key


def _summands(expr: Expr) -> Iterator[Expr]:
    match expr:
        case Arithmetic("+", left, right):
            yield from _summands(left)
            yield from _summands(right)
        case _:
            yield expr
