"""Rows of FP8: what lies where in a page, and which scale a group of numbers has.

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

import numpy as np
import numpy.typing as npt

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

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]

V4_CODES, V4_ROPE, V4_GROUP = 448, 64, 64
V4_ELEMENTS = V4_CODES + V4_ROPE
V4_DATA_BYTES, V4_SCALE_BYTES = 576, 8
V4_BYTES = V4_DATA_BYTES + V4_SCALE_BYTES
V4_LEAST_PEAK = 1e-4
"""As the engines that write this row have it (vLLM 0.33.0)."""

V32_CODES, V32_ROPE, V32_GROUP = 512, 64, 128
V32_ELEMENTS = V32_CODES + V32_ROPE
V32_BYTES = 656

LEAST_PEAK = float(E4M3_MAX) * 2.0**-126
"""Of a group whose scale is the least that isn't flushed to zero."""

INDEX_LEAST_PEAK = 1e-4
"""Of indexer keys, as the engines that write them have it (vLLM 0.33.0)."""


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


# -- Pages -------------------------------------------------------------------------------------------------------------


def v4_views(pages: Bytes, page_rows: int) -> tuple[Bytes, Bytes]:
    """Data rows [slots, page_rows, 576] and scale rows [slots, page_rows, 8] of V4 pages."""
    end = page_rows * V4_DATA_BYTES
    return _rows_at(pages, 0, page_rows, V4_DATA_BYTES), _rows_at(pages, end, page_rows, V4_SCALE_BYTES)


def v32_view(pages: Bytes, page_rows: int) -> Bytes:
    """Rows [slots, page_rows, 656] of V3.2 pages."""
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
