"""Arithmetic on float32 as kernels do it, bit by bit, in NumPy: FP8, bfloat16, exp, and what becomes of tiny numbers.

Kernels are compiled with ``-ftz=true``, which CuPy forces: an operand or a result below 2**-126 counts as zero of its
sign. NumPy has no such mode, so a reference calls ``product``, ``total`` and their like, which flush what goes in and
what comes out. They are exact but for one case: a result that IEEE rounds up to 2**-126 itself from below counts as
2**-126 here, and a device may flush it.

FP8 is E4M3 without infinities (OCP 8-bit floating point, revision 1.0): 448 is the greatest value, 2**-9 the least
above zero, 0x7F is NaN. This is its one meaning in the project.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.uint16]

E4M3_MAX = np.float32(448.0)
E4M3_NAN = 0x7F
BF16_NAN = 0x7FFF
NORMAL_MIN = np.float32(2.0**-126)
"""Least float32 that kernels don't take for zero."""

NAN_BITS = np.uint32(0x7FC00000)
"""The NaN that kernels write: which one an operation gives differs between machines."""

EXP_LEAST = np.float32(-87.0)
"""Below this ``exp`` is 0; at it, 1.6e-38, which is still a normal number."""

LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.1219444005469057e-4)
"""ln 2 in two parts; the first has 9 bits, so its product with an exponent is exact."""

ROUNDING = np.float32(1.5 * 2**23)
"""Adding it, and taking it away again, leaves the nearest integer."""

EXP_TERMS = tuple(
    np.float32(term) for term in (0.0013814599, 0.008368717, 0.04166839, 0.16666521, 0.49999994, 1.0, 1.0)
)
"""exp(r) for |r| <= ln 2 / 2 as a polynomial, highest power first: a least-maximum fit of the relative error, which is
3.1e-9 before rounding."""


def bits_of(values: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """The 32 bits of each float."""
    return np.asarray(values, np.float32).view(np.uint32)


def floats_of(bits: npt.NDArray[np.uint32]) -> Floats:
    """The inverse of ``bits_of``."""
    return np.asarray(bits, np.uint32).view(np.float32)


def flush(values: npt.ArrayLike) -> Floats:
    """Numbers below 2**-126 as zeros of their sign, all others as they are."""
    bits = bits_of(values)
    return floats_of(np.where(bits & np.uint32(0x7F800000), bits, bits & np.uint32(0x80000000)))


def canonical(values: Floats) -> Floats:
    """Every NaN as the one that kernels write."""
    return floats_of(np.where(np.isnan(values), NAN_BITS, bits_of(values)))


def product(one: npt.ArrayLike, other: npt.ArrayLike) -> Floats:
    """``__fmul_rn``."""
    with np.errstate(all="ignore"):
        return flush(flush(one) * flush(other))


def quotient(one: npt.ArrayLike, other: npt.ArrayLike) -> Floats:
    """``__fdiv_rn``."""
    with np.errstate(all="ignore"):
        return flush(flush(one) / flush(other))


def total(one: npt.ArrayLike, other: npt.ArrayLike) -> Floats:
    """``__fadd_rn``."""
    with np.errstate(all="ignore"):
        return flush(flush(one) + flush(other))


def difference(one: npt.ArrayLike, other: npt.ArrayLike) -> Floats:
    """``__fsub_rn``."""
    with np.errstate(all="ignore"):
        return flush(flush(one) - flush(other))


def square_root(values: npt.ArrayLike) -> Floats:
    """``__fsqrt_rn``."""
    with np.errstate(all="ignore"):
        return flush(np.sqrt(flush(values)))


def exp(values: npt.ArrayLike) -> Floats:
    """E to a power of at most 0, by separate multiplies and adds.

    Of a number below ``EXP_LEAST`` it is 0, and of NaN NaN. Off by at most 2 units in the last place.

    >>> float(exp(0.0)), float(exp(-1e9))
    (1.0, 0.0)
    """
    given = flush(values)
    inside = given >= EXP_LEAST
    x = np.where(inside, given, np.float32(0))
    power = difference(total(product(x, LOG2_E), ROUNDING), ROUNDING)
    rest = difference(difference(x, product(power, LN2_HIGH)), product(power, LN2_LOW))
    result = np.full_like(rest, EXP_TERMS[0])
    for term in EXP_TERMS[1:]:
        result = total(product(result, rest), term)
    scaled = product(result, floats_of((power.astype(np.int32) + 127).astype(np.uint32) << np.uint32(23)))
    return np.where(inside, scaled, np.where(np.isnan(given), given, np.float32(0)))


def to_e4m3(values: npt.ArrayLike) -> Codes:
    """Codes of the nearest values, ties to even. Beyond 448, infinities included, it is 448; NaN is 0x7F.

    >>> to_e4m3([448.0, 464.0, float("-inf"), float("nan"), 2.0**-10]).tolist()
    [126, 126, 254, 127, 0]
    """
    bits = bits_of(values)
    sign = bits >> np.uint32(24) & np.uint32(0x80)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    odd = magnitude >> np.uint32(20) & np.uint32(1)
    # Keep 3 bits of the mantissa, and make the exponent's bias 7. Below 2**-6 the codes count steps of 2**-9 instead:
    # those are the last places of numbers around 2**14.
    normal = (magnitude + np.uint32(0x7FFFF) + odd >> np.uint32(20)) - np.uint32(120 << 3)
    least = floats_of(np.minimum(magnitude, np.uint32(0x3C800000)))
    small = bits_of(least + np.float32(2.0**14)) - np.uint32(0x46800000)
    codes = np.where(magnitude < 0x3C800000, small, np.minimum(normal, np.uint32(0x7E)))
    codes = np.where(magnitude >= 0x43E80000, np.uint32(0x7E), codes) | sign
    return np.where(magnitude > 0x7F800000, np.uint32(E4M3_NAN), codes).astype(np.uint8)


def from_e4m3(codes: Codes) -> Floats:
    """The value of each code, exactly; both codes of NaN give the same NaN.

    >>> from_e4m3(np.array([0x01, 0x38, 0x7E, 0xFE], np.uint8)).tolist()
    [0.001953125, 1.0, 448.0, -448.0]
    """
    return _e4m3_values()[codes]


@cache
def _e4m3_values() -> Floats:
    codes = np.arange(256, dtype=np.uint32)
    exponent, steps = codes >> np.uint32(3) & np.uint32(15), codes & np.uint32(7)
    values = np.where(exponent > 0, steps + 8, steps) * np.exp2(np.maximum(exponent, 1).astype(np.float32) - 10)
    values = np.where(codes & np.uint32(0x80), -values, values).astype(np.float32)
    return np.where(codes & np.uint32(0x7F) == E4M3_NAN, NAN_BITS.view(np.float32), values)


def to_bf16(values: Floats) -> Halves:
    """The nearest bfloat16, ties to even, as its 16 bits; every NaN is 0x7FFF."""
    bits = bits_of(values)
    odd = bits >> np.uint32(16) & np.uint32(1)
    # The sum wraps for NaN alone, whose result is not used.
    rounded = bits + np.uint32(0x7FFF) + odd >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(BF16_NAN), rounded).astype(np.uint16)


def from_bf16(halves: Halves) -> Floats:
    """The value of each bfloat16, exactly."""
    return floats_of(halves.astype(np.uint32) << np.uint32(16))


def peak_of(values: Floats) -> Floats:
    """Greatest magnitude along the last axis, of numbers only: neither NaN nor an infinity is one. 0 where none is."""
    magnitude = bits_of(values) & np.uint32(0x7FFFFFFF)
    return flush(floats_of(np.where(magnitude < 0x7F800000, magnitude, np.uint32(0)).max(axis=-1, initial=0)))
