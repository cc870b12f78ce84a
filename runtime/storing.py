"""What goes to the store behind a manager: what a fill or a live request published, or what memory holds of a chain.

Slots are held while the store reads them, outside the lock, so that nobody gets their memory before it has.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .errors import Refused
from .index import Segment, Spot
from .keys import Keys
from .kinds import Numbers
from .pool import Slots
from .store_keys import parents
from .stores.store import EpochEnded, Item, StoreError

if TYPE_CHECKING:
    from .manager import Manager

Kept = Mapping[str, tuple[Slots, Numbers]]
"""By kind: slots, and the places that they hold."""
Held = Mapping[str, tuple[Slots, Numbers]]
"""By kind: held slots, and their generations."""


@dataclass(frozen=True, slots=True)
class OpenWrite:
    """One write to the store, of whatever is held: its number, the slots, and in debug mode the call that began it."""

    number: int
    held: Held
    site: str | None


@dataclass(frozen=True, slots=True)
class WriteThrough:
    """What was published and is to be stored at once: its slots are held from ``Storer.begin`` to ``finish``.

    Attributes:
        digests: of the chain.
        salt: of its keys.
        kept: what the index took of it, of the kinds that are stored.
        epoch: the store's when it began to be computed; a later one doesn't take it. None without a store.
        held: those slots.
        segment: of the index, that the chain ends in.
        at: granules of the chain.
    """

    digests: list[bytes]
    salt: bytes
    kept: Kept
    epoch: int | None
    held: Held
    segment: Segment
    at: int


class Storer:
    """Writes to the store of a manager.

    Attributes:
        open: writes that are under way: what the store reads just now.
        error: of the last write of what was published that failed, in words; ``Manager.store_failures`` counts these.
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._numbers = itertools.count(1)
        self.open: list[OpenWrite] = []
        self.error: str | None = None

    def hold(self, kept: Kept) -> Held:
        """Protect slots that the store is about to read, all or none. The caller holds the lock.

        Raises:
            Refused: TOO_MANY_HOLDS.
        """
        pools, held = self._manager.core.pools, {}
        try:
            for kind, slots in ((kind, slots) for kind, (slots, _) in kept.items() if len(slots)):
                generations = pools[kind].generations(slots)
                pools[kind].must("hold", slots, "publish", expected=generations)
                held[kind] = slots, generations
        except Refused:
            for kind, (slots, generations) in held.items():
                pools[kind].sure("unhold", slots, "S9", expected=generations)
            raise
        self.open.append(OpenWrite(next(self._numbers), held, self._manager.site()))
        return held

    def unhold(self, held: Held, segment: Segment, at: int) -> None:
        """The store has read them: what expired meanwhile is free, the chain's end may be evicted. Under the lock."""
        core = self._manager.core
        self.open = [one for one in self.open if one.held is not held]
        for kind, (slots, generations) in held.items():
            core.pools[kind].sure("unhold", slots, "S9", expected=generations)
            core.sweep(kind)
        core.offer(segment, at)
        core.trim()

    def begin(self, digests: list[bytes], salt: bytes, kept: Kept, epoch: int | None, spot: Spot) -> WriteThrough:
        """What was just published is to be stored, of the kinds that their specs say so of. The caller holds the lock.

        Nobody else holds these slots yet, so that they can be held.
        """
        stored = {kind: those for kind, those in kept.items() if self._manager.core.stored(kind)}
        return WriteThrough(digests, salt, stored, epoch, self.hold(stored), spot.segment, spot.at)

    def finish(self, writing: WriteThrough) -> None:
        """Store it. A store that can't is counted and otherwise without consequence. The caller holds no lock."""
        try:
            self.put(writing.digests, writing.salt, writing.kept, writing.epoch)
        except EpochEnded:
            return  # a reset came in between: nothing is wrong, and nothing is kept
        except StoreError as error:
            with self._manager.lock:
                self._manager.store_failures += 1
                self.error = f"{type(error).__name__}: {error}"
        finally:
            with self._manager.lock:
                self.unhold(writing.held, writing.segment, writing.at)

    def put(self, digests: list[bytes], salt: bytes, kept: Kept, epoch: int | None) -> int:
        """Store what held slots hold, as of a store's epoch; returns how many objects were written.

        Raises:
            StoreError: nothing was stored.
        """
        manager, items = self._manager, []
        assert manager.store is not None
        for kind, (slots, places) in kept.items():
            arena = manager.core.pools[kind].arena
            remote = arena.is_remote
            rows = manager.backend.gather(arena.region, slots) if remote else map(arena.bytes.__getitem__, slots)
            names = manager.object_of(digests, salt, kind, places)
            before = parents(manager.core, digests, kind, places)
            for row, place, name, parent in zip(rows, places.tolist(), names, before, strict=True):
                meta: dict[str, int | str | bool] = {"boundary": place, "lossy": False}
                items.append(Item(name, row, meta if parent is None else meta | {"parent": parent.hex()}))
        written = manager.store.put_many(items, at_epoch=epoch)
        with manager.lock:
            manager.loader.attempts.forget([item.id for item in items])
        return written

    def persist(self, keys: Keys, start: int) -> int:
        """See ``Manager.persist``."""
        manager, core = self._manager, self._manager.core
        if manager.store is None:
            raise ValueError("there is no store behind this manager; make it with store=")
        if not 0 <= start <= len(keys):
            raise ValueError(f"start={start} of keys over {len(keys)} granules; give granules, not tokens")
        manager.check_keys(keys)
        with manager.lock:
            spot = core.index.locate(keys.digests, len(keys))
            found = {kind: self._exact(kind, *self._resident(kind, spot, start)) for kind in core.kinds}
            epoch = manager.store.epoch
            held = self.hold(found)
        try:
            lacking = {kind: self._lacking(keys, kind, *known) for kind, known in found.items()}
            return self.put(keys.digests, keys.salt, lacking, epoch)
        finally:
            with manager.lock:
                self.unhold(held, spot.segment, spot.at)

    def _lacking(self, keys: Keys, kind: str, slots: Slots, places: Numbers) -> tuple[Slots, Numbers]:
        """Those of them of which the store says that it has them not, or that it failed to give."""
        manager = self._manager
        assert manager.store is not None
        names = manager.object_of(keys.digests, keys.salt, kind, places)
        usable = np.fromiter(map(manager.loader.attempts.usable, names), np.bool_, len(names))
        lacking = ~(manager.store.contains(names) & usable)
        return slots[lacking], places[lacking]

    # ---- helpers; the caller holds the lock -------------------------------------------------------------------------

    def _resident(self, kind: str, spot: Spot, start: int) -> tuple[Slots, Numbers]:
        """What the index finds of a kind on a chain from granule ``start`` on, places ascending."""
        core, index = self._manager.core, self._manager.core.index
        if kind in core.paged:
            n = core.paged.index(kind)
            live = max(start, index.live(n, spot))
            return index.slots(n, spot, start, live).astype(np.intp), np.arange(start, live)
        trail = core.trailing.index(kind)
        spec, segment = index.specs[trail], spot.segment
        low, high = spec.stop(start), spec.stop(spot.at)
        parts = [(np.empty(0, np.intp), np.empty(0, np.int64))]
        while segment.parent is not None:
            if (trailing := segment.trails[trail]) is not None:
                places, slots = trailing.everything()
                ours = (places >= low) & (places < high)
                parts.append((slots[ours].astype(np.intp), places[ours]))
            segment = segment.parent
        every, where = zip(*parts[::-1], strict=True)
        return np.concatenate(every), np.concatenate(where)

    def _exact(self, kind: str, slots: Slots, places: Numbers) -> tuple[Slots, Numbers]:
        """Those of them that can be read at once and rest on nothing lossy."""
        pool = self._manager.core.pools[kind]
        good = pool.in_state(slots, "resident") & (pool.table.fields("lossy", slots) == 0) & pool.lasting(slots)
        return slots[good], places[good]
