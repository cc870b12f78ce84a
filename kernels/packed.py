"""Slots packed into the cold form by a launch, and expanded out of it. The form itself is in ``packed_form.py``.

References and plans are of ``cuda/packed.cu``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .draft import Draft, require_record
from .entries import IDS, LIVE, MOST, SLOTS, Entries, entry_draft, in_use, require_entries
from .launch import Argument, Kernel, LaunchPlan, Pointer, Value
from .packed_form import ALIGNMENT, Cut, body_of, expand_body
from .reading import CHECK, ROW_HEADERS, Check, touchable

Bytes = npt.NDArray[np.uint8]
Arrays = npt.NDArray[Any]

BLOCKS_AT_ONCE = 32
"""Of a slot, that one block of threads expands."""


# -- References --------------------------------------------------------------------------------------------------------


def pack(
    cut: Cut,
    slots: Bytes,
    ids: npt.NDArray[np.int32],
    lossy: bool,
    out: Bytes,
    sizes: npt.NDArray[np.uint32],
    check: Check[Arrays] | None = None,
    live: int | None = None,
) -> None:
    """Bodies of some slots.

    slots  uint8 [slots, bytes]
    ids    int32 [n]
    out    uint8 [n, at least cut.body_most], written
    sizes  uint32 [n], written: bytes of each body; of refused entries it stays
    live   entries in use; None: all

    Bytes: a slot read and its body written; 16 a block of 256 elements for the cut.
    Floor at 4.3 TB/s: 16 MiB of bfloat16 6.9 us. One block of threads has a slot, so few slots take longer.
    """
    for entry, slot in _touchable(check, len(slots), ids, live):
        body = body_of(cut, slots[slot], lossy)
        out[entry, : len(body)] = body
        sizes[entry] = len(body)


def expand(
    cut: Cut,
    slots: Bytes,
    ids: npt.NDArray[np.int32],
    packed: Bytes,
    begins: npt.NDArray[np.uint64],
    lossy: npt.NDArray[np.uint8],
    check: Check[Arrays] | None = None,
    live: int | None = None,
) -> None:
    """Slots of some bodies; bytes between parts stay as they were.

    slots   uint8 [slots, bytes], written
    ids     int32 [n], no slot twice
    packed  uint8, bodies that were checked
    begins  uint64 [n], where each begins, a multiple of 32
    lossy   uint8 [n], 1 where the body is of the lossy form
    live    entries in use; None: all

    Bytes: a body read and a slot written; 16 a block of 256 elements for the cut.
    Floor at 4.3 TB/s: 16 MiB of bfloat16 6.9 us.
    """
    for entry, slot in _touchable(check, len(slots), ids, live):
        expand_body(cut, packed[int(begins[entry]) :], bool(lossy[entry]), slots[slot])


def _touchable(
    check: Check[Arrays] | None, slots: int, ids: npt.NDArray[np.int32], live: int | None
) -> list[tuple[int, int]]:
    """Entry and slot of what may be touched; why the others may not is written to ``check.refusals``."""
    mine = ids[: in_use(live, len(ids))]
    found = np.flatnonzero(touchable(check, slots, mine))
    return list(zip(found.tolist(), mine[found].tolist(), strict=True))


# -- Kernels and plans -------------------------------------------------------------------------------------------------

_POOL = (
    *SLOTS,
    IDS,
    LIVE,
    MOST,
    Argument("blocks", "const u32*", "uint32 [block_count, 4], Cut.table", alignment=16),
    Argument("block_count", "u32"),
)
PACK = Kernel(
    "pack",
    "packed.cu",
    (
        Argument("arena", "const u8*", "uint8 [slots, stride]", alignment=16),
        *_POOL,
        Argument("forms_bytes", "u32", "Cut.forms_bytes"),
        Argument("lossy", "u32", "1: blocks of numbers become FP8", is_flag=True),
        Argument("out", "u8*", "uint8 [most, out_stride], a body each", alignment=32),
        Argument("out_stride", "u64", "a multiple of 32"),
        Argument("sizes", "u32*", "uint32 [most], bytes of each body"),
        *CHECK,
    ),
    ROW_HEADERS,
)
EXPAND = Kernel(
    "expand",
    "packed.cu",
    (
        Argument("arena", "u8*", "uint8 [slots, stride]", alignment=16),
        *_POOL,
        Argument("packed", "const u8*", "bodies", alignment=32),
        Argument("begins", "const u64*", "uint64 [most], where each body begins, a multiple of 32"),
        Argument("lossy", "const u8*", "uint8 [most], 1 where a body is of the lossy form"),
        *CHECK,
    ),
    ROW_HEADERS,
)


def pack_plan(
    cut: Cut,
    blocks: Pointer,
    entries: Entries,
    lossy: bool,
    out: Pointer,
    out_stride: int,
    sizes: Pointer,
    check: Check[Pointer] | None = None,
) -> LaunchPlan:
    """A block of threads an entry; arguments as in ``PACK``, ``blocks`` are those of the cut.

    Raises:
        LaunchRefused: memory is too short, or bodies don't begin at multiples of 32.
    """
    require_record(PACK, "block_count", cut, Cut)
    draft = _draft(
        PACK, cut, entries, check, blocks=blocks, forms_bytes=cut.forms_bytes, lossy=lossy, out=out,
        out_stride=out_stride, sizes=sizes,
    )  # fmt: skip
    draft.require_multiple(ALIGNMENT, "out_stride")
    draft.require_least(cut.body_most, "out_stride")
    most = entries.most
    draft.require_bytes(out=(most - 1) * out_stride + cut.body_most if most else 0, sizes=4 * most)
    return draft.plan((most, 1, 1))


def expand_plan(
    cut: Cut,
    blocks: Pointer,
    entries: Entries,
    packed: Pointer,
    begins: Pointer,
    lossy: Pointer,
    check: Check[Pointer] | None = None,
) -> LaunchPlan:
    """A block of threads for every 32 blocks of an entry, no slot twice; arguments as in ``EXPAND``.

    The bodies are those of ``unwrapped``: nothing in the launch checks them again.

    Raises:
        LaunchRefused: memory is too short.
    """
    require_record(EXPAND, "block_count", cut, Cut)
    draft = _draft(EXPAND, cut, entries, check, blocks=blocks, packed=packed, begins=begins, lossy=lossy)
    draft.require_bytes(begins=8 * entries.most, lossy=entries.most)
    return draft.plan((entries.most * -(-cut.count // BLOCKS_AT_ONCE), 1, 1))


def _draft(kernel: Kernel, cut: Cut, entries: Entries, check: Check[Pointer] | None, **given: Value) -> Draft:
    """Of slots of that cut."""
    draft = entry_draft(kernel, entries, check, block_count=cut.count, **given)
    require_entries(draft, cut.end)
    draft.require_bytes(blocks=16 * cut.count)
    return draft
