"""The index against a linear scan over everything that was put into it, over thousands of random operations."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest

from kvfsm.runtime.index import ANCHOR, Index
from kvfsm.runtime.trails import TrailSpec

MARKS, RUNS = 0, 1
SPECS = (TrailSpec(False), TrailSpec(True, per=2, need=3))
PAGED = 2


def digests_of(path: tuple[int, ...]) -> list[bytes]:
    """Chained digests of a path of granules."""
    found, running = [], hashlib.sha256()
    for granule in path:
        running.update(granule.to_bytes(2, "little"))
        found.append(running.digest())
    return found


class Oracle:
    """What is resident, as dictionaries; every question is a scan."""

    def __init__(self) -> None:
        self.paged: list[dict[bytes, int]] = [{} for _ in range(PAGED)]
        self.ready: list[set[bytes]] = [set() for _ in range(PAGED)]
        self.trail: list[dict[tuple[bytes, int], int]] = [{} for _ in SPECS]

    def live(self, kind: int, path: list[bytes]) -> int:
        return next((n for n, digest in enumerate(path) if digest not in self.paged[kind]), len(path))

    def ready_of(self, kind: int, path: list[bytes]) -> int:
        return next((n for n, digest in enumerate(path) if digest not in self.ready[kind]), len(path))

    def key(self, trail: int, path: list[bytes], place: int) -> tuple[bytes, int]:
        granule = place // SPECS[trail].per if SPECS[trail].blocks else place - 1
        return path[granule], place

    def places(self, trail: int, boundary: int) -> range:
        spec = SPECS[trail]
        return range(spec.first(boundary), boundary * spec.per if spec.blocks else boundary + 1)

    def last(self, trail: int, path: list[bytes], at_most: int) -> int:
        return next((n for n in range(min(at_most, len(path)), 0, -1) if self.valid(trail, path, n)), 0)

    def valid(self, trail: int, path: list[bytes], boundary: int) -> bool:
        return all(self.key(trail, path, place) in self.trail[trail] for place in self.places(trail, boundary))


class Pair:
    """Index and oracle, driven together."""

    def __init__(self, seed: int, length: int) -> None:
        self.index, self.oracle = Index(PAGED, SPECS), Oracle()
        self.random, self.length = random.Random(seed), length
        self.next_slot = 0
        self.paths: list[tuple[int, ...]] = []

    def path(self) -> tuple[int, ...]:
        """A known path, cut and perhaps grown anew."""
        base: tuple[int, ...] = ()
        if self.paths and self.random.random() < 0.85:
            base = self.random.choice(self.paths)
            if self.random.random() < 0.5:
                base = base[: self.random.randint(0, len(base))]
        if not base or self.random.random() < 0.4:
            base = (*base, *(self.random.randrange(3) for _ in range(self.random.randint(1, self.length // 4))))
        base = base[: self.length]
        self.paths = [*self.paths[-30:], base]
        return base

    def slots(self, count: int) -> np.ndarray:
        self.next_slot += count
        return np.arange(self.next_slot - count, self.next_slot, dtype=np.int32)

    def publish(self) -> None:
        path = digests_of(self.path())
        stop = self.random.randint(1, len(path))
        spot = self.index.extend(path, stop)
        for kind in range(PAGED):
            live, ready = self.oracle.live(kind, path[:stop]), self.oracle.ready_of(kind, path[:stop])
            stop_here = self.random.choice((stop, self.random.randint(live, stop)))
            if stop_here > live:
                slots = self.slots(stop_here - live)
                whole = ready == live and self.random.random() < 0.8
                self.index.put(kind, spot, live, slots, stop_here if whole else ready)
                for digest, slot in zip(path[live:stop_here], slots.tolist(), strict=True):
                    self.oracle.paged[kind][digest] = slot
                    if whole:
                        self.oracle.ready[kind].add(digest)
        self.trails(path[:stop])
        self.index.prune(spot.segment)

    def trails(self, path: list[bytes]) -> None:
        spot = self.index.locate(path, len(path))
        for trail, spec in enumerate(SPECS):
            low, high = (0, len(path) * spec.per) if spec.blocks else (1, len(path) + 1)
            first = self.random.randrange(low, high)
            dense = self.random.random() < 0.7
            places = [p for p in range(first, min(high, first + 12)) if dense or self.random.random() < 0.5]
            places = places if spec.blocks else places[-2:]
            slots = self.slots(len(places))
            held = self.index.add(trail, spot, places, slots)
            for place, slot, had in zip(places, slots.tolist(), held.tolist(), strict=True):
                key = self.oracle.key(trail, path, place)
                assert had == (key in self.oracle.trail[trail])
                self.oracle.trail[trail].setdefault(key, slot)

    def cut(self) -> None:
        kind = self.random.randrange(PAGED)
        leaves = [
            s for s in self.index.below(self.index.root) if s.live[kind] and not s.live_kids[kind]
        ]
        if not leaves:
            return
        segment = self.random.choice(leaves)
        gone = set(self.index.cut(kind, segment, self.random.randrange(segment.live[kind])).tolist())
        self.index.prune(segment)
        self.forget(kind, gone)

    def forget(self, kind: int, gone: set[int]) -> None:
        lost = [digest for digest, slot in self.oracle.paged[kind].items() if slot in gone]
        assert len(lost) == len(gone)
        for digest in lost:
            del self.oracle.paged[kind][digest]
            self.oracle.ready[kind].discard(digest)

    def drop(self) -> None:
        trail = self.random.randrange(len(SPECS))
        path = digests_of(self.path())
        spot = self.index.locate(path, len(path))
        held = [key for key in self.oracle.trail[trail] if key[0] in path[: spot.at]]
        if held:
            key = self.random.choice(held)
            assert self.index.find(trail, spot, key[1]) == self.oracle.trail[trail][key]
            run = [key]  # with neighbours that are resident too, which may lie in other segments
            while (after := [other for other in held if other[1] == run[-1][1] + 1]) and len(run) < 6:
                run.append(after[0])
            dropped = self.index.drop(trail, spot.segment, run[0][1], run[-1][1] + 1)
            assert dropped.tolist() == [self.oracle.trail[trail].pop(other) for other in run]

    def sever(self) -> None:
        kind = self.random.randrange(PAGED)
        path = digests_of(self.path())
        spot = self.index.locate(path, len(path))
        if spot.at:
            at = self.random.randrange(spot.at)
            top = self.index.climb(spot.segment, at + 1)
            gone = set(self.index.sever(kind, spot, at).tolist())
            self.index.prune_below(top)
            self.forget(kind, gone)
            assert self.oracle.live(kind, path) <= at

    def compare(self) -> None:
        path = digests_of(self.path())
        limit = self.random.randint(1, len(path))
        spot = self.index.locate(path, limit)
        cut = path[:limit]
        for kind in range(PAGED):
            live = self.oracle.live(kind, cut)
            assert self.index.live(kind, spot) == live
            assert self.index.ready(kind, spot) == self.oracle.ready_of(kind, cut)
            low = self.random.randint(0, live)
            expected = [self.oracle.paged[kind][digest] for digest in cut[low:live]]
            assert self.index.slots(kind, spot, low, live).tolist() == expected
        for trail in range(len(SPECS)):
            at_most = self.random.randint(0, limit)
            boundary = self.oracle.last(trail, cut, at_most)
            assert self.index.last(trail, spot, at_most) == boundary
            legal = [n for n in range(1, at_most + 1) if self.oracle.valid(trail, cut, n)]
            assert self.index.boundaries(trail, spot, at_most).tolist() == legal
            places = self.oracle.places(trail, boundary) if boundary else ()
            expected = [self.oracle.trail[trail][self.oracle.key(trail, cut, place)] for place in places]
            assert self.index.trail_slots(trail, spot, boundary).tolist() == expected


@pytest.mark.parametrize(("seed", "length"), [(1, 12), (2, 40), (3, 40), (4, 3 * ANCHOR), (5, 5 * ANCHOR), (6, 20)])
def test_the_index_agrees_with_a_linear_scan(seed: int, length: int) -> None:
    print(f"seed {seed}, paths of up to {length} granules")
    pair = Pair(seed, length)
    doings = [pair.publish] * 4 + [pair.cut] * 3 + [pair.drop] * 3 + [pair.compare] * 8 + [pair.sever]
    for n in range(2500):
        pair.random.choice(doings)()
        if n % 100 == 0:
            assert pair.index.audit() == []
    assert pair.index.audit() == []


def test_everything_that_goes_leaves_nothing_behind() -> None:
    pair = Pair(7, 200)
    for _ in range(60):
        pair.publish()
    while any(pair.oracle.paged):
        pair.cut()
    for trail in range(len(SPECS)):
        for segment in [*pair.index.below(pair.index.root)]:
            held = segment.trails[trail]
            for place in held.everything()[0] if held is not None else []:
                pair.index.drop(trail, segment, place, place + 1)
    assert (pair.index.segment_count, pair.index._at, pair.index.audit()) == (0, {}, [])


def planted(fault: str) -> list[str]:
    """What the audit says of an index with one fault."""
    index = Index(1, SPECS)
    path = digests_of(tuple(range(100)))
    index.put(0, index.extend(path, 100), 0, np.arange(100, dtype=np.int32), 100)
    other = path[:50] + digests_of(tuple(range(50)) + (9,) * 20)[50:]
    index.put(0, index.extend(other, 70), 50, np.arange(200, 220, dtype=np.int32), 70)
    index.add(0, index.locate(path, 100), [40], np.array([1], np.int32))
    below, above = index.locate(path, 100).segment, index.locate(path, 50).segment
    match fault:
        case "lost anchor":
            del index._at[path[64]]
        case "gap in a chain":
            above.live[0] = above.ready[0] = 10
        case "wrong count of children":
            above.live_kids[0] = 1
        case "skip over a window":
            below.skip[2], below.skip_epoch[2] = index.root, index._epoch[2]
        case "lost digests":
            del below.digests[-32:]
    return index.audit()


def test_a_sound_index_passes_the_audit() -> None:
    assert planted("none") == []


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("lost anchor", "I3"), ("gap in a chain", "I4"), ("wrong count of children", "I4"),
        ("skip over a window", "I5"), ("lost digests", "I2"),
    ],
)  # fmt: skip
def test_the_audit_sees_planted_faults(fault: str, rule: str) -> None:
    assert any(text.startswith(rule) for text in planted(fault))
