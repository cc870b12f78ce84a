"""Bytes of slots from and to contiguous memory: gather, scatter, scrub, window_gather, indexer_gather.

References copy the same bytes and refuse the same entries as ``cuda/copies.cu``. What a caller of a checked copy may
rely on, whatever other streams do to the words meanwhile, as long as who takes a slot anew changes its word before its
bytes (every ``take`` and ``load_begin`` raises the generation). Keys of an indexer are also made anew in their
generation; without a pin they are told by their version, so by ``indexer_gather``:

    refusals[i] == 0   all bytes of entry i are those of the slot in the expected generation
    refusals[i] != 0   the output of entry i is not to be used. Strip by strip it holds what it held before, zeros, or
                       bytes of the expected generation, and never those of another owner. Where the entry was refused
                       all along, as in the references, it holds what it held before

``scatter`` and ``scrub`` look once, before they write: a slot is its writer's until the writer gives it up. The look
turns away a launch that comes too late, and is no lock.

A launch that reads without a pin may read while another one writes; both sides do that by relaxed accesses here. Beside
kernels that write slots by plain stores, PTX calls it a race, which a pin prevents.

Floors in the docstrings, here and of the other families, are bytes read and written over 4.3 TB/s, which a device like
an H200 is assumed to move; below 10 MB the launch itself probably takes longer. Neither that rate nor a launch's time
has been measured here: ``python tests/gpu --only times`` measures a copy's rate and each kernel's time on a device.
Beside the bytes, each strip of 8 KiB reads its slot number, generation and refusal (9 bytes) and looks at its word
twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .arena_slots import fitting, slot_ids
from .draft import Draft
from .entries import IDS, LIVE, MOST, SLOTS, Entries, entry_draft, in_use, require_entries, require_slots
from .launch import Argument, Kernel, LaunchPlan, Pointer, Value, blocks
from .reading import CHECK, HEADERS, Check, check_values, require_check, touchable

Bytes = npt.NDArray[np.uint8]
Slots = npt.NDArray[np.intp] | npt.NDArray[np.int32]
Arrays = Check[npt.NDArray[Any]]
Pointers = Check[Pointer]

STRIP_BYTES = 8192
"""What a warp copies between its two looks at a word: ``kStripBytes``."""

WARPS = 8
"""Of a block."""

COUNTED = 2**32
"""Strips and entries of a launch are fewer: kernels number them in 32 bits."""

_READ = (Argument("arena", "const u8*", "uint8 [slots, stride], from what is read on", alignment=16), *SLOTS)
_WRITTEN = (Argument("arena", "u8*", "uint8 [slots, stride], from what is written on", alignment=16), *SLOTS)
_ENTRIES = (IDS, LIVE, MOST, Argument("bytes", "u32", "of a slot that are copied, a multiple of 16"))

GATHER = Kernel(
    "gather",
    "copies.cu",
    (*_READ, *_ENTRIES, Argument("out", "u8*", "uint8 [most, bytes]", alignment=16), *CHECK),
    headers=HEADERS,
)
SCATTER = Kernel(
    "scatter",
    "copies.cu",
    (*_WRITTEN, *_ENTRIES, Argument("data", "const u8*", "uint8 [most, bytes]", alignment=16), *CHECK),
    headers=HEADERS,
)
SCRUB = Kernel(
    "scrub",
    "copies.cu",
    (*_WRITTEN, *_ENTRIES, Argument("pattern", "u32", "what every 4 bytes become"), *CHECK),
    headers=HEADERS,
)
WINDOW_GATHER = Kernel(
    "window_gather",
    "copies.cu",
    (
        *_READ,
        Argument("table", "const i32*", "int32 [most, width], slots; no slot where there is no block"),
        Argument("width", "u32", "entries of a request"),
        Argument("block_rows", "u32", "rows of a slot"),
        Argument("page_rows", "u32", "rows that lie in one piece; divides block_rows"),
        Argument("page_stride", "u64", "bytes from one page to the next"),
        Argument("row_bytes", "u32", "a multiple of 4"),
        Argument("positions", "const i64*", "int64 [most], of the last row of each window; negative: no window"),
        Argument("rows", "u32", "of a window"),
        LIVE,
        MOST,
        Argument("out", "u8*", "uint8 [most, rows, row_bytes], oldest first, from row 0 on", alignment=16),
        *CHECK,
    ),
    headers=HEADERS,
)
INDEXER_GATHER = Kernel(
    "indexer_gather",
    "copies.cu",
    (
        Argument("keys", "const u8*", "uint8 [slots, stride], from the first key on", alignment=16),
        Argument("scales", "const u8*", "uint8 [slots, stride], from the first scale on", alignment=4, nullable=True),
        *SLOTS,
        IDS,
        Argument("starts", "const u32*", "uint32 [most + 1], where the rows of each entry begin in the output"),
        Argument("slot_rows", "u32", "rows of a slot"),
        Argument("key_bytes", "u32", "of a row, a multiple of 16"),
        Argument("scale_bytes", "u32", "of a row, a multiple of 4"),
        LIVE,
        MOST,
        Argument("out_keys", "u8*", "uint8 [out_rows, key_bytes]", alignment=16),
        Argument("out_scales", "u8*", "uint8 [out_rows, scale_bytes]", alignment=4, nullable=True),
        Argument("out_rows", "u32", "rows of the output"),
        Argument("versions", "const u32*", "uint32 [most], of the entries that the keys route to", nullable=True),
        *CHECK,
    ),
    headers=HEADERS,
)


# ---- references -----------------------------------------------------------------------------------------------------


def gather(
    arena: Bytes, ids: Slots, out: Bytes | None = None, *, check: Arrays | None = None, live: int | None = None
) -> Bytes:
    """Bytes of some slots, one after the other.

    Args:
        arena: uint8 [slots, ...]; any strides between slots.
        ids: [most] slots; they may repeat.
        out: uint8 [most, ...] to write into; new memory, zeros where nothing is written, by default.
        check: its refusals are updated. Without one every number must be a slot.
        live: entries in use; all by default. Fewer than none are none, and more than ``most`` are all.

    Returns:
        ``out``.

    Bytes moved: 2 x n x slot bytes; floor for 16 MiB: 7.8 us.

    Raises:
        IndexError: a number is no slot, and there is no check to say so.
    """
    slots, entries = _touched(arena, ids, check, live)
    if check is None and out is None and live is None:
        return arena[slots]
    out = np.zeros((len(ids), *arena.shape[1:]), np.uint8) if out is None else out
    out[entries] = arena[slots]
    return out


def scatter(arena: Bytes, ids: Slots, data: Bytes, *, check: Arrays | None = None, live: int | None = None) -> None:
    """Write ``data`` uint8 [most, ...] into some slots, each of which may occur once; else as ``gather``.

    Bytes moved: 2 x n x slot bytes; floor for 16 MiB: 7.8 us.

    Raises:
        IndexError: as ``gather``.
        ValueError: data that is not uint8, or not a row for each slot.
    """
    slots, entries = _touched(arena, ids, check, live)
    arena[slots] = fitting(arena, ids, data)[entries]


def scrub(arena: Bytes, ids: Slots, pattern: int = 0, *, check: Arrays | None = None, live: int | None = None) -> None:
    """Fill some slots with ``pattern`` for every 4 bytes, lowest byte first; else as ``scatter``.

    0 clears; 0xFFFFFFFF poisons: every float format reads it as NaN, and no table holds it as a slot.
    Bytes moved: n x slot bytes; floor for 16 MiB: 3.9 us.
    """
    slots, _ = _touched(arena, ids, check, live)
    filled = np.frombuffer(pattern.to_bytes(4, "little"), np.uint8)
    arena[slots] = np.resize(filled, arena.shape[1:]) if pattern else 0


def window_gather(
    pages: Bytes,
    table: npt.NDArray[Any],
    positions: npt.NDArray[Any],
    out: Bytes,
    *,
    check: Arrays | None = None,
    live: int | None = None,
) -> None:
    """The last rows of the windows of some requests, oldest first.

    Position p of a request is in block ``b = p // block_rows``, at entry ``b % width`` of its row of the table, in row
    ``p % block_rows`` of that slot. One slot whose rows form a ring is a table of width 1.

    Args:
        pages: uint8 [slots, pages, page_rows, row_bytes]: the rows of a slot, page after page.
        table: whole numbers [most, width], slots; what names none is where there is no block.
        positions: [most], of the last row of each window; negative for a request without rows.
        out: uint8 [most, rows, row_bytes]. Row 0 is the oldest; with fewer than ``rows`` positions, what follows them
            stays as it was.
        check: with entries [most, width] in that order; a window is right if all entries that it touches are.
        live: requests in use; all by default.

    Bytes moved: 2 x n x min(position + 1, rows) x row_bytes; floor for 256 requests x 128 rows x 584 bytes: 8.9 us.

    Raises:
        IndexError: a window needs a number that is no slot, and there is no check to say so.
    """
    width, block_rows, rows = table.shape[1], pages.shape[1] * pages.shape[2], out.shape[1]
    for request, last in enumerate(positions[: in_use(live, len(positions))].tolist()):
        first = max(0, last + 1 - rows)
        window = first + np.arange(last + 1 - first)
        touched, of = np.unique(window // block_rows % width, return_inverse=True)
        slots = table[request, touched]
        kept = _allowed(pages, slots, check, request * width + touched)[of]
        row = window[kept] % block_rows
        found = pages[slots[of[kept]], row // pages.shape[2], row % pages.shape[2]]
        out[request, : len(window)][kept] = found


def indexer_gather(
    keys: Bytes,
    scales: Bytes | None,
    ids: Slots,
    starts: npt.NDArray[Any],
    out_keys: Bytes,
    out_scales: Bytes | None,
    *,
    check: Arrays | None = None,
    live: int | None = None,
) -> None:
    """Keys of some slots of an indexer, and their scales, as rows one after the other.

    Args:
        keys: uint8 [slots, slot_rows, key_bytes].
        scales: uint8 [slots, slot_rows, scale_bytes]; None where keys have none.
        ids: [most] slots, of one request or of many.
        starts: uint32 [most + 1], ascending: entry i gives its first rows to rows [starts[i], starts[i + 1]) of the
            output, at most ``slot_rows``; those of the last block of a request may be fewer. Rows of that range that
            the output or the slot doesn't have are left out, of a range that descends nothing is written, and rows of
            two entries hold either's. None of it is a refusal, with a check or without.
        out_keys: uint8 [rows, key_bytes].
        out_scales: uint8 [rows, scale_bytes], where there are scales.
        check: with versions, so that keys of other entries are refused.
        live: entries in use; all by default.

    Bytes moved: 2 x rows x (key_bytes + scale_bytes), and 8 a block for its word; floor for 128k tokens at ratio 1 and
    132 bytes a row: 8.0 us.

    Raises:
        IndexError: a number is no slot, and there is no check to say so.
    """
    begin, end = starts[:-1].astype(np.int64), np.minimum(starts[1:], len(out_keys)).astype(np.int64)
    counts = np.minimum(end - begin, keys.shape[1])[: in_use(live, len(ids))]
    entries = np.flatnonzero(counts > 0)
    for entry in entries[_allowed(keys, ids[entries], check, entries)].tolist():
        rows = slice(int(begin[entry]), int(begin[entry] + counts[entry]))
        out_keys[rows] = keys[ids[entry], : counts[entry]]
        if scales is not None and out_scales is not None:
            out_scales[rows] = scales[ids[entry], : counts[entry]]


def _touched(
    arena: Bytes, ids: Slots, check: Arrays | None, live: int | None
) -> tuple[Slots, npt.NDArray[np.intp] | slice]:
    """Slots [n] of the entries in use that may be touched, and these entries, as an index. Refusals are written."""
    if check is None and live is None:
        return slot_ids(arena, ids), slice(None)
    used = ids[: in_use(live, len(ids))]
    entries = np.flatnonzero(_allowed(arena, used, check))
    return used[entries], entries


def _allowed(
    arena: Bytes, ids: npt.NDArray[Any], check: Arrays | None, entries: npt.NDArray[np.intp] | None = None
) -> npt.NDArray[np.bool_]:
    """Which of some slots may be touched, bool [n]. Refusals are written, at ``entries`` [n] of the check."""
    if check is None:
        return np.ones(len(slot_ids(arena, ids)), np.bool_)  # without a check every number must be one
    return touchable(check, len(arena), ids, entries)


# ---- plans ----------------------------------------------------------------------------------------------------------


def gather_plan(entries: Entries, bytes: int, out: Pointer, check: Pointers | None = None) -> LaunchPlan:
    """A warp for each 8 KiB of each of ``most`` slots; arguments as in ``GATHER``.

    Raises:
        LaunchRefused: bytes or strides that are no multiples of 16, too little memory, or too many strips.
    """
    return _slots_plan(GATHER, entries, check, bytes=bytes, out=out)


def scatter_plan(entries: Entries, bytes: int, data: Pointer, check: Pointers | None = None) -> LaunchPlan:
    """As ``gather_plan``."""
    return _slots_plan(SCATTER, entries, check, bytes=bytes, data=data)


def scrub_plan(entries: Entries, bytes: int, pattern: int = 0, check: Pointers | None = None) -> LaunchPlan:
    """As ``gather_plan``."""
    return _slots_plan(SCRUB, entries, check, bytes=bytes, pattern=pattern)


def window_gather_plan(
    arena: Pointer,
    stride: int,
    slots: int,
    table: Pointer,
    width: int,
    block_rows: int,
    positions: Pointer,
    rows: int,
    most: int,
    row_bytes: int,
    out: Pointer,
    *,
    page_rows: int | None = None,
    page_stride: int = 0,
    live: Pointer | None = None,
    check: Pointers | None = None,
) -> LaunchPlan:
    """A warp for each 8 KiB of each page that a window may touch; arguments as in ``WINDOW_GATHER``.

    ``page_rows`` and ``page_stride`` are for slots whose rows don't lie in one piece.

    Raises:
        LaunchRefused: rows that no table of that width holds, pages that don't fit the slot, row bytes that are no
            multiple of 4, strides that are none of 16, too little memory, or too many strips.
    """
    draft = Draft(
        WINDOW_GATHER, arena=arena, stride=stride, slots=slots, table=table, width=width, block_rows=block_rows,
        page_rows=block_rows if page_rows is None else page_rows, page_stride=page_stride, row_bytes=row_bytes,
        positions=positions, rows=rows, live=live, most=most, out=out, **check_values(WINDOW_GATHER, check),
    )  # fmt: skip
    page_rows = draft.number("page_rows")
    draft.require_least(1, "width", "block_rows", "page_rows", "row_bytes", "rows")
    if block_rows % page_rows:
        raise draft.refusal("page_rows", f"use a divisor of {block_rows} rows of a slot")
    held = block_rows if width == 1 else (width - 1) * block_rows + 1
    if rows > held:
        what = f"{width} entries of {block_rows} rows hold the last {held} at least"
        raise draft.refusal("rows", f"gather at most {held}, or use a wider table: {what}")
    if most * width >= COUNTED:
        raise draft.refusal("width", f"launch fewer than 2**32 entries; {most} requests have {most * width}")
    pages = block_rows // page_rows
    draft.require_multiple(4, "row_bytes")
    draft.require_multiple(16 if row_bytes % 16 == 0 else 4, "page_stride")
    if pages > 1 and page_stride < page_rows * row_bytes:
        raise draft.refusal("page_stride", f"pages take at least {page_rows * row_bytes} bytes")
    require_slots(draft, (pages - 1) * page_stride + page_rows * row_bytes)
    require_check(draft, most * width)
    draft.require_bytes(table=4 * most * width, positions=8 * most, out=most * rows * row_bytes)
    touched = (rows + page_rows - 2) // page_rows + 1
    return draft.plan(_grid(draft, touched * -(-page_rows // max(1, STRIP_BYTES // row_bytes))))


def indexer_gather_plan(
    keys: Pointer,
    scales: Pointer | None,
    stride: int,
    slots: int,
    ids: Pointer,
    starts: Pointer,
    most: int,
    slot_rows: int,
    key_bytes: int,
    scale_bytes: int,
    out_keys: Pointer,
    out_scales: Pointer | None,
    out_rows: int,
    *,
    live: Pointer | None = None,
    check: Pointers | None = None,
) -> LaunchPlan:
    """A warp for each 8 KiB of keys of each entry; arguments as in ``INDEXER_GATHER``.

    Raises:
        LaunchRefused: key bytes or strides that are no multiples of 16, scale bytes that are none of 4, scales on one
            side only, too little memory, or too many strips.
    """
    draft = Draft(
        INDEXER_GATHER, keys=keys, scales=scales, stride=stride, slots=slots, ids=ids, starts=starts,
        slot_rows=slot_rows, key_bytes=key_bytes, scale_bytes=scale_bytes, live=live, most=most, out_keys=out_keys,
        out_scales=out_scales, out_rows=out_rows, **check_values(INDEXER_GATHER, check),
    )  # fmt: skip
    draft.require_least(1, "slot_rows", "key_bytes")
    draft.require_multiple(16, "key_bytes")
    draft.require_multiple(4, "scale_bytes")
    if (scales is None) != (out_scales is None):
        alone = "out_scales" if scales is None else "scales"
        raise draft.refusal(alone, "pass scales and out_scales, or None for both")
    require_slots(draft, slot_rows * key_bytes, "keys")
    if scales is not None:
        require_slots(draft, slot_rows * scale_bytes, "scales")
    require_check(draft, most)
    draft.require_bytes(
        ids=4 * most, starts=4 * (most + 1), out_keys=out_rows * key_bytes, out_scales=out_rows * scale_bytes
    )
    return draft.plan(_grid(draft, -(-slot_rows // max(1, STRIP_BYTES // key_bytes))))


def _slots_plan(kernel: Kernel, entries: Entries, check: Pointers | None, **given: Value) -> LaunchPlan:
    """Of a copy between slots and rows that lie one after the other."""
    draft = entry_draft(kernel, entries, check, **given)
    size = draft.number("bytes")
    draft.require_multiple(16, "bytes")
    require_entries(draft, size)
    draft.require_bytes(**{rows: draft.number("most") * size for rows in ("out", "data") if rows in draft})
    return draft.plan(_grid(draft, -(-size // STRIP_BYTES)))


def _grid(draft: Draft, strips: int) -> tuple[int, int, int]:
    """Blocks for ``most`` items of so many strips."""
    total = draft.number("most") * strips
    if total >= COUNTED:
        raise draft.refusal("most", f"launch fewer than 2**32 strips; these are {total}")
    return blocks(total, WARPS)
