"""Live requests: a row each, in arrays, so that one decode step of many requests is a few vectorised calls.

A row owns the blocks that it fills and pins those it shares with the cache. Words follow at each *stride*: as many
tokens as the narrowest compressor turns into one entry (a whole granule where nothing is compressed). Between strides
a step only counts.

    granule table   paged kinds: [0, shared) pinned, [shared, blocks) owned, guard beyond
    tail            one slot a row: rows of the present window of the widest ratio, and the carry
    window          one slot a row whose rows form a ring, or a ring of blocks; the guard where there is none

The guard is no slot: nothing resolves to it.

An engine that schedules ahead of the device says so with ``done``: a function that answers whether the device has ended
the steps begun so far. While it answers no, what a call takes from a row stays with nobody; later calls ask again. What
it raises goes to the caller, with nothing changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .answers import Reason
from .coverage import Coverage, gaps
from .errors import Refused
from .index import Segment, Spot
from .keys import Keys
from .kinds import PREFILL_VERSION, SEMANTICS
from .lease import Done, GivenUp, Lease, Receipt, still
from .profile import Profile
from .trails import NO_SLOT

if TYPE_CHECKING:
    from .manager import Manager

Rows = npt.NDArray[np.intp]
GUARD = NO_SLOT
"""In tables for kernels: padding. No kernel may resolve it."""


class RequestTable:
    """Live requests of a manager; every public method is atomic under the manager's lock.

    Args:
        manager: whose slots are used.
        rows: most live requests.
    """

    def __init__(self, manager: Manager, rows: int) -> None:
        self._manager = manager
        profile = manager.profile
        self._granule = profile.granule
        self._kinds: list[str] = [kind for kind in ("compressed_kv", "indexer_state") if kind in profile.kinds]
        self._has_tail = "uncompressed_tail" in profile.kinds
        self._widest = profile.widest_ratio
        self.stride = _stride(profile)
        self._window = _ring(profile)
        self.active = np.zeros(rows, np.bool_)
        self.tokens = np.zeros(rows, np.int64)
        self.owners: list[str] = [""] * rows
        self._ends: list[tuple[Segment, int] | None] = [None] * rows  # where what the row shares ends in the index
        self._until = np.zeros(rows, np.int64)  # tokens until the words are due
        self._blocks = np.zeros(rows, np.int64)  # granules in the table, the one being filled included
        self._shared = np.zeros(rows, np.int64)
        self._lossy = np.zeros(rows, np.bool_)  # goes on from lossy state or from a replay
        self._epoch = np.zeros(rows, np.int64)  # in which what it goes on from was computed
        self._prefilled = np.zeros(rows, np.int64)  # tokens whose entries came in one batch a block
        self.fit()
        self._tail = np.full(rows, GUARD, np.int32)
        self._in_tail = np.zeros(rows, np.int64)  # tokens that the tail's word accounts for
        width = 0 if self._window is None else self._window.width
        self._ring = np.full((rows, width), GUARD, np.int32)
        self._ring_block = np.full((rows, width), GUARD, np.int64)

    def fit(self) -> None:
        """Tables for the pools as they are, while no row is active. The caller holds the lock."""
        # As wide as a row can grow, which is the pool: the kernel maps pages at first touch, so width costs nothing and
        # no step ever stops to copy a table. What lies past a row's blocks means nothing.
        pools, rows = self._manager.core.pools, len(self.active)
        self._tables = {kind: np.zeros((rows, len(pools[kind])), np.int32) for kind in self._kinds}

    @property
    def idle(self) -> int:
        """Rows that hold no request."""
        return len(self.active) - int(np.count_nonzero(self.active))

    # ---- life of a request ----------------------------------------------------------------------------------------

    def admit(self, tokens: int, *, lease: Lease | None = None, owner: str = "") -> int:
        """A row for a prompt whose state is written at once: slots for all of it, or nothing.

        Args:
            tokens: length of the prompt, at least 1.
            lease: on the part that is reused; the row takes it over, and it is released with the row.
            owner: who asks.

        Raises:
            Refused: ADMISSION without a free row, POOL_FULL without slots, LEASE for a lease that isn't held here.
        """
        with self._manager.lock:
            self._check_prompt(tokens, lease)
            self._manager.unpark()
            self._check_place(lease)
            reused = 0 if lease is None else lease.length // self._granule
            slots = self._manager.take(self.need(tokens, reused), "take")
            return self.place(tokens, slots, lease=lease, owner=owner)

    def need(self, tokens: int, reused: int) -> dict[str, int]:
        """Slots by kind that a row of ``tokens`` tokens takes when the first ``reused`` granules are leased.

        >>> from kvfsm.kernels.reference import NumpyBackend
        >>> from kvfsm.runtime.generated.models import PROFILES
        >>> from kvfsm.runtime.manager import Manager
        >>> profile = PROFILES["tiny_deepseek_v4"]
        >>> manager = Manager(profile, dict.fromkeys(profile.kinds, 8), NumpyBackend())
        >>> manager.requests.need(100, 2)
        {'compressed_kv': 2, 'indexer_state': 2, 'uncompressed_tail': 1, 'swa_window': 1}
        """
        counts = dict.fromkeys(self._kinds, -(-tokens // self._granule) - reused)
        if self._has_tail:
            counts["uncompressed_tail"] = 1
        if self._window is not None:
            counts["swa_window"] = self._window.slots_at(tokens)
        return counts

    def place(
        self, tokens: int, slots: Mapping[str, npt.NDArray[Any]], *, lease: Lease | None = None, owner: str = ""
    ) -> int:
        """``admit`` with slots that the caller took before (event ``take``). The caller holds the manager's lock.

        Args:
            tokens: length of the prompt, at least 1.
            slots: by kind, as many as ``need`` says; they are the row's afterwards.
            lease: as for ``admit``.
            owner: who asks.

        Raises:
            Refused: ADMISSION without a free row, LEASE for a lease that isn't held here; the slots are still the
                caller's.
            ValueError: too few or too many slots, or none of a kind.
        """
        granule = self._granule
        self._check_prompt(tokens, lease)
        epoch = self._check_place(lease)
        reused = 0 if lease is None else lease.length // granule
        need, given = self.need(tokens, reused), {kind: len(held) for kind, held in slots.items()}
        if given != need:
            raise ValueError(f"slots for {given}; {tokens} tokens of which {reused} granules are leased need {need}")
        row, blocks = int(np.argmin(self.active)), -(-tokens // granule)
        self.active[row], self.owners[row] = True, owner
        self.tokens[row], self._blocks[row], self._shared[row] = tokens, blocks, reused
        self._prefilled[row] = tokens
        self._lossy[row] = lease is not None and not lease.exact
        self._epoch[row] = epoch
        self._until[row] = self.stride - tokens % self.stride
        for kind in self._kinds:
            self._tables[kind][row, reused:blocks] = slots[kind]
        self._begin_blocks(row, slots, reused, tokens)
        if self._has_tail:
            self._begin_tail(row, int(slots["uncompressed_tail"][0]), tokens)
        if self._window is not None:
            self._begin_window(row, slots["swa_window"].astype(np.intp), tokens)
        if lease is not None:
            self._take_over(row, lease)
        return row

    def step(self, rows: npt.ArrayLike, *, done: Done | None = None) -> None:
        """One decoded token for each of some rows (unique). Only rows at a stride touch the pools.

        Args:
            rows: row numbers.
            done: whether the device has ended the steps begun before; blocks that slide out of a window wait for it.

        Raises:
            Refused: POOL_FULL; no row has moved.
            ValueError: a row that holds no request, or a row twice.
        """
        index = np.asarray(rows, np.intp)
        with self._manager.lock:
            if not self.active[index].all():
                raise ValueError(f"rows {index[~self.active[index]].tolist()} hold no request")
            times = np.bincount(index)
            if times.max(initial=0) > 1:
                twice = np.flatnonzero(times > 1).tolist()
                raise ValueError(f"rows {twice} are named more than once; a step is one token a row")
            until = self._until[index]
            starts = index[until == self.stride]
            if len(starts):
                done = still(done)
                self._manager.unpark()
                self._make_blocks(starts, done)
            self.tokens[index] += 1
            until -= 1
            self._until[index] = until
            due = index[until == 0]
            if len(due):
                self._advance(due)
                self._until[due] = self.stride

    def rollback(self, row: int, to: int, *, done: Done | None = None) -> None:
        """Take a row back to ``to`` tokens: rejected drafts leave no trace in any kind.

        Args:
            row: row number.
            to: tokens that it holds afterwards.
            done: whether the device has ended the steps begun so far; blocks of rejected tokens wait for it.

        Raises:
            Refused: GAP when rows before ``to`` are gone already (compressed, or slid out of the window): restore a
                checkpoint. Nothing has changed then.
        """
        with self._manager.lock:
            self._check(row)
            now = int(self.tokens[row])
            if not 0 < to <= now:
                raise ValueError(f"row {row} holds {now} tokens; give 1 to {now}, not {to}")
            self._check_rollback(row, now, to)
            done = still(done)
            self._settle(row)
            self._shrink(row, to, done)

    def publish(self, row: int, keys: Keys, *, done: Done | None = None) -> int:
        """Let others find the row's whole granules; returns how many the row shares now.

        The row goes on reading them under pins; where others published the same before, it changes over to theirs.
        Boundary kinds are published when the row ends exactly at a boundary.

        Args:
            row: row number.
            keys: of its tokens.
            done: whether the device has ended the steps begun so far; the row's own blocks wait for it where it changes
                over to those of others.

        Raises:
            Refused: GAP when the chain before what the row owns is gone, IDENTITY for keys of another model, EPOCH when
                the row was admitted, or its lease taken, before a reset.
        """
        with self._manager.lock:
            self._check(row)
            self._manager.check_keys(keys)
            if self._epoch[row] != self._manager.epoch:
                what = f"row {row} goes on from epoch {self._epoch[row]}, and it is {self._manager.epoch} now"
                raise Refused(Reason.EPOCH, "publish", what)
            return self._publish(row, keys, still(done))

    def finish(self, row: int, *, done: Done | None = None) -> None:
        """End a request: what it shares is given back to the cache, what it owns is free.

        Args:
            row: row number; it can be given to another request at once.
            done: whether the device has ended the steps begun so far; all slots of the row wait for it.
        """
        with self._manager.lock:
            self._check(row)
            done = still(done)
            self._manager.unpark()
            self._end(row, done)

    def end_all(self) -> None:
        """End every request at once. The caller holds the lock."""
        for row in np.flatnonzero(self.active).tolist():
            self._end(row, None)

    # ---- what kernels and tests ask -------------------------------------------------------------------------------

    def table(self, kind: str, rows: npt.ArrayLike, width: int | None = None) -> npt.NDArray[np.int32]:
        """Slots of a paged kind by granule, int32 [rows, width]; the guard where there is none.

        ``width`` is that of the longest of these rows by default.
        """
        index = np.asarray(rows, np.intp)
        blocks = self._blocks[index]
        at = np.arange(int(blocks.max(initial=0)) if width is None else width)
        held = self._tables[kind][index[:, None], np.minimum(at, self._tables[kind].shape[1] - 1)]
        return np.where(at < blocks[:, None], held, np.int32(GUARD))

    def shared_tokens(self, rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Tokens at the start of each row whose blocks are the cache's, int64 [rows]: nobody writes to them."""
        return self._shared[np.asarray(rows, np.intp)] * self._granule

    @property
    def window_width(self) -> int:
        """Entries of the window ring: block b of a row is at entry ``b % window_width``."""
        return self._ring.shape[1]

    def window_table(self, rows: npt.ArrayLike, width: int | None = None) -> npt.NDArray[np.int32]:
        """Slots of the window ring, int32 [rows, width]; the guard past ``window_width`` and where no block is."""
        ring = self._ring[np.asarray(rows, np.intp)]
        table = np.full((len(ring), self.window_width if width is None else width), GUARD, np.int32)
        table[:, : self.window_width] = ring
        return table

    def tail_table(self, rows: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """Slot of each row's tail, int32 [rows], in the order of ``rows``; the guard where the model has none."""
        return self._tail[np.asarray(rows, np.intp)]

    def resolve(self, row: int, position: int) -> tuple[int, int]:
        """Slot and row in it that hold a position: total on what the last token reads, and never padding.

        Raises:
            Refused: GAP for a position outside the window.
        """
        with self._manager.lock:
            self._check(row)
            window, now = self._window, int(self.tokens[row])
            reach = 0 if window is None else window.rows if window.block is None else window.window
            low = max(0, now - reach)
            if window is None or not low <= position < now:
                what = f"position {position} is not in the window [{low}, {now}) of row {row}"
                raise Refused(Reason.GAP, "requests", what)
            if window.block is None:
                return self._slot(row, 0), position % window.rows
            block = position // window.block
            place = block % window.width
            if int(self._ring_block[row, place]) != block:
                raise Refused(Reason.GAP, "requests", f"block {block} of row {row} has slid out of the window")
            return self._slot(row, place), position % window.block

    def resolve_entry(self, row: int, entry: int) -> int:
        """The slot at an entry of the window table.

        Raises:
            Refused: the entry is padding, or beyond the table.
        """
        with self._manager.lock:
            self._check(row)
            return self._slot(row, entry)

    def coverage(self, row: int) -> Coverage:
        """What covers the row's tokens, from the words themselves."""
        with self._manager.lock:
            self._check(row)
            self._settle(row)
            return self._coverage(row)

    def count_pins(self, kind: str, pins: npt.NDArray[np.int64]) -> None:
        """Add the pins that live requests hold to ``pins`` [slots of the kind]."""
        if kind in self._tables:
            for row in np.flatnonzero(self.active).tolist():
                pins[self._tables[kind][row, : self._shared[row]]] += 1

    def slots(self, kind: str) -> npt.NDArray[np.intp]:
        """Slots of a kind that live requests own."""
        if kind in self._tables:
            rows = np.flatnonzero(self.active).tolist()
            owned = [self._tables[kind][row, self._shared[row] : self._blocks[row]] for row in rows]
            return np.concatenate(owned).astype(np.intp) if owned else np.empty(0, np.intp)
        held = (self._tail if kind == "uncompressed_tail" else self._ring).reshape(-1)
        boundary_slots: npt.NDArray[np.intp] = held[held != GUARD].astype(np.intp)
        return boundary_slots

    # ---- under the lock: admission --------------------------------------------------------------------------------

    def _check_prompt(self, tokens: int, lease: Lease | None) -> None:
        if tokens < 1 or (lease is not None and tokens < lease.length):
            raise ValueError(f"a prompt of {tokens} tokens; give at least 1, and the leased part")

    def _check_place(self, lease: Lease | None) -> int:
        """The epoch of what the row goes on from; raises Refused for a lease that isn't held here, or without a row."""
        epoch = self._manager.epoch if lease is None else self._manager.receipt_of(lease).epoch
        if not self.idle:
            raise Refused(Reason.ADMISSION, "requests", f"all {len(self.active)} rows are taken")
        return epoch

    def _begin_blocks(self, row: int, slots: Mapping[str, npt.NDArray[Any]], reused: int, tokens: int) -> None:
        """The prompt's entries come in one batch a block; keys of the indexer follow."""
        pools = self._manager.core.pools
        if "compressed_kv" in slots:
            held = slots["compressed_kv"].astype(np.intp)
            begun = held[: max(0, -(-(tokens - tokens % self.stride) // self._granule) - reused)]
            for _ in range(PREFILL_VERSION if len(begun) else 0):
                kv = pools["compressed_kv"]
                kv.must("emit", begun, "requests", expected=kv.generations(begun))
            if "indexer_state" in slots and len(begun):
                keys = slots["indexer_state"][: len(begun)].astype(np.intp)
                pool = pools["indexer_state"]
                pool.must("index", keys, "requests", expected=pool.generations(keys), to_version=PREFILL_VERSION)

    def _begin_tail(self, row: int, slot: int, tokens: int) -> None:
        pool, one = self._manager.core.pools["uncompressed_tail"], np.array([slot], np.intp)
        self._tail[row], self._in_tail[row] = slot, tokens
        pool.must(
            "restore", one, "requests", expected=pool.generations(one), at=tokens // self._widest,
            with_rows=tokens % self._widest, has_carry=tokens >= self._widest,
            given_semantics=SEMANTICS[self._manager.profile.scores],
        )  # fmt: skip

    def _begin_window(self, row: int, slots: Rows, tokens: int) -> None:
        window, pool = self._window, self._manager.core.pools["swa_window"]
        assert window is not None
        if window.block is None:
            self._ring[row, 0] = slots[0]
            self._slide(np.array([row]), np.array([tokens // self._granule]))
            return
        last = -(-tokens // window.block)
        blocks = np.arange(last - len(slots), last)
        self._ring[row, blocks % window.width], self._ring_block[row, blocks % window.width] = slots, blocks
        full = slots[(blocks + 1) * window.block <= tokens]
        ends = blocks[: len(full)] + 1
        pool.must("slide", full, "requests", expected=pool.generations(full), to_boundary=ends)

    def _take_over(self, row: int, lease: Lease) -> None:
        """The lease's paged pins become the row's; its boundary slots are copied into the row's own and given back."""
        manager, core = self._manager, self._manager.core
        receipt, _ = manager.receipts.pop(lease.lease_id)
        self._ends[row] = (receipt.segment, receipt.boundary)
        for kind, held in receipt.slots.items():
            if kind in self._tables:
                self._tables[kind][row, : len(held)] = held
                continue
            pool = core.pools[kind]
            self._copy_in(row, kind, held, lease.length)
            pool.must("unpin", held, "requests", expected=receipt.generations[kind])
            pool.stamp(held, manager.clock())
            core.sweep(kind)

    def _copy_in(self, row: int, kind: str, held: Rows, length: int) -> None:
        """Copy leased boundary state into the row's slots, where the row is still at that boundary."""
        arena = self._manager.core.pools[kind].arena.bytes
        if kind == "uncompressed_tail":
            targets, sources = self._tail[row : row + 1], held
        elif self._window is None or self._window.block is None:
            targets, sources = self._ring[row, :1], held
        else:
            window = self._window
            blocks = np.arange(length // self._window.block - len(held), length // self._window.block)
            there = self._ring_block[row, blocks % window.width] == blocks
            targets, sources = self._ring[row, blocks[there] % window.width], held[there]
        if len(targets):
            self._manager.backend.scatter(arena, targets.astype(np.intp), self._manager.backend.gather(arena, sources))

    # ---- under the lock: decoding ---------------------------------------------------------------------------------

    def _make_blocks(self, rows: Rows, done: Done | None) -> None:
        """Blocks for rows whose next token begins one."""
        manager, at = self._manager, self.tokens[rows]
        fresh = rows[at % self._granule == 0]
        fresh = fresh[self._blocks[fresh] * self._granule == self.tokens[fresh]]
        counts = dict.fromkeys(self._kinds, len(fresh)) if len(fresh) else {}
        turning = leaving = rows[:0]
        if self._window is not None and self._window.block is not None:
            turning = rows[at % self._window.block == 0]
            blocks = self.tokens[turning] // self._window.block
            turning = turning[self._ring_block[turning, blocks % self._window.width] != blocks]
            if len(turning):
                leaving = self._ring[turning, self.tokens[turning] // self._window.block % self._window.width]
                leaving = leaving[leaving != GUARD].astype(np.intp)
                counts["swa_window"] = len(turning)
        if not counts:
            return
        if done is None and len(leaving):  # then a full window needs no slot more
            again = len(manager.core.pools["swa_window"].usable(leaving))
            manager.core.make_room(counts | {"swa_window": len(turning) - again})
            self._abandon("swa_window", leaving, None)
        slots = manager.take(counts, "take")
        if len(fresh):
            for kind in self._kinds:
                self._tables[kind][fresh, self._blocks[fresh]] = slots[kind]
            self._blocks[fresh] += 1
        if len(turning):
            self._turn(turning, slots["swa_window"])
        if done is not None:
            self._abandon("swa_window", leaving, done)

    def _turn(self, rows: Rows, slots: Rows) -> None:
        """The window's next block comes in; the one in its place has slid out."""
        assert self._window is not None and self._window.block is not None
        blocks = self.tokens[rows] // self._window.block
        places = blocks % self._window.width
        self._ring[rows, places], self._ring_block[rows, places] = slots, blocks

    def _advance(self, rows: Rows) -> None:
        """Rows that have come to a stride: entries, index keys, tail and window follow."""
        core, tokens = self._manager.core, self.tokens[rows]
        block = (tokens - 1) // self._granule
        if "compressed_kv" in self._tables:
            pool = core.pools["compressed_kv"]
            held = self._tables["compressed_kv"][rows, block].astype(np.intp)
            pool.must("emit", held, "requests", expected=pool.generations(held))
            if "indexer_state" in self._tables:
                keys = self._tables["indexer_state"][rows, block].astype(np.intp)
                indexer, versions = core.pools["indexer_state"], pool.table.fields("version", held)
                indexer.must("index", keys, "requests", expected=indexer.generations(keys), to_version=versions)
        if self._has_tail:
            whole = rows[tokens % self._widest == 0]
            if len(whole):
                self._append(whole)
                pool, tails = core.pools["uncompressed_tail"], self._tail[whole].astype(np.intp)
                pool.must("emit", tails, "requests", expected=pool.generations(tails), span=self._widest)
        if self._window is not None:
            span = self._window.block or self._granule
            ended = tokens % span == 0
            if ended.any():
                self._slide(rows[ended], tokens[ended] // span)

    def _append(self, rows: Rows) -> None:
        """Tell the tail's word of the tokens that came since."""
        pool, tails = self._manager.core.pools["uncompressed_tail"], self._tail[rows].astype(np.intp)
        count = self.tokens[rows] - self._in_tail[rows]
        pool.must("append", tails, "requests", expected=pool.generations(tails), count=count, span=self._widest)
        self._in_tail[rows] = self.tokens[rows]

    def _slide(self, rows: Rows, ends: npt.NDArray[np.int64]) -> None:
        """The window's word follows; ``ends`` in granules, or in blocks."""
        assert self._window is not None
        places = 0 if self._window.block is None else (ends - 1) % self._window.width
        held = self._ring[rows, places].astype(np.intp)
        pool = self._manager.core.pools["swa_window"]
        pool.must("slide", held, "requests", expected=pool.generations(held), to_boundary=ends)

    def _settle(self, row: int) -> None:
        """Bring the tail's word up to the last token."""
        if self._has_tail and self._in_tail[row] < self.tokens[row]:
            self._append(np.array([row]))

    # ---- under the lock: going back, publishing, reporting ---------------------------------------------------------

    def _check_rollback(self, row: int, now: int, to: int) -> None:
        def refuse(what: str) -> None:
            raise Refused(Reason.GAP, "requests", f"row {row} can't go back from {now} to {to} tokens: {what}")

        if self._has_tail and to // self._widest < now // self._widest:
            refuse(f"rows before {now // self._widest * self._widest} were compressed")
        if to < int(self._shared[row]) * self._granule or to < int(self._prefilled[row]):
            refuse("what is shared or was the prompt stays")
        if self._window is not None:
            need, window = max(0, to - self._window.window + 1), self._window
            if window.block is None:
                have = max(0, now - window.rows)
            else:
                have = int(self._ring_block[row][self._ring[row] != GUARD].min()) * window.block
            if need < have:
                refuse(f"window rows before {have} are gone")

    def _shrink(self, row: int, to: int, done: Done | None) -> None:
        core, granule = self._manager.core, self._granule
        keep, blocks = -(-to // granule), int(self._blocks[row])
        for kind in self._kinds:
            self._abandon(kind, self._tables[kind][row, keep:blocks], done)
        self._blocks[row] = keep
        if keep > self._shared[row]:
            version = self._version_at(row, keep - 1, to)
            for kind in self._kinds:
                pool, held = core.pools[kind], self._tables[kind][row, keep - 1 : keep].astype(np.intp)
                pool.must("retract", held, "requests", expected=pool.generations(held), to_version=version)
        if self._has_tail:
            pool, tail = core.pools["uncompressed_tail"], self._tail[row : row + 1].astype(np.intp)
            where = {"to_position": to // self._widest, "to_rows": to % self._widest}
            pool.must("rewind", tail, "requests", expected=pool.generations(tail), **where)
            self._in_tail[row] = to
        if self._window is not None:
            self._rewind_window(row, to, done)
        self.tokens[row] = to
        self._until[row] = self.stride - to % self.stride

    def _rewind_window(self, row: int, to: int, done: Done | None) -> None:
        pool, window = self._manager.core.pools["swa_window"], self._window
        assert window is not None
        if window.block is None:
            held = self._ring[row, :1].astype(np.intp)
            pool.must("rewind", held, "requests", expected=pool.generations(held), to_boundary=to // self._granule)
            return
        beyond = (self._ring_block[row] * window.block >= to) & (self._ring[row] != GUARD)
        self._abandon("swa_window", self._ring[row, beyond], done)
        self._ring[row, beyond], self._ring_block[row, beyond] = GUARD, GUARD
        if to % window.block:
            block = to // window.block
            held = self._ring[row, block % window.width : block % window.width + 1].astype(np.intp)
            pool.must("rewind", held, "requests", expected=pool.generations(held), to_boundary=0)

    def _version_at(self, row: int, block: int, tokens: int) -> int:
        """Batches that a block has seen when the row is at ``tokens``, which is in it or at its end."""
        start, prefilled = block * self._granule, int(self._prefilled[row])
        whole = tokens - tokens % self.stride
        if prefilled <= start:
            return (whole - start) // self.stride
        before = min(prefilled, start + self._granule) // self.stride * self.stride
        return (PREFILL_VERSION if before > start else 0) + max(0, whole - before) // self.stride

    def _publish(self, row: int, keys: Keys, done: Done | None) -> int:
        manager, core, granule = self._manager, self._manager.core, self._granule
        start, stop = int(self._shared[row]), int(self.tokens[row]) // granule
        if stop > len(keys):
            raise ValueError(f"the row holds {stop} whole granules, the keys {len(keys)}")
        if stop <= start:
            return start
        kinds = [kind for kind in self._kinds if kind in core.paged]
        core.check_chain(core.index.locate(keys.digests, start), start, kinds)
        self._check_readers(core.index.locate(keys.digests, stop), start, kinds)
        spot = core.index.extend(keys.digests, stop)
        places = np.arange(start, stop)
        lossy = bool(self._lossy[row])
        kept: dict[str, Rows] = {}
        for kind in kinds:
            pool, held = core.pools[kind], self._tables[kind][row, start:stop].astype(np.intp)
            fresh = core.fresh(kind, spot, places, held)
            expected = pool.generations(held[fresh])
            versions = core.versions(kind, spot, places[fresh])
            if kind == "indexer_state" and fresh.any():
                back = pool.table.fields("version", held[fresh]) > versions  # the KV that was kept is somebody else's
                for event, those in (("retract", back), ("index", ~back)):
                    to = versions[those]
                    pool.must(event, held[fresh][those], "publish", expected=expected[those], to_version=to)
            if fresh.any():
                core.seal(kind, held[fresh], expected, places[fresh], versions, lossy=lossy)
            core.place(kind, spot, places, held, fresh)
            self._abandon(kind, held[~fresh], done)
            kept[kind] = held[fresh]
        for kind in kinds:
            pool = core.pools[kind]
            held = core.index.slots(core.paged.index(kind), spot, start, stop).astype(np.intp)
            given = pool.rules.pin(places, core.versions(kind, spot, places))
            pool.must("pin", held, "publish", expected=pool.generations(held), **given)
            self._tables[kind][row, start:stop] = held
            self._lossy[row] |= core.is_lossy({kind: held})  # from now on it reads these
        self._shared[row], self._ends[row] = stop, (spot.segment, stop)
        kept.update(self._publish_boundary(row, spot, stop, lossy))
        core.settle(spot, kept, manager.clock())
        return stop

    def _check_readers(self, spot: Spot, start: int, kinds: list[str]) -> None:
        """Raise Refused where what others published has no room for one more pin; nothing has changed then."""
        core = self._manager.core
        for kind in kinds:
            n, pool = core.paged.index(kind), core.pools[kind]
            held = core.index.slots(n, spot, start, max(start, core.index.live(n, spot))).astype(np.intp)
            full = held[pool.table.fields("pins", held) == pool.table.LAYOUT.field("pins").high]
            if len(full):
                given = pool.rules.pin(np.arange(len(full)), pool.table.fields("version", full))
                pool.must("pin", full, "publish", expected=pool.generations(full), **given)

    def _publish_boundary(self, row: int, spot: Any, stop: int, lossy: bool) -> dict[str, Rows]:
        """Copies of tail and window for the boundary at which the row stands, as far as there is room for them."""
        manager, core = self._manager, self._manager.core
        kept: dict[str, Rows] = {}
        if int(self.tokens[row]) != stop * self._granule:
            return kept
        for kind in core.trailing:
            pool, spec = core.pools[kind], core.index.specs[core.trailing.index(kind)]
            if kind == "uncompressed_tail":
                places, source = np.array([stop]), self._tail[row : row + 1]
            else:
                assert self._window is not None
                places = manager.window.places(spec, self._granule, max(0, stop - -(-spec.need // spec.per)), stop)
                places = places[places >= spec.first(stop)] if spec.blocks else places
                source = self._ring[row, places % self._window.width if spec.blocks else places * 0]
            trail = core.trailing.index(kind)
            missing = np.array([core.index.find(trail, spot, place) is None for place in places.tolist()], bool)
            places, source = places[missing], source[missing].astype(np.intp)
            try:
                core.make_room({kind: len(places)})
                copies = pool.take(len(places), pool.rules.take())
            except Refused:
                continue  # a window or tail that is not kept costs a replay, nothing else
            manager.backend.scatter(pool.arena.bytes, copies, manager.backend.gather(pool.arena.bytes, source))
            core.fresh(kind, spot, places, copies)
            core.seal(kind, copies, pool.generations(copies), places, np.zeros(len(places), np.int64), lossy=lossy)
            kept[kind] = copies
        return kept

    def _coverage(self, row: int) -> Coverage:
        core, granule, now = self._manager.core, self._granule, int(self.tokens[row])
        ratios = sorted({group.ratio for group in self._manager.profile.groups_of("compressed_kv")})
        compressed = int(self._shared[row]) * granule
        if ratios and ratios[-1] == 1:  # plain rows are there as soon as they are written
            compressed = min(now, int(self._blocks[row]) * granule)
        elif ratios:
            held = self._tables["compressed_kv"][row, int(self._shared[row]) : int(self._blocks[row])]
            versions = core.pools["compressed_kv"].table.fields("version", held)
            for block, version in enumerate(versions.tolist(), int(self._shared[row])):
                compressed += self._entries_of(row, block, version)
        tail = range(now, now)
        if self._has_tail:
            pool, one = core.pools["uncompressed_tail"], self._tail[row : row + 1]
            begin = int(pool.table.fields("position", one)[0]) * self._widest
            tail = range(begin, begin + int(pool.table.fields("rows", one)[0]))
        window = range(max(0, now - self._window.window + 1), now) if self._window is not None else range(now, now)
        entries = {ratio: compressed // ratio for ratio in ratios}
        widest = max((ratio * count for ratio, count in entries.items()), default=0)
        least = min((ratio * count for ratio, count in entries.items()), default=0)
        uncovered = gaps(now, (range(0, least), tail, window))
        return Coverage(now, entries, range(0, widest), tail, window, uncovered)

    def _entries_of(self, row: int, block: int, version: int) -> int:
        """Tokens of a block whose entries its word vouches for."""
        start, prefilled = block * self._granule, int(self._prefilled[row])
        batch = min(prefilled, start + self._granule) // self.stride * self.stride - start
        if batch <= 0:
            return version * self.stride
        return batch + (version - PREFILL_VERSION) * self.stride if version else 0

    def _end(self, row: int, done: Done | None) -> None:
        shared, blocks = int(self._shared[row]), int(self._blocks[row])
        for kind in self._kinds:
            self._abandon(kind, self._tables[kind][row, shared:blocks], done)
        if self._has_tail:
            self._abandon("uncompressed_tail", self._tail[row : row + 1], done)
            self._tail[row] = GUARD
        if self._window is not None:
            ring = self._ring[row]
            self._abandon("swa_window", ring[ring != GUARD], done)
            self._ring[row], self._ring_block[row] = GUARD, GUARD
        if (end := self._ends[row]) is not None:
            self._manager.give_up(self._receipt(row, *end), done)
        self.active[row] = False
        self._blocks[row] = self._shared[row] = 0
        self._ends[row] = None

    # ---- small helpers --------------------------------------------------------------------------------------------

    def _slot(self, row: int, entry: int) -> int:
        slot = int(self._ring[row, entry]) if 0 <= entry < self._ring.shape[1] else GUARD
        if slot == GUARD:
            raise Refused(Reason.GAP, "requests", f"entry {entry} of row {row}'s window table is padding")
        return slot

    def _abandon(self, kind: str, slots: npt.NDArray[Any], done: Done | None) -> None:
        if len(slots):
            held = slots.astype(np.intp)
            generations = self._manager.core.pools[kind].generations(held)
            self._manager.give_up(GivenUp({kind: held}, {kind: generations}), done)

    def _receipt(self, row: int, segment: Segment, boundary: int) -> Receipt:
        """What the row shares, as a lease's receipt."""
        pools, shared = self._manager.core.pools, int(self._shared[row])
        slots = {kind: self._tables[kind][row, :shared].astype(np.intp) for kind in self._kinds}
        generations = {kind: pools[kind].generations(held) for kind, held in slots.items()}
        epoch = int(self._epoch[row])
        return Receipt(self._manager.number(), self.owners[row], slots, generations, segment, boundary, epoch)

    def _check(self, row: int) -> None:
        if not 0 <= row < len(self.active) or not self.active[row]:
            raise ValueError(f"row {row} holds no request")


@dataclass(frozen=True, slots=True)
class _Ring:
    """How a live window lies. ``block`` None: one slot with ``rows`` rows; else ``width`` blocks of ``block`` rows."""

    window: int
    rows: int
    block: int | None
    width: int

    def slots_at(self, tokens: int) -> int:
        """Slots that a row of ``tokens`` tokens holds."""
        return 1 if self.block is None else min(-(-tokens // self.block), self.width)


def _ring(profile: Profile) -> _Ring | None:
    if profile.window is None:
        return None
    rows = min(part.rows for part in profile.layouts["swa_window"].parts)
    block = profile.window_block
    return _Ring(profile.window, rows, block, 1 if block is None else profile.window_slots + 1)


def _stride(profile: Profile) -> int:
    """Tokens between two looks at the words: the narrowest ratio, but no more than 255 batches a granule."""
    ratios = [group.ratio for group in profile.groups_of("compressed_kv") if group.ratio > 1]
    span = profile.window_block or profile.granule
    stride = min([*ratios, span])
    while profile.granule // stride > 255 or span % stride:
        stride += 1 if span % stride else stride
    return stride
