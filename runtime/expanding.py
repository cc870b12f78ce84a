"""The packed copies that an expansion reads: which they are, how they are kept meanwhile, whether they still serve.

The caller holds the manager's lock. What an expansion writes into is a batch of its ticket, as of a load.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .answers import Plan, Reason
from .core import Core
from .errors import Refused
from .index import Spot
from .kinds import KV, Numbers
from .pool import Slots


def check_packed(core: Core, plan: Plan, spot: Spot) -> None:
    """Raise Refused (STALE) unless the chain holds what a plan expands, from where it can be read no further."""
    if plan.expand:
        n = core.paged.index(KV)
        live, ready = core.index.live(n, spot), core.index.ready(n, spot)
        if live < plan.expand.stop or ready > plan.expand.start:
            raise Refused(Reason.STALE, "load", "the packed granules have changed since the match")


def packed_places(core: Core, plan: Plan, spot: Spot) -> Numbers:
    """Granules of a plan's expansion that are packed still; others were published anew, or have gone, meanwhile."""
    if not plan.expand:
        return np.empty(0, np.int64)
    n, start = core.paged.index(KV), plan.expand.start
    stop = max(start, min(plan.expand.stop, core.index.live(n, spot)))
    slots = core.index.slots(n, spot, start, stop)
    return np.arange(start, stop)[core.pools[KV].in_state(slots, "packed")]


def hold_packed(core: Core, places: Numbers, spot: Spot) -> tuple[Slots, Numbers]:
    """Keep the packed copies from being evicted while they are read; their slots and generations."""
    if not len(places):
        return np.empty(0, np.intp), np.empty(0, np.int64)
    low, high = int(places[0]), int(places[-1]) + 1
    packed = core.index.slots(core.paged.index(KV), spot, low, high)[places - low].astype(np.intp)
    generations = core.pools[KV].generations(packed)
    core.pools[KV].must("hold", packed, "load", expected=generations)
    return packed, generations


def unhold_packed(core: Core, slots: Slots, generations: Numbers, plan: Plan) -> None:
    """They are read no longer, and may be evicted."""
    if len(slots):
        core.pools[KV].sure("unhold", slots, "S9", expected=generations)
        core.sweep(KV)
        for at in (plan.expand.stop, plan.boundary):
            spot = core.index.locate(plan.claim.digests, at)
            core.offer(spot.segment, spot.at)


def same_packed(core: Core, spot: Spot, places: Numbers, packed: Slots) -> npt.NDArray[np.bool_]:
    """Where the index still finds the very packed copies that were expanded; ``places`` in a row, all of them there."""
    low, high = int(places[0]), int(places[-1]) + 1
    same: npt.NDArray[np.bool_] = core.index.slots(core.paged.index(KV), spot, low, high) == packed
    return same
