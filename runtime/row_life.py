"""How a row of the request table comes to hold a request, with slots and a lease that are there, and lets go of it.

Slots come and go all at once; what a row takes in between is for ``requests.py``. Callers hold the manager's lock, and
have checked what they give.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .backend import copy_slots
from .index import Segment
from .lease import Done, Lease, Receipt
from .live_rows import GUARD, LiveRows
from .live_window import LiveWindow
from .pool import Slots
from .row_words import RowWords


class RowLife:
    """Begins and ends the rows of one table."""

    def __init__(self, rows: LiveRows, window: LiveWindow | None, words: RowWords) -> None:
        self._manager = rows.manager
        self._granule = rows.granule
        self._rows, self._window, self._words = rows, window, words

    def begin(
        self,
        tokens: int,
        slots: Mapping[str, npt.NDArray[Any]],
        lease: Lease | None,
        receipt: Receipt | None,
        owner: str,
        salt: bytes | None,
        store_epoch: int,
    ) -> int:
        """A row for a prompt whose slots were taken: they become the row's, or are free when this raises.

        Args:
            tokens: length of the prompt.
            slots: by kind, as many as ``RequestTable.need`` says.
            lease: on the part that is reused; the row takes it over.
            receipt: of that lease.
            owner: who asks.
            salt: of the tenant for whom they were taken; None: nobody says.
            store_epoch: the store's, before anything was taken.

        Raises:
            Exception: what the backend raises that can't copy the lease's boundary; the lease is its holder's then.
        """
        state, granule = self._rows, self._granule
        reused = 0 if lease is None else lease.length // granule
        row = int(np.argmin(state.active))
        taken = {kind: held.astype(np.intp) for kind, held in slots.items()}
        state.active[row], state.owners[row], state.sites[row] = True, owner, self._manager.site()
        state.salts[row] = salt
        state.incarnation[row] += 1
        state.store_epoch[row] = store_epoch
        state.tokens[row], state.shared[row], state.drafts[row] = tokens, reused, 0
        state.lossy[row] = lease is not None and not lease.exact
        state.epoch[row] = self._manager.epoch if receipt is None else receipt.epoch
        state.put_blocks(row, taken, reused, -(-tokens // granule))
        if state.has_tail:
            state.tail[row] = taken["uncompressed_tail"][0]
        if self._window is not None:
            self._window.begin(row, taken["swa_window"], tokens)
        if lease is not None and receipt is not None:
            try:
                self._copy_boundary(row, receipt.slots, lease.length)
            except BaseException:
                self.end(row, None)
                raise
        self._words.write(row, reused * granule, tokens)
        if lease is not None:
            self._take_over(row, lease)
        return row

    def end(self, row: int, done: Done | None) -> None:
        """The row holds no request any more: what it shares is given back, what it owns is free."""
        state = self._rows
        state.cut_blocks(row, int(state.shared[row]), done)
        if state.has_tail:
            state.give_up("uncompressed_tail", state.tail[row : row + 1], done)
            state.tail[row] = GUARD
        if self._window is not None:
            self._window.end(row, done)
        if (end := state.ends[row]) is not None:
            self._manager.give_up(self._receipt(row, *end), done)
        state.active[row] = False
        state.blocks[row] = state.shared[row] = state.drafts[row] = 0
        state.ends[row] = None

    def _copy_boundary(self, row: int, slots: Mapping[str, Slots], length: int) -> None:
        """Copy the rows of a lease's boundary slots into the row's own; ``length`` is the lease's, in tokens."""
        manager, state = self._manager, self._rows
        for kind, held in slots.items():
            if kind in state.tables:
                continue
            targets, sources = state.tail[row : row + 1].astype(np.intp), held
            if kind == "swa_window":
                assert self._window is not None
                targets, sources = self._window.copies(row, held, length)
            if len(targets):
                arena = manager.core.pools[kind].arena
                copy_slots(manager.backend, arena, targets, arena, sources)

    def _take_over(self, row: int, lease: Lease) -> None:
        """The lease's paged pins become the row's; its boundary slots, which were copied, are given back."""
        manager, core, state = self._manager, self._manager.core, self._rows
        receipt = manager.lessor.take_over(lease)
        state.ends[row] = (receipt.segment, receipt.boundary)
        for kind, held in receipt.slots.items():
            if kind in state.tables:
                state.tables[kind][row, : len(held)] = held
                continue
            pool = core.pools[kind]
            pool.sure("unpin", held, "S8", expected=receipt.generations[kind])
            pool.stamp(held, manager.time)
            core.sweep(kind)

    def _receipt(self, row: int, segment: Segment, boundary: int) -> Receipt:
        """What the row shares, as a lease's receipt."""
        state, shared = self._rows, int(self._rows.shared[row])
        slots = {kind: state.held(kind, row, 0, shared) for kind in state.kinds}
        generations = {kind: state.pool(kind).generations(held) for kind, held in slots.items()}
        epoch = int(state.epoch[row])
        return Receipt(self._manager.number(), state.owners[row], slots, generations, segment, boundary, epoch)
