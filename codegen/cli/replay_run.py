"""The run of a request trace through scheduler, admission, queues and manager; audited as it goes.

Time is virtual (``replay_clock.py``), and ``replay_service.py`` says what takes how long. The engine of a replay does
one step after the other: it computes what the scheduler says, decodes a token for each request whose prompt is there,
and publishes what it computed. Boundary kinds (window, tail) are kept at the ends of chunks as far as there is room for
them. Instead of state a slot gets a tag that says whose it is, and who reads it looks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...runtime.admission import Limits
from ...runtime.answers import Answer
from ...runtime.errors import KvfsmError, Refused
from ...runtime.keys import Keys
from ...runtime.manager import Manager
from ...runtime.reservation import TOO_LITTLE
from ...runtime.scheduler import Live, Scheduler, Work
from ...runtime.stores.store import StoreError
from ...runtime.ticket import Ticket
from .replay_clock import VirtualTime
from .replay_lines import COMPUTE, FiveQueues, Journal, SingleLine
from .replay_service import Costs, VirtualLoads
from .replay_tags import Tagger, tags_of
from .replay_tally import STORE, TIERS, Course, Rejected, Tally
from .replay_trace import Asked, RequestTrace

PAGED = ("compressed_kv", "indexer_state")
"""Kinds that have an object for each granule; those of the others stand for a boundary."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a replay is served.

    Attributes:
        limits: of what is under way at once.
        slot_bytes: of the real slots, by kind.
        chunk: tokens between two boundaries that are kept, a multiple of the granule.
        step_tokens: tokens of prompts that a step computes at most in each queue, and of one prompt; a multiple, too.
        audit_every: requests between two audits, 0: none; there is one at the end in any case.
        give_up_ms: after which a request that has not begun is given up; None: never.
        costs: what takes how long.
        single_line: one line for all in place of the five queues.
    """

    limits: Limits
    slot_bytes: dict[str, int]
    chunk: int
    step_tokens: int
    audit_every: int = 0
    give_up_ms: float | None = None
    costs: Costs = field(default_factory=Costs)
    single_line: bool = False


@dataclass(slots=True, eq=False)
class _Run:
    """A live request; ``answer`` is what it was admitted with, ``row`` None while it waits."""

    live: Live
    keys: Keys
    left: int  # tokens still to decode
    course: Course
    answer: Answer | None = None
    row: int | None = None


class Replay:
    """One run.

    Args:
        trace: the requests.
        manager: serves them; with a row for each request that may have slots, and ``on_event=tally.told``.
        tally: what is counted.
        rules: how they are served.
    """

    def __init__(self, trace: RequestTrace, manager: Manager, tally: Tally, rules: Rules) -> None:
        self.trace, self.manager, self.tally, self.rules = trace, manager, tally, rules
        self.clock = VirtualTime()
        self._journal = Journal(self.clock)
        loads = VirtualLoads(self.clock, rules.costs, rules.slot_bytes, self._load_admitted)
        tally.in_flight = loads.in_flight
        self.scheduler = Scheduler(
            manager,
            loads,
            limits=rules.limits,
            queues=SingleLine(self._journal) if rules.single_line else FiveQueues(self._journal),
            budgets=dict.fromkeys(COMPUTE, float(rules.step_tokens)),
            chunk=rules.step_tokens,
            boundaries=False,  # see _keep_boundaries
            requests=len(trace.requests),
            clock=lambda: self.clock.now,
        )
        self._chunk = rules.chunk // manager.profile.granule
        self._tagger = Tagger(manager)
        self._kinds = manager.core.kinds
        self._trailing = manager.core.trailing
        kv = manager.core.pools.get("compressed_kv")
        self._packs = kv is not None and len(kv) > kv.hot
        self._runs: dict[int, _Run] = {}  # live requests by number

    def run(self, stopped: Callable[[], bool] = lambda: False, tell: Callable[[Tally], None] = lambda _: None) -> None:
        """Serve all requests, or those until ``stopped`` says so; ``tell`` hears after each step."""
        first = self.trace.requests[0].at
        self.clock.now = self.tally.begin = first
        for asked in self.trace.requests:
            self.clock.at(asked.at, partial(self._come, asked))
        try:
            while not stopped() and self._go_on():
                self.tally.now = self.clock.now
                tell(self.tally)
            self.audit()
        except KvfsmError as error:  # what may be refused was asked for where it may; this is a fault of the runtime
            self._violated(f"{type(error).__name__}: {error}")

    def audit(self) -> None:
        """Hold the manager's books against each other."""
        audit = self.manager.audit()
        self.tally.audits += 1
        self.tally.metadata_bytes = max(self.tally.metadata_bytes, self.manager.metadata_bytes())
        for text in (*audit.violations, *audit.dropped):
            self._violated(text)

    # ---- time goes on -----------------------------------------------------------------------------------------------

    def _go_on(self) -> bool:
        """One step of the engine, or the time until something comes; False at the end."""
        clock = self.clock
        clock.advance_to(clock.now)
        with self._timed():
            work = self.scheduler.schedule()
        for one in work:
            self._begin(one)
        self._settle()
        decoding = self._decode()
        if work or decoding:
            tokens = sum(one.stop - one.start + len(one.replay or ()) for one in work)
            self.tally.steps += 1
            self.tally.computed_tokens += tokens
            clock.advance_to(clock.now + self.rules.costs.step(tokens))
            for one in work:
                if one.live.row == one.row:  # else it gave way to those who decode
                    self._computed(one)
            for run in decoding:
                if not run.left:
                    self._end(run)
        elif self.scheduler.wait(0):
            return True  # somebody changed queues; ask again before time passes
        elif clock.next is not None:
            clock.advance_to(clock.next)
        else:
            if self._runs:
                self._violated(f"T1: {len(self._runs)} requests wait, and nothing is under way that could help them")
            self.tally.complete = not self._runs
            return False
        return True

    def _come(self, asked: Asked) -> None:
        keys = self.manager.keys(self.trace.tokens(asked))
        with self._timed():
            live = self.scheduler.submit(keys, asked.prompt)
        course = Course(asked, self._journal.stays[live.number])
        self.tally.courses.append(course)
        self._runs[live.number] = _Run(live, keys, asked.answer, course)
        if self.rules.give_up_ms is not None:
            self.clock.at(self.clock.now + self.rules.give_up_ms, partial(self._give_up, live.number))

    def _give_up(self, number: int) -> None:
        """Who asked has waited long enough."""
        run = self._runs.get(number)
        if run is None or run.course.begun is not None:
            return
        with self._timed():
            self.scheduler.cancel(run.live)
        self.tally.cancelled += 1
        self._left(run, "cancelled")

    def _settle(self) -> None:
        """Hear of those whom the scheduler sent back to wait, or ended."""
        for number, run in list(self._runs.items()):
            if number not in self.scheduler.live:
                why = run.live.fault if run.live.begun.cancelled() else run.live.begun.exception()
                why = why or run.live.fault
                if not isinstance(why, Refused):
                    raise AssertionError(f"request {number} ended, and nobody knows why: {why!r}")
                self._reject(run, why)
            elif run.row is not None and run.live.row != run.row:
                run.row = None
                self.tally.preempted += 1
        self.tally.deferred = len(self._journal.passed)
        self.tally.requests_most = max(self.tally.requests_most, self._holding())

    def _holding(self) -> int:
        return 0 if self.rules.limits.requests is None else self.scheduler.admission.taken("requests")

    def _reject(self, run: _Run, why: Refused) -> None:
        if why.refusal not in TOO_LITTLE:
            raise why
        self.tally.rejected.append(Rejected(run.course.asked.line, why.refusal.name, str(why)))
        self._left(run, "rejected")

    def _left(self, run: _Run, outcome: str) -> None:
        del self._runs[run.live.number]
        run.course.outcome, run.course.ended = outcome, self.clock.now

    # ---- a request begins -------------------------------------------------------------------------------------------

    def _load_admitted(self, live: Live, ticket: Ticket) -> None:
        """A request was admitted to a load: this is what it was answered."""
        reservation = live.reservation
        run = self._runs[live.number]
        if reservation is not None and run.answer is None:  # of a later load: what the first one brought lies in memory
            run.answer = reservation.answer

    def _begin(self, work: Work) -> None:
        """Look at what a request goes on from, write what it computes, and count what it reuses, once in its life."""
        run = self._runs[work.live.number]
        tags = tags_of(run.keys)
        if work.row is None:
            self._rebuild(work, run, tags)
            return
        if run.row is None:
            for text in self._tagger.check_begun(work.row, work.start, tags):
                self._violated(f"{text} (line {run.course.asked.line})")
        self._tagger.write_row(work.row, tags)
        run.row = work.row
        if run.course.begun is not None:
            return
        run.course.begun = self.clock.now
        run.course.stays = list(run.course.stays)  # later ones are those of who was preempted
        reservation = work.live.reservation
        assert reservation is not None
        self._count(run.course.asked, run.answer or reservation.answer, work.start)
        if self.rules.audit_every and self.tally.begun % self.rules.audit_every == 0:
            self.audit()

    def _rebuild(self, work: Work, run: _Run, tags: Any) -> None:
        """Indexer keys are computed before a request begins: look at what they are computed from, and write them."""
        fill = work.rebuild
        assert fill is not None and fill.rebuild is not None
        for text in self._tagger.check_leased(fill.rebuild, work.stop, tags):
            self._violated(f"{text} (line {run.course.asked.line}, for its keys)")
        for kind, slots in fill.slots.items():
            self._tagger.write(kind, slots, fill.places[kind], tags)
            self.tally.rebuilt_tokens += len(slots) * self.manager.profile.granule

    def _count(self, asked: Asked, answer: Answer, reused: int) -> None:
        """What a request could reuse by its answer, and what it did."""
        tally = self.tally
        tally.begun += 1
        tally.prompt_tokens += asked.prompt
        tally.reused_tokens += reused
        for kind in self._kinds:
            said = answer.objects[kind]
            tally.alone[kind] += max(min(said.length, asked.prompt), reused)
            tally.verdicts.setdefault(kind, Counter())[said.verdict] += 1
        if self.manager.store is not None:
            tally.verdicts.setdefault(STORE, Counter())[answer.objects[STORE].verdict] += 1
        each, slowest = tiers_of(answer, reused, self.manager.profile.granule, self._kinds)
        tally.tiers += slowest
        for kind, tiers in each.items():
            tally.tiers_of.setdefault(kind, Counter()).update(tiers)

    # ---- a request computes -----------------------------------------------------------------------------------------

    def _computed(self, work: Work) -> None:
        """A piece of a prompt is there: others find it from now on."""
        run, granule = self._runs[work.live.number], self.manager.profile.granule
        with self._timed():
            if work.row is None:
                self.scheduler.publish(work.live)
                return
            self.manager.requests.publish(work.row, run.keys)
        if self._trailing:
            self._keep_boundaries(run.keys, work.start // granule, work.stop, tags_of(run.keys))
        if work.stop == work.live.tokens:
            if run.course.first is None:
                run.course.first = self.clock.now
            if not run.left:
                self._end(run)

    def _keep_boundaries(self, keys: Keys, begin: int, tokens: int, tags: Any) -> None:
        """Fills of the boundary kinds at the ends of chunks that were computed; where there is no room, none."""
        profile = self.manager.profile
        stop = tokens // profile.granule
        if profile.window_block is not None and begin < stop and self._keep(keys, begin, stop, tags):
            return  # windows in blocks are good at every boundary
        while begin < stop:
            end = min(stop, (begin // self._chunk + 1) * self._chunk)
            if end == stop and tokens % profile.granule == 0 and profile.window_block is None:
                return  # published with the row
            self.tally.boundaries_lost += not self._keep(keys, begin, end, tags)
            begin = end

    def _keep(self, keys: Keys, begin: int, end: int, tags: Any) -> bool:
        """One such fill; False where there is no room for it."""
        try:
            with self._timed():
                fill = self.manager.reserve(keys, begin, end, kinds=self._trailing)
        except Refused as refused:
            if refused.refusal not in TOO_LITTLE:
                raise
            return False
        for kind, slots in fill.slots.items():
            self._tagger.write(kind, slots, fill.places[kind], tags)
        with self._timed():
            self.manager.publish(fill)
        return True

    def _decode(self) -> Sequence[_Run]:
        """A token for each request whose prompt was computed in an earlier step; returns them."""
        decoding = [run for run in self._runs.values() if run.row is not None and run.course.first is not None
                    and run.left and run.live.computed >= run.live.tokens]  # fmt: skip
        if not decoding:
            return ()
        with self._timed():
            gone = self.scheduler.decode([run.live for run in decoding]).back
        decoded = [run for run in decoding if run.live not in gone]
        for run in decoded:
            answer, granules = self.trace.answer(run.course.asked), len(run.keys)
            run.keys.extend(answer[len(answer) - run.left :][:1])
            run.left -= 1
            if len(run.keys) > granules and run.row is not None:
                self._tagger.write_row(run.row, tags_of(run.keys))
        if gone:
            self._settle()
        return decoded

    def _end(self, run: _Run) -> None:
        """Publish what was decoded, and finish."""
        manager, row, keys, asked = self.manager, run.row, run.keys, run.course.asked
        assert row is not None
        with self._timed():
            manager.requests.publish(row, keys)
        for text in self._tagger.check_row(row, tags_of(keys)):
            self._violated(f"{text} (line {asked.line}, at its end)")
        with self._timed():
            if manager.store is not None:
                self._persist(keys)
            self.scheduler.finish(run.live)
            if self._packs:
                self._pack(keys)
        self.tally.ended += 1
        self.tally.decoded_tokens += asked.answer
        self._left(run, "finished")

    def _persist(self, keys: Keys) -> None:
        try:
            self.manager.persist(keys)
        except StoreError:
            self.manager.store_failures += 1

    def _pack(self, keys: Keys) -> None:
        """What nobody reads now moves to the cold form, while there is room in it."""
        try:
            self.tally.packed_granules += self.manager.pack(keys)
        except Refused:
            return  # it stays as it is

    def _violated(self, text: str) -> None:
        self.tally.violations[text] = self.tally.violations.get(text, 0) + 1

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.tally.manager_seconds += time.perf_counter() - begun


def tiers_of(
    first: Answer, reused: int, granule: int, kinds: Sequence[str]
) -> tuple[dict[str, Counter[str]], Counter[str]]:
    """Reused tokens by where they lay at the first look, which each sum up to ``reused``.

    Args:
        first: what the request was answered before anything was loaded for it.
        reused: tokens.
        granule: tokens.
        kinds: that have slots in memory.

    Returns:
        By kind: tokens by tier; and by the tier of the slowest object that a token needed. What lies behind
        ``first.now`` needs the objects of its boundary, too.
    """
    plan, now = first.plan, first.now // granule
    lay = {kind: np.zeros(reused // granule, np.intp) for kind in kinds}  # places in TIERS
    if plan is not None:
        if "compressed_kv" in lay:
            lay["compressed_kv"][plan.expand.start : plan.expand.stop] = TIERS.index("packed")
        for kind, places in plan.wanted.items():
            if kind in PAGED:
                lay[kind][places[places < len(lay[kind])]] = TIERS.index("store")
            elif reused == plan.boundary * granule:  # else it goes on from another boundary, whose objects were there
                lay[kind][now:] = TIERS.index("store")
    slowest = np.maximum.reduce([*lay.values()])
    return {kind: _tokens(tiers, granule) for kind, tiers in lay.items()}, _tokens(slowest, granule)


def _tokens(tiers: npt.NDArray[np.intp], granule: int) -> Counter[str]:
    """Granules' tiers, counted in tokens."""
    return Counter({tier: granule * int(np.count_nonzero(tiers == place)) for place, tier in enumerate(TIERS)})
