"""The scheduler: requests from their arrival to their end, through the five queues.

An engine asks ``schedule`` for what to compute in its next step. Loads run on an executor's threads meanwhile; a
stalled one holds up nobody but those who wait for it. Requests come and are given up from any thread, or from a
coroutine; one thread at a time schedules. How far a request is, and in which queue, its word says (the spec's
``queued``); whose turn it is, ``queues.py``; whether there is room, ``admission.py``. All three change under the
manager's lock.

The engine computes what a ``Work`` says, and then:

    decode     a token for each of some running requests; where there is no room, the youngest go back to wait
    finish     a request has all its tokens
    preempt    a request goes back to wait, and begins again where the cache still knows it
    cancel     at any moment, from any thread; never waits for a transfer
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .admission import FOR_ROOM, Admission, Deferred, Limits, Rejected, Reservation, Stage
from .answers import Answer, Reason
from .errors import Refused
from .generated import Refusal
from .generated.queued import QueuedQueue, QueuedState, QueuedTable
from .keys import Keys
from .lease import Done
from .queues import Queue, Queues, queue_of
from .ticket import Ticket

if TYPE_CHECKING:
    from .manager import Manager

_CODES = {queue: QueuedQueue[queue.name] for queue in Queue}
_STALE_ATTEMPTS = 3  # matches in one turn of a request whose finds are evicted before it has them


@dataclass(frozen=True, slots=True)
class Work:
    """What to compute of one request in the next step.

    Attributes:
        live: the request.
        row: of the request table.
        start: first token to compute; what lies before it is in the row already.
        stop: token after the last one.
        replay: tokens before ``start`` to compute again first, with the cached entries frozen; None: none.
        exact: whether what lies before ``start`` is the very state of a cold run.
        waited: time from arrival until now, in the scheduler's clock.
    """

    live: Live
    row: int
    start: int
    stop: int
    replay: range | None
    exact: bool
    waited: float


@dataclass(slots=True, eq=False)
class Live:
    """One request.

    Attributes:
        number: of the request; never given twice.
        keys: of its tokens.
        tokens: that it has; those that are not in its row yet are computed first.
        owner: who asked.
        since: when it came, or was preempted.
        begun: its first work of all; or Refused, with the reason that it was rejected for; cancelled when given up.
        fault: what a load of it raised last, or why it ended before it had all its tokens.
    """

    number: int
    keys: Keys
    tokens: int
    owner: str
    since: float
    place: int  # in the table of words
    generation: int
    begun: Future[Work] = field(default_factory=Future)
    fault: BaseException | None = None
    reservation: Reservation | None = None
    row: int | None = None
    computed: int = 0  # tokens that its row accounts for


class Scheduler:
    """Requests of one engine.

    Args:
        manager: whose slots they use.
        executor: runs loads; ``ThreadPoolExecutor(n)``. Not shut down here.
        limits: of what is under way at once.
        queues: whose turn it is.
        budgets: what may be granted in one call of ``schedule``, by queue, in the units of ``Queue.spends``; without
            one, all that there is room for.
        chunk: tokens of a prompt that one step computes at most, a multiple of the granule; None: all of it.
        attempts: times that a load which failed is tried again before the request computes.
        requests: most that are live at once.
        clock: the time, for waits and ageing.

    Raises:
        ValueError: an option out of its range.
    """

    def __init__(
        self,
        manager: Manager,
        executor: Executor,
        *,
        limits: Limits | None = None,
        queues: Queues | None = None,
        budgets: Mapping[Queue, float] = MappingProxyType({}),
        chunk: int | None = None,
        attempts: int = 1,
        requests: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        granule = manager.profile.granule
        if chunk is not None and (chunk < granule or chunk % granule):
            raise ValueError(f"chunks of {chunk} tokens; give a multiple of the granule, {granule}")
        high = QueuedTable.LAYOUT.field("tries").high
        if requests < 1 or not 0 <= attempts <= high:
            raise ValueError(f"requests={requests}, attempts={attempts}; give at least 1, and 0 to {high}")
        self.manager = manager
        self.admission = Admission(manager, limits)
        self.queues = Queues() if queues is None else queues  # empty ones are false
        self.words = manager.table(QueuedTable, requests)
        self.live: dict[int, Live] = {}
        self._budgets = dict(budgets)
        self._chunk, self._attempts = chunk, attempts
        self._clock = clock
        self._executor = executor
        self._free = list(range(requests))[::-1]
        self._number = itertools.count(1).__next__
        self._changed = threading.Event()

    # ---- for those who ask ------------------------------------------------------------------------------------------

    def submit(self, keys: Keys, tokens: int | None = None, *, owner: str = "") -> Live:
        """A request comes. It waits in the queue of what it misses first, and has nothing yet.

        Args:
            keys: of its prompt.
            tokens: length of the prompt; that of the keys by default.
            owner: who asks; turns are shared fairly between owners.

        Raises:
            Refused: ADMISSION when as many as there may be are live; IDENTITY for keys of another model.
            ValueError: no tokens.
        """
        self.manager.check_keys(keys)
        tokens = keys.tokens if tokens is None else tokens
        if tokens < 1:
            raise ValueError(f"a prompt of {tokens} tokens; give at least 1")
        answer = self.manager.match(keys, tokens)
        with self.manager.lock:
            if not self._free:
                raise Refused(Reason.ADMISSION, "scheduler", f"{len(self.words)} requests are live")
            place, queue = self._free[-1], queue_of(answer)
            self._fire("arrive", place, where=_CODES[queue])
            self._free.pop()
            generation = int(self.words.fields("generation", [place])[0])
            live = Live(self._number(), keys, tokens, owner, self._clock(), place, generation)
            self.live[live.number] = live
            self._put(live, queue, self._cost(answer, tokens, queue), holds=False)
        self._changed.set()
        return live

    def cancel(self, live: Live, *, done: Done | None = None) -> bool:
        """Give a request up, whatever it is doing; False when it has ended already. Waits for no transfer.

        Args:
            live: the request.
            done: whether the device has ended the steps begun so far; a running request's slots wait for it.
        """
        ticket = None
        with self.manager.lock:
            state = self._state(live)
            if state in (None, QueuedState.DRAINING):
                return False
            if live.number in self.queues:
                self.queues.remove(live.number)
            reservation, live.reservation = live.reservation, None
            self._fire("abort_load" if state is QueuedState.LOADING else "abort", live.place, expected=live.generation)
            if reservation is not None and reservation.stage in (Stage.LOADING, Stage.READY):
                ticket = self.admission.cancel_now(reservation, done)
            row, live.row = live.row, None
            if state is not QueuedState.LOADING:
                self._forget(live)
        if ticket is not None:
            self.admission.abort(ticket)
            if state is QueuedState.ADMITTED:
                ticket.quiesce()  # no worker has begun with it, and none will
        if row is not None:
            self.manager.requests.finish(row, done=done)
        if reservation is not None and reservation.stage is Stage.ENTERED:
            self.admission.leave(reservation)
        live.begun.cancel()
        self._changed.set()
        return True

    async def begun(self, live: Live) -> Work:
        """Wait until a request begins; who is cancelled while he waits gives the request up.

        Raises:
            Refused: it was rejected.
            asyncio.CancelledError: it was given up.
        """
        try:
            return await asyncio.wrap_future(live.begun)
        except asyncio.CancelledError:
            self.cancel(live)
            raise

    def state(self, live: Live) -> str:
        """The state of its word: "waiting" to "running"; "draining" while a load ends after it, "absent" at the end."""
        with self.manager.lock:
            state = self._state(live)
        return "absent" if state is None else state.name.lower()

    def where(self, live: Live) -> Queue:
        """The queue that a live request is in.

        Raises:
            ValueError: it has ended.
        """
        with self.manager.lock:
            if self._state(live) is None:
                raise ValueError(f"request {live.number} has ended")
            return Queue[QueuedQueue(int(self.words.fields("queue", [live.place])[0])).name]

    # ---- for the engine ---------------------------------------------------------------------------------------------

    def schedule(self) -> tuple[Work, ...]:
        """Grant turns in all queues, as far as room and budgets go; returns what to compute now.

        Never waits for a load. Where every running request waits for room, the youngest goes back to wait.
        """
        self._changed.clear()
        work: list[Work] = []
        for queue in Queue:
            turns = self.queues.turns(queue, self._budgets.get(queue, float("inf")))
            while (live := self._next(turns)) is not None:
                found = self._turn(live, queue)
                if found is not None:
                    work.append(found)
        for one in work:
            if not one.live.begun.done():
                one.live.begun.set_running_or_notify_cancel()
                one.live.begun.set_result(one)
        if not work:
            self._unblock()
        return tuple(work)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until something has changed since the last ``schedule``; False when the time is up first."""
        return self._changed.wait(timeout)

    def decode(self, lives: Iterable[Live], *, done: Done | None = None) -> tuple[Live, ...]:
        """One decoded token for each of some running requests; returns those that went back to wait for want of room.

        A request for which there is no room though nobody else has any ends, with its ``fault`` saying so.

        Args:
            lives: running requests whose prompts are computed.
            done: whether the device has ended the steps begun so far.

        Raises:
            ValueError: a request that doesn't run, or twice.
        """
        stepping, gone = list(lives), []
        if early := [live.number for live in stepping if live.computed < live.tokens]:
            raise ValueError(f"prompts of requests {early} are not computed yet")
        while stepping:
            rows = [self._row(live) for live in stepping]
            try:
                self.manager.requests.step(rows, done=done)
            except Refused as refused:
                if refused.refusal not in (*FOR_ROOM, Reason.ADMISSION):
                    raise
                youngest = self._yield(refused, done)
                gone.append(youngest)
                stepping = [live for live in stepping if live is not youngest]
                continue
            for live in stepping:
                live.computed += 1
                live.tokens = max(live.tokens, live.computed)
            break
        return tuple(gone)

    def finish(self, live: Live, *, done: Done | None = None) -> None:
        """A running request has all its tokens: what it shares stays in the cache, what it owns is free.

        Raises:
            ValueError: it doesn't run.
        """
        row = self._row(live)
        self.manager.requests.finish(row, done=done)
        with self.manager.lock:
            self._leave(live)
        self._changed.set()

    def preempt(self, live: Live, *, done: Done | None = None) -> None:
        """A running request gives its slots back and waits anew, for all the tokens that it has by now.

        What of it is published is found again, as far as nobody evicts it; ``keys`` are those of its tokens.

        Raises:
            ValueError: it doesn't run.
        """
        row = self._row(live)
        self.manager.requests.finish(row, done=done)
        answer = self.manager.match(live.keys, live.tokens)
        with self.manager.lock:
            queue = queue_of(answer)
            self._back(live, queue, self._cost(answer, live.tokens, queue))
        self._changed.set()

    # ---- turns ------------------------------------------------------------------------------------------------------

    def _next(self, turns: Iterator[int]) -> Live | None:
        with self.manager.lock:
            number = next(turns, None)
            return None if number is None else self.live[number]

    def _turn(self, live: Live, queue: Queue) -> Work | None:
        """Give a request its turn; returns what it computes then."""
        if live.row is not None:
            return self._continue(live)
        if live.reservation is not None:
            with self.manager.lock:
                return self._enter(live)
        for _ in range(_STALE_ATTEMPTS):
            answer = self.manager.match(live.keys, live.tokens)
            where = queue_of(answer)
            if where is not queue:
                self._route(live, where, answer)
                return None
            try:
                decision = self.admission.admit(
                    answer, live.tokens, first=self._first(answer.length, live.tokens), owner=live.owner
                )
            except Refused as refused:
                if refused.refusal.name != "STALE":
                    raise
                continue  # evicted meanwhile
            return self._decided(live, queue, decision)
        self._passed(live)
        return None

    def _decided(self, live: Live, queue: Queue, decision: Reservation | Deferred | Rejected) -> Work | None:
        if isinstance(decision, Deferred):
            if decision.ticket is None:
                self._passed(live)
            else:
                self._join(live, decision.ticket)
            return None
        if isinstance(decision, Rejected):
            self._reject(live, decision)
            return None
        with self.manager.lock:
            where = queue if decision.stage is Stage.LOADING else self._compute_queue(decision)
            code = self._fire("admit", live.place, must=False, expected=live.generation, where=_CODES[where])
            if not code:
                live.reservation = decision
                if decision.stage is Stage.READY and where is queue:
                    return self._enter(live)
                self.queues.granted(live.number)
                if decision.stage is Stage.READY:
                    self._put_ready(live, where)
        if code:  # it was given up meanwhile
            self._undo(decision)
        elif decision.ticket is not None:
            self._load(live, decision.ticket)
        return None

    def _join(self, live: Live, ticket: Ticket) -> None:
        """It has its next turn when another's load has ended, which brings what it asks for."""
        with self.manager.lock:
            if live.number not in self.queues:
                return  # it was given up meanwhile
            queue, cost = self.queues.where(live.number), self.queues.cost(live.number)
            self.queues.remove(live.number)
            ticket.then(lambda _: self._joined(live, queue, cost))

    def _joined(self, live: Live, queue: Queue, cost: float) -> None:
        if self._state(live) is QueuedState.WAITING:
            self._put(live, queue, cost, holds=False)
            self._changed.set()

    def _undo(self, reservation: Reservation) -> None:
        with self.manager.lock:
            ticket = self.admission.cancel_now(reservation)
        self.admission.abort(ticket)
        if ticket is not None:
            ticket.quiesce()

    def _enter(self, live: Live) -> Work | None:
        """The first step of a request that is ready runs. The caller holds the lock."""
        reservation = live.reservation
        if reservation is None or self._state(live) is not QueuedState.READY:
            return None  # it was given up meanwhile
        lease = reservation.lease
        start = 0 if lease is None else lease.length
        replay, exact = (None, True) if lease is None else (lease.replay, lease.exact)
        try:
            row = self.admission.enter_now(reservation)
        except Refused as refused:
            if refused.refusal is not Reason.ADMISSION:
                raise
            self.queues.passed(live.number)  # no row is free
            return None
        self._fire("start", live.place, expected=live.generation)
        live.row, live.computed = row, reservation.first
        if live.number in self.queues:
            self.queues.granted(live.number)
        self._put_rest(live)
        return Work(live, row, start, reservation.first, replay, exact, self._clock() - live.since)

    def _continue(self, live: Live) -> Work | None:
        """The next chunk of a running request's prompt."""
        row, start = live.row, live.computed
        if row is None:
            return None
        stop = self._first(start, live.tokens)
        try:
            self.manager.requests.extend(row, stop - start)
        except Refused as refused:
            if refused.refusal not in (*FOR_ROOM, Reason.ADMISSION):
                raise
            self._passed(live)
            return None
        with self.manager.lock:
            live.computed = stop
            self.queues.granted(live.number)
            self._put_rest(live)
        return Work(live, row, start, stop, None, True, self._clock() - live.since)

    def _route(self, live: Live, where: Queue, answer: Answer) -> None:
        """It was asked again what it misses first."""
        with self.manager.lock:
            if not self._fire("route", live.place, must=False, expected=live.generation, where=_CODES[where]):
                self.queues.remove(live.number)
                self._put(live, where, self._cost(answer, live.tokens, where), holds=False)
        self._changed.set()

    def _reject(self, live: Live, why: Rejected) -> None:
        with self.manager.lock:
            if self._fire("reject", live.place, must=False, expected=live.generation):
                return
            self.queues.remove(live.number)
            self._fire("leave", live.place, expected=live.generation)
            self._forget(live)
        if live.begun.set_running_or_notify_cancel():
            live.begun.set_exception(Refused(why.reason, "admission", why.detail))

    def _passed(self, live: Live) -> None:
        with self.manager.lock:
            if live.number in self.queues:
                self.queues.passed(live.number)

    def _unblock(self) -> None:
        """Where all who run wait for room, and nothing else is under way, let the youngest give its room back."""
        with self.manager.lock:
            running = self._running()
            stuck = running and all(live.computed < live.tokens for live in running) and not self._moving()
        if stuck:
            why = f"the next chunk of request {running[0].number} doesn't fit beside what it has"
            self._yield(Refused(Reason.ADMISSION, "scheduler", why), None)

    def _yield(self, why: Refused, done: Done | None) -> Live:
        """The youngest of those who run gives its room back; where it is alone with all the room there is, it ends."""
        with self.manager.lock:
            running = self._running()
            alone = len(running) == 1 and not (self._moving() or self.manager.receipts or self.manager.fills)
        youngest = running[-1]
        if alone:
            youngest.fault = why
            self.finish(youngest, done=done)
        else:
            self.preempt(youngest, done=done)
        return youngest

    def _moving(self) -> int:
        """Requests that have slots and don't run."""
        states = self.words.count_by_state()
        return states["admitted"] + states["loading"] + states["ready"] + states["draining"]

    # ---- loads ------------------------------------------------------------------------------------------------------

    def _load(self, live: Live, ticket: Ticket) -> None:
        with self.manager.lock:
            ticket.then(lambda ended: self._load_ended(live, ended))
        try:
            self._executor.submit(self._transfer, live, ticket)
        except RuntimeError:  # it was shut down
            self.cancel(live)
            raise

    def _transfer(self, live: Live, ticket: Ticket | None) -> None:
        """What a worker does: move a request's bytes, and try again where that failed."""
        while ticket is not None:
            with self.manager.lock:
                if self._fire("begin", live.place, must=False, expected=live.generation):
                    return  # it was given up before
            try:
                ticket.transfer()
            except Exception as error:  # kept for who asks; the load has failed, and the request goes on without it
                live.fault = error
            ticket = self._again(live)

    def _load_ended(self, live: Live, ticket: Ticket) -> None:
        """A ticket has ended, and the reservation knows. The caller holds the lock."""
        if self._state(live) not in (QueuedState.LOADING, QueuedState.DRAINING):
            return  # it was given up before a worker had begun
        reservation, ok = live.reservation, ticket.state == "done"
        again = not ok and reservation is not None and reservation.stage is Stage.READY
        where = Queue.RESIDENT if reservation is None else self._compute_queue(reservation)
        most = self._attempts if again else 0
        self._fire("ended", live.place, expected=live.generation, ok=ok, most=most, where=_CODES[where])
        state = self._state(live)
        if state is QueuedState.ADMITTED:
            return  # the worker tries again
        if reservation is None:
            self._forget(live)
        elif reservation.stage is Stage.ENDED:  # others were faster at what the load left
            self._back(live, where, float(live.tokens))
        else:
            self._put_ready(live, where)
        self._changed.set()

    def _again(self, live: Live) -> Ticket | None:
        """After a failed load: look what is there now, and open another one, or let the request compute."""
        with self.manager.lock:
            reservation = live.reservation
            if reservation is None or self._state(live) is not QueuedState.ADMITTED:
                return None
        answer = self.manager.match(live.keys, live.tokens)
        try:
            loading = self.admission.reload(reservation, answer)
        except Refused:
            return None  # it was given up meanwhile
        with self.manager.lock:
            if self._state(live) is not QueuedState.ADMITTED:
                return None
            ticket = reservation.ticket
            if loading and ticket is not None:
                ticket.then(lambda ended: self._load_ended(live, ended))
                return ticket
            where = self._compute_queue(reservation)
            self._fire("begin", live.place, expected=live.generation)
            self._fire("ended", live.place, expected=live.generation, ok=False, most=0, where=_CODES[where])
            self._put_ready(live, where)
        self._changed.set()
        return None

    # ---- small helpers; the caller holds the lock, except in the last one -------------------------------------------

    def _fire(self, event: str, place: int, *, must: bool = True, **given: Any) -> int:
        """An event on a request's word; returns the refusal's code, which is 0 where it ``must`` not be refused."""
        code = int(self.words.fire(event, [place], **given)[0])
        if code and must:
            raise AssertionError(f"request word {place}: {event} refused: {Refusal(code).reason}")
        return code

    def _state(self, live: Live) -> QueuedState | None:
        """State of a request's word; None once it has ended."""
        if int(self.words.fields("generation", [live.place])[0]) != live.generation:
            return None
        state = QueuedState(int(self.words.states([live.place])[0]))
        return None if state is QueuedState.ABSENT else state

    def _put(self, live: Live, queue: Queue, cost: float, *, holds: bool) -> None:
        self.queues.put(live.number, queue, cost=cost, now=live.since, owner=live.owner, holds=holds)

    def _put_ready(self, live: Live, queue: Queue) -> None:
        reservation = live.reservation
        assert reservation is not None
        reused = 0 if reservation.lease is None else reservation.lease.length
        self._put(live, queue, float(reservation.first - reused), holds=True)

    def _put_rest(self, live: Live) -> None:
        """What is left of a running request's prompt waits for its turn."""
        if live.computed < live.tokens:
            self._put(live, Queue.RESIDENT, float(self._first(live.computed, live.tokens) - live.computed), holds=True)

    def _back(self, live: Live, queue: Queue, cost: float) -> None:
        """A request that holds nothing any more waits anew."""
        self._fire("preempt", live.place, expected=live.generation, where=_CODES[queue])
        reservation, live.reservation, live.row = live.reservation, None, None
        if reservation is not None and reservation.stage is Stage.ENTERED:
            self.admission.leave_now(reservation)
        live.computed, live.since = 0, self._clock()
        if live.number in self.queues:
            self.queues.remove(live.number)
        self._put(live, queue, cost, holds=False)

    def _leave(self, live: Live) -> None:
        """A request that ran has ended."""
        self._fire("leave", live.place, expected=live.generation)
        if live.number in self.queues:
            self.queues.remove(live.number)
        reservation, live.reservation, live.row = live.reservation, None, None
        if reservation is not None:
            self.admission.leave_now(reservation)
        self._forget(live)

    def _forget(self, live: Live) -> None:
        del self.live[live.number]
        if live.generation < QueuedTable.LAYOUT.field("generation").high:  # else its place retires
            self._free.append(live.place)

    def _running(self) -> list[Live]:
        """Running requests, the oldest first."""
        return [live for live in self.live.values() if live.row is not None]

    def _compute_queue(self, reservation: Reservation) -> Queue:
        """Where a request waits that misses no bytes."""
        lease = reservation.lease
        return Queue.TAIL_WINDOW if lease is not None and lease.replay is not None else Queue.RESIDENT

    def _first(self, start: int, tokens: int) -> int:
        """Where a step that begins at ``start`` ends."""
        return tokens if self._chunk is None else min(tokens, start + self._chunk)

    def _cost(self, answer: Answer, tokens: int, queue: Queue) -> float:
        """What a turn spends of its queue's budget."""
        if queue in (Queue.DISK, Queue.COMPRESSED):
            return self.admission.bytes_of(answer)
        return float(self._first(answer.now, tokens) - answer.now + len(answer.replay or ()))

    def _row(self, live: Live) -> int:
        """A running request's row; without the lock."""
        with self.manager.lock:
            if self._state(live) is not QueuedState.RUNNING or live.row is None:
                raise ValueError(f"request {live.number} doesn't run")
            return live.row
