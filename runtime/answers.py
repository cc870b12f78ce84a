"""What the manager answers: verdicts, the reasons behind them, and what each kind of object had to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import numpy as np
import numpy.typing as npt


class AnswerKind(StrEnum):
    """The verdict of a match, or of looking at its answer again.

    * HIT: so many tokens can be reused now.
    * MISS: none can.
    * HIT_PENDING: so many once the answer's plan is loaded; what of it can be reused now says ``now``.
    * RETRY: nobody knows, and asking again at once will tell. An epoch ended between the look at memory and the look
      at the store, so that the two together are true of no moment.
    * STALE: it was a hit, and what it found is gone or was replaced since. ``Manager.check`` says so; match again.
    * REJECT: nothing can be reused, whatever is cached; the reason and the layer say why.
    """

    HIT = "HIT"
    MISS = "MISS"
    HIT_PENDING = "HIT_PENDING"
    RETRY = "RETRY"
    STALE = "STALE"
    REJECT = "REJECT"


class Reason(StrEnum):
    """Why an answer is shorter than one may have hoped, or why something was refused."""

    GRANULE = "GRANULE"
    LAYOUT = "LAYOUT"
    INTERSECT = "INTERSECT"
    ALIGN = "ALIGN"
    LEASE = "LEASE"
    IDENTITY = "IDENTITY"
    CAPACITY = "CAPACITY"
    BACKPRESSURE = "BACKPRESSURE"
    POOL_FULL = "POOL_FULL"
    GAP = "GAP"
    EPOCH = "EPOCH"
    STALE = "STALE"

    @property
    def reason(self) -> str:
        """One sentence for people."""
        return _REASONS[self]


_REASONS = {
    Reason.GRANULE: "only whole granules are reused, and the prompt holds none before its last token",
    Reason.LAYOUT: "the slots' layout is not the one that the kernel asks for",
    Reason.INTERSECT: "no length is valid in every kind of object at once",
    Reason.ALIGN: "an address or stride is off the alignment that the kernel or the I/O mode needs",
    Reason.LEASE: "the lease is somebody else's, was released already, or is of another manager",
    Reason.IDENTITY: "the keys are of another model",
    Reason.CAPACITY: (
        "never: it is more than the pools, the rows or the limits could ever have, with nobody else there. Waiting "
        "doesn't help; ask for less"
    ),
    Reason.BACKPRESSURE: (
        "not now: as many are under way as there may be at once, of what the layer says. 'requests': rows, 'load': "
        "open loads, 'scheduler': live requests, or another scheduler's. Ask again when one has ended"
    ),
    Reason.POOL_FULL: (
        "not now: not enough slots are free, and not enough can be evicted. Ask again when somebody has ended"
    ),
    Reason.GAP: (
        "something between is missing. 'publish': the chain before the range is not resident. 'requests': a row of "
        "the window or tail is not there, or drafts would overwrite one that is still needed; `drafts:` or "
        "`retained:` in the model's profile makes room for more"
    ),
    Reason.EPOCH: "the epoch in which it was begun has ended",
    Reason.STALE: "what was matched is gone or was replaced since",
}


@dataclass(frozen=True, slots=True)
class ObjectAnswer:
    """What one kind says: its verdict on the joint length, and the greatest length that it alone could serve.

    ``verdict`` is HIT, MISS, EVICTED (a miss of what was there, known only where eviction leaves tombstones), PACKED,
    PENDING (in the store), REBUILD (to be computed again, see ``Answer``), REPLAY, ABSENT, or UNASKED of a store that
    nobody had to ask. ``length`` (tokens) is for reports only: nothing but the answer's own length may be used.
    ``tier`` is "memory", "packed", "store" or None.
    """

    verdict: str
    length: int
    tier: str | None


@dataclass(frozen=True, slots=True)
class Claim:
    """One request's side of an answer: its digests, and the handles (slot, generation) that the match saw last.

    In every paged kind a granule leaves only after those behind it, so the last granule's handle stands for the whole
    chain. They mean something to the manager that made them alone, and so do plans and answers: ``maker`` is its mark.
    """

    digests: list[bytes] = field(repr=False)
    salt: bytes = field(repr=False)
    handles: tuple[tuple[str, int, int], ...]
    maker: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to bring into fast memory so that ``boundary`` granules can be read.

    ``wanted`` has the places to load of each kind; ``expand`` is the range of granules whose packed KV must be
    expanded.

    ``ticket`` is the number of an open load that brings some of these places already, None when there is none. The
    chains need to be the same only as far as those places, and its boundary may be before or behind this one: what it
    brings is not loaded twice when one waits for it, whatever becomes of it, and matches again, which then plans the
    rest. Of several it is the one that brings the farthest granule of them, of equals the oldest. Waiting is not asked
    for: a plan can be loaded at once, and what comes twice is given back.

    ``tokens`` is the length of the prompt, and ``most`` the granules of it that the match would have let be reused, by
    that length, by ``draft`` and by ``at_most``: whoever looks again when the load has ended keeps to it.
    """

    claim: Claim
    boundary: int
    wanted: Mapping[str, npt.NDArray[np.int64]]
    expand: range
    tokens: int
    most: int
    ticket: int | None = None

    @property
    def objects(self) -> int:
        """Stored objects to read."""
        return sum(len(places) for places in self.wanted.values())


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict of one validated read. A hint until it is acquired: others may run in between.

    Attributes:
        kind: the verdict.
        length: tokens that can be reused; under HIT_PENDING, once ``plan`` is loaded.
        now: tokens that can be reused without loading anything; equals ``length`` under HIT.
        exact: whether the reuse gives the very bits of a cold run under the same chunk schedule.
        replay: tokens to compute again before first use, with the cached entries frozen; None when there are none.
        reason: why it is no longer; None under a full hit.
        layer: the layer that had the last word.
        detail: the reason with its numbers.
        objects: what each of the five kinds says.
        plan: what ``load`` needs; None unless HIT_PENDING.
        claims: what ``acquire`` checks again, one for each request.
        rebuild: tokens whose indexer keys are missing, or of other entries, while the entries themselves can be read:
            with these keys computed again (``Manager.rebuild_begin``) its end could be reused. None when there are
            none, and where a load would make it longer already.
        maker: the mark of the manager that answered.
    """

    kind: AnswerKind
    length: int
    now: int
    exact: bool
    replay: range | None
    reason: Reason | None
    layer: str
    detail: str
    objects: Mapping[str, ObjectAnswer] = field(default_factory=lambda: MappingProxyType({}))
    plan: Plan | None = None
    claims: tuple[Claim, ...] = ()
    rebuild: range | None = None
    maker: object = field(default=None, repr=False, compare=False)
