"""A fair run for ever as a lasso: a way into a loop, and a way round it on which nobody is starved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .graph import Flags, Graph, Way
from .system import Promise


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


def lasso(graph: Graph, promise: Promise, binding: str, starts: Flags, away: Flags, loop: Flags) -> Lasso:
    """A run into a loop and round it.

    Args:
        graph: of all states.
        promise: which such a run breaks.
        binding: for which copies and slots.
        starts: states from which the goal is missed, bool [states]; one of them leads into the loop.
        away: states that are reached from these without meeting the goal.
        loop: a strong component of states, in which a fair run can go round.

    """
    ways = ((int(state), graph.walk(int(state), away, lambda at: bool(loop[at]))) for state in np.flatnonzero(starts))
    begin, towards = next((begin, way) for begin, way in ways if way is not None)  # the shallowest may not lead there
    path = [*graph.exploration.steps_to(begin), *towards]
    return Lasso(
        promise=promise.name,
        binding=binding,
        source=len(path) - len(towards) - 1,
        path=tuple(path),
        loop=tuple(_round(graph, promise, path[-1][1], loop)),
    )


def _round(graph: Graph, promise: Promise, entry: int, loop: Flags) -> Way:
    """From ``entry`` round the loop: every step that must not be starved is taken, or passed where it is impossible."""
    way: Way = []
    for group in (*promise.fair, *promise.strong):
        now = way[-1][1] if way else entry
        possible = graph.enabled(group)
        visited = {entry, *(state for _, state in way)}
        if any(not possible[state] for state in visited) and group not in promise.strong:
            continue
        if not (possible & loop).any() or any(command in group for command, _ in way):
            continue
        detour = graph.walk(now, loop, lambda state, p=possible: not p[state])  # type: ignore[misc]
        by_step = graph.walk_by(now, loop, group)
        ways = (by_step,) if group in promise.strong else (by_step, detour)
        choices = sorted((each for each in ways if each is not None), key=len)
        assert choices, "the loop is fair"
        way += choices[0]
    if way and way[-1][1] != entry:
        back = graph.walk(way[-1][1], loop, lambda state: state == entry)
        assert back is not None, "a strong component"
        way += back
    return way
