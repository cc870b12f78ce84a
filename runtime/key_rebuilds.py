"""Requests of a scheduler that compute missing indexer keys before they begin, from entries that stay.

A request in the indexer queue has entries that could be read, but for their keys. Its turn grants it a rebuild
(``rebuilding.py``): a fill of keys alone, with all that they are computed from leased, which goes to the engine as a
``Work`` without a row. Once the fill is published the request holds nothing, waits for what it then misses, and begins
as any other that finds so much. Whatever comes in between, nobody waits for ever:

    once          each rebuild of a request reaches farther than those before; keys that were evicted again before it
                  began, or whose entries were gone when they were published, it computes with its row, entries and all
    no more       who could never be admitted is told so before, and who lacks room waits with nothing
    piece by      where a step of a prompt is bounded, so is a rebuild, as far as tails and windows are there for the
    piece         end of a piece

Who was admitted to a load has slots for its row already, and computes.
"""

from __future__ import annotations

from .admission import Deferred, Rejected
from .answers import Answer
from .errors import Refused
from .fill import Fill
from .lease import Done
from .live_requests import Live, Work
from .queues import Queue
from .service import Service


class KeyRebuilds:
    """Rebuilds of a scheduler's requests."""

    def __init__(self, service: Service) -> None:
        self._manager, self._admission, self._requests = service.manager, service.admission, service.requests
        self._chunk, self._clock, self._changed = service.chunk, service.clock, service.changed

    # ---- turns ------------------------------------------------------------------------------------------------------

    @staticmethod
    def wanted(answer: Answer, rebuilt: int) -> range | None:
        """Tokens to compute for the keys that an answer misses; None where there are none, or they had their turn.

        Args:
            answer: of a match.
            rebuilt: tokens as far as rebuilds of the request have come.
        """
        if answer.rebuild is None or answer.rebuild.stop <= rebuilt:
            return None
        return range(answer.now, answer.rebuild.stop)

    def cost(self, answer: Answer, tokens: range) -> float:
        """What such a turn spends, in tokens; of a piece as much as one may be."""
        most = len(tokens) if self._chunk is None else self._most(answer) - answer.now
        return float(min(len(tokens), most) + len(answer.replay or ()))

    def begin(self, live: Live, answer: Answer) -> Fill | Deferred | Rejected:
        """Reserve what the rebuild of an answer needs, or of its first piece, or nothing.

        Raises:
            Refused: STALE when what was matched is gone: match again.
        """
        wanted = answer.rebuild
        if self._chunk is not None and wanted is not None and wanted.stop > (most := self._most(answer)):
            piece = self._manager.match(live.keys, live.tokens, at_most=most)
            if self.wanted(piece, live.rebuilt) is not None:
                answer = piece
        return self._admission.rebuild(answer, live.tokens, step=self._chunk, owner=live.owner)

    def granted(self, live: Live, fill: Fill) -> None:
        """Its turn was granted: the keys are the engine's to compute."""
        assert fill.rebuild is not None
        lease = fill.rebuild.lease
        with self._manager.lock:
            if self._requests.try_fire("rebuild", live) is not None:  # it was given up meanwhile
                self._drop(fill, None)
                return
            waited = self._clock() - live.since
            live.rebuild, live.rebuilt, live.lacked = fill, fill.boundary, 0
            live.owed = fill.boundary - lease.length
            self._requests.queues.granted(live.number)
            self._requests.tally.admitted(Queue.INDEXER, waited)
            self._requests.tally.count("rebuilds")
            work = Work(live, None, lease.length, fill.boundary, lease.replay, lease.exact, waited, fill)
            self._requests.granted.append(work)

    # ---- ends -------------------------------------------------------------------------------------------------------

    def publish(self, live: Live) -> None:
        """The keys are computed: others find them, and the request waits for what it misses now.

        Keys whose entries are gone by now, or of an epoch that has ended, are given up; ``live.fault`` says why.
        Nothing happens where the request was given up, or put back, meanwhile.

        Raises:
            Exception: what the backend, the clock or a store raises. Where the keys were not published by then, they
                are the request's still: publish again, or preempt or cancel it.
        """
        with self._manager.lock:
            fill = live.rebuild
            if fill is None or live.owed:  # nobody has computed them yet
                return
        try:
            self._manager.publish(fill)
        except Refused as refused:
            if fill.fill_id in self._manager.fills or self._manager.filler.is_void(fill):
                self._ended(live, fill, refused)  # otherwise another call has published them just now, and ends it
        except BaseException:
            if fill.fill_id not in self._manager.fills:
                self._ended(live, fill, None)
            raise
        else:
            self._ended(live, fill, None)

    def give_up(self, live: Live, done: Done | None) -> None:
        """What a request rebuilds will not be published. The caller holds the lock, and has asked the clock."""
        fill, live.rebuild = live.rebuild, None
        if fill is not None:
            self._drop(fill, done)

    def notice(self) -> None:
        """Those whose memory was allocated anew wait anew, with nothing."""
        with self._manager.lock:
            for live in list(self._requests.by_number.values()):
                if live.rebuild is not None and self._manager.filler.is_void(live.rebuild):
                    self._wait_anew(live)
                    self._requests.tally.count("voided")

    def _ended(self, live: Live, fill: Fill, fault: Refused | None) -> None:
        """A rebuild was published, or could not be."""
        with self._manager.lock:
            if live.rebuild is not fill:
                return  # it was given up, or put back, meanwhile
            if fault is not None:
                self._manager.tick()  # what may raise comes before anything has changed
                live.fault = fault
                self._requests.tally.count("rebuilds_failed")
            self.give_up(live, None)
            self._requests.sure("rebuilt", live, where=Queue.RESIDENT)
            self._requests.put(live, Queue.RESIDENT, float(live.tokens - live.rebuilt), holds=False)
        self._changed()

    # ---- small helpers; the caller holds the lock -------------------------------------------------------------------

    def _wait_anew(self, live: Live) -> None:
        self.give_up(live, None)
        self._requests.again(live, Queue.RESIDENT, float(live.tokens))

    def _drop(self, fill: Fill, done: Done | None) -> None:
        """It counts as one who has slots no more, and the fill, where it was not published, is given up."""
        self._admission.leave_rebuild()
        if fill.fill_id in self._manager.fills:
            self._manager.filler.abandon_now(fill, done)

    def _most(self, answer: Answer) -> int:
        """Tokens that the first piece of a rebuild may end at."""
        assert self._chunk is not None and answer.rebuild is not None
        return max(answer.now, answer.rebuild.start) + self._chunk
