"""All transitions of an exploration as a graph of its states, and ways through it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..language.expressions import Expr
from .engines.transitions import transitions_of, truth_of
from .exploration import Exploration

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Way = list[tuple[int, int]]  # each command, and the state that it leads to


@dataclass(frozen=True)
class Graph:
    """States by their number; each transition has a ``source``, a ``command`` and a ``target``, sorted by sources."""

    exploration: Exploration
    source: Numbers
    command: npt.NDArray[np.int32]
    target: Numbers

    @classmethod
    def of(cls, exploration: Exploration) -> Graph:
        """The graph of a complete exploration."""
        return cls(exploration, *transitions_of(exploration))

    @property
    def size(self) -> int:
        """How many states there are."""
        return self.exploration.states

    def truth(self, expr: Expr) -> Flags:
        """Where a condition holds: bool [states]."""
        return truth_of(self.exploration, expr)

    def reached(self, starts: Flags, inside: Flags) -> Flags:
        """States that can be reached from ``starts`` without leaving ``inside``: bool [states]."""
        kept = inside[self.source] & inside[self.target]
        source, target = self.source[kept], self.target[kept]
        first = np.searchsorted(source, np.arange(self.size + 1))
        found, frontier = starts.copy(), np.flatnonzero(starts)
        while len(frontier):
            counts = first[frontier + 1] - first[frontier]
            at = np.repeat(first[frontier] - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
            after = np.unique(target[at + np.arange(len(at))])
            frontier = after[~found[after]]
            found[frontier] = True
        return found

    def enabled(self, group: Iterable[int]) -> Flags:
        """Where one of some commands may be taken: bool [states]."""
        found = np.zeros(self.size, np.bool_)
        found[self.source[np.isin(self.command, list(group))]] = True
        return found

    def after(self, state: int) -> Way:
        """The commands that may be taken in a state, and where they lead."""
        low, high = np.searchsorted(self.source, (state, state + 1))
        return [(int(self.command[at]), int(self.target[at])) for at in range(low, high)]

    def walk(self, begin: int, inside: Flags, goal: Callable[[int], bool]) -> Way | None:
        """The shortest way to a state of ``goal``: [] if it is one; None if there is no way."""
        if goal(begin):
            return []
        came: dict[int, tuple[int, int]] = {begin: (-1, -1)}
        todo = deque([begin])
        while todo:
            state = todo.popleft()
            for command, after in self.after(state):
                if inside[after] and after not in came:
                    came[after] = (state, command)
                    if goal(after):
                        return _traced(came, begin, after)
                    todo.append(after)
        return None

    def walk_by(self, begin: int, inside: Flags, commands: Collection[int]) -> Way | None:
        """The shortest way that ends with one of some commands."""

        def step(state: int) -> tuple[int, int] | None:
            return next(((c, after) for c, after in self.after(state) if c in commands and inside[after]), None)

        way = self.walk(begin, inside, lambda state: step(state) is not None)
        if way is None:
            return None
        last = step(way[-1][1] if way else begin)
        assert last is not None
        return [*way, last]


def _traced(came: dict[int, tuple[int, int]], begin: int, end: int) -> Way:
    way = []
    while end != begin:
        before, command = came[end]
        way.append((command, end))
        end = before
    return way[::-1]
