"""Errors, and ends of threads, at each step of what a scheduler's engine and its workers do: nothing stays held.

The store, the backend and the clock are those of ``injecting.py``. The story is told once to count its steps, and once
more for each of them, with a fault there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvfsm.runtime.errors import Refused
from kvfsm.runtime.load_workers import LoadWorkers
from kvfsm.runtime.scheduler import Live, Scheduler

from .injecting import COLD, SLOTS, A, Crash, World, fault
from .serving import ByHand, Engine, faults, leaks, run


class Story:
    """Requests that load, expand, join, compute in chunks, decode and are preempted, over a world that can fail."""

    def __init__(self) -> None:
        self.world = World()
        manager, chance = self.world.manager, np.random.default_rng(2)
        self.world.publish(self.world.p)
        self.world.publish(self.world.q, 2)
        self.world.empty()
        packed = manager.keys(chance.integers(0, 256, 2 * A + 1), salt=b"a")
        self.world.publish(packed, 0, 2)
        assert manager.pack(packed) == 2
        fresh = manager.keys(chance.integers(0, 256, 3 * A + 1), salt=b"b")
        self.executor = ByHand()
        self.scheduler = Scheduler(manager, self.executor, chunk=2 * A, attempts=1)
        self.engine = Engine(self.scheduler, decode=1)
        self.prompts = [self.world.p, self.world.p, packed, fresh]
        self.lives: list[Live] = []
        self.raised: list[BaseException] = []

    def try_(self, call: Callable[[], object]) -> None:
        """An engine, or a worker's thread, of which another one goes on where this one ends."""
        try:
            call()
        except (Crash, Exception) as error:
            if isinstance(error, AssertionError):
                raise
            self.raised.append(error)

    def tell(self) -> None:
        """So many turns of everybody; all of it is counted."""
        with self.world.steps.counted():
            for number, keys in enumerate(self.prompts):
                self.try_(lambda keys=keys, number=number: self._ask(keys, str(number)))  # type: ignore[misc]
            for turn in range(6):
                self.try_(self.engine.step)
                if self.executor.jobs and turn % 2:
                    self.try_(self.executor.run)
                running = [live for live in self.scheduler.live.values() if live.row is not None]
                if turn == 3 and running:
                    self.try_(lambda live=running[-1]: self.scheduler.preempt(live))  # type: ignore[misc]

    def _ask(self, keys: object, owner: str) -> None:
        self.lives.append(self.scheduler.submit(keys, owner=owner))  # type: ignore[arg-type]

    def complaints(self) -> list[str]:
        """What is wrong after the fault, and once all have ended."""
        found = [f"at once: {one}" for one in (*faults(self.scheduler), *self.world.manager.audit().violations)]
        if self.world.manager.lock.reason is not None:
            return [*found, f"poisoned: {self.world.manager.lock.reason}"]
        try:
            run(self.scheduler, self.executor, self.engine, steps=400)
            self.executor.run_all()
        except (AssertionError, Refused) as problem:
            found.append(f"can't go on: {problem!r}")
        ended = [self.scheduler.state(live) == "absent" for live in self.lives]
        found += [f"request {live.number} is left" for live, over in zip(self.lives, ended, strict=True) if not over]
        self.world.empty()
        for kind, pool in self.world.manager.core.pools.items():
            if (pool.free, pool.free_cold) != (SLOTS, COLD if kind == "compressed_kv" else 0):
                found.append(f"{kind}: {pool.free} and {pool.free_cold} slots are free after everything was evicted")
        return found + leaks(self.scheduler)


def steps() -> list[str]:
    story = Story()
    story.tell()
    assert story.raised == [] and story.complaints() == []
    return story.world.steps.names


def inject(at: int, what: Callable[[str], BaseException]) -> Story:
    story = Story()

    def act(name: str) -> None:
        raise what(name)

    story.world.steps.plan(at, act)
    story.tell()
    assert story.world.steps.reached
    return story


def test_the_story_meets_every_one_who_can_fail() -> None:
    names = set(steps())
    assert {"clock", "store contains begins", "store get_many ends", "backend expand begins"} <= names
    assert {"backend scatter begins", "backend gather ends", "backend scrub begins"} <= names


def test_an_error_at_any_step_leaves_nothing_held() -> None:
    wrong = []
    for at, name in enumerate(steps()):
        for what in (fault, MemoryError) if name.startswith("store") else (fault,):  # a store's own error, and another
            story = inject(at, what)
            wrong += [f"{at} {name}: {one}" for one in story.complaints()]
    assert not wrong, "\n".join(wrong)


def test_a_thread_that_ends_at_any_step_leaves_nothing_held() -> None:
    """Under the manager's lock that poisons it; everywhere else the others go on."""
    wrong, poisoned = [], 0
    for at, name in enumerate(steps()):
        story = inject(at, Crash)
        if story.world.manager.lock.reason is not None:
            assert story.world.manager.lock.reason.invariant == "all or nothing"
            assert name == "clock" or name.startswith("backend"), f"{name} is called under the lock"
            poisoned += 1
        else:
            wrong += [f"{at} {name}: {one}" for one in story.complaints()]
    assert not wrong, "\n".join(wrong)
    assert 0 < poisoned < len(steps())


def test_a_worker_that_forgets_what_failed_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoadWorkers, "_compute", lambda self, live, failed: None)
    names = steps()
    at = names.index("store get_many begins")
    assert any("can't go on" in one for one in inject(at, Crash).complaints())
