"""Floats as kernels compute them: FP8 and bfloat16 as ml_dtypes has them, exp, and tiny numbers that count as zero."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest

from kvfsm.kernels import floats
from kvfsm.kernels.floats import (
    canonical,
    difference,
    exp,
    flush,
    from_bf16,
    from_e4m3,
    peak_of,
    product,
    quotient,
    square_root,
    to_bf16,
    to_e4m3,
    total,
)

SAMPLES = 2**22


def any_floats(seed: int, count: int = SAMPLES) -> np.ndarray:
    """Floats of random bits: every exponent, NaN and infinities too."""
    return np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)


def near_e4m3(seed: int, count: int = SAMPLES) -> np.ndarray:
    """Floats in the range of FP8: codes, the middles between them, and their neighbours."""
    chance = np.random.default_rng(seed)
    values = np.sort(from_e4m3(np.arange(127, dtype=np.uint8)))
    exact = np.concatenate((values, (values[1:] + values[:-1]) / 2, [np.float32(464), np.float32(480)]))
    drawn = np.concatenate((exact, np.nextafter(exact, -1), np.nextafter(exact, 1000))).astype(np.float32)
    spread = (chance.standard_normal(count) * 2.0 ** chance.integers(-12, 9, count)).astype(np.float32)
    return np.concatenate((drawn, -drawn, spread))


def by_ml_dtypes(values: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        codes = np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return np.where(np.isnan(values), np.uint8(0x7F), codes)


@pytest.mark.parametrize("seed", [0, 1])
def test_fp8_is_what_ml_dtypes_makes_of_any_float(seed: int) -> None:
    for values in (any_floats(seed), near_e4m3(seed)):
        assert np.array_equal(to_e4m3(values), by_ml_dtypes(values))


def test_all_codes_of_fp8_mean_what_they_do_to_ml_dtypes() -> None:
    codes = np.arange(256, dtype=np.uint8)
    theirs = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(canonical(theirs).view(np.uint32), from_e4m3(codes).view(np.uint32))
    assert np.isnan(from_e4m3(codes)).nonzero()[0].tolist() == [0x7F, 0xFF]


def test_codes_come_back_as_they_were() -> None:
    codes = np.arange(256, dtype=np.uint8)
    assert np.array_equal(to_e4m3(from_e4m3(codes)), np.where(codes == 0xFF, 0x7F, codes))


def test_an_fp8_that_rounds_up_at_the_middle_is_seen() -> None:
    values = near_e4m3(3, 1)
    assert not np.array_equal(to_e4m3(np.nextafter(values, np.float32(np.inf))), by_ml_dtypes(values))


def test_bfloat16_is_what_ml_dtypes_makes_of_any_float() -> None:
    values = any_floats(2)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        theirs = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(to_bf16(values), np.where(np.isnan(values), np.uint16(0x7FFF), theirs))
    halves = np.arange(2**16, dtype=np.uint16)
    assert np.array_equal(from_bf16(halves).view(np.uint32), halves.astype(np.uint32) << 16)


def test_exp_is_within_two_units_in_the_last_place() -> None:
    chance = np.random.default_rng(4)
    given = np.concatenate((-chance.exponential(12, 10**6), -chance.exponential(1e-3, 10**5), [-87.0, 0.0]))
    given = given[given >= -87].astype(np.float32)
    exact = np.exp(given.astype(np.float64))
    assert np.abs(exp(given) - exact).max(where=exact > 0, initial=0) > 0
    assert (np.abs(exp(given) - exact) / np.spacing(exact.astype(np.float32))).max() < 2
    assert (np.abs(exp(given) - exact) / exact).max() < 1.2e-7


def test_exp_ends() -> None:
    ends = np.array([0.0, -0.0, -1e-40, -87.0, np.nextafter(np.float32(-87), np.float32(-90)), -1e30, -np.inf, np.nan])
    found = exp(ends.astype(np.float32))
    assert found[:3].tolist() == [1.0, 1.0, 1.0]
    assert found[3] > floats.NORMAL_MIN
    assert found[4:7].tolist() == [0.0, 0.0, 0.0]
    assert np.isnan(found[7])


def test_what_is_below_the_least_normal_number_counts_as_zero() -> None:
    tiny, least = np.float32(1e-39), floats.NORMAL_MIN
    assert flush(np.array([tiny, -tiny, least, np.inf, 0])).tolist() == [0.0, 0.0, float(least), np.inf, 0.0]
    assert np.signbit(flush(np.float32(-1e-39)))
    assert product(tiny, 1e10) == 0 and product(least, 0.5) == 0
    assert total(least * 1.5, -least) == 0 and difference(least * 1.5, least) == 0
    assert quotient(least, 2.0) == 0 and quotient(tiny, least) == 0 and square_root(tiny) == 0
    assert product(2.0, 3.0) == 6 and total(2.0, 3.0) == 5 and difference(2.0, 3.0) == -1 and quotient(6.0, 3.0) == 2
    assert square_root(9.0) == 3


def test_a_peak_is_of_numbers_only() -> None:
    rows = np.array([[1, -3, np.nan], [np.inf, 2, 0], [np.nan, -np.inf, np.nan], [1e-40, 0, -0.0]], np.float32)
    assert peak_of(rows).tolist() == [3.0, 2.0, 0.0, 0.0]
    assert peak_of(np.zeros((2, 0), np.float32)).tolist() == [0.0, 0.0]
