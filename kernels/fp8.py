"""Rows that a cache keeps as FP8: gathered out of pages as bfloat16, and quantised into pages.

What a row is stands in ``fp8_rows.py``. References and plans are of ``cuda/fp8.cu``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .call_refusal import CallRefusal
from .draft import Draft
from .entries import IDS, LIVE, MOST, SLOTS, Entries, entry_draft, require_entries
from .floats import from_bf16, to_bf16
from .fp8_rows import (
    LEAST_PEAK,
    V4_BYTES,
    V4_ELEMENTS,
    V4_LEAST_PEAK,
    V32_BYTES,
    V32_ELEMENTS,
    dequantised,
    from_v4_row,
    from_v32_row,
    quantised,
    row_views,
    scales_of,
    v4_row,
    v4_views,
    v32_row,
    v32_view,
)
from .launch import Argument, Kernel, LaunchPlan, Pointer, blocks
from .reading import CHECK, ROW_HEADERS, Check, touchable

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.uint16]

ROW_WIDTH_MAX = 1024
PAGE_ROWS_MAX = 1 << 16
"""Kernels count a page's bytes in 32 bits."""

INSERTED_AT_ONCE = 32
"""Rows that one block of threads inserts."""

_POOL = (
    *SLOTS,
    IDS,
    Argument("rows", "const u32*", "uint32 [most]: gathers read the first so many rows, inserts write this one"),
    LIVE,
    MOST,
    Argument("page_rows", "u32", "rows of a page"),
)
_FROM = Argument("arena", "const u8*", "uint8 [slots, stride] from the page of slot 0 on", alignment=16)
_TO = Argument("arena", "u8*", "uint8 [slots, stride] from the page of slot 0 on", alignment=16)
_WIDTH = Argument("width", "u32", "elements of a row")
_OUT = Argument("out", "u16*", "bfloat16 [most, page_rows, elements]", alignment=16)
_LEAST = Argument("least_peak", "float", "a smaller peak of a group counts as this")
_VALUES = Argument("values", "const u16*", "bfloat16 [most, elements]", alignment=16)
_ROUNDED = Argument("power_of_two", "u32", "1: scales are rounded up to powers of two", is_flag=True)

GATHER_V4 = Kernel("gather_dequantise_v4", "fp8.cu", (_FROM, *_POOL, _OUT, *CHECK), ROW_HEADERS)
GATHER_V32 = Kernel("gather_dequantise_v32", "fp8.cu", (_FROM, *_POOL, _OUT, *CHECK), ROW_HEADERS)
GATHER_ROWS = Kernel("gather_dequantise_rows", "fp8.cu", (_FROM, *_POOL, _WIDTH, _OUT, *CHECK), ROW_HEADERS)
INSERT_V4 = Kernel("quantise_insert_v4", "fp8.cu", (_TO, *_POOL, _LEAST, _VALUES, *CHECK), ROW_HEADERS)
INSERT_V32 = Kernel("quantise_insert_v32", "fp8.cu", (_TO, *_POOL, _LEAST, _VALUES, *CHECK), ROW_HEADERS)
INSERT_ROWS = Kernel(
    "quantise_insert_rows", "fp8.cu", (_TO, *_POOL, _WIDTH, _ROUNDED, _LEAST, _VALUES, *CHECK), ROW_HEADERS
)


# -- Gather ------------------------------------------------------------------------------------------------------------


def gather_dequantise_v4(
    pages: Bytes,
    page_rows: int,
    ids: npt.NDArray[np.int32],
    rows: npt.NDArray[np.uint32],
    out: Halves,
    check: Check[npt.NDArray[Any]] | None = None,
) -> None:
    """Rows of V4 pages as bfloat16.

    pages  uint8 [slots, bytes], each from its page on
    ids    int32 [n], slots
    rows   uint32 [n], how many of the page's rows, from the first on
    out    bfloat16 [n, page_rows, 512], written; rows beyond, and those of a refused entry, stay as they were

    Bytes: 584 read and 1024 written a row; an entry 33 for slot, rows, two looks at word and generation.
    Floor at 4.3 TB/s: 64 ki rows (a million tokens at ratio 16) 24.5 us.
    An entry whose rows exceed the page is refused as ``BAD_ARGUMENT``.
    Source of the row: FlashMLA's page as vLLM 0.33.0 fills it (v1/attention/backends/mla/flashmla_sparse.py).
    """
    data, scales = v4_views(pages, page_rows)
    for entry, slot, count in _readable(check, pages, ids, rows, page_rows):
        out[entry, :count] = from_v4_row(data[slot, :count], scales[slot, :count])


def gather_dequantise_v32(
    pages: Bytes,
    page_rows: int,
    ids: npt.NDArray[np.int32],
    rows: npt.NDArray[np.uint32],
    out: Halves,
    check: Check[npt.NDArray[Any]] | None = None,
) -> None:
    """Rows of V3.2 pages as bfloat16 [n, page_rows, 576]; else as ``gather_dequantise_v4``.

    Bytes: 656 read and 1152 written a row; 33 an entry. Floor: 128 ki tokens 55 us.
    """
    data = v32_view(pages, page_rows)
    for entry, slot, count in _readable(check, pages, ids, rows, page_rows):
        out[entry, :count] = from_v32_row(data[slot, :count])


def gather_dequantise_rows(
    pages: Bytes,
    page_rows: int,
    width: int,
    ids: npt.NDArray[np.int32],
    rows: npt.NDArray[np.uint32],
    out: Halves,
    check: Check[npt.NDArray[Any]] | None = None,
) -> None:
    """Plain rows as bfloat16 [n, page_rows, width]; else as ``gather_dequantise_v4``.

    Bytes: width + 4 read and 2 width written a row; 33 an entry. Floor for indexer keys: 128 ki tokens 12 us.
    """
    codes, scales = row_views(pages, page_rows, width)
    for entry, slot, count in _readable(check, pages, ids, rows, page_rows):
        out[entry, :count] = to_bf16(dequantised(codes[slot, :count], scales[slot, :count].view(np.float32)[:, 0]))


# -- Insert ------------------------------------------------------------------------------------------------------------


def quantise_insert_v4(
    pages: Bytes,
    page_rows: int,
    ids: npt.NDArray[np.int32],
    rows: npt.NDArray[np.uint32],
    values: Halves,
    check: Check[npt.NDArray[Any]] | None = None,
    least_peak: float = V4_LEAST_PEAK,
) -> None:
    """Rows of bfloat16 quantised into V4 pages.

    pages   uint8 [slots, bytes], each from its page on; written
    ids     int32 [n], slots
    rows    uint32 [n], row of the page; no row of a slot twice
    values  bfloat16 [n, 512]

    Bytes: 1024 read and 584 written a row, 13 for its slot, place, generation and refusal; a word a slot among 32
    neighbours.
    Floor at 4.3 TB/s: 8 ki rows 3.1 us, under a launch.
    A row beyond the page is refused as ``BAD_ARGUMENT``.
    """
    data, scales = v4_views(pages, page_rows)
    for entry, slot, row in writable(check, len(pages), ids, rows, page_rows):
        codes, exponents = v4_row(values[entry : entry + 1], least_peak)
        data[slot, row], scales[slot, row] = codes[0], exponents[0]


def quantise_insert_v32(
    pages: Bytes,
    page_rows: int,
    ids: npt.NDArray[np.int32],
    rows: npt.NDArray[np.uint32],
    values: Halves,
    check: Check[npt.NDArray[Any]] | None = None,
    least_peak: float = LEAST_PEAK,
) -> None:
    """Rows of bfloat16 [n, 576] quantised into V3.2 pages; else as ``quantise_insert_v4``.

    Bytes: 1152 read and 656 written a row, 13, and words. Floor: 8 ki rows 3.5 us.
    """
    data = v32_view(pages, page_rows)
    for entry, slot, row in writable(check, len(pages), ids, rows, page_rows):
        data[slot, row] = v32_row(values[entry : entry + 1], least_peak)[0]


def quantise_insert_rows(
    pages: Bytes,
    page_rows: int,
    width: int,
    ids: npt.NDArray[np.int32],
    rows: npt.NDArray[np.uint32],
    values: Halves,
    check: Check[npt.NDArray[Any]] | None = None,
    least_peak: float = LEAST_PEAK,
    power_of_two: bool = False,
) -> None:
    """Rows of bfloat16 [n, width] quantised into pages of plain rows; else as ``quantise_insert_v4``.

    Indexer keys are rows of 128 with ``least_peak=INDEX_LEAST_PEAK``; some engines round their scales to powers of two.

    Bytes: 2 width read and width + 4 written a row, 13, and words. Floor for indexer keys: 8 ki rows 0.8 us.
    """
    codes, scales = row_views(pages, page_rows, width)
    for entry, slot, row in writable(check, len(pages), ids, rows, page_rows):
        given = from_bf16(values[entry])
        scale = scales_of(given, least_peak, power_of_two)
        codes[slot, row], scales[slot, row] = quantised(given, scale), scale.reshape(1).view(np.uint8)


def _readable(
    check: Check[npt.NDArray[Any]] | None,
    pages: Bytes,
    ids: npt.NDArray[np.int32],
    rows: npt.NDArray[np.uint32],
    page_rows: int,
) -> list[tuple[int, int, int]]:
    """Entry, slot and rows of what may be read; why the others may not is written to ``check.refusals``."""
    return _touchable(check, len(pages), ids, rows, rows <= page_rows)


def writable(
    check: Check[npt.NDArray[Any]] | None,
    slots: int,
    ids: npt.NDArray[np.int32],
    rows: npt.NDArray[np.uint32],
    page_rows: int,
    among: npt.NDArray[np.intp] | None = None,
) -> list[tuple[int, int, int]]:
    """Entry, slot and row of what may be written; why the others may not is written to ``check.refusals``.

    Args:
        check: None where nobody asks.
        slots: of the pool.
        ids: int32 [n], slots.
        rows: uint32 [n], rows of the page.
        page_rows: how many there are.
        among: entries that are looked at; all by default.
    """
    return _touchable(check, slots, ids, rows, rows < page_rows, among)


def _touchable(
    check: Check[npt.NDArray[Any]] | None,
    slots: int,
    ids: npt.NDArray[np.int32],
    rows: npt.NDArray[np.uint32],
    within: npt.NDArray[np.bool_],
    among: npt.NDArray[np.intp] | None = None,
) -> list[tuple[int, int, int]]:
    at = np.arange(len(ids)) if among is None else among
    allowed = touchable(check, slots, ids[at], at)
    if check is not None:
        check.refusals[at[allowed & ~within[at]]] = CallRefusal.BAD_ARGUMENT
    found = at[allowed & within[at]]
    return list(zip(found.tolist(), ids[found].tolist(), rows[found].tolist(), strict=True))


# -- Plans -------------------------------------------------------------------------------------------------------------


def gather_dequantise_v4_plan(
    entries: Entries, page_rows: int, rows: Pointer, out: Pointer, check: Check[Pointer] | None = None
) -> LaunchPlan:
    """A block an entry; arguments as in ``GATHER_V4``. LaunchRefused: memory is too short."""
    draft = entry_draft(GATHER_V4, entries, check, page_rows=page_rows, rows=rows, out=out)
    return _gather(draft, V4_BYTES, V4_ELEMENTS)


def gather_dequantise_v32_plan(
    entries: Entries, page_rows: int, rows: Pointer, out: Pointer, check: Check[Pointer] | None = None
) -> LaunchPlan:
    """A block an entry; arguments as in ``GATHER_V32``. LaunchRefused: memory is too short."""
    draft = entry_draft(GATHER_V32, entries, check, page_rows=page_rows, rows=rows, out=out)
    return _gather(draft, V32_BYTES, V32_ELEMENTS)


def gather_dequantise_rows_plan(
    entries: Entries, page_rows: int, width: int, rows: Pointer, out: Pointer, check: Check[Pointer] | None = None
) -> LaunchPlan:
    """A block an entry; arguments as in ``GATHER_ROWS``.

    Raises:
        LaunchRefused: memory is too short, or a width that no warp takes.
    """
    draft = entry_draft(GATHER_ROWS, entries, check, page_rows=page_rows, width=width, rows=rows, out=out)
    _require_width(draft)
    return _gather(draft, width + 4, width)


def quantise_insert_v4_plan(
    entries: Entries,
    page_rows: int,
    rows: Pointer,
    values: Pointer,
    check: Check[Pointer] | None = None,
    least_peak: float = V4_LEAST_PEAK,
) -> LaunchPlan:
    """A block for 32 rows; arguments as in ``INSERT_V4``.

    Raises:
        LaunchRefused: memory is too short, or a peak so small that scales would be flushed.
    """
    draft = entry_draft(
        INSERT_V4, entries, check, page_rows=page_rows, rows=rows, values=values, least_peak=least_peak
    )  # fmt: skip
    return _insert(draft, V4_BYTES, V4_ELEMENTS)


def quantise_insert_v32_plan(
    entries: Entries,
    page_rows: int,
    rows: Pointer,
    values: Pointer,
    check: Check[Pointer] | None = None,
    least_peak: float = LEAST_PEAK,
) -> LaunchPlan:
    """As ``quantise_insert_v4_plan``, of ``INSERT_V32``."""
    draft = entry_draft(
        INSERT_V32, entries, check, page_rows=page_rows, rows=rows, values=values, least_peak=least_peak
    )  # fmt: skip
    return _insert(draft, V32_BYTES, V32_ELEMENTS)


def quantise_insert_rows_plan(
    entries: Entries,
    page_rows: int,
    width: int,
    rows: Pointer,
    values: Pointer,
    check: Check[Pointer] | None = None,
    least_peak: float = LEAST_PEAK,
    power_of_two: bool = False,
) -> LaunchPlan:
    """As ``quantise_insert_v4_plan``, of ``INSERT_ROWS``. LaunchRefused, too: a width that no warp takes."""
    draft = entry_draft(
        INSERT_ROWS, entries, check, page_rows=page_rows, width=width, rows=rows, values=values, least_peak=least_peak,
        power_of_two=power_of_two,
    )  # fmt: skip
    _require_width(draft)
    return _insert(draft, width + 4, width)


def require_page(draft: Draft, row_bytes: int) -> None:
    """Refuse pages that don't fit their slots, or memory too short for entries, their rows and their check.

    Raises:
        LaunchRefused: so it is.
    """
    page_rows = draft.number("page_rows")
    if page_rows > PAGE_ROWS_MAX:
        raise draft.refusal("page_rows", f"pass at most {PAGE_ROWS_MAX}")
    require_entries(draft, row_bytes * page_rows)
    draft.require_bytes(rows=4 * draft.number("most"))


def require_least_peak(draft: Draft) -> None:
    """Refuse a least peak whose scale would be flushed to zero, or be infinite.

    Raises:
        LaunchRefused: so it is.
    """
    draft.require_finite(LEAST_PEAK, "least_peak")


def _require_width(draft: Draft) -> None:
    """Refuse rows whose elements a warp doesn't hold, eight a lane at a time."""
    width = draft.number("width")
    if width % 8 or not 8 <= width <= ROW_WIDTH_MAX:
        raise draft.refusal("width", f"use a multiple of 8 up to {ROW_WIDTH_MAX}")


def _gather(draft: Draft, row_bytes: int, elements: int) -> LaunchPlan:
    require_page(draft, row_bytes)
    most = draft.number("most")
    draft.require_bytes(out=2 * elements * draft.number("page_rows") * most)
    return draft.plan(blocks(most, 1))


def _insert(draft: Draft, row_bytes: int, elements: int) -> LaunchPlan:
    require_page(draft, row_bytes)
    require_least_peak(draft)
    most = draft.number("most")
    draft.require_bytes(values=2 * elements * most)
    return draft.plan(blocks(most, INSERTED_AT_ONCE))
