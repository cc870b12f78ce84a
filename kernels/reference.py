"""The NumPy backend: what each kernel means, byte for byte.

The cold form of a slot is its bytes shuffled into planes (all first bytes of the elements, then all second bytes,
...), deflated. Neighbouring floats share sign and exponent, so the high planes are nearly constant. The lossy form
rounds floating rows to FP8 (E4M3, one scale a row) first; everything else stays as it is.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

from ..runtime.layout import ITEM_BYTES, Layout, Part
from .copies import gather, scatter, scrub

Bytes = npt.NDArray[np.uint8]
Slots = npt.NDArray[np.intp] | npt.NDArray[np.int32]

LOSSLESS, LOSSY = 1, 2
E4M3_MAX = 448.0
"""Greatest finite value of FP8 E4M3 without infinities (OCP 8-bit floating point, revision 1.0)."""


class NumpyBackend:
    """Kernels on host memory."""

    def gather(self, arena: Bytes, slots: Slots) -> Bytes:
        """Reads and writes n x slot bytes."""
        return gather(arena, slots)

    def scatter(self, arena: Bytes, slots: Slots, data: Bytes) -> None:
        """Reads and writes n x slot bytes."""
        scatter(arena, slots, data)

    def scrub(self, arena: Bytes, slots: Slots) -> None:
        """Writes n x slot bytes."""
        scrub(arena, slots)

    def pack(self, layout: Layout, data: Bytes, lossy: bool = False) -> list[bytes]:
        """Reads n x slot bytes, writes what deflate leaves of them."""
        return [_pack_slot(layout, row, lossy) for row in data]

    def expand(self, layout: Layout, packed: list[bytes]) -> Bytes:
        """Reads the packed bytes, writes n x slot bytes; padding comes back as zeros."""
        data = np.zeros((len(packed), layout.slot_bytes), np.uint8)
        for row, blob in zip(data, packed, strict=True):
            _expand_slot(layout, row, blob)
        return data


def _pack_slot(layout: Layout, row: Bytes, lossy: bool) -> bytes:
    pieces = []
    for part in layout.parts:
        data = row[part.offset : part.end]
        if lossy and part.dtype in ("float32", "bfloat16", "float16"):
            scales, codes = to_e4m3(_floats(part, data))
            pieces += [scales.tobytes(), codes.tobytes()]
        else:
            pieces.append(np.ascontiguousarray(data.reshape(-1, ITEM_BYTES[part.dtype]).T).tobytes())
    head = struct.pack("<B8s", LOSSY if lossy else LOSSLESS, bytes.fromhex(layout.digest[:16]))
    return head + zlib.compress(b"".join(pieces), 1)


def _expand_slot(layout: Layout, row: Bytes, blob: bytes) -> None:
    form, digest = struct.unpack_from("<B8s", blob)
    if form not in (LOSSLESS, LOSSY) or digest != bytes.fromhex(layout.digest[:16]):
        found = f"form {form} and layout {digest.hex()}"
        raise ValueError(f"packed bytes are of {found}, not of layout {layout.digest[:16]}")
    try:
        data = np.frombuffer(zlib.decompress(blob[9:]), np.uint8)
    except zlib.error as error:
        raise ValueError(f"packed bytes don't inflate: {error}") from error
    at = 0
    for part in layout.parts:
        target = row[part.offset : part.end]
        if form == LOSSY and part.dtype in ("float32", "bfloat16", "float16"):
            count = part.payload_bytes // ITEM_BYTES[part.dtype]
            scales = data[at : at + 4 * part.rows].view("<f4")
            codes = data[at + 4 * part.rows : at + 4 * part.rows + count].reshape(part.rows, -1)
            target[:] = _bytes_of(part, from_e4m3(scales, codes))
            at += 4 * part.rows + count
        else:
            planes = data[at : at + part.payload_bytes].reshape(ITEM_BYTES[part.dtype], -1)
            target[:] = planes.T.reshape(-1)
            at += part.payload_bytes
    if at != len(data):
        raise ValueError(f"packed bytes hold {len(data)} bytes, and the layout takes {at}")


def to_e4m3(rows: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], Bytes]:
    """Rows [n, m] as scales float32 [n] and FP8 E4M3 codes uint8 [n, m], rounded to nearest, ties to even."""
    peak = np.abs(rows).max(axis=1, initial=0.0)
    scales = np.where(peak > 0, peak / np.float32(E4M3_MAX), np.float32(1)).astype("<f4")
    values = rows / scales[:, None]
    magnitude = np.minimum(np.abs(values), np.float32(E4M3_MAX))
    exponent = np.maximum(np.floor(np.log2(np.maximum(magnitude, 2.0**-9))), -6).astype(np.int32)
    steps = np.rint(np.ldexp(magnitude, 3 - exponent)).astype(np.int32)  # in units of 2 ** (exponent - 3)
    carried = steps == 16
    steps, exponent = np.where(carried, 8, steps), exponent + carried
    codes = np.where(steps < 8, steps, (exponent + 7) * 8 + steps - 8)
    return scales, (codes | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def from_e4m3(scales: npt.NDArray[np.float32], codes: Bytes) -> npt.NDArray[np.float32]:
    """Inverse of ``to_e4m3``."""
    exponent, steps = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.int32)
    normal = exponent > 0
    magnitude = np.ldexp(np.where(normal, steps + 8, steps).astype(np.float32), np.where(normal, exponent, 1) - 10)
    signed: npt.NDArray[np.float32] = np.where(codes & 0x80, -magnitude, magnitude).astype(np.float32)
    return signed * scales[:, None]


def _floats(part: Part, data: Bytes) -> npt.NDArray[np.float32]:
    """A part's rows as float32 [rows, elements]."""
    data = np.ascontiguousarray(data)
    if part.dtype == "bfloat16":
        given = (data.view("<u2").astype("<u4") << 16).view("<f4")
    else:
        given = data.view("<f4" if part.dtype == "float32" else "<f2")
    return given.astype(np.float32).reshape(part.rows, -1)


def _bytes_of(part: Part, rows: npt.NDArray[np.float32]) -> Bytes:
    """The inverse of ``_floats``."""
    rows = np.ascontiguousarray(rows)
    if part.dtype == "bfloat16":
        bits = rows.view("<u4").astype(np.uint64)
        rounded = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
        return rounded.astype("<u2").view(np.uint8).reshape(-1)
    return rows.astype("<f4" if part.dtype == "float32" else "<f2").view(np.uint8).reshape(-1)
