"""Loads: slots are reserved, bytes arrive in them layer by layer, and all of it becomes readable at once or none.

Packed granules of the same plan are expanded under the same ticket. What the caller holds of a load is in
``ticket.py``.
"""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import publication
from .answers import Plan, Reason
from .attempts import Attempts
from .backend import expand_slots
from .errors import Broken, Refused
from .expanding import check_packed, hold_packed, packed_places, same_packed, unhold_packed
from .generated import Refusal, TicketTable
from .keeping import Keeping
from .kinds import Given, Numbers
from .overlap import reach
from .pool import Slots
from .stores.files import aligned
from .stores.store import ObjectId
from .ticket import Batch, Ticket, Word

if TYPE_CHECKING:
    from .manager import Manager

_TICKETS = 1024  # most that can be open at once
_NO_SLOTS: Mapping[str, int] = MappingProxyType({})


class Loader:
    """Runs the tickets of a manager."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._numbers = itertools.count(1)
        self.tickets: dict[int, Ticket] = {}
        self.words = manager.table(TicketTable, _TICKETS)
        self._free = list(range(_TICKETS))[::-1]
        self.attempts = Attempts()

    def bringing(self, plan: Plan) -> int | None:
        """The open ticket to name in a plan, see there. The caller holds the lock. Cost: O(log n) a ticket."""
        best, most = None, 0
        for number, ticket in self.tickets.items():
            if ticket.state == "open" and ticket.epoch == self._manager.epoch:
                brings = reach(self._manager.core, plan, ticket.plan)
                if brings > most:
                    best, most = number, brings
        return best

    def load(self, plan: Plan, owner: str) -> None:
        """Run a plan's ticket to its end."""
        self.begin(plan, owner).transfer()

    def begin(self, plan: Plan, owner: str) -> Ticket:
        """Reserve all slots of a plan, or none."""
        with self._manager.lock:
            self._manager.unpark()
            return self.open(plan, owner)

    def open(self, plan: Plan, owner: str, *, beside: Mapping[str, int] = _NO_SLOTS) -> Ticket:
        """The same in a larger step of a caller who holds the lock.

        Args:
            plan: what to load.
            owner: who waits for it.
            beside: further slots by kind whose room is made together with the plan's, all or nothing. The caller takes
                them himself, in the same step, with ``Manager.take``.

        Raises:
            Refused: POOL_FULL, CAPACITY, BACKPRESSURE when as many loads are open as there may be, STALE when what is
                packed has changed, or LEASE for another manager's plan; nothing has changed then.
        """
        manager, core = self._manager, self._manager.core
        manager.check_own(plan)
        if not self._free:
            raise Refused(Reason.BACKPRESSURE, "load", f"{len(self.tickets)} loads are open, as many as there may be")
        spot = core.index.locate(plan.claim.digests, plan.boundary)
        check_packed(core, plan, spot)
        counts = {kind: len(places) for kind, places in plan.wanted.items()}
        expand = packed_places(core, plan, spot)
        held = hold_packed(core, expand, spot)
        need = Counter(counts) + Counter(beside)
        if len(expand):
            need["compressed_kv"] += len(expand)
        batches: list[Batch] = []
        try:
            core.make_room(need, core.tenant(plan.claim.salt))
            if len(expand):
                batches.append(self._expansion(expand, held[0], manager.isolation.whose(plan.claim.salt)))
            versions = {kind: core.versions(kind, spot, places) for kind, places in plan.wanted.items()}
            given = {
                kind: core.pools[kind].rules.load_begin(places, versions[kind]) for kind, places in plan.wanted.items()
            }
            slots = manager.take(counts, "load_begin", given, salt=plan.claim.salt)
        except BaseException:  # of a backend that can't clear what others left, too
            for batch in batches:
                self._drop(batch, 0)
            unhold_packed(core, *held, plan)
            raise
        batches[:0] = [
            self._batch(kind, places, slots[kind], versions[kind], np.zeros(len(places), np.bool_))
            for kind, places in plan.wanted.items()
        ]
        number = next(self._numbers)
        word = self._begin_word(owner)
        ticket = Ticket(self, number, word, owner, manager.epoch, plan, batches, held[0], held_generations=held[1])
        ticket.site = manager.site()
        ticket.waiting.append(owner)
        self.tickets[number] = ticket
        return ticket

    def transfer(self, ticket: Ticket) -> None:
        """See ``Ticket.transfer``."""
        with self._manager.lock:
            if ticket.moving or ticket.ended:
                what = "is being moved already" if ticket.moving else f"has ended: {ticket.state}"
                raise Refused(Reason.LEASE, "load", f"ticket {ticket.ticket_id} {what}")
            ticket.moving = True
        try:
            ok = self._transfer(ticket)
            self._land_all(ticket)
            self.done(ticket, ok, stopped=True)
        except BaseException:  # the bytes have stopped by now, and no object is to blame
            if not ticket.ended and self._manager.lock.reason is None:
                self.done(ticket, False, missing={}, stopped=True)
            raise

    def join(self, ticket: Ticket, owner: str) -> None:
        """See ``Ticket.join``."""
        self._check(ticket, "open")
        if len(ticket.waiting) == self.words.LAYOUT.field("waiters").high:
            raise Refused(Refusal.TOO_MANY_HOLDS, "load", f"{len(ticket.waiting)} wait for ticket {ticket.ticket_id}")
        self._sure(ticket, "join")
        ticket.waiting.append(owner)

    def leave(self, ticket: Ticket, owner: str) -> bool:
        """See ``Ticket.leave``."""
        if owner not in ticket.waiting:
            raise Refused(Reason.LEASE, "load", f"{owner!r} does not wait for ticket {ticket.ticket_id}")
        last = ticket.state == "open" and len(ticket.waiting) == 1
        if last:
            self._abort(ticket)
        elif ticket.state == "open":
            self._sure(ticket, "leave")
        ticket.waiting.remove(owner)
        return last

    def land(self, ticket: Ticket, kind: str, layer: int | None) -> int:
        """See ``Ticket.land``."""
        with self._manager.lock:
            self._check(ticket, "open")
            self._check_still(ticket)
            landed = 0
            for batch in ticket.batches:
                if batch.kind == kind:
                    if batch.landed == batch.layers or layer not in (None, batch.landed):
                        what = f"{kind}: layer {layer} does not land now, {batch.landed} of {batch.layers} have landed"
                        raise Refused(Reason.GAP, "load", what)
                    self._land(batch)
                    landed = batch.landed
            if landed:
                self._sure(ticket, "land")
            return landed

    def miss(self, ticket: Ticket, missing: Mapping[str, Numbers]) -> None:
        """See ``Ticket.miss``."""
        with self._manager.lock:
            self._check(ticket, "open")
            self._check_still(ticket)
            self._miss(ticket, missing)

    def use_layer(self, ticket: Ticket, layer: int) -> Refusal | None:
        """See ``Ticket.use_layer``."""
        core = self._manager.core
        with self._manager.lock:
            for batch in ticket.batches:
                if batch.kind in core.paged:
                    pool = core.pools[batch.kind]
                    given = pool.rules.use_layer(layer, batch.versions)
                    if code := pool.fire("use_layer", batch.slots, expected=batch.generations, **given):
                        return Refusal(code)
            return None

    def done(
        self, ticket: Ticket, ok: bool, *, missing: Mapping[str, Numbers] | None = None, stopped: bool = False
    ) -> None:
        """See ``Ticket.done``. ``stopped`` when it is ``transfer`` that says so."""
        manager, plan = self._manager, ticket.plan
        with manager.lock:
            self._check_still(ticket, stopped)
            if ticket.state == "aborted":
                self._check(ticket, "aborted")
                self._sure(ticket, "complete", of=ticket.word.of, ok=ok)
                self._free_aborted(ticket, "late")
                return
            self._check(ticket, "open")
            fits = ticket.epoch == manager.epoch and self._still_fits(ticket)
            if ok and fits:
                self._check_landed(ticket)
            elif not ok and missing is not None:
                self._miss(ticket, missing)
            if whole := (plan.boundary if ok else self._whole(ticket)) if fits else 0:
                manager.tick()
            ticket.kept = whole
            self._publish(ticket)
            self._discard(ticket)
            if not ok:
                self.attempts.failed(self._objects(ticket, plan.wanted if ticket.missing is None else ticket.missing))
            if ticket.kept and self.attempts.failing:
                loaded = [batch for batch in ticket.batches if batch.begin == "load_begin"]
                kept = {batch.kind: batch.places[batch.granules < ticket.kept] for batch in loaded}
                self.attempts.forget(self._objects(ticket, kept))
            self._complete(ticket, ok and fits)
            self._end(ticket, "done" if ok and fits else "failed")

    def drop(self, ticket: Ticket) -> None:
        """End a ticket of which no byte was asked for yet. The caller holds the lock."""
        self._check(ticket, "open")
        self._abort(ticket)
        self._sure(ticket, "quiesce", of=ticket.word.of)
        self._free_aborted(ticket, "quiesced")

    def abort(self, ticket: Ticket) -> None:
        """See ``Ticket.abort``."""
        with self._manager.lock:
            self._check(ticket, "open")
            self._abort(ticket)

    def quiesce(self, ticket: Ticket) -> None:
        """See ``Ticket.quiesce``."""
        with self._manager.lock:
            self._check(ticket, "aborted")
            self._check_still(ticket)
            self._sure(ticket, "quiesce", of=ticket.word.of)
            self._free_aborted(ticket, "quiesced")

    # ---- helpers; the caller holds the lock, except in _transfer and _land_all ---------------------------------------

    def _transfer(self, ticket: Ticket) -> bool:
        """Move a ticket's bytes up to the first that the store can't give; False when there is one, or an abort."""
        manager, cut = self._manager, ticket.plan.boundary
        for batch in ticket.batches:  # what is known to be missing is not read, nor what stands behind it
            cut = min([cut, *batch.granules[~batch.here].tolist()])
        for batch in ticket.batches:
            if ticket.state != "open":  # aborted meanwhile
                return False
            count = int(np.searchsorted(batch.granules, cut))
            if batch.begin == "expand_begin":
                if count:
                    arena = manager.core.pools[batch.kind].arena
                    expand_slots(manager.backend, arena, batch.slots[:count], batch.packed[:count])
                given = np.ones(count, np.bool_)
            else:
                given = self._read(ticket, batch, count)
            if not given.all():
                cut = int(batch.granules[int(np.argmin(given))])
            with manager.lock:
                batch.here[:count] = given
                batch.here[count:] = False  # of no use, and not read
                if ticket.state == "open" and not given.all():
                    self._miss(ticket, {batch.kind: batch.places[:count][~given]})
        return ticket.missing is None

    def _read(self, ticket: Ticket, batch: Batch, count: int) -> npt.NDArray[np.bool_]:
        """Read the first objects of a batch into their slots; which of them the store gave, whole."""
        manager, claim = self._manager, ticket.plan.claim
        if manager.store is None or not count:
            return np.zeros(count, np.bool_)
        arena, slots = manager.core.pools[batch.kind].arena, batch.slots[:count]
        names = manager.object_of(claim.digests, claim.salt, batch.kind, batch.places[:count])
        whole = arena.stride
        if arena.is_remote:
            staged = np.frombuffer(aligned(count * whole), np.uint8).reshape(count, whole)  # fit for direct reads, too
            found = manager.store.get_many(names, list(staged))
            manager.backend.scatter(arena.region, slots, staged)
        else:
            found = manager.store.get_many(names, [arena.bytes[slot] for slot in slots.tolist()])
        batch.lossy[:count] = [bool(one.meta.get("lossy", False)) for one in found]
        return np.array([one.verdict == 0 and one.length == whole for one in found], np.bool_)

    def _land_all(self, ticket: Ticket) -> None:
        """All layers of a ticket have arrived, unless it was aborted meanwhile."""
        with self._manager.lock:
            if ticket.state == "open":
                for batch in ticket.batches:
                    for _ in range(batch.layers):
                        self._land(batch)
                self._sure(ticket, "land")

    def _land(self, batch: Batch) -> None:
        if batch.kind in self._manager.core.paged:
            pool, here = self._manager.core.pools[batch.kind], batch.here
            pool.sure("land", batch.slots[here], "S17", expected=batch.generations[here], layer=batch.landed)
        batch.landed += 1

    def _miss(self, ticket: Ticket, missing: Mapping[str, Numbers]) -> None:
        """Some places will not come; none where a load fails for another reason."""
        known = dict(ticket.missing or {})
        for kind, places in missing.items():
            if not len(places):
                continue
            known[kind] = np.union1d(known.get(kind, places), places)
            for batch in ticket.batches:
                if batch.kind == kind and batch.begin == "load_begin":
                    batch.here[np.isin(batch.places, places)] = False
        ticket.missing = known

    def _whole(self, ticket: Ticket) -> int:
        """After a failure, the granules before the first of which anything is missing; 0 where nobody knows what is."""
        if not ticket.missing:
            return 0
        lacking = [
            batch.granules if batch.landed < batch.layers else batch.granules[~batch.here] for batch in ticket.batches
        ]
        return int(min((granules.min() for granules in lacking if len(granules)), default=ticket.plan.boundary))

    def _objects(self, ticket: Ticket, places: Mapping[str, npt.ArrayLike]) -> list[ObjectId]:
        """Store ids of some of the objects that a ticket loads."""
        claim, found = ticket.plan.claim, []
        for kind, where in places.items():
            found += self._manager.object_of(claim.digests, claim.salt, kind, np.unique(np.asarray(where, np.int64)))
        return found

    def _publish(self, ticket: Ticket) -> None:
        """Make what the ticket keeps readable, and give back what others published meanwhile."""
        manager, core, plan = self._manager, self._manager.core, ticket.plan
        parts = [(batch, int(np.searchsorted(batch.granules, ticket.kept))) for batch in ticket.batches]
        parts = [(batch, count) for batch, count in parts if count]
        if not parts:
            return
        stop = plan.boundary  # of a part only as far as it goes: nothing in the index is empty
        if ticket.kept < stop:
            stop = max(int(batch.granules[count - 1]) + 1 for batch, count in parts)
        spot = core.index.extend(plan.claim.digests, stop)
        kept: dict[str, Slots] = {}
        expanded: list[tuple[Slots, Slots]] = []
        held = ticket.held
        publication.advance(core, spot)
        brought = {batch.kind: np.empty(0, np.int64) for batch, _ in parts}
        for batch, count in parts:
            brought[batch.kind] = np.union1d(brought[batch.kind], batch.places[:count])
        said = publication.said_before(core, spot, brought)
        for batch, count in sorted(parts, key=lambda part: (core.kinds.index(part[0].kind), int(part[0].places[0]))):
            pool = core.pools[batch.kind]
            given: Mapping[str, Any] = pool.rules.load_done(True, batch.lossy[:count])
            pool.sure(batch.done, batch.slots[:count], "S27", expected=batch.generations[:count], **given)
            if batch.begin == "expand_begin":  # nobody reads the packed copies that these replace
                self._unhold(ticket)
            for low, high in _runs(batch.places[:count], batch.kind in core.paged):
                places, slots = batch.places[low:high], batch.slots[low:high]
                if batch.kind in core.paged:
                    fresh = publication.fresh(core, batch.kind, spot, places)
                    if batch.begin == "expand_begin":
                        fresh &= same_packed(core, spot, places, held[low:high])
                    publication.place(core, batch.kind, spot, places, slots, fresh)
                else:
                    fresh = publication.add(core, batch.kind, spot, places, slots)
                pool.release("evict", slots[~fresh])
                kept[batch.kind] = np.concatenate((kept.get(batch.kind, slots[:0]), slots[fresh]))
                if batch.begin == "expand_begin":
                    expanded.append((slots[fresh], held[low:high][fresh]))
        clock = manager.time
        publication.settle(core, spot, kept, clock, Keeping(tenant=core.tenant(plan.claim.salt)), said)
        for slots, packed in expanded:
            core.pools["compressed_kv"].inherit(slots, packed)
            core.pools["compressed_kv"].stamp(slots, clock)
        core.trim()

    def _discard(self, ticket: Ticket) -> None:
        """Nothing is left of what the ticket does not keep."""
        for batch in ticket.batches:
            self._drop(batch, int(np.searchsorted(batch.granules, ticket.kept)))

    def _drop(self, batch: Batch, start: int) -> None:
        """The slots of a batch from one on have failed, and are free."""
        slots, generations = batch.slots[start:], batch.generations[start:]
        if len(slots):
            pool = self._manager.core.pools[batch.kind]
            given = pool.rules.load_done(False, batch.lossy[start:])
            pool.sure(batch.done, slots, "S27", expected=generations, **given)
            pool.release("discard", slots, expected=generations)

    def _check_landed(self, ticket: Ticket) -> None:
        for batch in ticket.batches:
            if not batch.here.all():
                what = f"{batch.kind}: places {batch.places[~batch.here].tolist()} are missing"
                raise Refused(Refusal.INCOMPLETE, "load", what)
            if batch.kind in self._manager.core.paged and batch.landed < batch.layers:
                what = f"{batch.kind}: {batch.landed} of {batch.layers} layers have landed"
                raise Refused(Refusal.INCOMPLETE, "load", what)

    def _still_fits(self, ticket: Ticket) -> bool:
        """Whether the chain is still there before and between the batches, and what they are tied to is as it was.

        Between: granules that others published anew among packed ones are of no batch, and may have gone. What an
        expansion brings was found before, and is not to be found again once it has ended or was let go.
        """
        core = self._manager.core
        spot = core.index.locate(ticket.plan.claim.digests, ticket.plan.boundary)
        for n, kind in enumerate(core.paged):
            live = core.index.live(n, spot)
            for batch in ticket.batches:
                behind = batch.places[batch.places >= live] if batch.kind == kind else batch.places[:0]
                if len(behind) and (batch.begin == "expand_begin" or int(behind[-1]) + 1 - live != len(behind)):
                    return False
        return all(
            np.array_equal(core.versions(batch.kind, spot, batch.places), batch.versions)
            for batch in ticket.batches
            if batch.begin == "load_begin" and batch.kind in core.paged
        )

    def _expansion(self, places: Numbers, packed: Slots, whose: int) -> Batch:
        core = self._manager.core
        pool = core.pools["compressed_kv"]
        versions = np.array([core.cold_bytes[slot][1] for slot in packed.tolist()], np.int64)
        layout = self._manager.profile.layouts["compressed_kv"].layout_id
        given: Given = {"wanted_layout": layout, "at_version": versions}
        slots = pool.take(len(packed), given, "expand_begin", whose=whose)
        lossy = pool.table.fields("lossy", packed).astype(np.bool_)
        batch = self._batch("compressed_kv", places, slots, versions, lossy, "expand")
        batch.packed = [core.cold_bytes[slot][0] for slot in packed.tolist()]
        return batch

    def _batch(
        self, kind: str, places: Numbers, slots: Slots, versions: Numbers, lossy: npt.NDArray[np.bool_],
        verb: str = "load",
    ) -> Batch:  # fmt: skip
        core = self._manager.core
        layers = len(self._manager.profile.layouts[kind].layers) if kind in core.paged else 1
        return Batch(
            kind, places, core.granules(kind, places), slots, core.pools[kind].generations(slots), versions, lossy,
            np.ones(len(places), np.bool_), layers, f"{verb}_begin", f"{verb}_done",
        )  # fmt: skip

    def _abort(self, ticket: Ticket) -> None:
        self._leave_all(ticket)  # the last one aborts
        for batch in ticket.batches:
            pool = self._manager.core.pools[batch.kind]
            pool.sure("load_abort", batch.slots, "S27", expected=batch.generations)
        ticket.state = "aborted"
        self._unhold(ticket)

    def _free_aborted(self, ticket: Ticket, state: str) -> None:
        for batch in ticket.batches:
            pool = self._manager.core.pools[batch.kind]
            pool.release("quiesce", batch.slots, expected=batch.generations)
        self._sure(ticket, "forget")
        self._end(ticket, state)

    def _unhold(self, ticket: Ticket) -> None:
        unhold_packed(self._manager.core, ticket.held, ticket.held_generations, ticket.plan)
        ticket.held = ticket.held[:0]

    def _end(self, ticket: Ticket, state: str) -> None:
        self._unhold(ticket)
        ticket.moving = False
        del self.tickets[ticket.ticket_id]
        if ticket.word.generation < self.words.LAYOUT.field("generation").high:  # else its place retires
            self._free.append(ticket.word.place)
        ticket.end(state)

    def _begin_word(self, owner: str) -> Word:
        """The word of a ticket that is opened now."""
        place, of = self._free.pop(), zlib.crc32(owner.encode()) & self.words.LAYOUT.field("owner").high
        code = int(self.words.begin([place], of=of)[0])
        assert not code, "a free place can be taken"
        return Word(place, int(self.words.fields("generation", [place])[0]), of)

    def _complete(self, ticket: Ticket, ok: bool) -> None:
        """The end is told, and read by all who wait in this very step: ``then``, and ``state``."""
        if ok and not any(batch.landed for batch in ticket.batches):
            self._sure(ticket, "land")  # of kinds that come as a whole, or of nothing at all
        self._sure(ticket, "complete", of=ticket.word.of, ok=ok)
        self._leave_all(ticket)

    def _leave_all(self, ticket: Ticket) -> None:
        for _ in ticket.waiting:
            self._sure(ticket, "leave")

    def _sure(self, ticket: Ticket, event: str, **given: Any) -> None:
        """An event on a ticket's word, which takes it: what may be refused was asked before. Raises Broken if not."""
        code = int(self.words.fire(event, [ticket.word.place], expected=ticket.word.generation, **given)[0])
        if code:
            raise Broken("S27", f"the word of ticket {ticket.ticket_id} refuses '{event}': {Refusal(code).reason}")

    def _check(self, ticket: Ticket, state: str) -> None:
        if ticket.state != state or self.tickets.get(ticket.ticket_id) is not ticket:
            raise Refused(Reason.LEASE, "load", f"ticket {ticket.ticket_id} is {ticket.state}, not {state}")

    def _check_still(self, ticket: Ticket, stopped: bool = False) -> None:
        """Nobody but the transfer itself says that the bytes have stopped, while it runs."""
        if ticket.moving and not stopped:
            what = f"ticket {ticket.ticket_id} is being moved by transfer(), which ends it; abort() it"
            raise Refused(Reason.LEASE, "load", what)


def _runs(places: Numbers, paged: bool) -> list[tuple[int, int]]:
    """Parts [low, high) of places to publish one by one: runs of granules in a row; all of a trailing kind."""
    cuts = (np.flatnonzero(np.diff(places) != 1) + 1).tolist() if paged else []
    return list(zip([0, *cuts], [*cuts, len(places)], strict=True))
