"""Live requests: a row each, in arrays, so that one decode step of many requests is a few vectorised calls.

A row owns the blocks that it fills and pins those it shares with the cache. Words follow at each *stride*: as many
tokens as the narrowest compressor turns into one entry (a whole granule where nothing is compressed). Between strides
a step only counts.

This is what a request is told on its way. How its row begins and ends is in ``row_life.py``, where its state lies in
``row_tables.py``, how words follow in ``row_words.py``, and how it is published in ``row_publishing.py``.

Drafts are room beyond the committed tokens. No word knows of them: what is compressed, sealed, kept and published looks
at committed tokens only, and a row that rejects its drafts is as if they had never been proposed.

An engine that schedules ahead of the device says so with ``done``: a function that answers whether the device has ended
the steps begun so far. While it answers no, what a call takes from a row stays with nobody; later calls ask again. What
it raises goes to the caller, with nothing changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .answers import Reason
from .coverage import Coverage, coverage_of
from .drafts import Drafts
from .errors import Refused
from .keys import Keys
from .lease import Done, Lease, Receipt, still
from .live_rows import GUARD, Rows
from .preemption import Preempted
from .row_life import RowLife
from .row_publishing import RowPublisher
from .row_slots import take_with_slide
from .row_tables import RowTables
from .row_words import RowWords
from .storing import WriteThrough

if TYPE_CHECKING:
    from .manager import Manager

__all__ = ["GUARD", "RequestTable"]


class RequestTable(RowTables):
    """Live requests of a manager; every public method is atomic under the manager's lock.

    Args:
        manager: whose slots are used.
        rows: most live requests.
    """

    def __init__(self, manager: Manager, rows: int) -> None:
        super().__init__(manager, rows)
        self._words = RowWords(self._rows, self._window)
        self._life = RowLife(self._rows, self._window, self._words)
        self._drafts = Drafts(self._rows, self._window)
        self._publisher = RowPublisher(self._rows, self._window)

    def fit(self) -> None:
        """Tables for the pools as they are, while no row is active. The caller holds the lock."""
        self._rows.fit()

    # ---- life of a request ----------------------------------------------------------------------------------------

    def admit(self, tokens: int, *, lease: Lease | None = None, owner: str = "", salt: bytes | None = None) -> int:
        """A row for a prompt, or its first chunk, whose state is written at once: slots for all of it, or nothing.

        Args:
            tokens: length of the prompt, at least 1.
            lease: on the part that is reused; the row takes it over, and it is released with the row.
            owner: who asks.
            salt: of its keys; that of the lease by default. Slots of a request of which nobody says it are cleared
                before it has them, once salts are in use; so are those that it takes later. Who says it publishes
                under no other.

        Raises:
            Refused: BACKPRESSURE without a row that is free and promised to nobody, POOL_FULL without slots: not now.
                CAPACITY where the pools are too small, or there are no rows: never. LEASE for a lease that isn't held
                here.
        """
        with self._manager.lock:
            self._check_prompt(tokens, lease)
            self._manager.unpark()
            receipt = None if lease is None else self._manager.receipt_of(lease)  # in time by now, and so all along
            reused = 0 if lease is None else lease.length // self._granule
            need = self.need(tokens, reused)
            self._manager.core.check_fits(need, {} if receipt is None else receipt.slots)
            self._check_idle()
            self._manager.tick()
            salt = _tenant(salt, receipt)
            store_epoch = self._store_epoch()
            slots = self._manager.take(need, "take", salt=salt)
            return self._life.begin(tokens, slots, lease, receipt, owner, salt, store_epoch)

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
        counts = dict.fromkeys(self._rows.kinds, -(-tokens // self._granule) - reused)
        if self._rows.has_tail:
            counts["uncompressed_tail"] = 1
        if self._window is not None:
            counts["swa_window"] = self._window.need(tokens)
        return counts

    def place(
        self,
        tokens: int,
        slots: Mapping[str, npt.NDArray[Any]],
        *,
        lease: Lease | None = None,
        owner: str = "",
        salt: bytes | None = None,
    ) -> int:
        """``admit`` for a reservation, with slots that were taken before (event ``take``) and the row promised to it.

        The caller holds the manager's lock.

        Args:
            tokens: length of the prompt, at least 1.
            slots: by kind, as many as ``need`` says; they are the row's afterwards.
            lease: as for ``admit``.
            owner: who asks.
            salt: as for ``admit``; they were taken for that tenant.

        Raises:
            Refused: LEASE for a lease that isn't held here; the slots are still the caller's.
            ValueError: too few or too many slots, or none of a kind.
            Exception: what the backend raises that can't copy the lease's boundary; the slots are free then, and the
                lease is its holder's.
        """
        self._check_prompt(tokens, lease)
        receipt = None if lease is None else self._manager.receipt_of(lease)
        salt = _tenant(salt, receipt)
        assert not self.active.all(), "a row was promised, and others have taken it"
        reused = 0 if lease is None else lease.length // self._granule
        need, given = self.need(tokens, reused), {kind: len(held) for kind, held in slots.items()}
        if given != need:
            raise ValueError(f"slots for {given}; {tokens} tokens of which {reused} granules are leased need {need}")
        return self._life.begin(tokens, slots, lease, receipt, owner, salt, self._store_epoch())

    def extend(self, row: int, tokens: int, *, done: Done | None = None) -> None:
        """The next chunk of a prompt, whose state is written at once: slots for all of it, or nothing.

        The entries of a chunk come in one batch a block, those of a block that an earlier chunk began in one more.

        Args:
            row: row number.
            tokens: length of the chunk, at least 1.
            done: whether the device has ended the steps begun before; blocks that slide out of a window wait for it.

        Raises:
            Refused: POOL_FULL without slots (not now), CAPACITY where the pools are too small (never); the row is as it
                was, with all that it holds.
            ValueError: a row that holds no request, has decoded tokens already, or has open drafts.
        """
        with self._manager.lock:
            state = self._rows
            state.check(row)
            self._check_no_drafts(np.array([row]), "extend")
            start = int(state.tokens[row])
            if tokens < 1 or state.prefilled[row] != start:
                what = f"{start} tokens, {start - state.prefilled[row]} of them decoded, and a chunk of {tokens}"
                raise ValueError(f"row {row} has {what}; extend a prompt by at least 1 token, before it decodes")
            done = still(done)
            self._manager.unpark()
            stop, blocks = start + tokens, int(state.blocks[row])
            last = -(-stop // self._granule)
            self._check_capacity(last)
            wanted = dict.fromkeys(state.kinds, np.full(last - blocks, row)) if last > blocks else {}
            slide = None if self._window is None else self._window.final_slide(row, stop)
            slots = take_with_slide(self._rows, self._window, wanted, slide, done)
            if wanted:
                state.put_blocks(row, slots, blocks, last)
            state.tokens[row] = stop
            if self._window is not None:
                self._window.written(row, start, stop)
            self._words.write(row, start, stop)

    def step(self, rows: npt.ArrayLike, *, done: Done | None = None) -> None:
        """One decoded token for each of some rows (unique). Only rows at a stride touch the pools.

        Args:
            rows: row numbers.
            done: whether the device has ended the steps begun before; blocks that slide out of a window wait for it.

        Raises:
            Refused: POOL_FULL (not now), CAPACITY where the pools are too small for a row or for all of these (never);
                no row has moved.
            ValueError: a row that holds no request or has open drafts, or a row twice.
        """
        index = np.asarray(rows, np.intp)
        with self._manager.lock:
            self._make_room(index, done)
            self._words.count(index)

    def make_room(self, rows: npt.ArrayLike, *, done: Done | None = None) -> None:
        """Room for the next token of each of some rows, which is there until that comes: all of ``step`` that can fail.

        Ranks that step together make room first, and ``count`` once all have it. Arguments and errors are those of
        ``step``.
        """
        with self._manager.lock:
            self._make_room(np.asarray(rows, np.intp), done)

    def count(self, rows: npt.ArrayLike) -> None:
        """One token for each of some rows that have room for it; those that hold no request any more have none."""
        index = np.asarray(rows, np.intp)
        with self._manager.lock:
            self._words.count(index[self.active[index]])

    def rollback(self, row: int, to: int, *, done: Done | None = None) -> None:
        """Take a row back to ``to`` tokens, without its drafts: what is rejected leaves no trace in any kind.

        Args:
            row: row number.
            to: tokens that it holds afterwards.
            done: whether the device has ended the steps begun so far; blocks of rejected tokens wait for it.

        Raises:
            Refused: GAP when rows before ``to`` are gone already (compressed, or slid out of the window): restore a
                checkpoint. Nothing has changed then.
        """
        with self._manager.lock:
            self.go_back(row, to, self.check_back(row, to, done))

    def check_back(self, row: int, to: int, done: Done | None) -> Done | None:
        """All of ``rollback`` that can fail; returns ``done`` while it says no. The caller holds the lock."""
        self._rows.check(row)
        now = int(self._rows.tokens[row])
        if not 0 < to <= now:
            raise ValueError(f"row {row} holds {now} tokens; give 1 to {now}, not {to}")
        self._words.check_back(row, now, to)
        return still(done)

    def go_back(self, row: int, to: int, done: Done | None) -> None:
        """The rest of it, which asks nobody. The caller holds the lock."""
        self._drafts.settle(row, done)
        self._words.settle(row)
        self._words.go_back(row, int(self._rows.tokens[row]), to, done)

    def publish(
        self,
        row: int,
        keys: Keys,
        *,
        computed: int | None = None,
        priority: int = 0,
        ttl: int | None = None,
        done: Done | None = None,
    ) -> int:
        """Let others find the row's whole granules, as far as the keys go; returns how many the row shares now.

        The row goes on reading them under pins; where others published the same before, it changes over to theirs.
        Boundary kinds are published when the row ends exactly at a boundary. Drafts don't count. What was published is
        stored as ``Manager.publish`` does it, if the device has ended: else its bytes may not be there, and
        ``Manager.persist`` stores them later.

        Args:
            row: row number.
            keys: of its tokens.
            computed: tokens whose state is written, where the row has room for more that are not; None: all of them.
            priority: as for ``Manager.publish``.
            ttl: the same; the row reads on when it ends.
            done: whether the device has ended the steps begun so far; the row's own blocks wait for it where it changes
                over to those of others.

        Raises:
            Refused: GAP when the chain before what the row owns is gone, IDENTITY for keys of another model or tenant,
                EPOCH when the row was admitted, or its lease taken, before a reset.
            ValueError: a row that holds no request, or more computed tokens than it has.
        """
        shared, writing = self.publish_unstored(row, keys, computed, priority, ttl, done)
        if writing is not None:
            self._manager.storer.finish(writing)
        return shared

    def publish_unstored(
        self, row: int, keys: Keys, computed: int | None, priority: int, ttl: int | None, done: Done | None
    ) -> tuple[int, WriteThrough | None]:
        """``publish``, and what the caller is to have stored when it holds no lock any more."""
        with self._manager.lock:
            computed = self._check_computed(row, computed)
            self._manager.core.check_keeping(priority, ttl)
            self.check_keys(row, keys)
            self._publisher.check_epoch(row)
            self._manager.tick()
            self._manager.drop_expired()
            return self._publisher.publish(row, keys, computed, still(done), priority, ttl)

    def preempt(self, row: int, keys: Keys, *, computed: int | None = None, done: Done | None = None) -> Preempted:
        """Put a request back: its drafts go, its whole granules are published if they can be, and its slots are free.

        Those that the keys don't reach are not published. Whether or not they could be, the request can be begun again
        at exactly ``Preempted.tokens``; see ``preemption.py``.

        Args:
            row: row number; it can be given to another request at once.
            keys: of its tokens.
            computed: as for ``publish``; the others go. Tail and window of a boundary that is computed to are published
                as well, for nobody has written over them; but of a window of blocks those are gone that slid out for
                the others.
            done: whether the device has ended the steps begun so far; all slots of the row wait for it.

        Raises:
            Refused: IDENTITY for keys of another model or tenant; nothing has changed then.
            ValueError: as for ``publish``.
        """
        left, writing = self.preempt_unstored(row, keys, computed, done)
        if writing is not None:
            self._manager.storer.finish(writing)
        return left

    def preempt_unstored(
        self, row: int, keys: Keys, computed: int | None, done: Done | None
    ) -> tuple[Preempted, WriteThrough | None]:
        """``preempt``, and what the caller is to have stored when it holds no lock any more."""
        with self._manager.lock:
            state, refusal, writing = self._rows, None, None
            computed = self._check_computed(row, computed)
            self.check_keys(row, keys)
            done = still(done)
            self._manager.unpark()
            self._manager.tick()
            self._manager.drop_expired()
            rejected, published = int(state.drafts[row]), int(state.shared[row])
            try:
                self._publisher.check_epoch(row)
                published, writing = self._publisher.publish(row, keys, computed, done)
            except Refused as refused:
                refusal = refused.refusal
            self._drafts.settle(row, done)
            left = Preempted(state.owners[row], computed, published, rejected, refusal)
            self._life.end(row, done)
            return left, writing

    def finish(self, row: int, *, done: Done | None = None) -> None:
        """End a request: what it shares is given back to the cache, what it owns is free.

        Args:
            row: row number; it can be given to another request at once.
            done: whether the device has ended the steps begun so far; all slots of the row wait for it.
        """
        with self._manager.lock:
            self._rows.check(row)
            done = still(done)
            self._manager.unpark()
            self._manager.tick()
            self._life.end(row, done)

    def end_all(self) -> None:
        """End every request at once. The caller holds the lock."""
        for row in np.flatnonzero(self.active).tolist():
            self._life.end(row, None)

    # ---- drafts ---------------------------------------------------------------------------------------------------

    def propose(self, rows: npt.ArrayLike, count: npt.ArrayLike) -> None:
        """Room for ``count`` draft tokens after the committed ones of each row; no word changes but of slots taken.

        Drafts are written to the places that ``table`` and ``resolve`` give for the positions from ``tokens[row]`` on,
        and in the tail as ``drafts.py`` says. ``draft_room`` says how many there can be.

        Args:
            rows: row numbers, unique.
            count: drafts of all rows, or of each; 0 or more.

        Raises:
            Refused: GAP where drafts would overwrite what the next query reads at the committed tokens, because the
                model's tail or window has too few rows; it says how many fit. POOL_FULL without slots, CAPACITY where
                the pools are too small. Nothing has changed then.
            ValueError: a row that holds no request, has open drafts or is named twice.
        """
        index = np.asarray(rows, np.intp)
        with self._manager.lock:
            counts = np.broadcast_to(np.asarray(count, np.int64), index.shape)
            self._check_all(index)
            self._check_no_drafts(index, "propose")
            if (counts < 0).any():
                raise ValueError(f"{counts.tolist()} drafts; give 0 or more")
            self._drafts.check(index, counts)
            self._manager.unpark()
            self._drafts.open(index, counts)

    def accept(self, rows: npt.ArrayLike, counts: npt.ArrayLike, *, done: Done | None = None) -> None:
        """Commit the first drafts of each row as so many steps would have, and reject the others.

        Args:
            rows: row numbers, unique.
            counts: drafts to commit of all rows, or of each; 0 rejects all of them.
            done: whether the device has ended the steps begun so far; what is given back waits for it.

        Raises:
            ValueError: more than were proposed, a row that holds no request, or a row twice.
        """
        index = np.asarray(rows, np.intp)
        with self._manager.lock:
            state = self._rows
            stays = np.broadcast_to(np.asarray(counts, np.int64), index.shape)
            self._check_all(index)
            if ((stays < 0) | (stays > state.drafts[index])).any():
                what = f"rows {index.tolist()} have {state.drafts[index].tolist()} drafts"
                raise ValueError(f"{what}; give at most so many to accept, not {stays.tolist()}")
            done = still(done)
            self._manager.unpark()
            for n in range(int(stays.max(initial=0))):
                self._words.count(index[stays > n])
            for row in index[state.drafts[index] > 0].tolist():
                self._drafts.settle(row, done)

    def reject(self, rows: npt.ArrayLike, *, done: Done | None = None) -> None:
        """Reject all drafts of each row: it is as if they had never been proposed. As ``accept`` of 0."""
        self.accept(rows, 0, done=done)

    def draft_room(self, rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Drafts that tail, window and pools of each row could have at its committed tokens, int64 [rows]."""
        with self._manager.lock:
            tail, window, pools = self._drafts.room(np.asarray(rows, np.intp))
            return np.minimum(np.minimum(tail, window), pools)

    # ---- reports ---------------------------------------------------------------------------------------------------

    def coverage(self, row: int) -> Coverage:
        """What covers the row's committed tokens, from the words themselves."""
        with self._manager.lock:
            self._rows.check(row)
            self._words.settle(row)
            return coverage_of(self._rows, row, None if self._window is None else self._window.window)

    # ---- under the lock: admission --------------------------------------------------------------------------------

    def _check_prompt(self, tokens: int, lease: Lease | None) -> None:
        if tokens < 1 or (lease is not None and tokens < lease.length):
            raise ValueError(f"a prompt of {tokens} tokens; give at least 1, and the leased part")

    def _check_idle(self) -> None:
        """Raise Refused without a free row: BACKPRESSURE, or CAPACITY where there never is one."""
        if not len(self.active):
            raise Refused(Reason.CAPACITY, "requests", "a row, and the manager was made with rows=0")
        if not self.idle:
            raise Refused(Reason.BACKPRESSURE, "requests", f"all {len(self.active)} rows are taken, or promised")

    def _check_capacity(self, blocks: int) -> None:
        """Raise Refused (CAPACITY) where a row of so many granules could never have them, however long it waits."""
        for kind in self._rows.kinds:
            if blocks > (most := self._manager.core.capacity(kind)):
                raise Refused(Reason.CAPACITY, "pool", f"{blocks} slots of {kind} for a row, and the pool has {most}")

    def check_keys(self, row: int, keys: Keys) -> None:
        """Raise Refused (IDENTITY) for keys of another model, or of another tenant than a row is known to be of."""
        self._manager.check_keys(keys)
        salt = self._rows.salts[row]
        if salt is not None and salt != keys.salt:
            what = f"row {row} is of salt {salt!r}, and these keys of {keys.salt!r}; give the row's own keys"
            raise Refused(Reason.IDENTITY, "requests", what)

    # ---- under the lock: decoding ---------------------------------------------------------------------------------

    def _make_room(self, rows: Rows, done: Done | None) -> None:
        """See ``make_room``."""
        self._check_all(rows)
        self._check_no_drafts(rows, "step")
        starts = rows[self._rows.until[rows] == self._rows.stride]
        if len(starts):
            done = still(done)
            self._manager.unpark()
            self._make_blocks(starts, done)

    def _make_blocks(self, rows: Rows, done: Done | None) -> None:
        """Blocks for rows whose next token begins one."""
        state = self._rows
        fresh = rows[state.blocks[rows] * self._granule == state.tokens[rows]]
        if len(fresh):
            self._check_capacity(int(state.blocks[fresh].max()) + 1)
        wanted = dict.fromkeys(state.kinds, fresh) if len(fresh) else {}
        slide = None if self._window is None else self._window.next_slide(rows)
        slots = take_with_slide(self._rows, self._window, wanted, slide, done)
        if len(fresh):
            for kind in state.kinds:
                state.tables[kind][fresh, state.blocks[fresh]] = slots[kind]
            state.batches[fresh, state.blocks[fresh]] = 0
            state.blocks[fresh] += 1

    # ---- small helpers --------------------------------------------------------------------------------------------

    def _check_all(self, rows: Rows) -> None:
        """Raise ValueError unless each of some rows holds a request and is named once."""
        if not self.active[rows].all():
            raise ValueError(f"rows {rows[~self.active[rows]].tolist()} hold no request")
        times = np.bincount(rows)
        if times.max(initial=0) > 1:
            twice = np.flatnonzero(times > 1).tolist()
            raise ValueError(f"rows {twice} are named more than once; name each row once")

    def _store_epoch(self) -> int:
        """Asked before anything has changed, as a store may raise; 0 without one."""
        return 0 if self._manager.store is None else self._manager.store.epoch

    def _check_computed(self, row: int, computed: int | None) -> int:
        """Tokens of a row whose state is written, as its owner says; raises ValueError where it has not so many."""
        self._rows.check(row)
        tokens = int(self._rows.tokens[row])
        if computed is not None and not 0 <= computed <= tokens:
            raise ValueError(f"row {row} holds {tokens} tokens, and {computed} of them are said to be computed")
        return tokens if computed is None else computed

    def _check_no_drafts(self, rows: Rows, verb: str) -> None:
        open_ = self._rows.drafts[rows] > 0
        if open_.any():
            raise ValueError(f"rows {rows[open_].tolist()} have open drafts; accept or reject them before you {verb}")


def _tenant(salt: bytes | None, receipt: Receipt | None) -> bytes | None:
    """Whose a row is that goes on from a lease; Refused (LEASE) where that is another tenant's."""
    if receipt is None:
        return salt
    if salt is not None and salt != receipt.salt:
        what = f"a lease of salt {receipt.salt!r} for a request of {salt!r}; match its own keys"
        raise Refused(Reason.LEASE, "requests", what)
    return receipt.salt
