"""Slots without a manager: one slot a granule for each object, in order, over real arenas.

They have the face that the adapter sees of a fill and of a lease, so that the adapter can be tested by itself, and
bytes can be damaged where a manager would never damage them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvfsm.runtime.arena import Arena
from kvfsm.runtime.profile import Profile

TRAILING = ("uncompressed_tail", "swa_window")


class PlainStore:
    """Arenas for prompts of at most ``granules`` granules; slot g of an object belongs to granule g."""

    def __init__(self, profile: Profile, granules: int) -> None:
        self.profile = profile
        self.arenas = {
            kind: Arena(layout, granules * self.slots_a_granule(kind)) for kind, layout in profile.layouts.items()
        }

    def slots_a_granule(self, kind: str) -> int:
        blocks = self.profile.window_block if kind == "swa_window" else None
        return self.profile.granule // blocks if blocks else 1

    def fill(self, granule: int) -> PlainFill:
        return PlainFill(self, granule)

    def lease(self, length: int) -> PlainLease:
        return PlainLease(self, length)


class PlainFill:
    def __init__(self, store: PlainStore, granule: int) -> None:
        self.store = store
        self.granule = granule
        self.slots = 1
        self.boundary = (granule + 1) * store.profile.granule
        self.kinds = store.profile.kinds
        self.manager = store  # what the adapter asks of a manager is its profile

    def view(self, kind: str, part: str, layer: int) -> NDArray[np.uint8]:
        each = self.store.slots_a_granule(kind)
        arena = self.store.arenas[kind]
        return arena.part(arena.layout.part(part, layer))[
            (self.granule + 1 - self.slots) * each : (self.granule + 1) * each
        ]


class PlainLease:
    def __init__(self, store: PlainStore, length: int) -> None:
        self.store = store
        self.length = length
        self.manager = store
        self.reads = 0
        self.replay: range | None = None

    def view(self, kind: str, part: str, layer: int) -> NDArray[np.uint8]:
        self.reads += 1
        each = self.store.slots_a_granule(kind)
        arena = self.store.arenas[kind]
        last = self.length // self.store.profile.granule * each
        first = 0
        if kind == "swa_window":
            first = last - self.store.profile.window_slots
        elif kind == "uncompressed_tail":
            first = last - 1
        return arena.part(arena.layout.part(part, layer))[max(first, 0) : last]
