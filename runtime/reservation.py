"""What admission answers: a reservation, which holds all that a request needs to begin; not now; or never."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .answers import Answer, Reason
from .generated import Refusal
from .lease import Lease
from .matching import Request
from .ticket import Ticket

if TYPE_CHECKING:
    from .admission import Admission

FOR_ROOM = (
    Reason.POOL_FULL, Reason.BACKPRESSURE, Refusal.TOO_MANY_READERS, Refusal.TOO_MANY_HOLDS, Refusal.FULL,
)  # fmt: skip
"""Refusals that end when others have ended: not now. What can never be has ``Reason.CAPACITY``, in no list of these."""

TOO_LITTLE = (*FOR_ROOM, Reason.CAPACITY)
"""Refusals for want of something, now or for ever. Where nobody else works on the manager any other is a fault."""


class Stage(StrEnum):
    """How far a reservation is."""

    LOADING = "loading"  # a ticket is open
    READY = "ready"  # nothing is in flight; the row can be made
    ENTERED = "entered"  # the row has what was reserved
    ENDED = "ended"  # nothing is held any more


@dataclass(slots=True, eq=False)
class Reservation:
    """What an admitted request holds.

    Attributes:
        number: of the reservation.
        owner: who asked.
        tokens: length of the prompt.
        step: tokens that the first step computes at most; None: all.
        first: tokens that the first step ends at, by what is leased.
        stage: how far it is.
        answer: what can be read now; ``now`` grows when a load has ended.
        lease: on that; None where nothing is read.
        slots: for the row, by kind.
        ticket: the load; None where there was none, and when it has ended.
        loaded: whether the last load brought all that it should have; None before one has ended.
        row: of the request table, once entered.
        site: the call that asked, in debug mode.
        salt: of its keys, for which tenant its slots are taken; None: nobody says.
        home: the admission that made it.
        request: what its load was planned for, to be matched again when that has ended.
        at_most: tokens of it that may be reused.
        in_flight: what the load has of what is limited, by name of the limit.
    """

    number: int
    owner: str
    tokens: int
    step: int | None
    first: int
    stage: Stage
    answer: Answer
    lease: Lease | None
    slots: dict[str, npt.NDArray[np.intp]]
    ticket: Ticket | None = None
    loaded: bool | None = None
    row: int | None = None
    site: str | None = None
    salt: bytes | None = None
    home: Admission | None = field(default=None, repr=False)
    request: Request | None = field(default=None, repr=False)
    at_most: int = field(default=0, repr=False)
    in_flight: Mapping[str, int] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Deferred:
    """Not now: nothing was taken. With ``ticket``: another's load brings what this one asks for; match when it ends.

    ``layer`` says which part has too little: "pool", "lease", "requests" (rows), "load", "admission" (a limit), or
    "scheduler", which lets those go first who ran when this one gave its room back.
    """

    reason: Reason | IntEnum
    layer: str
    detail: str
    ticket: Ticket | None = None

    @property
    def lacks_room(self) -> bool:
        """Whether others who have ended leave room for it; False where it waits for a limit, or for another's load."""
        if self.reason is Reason.BACKPRESSURE:
            return self.layer == "requests"
        return self.reason in (Reason.POOL_FULL, Refusal.TOO_MANY_READERS)


@dataclass(frozen=True, slots=True)
class Rejected:
    """Never: not even with nobody else there.

    ``layer`` says what is too small for it: "pool", "requests" where there are no rows at all, or "ranks" where it is
    another rank's.
    """

    reason: Reason
    layer: str
    detail: str
