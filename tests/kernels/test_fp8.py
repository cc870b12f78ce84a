"""FP8 rows: what lies where, what a scale is, and what becomes of rows that are not plain numbers."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest

from kvfsm.kernels import fp8, fp8_rows
from kvfsm.kernels.call_refusal import CallRefusal
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.floats import from_bf16, to_bf16
from kvfsm.kernels.launch import LaunchRefused, Pointer
from kvfsm.kernels.reading import Check, Side
from kvfsm.runtime.generated import Refusal
from kvfsm.runtime.generated.compressed_kv import LAYOUT, CompressedKvState

FILLING, RESIDENT = CompressedKvState.FILLING, CompressedKvState.RESIDENT


def halves(seed: int, *shape: int, spread: int = 4) -> np.ndarray:
    """bfloat16 whose rows differ in magnitude."""
    chance = np.random.default_rng(seed)
    magnitudes = 10.0 ** chance.integers(-spread, spread + 1, (*shape[:-1], 1))
    return to_bf16((chance.standard_normal(shape) * magnitudes).astype(np.float32))


def words(*states: CompressedKvState, generation: int = 5) -> np.ndarray:
    return np.array([LAYOUT.pack(state=state, generation=generation) for state in states], np.uint64)


def check(at: np.ndarray, n: int, side: Side, generation: int = 5) -> Check[np.ndarray]:
    return Check("compressed_kv", at, np.full(n, generation, np.uint32), np.zeros(n, np.uint8), side)


def ids(*slots: int) -> np.ndarray:
    return np.array(slots, np.int32)


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint32)


def test_a_v4_page_is_all_its_data_rows_then_all_its_scale_rows() -> None:
    pages, given = np.full((2, 4 * 584 + 24), 0xEE, np.uint8), halves(1, 1, 512)
    fp8.quantise_insert_v4(pages, 4, ids(1), rows(2), given)
    groups = from_bf16(given[0, :448]).reshape(7, 64)
    peaks = np.maximum(np.abs(groups).max(1), 1e-4)
    exponents = np.ceil(np.log2(peaks.astype(np.float64) / 448)).astype(int)
    codes = (groups / 2.0 ** exponents[:, None]).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(pages[1, 2 * 576 : 2 * 576 + 448], codes.ravel())
    assert np.array_equal(pages[1, 2 * 576 + 448 : 3 * 576].view(np.uint16), given[0, 448:])
    assert pages[1, 4 * 576 + 16 : 4 * 576 + 24].tolist() == [*(exponents + 127), 0]
    untouched = np.delete(pages[1], [*range(2 * 576, 3 * 576), *range(4 * 576 + 16, 4 * 576 + 24)])
    assert (untouched == 0xEE).all() and (pages[0] == 0xEE).all()


def test_a_v32_row_is_codes_scales_and_rope() -> None:
    pages, given = np.zeros((1, 2 * 656), np.uint8), halves(2, 1, 576)
    fp8.quantise_insert_v32(pages, 2, ids(0), rows(1), given)
    groups = from_bf16(given[0, :512]).reshape(4, 128)
    scales = np.abs(groups).max(1) / np.float32(448)
    codes = (groups / scales[:, None]).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    row = pages[0, 656:]
    assert np.array_equal(row[:512], codes.ravel())
    assert np.array_equal(row[512:528].view(np.float32), scales)
    assert np.array_equal(row[528:].view(np.uint16), given[0, 512:])


def test_an_indexer_key_takes_132_bytes() -> None:
    pages, given = np.zeros((1, 3 * 132), np.uint8), halves(3, 3, 128)
    fp8.quantise_insert_rows(pages, 3, 128, ids(0, 0, 0), rows(0, 1, 2), given, least_peak=fp8_rows.INDEX_LEAST_PEAK)
    scales = np.maximum(np.abs(from_bf16(given)).max(1), np.float32(1e-4)) / np.float32(448)
    assert np.array_equal(pages[0, 3 * 128 :].view(np.float32), scales)
    codes = (from_bf16(given) / scales[:, None]).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(pages[0, : 3 * 128], codes.ravel())


@pytest.mark.parametrize("seed", range(3))
def test_rows_come_back_to_within_the_precision_of_fp8(seed: int) -> None:
    for elements, insert, gather, row_bytes in (
        (512, fp8.quantise_insert_v4, fp8.gather_dequantise_v4, 584),
        (576, fp8.quantise_insert_v32, fp8.gather_dequantise_v32, 656),
    ):
        given, pages = halves(seed, 5, elements, spread=2), np.zeros((1, 5 * row_bytes), np.uint8)
        insert(pages, 5, ids(0, 0, 0, 0, 0), rows(0, 1, 2, 3, 4), given)
        out = np.zeros((1, 5, elements), np.uint16)
        gather(pages, 5, ids(0), rows(5), out)
        before, after = from_bf16(given), from_bf16(out[0])
        coded = elements - 64
        assert np.array_equal(before[:, coded:], after[:, coded:])
        # Half a step of a 3-bit mantissa, then of bfloat16's 8 bits; below 2**-6 of a scale steps don't shrink further.
        peaks = np.abs(before[:, :coded]).max(1, keepdims=True)
        assert (np.abs(after - before)[:, :coded] <= np.abs(before[:, :coded]) * 0.067 + peaks * 2.0**-16).all()


def test_rows_that_are_not_plain_numbers() -> None:
    given = np.zeros((6, 128), np.float32)
    given[0, :3] = [np.nan, 2.0, -1.0]  # NaN stays NaN and doesn't move the scale
    given[1, :3] = [np.inf, -np.inf, 7.0]  # infinities come back as the row's peak
    given[2, :3] = [2e-38, -1.5e-38, 0]  # a peak whose scale would be flushed
    given[3, :3] = [1e-40, -1e-40, 0]  # subnormal
    given[4, :3] = [np.nan, np.inf, 0]  # no number at all
    given[5, :3] = [3.0e38, 1.0, -3.0e38]
    pages, n = np.zeros((1, 6 * 132), np.uint8), np.arange(6, dtype=np.uint32)
    out = np.zeros((1, 6, 128), np.uint16)
    fp8.quantise_insert_rows(pages, 6, 128, np.zeros(6, np.int32), n, to_bf16(given))
    fp8.gather_dequantise_rows(pages, 6, 128, ids(0), rows(6), out)
    back, scales = from_bf16(out[0]), pages[0, 6 * 128 :].view(np.float32)
    assert np.isnan(back[0, 0]) and back[0, 1:3].tolist() == [2.0, -1.0]
    assert back[1, :3].tolist() == [7.0, -7.0, 7.0]
    assert scales[2] == np.float32(2.0**-126) and np.abs(back[2, :2] / np.float32([2e-38, -1.5e-38]) - 1).max() < 0.07
    assert not back[3].any() and scales[3] == np.float32(2.0**-126)
    assert np.isnan(back[4, 0]) and scales[4] == np.float32(2.0**-126)
    assert np.abs(back[5, :3] / from_bf16(to_bf16(given[5, :3])) - 1)[[0, 2]].max() < 0.01 and back[5, 1] == 0
    assert not np.isnan(back[[1, 2, 3, 5]]).any()


def test_scales_of_a_v4_row_are_the_least_powers_of_two_that_hold_it() -> None:
    peaks = np.array([448, 449, 447, 896, 1e-9, 2.0**-10], np.float32)
    values = np.zeros((6, 64), np.float32)
    values[:, 9] = peaks
    scales = fp8_rows.scales_of(values, 1e-4, power_of_two=True)
    assert scales.tolist() == [1, 2, 1, 2, 2.0**-22, 2.0**-18]


def test_a_gather_leaves_what_it_may_not_read() -> None:
    pages = np.zeros((4, 2 * 656), np.uint8)
    for slot in range(4):
        fp8.quantise_insert_v32(pages, 2, ids(slot, slot), rows(0, 1), halves(slot, 2, 576))
    guard = check(words(RESIDENT, RESIDENT, FILLING, RESIDENT), 6, Side.READER)
    guard.expected[1] = 4
    guard.refusals[5] = Refusal.LAYOUT
    out = np.full((6, 2, 576), 0x1234, np.uint16)
    fp8.gather_dequantise_v32(pages, 2, ids(0, 1, 2, 7, 3, 3), rows(1, 2, 2, 2, 3, 2), out, guard)
    assert guard.refusals.tolist() == [
        0, Refusal.STALE, Refusal.BUSY, CallRefusal.NO_SLOT, CallRefusal.BAD_ARGUMENT, Refusal.LAYOUT,
    ]  # fmt: skip
    assert (out[1:] == 0x1234).all() and (out[0, 1] == 0x1234).all()
    assert np.array_equal(out[0, 0], fp8_rows.from_v32_row(pages[0, :656][None])[0])


def test_an_insert_writes_only_where_its_owner_is_at_work() -> None:
    pages = np.zeros((3, 2 * 584), np.uint8)
    guard = check(words(FILLING, RESIDENT, FILLING), 4, Side.WRITER)
    guard.expected[2] = 6
    fp8.quantise_insert_v4(pages, 2, ids(0, 1, 2, 0), rows(1, 0, 0, 2), halves(1, 4, 512), guard)
    assert guard.refusals.tolist() == [0, Refusal.ILLEGAL, Refusal.STALE, CallRefusal.BAD_ARGUMENT]
    assert not pages[1:].any() and not pages[0, :576].any() and pages[0, 576 : 2 * 576].any()


def test_pages_that_are_too_short_are_refused() -> None:
    with pytest.raises(ValueError, match="pages of 600 bytes are too short; fix: 2 rows need 1152 bytes"):
        fp8.gather_dequantise_v4(np.zeros((1, 600), np.uint8), 2, ids(0), rows(1), np.zeros((1, 2, 512), np.uint16))


PLACES = Pointer(128, 16)


def entries(bytes_there: int, stride: int = 1312) -> Entries:
    return Entries(Pointer(4096, bytes_there), stride, 3, Pointer(64, 16), 4)


def test_plans_refuse_memory_that_is_too_short() -> None:
    out = Pointer(1 << 20, 4 * 2 * 576 * 2)
    plan = fp8.gather_dequantise_v32_plan(entries(3 * 1312), 2, PLACES, out)
    assert plan.grid == (4, 1, 1) and plan.value("words") is None
    with pytest.raises(LaunchRefused, match="needs 3936 bytes"):
        fp8.gather_dequantise_v32_plan(entries(3 * 1312 - 1), 2, PLACES, out)
    with pytest.raises(LaunchRefused, match="needs 9216 bytes"):
        fp8.gather_dequantise_v32_plan(entries(3 * 1312), 2, PLACES, Pointer(1 << 20, 9215))
    with pytest.raises(LaunchRefused, match=r"'stride' .* is 1320; fix: use a multiple of 16"):
        fp8.gather_dequantise_v32_plan(entries(1 << 16, stride=1320), 2, PLACES, out)


def test_plans_refuse_rows_that_no_warp_takes_and_scales_that_vanish() -> None:
    values = Pointer(1 << 20, 1 << 16)
    for width in (0, 12, 1032):
        with pytest.raises(LaunchRefused, match=f"'width' .* is {width}; fix: use a multiple of 8 up to 1024"):
            fp8.quantise_insert_rows_plan(entries(1 << 16), 2, width, PLACES, values)
    with pytest.raises(LaunchRefused, match=r"'least_peak' .* is 0\.0; fix: pass a finite number of at least"):
        fp8.quantise_insert_v4_plan(entries(1 << 16), 2, PLACES, values, least_peak=0.0)
    assert fp8.quantise_insert_v4_plan(entries(1 << 16), 2, PLACES, values).grid == (1, 1, 1)


def test_ml_dtypes_agrees_on_whole_rows() -> None:
    given = halves(9, 64, 128)
    values = from_bf16(given)
    scales = fp8_rows.scales_of(values, fp8_rows.LEAST_PEAK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        theirs = (values / scales[:, None]).astype(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(fp8_rows.quantised(values, scales), theirs.view(np.uint8))
