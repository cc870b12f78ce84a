"""What stands between an engine and the manager, under the scheduler: admission, the five queues, and loads as jobs.

A job waits until an operation runs it. The engine says that it steps from before it asks what to compute until it has
computed it: what is given up meanwhile waits for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from kvfsm.runtime import scheduler as engine
from kvfsm.runtime.admission import Admission, Limits, Reservation, Stage
from kvfsm.runtime.answers import Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.live_requests import Live, Work
from kvfsm.runtime.ticket import Ticket

from .scheduler import CoopLock, Scheduler

if TYPE_CHECKING:
    from .world import World


class Jobs(Executor):
    """An executor whose jobs wait until ``run`` is called."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.failed: list[str] = []

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        self._scheduler.visit(("jobs",), True, "executor.submit")
        job: Future[Any] = Future()
        self._waiting.append((job, lambda: work(*given, **named)))
        return job

    def run(self) -> bool:
        """Run the job that came first; False when there is none."""
        self._scheduler.visit(("jobs",), True, "worker")
        if not self._waiting:
            return False
        job, work = self._waiting.pop(0)
        if job.set_running_or_notify_cancel():
            try:
                job.set_result(work())
            except Exception as error:  # a worker keeps what it raises
                self.failed.append(f"a worker raised {type(error).__name__}: {error}")
                job.set_exception(error)
        return True


class Flag:
    """An event of threads whose every use is a switch point, unless its user holds the manager's lock."""

    def __init__(self, scheduler: Scheduler, lock: CoopLock) -> None:
        self._scheduler, self._lock, self.up = scheduler, lock, False

    def set(self) -> None:
        self._told()
        self.up = True

    def clear(self) -> None:
        self._told()
        self.up = False

    def _told(self) -> None:
        if not self._scheduler.holds(self._lock):
            self._scheduler.switch("flag")
        self._scheduler.touch(("flag",), True)


class Serving:
    """Admission and a scheduler over a world's manager, and what is done with them."""

    def __init__(self, world: World) -> None:
        scheduler = world.scheduler
        self._world = world
        self.jobs = Jobs(scheduler)
        self.admission = Admission(world.manager, Limits(requests=2, blocks={"store": 8}))
        self.flag = Flag(scheduler, world.lock)
        chunk = world.setting.chunk
        with mock.patch.object(engine, "threading", SimpleNamespace(Event=lambda: self.flag)):
            self.engine = engine.Scheduler(
                world.manager, self.jobs, limits=Limits(requests=2), requests=4, clock=lambda: 0.0,
                lock=lambda: CoopLock(scheduler, "rows", otherwise={}),
                chunk=None if chunk is None else chunk * world.granule,
            )  # fmt: skip
        self.reserved: list[Reservation] = []
        self.lives: list[Live] = []
        self.stepping = False
        self.asks_again = False  # what the engine computes now may not be all

    # ---- reservations of admission itself ----------------------------------------------------------------------------

    def admit(self, keys: Keys, *, cancel: bool = False, fail: bool = False) -> None:
        """Reserve, load, and make the row; ``cancel``: give up before; ``fail``: a load fails, and is begun again."""
        manager, owner = self._world.manager, f"task {self._world.scheduler.number}"
        decision = self.admission.admit(manager.match(keys), keys.tokens, owner=owner)
        self._world.tell(type(decision).__name__)
        if not isinstance(decision, Reservation):
            return
        self._world.scheduler.visit(("reserved",), True, "reserved")
        self.reserved.append(decision)
        if fail and decision.ticket is not None:
            decision.ticket.done(False, missing={})
            self._world.tell(f"reload {self.admission.reload(decision, manager.match(keys))}")
        if cancel:
            self.cancel(decision)
            return
        try:
            if (ticket := decision.ticket) is not None:
                ticket.transfer()
            row = self.admission.enter(decision)
        except BaseException:
            if decision.stage in (Stage.LOADING, Stage.READY):
                self.cancel(decision)
            raise
        try:
            self.compute_row(keys, row, manager.requests.shared_tokens([row])[0])
            manager.requests.publish(row, keys)
        finally:
            manager.requests.finish(row)
            self.admission.leave(decision)

    def cancel(self, reservation: Reservation) -> None:
        """Give a reservation up, and free what nobody moves."""
        ticket = reservation.ticket
        self.admission.cancel(reservation)
        if ticket is not None:
            self.quiesce(ticket)

    def cancel_all(self) -> None:
        """Give up what anybody has reserved and not entered."""
        self._world.scheduler.visit(("reserved",), False, "reserved")
        for reservation in list(self.reserved):
            try:
                self.cancel(reservation)
                self._world.tell("cancelled")
            except Refused as refused:  # it has entered or ended just now
                self._world.tell(f"not cancelled: {refused.refusal.name}")

    def quiesce(self, ticket: Ticket) -> None:
        """Free the slots of an aborted load that nobody moves."""
        if ticket.state == "aborted" and not ticket.moving:
            try:
                ticket.quiesce()
            except Refused:
                self._world.tell("moved by another")

    # ---- requests of the engine --------------------------------------------------------------------------------------

    def submit(self, keys: Keys) -> None:
        """A request comes."""
        live = self.engine.submit(keys, owner=f"task {self._world.scheduler.number}")
        self._world.scheduler.visit(("lives",), True, "lives")
        self.lives.append(live)

    def schedule(self, *, publish: bool = True) -> None:
        """One step of the engine: ask, compute, publish, unless it was put back by then."""
        self._step(True)
        try:
            granted = self.engine.schedule()
            self.asks_again = bool(granted)
            self._world.tell(f"granted {len(granted)}")
            for work in granted:
                self.compute(work)
        finally:
            self._step(False)
        if publish:
            self._each("publish", lambda live: self.engine.publish(live), [work.live for work in granted])

    def decode(self) -> None:
        """A token for each request that runs."""
        self._step(True)
        try:
            stepped = self.engine.decode(self._running())
            self._world.tell(f"{len(stepped.back)} went back")
        except ValueError as error:  # it was put back just now
            self._world.tell(str(error))
        finally:
            self._step(False)

    def speculate(self) -> None:
        """Each request that runs takes one draft and rejects another, and goes back to before."""
        self._step(True)
        try:
            before = [(live, live.computed) for live in self._running()]
            self.engine.propose(self._running(), 1)
            self.engine.accept(self._running(), 1)
            self.engine.propose(self._running(), 1)
            self.engine.reject(self._running())
            for live, computed in before:
                self._world.tell(f"back {self.engine.rollback(live, computed)}")
        except ValueError as error:  # it was put back just now
            self._world.tell(str(error))
        finally:
            self._step(False)

    def preempt(self) -> None:
        """Everybody who runs goes back to wait."""
        self._each("preempt", lambda live: self.engine.preempt(live, done=self.stepped))

    def publish(self) -> None:
        """Everybody who runs shares what is whole."""
        self._each("publish", lambda live: self.engine.publish(live, done=self.stepped))

    def finish(self) -> None:
        """Everybody who runs ends."""
        self._each("finish", lambda live: self.engine.finish(live, done=self.stepped))

    def give_up(self) -> None:
        """Everybody is given up."""
        for live in self._lives():
            self._world.tell(f"given up {self.engine.cancel(live, done=self.stepped)}")

    def sleep(self) -> None:
        """Everybody gives back what he holds, and waits anew."""
        self._world.tell(f"all back {self.engine.preempt_all(done=self.stepped)}")

    def stepped(self) -> bool:
        """Whether the engine's step has ended."""
        if not self._world.scheduler.holds(self._world.lock):
            self._world.scheduler.switch("stepped()")
        self._world.scheduler.touch(("step",), False)
        return not self.stepping

    def compute(self, work: Work) -> None:
        """What the engine's step leaves in the row; it looks at what it reads, and knows its slots from the start."""
        live, requests, fill = work.live, self._world.manager.requests, work.rebuild
        if fill is not None:
            for part in range(2):
                self._world.scheduler.switch("keys are written")
                for kind, places in fill.places.items():
                    self._world.write(live.keys, kind, places.tolist(), fill.slots[kind], part)
        elif work.row is not None and live.row == work.row:
            start = int(requests.shared_tokens([work.row])[0])
            self.compute_row(live.keys, work.row, max(start, work.start))

    def compute_row(self, keys: Keys, row: int, start: int) -> None:
        """Write a row's bytes from a token on, in halves."""
        world = self._world
        targets = world.row_slots(keys, row, int(start) // world.granule)
        whole = int(world.manager.requests.tokens[row]) // world.granule
        world.published |= {(0, keys.digest(place)) for place in range(whole)}
        for part in range(2):
            world.scheduler.switch("row writes")
            for kind, places, slots in targets:
                world.write(keys, kind, places, slots, part)

    # ---- afterwards ----------------------------------------------------------------------------------------------

    def over(self) -> list[str]:
        """End all there is; what is wrong then."""
        self.stepping = False
        wrong = self._unwoken() + [
            f"request {live.number} lost its keys: {live.fault}; nobody revokes, so they were published"
            for live in self.lives
            if isinstance(live.fault, Refused) and (live.fault.refusal, live.fault.layer) == (Reason.LEASE, "publish")
        ]
        for live in self.lives:
            self.engine.cancel(live)
        while self.jobs.run():
            pass
        self._world.manager.leaks()
        wrong += self.jobs.failed
        if self.engine.live or len(self.engine.queues):
            wrong.append(f"requests {sorted(self.engine.live)} never end, and {len(self.engine.queues)} wait in queues")
        for admission in (self.admission, self.engine.admission):
            if counted := {name: n for name in admission.limits.by_name() if (n := admission.taken(name))}:
                wrong.append(f"nobody is under way, and counted are {counted}")
        return wrong

    def _unwoken(self) -> list[str]:
        """Whether an engine that waits now waits although there is something to compute."""
        manager = self._world.manager
        if self.flag.up or self.asks_again:
            return []
        if manager.parked or manager.given_up:  # the device's end is told by whoever sees it
            return []
        granted = self.engine.schedule()
        return [f"{len(granted)} turns can be granted, and nobody is woken"] if granted else []

    def state(self) -> object:
        """What the words and the queues say, and how far each request is."""
        requests = self.engine._requests
        queues = [
            (queue.name, line.now, line.finished, sorted(map(repr, line.waiting.values())))
            for queue, line in self.engine.queues._lines.items()
        ]
        lives = [(live.number, live.row) for live in self.lives]
        tables = (requests.words, self.engine.admission.words, self.admission.words)
        return queues, lives, [table.words.tobytes() for table in tables], len(requests.granted)

    def progress(self) -> object:
        """How far the rows of requests are, which the lock of rows guards."""
        return [(live.computed, live.tokens) for live in self.lives]

    def _step(self, begins: bool) -> None:
        self._world.scheduler.visit(("step",), True, "step")
        self.stepping = begins

    def _lives(self) -> list[Live]:
        self._world.scheduler.visit(("lives",), False, "lives")
        return list(self.lives)

    def _running(self) -> list[Live]:
        return [live for live in self._lives() if self.engine.state(live) == "running"]

    def _each(self, verb: str, act: Callable[[Live], object], lives: Sequence[Live] | None = None) -> None:
        for live in self._lives() if lives is None else lives:
            try:
                self._world.tell(f"{verb} {act(live)}")
            except ValueError as error:  # it waits
                self._world.tell(str(error))
