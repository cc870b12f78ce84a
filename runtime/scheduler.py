"""The scheduler: requests from their arrival to their end, through the five queues.

An engine asks ``schedule`` for what to compute in its next step. Loads run on an executor's threads meanwhile
(``load_workers.py``); a stalled one holds up nobody but those who wait for it. Requests come and are given up from any
thread, or from a coroutine; one thread at a time schedules. How far a request is, and in which queue, its word says
(``live_requests.py``); whose turn it is, ``queues.py``; whether there is room, ``admission.py``. All three change under
the manager's lock.

The engine computes what a ``Work`` says, and then:

    publish    others find the whole granules of a running request
    decode     a token for each of some running requests; where there is no room, the youngest go back to wait
    finish     a request has all its tokens
    preempt    a request goes back to wait, and begins again where the cache still knows it
    cancel     at any moment, from any thread; never waits for a transfer

Who goes back has its whole granules published, so an engine has launched what ``schedule`` gave it before it decodes,
preempts or schedules again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .admission import FOR_ROOM, Admission, Deferred, Limits, Rejected, Reservation
from .answers import Answer, AnswerKind, Reason
from .errors import Refused
from .generated.queued import QueuedState, QueuedTable
from .keys import Keys
from .lease import Done, still
from .live_requests import Live, LiveRequests, Work
from .load_workers import LoadWorkers
from .queues import Queue, Queues, queue_of
from .ticket import Ticket

if TYPE_CHECKING:
    from .manager import Manager

__all__ = ["Live", "Scheduler", "Work"]

_STALE_ATTEMPTS = 3  # matches in one turn of a request whose finds are evicted before it has them


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
        lock: makes the lock that keeps rows of running requests from ending while they are stepped.

    Attributes:
        admission: what is under way, and its limits.
        queues: who waits where.
        live: live requests by number.

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
        lock: Callable[[], AbstractContextManager[Any]] = threading.Lock,
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
        self._budgets = dict(budgets)
        self._chunk, self._attempts = chunk, attempts
        self._clock = clock
        self._requests = LiveRequests(manager, self.queues, requests, clock)
        self.live = self._requests.by_number
        self._rows = lock()
        self._granted: list[Work] = []
        self._short: list[Live] = []  # running requests whose next chunk found no room in this round
        self._changed = threading.Event()
        self._workers = LoadWorkers(manager, self.admission, self._requests, executor, self._changed.set)

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
        queue = queue_of(answer)
        with self.manager.lock:
            cost = self._cost(answer, tokens, queue)
            live = self._requests.arrive(keys, tokens, owner, self._attempts, queue, cost)
        self._changed.set()
        return live

    def cancel(self, live: Live, *, done: Done | None = None) -> bool:
        """Give a request up, whatever it is doing; False when it has ended already. Waits for no transfer.

        Args:
            live: the request.
            done: whether the device has ended the steps begun so far, those included that ``schedule`` has returned; a
                running request's slots wait for it. What it raises goes to the caller, with nothing changed.
        """
        tickets: list[Ticket] = []
        with self._rows:
            with self.manager.lock:
                state = self._requests.state(live)
                if state in (None, QueuedState.DRAINING):
                    return False
                row = live.row
                if row is None:
                    tickets = self._give_up(live, state, still(done))
            if row is not None:
                self.manager.requests.finish(row, done=done)
                self._left(live, "abort")
        for ticket in tickets:
            self._workers.quiesce(ticket)
        live.begun.cancel()
        self._changed.set()
        return True

    async def begun(self, live: Live) -> Work:
        """Wait until a request begins; whoever stops waiting before, as a task that is cancelled, gives it up.

        Raises:
            Refused: it was rejected.
            asyncio.CancelledError: it was given up.
        """
        try:
            return await asyncio.wrap_future(live.begun)
        except BaseException:
            self.cancel(live)
            raise

    def state(self, live: Live) -> str:
        """The state of its word: "waiting" to "running"; "draining" while a load ends after it, "absent" at the end."""
        with self.manager.lock:
            state = self._requests.state(live)
        return "absent" if state is None else state.name.lower()

    def where(self, live: Live) -> Queue:
        """The queue that a live request is in.

        Raises:
            ValueError: it has ended.
        """
        with self.manager.lock:
            found = None if self._requests.state(live) is None else self._requests.where(live)
        if found is None:
            raise ValueError(f"request {live.number} has ended")
        return found

    # ---- for the engine ---------------------------------------------------------------------------------------------

    def schedule(self) -> tuple[Work, ...]:
        """Grant turns in all queues, as far as room and budgets go; returns what to compute now.

        Never waits for a load. Those who hold slots come first, in all queues; while one of them lacks room, nobody
        else begins. Where every running request waits for room, the youngest goes back to wait. Who is given up before
        this returns is not in it.

        Raises:
            Exception: what a store or a device query raised. Nothing is lost: what was granted by then is returned by
                the next call.
        """
        self._changed.clear()
        self._short.clear()
        for holders in (True, False):
            for queue in sorted(Queue, key=self._oldest):
                turns = self.queues.turns(queue, self._budgets.get(queue, float("inf")), holders=holders)
                while (live := self._next(turns)) is not None:
                    self._turn(live, queue)
            if self._short:
                break
        with self.manager.lock:
            work = tuple(one for one in self._granted if one.live.row is not None)
            self._granted.clear()
        for one in work:
            begun = one.live.begun
            if not begun.done() and begun.set_running_or_notify_cancel():
                begun.set_result(one)
        if not work:
            self._unblock()
        return work

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until something has changed since the last ``schedule`` began; False when the time is up first.

        What others than this scheduler's requests give back, and what the device does, is no such change.
        """
        return self._changed.wait(timeout)

    def publish(self, live: Live, *, done: Done | None = None) -> int:
        """Let others find the whole granules of a running request; returns how many it shares now.

        Nothing happens, and 0 is returned, where it was given up meanwhile.

        Args:
            live: the request; its keys cover its tokens.
            done: as for ``RequestTable.publish``.

        Raises:
            Refused: GAP or EPOCH, see there; the request runs on, and shares what it did.
            ValueError: it waits.
        """
        with self._rows:
            if not self._runs(live) or live.row is None:
                return 0
            return self.manager.requests.publish(live.row, live.keys, done=done)

    def decode(self, lives: Iterable[Live], *, done: Done | None = None) -> tuple[Live, ...]:
        """One decoded token for each of some running requests; returns those that went back to wait for want of room.

        A request for which there is no room though nobody else has any ends, with its ``fault`` saying so; it is among
        the returned. Requests that were given up meanwhile are passed over.

        Args:
            lives: running requests whose prompts are computed.
            done: whether the device has ended the steps begun so far.

        Raises:
            ValueError: a request that waits, whose prompt is not computed, or twice.
        """
        stepping, gone = list(lives), list[Live]()
        while True:
            with self._rows:
                stepping = self._decoding(stepping)
                rows = [live.row for live in stepping if live.row is not None]
                try:
                    self.manager.requests.step(rows, done=done)
                except Refused as error:
                    if error.refusal not in (*FOR_ROOM, Reason.ADMISSION):
                        raise
                    gone.append(self._yield(error, done))
                    stepping = [live for live in stepping if live is not gone[-1]]
                    continue
                for live in stepping:
                    live.computed += 1
                    live.tokens = max(live.tokens, live.computed)
            return tuple(gone)

    def finish(self, live: Live, *, done: Done | None = None) -> None:
        """A running request has all its tokens: what it shares stays in the cache, what it owns is free.

        Nothing happens where it was given up meanwhile.

        Raises:
            ValueError: it waits.
        """
        with self._rows:
            if self._runs(live):
                self._finish(live, done)

    def preempt(self, live: Live, *, done: Done | None = None) -> None:
        """A running request gives its slots back and waits anew, for all the tokens that it has by now.

        Its whole granules are published, as far as its keys cover them, and found again unless they are evicted.
        Nothing happens where it was given up meanwhile.

        Raises:
            ValueError: it waits.
        """
        with self._rows:
            if self._runs(live):
                self._preempt(live, done)

    # ---- turns ------------------------------------------------------------------------------------------------------

    def _oldest(self, queue: Queue) -> float:
        """Queues in which somebody waits longer come first."""
        with self.manager.lock:
            return self.queues.oldest(queue)

    def _next(self, turns: Iterator[int]) -> Live | None:
        with self.manager.lock:
            number = next(turns, None)
            return None if number is None else self.live[number]

    def _turn(self, live: Live, queue: Queue) -> None:
        """Give a request its turn."""
        with self.manager.lock:
            state = self._requests.state(live)
            if state is QueuedState.READY:
                self._enter(live)
        if state is QueuedState.RUNNING:
            self._continue(live)
        elif state is QueuedState.WAITING:
            self._begin(live, queue)

    def _begin(self, live: Live, queue: Queue) -> None:
        """Look what a waiting request misses now, and admit it, if there is room."""
        for _ in range(_STALE_ATTEMPTS):
            answer = self.manager.match(live.keys, live.tokens)
            if answer.kind is AnswerKind.RETRY:
                continue
            where = queue_of(answer)
            if where is not queue:
                self._route(live, where, answer)
                return
            try:
                decision = self.admission.admit(answer, live.tokens, step=self._chunk, owner=live.owner)
            except Refused as refused:
                if refused.refusal.name != "STALE":
                    raise
                continue  # evicted meanwhile
            if isinstance(decision, Rejected):
                self._reject(live, decision)
            elif isinstance(decision, Reservation):
                self._admit(live, decision, queue)
            else:
                self._defer(live, decision)
            return
        with self.manager.lock:
            self._requests.passed(live)
        self._changed.set()

    def _route(self, live: Live, where: Queue, answer: Answer) -> None:
        """It misses something else by now."""
        with self.manager.lock:
            if self._requests.refusal("route", live, where=where) is None:
                self._requests.put(live, where, self._cost(answer, live.tokens, where), holds=False)
        self._changed.set()

    def _defer(self, live: Live, decision: Deferred) -> None:
        with self.manager.lock:
            if self._requests.state(live) is not QueuedState.WAITING:
                return  # it was given up meanwhile
            if decision.ticket is None:
                self._requests.passed(live)
            else:
                self._workers.join(live, decision.ticket)

    def _reject(self, live: Live, why: Rejected) -> None:
        with self.manager.lock:
            if self._requests.refusal("reject", live) is not None:
                return  # it was given up meanwhile
            self._requests.fire("leave", live)
            self._requests.forget(live)
        if live.begun.set_running_or_notify_cancel():
            live.begun.set_exception(Refused(why.reason, "admission", why.detail))

    def _admit(self, live: Live, reservation: Reservation, queue: Queue) -> None:
        """It has what it needs."""
        ticket = reservation.ticket
        with self.manager.lock:
            transfers = queue in (Queue.DISK, Queue.COMPRESSED)
            where = queue if ticket is not None or not transfers else Queue.RESIDENT
            gone = self._requests.refusal("admit", live, where=where) is not None
            if gone:
                self.admission.cancel_now(reservation)
            else:
                live.reservation = reservation
                self.queues.granted(live.number)
                if ticket is None:
                    self._enter(live)
        if ticket is None:
            return
        if not gone:
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
            row = self.admission.enter_now(reservation)
        except Refused as refused:
            if refused.refusal is not Reason.ADMISSION:
                raise
            if live.number not in self.queues:
                self._workers.put_ready(live)
            self._requests.passed(live)  # others have taken the rows
            return
        self._requests.fire("start", live)
        live.row, live.computed = row, reservation.first
        self._granted_to(live, Work(live, row, start, reservation.first, replay, exact, self._clock() - live.since))

    def _continue(self, live: Live) -> None:
        """The next chunk of a running request's prompt."""
        with self._rows:
            row, start = live.row, live.computed
            if row is None:
                return  # it was given up meanwhile
            stop = live.tokens if self._chunk is None else min(live.tokens, start + self._chunk)
            try:
                self.manager.requests.extend(row, stop - start)
            except Refused as refused:
                if refused.refusal not in (*FOR_ROOM, Reason.ADMISSION):
                    raise
                with self.manager.lock:
                    self._requests.passed(live)
                self._short.append(live)
                return
            with self.manager.lock:
                live.computed = stop
                exact = not self.manager.requests.is_lossy(row)
                self._granted_to(live, Work(live, row, start, stop, None, exact, self._clock() - live.since))

    def _granted_to(self, live: Live, work: Work) -> None:
        """Its turn was granted; what is left of its prompt waits for the next. The caller holds the lock."""
        self._granted.append(work)
        if live.number in self.queues:
            self.queues.granted(live.number)
        if live.computed < live.tokens:
            rest = live.tokens - live.computed
            cost = rest if self._chunk is None else min(rest, self._chunk)
            self._requests.put(live, Queue.RESIDENT, float(cost), holds=True)

    # ---- want of room -----------------------------------------------------------------------------------------------

    def _unblock(self) -> None:
        """Where all who run lack room for their next chunk, let the youngest give its room back.

        One that runs alone waits for what others hold: loads, leases, the device.
        """
        with self._rows:
            with self.manager.lock:
                running = self._requests.running()
                stuck = bool(running) and all(live in self._short for live in running)
                if not stuck or (len(running) == 1 and not self._alone()):
                    return
            why = f"the next chunk of request {running[0].number} doesn't fit beside what it has"
            self._yield(Refused(Reason.POOL_FULL, "scheduler", why), None)

    def _yield(self, why: Refused, done: Done | None) -> Live:
        """The youngest of those who run gives its room back; where it is alone with all there is, it ends.

        The caller holds ``_rows``, and somebody runs.
        """
        with self.manager.lock:
            *others, youngest = self._requests.running()
            alone = not others and self._alone()
        if alone:
            youngest.fault = why
            self._finish(youngest, done)
        else:
            self._preempt(youngest, done)
        return youngest

    def _alone(self) -> bool:
        """Whether nobody holds slots but one row. The caller holds the lock."""
        manager = self.manager
        others = (manager.reservations, manager.receipts, manager.fills, manager.tickets, manager.parked)
        return not any(others) and not manager.given_up and int(manager.requests.active.sum()) == 1

    # ---- small helpers ----------------------------------------------------------------------------------------------

    def _give_up(self, live: Live, state: QueuedState | None, done: Done | None) -> list[Ticket]:
        """End a request that doesn't run; returns loads that it waited for. The caller holds the lock."""
        loading = state is QueuedState.LOADING
        self._requests.fire("abort_load" if loading else "abort", live)
        self._requests.withdraw(live)
        reservation, joined = live.reservation, live.joined
        live.reservation = live.joined = None
        tickets = [joined, None if reservation is None else reservation.ticket]
        if joined is not None:
            joined.leave(live.owner)
        if reservation is not None:
            self.admission.cancel_now(reservation, done)
        if not loading:
            self._requests.forget(live)
        return [ticket for ticket in tickets if ticket is not None]

    def _finish(self, live: Live, done: Done | None) -> None:
        """The caller holds ``_rows``; so for the next."""
        assert live.row is not None
        self.manager.requests.finish(live.row, done=done)
        self._left(live, "leave")
        self._changed.set()

    def _preempt(self, live: Live, done: Done | None) -> None:
        assert live.row is not None
        if live.keys.tokens >= live.computed:
            self.manager.requests.preempt(live.row, live.keys, done=done)
        else:
            self.manager.requests.finish(live.row, done=done)
        with self.manager.lock:
            if live.reservation is not None:
                self.admission.leave_now(live.reservation)
            self._requests.again(live, Queue.RESIDENT, float(live.tokens))
        self._changed.set()

    def _left(self, live: Live, event: str) -> None:
        """The row of a running request has ended."""
        with self.manager.lock:
            if live.reservation is not None:
                self.admission.leave_now(live.reservation)
            self._requests.fire(event, live)
            self._requests.forget(live)

    def _runs(self, live: Live) -> bool:
        """Whether a request runs; False where it was given up or has ended. The caller holds ``_rows``.

        Raises:
            ValueError: it waits.
        """
        with self.manager.lock:
            state = self._requests.state(live)
        if state not in (None, QueuedState.RUNNING, QueuedState.DRAINING):
            raise ValueError(f"request {live.number} doesn't run: it is {state.name.lower()}")
        return state is QueuedState.RUNNING

    def _decoding(self, lives: list[Live]) -> list[Live]:
        """Those of some requests that run. The caller holds ``_rows``."""
        running = [live for live in lives if self._runs(live)]
        if early := [live.number for live in running if live.computed < live.tokens]:
            raise ValueError(f"prompts of requests {early} are not computed yet")
        return running

    def _cost(self, answer: Answer, tokens: int, queue: Queue) -> float:
        """What a turn spends of its queue's budget. The caller holds the lock."""
        if queue in (Queue.DISK, Queue.COMPRESSED):
            return self.admission.bytes_of(answer)
        rest = tokens - answer.now
        return float((rest if self._chunk is None else min(rest, self._chunk)) + len(answer.replay or ()))
