"""Profiles derived from the shipped ones, for tests of what must be told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvfsm.runtime.layout import ITEM_BYTES, Layout, Part
from kvfsm.runtime.profile import Profile


def with_parts(profile: Profile, change: Callable[[str, Part], Part]) -> Profile:
    """The profile with each part changed by ``change(kind, part)``; strides stay."""
    layouts = {
        kind: Layout(
            kind,
            layout.layout_id,
            tuple(change(kind, part) for part in layout.parts),
            layout.slot_bytes,
            layout.alignment,
        )
        for kind, layout in profile.layouts.items()
    }
    return replace(profile, layouts=layouts)


def with_dtype(profile: Profile, dtype: str) -> Profile:
    """The profile for the same model in another dtype, of at most the same width."""

    def change(kind: str, part: Part) -> Part:
        scale = ITEM_BYTES[part.dtype] // ITEM_BYTES[dtype]
        return replace(part, dtype=dtype, row_bytes=part.row_bytes // scale)

    return replace(with_parts(profile, change), identity=profile.identity.replace("float32", dtype))
