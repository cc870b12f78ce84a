"""A group of ranks and its one primitive: everybody's bytes to everybody, within a deadline.

``LocalGroup`` has threads of one process for ranks; over several processes there is ``integrations/torch_ranks.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from .errors import RankLost


class Group(Protocol):
    """Ranks that exchange bytes. Used by one thread a rank."""

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        ...

    @property
    def size(self) -> int:
        """Ranks of the group."""
        ...

    def all_gather(self, data: bytes) -> list[bytes]:
        """What every rank gave, by rank, this one's own included. Lengths may differ.

        The n-th call of one rank meets the n-th call of each other.

        Raises:
            RankLost: a rank did not make its call within the group's deadline, or is gone. After that no call succeeds.
        """
        ...


class _Meeting:
    """What the ranks of one process have in common."""

    def __init__(self, size: int, deadline: float, clock: Callable[[], float]) -> None:
        self.size, self.deadline, self.clock = size, deadline, clock
        self.changed = threading.Condition()
        self.calls: dict[int, dict[int, bytes]] = {}
        self.heard: dict[int, int] = {}
        self.gone: dict[int, str] = {}


class LocalGroup:
    """One rank among threads of this process.

    >>> [alone] = LocalGroup.make(1)
    >>> alone.all_gather(b"mine")
    [b'mine']
    """

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting, self._rank, self.calls = meeting, rank, 0

    @classmethod
    def make(
        cls, size: int, *, deadline: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> list[LocalGroup]:
        """All ranks of a new group; ``deadline`` in seconds of ``clock``."""
        meeting = _Meeting(size, deadline, clock)
        return [cls(meeting, rank) for rank in range(size)]

    @property
    def rank(self) -> int:
        """See ``Group``."""
        return self._rank

    @property
    def size(self) -> int:
        """See ``Group``."""
        return self._meeting.size

    def all_gather(self, data: bytes) -> list[bytes]:
        """See ``Group``. ``calls`` counts them."""
        meeting, n = self._meeting, self.calls
        self.calls += 1
        with meeting.changed:
            if (why := meeting.gone.get(self._rank)) is not None:  # others go on without it, or not at all
                raise RankLost([self._rank], f"that is this rank itself, and the others wait for it no more ({why})")
            given = meeting.calls.setdefault(n, {})
            given[self._rank] = bytes(data)
            meeting.changed.notify_all()
            until = meeting.clock() + meeting.deadline
            while len(given) < meeting.size:
                missing = [rank for rank in range(meeting.size) if rank not in given]
                if gone := [rank for rank in missing if rank in meeting.gone]:
                    self._lost(gone, meeting.gone[gone[0]])
                left = until - meeting.clock()
                if left <= 0:
                    self._lost(missing, f"no answer within {meeting.deadline:g} s")
                meeting.changed.wait(left)
            meeting.heard[n] = meeting.heard.get(n, 0) + 1
            if meeting.heard[n] == meeting.size:
                del meeting.calls[n], meeting.heard[n]
            return [given[rank] for rank in range(meeting.size)]

    def leave(self) -> None:
        """This rank takes part no more; who waits for it hears so at once."""
        with self._meeting.changed:
            self._meeting.gone.setdefault(self._rank, "it has left")
            self._meeting.changed.notify_all()

    def _lost(self, ranks: list[int], why: str) -> None:
        """Raise RankLost, here and in whoever else waits for these ranks, or is one of them and comes late."""
        for rank in ranks:
            self._meeting.gone.setdefault(rank, why)
        self._meeting.changed.notify_all()
        raise RankLost(ranks, why)
