"""What a scheduler has counted since it was made: for dashboards, and for whoever replays a trace of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .queues import Queue


@dataclass(frozen=True, slots=True)
class QueueReport:
    """One queue.

    Attributes:
        depth: requests that wait in it now.
        admitted: requests that were admitted from it; one that was preempted since is counted again. In the indexer
            queue those too that were given keys to compute there, and are admitted from another queue afterwards.
        waited: how long these waited for that together, each since it came or was preempted, in units of the
            scheduler's clock (seconds by default).
        longest: the longest of these waits, in the same units; 0 where nobody was admitted.
    """

    depth: int
    admitted: int
    waited: float
    longest: float


@dataclass(frozen=True, slots=True)
class Report:
    """Counts since the scheduler was made, but for ``states``, ``in_flight`` and the depths, which are those of now.

    Attributes:
        queues: by queue.
        states: live requests by the state of their words; states without one are left out.
        in_flight: how much of each limit is taken, by its name: requests, destination slots, bytes.
        arrived: requests that came.
        finished: requests that ended with all their tokens, as the engine said.
        cut_short: requests that ended before, for want of room though nobody else had any.
        cancelled: requests that were given up.
        rejected: requests that could never be admitted, by reason.
        deferred: turns that were not granted, by reason; "STALE" where what was found was evicted meanwhile.
        preempted: times that a request gave back, or lost, all that it had and waited anew.
        voided: those of these times at which the memory was allocated anew under it.
        loads: loads that were begun.
        loads_again: those of these that were another try of one that had failed.
        loads_failed: loads that ended without all their bytes.
        rebuilds: times that missing indexer keys were given out to be computed before a request began.
        rebuilds_failed: those of these whose keys could not be published any more.
    """

    queues: Mapping[Queue, QueueReport]
    states: Mapping[str, int]
    in_flight: Mapping[str, int]
    arrived: int
    finished: int
    cut_short: int
    cancelled: int
    rejected: Mapping[str, int]
    deferred: Mapping[str, int]
    preempted: int
    voided: int
    loads: int
    loads_again: int
    loads_failed: int
    rebuilds: int
    rebuilds_failed: int


@dataclass(slots=True)
class Tally:
    """The counts, as they grow under the manager's lock; see ``Report`` for what each of them is."""

    arrived: int = 0
    finished: int = 0
    cut_short: int = 0
    cancelled: int = 0
    preempted: int = 0
    voided: int = 0
    loads: int = 0
    loads_again: int = 0
    loads_failed: int = 0
    rebuilds: int = 0
    rebuilds_failed: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    deferred: Counter[str] = field(default_factory=Counter)
    _admitted: Counter[Queue] = field(default_factory=Counter)
    _waited: dict[Queue, float] = field(default_factory=lambda: dict.fromkeys(Queue, 0.0))
    _longest: dict[Queue, float] = field(default_factory=lambda: dict.fromkeys(Queue, 0.0))

    def admitted(self, queue: Queue, waited: float) -> None:
        """A request was admitted from a queue after so long."""
        self._admitted[queue] += 1
        self._waited[queue] += waited
        self._longest[queue] = max(self._longest[queue], waited)

    def report(
        self, depths: Mapping[Queue, int], states: Mapping[str, int], in_flight: Mapping[str, int]
    ) -> Report:
        """All of it, as it is now."""
        queues = {
            queue: QueueReport(depths[queue], self._admitted[queue], self._waited[queue], self._longest[queue])
            for queue in Queue
        }
        return Report(
            MappingProxyType(queues), MappingProxyType(dict(states)), MappingProxyType(dict(in_flight)),
            self.arrived, self.finished, self.cut_short, self.cancelled,
            MappingProxyType(dict(self.rejected)), MappingProxyType(dict(self.deferred)),
            self.preempted, self.voided, self.loads, self.loads_again, self.loads_failed,
            self.rebuilds, self.rebuilds_failed,
        )  # fmt: skip
