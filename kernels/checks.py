"""What kernels find out of slots: page_checksum, verified_prefix. References and plans for ``cuda/checks.cu``.

That file's third kernel, check_topology, is in ``topology_check.py``.

A checksum is for bytes that stay in memory: it finds what broke there. Bytes on disk have a digest of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..runtime.generated import Refusal
from .arena_slots import slot_ids
from .draft import Draft
from .entries import IDS, LIVE, MOST, SLOTS, Entries, entry_draft, in_use, require_entries
from .launch import Argument, Kernel, LaunchPlan, Pointer
from .reading import (
    CHECK,
    HEADERS,
    MACHINE,
    Check,
    Side,
    answers,
    machine_of,
    refused_check,
    refused_versions,
    touchable,
)

Bytes = npt.NDArray[np.uint8]
Sums = npt.NDArray[np.uint64]

KEYS = np.array([0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F], np.uint32)
FROM = np.array([0x7F4A7C15, 0x94D049BB, 0xBF58476D, 0x133111EB], np.uint32)
"""Keys of the checksum: 16 bytes at position p, counted in 16 bytes, have keys ``p * KEYS + FROM``."""

PAGE_CHECKSUM = Kernel(
    "page_checksum",
    "checks.cu",
    (
        Argument("arena", "const u8*", "uint8 [slots, stride], from the first byte of a page on", alignment=16),
        *SLOTS,
        IDS,
        LIVE,
        MOST,
        Argument("bytes", "u32", "of a page, a multiple of 16"),
        Argument("sums", "u64*", "uint64 [most]"),
        *CHECK,
    ),
    headers=HEADERS,
)
VERIFIED_PREFIX = Kernel(
    "verified_prefix",
    "checks.cu",
    (
        Argument("offsets", "const u32*", "uint32 [most + 1]: request r has blocks [offsets[r], offsets[r + 1])"),
        Argument("ids", "const i32*", "int32 [blocks], slots"),
        Argument("slots", "u32", "slots of the arena"),
        Argument("blocks", "u32", "of all requests"),
        Argument("sums", "const u64*", "uint64 [blocks], as found; None: nothing is compared", nullable=True),
        Argument("wanted", "const u64*", "uint64 [blocks], as published", nullable=True),
        LIVE,
        MOST,
        Argument("verified", "u32*", "uint32 [most], leading blocks that verify"),
        Argument("reasons", "u8*", "uint8 [most], why the next one does not; 0 where there is none"),
        MACHINE,
        Argument("words", "const u64*", "uint64 [slots], the state words"),
        Argument("expected", "const u32*", "uint32 [blocks], generations"),
    ),
    headers=HEADERS,
)


# ---- references -----------------------------------------------------------------------------------------------------


def checksum(pages: Bytes) -> Sums:
    """Checksum of each page, uint64 [n]; pages are uint8 [n, bytes], bytes a multiple of 16.

    NH (Black et al., "UMAC", 1999) over 4-byte numbers with keys made from the position, spread by the finaliser of
    splitmix64. It tells a changed page from the old one but for one change in 2**32 or so, and doesn't resist intent.

    >>> page = np.zeros((1, 32), np.uint8)
    >>> hex(int(checksum(page)[0]))
    '0xae4381314f17f6b4'
    """
    count, size = pages.shape
    numbers = np.ascontiguousarray(pages).view("<u4").reshape(count, size // 16, 4)
    keys = np.arange(size // 16, dtype=np.uint32)[:, None] * KEYS + FROM
    keyed = (numbers + keys).astype(np.uint64)
    total = (keyed[..., 0] * keyed[..., 1] + keyed[..., 2] * keyed[..., 3]).sum(axis=1, dtype=np.uint64)
    mixed = total + np.uint64(size * 0x9E3779B97F4A7C15 % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    spread: Sums = mixed ^ (mixed >> np.uint64(31))
    return spread


def page_checksum(
    arena: Bytes,
    ids: npt.NDArray[Any],
    sums: Sums,
    *,
    check: Check[npt.NDArray[Any]] | None = None,
    live: int | None = None,
) -> None:
    """Checksums of the pages of some slots, as ``checksum``.

    Args:
        arena: uint8 [slots, bytes]; any stride between slots.
        ids: [most] slots; they may repeat.
        sums: uint64 [most]; those of refused entries stay as they were, also of one that moved while it was read.
        check: its refusals are updated. Without one every number must be a slot.
        live: entries in use; all by default.

    Bytes moved: n x bytes read, 8 n written; at most 20 instructions for 16 bytes. Floor for 16 MiB: 3.9 us, where
    there are many pages: a page is read by one block.

    Raises:
        IndexError: a number is no slot, and there is no check to say so.
    """
    used = ids[: in_use(live, len(ids))]
    if check is None:
        sums[: len(used)] = checksum(arena[slot_ids(arena, used)])
        return
    allowed = touchable(check, len(arena), used)
    sums[: len(used)][allowed] = checksum(arena[used[allowed]])


def verified_prefix(
    check: Check[npt.NDArray[Any]],
    offsets: npt.NDArray[Any],
    ids: npt.NDArray[Any],
    verified: npt.NDArray[np.uint32],
    reasons: npt.NDArray[np.uint8],
    *,
    sums: Sums | None = None,
    wanted: Sums | None = None,
    live: int | None = None,
) -> None:
    """How many leading blocks of each request are readable, of the expected generation, and have the right sum.

    Args:
        check: a reader's; its refusals are neither read nor written.
        offsets: [most + 1], ascending: request r has blocks [offsets[r], offsets[r + 1]).
        ids: [blocks] slots, in the order of the sequence.
        verified: uint32 [most], written.
        reasons: uint8 [most], written: why the block after them does not verify, FAILED where its sum differs; 0 where
            all do.
        sums: uint64 [blocks] as ``page_checksum`` found them; None compares nothing.
        wanted: uint64 [blocks] as they were when the blocks were published.
        live: requests in use; all by default.

    The answer is of one moment; a pin on what verified keeps it true.
    Bytes moved: at most 32 a block and 5 a request; bound by the launch.
    """
    codes = answers(replace(check, refusals=np.zeros(len(ids), np.uint8)), ids)
    if sums is not None and wanted is not None:
        codes = np.where((codes == 0) & (sums != wanted), np.uint8(Refusal.FAILED), codes)
    ends = np.minimum(offsets, len(ids)).astype(np.int64)
    for request in range(in_use(live, len(verified))):
        block = codes[ends[request] : ends[request + 1]]
        bad = np.flatnonzero(block)
        verified[request] = bad[0] if len(bad) else len(block)
        reasons[request] = block[bad[0]] if len(bad) else 0


# ---- plans ----------------------------------------------------------------------------------------------------------


def page_checksum_plan(entries: Entries, bytes: int, sums: Pointer, check: Check[Pointer] | None = None) -> LaunchPlan:
    """A block for each page; arguments as in ``PAGE_CHECKSUM``.

    Raises:
        LaunchRefused: bytes or strides that are no multiples of 16, or too little memory.
    """
    draft = entry_draft(PAGE_CHECKSUM, entries, check, bytes=bytes, sums=sums)
    draft.require_multiple(16, "bytes")
    require_entries(draft, draft.number("bytes"))
    most = draft.number("most")
    draft.require_bytes(sums=8 * most)
    return draft.plan((most, 1, 1))


def verified_prefix_plan(
    check: Check[Pointer],
    offsets: Pointer,
    ids: Pointer,
    slots: int,
    blocks: int,
    most: int,
    verified: Pointer,
    reasons: Pointer,
    *,
    sums: Pointer | None = None,
    wanted: Pointer | None = None,
    live: Pointer | None = None,
) -> LaunchPlan:
    """A block for each request; arguments as in ``VERIFIED_PREFIX``.

    Raises:
        LaunchRefused: sums on one side only, a check of a writer or with versions, or too little memory.
    """
    kernel = VERIFIED_PREFIX
    if not isinstance(check, Check):
        raise refused_check(kernel, check)
    draft = Draft(
        kernel, offsets=offsets, ids=ids, slots=slots, blocks=blocks, sums=sums, wanted=wanted, live=live, most=most,
        verified=verified, reasons=reasons, machine=machine_of(kernel, check.kind), words=check.words,
        expected=check.expected,
    )  # fmt: skip
    if (sums is None) != (wanted is None):
        alone = "wanted" if sums is None else "sums"
        raise draft.refusal(alone, "pass sums and wanted, or None for both")
    if check.side != Side.READER:
        raise kernel.refusal("machine", f"is of {check.side!r}; fix: a prefix is verified for a reader")
    if check.versions is not None:
        raise refused_versions(kernel)
    draft.require_bytes(
        offsets=4 * (most + 1), ids=4 * blocks, sums=8 * blocks, wanted=8 * blocks, verified=4 * most, reasons=most,
        words=8 * slots, expected=4 * blocks,
    )  # fmt: skip
    return draft.plan((most, 1, 1))
