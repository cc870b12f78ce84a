"""Leasing: slots are pinned for a reader, all that he asked for or none, and what was taken is written on a receipt.

What a reader holds, and what his deadline means, is in ``lease.py``; what waits for the device when he has let go, in
``parking.py``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .answers import Answer, Claim, Reason
from .arguments import check_is
from .errors import Refused
from .leaks import Leak
from .lease import Done, Lease, Receipt, both, still

if TYPE_CHECKING:
    from .manager import Manager


class Lessor:
    """Gives a manager's leases, and takes them back. Where a method doesn't say otherwise, its caller holds the lock.

    Attributes:
        receipts: of each open lease by its number, and the lease itself, unless it was dropped.
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self.receipts: dict[int, tuple[Receipt, Callable[[], Lease | None]]] = {}
        self._voided = 0  # the last number of a lease over memory that is gone

    def acquire(self, answer: Answer, owner: str, deadline: float | None = None) -> tuple[Lease, ...]:
        """A lease for each request of an answer; all of them or none. See ``Manager.acquire``."""
        self._manager.check_own(answer)
        if not answer.now or not answer.claims:
            raise Refused(answer.reason or Reason.INTERSECT, "lease", f"{answer.kind}: there is nothing to read")
        boundary = answer.now // self._manager.profile.granule
        taken: list[tuple[Receipt, bool]] = []
        try:
            for claim in answer.claims:
                taken.append(self._pin(claim, boundary, owner, deadline))
        except Refused:
            for receipt, _ in taken:
                self._manager.give_up(receipt, None)
            raise
        return tuple(self._lease(receipt, answer, lossy) for receipt, lossy in taken)

    def release(self, lease: Lease, owner: str | None = None, done: Done | None = None) -> None:
        """Take a lease back from its holder. See ``Manager.release``."""
        receipt = self._taken_for(lease)
        if owner is not None and owner != receipt.owner:
            what = f"lease {lease.lease_id} belongs to {receipt.owner!r}, not to {owner!r}"
            raise Refused(Reason.LEASE, "lease", what)
        late = receipt.deadline is not None and self._manager.now() > receipt.deadline
        self._close(receipt, done)
        if late:
            self._void_fills(receipt)

    def renew(self, lease: Lease, deadline: float | None) -> None:
        """Another deadline for a lease that is not overdue. See ``Manager.renew``."""
        receipt = replace(self.receipt_of(lease), deadline=deadline)
        self.check_ahead(deadline)
        self.receipts[lease.lease_id] = receipt, weakref.ref(lease)

    def check_ahead(self, deadline: float | None) -> None:
        """Raise Refused (LEASE) for a deadline that has passed."""
        if deadline is not None and (now := self._manager.now()) > deadline:
            what = f"the deadline {deadline} has passed already, it is {now} by the manager's clock"
            raise Refused(Reason.LEASE, "lease", what)

    def overdue(self) -> tuple[Receipt, ...]:
        """Receipts whose deadline has passed, the oldest deadline first."""
        timed = [receipt for receipt, _ in self.receipts.values() if receipt.deadline is not None]
        time = self._manager.now() if timed else 0.0
        late = [receipt for receipt in timed if receipt.deadline is not None and receipt.deadline < time]
        return tuple(sorted(late, key=lambda receipt: (receipt.deadline, receipt.lease_id)))

    def revoke(self, lease: Lease | Receipt | Leak, done: Done | None) -> None:
        """Take back a lease that is overdue, or that was dropped. See ``Manager.revoke``."""
        check_is("lease", lease, (Lease, Receipt, Leak), "a lease, or what overdue() or leaks() says of it")
        if isinstance(lease, Leak):
            if lease.receipt is None:
                fix = f"; abandon(manager.fills[{lease.number}]) ends it" if lease.what == "fill" else ""
                raise Refused(Reason.LEASE, "lease", f"{lease}; only a lease can be revoked{fix}")
            lease = lease.receipt
        receipt = self._taken_for(lease) if isinstance(lease, Lease) else self._renewed(lease)
        handle = self.receipts[receipt.lease_id][1]()
        if handle is not None and (receipt.deadline is None or self._manager.now() <= receipt.deadline):
            what = f"lease {receipt.lease_id} of {receipt.owner!r} is held, and its deadline is {receipt.deadline}"
            raise Refused(Reason.LEASE, "lease", what)
        self._close(receipt, done)
        if handle is not None:
            handle.revoked = True
        self._void_fills(receipt)

    def take_over(self, lease: Lease) -> Receipt:
        """A lease that is open ends here, overdue or not; what was pinned for it is the caller's to unpin."""
        receipt, _ = self.receipts.pop(lease.lease_id)
        return receipt

    def receipt_of(self, lease: Lease) -> Receipt:
        """What was taken for a lease, to read through it or to go on from it; needs no lock.

        Raises:
            Refused: LEASE when it is another manager's, was released before or is overdue; STALE over memory that is
                gone.
        """
        receipt = self._taken_for(lease)
        receipt.check_in_time(self._manager.now)
        return receipt

    def void(self) -> None:
        """The memory goes: all leases end."""
        for receipt, _ in self.receipts.values():
            self._manager.give_up(receipt, None)
        self.receipts.clear()
        self._voided = self._manager.number()

    def _pin(self, claim: Claim, boundary: int, owner: str, deadline: float | None) -> tuple[Receipt, bool]:
        """Pin one request's slots, or none; returns what was taken and whether any of it is lossy."""
        manager, core = self._manager, self._manager.core
        spot = core.index.locate(claim.digests, boundary)
        legal = manager.matcher.boundary_sets(spot)
        if spot.at < boundary or any(found(boundary) != boundary for found in legal):
            raise Refused(Reason.STALE, "lease", "part of what was matched is gone")
        slots: dict[str, npt.NDArray[np.intp]] = {}
        generations: dict[str, npt.NDArray[np.int64]] = {}
        handles = {kind: (slot, generation) for kind, slot, generation in claim.handles}
        try:
            for kind in core.kinds:
                pool, places = core.pools[kind], core.places(kind, boundary)
                held = core.slots_at(kind, spot, boundary).astype(np.intp)
                expected = pool.generations(held)
                slot, generation = handles[kind]
                if slot != held[-1]:
                    raise Refused(Reason.STALE, "lease", f"{kind} was replaced")
                expected[-1] = generation
                given = pool.rules.pin(places, core.versions(kind, spot, places))
                pool.must("pin", held, "lease", expected=expected, **given)
                slots[kind], generations[kind] = held, expected
        except Refused:
            for kind, held in slots.items():
                core.pools[kind].sure("unpin", held, "S8", expected=generations[kind])
            raise
        number = manager.number()
        receipt = Receipt(
            number, owner, slots, generations, spot.segment, boundary, manager.epoch, deadline, claim.salt,
            manager.site(),
        )  # fmt: skip
        for kind, held in slots.items():
            core.pools[kind].count_use(held)
        return receipt, core.is_lossy(slots)

    def _lease(self, receipt: Receipt, answer: Answer, lossy: bool) -> Lease:
        manager = self._manager
        slots = {kind: held.astype(np.int32) for kind, held in receipt.slots.items()}
        replay = manager.core.replay(answer.now)
        exact = not lossy and replay is None
        lease = Lease(manager, receipt.lease_id, receipt.owner, answer.now, exact, replay, slots)
        self.receipts[receipt.lease_id] = (receipt, weakref.ref(lease))
        return lease

    def _close(self, receipt: Receipt, done: Done | None) -> None:
        """End a lease; what may raise comes before anything has changed."""
        device = self._manager.device
        done = still(done if device is None else both(done, device.ended()))
        self._manager.unpark()
        self._manager.tick()
        del self.receipts[receipt.lease_id]
        self._manager.give_up(receipt, done)

    def _void_fills(self, receipt: Receipt) -> None:
        """What rests on a lease that was not given back in time is published no more."""
        for fill in self._manager.fills.values():
            fill.revoked |= fill.lease_id == receipt.lease_id

    def _taken_for(self, lease: Lease) -> Receipt:
        """As ``receipt_of``, whether it is overdue or not."""
        self._check_own(lease)
        if (entry := self.receipts.get(lease.lease_id)) is None:
            raise self._gone(lease)
        return entry[0]

    def _check_own(self, lease: Lease) -> None:
        check_is("lease", lease, Lease, "what acquire gave")
        if lease.manager is not self._manager:
            raise Refused(Reason.LEASE, "lease", f"lease {lease.lease_id} was given by another manager")

    def _renewed(self, receipt: Receipt) -> Receipt:
        """What is open under a receipt, which may have been renewed since."""
        found = self.receipts.get(receipt.lease_id)
        if found is None or found[0].segment is not receipt.segment:
            raise Refused(Reason.LEASE, "lease", f"lease {receipt.lease_id} of {receipt.owner!r} is not open here")
        return found[0]

    def _gone(self, lease: Lease) -> Refused:
        """Why a lease of this manager is not open."""
        if lease.lease_id <= self._voided:
            what = f"lease {lease.lease_id} was given before the memory was allocated anew"
            return Refused(Reason.STALE, "lease", what)
        how = "revoked after its deadline" if lease.revoked else "released already, or taken over by a live request"
        return Refused(Reason.LEASE, "lease", f"lease {lease.lease_id} was {how}")
