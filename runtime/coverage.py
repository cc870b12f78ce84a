"""What covers the tokens of one live request: compressed entries, tail and window together leave no gap (S13)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Coverage:
    """What covers the tokens [0, ``tokens``) of one request, read off the state words.

    ``entries`` counts compressed entries by ratio; ``compressed``, ``tail`` and ``window`` are token ranges; ``gaps``
    are what none covers.
    """

    tokens: int
    entries: dict[int, int]
    compressed: range
    tail: range
    window: range
    gaps: tuple[range, ...]


def gaps(tokens: int, covers: tuple[range, ...]) -> tuple[range, ...]:
    """What none of some ranges covers of [0, ``tokens``), in order.

    >>> gaps(10, (range(0, 4), range(6, 9)))
    (range(4, 6), range(9, 10))
    """
    at, found = 0, []
    for cover in sorted((one for one in covers if len(one)), key=lambda one: one.start):
        if cover.start > at:
            found.append(range(at, cover.start))
        at = max(at, cover.stop)
    if at < tokens:
        found.append(range(at, tokens))
    return tuple(found)
