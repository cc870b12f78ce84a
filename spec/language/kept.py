"""What the runtime keeps of a slot in its meta fields, by name: the only ones that an eviction rule may rest on.

A field that a machine does not declare is not kept, and costs nothing. Machines that no prefix hit asks are driven by
others, who keep what they like.
"""

from __future__ import annotations

from collections.abc import Mapping

from .model import HitPolicy

Kept = Mapping[str, tuple[int, str]]
"""Name of a meta field -> the fewest bits that hold it, and what the runtime writes there."""

_POOLS: Kept = {
    "last_use": (64, "the clock when it was published, or last released"),
    "uses": (8, "leases taken since it was published; stays at its greatest value"),
    "priority": (8, "what its publisher gave; the greatest, where several published the same"),
    "expires": (64, "the clock at which it ends; the latest, where several published the same"),
    "tenant": (16, "a number for the salt of its keys"),
}
_STORES: Kept = {
    "last_use": (64, "the clock of the last read or write"),
    "bytes": (64, "bytes that the stored object takes"),
}
KEPT: Mapping[HitPolicy, Kept] = {
    HitPolicy.ALL_PAGES: _POOLS,
    HitPolicy.TRAILING_PAGES: _POOLS,
    HitPolicy.BY_KIND: _STORES,
}
