"""Packing: compressed KV that is rarely read moves into a cold form, whose bytes no longer lie in the arena.

Chains are packed from their ends, so that along each chain what can be read at once comes first (the index's I4).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from . import publication
from .answers import Reason
from .backend import pack_slots
from .errors import Refused
from .keys import Keys
from .kinds import FORM_PACKED, CompressedKvRules

if TYPE_CHECKING:
    from .index import Segment, Spot
    from .manager import Manager
    from .pool import Slots


@dataclass(frozen=True, slots=True)
class Packing:
    """Slots that are packed just now: their number, the copies' slots, and in debug mode the call that began it."""

    number: int
    source: Slots
    copies: Slots
    site: str | None


class Packer:
    """Packs for a manager.

    Attributes:
        open: what is being packed just now; the index may not find its source any more.
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._numbers = itertools.count(1)
        self.open: list[Packing] = []

    def pack(self, keys: Keys, start: int, lossy: bool) -> int:
        """See ``Manager.pack``. Granules that other branches still read at once, or that are in use, stay."""
        digests = keys.digests
        manager, core = self._manager, self._manager.core
        if "compressed_kv" not in core.paged:
            return 0
        n, pool = core.paged.index("compressed_kv"), core.pools["compressed_kv"]
        layout = manager.profile.layouts["compressed_kv"]
        with manager.lock:
            spot = core.index.locate(digests, len(digests))
            low, high = self._range(n, core.index.climb(spot.segment, core.index.ready(n, spot)), start)
            if high <= low or high > spot.at:  # past spot.at another prompt goes on in the same segment
                return 0
            source = core.index.slots(n, spot, low, high).astype(np.intp)
            idle = (pool.table.fields("pins", source) == 0) & (pool.table.fields("holds", source) == 0)
            low += int(np.flatnonzero(~idle)[-1]) + 1 if not idle.all() else 0
            source = source[len(source) - (high - low) :]
            if not len(source):
                return 0
            if (room := len(pool) - pool.hot - pool.worn_cold) < len(source):
                what = f"{len(source)} packed copies, and there is room for {room}"
                raise Refused(Reason.CAPACITY, "pool", f"{what}; fix: Manager(cold={len(source)})")
            if pool.free_cold < len(source):
                core.sweep("compressed_kv")
                what = f"{len(source)} packed copies, {pool.free_cold} of {room} are free"
                if pool.free_cold < len(source):
                    raise Refused(Reason.POOL_FULL, "pool", what)
            rules = pool.rules
            assert isinstance(rules, CompressedKvRules)
            copies = pool.take(len(source), rules.take(FORM_PACKED), cold=True)
            before, made = pool.generations(source), pool.generations(copies)
            pool.sure("compress_begin", source, "S5", expected=before)
            self.open.append(packing := Packing(next(self._numbers), source, copies, manager.site()))
            self._set_ready(n, core.index.climb(spot.segment, high), low)
        try:
            blobs = pack_slots(manager.backend, pool.arena, source, lossy)
            if len(blobs) != len(source):
                raise ValueError(f"the backend packed {len(blobs)} of {len(source)} slots")
        except BaseException:
            with manager.lock:
                self._close(packing)
                spot = core.index.locate(digests, high)
                found = self._still_held(n, spot, low, source)
                pool.sure("compress_done", source, "S5", expected=before, ok=False)
                pool.release("abandon", copies, expected=made)
                core.retire("compressed_kv", source[~found])
                publication.advance(core, spot)
                core.offer(spot.segment, spot.at)
            raise
        with manager.lock:
            self._close(packing)
            versions = pool.table.fields("version", source)
            was_lossy = pool.table.fields("lossy", source).astype(bool)
            pool.sure("seal", copies, "S17", expected=made, layers=len(layout.layers), is_lossy=was_lossy | lossy)
            for slot, blob, version in zip(copies.tolist(), blobs, versions.tolist(), strict=True):
                core.cold_bytes[slot] = (blob, version)
            pool.inherit(copies, source)
            pool.release("compress_done", source, expected=before, ok=True)
            spot = core.index.locate(digests, high)
            found = self._still_held(n, spot, low, source)
            for granule in np.flatnonzero(found).tolist():
                copy = copies[granule : granule + 1].astype(np.int32)
                core.index.put(n, spot, low + granule, copy, core.index.ready(n, spot))
            core.retire("compressed_kv", copies[~found])
            core.offer(spot.segment, spot.at)
            return int(found.sum())

    def _close(self, packing: Packing) -> None:
        self.open = [one for one in self.open if one is not packing]

    def _still_held(self, n: int, spot: Spot, low: int, source: Slots) -> npt.NDArray[np.bool_]:
        """Which granules from ``low`` on the index still finds in their source slots.

        While bytes are packed, a chain may expire from any granule on, be published anew, or end with its epoch.
        """
        index = self._manager.core.index
        found = np.zeros(len(source), np.bool_)
        live = min(index.live(n, spot), low + len(source))
        if live > low:
            found[: live - low] = index.slots(n, spot, low, live) == source[: live - low]
        return found

    def _range(self, n: int, segment: Segment, start: int) -> tuple[int, int]:
        """Granules [low, high) that may be packed, ``segment`` holding the last that can be read at once."""
        high = segment.base + segment.ready[n]
        if any(kid.ready[n] for kid in segment.kids):
            return high, high
        low = segment.base
        while low > start and segment.parent is not None and segment.parent.parent is not None:
            above = segment.parent
            if sum(1 for kid in above.kids if kid.ready[n]) > 1:
                break
            segment, low = above, above.base
        return max(low, start), high

    def _set_ready(self, n: int, segment: Segment | None, ready: int) -> None:
        """Granules from ``ready`` on can no longer be read at once."""
        index = self._manager.core.index
        while segment is not None and segment.parent is not None and segment.base + segment.ready[n] > ready:
            index.set_ready(n, segment, max(0, ready - segment.base))
            segment = segment.parent
