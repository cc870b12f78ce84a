"""Problems as values: code, place, what was found, what was expected, and a fix."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A spot in a file; line and column count from 1."""

    file: str
    line: int
    column: int
    length: int = 1  # characters to underline
