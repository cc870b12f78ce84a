"""The NumPy backend, built of the references of the kernels: the meaning of each, byte for byte.

Also what every backend refuses: slots that an arena doesn't have, and rows that don't fit them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
        return gather(arena, slot_ids(arena, slots))

    def scatter(self, arena: Bytes, slots: Slots, data: Bytes) -> None:
        """Reads and writes n x slot bytes."""
        ids = slot_ids(arena, slots)
        scatter(arena, ids, fitting(arena, ids, data))

    def scrub(self, arena: Bytes, slots: Slots) -> None:
        """Writes n x slot bytes."""
        scrub(arena, slot_ids(arena, slots))

    def pack(self, layout: Layout, data: Bytes, lossy: bool = False) -> list[bytes]:
        """Reads n x slot bytes, writes what ``packed`` makes of them."""
        return pack_slots(layout, data, lossy)

    def expand(self, layout: Layout, packed: list[bytes]) -> Bytes:
        """Reads the packed bytes, writes n x slot bytes; bytes between parts come back as zeros."""
        return expand_slots(layout, packed)


def slot_ids(arena: Any, slots: npt.ArrayLike) -> npt.NDArray[np.intp]:
    """Some slots of an arena, or of remote bytes: whole numbers [n].

    Raises:
        IndexError: numbers that are no slots, or a mask.
    """
    ids = np.asarray(slots)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise IndexError(f"slots are given as {ids.dtype} {list(ids.shape)}; fix: pass a row of whole numbers")
    if ids.size and not 0 <= ids.min() <= ids.max() < len(arena):
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise IndexError(f"there is no slot {wrong} in an arena of {len(arena)}; fix: pass slots of [0, {len(arena)})")
    return ids.astype(np.intp, copy=False)


def fitting(arena: Any, ids: npt.NDArray[np.intp], data: npt.ArrayLike) -> Bytes:
    """``data`` if it has a row for each of these slots.

    Raises:
        ValueError: it is not uint8 [n, ...] as the slots are.
    """
    rows = np.asarray(data)
    if rows.dtype != np.uint8:
        raise ValueError(f"the bytes of slots are given as {rows.dtype}; fix: pass uint8, such as data.view(np.uint8)")
    check_shape(arena, ids, rows.shape)
    return rows


def check_shape(arena: Any, ids: npt.NDArray[np.intp], shape: Sequence[int]) -> None:
    """Raise ValueError unless rows of this shape go into some slots of an arena, one each."""
    wanted = [len(ids), *arena.shape[1:]]
    if list(shape) != wanted:
        raise ValueError(f"{len(ids)} slots are given rows of shape {list(shape)}; fix: pass {wanted}")
