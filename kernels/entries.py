"""The entries that a launch goes to: which slots of a pool, and how many of them are in use.

Two kernels of ``copies.py`` have them in a form of their own: ``window_gather`` as a table of several for each request,
``indexer_gather`` in two arenas at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from .draft import Draft, named
from .launch import Argument, Kernel, Pointer, Value
from .reading import Check, check_values, require_check

SLOTS = (
    Argument("stride", "u64", "bytes from one slot to the next, a multiple of 16"),
    Argument("slots", "u32", "of the pool"),
)
"""What follows an arena, in every kernel that has one; see ``require_slots``."""

IDS = Argument("ids", "const i32*", "int32 [most], slots")
LIVE = Argument("live", "const i64*", "int64 [1], entries in use; None: all of most", nullable=True, bytes_min=8)
MOST = Argument("most", "u32", "entries there is room for")


@dataclass(frozen=True, slots=True)
class Entries:
    """Some slots of a pool, in a launcher's memory.

    arena   uint8 [slots, stride], from what is meant of slot 0 on: its first byte, or a page
    stride  bytes from one slot to the next, a multiple of 16
    slots   of the pool
    ids     int32 [most], slots
    most    entries there is room for
    live    int64 [1], entries in use; None: all
    """

    arena: Pointer
    stride: int
    slots: int
    ids: Pointer
    most: int
    live: Pointer | None = None


def entry_draft(kernel: Kernel, entries: Entries, check: Check[Pointer] | None, **given: Value) -> Draft:
    """Values of a launch over entries, and of their check; what is given stands for what the entries say of it.

    Raises:
        LaunchRefused: they are no entries, or as ``check_values`` and ``Draft``.
    """
    values = named(kernel, "ids", entries, Entries) | given
    return Draft(kernel, **values, **check_values(kernel, check))


def require_entries(draft: Draft, extent: int) -> None:
    """Refuse slots as ``require_slots`` does, and memory too short for the entries' numbers or for their check.

    Raises:
        LaunchRefused: so it is.
    """
    most = draft.number("most")
    require_slots(draft, extent)
    require_check(draft, most)
    draft.require_bytes(ids=4 * most)


def require_slots(draft: Draft, extent: int, arena: str = "arena") -> None:
    """Refuse slots that overlap or lie off 16 bytes, and an arena that ends before its last slot does.

    Args:
        draft: of a kernel that takes ``SLOTS``.
        extent: bytes of a slot, from the arena's first byte on, that the kernel may touch.
        arena: argument that points to slot 0.

    Raises:
        LaunchRefused: so it is.
    """
    stride, slots = draft.number("stride"), draft.number("slots")
    draft.require_multiple(16, "stride")
    if slots > 1 and stride < extent:
        raise draft.refusal("stride", f"{extent} bytes of a slot need a stride of at least {extent}")
    draft.require_bytes(**{arena: (slots - 1) * stride + extent if slots else 0})


def in_use(live: int | None, most: int) -> int:
    """How many of ``most`` entries a launch looks at that finds ``live`` in device memory; None is all."""
    return most if live is None else min(max(live, 0), most)
