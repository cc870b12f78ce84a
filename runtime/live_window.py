"""The window of each live request: one slot whose rows form a ring, or a ring of blocks.

    one slot     position p is row ``p % rows`` of the slot; older rows are overwritten
    blocks       block b is at entry ``b % width``; the block that was there has slid out

Drafts use both ahead of what is committed. A draft's block comes into the ring at once, because kernels look there, and
the one that it replaces is kept *aside* until it is known whether the draft stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .kinds import Numbers
from .lease import Done
from .live_rows import GUARD, LiveRows, Rows
from .pool import Slots
from .profile import Profile

KIND = "swa_window"
_NONE = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class Slide:
    """Blocks that come into rings: block ``blocks[i]`` of row ``rows[i]``, at entry ``places[i]``.

    ``leaving[i]`` is the slot at that entry now; the guard where there is none.
    """

    rows: Rows
    blocks: Numbers
    places: Numbers
    leaving: Slots

    def __len__(self) -> int:
        return len(self.rows)


class LiveWindow:
    """Windows of all live requests. The caller holds the manager's lock.

    Attributes:
        window: tokens that a query reads, its own included.
        rows: rows of the ring, where that is one slot.
        block: tokens of a block; None where the ring is one slot.
        width: entries of the ring.
        slots: int32 [rows of requests, width]; the guard where there is none.
        blocks: int64 of the same shape: the number of the block at each entry.
    """

    def __init__(self, rows: LiveRows, profile: Profile) -> None:
        self._rows = rows
        self.window = profile.window or 1
        self.rows = self.window - 1 + profile.retained
        self.block = profile.window_block
        self.width = 1 if self.block is None else profile.window_slots + 1
        shape = len(rows.active), self.width
        self.slots = np.full(shape, GUARD, np.int32)
        self.blocks = np.full(shape, GUARD, np.int64)
        self._aside = np.full(shape, GUARD, np.int32)
        self._aside_blocks = np.full(shape, GUARD, np.int64)
        self._drafted = np.zeros(shape, np.bool_)  # came in for drafts
        self._reach = np.zeros(len(rows.active), np.int64)  # tokens once written, also where they were taken back

    def need(self, tokens: int) -> int:
        """Slots that a row of ``tokens`` tokens holds."""
        return 1 if self.block is None else min(-(-tokens // self.block), self.width)

    # ---- what comes in --------------------------------------------------------------------------------------------

    def slide_for(self, rows: npt.NDArray[Any], blocks: npt.NDArray[Any]) -> Slide:
        """What comes in, and leaves, so that each row has its block; pairs that are there already stay out."""
        places = blocks % self.width
        missing = self.blocks[rows, places] != blocks
        rows, blocks, places = rows[missing], blocks[missing], places[missing]
        return Slide(rows.astype(np.intp), blocks, places, self.slots[rows, places].astype(np.intp))

    def next_slide(self, rows: Rows) -> Slide:
        """The slide for each row's next token."""
        if self.block is None:
            return self.slide_for(_NONE, _NONE)
        at = self._rows.tokens[rows]
        begin = at % self.block == 0
        return self.slide_for(rows[begin], at[begin] // self.block)

    def final_slide(self, row: int, stop: int) -> Slide:
        """The slide with which the window of a row ends at ``stop`` tokens."""
        if self.block is None:
            return self.slide_for(_NONE, _NONE)
        last = -(-stop // self.block)
        blocks = np.arange(last - self.need(stop), last)
        return self.slide_for(np.full(len(blocks), row, np.intp), blocks)

    def put(self, slide: Slide, slots: Slots) -> None:
        """The blocks of a slide come in; what they replace is the caller's."""
        self.slots[slide.rows, slide.places], self.blocks[slide.rows, slide.places] = slots, slide.blocks

    def put_aside(self, slide: Slide, slots: Slots) -> None:
        """The same; what they replace stays with the row, aside."""
        where = slide.rows, slide.places
        self._aside[where], self._aside_blocks[where] = self.slots[where], self.blocks[where]
        self._drafted[where] = True
        self.put(slide, slots)

    def begin(self, row: int, slots: Slots, tokens: int) -> None:
        """A row of ``tokens`` tokens has these slots."""
        self._reach[row] = 0
        if self.block is None:
            self.slots[row, 0] = slots[0]
        else:
            self.put(self.final_slide(row, tokens), slots)
        self.written(row, 0, tokens)

    def copies(self, row: int, held: Slots, boundary: int) -> tuple[Slots, Slots]:
        """(targets, sources) for leased slots ``held`` that end at ``boundary`` tokens, as far as the row is there."""
        if self.block is None:
            return self.slots[row, :1].astype(np.intp), held
        last = boundary // self.block
        blocks = np.arange(last - len(held), last)
        there = self.blocks[row, blocks % self.width] == blocks
        return self.slots[row, blocks[there] % self.width].astype(np.intp), held[there]

    def held(self, row: int, blocks: Numbers) -> npt.NDArray[np.int32]:
        """Slots of some blocks, those set aside included; the guard where the row has none. One slot is block 0."""
        places = blocks % self.width
        aside = np.where(self._aside_blocks[row, places] == blocks, self._aside[row, places], np.int32(GUARD))
        there = (self.blocks[row, places] == blocks) | (self.block is None)
        return np.where(there, self.slots[row, places], aside)

    # ---- how far the words are ------------------------------------------------------------------------------------

    def slide(self, rows: Rows, tokens: Numbers) -> None:
        """Words follow where a block, or a granule, ends at a row's ``tokens``."""
        span = self.block or self._rows.granule
        ended = tokens % span == 0
        if ended.any():
            rows, ends = rows[ended], tokens[ended] // span
            self._sure("slide", rows, 0 if self.block is None else (ends - 1) % self.width, ends)

    def written(self, row: int, start: int, stop: int) -> None:
        """The same for tokens [start, stop) of a prompt at once."""
        if self.block is None:
            self._sure("slide", np.array([row]), 0, np.array([stop // self._rows.granule]))
            return
        ended = (self.slots[row] != GUARD) & ((self.blocks[row] + 1) * self.block <= stop)
        ended &= (self.blocks[row] + 1) * self.block > start
        places = np.flatnonzero(ended)
        self._sure("slide", np.full(len(places), row), places, self.blocks[row, places] + 1)

    # ---- going back -----------------------------------------------------------------------------------------------

    def first(self, row: int, end: int) -> int:
        """The first position whose row is still there when positions up to ``end`` are written."""
        if self.block is None:
            return max(0, max(int(self._reach[row]), end) - self.rows)
        oldest = np.where(self._aside[row] != GUARD, self._aside_blocks[row], self.blocks[row])
        return int(oldest[oldest != GUARD].min()) * self.block

    def rewind(self, row: int, now: int, to: int, done: Done | None) -> None:
        """The row goes back from ``now`` to ``to`` tokens; no drafts are open."""
        self._reach[row] = max(int(self._reach[row]), now)
        if self.block is None:
            self._sure("rewind", np.array([row]), 0, to // self._rows.granule)
            return
        beyond = (self.blocks[row] * self.block >= to) & (self.slots[row] != GUARD)
        self._rows.give_up(KIND, self.slots[row, beyond], done)
        self.slots[row, beyond], self.blocks[row, beyond] = GUARD, GUARD
        if to % self.block:
            self._sure("rewind", np.array([row]), to // self.block % self.width, 0)

    # ---- drafts ---------------------------------------------------------------------------------------------------

    def room(self, rows: Rows) -> Numbers:
        """Tokens past each row's last one that leave alone what the next query reads, int64 [rows]."""
        now = self._rows.tokens[rows]
        oldest = np.maximum(0, now - self.window + 1)
        end = oldest + self.rows if self.block is None else (oldest // self.block + self.width) * self.block
        return np.maximum(0, end - now)

    def draft_slide(self, rows: Rows, stops: Numbers) -> Slide:
        """The slide for tokens from each row's last one up to ``stops``."""
        if self.block is None:
            return self.slide_for(_NONE, _NONE)
        first = self._rows.tokens[rows] // self.block
        counts = np.maximum(0, -(-stops // self.block) - first)
        blocks = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - first, counts)
        return self.slide_for(np.repeat(rows, counts), blocks)

    def reached(self, rows: Rows, ends: Numbers) -> None:
        """Positions up to ``ends`` are written, committed or not."""
        self._reach[rows] = np.maximum(self._reach[rows], ends)

    def settle_drafts(self, row: int, tokens: int, done: Done | None) -> None:
        """Drafts are decided: blocks that begin before ``tokens`` stay, and for the others the old ones come back."""
        drafted = self._drafted[row].copy()
        if self.block is None or not drafted.any():
            return
        back = drafted & (self.blocks[row] * self.block >= tokens)
        gone = np.where(back, self.slots[row], self._aside[row])[drafted]
        self._rows.give_up(KIND, gone[gone != GUARD], done)
        self.slots[row, back], self.blocks[row, back] = self._aside[row, back], self._aside_blocks[row, back]
        self._aside[row], self._aside_blocks[row], self._drafted[row] = GUARD, GUARD, False

    # ---- the end --------------------------------------------------------------------------------------------------

    def end(self, row: int, done: Done | None) -> None:
        """The row gives all of it back."""
        held = np.concatenate((self.slots[row], self._aside[row]))
        self._rows.give_up(KIND, held[held != GUARD], done)
        self.slots[row], self.blocks[row] = GUARD, GUARD
        self._aside[row], self._aside_blocks[row], self._drafted[row] = GUARD, GUARD, False

    def all_slots(self) -> Slots:
        """Slots that live requests own."""
        held = np.concatenate((self.slots, self._aside), axis=None)
        owned: Slots = held[held != GUARD].astype(np.intp)
        return owned

    def _sure(self, event: str, rows: Rows, places: npt.NDArray[Any] | int, ends: npt.NDArray[Any] | int) -> None:
        held = self.slots[rows, places].astype(np.intp)
        pool = self._rows.pool(KIND)
        pool.sure(event, held, "S12", expected=pool.generations(held), to_boundary=ends)
