"""Draft tokens of live requests: room beyond the committed ones, such that rejecting them leaves no trace (S18).

The device writes drafts to the places of the positions after the last committed token:

    granule table   the entry of its block, past those of committed tokens
    window          as ``RequestTable.resolve`` says
    tail            as ``pending_row`` says

It leaves the tail's carry alone until drafts are accepted. So drafts overwrite nothing of committed tokens as long as
positions from the start of the unfinished stretch to the last draft, and those that the window still reads, have rows
of their own: ``drafts`` in a model's spec gives so many at every position, and without it there are what is left.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .answers import Reason
from .errors import Refused
from .kinds import Numbers
from .lease import Done
from .live_rows import LiveRows, Rows
from .live_window import LiveWindow
from .profile import Profile
from .row_slots import take_for


class Drafts:
    """Drafts of all rows of one table. The caller holds the manager's lock, and has checked the rows."""

    def __init__(self, rows: LiveRows, window: LiveWindow | None) -> None:
        self._rows = rows
        self._window = window
        self._periods = _periods(rows.manager.profile)

    def room(self, rows: Rows) -> tuple[Numbers, Numbers, Numbers]:
        """Tokens past the last committed one that (the tail, the window, the pools) of each row could ever have.

        int64 [rows] each. Where the model has no tail, or no window, they have as many as the pools.
        """
        now, core = self._rows.tokens[rows], self._rows.manager.core
        blocks = min((core.capacity(kind) for kind in self._rows.kinds), default=_MOST)
        pools = np.maximum(0, blocks * self._rows.granule - now)
        tail, window = pools, pools
        for ratio, period in self._periods.items():
            tail = np.minimum(tail, now // ratio * ratio + period - now)
        if self._window is not None:
            window = self._window.room(rows)
        return tail, window, pools

    def check(self, rows: Rows, counts: Numbers) -> None:
        """Raise Refused where drafts would overwrite what is needed at the committed tokens (GAP), or never have slots.

        That is CAPACITY: no table of the row is as wide.
        """
        tail, window, pools = self.room(rows)
        for row, fits, count in zip(rows.tolist(), pools.tolist(), counts.tolist(), strict=True):
            if count > fits:
                what = f"row {row} can have {fits} tokens more at the most, and {count} drafts are to come"
                raise Refused(Reason.CAPACITY, "pool", what)
        for kind, room in (("uncompressed_tail", tail), ("swa_window", window)):
            for row, fits, count in zip(rows.tolist(), room.tolist(), counts.tolist(), strict=True):
                if count > fits:
                    now = int(self._rows.tokens[row])
                    what = f"row {row} has room for {fits} drafts after {now} tokens, not for {count}"
                    more = "more `drafts:`" if kind == "uncompressed_tail" else "more `drafts:` or `retained:`"
                    fix = f"propose fewer, or generate the model's profile with {more}"
                    raise Refused(Reason.GAP, "requests", f"{what}: they would overwrite rows of its {kind}; {fix}")

    def open(self, rows: Rows, counts: Numbers) -> None:
        """Slots for so many drafts of each row, or nothing: raises Refused (POOL_FULL) without them."""
        state = self._rows
        ends = state.tokens[rows] + counts
        more = np.maximum(0, -(-ends // state.granule) - state.blocks[rows])
        slide = None if self._window is None else self._window.draft_slide(rows, ends)
        wanted = dict.fromkeys(state.kinds, np.repeat(rows, more)) if more.any() else {}
        if slide is not None and len(slide):
            wanted["swa_window"] = slide.rows
        slots = take_for(state, wanted)
        at = 0
        for row, blocks in zip(rows[more > 0].tolist(), more[more > 0].tolist(), strict=True):
            own = {kind: slots[kind][at : at + blocks] for kind in state.kinds}
            state.put_blocks(row, own, int(state.blocks[row]), int(state.blocks[row]) + blocks)
            at += blocks
        if self._window is not None and slide is not None:
            if len(slide):
                self._window.put_aside(slide, slots["swa_window"])
            self._window.reached(rows, ends)
        state.drafts[rows] = counts

    def settle(self, row: int, done: Done | None) -> None:
        """What is reserved beyond the committed tokens goes back."""
        state, now = self._rows, int(self._rows.tokens[row])
        if state.drafts[row]:
            state.drafts[row] = 0
            state.cut_blocks(row, -(-now // state.granule), done)
            if self._window is not None:
                self._window.settle_drafts(row, now, done)


def pending_row(ratio: int, rows: int, position: int) -> int | None:
    """The row of a token in a tensor of ``rows`` pending rows of a tail; None where it needs none.

    The token that ends a stretch of ``ratio`` is compressed with those before it at once, so ``ratio - 1`` rows do.

    >>> [pending_row(4, 3, position) for position in range(28, 33)]
    [0, 1, 2, None, 0]
    >>> [pending_row(4, 8, position) for position in range(28, 33)]
    [4, 5, 6, 7, 0]
    """
    row = position % max(ratio, rows)
    return row if row < rows else None


_MOST = 1 << 31  # granules, of a model without paged kinds: its tail or window bounds it


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
