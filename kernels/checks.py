"""What kernels find out: page_checksum, verified_prefix, check_topology. References and plans for ``cuda/checks.cu``.

A checksum is for bytes that stay in memory: it finds what broke there. Bytes on disk have a digest of their own.

``check_topology`` stands at the head of a captured graph, and needs nothing from the host: it compares what the device
sees now with what was captured, refuses rows for the launches that follow, and counts every violation in a ring in
device memory (``Violations``), which the host empties when it likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from ..runtime.generated import Refusal
from .call_refusal import CallRefusal
from .draft import Draft, named
from .launch import Argument, Kernel, LaunchPlan, Pointer
from .reading import (
    CHECK,
    HEADERS,
    IDS,
    LIVE,
    MACHINE,
    MOST,
    SLOTS,
    Check,
    Memory,
    Side,
    answers,
    check_values,
    field_of,
    in_use,
    machine_of,
    refused_check,
    refused_versions,
    require_check,
    require_slots,
    touchable,
)

Bytes = npt.NDArray[np.uint8]
Sums = npt.NDArray[np.uint64]
Numbers = npt.NDArray[Any]

KEYS = np.array([0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F], np.uint32)
FROM = np.array([0x7F4A7C15, 0x94D049BB, 0xBF58476D, 0x133111EB], np.uint32)
"""Keys of the checksum: 16 bytes at position p, counted in 16 bytes, have keys ``p * KEYS + FROM``."""

WIDEST = 2**24 - 3
"""Entries of a table's row that a block can rank in the upper 24 bits of a number."""

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
CHECK_TOPOLOGY = Kernel(
    "check_topology",
    "checks.cu",
    (
        Argument("captured", "const i64*", "int64 [numbers], of the signature as it was captured"),
        Argument("present", "const i64*", "int64 [numbers], as it is"),
        Argument("numbers", "u32", "of the signature"),
        Argument("epoch", "const i64*", "int64 [1], of the pool", bytes_min=8),
        Argument("captured_epoch", "i64", "of the pool at the capture"),
        Argument("table", "const i32*", "int32 [rows, width], slots"),
        Argument("width", "u32", "entries of a row"),
        Argument("slots", "u32", "slots of the arena"),
        Argument("span", "u32", "tokens that an entry covers"),
        Argument("is_ring", "u32", "1: block b is at entry b % width; 0: at entry b", is_flag=True),
        Argument("guard", "i32", "names no slot"),
        Argument("scratch", "i32", "slot for writes that are nobody's"),
        Argument("live", "const i64*", "int64 [1], rows in use; those after them are padding", bytes_min=8),
        Argument("positions", "const i64*", "int64 [rows], of each row's last token"),
        Argument("rows", "u32", "of the table"),
        Argument("refused", "u8*", "uint8 [rows]: 0, or why the launches that follow must leave a row alone"),
        Argument("is_first", "u32", "0: rows that have a code already keep it", is_flag=True),
        Argument("records", "u32*", "uint32 [capacity, 8], see Violations", alignment=16),
        Argument("cursor", "u64*", "uint64 [1], violations so far", bytes_min=8),
        Argument("consumed", "const u64*", "uint64 [1], of those, how many the host has taken", bytes_min=8),
        Argument("capacity", "u32", "records of the ring"),
        MACHINE,
        Argument("words", "const u64*", "uint64 [slots], the state words; None: not looked at", nullable=True),
        Argument("expected", "const u32*", "uint32 [rows, width], generations; None: any", nullable=True),
    ),
    headers=HEADERS,
)


class What(IntEnum):
    """``kv_violation``: what is wrong, with row, column (entry, or number of the signature), found and wanted."""

    NUMBER = 1
    """A number of the signature is not what it was when the graph was captured."""
    EPOCH = 2
    """The pool's epoch is another one."""
    LIVE = 3
    """More live rows than there are rows, or fewer than none."""
    ENTRY = 4
    """An entry of a live row names no slot, and is not the guard."""
    MISSING = 5
    """An entry is the guard, and the row has tokens there."""
    SCRATCH = 6
    """An entry of a live row is scratch."""
    PADDING = 7
    """An entry of a padding row is neither scratch nor the guard."""
    WORD = 8
    """A slot of a live row answers what the code says; wanted is the generation."""
    POSITION = 9
    """The last token of a live row is before the first; found is its position."""


RECORD = np.dtype([
    ("what", "<u4"), ("row", "<u4"), ("column", "<u4"), ("code", "<u4"), ("found", "<i8"), ("wanted", "<i8"),
])  # fmt: skip
"""One violation; ``records`` of the kernel are these."""


@dataclass(slots=True)
class Violations:
    """The ring, as arrays: on the host, or as it was downloaded.

    records   RECORD [capacity]; violation t is at ``t % capacity``
    cursor    violations so far
    consumed  of those, how many were taken. Violations that come while ``capacity`` are untaken are counted only
    """

    records: npt.NDArray[np.void]
    cursor: int = 0
    consumed: int = 0

    @classmethod
    def of(cls, capacity: int) -> Violations:
        """An empty ring."""
        return cls(np.zeros(capacity, RECORD))

    @property
    def lost(self) -> int:
        """Violations since the last ``take`` that found no room."""
        return max(0, self.cursor - self.consumed - len(self.records))

    def take(self) -> npt.NDArray[np.void]:
        """Those that are there, oldest first; the room is free again. On a device, write ``consumed`` back to it.

        Order among those of one launch is the device's.
        """
        kept = min(self.cursor - self.consumed, len(self.records))
        found = self.records[(self.consumed + np.arange(kept)) % len(self.records)]
        self.consumed = self.cursor
        return found

    def add(self, found: Iterable[tuple[int, int, int, int, int, int]]) -> None:
        """Count violations, and write those for which there is room."""
        for one in found:
            if self.cursor - self.consumed < len(self.records):
                self.records[self.cursor % len(self.records)] = one
            self.cursor += 1


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
        if len(used) and not 0 <= used.min() <= used.max() < len(arena):
            raise IndexError(f"slots {used.min()} to {used.max()} of {len(arena)}; pass slots only, or a check")
        sums[: len(used)] = checksum(arena[used])
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


@dataclass(frozen=True, slots=True)
class Rows(Generic[Memory]):
    """One table of a batch, as ``static_tables.py`` fills it: in a launcher's memory for a plan, in arrays here.

    table      int32 [rows, width], slots of one kind
    live       int64 [1], rows in use; those after them are padding
    positions  int64 [rows], of each row's last token
    span       tokens that an entry covers; more than any sequence has where a row has one entry for all
    is_ring    block b is at entry ``b % width``, and old ones slide out; else it is at entry b
    guard      names no slot
    scratch    slot for writes that are nobody's
    """

    table: Memory
    live: Memory
    positions: Memory
    span: int
    is_ring: bool
    guard: int
    scratch: int


@dataclass(frozen=True, slots=True)
class Ring:
    """Where the violations of launches go: ``Violations`` in a launcher's memory.

    records   RECORD [capacity]
    cursor    uint64 [1]
    consumed  uint64 [1]
    """

    records: Pointer
    cursor: Pointer
    consumed: Pointer
    capacity: int


def check_topology(
    rows: Rows[Numbers],
    captured: Numbers,
    present: Numbers,
    epoch: int,
    captured_epoch: int,
    refused: npt.NDArray[np.uint8],
    ring: Violations,
    *,
    kind: str,
    slots: int,
    words: npt.NDArray[np.uint64] | None = None,
    expected: Numbers | None = None,
    is_first: bool = True,
) -> None:
    """Compare what a captured graph is about to run on with what was captured; one call a table of the batch.

    Args:
        rows: the table.
        captured: int64 [numbers], ``Signature.numbers``.
        present: int64 [numbers], ``numbers_of`` now.
        epoch: of the pool now.
        captured_epoch: of the pool at the capture.
        refused: uint8 [rows], written: LAYOUT where the signature differs, EPOCH, ILLEGAL for a wrong count of live
            rows or a position below 0, else the code of the row's first entry that is wrong, NO_SLOT or what its slot
            answers; 0 for a row that may run.
        ring: violations are added to it.
        kind: of the slots.
        slots: of the arena.
        words: uint64 [slots]; None looks at no word. A live row may read what a reader may, and what is being filled.
        expected: uint32 [rows, width], generations, beside words; None takes any.
        is_first: False keeps the codes that other tables of the batch have put into ``refused``.

    Bytes moved: 16 a number of the signature and 12 to 16 an entry, all from the cache; bound by the launch.
    """
    told: list[tuple[int, int, int, int, int, int]] = []
    least = 0
    for number in np.flatnonzero(captured != present).tolist():
        told.append((What.NUMBER, 0, number, Refusal.LAYOUT, int(present[number]), int(captured[number])))
        least = int(Refusal.LAYOUT)
    if epoch != captured_epoch:
        told.append((What.EPOCH, 0, 0, Refusal.EPOCH, epoch, captured_epoch))
        least = least or int(Refusal.EPOCH)
    live, count = int(rows.live[0]), len(rows.table)
    if not 0 <= live <= count:
        told.append((What.LIVE, 0, 0, Refusal.ILLEGAL, live, count))
        least = least or int(Refusal.ILLEGAL)
    for row in range(count):
        wrong = list(_wrong_of(rows, row, row < live, kind, slots, words, expected))
        told += wrong
        code = least or (wrong[0][3] if wrong else 0)
        if is_first or not refused[row]:
            refused[row] = code
    ring.add(told)


def _wrong_of(
    rows: Rows[Numbers],
    row: int,
    is_live: bool,
    kind: str,
    slots: int,
    words: npt.NDArray[np.uint64] | None,
    expected: Numbers | None,
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Records of one row: of its position, then of its entries."""
    width = rows.table.shape[1]
    position = int(rows.positions[row]) if is_live else 0
    if position < 0:
        yield What.POSITION, row, 0, int(Refusal.ILLEGAL), position, 0
    last = max(position, 0) // rows.span
    for column, slot in enumerate(rows.table[row].tolist()):
        no_slot = int(CallRefusal.NO_SLOT)
        if not is_live:
            if slot not in (rows.scratch, rows.guard):
                yield What.PADDING, row, column, no_slot, slot, rows.scratch
        elif slot == rows.guard:
            if column == last % width if rows.is_ring else column <= last:
                yield What.MISSING, row, column, no_slot, slot, rows.guard
        elif not 0 <= slot < slots:
            yield What.ENTRY, row, column, no_slot, slot, rows.guard
        elif slot == rows.scratch:
            yield What.SCRATCH, row, column, no_slot, slot, rows.guard
        elif words is not None:
            word = words[slot : slot + 1]
            wanted = int(field_of(kind, "generation", word)[0] if expected is None else expected[row, column])
            code = int(answers(Check(kind, word, np.array([wanted]), np.zeros(1, np.uint8)), np.zeros(1, int))[0])
            if code not in (0, Refusal.BUSY):
                yield What.WORD, row, column, code, slot, wanted


# ---- plans ----------------------------------------------------------------------------------------------------------


def page_checksum_plan(
    arena: Pointer,
    stride: int,
    slots: int,
    ids: Pointer,
    most: int,
    bytes: int,
    sums: Pointer,
    *,
    live: Pointer | None = None,
    check: Check[Pointer] | None = None,
) -> LaunchPlan:
    """A block for each page; arguments as in ``PAGE_CHECKSUM``.

    Raises:
        LaunchRefused: bytes or strides that are no multiples of 16, or too little memory.
    """
    draft = Draft(
        PAGE_CHECKSUM, arena=arena, stride=stride, slots=slots, ids=ids, live=live, most=most, bytes=bytes, sums=sums,
        **check_values(PAGE_CHECKSUM, check),
    )  # fmt: skip
    draft.require_multiple(16, "bytes")
    require_slots(draft, bytes)
    require_check(draft, most)
    draft.require_bytes(ids=4 * most, sums=8 * most)
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


def check_topology_plan(
    rows: Rows[Pointer],
    count: int,
    width: int,
    captured: Pointer,
    present: Pointer,
    numbers: int,
    epoch: Pointer,
    captured_epoch: int,
    refused: Pointer,
    ring: Ring,
    *,
    kind: str,
    slots: int,
    words: Pointer | None = None,
    expected: Pointer | None = None,
    is_first: bool = True,
) -> LaunchPlan:
    """A block for each of ``count`` rows; arguments as in ``CHECK_TOPOLOGY``.

    Raises:
        LaunchRefused: a span below 1, a ring without room, a table too wide, generations without words, or too little
            memory.
    """
    kernel = CHECK_TOPOLOGY
    draft = Draft(
        kernel, **named(rows), **named(ring), captured=captured, present=present, numbers=numbers, epoch=epoch,
        captured_epoch=captured_epoch, width=width, slots=slots, rows=count, refused=refused, is_first=is_first,
        machine=machine_of(kernel, kind), words=words, expected=expected,
    )  # fmt: skip
    draft.require_least(1, "span", "capacity")
    if width >= WIDEST:
        raise draft.refusal("width", f"use fewer than {WIDEST} entries")
    if words is None and expected is not None:
        raise draft.refusal("expected", "pass the words too, which have the generations")
    draft.require_bytes(
        captured=8 * numbers, present=8 * numbers, table=4 * count * width, positions=8 * count, refused=count,
        records=RECORD.itemsize * ring.capacity, words=8 * slots, expected=4 * count * width,
    )  # fmt: skip
    return draft.plan((count, 1, 1))
