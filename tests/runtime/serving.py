"""What tests of admission and of the scheduler share: a store with faults, an executor that runs when told, checks.

``faults`` says what is wrong between two steps under the manager's lock; ``Watched`` is a lock that looks after each.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.admission import Admission, Stage
from kvfsm.runtime.audit import audit
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.generated.queued import QueuedQueue, QueuedState
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.profile import Profile
from kvfsm.runtime.scheduler import Live, Scheduler, Work
from kvfsm.runtime.stores.memory import MemoryStore
from kvfsm.runtime.stores.store import Found, ObjectId, Verdict

DEEPSEEK = PROFILES["tiny_deepseek_v4"]


class Shelf(MemoryStore):
    """A store in memory; ``fails`` is asked at each read of several objects, and may raise as well."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[ObjectId] = []
        self.fails: Callable[[], bool] = lambda: False
        self.during: Callable[[], None] = lambda: None

    def get_many(self, ids: Sequence[ObjectId], into: Sequence[Any]) -> list[Found]:
        self.during()
        lost = self.fails()
        self.reads += ids
        return [Found(Verdict.MISS)] * len(ids) if lost else super().get_many(ids, into)


class ByHand(Executor):
    """An executor whose jobs run when a test says so, here; none by itself."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run(self, number: int = 0) -> None:
        """Run one job to its end; what it raises goes to the test."""
        future, job = self.jobs.pop(number)
        if future.set_running_or_notify_cancel():
            future.set_result(job())

    def run_all(self) -> None:
        while self.jobs:
            self.run()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.closed = True
        jobs, self.jobs = self.jobs, [] if cancel_futures else self.jobs
        for future, _ in jobs if cancel_futures else ():
            future.cancel()


class Watched:
    """A lock that calls ``before`` each time it is asked for, and ``after`` each time before it is let go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.held = False
        self.times = 0

    def __enter__(self) -> Watched:
        self.before()
        self._lock.acquire()
        self.held = True
        self.times += 1
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if error[0] is None:
                self.after()
        finally:
            self.held = False
            self._lock.release()


def prompt(seed: int, tokens: int, *, shared: int = 0) -> list[int]:
    """Tokens of which the first ``shared`` are the same for every seed."""
    head = np.random.default_rng(0).integers(0, 1000, shared).tolist()
    return [*head, *np.random.default_rng([seed, 1]).integers(0, 1000, tokens - shared).tolist()]


def write(manager: Manager, keys: Keys, stop: int, *, start: int = 0) -> None:
    """Publish granules one by one."""
    for granule in range(start, stop):
        fill = manager.reserve(keys, granule, granule + 1)
        for kind in fill.kinds:
            for part in manager.profile.layouts[kind].parts:
                fill.view(kind, part.name, part.layer)[:] = granule + 1
        manager.publish(fill)


def bytes_at(manager: Manager, keys: Keys, length: int) -> dict[str, bytes]:
    """All that a request goes on from at a boundary, by kind, part and layer."""
    with manager.acquire(manager.match(keys, at_most=length)) as lease:
        assert lease.length == length
        parts = [(kind, part.name, part.layer) for kind in lease.slots for part in manager.profile.layouts[kind].parts]
        return {f"{part}": lease.view(*part).tobytes() for part in parts}


def stored(store: Any, prompts: Sequence[Sequence[int]], profile: Profile = DEEPSEEK, **options: Any) -> None:
    """Have a store hold all whole granules of some prompts."""
    for tokens in prompts:
        count = len(tokens) // profile.granule
        per = profile.granule // (profile.window_block or profile.granule)
        slots = {kind: (count + 1) * per + 2 for kind in profile.kinds}
        manager = Manager(profile, slots, NumpyBackend(), store=store, **options)
        write(manager, manager.keys(list(tokens)), count)


def make(slots: int | Mapping[str, int], profile: Profile = DEEPSEEK, store: Any = None, **options: Any) -> Manager:
    counts = dict.fromkeys(profile.kinds, slots) if isinstance(slots, int) else slots
    return Manager(profile, counts, NumpyBackend(), store=store, **options)


def words(manager: Manager, admission: Admission) -> tuple[Any, ...]:
    """All that a refused admission leaves as it is."""
    tables = [pool.table.words.tolist() for pool in manager.core.pools.values()]
    held = (list(manager.receipts), list(manager.reservations), list(manager.tickets), manager.requests.idle)
    return (tables, admission.words.words.tolist(), *held)


def reserved(manager: Manager, *, boundaries: bool = False) -> list[str]:
    """S25: whose reservation is less than what its first step needs, however its load ends.

    With ``boundaries`` a step ends at the last whole granule of its prompt.
    """
    wrong, granule = [], manager.profile.granule
    for number, one in manager.reservations.items():
        reused = 0 if one.lease is None else one.lease.length // manager.profile.granule
        need = manager.requests.need(one.first, reused)
        have = {kind: len(slots) for kind, slots in one.slots.items()}
        if one.stage is Stage.READY and have != need:
            wrong.append(f"S25: reservation {number} is ready with {have}, and needs {need}")
        if one.ticket is not None and one.stage is Stage.LOADING:
            boundary = one.ticket.plan.boundary
            first = one.tokens
            if one.step is not None:
                first = min(first, boundary * granule + one.step)
            if boundaries and boundary < one.tokens // granule:
                first = min(first, one.tokens // granule * granule)
            loaded = manager.requests.need(first, boundary)
            with_load = {kind: count + len(one.ticket.all_slots(kind)) for kind, count in have.items()}
            if any(have[kind] < loaded[kind] or with_load[kind] < need[kind] for kind in need):
                wrong.append(f"S25: reservation {number} loads with {have}, {with_load} in all, and needs {need}")
    return wrong


def within(admission: Admission) -> list[str]:
    """S25: what is above its limit."""
    limits = [(name, admission.taken(name), most) for name, most in admission.limits.by_name().items()]
    return [f"S25: {taken} {name}, at most {most}" for name, taken, most in limits if taken > most]


def faults(scheduler: Scheduler) -> list[str]:
    """What is wrong between two steps under the lock: S25, and S26."""
    manager, queues, found = scheduler.manager, scheduler.queues, []
    table = scheduler._requests.words
    words = [table.fields(name).tolist() for name in ("generation", "state", "queue")]
    for number, live in scheduler.live.items():
        generation, code, queue = (column[live.place] for column in words)
        state = QueuedState(code) if generation == live.generation and code else None
        turn = (
            (state is QueuedState.WAITING and live.joined is None)
            or (state is QueuedState.READY and not scheduler._in_ranks)  # there it waits for the others' loads
            or (state is QueuedState.RUNNING and live.seen < live.known)
            or (state is QueuedState.RUNNING and queues.is_granted_here(number))
        )
        if state is None:
            found.append(f"S26: request {number} is live, and its word is not")
        elif turn is not (number in queues):
            found.append(f"S26: request {number} is {state.name} and waits for a turn: {number in queues}")
        elif turn and queues.where(number).name != QueuedQueue(queue).name:
            found.append(f"S26: request {number} waits in another queue than its word says")
        if state is QueuedState.LOADING and (live.reservation is None or live.reservation.ticket is None):
            found.append(f"S26: request {number} loads without a ticket")
        if (live.rebuild is not None) is not (state is QueuedState.REBUILDING):
            found.append(f"S26: request {number} is {state}, and rebuilds {live.rebuild}")
        if (live.row is not None) is not (state is QueuedState.RUNNING):
            found.append(f"S26: request {number} is {state} in row {live.row}")
        if (live.joined is not None) and live.joined.ended:
            found.append(f"T3: request {number} waits for a load that has ended")
    if len(queues) > len(scheduler.live):
        found.append("S26: requests wait that are not live")
    return found + reserved(manager, boundaries=bool(manager.core.trailing)) + within(scheduler.admission)


def watch(scheduler: Scheduler, lock: Watched, *, every: int = 1) -> None:
    """Look after each step under the lock, and audit after each ``every``-th."""

    def look() -> None:
        wrong = faults(scheduler)
        if lock.times % every == 0:
            wrong += audit(scheduler.manager).violations
        assert not wrong, wrong

    lock.after = look


def leaks(scheduler: Scheduler) -> list[str]:
    """What is left when nobody is live any more."""
    manager, admission = scheduler.manager, scheduler.admission
    held = {
        "live": scheduler.live, "queues": len(scheduler.queues), "receipts": manager.receipts,
        "reservations": manager.reservations, "tickets": manager.tickets, "fills": manager.fills,
        "parked": manager.parked, "given up": manager.given_up, "rows": int(manager.requests.active.sum()),
        "words": int(np.count_nonzero(scheduler._requests.words.states())),
        "budgets": int(admission.words.fields("count").sum()),
    }  # fmt: skip
    found = [f"{name}: {what}" for name, what in held.items() if what]
    for kind, counts in manager.audit().counts.items():
        found += [f"{kind}: {count} {state}" for state, count in counts.items() if count and state not in FREE]
        table = manager.core.pools[kind].table
        found += [f"{kind}: {name}" for name in ("pins", "holds") if table.fields(name).any()]
    return found + list(manager.audit().violations)


FREE = ("free", "resident", "packed", "stale", "compressing", "rebuilding")


class Engine:
    """Computes what the scheduler says, decodes so many tokens of each request, and finishes it."""

    def __init__(self, scheduler: Scheduler, decode: int = 0, *, publish: bool = True) -> None:
        self.scheduler, self.decode, self.publish = scheduler, decode, publish
        self.work: list[Work] = []
        self.finished: list[Live] = []
        self._decoded: Counter[int] = Counter()

    def step(self) -> bool:
        """One step; False when nothing was there to do."""
        scheduler = self.scheduler
        work = scheduler.schedule()
        self.work += work
        for one in work:
            if self.publish or one.rebuild is not None:
                self._publish(one.live)
        running = [live for live in list(scheduler.live.values()) if live.row is not None]
        done = [live for live in running if live.computed >= live.tokens]
        decoding = []
        for live in done:
            if self._decoded[live.number] < self.decode:
                decoding.append(live)
                continue
            scheduler.finish(live)
            self.finished.append(live)
        if decoding:
            for live in scheduler.decode(decoding).lives:
                self._decoded[live.number] += 1
                live.keys.extend([self._decoded[live.number]])
        return bool(work or done)

    def _publish(self, live: Live) -> None:
        try:
            self.scheduler.publish(live)
        except Refused as refused:  # a reset, or a chain that was evicted
            assert refused.refusal.name in ("EPOCH", "GAP", "TOO_MANY_READERS"), refused


def run(
    scheduler: Scheduler, executor: ByHand, engine: Engine, *, steps: int = 10_000, seed: int | None = None
) -> None:
    """Run loads and steps until nobody is live.

    A step follows where the last one did something or the scheduler says that something has changed, as in an engine
    that waits; where neither is so and no load is there to run, T3 is broken.
    """
    chance, idle = random.Random(seed), False
    for _ in range(steps):
        if not scheduler.live:
            return
        ahead = not idle or scheduler.wait(0)
        if executor.jobs and (not ahead or seed is None or chance.random() < 0.5):
            executor.run(0 if seed is None else chance.randrange(len(executor.jobs)))
        elif ahead:
            idle = not engine.step()
        else:
            states = {live.number: scheduler.state(live) for live in scheduler.live.values()}
            raise AssertionError(f"T3: nothing is enabled, and there are {states}")
    raise AssertionError(f"after {steps} steps there are {[scheduler.state(live) for live in scheduler.live.values()]}")
