"""A deterministic scheduler: real threads that hand over a baton at each switch point.

One thread runs at a time. Where it may be interrupted is said by the lock, backend and store that are made here, so a
schedule is a list of choices (which of the runnable tasks goes on) and replays exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

PATIENCE = 60.0  # seconds until a thread that never comes back counts as stuck


class Stuck(AssertionError):
    """No task can go on."""


@dataclass(slots=True)
class Step:
    """One decision: the tasks that could go on, the one that did, and the one that ran before."""

    runnable: tuple[int, ...]
    chosen: int
    before: int | None


@dataclass(slots=True)
class _Task:
    work: Callable[[], None]
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    waits: CoopLock | None = None
    done: bool = False
    error: BaseException | None = None


class Scheduler:
    """Runs tasks under a list of choices; past its end a task goes on as long as it can, then the first one does.

    Args:
        choices: number of the task that takes each step; one that can't go on then is passed over.
        pick: chooses beyond ``choices`` among (runnable tasks, the one that ran).
    """

    def __init__(
        self, choices: Sequence[int] = (), pick: Callable[[tuple[int, ...], int | None], int] | None = None
    ) -> None:
        self._choices, self._pick = choices, pick or _go_on
        self._tasks: list[_Task] = []
        self._numbers: dict[int, int] = {}
        self._main = threading.Semaphore(0)
        self.steps: list[Step] = []

    @property
    def choices(self) -> list[int]:
        """What replays this run."""
        return [step.chosen for step in self.steps]

    def switch(self) -> None:
        """Here the running task may be interrupted. Nothing happens outside tasks."""
        task = self._running()
        if task is not None:
            self._main.release()
            task.turn.acquire()

    def wait_for(self, lock: CoopLock) -> None:
        """The running task can't go on until a lock is free."""
        task = self._running()
        assert task is not None, "the lock is held outside tasks"
        task.waits = lock
        self.switch()
        task.waits = None

    def run(self, works: Sequence[Callable[[], None]]) -> list[BaseException]:
        """Run all tasks to their ends; returns what they raised, in the order of the tasks."""
        self._tasks = [_Task(work) for work in works]
        threads = [threading.Thread(target=self._life, args=(n,), daemon=True) for n in range(len(works))]
        for thread in threads:
            thread.start()
        before: int | None = None
        while not all(task.done for task in self._tasks):
            runnable = tuple(n for n, task in enumerate(self._tasks) if not task.done and not _blocked(task))
            if not runnable:
                raise Stuck(f"every task waits for a lock after {self.choices}")
            at = len(self.steps)
            planned = self._choices[at] if at < len(self._choices) else None
            chosen = planned if planned in runnable else self._pick(runnable, before)
            assert chosen is not None
            self.steps.append(Step(runnable, chosen, before))
            before = chosen
            self._tasks[chosen].turn.release()
            if not self._main.acquire(timeout=PATIENCE):
                raise Stuck(f"task {chosen} does not come back after {self.choices}")
        for thread in threads:
            thread.join()
        return [task.error for task in self._tasks if task.error is not None]

    def _life(self, number: int) -> None:
        task = self._tasks[number]
        self._numbers[threading.get_ident()] = number
        task.turn.acquire()
        try:
            task.work()
        except BaseException as error:
            task.error = error
        task.done = True
        self._main.release()

    def _running(self) -> _Task | None:
        number = self._numbers.get(threading.get_ident())
        return None if number is None else self._tasks[number]


class CoopLock:
    """A lock whose every acquire and release is a switch point."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.held = False

    def __enter__(self) -> CoopLock:
        self._scheduler.switch()
        while self.held:
            self._scheduler.wait_for(self)
        self.held = True
        return self

    def __exit__(self, *_: object) -> None:
        self.held = False
        self._scheduler.switch()


def preemptions(steps: Sequence[Step]) -> int:
    """How often a task was interrupted that could have gone on."""
    return sum(step.before in step.runnable and step.chosen != step.before for step in steps)


def explore(bound: int, run: Callable[[Sequence[int]], Sequence[Step]]) -> Iterator[list[int]]:
    """Depth first through every schedule with at most ``bound`` preemptions; ``run`` runs one. Yields their choices."""
    waiting: list[list[int]] = [[]]
    while waiting:
        prefix = waiting.pop()
        steps = run(prefix)
        yield [step.chosen for step in steps]
        spent = preemptions(steps[: len(prefix)])
        for at in range(len(prefix), len(steps)):
            step = steps[at]
            for other in step.runnable:
                if other != step.chosen and spent + (step.before in step.runnable) <= bound:
                    waiting.append([one.chosen for one in steps[:at]] + [other])
            spent += step.before in step.runnable and step.chosen != step.before


def _blocked(task: _Task) -> bool:
    return task.waits is not None and task.waits.held


def _go_on(runnable: tuple[int, ...], before: int | None) -> int:
    return before if before in runnable else runnable[0]
