"""Poison: after a broken invariant nothing more is done, and every call says what broke, where, and what led there.

The manager's lock is a ``Guard`` around the lock that it was given. What an error means that leaves the locked region:

    Refused                          nothing: it was told before anything changed
    Broken, or a failed assert       poison
    no Exception (an interrupt)      poison: the work was stopped in its middle
    any other                        the manager is audited on the spot; poison if anything is wrong, else nothing

So a caller's mistake, a device query that raises or a store that can't end its epoch poison nothing. Beside that, an
audit that finds something wrong poisons. What still works afterwards: ``audit``, the event trace, giving up the
registration of the memory, and the properties that list what is open.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from .errors import Broken, Poisoned, Refused
from .watchers import Watchers

LAST_EVENTS = 12
"""Calls of the trace that the error repeats."""
_UNRECORDED = ("no events were recorded; make the manager with trace=EventTrace() to have them",)

Lock = AbstractContextManager[Any]


class Guard:
    """The one lock of a manager, which lets nobody in once the manager is poisoned.

    Args:
        lock: made once; used as a context manager only.
        audit: says what is wrong, as sentences that begin with an invariant's name; called under the lock.
        events: the last calls of events, oldest first; None where none are recorded.
        left: called under the lock each time before it is let go, but for an audit; told whether it is poisoned.

    Attributes:
        lock: the lock itself, for what may look at a poisoned manager.
        reason: why it is poisoned; None while it is not.
    """

    __slots__ = ("_audit", "_enter", "_events", "_exit", "_left", "_watchers", "lock", "reason")

    def __init__(
        self,
        lock: Lock,
        audit: Callable[[], Iterable[str]],
        events: Callable[[int], tuple[str, ...]] | None = None,
        left: Callable[[bool], None] = lambda poisoned: None,
    ) -> None:
        self.lock = lock
        self.reason: Poisoned | None = None
        self._enter, self._exit = lock.__enter__, lock.__exit__
        self._audit, self._events, self._left = audit, events, left
        self._watchers = Watchers()

    def __enter__(self) -> Guard:
        self._enter()
        if self.reason is not None:
            self._exit(None, None, None)
            self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Refused):
            self._judge(error)
        self._left(self.reason is not None)
        self._exit(kind, error, trace)
        self.tell()

    def check(self) -> None:
        """Raise Poisoned once the manager is; for calls that do without the lock."""
        if (reason := self.reason) is not None:
            raise Poisoned(reason.invariant, reason.where, reason.what, reason.events)

    def watch(self, call: Callable[[], None]) -> None:
        """Have ``call`` called when the manager has been poisoned; out of the lock, maybe more than once."""
        self._watchers.add(call)

    def tell(self) -> None:
        """Call all who watch, once the manager is poisoned. The caller doesn't hold the lock."""
        if self.reason is not None:
            self._watchers.tell()

    def poison(self, invariant: str, where: str, what: str) -> Poisoned:
        """Nothing more is done from now on; the first reason stays. The caller holds the lock."""
        if self.reason is None:
            events = _UNRECORDED if self._events is None else self._events(LAST_EVENTS)
            self.reason = Poisoned(invariant, where, what, events)
        return self.reason

    def found(self, violations: Iterable[str], where: str) -> None:
        """Poison if an audit found anything: ``violations`` are its sentences. The caller holds the lock."""
        told = list(violations)
        if told:
            invariant, _, what = told[0].partition(": ")
            more = f", and {len(told) - 1} more" if len(told) > 1 else ""
            self.poison(invariant, where, f"{what}{more}")

    def _judge(self, error: BaseException) -> None:
        """What an error means that leaves the locked region."""
        if self.reason is not None:
            return
        where = _where(error)
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, Broken):
            self.poison(error.invariant, where, error.what)
        elif isinstance(error, AssertionError):
            self.poison("assertion", where, str(error) or _line(error))
        elif not isinstance(error, Exception):
            self.poison("all or nothing", where, f"stopped in its middle by {said}")
        else:
            try:
                self.found(self._audit(), where)
            except Exception as second:  # what can't even be audited is broken
                self.poison("audit", where, f"can't be done after {said}: {type(second).__name__}: {second}")
        if self.reason is not None:
            error.add_note(f"The manager is poisoned by this: {self.reason.invariant} broke in {where}.")


def _where(error: BaseException) -> str:
    """Who held the lock, and where the error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "an unknown place"
    told = [f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in (frames[0], frames[-1])]
    return told[0] if told[0] == told[1] else f"{told[0]}, at {told[1]}"


def _line(error: BaseException) -> str:
    """The line that raised it, as it is written."""
    return traceback.extract_tb(error.__traceback__)[-1].line or "it does not say"
