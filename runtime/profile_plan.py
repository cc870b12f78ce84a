"""From rows and pages to offsets: how a profile's plan becomes layouts.

A plan says what a slot holds; this module decides where. Parts follow each other in the order of groups, layers and
parts, each on a 16-byte boundary. Where a group has a page, its entries and window rows share pages instead: a page
holds ``page.rows`` rows of each part, all rows of the first ahead of all rows of the second, and is padded to whole
multiples of ``page.align``. Carried and pending rows follow the pages of their layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .layout import ITEM_BYTES, Layout, Part, Role, round_up
from .profile import Group, Profile, ProfileError

PART_ALIGNMENT = 16
"""Bytes; the widest vector load of a copy kernel, and what SGLang's host copy kernel asks of its rows."""

PAGED: tuple[Role, ...] = ("entries", "window")
"""Rows that lie in pages where a group has them."""


@dataclass(frozen=True, slots=True)
class PartPlan:
    """One tensor that each layer of a group has: ``rows`` rows of ``shape`` elements."""

    name: str
    rows: int
    shape: tuple[int, ...]
    dtype: str
    meaning: str
    role: Role = "entries"


@dataclass(frozen=True, slots=True)
class PagePlan:
    """Pages that entries and window rows of one layer share: rows of each in a page, bytes that a page is padded to."""

    rows: int
    align: int = 1


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Layers that keep the same parts of one object; ``span`` None means one page, or one row without pages."""

    name: str
    object: str
    layers: tuple[int, ...]
    parts: tuple[PartPlan, ...]
    ratio: int = 1
    span: int | None = None
    page: PagePlan | None = None

    def group(self, window: int | None) -> Group:
        """The group, with the window if it holds window rows."""
        span = self.span or self.ratio * (self.page.rows if self.page else 1)
        windowed = window if any(part.role == "window" for part in self.parts) else None
        return Group(self.name, self.object, self.layers, self.ratio, span, windowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePlan:
    """What a profile says, before offsets; the fields are those of ``Profile``."""

    name: str
    title: str
    source: str
    granule: int
    groups: tuple[GroupPlan, ...]
    identity: str
    window: int | None = None
    window_policy: Literal["checkpoint", "blocks"] | None = None
    window_block: int | None = None
    retained: int = 0
    scores: Literal["raw", "folded"] | None = None
    alignment: int = 64
    offset_bits: int = 64
    absent: tuple[str, ...] = ()

    def profile(self) -> Profile:
        """The profile, with layouts computed and everything checked; ProfileError says what doesn't fit."""
        return Profile(
            name=self.name,
            title=self.title,
            source=self.source,
            granule=self.granule,
            groups=tuple(group.group(self.window) for group in self.groups),
            layouts=lay_out(self.groups, self.alignment),
            window=self.window,
            window_policy=self.window_policy,
            window_block=self.window_block,
            retained=self.retained,
            identity=self.identity,
            scores=self.scores,
            offset_bits=self.offset_bits,
            absent=self.absent,
        )


def lay_out(groups: Sequence[GroupPlan], alignment: int) -> Mapping[str, Layout]:
    """One layout an object, ids 1, 2, ... in the order of first mention; strides are multiples of ``alignment``."""
    layouts: dict[str, Layout] = {}
    for kind in dict.fromkeys(group.object for group in groups):
        mine = [group for group in groups if group.object == kind]
        stride_alignment = math.lcm(alignment, *(group.page.align for group in mine if group.page))
        parts: list[Part] = []
        end = 0
        for group in mine:
            for layer in group.layers:
                placed, end = _place_layer(group, layer, end)
                parts += placed
        layouts[kind] = Layout(kind, len(layouts) + 1, tuple(parts), round_up(end, stride_alignment), stride_alignment)
    return layouts


def _place_layer(group: GroupPlan, layer: int, start: int) -> tuple[list[Part], int]:
    """The parts of one layer from byte ``start`` on, and the first byte after them, padding included."""
    parts, end = [], start
    if group.page is not None:
        paged = [plan for plan in group.parts if plan.role in PAGED]
        end = round_up(end, math.lcm(PART_ALIGNMENT, group.page.align))
        for suffix in _pages(group, paged):
            page_start = end
            for plan in paged:
                part = _part(group, plan, layer, end, suffix, group.page.rows)
                parts.append(part)
                end = part.end
            end = page_start + round_up(end - page_start, group.page.align)
    for plan in group.parts:
        if group.page is None or plan.role not in PAGED:
            part = _part(group, plan, layer, round_up(end, PART_ALIGNMENT))
            parts.append(part)
            end = part.end
    return parts, end


def _pages(group: GroupPlan, paged: Sequence[PartPlan]) -> list[str]:
    """A suffix for the part names of each page: none for a single page, else .0, .1, ..."""
    assert group.page is not None
    counts = {plan.rows for plan in paged}
    if len(counts) != 1 or max(counts) % group.page.rows:
        found = f"parts of {sorted(counts)} rows in pages of {group.page.rows}"
        raise ProfileError(f"group {group.name!r}", found, "give all paged parts the same whole number of pages")
    pages = max(counts) // group.page.rows
    return [""] if pages == 1 else [f".{number}" for number in range(pages)]


def _part(group: GroupPlan, plan: PartPlan, layer: int, offset: int, suffix: str = "", rows: int | None = None) -> Part:
    if plan.dtype not in ITEM_BYTES:
        known = f"use one of {', '.join(ITEM_BYTES)}"
        raise ProfileError(f"group {group.name!r} part {plan.name!r}", f"unknown dtype {plan.dtype!r}", known)
    return Part(
        name=plan.name + suffix,
        layer=layer,
        offset=offset,
        rows=plan.rows if rows is None else rows,
        row_bytes=math.prod(plan.shape) * ITEM_BYTES[plan.dtype],
        row_shape=plan.shape,
        dtype=plan.dtype,
        meaning=plan.meaning,
        role=plan.role,
        ratio=group.ratio,
    )
