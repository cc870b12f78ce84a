"""A group of ranks of which somebody does something before each exchange."""

from __future__ import annotations

from collections.abc import Callable

from kvfsm.runtime.ranks import Group


class Meddling:
    """See ``Group``; calls ``before`` with the number of each exchange, from 1 on."""

    def __init__(self, group: Group, before: Callable[[int], None]) -> None:
        self.group, self.before, self.calls = group, before, 0

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def size(self) -> int:
        return self.group.size

    def all_gather(self, data: bytes) -> list[bytes]:
        self.calls += 1
        self.before(self.calls)
        return self.group.all_gather(data)
