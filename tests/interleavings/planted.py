"""Races planted in subclasses of the runtime's classes, each small and each of a kind that people make."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

from kvfsm.runtime.answers import Answer
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.lease import Lease, Receipt
from kvfsm.runtime.manager import Manager


class RemembersSlots(Manager):
    """Remembers which slots each match saw."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.seen: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._kept: list[Answer] = []  # so that no other answer gets its id

    def match(self, keys: Any, *given: Any, **named: Any) -> Any:
        answer = super().match(keys, *given, **named)
        boundary = answer.now // self.profile.granule
        if answer.now:
            with self.lock:
                spot = self.core.index.locate(keys.digests, boundary)
                if spot.at == boundary:
                    try:
                        slots = {kind: self.core.slots_at(kind, spot, boundary) for kind in self.core.kinds}
                    except (KeyError, IndexError, ValueError):
                        return answer
                    self.seen[id(answer)] = spot, slots
                    self._kept.append(answer)
        return answer


class AcquiresUnchecked(RemembersSlots):
    """Reads the slots that the match saw, whatever is in them now, and pins nothing."""

    def acquire(self, answer: Answer, *, owner: str = "", deadline: float | None = None) -> Lease:
        if id(answer) not in self.seen:
            return super().acquire(answer, owner=owner, deadline=deadline)
        spot, slots = self.seen[id(answer)]
        with self.lock:
            receipt = Receipt(self.number(), owner, {}, {}, spot.segment, spot.at, self.epoch)
            lease = Lease(self, receipt.lease_id, owner, answer.now, True, None, slots)
            self.receipts[receipt.lease_id] = (receipt, weakref.ref(lease))
        return lease


class PinsAnyGeneration(RemembersSlots):
    """Pins the slots that the match saw in the generation that they have now."""

    def acquire(self, answer: Answer, *, owner: str = "", deadline: float | None = None) -> Lease:
        if id(answer) not in self.seen:
            return super().acquire(answer, owner=owner, deadline=deadline)
        spot, seen = self.seen[id(answer)]
        with self.lock:
            slots = {kind: held.astype(np.intp) for kind, held in seen.items()}
            now = {kind: self.core.pools[kind].generations(held) for kind, held in slots.items()}
            done: list[str] = []
            try:
                for kind, held in slots.items():
                    places = self.core.places(kind, answer.now // self.profile.granule)
                    pool = self.core.pools[kind]
                    given = pool.rules.pin(places, self.core.versions(kind, spot, places))
                    pool.must("pin", held, "lease", expected=now[kind], **given)
                    done.append(kind)
            except Refused:
                for kind in done:
                    self.core.pools[kind].must("unpin", slots[kind], "lease", expected=now[kind])
                raise
            receipt = Receipt(self.number(), owner, slots, now, spot.segment, spot.at, self.epoch)
            lease = Lease(self, receipt.lease_id, owner, answer.now, answer.exact, None, seen)
            self.receipts[receipt.lease_id] = (receipt, weakref.ref(lease))
        return lease


class ReleasesUnlocked(Manager):
    """Gives pins back without the lock, so that another's pin of the same moment is lost."""

    def release(self, lease: Lease, *, owner: str | None = None, done: Any = None) -> None:
        with self.lock:
            receipt = self.receipt_of(lease)
            del self.receipts[lease.lease_id]
        for kind, slots in receipt.slots.items():
            self.core.pools[kind].must("unpin", slots, "lease", expected=receipt.generations[kind])


class EvictsByEarlierPins(Manager):
    """Looks for pins before it takes the lock, and does not look again."""

    def evict(self, kind: str, count: int) -> int:
        table = self.core.pools[kind].table
        idle = table.fields("pins") == 0
        with self.lock:
            _unpin_by_force(table, np.flatnonzero(idle))
            return self.core.evict(kind, count)


class PublishesEarly(Manager):
    """Makes a fill visible before its last bytes are there."""

    def publish(self, fill: Any, **named: Any) -> None:
        arena = self.core.pools["compressed_kv"].arena.bytes
        slots = fill.slots["compressed_kv"]
        whole = arena[slots]
        arena[slots] = 0
        super().publish(fill, **named)
        self.backend.scatter(arena, slots, whole)


class StoresUnheld(Manager):
    """Lets slots be evicted and taken anew while they are copied to the store."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.storer.hold = lambda kept: {}  # type: ignore[method-assign]


class StoresLate(Manager):
    """Lets the store take bytes for those of the epoch in which they come, not of that in which they were computed."""

    def reserve(self, *given: Any, **named: Any) -> Any:
        fill = super().reserve(*given, **named)
        fill.store_epoch = None
        return fill


class ResetsInTwoSteps(Manager):
    """Ends the store's epoch after it has let go of the lock."""

    def reset(self, *, scrub: bool = False) -> int:
        store, self.store = self.store, None
        try:
            epoch = super().reset(scrub=scrub)
        finally:
            self.store = store
        if store is not None:
            store.reset()
        return epoch


class CompletesOfAnyEpoch(Manager):
    """A load is completed whatever has become of what it was for."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        done = self.loader.done

        def done_anyway(ticket: Any, ok: bool, **given: Any) -> None:
            ticket.epoch = self.epoch
            done(ticket, ok, **given)

        self.loader.done = done_anyway  # type: ignore[method-assign]
        self.loader._still_fits = lambda ticket: True  # type: ignore[method-assign]


class FreesAtAbort(Manager):
    """Slots of an aborted load are free at once, though its bytes may still arrive."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        abort = self.loader.abort

        def abort_and_free(ticket: Any) -> None:
            abort(ticket)
            ticket.moving = False
            self.loader.quiesce(ticket)

        self.loader.abort = abort_and_free  # type: ignore[method-assign]


class FitsAlways(Manager):
    """Ends a load as if nothing had changed since it began."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.loader._still_fits = lambda ticket: True  # type: ignore[method-assign]


class ParksNothing(Manager):
    """Releases at once, though the device still reads."""

    def release(self, lease: Lease, *, owner: str | None = None, done: Any = None) -> None:
        super().release(lease, owner=owner)


class ForgetsLoss(Manager):
    """What is packed without loss counts as exact, though it had been packed with loss before."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        pool, pack = self.core.pools["compressed_kv"], self.packer.pack
        sure = pool.sure
        losing: set[int] = set()  # threads that pack with loss

        def forgetting(event: str, slots: Any, invariant: str, /, **named: Any) -> None:
            if (event, invariant) == ("seal", "S17") and threading.get_ident() not in losing:
                named["is_lossy"] = np.zeros(len(slots), np.bool_)
            sure(event, slots, invariant, **named)

        def told(keys: Any, start: int, lossy: bool) -> int:
            if lossy:
                losing.add(threading.get_ident())
            return pack(keys, start, lossy)

        pool.sure = forgetting  # type: ignore[method-assign]
        self.packer.pack = told  # type: ignore[method-assign]


class PacksOpenly(Manager):
    """Packs without the exclusive mark: readers come in meanwhile, and the slots are freed under them."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        pool, packer = self.core.pools["compressed_kv"], self.packer
        sure, set_ready = pool.sure, packer._set_ready
        late: list[tuple[Any, ...]] = []

        def marked_late(event: str, slots: Any, invariant: str, /, **named: Any) -> None:
            if event == "compress_begin":
                return
            if event == "compress_done":
                _unpin_by_force(pool.table, slots)
                sure("compress_begin", slots, "S5", expected=named["expected"])
                set_ready(*late.pop())
            sure(event, slots, invariant, **named)

        pool.sure = marked_late  # type: ignore[method-assign]
        packer._set_ready = lambda *given: late.append(given)  # type: ignore[method-assign]


class PacksBlindly(Manager):
    """Takes for granted that the index still holds what was packed when the packing ends."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        everything = lambda n, spot, low, source: np.ones(len(source), np.bool_)  # noqa: E731
        self.packer._still_held = everything  # type: ignore[method-assign]


class PacksAllOrNothing(Manager):
    """Frees every source of a packing, though the index still holds those that did not expire meanwhile."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        still_held = self.packer._still_held

        def all_or_nothing(n: int, spot: Any, low: int, source: Any) -> Any:
            found = still_held(n, spot, low, source)
            return found if found.all() else np.zeros_like(found)

        self.packer._still_held = all_or_nothing  # type: ignore[method-assign]


def _unpin_by_force(table: Any, slots: Any) -> None:
    """Take pins out of words without an event."""
    pins = table.LAYOUT.field("pins")
    table.words[slots] &= table.words.dtype.type(~(pins.mask << pins.shift) % 2**64)
