"""Which slots go first, by the eviction rules of the specs and nothing else.

``structure: leaf_first`` keeps chains whole: a heap holds the segments that are leaves of a kind, ordered by the
spec's keys of their last slot. Of the segment on top the longest evictable run at its end goes at once, as far as no
other leaf comes before. Entries are lazy: keys only grow while a segment waits, so an entry that turns out too young
is put back.

``structure: flat`` takes any slot: one vectorised sort fills a queue of victims, each checked again when its turn
comes, so that the cost of the sort is shared by many evictions.
"""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import Any

import numpy as np

from .index import Index, Segment
from .pool import Pool, Slots

_BATCH = 64  # granules evicted at a time, so that one granule more does not cost a heap visit each
Key = tuple[int, ...]


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
    """

    def __init__(self, kind: int, pool: Pool, index: Index) -> None:
        self.kind, self.pool, self.index = kind, pool, index
        self._heap: list[tuple[Key, int, Segment]] = []
        self._queued: set[Segment] = set()
        self._serial = 0

    def offer(self, segment: Segment) -> None:
        """A segment may now be a leaf with nothing that protects its last slot."""
        kind = self.kind
        if segment.live[kind] and not segment.live_kids[kind] and segment not in self._queued:
            self._push(order_key(self.pool, int(segment.slots[kind][segment.live[kind] - 1])), segment)

    def offer_chain(self, segment: Segment) -> None:
        """The same for the lowest segment at or above one that holds anything."""
        while segment.parent is not None and not segment.live[self.kind]:
            segment = segment.parent
        self.offer(segment)

    def evict(self, count: int) -> int:
        """Evict up to ``count`` slots, ends of chains first; returns how many went."""
        kind, pool, done = self.kind, self.pool, 0
        while done < count and self._heap:
            key, _, segment = heapq.heappop(self._heap)
            self._queued.discard(segment)
            live = segment.live[kind]
            if segment.parent is None or segment.live_kids[kind]:
                continue
            if not live:  # a split has moved its granules up
                self.offer_chain(segment)
                continue
            now = order_key(pool, int(segment.slots[kind][live - 1]))
            if now > key:
                self._push(now, segment)
                continue
            tail = segment.slots[kind][max(0, live - max(_BATCH, count - done)) : live].astype(np.intp)
            run = self._evictable_run(tail)
            if not run:
                continue  # offered again when its leases and transfers end
            run = self._run_before_others(tail[len(tail) - run :])
            keep = live - min(run, count - done)
            gone = self.index.cut(kind, segment, keep).astype(np.intp)
            pool.release("evict", gone)
            done += len(gone)
            if keep:
                self.offer(segment)
            else:
                self.offer(segment.parent)
            self.index.prune(segment)
        return done

    def suffice(self, count: int) -> bool:
        """Whether leaves alone have ``count`` evictable slots with bytes at their ends. Cost: the leaves looked at."""
        kind, found = self.kind, 0
        for _, _, segment in self._heap:
            live = segment.live[kind]
            if live and not segment.live_kids[kind]:
                tail = segment.slots[kind][max(0, live - count) : live].astype(np.intp)
                run = self._evictable_run(tail)
                found += int((tail[len(tail) - run :] < self.pool.hot).sum())
                if found >= count:
                    return True
        return False

    def reachable(self) -> int:
        """Slots with bytes in the arena that ``evict`` could take now: nothing behind them is held. Cost: the tree."""
        kind, count = self.kind, 0
        gone: set[Segment] = set()  # segments that could go as a whole
        for segment in [*self.index.below(self.index.root)][::-1]:
            live = segment.live[kind]
            if live and all(kid in gone for kid in segment.kids if kid.live[kind]):
                slots = segment.slots[kind][:live].astype(np.intp)
                run = self._evictable_run(slots)
                count += int((slots[live - run :] < self.pool.hot).sum())
                if run == live:
                    gone.add(segment)
        return count

    @property
    def nbytes(self) -> int:
        """Bytes held, estimated."""
        return 160 * len(self._heap)

    def _evictable_run(self, slots: Slots) -> int:
        """How many of the last slots may be evicted, counted from the end."""
        free = np.isin(slots, self.pool.eligible(slots))
        blocked = np.flatnonzero(~free[::-1])
        return int(blocked[0]) if len(blocked) else len(slots)

    def _run_before_others(self, slots: Slots) -> int:
        """How many of the last slots, counted from the end, go before the leaf that is next in the heap."""
        if not self._heap:
            return len(slots)
        later, equal = np.zeros(len(slots), np.bool_), np.ones(len(slots), np.bool_)
        for values, limit in zip(order_keys(self.pool, slots), self._heap[0][0], strict=True):
            later |= equal & (values > limit)
            equal &= values == limit
        blocked = np.flatnonzero(later[::-1])
        return int(blocked[0]) if len(blocked) else len(slots)

    def _push(self, key: Key, segment: Segment) -> None:
        self._serial += 1
        self._queued.add(segment)
        heapq.heappush(self._heap, (key, self._serial, segment))


class Flat:
    """Evicts single slots of one trailing kind.

    Args:
        trail: the kind's place among the trailing kinds of the index.
        pool: its slots.
        index: the tree.
    """

    def __init__(self, trail: int, pool: Pool, index: Index) -> None:
        self.trail, self.pool, self.index = trail, pool, index
        self.segments = np.full(len(pool), None, object)  # where the index holds a slot; None when it does not
        self.places = np.zeros(len(pool), np.int64)
        self._queue = np.empty((3, 0), np.int64)  # victims in order: slot, generation, last use

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

    def evict(self, count: int) -> int:
        """Evict up to ``count`` slots in the spec's order; returns how many went."""
        done, refilled = 0, False
        while done < count:
            if not self._queue.shape[1]:
                if refilled or not self._refill(max(_BATCH, count - done)):
                    break
                refilled = True
            gone = self._take_victims(count - done)
            self.drop_all(gone)
            self.pool.release("evict", gone)
            done += len(gone)
            refilled = refilled and not len(gone)
        return done

    def _take_victims(self, count: int) -> Slots:
        """The next queued victims that are still what they were, and still evictable."""
        (slots, generations, used), self._queue = self._queue[:, :count], self._queue[:, count:]
        same = (self.pool.meta["last_use"][slots] == used) & (self.pool.generations(slots) == generations)
        return self.pool.eligible(slots[same])

    def _refill(self, count: int) -> bool:
        """Queue the next victims; False when there are none."""
        pool, eviction = self.pool, self.pool.table.EVICTION
        if eviction is None:
            return False
        slots = eviction.ordered(pool.table, pool.meta, pool.eligible())[: max(count, len(pool) // 16)]
        used = pool.meta["last_use"][slots].astype(np.int64)
        self._queue = np.stack((slots, pool.generations(slots), used))
        return bool(len(slots))
