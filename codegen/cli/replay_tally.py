"""What a replay counts: of each request when it came, waited, began and ended; of the cache, hits and evictions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...runtime.queues import Queue
from ...runtime.table import Fired
from .replay_service import InFlight
from .replay_trace import Asked

TIERS = ("memory", "packed", "store")
"""Where an object may lie, the slowest last."""

STORE = "ondisk_prefix"
"""The kind of what lies in the store."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request that was not served, and why."""

    line: int
    refusal: str
    why: str


@dataclass(slots=True)
class Course:
    """One request; times in virtual milliseconds.

    Attributes:
        asked: what was asked for.
        stays: which queue it waited in, and since when; until it began.
        begun: when its first step began; None before.
        first: when its prompt was computed.
        ended: when it had all its tokens, was rejected or was given up.
        outcome: "finished", "rejected", "cancelled"; "live" before.
    """

    asked: Asked
    stays: list[tuple[Queue, float]] = field(default_factory=list)
    begun: float | None = None
    first: float | None = None
    ended: float | None = None
    outcome: str = "live"

    @property
    def wait(self) -> float:
        """From its coming to its first step; it has begun."""
        assert self.begun is not None
        return self.begun - self.asked.at

    @property
    def waits(self) -> dict[Queue, float]:
        """How long it was in each queue; they sum up to ``wait``, but for what passed before it could be heard."""
        found: dict[Queue, float] = {}
        ends = [*(since for _, since in self.stays[1:]), self.begun]
        for (queue, since), end in zip(self.stays, ends, strict=True):
            assert end is not None
            found[queue] = found.get(queue, 0.0) + end - since
        return found

    @property
    def queue(self) -> Queue:
        """The one that the request is counted in: of those that it was in, what is named first among the queues."""
        been = {queue for queue, _ in self.stays}
        return next(queue for queue in Queue if queue in been)

    @property
    def resident(self) -> bool:
        """Whether it never waited for bytes."""
        return all(queue not in (Queue.DISK, Queue.COMPRESSED) for queue, _ in self.stays)


@dataclass(frozen=True, slots=True)
class Waits:
    """Some waits, in milliseconds. The percentiles are waits that somebody had: the nearest rank."""

    count: int
    mean: float
    p50: float
    p99: float
    max: float

    @staticmethod
    def of(values: Iterable[float]) -> Waits:
        """Of any number of waits; all 0 of none.

        >>> Waits.of([30.0, 10.0, 20.0])
        Waits(count=3, mean=20.0, p50=20.0, p99=30.0, max=30.0)
        """
        ordered = sorted(values)
        if not ordered:
            return Waits(0, 0.0, 0.0, 0.0, 0.0)
        mean = round(math.fsum(ordered) / len(ordered), 3)
        return Waits(len(ordered), mean, _rank(ordered, 50), _rank(ordered, 99), round(ordered[-1], 3))


def _rank(ordered: Sequence[float], percent: int) -> float:
    return round(ordered[-(-len(ordered) * percent // 100) - 1], 3)


@dataclass(slots=True)
class Tally:
    """What a replay has counted so far; tokens of prompts unless said otherwise.

    ``alone`` is what each kind could have served by itself, the store's help included; ``tiers`` where the slowest
    object of what was reused lay when it was first looked for, and ``tiers_of`` where each kind's did: all of them sum
    up to ``reused_tokens``. ``verdicts`` of each kind, and of the store, sum up to ``begun``. ``deferred`` had to wait
    for room at least once. Of ``rebuilt_tokens`` indexer keys alone were computed. ``boundaries_lost`` were not kept
    for want of room. ``violations`` by their text: how often. ``now`` and ``begin`` are virtual milliseconds.
    """

    begun: int = 0
    ended: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    computed_tokens: int = 0
    rebuilt_tokens: int = 0
    decoded_tokens: int = 0
    alone: Counter[str] = field(default_factory=Counter)
    verdicts: dict[str, Counter[str]] = field(default_factory=dict)
    tiers: Counter[str] = field(default_factory=Counter)
    tiers_of: dict[str, Counter[str]] = field(default_factory=dict)
    evictions: Counter[str] = field(default_factory=Counter)
    rejected: list[Rejected] = field(default_factory=list)
    cancelled: int = 0
    deferred: int = 0
    preempted: int = 0
    boundaries_lost: int = 0
    packed_granules: int = 0
    audits: int = 0
    violations: dict[str, int] = field(default_factory=dict)
    metadata_bytes: int = 0
    manager_seconds: float = 0.0
    steps: int = 0
    courses: list[Course] = field(default_factory=list)
    requests_most: int = 0
    in_flight: InFlight = field(default_factory=InFlight)
    begin: float = 0.0
    now: float = 0.0
    complete: bool = False

    def told(self, fired: Fired) -> None:
        """Count evictions; for ``Manager(on_event=)``."""
        if fired.event == "evict" and not fired.held:
            self.evictions[fired.machine] += int(np.count_nonzero(fired.codes == 0))

    @property
    def virtual_seconds(self) -> float:
        """From the first request's coming to the last one's end."""
        return (self.now - self.begin) / 1000

    def waits(self, *, resident: bool = False) -> Waits:
        """Of all that have begun, or of those alone that never waited for bytes."""
        return Waits.of(one.wait for one in self._begun() if one.resident or not resident)

    def by_queue(self) -> dict[Queue, Waits]:
        """All of each wait, by the queue that the request is counted in: each is in one."""
        found: dict[Queue, list[float]] = {queue: [] for queue in Queue}
        for course in self._begun():
            found[course.queue].append(course.wait)
        return {queue: Waits.of(waits) for queue, waits in found.items()}

    def in_queues(self) -> dict[Queue, float]:
        """Milliseconds that all of them together spent in each queue before they began."""
        found = dict.fromkeys(Queue, 0.0)
        for course in self._begun():
            for queue, wait in course.waits.items():
                found[queue] += wait
        return {queue: round(wait, 3) for queue, wait in found.items()}

    def first_tokens(self) -> Waits:
        """From a request's coming until its prompt was computed."""
        return Waits.of(one.first - one.asked.at for one in self.courses if one.first is not None)

    def _begun(self) -> list[Course]:
        return [course for course in self.courses if course.begun is not None]
