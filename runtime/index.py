"""Which slots hold which prefix: a path-compressed radix tree over chained digests, searched in O(log n) probes.

A *segment* is a run of granules of one chain, so that no Python object exists per granule. What makes the search right:

* I1  a granule in the tree has all its ancestors in the tree;
* I2  a chained digest fixes its position and everything before it;
* I3  every granule that heads a segment or whose position divides by ``ANCHOR`` is in one dictionary.

So presence at anchors is monotone along a chain: gallop, bisect, and compare at most ``ANCHOR`` digests inside
segments.

*Paged* kinds (asked for every granule over [0, length)) are a prefix of each chain: ``live`` granules of a segment,
counted from its base, hold a slot, and a child holds one only where its parent is full (I4). ``ready`` of these can be
read at once; those past it are packed. *Trailing* kinds come and go in the middle, see ``trails.py``. From a segment
without a feature the nearest ancestor that has it is found through a skip pointer, shortened as it is used: within an
*epoch* of the feature ancestors only lose it (I5).

The index knows no state words and takes no locks: the manager calls it under its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .keys import DIGEST_BYTES
from .trails import Marks, Runs, Slots32, TrailSpec

ANCHOR = 64


class Segment:
    """Granules [base, end) of one chain.

    ``parent`` is None at the root alone; a segment that was taken out of the tree is empty and keeps its parent. Lists
    are by kind, paged and trailing each in their own order.
    """

    __slots__ = (
        "base", "digests", "end", "kids", "live", "live_kids", "parent", "ready", "skip", "skip_epoch", "slots",
        "trails",
    )  # fmt: skip

    def __init__(
        self, parent: Segment | None, base: int, digests: bytearray, paged: int, trails: Sequence[TrailSpec]
    ) -> None:
        self.parent = parent
        self.base = base
        self.end = base + len(digests) // DIGEST_BYTES
        self.digests = digests
        self.kids: dict[Segment, None] = {}
        self.slots: list[Slots32] = [_NOTHING] * paged
        self.live = [0] * paged
        self.ready = [0] * paged
        self.live_kids = [0] * paged  # children with any live granule of the kind: none makes this a leaf of the kind
        self.trails: list[Marks | Runs | None] = [None] * len(trails)
        features = 2 * paged + len(trails)
        self.skip: list[Segment | None] = [parent] * features
        self.skip_epoch = [-1] * features


_NOTHING: Slots32 = np.empty(0, np.int32)
_NO_PLACES: NDArray[np.int64] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in the tree: the chain ``[0, at)``, whose last granule is in ``segment`` (the root when ``at`` is 0)."""

    segment: Segment
    at: int


class Index:
    """The tree.

    Args:
        paged: number of paged kinds.
        trails: how each trailing kind is kept.
    """

    def __init__(self, paged: int, trails: Sequence[TrailSpec]) -> None:
        self.paged = paged
        self.specs = tuple(trails)
        self.root = Segment(None, 0, bytearray(), paged, self.specs)
        self.segment_count = 0
        self._at: dict[bytes, Segment] = {}
        self._epoch = [0] * (2 * paged + len(self.specs))

    # ---- search -------------------------------------------------------------------------------------------------

    def locate(self, digests: Sequence[bytes], limit: int) -> Spot:
        """The longest chain of ``digests[:limit]`` in the tree, whatever it holds. O(log limit) probes."""
        heads, n = self._at, limit
        if n <= 0 or digests[0] not in heads:
            return Spot(self.root, 0)
        top = (n - 1) // ANCHOR
        if digests[top * ANCHOR] in heads:
            low = top
        else:  # presence at anchors is monotone: gallop up, then bisect
            low, step = 0, 1
            while low + step < top and digests[(low + step) * ANCHOR] in heads:
                low += step
                step += step
            high = min(low + step, top)
            while high - low > 1:
                middle = (low + high) >> 1
                if digests[middle * ANCHOR] in heads:
                    low = middle
                else:
                    high = middle
        at = low * ANCHOR
        segment = self._owner(digests[at], at)
        limit = min(n, at + ANCHOR)
        while True:
            at = _match(segment, digests, at, min(limit, segment.end))
            if at < segment.end or at >= n or digests[at] not in heads:
                return Spot(segment, at)
            segment = self._owner(digests[at], at)
            limit = min(n, (at // ANCHOR + 1) * ANCHOR)

    def live(self, kind: int, spot: Spot) -> int:
        """Granules of the longest chain at or below ``spot`` that hold a slot of a paged kind."""
        segment = self._nearest(spot.segment, kind)
        return 0 if segment is None else min(spot.at, segment.base + segment.live[kind])

    def ready(self, kind: int, spot: Spot) -> int:
        """The same for slots that can be read at once."""
        segment = self._nearest(spot.segment, self.paged + kind)
        return 0 if segment is None else min(spot.at, segment.base + segment.ready[kind])

    def last(self, trail: int, spot: Spot, at_most: int) -> int:
        """The greatest boundary <= ``at_most`` at which a trailing kind is valid; 0 is always valid."""
        feature = 2 * self.paged + trail
        at_most = min(at_most, spot.at)
        segment: Segment | None = spot.segment
        while segment is not None:
            if held := segment.trails[trail]:
                lead = self._lead(segment, trail) if segment.base and self.specs[trail].blocks else 0
                if (found := held.last(at_most, lead)) is not None:
                    return found
            segment = self._nearest(segment.parent, feature) if segment.parent is not None else None
        return 0

    def boundaries(self, trail: int, spot: Spot, at_most: int) -> NDArray[np.int64]:
        """All boundaries in (0, at_most] at which a trailing kind is valid, ascending.

        Cost: the runs of it that the chain holds, and the boundaries themselves.
        """
        feature = 2 * self.paged + trail
        parts, segment = [(_NO_PLACES, _NO_PLACES)], self._nearest(spot.segment, feature)
        while segment is not None:
            if (held := segment.trails[trail]) is not None:
                parts.append(held.runs())
            segment = self._nearest(segment.parent, feature)
        starts, stops = (np.concatenate(side) for side in zip(*parts[::-1], strict=True))
        return self.specs[trail].valid(starts, stops, min(at_most, spot.at))

    def slots(self, kind: int, spot: Spot, low: int, high: int) -> Slots32:
        """Slots of a paged kind over granules [low, high) of a chain that holds them all."""
        parts, segment = [], self.climb(spot.segment, high)
        while high > low:
            start = max(low, segment.base)
            parts.append(segment.slots[kind][start - segment.base : high - segment.base])
            high = start
            if high > low:
                segment = _parent(segment)
        return np.concatenate(parts[::-1]) if parts else _NOTHING

    def trail_slots(self, trail: int, spot: Spot, boundary: int) -> Slots32:
        """Slots that a valid boundary needs of a trailing kind, in order of their places; empty for boundary 0."""
        if not boundary:
            return _NOTHING
        spec = self.specs[trail]
        low, high = spec.first(boundary), spec.stop(boundary)
        parts, segment = [], self.climb(spot.segment, boundary)
        while high > low:
            start = max(low, segment.base * spec.per) if spec.blocks else low
            held = segment.trails[trail]
            parts.append(held.between(start, high) if held is not None else _NOTHING)
            high = start
            if high > low:
                segment = _parent(segment)
        return np.concatenate(parts[::-1])

    def find(self, trail: int, spot: Spot, place: int) -> int | None:
        """The slot of a trailing kind at one place of the chain."""
        held = self.climb(spot.segment, self.granule(trail, place) + 1).trails[trail]
        return None if held is None else held.find(place)

    def granule(self, trail: int, place: int) -> int:
        """The granule that a place of a trailing kind belongs to."""
        return self.specs[trail].granule(place)

    @staticmethod
    def digests(segment: Segment, low: int, high: int) -> list[bytes]:
        """Digests of granules [low, high), all of them in one segment."""
        return [_digest(segment, at) for at in range(low, high)]

    @staticmethod
    def climb(segment: Segment, at: int) -> Segment:
        """The segment of a chain that holds granule ``at - 1``, from one at or below it: splits move granules up."""
        while segment.base >= at and segment.parent is not None:
            segment = segment.parent
        return segment

    # ---- growth -------------------------------------------------------------------------------------------------

    def extend(self, digests: Sequence[bytes], stop: int) -> Spot:
        """Make the chain ``digests[:stop]`` part of the tree; returns its end. Nothing becomes resident."""
        spot = self.locate(digests, stop)
        if spot.at == stop:
            return spot
        parent, at = spot.segment, spot.at
        if parent is not self.root and at < parent.end:
            parent = self.split(parent, at)
        more = b"".join(digests[at:stop])
        if parent is not self.root and not parent.kids:
            parent.digests += more
            parent.end = stop
            for held in parent.trails:
                if held is not None:
                    held.end = stop
            self._index(parent, digests, at, stop, head=False)
            return Spot(parent, stop)
        segment = Segment(parent, at, bytearray(more), self.paged, self.specs)
        parent.kids[segment] = None
        self.segment_count += 1
        self._index(segment, digests, at, stop, head=True)
        return Spot(segment, stop)

    def split(self, segment: Segment, at: int) -> Segment:
        """Cut a segment at a granule inside it; returns the new head, ``segment`` stays the tail.

        What refers to the tail stays right: entries that name it for a granule of the head are corrected as they are
        met.
        """
        k = at - segment.base
        head = Segment(segment.parent, segment.base, segment.digests[: k * DIGEST_BYTES], self.paged, self.specs)
        parent = _parent(segment)
        del parent.kids[segment]
        parent.kids[head] = None
        head.kids[segment] = None
        head.skip, head.skip_epoch = segment.skip.copy(), segment.skip_epoch.copy()
        segment.skip, segment.skip_epoch = [head] * len(self._epoch), self._epoch.copy()
        for kind in range(self.paged):
            live, ready = segment.live[kind], segment.ready[kind]
            head.slots[kind], segment.slots[kind] = segment.slots[kind][:k], segment.slots[kind][k:].copy()
            head.live[kind], segment.live[kind] = min(live, k), max(live - k, 0)
            head.ready[kind], segment.ready[kind] = min(ready, k), max(ready - k, 0)
            head.live_kids[kind] = int(live > k)
        for trail, held in enumerate(segment.trails):
            if held is not None:
                head.trails[trail] = held.split(at)
        segment.parent, segment.base, segment.digests = head, at, segment.digests[k * DIGEST_BYTES :]
        self._at[bytes(segment.digests[:DIGEST_BYTES])] = segment
        self.segment_count += 1
        return head

    def put(self, kind: int, spot: Spot, low: int, slots: Slots32, ready: int) -> None:
        """Make granules [low, low + len(slots)) hold these slots, right behind the chain's live ones (or over them).

        ``ready`` is the number of granules of the chain, from its start, that can then be read at once.
        """
        high, segment = low + len(slots), self.climb(spot.segment, low + len(slots))
        assert self.live(kind, Spot(segment, low)) == low, f"I4: granule {low} of kind {kind} would stand behind a gap"
        while high > low:
            start = max(low, segment.base)
            self._put(kind, segment, start, slots[start - low : high - low], ready)
            high = start
            if high > low:
                segment = _parent(segment)

    def add(self, trail: int, spot: Spot, places: Sequence[int], slots: Slots32) -> NDArray[np.bool_]:
        """Make ascending places of a trailing kind resident; True where one already was, whose slot stays."""
        held = np.zeros(len(places), np.bool_)
        segment, high = spot.segment, len(places)
        while high:
            segment = self.climb(segment, self.granule(trail, places[high - 1]) + 1)
            first = self.specs[trail].stop(segment.base)
            low = int(np.searchsorted(np.asarray(places[:high]), first))
            held[low:high] = self._add(trail, segment, places[low:high], slots[low:high])
            high = low
        return held

    # ---- removal ------------------------------------------------------------------------------------------------

    def cut(self, kind: int, segment: Segment, keep: int) -> Slots32:
        """Drop a paged kind's slots past the first ``keep`` of a segment whose children hold none; returns them."""
        gone = segment.slots[kind][keep : segment.live[kind]].copy()
        if segment.live[kind] and not keep:
            _parent(segment).live_kids[kind] -= 1
        segment.live[kind] = keep
        segment.ready[kind] = min(segment.ready[kind], keep)
        return gone

    def sever(self, kind: int, spot: Spot, at: int) -> Slots32:
        """Drop a paged kind from granule ``at`` on, in every branch below; returns the slots. Cost: the subtree."""
        start = self.climb(spot.segment, at + 1)
        gone = []
        for segment in [*self.below(start)][::-1]:
            keep = max(0, at - segment.base)
            if segment.live[kind] > keep:
                gone.append(self.cut(kind, segment, keep))
        return np.concatenate(gone) if gone else _NOTHING

    def unready(self, kind: int, spot: Spot, at: int) -> None:
        """Granules of a paged kind from ``at`` on can't be read at once, in every branch below. Cost: the subtree."""
        for segment in self.below(self.climb(spot.segment, at + 1)):
            segment.ready[kind] = min(segment.ready[kind], max(0, at - segment.base))

    def set_ready(self, kind: int, segment: Segment, ready: int) -> None:
        """Say how many of a segment's live granules can be read at once."""
        if ready > 0 and not segment.ready[kind] and segment.kids:
            self._epoch[self.paged + kind] += 1
        segment.ready[kind] = ready

    def drop(self, trail: int, segment: Segment, low: int, high: int) -> Slots32:
        """Drop places [low, high) of a trailing kind, all resident at or above ``segment``; returns their slots."""
        parts = []
        while high > low:
            segment = self.climb(segment, self.granule(trail, high - 1) + 1)
            held = segment.trails[trail]
            if held is None:
                raise KeyError(f"nothing of trail {trail} is resident at {high - 1}")
            first = held.spec.stop(segment.base)
            parts.append(held.drop(max(low, first), high))
            if not held:
                segment.trails[trail] = None
            self.prune(segment)
            high = max(low, first)
        return np.concatenate(parts[::-1]) if parts else _NOTHING

    def prune(self, segment: Segment) -> None:
        """Take granules that hold nothing off the end of a chain, and segments that are left empty out of the tree."""
        while segment.parent is not None and not segment.kids:
            reach = max((held.reach for held in segment.trails if held is not None), default=segment.base)
            end = max(reach, segment.base + max(segment.live, default=0))
            if end == segment.end:
                return
            for at in self._anchors(end, segment.end, head=end == segment.base):
                self._at.pop(_digest(segment, at), None)
            del segment.digests[(end - segment.base) * DIGEST_BYTES :]
            segment.end = end
            for held in segment.trails:
                if held is not None:
                    held.end = end
            if end > segment.base:
                return
            parent = segment.parent
            del parent.kids[segment]  # it keeps its parent: entries of granules that a split moved up may still name it
            self.segment_count -= 1
            segment = parent

    def prune_below(self, segment: Segment) -> None:
        """The same for a segment and everything below it."""
        for lower in [*self.below(segment)][::-1]:
            self.prune(lower)

    def retire(self) -> None:
        """Empty every segment, because what remembers one may outlive the index."""
        for segment in [*self.below(self.root)]:
            segment.live, segment.ready, segment.live_kids = ([0] * self.paged for _ in range(3))
            segment.trails = [None] * len(self.specs)

    # ---- inspection ---------------------------------------------------------------------------------------------

    def below(self, segment: Segment) -> Iterator[Segment]:
        """A segment and all its descendants, parents first."""
        stack = [segment]
        while stack:
            segment = stack.pop()
            yield segment
            stack.extend(reversed(segment.kids))

    @property
    def nbytes(self) -> int:
        """Bytes of all segments and dictionary entries, estimated from CPython's object sizes."""
        total = 170 * len(self._at)  # entry, load factor, and the digest as bytes
        for segment in self.below(self.root):
            total += 900 + len(segment.digests) + sum(slots.nbytes for slots in segment.slots)
            total += sum(held.nbytes for held in segment.trails if held is not None)
        return total

    def audit(self) -> list[str]:
        """Broken rules I1 to I5, as sentences; empty when all hold. Cost: the whole tree."""
        wrong, indexed, count = [], 0, 0
        for segment in self.below(self.root):
            name = f"segment [{segment.base}, {segment.end})"
            count += segment is not self.root
            for at in self._anchors(segment.base, segment.end, head=segment is not self.root):
                indexed += 1
                found = self._at.get(_digest(segment, at))
                if found is None or self.climb(found, at + 1) is not segment:
                    wrong.append(f"I3: granule {at} of {name} is not in the dictionary")
            if len(segment.digests) != (segment.end - segment.base) * DIGEST_BYTES:
                wrong.append(f"I2: {name} holds {len(segment.digests)} bytes of digests")
            wrong.extend(self._audit_chain(segment, name))
        if indexed != len(self._at):
            wrong.append(f"I3: {len(self._at)} dictionary entries for {indexed} anchors")
        if count != self.segment_count:
            wrong.append(f"{count} segments, {self.segment_count} counted")
        return wrong

    def _audit_chain(self, segment: Segment, name: str) -> Iterator[str]:
        parent, size = segment.parent, segment.end - segment.base
        if parent is not None and parent.end != segment.base:
            yield f"I1: {name} hangs on a segment that ends at {parent.end}"
        for kind in range(self.paged):
            live, ready = segment.live[kind], segment.ready[kind]
            if not 0 <= ready <= live <= size or len(segment.slots[kind]) < live:
                yield f"I4: kind {kind} of {name}: ready {ready}, live {live}"
            if parent is not None and parent.parent is not None:
                full = parent.end - parent.base
                if (live and parent.live[kind] != full) or (ready and parent.ready[kind] != full):
                    yield f"I4: kind {kind} of {name} is resident below a gap"
            if segment.live_kids[kind] != sum(1 for kid in segment.kids if kid.live[kind]):
                yield f"I4: kind {kind} of {name} counts {segment.live_kids[kind]} children with live granules"
        for feature in range(len(self._epoch)):
            if segment.skip_epoch[feature] == self._epoch[feature] and not self._skips_right(segment, feature):
                yield f"I5: feature {feature} of {name} skips an ancestor that has it"

    def _skips_right(self, segment: Segment, feature: int) -> bool:
        target, above = segment.skip[feature], segment.parent
        while above is not None and above is not target:
            if self._has(above, feature):
                return False
            above = above.parent
        return True

    # ---- helpers ------------------------------------------------------------------------------------------------

    def _owner(self, digest: bytes, at: int) -> Segment:
        segment = self._at[digest]
        if segment.base > at:  # split since: the granule went to an ancestor
            segment = self.climb(segment, at + 1)
            self._at[digest] = segment
        return segment

    def _has(self, segment: Segment, feature: int) -> bool:
        if feature < self.paged:
            return segment.live[feature] > 0
        if feature < 2 * self.paged:
            return segment.ready[feature - self.paged] > 0
        return bool(segment.trails[feature - 2 * self.paged])

    def _nearest(self, segment: Segment | None, feature: int) -> Segment | None:
        """The nearest segment at or above that has a feature; shortens the pointers it follows."""
        if segment is None or self._has(segment, feature):
            return segment
        epoch, walked = self._epoch[feature], []
        while segment is not None and not self._has(segment, feature):
            walked.append(segment)
            segment = segment.skip[feature] if segment.skip_epoch[feature] == epoch else segment.parent
        for passed in walked:
            passed.skip[feature], passed.skip_epoch[feature] = segment, epoch
        return segment

    def _gained(self, segment: Segment, feature: int) -> None:
        """A segment is about to have a feature: pointers below it may pass over it."""
        if segment.kids and not self._has(segment, feature):
            self._epoch[feature] += 1

    def _lead(self, segment: Segment, trail: int) -> int:
        """Resident blocks that end right before a segment, as far as any boundary in it may need them."""
        spec, total = self.specs[trail], 0
        above = segment.parent
        while above is not None and above.parent is not None and total < spec.need:
            held = above.trails[trail]
            blocks = held.trailing if isinstance(held, Runs) else 0
            total += blocks
            if blocks < (above.end - above.base) * spec.per:
                break
            above = above.parent
        return total

    def _put(self, kind: int, segment: Segment, start: int, slots: Slots32, ready: int) -> None:
        offset, end = start - segment.base, start - segment.base + len(slots)
        held = segment.slots[kind]
        if end > len(held):
            grown = np.empty(min(segment.end - segment.base, max(end, 2 * len(held), 8)), np.int32)
            grown[: segment.live[kind]] = held[: segment.live[kind]]
            segment.slots[kind] = held = grown
        held[offset:end] = slots
        self._gained(segment, kind)
        if not segment.live[kind]:
            _parent(segment).live_kids[kind] += 1
        segment.live[kind] = max(segment.live[kind], end)
        self.set_ready(kind, segment, max(segment.ready[kind], min(segment.live[kind], ready - segment.base)))

    def _add(self, trail: int, segment: Segment, places: Sequence[int], slots: Slots32) -> NDArray[np.bool_]:
        self._gained(segment, 2 * self.paged + trail)
        held = segment.trails[trail]
        if held is None:
            held = segment.trails[trail] = self.specs[trail].new(segment.base, segment.end)
        return held.add(places, slots)

    def _index(self, segment: Segment, digests: Sequence[bytes], low: int, high: int, *, head: bool) -> None:
        for at in self._anchors(low, high, head=head):
            self._at[digests[at]] = segment

    @staticmethod
    def _anchors(low: int, high: int, *, head: bool) -> Iterator[int]:
        """Positions in [low, high) that the dictionary holds; ``low`` itself when it is a head."""
        if low < high and head:
            yield low
        yield from range(-(-(low + head) // ANCHOR) * ANCHOR, high, ANCHOR)


def _digest(segment: Segment, at: int) -> bytes:
    start = (at - segment.base) * DIGEST_BYTES
    return bytes(segment.digests[start : start + DIGEST_BYTES])


def _match(segment: Segment, digests: Sequence[bytes], at: int, high: int) -> int:
    """The end of the part of ``digests[at:high]`` that a segment holds; ``digests[at]`` is known to be there."""
    raw, base, low = segment.digests, segment.base, at

    def same(place: int) -> bool:
        start = (place - base) * DIGEST_BYTES
        return raw[start : start + DIGEST_BYTES] == digests[place]

    if same(high - 1):
        return high
    high -= 1  # digests[low] matches, digests[high] does not
    while high - low > 1:
        middle = (low + high) >> 1
        if same(middle):
            low = middle
        else:
            high = middle
    return low + 1


def _parent(segment: Segment) -> Segment:
    """The parent of a segment that is in the tree."""
    assert segment.parent is not None
    return segment.parent
