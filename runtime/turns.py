"""Turns of a scheduler's requests: a round through the five queues, and how each request begins.

Who may begin, ``admission.py`` says; whose turn it is, ``queues.py``. Beyond that, nobody waits for ever:

    holders first    those who hold slots have their turns first, in all queues; while one of them lacks room that
                     somebody who begins could keep from it, nobody begins
    patience         a request that more than ``Queues.patience`` times wasn't admitted for want of room has the first
                     turn of those who hold nothing, and while it isn't admitted none of them begins, in no queue
    a stalled disk   holds up nobody who needs no transfer: where what open transfers hold is what such a request lacks
                     room for, only transfers don't begin; the room comes when those under way have ended

Want of a limit on transfers is no want of room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .admission import Deferred, Rejected, Reservation, Stage
from .answers import Answer, AnswerKind, Reason
from .errors import Refused
from .fill import Fill
from .generated.queued import QueuedState
from .key_rebuilds import KeyRebuilds
from .keys import Keys
from .lease import Done
from .live_requests import Live, Work
from .load_workers import LoadWorkers
from .queues import Queue, queue_of
from .running_rows import RunningRows
from .service import Service
from .ticket import Ticket

TRANSFERS = (Queue.DISK, Queue.COMPRESSED)
"""Queues of those who need a transfer before their first step."""

_STALE_ATTEMPTS = 3  # matches in one turn of a request whose finds are evicted before it has them


class Turns:
    """Gives a scheduler's requests their turns.

    Args:
        service: whose requests.
        running: those who have begun.
        rebuilds: those who compute keys before they begin.
        workers: move the bytes of those who need a transfer.
        budgets: what may be granted in one round, by queue, in the units of ``Queue.spends``.

    Attributes:
        withheld: requests whose granted work is not handed to the engine yet; where ranks agree there may be some.
    """

    def __init__(
        self,
        service: Service,
        running: RunningRows,
        rebuilds: KeyRebuilds,
        workers: LoadWorkers,
        budgets: Mapping[Queue, float],
    ) -> None:
        self._manager, self._admission, self._requests = service.manager, service.admission, service.requests
        self._chunk, self._clock, self._changed = service.chunk, service.clock, service.changed
        self._running, self._rebuilds, self._workers = running, rebuilds, workers
        self._budgets = dict(budgets)
        self._starving: list[Live] = []  # have lacked room too often, the first of them first
        self._claimant: Live | None = None  # of these the one whose turn it is in this round
        self._stopped: tuple[Queue, ...] = ()  # queues in which nobody else begins in this round
        self.withheld: set[Live] = set()

    def round(self, done: Done | None = None) -> None:
        """Grant turns in all queues, as far as room and budgets go.

        Args:
            done: whether the device has ended the steps begun so far.

        Raises:
            Exception: what a store or a device query raised; what was granted by then stays granted.
        """
        self._running.begin_round(done)
        self._rebuilds.notice()
        self._claimant, self._stopped = None, ()
        self._grant(holders=True)
        if not self._running.stops:
            with self._manager.lock:
                self._claimant = self._first_starving()
            self._grant(holders=False)

    def arriving(self, keys: Keys, tokens: int) -> tuple[Queue, float]:
        """The queue of a request that comes, by what it misses first, and what its turn there costs."""
        answer, _ = self._admission.match(keys, tokens, self._chunk)
        queue = queue_of(answer)
        with self._manager.lock:
            return queue, self.cost(answer, tokens, queue)

    def cost(self, answer: Answer, tokens: int, queue: Queue, rebuilt: int = 0) -> float:
        """What a turn spends of its queue's budget; ``rebuilt`` is that of ``Live``. The caller holds the lock."""
        if queue in TRANSFERS:
            return self._admission.bytes_of(answer)
        if queue is Queue.INDEXER and (keys := self._rebuilds.wanted(answer, rebuilt)) is not None:
            return self._rebuilds.cost(answer, keys)
        rest = self._admission.step_stop(tokens, answer.now, self._chunk) - answer.now
        return float(rest + len(answer.replay or ()))

    # ---- a round ----------------------------------------------------------------------------------------------------

    def _grant(self, *, holders: bool) -> None:
        for queue in self._order():
            first = None if self._claimant is None else self._claimant.number
            budget = self._budgets.get(queue, float("inf"))
            turns = self._requests.queues.turns(queue, budget, holders=holders, first=first)
            while queue not in self._stopped and (live := self._next(turns)) is not None:
                self._turn(live, queue)
            if self._requests.queues.cut(queue):
                self._changed()  # the next round has a budget of its own

    def _order(self) -> list[Queue]:
        """Queues in which somebody waits longer come first; before them that of the claimant."""
        with self._manager.lock:
            queues, claimant = self._requests.queues, self._claimant
            where = queues.where(claimant.number) if claimant is not None and claimant.number in queues else None
            return sorted(Queue, key=lambda queue: (queue is not where, queues.oldest(queue)))

    def _next(self, turns: Iterator[int]) -> Live | None:
        with self._manager.lock:
            number = next(turns, None)
            return None if number is None else self._requests.by_number[number]

    def _first_starving(self) -> Live | None:
        """Who has lacked room too often, and waits for no other's load. The caller holds the lock."""
        self._starving = [
            live
            for live in self._starving
            if live.lacked > self._requests.queues.patience and self._requests.state(live) is QueuedState.WAITING
        ]
        return next((live for live in self._starving if live.joined is None), None)

    # ---- one turn ---------------------------------------------------------------------------------------------------

    def _turn(self, live: Live, queue: Queue) -> None:
        """Give a request its turn."""
        with self._manager.lock:
            state = self._requests.state(live)
            if state is QueuedState.READY:
                self._enter(live)
        if state is QueuedState.RUNNING:
            self._running.extend(live)
        elif state is QueuedState.WAITING:
            self._begin(live, queue)

    def _begin(self, live: Live, queue: Queue) -> None:
        """Look what a waiting request misses now, and admit it, if there is room."""
        for _ in range(_STALE_ATTEMPTS):
            answer, less = self._admission.match(live.keys, live.tokens, self._chunk)
            if answer.kind is AnswerKind.RETRY:
                continue
            where = queue_of(answer)
            if where is not queue:
                self._route(live, where, answer)
                if live is not self._claimant:
                    return
                queue = where
            decision: Reservation | Fill | Deferred | Rejected
            try:
                if self._lets_pass(live):
                    decision = Deferred(Reason.POOL_FULL, "scheduler", "it has given room back to those who run")
                elif queue is Queue.INDEXER and self._rebuilds.wanted(answer, live.rebuilt) is not None:
                    decision = self._rebuilds.begin(live, answer)
                else:
                    salt = live.keys.salt
                    decision = self._admission.admit(answer, live.tokens, step=self._chunk, owner=live.owner, salt=salt)
            except Refused as refused:
                if refused.refusal is not Reason.STALE:
                    raise
                continue  # evicted meanwhile
            if isinstance(decision, Rejected):
                self._reject(live, decision)
            elif isinstance(decision, Reservation):
                self._admit(live, decision, queue, less=less)
            elif isinstance(decision, Fill):
                self._rebuilds.granted(live, decision)
            else:
                self._defer(live, decision, answer, queue)
            return
        with self._manager.lock:
            self._requests.passed(live, Reason.STALE.name)
        self._changed()

    def _lets_pass(self, live: Live) -> bool:
        with self._manager.lock:
            return self._requests.lets_pass(live)

    def _route(self, live: Live, where: Queue, answer: Answer) -> None:
        """It misses something else by now."""
        with self._manager.lock:
            if self._requests.try_fire("route", live, where=where) is None:
                cost = self.cost(answer, live.tokens, where, live.rebuilt)
                self._requests.put(live, where, cost, holds=False)
        self._changed()

    def _defer(self, live: Live, decision: Deferred, answer: Answer, queue: Queue) -> None:
        with self._manager.lock:
            if self._requests.state(live) is not QueuedState.WAITING:
                return  # it was given up meanwhile
            if decision.ticket is not None:
                self._workers.join(live, decision.ticket)
                return
            behind = False
            if decision.lacks_room:
                self._count_lack(live)
                if live.lacked > self._requests.queues.patience:
                    behind = self._admission.behind_transfers(answer, live.tokens, self._chunk)
                if live is self._claimant:
                    self._stopped = TRANSFERS if behind else tuple(Queue)
            self._requests.passed(live, decision.reason.name, stops=not behind or queue in TRANSFERS)

    def _count_lack(self, live: Live) -> None:
        """It lacked room once more; who has too often is starving. The caller holds the lock."""
        live.lacked += 1
        if live.lacked == self._requests.queues.patience + 1:
            self._starving.append(live)

    def _reject(self, live: Live, why: Rejected) -> None:
        refused = Refused(why.reason, why.layer, why.detail)
        with self._manager.lock:
            if self._requests.try_fire("reject", live) is not None:
                return  # it was given up meanwhile
            live.fault = refused
            self._requests.sure("leave", live)
            self._requests.forget(live)
            self._requests.tally.rejected[why.reason.name] += 1
        if live.begun.set_running_or_notify_cancel():
            live.begun.set_exception(refused)
        self._changed()  # nobody may be left to wait for

    def _admit(self, live: Live, reservation: Reservation, queue: Queue, *, less: bool = False) -> None:
        """It has what it needs; ``less``: and loads less than there is, as all of it can never be had."""
        with self._manager.lock:
            ticket = reservation.ticket
            if reservation.stage is Stage.ENDED:  # so has its load, by somebody else, and others have the room
                self._requests.passed(live, Reason.STALE.name)
                self._changed()
                return
            given = self._give(live, reservation, queue)
            if given and less:
                self._requests.tally.count("loads_cut")
            if given and ticket is None:
                self._enter(live)
        if ticket is not None:
            self._move(live, ticket, given)

    def _give(self, live: Live, reservation: Reservation, queue: Queue) -> bool:
        """It has what was reserved, unless it was given up meanwhile: then nobody has. The caller holds the lock."""
        where = queue if reservation.ticket is not None or queue not in TRANSFERS else Queue.RESIDENT
        if self._requests.try_fire("admit", live, where=where) is not None:
            self._admission.drop_now(reservation)
            return False
        live.reservation, live.loading, live.lacked = reservation, reservation.ticket, 0
        self._requests.queues.granted(live.number)
        self._requests.tally.admitted(queue, self._clock() - live.since)
        return True

    def _move(self, live: Live, ticket: Ticket, given: bool) -> None:
        """Have a load's bytes moved, or its slots freed where nobody has it."""
        if given:
            self._workers.start(live, ticket)
        else:
            self._workers.quiesce(ticket)

    def _enter(self, live: Live) -> None:
        """The first step of a request that is ready runs. The caller holds the lock."""
        reservation = live.reservation
        assert reservation is not None
        lease = reservation.lease
        start = 0 if lease is None else lease.length
        replay, exact = (None, True) if lease is None else (lease.replay, lease.exact)
        try:
            row = self._admission.enter_now(reservation)
        except BaseException:
            if reservation.stage is Stage.ENDED:  # what it reads can't be copied: it has nothing any more
                self._requests.again(live, Queue.RESIDENT, float(live.tokens))
            elif live.number not in self._requests.queues:
                self._workers.put_ready(live)
            raise
        self._requests.sure("start", live)
        live.row, live.incarnation = row, self._manager.requests.incarnation(row)
        live.seen = reservation.first
        waited = self._clock() - live.since
        self._running.granted(live, Work(live, row, start, reservation.first, replay, exact, waited))
