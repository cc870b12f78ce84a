"""``leads_to``: whether a run can stay away from its goal for ever although nobody is starved.

A run that never gets there ends in a set of states that it can go round in without leaving it, at worst a single one
where nothing more happens. Such a loop is fair if every weakly fair step is now and then taken or impossible, and
every strongly fair one is taken or, from some time on, impossible. A loop that is fair and can be reached from a source
without meeting the goal is a counterexample; if there is none, the promise holds. (Streett's condition, by strong
components.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..language.expressions import Expr
from .engines.transitions import transitions_of, truth_of
from .exploration import Exploration
from .system import Promise

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


class NeedsScipy(Exception):
    """Strong components are found by scipy, which is not installed."""

    def __init__(self) -> None:
        super().__init__("checking leads_to needs scipy; fix: pip install 'kvfsm[checking]'")


@dataclass(frozen=True, slots=True)
class Lasso:
    """A fair run that never reaches the goal.

    ``path`` leads from the first state into the loop, as (command, index of the state after it); its first entry has no
    command. ``loop`` goes round: it starts after the last state of ``path`` and ends there. Without entries, the run
    stays where it is for ever. ``source`` is the place in ``path`` from which on the goal is missed.
    """

    promise: str
    binding: str
    source: int
    path: tuple[tuple[int | None, int], ...]
    loop: tuple[tuple[int, int], ...]


def check_promises(exploration: Exploration) -> dict[str, Lasso | None]:
    """Every ``leads_to`` of the system: a fair run that breaks it, or None if it holds.

    Args:
        exploration: complete, and without symmetry; else a run could be missed, or be none.

    Raises:
        ValueError: the exploration is incomplete or stands for renumbered states.
        NeedsScipy: scipy is missing.

    """
    if not exploration.complete or exploration.symmetry is not None:
        raise ValueError("promises are checked on every state, each for itself")
    if not exploration.system.promises:
        return {}
    graph = _Graph.of(exploration)
    return {promise.name: _broken(graph, promise) for promise in exploration.system.promises}


def _broken(graph: _Graph, promise: Promise) -> Lasso | None:
    for (source, target), binding in zip(promise.pairs, promise.bindings, strict=True):
        there = graph.truth(target)
        starts = graph.truth(source) & ~there
        if not starts.any():
            continue
        away = graph.reached(starts, ~there)
        loop = graph.fair_loop(away, promise.fair, promise.strong)
        if loop is not None:
            return graph.lasso(promise, binding, starts, away, loop)
    return None


@dataclass(frozen=True)
class _Graph:
    exploration: Exploration
    source: Numbers
    command: npt.NDArray[np.int32]
    target: Numbers

    @classmethod
    def of(cls, exploration: Exploration) -> _Graph:
        source, command, target = transitions_of(exploration)
        order = np.argsort(source, kind="stable")
        return cls(exploration, source[order], command[order], target[order])

    @property
    def size(self) -> int:
        return self.exploration.states

    def truth(self, expr: Expr) -> Flags:
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

    def fair_loop(
        self, inside: Flags, weak: Sequence[tuple[int, ...]], strong: Sequence[tuple[int, ...]]
    ) -> Flags | None:
        """The states of a loop that is fair and stays ``inside``, or None: bool [states]."""
        todo = [inside]
        while todo:
            inside = todo.pop()
            labels, kept = self._components(inside)
            if not len(labels):
                continue
            count = int(labels.max()) + 1
            members = np.flatnonzero(inside)
            label = np.full(self.size, -1, np.int64)
            label[members] = labels
            around = kept & (label[self.source] == label[self.target])

            def some(flags: Flags, label: Numbers = label, count: int = count) -> Flags:
                """Which components have a state of ``flags``."""
                found = np.zeros(count, np.bool_)
                found[label[flags & (label >= 0)]] = True
                return found

            def taken(
                group: tuple[int, ...], around: Flags = around, label: Numbers = label, count: int = count
            ) -> Flags:
                found = np.zeros(count, np.bool_)
                found[label[self.source[around & np.isin(self.command, list(group))]]] = True
                return found

            fair = np.ones(count, np.bool_)
            for group in weak:
                fair &= taken(group) | some(~self.enabled(group))
            starved = {group: some(self.enabled(group)) & ~taken(group) for group in strong}
            good = fair.copy()
            for flags in starved.values():
                good &= ~flags
            if good.any():
                first = members[good[labels]][0]
                found: Flags = label == label[first]
                return found
            # Where only a strongly fair step is starved, a smaller loop may avoid the states where it is possible.
            again = fair & ~good
            if again.any():
                smaller = np.zeros(self.size, np.bool_)
                smaller[members] = again[labels]
                for group, flags in starved.items():
                    bad = np.zeros(self.size, np.bool_)
                    bad[members] = flags[labels]
                    smaller &= ~(bad & self.enabled(group))
                todo.append(smaller)
        return None

    def _components(self, inside: Flags) -> tuple[npt.NDArray[np.int32], Flags]:
        """The strong component of each state that is ``inside``, and which transitions stay inside."""
        try:
            from scipy.sparse import csr_matrix
            from scipy.sparse.csgraph import connected_components
        except ImportError:
            raise NeedsScipy from None
        kept = inside[self.source] & inside[self.target]
        members = np.flatnonzero(inside)
        number = np.full(self.size, -1, np.int64)
        number[members] = np.arange(len(members))
        ones = np.ones(int(kept.sum()), np.bool_)
        shape = (len(members), len(members))
        matrix = csr_matrix((ones, (number[self.source[kept]], number[self.target[kept]])), shape=shape)
        labels: npt.NDArray[np.int32] = connected_components(matrix, directed=True, connection="strong")[1]
        return labels, kept

    # Telling it.

    def lasso(self, promise: Promise, binding: str, starts: Flags, away: Flags, loop: Flags) -> Lasso:
        """A run into the loop and round it."""
        begin = int(np.flatnonzero(starts)[0])
        towards = self._walk(begin, away, lambda state: bool(loop[state]))
        if towards is None:  # the shallowest source does not lead there; another one does
            for state in np.flatnonzero(starts)[1:]:
                begin = int(state)
                towards = self._walk(begin, away, lambda state: bool(loop[state]))
                if towards is not None:
                    break
        assert towards is not None, "the loop was reached from a source"
        path = [(command, state) for command, state in self.exploration.steps_to(begin)]
        source = len(path) - 1
        path += towards
        entry = path[-1][1]
        round_: list[tuple[int, int]] = []
        for group in (*promise.fair, *promise.strong):
            now = round_[-1][1] if round_ else entry
            possible = self.enabled(group)
            visited = {entry, *(state for _, state in round_)}
            if any(not possible[state] for state in visited) and group not in promise.strong:
                continue
            if not (possible & loop).any() or any(command in group for command, _ in round_):
                continue
            detour = self._walk(now, loop, lambda state, p=possible: not p[state])  # type: ignore[misc]
            by_step = self._walk_by(now, loop, frozenset(group))
            ways = (by_step,) if group in promise.strong else (by_step, detour)
            choices = sorted((way for way in ways if way is not None), key=lambda way: len(way))
            assert choices, "the loop is fair"
            round_ += choices[0]
        if round_ and round_[-1][1] != entry:
            back = self._walk(round_[-1][1], loop, lambda state: state == entry)
            assert back is not None, "a strong component"
            round_ += back
        return Lasso(promise.name, binding, source, tuple(path), tuple(round_))

    def _after(self, state: int) -> list[tuple[int, int]]:
        low, high = np.searchsorted(self.source, (state, state + 1))
        return [(int(self.command[at]), int(self.target[at])) for at in range(low, high)]

    def _walk(self, begin: int, inside: Flags, goal: Callable[[int], bool]) -> list[tuple[int, int]] | None:
        """The shortest way to a state of ``goal``: [] if it is one; None if there is no way."""
        if goal(begin):
            return []
        came: dict[int, tuple[int, int]] = {begin: (-1, -1)}
        todo = deque([begin])
        while todo:
            state = todo.popleft()
            for command, after in self._after(state):
                if inside[after] and after not in came:
                    came[after] = (state, command)
                    if goal(after):
                        return _traced(came, begin, after)
                    todo.append(after)
        return None

    def _walk_by(self, begin: int, inside: Flags, commands: frozenset[int]) -> list[tuple[int, int]] | None:
        """The shortest way that ends with one of some commands."""

        def step(state: int) -> tuple[int, int] | None:
            return next(((c, after) for c, after in self._after(state) if c in commands and inside[after]), None)

        way = self._walk(begin, inside, lambda state: step(state) is not None)
        if way is None:
            return None
        last = step(way[-1][1] if way else begin)
        assert last is not None
        return [*way, last]


def _traced(came: dict[int, tuple[int, int]], begin: int, end: int) -> list[tuple[int, int]]:
    way = []
    while end != begin:
        before, command = came[end]
        way.append((command, end))
        end = before
    return way[::-1]
