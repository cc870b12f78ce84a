"""The expression language as data. Parsing and typing it is ``parser.py``; printing it is ``spec/targets/``.

Numbers are signed 64-bit; ``low`` and ``high`` are the proved bounds of a number. Names are resolved when an
expression is parsed, so that a printer needs no table: ``Name.kind`` says what a name stands for.
"""

from __future__ import annotations

from dataclasses import dataclass

from .problems import Place

INT = "int"
BOOL = "bool"
# A named type is the name of its field: "state" for the states, else a field with ``names``.
OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}  # of a comparison


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number."""

    value: int
    at: Place


@dataclass(frozen=True, slots=True)
class Truth:
    """``true`` or ``false``."""

    value: bool
    at: Place


@dataclass(frozen=True, slots=True)
class Name:
    """A field, argument, meta field, or local variable."""

    name: str
    kind: str  # field | argument | meta | local | index
    type: str  # INT, BOOL, or a named type
    high: int  # the greatest value; the least is 0
    at: Place


@dataclass(frozen=True, slots=True)
class Value:
    """A state or another named value, beside its own field: ``resident`` in ``state == resident``."""

    name: str
    code: int
    type: str  # "state" or the field's name
    at: Place


@dataclass(frozen=True, slots=True)
class Bound:
    """``max(field)``, or ``max(window[slot].field)``: what a field holds at most, as wide as a protocol narrows it."""

    field: str
    value: int
    at: Place


@dataclass(frozen=True, slots=True)
class Remote:
    """In protocols: ``window[slot].generation``; ``reader.seen`` and ``reader.at`` have no index."""

    owner: str  # instance or actor name
    index: Expr | None
    field: str
    type: str
    high: int
    at: Place


@dataclass(frozen=True, slots=True)
class Not:
    """``not x``."""

    operand: Expr
    at: Place


@dataclass(frozen=True, slots=True)
class Logic:
    """``and``, ``or`` over two or more operands; ``implies`` over two."""

    op: str
    operands: tuple[Expr, ...]
    at: Place


@dataclass(frozen=True, slots=True)
class Compare:
    """``== != < <= > >=``."""

    op: str
    left: Expr
    right: Expr
    at: Place


@dataclass(frozen=True, slots=True)
class Member:
    """``x in [a, b]``, ``x not in [a, b]``."""

    item: Expr
    options: tuple[Expr, ...]
    negated: bool
    at: Place


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``+ - * // %``."""

    op: str
    left: Expr
    right: Expr
    at: Place


@dataclass(frozen=True, slots=True)
class Extreme:
    """``min(a, b, ...)`` or ``max(a, b, ...)``."""

    op: str
    operands: tuple[Expr, ...]
    at: Place


@dataclass(frozen=True, slots=True)
class Choice:
    """``x if c else y``."""

    condition: Expr
    then: Expr
    otherwise: Expr
    at: Place


@dataclass(frozen=True, slots=True)
class Count:
    """In properties of protocols: ``count(reader, reader.at == use)``, how many copies of an actor fulfil a condition.

    The actor's name stands for each of its copies in turn inside ``condition``, whatever it stands for outside.
    """

    actor: str
    condition: Expr
    high: int  # how many copies there are
    at: Place


Expr = (
    Number
    | Truth
    | Name
    | Value
    | Bound
    | Remote
    | Not
    | Logic
    | Compare
    | Member
    | Arithmetic
    | Extreme
    | Choice
    | Count
)
