"""Where a local means nothing: it is written again before anything reads it.

Its value there can be forgotten, so that states that differ in it alone behave alike.
"""

from __future__ import annotations

from ..language.expressions import Expr, Number
from ..language.trees import names_in
from .folding import required, with_values
from .system import Cell, Command, System


def dead_steps(system: System, cell: Cell) -> frozenset[int]:
    """The steps of its copy at which a local is dead: no claim reads it there, and no command before it is written."""
    at = f"{cell.owner}[{cell.number}].at"
    if at not in system.place:  # the actor has one step
        return frozenset() if _read_at(system, cell, None, 0) else frozenset({0})
    steps = range(system.cell(at).high + 1)
    live = {step for step in steps if _read_at(system, cell, at, step)}
    own = [item for item in system.commands if (item.actor, item.copy) == (cell.owner, cell.number)]
    changed = True
    while changed:  # backwards: what is live after a command that does not write it was live before
        before = len(live)
        for command in own:
            if cell.name not in dict(command.updates) and ends_at(command, at) in live:
                live.add(begins_at(command, at))
        changed = len(live) > before
    return frozenset(steps) - live


def begins_at(command: Command, at: str) -> int:
    """The step of a command: what its guard says of ``at``, or 0 where its actor never leaves the first step."""
    return next((value for name, value in required(command.guard) if name == at), 0)


def ends_at(command: Command, at: str) -> int:
    """The step after a command."""
    value = dict(command.updates).get(at)
    if value is None:
        return begins_at(command, at)
    assert isinstance(value, Number)
    return value.value


def _read_at(system: System, cell: Cell, at: str | None, step: int) -> bool:
    """Whether a claim, or a command that may be taken, reads a local while its copy is at a step."""
    exprs = [expr for claim in system.claims for expr in claim.exprs]
    exprs += [expr for promise in system.promises for pair in promise.pairs for expr in pair]
    exprs += [value for _, value in system.derived]
    for command in system.commands:
        own = (command.actor, command.copy) == (cell.owner, cell.number)
        if at is None or not own or begins_at(command, at) == step:
            exprs += [*command.guard, *(value for _, value in command.updates)]
    return any(_still_reads(expr, cell.name, at, step) for expr in exprs)


def _still_reads(expr: Expr, cell: str, at: str | None, step: int) -> bool:
    """Whether an expression reads a cell while the step of its copy is ``step``."""
    if all(name.name != cell for name in names_in(expr)):
        return False
    fixed = expr if at is None else with_values(expr, {at: step})
    return any(name.name == cell for name in names_in(fixed))
