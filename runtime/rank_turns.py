"""Turns that ranks take together: each schedules the same requests over a cache of its own, and all begin the same.

Ranks of one model are given the same requests in the same order and call ``schedule`` equally often. What each cache
still has differs, and so may room: one's device ends later than another's. So every round is a round of an agreement
(``agreement.py``), with two exchanges whether anybody waits or not:

    those who run   have their turns first, as ever
    say             what can be reused of each who waits, now and after a load, and whose loads are over  an exchange
    begin           reserve room for those whose turn it is, by the lengths that are agreed
    confirm         who has room here, whose chunk was granted, who lacks room                             another
    settle          who has room on all ranks begins, or loads; the others give it back; work goes out that all granted

A request that could go on from more, had all ranks loaded what their stores have or expanded what lies packed, loads
before it begins (the spec's ``bring``): on all ranks in one round, each what it lacks itself and at its own pace. In
the round in which all say that their loads are over, well or not, it begins from the greatest boundary that all have in
memory by then, and computes the rest. Where some rank got less they load once more, ``attempts=`` times at most, and
then as often as what all can still have is less than what they tried last. Meanwhile it holds slots and has no turn;
rounds go on, so that a slow disk holds up nobody else. Who waits for other ranks' loads is woken by none of them, so
``schedule`` sets what ``wait`` waits for.

All that decides about later turns (who lacked room how often, who gives way) is taken from what all have said, and
turns age with the exchanges of the agreement, not with the clocks that ranks have each of its own; so queues stay the
same on all ranks. Where ranks part all the same, as when one was given another request or other options, or finished
one that others have not, the next round says so before anybody begins (``RanksDiverged``).

Every request waits in the queue ``resident``. Bytes that loads move have no budget: ranks differ in them. Indexer keys
that are missing are computed with the row, as nobody rebuilds them here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import IntEnum
from functools import partial
from typing import Any

from .agreement import Agreed, Agreement, Ask
from .answers import Reason
from .errors import Refused
from .generated.queued import QueuedState
from .keys import Keys
from .lease import Done
from .live_requests import Live, Work
from .queues import Queue, queue_of
from .reservation import Deferred, Rejected, Reservation
from .turns import Turns

__all__ = ["RankTurns"]

_BRINGS = (QueuedState.ADMITTED, QueuedState.LOADING, QueuedState.READY)
"""How far a load is that all ranks have begun; ready where it is over."""


class _Said(IntEnum):
    """What a rank says of one live request in a round."""

    NOTHING = 0  # it had no turn, or needs none
    LACKS = 1  # room, for its load, its first step or its next chunk
    HAS = 2  # room for its first step, or its next chunk
    HAS_LOSSY = 3  # the same, and what it goes on from is not the very state of a cold run
    NEVER = 4  # will it have room here
    LOADS = 5  # has room for its load and what follows
    LESS = 6  # will it ever go on from so much here, or load so much


_BEGINS = (_Said.HAS, _Said.HAS_LOSSY)


class RankTurns(Turns):
    """The turns of one rank's scheduler.

    Args:
        agreement: this rank's part; it is used by nobody else meanwhile.
        attempts: times that all ranks load once more for a request where some rank got less.
        given: as for ``Turns``.

    Attributes:
        withheld: requests whose work is granted here, and not on all ranks yet.
    """

    def __init__(self, agreement: Agreement, attempts: int, *given: Any) -> None:
        super().__init__(*given)
        self._agreement, self._attempts = agreement, attempts
        self.withheld: set[Live] = set()
        self._agreed: dict[Live, Agreed] = {}
        self._held: dict[Live, Reservation] = {}  # of those who begin, or load, if they can do so everywhere
        self._said: dict[Live, _Said] = {}
        self._never: dict[Live, Rejected] = {}
        budget = float(self._budgets.get(Queue.RESIDENT, float("inf")))
        steps = f"chunk {self._chunk}, boundaries {self._admission.boundaries}, budget {budget}"
        self._options = f"{steps}, attempts {attempts}, {self._requests.queues.options}"

    def arriving(self, keys: Keys, tokens: int) -> tuple[Queue, float]:
        """See ``Turns``; what this rank alone can reuse says nothing yet."""
        return Queue.RESIDENT, float(self._admission.step_stop(tokens, 0, self._chunk))

    def round(self, done: Done | None = None) -> None:
        """See ``Turns``; the same turns on all ranks.

        Raises:
            RankError: see ``Agreement.round``. Nobody has begun then.
            Exception: what a store or a device query raised here; the other ranks hear of it, and nobody has begun. But
                what the backend or a clock raises once all have agreed, as a row is made, they hear of no more: they
                have begun, this rank has parted, and the next round raises RanksDiverged everywhere.
        """
        self._agreed, self._held, self._said, self._never = {}, {}, {}, {}
        self.withheld = set(self._requests.by_number.values())  # until all have spoken
        try:
            self._running.begin_round(done)
            self._claimant, self._stopped = None, ()
            self._grant(holders=True)
            with self._manager.lock:
                lives = [live for live in self._requests.by_number.values() if not self._drains(live)]
                asks = [self._ask(live) for live in lives]
        except Exception as error:
            self._agreement.fail(error)
        try:
            begin = partial(self._begin_all, lives)
            self._settle(lives, self._agreement.round(asks, begin, self._options, stored=True))
        except BaseException:
            for live in list(self._held):
                self._give_back(live)
            raise

    # ---- before the vote --------------------------------------------------------------------------------------------

    def _drains(self, live: Live) -> bool:
        """Whether it was given up, and only this rank's worker still writes for it. The caller holds the lock."""
        return self._requests.state(live) is QueuedState.DRAINING

    def _brings(self, live: Live) -> bool:
        """Whether all ranks load for it, or have loaded. The caller holds the lock."""
        return self._requests.state(live) in _BRINGS

    def _is_over(self, live: Live) -> bool:
        """Whether its loads are over on all ranks. The caller holds the lock."""
        return self._brings(live) and not self._agreed[live].refused_by

    def _ask(self, live: Live) -> Ask:
        """What is asked of a live request, and what ranks must have in common of it. The caller holds the lock."""
        state = self._requests.state(live)
        name = "absent" if state is None else "brings" if state in _BRINGS else state.name.lower()
        begins = state in (QueuedState.WAITING, QueuedState.READY)
        far = f"{live.tokens} {live.computed} {live.lacked} {live.brought} {live.reach}"
        also = f"{live.number} {name} {far} {live.owner}".encode()
        return Ask(live.keys, live.tokens if live.row is None else None, begins, also, live.at_most)

    def _begin_all(self, lives: list[Live], agreed: tuple[Agreed, ...]) -> bytes:
        """Reserve room for those whose turn it is, as far as the budget goes; what this rank says of each request."""
        self._agreed = dict(zip(lives, agreed, strict=True))
        with self._manager.lock:
            brought = [live for live in lives if self._is_over(live)]
            for live in lives:
                self._price(live)
            self._claimant = self._first_starving()
        for live in brought:
            self._said[live] = self._try_brought(live)
        if not self._running.stops:
            self._try_turns()
        with self._manager.lock:
            exact = {work.live: work.exact for work in self._requests.granted}
            alone = self._running.is_alone()
        for live in self._running.short:
            self._said[live] = _Said.LACKS
        for live, same in exact.items():
            self._said[live] = _Said.HAS if same else _Said.HAS_LOSSY
        return bytes([*(self._said.get(live, _Said.NOTHING) for live in lives), alone])

    def _loads(self, live: Live) -> bool:
        """Whether all ranks would have more of a request after a load, and may try that."""
        one = self._agreed[live]
        return one.reachable > one.length and (live.brought <= self._attempts or one.reachable < live.reach)

    def _start(self, live: Live) -> int:
        """Tokens that it goes on from, at best."""
        return self._agreed[live].reachable if self._loads(live) else self._agreed[live].length

    def _price(self, live: Live) -> None:
        """What its turn costs, by what all ranks reuse. The caller holds the lock."""
        if self._requests.state(live) is QueuedState.WAITING:
            cost = self._cost_from(live, self._start(live))
            if self._requests.queues.cost(live.number) != cost:
                self._requests.put(live, Queue.RESIDENT, cost, holds=False)

    def _cost_from(self, live: Live, start: int) -> float:
        return float(self._admission.step_stop(live.tokens, start, self._chunk) - start)

    def _try_brought(self, live: Live) -> _Said:
        """Reserve room for one whose loads are over everywhere, in place of what it has: some ranks may have less."""
        with self._manager.lock:
            reservation, live.reservation = live.reservation, None
            if reservation is not None:
                self._admission.drop_now(reservation)
        return self._try(live)

    def _try_turns(self) -> None:
        """Try those who wait in their order, until the budget is spent or the claimant lacks room."""
        queues = self._requests.queues
        spent = sum(self._cost_from(live, self._start(live)) for live in self._held if self._said[live] in _BEGINS)
        budget = self._budgets.get(Queue.RESIDENT, float("inf"))
        first = None if self._claimant is None else self._claimant.number
        turns = queues.turns(Queue.RESIDENT, float("inf"), holders=False, first=first)
        while not self._stopped and (live := self._next(turns)) is not None:
            if live not in self._agreed:
                continue  # it came after all were asked
            cost = queues.cost(live.number)
            if spent and spent + cost > budget:
                self._changed()  # the next round has a budget of its own
                return
            said = self._said[live] = self._try(live)
            if said in _BEGINS:
                spent += cost
            elif said is _Said.LACKS and live is self._claimant:
                self._stopped = tuple(Queue)

    def _try(self, live: Live) -> _Said:
        """Reserve room for a request that goes on from exactly so much, or loads exactly so much."""
        loads, length = self._loads(live), self._start(live)
        if self._lets_pass(live):
            return _Said.LACKS
        answer = self._manager.match(live.keys, live.tokens, at_most=length)
        if (answer.length if loads else answer.now) != length:
            return _Said.NOTHING  # whoever was tried before has taken its place; the next round asks again
        try:
            decision = self._admission.admit(
                answer, live.tokens, step=self._chunk, owner=live.owner, salt=live.keys.salt
            )
        except Refused as refused:
            if refused.refusal is not Reason.STALE:
                raise
            return _Said.NOTHING
        if isinstance(decision, Deferred):
            return _Said.LACKS if decision.lacks_room else _Said.NOTHING
        if isinstance(decision, Rejected):
            self._never[live] = decision
            return _Said.NEVER
        self._held[live] = decision
        leased = 0 if decision.lease is None else decision.lease.length
        if decision.ticket is None and leased < length:
            return _Said.LESS
        if loads:
            return _Said.LOADS
        return _Said.HAS if decision.lease is None or decision.lease.exact else _Said.HAS_LOSSY

    # ---- after it ---------------------------------------------------------------------------------------------------

    def _settle(self, lives: list[Live], bodies: list[bytes]) -> None:
        """Do what all ranks have come to."""
        said = {live: [_Said(body[place]) for body in bodies] for place, live in enumerate(lives)}
        for live, all_said in said.items():
            if live.row is None:
                self._settle_one(live, all_said)
            if _Said.HAS_LOSSY in all_said:
                self._all_lossy(live)
        with self._manager.lock:
            self._requests.granted.sort(key=lambda work: work.live.number)  # turns had an order of this rank's own
            granted = {work.live for work in self._requests.granted}
            waits_for_others = any(self._requests.state(live) is QueuedState.READY for live in lives)
        if waits_for_others:  # whose loads tell nobody here that they are over
            self._changed()
        self.withheld = {live for live in granted if _Said.NOTHING in said[live] or _Said.LACKS in said[live]}
        self._end_turns()
        self._running.short = [live for live, some in said.items() if live.row is not None and _Said.LACKS in some]
        self._running.alone = all(body[-1] for body in bodies)

    def _end_turns(self) -> None:
        """The chunks that all ranks have granted are over in the queues, in one order."""
        with self._manager.lock:
            for work in self._requests.granted:
                if work.live not in self.withheld and self._requests.queues.is_granted_here(work.live.number):
                    self._running.end_turn(work.live, work)

    def _settle_one(self, live: Live, all_said: list[_Said]) -> None:
        """What becomes of a request without a row."""
        with self._manager.lock:
            gone = self._requests.state(live) is None or self._drains(live)
            brought, over = self._brings(live), self._is_over(live)
        if gone:  # it was given up meanwhile, or has finished
            self._give_back(live)
            return
        if brought and not over:
            return
        if all(one in _BEGINS for one in all_said):
            if brought:
                self._begin_brought(live, self._held.pop(live))
            else:
                self._admit(live, self._held.pop(live), Queue.RESIDENT)
            return
        if all(one is _Said.LOADS for one in all_said):
            if brought:
                self._back(live)
            self._load(live, self._held.pop(live))
            return
        self._give_back(live)
        if brought:
            self._back(live)
        if _Said.NEVER in all_said:
            self._reject(live, self._never.get(live) or _never_on(all_said.index(_Said.NEVER)))
        elif _Said.LESS in all_said:
            self._expect_less(live)
        elif _Said.LACKS in all_said:
            self._lacked(live)

    def _load(self, live: Live, reservation: Reservation) -> None:
        """It loads what this rank lacks, or waits for the others where that is nothing."""
        with self._manager.lock:
            ticket = reservation.ticket
            given = self._give(live, reservation, queue_of(reservation.answer))
            live.brought, live.reach = live.brought + 1, self._agreed[live].reachable
        if ticket is not None:
            self._move(live, ticket, given)

    def _begin_brought(self, live: Live, reservation: Reservation) -> None:
        """It has room to begin on all ranks, from what all have brought."""
        with self._manager.lock:
            if self._brings(live):
                live.reservation = reservation
                self._enter(live)
            else:  # it was given up meanwhile
                self._admission.cancel_now(reservation)

    def _back(self, live: Live) -> None:
        """Its load is over, and it waits as before: to load anew, or for want of room."""
        with self._manager.lock:
            if self._brings(live):
                self._requests.back(live, Queue.RESIDENT, self._cost_from(live, self._start(live)))

    def _expect_less(self, live: Live) -> None:
        """Some rank can never hold what it was to load, or what was agreed, beside its row."""
        with self._manager.lock:
            if self._loads(live):
                self._requests.tally.count("loads_cut")
                live.brought, live.reach = self._attempts + 1, 0
            else:
                live.at_most = 0
        self._changed()

    def _give_back(self, live: Live) -> None:
        if (reservation := self._held.pop(live, None)) is None:
            return
        with self._manager.lock:
            ticket = reservation.ticket
            self._admission.drop_now(reservation)
        if ticket is not None:
            self._workers.quiesce(ticket)

    def _lacked(self, live: Live) -> None:
        """Some rank has no room for a request that waits."""
        with self._manager.lock:
            if self._requests.state(live) is QueuedState.WAITING:
                self._count_lack(live)
                self._requests.passed(live, Reason.POOL_FULL.name)

    def _all_lossy(self, live: Live) -> None:
        """On some rank what a request goes on from is not the very state of a cold run."""
        with self._manager.lock:
            self._requests.granted = list(_lossy(self._requests.granted, live))


def _never_on(rank: int) -> Rejected:
    return Rejected(Reason.CAPACITY, "ranks", f"rank {rank} can never have room for it")


def _lossy(works: Iterable[Work], live: Live) -> Iterable[Work]:
    for work in works:
        yield replace(work, exact=False) if work.live is live else work
