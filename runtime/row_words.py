"""The words of live requests follow their tokens: a prompt at once, then token by token, and back again.

Entries come in batches: those of a chunk of a prompt in one batch a block, and after it one at each stride. The tail's
word is brought up to date where it matters; between strides a token only counts. Room for the tokens is there already.
"""

from __future__ import annotations

import numpy as np

from .answers import Reason
from .coverage import version_at
from .errors import Refused
from .kinds import SEMANTICS
from .lease import Done
from .live_rows import LiveRows, Rows
from .live_window import LiveWindow
from .pool import Slots


class RowWords:
    """Words of all rows of one table. The caller holds the manager's lock."""

    def __init__(self, rows: LiveRows, window: LiveWindow | None) -> None:
        self._rows = rows
        self._window = window

    def write(self, row: int, start: int, stop: int) -> None:
        """The entries of tokens [start, stop) of a prompt come in one batch a block; keys and tail follow."""
        state, granule, stride = self._rows, self._rows.granule, self._rows.stride
        first, last = start // stride * stride // granule, -(-(stop // stride * stride) // granule)
        if "compressed_kv" in state.tables and stop // stride > start // stride:
            keys = state.held("indexer_state", row, first, last) if "indexer_state" in state.tables else None
            self._emit(state.held("compressed_kv", row, first, last), keys)
            state.batches[row, first:last] += 1
        if state.has_tail:
            pool, tail = state.pool("uncompressed_tail"), state.tail[row : row + 1].astype(np.intp)
            pool.sure(
                "restore", tail, "S13", expected=pool.generations(tail), at=stop // state.widest,
                with_rows=stop % state.widest, has_carry=stop >= state.widest,
                given_semantics=SEMANTICS[state.manager.profile.scores],
            )  # fmt: skip
            state.in_tail[row] = stop
        state.prefilled[row], state.until[row] = stop, stride - stop % stride

    def count(self, rows: Rows) -> None:
        """One committed token more for each of these rows, for which there is room."""
        state = self._rows
        state.tokens[rows] += 1
        until = state.until[rows] - 1
        state.until[rows] = until
        due = rows[until == 0]
        if len(due):
            self.advance(due)
            state.until[due] = state.stride

    def advance(self, rows: Rows) -> None:
        """Rows that have come to a stride: entries, index keys, tail and window follow."""
        state, tokens = self._rows, self._rows.tokens[rows]
        block = (tokens - 1) // state.granule
        if "compressed_kv" in state.tables:
            held = state.tables["compressed_kv"][rows, block].astype(np.intp)
            keyed = state.tables.get("indexer_state")
            self._emit(held, None if keyed is None else keyed[rows, block].astype(np.intp))
        if state.has_tail:
            whole = rows[tokens % state.widest == 0]
            if len(whole):
                self._append(whole)
                pool, tails = state.pool("uncompressed_tail"), state.tail[whole].astype(np.intp)
                pool.sure("emit", tails, "S13", expected=pool.generations(tails), span=state.widest)
        if self._window is not None:
            self._window.slide(rows, tokens)

    def settle(self, row: int) -> None:
        """Bring the tail's word up to the last token."""
        if self._rows.has_tail and self._rows.in_tail[row] < self._rows.tokens[row]:
            self._append(np.array([row]))

    def check_back(self, row: int, now: int, to: int) -> None:
        """Raise Refused (GAP) where a row can't go back from ``now`` to ``to`` tokens."""

        def refuse(what: str) -> None:
            raise Refused(Reason.GAP, "requests", f"row {row} can't go back from {now} to {to} tokens: {what}")

        state = self._rows
        if state.has_tail and to // state.widest < now // state.widest:
            refuse(f"rows before {now // state.widest * state.widest} were compressed")
        if to < int(state.shared[row]) * state.granule or to < int(state.prefilled[row]):
            refuse("what is shared or was the prompt stays")
        if self._window is not None:
            need, have = max(0, to - self._window.window + 1), self._window.first(row, now)
            if need < have:
                refuse(f"window rows before {have} are gone")

    def go_back(self, row: int, now: int, to: int, done: Done | None) -> None:
        """The row, whose drafts are decided and whose tail is settled, goes back; see ``check_back``."""
        state, keep = self._rows, -(-to // self._rows.granule)
        state.cut_blocks(row, keep, done)
        if keep > state.shared[row]:
            version = version_at(state, row, keep - 1, to)
            for kind in state.kinds:
                pool, held = state.pool(kind), state.held(kind, row, keep - 1, keep)
                pool.sure("retract", held, "S18", expected=pool.generations(held), to_version=version)
        if state.has_tail:
            pool, tail = state.pool("uncompressed_tail"), state.tail[row : row + 1].astype(np.intp)
            where = {"to_position": to // state.widest, "to_rows": to % state.widest}
            pool.sure("rewind", tail, "S18", expected=pool.generations(tail), **where)
            state.in_tail[row] = to
        if self._window is not None:
            self._window.rewind(row, now, to, done)
        state.tokens[row] = to
        state.until[row] = state.stride - to % state.stride

    def _emit(self, held: Slots, keys: Slots | None) -> None:
        """One more batch of entries in each of these blocks; the indexer's keys follow."""
        kv = self._rows.pool("compressed_kv")
        kv.sure("emit", held, "S13", expected=kv.generations(held))
        if keys is not None:
            indexer, versions = self._rows.pool("indexer_state"), kv.table.fields("version", held)
            indexer.sure("index", keys, "S16", expected=indexer.generations(keys), to_version=versions)

    def _append(self, rows: Rows) -> None:
        """Tell the tails' words of the tokens that came since."""
        state = self._rows
        pool, tails = state.pool("uncompressed_tail"), state.tail[rows].astype(np.intp)
        count = state.tokens[rows] - state.in_tail[rows]
        pool.sure("append", tails, "S13", expected=pool.generations(tails), count=count, span=state.widest)
        state.in_tail[rows] = state.tokens[rows]
