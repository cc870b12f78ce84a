"""What is open in a manager, who opened it and, in debug mode, from where: for whoever looks for what was never closed.

``Manager(debug=True)`` notes the calling site of each of them; without it nothing is noted or looked up.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .lease import Receipt
    from .manager import Manager

_DEPTH = 4
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


@dataclass(frozen=True, slots=True)
class Leak:
    """Something open: a "lease", "fill", "load", "packing" or "write" to the store; its number among these, and owner.

    Live requests are "request", by their rows, and "reservation" what was admitted and has no row yet.

    ``site`` is the call that opened it, innermost first; None unless in debug mode. ``dropped``: nobody has the lease
    any more, so nobody can release it. ``receipt`` is what was taken for a lease; ``Manager.revoke`` takes either.
    """

    what: str
    number: int
    owner: str
    site: str | None
    dropped: bool
    receipt: Receipt | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        gone = " was dropped without release" if self.dropped else " is open"
        return f"{self.what} {self.number} of {self.owner!r}{gone}{opened(self.site)}"


def open_handles(manager: Manager) -> tuple[Leak, ...]:
    """All that is open. The caller holds the manager's lock."""
    leases = [
        Leak("lease", receipt.lease_id, receipt.owner, receipt.site, reference() is None, receipt)
        for receipt, reference in manager.receipts.values()
    ]
    fills = [Leak("fill", fill.fill_id, fill.owner, fill.site, False) for fill in manager.fills.values()]
    requests = [Leak("request", row, owner, site, False) for row, owner, site in manager.requests.open()]
    reservations = [
        Leak("reservation", number, one.owner, one.site, False)
        for number, one in manager.reservations.items()
    ]
    loads = [
        Leak("load", ticket.ticket_id, ticket.owner, ticket.site, False) for ticket in manager.tickets.values()
    ]
    packings = [Leak("packing", one.number, "", one.site, False) for one in manager.packer.open]
    writes = [Leak("write", one.number, "", one.site, False) for one in manager.storer.open]
    return (*leases, *fills, *loads, *packings, *writes, *requests, *reservations)


def opened(site: str | None) -> str:
    """``site`` as the end of a sentence."""
    return "" if site is None else f", opened at {site}"


def call_site() -> str:
    """Who called the runtime: "file:line in function", and the callers of that, outside this folder."""
    frame: FrameType | None = sys._getframe(1)
    found: list[str] = []
    while frame is not None and len(found) < _DEPTH:
        code = frame.f_code
        if found or not code.co_filename.startswith(_OURS):
            found.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}")
        frame = frame.f_back
    return " < ".join(found)
