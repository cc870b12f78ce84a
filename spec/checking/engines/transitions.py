"""What a search does not keep, worked out again when it is wanted: transitions, commands, where a condition holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...language.expressions import Expr
from ..exploration import Exploration, Longs
from .engine_numpy import CHUNK_BITS, Code, canonical
from .numpy_text import predicate
from .visited import LOAD, Table

CHUNK = 1 << CHUNK_BITS


class _Stored:
    """The states of a search as a queue that a table can point into."""

    def __init__(self, rows: npt.NDArray[np.int64]) -> None:
        self.rows, self.capacity = rows, len(rows)


def transitions_of(exploration: Exploration) -> tuple[Longs, npt.NDArray[np.int32], Longs]:
    """Every transition, by sources in the order found.

    returns  source int64 [m], command int32 [m], target int64 [m]; m is ``exploration.transitions``

    Raises:
        ValueError: the search is not complete, so that a target may be missing.

    """
    if not exploration.complete:
        raise ValueError(f"the search of {exploration.system.name} is not complete: {exploration.why_incomplete}")
    rows = exploration.words.view(np.int64)
    stored = _Stored(rows)
    table = Table(stored, (len(rows) * LOAD).bit_length(), np)
    for start in range(0, len(rows), CHUNK):
        table.add(rows[start : start + CHUNK], start)
    sources, commands, targets = [], [], []
    for start, number, where, after in _moves(exploration):
        sources.append(where + start)
        commands.append(np.full(len(where), number, dtype=np.int32))
        targets.append(table.find(after))
    if not sources:
        return np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64)
    source, command, target = np.concatenate(sources), np.concatenate(commands), np.concatenate(targets)
    assert (target >= 0).all(), "a complete search holds every target"
    order = np.argsort(source, kind="stable")
    return source[order], command[order], target[order]


def commands_of(exploration: Exploration) -> npt.NDArray[np.int32]:
    """For each state the first command that leads from its parent to it, -1 for the first state; int32 [states]."""
    code = Code(exploration.layout, np)
    rows, parents = exploration.words.view(np.int64), exploration.parents
    found = np.full(len(rows), -1, dtype=np.int32)
    for start in range(1, len(rows), CHUNK):
        targets = rows[start : start + CHUNK]
        for number, where, after in code.expand(rows[parents[start : start + CHUNK]]):
            if exploration.symmetry is not None:
                after = canonical(exploration.symmetry, after, np)
            here = where[(after == targets[where]).all(axis=1)] + start
            here = here[found[here] < 0]
            found[here] = number
    return found


def truth_of(exploration: Exploration, expr: Expr) -> npt.NDArray[np.bool_]:
    """In which states a condition over cells holds; bool [states]."""
    test = predicate(exploration.layout, expr)
    rows = exploration.words.view(np.int64)
    found = np.empty(len(rows), dtype=bool)
    for start in range(0, len(rows), CHUNK):
        found[start : start + CHUNK] = test(rows[start : start + CHUNK], np)
    return found


def _moves(exploration: Exploration) -> Iterator[tuple[int, int, Any, Any]]:
    code = Code(exploration.layout, np)
    rows = exploration.words.view(np.int64)
    for start in range(0, len(rows), CHUNK):
        for number, where, after in code.expand(rows[start : start + CHUNK]):
            if exploration.symmetry is not None:
                after = canonical(exploration.symmetry, after, np)
            yield start, number, where, after
