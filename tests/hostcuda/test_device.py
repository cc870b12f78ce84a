"""What device.cuh computes, against definitions that don't share its tricks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from kvfsm.kernels.launch import Argument, Kernel, LaunchPlan, blocks

from .building import Build
from .host import HostBuffer, HostLauncher
from .planted import planted_source

Array = npt.NDArray[Any]
LEAST_NORMAL = np.float32(2.0**-126)


def ran(name: str, types: tuple[str, ...], count: int, *arrays: Array, counted: bool = True) -> list[HostBuffer]:
    """Buffers of the arrays after one launch over ``count`` items."""
    arguments = tuple(Argument(f"array_{i}", type) for i, type in enumerate(types))
    launcher = HostLauncher(Build.FAST, sources=planted_source)
    buffers = [launcher.upload(array) for array in arrays]
    values: tuple[Any, ...] = tuple(buffer.pointer for buffer in buffers)
    if counted:
        arguments, values = (*arguments, Argument("count", "u32")), (*values, count)
    launcher.launch(LaunchPlan(Kernel(name, "device.cu", arguments), blocks(count, 256), values))
    return buffers


def narrowed(bits: Array) -> tuple[Array, Array]:
    outputs = np.zeros(len(bits), np.uint8), np.zeros(len(bits), np.uint16)
    buffers = ran("narrows", ("const u32*", "u8*", "u16*"), len(bits), bits, *outputs)
    return buffers[1].download(), buffers[2].download()


def widened(codes: Array) -> tuple[Array, Array]:
    outputs = np.zeros(len(codes), np.uint32), np.zeros(len(codes), np.uint32)
    buffers = ran("widens", ("const u16*", "u32*", "u32*"), len(codes), codes, *outputs)
    return buffers[1].download(), buffers[2].download()


def samples() -> Array:
    """Bits of floats: 4 million random ones, and all around each number where a rounding changes."""
    random = np.random.default_rng(5).integers(0, 2**32, 2**22, np.uint32)
    steps = np.arange(-3, 4, dtype=np.int64)
    e4m3 = np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    edges = np.concatenate((e4m3, (e4m3[1:] + e4m3[:-1]) / 2, [464.0, 480.0, np.inf, 2.0**-10, 0.0]))
    bf16 = np.arange(0x7F80, dtype=np.uint32) << 16 | 0x8000
    around = (edges.astype(np.float32).view(np.uint32).astype(np.int64)[:, None] + steps).ravel()
    around = np.concatenate((around, (bf16.astype(np.int64)[::7, None] + steps).ravel()))
    around = around[(around >= 0) & (around < 2**31)].astype(np.uint32)
    return np.concatenate((random, around, around | np.uint32(2**31)))


def test_e4m3_and_bf16_round_to_nearest_even_and_saturate() -> None:
    bits = samples()
    e4m3, bf16 = narrowed(bits)
    with np.errstate(invalid="ignore"):
        values = bits.view(np.float32)
        nan = np.isnan(values)
        wanted = np.clip(values, -448.0, 448.0).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        wanted_bf16 = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(e4m3, np.where(nan, 0x7F, wanted))
    np.testing.assert_array_equal(bf16, np.where(nan, 0x7FFF, wanted_bf16))
    assert nan.sum() > 1000


def test_every_code_widens_to_what_it_stands_for_and_back() -> None:
    codes = np.arange(2**16, dtype=np.uint16)
    from_e4m3, from_bf16 = widened(codes)
    low = (codes & 0xFF).astype(np.uint8)
    exact = low.view(ml_dtypes.float8_e4m3fn).astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(from_e4m3, np.where(low & 0x7F == 0x7F, 0x7FC00000, exact))
    np.testing.assert_array_equal(from_bf16, codes.astype(np.uint32) << 16)
    back, bf16_back = narrowed(from_e4m3)[0], narrowed(from_bf16)[1]
    np.testing.assert_array_equal(back, np.where(low & 0x7F == 0x7F, 0x7F, low))
    is_nan = codes & 0x7FFF > 0x7F80
    np.testing.assert_array_equal(bf16_back, np.where(is_nan, 0x7FFF, codes))


def test_a_warp_reduces_over_its_lanes() -> None:
    numbers = np.random.default_rng(6).integers(0, 2**31, 512).astype(np.uint32)
    outputs = np.zeros(512, np.uint64), np.zeros(512, np.uint32)
    _, sums, least = ran("reduces", ("const u32*", "u64*", "u32*"), 512, numbers, *outputs, counted=False)
    rows = numbers.reshape(-1, 32)
    np.testing.assert_array_equal(sums.download(), np.repeat((rows.astype(np.uint64) << 20).sum(1), 32))
    np.testing.assert_array_equal(least.download(), np.repeat(rows.min(1), 32))


def test_ordered_atomics_return_what_was_there_before() -> None:
    words = np.arange(256, dtype=np.uint64) + 5
    after, seen = ran("orders", ("u64*", "u64*"), 256, words, np.zeros(5 * 256, np.uint64), counted=False)
    expected = np.stack([words, words, words + 1, words + 1, words - 2], axis=1)
    np.testing.assert_array_equal(seen.download().reshape(256, 5), expected)
    np.testing.assert_array_equal(after.download(), words - 2)


def flushed(values: Array) -> Array:
    return np.where(np.abs(values) < LEAST_NORMAL, np.copysign(np.float32(0), values), values).astype(np.float32)


@pytest.mark.parametrize("scale", [1.0, 1e-38, 1e-30, 1e30])
def test_arithmetic_rounds_once_and_flushes(scale: float) -> None:
    rng = np.random.default_rng(7)
    a, b = ((rng.standard_normal(1000) * scale).astype(np.float32) for _ in range(2))
    a[:5], b[:5] = [0.0, -0.0, 1e-45, -1e-40, np.nan], [-0.0, 0.0, 1.0, -1e-40, 1.0]
    outputs = np.zeros(8 * 1000, np.float32)
    got = (
        ran("computes", ("const float*", "const float*", "float*"), 1000, a, b, outputs)[2].download().reshape(1000, 8)
    )
    with np.errstate(all="ignore"):
        x, y = flushed(a).astype(np.float64), flushed(b).astype(np.float64)
        # A product of two float32 is exact in float64, and so is a sum that is then rounded once more (Figueroa 1995).
        exact = np.stack([x + y, x - y, x * y, x / y], axis=1).astype(np.float32)
        largest = np.where(np.isnan(x), y, np.where(x == y, np.where(np.signbit(x), y, x), np.fmax(x, y)))
        smallest = np.where(np.isnan(x), y, np.where(x == y, np.where(np.signbit(x), x, y), np.fmin(x, y)))
        others = np.stack([largest, smallest, np.abs(x)], axis=1).astype(np.float32)
    sure = np.abs(exact) >= 2 * LEAST_NORMAL
    np.testing.assert_array_equal(np.where(sure, got[:, :4], 0), np.where(sure, exact, 0))
    below = np.abs(exact) < LEAST_NORMAL / 2
    assert (got[:, :4][below] == 0).all(), "what is below the least normal number is zero"
    np.testing.assert_array_equal(got[:, 4:7], others)
    np.testing.assert_array_equal(np.signbit(got[:, 4:7]), np.signbit(others))


def test_a_fused_multiply_add_rounds_once() -> None:
    a = np.full(256, 1 + 2**-13, np.float32)
    b = np.full(256, -(1 - 2**-13), np.float32)
    results = ran("computes", ("const float*", "const float*", "float*"), 256, a, b, np.zeros(8 * 256, np.float32))[2]
    got = results.download().reshape(256, 8)[0]
    # x * y + x with y = -(1 - e) is x * e; exactly (1 + e) * e, where two roundings lose the e * e.
    assert got[7] == np.float32((1 + 2**-13) * 2**-13)
    assert got[2] + a[0] != got[7], "and a product that was rounded first gives another number"
