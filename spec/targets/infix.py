"""Printing with infix operators and the fewest parentheses, for every target but SMT.

A target is a table: what each operator is called and how tightly it binds. Where two levels may not be mixed for a
reader's (or compiler's) sake, ``clashes`` names them and parentheses are printed although the grammar could do without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce

from ..language.expressions import (
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

Leaf = Name | Value | Bound | Remote
Names = Callable[[Leaf], str]

ATOM = 100


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator's spelling and level; a higher level binds tighter."""

    token: str
    level: int


@dataclass(frozen=True, slots=True)
class Text:
    """Printed text and the level of its outermost operator."""

    text: str
    level: int = ATOM


@dataclass(frozen=True, slots=True)
class Infix:
    """How one target spells things.

    ``choice``, ``member`` and ``extreme`` print from already printed parts; a target whose expressions are lowered
    first leaves the latter two None.
    """

    true: str
    false: str
    operators: Mapping[str, Operator]  # and or implies not == != < <= > >= + - * // %
    choice: Callable[[Printer, Choice], Text]
    member: Callable[[Printer, Member], Text] | None = None
    extreme: Callable[[Printer, Extreme], Text] | None = None
    count: Callable[[Printer, Count], Text] | None = None  # None: what is printed holds no counts
    clashes: frozenset[tuple[str, str]] = frozenset()  # (outer operator, inner operator)

    def render(self, expr: Expr, names: Names) -> str:
        """The text of ``expr``; ``names`` spells the leaves."""
        return Printer(self, names).text(expr)


@dataclass(frozen=True, slots=True)
class Printer:
    """One target with one way of naming leaves."""

    target: Infix
    names: Names

    def text(self, expr: Expr) -> str:
        """``expr`` as it stands alone."""
        return self.printed(expr).text

    def inside(self, expr: Expr, level: int, outer: str = "") -> str:
        """``expr`` as an operand: in parentheses unless it binds at ``level`` or tighter."""
        part = self.printed(expr)
        clash = (outer, operator_of(expr)) in self.target.clashes
        return f"({part.text})" if part.level < level or clash else part.text

    def printed(self, expr: Expr) -> Text:
        """``expr`` with the level of its outermost operator."""
        match expr:
            case Number(value):
                return Text(str(value), ATOM if value >= 0 else self.target.operators["*"].level)
            case Truth(value):
                return Text(self.target.true if value else self.target.false)
            case Name() | Value() | Bound() | Remote():
                return Text(self.names(expr))
            case Not(operand):
                sign = self.target.operators["not"]
                return Text(sign.token + self.inside(operand, sign.level, "not"), sign.level)
            case Logic(op="implies", operands=(left, right)):
                sign = self.target.operators["implies"]
                return Text(
                    f"{self.inside(left, sign.level + 1, 'implies')} {sign.token} "
                    f"{self.inside(right, sign.level + 1, 'implies')}",
                    sign.level,
                )
            case Logic(op=op, operands=operands):
                sign = self.target.operators[op]
                parts = [self.inside(operand, sign.level + (0 if operator_of(operand) == op else 1), op)
                         for operand in operands]
                return Text(f" {sign.token} ".join(parts), sign.level)
            case Compare(op=op, left=left, right=right):
                sign = self.target.operators[op]
                # Comparisons don't associate: in Python a < b < c would chain.
                parts = [self.inside(side, sign.level + 1, op) for side in (left, right)]
                return Text(f" {sign.token} ".join(parts), sign.level)
            case Arithmetic(op=op, left=left, right=right):
                sign = self.target.operators[op]
                return Text(
                    f"{self.inside(left, sign.level, op)} {sign.token} {self.inside(right, sign.level + 1, op)}",
                    sign.level,
                )
            case Choice():
                return self.target.choice(self, expr)
            case Member():
                assert self.target.member is not None
                return self.target.member(self, expr)
            case Extreme():
                assert self.target.extreme is not None
                return self.target.extreme(self, expr)
            case Count():
                assert self.target.count is not None, "counts are spelled out before printing"
                return self.target.count(self, expr)

    def call(self, function: str, *arguments: Expr) -> Text:
        """``function(a, b)``."""
        return Text(f"{function}({', '.join(self.text(argument) for argument in arguments)})")

    def nested_calls(self, function: str, arguments: tuple[Expr, ...]) -> Text:
        """``function(function(a, b), c)``: a function of two over more."""
        return Text(reduce(lambda done, next_: f"{function}({done}, {next_})", map(self.text, arguments)))


def operator_of(expr: Expr) -> str:
    """The operator of a node, or an empty text."""
    match expr:
        case Logic(op=op) | Compare(op=op) | Arithmetic(op=op):
            return op
        case Not():
            return "not"
    return ""


def operators(**levels: tuple[int, str]) -> dict[str, Operator]:
    """A table from levels and space-separated spellings, in the order of ``SPELLED``."""
    table = {}
    for group, (level, tokens) in levels.items():
        for op, token in zip(SPELLED[group].split(), tokens.split(), strict=True):
            table[op] = Operator(token, level)
    return table


SPELLED = {
    "either": "or",
    "both": "and",
    "implication": "implies",
    "equality": "== !=",
    "ordering": "< <= > >=",
    "addition": "+ -",
    "product": "* // %",
}


def plain(leaf: Leaf) -> str:
    """Names as the spec writes them, and codes for named values."""
    match leaf:
        case Name(name=name):
            return name
        case Value(code=code):
            return str(code)
        case Bound(value=value):
            return str(value)
        case Remote(owner=owner, index=index, field=field):
            return f"{owner}.{field}" if index is None else f"{owner}[{_plain_index(index)}].{field}"


def _plain_index(index: Expr) -> str:
    match index:
        case Number(value):
            return str(value)
        case Name(name=name):
            return name
        case Remote():
            return plain(index)
    raise ValueError("an index is a number, a name, or a local of an actor")
