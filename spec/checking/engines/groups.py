"""The commands of a system by copy and step: a command is tried only in states where its copy is at its step."""

from __future__ import annotations

from dataclasses import dataclass

from ...language.expressions import Expr
from ..folding import both, conjuncts, required
from ..system import System


@dataclass(frozen=True, slots=True)
class Guarded:
    """A command's number, and what has to hold besides the step."""

    number: int
    guard: Expr


@dataclass(frozen=True, slots=True)
class Group:
    """All commands that one copy has; ``cell`` is its step, or None where its commands don't read it."""

    cell: str | None
    steps: tuple[tuple[int, tuple[Guarded, ...]], ...]  # at each step; one step 0 where ``cell`` is None


def grouped(system: System) -> tuple[Group, ...]:
    """Every command of the system in one group, by copies in the order of their first command."""
    found: dict[str | None, dict[int, list[Guarded]]] = {}
    for number, command in enumerate(system.commands):
        at = f"{command.actor}[{command.copy}].at"
        parts = conjuncts(both(command.guard))
        step = dict(required(parts)).get(at)
        if step is None:
            found.setdefault(None, {}).setdefault(0, []).append(Guarded(number, both(parts)))
        else:
            rest = both(part for part in parts if (at, step) not in required([part]))
            found.setdefault(at, {}).setdefault(step, []).append(Guarded(number, rest))
    return tuple(
        Group(cell, tuple((step, tuple(commands)) for step, commands in sorted(steps.items())))
        for cell, steps in found.items()
    )
