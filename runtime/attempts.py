"""How often loads of an object failed, so that nobody loads for ever what is not there (T5).

The caller holds the manager's lock, except for ``usable``, which is a look at one number.
"""

from __future__ import annotations

from collections.abc import Sequence

from .stores.store import ObjectId

LOAD_ATTEMPTS = 2
"""Failed loads of one object in a row after which it counts as missing, see ``Ticket.done``."""
_REMEMBERED = 4096  # objects whose failures are remembered


class Attempts:
    """Failed loads in a row, by object."""

    def __init__(self) -> None:
        self._failures: dict[ObjectId, int] = {}

    @property
    def failing(self) -> int:
        """Objects whose last load failed."""
        return len(self._failures)

    def usable(self, name: ObjectId) -> bool:
        """Whether an object is worth another attempt."""
        return self._failures.get(name, 0) < LOAD_ATTEMPTS

    def failed(self, names: Sequence[ObjectId]) -> None:
        """One more load failed because of these objects."""
        for name in names:
            self._failures[name] = self._failures.pop(name, 0) + 1
            if len(self._failures) > _REMEMBERED:
                self._failures.pop(next(iter(self._failures)))

    def forget(self, names: Sequence[ObjectId] | None = None) -> None:
        """Objects were stored anew, or loaded well; None: all."""
        if names is None:
            self._failures.clear()
        for name in names or ():
            self._failures.pop(name, None)
