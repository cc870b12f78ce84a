"""In which order threads of a launch take turns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forward:
    """Blocks one after the other, their threads in order, each as far as it goes."""


@dataclass(frozen=True, slots=True)
class Random:
    """Whoever a seed says is next, among the threads of some blocks at a time; also before atomics.

    resident  blocks that run side by side
    """

    seed: int
    resident: int = 4


Schedule = Forward | Random

FORWARD = Forward()
EVERY_DAY: tuple[Schedule, ...] = (FORWARD, Random(1), Random(2))
"""What parity tests run under."""
