"""What a scheduler has counted since it was made: for dashboards, and for whoever replays a trace of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
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
class StoreReport:
    """Writes of what was published, by whomever, since the manager was made: one that fails is told nowhere else.

    Attributes:
        failures: writes that failed.
        error: the last of these, in words; None where there was none.
    """

    failures: int
    error: str | None


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
        loads_cut: times that a request was to load less than there is, or nothing, as all of it is above a limit or
            never fits beside its row.
        rebuilds: times that missing indexer keys were given out to be computed before a request began.
        rebuilds_failed: those of these whose keys could not be published any more.
        store: what the store did not take.
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
    loads_cut: int
    rebuilds: int
    rebuilds_failed: int
    store: StoreReport


_COUNTED = tuple(one.name for one in fields(Report) if one.type == "int")


@dataclass(slots=True)
class Tally:
    """The counts, as they grow under the manager's lock; ``Report`` names them, and says what each is.

    >>> tally = Tally()
    >>> tally.count("loads")
    >>> tally.count("load")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    KeyError: "no count 'load'; a Report has arrived, finished, cut_short, cancelled, preempted, voided, loads, ..."
    """

    rejected: Counter[str] = field(default_factory=Counter)
    deferred: Counter[str] = field(default_factory=Counter)
    _counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTED, 0))
    _admitted: Counter[Queue] = field(default_factory=Counter)
    _waited: dict[Queue, float] = field(default_factory=lambda: dict.fromkeys(Queue, 0.0))
    _longest: dict[Queue, float] = field(default_factory=lambda: dict.fromkeys(Queue, 0.0))

    def count(self, name: str) -> None:
        """One more of what ``Report`` has by this name."""
        if name not in self._counts:
            raise KeyError(f"no count {name!r}; a Report has {', '.join(_COUNTED)}")
        self._counts[name] += 1

    def admitted(self, queue: Queue, waited: float) -> None:
        """A request was admitted from a queue after so long."""
        self._admitted[queue] += 1
        self._waited[queue] += waited
        self._longest[queue] = max(self._longest[queue], waited)

    def report(
        self, depths: Mapping[Queue, int], states: Mapping[str, int], in_flight: Mapping[str, int], store: StoreReport
    ) -> Report:
        """All of it, as it is now."""
        queues = {
            queue: QueueReport(depths[queue], self._admitted[queue], self._waited[queue], self._longest[queue])
            for queue in Queue
        }
        return Report(
            queues=MappingProxyType(queues),
            states=MappingProxyType(dict(states)),
            in_flight=MappingProxyType(dict(in_flight)),
            rejected=MappingProxyType(dict(self.rejected)),
            deferred=MappingProxyType(dict(self.deferred)),
            store=store,
            **self._counts,
        )
