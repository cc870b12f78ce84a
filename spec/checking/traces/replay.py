"""Events on many recorded words at once: what the model makes of each, and whether its claims about a slot hold.

A few rows go through the reference interpreter, with what was asked before remembered; many rows through the same cases
compiled to functions of arrays by ``targets/numpy.py``, which tests hold against the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...language.expressions import Expr, Name
from ...language.interpreter import step
from ...language.model import Event, Machine, Property
from ...targets import numpy as arrays
from ...targets.infix import plain

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
Columns = Mapping[str, Any]  # by field or argument: int64 [n], or bool [n] of one that is a truth value

FEW = 48  # rows below which arrays cost more than they save
REMEMBERED = 1 << 18  # answers of the interpreter that are kept


class Replayer:
    """One machine, asked over and over."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._always = [(claim, _compiled(claim.that)) for claim in machine.properties if claim.kind == "always"]
        self._steps: dict[tuple[int, ...], tuple[int, int]] = {}
        self._good: set[int] = set()
        self.events = {event.name: event for event in machine.events}
        self._many = {event.name: EventOverArrays(machine, event) for event in machine.events}
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
            after, cases = self._many[event](np.array(words, np.uint64), columns)
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
        for claim, holds in self._always:
            for word in new[~np.broadcast_to(holds(fields), len(new))].tolist():
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


class EventOverArrays:
    """An event of a machine on many words at once."""

    def __init__(self, machine: Machine, event: Event) -> None:
        self._machine = machine
        self._truths = [argument.name for argument in event.given if argument.is_bool]
        self._cases = [
            (
                case,
                [machine.state(source).code for source in case.sources],
                None if case.when is None else _compiled(case.when),
                {assignment.field: _compiled(assignment.value) for assignment in case.do},
            )
            for case in event.cases
        ]

    def __call__(self, words: Words, given: Mapping[str, Numbers]) -> tuple[Words, Numbers]:
        """Words after the event, and numbers of the deciding cases, 0 where there is none; [n] each, as arguments."""
        truths = {name: given[name] != 0 for name in self._truths}
        names = {**_fields(self._machine, words), **given, **truths}
        decided = np.zeros(len(words), np.int64)
        after = words.copy()
        for case, codes, when, values in self._cases:
            fits = (decided == 0) & np.isin(names["state"], codes)
            if when is not None:
                fits &= when(names)
            decided[fits] = case.number
            if case.refuse is None and fits.any():
                changed = {field: value(names) for field, value in values.items()}
                if case.to is not None:
                    changed["state"] = self._machine.state(case.to).code
                after[fits] = _packed(self._machine, words, changed)[fits]
        return after, decided


def _compiled(expr: Expr) -> Callable[[Columns], Any]:
    """An expression as a function of columns: [n], or one number or truth value where it reads none."""
    text = arrays.render(expr, lambda leaf: f"columns[{leaf.name!r}]" if isinstance(leaf, Name) else plain(leaf))
    function: Callable[[Columns], Any] = eval(compile(f"lambda columns: {text}", "<event>", "eval"), {"np": np})
    return function


def _fields(machine: Machine, words: Words) -> Columns:
    bits = words.view(np.int64)
    found = {field.name: bits >> field.shift & ((1 << field.bits) - 1) for field in machine.fields}
    return {field.name: found[field.name] != 0 if field.is_bool else found[field.name] for field in machine.fields}


def _packed(machine: Machine, words: Words, values: Columns) -> Words:
    """Words with some fields set anew."""
    bits: Numbers = words.view(np.int64)
    for name, value in values.items():
        field = machine.field(name)
        mask = np.uint64(((1 << field.bits) - 1) << field.shift).astype(np.int64)
        bits = np.asarray(bits & ~mask | np.asarray(value, np.int64) << np.int64(field.shift))
    return bits.view(np.uint64)
