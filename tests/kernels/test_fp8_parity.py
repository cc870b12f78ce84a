"""FP8 rows by kernels are those of the references, bit for bit and refusal for refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels import fp8, fp8_rows
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.floats import to_bf16
from kvfsm.kernels.launch import Launcher
from kvfsm.kernels.reading import Side

from .awkward import awkward_floats
from .pools import Uploaded, check_of, copied, random_bytes, some_slots, with_strangers


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of row: elements, bytes, whether it takes a width, and a name for its functions."""

    name: str
    elements: int
    row_bytes: int

    @property
    def width(self) -> tuple[int, ...]:
        return (self.elements,) if self.name == "rows" else ()

    def function(self, verb: str, end: str = "") -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(fp8, f"{verb}_{self.name}{end}")
        return found


FORMATS = {
    "v4": Format("v4", 512, 584),
    "v32": Format("v32", 576, 656),
    "indexer keys": Format("rows", 128, 132),
    "short rows": Format("rows", 8, 12),
    "long rows": Format("rows", 1024, 1028),
    "odd rows": Format("rows", 264, 268),
}
BESIDE = 64
SLOTS = 6


@pytest.fixture(params=FORMATS.values(), ids=FORMATS)
def row(request: pytest.FixtureRequest) -> Format:
    found: Format = request.param
    return found


def stride_of(row: Format, page_rows: int) -> int:
    return -(-row.row_bytes * page_rows // 16) * 16 + BESIDE


def filled(rng: np.random.Generator, row: Format, page_rows: int, slots: int = SLOTS) -> np.ndarray:
    """Pages of rows that were inserted; and pages of noise, whose scales may be anything."""
    pages = random_bytes(rng, slots, stride_of(row, page_rows))
    ids = np.repeat(np.arange(slots // 2, dtype=np.int32), page_rows)
    rows = np.tile(np.arange(page_rows, dtype=np.uint32), slots // 2)
    values = to_bf16(awkward_floats(rng, len(ids), row.elements))
    row.function("quantise_insert")(pages, page_rows, *row.width, ids, rows, values)
    return pages


def entries_in(up: Uploaded, pages: np.ndarray, ids: np.ndarray, live: int | None = None) -> Entries:
    count = None if live is None else np.array([live], np.int64)
    return Entries(up(pages), pages.shape[1], len(pages), up(ids), len(ids), up.maybe(count))


def used(ids: np.ndarray, live: int | None) -> slice:
    return slice(len(ids) if live is None else min(max(live, 0), len(ids)))


@pytest.mark.parametrize("page_rows", [1, 3, 19])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_gather(launcher: Launcher, rng: np.random.Generator, row: Format, page_rows: int, count: int) -> None:
    pages, up = filled(rng, row, page_rows), Uploaded(launcher)
    ids, rows = some_slots(rng, SLOTS, count), rng.integers(0, page_rows + 1, count).astype(np.uint32)
    out = rng.integers(0, 2**16, (count, page_rows, row.elements)).astype(np.uint16)
    entries = entries_in(up, pages, ids)
    launcher.launch(row.function("gather_dequantise", "_plan")(entries, page_rows, *row.width, up(rows), up(out)))
    right = out.copy()
    row.function("gather_dequantise")(pages, page_rows, *row.width, ids, rows, right)
    np.testing.assert_array_equal(up.now(out), right)


@pytest.mark.parametrize("kind", ["compressed_kv", "swa_window"])
@pytest.mark.parametrize("live", [None, -1, 0, 5, 1000])
def test_gather_refuses_by_entry(
    launcher: Launcher, rng: np.random.Generator, row: Format, kind: str, live: int | None
) -> None:
    slots, count, page_rows = 30, 24, 2
    pages, up = random_bytes(rng, slots, stride_of(row, page_rows)), Uploaded(launcher)
    ids = with_strangers(rng, some_slots(rng, slots, count), slots)
    rows = rng.integers(0, page_rows + 2, count).astype(np.uint32)  # some more than there are
    check = check_of(rng, kind, slots, count)
    out = rng.integers(0, 2**16, (count, page_rows, row.elements)).astype(np.uint16)
    entries = entries_in(up, pages, ids, live)
    given = page_rows, *row.width, up(rows), up(out), up.check(check)
    launcher.launch(row.function("gather_dequantise", "_plan")(entries, *given))
    right, seen, refused = out.copy(), used(ids, live), copied(check)
    row.function("gather_dequantise")(pages, page_rows, *row.width, ids[seen], rows[seen], right, refused)
    np.testing.assert_array_equal(up.now(out), right)
    np.testing.assert_array_equal(up.now(check.refusals), refused.refusals)
    np.testing.assert_array_equal(up.now(check.words), check.words)


@pytest.mark.parametrize("count", [0, 1, 8, 21])
def test_insert(launcher: Launcher, rng: np.random.Generator, row: Format, count: int) -> None:
    page_rows, up = 5, Uploaded(launcher)
    pages = random_bytes(rng, SLOTS, stride_of(row, page_rows))
    places = rng.permutation(SLOTS * page_rows)[:count]
    ids, rows = (places // page_rows).astype(np.int32), (places % page_rows).astype(np.uint32)
    values = to_bf16(awkward_floats(rng, count, row.elements))
    entries = entries_in(up, pages, ids)
    launcher.launch(row.function("quantise_insert", "_plan")(entries, page_rows, *row.width, up(rows), up(values)))
    right = pages.copy()
    row.function("quantise_insert")(right, page_rows, *row.width, ids, rows, values)
    np.testing.assert_array_equal(up.now(pages), right)


@pytest.mark.parametrize("live", [None, 3])
def test_insert_refuses_by_row(launcher: Launcher, rng: np.random.Generator, row: Format, live: int | None) -> None:
    slots, count, page_rows, up = 30, 24, 2, Uploaded(launcher)
    pages = random_bytes(rng, slots, stride_of(row, page_rows))
    ids = with_strangers(rng, some_slots(rng, slots, count, unique=True), slots)
    rows = rng.integers(0, page_rows + 1, count).astype(np.uint32)
    values = to_bf16(awkward_floats(rng, count, row.elements))
    check = check_of(rng, "compressed_kv", slots, count, Side.WRITER)
    entries = entries_in(up, pages, ids, live)
    given = page_rows, *row.width, up(rows), up(values), up.check(check)
    launcher.launch(row.function("quantise_insert", "_plan")(entries, *given))
    right, seen, refused = pages.copy(), used(ids, live), copied(check)
    row.function("quantise_insert")(right, page_rows, *row.width, ids[seen], rows[seen], values, refused)
    np.testing.assert_array_equal(up.now(pages), right)
    np.testing.assert_array_equal(up.now(check.refusals), refused.refusals)


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("least_peak", [fp8_rows.LEAST_PEAK, fp8_rows.INDEX_LEAST_PEAK, 7.0])
def test_scales_of_rows(launcher: Launcher, rng: np.random.Generator, power_of_two: bool, least_peak: float) -> None:
    pages, up, given = np.zeros((1, 16 * 132), np.uint8), Uploaded(launcher), (least_peak, power_of_two)
    ids, rows = np.zeros(16, np.int32), np.arange(16, dtype=np.uint32)
    values = to_bf16(awkward_floats(rng, 16, 128))
    entries = entries_in(up, pages, ids)
    launcher.launch(fp8.quantise_insert_rows_plan(entries, 16, 128, up(rows), up(values), None, *given))
    right = pages.copy()
    fp8.quantise_insert_rows(right, 16, 128, ids, rows, values, None, *given)
    np.testing.assert_array_equal(up.now(pages), right)


def test_every_code_of_v4_scales(launcher: Launcher) -> None:
    """All codes of FP8 under all 256 scales: what is NaN, what is flushed, what overflows."""
    pages, up = np.zeros((256, 592), np.uint8), Uploaded(launcher)
    pages[:, :256] = np.arange(256)
    pages[:, 256:448] = np.arange(192)
    pages[:, 576:584] = np.arange(256)[:, None]
    ids, rows, out = np.arange(256, dtype=np.int32), np.ones(256, np.uint32), np.zeros((256, 1, 512), np.uint16)
    launcher.launch(fp8.gather_dequantise_v4_plan(entries_in(up, pages, ids), 1, up(rows), up(out)))
    right = out.copy()
    fp8.gather_dequantise_v4(pages, 1, ids, rows, right)
    np.testing.assert_array_equal(up.now(out), right)
