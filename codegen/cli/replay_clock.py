"""Virtual time: a clock that is set by what happens next, and nothing else. All times are milliseconds.

What is due is done in the order of its time; among equals, in the order in which it was asked for. So a run is the same
whenever and wherever it is made.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class VirtualTime:
    """Begins at ``now``.

    >>> time, told = VirtualTime(), []
    >>> time.at(30, lambda: told.append("second"))
    >>> time.at(20, lambda: told.append("first"))
    >>> time.advance_to(25)
    >>> told, time.now, time.next
    (['first'], 25, 30)
    """

    now: float = 0.0
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: Callable[[], int] = field(default_factory=lambda: itertools.count().__next__)

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Have something done at a time; at once means: when the time is advanced next, even by nothing.

        Raises:
            ValueError: the time has passed.
        """
        if when < self.now:
            raise ValueError(f"it is {self.now} ms, and {when} has passed")
        heapq.heappush(self._due, (when, self._number(), call))

    @property
    def next(self) -> float | None:
        """When something is due next; None where nothing is."""
        return self._due[0][0] if self._due else None

    def advance_to(self, when: float) -> None:
        """Do what is due until then, each at its time, and what becomes due meanwhile."""
        while self._due and self._due[0][0] <= when:
            self.now, _, call = heapq.heappop(self._due)
            call()
        self.now = max(self.now, when)
