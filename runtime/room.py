"""Room that others may find by now: slots that went back, or that eviction may take again. Who waits for it is told.

A refusal leaves things as they were: what is taken and given back on the way there is no news.
"""

from __future__ import annotations

from collections.abc import Callable

from .watchers import Watchers


class Room:
    """Counts what is given back, and calls those who watch. The caller of each method holds the manager's lock.

    Attributes:
        given: how often something was given back; a refusal puts back the number that it found.
    """

    __slots__ = ("_told", "_watchers", "given")

    def __init__(self) -> None:
        self.given = 0
        self._told = 0
        self._watchers = Watchers()

    def watch(self, call: Callable[[], None]) -> None:
        """Have ``call`` called from now on; see ``Manager.watch_room``."""
        self._watchers.add(call)

    def tell(self, *, anyway: bool = False) -> None:
        """Call all who watch, if anything was given back since the last time, or ``anyway``."""
        if self.given != self._told or anyway:
            self._told = self.given
            self._watchers.tell()
