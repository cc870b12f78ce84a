"""Loads: slots are reserved, bytes arrive in them layer by layer, and all of it becomes readable at once or none.

Packed granules of the same plan are expanded under the same ticket. What the caller holds of a load is in
``ticket.py``.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .answers import Plan, Reason
from .errors import Refused
from .generated import Refusal
from .kinds import Given
from .stores.store import ObjectId
from .ticket import Batch, Numbers, Slots, Ticket

if TYPE_CHECKING:
    from .manager import Manager

LOAD_ATTEMPTS = 2
"""Failed loads of one object in a row after which it counts as missing, see ``Ticket.done``."""
_REMEMBERED = 4096  # objects whose failures are remembered
_NO_SLOTS: Mapping[str, int] = MappingProxyType({})


class Loader:
    """Runs the tickets of a manager."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._numbers = itertools.count(1)
        self.tickets: dict[int, Ticket] = {}
        self._failures: dict[ObjectId, int] = {}

    def usable(self, name: ObjectId) -> bool:
        """Whether an object is worth another attempt."""
        return self._failures.get(name, 0) < LOAD_ATTEMPTS

    def forget_failures(self, names: Sequence[ObjectId] | None = None) -> None:
        """Objects were stored anew; None: all. The caller holds the lock."""
        if names is None:
            self._failures.clear()
        for name in names or ():
            self._failures.pop(name, None)

    @property
    def failures(self) -> int:
        """Objects whose last load failed."""
        return len(self._failures)

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
            Refused: POOL_FULL, ADMISSION, or STALE when what is packed has changed; nothing has changed then.
        """
        manager, core = self._manager, self._manager.core
        spot = core.index.locate(plan.claim.digests, plan.boundary)
        self._check_packed(plan, spot)
        counts = {kind: len(places) for kind, places in plan.wanted.items()}
        expand = self._packed_places(plan, spot)
        held = self._hold_packed(expand, spot)
        need = Counter(counts) + Counter(beside)
        if len(expand):
            need["compressed_kv"] += len(expand)
        try:
            core.make_room(need)
            given = {}
            versions = {}
            for kind, places in plan.wanted.items():
                versions[kind] = core.versions(kind, spot, places)
                given[kind] = core.pools[kind].rules.load_begin(places, versions[kind])
            slots = manager.take(counts, "load_begin", given)
        except Refused:
            self._unhold(held[0], held[1], plan)
            raise
        batches = [
            Batch(
                kind,
                places,
                slots[kind],
                core.pools[kind].generations(slots[kind]),
                versions[kind],
                np.zeros(len(places), np.bool_),
                "load_begin",
                "load_done",
            )
            for kind, places in plan.wanted.items()
        ]
        if len(expand):
            batches.append(self._expansion(expand, held[0]))
        number = next(self._numbers)
        ticket = Ticket(self, number, owner, manager.epoch, plan, batches, held[0], held_generations=held[1])
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
            ok = self._transfer(ticket) and self._land_all(ticket)
        except BaseException:  # the bytes have stopped by now, and no object is to blame
            ticket.missing = {}
            self.done(ticket, False, stopped=True)
            raise
        self.done(ticket, ok, stopped=True)

    def land(self, ticket: Ticket, kind: str) -> int:
        """See ``Ticket.land``."""
        with self._manager.lock:
            self._check(ticket, "open")
            landed = 0
            for batch in ticket.batches:
                if batch.kind == kind:
                    self._land(batch)
                    landed = batch.landed
            return landed

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

    def done(self, ticket: Ticket, ok: bool, *, stopped: bool = False) -> None:
        """See ``Ticket.done``. ``stopped`` when it is ``transfer`` that says so."""
        manager, core = self._manager, self._manager.core
        with manager.lock:
            self._check_still(ticket, stopped)
            if ticket.state == "aborted":
                self._free_aborted(ticket, "late")
                return
            self._check(ticket, "open")
            blamed = self._blamed(ticket) if not ok else []
            ok = ok and ticket.epoch == manager.epoch
            spot = core.index.locate(ticket.plan.claim.digests, ticket.plan.boundary)
            ok = ok and self._still_fits(ticket, spot)
            if ok:
                self._check_landed(ticket)
                self._publish(ticket)
            else:
                for batch in ticket.batches:
                    pool = core.pools[batch.kind]
                    given = pool.rules.load_done(False, batch.lossy)
                    pool.must(batch.done, batch.slots, "load", expected=batch.generations, **given)
                    pool.release("discard", batch.slots, expected=batch.generations)
            self._count_failures(blamed)
            if ok and self._failures:
                self.forget_failures(self._objects(ticket, ticket.plan.wanted))
            self._end(ticket, "done" if ok else "failed")

    def abort(self, ticket: Ticket) -> None:
        """See ``Ticket.abort``."""
        with self._manager.lock:
            self._check(ticket, "open")
            for batch in ticket.batches:
                pool = self._manager.core.pools[batch.kind]
                pool.must("load_abort", batch.slots, "load", expected=batch.generations)
            ticket.state = "aborted"
            self._unhold(ticket.held, ticket.held_generations, ticket.plan)
            ticket.held = ticket.held[:0]

    def quiesce(self, ticket: Ticket) -> None:
        """See ``Ticket.quiesce``."""
        with self._manager.lock:
            self._check(ticket, "aborted")
            self._check_still(ticket)
            self._free_aborted(ticket, "quiesced")

    # ---- helpers; the caller holds the lock, except in _transfer and _land_all ---------------------------------------

    def _transfer(self, ticket: Ticket) -> bool:
        """Move all bytes of a ticket; False when the store can't give one of the objects."""
        manager, plan = self._manager, ticket.plan
        for batch in ticket.batches:
            if ticket.state != "open":  # aborted meanwhile
                return False
            arena = manager.core.pools[batch.kind].arena.bytes
            if batch.begin == "expand_begin":
                data = manager.backend.expand(manager.profile.layouts["compressed_kv"], batch.packed)
                manager.backend.scatter(arena, batch.slots, data)
                continue
            if manager.store is None:
                return False
            ids = manager.object_of(plan.claim.digests, plan.claim.salt, batch.kind, batch.places)
            for n, (slot, name) in enumerate(zip(batch.slots.tolist(), ids, strict=True)):
                found = manager.store.get(name, arena[slot])
                if found.verdict != 0:
                    ticket.missing = {batch.kind: batch.places[n : n + 1]}
                    return False
                batch.lossy[n] = bool(found.meta.get("lossy", False))
        return True

    def _land_all(self, ticket: Ticket) -> bool:
        """All layers of a ticket have arrived; False when it was aborted meanwhile."""
        with self._manager.lock:
            if ticket.state != "open":
                return False
            for batch in ticket.batches:
                if batch.kind in self._manager.core.paged:
                    for _ in self._manager.profile.layouts[batch.kind].layers:
                        self._land(batch)
            return True

    def _land(self, batch: Batch) -> None:
        pool = self._manager.core.pools[batch.kind]
        pool.must("land", batch.slots, "load", expected=batch.generations, layer=batch.landed)
        batch.landed += 1

    def _blamed(self, ticket: Ticket) -> list[ObjectId]:
        """The objects because of which a load failed."""
        return self._objects(ticket, ticket.plan.wanted if ticket.missing is None else ticket.missing)

    def _objects(self, ticket: Ticket, places: Mapping[str, npt.ArrayLike]) -> list[ObjectId]:
        """Store ids of some of the objects that a ticket loads."""
        claim, found = ticket.plan.claim, []
        for kind, where in places.items():
            found += self._manager.object_of(claim.digests, claim.salt, kind, np.unique(np.asarray(where, np.int64)))
        return found

    def _count_failures(self, names: Sequence[ObjectId]) -> None:
        for name in names:
            self._failures[name] = self._failures.pop(name, 0) + 1
            if len(self._failures) > _REMEMBERED:
                self._failures.pop(next(iter(self._failures)))

    def _publish(self, ticket: Ticket) -> None:
        """Everything has landed: make it readable, and give back what others published meanwhile."""
        manager, core, plan = self._manager, self._manager.core, ticket.plan
        spot = core.index.extend(plan.claim.digests, plan.boundary)
        kept: dict[str, Slots] = {}
        held = ticket.held
        core.advance(spot)
        for batch in sorted(ticket.batches, key=lambda batch: (core.kinds.index(batch.kind), int(batch.places[0]))):
            pool = core.pools[batch.kind]
            given: Mapping[str, Any] = pool.rules.load_done(True, batch.lossy)
            pool.must(batch.done, batch.slots, "load", expected=batch.generations, **given)
            if batch.begin == "expand_begin":  # nobody reads the packed copies that these replace
                self._unhold(ticket.held, ticket.held_generations, ticket.plan)
                ticket.held = ticket.held[:0]
            for low, high in _runs(batch, batch.kind in core.paged):
                places, slots = batch.places[low:high], batch.slots[low:high]
                fresh = core.fresh(batch.kind, spot, places, slots)
                if batch.begin == "expand_begin":
                    fresh &= self._same_packed(spot, places, held[low:high])
                if batch.kind in core.paged:
                    core.place(batch.kind, spot, places, slots, fresh)
                pool.release("evict", slots[~fresh])
                kept[batch.kind] = np.concatenate((kept.get(batch.kind, slots[:0]), slots[fresh]))
        core.settle(spot, kept, manager.clock())

    def _check_landed(self, ticket: Ticket) -> None:
        for batch in ticket.batches:
            if batch.kind in self._manager.core.paged:
                layers = len(self._manager.profile.layouts[batch.kind].layers)
                if batch.landed < layers:
                    what = f"{batch.kind}: {batch.landed} of {layers} layers have landed"
                    raise Refused(Refusal.INCOMPLETE, "load", what)

    def _still_fits(self, ticket: Ticket, spot: Any) -> bool:
        """Whether the chain before each batch is still there, and what it is tied to is of the same version."""
        core = self._manager.core
        first: dict[str, int] = {}
        for batch in ticket.batches:
            if batch.kind in core.paged:
                first[batch.kind] = min(first.get(batch.kind, int(batch.places[0])), int(batch.places[0]))
        return all(core.index.live(core.paged.index(kind), spot) >= low for kind, low in first.items()) and all(
            np.array_equal(core.versions(batch.kind, spot, batch.places), batch.versions)
            for batch in ticket.batches
            if batch.begin == "load_begin" and batch.kind in core.paged
        )

    def _same_packed(self, spot: Any, places: Numbers, packed: Slots) -> npt.NDArray[np.bool_]:
        """Where the index holds nothing, or the very packed copies that were expanded; ``places`` in a row."""
        index, low = self._manager.core.index, int(places[0])
        n = self._manager.core.paged.index("compressed_kv")
        same = np.ones(len(places), np.bool_)
        live = min(index.live(n, spot), low + len(places))
        if live > low:
            same[: live - low] = index.slots(n, spot, low, live) == packed[: live - low]
        return same

    def _check_packed(self, plan: Plan, spot: Any) -> None:
        core = self._manager.core
        if plan.expand:
            n = core.paged.index("compressed_kv")
            live, ready = core.index.live(n, spot), core.index.ready(n, spot)
            if live < plan.expand.stop or ready > plan.expand.start:
                raise Refused(Reason.STALE, "load", "the packed granules have changed since the match")

    def _packed_places(self, plan: Plan, spot: Any) -> Numbers:
        """Granules of a plan's expansion that are packed still; others were published anew meanwhile."""
        if not plan.expand:
            return np.empty(0, np.int64)
        core = self._manager.core
        slots = core.index.slots(core.paged.index("compressed_kv"), spot, plan.expand.start, plan.expand.stop)
        return np.arange(plan.expand.start, plan.expand.stop)[core.pools["compressed_kv"].in_state(slots, "packed")]

    def _hold_packed(self, places: Numbers, spot: Any) -> tuple[Slots, Numbers]:
        """Keep the packed copies from being evicted while they are read."""
        core = self._manager.core
        if not len(places):
            return np.empty(0, np.intp), np.empty(0, np.int64)
        low, high = int(places[0]), int(places[-1]) + 1
        packed = core.index.slots(core.paged.index("compressed_kv"), spot, low, high)[places - low].astype(np.intp)
        pool = core.pools["compressed_kv"]
        generations = pool.generations(packed)
        pool.must("hold", packed, "load", expected=generations)
        return packed, generations

    def _unhold(self, slots: Slots, generations: Numbers, plan: Plan) -> None:
        if len(slots):
            core = self._manager.core
            core.pools["compressed_kv"].must("unhold", slots, "load", expected=generations)
            core.sweep("compressed_kv")
            for at in (plan.expand.stop, plan.boundary):
                spot = core.index.locate(plan.claim.digests, at)
                core.offer(spot.segment, spot.at)

    def _expansion(self, places: Numbers, packed: Slots) -> Batch:
        core = self._manager.core
        pool = core.pools["compressed_kv"]
        versions = np.array([core.cold_bytes[slot][1] for slot in packed.tolist()], np.int64)
        layout = self._manager.profile.layouts["compressed_kv"].layout_id
        given: Given = {"wanted_layout": layout, "at_version": versions}
        slots = pool.take(len(packed), given, "expand_begin")
        lossy = pool.table.fields("lossy", packed).astype(np.bool_)
        return Batch(
            "compressed_kv", places, slots, pool.generations(slots), versions, lossy, "expand_begin", "expand_done",
            [core.cold_bytes[slot][0] for slot in packed.tolist()],
        )  # fmt: skip

    def _free_aborted(self, ticket: Ticket, state: str) -> None:
        for batch in ticket.batches:
            pool = self._manager.core.pools[batch.kind]
            pool.release("quiesce", batch.slots, expected=batch.generations)
        self._end(ticket, state)

    def _end(self, ticket: Ticket, state: str) -> None:
        self._unhold(ticket.held, ticket.held_generations, ticket.plan)
        ticket.held = ticket.held[:0]
        ticket.moving = False
        del self.tickets[ticket.ticket_id]
        ticket.end(state)

    def _check(self, ticket: Ticket, state: str) -> None:
        if ticket.state != state or self.tickets.get(ticket.ticket_id) is not ticket:
            raise Refused(Reason.LEASE, "load", f"ticket {ticket.ticket_id} is {ticket.state}, not {state}")

    def _check_still(self, ticket: Ticket, stopped: bool = False) -> None:
        """Nobody but the transfer itself says that the bytes have stopped, while it runs."""
        if ticket.moving and not stopped:
            what = f"ticket {ticket.ticket_id} is being moved by transfer(), which ends it; abort() it"
            raise Refused(Reason.LEASE, "load", what)


def _runs(batch: Batch, paged: bool) -> list[tuple[int, int]]:
    """Parts [low, high) of a batch to publish one by one: runs of granules in a row; all of a trailing kind."""
    cuts = (np.flatnonzero(np.diff(batch.places) != 1) + 1).tolist() if paged else []
    return list(zip([0, *cuts], [*cuts, len(batch.places)], strict=True))
