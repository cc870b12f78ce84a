"""Where two plans bring the same: how far one who waits for the load of the other gets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .answers import Plan
from .core import Core


def reach(core: Core, plan: Plan, other: Plan) -> int:
    """Granules up to the last place that both plans bring; 0 where there is none. Cost: O(log n), and their windows."""
    common = _common(plan.claim.digests, other.claim.digests, min(plan.boundary, other.boundary))
    ends = _met(plan.expand, other.expand, common)
    for kind in plan.wanted.keys() & other.wanted.keys():
        ours, theirs = plan.wanted[kind], other.wanted[kind]
        if kind in core.paged:  # granules in a row, up to the boundary
            one, two = (range(int(places[0]), int(places[-1]) + 1) for places in (ours, theirs))
            ends += _met(one, two, common)
        else:
            both = core.granules(kind, np.intersect1d(ours, theirs)) + 1
            ends += both[both <= common].tolist()
    return max(ends, default=0)


def _common(ours: Sequence[bytes], theirs: Sequence[bytes], limit: int) -> int:
    """Granules that two chains have in common, of the first ``limit``."""
    low, high = 0, limit
    while low < high:  # a digest stands for all that lies before it
        middle = (low + high + 1) >> 1
        low, high = (middle, high) if ours[middle - 1] == theirs[middle - 1] else (low, middle - 1)
    return low


def _met(ours: range, theirs: range, below: int) -> list[int]:
    """The end of what two ranges of granules have in common below a bound; nothing where that is empty."""
    stop = min(ours.stop, theirs.stop, below)
    return [stop] if max(ours.start, theirs.start) < stop else []
