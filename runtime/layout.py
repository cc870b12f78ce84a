"""How the bytes of one slot lie: parts, strides, alignment, and what each row means.

Two layouts are the same only when a kernel may read one through the other. Equal shapes and dtypes are not enough: the
score rows of one engine already hold the positional bias and those of another don't, so ``meaning`` is in the digest.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import astuple, dataclass, fields
from functools import cached_property
from typing import Literal

from .granule import ProfileError

ITEM_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3": 1, "float8_e8m0": 1,
    "int64": 8, "int32": 4, "int8": 1, "uint8": 1,
}  # fmt: skip
"""Bytes of one element; rows of mixed types are ``uint8``, and their ``meaning`` says what is where."""

Role = Literal["entries", "carry", "pending", "window"]


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of one layer inside a slot: ``rows`` rows of ``row_bytes`` bytes without gaps, from byte ``offset``.

    ``role`` says which rows are in use: *entries* and *window* all, one for each ``ratio`` tokens; *carry* all, the
    rows that a compressor takes over from the previous window; *pending* as many as there are tokens past the last
    whole window of ``ratio``.
    """

    name: str
    layer: int
    offset: int
    rows: int
    row_bytes: int
    row_shape: tuple[int, ...]
    dtype: str
    meaning: str
    role: Role = "entries"
    ratio: int = 1

    @property
    def payload_bytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes

    @property
    def end(self) -> int:
        """First byte after the part."""
        return self.offset + self.payload_bytes

    def live_rows(self, position: int) -> int:
        """Rows in use in a slot whose rows end at token ``position``."""
        return position % self.ratio if self.role == "pending" else self.rows


@dataclass(frozen=True)
class Layout:
    """The layout of one kind's slots, checked when it is made; a part of slot i is at ``i * slot_bytes + part.offset``.

    Raises:
        ProfileError: a part whose row bytes disagree with shape and dtype, parts that overlap or leave the slot, a part
            off its element's alignment, or a slot stride off ``alignment``.
    """

    kind: str
    layout_id: int
    parts: tuple[Part, ...]
    slot_bytes: int
    alignment: int

    def __post_init__(self) -> None:
        seen: set[tuple[int, str]] = set()
        end = 0
        for part in self.parts:
            where = f"{self.kind} layer {part.layer} part {part.name!r}"
            _check_row(where, part)
            if (part.layer, part.name) in seen:
                raise ProfileError(where, "declared twice", "give the parts of one layer different names")
            seen.add((part.layer, part.name))
            if part.offset < end:
                what = f"starts at byte {part.offset}, before the part ahead of it ends at {end}"
                raise ProfileError(where, what, f"start it at {end} or later")
            end = part.end
        where = f"layout of {self.kind}"
        if not self.parts:
            raise ProfileError(where, "has no parts", "leave the kind out of the profile: it is then absent")
        if end > self.slot_bytes:
            what = f"payload ends at byte {end}, past the stride of {self.slot_bytes}"
            raise ProfileError(where, what, f"use a stride of {round_up(end, self.alignment)}")
        if self.slot_bytes % self.alignment:
            raise ProfileError(
                where,
                f"stride {self.slot_bytes} is not a multiple of the alignment {self.alignment}",
                f"pad the stride to {round_up(self.slot_bytes, self.alignment)}",
            )

    @cached_property
    def digest(self) -> str:
        """SHA-256 over a canonical description, as 64 hex digits. The layout id is a name and not part of it."""
        described = {
            "kind": self.kind,
            "slot_bytes": self.slot_bytes,
            "alignment": self.alignment,
            "parts": [astuple(part) for part in self.parts],
        }
        return hashlib.sha256(json.dumps(described, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def payload_bytes(self) -> int:
        """Bytes of all rows of a slot, without padding."""
        return sum(part.payload_bytes for part in self.parts)

    def live_bytes(self, position: int) -> int:
        """Bytes in use in a slot whose rows end at token ``position``: pending rows count only as far as they exist."""
        return sum(part.live_rows(position) * part.row_bytes for part in self.parts)

    def part(self, name: str, layer: int) -> Part:
        """The part of that name in that layer; KeyError when there is none."""
        try:
            return self._by_name[name, layer]
        except KeyError:
            raise KeyError(f"{self.kind} has no part {name!r} in layer {layer}") from None

    @cached_property
    def _by_name(self) -> dict[tuple[str, int], Part]:
        return {(part.name, part.layer): part for part in self.parts}

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layers that have a part here, ascending."""
        return tuple(sorted({part.layer for part in self.parts}))

    def copy_ranges(self, slot: int, base: int = 0) -> tuple[tuple[int, int], ...]:
        """(first byte, bytes) of each part of one slot, for a copier: as declared, never inferred from a shape."""
        start = base + slot * self.slot_bytes
        return tuple((start + part.offset, part.payload_bytes) for part in self.parts)

    def differences(self, other: Layout) -> tuple[str, ...]:
        """What ``other`` says otherwise, one line a field; empty exactly when the digests are equal."""
        found = [
            f"{name}: {getattr(self, name)}, not {getattr(other, name)}"
            for name in ("kind", "slot_bytes", "alignment")
            if getattr(self, name) != getattr(other, name)
        ]
        if [(part.layer, part.name) for part in self.parts] != [(part.layer, part.name) for part in other.parts]:
            return (*found, "other parts, or in another order")
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            found += [
                f"layer {mine.layer} part {mine.name!r} {field.name}: {getattr(mine, field.name)}, "
                f"not {getattr(theirs, field.name)}"
                for field in fields(Part)
                if getattr(mine, field.name) != getattr(theirs, field.name)
            ]
        return tuple(found)

    def check_same(self, announced: Layout) -> None:
        """Refuse a layout that someone announces for this memory, unless it is this one.

        Raises:
            ProfileError: the layouts differ; the first difference is named.
        """
        if differences := self.differences(announced):
            more = f" and {len(differences) - 1} more" if len(differences) > 1 else ""
            fix = "describe the memory by the layout of its profile, or lay it out anew"
            raise ProfileError(f"layout of {self.kind}", differences[0] + more, fix)

    def most_slots(self, offset_bits: int) -> int:
        """The most slots whose ``slot * stride`` fits signed offsets of that width.

        >>> Layout("indexer_state", 1, (Part("k", 0, 0, 1, 8, (8,), "uint8", "key"),), 1002240, 16).most_slots(32)
        2143
        """
        return ((1 << offset_bits - 1) - 1) // self.slot_bytes + 1

    def check_pool(self, slots: int, offset_bits: int = 64) -> None:
        """Refuse a pool whose last slot lies past the offsets that a kernel's ABI can form.

        Args:
            slots: slots of the pool.
            offset_bits: width of the signed number in which the ABI forms ``slot * stride``.

        Raises:
            ProfileError: the pool is too large, or has no slot; the fix names the greatest one.
        """
        most = self.most_slots(offset_bits)
        if slots < 1:
            raise ProfileError(f"pool of {self.kind}", f"{slots} slots", f"use 1 to {most} slots")
        if slots > most:
            last = (slots - 1) * self.slot_bytes
            what = f"{slots} slots of {self.slot_bytes} bytes: last offset {last} not in [0, 2**{offset_bits - 1})"
            fix = f"use 1 to {most} slots, or a kernel with wider offsets"
            raise ProfileError(f"pool of {self.kind}", what, fix)

    def check_io(self, mode: Literal["buffered", "direct"], block_bytes: int = 4096, pad: bool = False) -> int:
        """The stride of slots in a file, for the I/O mode in force.

        Args:
            mode: "buffered" takes any length; "direct" needs offsets and lengths in whole blocks.
            block_bytes: the device's block.
            pad: pad the stride to whole blocks rather than refuse.

        Raises:
            ProfileError: direct I/O, an unaligned stride, and no padding.
        """
        padded = round_up(self.slot_bytes, block_bytes)
        if mode == "buffered" or padded == self.slot_bytes:
            return self.slot_bytes
        if not pad:
            raise ProfileError(
                f"file of {self.kind}",
                f"stride {self.slot_bytes} is not a multiple of the {block_bytes}-byte blocks of direct I/O",
                f"pad the stride to {padded}, or use buffered I/O",
            )
        return padded


def round_up(value: int, multiple: int) -> int:
    """The least multiple of ``multiple`` at or above ``value``.

    >>> round_up(37376, 576)
    37440
    """
    return -(-value // multiple) * multiple


def _check_row(where: str, part: Part) -> None:
    """Raise unless rows, bytes, shape and dtype of a part agree."""
    if part.dtype not in ITEM_BYTES:
        raise ProfileError(where, f"unknown dtype {part.dtype!r}", f"use one of {', '.join(ITEM_BYTES)}")
    item = ITEM_BYTES[part.dtype]
    computed = math.prod(part.row_shape) * item
    if part.row_bytes != computed:
        what = f"row_bytes {part.row_bytes}, but shape {part.row_shape} of {part.dtype} takes {computed}"
        raise ProfileError(where, what, f"use {computed}")
    if part.rows < 1 or part.ratio < 1 or part.row_bytes < 1:
        what = f"{part.rows} rows of {part.row_bytes} bytes at ratio {part.ratio}"
        raise ProfileError(where, what, "give at least 1 of each")
    if part.offset % item:
        what = f"offset {part.offset} is off the {item}-byte elements of {part.dtype}"
        raise ProfileError(where, what, f"start it at {round_up(part.offset, item)}")
