"""What a launch moved, as the warps' requests would move it on a device without caches."""

from __future__ import annotations

from dataclasses import dataclass

from .places import SourcePlace, place_at

SECTOR_BYTES = 32


@dataclass(frozen=True, slots=True)
class SiteTraffic:
    """Of one load or store in the source. A request is one access by the lanes of a warp together.

    code     address of the instruction
    width    bytes of the widest access of a lane
    sectors  of 32 bytes, that requests touched, distinct within each
    bytes    that requests asked for, distinct within each
    """

    code: int
    is_write: bool
    is_atomic: bool
    width: int
    requests: int
    sectors: int
    bytes: int

    @property
    def place(self) -> SourcePlace | None:
        """Its line; looked up when asked for, which takes a while."""
        return place_at(self.code)

    @property
    def sectors_per_request(self) -> float:
        """16 is the least for a warp's 16-byte accesses, 4 for its 4-byte accesses."""
        return self.sectors / self.requests

    @property
    def efficiency(self) -> float:
        """Share of the moved sectors that was asked for."""
        return self.bytes / (self.sectors * SECTOR_BYTES)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of a launch. Atomics are in ``sites`` only.

    compulsory_read     distinct bytes read: none of them could be left out
    compulsory_written  distinct bytes written
    """

    sites: tuple[SiteTraffic, ...]
    compulsory_read: int
    compulsory_written: int

    @property
    def bytes_read(self) -> int:
        """Asked for by requests, a byte once in each."""
        return sum(site.bytes for site in self._plain(False))

    @property
    def bytes_written(self) -> int:
        return sum(site.bytes for site in self._plain(True))

    @property
    def sectors_read(self) -> int:
        return sum(site.sectors for site in self._plain(False))

    @property
    def sectors_written(self) -> int:
        return sum(site.sectors for site in self._plain(True))

    @property
    def sectors(self) -> int:
        return self.sectors_read + self.sectors_written

    @property
    def bytes_moved(self) -> int:
        """Of all sectors."""
        return self.sectors * SECTOR_BYTES

    @property
    def compulsory(self) -> int:
        """Distinct bytes read, and written."""
        return self.compulsory_read + self.compulsory_written

    @property
    def waste(self) -> float:
        """By how much more than the compulsory bytes is moved, as a share of these."""
        return self.bytes_moved / self.compulsory - 1 if self.compulsory else 0.0

    def _plain(self, is_write: bool) -> list[SiteTraffic]:
        return [site for site in self.sites if site.is_write == is_write and not site.is_atomic]
