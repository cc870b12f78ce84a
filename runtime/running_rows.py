"""Running requests of a scheduler: their chunks, tokens, drafts, what they publish, and how they end or go back.

A lock of its own keeps rows from ending while they are stepped; where both are needed it is taken before the manager's.
An engine that sleeps may have its memory allocated anew under running requests. A row's incarnation says so: who has
lost its row waits anew, from its tokens.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from .agreement import Agreement
from .answers import Reason
from .errors import Refused
from .generated.queued import QueuedState
from .keys import Keys
from .lease import Done
from .live_requests import Live, Stepped, Work
from .queues import Queue
from .reservation import TOO_LITTLE
from .service import Service
from .storing import WriteThrough


class RunningRows:
    """The rows of a scheduler's running requests.

    Args:
        service: whose rows.
        lock: see above.
        agreement: with other ranks, which step the same rows; None where there are none.

    Attributes:
        lock: that one; taken by whoever ends a row.
        short: those whose next chunk found no room in this round.
        stops: whether anybody who begins might keep room from one of them.
        alone: whether on all ranks nobody held slots in this round but one row; None where there are no other ranks.
    """

    def __init__(
        self, service: Service, lock: AbstractContextManager[Any], agreement: Agreement | None = None
    ) -> None:
        self.lock = lock
        self.short: list[Live] = []
        self.stops = False
        self.alone: bool | None = None
        self._agreement = agreement
        self._done: Done | None = None  # whether the device has ended the steps begun before this round
        self._writing: list[WriteThrough] = []
        self._manager, self._admission, self._requests = service.manager, service.admission, service.requests
        self._chunk, self._clock, self._changed = service.chunk, service.clock, service.changed

    # ---- steps ------------------------------------------------------------------------------------------------------

    def begin_round(self, done: Done | None) -> None:
        """Nobody lacks room yet; who has lost its row waits anew. What slides out in this round waits for ``done``."""
        self.short, self.stops, self._done = [], False, done
        with self.lock:
            with self._manager.lock:
                running = self._requests.running()
            self.notice(running)

    def extend(self, live: Live) -> None:
        """The next chunk of a running request's prompt."""
        with self.lock:
            row, start = live.row, live.computed
            if row is None:
                return  # it was given up meanwhile
            if live.owed:  # it began in this very round, or others have not granted yet what this rank has
                with self._manager.lock:
                    self._requests.queues.passed(live.number, stops=False)
                return
            stop = self._admission.step_stop(live.tokens, start, self._chunk)
            try:
                self._manager.requests.extend(row, stop - start, done=self._done)
            except Refused as refused:
                if refused.refusal not in TOO_LITTLE:
                    raise
                with self._manager.lock:
                    self._requests.passed(live, refused.refusal.name)
                    self.stops |= not self._admission.row_behind_transfers(row, stop)
                self.short.append(live)
                return
            with self._manager.lock:
                live.seen = stop
                exact = not self._manager.requests.is_lossy(row)
                work = Work(live, row, start, stop, None, exact, self._clock() - live.since)
                if self._agreement is None:
                    self.granted(live, work)
                else:  # its turn is over where all have granted it, so that turns stay the same on all ranks
                    self._owe(live, work)
                    self._requests.queues.granted_here(live.number)

    def granted(self, live: Live, work: Work) -> None:
        """Its turn was granted; what is left of its prompt waits for the next. The caller holds the manager's lock."""
        self._owe(live, work)
        self.end_turn(live, work)

    def _owe(self, live: Live, work: Work) -> None:
        self._requests.granted.append(work)
        live.owed = work.stop - work.start

    def end_turn(self, live: Live, work: Work) -> None:
        """The second half of ``granted``."""
        if live.number in self._requests.queues:
            self._requests.queues.granted(live.number)
        if work.stop < live.tokens:
            cost = self._admission.step_stop(live.tokens, work.stop, self._chunk) - work.stop
            self._requests.put(live, Queue.RESIDENT, float(cost), holds=True)

    def decode(self, lives: Sequence[Live], tokens: Sequence[int] | None, done: Done | None) -> Stepped:
        """See ``Scheduler.decode``."""
        given = None if tokens is None else _given(lives, [[token] for token in tokens])
        stepping = list(lives)
        with self.lock:
            gone = self.notice(stepping)
        while True:
            with self.lock:
                stepping = self._decoding([live for live in stepping if live not in gone])
                self._check_given(stepping, given)
                rows = _rows(stepping)
                wrong = self._refused(functools.partial(self._manager.requests.make_room, rows, done=done))
                if wrong is not None and wrong.refusal not in TOO_LITTLE:
                    self._fail(wrong)
                if self._everywhere(wrong is None):  # only now does anything move, so that no rank is ahead of others
                    self._manager.requests.count(rows)
                    return self._grown(stepping, given, gone)
                gone.append(self._yield(wrong or _elsewhere("the next token"), done))

    # ---- drafts -----------------------------------------------------------------------------------------------------

    def propose(self, lives: Sequence[Live], counts: int | Sequence[int]) -> Stepped:
        """See ``Scheduler.propose``."""
        wanted = _each(lives, counts)
        with self.lock:
            gone = self.notice(lives)
            stepping = self._decoding([live for live in lives if live not in gone])
            counts = [wanted[live] for live in stepping]
            wrong = self._refused(functools.partial(self._manager.requests.propose, _rows(stepping), counts))
            agreed = False
            try:
                agreed = self._everywhere(wrong is None)
            finally:
                if wrong is None and not agreed:
                    self._manager.requests.reject(_rows(stepping))
            if not agreed:
                never = not self._everywhere(wrong is None or wrong.refusal is not Reason.CAPACITY)
                if wrong is None or (never and wrong.refusal is not Reason.CAPACITY):
                    wrong = _elsewhere("these drafts", never=never)
                raise wrong
            return Stepped(tuple(stepping), tuple(_rows(stepping)), tuple(gone))

    def accept(
        self,
        lives: Sequence[Live],
        counts: int | Sequence[int],
        tokens: Sequence[Sequence[int]] | None,
        done: Done | None,
    ) -> Stepped:
        """See ``Scheduler.accept``."""
        kept = _each(lives, counts)
        given = None if tokens is None else _given(lives, tokens)
        if given is not None and (odd := [live.number for live in lives if len(given[live]) != kept[live]]):
            raise ValueError(f"other tokens than are accepted of requests {odd}; give those, and no more")
        with self.lock:
            gone = self.notice(lives)
            stepping = self._decoding([live for live in lives if live not in gone])
            self._check_given(stepping, given)
            self._manager.requests.accept(_rows(stepping), [kept[live] for live in stepping], done=done)
            return self._grown(stepping, given, gone)

    def rollback(self, live: Live, to: int, keys: Keys | None, done: Done | None) -> bool:
        """See ``Scheduler.rollback``."""
        with self.lock:
            if self.notice([live]) or not self._decoding([live]):
                return False
            kept, row, requests = live.keys if keys is None else keys, live.row, self._manager.requests
            assert row is not None
            requests.check_keys(row, kept)
            if not 0 < to <= live.computed:
                has = live.computed
                raise ValueError(f"request {live.number} has {has} tokens; give 1 to {has}, not {to}")
            if kept.tokens > to:
                raise ValueError(f"keys of {kept.tokens} tokens, and {to} are left; give keys= of no more than those")

            def check() -> None:
                nonlocal done
                with self._manager.lock:
                    done = requests.check_back(row, to, done)

            wrong = self._refused(check)
            if not self._everywhere(wrong is None):  # ranks differ in what a row shares, and so in how far it goes back
                raise wrong or Refused(Reason.GAP, "ranks", f"another rank can't go back to {to} tokens")
            with self._manager.lock:
                if not requests.holds(row, live.incarnation):  # its memory has gone meanwhile
                    return False
                requests.go_back(row, to, done)
                live.keys, live.seen, live.known = kept, to, min(live.known, to)
            return True

    # ---- sharing ----------------------------------------------------------------------------------------------------

    def publish(self, live: Live, done: Done | None) -> int:
        """See ``Scheduler.publish``."""
        with self.lock:
            if self.notice([live]) or not self.runs(live) or live.row is None:
                return 0
            # What is owed nobody has computed, and so nobody may find it.
            requests = self._manager.requests
            shared, writing = requests.publish_unstored(live.row, live.keys, live.computed, 0, None, done)
        if writing is not None:  # a store takes its time, and who gives up waits for none
            self._manager.storer.finish(writing)
        return shared

    # ---- ends -------------------------------------------------------------------------------------------------------

    def finish(self, live: Live, done: Done | None) -> None:
        """See ``Scheduler.finish``."""
        with self.lock:
            if self.runs(live):
                self.end(live, "leave", done)
                self._requests.tally.count("finished")

    def preempt(self, live: Live, done: Done | None) -> None:
        """See ``Scheduler.preempt``."""
        with self.lock:
            if not self.notice([live]) and self.runs(live):
                self.preempt_now(live, done)

    def preempt_now(self, live: Live, done: Done | None) -> None:
        """See ``preempt``; it runs, has its row, and the caller holds ``lock``."""
        assert live.row is not None
        computed = live.computed
        live.seen = computed + live.owed
        _, writing = self._manager.requests.preempt_unstored(live.row, live.keys, computed, done)
        self._writing += [] if writing is None else [writing]
        with self._manager.lock:
            self._leave(live)
            self._requests.again(live, Queue.RESIDENT, float(live.tokens))
        self._changed()

    def store(self) -> None:
        """Have stored what was published by those who went back. The caller holds no lock."""
        while self._writing:
            with self.lock:
                writing = self._writing.pop() if self._writing else None
            if writing is not None:
                self._manager.storer.finish(writing)

    def end(self, live: Live, event: str, done: Done | None) -> None:
        """The row of a running request ends, if it has it still. The caller holds ``lock``."""
        assert live.row is not None
        live.seen = live.computed + live.owed
        if self._has_row(live):
            self._manager.requests.finish(live.row, done=done)
        with self._manager.lock:
            self._leave(live)
            self._requests.sure(event, live)
            self._requests.forget(live)
        self._changed()

    def notice(self, lives: Iterable[Live]) -> list[Live]:
        """Those of some who have lost their rows; they wait anew. The caller holds ``lock``."""
        lost = []
        with self._manager.lock:
            for live in lives:
                if live.row is not None and not self._manager.requests.holds(live.row, live.incarnation):
                    self._leave(live)
                    self._requests.again(live, Queue.RESIDENT, float(live.tokens))
                    self._requests.tally.count("voided")
                    lost.append(live)
        if lost:
            self._changed()
        return lost

    def runs(self, live: Live) -> bool:
        """Whether a request runs; False where it was given up or has ended. The caller holds ``lock``.

        Raises:
            ValueError: it waits.
        """
        with self._manager.lock:
            state = self._requests.state(live)
        if state not in (None, QueuedState.RUNNING, QueuedState.DRAINING):
            raise ValueError(f"request {live.number} doesn't run: it is {state.name.lower()}")
        return state is QueuedState.RUNNING

    # ---- want of room -----------------------------------------------------------------------------------------------

    def unblock(self, done: Done | None) -> None:
        """Where all who run lack room for their next chunk, let the youngest give its room back.

        One that runs alone waits for what others hold: loads, leases, the device.
        """
        with self.lock:
            with self._manager.lock:
                running = self._requests.running()
                stuck = bool(running) and all(live in self.short for live in running)
                if not stuck or (len(running) == 1 and not self._is_alone_everywhere()):
                    return
            why = f"the next chunk of request {running[0].number} doesn't fit beside what it has"
            self._yield(Refused(Reason.POOL_FULL, "scheduler", why), done)

    def _yield(self, why: Refused, done: Done | None) -> Live:
        """The youngest of those who run gives its room back; where it is alone with all there is, it ends.

        The caller holds ``lock``, and somebody runs.
        """
        with self._manager.lock:
            *others, youngest = self._requests.running()
            alone = not others and self._is_alone_everywhere()
        if alone:
            youngest.fault = why
            self.end(youngest, "leave", done)
            self._requests.tally.count("cut_short")
        else:
            self.preempt_now(youngest, done)
            with self._manager.lock:
                self._requests.let_pass(youngest)
        return youngest

    def is_alone(self) -> bool:
        """Whether nobody holds slots but one row. The caller holds the manager's lock."""
        manager = self._manager
        others = (manager.reservations, manager.receipts, manager.fills, manager.tickets, manager.parked)
        return not any(others) and not manager.given_up and int(manager.requests.active.sum()) == 1

    def _is_alone_everywhere(self) -> bool:
        return self.is_alone() if self.alone is None else self.alone

    # ---- other ranks ------------------------------------------------------------------------------------------------

    def _refused(self, call: Callable[[], None]) -> Refused | None:
        """Do something that all ranks do; returns how it was refused here."""
        try:
            call()
        except Refused as refused:
            return refused
        except Exception as error:
            self._fail(error)
        return None

    def _fail(self, error: Exception) -> NoReturn:
        """Raise an error of this rank, once the others, which wait for its word, have heard of it."""
        if self._agreement is not None:
            self._agreement.fail(error)
        raise error

    def _everywhere(self, here: bool) -> bool:
        """Whether something went well on all ranks."""
        return here if self._agreement is None else self._agreement.vote(here)

    # ---- small helpers ----------------------------------------------------------------------------------------------

    def _decoding(self, lives: list[Live]) -> list[Live]:
        """Those of some requests that run. The caller holds ``lock``."""
        running = [live for live in lives if self.runs(live)]
        if early := [live.number for live in running if live.computed < live.tokens]:
            raise ValueError(f"prompts of requests {early} are not computed yet")
        return running

    def _check_given(self, lives: list[Live], given: Mapping[Live, list[int]] | None) -> None:
        """Raise ValueError where tokens are given for keys that don't end where the row does."""
        for live in lives if given is not None else ():
            if live.keys.tokens != live.computed:
                what = f"the keys of request {live.number} have {live.keys.tokens} tokens, and its row {live.computed}"
                long = "they have more than its prompt had: submit keys of the prompt alone, or give no tokens="
                short = "tokens= goes on from keys that have them all"
                raise ValueError(f"{what}; {long if live.keys.tokens > live.computed else short}")

    def _grown(self, lives: list[Live], given: Mapping[Live, list[int]] | None, gone: list[Live]) -> Stepped:
        """Rows have grown, and keys grow with them."""
        for live in lives:
            live.seen = live.computed
            if given is not None:
                live.keys.extend(given[live])
        return Stepped(tuple(lives), tuple(_rows(lives)), tuple(gone))

    def _has_row(self, live: Live) -> bool:
        with self._manager.lock:
            return live.row is not None and self._manager.requests.holds(live.row, live.incarnation)

    def _leave(self, live: Live) -> None:
        """It counts as one who has slots no more. The caller holds the manager's lock."""
        if live.reservation is not None:
            self._admission.leave_now(live.reservation)


def _elsewhere(what: str, *, never: bool = False) -> Refused:
    if never:
        return Refused(Reason.CAPACITY, "ranks", f"another rank can never have room for {what}")
    return Refused(Reason.POOL_FULL, "ranks", f"another rank has no room for {what}")


def _rows(lives: Iterable[Live]) -> list[int]:
    """Rows of requests that run."""
    return [live.row for live in lives if live.row is not None]


def _each(lives: Sequence[Live], counts: int | Sequence[int]) -> dict[Live, int]:
    """A number for each request."""
    listed = [operator.index(counts)] * len(lives) if not isinstance(counts, Sequence) else list(counts)
    if len(listed) != len(lives):
        raise ValueError(f"{len(listed)} numbers for {len(lives)} requests; give one for each, or one for all")
    return dict(zip(lives, listed, strict=True))


def _given(lives: Sequence[Live], tokens: Sequence[Iterable[int]]) -> dict[Live, list[int]]:
    """Token ids for each request."""
    listed = [[operator.index(token) for token in some] for some in tokens]
    if len(listed) != len(lives):
        raise ValueError(f"tokens for {len(listed)} of {len(lives)} requests; give those of each, in their order")
    if odd := [token for some in listed for token in some if not 0 <= token < 1 << 31]:
        raise ValueError(f"token ids {odd}; give ids in [0, 2**31)")
    return dict(zip(lives, listed, strict=True))
