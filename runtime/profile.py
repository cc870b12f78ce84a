"""Model profiles: which layers keep which cache objects, in which layouts, and the granule that follows.

A profile is data: ``generated/models.py`` holds those of the spec, and ``profile_plan.py`` computes their offsets.
All positions, spans, windows and granules are in raw tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from .granule import GranuleReport, ProfileError, SpanReport, granule_report
from .layout import ITEM_BYTES, Layout, Part, Role, round_up

__all__ = [
    "ITEM_BYTES", "GranuleReport", "Group", "Layout", "Part", "Profile", "ProfileError", "Profiles", "Role",
    "SpanReport", "granule_report", "round_up",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share an object, a ratio and a block span.

    ``ratio`` raw tokens make one row; ``span`` raw tokens make one physical block; ``window`` is set for window groups.
    """

    name: str
    object: str
    layers: tuple[int, ...]
    ratio: int
    span: int
    window: int | None = None

    def __post_init__(self) -> None:
        where = f"group {self.name!r}"
        if self.ratio < 1 or self.span < 1:
            raise ProfileError(where, f"ratio {self.ratio}, span {self.span}", "give at least 1 token")
        if self.span % self.ratio:
            raise ProfileError(
                where,
                f"no whole number of rows: ratio {self.ratio} doesn't divide the span {self.span}",
                f"use a span of {round_up(self.span, self.ratio)}",
            )
        if len(set(self.layers)) != len(self.layers) or not self.layers or min(self.layers) < 0:
            raise ProfileError(where, f"layers {self.layers}", "list each layer once, from 0")

    @property
    def block_rows(self) -> int:
        """Rows of one physical block: ``ratio * block_rows == span``."""
        return self.span // self.ratio


@dataclass(frozen=True, slots=True)
class Profile:
    """One served model. Checked when it is made.

    ``window_policy`` "checkpoint": a window slot holds the rows for exactly one boundary; "blocks": a slot holds the
    rows of ``window_block`` tokens and ``window_slots`` of them make a window. ``retained`` tokens are kept beyond the
    ``window - 1`` that the next query reads. ``scores`` says whether sealed score rows hold the positional bias
    ("folded"), not ("raw"), or don't exist (None). ``identity`` names weights, positions, dtype and score semantics.
    ``absent`` names the objects that the model lacks.

    Raises:
        ProfileError: the granule isn't a multiple of every span, rows x ratio isn't the granule, a layout is missing,
            the window fields contradict each other, or a layer has one object twice.
    """

    name: str
    title: str
    source: str
    granule: int
    groups: tuple[Group, ...]
    layouts: Mapping[str, Layout]
    window: int | None
    window_policy: Literal["checkpoint", "blocks"] | None
    window_block: int | None
    retained: int
    identity: str
    scores: Literal["raw", "folded"] | None = None
    offset_bits: int = 64
    absent: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"profile {self.name!r}"
        if self.granule < 1 or self.granule % self.lcm:
            spans = ", ".join(f"{group.name}={group.span}" for group in self.groups)
            fix = f"use a multiple of {self.lcm}, such as {round_up(max(self.granule, 1), self.lcm)}"
            raise ProfileError(where, f"granule {self.granule} is not a multiple of A={self.lcm} (spans {spans})", fix)
        self._check_groups(where)
        self._check_window(where)
        self._check_layouts(where)

    @property
    def lcm(self) -> int:
        """A: the least common multiple of all spans, which divides the granule."""
        return math.lcm(*(group.span for group in self.groups))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Objects that the model has, in the order of the groups."""
        return tuple(dict.fromkeys(group.object for group in self.groups))

    @property
    def window_slots(self) -> int:
        """Window slots that make up one window: 0 without a window, 1 under checkpoints."""
        if self.window is None:
            return 0
        if self.window_block is None:
            return 1
        return -(-(self.window - 1 + self.retained) // self.window_block)

    @property
    def widest_ratio(self) -> int:
        """Tokens of the widest compression window: a tail's position counts these."""
        return max(group.ratio for group in self.groups)

    def report(self) -> GranuleReport:
        """How the granule comes about."""
        return granule_report({group.name: group.span for group in self.groups})

    def groups_of(self, kind: str) -> tuple[Group, ...]:
        """The groups that keep this object; empty for an absent one."""
        return tuple(group for group in self.groups if group.object == kind)

    def tensors(self) -> Iterator[tuple[str, Part]]:
        """Kind and part of every tensor of every layer, in the order of the groups, their layers, and the parts."""
        for group in self.groups:
            for layer in group.layers:
                for part in self.layouts[group.object].parts:
                    if part.layer == layer:
                        yield group.object, part

    def floor(self, tokens: int) -> int:
        """The greatest reusable boundary at or below ``tokens``."""
        return tokens - tokens % self.granule

    def check_step(self, tokens: int | None) -> None:
        """Raise ValueError unless steps of so many tokens end at whole granules; None bounds none."""
        if tokens is not None and (tokens < self.granule or tokens % self.granule):
            raise ValueError(f"steps of {tokens} tokens; give a multiple of the granule, {self.granule}")

    def bytes_per_token(self, kind: str) -> Fraction:
        """Payload bytes a token of an object that grows with the sequence, without padding and carry rows."""
        parts = self.layouts[kind].parts
        return Fraction(sum(part.payload_bytes for part in parts if part.role == "entries"), self.granule)

    def checkpoint_bytes(self, boundary: int) -> int:
        """Payload bytes needed at a boundary beside the objects that grow: window, tail, and carry rows."""
        return sum(
            part.live_rows(boundary) * part.row_bytes * (self.window_slots if part.role == "window" else 1)
            for layout in self.layouts.values()
            for part in layout.parts
            if part.role != "entries"
        )

    def _check_groups(self, where: str) -> None:
        owner: dict[tuple[str, int], str] = {}
        for group in self.groups:
            for layer in group.layers:
                other = owner.setdefault((group.object, layer), group.name)
                if other != group.name:
                    what = f"layer {layer} keeps {group.object} in groups {other!r} and {group.name!r}"
                    raise ProfileError(where, what, "leave the layer in one of them")

    def _check_window(self, where: str) -> None:
        windowed = {group.window for group in self.groups if group.window is not None}
        if windowed - {self.window}:
            what = f"groups have windows {sorted(windowed)}, the profile {self.window}"
            raise ProfileError(where, what, "give all the same window")
        if (self.window is None) != (self.window_policy is None):
            what = f"window {self.window} with policy {self.window_policy}"
            raise ProfileError(where, what, "give both or neither")
        if (self.window_policy == "blocks") != (self.window_block is not None):
            what = f"policy {self.window_policy} with window_block {self.window_block}"
            raise ProfileError(where, what, 'give window_block with "blocks" only')
        if self.window_block is not None and self.granule % self.window_block:
            what = f"window_block {self.window_block} doesn't divide the granule {self.granule}"
            raise ProfileError(where, what, f"use a divisor of {self.granule}")

    def _window_rows(self) -> int:
        """Rows of one layer in a window slot."""
        return self.window_block or (self.window or 1) - 1 + self.retained

    def _check_layouts(self, where: str) -> None:
        if set(self.layouts) != set(self.kinds):
            what = f"layouts of {sorted(self.layouts)} for objects {sorted(self.kinds)}"
            raise ProfileError(where, what, "give one layout an object")
        for kind, layout in self.layouts.items():
            ratios = {layer: group.ratio for group in self.groups_of(kind) for layer in group.layers}
            rows: dict[tuple[int, str, Role], int] = {}
            for part in layout.parts:
                if part.layer not in ratios:
                    what = f"{kind} lays out layer {part.layer}, which no group has"
                    raise ProfileError(where, what, "add the layer to a group")
                key = (part.layer, part.name.partition(".")[0], part.role)  # pages of a tensor are name.0, name.1, ...
                rows[key] = rows.get(key, 0) + part.rows
            for (layer, name, role), count in rows.items():
                what = f"{kind} layer {layer} part {name!r}"
                if role == "entries" and count * ratios[layer] != self.granule:
                    found = f"{count} rows x ratio {ratios[layer]} is not the granule {self.granule}"
                    raise ProfileError(where, f"{what}: {found}", f"use {Fraction(self.granule, ratios[layer])} rows")
                if role == "window" and count != self._window_rows():
                    found = f"{count} rows, but a window slot holds {self._window_rows()}"
                    raise ProfileError(where, f"{what}: {found}", f"use {self._window_rows()} rows")


class Profiles(Mapping[str, Profile]):
    """Profiles by name, each made at first use, so that importing them costs nothing."""

    def __init__(self, makers: Mapping[str, Callable[[], Profile]]) -> None:
        self._makers = dict(makers)
        self._made: dict[str, Profile] = {}

    def __getitem__(self, name: str) -> Profile:
        if name not in self._made:
            if name not in self._makers:
                raise KeyError(f"no profile {name!r}; there are: {', '.join(self._makers)}")
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)
