"""The cold form of a slot, in which its bytes take less room, and which a kernel expands in one pass.

A slot is cut into blocks of at most 256 neighbouring elements of one part. Each is packed for itself, so that each can
be expanded without the others.

*Lossless*: the bits of an element are turned left by one, which brings the sign down and lines the exponent up with the
highest byte. Then its bytes are taken apart: all first bytes of the block, all second ones, ... Of each such plane is
kept the least value, and of every element how far it lies above that, in as many bits as the farthest takes. High bytes
of neighbouring numbers lie close together; low ones are kept as they are.

*Lossy*: blocks of float32 and bfloat16 become FP8 with one scale a block (``fp8_rows.scales_of``); all else is
lossless.

A body, as kernels read it:

    starts   uint32 [blocks], where each block's payload begins in the body
    forms    for each block and plane its least value and its number of bits, one byte each; of FP8 blocks the scale, as
             float32, and where an element has four bytes, four zeros
    payload  from a multiple of 32 on, each block from a multiple of 32 on. A block of n elements has ceil(n / 8) lanes,
             each with 8 elements: 4 neighbours in the block's first half, 4 in its second. The bits of a lane's 8
             elements lie behind one another in as many bytes as an element has bits; first byte 0 of all lanes, then
             byte 1, ...

``python tests/benchmarks/packed_form.py`` measures it on real key-values of the tiny models: float32 takes 0.89 of its
bytes, bfloat16 0.77 to 0.78; planes and deflate, which no kernel expands, 0.83 to 0.91 and 0.73 to 0.80; FP8 0.26 and
0.52. Rows that are FP8 already take 1.02 of theirs.

What the host keeps around a body, and how it is checked before a kernel sees it, is in ``packed_slot.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..runtime.layout import ITEM_BYTES, Layout, round_up
from .floats import canonical, from_bf16, to_bf16
from .fp8_rows import LEAST_PEAK, dequantised, quantised, scales_of

Bytes = npt.NDArray[np.uint8]

BLOCK = 256
"""Elements of a block at most."""

PER_LANE = 8
RUN = 4
"""Neighbouring elements of a lane; it has two runs."""

ALIGNMENT = 32
"""Of a payload: a row of 32 lanes is one sector."""

PLAIN, FLOAT32, BFLOAT16 = 0, 1, 2
"""What the lossy form may make of a block."""

_NUMBERS = {"float32": FLOAT32, "bfloat16": BFLOAT16}


# -- How a slot is cut -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks of a cut that are alike: their numbers, and elements, bytes of an element, and what it is."""

    blocks: npt.NDArray[np.intp]
    elements: int
    item: int
    kind: int

    @property
    def lanes(self) -> int:
        """That have elements."""
        return -(-self.elements // PER_LANE)

    @property
    def order(self) -> npt.NDArray[np.intp]:
        """Element of place [i, lane]; some lie behind the last one."""
        i, lane = np.arange(PER_LANE)[:, None], np.arange(self.lanes)
        return i // RUN * RUN * self.lanes + lane * RUN + i % RUN


@dataclass(frozen=True, slots=True)
class Cut:
    """The blocks of a layout's slots, in their order.

    table        uint32 [blocks, 4]: first byte in the slot, elements, bytes of an element, with what it is (``PLAIN``,
                 ...) from bit 8 on, and where its forms begin
    groups       blocks that are alike, for the references
    forms_bytes  of all blocks
    body_most    bytes of the longest body
    end          first byte of a slot behind all blocks
    """

    table: npt.NDArray[np.uint32]
    groups: tuple[Group, ...]
    forms_bytes: int
    body_most: int
    end: int

    @property
    def count(self) -> int:
        """Of blocks."""
        return len(self.table)

    @property
    def payload_offset(self) -> int:
        """Where payloads begin in a body."""
        return round_up(4 * self.count + self.forms_bytes, ALIGNMENT)


@lru_cache(maxsize=64)
def cut(layout: Layout) -> Cut:
    """How slots of a layout are cut."""
    rows, form, most = [], 0, 0
    for part in layout.parts:
        item = ITEM_BYTES[part.dtype]
        count = part.payload_bytes // item
        for first in range(0, count, BLOCK):
            elements = min(BLOCK, count - first)
            rows.append((part.offset + first * item, elements, item | _NUMBERS.get(part.dtype, PLAIN) << 8, form))
            form += 2 * item
            most += round_up(-(-elements // PER_LANE) * PER_LANE * item, ALIGNMENT)
    table = np.array(rows, np.uint32)
    body = round_up(4 * len(rows) + form, ALIGNMENT) + most
    return Cut(table, _groups(table), form, body, layout.parts[-1].end)


def _groups(table: npt.NDArray[np.uint32]) -> tuple[Group, ...]:
    alike, number = np.unique(table[:, 1:3], axis=0, return_inverse=True)
    return tuple(
        Group(np.flatnonzero(number.ravel() == n), int(elements), int(item & 0xFF), int(item >> 8))
        for n, (elements, item) in enumerate(alike)
    )


# -- A slot and its body -----------------------------------------------------------------------------------------------


def body_of(cut: Cut, slot: Bytes, lossy: bool) -> Bytes:
    """The body uint8 [bytes] of a slot uint8 [slot_bytes]."""
    forms, sizes = np.zeros(cut.forms_bytes, np.uint8), np.zeros(cut.count, np.int64)
    made = []
    for group in cut.groups:
        values = _elements(cut, group, slot)
        if lossy and group.kind != PLAIN:
            scales, planes = _fp8(group, values)
            _put(forms, cut.table[group.blocks, 3], scales.view(np.uint8).reshape(-1, 4))
            widths = np.full((len(group.blocks), 1), 8)
        else:
            planes, bases, widths = _planes(group, values)
            pairs = np.stack((bases, widths), 2).astype(np.uint8)
            _put(forms, cut.table[group.blocks, 3], pairs.reshape(len(group.blocks), -1))
        sizes[group.blocks] = -(-widths.sum(1) * group.lanes // ALIGNMENT) * ALIGNMENT
        made.append((group, planes, widths))
    starts = cut.payload_offset + np.concatenate(([0], np.cumsum(sizes)))
    payload = np.zeros(starts[-1] - cut.payload_offset, np.uint8)
    for group, planes, widths in made:
        begins = starts[group.blocks] - cut.payload_offset
        for plane in range(planes.shape[1]):
            for width in set(widths[:, plane].tolist()) - {0}:
                at = np.flatnonzero(widths[:, plane] == width)
                bits = np.zeros((len(at), group.lanes), np.uint64)
                for i in range(PER_LANE):
                    bits |= planes[at, plane, i].astype(np.uint64) << np.uint64(i * width)
                for j in range(width):
                    place = (begins[at] + (widths[at, :plane].sum(1) + j) * group.lanes)[:, None]
                    payload[place + np.arange(group.lanes)] = bits >> np.uint64(8 * j) & np.uint64(0xFF)
    directory = (starts[:-1].astype(np.uint32).view(np.uint8), forms)
    gap = np.zeros(cut.payload_offset - 4 * cut.count - cut.forms_bytes, np.uint8)
    return np.concatenate((*directory, gap, payload))


def expand_body(cut: Cut, body: Bytes, lossy: bool, slot: Bytes) -> None:
    """Write the blocks of a checked body into a slot uint8 [slot_bytes]; what follows the body isn't read."""
    starts = body[: 4 * cut.count].copy().view(np.uint32).astype(np.int64)
    forms = body[4 * cut.count : 4 * cut.count + cut.forms_bytes]
    for group in cut.groups:
        at = cut.table[group.blocks, 3].astype(np.int64)
        is_fp8 = lossy and group.kind != PLAIN
        if is_fp8:
            bases, widths = np.zeros((len(at), 1), np.uint8), np.full((len(at), 1), 8)
        else:
            pairs = forms[at[:, None] + np.arange(2 * group.item)].reshape(len(at), group.item, 2)
            bases, widths = pairs[..., 0], pairs[..., 1].astype(np.int64)
        planes = np.zeros((len(at), widths.shape[1], PER_LANE, group.lanes), np.uint8)
        for plane in range(widths.shape[1]):
            for width in set(widths[:, plane].tolist()):
                mine = np.flatnonzero(widths[:, plane] == width)
                bits = np.zeros((len(mine), group.lanes), np.uint64)
                for j in range(width):
                    place = (starts[group.blocks[mine]] + (widths[mine, :plane].sum(1) + j) * group.lanes)[:, None]
                    bits |= body[place + np.arange(group.lanes)].astype(np.uint64) << np.uint64(8 * j)
                for i in range(PER_LANE):
                    above = bits >> np.uint64(i * width) & np.uint64((1 << width) - 1)
                    planes[mine, plane, i] = above.astype(np.uint8) + bases[mine, plane, None]
        if is_fp8:
            scales = forms[at[:, None] + np.arange(4)].copy().view(np.float32)[:, 0]
            values = _from_fp8(group, planes[:, 0], scales)
        else:
            values = _from_planes(group, planes)
        _put(slot, cut.table[group.blocks, 0], values)


def _elements(cut: Cut, group: Group, slot: Bytes) -> Bytes:
    """Bytes of the blocks' elements, uint8 [blocks, elements, item]."""
    at = cut.table[group.blocks, 0].astype(np.int64)[:, None] + np.arange(group.elements * group.item)
    found: Bytes = slot[at].reshape(len(at), group.elements, group.item)
    return found


def _put(target: Bytes, begins: npt.NDArray[np.uint32], rows: Bytes) -> None:
    target[begins.astype(np.int64)[:, None] + np.arange(rows.shape[1])] = rows


def _planes(group: Group, values: Bytes) -> tuple[Bytes, Bytes, npt.NDArray[np.int64]]:
    """Planes above their least values uint8 [blocks, item, 8, lanes]; these [blocks, item]; bits of each plane."""
    unsigned = values.view(f"<u{group.item}")[..., 0]
    top = unsigned.dtype.type(8 * group.item - 1)
    turned = np.ascontiguousarray(unsigned << unsigned.dtype.type(1) | unsigned >> top)
    apart = turned.view(np.uint8).reshape(*turned.shape, group.item).transpose(0, 2, 1)
    bases, far = apart.min(2), apart.max(2) - apart.min(2)
    widths = np.ceil(np.log2(far.astype(np.int64) + 1)).astype(np.int64)
    above = np.zeros((*apart.shape[:2], PER_LANE * group.lanes), np.uint8)
    above[..., : group.elements] = apart - bases[..., None]
    return above[..., group.order], bases, widths


def _from_planes(group: Group, planes: Bytes) -> Bytes:
    """Bytes of the elements, uint8 [blocks, elements * item]."""
    apart = np.zeros((len(planes), group.item, PER_LANE * group.lanes), np.uint8)
    apart[..., group.order] = planes
    turned = np.ascontiguousarray(apart.transpose(0, 2, 1)).view(f"<u{group.item}")[:, : group.elements, 0]
    top = turned.dtype.type(8 * group.item - 1)
    unsigned = np.ascontiguousarray(turned >> turned.dtype.type(1) | turned << top)
    return unsigned.view(np.uint8).reshape(len(planes), -1)


def _fp8(group: Group, values: Bytes) -> tuple[npt.NDArray[np.float32], Bytes]:
    """Scales float32 [blocks], and codes uint8 [blocks, 1, 8, lanes]."""
    if group.kind == FLOAT32:
        numbers = values.reshape(len(values), -1).view("<f4")
    else:
        numbers = from_bf16(values.reshape(len(values), -1).view("<u2"))
    scales = scales_of(numbers, LEAST_PEAK)
    codes = np.zeros((len(values), PER_LANE * group.lanes), np.uint8)
    codes[:, : group.elements] = quantised(numbers, scales)
    return scales, codes[:, None, group.order]


def _from_fp8(group: Group, planes: Bytes, scales: npt.NDArray[np.float32]) -> Bytes:
    """Bytes of the elements, uint8 [blocks, elements * item]."""
    codes = np.zeros((len(planes), PER_LANE * group.lanes), np.uint8)
    codes[:, group.order] = planes
    numbers = dequantised(codes[:, : group.elements], scales)
    made = canonical(numbers) if group.kind == FLOAT32 else to_bf16(numbers)
    return np.ascontiguousarray(made).view(np.uint8).reshape(len(planes), -1)
