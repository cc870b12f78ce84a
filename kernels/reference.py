"""The NumPy backend, built of the references of the kernels: the meaning of each, byte for byte."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..runtime.layout import Layout
from .copies import gather, scatter, scrub
from .packed_slot import expand_slots, pack_slots

Bytes = npt.NDArray[np.uint8]
Slots = npt.NDArray[np.intp] | npt.NDArray[np.int32]


class NumpyBackend:
    """Kernels on host memory."""

    def gather(self, arena: Bytes, slots: Slots) -> Bytes:
        """Reads and writes n x slot bytes."""
        return gather(arena, slots)

    def scatter(self, arena: Bytes, slots: Slots, data: Bytes) -> None:
        """Reads and writes n x slot bytes."""
        scatter(arena, slots, data)

    def scrub(self, arena: Bytes, slots: Slots) -> None:
        """Writes n x slot bytes."""
        scrub(arena, slots)

    def pack(self, layout: Layout, data: Bytes, lossy: bool = False) -> list[bytes]:
        """Reads n x slot bytes, writes what ``packed`` makes of them."""
        return pack_slots(layout, data, lossy)

    def expand(self, layout: Layout, packed: list[bytes]) -> Bytes:
        """Reads the packed bytes, writes n x slot bytes; bytes between parts come back as zeros."""
        return expand_slots(layout, packed)
