"""A deterministic scheduler: real threads that hand over a baton at each switch point.

One thread runs at a time. A *step* of a task goes from one switch point to the next; what it touches is recorded as it
runs, so that `exploring` can tell which steps depend on each other. A schedule is a list of choices (which of the
runnable tasks takes the next step) and replays exactly.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 60.0  # seconds until a thread that never comes back counts as stuck

Resource = tuple[Any, ...]
Pick = Callable[["Scheduler", tuple[int, ...], int | None], int]


class Stuck(AssertionError):
    """No task can go on."""


class _Dropped(BaseException):
    """Ends the threads of a run that is stuck."""


@dataclass(slots=True)
class Step:
    """One decision: the tasks that could go on, the one that did, the one that ran before, and what came of it.

    ``touched`` says what the step read (False) or wrote (True); ``holders`` which task held the lock that a task
    waited for; ``name`` where the step began, for people.
    """

    runnable: tuple[int, ...]
    chosen: int
    before: int | None
    touched: dict[Resource, bool] = field(default_factory=dict)
    holders: dict[int, int] = field(default_factory=dict)
    name: str = ""


@dataclass(slots=True)
class _Task:
    work: Callable[[], None]
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    wants: CoopLock | None = None
    done: bool = False
    error: BaseException | None = None
    at: str = "begins"
    held: list[CoopLock] = field(default_factory=list)


class Scheduler:
    """Runs tasks under a list of choices; past its end a task goes on as long as it can, then the first one does.

    Args:
        choices: number of the task that takes each step; one that can't go on then is passed over.
        pick: chooses beyond ``choices`` among (this scheduler, runnable tasks, the one that ran).
    """

    def __init__(self, choices: Sequence[int] = (), pick: Pick | None = None) -> None:
        self._choices, self._pick = choices, pick or _go_on
        self._tasks: list[_Task] = []
        self._numbers: dict[int, int] = {}
        self._main = threading.Semaphore(0)
        self._dropping = False
        self.steps: list[Step] = []
        self.blind: frozenset[str] = frozenset()  # first words of resources that steps are not told to touch

    @property
    def choices(self) -> list[int]:
        """What replays this run."""
        return [step.chosen for step in self.steps]

    @property
    def inside(self) -> bool:
        """Whether a task of this scheduler is running here."""
        return threading.get_ident() in self._numbers

    @property
    def number(self) -> int:
        """Number of the running task; -1 outside tasks."""
        return self._numbers.get(threading.get_ident(), -1)

    def switch(self, at: str = "") -> None:
        """Here the running task may be interrupted. Nothing happens outside tasks."""
        task = self._running()
        if task is None:
            return
        for lock in task.held:  # what the lock guards is not left in one step
            lock.taken.touched[lock.resource] = True
        task.at = at or _caller()
        self._main.release()
        task.turn.acquire()
        if self._dropping:
            raise _Dropped
        for lock in task.held:
            self.steps[-1].touched[lock.resource] = True

    def touch(self, resource: Resource, write: bool) -> None:
        """The running step reads or writes a shared thing."""
        if self.steps and self.inside and resource[0] not in self.blind:
            touched = self.steps[-1].touched
            touched[resource] = write or touched.get(resource, False)

    def visit(self, resource: Resource, write: bool, at: str = "") -> None:
        """A switch point, and then an access: what an atomic or a run of bytes is."""
        self.switch(at or _caller())
        self.touch(resource, write)

    def holds(self, lock: CoopLock) -> bool:
        """Whether the running task has a lock; True outside tasks."""
        task = self._running()
        return task is None or lock in task.held

    def take(self, lock: CoopLock, at: str) -> None:
        """The running task waits until a lock is free, and takes it."""
        task = self._running()
        if task is not None:
            assert lock not in task.held, f"a task takes {lock.name!r} twice"
            task.wants = lock
            self.switch(at)
            task.wants = None
            lock.taken = self.steps[-1]
            task.held.append(lock)
        assert not lock.held, "the lock is held outside tasks"
        lock.held = True

    def give(self, lock: CoopLock) -> None:
        """The running task releases a lock."""
        lock.held = False
        task = self._running()
        if task is not None:
            task.held.remove(lock)

    def run(self, works: Sequence[Callable[[], None]]) -> list[BaseException]:
        """Run all tasks to their ends; returns what they raised, in the order of the tasks.

        What a task does before its first switch point is its own and comes before the first step.
        """
        self._tasks = [_Task(work) for work in works]
        threads = [threading.Thread(target=self._life, args=(n,), daemon=True) for n in range(len(works))]
        for number, thread in enumerate(threads):
            thread.start()
            self._go(number)
        before: int | None = None
        while not all(task.done for task in self._tasks):
            waiting = {n: task for n, task in enumerate(self._tasks) if not task.done}
            blocked = {n: task.wants for n, task in waiting.items() if task.wants is not None and task.wants.held}
            runnable = tuple(n for n in waiting if n not in blocked)
            if not runnable:
                self._drop()
                raise Stuck(f"every task waits for a lock after {self.choices}")
            at = len(self.steps)
            planned = self._choices[at] if at < len(self._choices) else None
            chosen = planned if planned in runnable else self._pick(self, runnable, before)
            holders = {n: self._holder(lock) for n, lock in blocked.items()}
            self.steps.append(Step(runnable, chosen, before, {}, holders, self._tasks[chosen].at))
            before = chosen
            self._go(chosen)
        for thread in threads:
            thread.join()
        return [task.error for task in self._tasks if task.error is not None]

    def _go(self, number: int) -> None:
        self._tasks[number].turn.release()
        if not self._main.acquire(timeout=PATIENCE):
            raise Stuck(f"task {number} does not come back after {self.choices}")

    def _drop(self) -> None:
        self._dropping = True
        for number, task in enumerate(self._tasks):
            if not task.done:
                self._go(number)

    def _life(self, number: int) -> None:
        task = self._tasks[number]
        task.turn.acquire()
        self._numbers[threading.get_ident()] = number
        try:
            task.work()
        except BaseException as error:
            task.error = error
        task.done = True
        del self._numbers[threading.get_ident()]
        self._main.release()

    def _holder(self, lock: CoopLock) -> int:
        return next(n for n, task in enumerate(self._tasks) if lock in task.held)

    def _running(self) -> _Task | None:
        number = self._numbers.get(threading.get_ident())
        return None if number is None else self._tasks[number]


class CoopLock:
    """A lock whose every acquire is a switch point.

    What follows a release belongs to the same step until something shared is touched, which is a switch point itself.

    Args:
        scheduler: of the tasks.
        name: for people.
        guards: what a holder touches, by the function that takes the lock.
        otherwise: the same for all others; by default they read ``("state",)``.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        name: str = "lock",
        guards: Mapping[str, Mapping[Resource, bool]] | None = None,
        otherwise: Mapping[Resource, bool] | None = None,
    ) -> None:
        self._scheduler, self.name = scheduler, name
        self._guards = guards or {}
        self._otherwise = {("state",): False} if otherwise is None else otherwise
        self.resource: Resource = ("lock", name)
        self.held = False
        self.taken = Step((), 0, None)

    def __enter__(self) -> CoopLock:
        at = _caller()
        self._scheduler.take(self, at)
        self._scheduler.touch(self.resource, False)  # a holder that is never interrupted depends by what it touches
        for resource, write in self._guards.get(at, self._otherwise).items():
            self._scheduler.touch(resource, write)
        return self

    def __exit__(self, *_: object) -> None:
        self._scheduler.give(self)


def preemptions(steps: Sequence[Step]) -> int:
    """How often a task was interrupted that could have gone on."""
    return sum(step.before in step.runnable and step.chosen != step.before for step in steps)


def _go_on(scheduler: Scheduler, runnable: tuple[int, ...], before: int | None) -> int:
    return before if before in runnable else runnable[0]


def _caller() -> str:
    """The function that came to a switch point, outside the files that see to switching."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.endswith(_SWITCHING) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_qualname


_SWITCHING = ("interleavings/scheduler.py", "interleavings/watching.py", "runtime/poison.py")
