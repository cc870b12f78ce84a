"""A live request lets others find its whole granules, and goes on reading them itself under pins.

Only committed tokens count. Paged kinds change over from blocks that the row fills to blocks of the cache, its own or
those that others published before; tail and window are copied where the row stands exactly at a boundary. The caller
holds the manager's lock.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from . import publication
from .answers import Reason
from .backend import copy_slots
from .errors import Refused
from .index import Spot
from .keys import Keys
from .lease import Done
from .live_rows import GUARD, LiveRows
from .live_window import LiveWindow
from .pool import Slots
from .storing import WriteThrough

Copies = dict[str, tuple[Slots, npt.NDArray[np.int64]]]  # slots and their places, by kind


class RowPublisher:
    """Publishes rows of one table of live requests."""

    def __init__(self, rows: LiveRows, window: LiveWindow | None) -> None:
        self._rows = rows
        self._window = window

    def check_epoch(self, row: int) -> None:
        """Raise Refused (EPOCH) where the row goes on from what was computed before a reset."""
        rows, manager = self._rows, self._rows.manager
        if rows.epoch[row] != manager.epoch:
            what = f"row {row} goes on from epoch {rows.epoch[row]}, and it is {manager.epoch} now"
            raise Refused(Reason.EPOCH, "publish", what)

    def publish(
        self, row: int, keys: Keys, computed: int, done: Done | None, priority: int = 0, ttl: int | None = None
    ) -> tuple[int, WriteThrough | None]:
        """See ``RequestTable.publish``; the row was checked. With what is to be stored then, out of the lock."""
        rows, manager, core = self._rows, self._rows.manager, self._rows.manager.core
        start, stop = int(rows.shared[row]), min(computed // rows.granule, len(keys))
        if stop <= start:
            return start, None
        kinds = [kind for kind in rows.kinds if kind in core.paged]
        self._check_chain(keys, start, stop, kinds)
        copied = self._copy_boundary(row, keys, computed, stop)  # what can fail comes before anything has changed
        try:
            self._check_chain(keys, start, stop, kinds)  # once more: the copies' room may have cost others theirs
        except BaseException:
            self._give_back(copied)
            raise
        spot = core.index.extend(keys.digests, stop)
        places = np.arange(start, stop)
        published = dict.fromkeys(kinds, places)
        if computed == stop * rows.granule:
            published |= {kind: self._boundary_slots(row, kind, stop)[0] for kind in core.trailing}
        said = publication.said_before(core, spot, published)
        lossy = bool(rows.lossy[row])
        kept: dict[str, Slots] = {}
        kept_places: dict[str, npt.NDArray[np.int64]] = {}
        for kind in kinds:
            pool, held = core.pools[kind], rows.held(kind, row, start, stop)
            fresh = publication.fresh(core, kind, spot, places)
            expected = pool.generations(held[fresh])
            versions = core.versions(kind, spot, places[fresh])
            if kind == "indexer_state" and fresh.any():
                self._tie(held[fresh], expected, versions)
            if fresh.any():
                publication.seal(core, kind, held[fresh], expected, places[fresh], versions, lossy=lossy)
            publication.place(core, kind, spot, places, held, fresh)
            rows.give_up(kind, held[~fresh], done)
            kept[kind], kept_places[kind] = held[fresh], places[fresh]
        for kind in kinds:
            pool = core.pools[kind]
            held = core.index.slots(core.paged.index(kind), spot, start, stop).astype(np.intp)
            given = pool.rules.pin(places, core.versions(kind, spot, places))
            pool.sure("pin", held, "S3", expected=pool.generations(held), **given)
            rows.tables[kind][row, start:stop] = held
            rows.lossy[row] |= core.is_lossy({kind: held})  # from now on it reads these
        rows.shared[row], rows.ends[row] = stop, (spot.segment, stop)
        for kind, (copies, where) in copied.items():
            pool = core.pools[kind]
            publication.add(core, kind, spot, where, copies)
            publication.seal(
                core, kind, copies, pool.generations(copies), where, np.zeros(len(where), np.int64), lossy=lossy
            )
            kept[kind], kept_places[kind] = copies, where
        keeping = core.keeping(manager.time, priority, ttl, keys.salt)
        publication.settle(core, spot, kept, manager.time, keeping, said)
        publication.remember(core, keys.digests, kept_places, keeping.until)
        writing = None
        if manager.writes_through and not lossy and ttl is None and done is None:  # else the bytes may not be there yet
            stored = {kind: (slots, kept_places[kind]) for kind, slots in kept.items()}
            writing = manager.storer.begin(keys.digests, keys.salt, stored, int(rows.store_epoch[row]), spot)
        core.trim()
        return stop, writing

    def _tie(self, keys: Slots, expected: npt.NDArray[np.int64], versions: npt.NDArray[np.int64]) -> None:
        """The indexer's keys take the version of the KV that was kept, which may be somebody else's."""
        pool = self._rows.pool("indexer_state")
        back = pool.table.fields("version", keys) > versions
        for event, those in (("retract", back), ("index", ~back)):
            pool.sure(event, keys[those], "S16", expected=expected[those], to_version=versions[those])

    def _check_chain(self, keys: Keys, start: int, stop: int, kinds: list[str]) -> None:
        """Raise Refused where the chain before ``start`` is gone, or what others published up to ``stop`` is full."""
        core = self._rows.manager.core
        publication.check_chain(core, core.index.locate(keys.digests, start), start, kinds)
        self._check_readers(core.index.locate(keys.digests, stop), start, kinds)

    def _check_readers(self, spot: Spot, start: int, kinds: list[str]) -> None:
        """Raise Refused where what others published has no room for one more pin; nothing has changed then."""
        core = self._rows.manager.core
        for kind in kinds:
            n, pool = core.paged.index(kind), core.pools[kind]
            held = core.index.slots(n, spot, start, max(start, core.index.live(n, spot))).astype(np.intp)
            full = held[pool.table.fields("pins", held) == pool.table.LAYOUT.field("pins").high]
            if len(full):
                given = pool.rules.pin(np.arange(len(full)), pool.table.fields("version", full))
                pool.must("pin", full, "publish", expected=pool.generations(full), **given)

    def _copy_boundary(self, row: int, keys: Keys, computed: int, stop: int) -> Copies:
        """Copies of tail and window for the boundary that a row is computed to, as far as there is room; their places.

        The copies are nobody's yet. Whatever the backend raises leaves none.
        """
        rows, manager, core = self._rows, self._rows.manager, self._rows.manager.core
        copied: Copies = {}
        if computed != stop * rows.granule:
            return copied
        spot, whose = core.index.locate(keys.digests, stop), manager.isolation.whose(keys.salt)
        for trail, kind in enumerate(core.trailing):
            pool = core.pools[kind]
            places, source = self._boundary_slots(row, kind, stop)
            missing = np.array([self._lacks(trail, spot, place) for place in places.tolist()], bool)
            places, source = places[missing], source[missing].astype(np.intp)
            try:
                core.make_room({kind: len(places)})
                copied[kind] = pool.take(len(places), pool.rules.take(), whose=whose), places
                copy_slots(manager.backend, pool.arena, copied[kind][0], pool.arena, source)
            except Refused:
                continue  # a window or tail that is not kept costs a replay, nothing else
            except BaseException:
                self._give_back(copied)
                raise
        return copied

    def _lacks(self, trail: int, spot: Spot, place: int) -> bool:
        """Whether a chain that is in the tree as far as ``spot`` has nothing at a place."""
        index = self._rows.manager.core.index
        return index.granule(trail, place) >= spot.at or index.find(trail, spot, place) is None

    def _give_back(self, copied: Copies) -> None:
        for kind, (copies, _) in copied.items():
            self._rows.manager.core.pools[kind].abandon(copies)

    def _boundary_slots(self, row: int, kind: str, stop: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Places of a boundary to keep, and the row's slots for them."""
        rows, core, window = self._rows, self._rows.manager.core, self._window
        if kind == "uncompressed_tail":
            return np.array([stop]), rows.tail[row : row + 1]
        assert window is not None
        spec = core.index.specs[core.trailing.index(kind)]
        first = max(0, stop - -(-spec.need // spec.per))
        places = rows.manager.window.places(spec, rows.granule, first, stop)
        places = places[places >= spec.first(stop)] if spec.blocks else places
        source = window.held(row, places if spec.blocks else places * 0)
        return places[source != GUARD], source[source != GUARD]
