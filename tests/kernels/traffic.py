"""Bytes that a launch moved, for tests that hold it to the least that it could move."""

from __future__ import annotations

from ..hostcuda.host import HostLauncher
from ..hostcuda.traffic import SECTOR_BYTES


def moved_bytes(launcher: HostLauncher) -> int:
    """Of all sectors that warps' requests touched in the last launch, those of atomics included."""
    assert launcher.traffic is not None
    return sum(site.sectors for site in launcher.traffic.sites) * SECTOR_BYTES
