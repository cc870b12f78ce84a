"""Compression: some rows become one entry, then FP8.

An entry is the mean of a window's rows, weighted channel by channel with the softmax of their gates; then it is divided
by its root mean square, scaled by a weight a channel, and turned by its position. CSA pools a window together with the
one before it (windows overlap): of a row's channels the first half counts in the window after its own, the second half
in its own. HCA pools one window, with rows as wide as the entry.

To the gates belongs a bias for each place in the window. Engines keep rows whose gates hold it already (*folded*) and
rows whose gates don't (*raw*); some keep rows of the window under way in the one form, and those that the next window
takes over in the other. Bytes don't tell, so it is said here, for both.

The order of every sum is part of the meaning, so that a kernel and this module agree bit by bit. Rows go in eights, one
eight after the other, and row after row in an eight; before each eight the sums are scaled to the greatest gate so far.
Squares are summed over four neighbouring channels, then as a butterfly through each warp, then warp after warp. Numbers
below 2**-126 count as zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from .call_refusal import CallRefusal
from .draft import Draft, named
from .entries import IDS, LIVE, MOST, SLOTS, Entries, entry_draft, in_use
from .floats import (
    canonical,
    difference,
    exp,
    flush,
    product,
    quotient,
    square_root,
    to_bf16,
    total,
)
from .fp8 import require_least_peak, require_page, writable
from .fp8_rows import (
    INDEX_LEAST_PEAK,
    V4_BYTES,
    V4_CODES,
    V4_ELEMENTS,
    V4_GROUP,
    V4_LEAST_PEAK,
    quantised,
    row_views,
    scales_of,
    v4_scales_of,
    v4_views,
)
from .launch import Argument, Kernel, LaunchPlan, Pointer, Value, blocks
from .reading import CHECK, ROW_HEADERS, Check, Memory

Arrays = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

ROWS_AT_ONCE = 8
CHANNELS = 4
"""Of a thread."""

LANES = 32
ELEMENTS_MAX = 512
INDEX_ELEMENTS = 128
KEYS_AT_ONCE = 4
"""That one block of threads makes."""

NOTHING, ROWS, CARRY = 0, 1, 2
"""Where the window before an entry's own lies: there is none, among the rows, or among the rows carried over."""


@dataclass(frozen=True, slots=True)
class Compressor:
    """What a layer's compressor does.

    elements      channels of an entry, a multiple of 4 up to 512
    ratio         rows of a window
    overlaps      windows are pooled with the one before (CSA)
    rope          channels at the end that are turned by the position, in neighbouring pairs; a multiple of 4
    epsilon       added to the mean square; finite, and not negative
    rows_folded   gates of the rows hold the bias already
    carry_folded  gates of the rows carried over hold it
    """

    elements: int
    ratio: int
    overlaps: bool
    rope: int
    epsilon: float
    rows_folded: bool
    carry_folded: bool = True

    @property
    def width(self) -> int:
        """Channels of a row."""
        return self.elements * (2 if self.overlaps else 1)

    @property
    def pooled(self) -> int:
        """Rows of an entry that has a window before it."""
        return self.ratio * (2 if self.overlaps else 1)

    @property
    def bytes_read(self) -> int:
        """An entry's, of an entry that has a window before it: key-values, gates and bias, weight, angles."""
        biases = (0 if self.rows_folded else self.ratio) + (
            self.ratio if self.overlaps and not self.carry_folded else 0
        )
        return 4 * (self.elements * (2 * self.pooled + biases + 1) + self.rope)


@dataclass(frozen=True, slots=True)
class Windows(Generic[Memory]):
    """Rows, and which of them become entries; arrays for the reference, a launcher's memory for plans.

    kv, gate              float32 [row_count, row_stride], of which the first ``width`` of a row count
    bias                  float32 [ratio, width]
    weight                float32 [elements]
    rotary                float32 [position_count, rope]: cosines, then sines, of each pair
    current               uint32 [most], first row of an entry's window
    positions             uint32 [most], of the entry
    origin                uint8 [most]: ``NOTHING``, ``ROWS`` or ``CARRY``
    previous              uint32 [most], first row of the window before, there
    carry_kv, carry_gate  float32 [carry_count, carry_stride], of which the first ``elements`` of a row count
    live                  int64 [1], entries in use; None: all
    """

    kv: Memory
    gate: Memory
    row_count: int
    row_stride: int
    bias: Memory
    weight: Memory
    rotary: Memory
    position_count: int
    current: Memory
    positions: Memory
    origin: Memory
    previous: Memory
    most: int
    carry_kv: Memory | None = None
    carry_gate: Memory | None = None
    carry_count: int = 0
    carry_stride: int = 0
    live: Memory | None = None


# -- References --------------------------------------------------------------------------------------------------------


def compress(compressor: Compressor, windows: Windows[Arrays], out: Floats, refusals: npt.NDArray[np.uint8]) -> None:
    """Entries as float32.

    out       float32 [most, elements], written
    refusals  uint8 [most], read and written: an entry that has a code already is left alone; one whose rows or position
              are not there gets ``BAD_ARGUMENT``

    Bytes: ``compressor.bytes_read`` read and 4 elements written an entry, and 14 for its numbers and its refusal; the
    bias, which is the same for all entries, comes from the cache after the first.
    Floor at 4.3 TB/s without the bias: CSA of 512, 32 ki entries 283 us; HCA of 512 and 128 rows, 1 ki entries 126 us.
    Source: DeepSeek-V4 report (arXiv 2606.19348), equations 9 to 12 and 20 to 23; halves of a row as `transformers`
    5.24.0 has them.
    """
    found = _within(compressor, windows, refusals)
    out[found] = _entries(compressor, windows, found)


def compress_v4(
    compressor: Compressor,
    windows: Windows[Arrays],
    pages: npt.NDArray[np.uint8],
    page_rows: int,
    ids: npt.NDArray[np.int32],
    rows: npt.NDArray[np.uint32],
    check: Check[Arrays],
    least_peak: float = V4_LEAST_PEAK,
) -> None:
    """Entries of 512 as FP8 rows in V4 pages; see ``fp8.quantise_insert_v4`` for pages and ``check``.

    Channels of the part with positions are rounded to bfloat16, the others go from float32 to FP8 at once.

    Bytes: ``compressor.bytes_read`` read and 584 written an entry, and 34 for its numbers, slot, word and refusal.
    Floor as of ``compress``: CSA, 32 ki entries 272 us; HCA, 1 ki entries 126 us.
    """
    data, scales = v4_views(pages, page_rows)
    found = _within(compressor, windows, check.refusals)
    rows_of = _entries(compressor, windows, found)
    for entry, slot, row in writable(check, len(pages), ids, rows, page_rows, found):
        values = rows_of[np.searchsorted(found, entry)]
        groups = values[:V4_CODES].reshape(-1, V4_GROUP)
        row_scales, exponents = v4_scales_of(groups, least_peak)
        data[slot, row, :V4_CODES] = quantised(groups, row_scales).reshape(V4_CODES)
        data[slot, row, V4_CODES:] = to_bf16(values[V4_CODES:]).view(np.uint8)
        scales[slot, row] = 0
        scales[slot, row, : len(exponents)] = exponents


def compress_index_key(
    compressor: Compressor,
    windows: Windows[Arrays],
    pages: npt.NDArray[np.uint8],
    page_rows: int,
    ids: npt.NDArray[np.int32],
    rows: npt.NDArray[np.uint32],
    check: Check[Arrays],
    least_peak: float = INDEX_LEAST_PEAK,
    power_of_two: bool = False,
) -> None:
    """Entries of 128 as indexer keys of 132 bytes; see ``fp8.quantise_insert_rows`` for pages and ``check``.

    Bytes: ``compressor.bytes_read`` read and 132 written an entry, and 34 for its numbers, slot, word and refusal.
    Floor as of ``compress``, windows of 4 rows with 64 channels turned: 32 ki entries 70 us.
    """
    codes, scales = row_views(pages, page_rows, INDEX_ELEMENTS)
    found = _within(compressor, windows, check.refusals)
    rows_of = _entries(compressor, windows, found)
    for entry, slot, row in writable(check, len(pages), ids, rows, page_rows, found):
        values = rows_of[np.searchsorted(found, entry)]
        scale = scales_of(values, least_peak, power_of_two)
        codes[slot, row], scales[slot, row] = quantised(values, scale), scale.reshape(1).view(np.uint8)


def _within(compressor: Compressor, windows: Windows[Arrays], refusals: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
    """Entries in use, not refused before, whose rows and position are there; the others of those in use are refused."""
    used = in_use(None if windows.live is None else int(windows.live[0]), windows.most)
    starts, positions, origin = windows.current[:used], windows.positions[:used], windows.origin[:used]
    good = (starts.astype(np.int64) + compressor.ratio <= windows.row_count) & (positions < windows.position_count)
    good &= origin <= (CARRY if compressor.overlaps else NOTHING)
    there = np.where(origin == CARRY, windows.carry_count, windows.row_count)
    good &= (origin == NOTHING) | (windows.previous[:used].astype(np.int64) + compressor.ratio <= there)
    refusals[:used] = np.where((refusals[:used] == 0) & ~good, CallRefusal.BAD_ARGUMENT, refusals[:used])
    return np.flatnonzero(refusals[:used] == 0)


def _entries(compressor: Compressor, windows: Windows[Arrays], found: npt.NDArray[np.intp]) -> Floats:
    """Entries float32 [found, elements]."""
    elements = compressor.elements
    kv, gate, is_there = _pooled_rows(compressor, windows, found)
    peak = np.full((len(found), elements), -np.inf, np.float32)
    weights = np.zeros_like(peak)
    sums = np.zeros_like(peak)
    for first in range(0, compressor.pooled, ROWS_AT_ONCE):
        eight = range(first, min(first + ROWS_AT_ONCE, compressor.pooled))
        before = peak
        for n in eight:
            higher = is_there[:, n, None] & (gate[:, n] > peak)
            peak = np.where(higher, gate[:, n], peak)
        base = np.where(peak == -np.inf, np.float32(0), peak)
        if first:
            shrink = exp(difference(before, base))
            weights, sums = product(weights, shrink), product(sums, shrink)
        for n in eight:
            there = is_there[:, n, None]
            weight = exp(np.where(there, difference(gate[:, n], base), np.float32(0)))
            weights = np.where(there, total(weights, weight), weights)
            sums = np.where(there, total(sums, product(weight, kv[:, n])), sums)
    return canonical(_turned(compressor, windows, found, _normed(compressor, windows, quotient(sums, weights))))


def _pooled_rows(
    compressor: Compressor, windows: Windows[Arrays], found: npt.NDArray[np.intp]
) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Key-values and gates with bias float32 [found, pooled, elements]; which rows there are, bool [found, pooled]."""
    elements, ratio = compressor.elements, compressor.ratio
    bias = windows.bias.reshape(ratio, compressor.width)
    own = slice(elements if compressor.overlaps else 0, compressor.width)
    at = windows.current[found, None].astype(np.int64) + np.arange(ratio)
    kv = windows.kv.reshape(-1, windows.row_stride)[at, own]
    gate = windows.gate.reshape(-1, windows.row_stride)[at, own]
    if not compressor.rows_folded:
        gate = total(gate, bias[:, own])
    is_there = np.ones((len(found), compressor.pooled), np.bool_)
    if not compressor.overlaps:
        return flush(kv), flush(gate), is_there
    origin, previous = windows.origin[found], windows.previous[found]
    kv_before, gate_before = np.zeros_like(kv), np.zeros_like(gate)
    for place, memory, gates, stride, folded in (
        (ROWS, windows.kv, windows.gate, windows.row_stride, compressor.rows_folded),
        (CARRY, windows.carry_kv, windows.carry_gate, windows.carry_stride, compressor.carry_folded),
    ):
        mine = np.flatnonzero(origin == place)
        if memory is None or gates is None or not len(mine):
            continue
        rows = previous[mine, None].astype(np.int64) + np.arange(ratio)
        kv_before[mine] = memory.reshape(-1, stride)[rows, :elements]
        given = gates.reshape(-1, stride)[rows, :elements]
        gate_before[mine] = given if folded else total(given, bias[:, :elements])
    is_there[:, :ratio] = (origin != NOTHING)[:, None]
    return flush(np.concatenate((kv_before, kv), 1)), flush(np.concatenate((gate_before, gate), 1)), is_there


def _normed(compressor: Compressor, windows: Windows[Arrays], rows: Floats) -> Floats:
    squares = product(rows, rows).reshape(len(rows), compressor.elements // CHANNELS, CHANNELS)
    threads = squares[..., 0]
    for channel in range(1, CHANNELS):
        threads = total(threads, squares[..., channel])
    padding = -threads.shape[1] % LANES
    lanes = np.pad(threads, ((0, 0), (0, padding)))
    lanes = lanes.reshape(len(rows), lanes.shape[1] // LANES, LANES)
    for distance in (16, 8, 4, 2, 1):
        lanes = total(lanes, lanes[..., np.arange(LANES) ^ distance])
    square = lanes[:, 0, 0]
    for warp in range(1, lanes.shape[1]):
        square = total(square, lanes[:, warp, 0])
    mean = total(quotient(square, np.float32(compressor.elements)), np.float32(compressor.epsilon))
    factor = quotient(np.float32(1), square_root(mean))
    return product(product(rows, factor[:, None]), windows.weight)


def _turned(compressor: Compressor, windows: Windows[Arrays], found: npt.NDArray[np.intp], rows: Floats) -> Floats:
    if not compressor.rope:
        return rows
    half = compressor.rope // 2
    angles = windows.rotary.reshape(-1, compressor.rope)[windows.positions[found]]
    cosines, sines = angles[:, :half], angles[:, half:]
    even, odd = rows[:, -compressor.rope :: 2], rows[:, -compressor.rope + 1 :: 2]
    turned = rows.copy()
    turned[:, -compressor.rope :: 2] = difference(product(even, cosines), product(odd, sines))
    turned[:, -compressor.rope + 1 :: 2] = total(product(odd, cosines), product(even, sines))
    return turned


# -- Kernels and plans -------------------------------------------------------------------------------------------------

_WINDOWS = (
    Argument("kv", "const float*", "float32 [row_count, row_stride]", alignment=16),
    Argument("gate", "const float*", "float32 [row_count, row_stride]", alignment=16),
    Argument("row_count", "u32"),
    Argument("row_stride", "u32", "floats from a row to the next, a multiple of 4"),
    Argument("carry_kv", "const float*", "float32 [carry_count, carry_stride]", alignment=16, nullable=True),
    Argument("carry_gate", "const float*", "float32 [carry_count, carry_stride]", alignment=16, nullable=True),
    Argument("carry_count", "u32"),
    Argument("carry_stride", "u32", "floats from a row to the next, a multiple of 4"),
    Argument("bias", "const float*", "float32 [ratio, width]", alignment=16),
    Argument("weight", "const float*", "float32 [elements]", alignment=16),
    Argument("rotary", "const float*", "float32 [position_count, rope], cosines, then sines", alignment=16),
    Argument("position_count", "u32"),
    Argument("current", "const u32*", "uint32 [most], first row of each window"),
    Argument("positions", "const u32*", "uint32 [most]"),
    Argument("origin", "const u8*", "uint8 [most]: the window before is nowhere, among the rows, carried over"),
    Argument("previous", "const u32*", "uint32 [most], its first row there"),
    LIVE,
    MOST,
    Argument("elements", "u32", "of an entry"),
    Argument("ratio", "u32", "rows of a window"),
    Argument("overlaps", "u32", "1: windows are pooled with the one before", is_flag=True),
    Argument("rope", "u32", "channels at the end that positions turn"),
    Argument("epsilon", "float", "added to the mean square"),
    Argument("rows_folded", "u32", "1: gates of the rows hold the bias", is_flag=True),
    Argument("carry_folded", "u32", "1: gates of the carried rows hold it", is_flag=True),
)
_PAGES = (
    Argument("arena", "u8*", "uint8 [slots, stride] from the page of slot 0 on", alignment=16),
    *SLOTS,
    IDS,
    Argument("rows", "const u32*", "uint32 [most], row of the page; no row of a slot twice"),
    Argument("page_rows", "u32", "rows of a page"),
    Argument("least_peak", "float", "a smaller peak of a group counts as this"),
)
COMPRESS = Kernel(
    "compress",
    "compress.cu",
    (
        *_WINDOWS,
        Argument("out", "float*", "float32 [most, elements]", alignment=16),
        Argument("refusals", "u8*", "uint8 [most], read and written"),
    ),
    ROW_HEADERS,
    threads=128,
)
COMPRESS_V4 = Kernel("compress_v4", "compress.cu", (*_WINDOWS, *_PAGES, *CHECK), ROW_HEADERS, threads=128)
COMPRESS_INDEX_KEY = Kernel(
    "compress_index_key",
    "compress.cu",
    (
        *_WINDOWS,
        *_PAGES,
        Argument("power_of_two", "u32", "1: scales are rounded up to powers of two", is_flag=True),
        *CHECK,
    ),
    ROW_HEADERS,
    threads=128,
)


def compress_plan(compressor: Compressor, windows: Windows[Pointer], out: Pointer, refusals: Pointer) -> LaunchPlan:
    """A block an entry. LaunchRefused: memory is too short, or a shape or an epsilon that the kernel doesn't take."""
    draft = Draft(COMPRESS, **_values(COMPRESS, compressor, windows), out=out, refusals=refusals)
    _require_windows(draft, compressor, windows)
    draft.require_bytes(out=4 * compressor.elements * windows.most, refusals=windows.most)
    return draft.plan(blocks(windows.most, 1))


def compress_v4_plan(
    compressor: Compressor,
    windows: Windows[Pointer],
    entries: Entries,
    page_rows: int,
    rows: Pointer,
    check: Check[Pointer],
    least_peak: float = V4_LEAST_PEAK,
) -> LaunchPlan:
    """A block an entry. LaunchRefused: memory is too short, or entries are not of 512 with 64 turned."""
    given: dict[str, Value] = {"page_rows": page_rows, "rows": rows, "least_peak": least_peak}
    draft = _draft(COMPRESS_V4, compressor, windows, entries, check, **given)
    _require_exactly(draft, elements=V4_ELEMENTS, rope=V4_ELEMENTS - V4_CODES)
    _require_windows(draft, compressor, windows)
    require_page(draft, V4_BYTES)
    return draft.plan(blocks(windows.most, 1))


def compress_index_key_plan(
    compressor: Compressor,
    windows: Windows[Pointer],
    entries: Entries,
    page_rows: int,
    rows: Pointer,
    check: Check[Pointer],
    least_peak: float = INDEX_LEAST_PEAK,
    power_of_two: bool = False,
) -> LaunchPlan:
    """A block for four entries. LaunchRefused: memory is too short, or keys are not of 128."""
    given: dict[str, Value] = {"page_rows": page_rows, "rows": rows, "least_peak": least_peak}
    draft = _draft(COMPRESS_INDEX_KEY, compressor, windows, entries, check, power_of_two=power_of_two, **given)
    _require_exactly(draft, elements=INDEX_ELEMENTS)
    _require_windows(draft, compressor, windows)
    require_page(draft, INDEX_ELEMENTS + 4)
    return draft.plan(blocks(windows.most, KEYS_AT_ONCE))


def _draft(
    kernel: Kernel,
    compressor: Compressor,
    windows: Windows[Pointer],
    entries: Entries,
    check: Check[Pointer],
    **given: Value,
) -> Draft:
    """Of entries that go into pages: as many as there are windows, and as many of them in use."""
    draft = entry_draft(kernel, entries, check, **_values(kernel, compressor, windows), **given)
    if entries.most != windows.most:
        raise draft.refusal("most", f"pass as many places for entries, which are {entries.most}")
    if entries.live is not None and entries.live != windows.live:
        raise draft.refusal("live", f"pass it with the windows; the entries have {entries.live}")
    require_least_peak(draft)
    return draft


def _values(kernel: Kernel, compressor: Compressor, windows: Windows[Pointer]) -> dict[str, Any]:
    """For the arguments that come from both. Raises LaunchRefused: one is something else."""
    return named(kernel, "kv", windows, Windows) | named(kernel, "elements", compressor, Compressor)


def _require_exactly(draft: Draft, **sizes: int) -> None:
    for name, size in sizes.items():
        if draft.number(name) != size:
            raise draft.refusal(name, f"pass {size}, or compress to float32")


def _require_windows(draft: Draft, compressor: Compressor, windows: Windows[Pointer]) -> None:
    elements, width, ratio, rope = compressor.elements, compressor.width, compressor.ratio, compressor.rope
    draft.require_least(CHANNELS, "elements")
    draft.require_least(1, "ratio")
    draft.require_finite(0.0, "epsilon")
    draft.require_multiple(CHANNELS, "elements", "rope", "row_stride", "carry_stride")
    if elements > ELEMENTS_MAX:
        raise draft.refusal("elements", f"pass at most {ELEMENTS_MAX}")
    if rope > elements:
        raise draft.refusal("rope", f"pass at most {elements}, the elements of an entry")
    draft.require_least(width, "row_stride")
    if windows.carry_count:
        draft.require_least(elements, "carry_stride")
        for name in ("carry_kv", "carry_gate"):
            if draft[name] is None:
                raise draft.refusal(name, f"pass the {windows.carry_count} rows")
    draft.require_bytes(
        kv=_span(windows.row_count, windows.row_stride, width),
        gate=_span(windows.row_count, windows.row_stride, width),
        carry_kv=_span(windows.carry_count, windows.carry_stride, elements),
        carry_gate=_span(windows.carry_count, windows.carry_stride, elements),
        bias=4 * ratio * width,
        weight=4 * elements,
        rotary=4 * windows.position_count * rope,
        current=4 * windows.most,
        positions=4 * windows.most,
        origin=windows.most,
        previous=4 * windows.most,
    )


def _span(count: int, stride: int, width: int) -> int:
    """Bytes from the first of some rows of floats to the end of the last."""
    return 4 * ((count - 1) * stride + width) if count else 0
