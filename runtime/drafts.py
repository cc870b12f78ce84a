"""How many draft tokens a live request has room for, so that rejecting them leaves it exactly as it was (S18).

The device writes drafts to the places of the positions after the last committed token:

    granule table   the entry of its block, past those of committed tokens
    window          as ``RequestTable.resolve`` says
    tail            row ``position % max(ratio, rows)`` of a part with ``rows`` pending rows; the token that ends a
                    stretch of ``ratio`` needs none where that row isn't there

It leaves the tail's carry alone until drafts are accepted. So drafts overwrite nothing of committed tokens as long as
positions from the start of the unfinished stretch to the last draft, and those that the window still reads, have rows
of their own; there are as many more as a profile declares rows for.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .live_rows import LiveRows, Rows
from .live_window import LiveWindow
from .profile import Profile

Numbers = npt.NDArray[np.int64]


class DraftRoom:
    """Room for drafts in the tail and the window of one model; paged kinds have as much as their pools."""

    def __init__(self, rows: LiveRows, window: LiveWindow | None) -> None:
        self._rows = rows
        self._window = window
        self._periods = _periods(rows.manager.profile)

    def of(self, rows: Rows) -> tuple[Numbers, Numbers]:
        """Tokens past the last committed one that (the tail, the window) of each row has room for, int64 [rows] each.

        As many as there can be tokens where the model has no tail, or no window.
        """
        now = self._rows.tokens[rows]
        tail, window = np.full(len(rows), _MANY), np.full(len(rows), _MANY)
        for ratio, period in self._periods.items():
            tail = np.minimum(tail, now // ratio * ratio + period - now)
        if self._window is not None:
            window = self._window.room(rows)
        return tail, window


_MANY = np.int64(np.iinfo(np.int64).max)


def _periods(profile: Profile) -> Mapping[int, int]:
    """Positions after which a row of the tail is used again, by ratio."""
    if "uncompressed_tail" not in profile.kinds:
        return {}
    rows: dict[tuple[int, int, str], int] = {}
    for part in profile.layouts["uncompressed_tail"].parts:
        if part.role == "pending":  # pages of a tensor are name.0, name.1, ...
            one = part.ratio, part.layer, part.name.partition(".")[0]
            rows[one] = rows.get(one, 0) + part.rows
    periods: dict[int, int] = {}
    for (ratio, _, _), count in rows.items():
        periods[ratio] = max(ratio, min(count, periods.get(ratio, count)))
    return periods
