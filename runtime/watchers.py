"""Who wants to be called when something has happened."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable

Call = Callable[[], None]


class Watchers:
    """Functions that are called each time, the first to come first.

    A method keeps the object that it belongs to no longer alive than others do, so that who is gone needs no word to
    say so. Any other function stays.
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: list[Callable[[], Call | None]] = []

    def add(self, call: Call) -> None:
        """Have ``call`` called from now on."""
        self._found = [found for found in self._found if found() is not None]
        self._found.append(weakref.WeakMethod(call) if inspect.ismethod(call) else lambda: call)

    def tell(self) -> None:
        """Call all who are still there."""
        for found in self._found:
            if (call := found()) is not None:
                call()
