"""What eviction remembers where a spec says ``leaves: tombstone``: that something was there, and no more.

A match can then tell what was evicted from what was never there. The newest are kept, as many as the pool has slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_LOOKED_AT = 64


class Tombstones:
    """Digests of granules, or of the boundaries at their ends, whose slots were evicted.

    Args:
        most: how many are remembered.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._digests: dict[bytes, None] = {}

    def add(self, digests: Iterable[bytes]) -> None:
        """These were evicted just now."""
        for digest in digests:
            self._digests.pop(digest, None)
            self._digests[digest] = None
        while len(self._digests) > self._most:
            del self._digests[next(iter(self._digests))]

    def first(self, digests: Sequence[bytes], at: int) -> bool:
        """Whether granule ``at`` of a chain, behind all that is there, was evicted."""
        return at < len(digests) and digests[at] in self._digests

    def any(self, digests: Sequence[bytes], low: int, high: int) -> bool:
        """Whether one of the boundaries (low, high] was; looks at the last 64 of them."""
        last = digests[max(low, high - _LOOKED_AT) : high]
        return bool(self._digests) and any(digest in self._digests for digest in last)

    @property
    def nbytes(self) -> int:
        """Bytes held, estimated: digest, entry, load factor."""
        return 170 * len(self._digests)
