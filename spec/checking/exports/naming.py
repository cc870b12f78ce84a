"""Names that a cell, a named value, a claim or a command has in an exported text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...language.expressions import Choice, Compare, Expr, Logic, Member, Name, Number, Value
from ...language.trees import rewritten
from ...targets.infix import Leaf
from ..system import NOWHERE, Cell, System


@dataclass(frozen=True, slots=True)
class Constant:
    """A named value: what the text calls it, such as "reader_at_pin" for 1."""

    name: str
    value: int


class Naming:
    """The names of one exported text, each given away once, and ``reserved`` ones never.

    ``cells`` maps the name of a cell, such as "kv[0].pins", to its name in the text, such as "kv_0_pins".
    """

    def __init__(self, system: System, reserved: Iterable[str] = ()) -> None:
        self._taken = set(reserved)
        self._types = {cell.name: cell for cell in system.cells}
        self.cells: Mapping[str, str] = {cell.name: self.take(cell.name) for cell in system.cells}
        named = {cell.type: cell.names for cell in system.cells if cell.names}
        self._values = {
            (type_, code): self.take(f"{type_}.{name}")
            for type_, names in named.items()
            for code, name in enumerate(names)
        }

    @property
    def constants(self) -> Iterator[Constant]:
        """All named values, those of one type together."""
        return (Constant(name, code) for (_, code), name in self._values.items())

    def take(self, text: str) -> str:
        """An identifier like ``text`` that nothing else has."""
        wanted = re.sub(r"\W+", "_", text).strip("_")
        found, number = wanted, 2
        while found in self._taken:
            found, number = f"{wanted}_{number}", number + 1
        self._taken.add(found)
        return found

    def spelled(self, leaf: Leaf) -> str:
        """What the text calls a cell or a named value."""
        match leaf:
            case Name(name=name, kind="cell"):
                return self.cells[name]
            case Value(code=code, type=type_):
                return self._values[type_, code]
        raise ValueError(f"a system holds nothing but cells and numbers, not {leaf!r}")

    def worded(self, expr: Expr) -> Expr:
        """The expression with names in place of numbers where a cell with named values is compared."""

        def rule(part: Expr) -> Expr:
            match part:
                case Compare("==" | "!=" as op, left, right) if type_ := self._type(left) or self._type(right):
                    return Compare(op, _named(left, type_), _named(right, type_), NOWHERE)
                case Member(item, options, negated) if type_ := self._type(item):
                    return Member(item, tuple(_named(option, type_) for option in options), negated, NOWHERE)
            return part

        return rewritten(expr, rule)

    def assigned(self, cell: Cell, value: Expr) -> Expr:
        """The value that is assigned to a cell, with names in place of numbers if its values have any."""
        return _named(self.worded(value), cell if cell.names else None)

    def _type(self, expr: Expr) -> Cell | None:
        """A cell with named values whose value the expression may be."""
        match expr:
            case Name(name=name):
                cell = self._types[name]
                return cell if cell.names else None
            case Choice(then=then, otherwise=otherwise):
                return self._type(then) or self._type(otherwise)
        return None


def _named(expr: Expr, cell: Cell | None) -> Expr:
    match expr:
        case Number(value) if cell is not None and 0 <= value < len(cell.names):
            return Value(cell.names[value], value, cell.type, NOWHERE)
        case Choice(condition, then, otherwise):
            return Choice(condition, _named(then, cell), _named(otherwise, cell), NOWHERE)
    return expr


def heading(system: System) -> str:
    """The protocol's name and its bounds."""
    bounds = ", ".join(f"{name} = {value}" for name, value in system.bounds)
    return f"{system.name}{f' ({bounds})' if bounds else ''}"


def filled(words: Iterable[str], indent: str, width: int = 116) -> str:
    """Words in lines of at most ``width`` characters, each line after ``indent``; words bring their own separators."""
    lines: list[str] = []
    line = ""
    for word in words:
        if line and len(indent) + len(line) + 1 + len(word) > width:
            lines.append(indent + line)
            line = word
        else:
            line = f"{line} {word}".lstrip()
    return "\n".join([*lines, indent + line])


def spread(expr: Expr, text: Callable[[Expr], str], signs: Mapping[str, str], indent: str) -> str:
    """A long ``and`` or ``or`` over several lines, its sign after each operand but the last.

    Args:
        expr: what to print.
        text: prints an expression in one line.
        signs: what ``and`` and ``or`` are called.
        indent: what every line begins with.

    """
    match expr:
        case Logic("and" | "or" as op, operands):
            loose = (Logic, Choice, Member)  # what may have signs of its own outside of parentheses
            *items, last = [f"({text(item)})" if isinstance(item, loose) else text(item) for item in operands]
            return filled([*(f"{item} {signs[op]}" for item in items), last], indent)
    return indent + text(expr)
