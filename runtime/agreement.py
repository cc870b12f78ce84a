"""Agreement of ranks that serve the same requests, each from a cache of its own that evicts by itself.

A rank can restore a *set* of boundaries. Where a trailing kind (window, tail) is kept at some boundaries only, what one
rank has at most may be missing on another that has both more and less, so the least of the greatest is no answer: the
sets are intersected, and the greatest common boundary is agreed on.

One step, for all its requests at once::

    look      lease the greatest boundary of one's own, so that its chain stays meanwhile
    say       everybody's sets to everybody                                       an exchange
    acquire   keep that lease if it is what was agreed; else take the agreed one, and give the longer one up
    confirm   who has its lease                                                   another
    use       if all have

Where a rank lost the agreed boundary between its look and its lease, all hear so in the same exchange, give up what
they took, and vote again on those requests; after ``votes`` votes the length is 0. Every step has at least one vote,
and every vote its two exchanges: what one rank alone knows changes what it says, never whether it speaks. Each message
carries its place in the step, and digests of the step's requests and of all decisions before, so that ranks which
differ in these are told (``RanksDiverged``) instead of heeding each other.

Sets are of what memory holds now. What a rank could bring in from its store is a second set, said beside the first if
asked for (``stored=True``) and agreed on by itself as ``Agreed.reachable``: each rank loads up to there, and a later
step finds it in memory. Nothing is loaded here.

A ``round`` is a step of one vote that leases nothing: between its two exchanges the caller does what follows from what
was agreed, and the second one tells all what came of it everywhere. A ``vote`` is an exchange of one word. Schedulers
use these two: ``rank_turns.py``.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np

from .ballots import Head, Phase, Saying, failure, greatest, heed, pack_sayings, unpack_sayings
from .errors import RankLost, RanksDiverged, Refused
from .keys import Keys
from .layers import whole_block
from .lease import Lease
from .manager import Manager
from .ranks import Group

_LOST, _EXACT, _LOSSY = 0, 1, 2  # what a rank confirms of one request


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a step. Its keys and length are the same on all ranks, and so is its place among the others.

    ``admit`` is this rank's own: False where it has no room for the request in this step, for whatever reason. It takes
    part all the same, and the request waits on all ranks. ``at_most``, tokens that it may reuse, must be the same
    everywhere, and ``also`` is what else of it must be.
    """

    keys: Keys
    tokens: int | None = None
    admit: bool = True
    also: bytes = b""
    at_most: int | None = None

    @property
    def length(self) -> int:
        """Prompt length in tokens."""
        return self.keys.tokens if self.tokens is None else self.tokens

    @property
    def size(self) -> bytes:
        """What must be the same everywhere but for keys and ``also``."""
        return f"{self.length} {len(self.keys)} {self.at_most}".encode()


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks came to for one request; the same on all but for ``lease``.

    Attributes:
        length: tokens that every rank restores.
        exact: whether that is, on every rank, the very state of a cold run.
        lease: this rank's, on exactly ``length`` tokens, and the caller's to release; None when that is 0.
        refused_by: ranks that did not admit the request; if there are any, it waits, and ``length`` is 0.
        reachable: tokens that every rank could restore after loading: each loads the plan of
            ``match(..., at_most=reachable)``. ``length`` if stores were not asked.
    """

    length: int
    exact: bool
    lease: Lease | None = field(compare=False)
    refused_by: tuple[int, ...] = ()
    reachable: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """A step that all ranks have decided. Decisions are equal on all ranks, and so is their order.

    Attributes:
        step: its number, from 0.
        agreed: by request.
        votes: how often they voted.
        stream: digest of this decision and all before it.
    """

    step: int
    agreed: tuple[Agreed, ...]
    votes: int
    stream: bytes

    def release(self) -> None:
        """Release this rank's leases, all of which are still held."""
        for one in self.agreed:
            if one.lease is not None:
                one.lease.manager.release(one.lease)


class Agreement:
    """One rank's part in the agreements of a group. Used by one thread.

    Args:
        group: the ranks.
        manager: this rank's cache. Model, granule and window policy are the same everywhere; pools need not be.
        votes: how often a step may vote before what ranks still lose comes to 0; the same everywhere.
        owner: of the leases.

    Attributes:
        exchanges: calls of the group so far; equal on all ranks after each step.

    Raises:
        ValueError: ``votes`` is not in [1, 255].
    """

    def __init__(self, group: Group, manager: Manager, *, votes: int = 3, owner: str = "") -> None:
        if not 1 <= votes <= 255:
            raise ValueError(f"votes={votes}; give 1 to 255")
        self.group, self.manager, self.votes, self.owner = group, manager, votes, owner
        self.exchanges = 0
        self._steps = 0
        self._stream = _digest(manager.profile.identity.encode(), b"%d %d" % (manager.profile.granule, votes))
        self._broken: str | None = None
        self._turn = threading.Lock()

    def step(self, asks: Sequence[Ask], *, draft: int = 0, stored: bool = False) -> Decision:
        """Agree on the requests of one step. All ranks call it for the same requests in the same order.

        Args:
            asks: the requests; a step may have none.
            draft: as for ``match``; the same on all ranks.
            stored: whether to agree on ``reachable`` too; the same on all ranks. Asks stores for all that memory lacks.

        Raises:
            RankLost: a rank is gone. Like the next error it ends the agreement: later steps raise it at once.
            RanksDiverged: ranks are in different steps, or have different requests in this one.
            RankFailed: another rank could not take part; this step is given up, and the next may begin.
            Refused, ValueError, StoreError: what this rank's own manager says; the others then get RankFailed.
            RuntimeError: another thread is in a step, or an earlier one ended the agreement.

        Nothing that the step leased is held after an error.
        """
        with self._alone():
            return self._step(asks, draft, stored)

    def round(
        self,
        asks: Sequence[Ask],
        begin: Callable[[tuple[Agreed, ...]], bytes],
        options: str = "",
        *,
        stored: bool = False,
    ) -> list[bytes]:
        """Agree on lengths, let the caller act on them, and tell all what came of it: two exchanges, whatever happens.

        Args:
            asks: as for ``step``.
            begin: given what is agreed on for each request; returns what this rank says of it, as many bytes as on each
                other rank. Nothing is leased: it has to see itself whether that is there still.
            options: what else must be the same on all ranks; where it is not, nobody begins.
            stored: as for ``step``.

        Returns:
            What each rank says, by rank.

        Raises:
            RankLost, RanksDiverged, RankFailed, RuntimeError: as for ``step``, also after ``begin`` has run.
            Exception: of ``begin``; the others then get RankFailed.
        """
        with self._alone():
            step = _Step(self.manager, self.owner, asks, 0, stored, leases=False, options=options)
            head = self._head(step.digest, len(step.open))
            step.hear(self._exchange(head, step.say))
            agreed = tuple(step.agreed)
            said = self._exchange(head.turned(Phase.CONFIRM), lambda: begin(agreed))
            if len({len(body) for body in said}) > 1:
                raise RanksDiverged("how much they say", [f"{len(body)} bytes" for body in said])
            lengths = [(one.length, one.refused_by, one.reachable) for one in agreed]
            self._stream = _digest(self._stream, step.digest, repr(lengths).encode(), *said)
            return said

    def fail(self, error: Exception) -> NoReturn:
        """Tell the others, who begin a step, that this rank can't take part in it; raises ``error``.

        Raises:
            RankLost, RanksDiverged, RuntimeError: as for ``step``.
        """

        def say() -> bytes:
            raise error

        with self._alone():
            self._exchange(self._head(_digest(b"fail"), 0), say)
        raise AssertionError("what can't be said was said")

    def vote(self, yes: bool) -> bool:
        """Whether all ranks say yes; one exchange.

        Raises:
            RankLost, RanksDiverged, RankFailed, RuntimeError: as for ``step``.
        """
        with self._alone():
            said = self._exchange(self._head(_digest(b"vote"), 0).turned(Phase.CONFIRM), lambda: bytes([yes]))
            self._stream = _digest(self._stream, *said)
            return all(body == bytes([True]) for body in said)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time, and nobody once ranks have parted."""
        if not self._turn.acquire(blocking=False):
            raise RuntimeError("another thread is in a step; give all steps of a rank to one thread")
        try:
            if self._broken is not None:
                raise RuntimeError(f"this agreement has ended; begin one with a new group ({self._broken})")
            yield
        except (RankLost, RanksDiverged) as error:
            self._broken = str(error)
            raise
        finally:
            self._turn.release()

    def _head(self, digest: bytes, asks: int) -> Head:
        """Of the first message of a new step."""
        number, self._steps = self._steps, self._steps + 1
        return Head(Phase.SAY, 1, self.group.rank, number, asks, digest[:16], self._stream[:8])

    def _step(self, asks: Sequence[Ask], draft: int, stored: bool) -> Decision:
        step = _Step(self.manager, self.owner, asks, draft, stored)
        first = self._head(step.digest, len(step.open))
        number, vote = first.step, 0
        try:
            while vote == 0 or (step.open and vote < self.votes):
                vote += 1
                head = replace(first, vote=vote, asks=len(step.open))
                step.hear(self._exchange(head, step.say))
                step.settle(self._exchange(head.turned(Phase.CONFIRM), step.confirm))
        except BaseException:
            step.give_up()
            raise
        agreed = tuple(step.agreed)
        said = [(one.length, one.exact, one.refused_by, one.reachable) for one in agreed]
        self._stream = _digest(self._stream, step.digest, repr((said, vote)).encode())
        return Decision(number, agreed, vote, self._stream)

    def _exchange(self, head: Head, body: Callable[[], bytes]) -> list[bytes]:
        """Say something to all ranks, also where it can't be said; what they said."""
        try:
            message = head.message(body())
        except Exception as error:
            failed = head.turned(Phase.FAILED)
            heed(failed, self._gather(failed.message(failure(error))))
            raise
        return heed(head, self._gather(message))

    def _gather(self, message: bytes) -> list[bytes]:
        self.exchanges += 1
        return self.group.all_gather(message)


class _Step:
    """One rank's view of a step: what is still open, and what it holds for each request."""

    def __init__(
        self,
        manager: Manager,
        owner: str,
        asks: Sequence[Ask],
        draft: int,
        stored: bool,
        *,
        leases: bool = True,
        options: str = "",
    ) -> None:
        self._leases = leases
        self._manager, self._owner, self._granule = manager, owner, manager.profile.granule
        self._asks, self._draft, self._sets = tuple(asks), draft, 2 if stored else 1
        if odd := [type(ask).__name__ for ask in self._asks if not isinstance(ask, Ask)]:
            raise TypeError(f"a step of {', '.join(odd)}; give an Ask for each request, such as Ask(keys)")
        tags = [_digest(ask.size, ask.also, *ask.keys.digests[-1:]) for ask in self._asks]
        self._tags = [tag[:4] for tag in tags]
        self.digest = _digest(b"%d %d %d" % (len(tags), draft, stored), options.encode(), *tags)
        self.open = list(range(len(tags)))
        self.agreed = [Agreed(0, True, None)] * len(tags)
        self._held: list[Lease | None] = [None] * len(tags)  # of open requests
        self._taken: dict[int, Lease] = {}

    def say(self) -> bytes:
        """Look, lease what this rank has at most, and say what it has."""
        sayings = [self._look(n) for n in self.open]
        return pack_sayings([self._tags[n] for n in self.open], sayings)

    def hear(self, bodies: Sequence[bytes]) -> None:
        """The greatest boundary that all ranks have, for each open request."""
        lengths = [self._boundaries_of(self._asks[n]) for n in self.open]
        ranks = [unpack_sayings(body, lengths, self._sets) for body in bodies]
        for place, n in enumerate(self.open):
            said = [sayings[place] for sayings in ranks]
            refused_by = tuple(rank for rank, one in enumerate(said) if not one.admit)
            most = [self._granule * greatest([one.sets[row] for one in said]) for row in range(self._sets)]
            self.agreed[n] = Agreed(most[0], True, None, refused_by, most[-1])

    def confirm(self) -> bytes:
        """Lease what was agreed, give up what is longer, and say whether that went well."""
        confirmed = bytearray()
        for n in self.open:
            length, before = self.agreed[n].length, self._held[n]
            if before is not None and before.length == length:
                lease: Lease | None = before
            else:
                lease = self._held[n] = self._lease(self._asks[n], length)
                self._release(before)  # only now, so that the chain stays
            if length and lease is None:
                confirmed.append(_LOST)
            else:
                confirmed.append(_EXACT if lease is None or lease.exact else _LOSSY)
        return bytes(confirmed)

    def settle(self, bodies: Sequence[bytes]) -> None:
        """Hand out leases where all ranks have theirs; the others stay open, at 0."""
        still = []
        for place, n in enumerate(self.open):
            codes, one = {body[place] for body in bodies}, self.agreed[n]
            lease, self._held[n] = self._held[n], None
            if _LOST in codes:
                self._release(lease)
                self.agreed[n] = Agreed(0, True, None, one.refused_by, one.reachable)
                still.append(n)
            else:
                self.agreed[n] = Agreed(one.length, codes <= {_EXACT}, lease, one.refused_by, one.reachable)
        self.open = still

    def give_up(self) -> None:
        """Release everything that the step holds."""
        with ExitStack() as leases:  # each of them, even if one raises
            for lease in self._taken.values():
                leases.callback(self._manager.release, lease)

    def _look(self, n: int) -> Saying:
        ask, manager = self._asks[n], self._manager
        manager.check_keys(ask.keys)
        size = self._boundaries_of(ask)
        sets = [np.zeros(size, np.bool_) for _ in range(self._sets)]
        if ask.admit:
            now = manager.boundaries(ask.keys, ask.tokens, draft=self._draft, at_most=ask.at_most)
            for row in sets:
                row[now - 1] = True
            if self._sets > 1:
                reached = manager.loadable(ask.keys, ask.tokens, draft=self._draft, at_most=ask.at_most)
                sets[1][reached - 1] = True
            if len(now) and self._leases:
                self._held[n] = self._lease(ask, int(now[-1]) * self._granule)
        return Saying(ask.admit, tuple(sets))

    def _lease(self, ask: Ask, length: int) -> Lease | None:
        """A lease on exactly ``length`` tokens; None where that is 0 or can't be had any more."""
        if not length:
            return None
        answer = self._manager.match(ask.keys, ask.tokens, at_most=length)
        if answer.now != length:
            return None
        try:
            lease = self._manager.acquire(answer, owner=self._owner)
        except Refused:
            return None
        self._taken[lease.lease_id] = lease
        return lease

    def _release(self, lease: Lease | None) -> None:
        if lease is not None:
            self._manager.release(lease)
            del self._taken[lease.lease_id]

    def _boundaries_of(self, ask: Ask) -> int:
        return min(whole_block(ask.length, self._granule), len(ask.keys))


def _digest(*parts: bytes) -> bytes:
    """Of parts that are told from one another."""
    running = hashlib.sha256()
    for part in parts:
        running.update(struct.pack("<Q", len(part)))
        running.update(part)
    return running.digest()
