"""Specs and plans: what they refuse, where, and with which fix."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.launch import (
    SCALARS,
    Argument,
    Kernel,
    LaunchPlan,
    LaunchRefused,
    Pointer,
    Value,
    blocks,
    element_name,
)

COPY = Kernel(
    "copy",
    "copies.cu",
    (
        Argument("source", "const u8*", "uint8 [rows, row_bytes], read", alignment=16),
        Argument("target", "u8*", "uint8 [rows, row_bytes], written", alignment=16),
        Argument("order", "const u32*", nullable=True),
        Argument("rows", "u32"),
        Argument("shift", "i64"),
        Argument("scale", "float"),
        Argument("live", "const i64*", "int64 [1]", bytes_min=8),
        Argument("backwards", "u32", is_flag=True),
    ),
)
VALUES: tuple[Value, ...] = (Pointer(256, 64), Pointer(512, 64), None, 4, -1, 0.5, Pointer(1024, 8), True)


def plan_with(position: int, value: Any, grid: tuple[int, int, int] = (1, 1, 1)) -> LaunchPlan:
    return LaunchPlan(COPY, grid, (*VALUES[:position], value, *VALUES[position + 1 :]))


def test_a_plan_that_fits_is_made() -> None:
    plan = LaunchPlan(COPY, (2, 1, 1), VALUES)
    assert plan.block == (256, 1, 1) and not plan.is_empty
    assert plan.value("shift") == -1
    assert list(plan.named()) == ["source", "target", "order", "rows", "shift", "scale", "live", "backwards"]
    assert COPY.symbol == "kv_copy"


def test_another_count_of_values_is_refused() -> None:
    with pytest.raises(LaunchRefused) as refused:
        LaunchPlan(COPY, (1, 1, 1), VALUES[:-1])
    assert str(refused.value) == (
        "kernels/cuda/copies.cu: kv_copy is given 7 values; fix: pass 8: const u8* source, u8* target, "
        "const u32* order, u32 rows, i64 shift, float scale, const i64* live, u32 backwards"
    )


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, 256, "argument 0 'source' (const u8*) is int 256; fix: pass a Pointer"),
        (0, None, "argument 0 'source' (const u8*) is None and not nullable; fix: pass a Pointer"),
        (0, Pointer(264, 8), "is memory at 0x108 of 8 bytes; fix: its address must be a multiple of 16"),
        (0, Pointer(0, 64), "is memory at 0x0 of 64 bytes; fix: pass memory that is there, or 0 bytes"),
        (0, Pointer(256, -1), "fix: pass an address of 64 bits and a count of bytes that isn't negative"),
        (
            0,
            Pointer(256, 64.0),
            "is Pointer Pointer(address=256, bytes=64.0, dtype=None); fix: pass an address of 64 bits",
        ),  # type: ignore[arg-type]
        (0, Pointer(2**64, 8), "fix: pass an address of 64 bits and a count of bytes that isn't negative"),
        (2, 7, "argument 2 'order' (const u32*) is int 7; fix: pass a Pointer or None"),
        (2, Pointer(258, 8), "is memory at 0x102 of 8 bytes; fix: its address must be a multiple of 4"),
        (3, -1, "argument 3 'rows' (u32) is -1; fix: pass an int of [0, 4294967295]"),
        (3, 2**32, "argument 3 'rows' (u32) is 4294967296; fix: pass an int of [0, 4294967295]"),
        (3, True, "argument 3 'rows' (u32) is bool True; fix: pass an int"),
        (3, 4.0, "argument 3 'rows' (u32) is float 4.0; fix: pass an int"),
        (3, Pointer(256, 4), "argument 3 'rows' (u32) is Pointer"),
        (4, 2**63, "argument 4 'shift' (i64) is 9223372036854775808; fix: pass an int of [-9223372036854775808,"),
        (5, 2**24 + 1, "argument 5 'scale' (float) is int 16777217; fix: pass a float"),
        (5, True, "argument 5 'scale' (float) is bool True; fix: pass a float"),
        (6, Pointer(1024, 7), "argument 6 'live' (const i64*) is memory at 0x400 of 7 bytes; fix: the plan needs 8"),
        (7, 1, "argument 7 'backwards' (u32) is int 1; fix: pass True or False"),
        (5, 1e39, "argument 5 'scale' (float) is 1e+39, which no float32 holds; fix: pass at most 3.4"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_where_it_stands(position: int, value: Any, message: str) -> None:
    with pytest.raises(LaunchRefused) as refused:
        plan_with(position, value)
    assert str(refused.value).startswith(f"kernels/cuda/copies.cu: kv_copy: argument {position} ")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("position", "value"),
    [(3, 0), (3, 2**32 - 1), (4, -(2**63)), (5, math.inf), (5, math.nan), (5, 0), (5, 2**24), (5, -(2**24))],
)
def test_values_at_the_ends_of_their_range_are_taken(position: int, value: Any) -> None:
    assert plan_with(position, value).values[position] is value


@pytest.mark.parametrize(
    ("grid", "axis"),
    [
        ((-1, 1, 1), "x"),
        ((2**31, 1, 1), "x"),
        ((1, 0, 1), "y"),
        ((1, 65536, 1), "y"),
        ((1, 1, 65536), "z"),
        ((1.0, 1, 1), "x"),
    ],
)
def test_a_grid_over_the_limits_is_refused(grid: Any, axis: str) -> None:
    with pytest.raises(LaunchRefused, match=rf"kv_copy has grid .*; fix: its {axis} must be an int of \["):
        LaunchPlan(COPY, grid, VALUES)


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 1, 1)])
def test_an_empty_array_has_no_address(grid: tuple[int, int, int]) -> None:
    """CuPy and torch give address 0 for it, and other arrays of the launch may have elements."""
    assert plan_with(0, Pointer(0, 0), grid).is_empty == (grid[0] == 0)


def test_a_grid_at_its_limits_is_taken() -> None:
    assert LaunchPlan(COPY, (2**31 - 1, 65535, 65535), VALUES).grid[0] == 2**31 - 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "Copy"}, "has no name that C and Python take"),
        ({"threads": 0}, "has blocks of 0 threads; fix: use a multiple of 32 up to 1024"),
        ({"threads": 48}, "has blocks of 48 threads"),
        ({"threads": 1056}, "has blocks of 1056 threads"),
        ({"shared_bytes": 49153}, "asks for 49153 bytes of shared memory; fix: use at most 49152"),
        ({"shared_bytes": -1}, "asks for -1 bytes"),
        ({"arguments": (Argument("rows", "u32"),) * 2}, "has two arguments of one name: rows, rows"),
        ({"arguments": tuple(Argument(f"a{i}", "u8") for i in range(513))}, "has 513 arguments; fix: use at most 512"),
    ],
)
def test_a_kernel_that_no_device_launches_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchRefused) as refused:
        dataclasses.replace(COPY, **changed)
    assert str(refused.value).startswith(f"kernel {changed.get('name', 'copy')!r} of kernels/cuda/copies.cu ")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Argument("Rows", "u32"), "argument 'Rows' has no name"),
        (lambda: Argument("rows", "kv_u32"), "has type 'kv_u32'; fix: use one of u8, u16, u32, u64, i32, i64, float"),
        (lambda: Argument("rows", "const u32"), "has type 'const u32'"),
        (lambda: Argument("rows", "u32**"), "has type 'u32**'"),
        (lambda: Argument("rows", "u32 *"), "has type 'u32 *'"),
        (lambda: Argument("rows", "u32", nullable=True), "is a u32, and only pointers are aligned or nullable"),
        (lambda: Argument("rows", "u32", alignment=16), "is a u32, and only pointers are aligned or nullable"),
        (lambda: Argument("rows", "u32", bytes_min=4), "is a u32, and only pointers are aligned or nullable"),
        (lambda: Argument("rows", "u32*", is_flag=True), "is a flag and a u32*; fix: make it a u32"),
        (lambda: Argument("rows", "u32*", alignment=12), "has alignment 12; fix: use a power of two of at least 4"),
        (lambda: Argument("rows", "u64*", alignment=4), "has alignment 4; fix: use a power of two of at least 8"),
    ],
)
def test_an_argument_that_c_does_not_take_is_refused(made: Any, message: str) -> None:
    with pytest.raises(LaunchRefused) as refused:
        made()
    assert message in str(refused.value) and "fix: " in str(refused.value)


def test_arguments_know_what_they_carry() -> None:
    source, target, order, rows, *_ = COPY.arguments
    assert (source.is_pointer, source.is_const, source.address_multiple) == (True, True, 16)
    assert (target.is_pointer, target.is_const) == (True, False)
    assert (order.dtype, order.address_multiple) == (SCALARS["u32"], 4)
    assert (rows.is_pointer, rows.dtype) == (False, SCALARS["u32"])


def test_memory_is_skipped_into_and_no_further() -> None:
    memory = Pointer(256, 64)
    assert memory.skip(16) == Pointer(272, 48) and memory.skip(64).bytes == 0
    for offset in (-1, 65):
        with pytest.raises(LaunchRefused, match="skip at most 64"):
            memory.skip(offset)


def test_a_pointer_knows_what_its_array_holds_and_is_the_same_without() -> None:
    memory = Pointer(256, 64, "int64")
    assert memory.skip(16).dtype == "int64" and memory == Pointer(256, 64)


@pytest.mark.parametrize(("dtype", "name"), [("int64", "int64"), (">i4", ">i4"), ("bool", "bool"), ("i4, f4", None)])
def test_an_array_is_named_by_its_elements(dtype: str, name: str | None) -> None:
    assert element_name(np.dtype(dtype)) == name


@pytest.mark.parametrize(
    ("position", "dtype", "fix"),
    [
        (2, "int64", "argument 2 'order' (const u32*) holds int64; fix: pass uint32 or int32"),
        (2, "float32", "argument 2 'order' (const u32*) holds float32; fix: pass uint32 or int32"),
        (2, ">i4", "argument 2 'order' (const u32*) holds >i4; fix: pass uint32 or int32"),
        (6, "int32", "argument 6 'live' (const i64*) holds int32; fix: pass int64 or uint64"),
    ],
)
def test_an_array_of_other_elements_is_refused(position: int, dtype: str, fix: str) -> None:
    with pytest.raises(LaunchRefused) as refused:
        plan_with(position, Pointer(1024, 64, dtype))
    assert str(refused.value).endswith(fix)


def test_bytes_may_be_those_of_any_array() -> None:
    for dtype in ("uint8", "float32", "int64", "bfloat16", None):
        assert plan_with(0, Pointer(256, 64, dtype)).value("source") == Pointer(256, 64)


class Buffer:
    pointer = Pointer(256, 64)

    def __repr__(self) -> str:
        return "Buffer()"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((64, 64), np.int32), "is ndarray of int32 (64, 64); fix: pass launcher.pointer(x)"),
        (Buffer(), "is Buffer Buffer(); fix: pass its .pointer"),
        ([0] * 1000, f"is list [{'0, ' * 33}...; fix: pass a Pointer"),
    ],
)
def test_what_is_passed_for_memory_is_shown_in_short(value: Any, message: str) -> None:
    with pytest.raises(LaunchRefused) as refused:
        plan_with(0, value)
    assert str(refused.value) == f"kernels/cuda/copies.cu: kv_copy: argument 0 'source' (const u8*) {message}"


def test_a_grid_covers_all_items() -> None:
    assert [blocks(items, 4) for items in (0, 1, 4, 5)] == [(0, 1, 1), (1, 1, 1), (1, 1, 1), (2, 1, 1)]
