"""Ranks as threads: each on one of its own, and all at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def side_by_side(ranks: int, part: Callable[[int], T], *, seconds: float = 120.0) -> list[T]:
    """What ``part`` returns for each rank, by rank.

    Raises:
        TimeoutError: a rank has not ended within so many seconds.
        BaseException: what ``part`` raised for the first rank of those for which it did.
    """
    ends: list[Future[T]] = [Future() for _ in range(ranks)]

    def run(rank: int) -> None:
        try:
            ends[rank].set_result(part(rank))
        except BaseException as error:  # to the test, of whatever kind
            ends[rank].set_exception(error)

    for rank in range(ranks):
        threading.Thread(target=run, args=(rank,), daemon=True).start()
    return [end.result(seconds) for end in ends]
