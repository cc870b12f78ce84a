"""Pools for a replay: stand-in slots of a few bytes, and how many of each kind.

A replay computes nothing, so a slot needs no room for rows. The stand-in of a profile has its groups, granule, window
and kinds, and of each kind's parts one layer with rows of one byte; all that the manager decides is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...runtime.layout import Layout, Part, round_up
from ...runtime.profile import Profile
from .replay_trace import RequestTrace

TAG_BYTES = 8
"""Bytes at the start of each slot that say whose state it stands for."""


def stand_in(profile: Profile) -> Profile:
    """The profile with narrow slots; of another identity, so that no store mixes the two."""
    layouts = {kind: _narrow(layout) for kind, layout in profile.layouts.items()}
    return replace(profile, layouts=layouts, identity=f"replay of {profile.identity}", offset_bits=64)


def _narrow(layout: Layout) -> Layout:
    """One layer of each role, in rows of one byte."""
    rows: dict[tuple[int, str, str], int] = {}
    first: dict[str, Part] = {}
    for part in layout.parts:
        first.setdefault(part.role, part)
        key = (part.layer, part.name.partition(".")[0], part.role)  # pages of a tensor are name.0, name.1, ...
        rows[key] = rows.get(key, 0) + part.rows
    parts, offset = [], 0
    for role, part in first.items():
        name = part.name.partition(".")[0]
        count = rows[part.layer, name, role]
        parts.append(
            replace(part, name=name, offset=offset, rows=count, row_bytes=1, row_shape=(1,), dtype="uint8",
                    meaning=f"stands for {layout.kind}")
        )  # fmt: skip
        offset += count
    return Layout(layout.kind, layout.layout_id, tuple(parts), round_up(max(offset, TAG_BYTES), TAG_BYTES), TAG_BYTES)


def ample(trace: RequestTrace, profile: Profile, chunk: int, concurrency: int) -> dict[str, int]:
    """Slots of each kind with which nothing of a trace is ever evicted.

    Args:
        trace: all requests.
        profile: whose kinds.
        chunk: tokens between two boundaries that are kept.
        concurrency: most live requests.
    """
    granule, live = profile.granule, min(concurrency, len(trace.requests))
    granules = boundaries = blocks = 0
    for asked, shared in zip(trace.requests, trace.shared(), strict=True):
        new = asked.prompt - shared
        granules += -(-(new + asked.answer) // granule) + 2
        boundaries += -(-new // chunk) + 3
        if profile.window_block is not None:
            blocks += -(-(new + asked.answer) // profile.window_block) + 2 * granule // profile.window_block
    slots = {}
    for kind in profile.kinds:
        if kind in ("compressed_kv", "indexer_state"):
            slots[kind] = granules
        elif kind == "swa_window" and profile.window_block is not None:
            slots[kind] = blocks + 2 * live * (profile.window_slots + 1)
        else:
            slots[kind] = boundaries + live
    return slots


def largest(trace: RequestTrace, profile: Profile) -> int:
    """Slots that the load of a trace's longest prompt fills at most."""
    granules = -(-max(asked.prompt for asked in trace.requests) // profile.granule)
    slots = _chunk_slots(profile, granules * profile.granule) | _row_slots(profile)
    return sum(slots.values())


def divided(memory: int, profile: Profile, chunk: int, concurrency: int) -> dict[str, int]:
    """Slots of each kind in so many bytes of a profile's real slots: what live requests need, then equal prefixes.

    Raises:
        ValueError: less than a live request and one chunk of a prefix need.
    """
    sizes = {kind: layout.slot_bytes for kind, layout in profile.layouts.items()}
    each, own = _chunk_slots(profile, chunk), _row_slots(profile)
    unit = sum(count * sizes[kind] for kind, count in each.items())
    rows = sum(count * sizes[kind] for kind, count in own.items())
    live = min(concurrency, max(1, (memory // 2) // rows)) if rows else concurrency  # half for prefixes, at least
    units = (memory - live * rows) // unit
    if units < 1:
        least = rows + unit
        raise ValueError(f"{memory} bytes; one request and {chunk} tokens of a prefix take {least} in {profile.name}")
    return {kind: units * each[kind] + live * own.get(kind, 0) for kind in profile.kinds}


def real_bytes(slots: Mapping[str, int], profile: Profile) -> int:
    """Bytes that so many real slots would take."""
    return sum(count * profile.layouts[kind].slot_bytes for kind, count in slots.items())


def _chunk_slots(profile: Profile, chunk: int) -> dict[str, int]:
    """Slots that a chunk of a prefix takes."""
    granules, found = chunk // profile.granule, {}
    for kind in profile.kinds:
        if kind in ("compressed_kv", "indexer_state"):
            found[kind] = granules
        elif kind == "swa_window" and profile.window_block is not None:
            found[kind] = chunk // profile.window_block
        else:
            found[kind] = 1
    return found


def _row_slots(profile: Profile) -> dict[str, int]:
    """Slots that a live request has for itself, apart from those of its tokens."""
    own = {"uncompressed_tail": 1, "swa_window": 1 if profile.window_block is None else profile.window_slots + 1}
    return {kind: count for kind, count in own.items() if kind in profile.kinds}
