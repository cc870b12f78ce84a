"""Everything at once, for a while: threads that ask and give up, a device that lags, a disk that fails, resets.

Pools are far too small, so that requests wait, are sent back and begin again. How long it goes on follows from the
marker, and nothing is asserted of time: the manager is audited all along, nobody is left waiting, nothing is leaked,
and the last events are a path of the model.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvfsm.runtime.admission import Limits
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.queues import Queues
from kvfsm.runtime.scheduler import Live, Scheduler
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.store import Found, Namespace, StoreError, StoreFailed, Verdict
from kvfsm.runtime.trace import EventTrace
from kvfsm.spec.checking.traces.validate import Validator

from .serving import Watched, faults, leaks, make, prompt, write

SECONDS, SECONDS_LONG = 30.0, 600.0
ASKING, WORKERS = 4, 2  # threads; beside them the engine, one who gives up, and the test's own, which audits
LIVE = 24  # requests at most
EVENTS = 20_000  # that the ring keeps

pytestmark = pytest.mark.usefixtures("short_slices")


class Failing(LocalStore):
    """A local store that loses reads, or raises, now and then."""

    chance = random.Random(0)
    reads = 0

    def get_many(self, ids: Any, into: Any) -> list[Found]:
        self.reads += 1
        draw = self.chance.random()
        if draw < 0.05:
            raise StoreFailed("the disk has gone")
        if draw < 0.15:
            return [Found(Verdict.INTEGRITY) for _ in ids]
        return super().get_many(ids, into)


class Heard(ThreadPoolExecutor):
    """Says what a job raised, which nobody asks for."""

    def __init__(self, threads: int, errors: list[BaseException]) -> None:
        super().__init__(threads)
        self._errors = errors

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        future.add_done_callback(self._hear)
        return future

    def _hear(self, future: Future[Any]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._errors.append(error)


class Soak:
    """One run; ``over`` is asked whether it is time to stop."""

    def __init__(self, seed: int, store: Failing, profile: Any, trace: EventTrace, over: Callable[[], bool]) -> None:
        self.seed, self.profile, self.over = seed, profile, over
        self.lock = Watched()
        counts = {kind: 6 if kind in ("compressed_kv", "indexer_state") else 9 for kind in profile.kinds}
        self.manager = make(counts, profile, store, lock=lambda: self.lock, rows=6, trace=trace)
        self.errors: list[BaseException] = []
        self.executor = Heard(WORKERS, self.errors)
        self.scheduler = Scheduler(
            self.manager,
            self.executor,
            limits=Limits(requests=5, blocks={"store": 20}),
            chunk=2 * profile.granule,
            requests=LIVE,
            queues=Queues({"1": 2.0}, ageing=1.0, patience=4),
        )
        self.counts: Counter[str] = Counter()
        self.asked: list[Live] = []
        self.asking = ASKING
        self.lock.after = self._look
        self.device: list[int] = [0]  # steps that have ended

    def _look(self) -> None:
        if self.lock.times % 50 == 0 and (wrong := faults(self.scheduler)):
            raise AssertionError(wrong)

    def ask(self, number: int) -> None:
        """Submit prompts that begin alike."""
        chance = random.Random(f"{self.seed} asks {number}")
        while not self.over():
            tokens = prompt(chance.randrange(6), chance.randrange(1, 7 * self.profile.granule))
            try:
                self.asked.append(self.scheduler.submit(self.manager.keys(tokens), owner=str(number)))
            except Refused as refused:
                assert refused.refusal.name == "BACKPRESSURE", refused
                time.sleep(0.001)
        self.asking -= 1

    def give_up(self) -> None:
        """Cancel whoever is live, and reset now and then."""
        chance = random.Random(f"{self.seed} gives up")
        while not self.over():
            for live in chance.sample(self.asked[-LIVE:], min(2, len(self.asked[-LIVE:]))):
                self.counts["cancelled"] += self.scheduler.cancel(live, done=self.done())
            if chance.random() < 0.02:
                self.manager.reset()
                self.counts["resets"] += 1
            time.sleep(0.02)

    def done(self) -> Callable[[], bool]:
        """Whether the device has ended the steps begun so far; it lags two behind."""
        now = self.device[0]
        return lambda: self.device[0] > now + 2 or self.asking == 0

    def persist(self, live: Live) -> None:
        """Bring what a request published to the disk."""
        try:
            self.counts["written"] += self.manager.persist(live.keys)
        except (Refused, StoreError):  # packed just now, or of an epoch that has ended
            self.counts["not written"] += 1

    def compute(self) -> None:
        """The engine."""
        chance, left = random.Random(f"{self.seed} computes"), Counter[int]()
        while self.scheduler.live or self.asking:
            self.device[0] += 1
            for work in self.scheduler.schedule():
                left.setdefault(work.live.number, chance.randrange(4))
                self.counts["work"] += 1
                try:
                    self.scheduler.publish(work.live, done=self.done())
                except Refused as refused:
                    assert refused.refusal.name in ("EPOCH", "GAP", "TOO_MANY_READERS"), refused
            whole = [
                live
                for live in list(self.scheduler.live.values())
                if live.row is not None and live.computed >= live.tokens
            ]
            for live in [live for live in whole if not left[live.number]]:
                if chance.random() < 0.5:
                    self.persist(live)
                self.scheduler.finish(live, done=self.done())
                self.counts["finished"] += 1
            stepping = [live for live in whole if left[live.number]]
            stepped = self.scheduler.decode(stepping, tokens=[7] * len(stepping), done=self.done())
            self.counts["sent back"] += len(stepped.back)
            for live in stepped.lives:
                left[live.number] -= 1
            self.scheduler.wait(0.001)

    def run(self) -> None:
        """All threads until it is time, and until nobody is live."""

        def guarded(work: Callable[[], None]) -> Callable[[], None]:
            def call() -> None:
                try:
                    work()
                except BaseException as error:
                    self.errors.append(error)
                    self.asking = 0

            return call

        jobs = [self.compute, self.give_up, *(lambda n=n: self.ask(n) for n in range(ASKING))]
        threads = [threading.Thread(target=guarded(job), daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and not self.errors:
            found = self.manager.audit()
            assert found.violations == ()
            self.counts["audits"] += 1
            time.sleep(0.02)
        if self.errors:
            raise self.errors[0]
        self.executor.shutdown()


def soak(seconds: float, seed: int, name: str, directory: Path, validator: Validator) -> None:
    print(f"seed {seed}, {name}")
    profile, trace = PROFILES[name], EventTrace(capacity=EVENTS)
    store = Failing(directory, Namespace.of(profile))
    store.chance = random.Random(seed)
    until = time.monotonic() + seconds
    with store:
        writer = make(16, profile, store)
        for family in range(6):
            write(writer, writer.keys(prompt(family, 5 * profile.granule)), 1 + family % 5)
        run = Soak(seed, store, profile, trace, lambda: time.monotonic() > until)
        run.run()
        run.device[0] += 1000
        run.manager.evict("compressed_kv", 0)  # frees what waited for the device
        assert leaks(run.scheduler) == []
        assert all(live.begun.done() for live in run.asked)
        print(dict(run.counts), f"{store.reads} reads")
        assert store.reads and run.errors == []
        assert run.counts["finished"] and run.counts["cancelled"] and run.counts["audits"]
        verdict = validator.validate(trace.lines())
        assert verdict.first_illegal is None, verdict.first_illegal


@pytest.mark.timeout(SECONDS * 20)
def test_for_half_a_minute(tmp_path: Path, validator: Validator) -> None:
    soak(SECONDS, 1, "tiny_deepseek_v4", tmp_path, validator)


@pytest.mark.long
@pytest.mark.timeout(SECONDS_LONG * 3)
@pytest.mark.parametrize("name", ["tiny_deepseek_v4", "tiny_gemma3"])
def test_for_ten_minutes(tmp_path: Path, validator: Validator, name: str) -> None:
    soak(SECONDS_LONG, random.SystemRandom().randrange(1 << 32), name, tmp_path, validator)
