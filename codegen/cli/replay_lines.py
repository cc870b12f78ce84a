"""Whose turn it is in a replay: the runtime's five queues, or one line for all, which a comparison needs.

Both tell a journal who waits for what since when.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...runtime.queues import Queue, Queues
from .replay_clock import VirtualTime

COMPUTE = (Queue.INDEXER, Queue.TAIL_WINDOW, Queue.RESIDENT)
"""Queues whose turns are steps of the engine; the turns of the others are loads."""


@dataclass(slots=True)
class Journal:
    """What has happened in the queues, by number of the request.

    A request that loads, or waits for somebody else's load, counts as in the queue that it had its turn in.

    Attributes:
        clock: the time.
        stays: since when it is in which queue, first to last.
        passed: requests whose turn could not be granted at least once.
    """

    clock: VirtualTime
    stays: dict[int, list[tuple[Queue, float]]] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)

    def put(self, request: int, queue: Queue) -> None:
        """A request waits in a queue from now on."""
        stays = self.stays.setdefault(request, [])
        if not stays or stays[-1][0] is not queue:
            stays.append((queue, self.clock.now))


class FiveQueues(Queues):
    """The runtime's queues, with a journal."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def put(self, request: int, queue: Queue, *, cost: float, now: float, owner: str = "", holds: bool = False) -> None:
        """See ``Queues.put``."""
        super().put(request, queue, cost=cost, now=now, owner=owner, holds=holds)
        self._journal.put(request, queue)

    def passed(self, request: int, *, stops: bool = True) -> None:
        """See ``Queues.passed``."""
        super().passed(request, stops=stops)
        self._journal.passed.add(request)


@dataclass(slots=True)
class _Place:
    queue: Queue
    cost: float
    since: float
    holds: bool
    loading: bool = False


class SingleLine(Queues):
    """One line, first come, first served: nobody begins before those who came before him have begun.

    Who is first and has to load keeps his place meanwhile. Those behind him may begin to load, too, in their order, and
    none of them computes before he does. Where there is no room for the first, nobody else is asked. Those who hold
    slots are asked before the others, as in the five queues, so that no two wait for each other.
    """

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal
        self._line: dict[int, _Place] = {}
        self._spent = dict.fromkeys(Queue, 0.0)

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, request: int) -> bool:
        return request in self._line

    def where(self, request: int) -> Queue:
        """See ``Queues.where``."""
        return self._line[request].queue

    def cost(self, request: int) -> float:
        """See ``Queues.cost``."""
        return self._line[request].cost

    def depth(self, queue: Queue) -> int:
        """Requests in the line that wait for what this queue stands for."""
        return sum(place.queue is queue for place in self._line.values())

    def oldest(self, queue: Queue) -> float:
        """See ``Queues.oldest``."""
        return min((place.since for place in self._line.values() if place.queue is queue), default=float("inf"))

    def put(self, request: int, queue: Queue, *, cost: float, now: float, owner: str = "", holds: bool = False) -> None:
        """See ``Queues.put``."""
        if request in self._line:
            raise ValueError(f"request {request} is in the line already; move it")
        self._line[request] = _Place(queue, cost, now, holds)
        self._journal.put(request, queue)

    def remove(self, request: int) -> None:
        """See ``Queues.remove``."""
        del self._line[request]

    def move(self, request: int, queue: Queue, *, cost: float, now: float, holds: bool) -> None:
        """See ``Queues.move``."""
        self.remove(request)
        self.put(request, queue, cost=cost, now=now, holds=holds)

    def granted(self, request: int) -> None:
        """See ``Queues.granted``; who loads now stays in the line until he computes."""
        place = self._line[request]
        if place.loading or place.queue in COMPUTE:
            del self._line[request]
        else:
            place.loading = place.holds = True

    def passed(self, request: int, *, stops: bool = True) -> None:
        """See ``Queues.passed``; here whoever is passed stops those behind him."""
        place = self._line[request]
        if place.loading:  # there was nothing to load after all
            place.queue, place.loading = Queue.RESIDENT, False
        self._journal.passed.add(request)

    def turns(
        self, queue: Queue, budget: float, *, holders: bool | None = None, first: int | None = None
    ) -> Iterator[int]:
        """Those who come next in the line, as long as they wait for what this queue stands for."""
        if holders is not False:
            self._spent[queue] = 0.0
        behind_load = False
        for request in sorted(self._line, key=lambda one: (one != first, one)):
            place = self._line.get(request)
            if place is None:  # left while others had their turns
                continue
            if place.loading:
                behind_load = True
                continue
            if holders is not None and place.holds is not holders:
                continue
            if place.queue is not queue or (behind_load and queue in COMPUTE):
                return
            if budget <= 0 or (self._spent[queue] and self._spent[queue] + place.cost > budget):
                return
            yield request
            after = self._line.get(request)
            if after is place and not place.loading:
                return  # there was no room for him
            self._spent[queue] += place.cost
            behind_load = behind_load or (after is place and place.loading)
