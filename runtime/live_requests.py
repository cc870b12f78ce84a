"""Live requests of a scheduler: the word of each (the spec's ``queued``), and its place in the queues.

The two change together, under the manager's lock, which the caller of everything here holds. A request that waits for a
turn is in exactly one of the queues: one without slots that waits for no other's load, one that is ready, and one whose
prompt is not computed to its end. Among ranks one that is ready waits for the loads of the others, and in no queue.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .admission import Reservation
from .answers import Reason
from .errors import Broken, Refused
from .fill import Fill
from .generated import Refusal
from .generated.queued import QueuedQueue, QueuedState, QueuedTable
from .keys import Keys
from .queues import Queue, Queues
from .serving_report import Tally
from .ticket import Ticket

if TYPE_CHECKING:
    from .manager import Manager

_CODES = {queue: QueuedQueue[queue.name] for queue in Queue}
_QUEUES = {code: queue for queue, code in _CODES.items()}


@dataclass(frozen=True, slots=True, repr=False)
class Work:
    """What to compute of one request in the next step.

    Attributes:
        live: the request.
        row: of the request table; None where indexer keys are rebuilt: the request has no row yet.
        start: first token to compute; what lies before it is in the row already, or leased for the rebuild.
        stop: token after the last one.
        replay: tokens before ``start`` to compute again first, with the cached entries frozen; None: none.
        exact: whether what lies before ``start`` is the very state of a cold run.
        waited: time from arrival until now, in the scheduler's clock.
        rebuild: slots for the indexer keys of ``rebuild.places``, all that is to be written of these tokens: their
            entries stay. ``rebuild.rebuild.lease`` has what is read. ``Scheduler.publish`` the request once the device
            has written them; it goes on only then. None: the row is written.
    """

    live: Live
    row: int | None
    start: int
    stop: int
    replay: range | None
    exact: bool
    waited: float
    rebuild: Fill | None = None

    @property
    def stands(self) -> bool:
        """Whether the request has still what it was granted for. The caller holds the manager's lock."""
        return self.live.row == self.row and self.live.rebuild is self.rebuild

    def __repr__(self) -> str:
        again = "" if self.replay is None else f" after a replay of [{self.replay.start}, {self.replay.stop})"
        where = "for its keys" if self.row is None else f"in row {self.row}"
        return f"<Work: tokens [{self.start}, {self.stop}) of request {self.live.number} {where}{again}>"


@dataclass(frozen=True, slots=True)
class Stepped:
    """Who has stepped, of those who were asked for; who is in neither was given up, or has ended.

    Attributes:
        lives: who stepped, in the order in which they were named.
        rows: of each of them.
        back: who went back to wait, or ended for want of room, and has no row any more.
    """

    lives: tuple[Live, ...]
    rows: tuple[int, ...]
    back: tuple[Live, ...]


@dataclass(slots=True, eq=False, repr=False)
class Live:
    """One request.

    Attributes:
        number: of the request; never given twice.
        keys: of its tokens; they grow with it.
        known: tokens that it began with, or begins with again; those that are not in its row yet are computed first.
        owner: who asked.
        since: when it came, or was preempted.
        queued: the same in the time of turns.
        attempts: times that a load of it which failed is tried again.
        begun: the first work of its row; or Refused, with the reason that it was rejected for; cancelled when given up.
        fault: what a load of it raised last, why its keys could not be published, or why it ended before it had all its
            tokens: of one that was rejected what ``begun`` raises.
        rebuild: indexer keys that it computes before it begins.
        rebuilt: tokens as far as rebuilds of it have come since it came or was preempted.
        incarnation: of its row; the row is its own for as long as that is the row's.
        lacked: turns that it wasn't granted for want of room, since it came or was preempted.
        brought: loads that all ranks have begun for it since it came or was preempted.
        reach: tokens that the last of these was to make reusable.
        at_most: tokens that it may reuse, where some rank can't hold more beside its row; None: all.
        home: of which scheduler it is.
    """

    number: int
    keys: Keys
    known: int
    owner: str
    since: float
    attempts: int
    place: int  # in the table of words
    generation: int
    home: LiveRequests
    queued: float
    begun: Future[Work] = field(default_factory=Future)
    fault: BaseException | None = None
    reservation: Reservation | None = None
    loading: Ticket | None = None  # its own load
    joined: Ticket | None = None  # another's load that it waits for
    rebuild: Fill | None = None
    rebuilt: int = 0
    row: int | None = None
    incarnation: int = 0
    lacked: int = 0
    brought: int = 0
    reach: int = 0
    at_most: int | None = None
    seen: int = 0  # tokens that its row was known to have last
    owed: int = 0  # tokens of work that was granted and that the engine doesn't know of yet, in its row or for its keys
    behind: tuple[tuple[Live, int, int], ...] = ()  # who ran, in which row and incarnation, when it gave room back

    @property
    def computed(self) -> int:
        """Tokens of its row, as the request table says, but those that the engine was not told yet to compute.

        Of a request that has ended those that were seen last.
        """
        row, requests = self.row, self.home.manager.requests
        if row is None or not requests.holds(row, self.incarnation):
            return self.seen
        return int(requests.tokens[row]) - self.owed

    @property
    def tokens(self) -> int:
        """Tokens that it has: those of its prompt, and those that were decoded or accepted since."""
        return max(self.known, self.computed)

    def __repr__(self) -> str:
        where = "" if self.row is None else f" in row {self.row}"
        return f"<Live: request {self.number}, {self.tokens} tokens{where}>"


class LiveRequests:
    """All of them.

    Args:
        manager: whose lock guards them.
        queues: where they wait.
        most: that are live at once.
        clock: the time, for waits.
        ageing: the time of turns: what brings them nearer as it grows.
        draining: places beside these for those that were given up while a worker moves their bytes; without them these
            count as live until it has ended.

    Attributes:
        manager: that one.
        by_number: the live ones, in the order in which they came.
        granted: work that was granted and not handed to the engine yet.
        tally: what has been counted.
    """

    def __init__(
        self,
        manager: Manager,
        queues: Queues,
        most: int,
        clock: Callable[[], float],
        ageing: Callable[[], float],
        draining: int = 0,
    ) -> None:
        self.manager = manager
        self.queues = queues
        self.words = manager.table(QueuedTable, most + draining)
        self.by_number: dict[int, Live] = {}
        self.granted: list[Work] = []
        self.tally = Tally()
        self._most, self._clock, self._ageing = most, clock, ageing
        self._free = list(range(most + draining))[::-1]
        self._number = itertools.count(1).__next__

    def arrive(self, keys: Keys, tokens: int, owner: str, attempts: int, queue: Queue, cost: float) -> Live:
        """A request comes, and waits.

        Raises:
            Refused: BACKPRESSURE when as many as there may be are live, or some of another scheduler of this manager.
        """
        full = len(self.by_number) >= self._most
        if not self._free or (full and len(self.by_number) - self.count(QueuedState.DRAINING) >= self._most):
            raise Refused(Reason.BACKPRESSURE, "scheduler", f"{self._most} places, and all are taken")
        if (others := self.manager.served) is not self.by_number:
            if others:
                what = "another scheduler of this manager has live requests: neither would see whom to preempt for want"
                raise Refused(Reason.BACKPRESSURE, "scheduler", f"{what} of room; give each a manager of its own")
            self.manager.served = self.by_number
        live = Live(
            self._number(), keys, tokens, owner, self._clock(), attempts, self._free.pop(), 0, self, self._ageing()
        )
        self.sure("arrive", live, where=queue)
        live.generation = int(self.words.fields("generation", [live.place])[0])
        self.by_number[live.number] = live
        self.put(live, queue, cost, holds=False)
        self.tally.count("arrived")
        return live

    def check(self, live: Live) -> None:
        """Whether a request is one of these, live or not any more.

        Raises:
            TypeError: it is no request at all.
            Refused: LEASE; it is another scheduler's.
        """
        if not isinstance(live, Live):
            hint = "give its .live" if isinstance(live, Work) else "give what submit() returned"
            raise TypeError(f"this is a {type(live).__name__} and no request; {hint}")
        if live.home is not self or self.by_number.get(live.number, live) is not live:
            raise Refused(Reason.LEASE, "scheduler", f"request {live.number} is another scheduler's")

    def sure(self, event: str, live: Live, **given: Any) -> None:
        """An event on its word, which can't be refused.

        Raises:
            Broken: S26; it was.
        """
        if refusal := self.try_fire(event, live, **given):
            raise Broken("S26", f"the word of request {live.number} refuses '{event}': {refusal.reason}")

    def try_fire(self, event: str, live: Live, **given: Any) -> Refusal | None:
        """An event on its word: None where it was taken, else why it was refused."""
        if "where" in given:
            given["where"] = _CODES[given["where"]]
        if event != "arrive":
            given["expected"] = live.generation
        code = int(self.words.fire(event, [live.place], **given)[0])
        return Refusal(code) if code else None

    def state(self, live: Live) -> QueuedState | None:
        """State of its word; None once it has ended."""
        if int(self.words.fields("generation", [live.place])[0]) != live.generation:
            return None
        state = QueuedState(int(self.words.states([live.place])[0]))
        return None if state is QueuedState.ABSENT else state

    def where(self, live: Live) -> Queue:
        """The queue that its word names."""
        return _QUEUES[QueuedQueue(int(self.words.fields("queue", [live.place])[0]))]

    def count(self, state: QueuedState) -> int:
        """Requests in a state."""
        return self.words.count_by_state()[state.name.lower()]

    def running(self) -> list[Live]:
        """Those that run, in the order in which they came."""
        return [live for live in self.by_number.values() if live.row is not None]

    def let_pass(self, live: Live) -> None:
        """Who gives its room back for want of it begins again when one of those who run has ended, or given room back.

        Else it would take the room at once that it gave them.
        """
        live.behind = tuple(
            (other, other.row, other.incarnation)
            for other in self.running()
            if other is not live and other.row is not None
        )

    def lets_pass(self, live: Live) -> bool:
        """Whether it waits for that still."""
        if not all((other.row, other.incarnation) == (row, since) for other, row, since in live.behind):
            live.behind = ()
        return bool(live.behind)

    def put(self, live: Live, queue: Queue, cost: float, *, holds: bool) -> None:
        """It waits for a turn, and nowhere else."""
        self.withdraw(live)
        self.queues.put(live.number, queue, cost=cost, now=live.queued, owner=live.owner, holds=holds)

    def withdraw(self, live: Live) -> None:
        """It waits for no turn, and has paid for none."""
        if live.number in self.queues:
            self.queues.remove(live.number)

    def passed(self, live: Live, why: str, *, stops: bool = True) -> None:
        """Its turn could not be granted, for a reason; whether it may stop those behind it, see ``Queues.passed``."""
        self.tally.deferred[why] += 1
        if live.number in self.queues:
            self.queues.passed(live.number, stops=stops)

    def again(self, live: Live, queue: Queue, cost: float) -> None:
        """It has nothing any more of what it had, and waits anew."""
        live.known = live.tokens
        live.seen, live.lacked, live.rebuilt, live.since, live.queued = 0, 0, 0, self._clock(), self._ageing()
        live.brought, live.reach, live.at_most = 0, 0, None
        self.tally.count("preempted")
        self.back(live, queue, cost)

    def back(self, live: Live, queue: Queue, cost: float) -> None:
        """It has nothing any more of what it had, and waits as before."""
        self.sure("preempt", live, where=queue)
        self._let_go(live)
        self.put(live, queue, cost, holds=False)

    def hand_out(self, withheld: Collection[Live]) -> tuple[Work, ...]:
        """What was granted and not handed out yet, once, but for some; the engine computes it before it comes back."""
        work = tuple(one for one in self.granted if one.live not in withheld)
        self.granted = [one for one in self.granted if one.live in withheld]
        for one in work:
            one.live.owed = 0
        return work

    def forget(self, live: Live) -> None:
        """Its word is nobody's."""
        self.withdraw(live)
        self._let_go(live)
        live.joined = None
        del self.by_number[live.number]
        if live.generation < QueuedTable.LAYOUT.field("generation").high:  # else its place retires
            self._free.append(live.place)

    def _let_go(self, live: Live) -> None:
        live.reservation, live.loading, live.row, live.behind = None, None, None, ()
        live.rebuild = None
        live.owed = 0
        self.granted = [work for work in self.granted if work.live is not live]
