"""The run of a request trace through a manager: begin, decode together, publish, finish; audited as it goes.

Time is virtual. Requests come at the trace's times; a decoded token of all live requests takes ``STEP_MS``, the prompt
nothing. A prompt is found by others as soon as its request has begun. Boundary kinds (window, tail) are kept at the
ends of chunks as far as there is room for them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from ...runtime.answers import Answer, AnswerKind
from ...runtime.errors import KvfsmError, Refused
from ...runtime.keys import Keys
from ...runtime.manager import Manager
from ...runtime.stores.store import StoreError
from ...runtime.table import Fired
from .replay_order import Order
from .replay_tags import Tagger, Tags, tags_of
from .replay_trace import Asked, RequestTrace

STEP_MS = 20.0
"""Virtual milliseconds of a decoding step."""

TIERS = ("memory", "packed", "store")

FOR_ROOM = ("ADMISSION", "POOL_FULL", "TOO_MANY_READERS")
"""Refusals that a run without races may meet: too little of something. Any other is a fault."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request that was not served, and why."""

    line: int
    refusal: str
    why: str


@dataclass(slots=True)
class Tally:
    """What a replay has counted so far; tokens of prompts unless said otherwise.

    ``alone`` is what each kind could have served by itself; ``tiers`` where the slowest object of what was reused lay
    when the request began. ``boundaries_lost`` were not kept for want of room. ``violations`` by their text: how often.
    """

    begun: int = 0
    ended: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    decoded_tokens: int = 0
    alone: Counter[str] = field(default_factory=Counter)
    verdicts: dict[str, Counter[str]] = field(default_factory=dict)
    tiers: Counter[str] = field(default_factory=Counter)
    evictions: Counter[str] = field(default_factory=Counter)
    rejected: list[Rejected] = field(default_factory=list)
    deferred: int = 0
    preempted: int = 0
    boundaries_lost: int = 0
    packed_granules: int = 0
    audits: int = 0
    violations: dict[str, int] = field(default_factory=dict)
    metadata_bytes: int = 0
    manager_seconds: float = 0.0
    steps: int = 0
    complete: bool = False

    def told(self, fired: Fired) -> None:
        """Count evictions; for ``Manager(on_event=)``."""
        if fired.event == "evict" and not fired.held:
            self.evictions[fired.machine] += int(np.count_nonzero(fired.codes == 0))


@dataclass(slots=True)
class _Live:
    asked: Asked
    keys: Keys


class Replay:
    """One run.

    Args:
        trace: the requests.
        manager: serves them; with a row for each live one, and ``on_event=tally.told``.
        tally: what is counted.
        order: whom to begin next.
        chunk: tokens between two boundaries that are kept, a multiple of the granule.
        audit_every: requests between two audits; there is one at the end, too.
    """

    def __init__(
        self, trace: RequestTrace, manager: Manager, tally: Tally, order: Order, *, chunk: int, audit_every: int
    ) -> None:
        self.trace, self.manager, self.tally = trace, manager, tally
        self._order = order
        self._chunk = chunk // manager.profile.granule
        self._audit_every = audit_every
        self._tagger = Tagger(manager)
        self._kinds = manager.core.kinds
        self._trailing = manager.core.trailing
        kv = manager.core.pools.get("compressed_kv")
        self._packs = kv is not None and len(kv) > kv.hot
        self._live: dict[int, _Live] = {}  # by row, the oldest first
        self._left = np.zeros(len(manager.requests.active), np.int64)  # tokens still to decode
        self._full = False  # nobody begins until somebody has ended
        self._counted: set[int] = set()  # requests whose reuse was counted: one that was preempted begins twice

    def run(self, stopped: Callable[[], bool] = lambda: False, tell: Callable[[Tally], None] = lambda _: None) -> None:
        """Serve all requests, or those until ``stopped`` says so; ``tell`` hears of each that has begun."""
        coming, now = iter(self.trace.requests), 0.0
        ahead = next(coming, None)
        try:
            while not stopped():
                while ahead is not None and ahead.at <= now:
                    self._order.came(ahead)
                    ahead = next(coming, None)
                self._begin_all(tell, stopped)
                if self._live:
                    self._decode()
                    now += STEP_MS
                elif ahead is not None:
                    now = max(now, ahead.at)
                elif not len(self._order):
                    self.tally.complete = True
                    break
            self.audit()
        except KvfsmError as error:  # what may be refused was asked for where it may; this is a fault of the manager
            self._violated(f"{type(error).__name__}: {error}")

    def audit(self) -> None:
        """Hold the manager's books against each other."""
        audit = self.manager.audit()
        self.tally.audits += 1
        self.tally.metadata_bytes = max(self.tally.metadata_bytes, self.manager.metadata_bytes())
        for text in (*audit.violations, *audit.dropped):
            self._violated(text)

    # ---- a request begins -----------------------------------------------------------------------------------------

    def _begin_all(self, tell: Callable[[Tally], None], stopped: Callable[[], bool]) -> None:
        while len(self._order) and len(self._live) < len(self._left) and not self._full and not stopped():
            asked = self._order.next()
            try:
                self._begin(asked)
            except Refused as refused:
                self._refused(asked, refused)
            tell(self.tally)

    def _refused(self, asked: Asked, refused: Refused) -> None:
        """Later, if somebody's end can make room; never, if not. Raises what has nothing to do with room."""
        if refused.refusal.name not in FOR_ROOM:
            raise refused
        if self._live and refused.refusal.name != "ADMISSION":
            self._order.put_back(asked)
            self._full = True
            self.tally.deferred += 1
        else:
            self.tally.rejected.append(Rejected(asked.line, refused.refusal.name, str(refused)))

    def _begin(self, asked: Asked) -> None:
        """Match, acquire, admit, and publish the prompt. Raises Refused with nothing changed."""
        manager, granule = self.manager, self.manager.profile.granule
        keys = manager.keys(self.trace.tokens(asked))
        tags = tags_of(keys)
        with self._timed():
            first, answer = self._look(keys, asked.prompt)
            lease = manager.acquire(answer) if answer.now else None
        if lease is not None:
            for text in self._tagger.check(lease.slots, lease.length // granule, tags):
                self._violated(f"{text} (line {asked.line})")
        try:
            with self._timed():
                row = manager.requests.admit(asked.prompt, lease=lease)
        except Refused:
            if lease is not None:
                manager.release(lease)
            raise
        self._live[row], self._left[row] = _Live(asked, keys), asked.answer
        self.tally.begun += 1
        self._count(asked, first, answer)
        self._tagger.write_row(row, tags)
        with self._timed():
            manager.requests.publish(row, keys)
        if self._trailing:
            self._keep_boundaries(keys, answer.now // granule, asked.prompt, tags)
        if self._audit_every and self.tally.begun % self._audit_every == 0:
            self.audit()

    def _look(self, keys: Keys, tokens: int) -> tuple[Answer, Answer]:
        """The first answer, and the one after what it named was brought into memory, if there was room."""
        first = self.manager.match(keys, tokens)
        if first.kind is not AnswerKind.HIT_PENDING or first.plan is None:
            return first, first
        try:
            return first, self.manager.load(first.plan)
        except Refused:
            return first, self.manager.match(keys, tokens)  # compute what can't be brought in

    def _keep_boundaries(self, keys: Keys, reused: int, tokens: int, tags: Tags) -> None:
        """Fills of the boundary kinds at the ends of chunks that were computed; where there is no room, none."""
        profile = self.manager.profile
        stop, begin = tokens // profile.granule, reused
        if profile.window_block is not None and begin < stop and self._keep(keys, begin, stop, tags):
            return  # windows in blocks are good at every boundary
        while begin < stop:
            end = min(stop, (begin // self._chunk + 1) * self._chunk)
            if end == stop and tokens % profile.granule == 0 and profile.window_block is None:
                return  # published with the row
            self.tally.boundaries_lost += not self._keep(keys, begin, end, tags)
            begin = end

    def _keep(self, keys: Keys, begin: int, end: int, tags: Tags) -> bool:
        """One such fill; False where there is no room for it."""
        try:
            with self._timed():
                fill = self.manager.reserve(keys, begin, end, kinds=self._trailing)
        except Refused as refused:
            if refused.refusal.name not in FOR_ROOM:
                raise
            return False
        for kind, slots in fill.slots.items():
            self._tagger.write(kind, slots, fill.places[kind], tags)
        with self._timed():
            self.manager.publish(fill)
        return True

    def _count(self, asked: Asked, first: Answer, answer: Answer) -> None:
        """What the request could reuse, once a request."""
        if asked.number in self._counted:
            return
        self._counted.add(asked.number)
        tally = self.tally
        tally.prompt_tokens += asked.prompt
        tally.reused_tokens += answer.now
        for kind in self._kinds:
            said = first.objects[kind]
            tally.alone[kind] += min(said.length, asked.prompt)
            tally.verdicts.setdefault(kind, Counter())[said.verdict] += 1
        for tier, tokens in zip(TIERS, tiers_of(first, answer.now, self.manager.profile.granule), strict=True):
            tally.tiers[tier] += tokens

    # ---- live requests --------------------------------------------------------------------------------------------

    def _decode(self) -> None:
        """A token for each live request that has one left; those that have none end."""
        rows = np.fromiter(self._live, np.intp, len(self._live))
        for row in rows[self._left[rows] == 0].tolist():
            self._end(row)
        rows = rows[self._left[rows] > 0]
        if not len(rows):
            return
        try:
            with self._timed():
                self.manager.requests.step(rows)
        except Refused as refused:
            self._preempt(refused)
            return
        self._left[rows] -= 1
        self.tally.steps += 1

    def _preempt(self, refused: Refused) -> None:
        """No room for the next token: the youngest gives its slots back and begins again later, from its prompt."""
        if refused.refusal.name not in FOR_ROOM:
            raise refused
        row = next(reversed(self._live))
        asked = self._live.pop(row).asked
        with self._timed():
            self.manager.requests.finish(row)
        if self._live:
            self._order.put_back(asked)
            self._full = True
            self.tally.preempted += 1
        else:
            self._full = False
            self.tally.rejected.append(Rejected(asked.line, refused.refusal.name, str(refused)))

    def _end(self, row: int) -> None:
        """Publish what was decoded, and finish."""
        manager, live = self.manager, self._live.pop(row)
        asked, keys = live.asked, live.keys
        keys.extend(self.trace.answer(asked))
        tags = tags_of(keys)
        self._tagger.write_row(row, tags)
        with self._timed():
            manager.requests.publish(row, keys)
        for text in self._tagger.check_row(row, tags):
            self._violated(f"{text} (line {asked.line}, at its end)")
        with self._timed():
            if manager.store is not None:
                self._persist(keys)
            manager.requests.finish(row)
            if self._packs:
                self._pack(keys)
        self._full = False
        self.tally.ended += 1
        self.tally.decoded_tokens += asked.answer

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


def tiers_of(first: Answer, reused: int, granule: int) -> tuple[int, int, int]:
    """Reused tokens by where the slowest object of each granule lay: memory, packed, store."""
    memory, packed = min(first.now, reused), 0
    if first.plan is not None and reused > first.now:
        stored = np.zeros(reused // granule, np.bool_)
        cold = np.zeros(reused // granule, np.bool_)
        paged = [first.plan.wanted[kind] for kind in ("compressed_kv", "indexer_state") if kind in first.plan.wanted]
        for places in paged:
            stored[places[places < len(stored)]] = True
        cold[first.plan.expand.start : first.plan.expand.stop] = True
        rest = slice(first.now // granule, None)
        if first.plan.wanted and not paged and not cold[rest].any():
            stored[rest] = True  # only the boundary's own objects were lacking
        packed = int((cold & ~stored)[rest].sum()) * granule
        memory += int((~cold & ~stored)[rest].sum()) * granule
    return memory, packed, reused - memory - packed
