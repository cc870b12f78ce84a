"""Limits: what may be under way at once, of requests and of what loads bring, by the tier that it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .arguments import check_is, check_whole
from .generated.budget import BudgetTable

TIERS = ("store", "packed")
"""Where a load's bytes come from."""

_MOST = BudgetTable.LAYOUT.field("count").high


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be under way at once; None: as much as there is room for.

    Attributes:
        requests: that have slots, whether they load, wait for their step or run.
        blocks: destination slots of open loads, by tier: "store", "packed".
        bytes: the same in bytes.

    Raises:
        ValueError: a limit below 1, or above what is counted, or another tier.
        TypeError: a limit that is no whole number, or limits by no tier.
    """

    requests: int | None = None
    blocks: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    bytes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        for unit, limits in (("blocks", self.blocks), ("bytes", self.bytes)):
            check_is(unit, limits, Mapping, "whole numbers by tier, such as {'store': 16}")
            if unknown := sorted(set(limits) - set(TIERS)):
                raise ValueError(f"limits of {unit} for tiers {unknown}; tiers are {', '.join(TIERS)}")
        for name, limit in self.by_name().items():
            check_whole(name, limit, "a whole number of at least 1, or no limit")
            if not 1 <= limit <= _MOST:
                raise ValueError(f"at most {limit} {name}; give 1 to {_MOST}, or no limit")

    def by_name(self) -> dict[str, int]:
        """Each limit by what it limits."""
        found = {} if self.requests is None else {"requests": self.requests}
        for unit, limits in (("blocks", self.blocks), ("bytes", self.bytes)):
            found |= {f"{unit} from the {tier}": limits[tier] for tier in TIERS if tier in limits}
        return found
