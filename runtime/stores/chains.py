"""In which order objects go that stand behind one another: children before parents, and circles before all.

A circle of parents is no prefix's chain, so nobody asks for what stands in one, or behind one. Where a parent is not
there a chain begins: it may be put again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


def ends_first(order: Sequence[int], before: NDArray[np.intp]) -> Iterator[int]:
    """Objects in their order, but each after all that stand behind it; where one of these stays, so does it.

    Args:
        order: those that may go, the first to go first.
        before: the parent of each object, int [objects]; -1 where there is none. Who is not in ``order`` stays.

    >>> list(ends_first([0, 1, 2, 3, 4, 5], np.array([-1, 0, 1, 4, 3, -1])))  # 0 <- 1 <- 2, a circle of 3 and 4, and 5
    [3, 4, 2, 1, 0, 5]
    >>> list(ends_first([0, 1, 3], np.array([-1, 0, 1, 0])))  # 2 stays, and all before it
    [3]
    """
    circling = _endless(before)
    yield from (one for one in order if circling[one])
    turns = {one: turn for turn, one in enumerate(order) if not circling[one]}
    behind = np.bincount(before[before >= 0], minlength=len(before)).tolist()
    ends = [(turn, one) for one, turn in turns.items() if not behind[one]]
    heapq.heapify(ends)
    parents = before.tolist()
    while ends:
        _, one = heapq.heappop(ends)
        yield one
        parent = parents[one]
        if parent < 0:
            continue
        behind[parent] -= 1
        if parent in turns and not behind[parent]:
            heapq.heappush(ends, (turns[parent], parent))


def _endless(before: NDArray[np.intp]) -> NDArray[np.bool_]:
    """From which objects parents lead on and on, bool [objects]."""
    ancestors, hops = before, 1
    while hops < len(before) and (ancestors >= 0).any():  # no chain that begins has more parents than there are objects
        ancestors, hops = np.where(ancestors >= 0, ancestors[ancestors], -1), 2 * hops
    return ancestors >= 0
