"""Publication: how slots that a writer filled, or that a load brought, become what others find.

    check_chain          what stands before them is there
    found_at             what the index holds where they go
    said_before          how that is kept
    fresh, seal, place   of a paged kind: which of them the index would take, their words, their places in the index
    add, seal            of a trailing kind: their places in the index, where it has none, and their words
    settle, remember     when they were used, and how they are to be kept

KV and keys that others replace change how far a chain can be read behind them: ``revive`` and ``advance`` see to that.
Callers hold the manager's lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from .answers import Reason
from .core import Core
from .errors import Refused
from .index import Spot
from .keeping import NEVER, PLAIN, Deadline, Keeping
from .kinds import INDEXER, KV, Numbers
from .pool import Slots

Said = Mapping[str, tuple[Numbers, Mapping[str, npt.NDArray[Any]]]]
"""By kind: places, and by name how dearly and how long what is found there is kept; 0 where nothing is."""


def check_chain(core: Core, spot: Spot, start: int, kinds: Sequence[str]) -> None:
    """Raise Refused (GAP) unless every paged kind among ``kinds`` is resident over [0, start)."""
    for n, kind in enumerate(core.paged):
        live = core.index.live(n, spot) if kind in kinds else start
        if live < start:
            what = f"{kind} is resident over {live} granules, and the range starts at {start}"
            raise Refused(Reason.GAP, "publish", what)


def fresh(core: Core, kind: str, spot: Spot, places: Numbers) -> npt.NDArray[np.bool_]:
    """At which places of a paged kind the index would take new slots; elsewhere they duplicate what it holds.

    Held granules are replaced where they can't serve: packed ones, those that are being packed, and indexer keys
    that are stale, being rebuilt, or of another version than their KV.
    """
    n = core.paged.index(kind)
    low, live = int(places[0]), min(core.index.live(n, spot), int(places[-1]) + 1)
    taken = places >= live
    if live > low:
        old = core.index.slots(n, spot, low, live)
        table = core.pools[kind].table
        if kind == "compressed_kv":
            taken[: live - low] = core.pools[kind].in_state(old, "packed", "compressing")
        else:
            same = table.fields("version", old) == core.versions(kind, spot, places[: live - low])
            taken[: live - low] = ~(same & core.pools[kind].in_state(old, "resident"))
    return taken


def add(core: Core, kind: str, spot: Spot, places: Numbers, slots: Slots) -> npt.NDArray[np.bool_]:
    """Put slots of a trailing kind where the index finds them; which it took. The others duplicate what it holds."""
    held = core.index.add(core.trailing.index(kind), spot, places.tolist(), slots.astype(np.int32))
    core.flat[kind].own(slots[~held], places[~held], spot.segment)
    return ~held


def seal(
    core: Core, kind: str, slots: Slots, expected: npt.NDArray[Any], places: Numbers, versions: Numbers, *, lossy: bool
) -> None:
    """Seal a writer's slots, of generations ``expected``; ``lossy`` when they rest on a lossy form or a replay."""
    pool = core.pools[kind]
    pool.sure("seal", slots, "S17", expected=expected, **pool.rules.seal(places, versions, lossy))


def place(core: Core, kind: str, spot: Spot, places: Numbers, slots: Slots, taken: npt.NDArray[np.bool_]) -> None:
    """Put the ``taken`` slots of a paged kind, now readable, where the index finds them; retire what they replace."""
    if not taken.any():
        return
    n, low, high = core.paged.index(kind), int(places[0]), int(places[-1]) + 1
    live, ready = min(core.index.live(n, spot), high), core.index.ready(n, spot)
    gap = ready < core.index.live(n, spot)
    merged = slots.astype(np.int32)
    replaced = merged[:0]
    if live > low:
        old = core.index.slots(n, spot, low, live)
        replaced = old[taken[: live - low]]
        merged[: live - low] = np.where(taken[: live - low], merged[: live - low], old)
    # KV that is held already may be packed, or be on its way there: its states say how far the chain can be read.
    readable = high if low <= ready and kind != "compressed_kv" else ready
    core.index.put(n, spot, low, merged, readable)
    core.retire(kind, replaced)
    advance(core, spot)
    if kind == "compressed_kv":
        _fall_behind(core, spot, low, high)
    elif gap and kind == "indexer_state":
        revive(core, INDEXER, spot, ready)


def found_at(core: Core, kind: str, spot: Spot, places: Numbers) -> Slots:
    """Slots that a chain holds at ascending places; -1 for nothing."""
    found = np.full(len(places), -1, np.intp)
    if kind in core.paged and len(places):
        n, low = core.paged.index(kind), int(places[0])
        there = places < core.index.live(n, spot)
        high = max(places[there].tolist(), default=low - 1) + 1
        found[there] = core.index.slots(n, spot, low, high)[places[there] - low]
    elif len(places):
        trail = core.trailing.index(kind)
        held = (core.index.find(trail, spot, place) for place in places.tolist())
        found[:] = [-1 if slot is None else slot for slot in held]
    return found


def said_before(core: Core, spot: Spot, places: Mapping[str, Numbers]) -> Said:
    """What those said who published before what a chain holds at these places, for ``settle``; nothing was sealed."""
    names = [name for name in ("priority", "expires") if core.keeps(name)]
    said: dict[str, tuple[Numbers, Mapping[str, npt.NDArray[Any]]]] = {}
    for kind, where in places.items() if names else ():
        meta, found = core.pools[kind].meta, found_at(core, kind, spot, where)
        said[kind] = where, {name: np.where(found < 0, 0, meta[name][found]) for name in names if name in meta}
    return said


def settle(
    core: Core,
    spot: Spot,
    kept: Mapping[str, Slots],
    clock: int,
    keeping: Keeping = PLAIN,
    said: Said = MappingProxyType({}),
) -> None:
    """Stamp newly kept slots and offer the chain's end to eviction.

    Args:
        core: of pools and index.
        spot: the chain's end.
        kept: slots that others find from now on.
        clock: when.
        keeping: what their publisher says of them.
        said: what others said before of the same; it is kept as any of them said, in whichever slots it is now.
    """
    for kind, slots in kept.items():
        core.pools[kind].publish(slots, clock, keeping)
    for kind, (places, before) in said.items():
        found = found_at(core, kind, spot, places)
        there = found >= 0
        core.pools[kind].publish_again(found[there], keeping, {name: values[there] for name, values in before.items()})
    core.offer(spot.segment, spot.at)


def remember(core: Core, digests: list[bytes], places: Mapping[str, Numbers], until: int) -> None:
    """Look again at ``until`` at what was published for these places of a chain; NEVER is no time."""
    for kind, where in places.items() if until < NEVER else ():
        if len(where) and "expires" in core.pools[kind].meta:
            parts = [range(int(where[0]), int(where[-1]) + 1)]
            if kind in core.trailing:
                parts = [range(at, at + 1) for at in where.tolist()]
            for part in parts:
                core.deadlines.add(until, Deadline(kind, digests, part))


def revive(core: Core, kind: str, spot: Spot, at: int) -> None:
    """What stands at granule ``at`` and behind is read again, in every branch, up to the next that can't be.

    Cost: the part of the subtree that holds the kind and can be read.
    """
    n, pool = core.paged.index(kind), core.pools[kind]
    stack = [core.index.climb(spot.segment, at + 1)]
    while stack:
        segment = stack.pop()
        ready, live = segment.ready[n], segment.live[n]
        if ready < live:
            good = pool.in_state(segment.slots[n][ready:live], "resident")
            ready += len(good) if good.all() else int(np.argmin(good))
            core.index.set_ready(n, segment, ready)
        if ready == segment.end - segment.base:
            stack.extend(kid for kid in segment.kids if kid.live[n])


def advance(core: Core, spot: Spot) -> None:
    """Let what is expanded right behind the readable part of a chain be read too, in every branch."""
    if KV in core.paged:
        n = core.paged.index(KV)
        ready = core.index.ready(n, spot)
        if ready < core.index.live(n, spot):
            revive(core, KV, spot, ready)


def _fall_behind(core: Core, spot: Spot, low: int, high: int) -> None:
    """KV of granules [low, high) was made anew: keys that are held there for another version are stale from now on.

    Until others take their place, no branch can read keys behind them.
    """
    if "indexer_state" not in core.paged:
        return
    n, pool = core.paged.index("indexer_state"), core.pools["indexer_state"]
    live = min(core.index.live(n, spot), high)
    if live <= low:
        return
    held = core.index.slots(n, spot, low, live).astype(np.intp)
    versions = core.versions("indexer_state", spot, np.arange(low, live))
    behind = pool.in_state(held, "resident") & (pool.table.fields("version", held) != versions)
    if behind.any():
        stale = held[behind]
        pool.sure("fall_behind", stale, "S16", expected=pool.generations(stale))
        core.index.unready(n, spot, low + int(np.argmax(behind)))
        core.leaf_first["indexer_state"].offer_chain(core.index.climb(spot.segment, live), sooner=True)
