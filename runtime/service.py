"""What the parts of one scheduler have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .admission import Admission
from .live_requests import LiveRequests

if TYPE_CHECKING:
    from .manager import Manager


@dataclass(frozen=True, slots=True)
class Service:
    """Whom a scheduler serves, and out of what.

    Attributes:
        manager: whose slots the requests use.
        admission: who may begin, and who has slots.
        requests: those that are live, and where they wait.
        chunk: tokens of a prompt that one step computes at most; None: all of it.
        clock: the time.
        changed: called when there may be new turns.
    """

    manager: Manager
    admission: Admission
    requests: LiveRequests
    chunk: int | None
    clock: Callable[[], float]
    changed: Callable[[], None]
