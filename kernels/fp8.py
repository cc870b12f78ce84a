"""Rows that a cache keeps as FP8: gathered out of pages as bfloat16, and quantised into pages.

A page is what a slot holds of one layer, or a part of it; rows are counted from its start. Three formats, each as its
engine reads it:

    v4    448 E4M3 codes in groups of 64, then 64 bfloat16 with positions; scales are powers of two, one byte each, and
          lie behind all rows of the page: 576 + 8 bytes a row (FlashMLA's page of DeepSeek-V4, vLLM 0.33.0)
    v32   512 E4M3 codes in groups of 128, four float32 scales, 64 bfloat16 with positions: 656 bytes a row (vLLM's of
          DeepSeek-V3.2)
    rows  a row of E4M3 codes with one float32 scale; scales lie behind all rows of the page. Indexer keys are such rows
          of 128, 132 bytes each

A scale is the greatest finite magnitude of its group over 448, at least ``least_peak`` over 448, so that no row is so
small that its scale is flushed to zero and its codes become NaN. NaN stays NaN, infinities come back as the greatest
value of their group, and neither moves the scale. Numbers below 2**-126 count as zero, going in and coming out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..runtime.layout import round_up
from .call_refusal import CallRefusal
from .floats import (
    E4M3_MAX,
    NAN_BITS,
    bits_of,
    floats_of,
    from_bf16,
    from_e4m3,
    peak_of,
    product,
    quotient,
    to_bf16,
    to_e4m3,
)
from .launch import Argument, Kernel, LaunchPlan, LaunchRefused, Pointer, Value, blocks, require_bytes
from .reading import CHECK, HEADERS, Check, answers, check_values

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]

V4_CODES, V4_ROPE, V4_GROUP = 448, 64, 64
V4_ELEMENTS = V4_CODES + V4_ROPE
V4_DATA_BYTES, V4_SCALE_BYTES = 576, 8
V4_LEAST_PEAK = 1e-4
"""As the engines that write this row have it (vLLM 0.33.0)."""

V32_CODES, V32_ROPE, V32_GROUP = 512, 64, 128
V32_ELEMENTS = V32_CODES + V32_ROPE
V32_BYTES = 656

LEAST_PEAK = float(E4M3_MAX) * 2.0**-126
"""Of a group whose scale is the least that isn't flushed to zero."""

INDEX_LEAST_PEAK = 1e-4
"""Of indexer keys, as the engines that write them have it (vLLM 0.33.0)."""

ROW_WIDTH_MAX = 1024
INSERTED_AT_ONCE = 32
"""Rows that one block of threads inserts."""

_HEADERS = (*HEADERS, "rows")
_POOL = (
    Argument("stride", "u64", "bytes from a slot to the next"),
    Argument("slots", "u32", "of the pool"),
    Argument("ids", "const i32*", "int32 [most]"),
    Argument("rows", "const u32*", "uint32 [most]: gathers read the first so many rows, inserts write this one"),
    Argument("live", "const i64*", "int64 [1], entries in use; None: all of most", nullable=True),
    Argument("most", "u32", "entries there is room for"),
    Argument("page_rows", "u32", "rows of a page"),
)
_FROM = Argument("arena", "const u8*", "uint8 [slots, stride] from the page of slot 0 on", alignment=16)
_TO = Argument("arena", "u8*", "uint8 [slots, stride] from the page of slot 0 on", alignment=16)
_WIDTH = Argument("width", "u32", "elements of a row")
_OUT = Argument("out", "u16*", "bfloat16 [most, page_rows, elements]", alignment=16)
_LEAST = Argument("least_peak", "float", "a smaller peak of a group counts as this")
_VALUES = Argument("values", "const u16*", "bfloat16 [most, elements]", alignment=16)
_ROUNDED = Argument("power_of_two", "u32", "1: scales are rounded up to powers of two")

GATHER_V4 = Kernel("gather_dequantise_v4", "fp8.cu", (_FROM, *_POOL, _OUT, *CHECK), _HEADERS)
GATHER_V32 = Kernel("gather_dequantise_v32", "fp8.cu", (_FROM, *_POOL, _OUT, *CHECK), _HEADERS)
GATHER_ROWS = Kernel("gather_dequantise_rows", "fp8.cu", (_FROM, *_POOL, _WIDTH, _OUT, *CHECK), _HEADERS)
INSERT_V4 = Kernel("quantise_insert_v4", "fp8.cu", (_TO, *_POOL, _LEAST, _VALUES, *CHECK), _HEADERS)
INSERT_V32 = Kernel("quantise_insert_v32", "fp8.cu", (_TO, *_POOL, _LEAST, _VALUES, *CHECK), _HEADERS)
INSERT_ROWS = Kernel(
    "quantise_insert_rows", "fp8.cu", (_TO, *_POOL, _WIDTH, _ROUNDED, _LEAST, _VALUES, *CHECK), _HEADERS
)


# -- Codes and scales, whatever the page -------------------------------------------------------------------------------


def scales_of(values: Floats, least_peak: float, power_of_two: bool = False) -> Floats:
    """The scale of each group.

    values      float32 [..., group]
    least_peak  at least ``LEAST_PEAK``; a smaller peak counts as this
    returns     float32 [...]

    >>> scales_of(np.array([[1.0, -224.0], [0.0, 3.0]], np.float32), LEAST_PEAK, power_of_two=True).tolist()
    [0.5, 0.0078125]
    """
    scales = quotient(np.maximum(peak_of(values), np.float32(least_peak)), E4M3_MAX)
    return floats_of(_ue8m0(scales) << np.uint32(23)) if power_of_two else scales


def v4_scales_of(groups: Floats, least_peak: float) -> tuple[Floats, Bytes]:
    """Scales float32 [...] of groups float32 [..., 64], powers of two, and their codes uint8 [...] (ue8m0)."""
    exponents = _ue8m0(scales_of(groups, least_peak))
    return floats_of(exponents << np.uint32(23)), exponents.astype(np.uint8)


def quantised(values: Floats, scales: Floats) -> Bytes:
    """E4M3 codes uint8 [..., group] of groups float32 [..., group] with these scales float32 [...]."""
    return to_e4m3(quotient(values, scales[..., None]))


def dequantised(codes: Bytes, scales: Floats) -> Floats:
    """Values float32 [..., group] of codes uint8 [..., group] with these scales float32 [...]."""
    return product(from_e4m3(codes), scales[..., None])


def _ue8m0(scales: Floats) -> npt.NDArray[np.uint32]:
    """Exponent, with bias 127, of the least power of two that is no less."""
    bits = bits_of(scales)
    exponents: npt.NDArray[np.uint32] = (bits >> np.uint32(23)) + (bits & np.uint32(0x7FFFFF) != 0)
    return exponents


def _from_ue8m0(codes: Bytes) -> Floats:
    """255 is NaN; 0, which would be 2**-127, is zero."""
    return floats_of(np.where(codes == 255, NAN_BITS, codes.astype(np.uint32) << np.uint32(23)))


# -- Rows of each format -----------------------------------------------------------------------------------------------


def v4_row(halves: Halves, least_peak: float = V4_LEAST_PEAK) -> tuple[Bytes, Bytes]:
    """Data rows uint8 [n, 576] and scale rows uint8 [n, 8] of bfloat16 [n, 512]."""
    groups = from_bf16(halves[:, :V4_CODES]).reshape(len(halves), V4_CODES // V4_GROUP, V4_GROUP)
    group_scales, exponents = v4_scales_of(groups, least_peak)
    codes = quantised(groups, group_scales).reshape(len(halves), V4_CODES)
    scales = np.zeros((len(halves), V4_SCALE_BYTES), np.uint8)
    scales[:, : exponents.shape[1]] = exponents
    return np.hstack((codes, np.ascontiguousarray(halves[:, V4_CODES:]).view(np.uint8))), scales


def from_v4_row(data: Bytes, scales: Bytes) -> Halves:
    """bfloat16 [n, 512] of data rows uint8 [n, 576] and scale rows uint8 [n, 8]."""
    groups = data[:, :V4_CODES].reshape(len(data), V4_CODES // V4_GROUP, V4_GROUP)
    values = to_bf16(dequantised(groups, _from_ue8m0(scales[:, : groups.shape[1]]))).reshape(len(data), V4_CODES)
    return np.hstack((values, np.ascontiguousarray(data[:, V4_CODES:]).view(np.uint16)))


def v32_row(halves: Halves, least_peak: float = LEAST_PEAK) -> Bytes:
    """Rows uint8 [n, 656] of bfloat16 [n, 576]."""
    groups = from_bf16(halves[:, :V32_CODES]).reshape(len(halves), V32_CODES // V32_GROUP, V32_GROUP)
    scales = scales_of(groups, least_peak)
    rope = np.ascontiguousarray(halves[:, V32_CODES:]).view(np.uint8)
    return np.hstack((quantised(groups, scales).reshape(len(halves), V32_CODES), scales.view(np.uint8), rope))


def from_v32_row(data: Bytes) -> Halves:
    """bfloat16 [n, 576] of rows uint8 [n, 656]."""
    groups = data[:, :V32_CODES].reshape(len(data), V32_CODES // V32_GROUP, V32_GROUP)
    scales = np.ascontiguousarray(data[:, V32_CODES : V32_CODES + 4 * groups.shape[1]]).view(np.float32)
    values = to_bf16(dequantised(groups, scales)).reshape(len(data), V32_CODES)
    return np.hstack((values, np.ascontiguousarray(data[:, V32_CODES + 4 * groups.shape[1] :]).view(np.uint16)))


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
    data = _v32_view(pages, page_rows)
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
    data = _v32_view(pages, page_rows)
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


def v4_views(pages: Bytes, page_rows: int) -> tuple[Bytes, Bytes]:
    """Data rows [slots, page_rows, 576] and scale rows [slots, page_rows, 8] of V4 pages."""
    end = page_rows * V4_DATA_BYTES
    return _rows_at(pages, 0, page_rows, V4_DATA_BYTES), _rows_at(pages, end, page_rows, V4_SCALE_BYTES)


def _v32_view(pages: Bytes, page_rows: int) -> Bytes:
    return _rows_at(pages, 0, page_rows, V32_BYTES)


def row_views(pages: Bytes, page_rows: int, width: int) -> tuple[Bytes, Bytes]:
    """Codes [slots, page_rows, width] and scales [slots, page_rows, 4] of pages of plain rows."""
    return _rows_at(pages, 0, page_rows, width), _rows_at(pages, page_rows * width, page_rows, 4)


def _rows_at(pages: Bytes, offset: int, rows: int, row_bytes: int) -> Bytes:
    """A view of rows that lie behind one another, uint8 [slots, rows, row_bytes]."""
    if pages.shape[1] < offset + rows * row_bytes:
        need = offset + rows * row_bytes
        raise ValueError(f"pages of {pages.shape[1]} bytes are too short; fix: {rows} rows need {need} bytes")
    strides = (pages.strides[0], row_bytes, 1)
    return np.lib.stride_tricks.as_strided(pages[:, offset:], (len(pages), rows, row_bytes), strides)


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
    mine = ids[at]
    codes = (
        np.where((mine >= 0) & (mine < slots), 0, CallRefusal.NO_SLOT) if check is None else answers(check, mine, at)
    )
    codes = np.where((codes == 0) & ~within[at], CallRefusal.BAD_ARGUMENT, codes)
    if check is not None:
        check.refusals[at] = codes
    found = at[codes == 0]
    return list(zip(found.tolist(), ids[found].tolist(), rows[found].tolist(), strict=True))


# -- Plans -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entries:
    """The pages that a launch goes to, in a launcher's memory.

    pages      uint8 [slots, stride], from the page of slot 0 on
    stride     bytes from a slot to the next, a multiple of 16
    slots      of the pool
    page_rows  of a page
    ids        int32 [most], slots
    rows       uint32 [most]: gathers read the first so many rows, inserts write this one
    most       entries there is room for
    live       int64 [1], entries in use; None: all
    """

    pages: Pointer
    stride: int
    slots: int
    page_rows: int
    ids: Pointer
    rows: Pointer
    most: int
    live: Pointer | None = None

    def values(self, kernel: Kernel, page_bytes: int) -> tuple[Value, ...]:
        """Of the arguments that all kernels here begin with.

        Raises:
            LaunchRefused: memory is too short for pages of ``page_bytes`` or for the entries, or the stride is odd.
        """
        if self.stride % 16:
            what = f"{kernel.symbol} is given slots {self.stride} bytes apart"
            raise LaunchRefused(f"{what}; fix: pad the stride to {round_up(self.stride, 16)}")
        require_bytes(kernel, "arena", self.pages, (self.slots - 1) * self.stride + page_bytes if self.slots else 0)
        require_bytes(kernel, "ids", self.ids, 4 * self.most)
        require_bytes(kernel, "rows", self.rows, 4 * self.most)
        return self.pages, self.stride, self.slots, self.ids, self.rows, self.live, self.most, self.page_rows


def gather_dequantise_v4_plan(entries: Entries, out: Pointer, check: Check[Pointer] | None = None) -> LaunchPlan:
    """A block an entry. LaunchRefused: memory is too short."""
    return _gather(GATHER_V4, entries, (V4_DATA_BYTES + V4_SCALE_BYTES), V4_ELEMENTS, (), out, check)


def gather_dequantise_v32_plan(entries: Entries, out: Pointer, check: Check[Pointer] | None = None) -> LaunchPlan:
    """A block an entry. LaunchRefused: memory is too short."""
    return _gather(GATHER_V32, entries, V32_BYTES, V32_ELEMENTS, (), out, check)


def gather_dequantise_rows_plan(
    entries: Entries, width: int, out: Pointer, check: Check[Pointer] | None = None
) -> LaunchPlan:
    """A block an entry. LaunchRefused: memory is too short, or a width that no warp takes."""
    check_width(GATHER_ROWS, width)
    return _gather(GATHER_ROWS, entries, width + 4, width, (width,), out, check)


def quantise_insert_v4_plan(
    entries: Entries, values: Pointer, check: Check[Pointer] | None = None, least_peak: float = V4_LEAST_PEAK
) -> LaunchPlan:
    """A block for 32 rows. LaunchRefused: memory is too short, or a peak so small that scales would be flushed."""
    return _insert(INSERT_V4, entries, V4_DATA_BYTES + V4_SCALE_BYTES, V4_ELEMENTS, (), least_peak, values, check)


def quantise_insert_v32_plan(
    entries: Entries, values: Pointer, check: Check[Pointer] | None = None, least_peak: float = LEAST_PEAK
) -> LaunchPlan:
    """A block for 32 rows. LaunchRefused: memory is too short, or a peak so small that scales would be flushed."""
    return _insert(INSERT_V32, entries, V32_BYTES, V32_ELEMENTS, (), least_peak, values, check)


def quantise_insert_rows_plan(
    entries: Entries,
    width: int,
    values: Pointer,
    check: Check[Pointer] | None = None,
    least_peak: float = LEAST_PEAK,
    power_of_two: bool = False,
) -> LaunchPlan:
    """A block for 32 rows. LaunchRefused: as for the others, or a width that no warp takes."""
    check_width(INSERT_ROWS, width)
    return _insert(INSERT_ROWS, entries, width + 4, width, (width, int(power_of_two)), least_peak, values, check)


def check_width(kernel: Kernel, width: int) -> None:
    """Refuse rows whose elements a warp doesn't hold, eight a lane at a time.

    Raises:
        LaunchRefused: so it is.
    """
    if width % 8 or not 8 <= width <= ROW_WIDTH_MAX:
        raise LaunchRefused(
            f"{kernel.symbol} is given rows of {width} elements; fix: a multiple of 8 up to {ROW_WIDTH_MAX}"
        )


def check_least_peak(kernel: Kernel, least_peak: float) -> None:
    """Refuse a least peak whose scale would be flushed to zero.

    Raises:
        LaunchRefused: so it is.
    """
    if not least_peak >= LEAST_PEAK:
        raise LaunchRefused(f"{kernel.symbol} is given least_peak {least_peak!r}; fix: at least {LEAST_PEAK!r}")


def _gather(
    kernel: Kernel,
    entries: Entries,
    row_bytes: int,
    elements: int,
    more: tuple[Value, ...],
    out: Pointer,
    check: Check[Pointer] | None,
) -> LaunchPlan:
    require_bytes(kernel, "out", out, 2 * elements * entries.page_rows * entries.most)
    values = (*entries.values(kernel, row_bytes * entries.page_rows), *more, out)
    return LaunchPlan(
        kernel, blocks(entries.most, 1), (*values, *check_values(kernel, check, entries.slots, entries.most))
    )


def _insert(
    kernel: Kernel,
    entries: Entries,
    row_bytes: int,
    elements: int,
    more: tuple[Value, ...],
    least_peak: float,
    values: Pointer,
    check: Check[Pointer] | None,
) -> LaunchPlan:
    check_least_peak(kernel, least_peak)
    require_bytes(kernel, "values", values, 2 * elements * entries.most)
    given = (*entries.values(kernel, row_bytes * entries.page_rows), *more, least_peak, values)
    all_values = (*given, *check_values(kernel, check, entries.slots, entries.most))
    return LaunchPlan(kernel, blocks(entries.most, INSERTED_AT_ONCE), all_values)
