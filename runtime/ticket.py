"""The ticket of one load: which slots it fills, and what whoever moves the bytes says of them.

A ticket ends once: done, failed, or aborted; after an abort its slots stay quarantined until the transfer is known to
have stopped. What its methods do to the slots is in ``loading.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .answers import Plan
from .generated import Refusal
from .kinds import Numbers
from .pool import Slots

if TYPE_CHECKING:
    from .loading import Loader


@dataclass(frozen=True, slots=True)
class Word:
    """Where a ticket's word is, whose it is there, and who opened it, as 16 bits."""

    place: int
    generation: int
    of: int


@dataclass(slots=True, eq=False)
class Ticket:
    """An open load, of those who wait for it and of whoever moves its bytes.

    The methods for the former are part of a larger step of theirs; the others are atomic each.

    Its word (the spec's ``ticket``) decides what it takes, and is another's once it has ended; ``state`` stays: "open",
    then "done" or "failed"; after an abort "aborted", then "late" or "quiesced".
    """

    loader: Loader
    ticket_id: int
    word: Word
    owner: str
    epoch: int
    plan: Plan
    batches: list[Batch]
    held: Slots  # packed slots that the expansion reads
    state: str = "open"
    held_generations: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    missing: Mapping[str, Numbers] | None = None  # places by kind that the store could not give, where that is known
    kept: int = 0  # granules up to which it made readable what it brought; the plan's boundary when it is done
    waiting: list[str] = field(default_factory=list)  # owners who wait for it, the one who opened it first
    moving: bool = False  # a transfer of ours is under way
    site: str | None = None  # the call that opened it, in debug mode
    _calls: list[Callable[[Ticket], None]] = field(default_factory=list)

    def slots(self, kind: str) -> Slots:
        """Destination slots of the store's objects of a kind, in the order of the plan's places."""
        found = [batch.slots for batch in self.batches if batch.kind == kind and batch.begin == "load_begin"]
        return np.concatenate(found) if found else np.empty(0, np.intp)

    def all_slots(self, kind: str) -> Slots:
        """All slots of a kind that are known to this ticket alone."""
        found = [batch.slots for batch in self.batches if batch.kind == kind]
        return np.concatenate(found) if found else np.empty(0, np.intp)

    @property
    def ended(self) -> bool:
        """Whether it holds no slots any more."""
        return self.state not in ("open", "aborted")

    # ---- for a caller who holds the manager's lock -----------------------------------------------------------------

    def join(self, owner: str) -> None:
        """One more waits for this ticket, which its plan's ``ticket`` named.

        Raises:
            Refused: LEASE when it is not open any more; match again. TOO_MANY_HOLDS when as many
                wait already as its word counts.
        """
        self.loader.join(self, owner)

    def leave(self, owner: str) -> bool:
        """An owner waits no more. The last one to leave aborts the ticket, as ``abort`` does; returns whether it did.

        A ticket that has ended or was aborted is left as it is.

        Raises:
            Refused: LEASE when this owner does not wait for it.
        """
        return self.loader.leave(self, owner)

    def then(self, call: Callable[[Ticket], None]) -> None:
        """Have ``call`` called once with this ticket, under the manager's lock, in the step in which the ticket ends.

        Its slots are readable by then, or free. Several are called in the order in which they were registered, each of
        them whatever another raises; what one raises goes to whoever ended the ticket, which has ended all the same.
        If the ticket has ended already, ``call`` is called at once.
        """
        if self.ended:
            call(self)
        else:
            self._calls.append(call)

    def end(self, state: str) -> None:
        """The loader has published or freed all slots. The caller holds the lock."""
        self.state = state
        calls, self._calls = self._calls, []
        with ExitStack() as stack:
            for call in reversed(calls):
                stack.callback(call, self)

    # ---- for whoever moves the bytes -------------------------------------------------------------------------------

    def transfer(self) -> None:
        """Move all bytes and end the ticket: what a worker runs.

        Where the store can't give an object the ticket fails from there on, see ``done``. An abort stops it after the
        kind that is being read, and then frees the slots.

        Raises:
            Exception: what the store or the backend raised; the ticket has failed then, and no object is to blame.
            Refused: LEASE when the ticket has ended, or is being moved already.
        """
        self.loader.transfer(self)

    def land(self, kind: str, layer: int | None = None) -> int:
        """One more layer of a kind has arrived in all its slots but those that are missing; returns the layers there.

        A kind whose layers don't arrive one by one has one of them, its bytes.

        Args:
            kind: whose.
            layer: which one, its place from 0, so that one that is told twice or too early is noticed; the next one by
                default.

        Raises:
            Refused: GAP when it is not the next one, or all have landed. LEASE when the ticket is not open any more, or
                while ``transfer`` runs.
        """
        return self.loader.land(self, kind, layer)

    def miss(self, kind: str, places: npt.ArrayLike) -> None:
        """The store can't give some places of the plan's ``wanted``: they land no more, and the load will fail.

        Raises:
            ValueError: places that the ticket does not load.
            Refused: LEASE when it is not open any more.
        """
        self.loader.miss(self, {kind: self._wanted(kind, places)})

    def use_layer(self, layer: int) -> Refusal | None:
        """None when a reader may use one layer (its place, from 0) of all that is loaded, else the first refusal.

        KV and the indexer keys that route to it are both asked.
        """
        return self.loader.use_layer(self, layer)

    def done(self, ok: bool = True, *, missing: Mapping[str, npt.ArrayLike] | None = None) -> None:
        """The transfer has ended. If well, all of it is readable from now on.

        If not, and it is known what is missing, all kinds are cut at the granule of the first missing place, a layer
        that has not landed being one: what lies before is readable from now on, up to ``kept`` granules. Nothing is
        left of the rest; of a failure without reasons nothing at all.

        An object of which ``LOAD_ATTEMPTS`` loads in a row failed is planned no more, until it is stored here again or
        the epoch ends: who asks again computes.

        Args:
            ok: whether all bytes are there.
            missing: after a failure, the places by kind, of the plan's ``wanted``, that could not be read, beside those
                told with ``miss``. All of them when that is not known. Empty: no object is to blame, nothing is kept.

        Raises:
            Refused: INCOMPLETE when layers or places are missing; the ticket is open still. LEASE when it has ended
                before, or while ``transfer`` runs, which ends it.
            ValueError: ``missing`` names what the ticket does not load, or comes with ``ok``; the ticket is open still.
        """
        if ok and missing is not None:
            raise ValueError(f"places are missing from ticket {self.ticket_id}, ok={ok}; name them after a failure")
        known = None if missing is None else {kind: self._wanted(kind, places) for kind, places in missing.items()}
        self.loader.done(self, ok, missing=known)

    def abort(self) -> None:
        """Everybody who waits has gone while bytes may still arrive: the slots are quarantined.

        One owner of several goes with ``leave``.

        Raises:
            Refused: LEASE when it is not open any more.
        """
        self.loader.abort(self)

    def quiesce(self) -> None:
        """An aborted transfer is known to have stopped: its slots are free.

        Raises:
            Refused: LEASE when it was not aborted, has ended, or ``transfer`` still runs, which then frees them.
        """
        self.loader.quiesce(self)

    def _wanted(self, kind: str, places: npt.ArrayLike) -> Numbers:
        """Some places of a kind, which the plan wants from the store."""
        wanted = self.plan.wanted.get(kind, np.empty(0, np.int64))
        known = np.unique(np.asarray(places, np.int64))
        if not np.isin(known, wanted).all():
            what = f"places {known.tolist()} of {kind} as missing from ticket {self.ticket_id}"
            raise ValueError(f"{what}; give some of {wanted.tolist()}")
        return known


@dataclass(slots=True, eq=False)
class Batch:
    """Slots of one kind that one ticket fills. ``begin`` and ``done`` are the events that open and close it."""

    kind: str
    places: Numbers  # ascending
    granules: Numbers  # which each place belongs to
    slots: Slots
    generations: Numbers
    versions: Numbers
    lossy: npt.NDArray[np.bool_]
    here: npt.NDArray[np.bool_]  # False where no bytes will come
    layers: int  # that land
    begin: str
    done: str
    packed: list[bytes] = field(default_factory=list)  # what an expansion reads
    landed: int = 0
