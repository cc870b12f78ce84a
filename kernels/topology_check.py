"""``check_topology``, at the head of a captured graph: what the device sees now, against what was captured.

It needs nothing from the host: it refuses rows for the launches that follow, and counts every violation in a ring in
device memory (``Violations``), which the host empties when it likes. Reference and plan are of ``cuda/checks.cu``;
``graph_watch.py`` puts them at the head of a ``GraphRunner``'s graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from ..runtime.generated import Refusal
from .call_refusal import CallRefusal
from .draft import Draft, named
from .launch import Argument, Kernel, LaunchPlan, Pointer
from .reading import HEADERS, MACHINE, Check, Memory, answers, field_of, machine_of

Numbers = npt.NDArray[Any]

WIDEST = 2**24 - 3
"""Entries of a table's row that a block can rank in the upper 24 bits of a number."""

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


# ---- plan -----------------------------------------------------------------------------------------------------------


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
        kernel, **named(kernel, "table", rows, Rows), **named(kernel, "records", ring, Ring), captured=captured,
        present=present, numbers=numbers, epoch=epoch, captured_epoch=captured_epoch, width=width, slots=slots,
        rows=count, refused=refused, is_first=is_first, machine=machine_of(kernel, kind), words=words,
        expected=expected,
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
