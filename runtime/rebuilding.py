"""Rebuilding: indexer keys are computed again from entries that can be read, which stay as they are.

Keys are missing behind entries when they were evicted by themselves, and are stale when the entries were made anew at
another version. A rebuilding is a fill of keys alone, under a lease on all that they are computed from: every entry up
to its end, the keys that are good, and tail and window of the boundary at which computing can go on. Stale keys that
nobody reads are rebuilt where they lie, in slots that the index finds already; the others go into new ones.
Callers hold the manager's lock.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from . import publication
from .answers import Answer, Claim, Reason
from .core import Core
from .errors import Refused
from .fill import Fill
from .index import Spot
from .kinds import INDEXER, KV, Numbers
from .lease import Lease, Receipt
from .pool import Pool, Slots

if TYPE_CHECKING:
    from .manager import Manager


@dataclass(frozen=True, slots=True)
class Rebuild:
    """What the keys of a fill are computed from.

    Attributes:
        lease: on the entries, the good keys, and tail and window at ``lease.length``. It ends with the fill.
        receipt: what was taken for it.
        key_places: granules of its indexer keys.
        in_place: bool, one a slot of the fill: rebuilt where the old keys lay.
        lossy: bool, one a slot of the fill: what it is computed from rests on a lossy form or on a replay.
    """

    lease: Lease
    receipt: Receipt
    key_places: Numbers
    in_place: npt.NDArray[np.bool_]
    lossy: npt.NDArray[np.bool_]

    def unfound(self, slots: Slots, found: npt.NDArray[np.int32]) -> Slots:
        """The fill's ``slots`` but for those that are rebuilt in place and that the index finds."""
        return slots[~(self.in_place & np.isin(slots, found))]


@dataclass(frozen=True, slots=True)
class _Missing:
    """Granules without good keys, and what the index finds there: -1 for nothing."""

    places: Numbers
    held: Slots
    in_place: npt.NDArray[np.bool_]


def begin_rebuild(manager: Manager, answer: Answer, owner: str) -> Fill:
    """Slots for the keys that an answer says are to be rebuilt, or none. See ``Manager.rebuild_begin``.

    The caller has checked whose the answer is, and unparked what the device has ended with.
    """
    if answer.rebuild is None or len(answer.claims) != 1:
        what = "its answer names no indexer keys to compute again; match again"
        raise Refused(answer.reason or Reason.INTERSECT, "rebuild", what)
    (claim,), granule, core = answer.claims, manager.profile.granule, manager.core
    start, stop, now = (tokens // granule for tokens in (answer.rebuild.start, answer.rebuild.stop, answer.now))
    store_epoch = None if manager.store is None else manager.store.epoch  # asked before anything is taken
    spot = core.index.locate(claim.digests, stop)
    _check_matched(manager, claim, spot, start, stop, now)
    missing, good = _missing(core, spot, start, stop)
    receipt = _pin(manager, claim, owner, spot, stop, now, good)
    try:
        missing, slots = _take(manager, claim.salt, spot, missing)
    except BaseException:
        manager.give_up(receipt, None)
        raise
    pool, old = core.pools[INDEXER], slots[missing.in_place]
    pool.sure("rebuild_begin", old, "S16", expected=pool.generations(old))
    lossy = _lossy(core, receipt, good, stop) | (answer.replay is not None)
    exact = answer.replay is None and not core.is_lossy(receipt.slots)
    held = {kind: leased.astype(np.int32) for kind, leased in receipt.slots.items()}
    lease = Lease(manager, receipt.lease_id, owner, answer.now, exact, answer.replay, held)
    manager.receipts[receipt.lease_id] = receipt, weakref.ref(lease)
    wanted = lossy[missing.places]
    fill = Fill(
        manager, manager.number(), owner, manager.epoch, claim.digests, claim.salt, (start, stop), {INDEXER: slots},
        {INDEXER: missing.places}, {INDEXER: pool.generations(slots)},
        store_epoch, bool(wanted.any()), lease.lease_id, manager.site(),
        Rebuild(lease, receipt, good, missing.in_place, wanted),
    )  # fmt: skip
    manager.fills[fill.fill_id] = fill
    return fill


def check_entries(core: Core, fill: Fill, rebuild: Rebuild) -> None:
    """Raise Refused (STALE) unless the index finds the very entries and keys that the new keys are computed from."""
    spot, receipt = core.index.locate(fill.digests, fill.stop), rebuild.receipt
    for kind, places in ((KV, np.arange(fill.stop)), (INDEXER, rebuild.key_places)):
        n, pool, leased = core.paged.index(kind), core.pools[kind], receipt.slots[kind]
        top = _top(places)
        found = core.index.slots(n, spot, 0, top)[places] if core.index.live(n, spot) >= top else leased[:0]
        same = np.array_equal(found, leased) and np.array_equal(pool.generations(leased), receipt.generations[kind])
        if not same or not pool.in_state(leased, "resident").all():
            what = f"{kind} that the keys were computed from is gone or was replaced; abandon the fill and match again"
            raise Refused(Reason.STALE, "publish", what)


def seal(core: Core, spot: Spot, fill: Fill, rebuild: Rebuild) -> tuple[Slots, Numbers]:
    """Publish rebuilt keys, of the entries' version; returns what the index kept. What others brought by now stays."""
    pool, n = core.pools[INDEXER], core.paged.index(INDEXER)
    slots, places, made = fill.slots[INDEXER], fill.places[INDEXER], fill.generations[INDEXER]
    versions = core.versions(INDEXER, spot, places)
    ours = ~_good(core, publication.found_at(core, INDEXER, spot, places), versions)
    back = rebuild.in_place & ours
    pool.sure(
        "rebuild_done", slots[back], "S16",
        expected=made[back], ok=True, kv_version=versions[back], is_lossy=rebuild.lossy[back],
    )  # fmt: skip
    new = ours & ~rebuild.in_place
    pool.sure("index", slots[new], "S16", expected=made[new], to_version=versions[new])
    given = pool.rules.seal(places[new], versions[new], rebuild.lossy[new])
    pool.sure("seal", slots[new], "S17", expected=made[new], **given)
    free(pool, slots[~ours], made[~ours])
    low, live = int(places[0]), core.index.live(n, spot)
    merged = np.empty(fill.stop - low, np.int32)  # good keys lie between
    merged[: max(0, live - low)] = core.index.slots(n, spot, low, max(low, min(live, fill.stop)))
    replaced = places[ours & (places < live)] - low
    old = merged[replaced]
    merged[places[ours] - low] = slots[ours]
    core.index.put(n, spot, low, merged, fill.stop)
    core.retire(INDEXER, old[old != merged[replaced]])
    publication.revive(core, INDEXER, spot, low)
    return slots[ours], places[ours]


def forget(core: Core, fill: Fill, rebuild: Rebuild) -> None:
    """Keys that were to be rebuilt in place will not be: from the first of them on none is found any more."""
    slots, places = fill.slots[INDEXER][rebuild.in_place], fill.places[INDEXER][rebuild.in_place]
    spot = core.index.locate(fill.digests, fill.stop)
    lost = places[publication.found_at(core, INDEXER, spot, places) == slots]
    if len(lost):
        top = core.index.climb(spot.segment, int(lost[0]) + 1)
        core.sever(INDEXER, top, int(lost[0]))
        core.index.prune_below(top)


def free(pool: Pool, slots: Slots, generations: Numbers) -> None:
    """Free what a writer gives up: what was never published, and what was to be rebuilt in place."""
    begun = pool.in_state(slots, "rebuilding")
    pool.release("abandon", slots[~begun], expected=generations[~begun])
    if begun.any():
        old, made = slots[begun], generations[begun]
        pool.sure("rebuild_done", old, "S2", expected=made, ok=False, kv_version=0, is_lossy=False)
        pool.release("discard", old, expected=made)


def _check_matched(manager: Manager, claim: Claim, spot: Spot, start: int, stop: int, now: int) -> None:
    """Raise Refused (STALE) where what was matched is not what is there."""
    index, paged = manager.core.index, manager.core.paged
    entries, keys = (index.ready(paged.index(kind), spot) for kind in (KV, INDEXER))
    if spot.at < stop or entries < stop or keys != start or (now and not manager.matcher.holds(claim, now)):
        what = f"entries over {entries} granules and keys over {keys}; matched were {stop} and {start}"
        raise Refused(Reason.STALE, "rebuild", what)


def _good(core: Core, held: Slots, versions: Numbers) -> npt.NDArray[np.bool_]:
    """Which of these slots have keys of these versions that can be read; -1 has none."""
    pool = core.pools[INDEXER]
    there = np.maximum(held, 0)
    good: npt.NDArray[np.bool_] = (
        (held >= 0) & pool.in_state(there, "resident") & (pool.table.fields("version", there) == versions)
    )
    return good


def _missing(core: Core, spot: Spot, start: int, stop: int) -> tuple[_Missing, Numbers]:
    """What of granules [start, stop) has no good keys, and all granules before ``stop`` that have."""
    places = np.arange(start, stop)
    held = publication.found_at(core, INDEXER, spot, places)
    good = _good(core, held, core.versions(INDEXER, spot, places))
    pool, there = core.pools[INDEXER], np.maximum(held, 0)
    idle = (pool.table.fields("pins", there) == 0) & (pool.table.fields("holds", there) == 0)
    in_place = (held >= 0) & idle & pool.in_state(there, "stale")
    return _Missing(places[~good], held[~good], in_place[~good]), np.concatenate((np.arange(start), places[good]))


def _pin(manager: Manager, claim: Claim, owner: str, spot: Spot, stop: int, now: int, key_places: Numbers) -> Receipt:
    """Pin what the keys are computed from, all or none."""
    core, index = manager.core, manager.core.index
    slots: dict[str, Slots] = {}
    generations: dict[str, Numbers] = {}
    try:
        for kind in core.kinds:
            if kind in core.paged:
                places = key_places if kind == INDEXER else np.arange(stop)
                found = index.slots(core.paged.index(kind), spot, 0, _top(places))[places]
            else:
                places, found = core.places(kind, now), core.slots_at(kind, spot, now)
            pool, held = core.pools[kind], found.astype(np.intp)
            given = pool.rules.pin(places, core.versions(kind, spot, places))
            pool.must("pin", held, "rebuild", expected=pool.generations(held), **given)
            slots[kind], generations[kind] = held, pool.generations(held)
    except Refused:
        for kind, pinned in slots.items():
            core.pools[kind].sure("unpin", pinned, "S8", expected=generations[kind])
        raise
    return Receipt(
        manager.number(), owner, slots, generations, spot.segment, stop, manager.epoch, None, claim.salt, manager.site()
    )


def _take(manager: Manager, salt: bytes, spot: Spot, missing: _Missing) -> tuple[_Missing, Slots]:
    """Slots for all missing keys, those that are rebuilt in place among them; or Refused, and nothing was taken.

    To make room, stale keys at the chain's end may be evicted that were to be rebuilt in place: these need new slots,
    too.
    """
    core, pool = manager.core, manager.core.pools[INDEXER]
    n, in_place, new = core.paged.index(INDEXER), missing.in_place, np.empty(0, np.intp)
    need = int(np.count_nonzero(~in_place))
    if need > pool.free:
        core.check_room(INDEXER, len(in_place))
    try:
        while need > len(new):
            new = np.concatenate((new, manager.take({INDEXER: need - len(new)}, "take", salt=salt)[INDEXER]))
            in_place = in_place & (missing.places < core.index.live(n, spot))
            need = int(np.count_nonzero(~in_place))
    except BaseException:
        pool.abandon(new)
        raise
    slots = missing.held.copy()
    slots[~in_place] = new
    return _Missing(missing.places, missing.held, in_place), slots


def _lossy(core: Core, receipt: Receipt, key_places: Numbers, stop: int) -> npt.NDArray[np.bool_]:
    """By granule, whether what its keys are computed from rests on a lossy form or on a replay."""
    at = np.zeros(stop, np.bool_)
    by_kind: Mapping[str, Numbers] = {KV: np.arange(stop), INDEXER: key_places}
    for kind, slots in receipt.slots.items():
        lossy = core.pools[kind].table.fields("lossy", slots) != 0
        if kind in by_kind:
            at[by_kind[kind]] |= lossy
        elif lossy.any():
            at[:] = True
    return np.logical_or.accumulate(at)


def _top(places: Numbers) -> int:
    """The granule after the last of ascending ones."""
    return int(places[-1]) + 1 if len(places) else 0
