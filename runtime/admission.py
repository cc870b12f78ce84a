"""Admission: who may begin. Everything up to a request's first step is reserved at once, or nothing is.

What is reserved covers the load (its destinations) and, whether it goes well or not, the row of the first step: where
bytes don't arrive, the request computes them in slots that it has already. So nobody who has slots waits for more, and
what is in flight stays below limits. Who asks is told one of three things: a reservation, DEFER (when others have ended
there is room) or REJECT (there never will be): ``reservation.py``. What beginning takes is for ``ways.py``, whom to ask
next for ``turns.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from .answers import Answer, Reason
from .errors import Refused
from .fill import Fill
from .generated import Refusal
from .generated.budget import BudgetTable
from .keys import Keys
from .lease import Done, GivenUp, Lease, still
from .limits import Limits
from .matching import Request
from .rebuilding import begin_rebuild
from .reservation import FOR_ROOM, Deferred, Rejected, Reservation, Stage
from .ticket import Ticket
from .ways import Way, Ways

if TYPE_CHECKING:
    from .manager import Manager

__all__ = ["Admission", "Deferred", "Limits", "Rejected", "Reservation", "Stage"]

T = TypeVar("T")


class Admission:
    """Admits requests to a manager's slots.

    Args:
        manager: whose slots.
        limits: of what is under way at once.
        boundaries: whether a step ends at the last whole granule of its prompt where the model keeps windows or tails,
            which others find only where a row has ended.
    """

    def __init__(self, manager: Manager, limits: Limits | None = None, *, boundaries: bool = False) -> None:
        self._manager = manager
        self.limits = limits or Limits()
        self._ways = Ways(manager, self.limits, boundaries)
        self._names = {name: (number, limit) for number, (name, limit) in enumerate(self.limits.by_name().items())}
        self.words = manager.table(BudgetTable, max(1, len(self._names)))

    def match(self, keys: Keys, tokens: int, step: int | None) -> tuple[Answer, bool]:
        """What a request can reuse after a load that ``admit`` may begin, now or later; changes nothing.

        Cost: that of ``Manager.match``. Where the whole load can never be had it is halved until one can, so that is
        asked as often as there are bits in the number of boundaries.

        Args:
            keys: of its prompt.
            tokens: length of the prompt.
            step: as for ``admit``.

        Returns:
            The answer, and whether the load would else have been larger. Where not even the least can ever be had, the
            answer is the whole one, and ``admit`` loads nothing.
        """
        manager = self._manager
        found = whole = manager.match(keys, tokens)
        if self._may_load(whole, tokens, step):
            return whole, False
        reached = manager.loadable(keys, tokens) * manager.profile.granule
        reached = reached[(whole.now < reached) & (reached < whole.length)]
        low, high = 0, len(reached)
        while low < high:
            middle = (low + high) // 2
            answer = manager.match(keys, tokens, at_most=int(reached[middle]))
            if self._may_load(answer, tokens, step):
                found, low = answer, middle + 1
            else:
                high = middle
        return found, True

    def admit(
        self,
        answer: Answer,
        tokens: int,
        *,
        step: int | None = None,
        owner: str = "",
        salt: bytes | None = None,
    ) -> Reservation | Deferred | Rejected:
        """Reserve all that a request needs up to its first step, or nothing. What it should load is not moved yet.

        Where the whole answer can never be had (its load is larger than a limit, or does not fit beside the row), the
        request loads nothing and computes; ``match`` finds one whose load can.

        Args:
            answer: of one request's match; what the request reads stays within that match's limits, whatever a load
                brings or others publish meanwhile.
            tokens: length of the prompt, no less than the match was told.
            step: tokens that the first step computes at most, a multiple of the granule; all by default.
            owner: who asks.
            salt: of its keys, for which tenant its slots are taken; what the answer was matched for by default.

        Raises:
            Refused: STALE when what was matched is gone: match again. LEASE for another manager's answer. Nothing was
                taken.
            ValueError: ``tokens`` don't reach beyond what the answer covers, or are fewer than the match was told;
                another ``step``, or a shared answer.
        """
        self._manager.check_own(answer)
        self._check_length(answer, tokens)
        self._manager.profile.check_step(step)
        if len(answer.claims) > 1:
            raise ValueError("an answer for several requests; match each of them by itself to admit it")
        with self._manager.lock:
            self._manager.unpark()
            for way in self._ways.of(answer, tokens, step):
                never = self._ways.never(way, tokens)
                if never is None:
                    return self._begin(way, answer, tokens, step, owner, salt)
        assert never is not None
        return never

    def rebuild(
        self, answer: Answer, tokens: int, *, step: int | None = None, owner: str = ""
    ) -> Fill | Deferred | Rejected:
        """Reserve what computing the indexer keys needs that an answer misses, or nothing: see ``rebuilding.py``.

        Whoever computes them counts among the requests that have slots until ``leave_rebuild``.

        Args:
            answer: of one request's match, with a ``rebuild``.
            tokens: as for ``admit``, for which the request asks afterwards; who could never be admitted is rejected.
            step: the same.
            owner: who asks.

        Raises:
            Refused: STALE when what was matched is gone: match again. LEASE for another manager's answer. Nothing was
                taken.
        """
        self._manager.check_own(answer)
        with self._manager.lock:
            self._manager.unpark()
            never = [self._ways.never(way, tokens) for way in self._ways.of(answer, tokens, step)]
            if all(never):
                assert never[-1] is not None
                return never[-1]
            return self._counted(lambda: begin_rebuild(self._manager, answer, owner))

    def leave_rebuild(self) -> None:
        """A rebuild has ended, well or badly. The caller holds the manager's lock."""
        self._give_back({"requests": 1})

    def reload(self, reservation: Reservation, answer: Answer) -> bool:
        """Try a load once more, by a fresh answer, with what is reserved already; False: it stays as it is, ready.

        Raises:
            Refused: LEASE unless the reservation is ready, and of this admission; for another manager's answer.
            ValueError: the answer is of another prompt: it covers all of this one, or was made for a longer one.
            Exception: of a backend that can't clear what others left in its slots; nothing is reserved any more then.
        """
        manager = self._manager
        with manager.lock:
            self._check(reservation, Stage.READY)
            manager.check_own(answer)
            self._check_length(answer, reservation.tokens)
            manager.tick()
            way = self._ways.of(answer, reservation.tokens, reservation.step)[0]
            if way.plan is None or way.plan.ticket in manager.loader.tickets:
                return False
            if self._ways.never(way, reservation.tokens) is not None:
                return False
            old, reused = reservation.lease, self._reused(reservation)
            self._give_up_slots(reservation, None)
            try:
                try:
                    self._hold(reservation, way, answer)
                except Refused:
                    need = manager.requests.need(reservation.first, reused)
                    self._hold(reservation, Way(None, reused, {}, need, {}))
                    return False
            except BaseException:
                self.cancel_now(reservation)
                raise
            if old is not None:
                self._release(old, None)
            return True

    def enter(self, reservation: Reservation) -> int:
        """Make the row of a ready reservation; returns it. The row has all slots and the lease from then on.

        Raises:
            Refused: LEASE unless the reservation is ready.
            Exception: of a backend that can't copy what is leased; nothing is reserved any more then.
        """
        with self._manager.lock:
            return self.enter_now(reservation)

    def enter_now(self, reservation: Reservation) -> int:
        """See ``enter``; the caller holds the manager's lock."""
        self._check(reservation, Stage.READY)
        lease, slots = reservation.lease, reservation.slots
        self._manager.tick()
        try:
            row = self._manager.requests.place(
                reservation.first, slots, lease=lease, owner=reservation.owner, salt=reservation.salt
            )
        except Refused:
            raise
        except BaseException:  # the slots are free by now
            reservation.slots = {kind: held[:0] for kind, held in slots.items()}
            self.cancel_now(reservation)
            raise
        reservation.row, reservation.stage, reservation.slots, reservation.lease = row, Stage.ENTERED, {}, None
        del self._manager.reservations[reservation.number]
        return row

    def leave(self, reservation: Reservation) -> None:
        """The row of a reservation has ended: another request may begin.

        Raises:
            Refused: LEASE unless it has entered.
        """
        with self._manager.lock:
            self.leave_now(reservation)

    def leave_now(self, reservation: Reservation) -> None:
        """See ``leave``; the caller holds the manager's lock."""
        self._check(reservation, Stage.ENTERED)
        reservation.stage = Stage.ENDED
        self._give_back({"requests": 1})

    def cancel(self, reservation: Reservation, *, done: Done | None = None) -> None:
        """Give up what is reserved, at once; destinations that bytes may still come to stay quarantined until then.

        Whoever moves the bytes frees them when he stops; one whom nobody moves is the caller's to ``quiesce``. A load
        that others wait for goes on.

        Args:
            reservation: loading or ready.
            done: whether the device has ended what it does with the row's slots.

        Raises:
            Refused: LEASE when it has entered (finish the row) or ended.
        """
        with self._manager.lock:
            self._check(reservation, Stage.LOADING, Stage.READY)
            done = still(done)
            self._manager.tick()
            self.cancel_now(reservation, done)

    def cancel_now(self, reservation: Reservation, done: Done | None = None) -> None:
        """See ``cancel``; the caller holds the manager's lock and has asked the clock, which is not asked here."""
        self._check(reservation, Stage.LOADING, Stage.READY)
        reservation.stage = Stage.ENDED
        self._give_up_slots(reservation, done)
        if reservation.lease is not None:
            self._release(reservation.lease, done)
            reservation.lease = None
        self._give_back({"requests": 1})
        del self._manager.reservations[reservation.number]
        if reservation.ticket is not None:
            reservation.ticket.leave(reservation.owner)

    def drop_now(self, reservation: Reservation, done: Done | None = None) -> None:
        """``cancel_now``, where the end of its load may have left the reservation with nothing already."""
        self._check(reservation, Stage.LOADING, Stage.READY, Stage.ENDED)
        if reservation.stage is not Stage.ENDED:
            self.cancel_now(reservation, done)

    def step_stop(self, tokens: int, start: int, step: int | None) -> int:
        """Tokens that a step of a prompt ends at which goes on from ``start`` and computes ``step`` at most."""
        return self._ways.step_stop(tokens, start, step)

    def bytes_of(self, answer: Answer) -> float:
        """Bytes that the load of an answer moves, whatever the tier. The caller holds the manager's lock."""
        self._manager.check_own(answer)
        _, in_flight = ({}, {}) if answer.plan is None else self._ways.of_plan(answer.plan)
        return float(sum(amount for name, amount in in_flight.items() if name.startswith("bytes")))

    def behind_transfers(self, answer: Answer, tokens: int, step: int | None) -> bool:
        """Whether what open transfers hold keeps room from a request, however many others end.

        Cost: O(slots that transfers hold). The caller holds the manager's lock.
        """
        core = self._manager.core
        ways = self._ways.of(answer, tokens, step)
        way = next((way for way in ways if self._ways.never(way, tokens) is None), None)
        if way is None:
            return False
        reads: dict[str, npt.NDArray[np.intp]] = {}
        if way.leased:
            spot = core.index.locate(answer.claims[0].digests, way.leased)
            if spot.at >= way.leased:
                reads = {kind: core.slots_at(kind, spot, way.leased).astype(np.intp) for kind in core.kinds}
        need = {
            kind: count + way.destinations.get(kind, 0) + len(reads.get(kind, ())) for kind, count in way.beside.items()
        }
        return self._lacks_beside_transfers(need, reads)

    def row_behind_transfers(self, row: int, tokens: int) -> bool:
        """The same of a row that should have so many tokens."""
        requests = self._manager.requests
        shared = int(requests.shared_tokens([row])[0]) // self._manager.profile.granule
        kinds = [kind for kind in self._manager.core.paged if shared]
        reads = {kind: requests.table(kind, [row])[0, :shared].astype(np.intp) for kind in kinds}
        return self._lacks_beside_transfers(requests.need(tokens, 0), reads)

    @property
    def boundaries(self) -> bool:
        """Whether a step ends at the last whole granule of its prompt, because others find it only then."""
        return self._ways.boundaries

    def taken(self, name: str) -> int:
        """How much of a limited thing is taken, by its name in ``Limits.by_name``."""
        return int(self.words.fields("count", [self._names[name][0]])[0])

    def _may_load(self, answer: Answer, tokens: int, step: int | None) -> bool:
        """Whether the load of an answer, if it has one, can ever be had."""
        if answer.plan is None:
            return True
        with self._manager.lock:
            return self._ways.never(self._ways.of(answer, tokens, step)[0], tokens) is None

    # ---- under the lock ---------------------------------------------------------------------------------------------

    def _lacks_beside_transfers(self, need: Mapping[str, int], reads: Mapping[str, npt.NDArray[np.intp]]) -> bool:
        """Whether fewer slots of a kind can ever be free or read beside what transfers hold than are needed."""
        manager = self._manager
        loading = [one for one in manager.reservations.values() if one.stage is Stage.LOADING]
        leases = [manager.receipt_of(one.lease).slots for one in loading if one.lease is not None]
        for kind, count in need.items():
            pool = manager.core.pools[kind]
            held = [ticket.all_slots(kind) for ticket in manager.loader.tickets.values()]
            held += [one.slots[kind] for one in loading] + [slots[kind] for slots in leases if kind in slots]
            held.append(np.flatnonzero(pool.table.fields("holds")))
            taken = np.setdiff1d(np.concatenate(held), reads.get(kind, held[-1][:0]))
            if count > manager.core.capacity(kind) - int(np.count_nonzero(taken < pool.hot)):
                return True
        return False

    def _begin(
        self, way: Way, answer: Answer, tokens: int, step: int | None, owner: str, salt: bytes | None
    ) -> Reservation | Deferred:
        manager = self._manager
        if way.plan is not None and way.plan.ticket is not None:
            ticket = manager.loader.tickets.get(way.plan.ticket)
            if ticket is not None and ticket.state == "open":
                return Deferred(Refusal.BUSY, "load", f"ticket {ticket.ticket_id} brings the same", ticket)
        if not manager.requests.idle:
            what = f"all {len(manager.requests.active)} rows are taken, or promised"
            return Deferred(Reason.BACKPRESSURE, "requests", what)
        reservation = Reservation(manager.number(), owner, tokens, step, 0, Stage.READY, answer, None, {})
        reservation.salt = answer.claims[0].salt if salt is None and answer.claims else salt
        deferred = self._counted(lambda: self._hold(reservation, way, answer))
        if deferred is not None:
            return deferred
        reservation.home, reservation.site = self, manager.site()
        manager.reservations[reservation.number] = reservation
        return reservation

    def _counted(self, begin: Callable[[], T]) -> T | Deferred:
        """Count one more among those that have slots, and let it begin; where it lacks room, neither is so."""
        room = self._manager.core.room
        given = room.given
        try:
            self._take({"requests": 1})
            try:
                return begin()
            except BaseException:
                self._give_back({"requests": 1})
                raise
        except Refused as refused:
            if refused.refusal not in FOR_ROOM:
                raise
            room.given = given  # what it took and gave back is no news
            return Deferred(refused.refusal, refused.layer, refused.detail)

    def _hold(self, reservation: Reservation, way: Way, answer: Answer | None = None) -> None:
        """Take what a way needs, all or nothing; without an answer the lease stays as it is."""
        manager, lease, ticket = self._manager, None, None
        self._take(way.in_flight)
        try:
            if answer is not None and way.leased:
                (lease,) = manager.acquire_now(answer, reservation.owner)
            if way.plan is not None:
                ticket = manager.loader.open(way.plan, reservation.owner, beside=way.beside)
            reservation.slots = manager.take(way.beside, "take", salt=reservation.salt)
        except BaseException as error:
            if ticket is not None:
                assert not isinstance(error, Refused), "the ticket made room for what is taken beside it"
                manager.loader.drop(ticket)
            if lease is not None:
                self._release(lease, None)
            self._give_back(way.in_flight)
            raise
        if answer is not None:
            reservation.answer, reservation.lease = answer, lease
            reservation.first = self._ways.first(reservation.tokens, way.leased, reservation.step)
        if ticket is not None:
            assert way.plan is not None
            assert all(len(ticket.all_slots(kind)) == n for kind, n in way.destinations.items())
            reservation.ticket, reservation.stage, reservation.in_flight = ticket, Stage.LOADING, way.in_flight
            reservation.request = Request.from_claim(way.plan.claim, way.plan.tokens)
            reservation.at_most = way.plan.most * manager.profile.granule
            ticket.then(lambda ended: self._ended(reservation, ended))

    def _ended(self, reservation: Reservation, ticket: Ticket) -> None:
        """A load has ended. What it brought is leased in the same step, before anybody can evict it."""
        manager = self._manager
        self._give_back(reservation.in_flight)
        reservation.in_flight, reservation.ticket = {}, None
        if reservation.stage is not Stage.LOADING:
            return  # it was cancelled, and has nothing any more
        reservation.stage, reservation.loaded = Stage.READY, ticket.state == "done"
        try:
            self._renew(reservation)
        finally:  # whatever the clock raises, it can begin with what it leases
            reused = self._reused(reservation)
            reservation.first = self._ways.first(reservation.tokens, reused, reservation.step)
            try:
                self._fit(reservation, manager.requests.need(reservation.first, reused))
            except Refused:  # after a reset others may still read what it had leased; it begins anew, with nothing
                self.cancel_now(reservation)
            except BaseException:  # of a backend that can't clear what others left
                self.cancel_now(reservation)
                raise

    def _renew(self, reservation: Reservation) -> None:
        """Lease all that memory has now of what may be reused, if that is more than before.

        What is of an epoch that has ended is let go.
        """
        manager, old = self._manager, reservation.lease
        assert reservation.request is not None
        answer = manager.matcher.in_memory(reservation.request, reservation.at_most)
        lease = old if old is not None and manager.receipt_of(old).epoch == manager.epoch else None
        if answer.now > (0 if lease is None else lease.length):
            try:
                (lease,) = manager.acquire_now(answer, reservation.owner)
                reservation.answer = answer
            except Refused as refused:  # as many read it as can
                if refused.refusal not in FOR_ROOM:
                    raise
        reservation.lease = lease
        if old is not None and lease is not old:
            self._release(old, None)

    def _fit(self, reservation: Reservation, need: Mapping[str, int]) -> None:
        """Hold exactly so many slots for the row."""
        manager, pools = self._manager, self._manager.core.pools
        for kind, count in need.items():
            surplus = reservation.slots[kind][count:]
            reservation.slots[kind] = reservation.slots[kind][:count]
            pools[kind].abandon(surplus)
        more = {kind: count - len(reservation.slots[kind]) for kind, count in need.items()}
        lacking = {kind: n for kind, n in more.items() if n}
        for kind, taken in manager.take(lacking, "take", salt=reservation.salt).items():
            reservation.slots[kind] = np.concatenate((reservation.slots[kind], taken))

    def _reused(self, reservation: Reservation) -> int:
        """Granules that a reservation leases."""
        return 0 if reservation.lease is None else reservation.lease.length // self._manager.profile.granule

    def _give_up_slots(self, reservation: Reservation, done: Done | None) -> None:
        pools, slots = self._manager.core.pools, reservation.slots
        generations = {kind: pools[kind].generations(held) for kind, held in slots.items()}
        self._manager.give_up(GivenUp(slots, generations), done)
        reservation.slots = {}

    def _release(self, lease: Lease, done: Done | None) -> None:
        receipt = self._manager.receipt_of(lease)
        del self._manager.receipts[lease.lease_id]
        self._manager.give_up(receipt, done)

    def _take(self, amounts: Mapping[str, int]) -> None:
        """Count what begins; Refused (FULL) where that passes a limit, nothing is counted then."""
        rows = [(self._names[name], amount) for name, amount in amounts.items() if name in self._names and amount]
        if not rows:
            return
        index = [number for (number, _), _ in rows]
        counts, most = [amount for _, amount in rows], [limit for (_, limit), _ in rows]
        codes = self.words.whole.take(index, amount=np.array(counts), limit=np.array(most))
        if codes.any():
            names = {number: name for name, (number, _) in self._names.items()}
            at = int(np.flatnonzero(codes)[0])
            what = f"{counts[at]} {names[index[at]]} beside {self.taken(names[index[at]])}, and {most[at]} are allowed"
            raise Refused(Refusal(int(codes[at])), "admission", what)

    def _give_back(self, amounts: Mapping[str, int]) -> None:
        rows = [(self._names[name][0], amount) for name, amount in amounts.items() if name in self._names and amount]
        if rows:
            codes = self.words.whole.give_back([row for row, _ in rows], amount=np.array([n for _, n in rows]))
            assert not codes.any(), "what is given back was counted"

    @staticmethod
    def _check_length(answer: Answer, tokens: int) -> None:
        if answer.length >= tokens:
            raise ValueError(f"a prompt of {tokens} tokens, and the answer covers {answer.length}")
        if answer.plan is not None and answer.plan.tokens > tokens:
            raise ValueError(f"a prompt of {tokens} tokens, and the match was told {answer.plan.tokens}")

    def _check(self, reservation: Reservation, *stages: Stage) -> None:
        if reservation.home is not self:
            what = f"reservation {reservation.number} was made by another admission"
            raise Refused(Reason.LEASE, "admission", what)
        if reservation.stage not in stages:
            what = f"reservation {reservation.number} is {reservation.stage}, not {' or '.join(stages)}"
            raise Refused(Reason.LEASE, "admission", what)
