"""Filling: slots for a writer, of every kind or of none, that others find once he publishes them, all kinds at once.

What a writer holds is in ``fill.py``; how stored bytes come in instead of computed ones, in ``loading.py``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from . import publication
from .answers import Reason
from .arguments import check_is
from .errors import Refused
from .fill import Fill
from .index import Spot
from .keys import Keys
from .kinds import INDEXER, KV, PREFILL_VERSION
from .lease import Done, GivenUp, Lease, both, still
from .rebuilding import check_entries, forget, seal

if TYPE_CHECKING:
    from .manager import Manager

KeptOfKind = tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]
"""Slots of one kind that the index took, and their places."""


class Filler:
    """Runs the fills of a manager.

    Attributes:
        fills: those that are open, by number.
        writing: numbers of those whose staged bytes are on their way to their slots, in a publication.
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self.fills: dict[int, Fill] = {}
        self.writing: set[int] = set()
        self._voided = 0  # the last number of a fill over memory that is gone

    def reserve(
        self, keys: Keys, start: int, stop: int, lease: Lease | None, owner: str, kinds: Sequence[str] | None
    ) -> Fill:
        """Slots for granules [start, stop). See ``Manager.reserve``."""
        manager, core = self._manager, self._manager.core
        manager.check_keys(keys)
        start, stop = operator.index(start), operator.index(stop)
        if not 0 <= start < stop <= len(keys):
            raise ValueError(f"granules [{start}, {stop}) of keys over {len(keys)} granules; give granules, not tokens")
        if lease is not None and lease.length < start * manager.profile.granule:
            what = f"the lease covers {lease.length} tokens, and the fill starts at granule {start}"
            raise Refused(Reason.LEASE, "pool", what)
        places = self._places_of(start, stop, kinds)
        with manager.lock:
            receipt = None if lease is None else manager.receipt_of(lease)
            if receipt is not None and receipt.salt != keys.salt:
                what = f"a lease of salt {receipt.salt!r}, and keys of {keys.salt!r}; match these keys for it"
                raise Refused(Reason.LEASE, "pool", what)
            epoch = manager.epoch if receipt is None else receipt.epoch
            counts = {kind: len(where) for kind, where in places.items()}
            if receipt is not None:
                core.check_fits(counts, receipt.slots)
            manager.unpark()
            store_epoch = None if manager.store is None else manager.store.epoch  # asked before anything is taken
            slots = manager.take(counts, "take", salt=keys.salt)
            generations = {kind: core.pools[kind].generations(held) for kind, held in slots.items()}
            number = manager.number()
            lossy = lease is not None and not lease.exact
            if core.lossy_slots:  # spares the look-up where nothing is
                read = start if set(core.paged) <= set(places) else stop  # it reads what it doesn't bring
                lossy |= core.lossy_before(core.index.locate(keys.digests, read), read)
            fill = Fill(
                manager, number, owner, epoch, keys.digests, keys.salt, (start, stop), slots, places, generations,
                store_epoch, lossy, None if lease is None else lease.lease_id, manager.site(),
            )  # fmt: skip
            self.fills[number] = fill
            return fill

    def publish(self, fill: Fill, priority: int, ttl: int | None) -> None:
        """Seal a fill and let others find it. See ``Manager.publish``."""
        manager, core = self._manager, self._manager.core
        self.check_open(fill)
        core.check_keeping(priority, ttl)
        if fill.staged():
            self._write_staged(fill)
        with manager.lock:
            self.check_open(fill)
            if fill.epoch != manager.epoch:
                what = f"the fill is of epoch {fill.epoch}, and it is {manager.epoch} now"
                raise Refused(Reason.EPOCH, "publish", what)
            self._check_rest(fill)
            manager.drop_expired()
            if fill.rebuild is None:
                publication.check_chain(core, core.index.locate(fill.digests, fill.start), fill.start, fill.kinds)
            else:
                check_entries(core, fill, fill.rebuild)
            clock = manager.tick()
            del self.fills[fill.fill_id]
            fill.close()
            spot = core.index.extend(fill.digests, fill.stop)
            said = publication.said_before(core, spot, fill.places)
            if fill.rebuild is None:
                kept = {kind: self._seal(kind, spot, fill) for kind in core.kinds if kind in fill.slots}
            else:
                kept = {INDEXER: seal(core, spot, fill, fill.rebuild)}
            keeping = core.keeping(clock, priority, ttl, fill.salt)
            publication.settle(core, spot, {kind: slots for kind, (slots, _) in kept.items()}, clock, keeping, said)
            publication.remember(
                core, fill.digests, {kind: places for kind, (_, places) in kept.items()}, keeping.until
            )
            writing = None
            if manager.writes_through and not fill.lossy and ttl is None:
                writing = manager.storer.begin(fill.digests, fill.salt, kept, fill.store_epoch, spot)
            self._end_rebuild(fill, None)
            core.trim()
        if writing is not None:
            manager.storer.finish(writing)

    def abandon(self, fill: Fill, done: Done | None) -> None:
        """Give a fill up. See ``Manager.abandon``."""
        with self._manager.lock:
            self.check_open(fill)
            done = still(done)
            if fill.fill_id in self.writing:  # by another thread, whose bytes no other owner is to find
                done = both(done, lambda: fill.fill_id not in self.writing)
            if fill.rebuild is not None:
                self._manager.tick()
            self.abandon_now(fill, done)

    def abandon_now(self, fill: Fill, done: Done | None) -> None:
        """The same of an open fill; the caller holds the lock, and has asked clock and device."""
        if fill.rebuild is not None:
            forget(self._manager.core, fill, fill.rebuild)
        del self.fills[fill.fill_id]
        fill.close()
        self._manager.give_up(GivenUp(fill.slots, fill.generations), done)
        self._end_rebuild(fill, done)

    def is_void(self, fill: Fill) -> bool:
        """Whether the memory that a fill was given is gone."""
        return fill.fill_id <= self._voided

    def check_open(self, fill: Fill) -> None:
        """Raise Refused unless a fill is open here: LEASE, or STALE when the memory it was given is gone."""
        self._manager.lock.check()
        check_is("fill", fill, Fill, "what reserve gave")
        if fill.manager is not self._manager:
            raise Refused(Reason.LEASE, "publish", f"fill {fill.fill_id} was given by another manager")
        if self.fills.get(fill.fill_id) is not fill:
            if self.is_void(fill):
                what = f"fill {fill.fill_id} was given before the memory was allocated anew"
                raise Refused(Reason.STALE, "publish", what)
            raise Refused(Reason.LEASE, "publish", f"fill {fill.fill_id} was published or abandoned already")

    def void(self) -> None:
        """The memory goes: all fills end. The caller holds the lock."""
        for fill in self.fills.values():
            if fill.rebuild is not None:
                forget(self._manager.core, fill, fill.rebuild)
            self._manager.give_up(GivenUp(fill.slots, fill.generations), None)
        self.fills.clear()
        self._voided = self._manager.number()

    def _write_staged(self, fill: Fill) -> None:
        """Put into the slots what views of the fill got. Until then they are nobody else's, and stay where they are."""
        manager = self._manager
        with manager.lock:
            self.check_open(fill)
            if fill.fill_id in self.writing:
                raise Refused(Reason.LEASE, "publish", f"fill {fill.fill_id} is being published already")
            self.writing.add(fill.fill_id)
        try:
            for (kind, part, layer), data in fill.staged().items():
                manager.write(kind, part, layer, fill.slots[kind], data)
        finally:
            self.writing.discard(fill.fill_id)

    def _end_rebuild(self, fill: Fill, done: Done | None) -> None:
        """What rebuilt keys were computed from is not leased for them any more."""
        if fill.rebuild is not None and fill.lease_id in self._manager.receipts:
            self._manager.give_up(self._manager.lessor.take_over(fill.rebuild.lease), done)

    def _places_of(self, start: int, stop: int, kinds: Sequence[str] | None) -> dict[str, npt.NDArray[np.int64]]:
        """Places that a fill of granules [start, stop) has slots for, by kind."""
        manager, core = self._manager, self._manager.core
        core.check_kinds(kinds or ())
        places = {}
        for kind in core.kinds:
            if kinds is not None and kind not in kinds:
                continue
            if kind in core.paged:
                where = np.arange(start, stop)
            elif kind == "swa_window":
                spec = core.index.specs[core.trailing.index(kind)]
                where = manager.window.places(spec, manager.profile.granule, start, stop)
            else:
                where = np.array([stop])
            if len(where):
                places[kind] = where
        return places

    def _check_rest(self, fill: Fill) -> None:
        """Raise Refused (LEASE) when the lease that a fill rests on is not valid any more."""
        if fill.revoked:
            what = f"fill {fill.fill_id} rests on lease {fill.lease_id}, which was revoked, or released too late"
            raise Refused(Reason.LEASE, "publish", what)
        if fill.lease_id in self._manager.receipts:
            self._manager.receipts[fill.lease_id][0].check_in_time(self._manager.now)

    def _seal(self, kind: str, spot: Spot, fill: Fill) -> KeptOfKind:
        """Publish one kind of a fill; what the index has already is freed."""
        core, pool = self._manager.core, self._manager.core.pools[kind]
        slots, places, generations = fill.slots[kind], fill.places[kind], fill.generations[kind]
        is_paged = kind in core.paged
        if is_paged:
            fresh = publication.fresh(core, kind, spot, places)
        else:
            fresh = publication.add(core, kind, spot, places, slots)
        kept, kept_places, expected = slots[fresh], places[fresh], generations[fresh]
        versions = core.versions(kind, spot, kept_places)
        if kind == KV and len(kept):
            for _ in range(PREFILL_VERSION):
                pool.sure("emit", kept, "S16", expected=expected)
        if kind == INDEXER and len(kept):
            pool.sure("index", kept, "S16", expected=expected, to_version=versions)
        if len(kept):
            publication.seal(core, kind, kept, expected, kept_places, versions, lossy=fill.lossy)
        if is_paged:
            publication.place(core, kind, spot, places, slots, fresh)
        pool.release("abandon", slots[~fresh], expected=generations[~fresh])
        return kept, kept_places
