"""The scheduler: requests from their arrival to their end, through the five queues.

An engine asks ``schedule`` for what to compute in its next step. Loads run on an executor's threads meanwhile
(``load_workers.py``); a stalled one holds up nobody but those who wait for it. Requests come, are given up and end from
any thread, or from a coroutine. This is what engines call. How far a request is, and in which queue, its word says
(``live_requests.py``); how it gets its turns, ``turns.py``; what becomes of it once it runs, ``running_rows.py``. All
of it changes under the manager's lock.

The engine computes what a ``Work`` says, and then:

    publish    others find the whole granules of a running request, or the indexer keys that one has computed
    decode     a token for each of some running requests; where there is no room, the youngest go back to wait
    propose    room for drafts of some running requests; accept some of them, or reject, before they are stepped again
    rollback   a running request goes on from fewer tokens
    finish     a request has all its tokens
    preempt    a request goes back to wait, and begins again where the cache still knows it; before the engine sleeps,
               ``preempt_all``, so that nobody holds memory that goes away
    cancel     at any moment, from any thread; never waits for a transfer

A ``Work`` without a row computes indexer keys that the cache lacks, before its request begins (``key_rebuilds.py``):
``publish`` the request once they are written. Until then it waits for the engine, and does not run.

Who goes back has its whole granules published, so an engine has launched what ``schedule`` returned before it decodes,
publishes, preempts or schedules again; what it can't launch it cancels. Of these calls none may meet a ``schedule``:
where they do, as two threads make them, RuntimeError says which two (``engine_calls.py``). Work that ``schedule``
granted and has not returned yet counts as computed by nobody: what was computed before it is kept, except of a window
of blocks what slid out for it, unless that was published. Drafts and rollbacks go through here as well, and not through
the request table, which knows nothing of keys.

Who is published is found by its keys, which grow with it: give ``tokens=`` to ``decode`` and ``accept``, or extend
``live.keys`` by each token yourself. What they don't reach yet is not published, whether a request shares or goes back.

Once the manager is poisoned each of these raises Poisoned, and so does ``begun``. Where ranks schedule together each of
them makes the same calls in the same order, and ``schedule``, ``decode``, ``propose`` and ``rollback`` raise RankError
once one of them is gone, has failed, or serves something else (``rank_turns.py``).
"""

from __future__ import annotations

import asyncio
import functools
import operator
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, InvalidStateError
from contextlib import AbstractContextManager, suppress
from numbers import Real
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from .admission import Admission, Limits
from .agreement import Agreement
from .arguments import check_call, check_is, check_whole
from .engine_calls import EngineCalls
from .errors import Poisoned
from .generated.queued import QueuedState, QueuedTable
from .key_rebuilds import KeyRebuilds
from .keys import Keys
from .lease import Done, still
from .live_requests import Live, LiveRequests, Stepped, Work
from .load_workers import LoadWorkers
from .queues import Queue, Queues
from .rank_turns import RankTurns
from .running_rows import RunningRows
from .service import Service
from .serving_report import Report, StoreReport
from .ticket import Ticket
from .turns import Turns

if TYPE_CHECKING:
    from .manager import Manager

__all__ = ["Live", "Scheduler", "Stepped", "Work"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _stores(method: Callable[Concatenate[Scheduler, _P], _T]) -> Callable[Concatenate[Scheduler, _P], _T]:
    """A call in which some may go back: what they published is stored out of all locks."""

    @functools.wraps(method)
    def stored(self: Scheduler, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        try:
            return method(self, *arguments, **options)
        finally:
            self._running.store()

    return stored


def _engine(method: Callable[Concatenate[Scheduler, _P], _T]) -> Callable[Concatenate[Scheduler, _P], _T]:
    """A call of the engine's own, which must not meet some others."""

    @functools.wraps(method)
    def alone(self: Scheduler, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        with self._calls.under_way(method.__name__):
            return method(self, *arguments, **options)

    return alone


class Scheduler:
    """Requests of one engine.

    Args:
        manager: whose slots they use.
        executor: runs loads; ``ThreadPoolExecutor(n)``. Not shut down here.
        limits: of what is under way at once.
        queues: whose turn it is.
        budgets: what may be granted in one call of ``schedule``, by queue, in the units of ``Queue.spends``, above 0;
            without one, all that there is room for.
        chunk: tokens of a prompt that one step computes at most, a multiple of the granule; None: all of it.
        boundaries: whether, where the model has windows or tails, a step ends at the prompt's last whole granule in any
            case, and the rest takes one more: publish in between, or nothing is kept there at which others could go on.
            False where the engine keeps these itself, by fills of these kinds (``Manager.reserve``).
        attempts: times that a load which failed is tried again before the request computes.
        requests: most that are live at once. Among ranks those don't count that were given up while their bytes move,
            as long as no more loads than that move at once.
        clock: the time, for waits and, unless ranks agree, ageing.
        lock: makes the lock that keeps rows of running requests from ending while they are stepped.
        agreement: where several ranks serve the same requests, this one's part in agreeing who loads, who begins, and
            from where; used by nobody else meanwhile. Chunk, boundaries, budgets, attempts and queues are the same on
            all, and turns age with its exchanges. See ``rank_turns.py``.

    Attributes:
        admission: what is under way, and its limits.
        queues: who waits where.
        live: live requests by number.

    Raises:
        ValueError: an option out of its range, or queues of another scheduler.
        TypeError: an option of another type.
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
        boundaries: bool = True,
        attempts: int = 1,
        requests: int = 1024,
        clock: Callable[[], float] = time.monotonic,
        lock: Callable[[], AbstractContextManager[Any]] = threading.Lock,
        agreement: Agreement | None = None,
    ) -> None:
        check_call("executor.submit", getattr(executor, "submit", None), "an executor, such as ThreadPoolExecutor(2)")
        check_is("limits", limits, (Limits, NoneType), "Limits(...), or None")
        check_is("queues", queues, (Queues, NoneType), "Queues(...), or None")
        check_is("boundaries", boundaries, bool, "True or False")
        check_call("clock", clock, "what says the time, such as time.monotonic")
        check_call("lock", lock, "what makes a lock, such as threading.Lock")
        _check_numbers(manager, chunk, budgets, requests, attempts)
        if agreement is not None and not isinstance(agreement, Agreement):
            raise TypeError(f"agreement={agreement!r}; give an Agreement(group, manager) of this rank, or None")
        if agreement is not None and agreement.manager is not manager:
            raise ValueError("an agreement over another manager; make it with this one")
        self.manager = manager
        self.admission = Admission(manager, limits, boundaries=boundaries)
        self.queues = Queues() if queues is None else queues  # empty ones are false
        self.queues.serve()
        self._attempts = attempts
        ageing = clock if agreement is None else lambda: float(agreement.exchanges)
        draining = 0 if agreement is None else requests  # what drains on one rank only refuses nobody
        self._requests = LiveRequests(manager, self.queues, requests, clock, ageing, draining)
        self.live = self._requests.by_number
        self._changed = threading.Event()
        self._calls = EngineCalls()
        wake = self._changed.set
        manager.watch_room(wake)
        manager.lock.watch(self._tell_poison)
        service = Service(manager, self.admission, self._requests, chunk, clock, wake)
        self._running = RunningRows(service, lock(), agreement)
        self._workers = LoadWorkers(service, executor, among_ranks=agreement is not None)
        self._rebuilds = KeyRebuilds(service)
        make: Callable[..., Turns] = Turns if agreement is None else functools.partial(RankTurns, agreement, attempts)
        self._turns = make(service, self._running, self._rebuilds, self._workers, budgets)
        self._in_ranks = agreement is not None

    # ---- for those who ask ------------------------------------------------------------------------------------------

    def submit(self, keys: Keys, tokens: int | None = None, *, owner: str = "") -> Live:
        """A request comes. It waits in the queue of what it misses first, and has nothing yet.

        Args:
            keys: of its prompt, with all its whole granules at least. They are the request's from now on. Where they
                have more tokens than the prompt, ``decode`` and ``accept`` can't extend them.
            tokens: length of the prompt; that of the keys by default.
            owner: who asks; turns are shared fairly between owners.

        Raises:
            Refused: BACKPRESSURE when as many as there may be are live, or some of another scheduler of this manager;
                IDENTITY for keys of another model.
            ValueError: no tokens, or more whole granules than the keys have.
            TypeError: no keys, no whole number of tokens, or no name.
        """
        self.manager.check_keys(keys)
        check_is("owner", owner, str, "a name, '' by default")
        tokens = keys.tokens if tokens is None else tokens
        check_whole("tokens", tokens, "a whole number, or None for as many as the keys have")
        tokens = operator.index(tokens)
        if tokens < 1:
            raise ValueError(f"a prompt of {tokens} tokens; give at least 1")
        if tokens // keys.granule > len(keys):
            what = f"keys of {keys.tokens} tokens for a prompt of {tokens}"
            raise ValueError(f"{what}; give keys of all its whole granules, of {keys.granule} tokens each")
        queue, cost = self._turns.arriving(keys, tokens)
        with self.manager.lock:
            live = self._requests.arrive(keys, tokens, owner, self._attempts, queue, cost)
        self._changed.set()
        return live

    def cancel(self, live: Live, *, done: Done | None = None) -> bool:
        """Give a request up, whatever it is doing; False when it has ended already. Waits for no transfer.

        Args:
            live: the request.
            done: whether the device has ended the steps begun so far, those included that ``schedule`` has returned; a
                running request's slots wait for it. It is asked under the lock: steps that another thread launches
                before that count. What it raises goes to the caller, with nothing changed.
        """
        self._requests.check(live)
        tickets: list[Ticket] = []
        with self._running.lock:
            with self.manager.lock:
                state = self._requests.state(live)
                if state in (None, QueuedState.DRAINING):
                    return False
                runs = live.row is not None
                if not runs:
                    done = still(done)
                    self.manager.tick()  # what may raise comes before anything has changed
                    tickets = self._give_up(live, state, done)
            if runs:
                self._running.end(live, "abort", done)
            self._requests.tally.count("cancelled")
        for ticket in tickets:
            self._workers.quiesce(ticket)
        if live.begun.cancel():
            live.begun.set_running_or_notify_cancel()  # so that ``concurrent.futures.wait`` hears of it
        self._changed.set()
        return True

    async def begun(self, live: Live) -> Work:
        """Wait until a request begins; whoever stops waiting before, as a task that is cancelled, gives it up.

        Raises:
            Refused: it was rejected.
            asyncio.CancelledError: it was given up.
            Poisoned: an invariant broke before it began.
        """
        self._requests.check(live)
        try:
            return await asyncio.wrap_future(live.begun)
        except BaseException:
            with suppress(Poisoned):
                self.cancel(live)
            raise

    def state(self, live: Live) -> str:
        """The state of its word: "waiting" to "running"; "draining" while a load ends after it, "absent" at the end."""
        self._requests.check(live)
        with self.manager.lock:
            state = self._requests.state(live)
        return "absent" if state is None else state.name.lower()

    def where(self, live: Live) -> Queue:
        """The queue that a live request is in.

        Raises:
            ValueError: it has ended.
        """
        self._requests.check(live)
        with self.manager.lock:
            found = None if self._requests.state(live) is None else self._requests.where(live)
        if found is None:
            raise ValueError(f"request {live.number} has ended")
        return found

    # ---- for the engine ---------------------------------------------------------------------------------------------

    @_stores
    @_engine
    def schedule(self, *, done: Done | None = None) -> tuple[Work, ...]:
        """Grant turns in all queues, as far as room and budgets go; returns what to compute now.

        Never waits for a load. Those who hold slots come first, in all queues, and nobody waits for ever: see
        ``turns.py``. Where every running request waits for room, the youngest goes back to wait. Who is given up before
        this returns is not in it.

        Args:
            done: whether the device has ended the steps begun so far; blocks that slide out of a window wait for it,
                and so do slots of who goes back.

        Raises:
            Exception: what a store or a device query raised. Nothing is lost: the next call grants nothing more, and
                returns what was granted by then, unless its request has gone back to wait. Among ranks see
                ``rank_turns.py``.
        """
        self._changed.clear()
        broken_off = bool(self._requests.granted) and not self._in_ranks
        if broken_off:  # this lets go of what went with its row since
            self._running.begin_round(done)
            self._rebuilds.notice()
        if broken_off and self._requests.granted:
            self._changed.set()
        else:
            self._turns.round(done)
        with self._running.lock, self.manager.lock:
            work = self._requests.hand_out(self._turns.withheld)
        if self._turns.withheld:
            self._changed.set()
        for one in work:
            if one.row is not None:
                with suppress(InvalidStateError):  # it has begun before, or was given up or told of poison just now
                    one.live.begun.set_result(one)
        if not work:
            self._running.unblock(done)
        with self.manager.lock:  # who was told may have given some up
            return tuple(one for one in work if one.stands)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there may be turns since the last ``schedule`` began; False when the time is up first.

        Whoever gives room back wakes it, be it no request of this scheduler, and so do loads that end. But no one is
        told when the device ends: where slots wait for that (``done``), the engine calls ``wake`` when a step of its
        has ended, or gives a timeout. Among ranks the others are in ``schedule`` meanwhile, and wait for this one no
        longer than the group's deadline: the timeout is well below that. While nobody is live it waits for who comes.

        Raises:
            Poisoned: an invariant broke, before or meanwhile.
        """
        self.manager.lock.check()
        woken = self._changed.wait(timeout)
        self.manager.lock.check()
        return woken

    def wake(self) -> None:
        """The device has ended something: whoever waits looks again. From any thread."""
        self._changed.set()

    @_engine
    def publish(self, live: Live, *, done: Done | None = None) -> int:
        """Let others find the whole granules of a running request; returns how many it shares now.

        Of a request that computes indexer keys these are published, which must be written by then; it waits again, and
        shares nothing. Where their entries are gone they are given up: ``live.fault`` says so, and nothing is raised.
        Nothing happens, and 0 is returned, where it was given up meanwhile, or has lost its row.

        Args:
            live: the request; what its keys don't reach yet isn't published.
            done: as for ``RequestTable.publish``; not for keys.

        Raises:
            Refused: GAP or EPOCH, see there; the request runs on, and shares what it did.
            ValueError: it waits.
            Exception: of keys what the backend, the clock or a store raises; see ``key_rebuilds.py``.
        """
        self._requests.check(live)
        if live.rebuild is not None:
            self._rebuilds.publish(live)
            return 0
        return self._running.publish(live, done)

    @_stores
    @_engine
    def decode(
        self, lives: Iterable[Live], *, tokens: Iterable[int] | None = None, done: Done | None = None
    ) -> Stepped:
        """One decoded token for each of some running requests; says who stepped, and who went back to wait.

        These lacked room, or their memory was allocated anew. A request for which there is no room though nobody else
        has any ends, with its ``fault`` saying so, and counts as one that went back. Requests that were given up
        meanwhile are passed over: launch what ``Stepped.rows`` says.

        Args:
            lives: running requests whose prompts are computed.
            tokens: the ids of the tokens whose state this step writes, one for each request; the keys of those who
                step are extended by them. None: their owner does that.
            done: whether the device has ended the steps begun so far.

        Raises:
            ValueError: a request that waits, whose prompt is not computed, or twice; tokens for keys that lack some.
            Refused: LEASE for a request of another scheduler.
        """
        named = self._named(lives)
        return self._running.decode(named, None if tokens is None else list(tokens), done)

    @_engine
    def propose(self, lives: Iterable[Live], counts: int | Sequence[int]) -> Stepped:
        """Room for drafts after the tokens of some running requests; says who has it.

        Args:
            lives: running requests whose prompts are computed.
            counts: drafts of each, or of all of them.

        Raises:
            Refused: GAP where the model's tail or window has no rows for so many, POOL_FULL without slots, CAPACITY
                where there will never be any. Nothing has changed then: go on with fewer, or with ``decode``, which
                makes room.
            ValueError: as for ``decode``, or a request that has open drafts.
        """
        return self._running.propose(self._named(lives), counts)

    @_engine
    def accept(
        self,
        lives: Iterable[Live],
        counts: int | Sequence[int],
        *,
        tokens: Iterable[Sequence[int]] | None = None,
        done: Done | None = None,
    ) -> Stepped:
        """The first drafts of some running requests become their tokens, the others go; says whose.

        Args:
            lives: running requests.
            counts: drafts to accept of each, or of all of them.
            tokens: for each request the ids of those accepted, by which its keys are extended; None: their owner does
                that.
            done: whether the device has ended the steps begun so far.

        Raises:
            ValueError: more than were proposed, or as for ``decode``.
        """
        named = self._named(lives)
        return self._running.accept(named, counts, None if tokens is None else list(tokens), done)

    @_engine
    def reject(self, lives: Iterable[Live], *, done: Done | None = None) -> Stepped:
        """The drafts of some running requests go, as if they had never been. As ``accept`` of 0."""
        return self._running.accept(self._named(lives), 0, None, done)

    @_engine
    def rollback(self, live: Live, to: int, *, keys: Keys | None = None, done: Done | None = None) -> bool:
        """A running request goes on from its first ``to`` tokens, without drafts; False where it was given up.

        Args:
            live: a running request whose prompt is computed.
            to: tokens that it has afterwards.
            keys: of no more than these, which are its own from now on; needed where those that it has go further.
            done: whether the device has ended the steps begun so far.

        Raises:
            Refused: GAP when what it needs there is gone already, here or on another rank (``RequestTable.rollback``);
                IDENTITY for keys of another model or tenant. Nothing has changed.
            ValueError: a request that waits, whose prompt is not computed, or that has fewer tokens; keys of more.
        """
        self._requests.check(live)
        return self._running.rollback(live, to, keys, done)

    def finish(self, live: Live, *, done: Done | None = None) -> None:
        """A running request has all its tokens: what it shares stays in the cache, what it owns is free.

        Nothing happens where it was given up meanwhile.

        Raises:
            ValueError: it waits.
        """
        self._requests.check(live)
        self._running.finish(live, done)

    @_stores
    @_engine
    def preempt(self, live: Live, *, done: Done | None = None) -> None:
        """A running request gives its slots back and waits anew, for all the tokens that it has by now.

        Its whole granules are published, as far as its keys cover them, and found again unless they are evicted.
        Nothing happens where it was given up meanwhile.

        Raises:
            ValueError: it waits.
        """
        self._requests.check(live)
        with self.manager.lock:
            rebuilds = live.rebuild is not None
            if rebuilds:
                done = still(done)
                self.manager.tick()
                self._put_back(live, done)
        if rebuilds:
            self._changed.set()
        else:
            self._running.preempt(live, done)

    @_stores
    @_engine
    def preempt_all(self, *, done: Done | None = None) -> bool:
        """Every request gives back all that it holds, loads included, and waits anew; for an engine that will sleep.

        Waits for no transfer: one whose bytes a worker moves just now is stopped, and keeps its slots until it has.

        Args:
            done: whether the device has ended the steps begun so far; slots that it uses wait for it.

        Returns:
            True where no bytes of a load arrive any more. Then, and once the device has ended, ``Manager.reallocate``
            needs no ``void`` for what requests of this scheduler held. If False, ``wait`` and call this again.
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
                self.manager.tick()
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
            store = StoreReport(self.manager.store_failures, self.manager.storer.error)
            return self._requests.tally.report(depths, states, in_flight, store)

    # ---- small helpers ----------------------------------------------------------------------------------------------

    def _named(self, lives: Iterable[Live]) -> list[Live]:
        named = list(lives)
        for live in named:
            self._requests.check(live)
        return named

    def _tell_poison(self) -> None:
        """Once the manager is poisoned nobody begins any more."""
        if (reason := self.manager.lock.reason) is None:
            return
        for live in list(self.live.values()):
            with suppress(InvalidStateError):
                live.begun.set_exception(Poisoned(reason.invariant, reason.where, reason.what, reason.events))

    # ---- small helpers; the caller holds the manager's lock ---------------------------------------------------------

    def _give_up(self, live: Live, state: QueuedState | None, done: Done | None) -> list[Ticket]:
        """End a request that doesn't run; returns loads that it waited for."""
        loading = state is QueuedState.LOADING
        self._requests.sure("abort_load" if loading else "abort", live)
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
            self._requests.sure("begin", live)
            self._requests.sure("ended", live, ok=False, most=0, where=Queue.RESIDENT)
            live.loading = None
        if self._in_ranks:  # where loads end at different times; it loads anew, or begins, on all in one round
            live.brought = live.reach = 0
            return tickets
        if state in (QueuedState.REBUILDING, QueuedState.ADMITTED, QueuedState.READY):
            self._requests.again(live, Queue.RESIDENT, float(live.tokens))
        return tickets

    def _let_go(self, live: Live, done: Done | None) -> list[Ticket]:
        """What it has reserved goes back, and it waits for no load any more; returns the loads."""
        reservation, joined, live.joined = live.reservation, live.joined, None
        tickets = [joined, None if reservation is None else reservation.ticket]
        if joined is not None:
            joined.leave(live.owner)
        self._rebuilds.give_up(live, done)
        if reservation is not None:
            self.admission.drop_now(reservation, done)
        return [ticket for ticket in tickets if ticket is not None]


def _check_numbers(
    manager: Manager, chunk: int | None, budgets: Mapping[Queue, float], requests: int, attempts: int
) -> None:
    """Raise TypeError or ValueError for what a scheduler can't count by."""
    if chunk is not None:
        check_whole("chunk", chunk, f"a multiple of the granule, {manager.profile.granule}, or None")
    manager.profile.check_step(chunk)
    check_is("budgets", budgets, Mapping, "numbers by queue, such as {Queue.DISK: 1e9}")
    if unknown := [queue for queue in budgets if queue not in set(Queue)]:
        raise ValueError(f"budgets of {unknown}; queues are {', '.join(Queue)}")
    for queue, budget in budgets.items():
        check_is(f"the budget of '{queue}'", budget, Real, "a number above 0, or none")
    if low := [f"{budget} for '{queue}'" for queue, budget in budgets.items() if not budget > 0]:
        raise ValueError(f"budgets of {', '.join(low)}; give numbers above 0, or none")
    for name, count in {"requests": requests, "attempts": attempts}.items():
        check_whole(name, count, "a whole number")
    high = QueuedTable.LAYOUT.field("tries").high
    if requests < 1 or not 0 <= attempts <= high:
        raise ValueError(f"requests={requests}, attempts={attempts}; give at least 1, and 0 to {high}")
