"""Matching: the four layers over one or several requests, and the plan for what only a slower tier holds.

Under the lock the answer takes O(log n) steps of the index. The store is asked outside it, and only for what is
missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .answers import Answer, AnswerKind, Claim, ObjectAnswer, Plan, Reason
from .arguments import check_whole
from .index import Segment, Spot
from .keys import Keys
from .kinds import ALL_KINDS
from .layers import (
    ALIGNMENT,
    INTERSECTION,
    KERNEL_ABI,
    WHOLE_BLOCK,
    BoundarySet,
    intersect,
    kernel_abi,
    whole_block,
)

if TYPE_CHECKING:
    from .manager import Manager


@dataclass(frozen=True, slots=True)
class Request:
    """Keys of a prompt and its length in tokens; None: the tokens that the keys cover."""

    keys: Keys | None
    tokens: int | None
    digests: list[bytes] | None = None
    salt: bytes = b""

    @classmethod
    def from_claim(cls, claim: Claim, tokens: int) -> Request:
        """The request behind an answer."""
        return cls(None, tokens, claim.digests, claim.salt)

    def chain(self) -> tuple[list[bytes], bytes]:
        """Digests and salt."""
        if self.keys is not None:
            return self.keys.digests, self.keys.salt
        return self.digests or [], self.salt

    def length(self) -> int:
        """Prompt length in tokens."""
        if self.tokens is not None:
            return self.tokens
        return self.keys.tokens if self.keys is not None else 0


@dataclass(frozen=True, slots=True)
class _Found:
    """What memory holds for one request, in granules: the end of the chain in the index, and lengths by kind."""

    spot: Spot
    ready: dict[str, int]
    live: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Said:
    """What memory answers to some requests: granules that can be read now, and what each kind says."""

    found: list[_Found]
    now: int
    exact: bool
    objects: dict[str, ObjectAnswer]
    claims: tuple[Claim, ...]
    epoch: int
    rebuild: range | None = None


class Matcher:
    """Answers matches for a manager.

    Args:
        manager: whose caches.
        misaligned: what the alignment layer found when the arenas were made; None when all fit.
    """

    def __init__(self, manager: Manager, misaligned: str | None) -> None:
        self._manager = manager
        self._misaligned = misaligned

    def match(
        self, requests: tuple[Request, ...], asks: Mapping[str, str] | None, draft: int, at_most: int | None
    ) -> Answer:
        """See ``Manager.match_shared``."""
        manager = self._manager
        cap, skip = self._limits(requests, draft, at_most)
        with manager.lock:
            said = self._memory(requests, asks, cap, skip)
        if isinstance(said, Answer):
            return said
        plan = None
        if len(requests) == 1 and said.now < cap - skip and self._elsewhere(said.found[0]):
            plan = self._plan(requests[0], said.found[0], cap - skip, said.now)
            if plan is not None and not plan.wanted and not plan.expand:  # what lacked has come meanwhile
                return self.match(requests, asks, draft, at_most)
            with manager.lock:
                if manager.epoch != said.epoch:
                    what = f"epoch {said.epoch} ended while the store was asked; match again"
                    return replace(self._refused(Reason.EPOCH, INTERSECTION, what), kind=AnswerKind.RETRY)
                if plan is not None:
                    plan = replace(plan, ticket=manager.loader.bringing(plan))
            if manager.store is not None:
                said.objects["ondisk_prefix"] = ObjectAnswer("MISS", 0, None)
        return self._answer(plan, cap, said)

    def in_memory(self, request: Request, at_most: int | None = None) -> Answer:
        """What memory alone holds of one request, without a question to the store. The caller holds the lock.

        A HIT or a MISS, whose claims ``acquire_now`` takes in the same step, or a REJECT as of ``match``; ``at_most``
        as there.
        """
        cap, skip = self._limits((request,), 0, at_most)
        said = self._memory((request,), None, cap, skip)
        return said if isinstance(said, Answer) else self._answer(None, cap, said)

    def _memory(
        self, requests: tuple[Request, ...], asks: Mapping[str, str] | None, cap: int, skip: int
    ) -> Answer | _Said:
        """The four layers over what memory holds, or the answer where one of them refuses. Under the lock."""
        manager, granule, layers = self._manager, self._manager.profile.granule, self._manager.layers
        manager.drop_expired()
        for request in requests:
            keys = request.keys
            if keys is not None and (keys.granule, keys.identity) != (granule, manager.profile.identity):
                what = f"keys of {keys.identity!r} at granule {keys.granule}"
                return self._refused(Reason.IDENTITY, WHOLE_BLOCK, what)
        layers.count(WHOLE_BLOCK, bool(cap))
        if not cap:
            shortest = min((request.length() for request in requests), default=0)
            detail = f"a prompt of {shortest} tokens holds no granule of A={granule} before its last token"
            return self._nothing(AnswerKind.MISS, Reason.GRANULE, WHOLE_BLOCK, detail)
        wrong = kernel_abi(manager.profile.layouts, asks) if asks is not None else None
        layers.count(KERNEL_ABI, wrong is None)
        if wrong is not None:
            return self._refused(Reason.LAYOUT, KERNEL_ABI, wrong)
        found = [self._look(request, cap) for request in requests]
        now = self._joint(found, cap, skip)
        layers.count(INTERSECTION, now == cap - skip)
        layers.count(ALIGNMENT, self._misaligned is None)
        if self._misaligned is not None:
            return self._refused(Reason.ALIGN, ALIGNMENT, self._misaligned)
        claims = tuple(self._claim(request, one, now) for request, one in zip(requests, found, strict=True))
        exact = not any(manager.core.lossy_before(one.spot, now) for one in found)
        objects = self._objects(found, cap, now) | (self._evicted(requests, found, cap) if not now else {})
        rebuild = self._rebuildable(found[0], cap - skip, now) if len(found) == 1 else None
        return _Said(found, now, exact, objects, claims, manager.epoch, rebuild)

    def _rebuildable(self, one: _Found, most: int, now: int) -> range | None:
        """Granules whose indexer keys could be computed anew from entries that can be read, for a longer hit."""
        core = self._manager.core
        ready, entries = one.ready.get("indexer_state"), one.ready.get("compressed_kv")
        if ready is None or entries is None or entries <= ready:
            return None
        sets = [_trailing(self._manager, trail, one.spot) for trail in range(len(core.trailing))]
        stop = intersect(min(most, entries), sets)
        return range(ready, stop) if stop > max(now, ready) else None

    def holds(self, claim: Claim, boundary: int) -> bool:
        """Whether what was found up to a boundary, in granules, is there still.

        The caller holds the lock, and has dropped what has ended: what he has found before stays as it is.
        """
        core = self._manager.core
        spot = core.index.locate(claim.digests, boundary)
        if spot.at < boundary or any(legal(boundary) != boundary for legal in self.boundary_sets(spot)):
            return False
        return all(
            core.last_slot(kind, spot, boundary) == slot and core.pools[kind].generation(slot) == generation
            for kind, slot, generation in claim.handles
        )

    def _refused(self, reason: Reason, layer: str, detail: str) -> Answer:
        return self._nothing(AnswerKind.REJECT, reason, layer, detail)

    def _nothing(self, kind: AnswerKind, reason: Reason, layer: str, detail: str) -> Answer:
        """An answer that no cache was asked for."""
        return Answer(kind, 0, 0, True, None, reason, layer, detail, self._absent(), maker=self._manager.mark)

    def boundaries(self, request: Request, draft: int, at_most: int | None) -> npt.NDArray[np.int64]:
        """See ``Manager.boundaries``."""
        core = self._manager.core
        cap, skip = self._readable(request, draft, at_most)
        with self._manager.lock:
            self._manager.drop_expired()
            one = self._look(request, cap)
            most = max(0, min((cap, *one.ready.values())) - skip)
            legal = np.zeros(most, np.int64)
            for trail in range(len(core.trailing)):
                legal[core.index.boundaries(trail, one.spot, most) - 1] += 1
        return np.flatnonzero(legal == len(core.trailing)) + 1

    def loadable(self, request: Request, draft: int, at_most: int | None) -> npt.NDArray[np.int64]:
        """See ``Manager.loadable``."""
        cap, skip = self._readable(request, draft, at_most)
        with self._manager.lock:
            self._manager.drop_expired()
            one = self._look(request, cap)
        return np.flatnonzero(self._loadable(request, one, max(0, cap - skip), 0)[0])

    def _readable(self, request: Request, draft: int, at_most: int | None) -> tuple[int, int]:
        """The limits of one request; 0 granules where the arenas are misaligned."""
        cap, skip = self._limits((request,), draft, at_most)
        return (cap if self._misaligned is None else 0), skip

    def _limits(self, requests: tuple[Request, ...], draft: int, at_most: int | None) -> tuple[int, int]:
        """The most granules that all of some requests may reuse, and the draft's share."""
        check_whole("draft", draft, "a number of tokens")
        for name, value in (("at_most", at_most), *(("tokens", one.tokens) for one in requests)):
            if value is not None:
                check_whole(name, value, "a number of tokens, or None")
        if draft < 0 or (at_most is not None and at_most < 0):
            raise ValueError(f"draft={draft}, at_most={at_most}; give numbers of tokens, 0 or more")
        granule = self._manager.profile.granule
        limits = [min(whole_block(request.length(), granule), len(request.chain()[0])) for request in requests]
        cap = min(limits, default=0)
        if at_most is not None:
            cap = min(cap, at_most // granule)
        return cap, -(-draft // granule)

    def boundary_sets(self, spot: Spot) -> list[BoundarySet]:
        """The boundaries that can be read at once, a set a kind. The caller holds the lock."""
        core = self._manager.core
        sets: list[BoundarySet] = []
        for n in range(len(core.paged)):
            sets.append(_prefix(core.index.ready(n, spot)))
        for trail in range(len(core.trailing)):
            sets.append(_trailing(self._manager, trail, spot))
        return sets

    def _look(self, request: Request, cap: int) -> _Found:
        core = self._manager.core
        spot = core.index.locate(request.chain()[0], cap)
        ready = {kind: core.index.ready(n, spot) for n, kind in enumerate(core.paged)}
        live = {kind: core.index.live(n, spot) for n, kind in enumerate(core.paged)}
        return _Found(spot, ready, live)

    def _joint(self, found: list[_Found], cap: int, skip: int) -> int:
        """The joint boundary in granules; the draft's share is taken once, before the windows are asked."""
        chains = min((length for one in found for length in one.ready.values()), default=cap)
        sets = [legal for one in found for legal in self.boundary_sets(one.spot)]
        return intersect(max(0, min(cap, chains) - skip), sets)

    def _claim(self, request: Request, one: _Found, now: int) -> Claim:
        core, handles = self._manager.core, []
        for kind in core.kinds if now else ():
            slot = core.last_slot(kind, one.spot, now)
            handles.append((kind, slot, core.pools[kind].generation(slot)))
        digests, salt = request.chain()
        return Claim(digests, salt, tuple(handles), self._manager.mark)

    def _objects(self, found: list[_Found], cap: int, now: int) -> dict[str, ObjectAnswer]:
        """What each kind says by itself."""
        manager, core = self._manager, self._manager.core
        objects = self._absent()
        if now == cap:  # then no kind holds less
            full = ObjectAnswer("HIT", now * manager.profile.granule, "memory")
            return objects | dict.fromkeys(core.kinds, full) | self._replayed(now)
        for kind in ALL_KINDS:
            if kind in core.paged:
                live, ready = (min(lengths[kind] for lengths in side) for side in _sides(found))
                packed = kind == "compressed_kv" and live > ready and ready == now
                objects[kind] = self._object(ready, now, "PACKED" if packed else None, "packed" if packed else "memory")
            elif kind in core.trailing:
                trail = core.trailing.index(kind)
                sets = [_trailing(manager, trail, one.spot) for one in found]
                objects[kind] = self._object(intersect(cap, sets), now, None, "memory")
        return objects | self._replayed(now)

    def _evicted(self, requests: Sequence[Request], found: list[_Found], cap: int) -> dict[str, ObjectAnswer]:
        """The kinds that a request misses and had: their eviction left a tombstone."""
        core, said = self._manager.core, ObjectAnswer("EVICTED", 0, None)
        kinds = set()
        for kind, stones in core.tombstones.items():
            for request, one in zip(requests, found, strict=True):
                digests = request.chain()[0][:cap]
                if kind in core.paged:
                    gone = stones.first(digests, one.live[kind])
                else:
                    gone = stones.any(digests, core.index.last(core.trailing.index(kind), one.spot, cap), cap)
                kinds |= {kind} if gone else set()
        return dict.fromkeys(kinds, said)

    def _replayed(self, now: int) -> dict[str, ObjectAnswer]:
        """What the window says where the policy keeps none."""
        core = self._manager.core
        said = ObjectAnswer("REPLAY" if now else "MISS", 0, None)
        return {kind: said for kind in core.pools if kind not in core.kinds}

    def _object(self, length: int, now: int, verdict: str | None, tier: str) -> ObjectAnswer:
        said = verdict or ("HIT" if now else "MISS")
        return ObjectAnswer(said, length * self._manager.profile.granule, None if said == "MISS" else tier)

    def _absent(self) -> dict[str, ObjectAnswer]:
        pools = self._manager.core.pools
        objects = {kind: ObjectAnswer("MISS" if kind in pools else "ABSENT", 0, None) for kind in ALL_KINDS}
        objects["ondisk_prefix"] = ObjectAnswer("UNASKED" if self._manager.store is not None else "ABSENT", 0, None)
        return objects

    def _elsewhere(self, one: _Found) -> bool:
        """Whether more may be found in the store, or packed."""
        return self._manager.store is not None or one.live != one.ready

    def _plan(self, request: Request, one: _Found, most: int, now: int) -> Plan | None:
        """What to load or expand for a longer hit; None when nothing would make it longer."""
        core = self._manager.core
        legal, held = self._loadable(request, one, most, now)
        if not legal.any():
            return None
        boundary = int(np.flatnonzero(legal)[-1])
        wanted: dict[str, npt.NDArray[np.int64]] = {}
        for kind in core.paged:
            wanted[kind] = np.arange(min(_held_to(one, kind), boundary), boundary)
        for kind in core.trailing:
            low = core.index.specs[core.trailing.index(kind)].first(now + 1)
            places = core.places(kind, boundary)
            wanted[kind] = places[~held[kind][places - low]]
        kv_ready, kv_live = one.ready.get("compressed_kv", 0), one.live.get("compressed_kv", 0)
        expand = range(kv_ready, min(kv_live, boundary))
        digests, salt = request.chain()
        claim = Claim(digests, salt, (), self._manager.mark)
        wanted = {kind: places for kind, places in wanted.items() if len(places)}
        return Plan(claim, boundary, wanted, expand, request.length(), most)

    def _loadable(
        self, request: Request, one: _Found, most: int, now: int
    ) -> tuple[npt.NDArray[np.bool_], dict[str, npt.NDArray[np.bool_]]]:
        """Which boundaries in (now, most] memory and store have together, bool by boundary from 0; and ``_held``."""
        manager, core = self._manager, self._manager.core
        digests, salt = request.chain()
        best = most
        for kind in core.paged:
            have = _held_to(one, kind)
            if have < most and manager.store is not None:
                stored = self._contains(digests, salt, kind, np.arange(have, most))
                have += int(np.argmin(stored)) if not stored.all() else len(stored)
            best = min(best, have)
        legal = np.ones(best + 1, np.bool_)
        with manager.lock:
            held = {kind: self._held(kind, one.spot, now, best) for kind in core.trailing}
        for kind in core.trailing:
            spec = core.index.specs[core.trailing.index(kind)]
            low = spec.first(now + 1)
            here = held[kind]
            if manager.store is not None and not here.all():
                gaps = np.flatnonzero(~here)
                here = here.copy()
                here[gaps] = self._contains(digests, salt, kind, gaps + low)
            boundaries = np.arange(now + 1, best + 1)
            first = np.maximum(0, boundaries * spec.per - spec.need) if spec.blocks else boundaries
            gaps_before = np.concatenate(([0], np.cumsum(~here)))
            stop = spec.stop(boundaries)
            legal[now + 1 :] &= gaps_before[stop - low] == gaps_before[first - low]
        legal[: now + 1] = False
        return legal, held

    def _held(self, kind: str, spot: Spot, now: int, best: int) -> npt.NDArray[np.bool_]:
        """Which places are in memory, from the first of boundary ``now + 1`` to the last of ``best``."""
        index = self._manager.core.index
        trail = self._manager.core.trailing.index(kind)
        spec = index.specs[trail]
        low, high = spec.first(now + 1), spec.stop(best)
        here = np.zeros(max(0, high - low), np.bool_)
        segment: Segment | None = spot.segment
        while segment is not None:
            trailing = segment.trails[trail]
            if trailing is not None:
                places = trailing.everything()[0]
                known = places < spec.stop(spot.at)
                here[places[known & (places >= low) & (places < high)] - low] = True
            segment = segment.parent
        return here

    def _contains(
        self, digests: list[bytes], salt: bytes, kind: str, places: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        manager = self._manager
        if manager.store is None or not len(places):
            return np.zeros(len(places), np.bool_)
        names = manager.object_of(digests, salt, kind, places)
        stored = manager.store.contains(names)
        attempts = manager.loader.attempts
        if attempts.failing:
            stored = stored & np.fromiter(map(attempts.usable, names), np.bool_, len(names))
        return stored

    def _answer(self, plan: Plan | None, cap: int, said: _Said) -> Answer:
        manager, granule = self._manager, self._manager.profile.granule
        now, objects = said.now, said.objects
        length = plan.boundary if plan is not None else now
        replay = manager.core.replay(length * granule) if length else None
        for kind, one in objects.items():
            if one.verdict == "MISS" and 0 < length * granule <= one.length:
                objects[kind] = replace(one, verdict="HIT", tier="memory")  # it waits for the others
        if plan is not None:
            for kind, places in plan.wanted.items():
                objects[kind] = ObjectAnswer("PENDING", objects[kind].length, "store" if len(places) else "memory")
            if plan.wanted:
                objects["ondisk_prefix"] = ObjectAnswer("HIT", plan.boundary * granule, "store")
        rebuild = None
        if plan is None and said.rebuild is not None:
            rebuild = range(said.rebuild.start * granule, said.rebuild.stop * granule)
            objects["indexer_state"] = ObjectAnswer("REBUILD", rebuild.start, "memory")
        reason, detail = None, f"{length} granules of A={granule}"
        if length < cap:
            reason = Reason.INTERSECT
            known = ", ".join(f"{kind} {one.length}" for kind, one in objects.items() if one.verdict != "ABSENT")
            detail = f"{length * granule} of at most {cap * granule} tokens (A={granule}); each alone: {known}"
        kind = AnswerKind.HIT if now else AnswerKind.MISS
        if plan is not None:
            kind = AnswerKind.HIT_PENDING
        return Answer(
            kind,
            length * granule,
            now * granule,
            said.exact and replay is None,
            replay,
            reason,
            INTERSECTION if reason else ALIGNMENT,
            detail,
            objects,
            plan,
            said.claims,
            rebuild,
            self._manager.mark,
        )


def _held_to(one: _Found, kind: str) -> int:
    """Granules of a paged kind that need not be loaded: packed KV is there, indexer keys of other entries are not."""
    return one.ready[kind] if kind == "indexer_state" else one.live[kind]


def _prefix(length: int) -> BoundarySet:
    """All boundaries up to a length."""
    return lambda at_most: min(at_most, length)


def _trailing(manager: Manager, trail: int, spot: Spot) -> BoundarySet:
    """The boundaries at which a trailing kind is valid."""
    return lambda at_most: manager.core.index.last(trail, spot, at_most)


def _sides(found: list[_Found]) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    return [one.live for one in found], [one.ready for one in found]
