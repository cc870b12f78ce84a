"""Slots of an arena, and rows for them, as a backend and the references are handed them: what is none is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def slot_ids(arena: Any, slots: npt.ArrayLike) -> npt.NDArray[np.intp]:
    """Some slots of an arena, or of remote bytes: whole numbers [n].

    Raises:
        IndexError: numbers that are no slots, or a mask.

    >>> slot_ids(np.zeros((4, 16), np.uint8), [2, 0])
    array([2, 0])
    """
    ids, count = np.asarray(slots), len(arena)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise IndexError(f"slots are given as {ids.dtype} {list(ids.shape)}; fix: pass a row of whole numbers")
    if ids.size and not 0 <= np.minimum.reduce(ids) <= np.maximum.reduce(ids) < count:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise IndexError(f"there is no slot {wrong} in an arena of {count}; fix: pass slots of [0, {count})")
    return ids.astype(np.intp, copy=False)


def fitting(arena: Any, ids: npt.NDArray[Any], data: npt.ArrayLike) -> Bytes:
    """``data`` if it has a row for each of these slots.

    Raises:
        ValueError: it is not uint8 [n, ...] as the slots are.
    """
    rows = np.asarray(data)
    if rows.dtype != np.uint8:
        raise ValueError(f"the bytes of slots are given as {rows.dtype}; fix: pass uint8, such as data.view(np.uint8)")
    check_shape(arena, ids, rows.shape)
    return rows


def check_shape(arena: Any, ids: npt.NDArray[Any], shape: Sequence[int]) -> None:
    """Raise ValueError unless rows of this shape go into some slots of an arena, one each."""
    wanted = [len(ids), *arena.shape[1:]]
    if list(shape) != wanted:
        raise ValueError(f"{len(ids)} slots are given rows of shape {list(shape)}; fix: pass {wanted}")
