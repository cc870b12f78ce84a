"""What launches of one backend come after, on whatever stream each of them is: marks behind what was launched before.

Two things come before a launch: the backend's own of before, and what others have launched on streams of theirs by the
time that they said so, as whoever publishes a slot has launched what writes it. Where no mark can be had, the next
launch waits for the whole device instead.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .launch import Launcher, Mark

_KEPT = 32
"""Marks of others before those that are over are looked for: nobody may launch for a long time."""


class StreamOrder:
    """The order of one backend's launches. The caller of ``launches`` lets one thread at a time do so."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._last: Mark | None = None  # behind the backend's own
        self._lock = threading.Lock()  # of those of others
        self._others: deque[Mark] = deque()
        self._waited: list[Mark] = []  # of those, by the launches that are under way

    @property
    def last(self) -> Mark | None:
        """Behind all launches of the backend so far; None before the first."""
        return self._last

    def behind_current(self) -> None:
        """What is launched from now on comes after all that the current stream has by now. From any thread."""
        mark = self._mark()
        with self._lock, suppress(Exception):  # of a device that can't be asked: then they are kept
            self._others.append(mark)
            while len(self._others) > _KEPT and self._others[0].ended():
                self._others.popleft()

    @contextmanager
    def launches(self) -> Iterator[None]:
        """What the block launches on the current stream comes after all that."""
        self._waited = []
        if self._last is not None:
            self._wait(self._last)
        self.catch_up()
        try:
            yield
        finally:
            self._last = self._mark()
            with self._lock:
                self._others = deque(mark for mark in self._others if not _among(mark, self._waited))

    def catch_up(self) -> None:
        """In such a block: what is launched from now on comes after what others have said by now, too."""
        with self._lock:
            new = [mark for mark in self._others if not _among(mark, self._waited)]
        for mark in new:
            self._wait(mark)
            self._waited.append(mark)

    def _wait(self, mark: Mark) -> None:
        if isinstance(mark, _Unmarked):
            mark.ended()
        else:
            self._launcher.wait(mark)

    def _mark(self) -> Mark:
        try:
            return self._launcher.mark()
        except Exception:
            return _Unmarked(self._launcher)


def _among(mark: Mark, marks: list[Mark]) -> bool:
    return any(mark is one for one in marks)


class _Unmarked:
    """Stands for a mark that could not be made: it is over once the device has ended all that there is by then."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._is_over = False

    def ended(self) -> bool:
        """True; waits for that."""
        if not self._is_over:
            self._launcher.synchronise()
            self._is_over = True
        return True
