"""A scheduler on a bench: plain KV, a store with one prompt in it, and loads that run when a test says so."""

from __future__ import annotations

from typing import Any

from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.scheduler import Live, Scheduler

from .serving import ByHand, Engine, Shelf, Watched, leaks, make, prompt, run, stored, watch

LLAMA = PROFILES["tiny_llama"]
A = LLAMA.granule
HIT = prompt(1, 3 * A + 4)  # three granules of it are stored


class Bench:
    """A scheduler over plain KV, a store with one prompt in it, and an executor that runs when told."""

    def __init__(self, slots: Any = 24, *, profile: Any = LLAMA, every: int = 1, **options: Any) -> None:
        self.store, self.lock, self.executor = Shelf(), Watched(), ByHand()
        stored(self.store, [HIT], profile)
        managers = {name: options.pop(name) for name in ("rows", "window", "cold") if name in options}
        # What its requests publish stays out of the store: then a prompt that is stored is the one above.
        self.manager: Manager = make(slots, profile, self.store, lock=lambda: self.lock, writes="none", **managers)
        self.now = 0.0
        self.scheduler = Scheduler(self.manager, self.executor, clock=lambda: self.now, **options)
        watch(self.scheduler, self.lock, every=every)
        self.engine = Engine(self.scheduler)

    def submit(self, tokens: list[int], **options: Any) -> Live:
        self.now += 1
        return self.scheduler.submit(self.manager.keys(tokens), **options)

    def granted(self) -> list[tuple[int, int, int]]:
        return [(one.live.number, one.start, one.stop) for one in self.scheduler.schedule()]

    def states(self, *lives: Live) -> list[str]:
        return [self.scheduler.state(live) for live in lives]

    def over(self) -> None:
        """Run to the end; nothing is left."""
        run(self.scheduler, self.executor, self.engine)
        self.executor.run_all()
        assert leaks(self.scheduler) == []
