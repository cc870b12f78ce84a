"""How dearly and how long what is published is kept, as far as the specs of its kinds declare fields for it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

NEVER = (1 << 63) - 1
"""In ``expires``: it does not end; the greatest number that an eviction rule reads."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a publisher says of all that it publishes at once; ``until`` is a clock."""

    priority: int = 0
    until: int = NEVER
    tenant: int | None = None  # None: whose it is stays as it is


PLAIN = Keeping()
"""Of nobody in particular, and no dearer than anything else."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When to look at the places of one kind that were published together; ``places`` as the index counts them."""

    kind: str
    digests: list[bytes]
    places: range


class Deadlines:
    """What ends when: a heap. What was evicted meanwhile stays in it until its time, and is then found gone."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Deadline]] = []
        self._serial = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, when: int, deadline: Deadline) -> None:
        """Look at these places at ``when``."""
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, deadline))

    def due(self, now: int) -> Iterator[Deadline]:
        """Those whose time has come, earliest first; each once."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]

    @property
    def nbytes(self) -> int:
        """Bytes held, estimated."""
        return 250 * len(self._heap)
