"""Whom a replay begins next.

Only this says so; what a turn costs and whether there is room is the manager's to say. So far, who came first is first.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from .replay_trace import Asked


class Order(Protocol):
    """Requests that have come and wait to begin."""

    def __len__(self) -> int:
        """How many wait."""
        ...

    def came(self, asked: Asked) -> None:
        """A request has come."""

    def next(self) -> Asked:
        """Takes out whose turn it is; IndexError where nobody waits."""
        ...

    def put_back(self, asked: Asked) -> None:
        """There was no room for it now; it keeps its turn."""


class FirstCome:
    """First come, first served: nobody is passed, though there may be room for a smaller one."""

    def __init__(self) -> None:
        self._waiting: deque[Asked] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def came(self, asked: Asked) -> None:
        """See ``Order``."""
        self._waiting.append(asked)

    def next(self) -> Asked:
        """See ``Order``."""
        return self._waiting.popleft()

    def put_back(self, asked: Asked) -> None:
        """See ``Order``."""
        self._waiting.appendleft(asked)
