"""Small arrays on their way to launches: sent together, by one copy, into memory that was made before."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..runtime.arena import REMOTE_ALIGNMENT
from .launch import Launcher, Pointer


class Outbox:
    """A buffer of so many bytes in a launcher's memory. What was sent is good until the next ``send``.

    Copies go in the order of launches, so a launch reads what was sent before it, whatever is sent after it.
    """

    def __init__(self, launcher: Launcher, size: int) -> None:
        self._buffer = launcher.empty((size,), np.uint8)

    def send(self, *arrays: npt.NDArray[Any]) -> tuple[Pointer, ...]:
        """Where each array lies then.

        Raises:
            LaunchRefused: together they are larger than the outbox.
        """
        sizes = [-(-array.nbytes // REMOTE_ALIGNMENT) * REMOTE_ALIGNMENT for array in arrays]
        together = np.zeros(sum(sizes), np.uint8)
        found, at = [], 0
        for array, size in zip(arrays, sizes, strict=True):
            together[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            found.append(Pointer(self._buffer.pointer.skip(at).address, array.nbytes))
            at += size
        self._buffer.write(together)
        return tuple(found)
