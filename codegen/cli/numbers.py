"""Numbers that options take: each reader says what it could not read, or what to give instead."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Bound = tuple[Callable[[Any], bool], str]
"""What a value must keep, and what to give where it does not."""

SOME: Bound = (lambda value: value >= 1, "at least 1")


def reader(read: Callable[[str], T], what: str, *bounds: Bound) -> Callable[[str], T]:
    """What an option reads its text with: for ``type=`` of an argument.

    Args:
        read: makes a value of the text; raises ValueError or OverflowError where it is none.
        what: is read, for people.
        bounds: of the value.
    """

    def taken(text: str) -> T:
        try:
            value = read(text.replace("_", ""))
        except (ValueError, OverflowError):
            raise argparse.ArgumentTypeError(f"'{text}' is no {what}") from None
        for holds, fix in bounds:
            if not holds(value):
                raise argparse.ArgumentTypeError(f"{text}; give {fix}")
        return value

    return taken


def _two(text: str) -> tuple[float, float]:
    begin, end = map(float, text.split(":"))
    return begin, end


number = reader(int, "whole number", (lambda value: value >= 0, "at least 0"))
count = reader(int, "whole number", SOME)
size = reader(lambda text: int(float(text)), "number of bytes, such as 80e9", SOME)
above = reader(float, "number", (lambda value: 0 < value < math.inf, "a number above 0"))
_ORDERED: Bound = (lambda times: 0 <= times[0] < times[1] < math.inf, "the earlier time first, none below 0")
span = reader(_two, "time of a stall, such as 20000:30000", _ORDERED)
