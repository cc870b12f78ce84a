"""Live requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .manager import Manager


class RequestTable:
    """Live requests of a manager."""

    def __init__(self, manager: Manager, rows: int) -> None:
        self._manager = manager

    def count_pins(self, kind: str, pins: npt.NDArray[np.int64]) -> None:
        """Add the pins that live requests hold."""

    def slots(self, kind: str) -> npt.NDArray[np.intp]:
        """Slots that live requests own."""
        return np.empty(0, np.intp)
