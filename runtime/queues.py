"""The five queues: each live request waits in exactly one of them, and each queue says whose turn it is.

What a turn costs, whether it can be granted now, and what happens then is for the caller; nothing here takes slots.
Times are any growing numbers of the caller's clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Real
from types import MappingProxyType

from .answers import Answer
from .arguments import check_is, check_whole


class Queue(StrEnum):
    """What a live request waits for."""

    DISK = "disk"
    COMPRESSED = "compressed"
    INDEXER = "indexer"
    TAIL_WINDOW = "tail_window"
    RESIDENT = "resident"

    @property
    def spends(self) -> str:
        """The budget that its turns are paid from."""
        return _SPENDS[self]

    @property
    def about(self) -> str:
        """One sentence for people."""
        return _ABOUT[self]


_SPENDS = {
    Queue.DISK: "bytes of I/O",
    Queue.COMPRESSED: "bytes of memory",
    Queue.INDEXER: "tokens of compute",
    Queue.TAIL_WINDOW: "tokens of compute",
    Queue.RESIDENT: "tokens of compute",
}
_ABOUT = {
    Queue.DISK: "objects of its prefix are in the store and have to be loaded",
    Queue.COMPRESSED: "its compressed KV is packed and has to be expanded",
    Queue.INDEXER: "indexer keys of its prefix have to be computed again",
    Queue.TAIL_WINDOW: "its window has to be replayed",
    Queue.RESIDENT: "nothing is outstanding: it can compute",
}


def queue_of(answer: Answer) -> Queue:
    """The queue of a request by its objects' answers: of disk, compressed, indexer, window the first outstanding."""
    verdicts = {kind: said.verdict for kind, said in answer.objects.items()}
    if "PENDING" in verdicts.values():
        return Queue.DISK
    if verdicts.get("compressed_kv") == "PACKED" or (answer.plan is not None and answer.plan.expand):
        return Queue.COMPRESSED
    return compute_queue_of(answer)


def compute_queue_of(answer: Answer) -> Queue:
    """The same of one that loads nothing any more, whatever the slower tiers hold."""
    indexer = answer.objects.get("indexer_state")
    if indexer is not None and indexer.verdict == "REBUILD":
        return Queue.INDEXER
    return Queue.TAIL_WINDOW if answer.replay is not None else Queue.RESIDENT


@dataclass(slots=True)
class _Waiting:
    request: int
    owner: str
    cost: float
    holds: bool
    since: float
    start: float  # virtual time at which its owner's turn begins
    passed: int = 0  # turns that could not be granted
    stops: bool = False  # whether those who hold nothing wait behind it now
    granted: bool = False

    def key(self, ageing: float) -> tuple[bool, float, float, int]:
        # A smaller start is the earlier turn; what ageing takes off grows with the time waited. As all grow alike, the
        # time at which one came says the same.
        return (not self.holds, self.start + ageing * self.since, self.since, self.request)


@dataclass(slots=True)
class _Line:
    waiting: dict[int, _Waiting] = field(default_factory=dict)
    spent: float = 0.0  # in the round that is under way
    cut: bool = False  # whether turns of this round were left over for want of budget
    now: float = 0.0  # virtual: where the turn granted last began
    finished: dict[str, float] = field(default_factory=dict)  # by owner, where its last turn asked for ends


class Queues:
    """Who waits where, and whose turn it is.

    Within a queue, requests that hold slots come before those that hold none, so that nobody who can give slots back
    waits for somebody who asks for some. Among equals turns are weighted fair between owners (start-time fair queueing:
    an owner of twice the weight gets twice the cost granted) and grow nearer with the time waited. One whose turn could
    not be granted is passed by others ``patience`` times; then those who hold nothing wait behind it.

    Args:
        weights: share of each owner; 1 where none is given.
        ageing: cost units by which one unit of time brings a turn nearer; 0: weights alone decide.
        patience: how often a request that can't be granted its turn is passed.

    Raises:
        ValueError: a weight that is not above 0, or a negative ``ageing`` or ``patience``.
        TypeError: what is no number, or weights by no owner.

    Source: Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996.
    """

    def __init__(
        self,
        weights: Mapping[str, float] = MappingProxyType({}),
        *,
        ageing: float = 0.0,
        patience: int = 16,
    ) -> None:
        check_is("weights", weights, Mapping, "numbers by owner, such as {'a': 2.0}")
        for owner, weight in weights.items():
            check_is("an owner", owner, str, "names")
            check_is(f"the weight of {owner!r}", weight, Real, "a number above 0")
            if not 0 < weight < math.inf:
                raise ValueError(f"owner {owner!r} has weight {weight}; give a number above 0")
        check_is("ageing", ageing, Real, "a number of at least 0")
        check_whole("patience", patience, "a whole number of at least 0")
        if not 0 <= ageing < math.inf or patience < 0:
            raise ValueError(f"ageing={ageing}, patience={patience}; give numbers of at least 0")
        self._weights = dict(weights)
        self._ageing = ageing
        self.patience = patience
        self._lines = {queue: _Line() for queue in Queue}
        self._where: dict[int, Queue] = {}
        self._serves = False

    def serve(self) -> None:
        """Be one scheduler's from now on, whose numbers are not another's.

        Raises:
            ValueError: they are another's.
        """
        if self._serves:
            raise ValueError("these queues are another scheduler's; give each scheduler Queues() of its own")
        self._serves = True

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, request: int) -> bool:
        return request in self._where

    @property
    def options(self) -> str:
        """What decides whose turn it is, besides who waits."""
        weights = sorted((owner, float(weight)) for owner, weight in self._weights.items())
        return f"weights {weights}, ageing {float(self._ageing)}, patience {self.patience}"

    def where(self, request: int) -> Queue:
        """The queue that a request is in; KeyError when it is in none."""
        return self._where[request]

    def cost(self, request: int) -> float:
        """What its turn costs; KeyError when it waits nowhere."""
        return self._lines[self._where[request]].waiting[request].cost

    def depth(self, queue: Queue) -> int:
        """Requests in a queue."""
        return len(self._lines[queue].waiting)

    def put(self, request: int, queue: Queue, *, cost: float, now: float, owner: str = "", holds: bool = False) -> None:
        """Let a request wait for a turn of ``cost``.

        Args:
            request: its number; in no queue yet.
            queue: where.
            cost: of its turn, in units of the queue's budget.
            now: the time.
            owner: who pays.
            holds: whether it holds slots.

        Raises:
            ValueError: it waits already, or a negative cost.
        """
        if request in self._where:
            raise ValueError(f"request {request} is in queue '{self._where[request]}' already; remove it first")
        if cost < 0:
            raise ValueError(f"a turn that costs {cost}; give at least 0")
        line = self._lines[queue]
        start = max(line.now, line.finished.get(owner, 0.0))
        line.finished[owner] = start + cost / self._weights.get(owner, 1.0)
        line.waiting[request] = _Waiting(request, owner, cost, holds, now, start)
        self._where[request] = queue

    def remove(self, request: int) -> None:
        """Let a request go, wherever it waits; KeyError when it waits nowhere. Its owner gets the turn back."""
        line = self._lines[self._where.pop(request)]
        gone = line.waiting.pop(request)
        refund = gone.cost / self._weights.get(gone.owner, 1.0)
        for other in line.waiting.values():
            if other.owner == gone.owner and other.start > gone.start:
                other.start = max(line.now, other.start - refund)
        line.finished[gone.owner] = max(line.now, line.finished[gone.owner] - refund)
        self._forget(line)

    def granted(self, request: int) -> None:
        """A request's turn was granted, and it waits for nothing any more."""
        line = self._lines[self._where.pop(request)]
        waiting = line.waiting.pop(request)
        waiting.granted = True
        line.now = max(line.now, waiting.start)
        self._forget(line)

    def granted_here(self, request: int) -> None:
        """The same on this rank alone: the round pays, and it keeps its place until all ranks have ``granted`` it."""
        self._lines[self._where[request]].waiting[request].granted = True

    def is_granted_here(self, request: int) -> bool:
        """Whether a request's turn was, and it keeps its place."""
        return request in self._where and self._lines[self._where[request]].waiting[request].granted

    def passed(self, request: int, *, stops: bool = True) -> None:
        """A request's turn could not be granted now; it keeps its place.

        Args:
            request: which one.
            stops: whether those behind it wait for it once it was passed ``patience`` times; False where their turns
                keep nothing from it.
        """
        waiting = self._lines[self._where[request]].waiting[request]
        waiting.passed += 1
        waiting.stops = stops and waiting.passed > self.patience

    def oldest(self, queue: Queue) -> float:
        """The time at which the first came of those who wait in a queue; infinity where nobody does."""
        return min((waiting.since for waiting in self._lines[queue].waiting.values()), default=float("inf"))

    def cut(self, queue: Queue) -> bool:
        """Whether turns of the last round of a queue were left over because others have spent its budget."""
        return self._lines[queue].cut

    def turns(
        self, queue: Queue, budget: float, *, holders: bool | None = None, first: int | None = None
    ) -> Iterator[int]:
        """Whose turn it is in a queue, first to last, as far as a budget goes.

        The caller answers each with ``granted``, ``remove`` or ``passed`` before it asks for the next; only what was
        granted costs anything. The first turn is offered even where it costs more than the budget, so that none is too
        large for ever.

        Args:
            queue: which one.
            budget: of one round.
            holders: True: a round's turns of those who hold slots; False: then those of the others, who are paid from
                what the first have left. None: a round of all.
            first: a request whose turn comes before all others, wherever it stands.
        """
        line = self._lines[queue]
        if holders is not False:
            line.spent = 0.0
        line.cut = False
        for waiting in sorted(line.waiting.values(), key=lambda one: (one.request != first, one.key(self._ageing))):
            if line.waiting.get(waiting.request) is not waiting:  # left while others had their turns
                continue
            if holders is not None and waiting.holds is not holders:
                continue
            if budget <= 0 or (line.spent and line.spent + waiting.cost > budget):
                line.cut = budget > 0
                return
            paid = waiting.granted  # in an earlier round
            yield waiting.request
            if waiting.granted and not paid:
                line.spent += waiting.cost
            elif waiting.stops and not waiting.holds and line.waiting.get(waiting.request) is waiting:
                return

    @staticmethod
    def _forget(line: _Line) -> None:
        """What owners without requests asked for no longer matters."""
        if not line.waiting:
            line.now, line.finished = 0.0, {}
