"""A system without what no run reaches: commands that can never be taken, and cells that never leave 0."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from ..language.expressions import BOOL, Expr, Name
from ..language.interpreter import evaluate
from ..language.trees import names_in, rewritten
from .folding import FALSE, both, conjuncts, folded, number
from .system import Cell, Command, System

_KNOWN_MAX = 64  # values of a cell that are told apart


def without_unreachable(system: System, free: Collection[str]) -> System:
    """The system without commands that can never be taken and cells that never leave 0.

    The values that each cell may take are collected one cell at a time, so that some that it never takes may be kept.
    Cells that are ``free`` may be anything from the start.
    """
    known = _values_taken(system, free)
    fixed = {name for name, values in known.items() if values == {0}}
    narrow = {name: max(values) for name, values in known.items() if values is not None and name not in fixed}

    def small(expr: Expr) -> Expr:
        def rule(part: Expr) -> Expr:
            if isinstance(part, Name) and part.name in fixed:
                return FALSE if part.type == BOOL else number(0)
            if isinstance(part, Name) and part.name in narrow:
                return replace(part, high=narrow[part.name])
            return part

        return folded(rewritten(expr, rule))

    commands: list[Command] = []
    numbers: dict[int, int] = {}  # of the commands that stay: old -> new
    for index, command in enumerate(system.commands):
        guard = conjuncts(both(map(small, command.guard)))
        if FALSE not in guard and _possible(guard, known):
            numbers[index] = len(commands)
            updates = tuple((name, small(value)) for name, value in command.updates if name not in fixed)
            commands.append(replace(command, guard=guard, updates=updates))
    return replace(
        system,
        cells=tuple(
            replace(cell, high=narrow.get(cell.name, cell.high)) for cell in system.cells if cell.name not in fixed
        ),
        commands=tuple(commands),
        claims=tuple(replace(claim, exprs=tuple(map(small, claim.exprs))) for claim in system.claims),
        promises=tuple(
            replace(
                promise,
                pairs=tuple((small(source), small(target)) for source, target in promise.pairs),
                fair=_renumbered(promise.fair, numbers),
                strong=_renumbered(promise.strong, numbers),
            )
            for promise in system.promises
        ),
        derived=tuple((name, small(value)) for name, value in system.derived if name not in fixed),
    )


def _renumbered(groups: Iterable[tuple[int, ...]], numbers: Mapping[int, int]) -> tuple[tuple[int, ...], ...]:
    """Groups of commands by their new numbers, without those that are gone."""
    kept = (tuple(numbers[index] for index in group if index in numbers) for group in groups)
    return tuple(group for group in kept if group)


def _values_taken(system: System, free: Collection[str]) -> dict[str, set[int] | None]:
    """For each cell the values that it may take, or None: any."""
    known: dict[str, set[int] | None] = {cell.name: None if cell.name in free else {0} for cell in system.cells}
    reads = {id(part): _reads(part) for command in system.commands for part in command.guard}
    changed = True
    while changed:
        changed = False
        for command in system.commands:
            guard = [(part, reads[id(part)]) for part in command.guard]
            if not _may_hold(guard, known):
                continue
            for name, value in command.updates:
                before = known[name]
                if before is not None:
                    found = _values_of(value, known, system.cell(name), guard)
                    known[name] = None if found is None else before | found
                    changed = changed or known[name] != before
    return known


def _reads(expr: Expr) -> tuple[str, ...]:
    """The cells that an expression reads, each once."""
    return tuple(dict.fromkeys(name.name for name in names_in(expr)))


def _values_of(
    value: Expr, known: Mapping[str, set[int] | None], cell: Cell, guard: Iterable[tuple[Expr, tuple[str, ...]]]
) -> set[int] | None:
    """What an expression may be, or None when there are too many to tell; each part of the guard with what it reads."""
    cells = _reads(value)
    options = [known[name] for name in cells]
    if cell.high >= _KNOWN_MAX or any(option is None for option in options):
        return None
    sets = [sorted(option) for option in options if option is not None]
    if math.prod(map(len, sets)) > _KNOWN_MAX**2:
        return None
    relevant = [part for part, read in guard if set(read) <= set(cells)]
    found = set()
    for values in itertools.product(*sets):
        given = dict(zip(cells, values, strict=True))
        if all(evaluate(part, given) for part in relevant):
            found.add(evaluate(value, given))
    return {item for item in found if 0 <= item <= cell.high}


def _possible(guard: tuple[Expr, ...], known: Mapping[str, set[int] | None]) -> bool:
    """Whether each part of a guard that reads one cell, or two, can hold with the values that these may take."""
    return _may_hold([(part, _reads(part)) for part in guard], known)


def _may_hold(guard: Iterable[tuple[Expr, tuple[str, ...]]], known: Mapping[str, set[int] | None]) -> bool:
    for part, cells in guard:
        options = [known[name] for name in cells]
        if len(cells) > 2 or any(option is None for option in options):
            continue
        sets = [option for option in options if option is not None]
        if math.prod(map(len, sets)) > _KNOWN_MAX**2:
            continue
        trials = itertools.product(*sets)
        if not any(evaluate(part, dict(zip(cells, values, strict=True))) for values in trials):
            return False
    return True
