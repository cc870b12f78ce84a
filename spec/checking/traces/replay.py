"""Events on many recorded words at once: what the model makes of each, and whether its claims about a slot hold.

A few rows go through the reference interpreter, with what was asked before remembered; many rows through the same cases
evaluated over arrays, which tests hold against the interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ...language.expressions import (
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
from ...language.interpreter import step
from ...language.model import Event, Machine, Property

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
Columns = Mapping[str, Numbers | np.int64]

FEW = 48  # rows below which arrays cost more than they save
REMEMBERED = 1 << 18  # answers of the interpreter that are kept


class Replayer:
    """One machine, asked over and over."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._always = [claim for claim in machine.properties if claim.kind == "always"]
        self._steps: dict[tuple[int, ...], tuple[int, int]] = {}
        self._good: set[int] = set()
        self.events = {event.name: event for event in machine.events}
        self._numbers = {event.name: number for number, event in enumerate(machine.events)}

    def outcomes(self, event: str, words: Sequence[int], given: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
        """The word after, and the number of the case that decided, 0 when the state does not take it; one a row.

        Args:
            event: of the machine.
            words: of slots; what is no word of the machine takes no event.
            given: a column of values for each argument, each value in its range.
        """
        asked = self.events[event]
        if len(words) >= FEW:
            names = [argument.name for argument in asked.given]
            columns = {name: np.array(column, np.int64) for name, column in zip(names, given, strict=True)}
            after, cases = outcomes(self.machine, asked, np.array(words, np.uint64), columns)
            return after.tolist(), cases.tolist()
        found = [self._step(asked, word, row) for word, *row in zip(words, *given, strict=True)]
        return [word for word, _ in found], [case for _, case in found]

    def is_word(self, word: int) -> bool:
        """Whether every field holds one of its values and no other bit is set."""
        if word >> self.machine.bits:
            return False
        highs = [len(self.machine.states) - 1, *(field.max for field in self.machine.fields[1:])]
        return all(
            (word >> field.shift & ((1 << field.bits) - 1)) <= high
            for field, high in zip(self.machine.fields, highs, strict=True)
        )

    def broken(self, words: Sequence[int]) -> dict[int, Property]:
        """The words among these for which a claim about every slot is false, with the first such claim."""
        unseen = set(words) - self._good
        if not unseen:
            return {}
        new = np.array(list(unseen), np.uint64)
        bad: dict[int, Property] = {}
        fields = _fields(self.machine, new)
        for claim in self._always:
            fits = np.broadcast_to(evaluate(claim.that, fields), len(new))
            for word in new[fits == 0].tolist():
                bad.setdefault(word, claim)
        if len(self._good) > REMEMBERED:
            self._good.clear()
        self._good |= set(new.tolist()) - set(bad)
        return bad

    def _step(self, event: Event, word: int, row: Sequence[int]) -> tuple[int, int]:
        asked = (self._numbers[event.name], word, *row)
        if asked not in self._steps:
            if len(self._steps) >= REMEMBERED:
                self._steps.clear()
            names = [argument.name for argument in event.given]
            if not self.is_word(word):
                return word, 0
            outcome = step(self.machine, word, event, dict(zip(names, row, strict=True)))
            self._steps[asked] = outcome.word, outcome.case or 0
        return self._steps[asked]


def outcomes(machine: Machine, event: Event, words: Words, given: Columns) -> tuple[Words, Numbers]:
    """The same over arrays [n]: words after the event, and numbers of the deciding cases, 0 where there is none."""
    names = {**_fields(machine, words), **given}
    states = names["state"]
    decided = np.zeros(len(words), np.int64)
    after = words.copy()
    for case in event.cases:
        codes = [machine.state(source).code for source in case.sources]
        fits = (decided == 0) & np.isin(states, codes)
        if case.when is not None:
            fits &= evaluate(case.when, names) != 0
        decided[fits] = case.number
        if case.refuse is None and fits.any():
            changed = {assignment.field: evaluate(assignment.value, names) for assignment in case.do}
            if case.to is not None:
                changed["state"] = np.int64(machine.state(case.to).code)
            after[fits] = _packed(machine, words, changed)[fits]
    return after, decided


def evaluate(expr: Expr, names: Columns) -> Numbers | np.int64:
    """An expression over columns of numbers; truth values are 0 and 1. Operands are all evaluated."""
    match expr:
        case Number(value=value) | Bound(value=value) | Truth(value=value) | Value(code=value):
            return np.int64(value)
        case Name(name=name):
            return names[name]
        case Not(operand=operand):
            return _truth(evaluate(operand, names) == 0)
        case Logic(op=op, operands=operands):
            values = [evaluate(operand, names) != 0 for operand in operands]
            if op == "implies":
                return _truth(~values[0] | values[1])
            return _truth(np.logical_and.reduce(np.broadcast_arrays(*values)) if op == "and" else
                          np.logical_or.reduce(np.broadcast_arrays(*values)))  # fmt: skip
        case Compare(op=op, left=left, right=right):
            return _truth(_COMPARE[op](evaluate(left, names), evaluate(right, names)))
        case Member(item=item, options=options, negated=negated):
            sought = evaluate(item, names)
            found = [sought == evaluate(option, names) for option in options]
            return _truth(np.logical_or.reduce(np.broadcast_arrays(*found)) != negated)
        case Arithmetic(op=op, left=left, right=right):
            with np.errstate(divide="ignore"):  # what guards a division may stand in the same expression
                result: Numbers = _ARITHMETIC[op](evaluate(left, names), evaluate(right, names))
            return result
        case Extreme(op=op, operands=operands):
            pick = np.minimum if op == "min" else np.maximum
            extreme: Numbers = pick.reduce(np.broadcast_arrays(*(evaluate(operand, names) for operand in operands)))
            return extreme
        case Choice(condition=condition, then=then, otherwise=otherwise):
            chosen: Numbers = np.where(
                evaluate(condition, names) != 0, evaluate(then, names), evaluate(otherwise, names)
            )
            return chosen
        case _:
            raise ValueError(f"{type(expr).__name__} belongs to a protocol; a machine cannot read it")


_COMPARE = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_ARITHMETIC = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "//": np.floor_divide,
    "%": np.remainder,
}


def _truth(flags: npt.NDArray[np.bool_] | np.bool_) -> Numbers | np.int64:
    return flags.astype(np.int64)


def _fields(machine: Machine, words: Words) -> dict[str, Numbers | np.int64]:
    bits = words.view(np.int64)
    return {field.name: bits >> field.shift & ((1 << field.bits) - 1) for field in machine.fields}


def _packed(machine: Machine, words: Words, values: Columns) -> Words:
    """Words with some fields set anew."""
    bits: Numbers = words.view(np.int64)
    for name, value in values.items():
        field = machine.field(name)
        mask = np.uint64(((1 << field.bits) - 1) << field.shift).astype(np.int64)
        bits = np.asarray(bits & ~mask | value << np.int64(field.shift))
    return bits.view(np.uint64)
