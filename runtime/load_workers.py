"""What an executor's threads do for a scheduler: each moves the bytes of one load, and tries again where that failed.

Every load that was begun ends, whatever becomes of the request that it was begun for: where others wait for it as well
it goes on, and an executor that doesn't run it makes it fail. A request whose load has failed too often computes.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future

from .admission import Stage
from .errors import Refused
from .generated import Refusal
from .generated.queued import QueuedState
from .live_requests import Live
from .queues import Queue, compute_queue_of
from .service import Service
from .ticket import Ticket

_WAITS_FOR_BYTES = (QueuedState.ADMITTED, QueuedState.LOADING, QueuedState.DRAINING)


class LoadWorkers:
    """Runs the loads of a scheduler's requests.

    Args:
        service: whose loads.
        executor: runs them.
        among_ranks: whether a request whose load is over here, well or not, waits until it is over on all ranks, which
            then try again together (``rank_turns.py``); else it has its next turn at once.
    """

    def __init__(self, service: Service, executor: Executor, *, among_ranks: bool = False) -> None:
        self._among_ranks = among_ranks
        self._manager, self._admission, self._requests = service.manager, service.admission, service.requests
        self._executor, self._changed = executor, service.changed

    def start(self, live: Live, ticket: Ticket) -> None:
        """Have the load of an admitted request moved. The caller doesn't hold the lock.

        Raises:
            BaseException: what the executor raised that was not shut down; the load has failed then. Among ranks, which
                have agreed on more than this load by now, no Exception is raised: ``live.fault`` says what it was.
        """
        with self._manager.lock:
            self._requests.tally.count("loads")
            ticket.then(lambda ended: self._ended(live, ended))
        try:
            job = self._executor.submit(self._work, live, ticket)
        except BaseException as error:
            self._never_ran(live, ticket, error)
            told = Exception if self._among_ranks else RuntimeError  # which is what one says that was shut down
            if not isinstance(error, told):
                raise
        else:
            job.add_done_callback(lambda job: self._check_ran(live, ticket, job))

    def join(self, live: Live, ticket: Ticket) -> None:
        """A waiting request has its next turn when another's load has ended. The caller holds the lock."""
        queue, cost = self._requests.queues.where(live.number), self._requests.queues.cost(live.number)
        try:
            ticket.join(live.owner)
        except Refused:  # it ends just now
            self._requests.passed(live, Refusal.BUSY.name)
            self._changed()
            return
        self._requests.tally.deferred[Refusal.BUSY.name] += 1
        self._requests.withdraw(live)
        live.joined = ticket
        ticket.then(lambda ended: self._joined(live, ended, queue, cost))

    def quiesce(self, ticket: Ticket) -> None:
        """Free the slots of a load that all have given up, unless a worker moves it, who then will."""
        if ticket.state == "aborted" and not ticket.moving:
            try:
                ticket.quiesce()
            except Refused:  # a worker has begun just now, or has ended
                assert ticket.moving or ticket.ended, "who moves an aborted load ends it"

    def put_ready(self, live: Live) -> None:
        """A request that has all that its first step needs waits for it. The caller holds the lock.

        Among ranks it does so in no queue: the next round asks of it what it asks of those whose loads are over.
        """
        if self._among_ranks:
            return
        reservation = live.reservation
        assert reservation is not None
        reused = 0 if reservation.lease is None else reservation.lease.length
        self._requests.put(live, self.queue_of(live), float(reservation.first - reused), holds=True)

    @staticmethod
    def queue_of(live: Live) -> Queue:
        """Where a request waits that misses no bytes."""
        reservation = live.reservation
        if reservation is None or reservation.lease is None:
            return Queue.RESIDENT
        return compute_queue_of(reservation.answer)

    # ---- on a worker's thread ---------------------------------------------------------------------------------------

    def _work(self, live: Live, first: Ticket) -> None:
        ticket: Ticket | None = first
        while ticket is not None:
            with self._manager.lock:
                if ticket.ended:
                    return
                if live.loading is ticket:
                    self._requests.try_fire("begin", live)  # where it was given up others may wait for the load
            try:
                ticket.transfer()
            except BaseException as error:  # kept for who asks; the request goes on without the load
                with self._manager.lock:
                    if not ticket.ended:  # somebody else moves it, and no worker is there to try again
                        live.attempts = 0
                        raise
                live.fault = error
                if not isinstance(error, Exception):  # the thread is to stop
                    self._compute(live, ticket)
                    raise
            ticket = self._again(live, ticket)

    def _again(self, live: Live, failed: Ticket) -> Ticket | None:
        """After a failed load: look what is there now, and open another one, or let the request compute."""
        with self._manager.lock:
            if not self._waits_for(live, failed) or live.reservation is None:
                return None
            reservation = live.reservation
        try:
            answer, _ = self._admission.match(live.keys, live.tokens, reservation.step)
            loading = self._admission.reload(reservation, answer)
        except Exception as error:  # the store can't answer, or the request was given up
            live.fault, loading = error, False
        except BaseException:  # the thread is to stop
            self._compute(live, failed)
            raise
        with self._manager.lock:
            if not self._waits_for(live, failed):
                return None
            ticket = reservation.ticket if loading else None
            if ticket is not None:
                live.loading = ticket
                self._requests.tally.count("loads")
                self._requests.tally.count("loads_again")
                ticket.then(lambda ended: self._ended(live, ended))
        if ticket is None:
            self._compute(live, failed)
        return ticket

    def _waits_for(self, live: Live, ticket: Ticket) -> bool:
        """Whether a load of an admitted request is still to be moved, or to be tried again. Under the lock."""
        return live.loading is ticket and self._requests.state(live) is QueuedState.ADMITTED

    def _compute(self, live: Live, failed: Ticket) -> None:
        """A request whose load has failed has its next turn, and computes."""
        with self._manager.lock:
            if self._waits_for(live, failed):
                self._requests.sure("begin", live)
                self._requests.sure("ended", live, ok=False, most=0, where=self.queue_of(live))
                self._have_turn(live)
        self._changed()

    def _have_turn(self, live: Live) -> None:
        """It misses no bytes any more. The caller holds the lock."""
        reservation = live.reservation
        live.loading = None
        if self._among_ranks:
            return
        if reservation is None or reservation.stage is Stage.ENDED:  # others were faster at what the load left
            self._requests.again(live, Queue.RESIDENT, float(live.tokens))
        else:
            self.put_ready(live)

    # ---- when a load has ended; the caller of the first two holds the lock ------------------------------------------

    def _ended(self, live: Live, ticket: Ticket) -> None:
        """It was a request's own, and the reservation knows already."""
        self._changed()
        ok = ticket.state == "done"
        if not ok:
            self._requests.tally.count("loads_failed")
        state = self._requests.state(live)
        if state not in _WAITS_FOR_BYTES or live.loading is not ticket:
            return  # it was given up, or waits anew, since before a worker had begun
        reservation = live.reservation
        again = not ok and reservation is not None and reservation.stage is Stage.READY and not self._among_ranks
        if state is QueuedState.ADMITTED:  # somebody else ended it, and no worker is there to try again
            self._requests.sure("begin", live)
            again = False
        self._requests.sure("ended", live, ok=ok, most=live.attempts if again else 0, where=self.queue_of(live))
        if state is QueuedState.DRAINING:
            self._requests.forget(live)
        elif self._requests.state(live) is not QueuedState.ADMITTED:  # else the worker tries again
            self._have_turn(live)

    def _joined(self, live: Live, ticket: Ticket, queue: Queue, cost: float) -> None:
        """It was another's: what it brought is found by the next match."""
        if live.joined is not ticket:
            return  # it waits for that one no more
        live.joined = None
        if self._requests.state(live) is QueuedState.WAITING:
            self._requests.put(live, queue, cost, holds=False)
            self._changed()

    def _check_ran(self, live: Live, ticket: Ticket, job: Future[None]) -> None:
        """An executor that is shut down may drop what it has not begun."""
        if job.cancelled():
            self._never_ran(live, ticket, RuntimeError("the executor dropped the load"))

    def _never_ran(self, live: Live, ticket: Ticket, error: BaseException) -> None:
        """Let a load fail that no worker will ever begin; nor is it tried again."""
        live.fault, live.attempts = error, 0
        try:
            ticket.done(False, missing={})
        except Refused:
            if not ticket.ended:
                raise
