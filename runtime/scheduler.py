"""The scheduler: requests from their arrival to their end, through the five queues.

An engine asks ``schedule`` for what to compute in its next step. Loads run on an executor's threads meanwhile
(``load_workers.py``); a stalled one holds up nobody but those who wait for it. Requests come and are given up from any
thread, or from a coroutine; one thread at a time schedules. This is what engines call. How far a request is, and in
which queue, its word says (``live_requests.py``); how it gets its turns, ``turns.py``; what becomes of it once it runs,
``running_rows.py``. All of it changes under the manager's lock.

The engine computes what a ``Work`` says, and then:

    publish    others find the whole granules of a running request
    decode     a token for each of some running requests; where there is no room, the youngest go back to wait
    finish     a request has all its tokens
    preempt    a request goes back to wait, and begins again where the cache still knows it; before the engine sleeps,
               ``preempt_all``, so that nobody holds memory that goes away
    cancel     at any moment, from any thread; never waits for a transfer

Who goes back has its whole granules published, so an engine has launched what ``schedule`` gave it before it decodes,
preempts or schedules again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .admission import Admission, Limits, Stage
from .generated.queued import QueuedState, QueuedTable
from .keys import Keys
from .lease import Done, still
from .live_requests import Live, LiveRequests, Work
from .load_workers import LoadWorkers
from .queues import Queue, Queues, queue_of
from .running_rows import RunningRows
from .serving_report import Report
from .ticket import Ticket
from .turns import Turns

if TYPE_CHECKING:
    from .manager import Manager

__all__ = ["Live", "Scheduler", "Work"]


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
        self._attempts = attempts
        self._requests = LiveRequests(manager, self.queues, requests, clock)
        self.live = self._requests.by_number
        self._changed = threading.Event()
        wake = self._changed.set
        manager.watch_room(wake)
        self._running = RunningRows(manager, self.admission, self._requests, chunk, clock, wake, lock())
        self._workers = LoadWorkers(manager, self.admission, self._requests, executor, wake)
        self._turns = Turns(
            manager, self.admission, self._requests, self._running, self._workers, budgets, chunk, clock, wake
        )

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
            cost = self._turns.cost(answer, tokens, queue)
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
        with self._running.lock:
            with self.manager.lock:
                state = self._requests.state(live)
                if state in (None, QueuedState.DRAINING):
                    return False
                runs = live.row is not None
                if not runs:
                    tickets = self._give_up(live, state, still(done))
            if runs:
                self._running.end(live, "abort", done)
            self._requests.tally.cancelled += 1
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

        Never waits for a load. Those who hold slots come first, in all queues, and nobody waits for ever: see
        ``turns.py``. Where every running request waits for room, the youngest goes back to wait. Who is given up before
        this returns is not in it.

        Raises:
            Exception: what a store or a device query raised. Nothing is lost: what was granted by then is returned by
                the next call.
        """
        self._changed.clear()
        self._turns.round()
        with self.manager.lock:
            work = tuple(self._requests.granted)
            self._requests.granted.clear()
        for one in work:
            begun = one.live.begun
            if not begun.done() and begun.set_running_or_notify_cancel():
                begun.set_result(one)
        if not work:
            self._running.unblock()
        return work

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there may be turns since the last ``schedule`` began; False when the time is up first.

        Whoever gives room back wakes it, be it no request of this scheduler, and so do loads that end. But no one is
        told when the device ends: where slots wait for that (``done``), the engine calls ``wake`` when a step of its
        has ended, or gives a timeout.
        """
        return self._changed.wait(timeout)

    def wake(self) -> None:
        """The device has ended something: whoever waits looks again. From any thread."""
        self._changed.set()

    def publish(self, live: Live, *, done: Done | None = None) -> int:
        """Let others find the whole granules of a running request; returns how many it shares now.

        Nothing happens, and 0 is returned, where it was given up meanwhile, or has lost its row.

        Args:
            live: the request; its keys cover its tokens.
            done: as for ``RequestTable.publish``.

        Raises:
            Refused: GAP or EPOCH, see there; the request runs on, and shares what it did.
            ValueError: it waits.
        """
        return self._running.publish(live, done)

    def decode(self, lives: Iterable[Live], *, done: Done | None = None) -> tuple[Live, ...]:
        """One decoded token for each of some running requests; returns those that went back to wait.

        These lacked room, or their memory was allocated anew. A request for which there is no room though nobody else
        has any ends, with its ``fault`` saying so; it is among the returned. Requests that were given up meanwhile are
        passed over.

        Args:
            lives: running requests whose prompts are computed.
            done: whether the device has ended the steps begun so far.

        Raises:
            ValueError: a request that waits, whose prompt is not computed, or twice.
        """
        return self._running.decode(lives, done)

    def finish(self, live: Live, *, done: Done | None = None) -> None:
        """A running request has all its tokens: what it shares stays in the cache, what it owns is free.

        Nothing happens where it was given up meanwhile.

        Raises:
            ValueError: it waits.
        """
        self._running.finish(live, done)

    def preempt(self, live: Live, *, done: Done | None = None) -> None:
        """A running request gives its slots back and waits anew, for all the tokens that it has by now.

        Its whole granules are published, as far as its keys cover them, and found again unless they are evicted.
        Nothing happens where it was given up meanwhile.

        Raises:
            ValueError: it waits.
        """
        self._running.preempt(live, done)

    def preempt_all(self, *, done: Done | None = None) -> bool:
        """Every request gives back all that it holds, loads included, and waits anew; for an engine that will sleep.

        Waits for no transfer: one whose bytes a worker moves just now is stopped, and keeps its slots until it has.

        Args:
            done: whether the device has ended the steps begun so far; slots that it uses wait for it.

        Returns:
            Whether no bytes of a load arrive any more. If so, and the device has ended, ``Manager.reallocate`` needs no
            ``void`` for what requests of this scheduler held. If not, ``wait`` and call this again.
        """
        tickets: list[Ticket] = []
        with self._running.lock:
            with self.manager.lock:
                running = self._requests.running()
            self._running.notice(running)
            for live in running:
                if live.row is not None:
                    self._running.preempt_now(live, done)
            with self.manager.lock:
                done = still(done)
                for live in self.live.values():
                    tickets += self._put_back(live, done)
        for ticket in tickets:
            self._workers.quiesce(ticket)
        self._changed.set()
        with self.manager.lock:
            return not any(live.loading is not None for live in self.live.values())

    def report(self) -> Report:
        """What has been counted so far; see there for the units."""
        with self.manager.lock:
            depths = {queue: self.queues.depth(queue) for queue in Queue}
            states = {state.name.lower(): self._requests.count(state) for state in QueuedState}
            states = {name: count for name, count in states.items() if count and name != "absent"}
            in_flight = {name: self.admission.taken(name) for name in self.admission.limits.by_name()}
            return self._requests.tally.report(depths, states, in_flight)

    # ---- small helpers; the caller holds the manager's lock ---------------------------------------------------------

    def _give_up(self, live: Live, state: QueuedState | None, done: Done | None) -> list[Ticket]:
        """End a request that doesn't run; returns loads that it waited for."""
        loading = state is QueuedState.LOADING
        self._requests.fire("abort_load" if loading else "abort", live)
        self._requests.withdraw(live)
        tickets = self._let_go(live, done)
        live.reservation = None
        if not loading:
            self._requests.forget(live)
        return tickets

    def _put_back(self, live: Live, done: Done | None) -> list[Ticket]:
        """Let a request that doesn't run wait anew, with nothing; returns loads that it waited for.

        While a worker moves bytes for it that is only so once the worker has ended.
        """
        state, joined = self._requests.state(live), live.joined is not None
        tickets = self._let_go(live, done)
        if joined:
            self._requests.put(live, self._requests.where(live), float(live.tokens), holds=False)
        if state is QueuedState.ADMITTED:  # no worker has begun, and none will
            self._requests.fire("begin", live)
            self._requests.fire("ended", live, ok=False, most=0, where=Queue.RESIDENT)
        if state in (QueuedState.ADMITTED, QueuedState.READY):
            self._requests.again(live, Queue.RESIDENT, float(live.tokens))
        return tickets

    def _let_go(self, live: Live, done: Done | None) -> list[Ticket]:
        """What it has reserved goes back, and it waits for no load any more; returns the loads."""
        reservation, joined, live.joined = live.reservation, live.joined, None
        tickets = [joined, None if reservation is None else reservation.ticket]
        if joined is not None:
            joined.leave(live.owner)
        if reservation is not None and reservation.stage is not Stage.ENDED:
            self.admission.cancel_now(reservation, done)
        return [ticket for ticket in tickets if ticket is not None]
