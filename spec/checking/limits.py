"""How far a search may go, what it says on the way, and why it ends early."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

SHARE = 2  # by default a search may use one of so many parts of the memory that is free when it begins
FALLBACK = 4 << 30  # where the machine does not tell


def available_bytes() -> int:
    """Memory that this process could still take: what the machine has free, or less where a control group says so."""
    found = []
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    elif "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    group = Path("/sys/fs/cgroup")
    most, used = group / "memory.max", group / "memory.current"
    if most.exists() and used.exists():
        limit = most.read_text().strip()
        if limit.isdigit():
            found.append(max(int(limit) - int(used.read_text()), 0))
    return min(found, default=FALLBACK)


def _share() -> int:
    return available_bytes() // SHARE


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a search; one that reaches them ends incomplete.

    ``states``: the most that are kept; None: as many as fit. ``bytes``: memory for states, index and buffers.
    """

    states: int | None = None
    bytes: int = field(default_factory=_share)


class Ending(Enum):
    """Why a search ended before every state was expanded; the value is how that is said."""

    STATES = "the limit of {limits.states:,} states"
    BYTES = "the limit of {limits.bytes:,} bytes of memory, which {found:,} states and their index fill"
    VIOLATION = "stopped at the first violation"
    INTERRUPTION = "interrupted"

    def told(self, limits: Limits, found: int) -> str:
        """In words, of a search within ``limits`` that found so many states."""
        return self.value.format(limits=limits, found=found)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands: states found, those of them not expanded yet, levels done, states found a second."""

    states: int
    frontier: int
    depth: int
    seconds: float

    @property
    def rate(self) -> float:
        """States a second since the start."""
        return self.states / self.seconds if self.seconds > 0 else 0.0
