"""The commands of a system as other checkers take them: each changes something, and assigns one cell after the other.

A command that would leave every cell as it is, is no move: it reaches nothing, and a checker that looks for states
which nothing leaves would be misled by it. So guards also say that something changes, where that is not plain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...language.expressions import Arithmetic, Compare, Expr, Member, Name, Not, Number, Truth
from ...language.trees import names_in
from ..folding import FALSE, both, conjuncts, equal, negation
from ..system import Command, System


def moves_of(system: System) -> dict[int, Command]:
    """The commands that may change something, by their number in the system, with guards by which they do."""
    moves = {}
    for number, command in enumerate(system.commands):
        guard = command.guard
        if not any(_surely_changes(command, name, value) for name, value in command.updates):
            stays = both(equal(system.cell(name).read(), value) for name, value in command.updates)
            guard = conjuncts(both((*guard, negation(stays))))
        if FALSE not in guard:
            moves[number] = replace(command, guard=guard)
    return moves


def _surely_changes(command: Command, name: str, value: Expr) -> bool:
    """Whether a cell never has the value that is assigned to it where the guard holds."""
    match value:
        case Arithmetic("+" | "-", Name(name=read), Number(step)) if read == name and step != 0:
            return True
        case Number(new):
            return any(_excludes(part, name, new) for part in command.guard)
        case Truth(new):
            return any(_says(part, name, not new) for part in command.guard)
    return False


def _says(part: Expr, name: str, truth: bool) -> bool:
    """Whether ``part`` is a cell that is a truth value, or its opposite."""
    match part:
        case Name(name=read):
            return read == name and truth
        case Not(Name(name=read)):
            return read == name and not truth
    return False


def _excludes(part: Expr, name: str, value: int) -> bool:
    """Whether a cell cannot be ``value`` where ``part`` holds."""
    match part:
        case Compare("==", Name(name=read), Number(known)) | Compare("==", Number(known), Name(name=read)):
            return read == name and known != value
        case Compare("!=", Name(name=read), Number(known)) | Compare("!=", Number(known), Name(name=read)):
            return read == name and known == value
        case Member(Name(name=read), options, negated) if read == name:
            known_ones = {option.value for option in options if isinstance(option, Number)}
            return len(known_ones) == len(options) and (value in known_ones) == negated
    return False


@dataclass(frozen=True, slots=True)
class Sequence:
    """Assignments, one after the other, that do what all updates at once do.

    ``kept`` are cells whose value before is still read after they were assigned; it is put aside first.
    """

    kept: tuple[str, ...]
    steps: tuple[tuple[str, Expr], ...]


def in_sequence(command: Command) -> Sequence:
    """The updates in an order in which none reads what was assigned before it, as far as there is one."""
    waiting = list(command.updates)
    steps: list[tuple[str, Expr]] = []
    kept: list[str] = []
    while waiting:
        reads = {name: {read.name for read in names_in(value)} for name, value in waiting}

        def free(name: str, reads: dict[str, set[str]] = reads) -> bool:
            return all(name not in read for other, read in reads.items() if other != name)

        chosen = next((update for update in waiting if free(update[0])), None)
        if chosen is None:  # they read each other in a ring
            chosen = waiting[0]
            kept.append(chosen[0])
        waiting.remove(chosen)
        steps.append(chosen)
    return Sequence(tuple(kept), tuple(steps))
