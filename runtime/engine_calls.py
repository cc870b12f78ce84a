"""Calls of an engine that must not meet: one that grants work, and one that takes granted work for computed.

What ``schedule`` returns the engine launches before it comes back. Until then nothing of it may be published, decoded
or put back. Whether it has launched what was returned nobody can see here; that a call begins before ``schedule`` has
returned, or the other way round, is seen and refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

GRANTS = "schedule"
"""The call that grants work."""


class EngineCalls:
    """The calls of one scheduler's engine that are under way. Used by any thread."""

    def __init__(self) -> None:
        self._under_way: list[str] = []

    @contextmanager
    def under_way(self, call: str) -> Iterator[None]:
        """A call is under way, by its name.

        Raises:
            RuntimeError: it has met one that it must not meet; nothing has changed.
        """
        self._under_way.append(call)  # before it looks: of two that meet at least one is told
        try:
            others = list(self._under_way)
            others.remove(call)
            if met := [other for other in others if GRANTS in (call, other)]:
                raise RuntimeError(
                    f"'{call}' while '{met[0]}' is under way: what '{GRANTS}' grants is not launched yet, and would "
                    "count as computed; give both to one thread, or hold one lock around either, and around the launch"
                )
            yield
        finally:
            self._under_way.remove(call)
