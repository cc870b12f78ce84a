"""Packed slots as the host keeps them: a body of ``packed_form.py`` behind a header with layout, length and checksum.

Whatever comes from outside is checked before a kernel sees it: kernels trust starts and forms.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from ..runtime.layout import Layout
from .packed_form import ALIGNMENT, PER_LANE, PLAIN, Bytes, Cut, body_of, cut, expand_body

_HEAD = struct.Struct("<3sBI8sQ")  # magic, form, bytes of the body, layout, checksum of all that
_MAGIC = b"KVP"
LOSSLESS, LOSSY = 1, 2


@dataclass(frozen=True, slots=True)
class PackedSlot:
    """A body that was checked, and whether it is of the lossy form."""

    body: bytes
    lossy: bool


def wrapped(layout: Layout, packed: PackedSlot) -> bytes:
    """A body with its header."""
    form, digest = LOSSY if packed.lossy else LOSSLESS, bytes.fromhex(layout.digest[:16])
    checksum = _checksum(form, digest, packed.body)
    return _HEAD.pack(_MAGIC, form, len(packed.body), digest, checksum) + packed.body


def unwrapped(layout: Layout, blob: bytes, where: str = "packed slot") -> PackedSlot:
    """The body in what ``wrapped`` gave, checked, so that no kernel reads or writes outside of it.

    Args:
        layout: of the slot that it is to be expanded into.
        blob: header and body.
        where: it comes from, for messages.

    Raises:
        ValueError: it is not of this layout, is cut short, was changed, or no packing gives such a body.
    """
    place = f"{where} of {layout.kind}"
    fix = "fix: drop it and load or compute the slot anew"
    if len(blob) < _HEAD.size:
        raise ValueError(f"{place}: {len(blob)} bytes are fewer than the {_HEAD.size} of a header; {fix}")
    magic, form, length, digest, checksum = _HEAD.unpack_from(blob)
    if magic != _MAGIC or form not in (LOSSLESS, LOSSY):
        raise ValueError(f"{place}: begins with {blob[:4].hex()}, which no packing writes; {fix}")
    if digest != bytes.fromhex(layout.digest[:16]):
        raise ValueError(f"{place}: is of layout {digest.hex()}, not of layout {layout.digest[:16]}; {fix}")
    body = blob[_HEAD.size :]
    if len(body) != length:
        raise ValueError(f"{place}: has {len(body)} bytes behind its header, which says {length}; {fix}")
    if checksum != _checksum(form, digest, body):
        raise ValueError(f"{place}: its bytes don't match their checksum; {fix}")
    if (wrong := _first_wrong(cut(layout), body, form == LOSSY)) is not None:
        raise ValueError(f"{place}: {wrong}; {fix}")
    return PackedSlot(body, form == LOSSY)


def pack_slots(layout: Layout, data: Bytes, lossy: bool = False) -> list[bytes]:
    """Slots uint8 [n, slot_bytes] packed, each with its header."""
    slots = data.reshape(len(data), layout.slot_bytes)
    return [wrapped(layout, PackedSlot(body_of(cut(layout), slot, lossy).tobytes(), lossy)) for slot in slots]


def expand_slots(layout: Layout, blobs: Sequence[bytes]) -> Bytes:
    """The inverse of ``pack_slots``; bytes between parts are zeros.

    Raises:
        ValueError: as ``unwrapped``; all are checked before the first is expanded.
    """
    bodies = [unwrapped(layout, blob, f"packed slot {n} of {len(blobs)}") for n, blob in enumerate(blobs)]
    data = np.zeros((len(bodies), layout.slot_bytes), np.uint8)
    for slot, packed in zip(data, bodies, strict=True):
        expand_body(cut(layout), np.frombuffer(packed.body, np.uint8), packed.lossy, slot)
    return data


def _checksum(form: int, digest: bytes, body: bytes) -> int:
    state = xxhash.xxh3_64(bytes((form,)) + digest)
    state.update(body)
    return state.intdigest()


def _first_wrong(cut: Cut, body: bytes, lossy: bool) -> str | None:
    """What in starts and forms does not agree with the length, or None."""
    if len(body) < cut.payload_offset:
        return f"its body of {len(body)} bytes ends before the payloads, which begin at {cut.payload_offset}"
    given = np.frombuffer(body, np.uint8)
    starts = given[: 4 * cut.count].view("<u4").astype(np.int64)
    forms = given[4 * cut.count : 4 * cut.count + cut.forms_bytes]
    elements, item, kind, at = (cut.table[:, n].astype(np.int64) for n in (1, 2, 2, 3))
    item, kind = item & 0xFF, kind >> 8
    bits = np.full(cut.count, 8, np.int64)
    planes = np.flatnonzero((kind == PLAIN) | (not lossy))
    ends = np.concatenate(([0], np.cumsum(2 * item)))[:-1]
    widths = forms[1::2].astype(np.int64)
    bits[planes] = np.add.reduceat(widths, ends // 2)[planes]
    of_block = np.repeat(np.arange(cut.count), item)
    wide = np.flatnonzero((widths > 8) & np.isin(of_block, planes))
    if len(wide):
        return f"block {of_block[wide[0]]} has a plane of {widths[wide[0]]} bits"
    assert np.array_equal(at, ends)
    sizes = -(-bits * -(-elements // PER_LANE) // ALIGNMENT) * ALIGNMENT
    expected = cut.payload_offset + np.concatenate(([0], np.cumsum(sizes)))
    off = np.flatnonzero(starts != expected[:-1])
    if len(off):
        return f"block {off[0]} begins at byte {starts[off[0]]}, and the ones before it end at {expected[off[0]]}"
    if len(body) != expected[-1]:
        return f"its body has {len(body)} bytes, and its blocks take {expected[-1]}"
    return None
