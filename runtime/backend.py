"""Who moves bytes. The manager decides which slots; a backend copies, clears, packs and expands them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from .layout import Layout

Bytes = npt.NDArray[np.uint8]
Slots = npt.NDArray[np.intp] | npt.NDArray[np.int32]


class Backend(Protocol):
    """Kernels over an arena. ``arena`` is uint8 [slots, rows, row_bytes] or [slots, slot_bytes]; slots are unique."""

    def gather(self, arena: Bytes, slots: Slots) -> Bytes:
        """New array with the bytes of some slots, in their order."""
        ...

    def scatter(self, arena: Bytes, slots: Slots, data: Bytes) -> None:
        """Write data [n, ...] into some slots."""
        ...

    def scrub(self, arena: Bytes, slots: Slots) -> None:
        """Clear some slots."""
        ...

    def pack(self, layout: Layout, data: Bytes, lossy: bool) -> list[bytes]:
        """Cold form of slots' bytes uint8 [n, slot_bytes], one string each."""
        ...

    def expand(self, layout: Layout, packed: list[bytes]) -> Bytes:
        """Inverse of ``pack``, uint8 [n, slot_bytes].

        Raises:
            ValueError: a string that ``pack`` did not make for this layout.
        """
        ...
