"""What is measured: one function a kind of work, each returning the seconds of one run at a length in tokens.

The manager is the product's own, with its lock, its generated events and its audit trail of words; nothing is stubbed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from measure import median_seconds

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.profile import Profile
from kvfsm.runtime.trace import EventTrace

SPARE = 512  # slots beyond those of the longest prompt


@dataclass(frozen=True, slots=True)
class Bench:
    """A profile, a length, how often each thing is repeated, and whether the manager records its events."""

    profile: Profile
    tokens: int
    repeats: int
    traced: bool = False

    @property
    def granules(self) -> int:
        """Whole granules of the prompt."""
        return self.tokens // self.profile.granule

    def prompt(self) -> np.ndarray:
        """Distinct tokens."""
        return np.arange(self.tokens, dtype=np.int32)

    def manager(self, spare: int = SPARE) -> Manager:
        """An empty manager with room for the prompt and ``spare`` slots more of each kind."""
        return self.manager_of(self.granules + spare, 256)

    def manager_of(self, slots: int, rows: int) -> Manager:
        """An empty manager with so many slots of each kind."""
        trace = EventTrace() if self.traced else None
        return Manager(self.profile, dict.fromkeys(self.profile.kinds, slots), NumpyBackend(), rows=rows, trace=trace)

    def published(self) -> tuple[Manager, Keys]:
        """A manager that holds the whole prompt, and its keys."""
        manager = self.manager()
        keys = manager.keys(self.prompt())
        manager.publish(manager.reserve(keys, 0, self.granules))
        return manager, keys


def keys(bench: Bench) -> float:
    """Chained SHA-256 keys of a prompt."""
    manager, prompt = bench.manager(), bench.prompt()
    return median_seconds(lambda: manager.keys(prompt).digest(bench.granules - 1), bench.repeats)


def look_up(bench: Bench) -> float:
    """A cached prefix, keys at hand: the four layers' joint answer."""
    manager, cached = bench.published()
    assert manager.match(cached, bench.tokens + 1).length == bench.tokens
    return _each(lambda: manager.match(cached, bench.tokens + 1), bench)


def look_up_diverging(bench: Bench) -> float:
    """The same where the prompt leaves the cached prefix at 5/8."""
    manager, _ = bench.published()
    prompt = bench.prompt()
    prompt[bench.tokens * 5 // 8 :] += 1
    other = manager.keys(prompt)
    expected = bench.granules * 5 // 8 * bench.profile.granule
    if bench.profile.window_policy == "blocks":
        assert manager.match(other, bench.tokens + 1).length == expected
    return _each(lambda: manager.match(other, bench.tokens + 1), bench)


def acquire_and_release(bench: Bench) -> float:
    """Pin every slot of a cached prefix, all or nothing, and give it back."""
    manager, cached = bench.published()
    answer = manager.match(cached, bench.tokens + 1)
    return _each(lambda: manager.release(manager.acquire(answer)), bench)


def allocate(bench: Bench) -> float:
    """Slots of every kind for a cold prompt, all or nothing."""
    manager = bench.manager()
    rows: list[int] = []

    def give_back() -> None:
        while rows:
            manager.requests.finish(rows.pop())

    return median_seconds(lambda: rows.append(manager.requests.admit(bench.tokens)), bench.repeats, give_back)


def free(bench: Bench) -> float:
    """End a request that published nothing: every slot goes back."""
    manager = bench.manager()
    rows: list[int] = []
    return median_seconds(
        lambda: manager.requests.finish(rows.pop()),
        bench.repeats,
        lambda: rows.append(manager.requests.admit(bench.tokens)),
    )


def free_cached(bench: Bench) -> float:
    """End a request whose whole prompt is shared: leases go, the cache stays."""
    manager, cached = bench.published()
    rows: list[int] = []

    def start() -> None:
        lease = manager.acquire(manager.match(cached, bench.tokens + 1))
        rows.append(manager.requests.admit(bench.tokens + 1, lease=lease))

    return median_seconds(lambda: manager.requests.finish(rows.pop()), bench.repeats, start)


def decode_one(bench: Bench) -> float:
    """One token for one request: mean over a granule, so that crossing a boundary is in it."""
    return _decode(bench, 1)


def decode_256(bench: Bench) -> float:
    """One token for each of 256 requests in one call, starts spread over the granule; one of them is long."""
    return _decode(bench, 256)


def _decode(bench: Bench, count: int) -> float:
    profile, steps = bench.profile, bench.profile.granule
    spare = count * (2 + profile.window_slots * 2) + SPARE
    manager = bench.manager_of(bench.granules + spare, count)
    rows = [manager.requests.admit(bench.tokens)]
    rows += [manager.requests.admit(1 + at % profile.granule) for at in range(1, count)]
    index = np.array(rows, np.intp)

    def run() -> None:
        for _ in range(steps):
            manager.requests.step(index)

    run()  # the first granule fills the rings
    return median_seconds(run, 1) / steps


def _each(run: Callable[[], object], bench: Bench) -> float:
    inner = 20

    def several() -> None:
        for _ in range(inner):
            run()

    return median_seconds(several, bench.repeats) / inner


WORK: Mapping[str, Callable[[Bench], float]] = {
    "keys": keys,
    "look-up": look_up,
    "look-up, diverging at 5/8": look_up_diverging,
    "acquire + release": acquire_and_release,
    "allocate": allocate,
    "free": free,
    "free, cached": free_cached,
    "decode step of one": decode_one,
    "decode step of 256": decode_256,
}
# Work that fires events, and shows what recording them costs.
TRACED = ("acquire + release", "decode step of one", "decode step of 256")
# Greatest exponent in prompt length that each kind of work may have; None where it is only reported.
BOUNDS: Mapping[str, float | None] = {
    "keys": 1.1,
    "look-up": 0.1,
    "look-up, diverging at 5/8": 0.1,
    "acquire + release": 1.1,
    "allocate": 1.1,
    "free": 1.1,
    "free, cached": 1.1,
    "decode step of one": 0.1,
    "decode step of 256": 0.1,
}


def metadata_bytes_per_block(bench: Bench) -> float:
    """Words, digests, index and per-slot arrays of a manager that just holds the prompt, over its slots."""
    manager = bench.manager(spare=0)
    manager.publish(manager.reserve(manager.keys(bench.prompt()), 0, bench.granules))
    return manager.metadata_bytes() / sum(len(pool) for pool in manager.core.pools.values())
