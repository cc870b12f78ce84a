"""Which slots go first, by the eviction rules of the specs and nothing else.

``structure: leaf_first`` keeps chains whole: a heap holds the segments that are leaves of a kind, ordered by the
spec's keys of their last slot. Of the segment on top the longest evictable run at its end goes at once, as far as no
other leaf comes before. Entries are lazy: by last use keys only grow while a segment waits, and an entry that turns
out too young is put back as it comes up. By other keys they may shrink, and each offer puts a better entry in.
Each tenant has a heap of its own where the spec keeps whose the slots are.

``structure: flat`` takes any slot: one vectorised sort fills a queue of victims, each checked again when its turn
comes, so that the cost of the sort is shared by many evictions. Where the order is another than that of last use, what
is stamped may have to go before those that wait, and the queue is made anew.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Any

import numpy as np

from .index import Index, Segment
from .pool import Pool, Slots
from .table import Eviction, OrderKey
from .tombstones import Tombstones

_BATCH = 64  # granules evicted at a time, so that one granule more does not cost a heap visit each
# Nothing in the index is expired; who makes keys there stale offers them anew.
_ENDED = ("state == expired", "state == stale")
Key = tuple[int, ...]
Heap = list[tuple[Key, int, Segment]]
OnCut = Callable[[Segment, int], None]
"""Told that a segment holds a kind up to this granule only from now on, nor does anything below it."""


def order_keys(pool: Pool, slots: Slots) -> np.ndarray[Any, Any]:
    """The spec's order keys of some slots, int64 [keys, slots]: lexicographically first what goes first."""
    eviction = pool.table.EVICTION
    order = () if eviction is None else eviction.order
    keys = np.empty((len(order), len(slots)), np.int64)
    for row, key in zip(keys, order, strict=True):
        row[:] = key.by(pool.table, pool.meta, slots)
        if key.first in ("true", "highest"):
            np.negative(row, out=row)
    return keys


def order_key(pool: Pool, slot: int) -> Key:
    """The same of one slot, as a tuple."""
    return tuple(order_keys(pool, np.array([slot], np.intp))[:, 0].tolist())


class LeafFirst:
    """Evicts the ends of chains of one paged kind.

    Args:
        kind: the kind's place among the paged kinds of the index.
        pool: its slots.
        index: the tree.
        tombstones: remembers what went; None: nobody does.
        on_cut: told of each end of a chain that went.
    """

    def __init__(
        self, kind: int, pool: Pool, index: Index, tombstones: Tombstones | None = None, on_cut: OnCut | None = None
    ) -> None:
        self.kind, self.pool, self.index = kind, pool, index
        self._tombstones, self._on_cut = tombstones, on_cut
        self._heaps: dict[int, Heap] = {}  # by tenant; of 0 alone where none are told apart
        self._queued: dict[Segment, Key] = {}  # the entry that counts; others of the segment are old
        self._serial = 0
        self._tenants = pool.meta.get("tenant")
        self._may_shrink = any(map(_may_shrink, _order(pool)))

    def offer(self, segment: Segment, *, sooner: bool = False) -> None:
        """A segment may now be a leaf with nothing that protects its last slot; ``sooner`` if that goes earlier now."""
        kind = self.kind
        if not segment.live[kind] or segment.live_kids[kind]:
            return
        known = self._queued.get(segment)
        if known is None or sooner or self._may_shrink:
            slot = int(segment.slots[kind][segment.live[kind] - 1])
            key = order_key(self.pool, slot)
            if known is None or key < known:
                self._push(key, slot, segment)

    def offer_chain(self, segment: Segment, *, sooner: bool = False) -> None:
        """The same for the lowest segment at or above one that holds anything."""
        while segment.parent is not None and not segment.live[self.kind]:
            segment = segment.parent
        self.offer(segment, sooner=sooner)

    def evict(self, count: int, tenants: Collection[int] | None = None) -> int:
        """Evict up to ``count`` slots, ends of chains first; returns how many went.

        Args:
            count: at most so many.
            tenants: only theirs; None: anybody's.
        """
        kind, pool, done = self.kind, self.pool, 0
        while done < count and (heap := self._first(tenants)) is not None:
            key, _, segment = heapq.heappop(heap)
            if self._queued.get(segment) != key:
                continue  # a better entry was made since
            del self._queued[segment]
            live = segment.live[kind]
            if segment.parent is None or segment.live_kids[kind]:
                continue
            if not live:  # a split has moved its granules up
                self.offer_chain(segment)
                continue
            last = int(segment.slots[kind][live - 1])
            now = order_key(pool, last)
            if now > key or (tenants is not None and self._tenant(last) not in tenants):
                self._push(now, last, segment)
                continue
            tail = segment.slots[kind][max(0, live - max(_BATCH, count - done)) : live].astype(np.intp)
            run = self._evictable_run(tail)
            if not run:
                continue  # offered again when its leases and transfers end
            run = self._run_before_others(tail[len(tail) - run :], tenants)
            keep = live - min(run, count - done)
            if self._tombstones is not None:
                self._tombstones.add(self.index.digests(segment, segment.base + keep, segment.base + live))
            gone = self.index.cut(kind, segment, keep).astype(np.intp)
            pool.release("evict", gone)
            done += len(gone)
            if self._on_cut is not None:
                self._on_cut(segment, segment.base + keep)
            if keep:
                self.offer(segment)
            else:
                self.offer(segment.parent)
            self.index.prune(segment)
        return done

    def suffice(self, count: int) -> bool:
        """Whether leaves' ends alone would make room for ``count`` slots. Cost: the leaves looked at."""
        kind, found = self.kind, 0
        for segment in self._queued:
            live = segment.live[kind]
            if live and not segment.live_kids[kind]:
                tail = segment.slots[kind][max(0, live - count) : live].astype(np.intp)
                run = self._evictable_run(tail)
                found += self.pool.room_in(tail[len(tail) - run :])
                if found >= count:
                    return True
        return False

    def reachable(self) -> int:
        """Slots that could be taken again if ``evict`` took all it can: nothing behind them is held. Cost: the tree."""
        kind, count = self.kind, 0
        gone: set[Segment] = set()  # segments that could go as a whole
        for segment in [*self.index.below(self.index.root)][::-1]:
            live = segment.live[kind]
            if live and all(kid in gone for kid in segment.kids if kid.live[kind]):
                slots = segment.slots[kind][:live].astype(np.intp)
                run = self._evictable_run(slots)
                count += self.pool.room_in(slots[live - run :])
                if run == live:
                    gone.add(segment)
        return count

    @property
    def nbytes(self) -> int:
        """Bytes held, estimated."""
        return 160 * sum(map(len, self._heaps.values()))

    def _evictable_run(self, slots: Slots) -> int:
        """How many of the last slots may be evicted, counted from the end."""
        free = np.isin(slots, self.pool.eligible(slots))
        blocked = np.flatnonzero(~free[::-1])
        return int(blocked[0]) if len(blocked) else len(slots)

    def _run_before_others(self, slots: Slots, tenants: Collection[int] | None) -> int:
        """How many of the last slots, counted from the end, go before the leaf that is next; all of one tenant."""
        others = np.zeros(len(slots), np.bool_)
        if self._tenants is not None:
            others = self._tenants[slots] != self._tenants[slots[-1]]
        following = self._first(tenants)
        if following is not None:
            equal = np.ones(len(slots), np.bool_)
            for values, limit in zip(order_keys(self.pool, slots), following[0][0], strict=True):
                others |= equal & (values > limit)
                equal &= values == limit
        blocked = np.flatnonzero(others[::-1])
        return int(blocked[0]) if len(blocked) else len(slots)

    def _first(self, tenants: Collection[int] | None) -> Heap | None:
        """The heap with the entry that is first of those of some tenants; None when they have none."""
        heaps = self._heaps
        if tenants is not None:
            found = [heaps[tenant] for tenant in tenants if heaps.get(tenant)]
        else:
            found = [heap for heap in heaps.values() if heap]
        return min(found, key=lambda heap: heap[0][:2], default=None) if len(found) != 1 else found[0]

    def _tenant(self, slot: int) -> int:
        return 0 if self._tenants is None else int(self._tenants[slot])

    def _push(self, key: Key, slot: int, segment: Segment) -> None:
        self._serial += 1
        self._queued[segment] = key
        heap = self._heaps.setdefault(self._tenant(slot), [])
        heapq.heappush(heap, (key, self._serial, segment))
        if len(heap) > _BATCH + 4 * len(self._queued):  # most of them are old
            heap[:] = [entry for entry in heap if self._queued.get(entry[2]) == entry[0]]
            heapq.heapify(heap)


class Flat:
    """Evicts single slots of one trailing kind.

    Args:
        trail: the kind's place among the trailing kinds of the index.
        pool: its slots.
        index: the tree.
        tombstones: remembers what went; None: nobody does.
    """

    def __init__(self, trail: int, pool: Pool, index: Index, tombstones: Tombstones | None = None) -> None:
        self.trail, self.pool, self.index = trail, pool, index
        self._tombstones = tombstones
        self.segments = np.full(len(pool), None, object)  # where the index holds a slot; None when it does not
        self.places = np.zeros(len(pool), np.int64)
        self._queue = np.empty((2, 0), np.int64)  # victims in order: slot, generation, and their keys
        self._by_age = _by_age(_order(pool))
        self._stamped = pool.stamped

    def own(self, slots: Slots, places: np.ndarray[Any, Any], segment: Segment) -> None:
        """The index now holds these slots at these places, at or above ``segment``."""
        self.segments[slots], self.places[slots] = segment, places

    def drop_all(self, slots: Slots) -> None:
        """Take slots out of the index, a run of neighbouring places at a time."""
        held = slots[self.segments[slots].astype(np.bool_)]
        segments, places = self.segments[held], self.places[held]
        names = np.fromiter(map(id, segments), np.int64, len(held))
        order = np.lexsort((places, names))
        names, places = names[order], places[order]
        ends = np.flatnonzero((np.diff(names) != 0) | (np.diff(places) != 1)) + 1
        for start, stop in pairwise([0, *ends.tolist(), len(held)] if len(held) else []):
            self.index.drop(self.trail, segments[order[start]], int(places[start]), int(places[stop - 1]) + 1)
        self.segments[slots] = None

    def evict(self, count: int, tenants: Collection[int] | None = None) -> int:
        """Evict up to ``count`` slots in the spec's order; returns how many went.

        Args:
            count: at most so many.
            tenants: only theirs, at the cost of a sort; None: anybody's.
        """
        if tenants is not None:
            pool, eviction = self.pool, self.pool.table.EVICTION
            slots = pool.eligible()
            slots = slots[np.isin(pool.meta["tenant"][slots], list(tenants))]
            gone = slots[:0] if eviction is None else eviction.ordered(pool.table, pool.meta, slots)[:count]
            self._release(gone)
            return len(gone)
        if not self._by_age and self._stamped != self.pool.stamped:
            self._queue = self._queue[:, :0]
        done, refilled = 0, False
        while done < count:
            if not self._queue.shape[1]:
                if refilled or not self._refill(max(_BATCH, count - done)):
                    break
                refilled = True
            gone = self._take_victims(count - done)
            self._release(gone)
            done += len(gone)
            refilled = refilled and not len(gone)
        return done

    def _release(self, slots: Slots) -> None:
        """Evict these slots."""
        if self._tombstones is not None:
            held = slots[self.segments[slots].astype(np.bool_)]
            for segment, place in zip(self.segments[held], self.places[held].tolist(), strict=True):
                granule = self.index.granule(self.trail, place)
                self._tombstones.add(self.index.digests(self.index.climb(segment, granule + 1), granule, granule + 1))
        self.drop_all(slots)
        self.pool.release("evict", slots)

    def _take_victims(self, count: int) -> Slots:
        """The next queued victims that are still what they were, and still evictable."""
        (slots, generations, *keys), self._queue = self._queue[:, :count], self._queue[:, count:]
        same = self.pool.generations(slots) == generations
        for now, then in zip(order_keys(self.pool, slots), keys, strict=True):
            same &= now == then
        return self.pool.eligible(slots[same])

    def _refill(self, count: int) -> bool:
        """Queue the next victims; False when there are none."""
        pool, eviction = self.pool, self.pool.table.EVICTION
        if eviction is None:
            return False
        slots = eviction.ordered(pool.table, pool.meta, pool.eligible())[: max(count, len(pool) // 16)]
        self._queue = np.concatenate(([slots, pool.generations(slots)], order_keys(pool, slots)))
        self._stamped = pool.stamped
        return bool(len(slots))


def _order(pool: Pool) -> tuple[OrderKey, ...]:
    eviction: Eviction | None = pool.table.EVICTION
    return () if eviction is None else eviction.order


def _may_shrink(key: OrderKey) -> bool:
    """Whether the end of a chain may come to go earlier by this key than it did before."""
    if key.says == "last_use":
        return key.first != "lowest"
    return key.first != "true" or key.says not in _ENDED


def _by_age(order: tuple[OrderKey, ...]) -> bool:
    """Whether of those in the index what was used last goes last, so that nothing comes in ahead of who waits."""
    return not any(map(_may_shrink, order)) and any(key.says == "last_use" for key in order)
