"""Where the state of live requests lies: the tables that kernels read, and what is committed. Nothing changes here.

    granule table   paged kinds: [0, shared) pinned, [shared, blocks) owned, guard beyond
    tail            one slot a row: rows of the present window of the widest ratio, and the carry
    window          one slot a row whose rows form a ring, or a ring of blocks; the guard where there is none

The guard is no slot: nothing resolves to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .answers import Reason
from .errors import Refused
from .live_rows import GUARD, LiveRows
from .live_window import LiveWindow
from .pool import Slots

if TYPE_CHECKING:
    from .manager import Manager


class RowTables:
    """What kernels, admission and audits ask of a manager's rows.

    Args:
        manager: whose slots are used.
        rows: most live requests.
    """

    def __init__(self, manager: Manager, rows: int) -> None:
        self._manager = manager
        self._granule = manager.profile.granule
        self._rows = LiveRows(manager, rows)
        self._window = None if manager.profile.window is None else LiveWindow(self._rows, manager.profile)

    @property
    def idle(self) -> int:
        """Rows that hold no request and are promised to none: a reservation has one from the start."""
        return len(self.active) - int(np.count_nonzero(self.active)) - len(self._manager.reservations)

    @property
    def active(self) -> npt.NDArray[np.bool_]:
        """Which rows hold a request, bool [rows]."""
        return self._rows.active

    def incarnation(self, row: int) -> int:
        """How many requests a row has held: the number of the one that it holds, if it does."""
        return int(self._rows.incarnation[row])

    def holds(self, row: int, incarnation: int) -> bool:
        """Whether a row still holds the request of that number; not once it has ended, or its memory was voided."""
        return bool(self._rows.active[row]) and int(self._rows.incarnation[row]) == incarnation

    def open(self) -> list[tuple[int, str, str | None]]:
        """Row, owner and, in debug mode, calling site of each live request. The caller holds the manager's lock."""
        rows = self._rows
        return [(int(row), rows.owners[row], rows.sites[row]) for row in np.flatnonzero(rows.active)]

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """Committed tokens of each row, int64 [rows]."""
        return self._rows.tokens

    @property
    def drafts(self) -> npt.NDArray[np.int64]:
        """Open drafts of each row, int64 [rows]."""
        return self._rows.drafts

    @property
    def owners(self) -> list[str]:
        """Who asked for each row."""
        return self._rows.owners

    @property
    def stride(self) -> int:
        """Tokens after which words follow."""
        return self._rows.stride

    def table(self, kind: str, rows: npt.ArrayLike, width: int | None = None) -> npt.NDArray[np.int32]:
        """Slots of a paged kind by granule, int32 [rows, width]; the guard where there is none.

        ``width`` is that of the longest of these rows by default, its drafts included.
        """
        self._manager.lock.check()
        index, table = np.asarray(rows, np.intp), self._rows.tables[kind]
        blocks = self._rows.blocks[index]
        at = np.arange(int(blocks.max(initial=0)) if width is None else width)
        held = table[index[:, None], np.minimum(at, table.shape[1] - 1)]
        return np.where(at < blocks[:, None], held, np.int32(GUARD))

    def shared_tokens(self, rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Tokens at the start of each row whose blocks are the cache's, int64 [rows]: nobody writes to them."""
        self._manager.lock.check()
        return self._rows.shared[np.asarray(rows, np.intp)] * self._granule

    def is_lossy(self, row: int) -> bool:
        """Whether the row goes on from lossy state or from a replay."""
        self._manager.lock.check()
        return bool(self._rows.lossy[row])

    @property
    def window_width(self) -> int:
        """Entries of the window ring: block b of a row is at entry ``b % window_width``."""
        return 0 if self._window is None else self._window.width

    def window_table(self, rows: npt.ArrayLike, width: int | None = None) -> npt.NDArray[np.int32]:
        """Slots of the window ring, int32 [rows, width]; the guard past ``window_width`` and where no block is."""
        self._manager.lock.check()
        index = np.asarray(rows, np.intp)
        table = np.full((len(index), self.window_width if width is None else width), GUARD, np.int32)
        if self._window is not None:
            table[:, : self.window_width] = self._window.slots[index]
        return table

    def window_blocks(self, rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Number of the block at each entry of the window ring, int64 [rows, window_width]; the guard where is none."""
        self._manager.lock.check()
        index = np.asarray(rows, np.intp)
        return np.empty((len(index), 0), np.int64) if self._window is None else self._window.blocks[index]

    def tail_table(self, rows: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """Slot of each row's tail, int32 [rows], in the order of ``rows``; the guard where the model has none."""
        self._manager.lock.check()
        return self._rows.tail[np.asarray(rows, np.intp)]

    def resolve(self, row: int, position: int) -> tuple[int, int]:
        """Slot and row in it that hold a position: total on what the last token reads, and never padding.

        Positions of drafts resolve to where they are to be written.

        Raises:
            Refused: GAP for a position outside the window.
        """
        with self._manager.lock:
            self._rows.check(row)
            window, now = self._window, int(self._rows.tokens[row])
            end = now + int(self._rows.drafts[row])
            reach = 0 if window is None else end - window.rows if window.block is None else now - window.window
            low = max(0, reach)
            if window is None or not low <= position < end:
                what = f"position {position} is not in the window [{low}, {end}) of row {row}"
                raise Refused(Reason.GAP, "requests", what)
            if window.block is None:
                return self._slot(row, 0), position % window.rows
            block = position // window.block
            place = block % window.width
            if int(window.blocks[row, place]) != block:
                raise Refused(Reason.GAP, "requests", f"block {block} of row {row} has slid out of the window")
            return self._slot(row, place), position % window.block

    def resolve_entry(self, row: int, entry: int) -> int:
        """The slot at an entry of the window table.

        Raises:
            Refused: the entry is padding, or beyond the table.
        """
        with self._manager.lock:
            self._rows.check(row)
            return self._slot(row, entry)

    def count_pins(self, kind: str, pins: npt.NDArray[np.int64]) -> None:
        """Add the pins that live requests hold to ``pins`` [slots of the kind]."""
        if kind in self._rows.tables:
            for row in np.flatnonzero(self.active).tolist():
                pins[self._rows.tables[kind][row, : self._rows.shared[row]]] += 1

    def slots(self, kind: str) -> npt.NDArray[np.intp]:
        """Slots of a kind that live requests own."""
        state = self._rows
        if kind in state.tables:
            rows = np.flatnonzero(self.active).tolist()
            owned = [state.held(kind, row, int(state.shared[row]), int(state.blocks[row])) for row in rows]
            return np.concatenate(owned) if owned else np.empty(0, np.intp)
        if kind == "uncompressed_tail":
            tails: Slots = state.tail[state.tail != GUARD].astype(np.intp)
            return tails
        return np.empty(0, np.intp) if self._window is None else self._window.all_slots()

    def _slot(self, row: int, entry: int) -> int:
        width = self.window_width
        slot = int(self._window.slots[row, entry]) if self._window is not None and 0 <= entry < width else GUARD
        if slot == GUARD:
            raise Refused(Reason.GAP, "requests", f"entry {entry} of row {row}'s window table is padding")
        return slot
