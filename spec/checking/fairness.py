"""``leads_to``: whether a run can stay away from its goal for ever although nobody is starved.

A run that never gets there ends in a set of states that it can go round in without leaving it, at worst a single one
where nothing more happens. Such a loop is fair if every weakly fair step is now and then taken or impossible, and
every strongly fair one is taken or, from some time on, impossible. A loop that is fair and can be reached from a source
without meeting the goal is a counterexample; if there is none, the promise holds. (Streett's condition, by strong
components.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .exploration import Exploration
from .graph import Flags, Graph, Numbers
from .lasso import Lasso, lasso
from .system import Promise


class NeedsScipy(Exception):
    """Strong components are found by scipy, which is not installed."""

    def __init__(self) -> None:
        super().__init__("checking leads_to needs scipy; fix: pip install 'kvfsm[checking]'")


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
    graph = Graph.of(exploration)
    return {promise.name: _broken(graph, promise) for promise in exploration.system.promises}


def _broken(graph: Graph, promise: Promise) -> Lasso | None:
    for (source, target), binding in zip(promise.pairs, promise.bindings, strict=True):
        there = graph.truth(target)
        starts = graph.truth(source) & ~there
        if not starts.any():
            continue
        away = graph.reached(starts, ~there)
        loop = _fair_loop(graph, away, promise.fair, promise.strong)
        if loop is not None:
            return lasso(graph, promise, binding, starts, away, loop)
    return None


def _fair_loop(
    graph: Graph, inside: Flags, weak: Sequence[tuple[int, ...]], strong: Sequence[tuple[int, ...]]
) -> Flags | None:
    """The states of a loop that is fair and stays ``inside``, or None: bool [states]."""
    todo = [inside]
    while todo:
        loops = _Loops.of(graph, todo.pop())
        fair = np.ones(loops.count, np.bool_)
        for group in weak:
            fair &= loops.taking(group) | loops.with_some(~graph.enabled(group))
        starved = {group: loops.with_some(graph.enabled(group)) & ~loops.taking(group) for group in strong}
        good = fair.copy()
        for flags in starved.values():
            good &= ~flags
        if good.any():
            return loops.states(np.arange(loops.count) == loops.label[loops.states(good)][0])
        # Where only a strongly fair step is starved, a smaller loop may avoid the states where it is possible.
        if fair.any():
            smaller = loops.states(fair)
            for group, flags in starved.items():
                smaller &= ~(loops.states(flags) & graph.enabled(group))
            todo.append(smaller)
    return None


@dataclass(frozen=True, slots=True)
class _Loops:
    """The strong components of some states; of each, whether something holds is told as bool [count]."""

    graph: Graph
    count: int
    label: Numbers  # [states]: the component of each state, -1 of those outside
    around: Flags  # [transitions]: those that stay in one component

    @classmethod
    def of(cls, graph: Graph, inside: Flags) -> _Loops:
        """Those of the states ``inside``."""
        try:
            from scipy.sparse import csr_matrix
            from scipy.sparse.csgraph import connected_components
        except ImportError:
            raise NeedsScipy from None
        kept = inside[graph.source] & inside[graph.target]
        members = np.flatnonzero(inside)
        number = np.full(graph.size, -1, np.int64)
        number[members] = np.arange(len(members))
        ones = np.ones(int(kept.sum()), np.bool_)
        shape = (len(members), len(members))
        matrix = csr_matrix((ones, (number[graph.source[kept]], number[graph.target[kept]])), shape=shape)
        count, labels = connected_components(matrix, directed=True, connection="strong")
        label = np.full(graph.size, -1, np.int64)
        label[members] = labels
        return cls(graph, int(count), label, kept & (label[graph.source] == label[graph.target]))

    def with_some(self, flags: Flags) -> Flags:
        """Which have a state of ``flags``, bool [states]."""
        return self._among(self.label[flags & (self.label >= 0)])

    def taking(self, group: tuple[int, ...]) -> Flags:
        """In which one of some commands is taken without leaving it."""
        return self._among(self.label[self.graph.source[self.around & np.isin(self.graph.command, group)]])

    def states(self, chosen: Flags) -> Flags:
        """The states of some of them: bool [states]."""
        found: Flags = np.append(chosen, False)[self.label]
        return found

    def _among(self, labels: Numbers) -> Flags:
        found: Flags = np.bincount(labels, minlength=self.count) > 0
        return found
