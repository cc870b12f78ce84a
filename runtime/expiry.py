"""Expiry: what is cached becomes unmatchable at once, and its slots are free as their readers leave.

By a caller's word, by the deadline that its publisher gave it, or because no query reads so far back any more.
Callers hold the manager's lock.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .core import Core
from .index import Segment
from .keeping import NEVER, Deadline
from .pool import Slots


def expire(core: Core, digests: list[bytes], start: int) -> int:
    """Everything from granule ``start`` of a chain on, in every branch; returns the number of slots."""
    spot = core.index.locate(digests, len(digests))
    if spot.at <= start:
        return 0
    top = core.index.climb(spot.segment, start + 1)
    count = sum(core.sever(kind, top, start) for kind in (*core.trailing, *core.paged))
    core.index.prune_below(top)
    core.offer(top, start)
    return count


def drop_expired(core: Core, now: int) -> None:
    """What has ended by ``now``, and all behind it. Cost: what ends."""
    for deadline in core.deadlines.due(now):
        held = _published_for(core, deadline)
        ends = core.pools[deadline.kind].meta["expires"][held].astype(np.int64)
        ended = np.flatnonzero(ends <= now)
        count = int(ended[0]) if len(ended) else len(held)
        if later := [end for end in ends[:count].tolist() if end < NEVER]:
            core.deadlines.add(min(later), deadline)
        if not len(ended):
            continue
        if deadline.kind in core.paged:
            at = deadline.places.start + count
            top = core.index.climb(core.index.locate(deadline.digests, deadline.places.stop).segment, at + 1)
            core.sever(deadline.kind, top, at)
            core.index.prune_below(top)
        else:
            core.drop(deadline.kind, held)


def free_out_of_window(core: Core, digests: list[bytes], stop: int) -> int:
    """Window slots before the window of the last boundary up to granule ``stop``; returns how many."""
    if "swa_window" not in core.trailing:
        return 0
    trail = core.trailing.index("swa_window")
    spec, index = core.index.specs[trail], core.index
    spot = index.locate(digests, stop)
    boundary = index.last(trail, spot, spot.at)
    frontier = spec.first(boundary) if boundary else 0
    gone = [np.empty(0, np.int32)]
    for segment in _up(spot.segment):
        if (held := segment.trails[trail]) is not None:
            places, resident = held.everything()
            gone.append(resident[places < frontier])
    slots = np.concatenate(gone).astype(np.intp)
    core.drop("swa_window", slots)
    return len(slots)


def _published_for(core: Core, deadline: Deadline) -> Slots:
    """Slots that the index holds now for what was published with a deadline, as far as they go."""
    kind, places, index = deadline.kind, deadline.places, core.index
    if kind in core.paged:
        n = core.paged.index(kind)
        spot = index.locate(deadline.digests, places.stop)
        high = max(places.start, min(places.stop, index.live(n, spot)))
        return index.slots(n, spot, places.start, high).astype(np.intp)
    trail = core.trailing.index(kind)
    stop = index.granule(trail, places.stop - 1) + 1
    spot = index.locate(deadline.digests, stop)
    found = index.find(trail, spot, places.start) if spot.at >= stop else None
    return np.array([] if found is None else [found], np.intp)


def _up(segment: Segment | None) -> Iterator[Segment]:
    """A segment and those above it."""
    while segment is not None:
        yield segment
        segment = segment.parent
