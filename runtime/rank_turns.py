"""Turns that ranks take together: each schedules the same requests over a cache of its own, and all begin the same.

Ranks of one model are given the same requests in the same order and call ``schedule`` equally often. What each cache
still has differs, and so may room: one's device ends later than another's. So every round is a round of an agreement
(``agreement.py``), with two exchanges whether anybody waits or not:

    those who run   have their turns first, as ever
    say             what can be reused of each who waits                                   an exchange
    begin           reserve room for those whose turn it is, by the lengths that are agreed
    confirm         who has room here, whose chunk was granted, who lacks room             another
    settle          who has room on all ranks begins, the others give it back; work goes out that all have granted

All that decides about later turns (who lacked room how often, who gives way) is taken from what all have said, and
turns age with the exchanges of the agreement, not with the clocks that ranks have each of its own; so queues stay the
same on all ranks. Where ranks part all the same, as when one was given another request or other options, or finished
one that others have not, the next round says so before anybody begins (``RanksDiverged``).

Nothing is loaded, expanded or computed again to make a hit longer: a request waits in the queue ``resident``, and goes
on from what all memories have. What stores have, ranks bring in before they submit (``Agreement.step(stored=True)``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import IntEnum
from functools import partial
from typing import Any

from .agreement import Agreement, Ask
from .answers import Reason
from .errors import Refused
from .generated.queued import QueuedState
from .keys import Keys
from .live_requests import Live, Work
from .queues import Queue
from .reservation import Deferred, Rejected, Reservation
from .turns import Turns

__all__ = ["RankTurns"]


class _Said(IntEnum):
    """What a rank says of one live request in a round."""

    NOTHING = 0  # it had no turn, or needs none
    LACKS = 1  # room, for its first step or its next chunk
    HAS = 2  # room for its first step, or its next chunk
    HAS_LOSSY = 3  # the same, and what it goes on from is not the very state of a cold run
    NEVER = 4  # will it have room here


class RankTurns(Turns):
    """The turns of one rank's scheduler.

    Args:
        agreement: this rank's part; it is used by nobody else meanwhile.
        given: as for ``Turns``.

    Attributes:
        withheld: requests whose work is granted here, and not on all ranks yet.
    """

    def __init__(self, agreement: Agreement, *given: Any) -> None:
        super().__init__(*given)
        self._agreement = agreement
        self.withheld: set[Live] = set()
        self._held: dict[Live, Reservation] = {}  # of those who begin if they can do so everywhere
        self._said: dict[Live, _Said] = {}
        self._never: dict[Live, Rejected] = {}
        budget = float(self._budgets.get(Queue.RESIDENT, float("inf")))
        steps = f"chunk {self._chunk}, boundaries {self._admission.boundaries}, budget {budget}"
        self._options = f"{steps}, {self._requests.queues.options}"

    def arriving(self, keys: Keys, tokens: int) -> tuple[Queue, float]:
        """See ``Turns``; what this rank alone can reuse says nothing yet."""
        return Queue.RESIDENT, float(self._admission.step_stop(tokens, 0, self._chunk))

    def round(self) -> None:
        """See ``Turns``; the same turns on all ranks.

        Raises:
            RankError: see ``Agreement.round``. Nobody has begun then.
            Exception: what a store or a device query raised here; the other ranks hear of it.
        """
        self._held, self._said, self._never = {}, {}, {}
        self.withheld = set(self._requests.by_number.values())  # until all have spoken
        try:
            self._running.begin_round()
            self._claimant, self._stopped = None, ()
            self._grant(holders=True)
            with self._manager.lock:
                lives = list(self._requests.by_number.values())
                asks = [self._ask(live) for live in lives]
        except Exception as error:
            self._agreement.fail(error)
        try:
            begin = partial(self._begin_all, lives)
            self._settle(lives, self._agreement.round(asks, begin, self._options))
        except BaseException:
            for live in list(self._held):
                self._give_back(live)
            raise

    # ---- before the vote --------------------------------------------------------------------------------------------

    def _ask(self, live: Live) -> Ask:
        """What is asked of a live request, and what ranks must have in common of it. The caller holds the lock."""
        state = self._requests.state(live)
        name = "absent" if state is None else state.name.lower()
        waits = state is QueuedState.WAITING
        also = f"{live.number} {name} {live.tokens} {live.computed} {live.lacked} {live.owner}".encode()
        return Ask(live.keys, live.tokens if waits else None, waits, also)

    def _begin_all(self, lives: list[Live], lengths: tuple[int, ...]) -> bytes:
        """Reserve room for those whose turn it is, as far as the budget goes; what this rank says of each request."""
        agreed = dict(zip(lives, lengths, strict=True))
        with self._manager.lock:
            for live in lives:
                self._price(live, agreed[live])
            self._claimant = self._first_starving()
        if not self._running.stops:
            self._try_turns(agreed)
        with self._manager.lock:
            exact = {work.live: work.exact for work in self._requests.granted}
            alone = self._running.is_alone()
        for live in self._running.short:
            self._said[live] = _Said.LACKS
        for live, same in exact.items():
            self._said[live] = _Said.HAS if same else _Said.HAS_LOSSY
        return bytes([*(self._said.get(live, _Said.NOTHING) for live in lives), alone])

    def _price(self, live: Live, length: int) -> None:
        """What its turn costs, by what all ranks reuse. The caller holds the lock."""
        if self._requests.state(live) is QueuedState.WAITING:
            cost = float(self._admission.step_stop(live.tokens, length, self._chunk) - length)
            if self._requests.queues.cost(live.number) != cost:
                self._requests.put(live, Queue.RESIDENT, cost, holds=False)

    def _try_turns(self, agreed: dict[Live, int]) -> None:
        """Try those who wait in their order, until the budget is spent or the claimant lacks room."""
        queues, spent = self._requests.queues, 0.0
        budget = self._budgets.get(Queue.RESIDENT, float("inf"))
        first = None if self._claimant is None else self._claimant.number
        turns = queues.turns(Queue.RESIDENT, float("inf"), holders=False, first=first)
        while not self._stopped and (live := self._next(turns)) is not None:
            cost = queues.cost(live.number)
            if spent and spent + cost > budget:
                self._changed()  # the next round has a budget of its own
                return
            said = self._said[live] = self._try(live, agreed[live])
            if said in (_Said.HAS, _Said.HAS_LOSSY):
                spent += cost
            elif said is _Said.LACKS and live is self._claimant:
                self._stopped = tuple(Queue)

    def _try(self, live: Live, length: int) -> _Said:
        """Reserve room for a request that goes on from exactly this many tokens."""
        if self._lets_pass(live):
            return _Said.LACKS
        answer = self._manager.match(live.keys, live.tokens, at_most=length)
        if answer.now != length:  # whoever was tried before has taken its place; the next round asks again
            return _Said.NOTHING
        try:
            decision = self._admission.admit(
                answer, live.tokens, step=self._chunk, owner=live.owner, salt=live.keys.salt
            )
        except Refused as refused:
            if refused.refusal.name != Reason.STALE.name:
                raise
            return _Said.NOTHING
        if isinstance(decision, Deferred):
            return _Said.LACKS if decision.lacks_room else _Said.NOTHING
        if isinstance(decision, Rejected):
            self._never[live] = decision
            return _Said.NEVER
        self._held[live] = decision
        return _Said.HAS if decision.lease is None or decision.lease.exact else _Said.HAS_LOSSY

    # ---- after it ---------------------------------------------------------------------------------------------------

    def _settle(self, lives: list[Live], bodies: list[bytes]) -> None:
        """Do what all ranks have come to."""
        said = {live: [_Said(body[place]) for body in bodies] for place, live in enumerate(lives)}
        for live, all_said in said.items():
            everywhere = all(one in (_Said.HAS, _Said.HAS_LOSSY) for one in all_said)
            if _Said.NEVER in all_said:
                self._give_back(live)
                self._reject(live, self._never.get(live) or _never_on(all_said.index(_Said.NEVER)))
            elif live in self._held and everywhere:
                self._admit(live, self._held.pop(live), Queue.RESIDENT)
            else:
                self._give_back(live)
                if _Said.LACKS in all_said and live.row is None:
                    self._lacked(live)
            if _Said.HAS_LOSSY in all_said:
                self._all_lossy(live)
        with self._manager.lock:
            granted = {work.live for work in self._requests.granted}
        self.withheld = {live for live in granted if _Said.NOTHING in said[live] or _Said.LACKS in said[live]}
        self._running.short = [live for live, some in said.items() if live.row is not None and _Said.LACKS in some]
        self._running.alone = all(body[-1] for body in bodies)

    def _give_back(self, live: Live) -> None:
        if (reservation := self._held.pop(live, None)) is not None:
            with self._manager.lock:
                self._admission.cancel_now(reservation)

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
