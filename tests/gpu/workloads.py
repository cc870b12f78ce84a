"""What the table of times is made of: a launch of each kernel at a size that a server has, and its bytes.

Each makes its plan for a launcher, over memory that goes when the workload does; ``scale`` divides the sizes, so that
the tests can run them on the host. What is given to a kernel is kept as arrays, too: for ``in_torch.py``, which does
the same job. Slots have one more than kernels are told of, all zeros: torch's scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvfsm.kernels.checks import page_checksum_plan, verified_prefix_plan
from kvfsm.kernels.compress import ROWS, Compressor, Windows, compress_index_key_plan, compress_plan, compress_v4_plan
from kvfsm.kernels.copies import gather_plan, indexer_gather_plan, scatter_plan, scrub_plan, window_gather_plan
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.fp8 import (
    gather_dequantise_rows_plan,
    gather_dequantise_v4_plan,
    gather_dequantise_v32_plan,
    quantise_insert_rows_plan,
    quantise_insert_v4_plan,
    quantise_insert_v32_plan,
)
from kvfsm.kernels.fp8_rows import (
    V4_CODES,
    V4_DATA_BYTES,
    V4_ELEMENTS,
    V4_SCALE_BYTES,
    V32_BYTES,
    V32_CODES,
    V32_ELEMENTS,
)
from kvfsm.kernels.launch import Buffer, Launcher, LaunchPlan, Pointer
from kvfsm.kernels.packed import expand_plan, pack_plan
from kvfsm.kernels.packed_form import Cut, cut
from kvfsm.kernels.reading import MACHINES, Check, Side, answers
from kvfsm.kernels.topology_check import Ring, Rows, check_topology_plan
from kvfsm.kernels.words import (
    apply_event_plan,
    first_places,
    put_words_plan,
    revalidate_plan,
    unpin_plan,
    validate_pin_plan,
    width_of,
)
from kvfsm.runtime.generated import KINDS
from kvfsm.runtime.generated.models import PROFILES

Array = npt.NDArray[Any]

MIB = 1 << 20
LAUNCHES = 20
"""That are timed together. Plans are taken in turn."""

V4_PAGE, V4_ROW, INDEX_PAGE, V32_PAGE = 37440, 576, 8640, 64 * V32_BYTES
"""Bytes of DeepSeek-V4: a page of 64 rows, a row of it, a page of 64 keys of its indexer; and a page of V3.2's rows."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Launches of one kernel that do the same work.

    plans    taken in turn; more than one where the second launch of the first would find its work done
    bytes    read and written by one, as the docstring of the reference says
    given    what the function of ``in_torch.py`` takes: arrays, which become tensors, and numbers
    results  what the kernel writes, by the names of that function's results
    again    makes ready for launching all plans once more
    kept     all memory
    """

    name: str
    plans: tuple[LaunchPlan, ...]
    bytes: int
    given: dict[str, Any]
    results: dict[str, Buffer]
    kept: list[Buffer] = field(repr=False)
    again: Callable[[], None] = lambda: None


class Sized:
    """Memory for one workload.

    scale   divides sizes
    stale   share of entries whose slot has moved, and of other things that a kernel refuses
    """

    def __init__(self, launcher: Launcher, scale: int, stale: float) -> None:
        self.launcher, self.scale, self.stale = launcher, scale, stale
        self.kept = list[Buffer]()
        self.rng = np.random.default_rng(1)

    def less(self, number: int) -> int:
        return max(1, number // self.scale)

    def buffer(self, array: Array) -> Buffer:
        self.kept.append(self.launcher.upload(np.ascontiguousarray(array)))
        return self.kept[-1]

    def up(self, array: Array) -> Pointer:
        return self.buffer(array).pointer

    def bytes(self, *shape: int) -> npt.NDArray[np.uint8]:
        return self.rng.integers(256, size=shape, dtype=np.uint8)

    def floats(self, *shape: int) -> npt.NDArray[np.float32]:
        return self.rng.standard_normal(shape, np.float32)

    def some(self, count: int) -> npt.NDArray[np.bool_]:
        """Which entries are wrong in some way; none when times are taken."""
        found: npt.NDArray[np.bool_] = self.rng.random(count) < self.stale
        return found

    def slots(self, count: int, size: int) -> npt.NDArray[np.uint8]:
        """Random bytes uint8 [slots + 1, size], and zeros at the end."""
        data = self.bytes(count + 1, size)
        data[-1] = 0
        return data

    def half(self, pages: int) -> npt.NDArray[np.int32]:
        """Numbers of a random half of twice as many slots."""
        return self.rng.permutation(2 * pages)[:pages].astype(np.int32)

    def check(
        self, kind: str, slots: int, ids: Array, side: Side = Side.READER
    ) -> tuple[Check[Pointer], dict[str, Any], Buffer]:
        """A check of some entries, what torch is given for it, and the refusals."""
        state = KINDS[kind].STATES["RESIDENT" if side is Side.READER else "FILLING"]
        words = np.full(slots + 1, KINDS[kind].LAYOUT.pack(state=state, generation=1), np.uint64)
        expected = np.where(self.some(ids.size), 2, 1).astype(np.uint32)
        versions = self.some(ids.size).astype(np.uint32) if kind == "indexer_state" else None
        refusals = self.buffer(np.zeros(ids.size, np.uint8))
        up = None if versions is None else self.up(versions)
        made = Check(kind, self.up(words), self.up(expected), refusals.pointer, side, up)
        given = {
            "words": words.view(np.int64), "expected": expected.astype(np.int64), "by_state": by_state(kind, side),
            "kind": kind, "versions": None if versions is None else versions.astype(np.int64),
        }  # fmt: skip
        return made, given, refusals


def by_state(kind: str, side: Side = Side.READER) -> npt.NDArray[np.uint8]:
    """What is answered in each state, uint8 [2, states]: without pins, and with some."""
    layout = KINDS[kind].LAYOUT
    states = range(layout.field("state").high + 1)
    words = np.array([layout.pack(state=state, pins=pins) for pins in (0, 1) for state in states], np.uint64)
    nothing = np.zeros(len(words), np.uint8)
    return answers(Check(kind, words, nothing, nothing, side), np.arange(len(words))).reshape(2, -1)


def workloads(launcher: Launcher, scale: int = 1, stale: float = 0.0) -> Iterator[Workload]:
    """One after the other; each is made when it is asked for."""
    for make in MAKERS:
        yield make(Sized(launcher, scale, stale))


# -- Copies ------------------------------------------------------------------------------------------------------------


def _gather(sized: Sized) -> Workload:
    pages = sized.less(64 * MIB // V4_PAGE)
    arena, ids = sized.slots(2 * pages, V4_PAGE), sized.half(pages)
    check, given, refusals = sized.check("compressed_kv", 2 * pages, ids)
    out = sized.buffer(np.zeros((pages, V4_PAGE), np.uint8))
    plan = gather_plan(
        Entries(sized.up(arena), V4_PAGE, 2 * pages, sized.up(ids), pages), V4_PAGE, out.pointer, check=check
    )  # fmt: skip
    given |= {"arena": arena, "ids": ids.astype(np.int64)}
    return Workload("gather", (plan,), 2 * pages * V4_PAGE, given, {"out": out, "refusals": refusals}, sized.kept)


def _scatter(sized: Sized) -> Workload:
    pages = sized.less(64 * MIB // V4_PAGE)
    arena, ids, data = sized.slots(2 * pages, V4_PAGE), sized.half(pages), sized.bytes(pages, V4_PAGE)
    check, given, refusals = sized.check("compressed_kv", 2 * pages, ids, Side.WRITER)
    memory = sized.buffer(arena)
    plan = scatter_plan(
        Entries(memory.pointer, V4_PAGE, 2 * pages, sized.up(ids), pages), V4_PAGE, sized.up(data), check=check
    )  # fmt: skip
    given |= {"arena": arena, "ids": ids.astype(np.int64), "data": data}
    results = {"arena": memory, "refusals": refusals}
    return Workload("scatter", (plan,), 2 * pages * V4_PAGE, given, results, sized.kept)


def _scrub(sized: Sized) -> Workload:
    pages = sized.less(64 * MIB // V4_PAGE)
    arena, ids = sized.slots(2 * pages, V4_PAGE), sized.half(pages)
    memory = sized.buffer(arena)
    plan = scrub_plan(Entries(memory.pointer, V4_PAGE, 2 * pages, sized.up(ids), pages), V4_PAGE)
    given = {"arena": arena, "ids": ids.astype(np.int64)}
    return Workload("scrub", (plan,), pages * V4_PAGE, given, {"arena": memory}, sized.kept)


def _window(sized: Sized) -> Workload:
    requests, stride, rows = sized.less(256), 2 * V4_PAGE, 128
    arena, table = sized.slots(requests, stride), sized.rng.permutation(requests).astype(np.int32)
    positions = np.arange(requests, dtype=np.int64) * 37 + 1000
    check, given, refusals = sized.check("swa_window", requests, table)
    out = sized.buffer(np.zeros((requests, rows, V4_ROW), np.uint8))
    plan = window_gather_plan(
        sized.up(arena), stride, requests, sized.up(table), 1, rows, sized.up(positions), rows, requests, V4_ROW,
        out.pointer, page_rows=64, page_stride=V4_PAGE, check=check,
    )  # fmt: skip
    given |= {"arena": arena, "table": table.astype(np.int64), "positions": positions, "rows": rows}
    moved = 2 * requests * rows * V4_ROW
    return Workload("window_gather", (plan,), moved, given, {"out": out, "refusals": refusals}, sized.kept)


def _indexer(sized: Sized) -> Workload:
    pages = sized.less(2048)
    arena, ids = sized.slots(2 * pages, INDEX_PAGE), sized.half(pages)
    starts = np.arange(pages + 1, dtype=np.uint32) * 64
    memory = sized.up(arena)
    keys, scales = (sized.buffer(np.zeros((pages * 64, size), np.uint8)) for size in (128, 4))
    check, given, refusals = sized.check("indexer_state", 2 * pages, ids)
    plan = indexer_gather_plan(
        memory, memory.skip(8192), INDEX_PAGE, 2 * pages, sized.up(ids), sized.up(starts), pages, 64, 128, 4,
        keys.pointer, scales.pointer, pages * 64, check=check,
    )  # fmt: skip
    given |= {"arena": arena, "ids": ids.astype(np.int64), "starts": starts.astype(np.int64), "rows": pages * 64}
    results = {"out_keys": keys, "out_scales": scales, "refusals": refusals}
    return Workload("indexer_gather", (plan,), pages * (2 * 64 * 132 + 8), given, results, sized.kept)


# -- Checks ------------------------------------------------------------------------------------------------------------


def _checksum(sized: Sized) -> Workload:
    pages = sized.less(64 * MIB // V4_PAGE)
    arena, ids = sized.slots(2 * pages, V4_PAGE), sized.half(pages)
    check, given, refusals = sized.check("compressed_kv", 2 * pages, ids)
    sums = sized.buffer(np.zeros(pages, np.uint64))
    plan = page_checksum_plan(
        Entries(sized.up(arena), V4_PAGE, 2 * pages, sized.up(ids), pages), V4_PAGE, sums.pointer, check=check
    )  # fmt: skip
    given |= {"arena": arena, "ids": ids.astype(np.int64)}
    results = {"sums": sums, "refusals": refusals}
    return Workload("page_checksum", (plan,), pages * V4_PAGE, given, results, sized.kept)


def _prefix(sized: Sized) -> Workload:
    requests, length = sized.less(256), 40
    blocks, slots = requests * length, sized.less(20_000)
    offsets = np.arange(requests + 1, dtype=np.uint32) * length
    ids, sums = sized.rng.integers(slots, size=blocks).astype(np.int32), sized.bytes(blocks, 8).view(np.int64)[:, 0]
    wanted = sums + sized.some(blocks) * (sized.rng.random(blocks) < 0.5)
    check, given, _ = sized.check("compressed_kv", slots, ids)
    verified, reasons = sized.buffer(np.zeros(requests, np.uint32)), sized.buffer(np.zeros(requests, np.uint8))
    plan = verified_prefix_plan(
        check, sized.up(offsets), sized.up(ids), slots, blocks, requests, verified.pointer, reasons.pointer,
        sums=sized.up(sums.view(np.uint64)), wanted=sized.up(wanted.view(np.uint64)),
    )  # fmt: skip
    given |= {"offsets": offsets.astype(np.int64), "ids": ids.astype(np.int64), "sums": sums, "wanted": wanted,
              "request": np.repeat(np.arange(requests), length)}  # fmt: skip
    results = {"verified": verified, "reasons": reasons}
    return Workload("verified_prefix", (plan,), 32 * blocks + 5 * requests, given, results, sized.kept)


def _topology(sized: Sized) -> Workload:
    count, width, slots, numbers, span, kind = sized.less(256), 512, 4096, 1000, 256, "compressed_kv"
    layout, states = KINDS[kind].LAYOUT, KINDS[kind].STATES
    live, guard, scratch, held = max(1, count * 7 // 8), -1, slots - 1, 100
    table = np.full((count, width), guard, np.int32)
    table[:, :held] = np.where(sized.some(count * held) & (sized.rng.random(count * held) < 0.02),
                               sized.rng.choice([guard, scratch, slots + 5], size=count * held),
                               sized.rng.integers(slots - 1, size=count * held)).reshape(count, held)  # fmt: skip
    table[live:] = scratch
    free, resident = layout.pack(generation=1), layout.pack(state=states["RESIDENT"], generation=1)
    words = np.where(sized.some(slots) & (sized.rng.random(slots) < 0.01), free, resident).astype(np.uint64)
    positions, signature = np.full(count, held * span - 1, np.int64), sized.bytes(numbers, 8).view(np.int64)[:, 0]
    refused, epoch = sized.buffer(np.zeros(count, np.uint8)), np.zeros(1, np.int64)
    rows = Rows(sized.up(table), sized.up(np.array([live])), sized.up(positions), span, False, guard, scratch)
    ring = Ring(sized.up(np.zeros((64, 8), np.uint32)), sized.up(np.zeros(1, np.uint64)),
                sized.up(np.zeros(1, np.uint64)), 64)  # fmt: skip
    plan = check_topology_plan(
        rows, count, width, sized.up(signature), sized.up(signature), numbers, sized.up(epoch), 0, refused.pointer,
        ring, kind=kind, slots=slots, words=sized.up(words),
    )  # fmt: skip
    given = {
        "captured": signature, "present": signature, "epoch": epoch, "captured_epoch": 0,
        "table": table.astype(np.int64), "live": np.array([live]), "positions": positions, "span": span,
        "slots": slots, "guard": guard, "scratch": scratch, "words": words.view(np.int64), "by_state": by_state(kind),
        "kind": kind,
    }  # fmt: skip
    moved = count * (16 * numbers + 4 * width) + live * held * 32
    return Workload("check_topology", (plan,), moved, given, {"refused": refused}, sized.kept)


# -- Words -------------------------------------------------------------------------------------------------------------


def _references(sized: Sized, pins: int = 0) -> tuple[int, dict[str, Any], dict[str, Any], Buffer]:
    """(references, what plans take, what torch is given, the words) to as many resident slots of compressed KV."""
    count, kind = sized.less(10_000), "compressed_kv"
    layout, states = KINDS[kind].LAYOUT, KINDS[kind].STATES
    words = np.full(count, layout.pack(state=states["RESIDENT"], generation=1, pins=pins), np.uint64)
    slots, arguments = sized.rng.permutation(count), np.zeros((width_of("validate_pin"), count), np.int64)
    arguments[0] = np.where(sized.some(count), 2, 1)
    memory = sized.buffer(words)
    taken = {
        "words": memory.pointer, "first": sized.up(first_places({kind: count})), "references": count,
        "machines": sized.up(np.full(count, MACHINES.index(kind), np.uint8)),
        "slots": sized.up(slots.astype(np.uint32)), "arguments": sized.up(arguments),
    }  # fmt: skip
    given = {"words": words.view(np.int64), "slots": slots, "expected": arguments[0].copy(), "kind": kind}
    return count, taken, given, memory


def _pin(sized: Sized) -> Workload:
    """A pin more for each slot at each launch."""
    count, taken, given, words = _references(sized)
    requests = -(-count // 64)
    starts = np.minimum(np.arange(requests + 1) * 64, count)
    leases, verdicts = sized.buffer(np.zeros(count, np.uint8)), sized.buffer(np.zeros(requests, np.uint8))
    number = sized.up(np.array([requests], np.uint32))
    plan = validate_pin_plan(
        starts=sized.up(starts.astype(np.uint32)), count=number, requests=requests, verdicts=verdicts.pointer,
        leases=leases.pointer, **taken,
    )  # fmt: skip
    given |= {"request": np.repeat(np.arange(requests), np.diff(starts)), "requests": requests,
              "by_state": by_state("compressed_kv")}  # fmt: skip
    results = {"words": words, "leases": leases, "verdicts": verdicts}
    return Workload("validate_pin", (plan,), count * (6 + 16 + 64) + 5 * requests, given, results, sized.kept)


def _unpin(sized: Sized) -> Workload:
    """A launch leaves no lease to give back, so that each has leases of its own."""
    count, taken, given, words = _references(sized, pins=4000)
    leases = [sized.buffer(np.zeros(count, np.uint8)) for _ in range(LAUNCHES)]
    number = sized.up(np.array([count], np.uint32))
    plans = tuple(unpin_plan(count=number, leases=each.pointer, **taken) for each in leases)

    def again() -> None:
        for each in leases:
            each.write(np.zeros(count, np.uint8))

    given["leases"] = np.zeros(count, np.uint8)
    results = {"words": words, "leases": leases[0]}
    return Workload("unpin", plans, count * (7 + 8 + 64), given, results, sized.kept, again)


def _revalidate(sized: Sized) -> Workload:
    count, taken, given, _ = _references(sized)
    refusals = sized.buffer(np.zeros(count, np.uint8))
    plan = revalidate_plan(count=sized.up(np.array([count], np.uint32)), refusals=refusals.pointer, **taken)
    given["by_state"] = by_state("compressed_kv")
    return Workload("revalidate", (plan,), count * (6 + 16 + 32), given, {"refusals": refusals}, sized.kept)


def _event(sized: Sized) -> Workload:
    """A pin more for each window at each launch."""
    count, kind = sized.less(10_000), "swa_window"
    layout, states = KINDS[kind].LAYOUT, KINDS[kind].STATES
    boundary = sized.rng.integers(1000, size=count)
    resident = layout.pack(state=states["RESIDENT"], generation=1)
    words = np.uint64(resident) | boundary.astype(np.uint64) << np.uint64(layout.field("boundary").shift)
    slots = sized.rng.permutation(count)
    expected, at = np.where(sized.some(count), 2, 1), boundary[slots] + sized.some(count)
    memory, refusals = sized.buffer(words), sized.buffer(np.zeros(count, np.uint8))
    plan = apply_event_plan(
        kind, "pin", words=memory.pointer, slot_count=count, count=sized.up(np.array([count], np.uint32)),
        firings=count, slots=sized.up(slots.astype(np.uint32)), arguments=sized.up(np.stack((expected, at))),
        refusals=refusals.pointer,
    )  # fmt: skip
    given = {"words": words.view(np.int64), "slots": slots, "expected": expected, "at": at, "kind": kind,
             "by_state": by_state(kind)}  # fmt: skip
    results = {"words": memory, "refusals": refusals}
    return Workload("apply_event", (plan,), count * (5 + 16 + 64), given, results, sized.kept)


def _put(sized: Sized) -> Workload:
    """Two values by turns, so that each launch changes the words."""
    count, kind = sized.less(10_000), "swa_window"
    layout, states = KINDS[kind].LAYOUT, KINDS[kind].STATES
    pinned = np.where(sized.some(count), layout.pack(pins=1), 0).astype(np.uint64)
    resident, expired = (layout.pack(state=states[name], generation=1) for name in ("RESIDENT", "EXPIRED"))
    words, slots = np.full(count, resident, np.uint64) | pinned, sized.rng.permutation(count)
    moved = layout.pack(state=states["RESIDENT"], generation=2)
    first = np.where(sized.some(count), moved, expired).astype(np.uint64)
    memory, refusals = sized.buffer(words), sized.buffer(np.zeros(count, np.uint8))
    number, where = sized.up(np.array([count], np.uint32)), sized.up(slots.astype(np.uint32))
    plans = tuple(
        put_words_plan(
            kind, words=memory.pointer, slot_count=count, count=number, values_max=count, slots=where,
            values=sized.up(values), refusals=refusals.pointer,
        )
        for values in (first, np.full(count, resident, np.uint64))
    )  # fmt: skip
    given = {"words": words.view(np.int64), "slots": slots, "values": first.view(np.int64), "kind": kind,
             "by_state": by_state(kind)}  # fmt: skip
    results = {"words": memory, "refusals": refusals}
    return Workload("put_words", plans, count * (13 + 64), given, results, sized.kept)


# -- FP8 ---------------------------------------------------------------------------------------------------------------


def row_views(arena: Array, data: int, behind: int) -> tuple[Array, Array]:
    """Rows of 64 to a page, and what lies behind all rows of it, [slots, 64, bytes] each."""
    rows = np.lib.stride_tricks.as_strided(arena, (len(arena), 64, data), (arena.strides[0], data, 1))
    begin = arena[:, 64 * data :]
    return rows, np.lib.stride_tricks.as_strided(begin, (len(arena), 64, behind), (arena.strides[0], behind, 1))


def _finite(codes: Array) -> None:
    """Make no code of them NaN."""
    codes[codes & 0x7F == 0x7F] ^= 1


def _halves(sized: Sized, *shape: int) -> npt.NDArray[np.uint16]:
    """bfloat16 numbers around 0."""
    return (sized.floats(*shape).view(np.uint32) >> 16).astype(np.uint16)


@dataclass(frozen=True, slots=True)
class Read:
    """All 64 rows of some pages in any order."""

    entries: Entries
    rows: Pointer
    check: Check[Pointer]
    given: dict[str, Any]
    refusals: Buffer

    @property
    def count(self) -> int:
        return 64 * self.entries.most


def _whole_pages(sized: Sized, arena: Array, kind: str) -> Read:
    pages = len(arena) - 1
    ids, rows = sized.rng.permutation(pages).astype(np.int32), np.full(pages, 64, np.uint32)
    check, given, refusals = sized.check(kind, pages, ids)
    entries = Entries(sized.up(arena), arena.shape[1], pages, sized.up(ids), pages)
    return Read(entries, sized.up(rows), check, given | {"arena": arena, "ids": ids.astype(np.int64)}, refusals)


def _dequantise(sized: Sized) -> Workload:
    arena = sized.slots(sized.less(1024), V4_PAGE)
    data, scales = row_views(arena, V4_DATA_BYTES, V4_SCALE_BYTES)
    _finite(data[..., :V4_CODES])
    data[..., V4_CODES:] = _halves(sized, len(arena), 64, V4_ELEMENTS - V4_CODES).view(np.uint8)
    scales[...] = sized.rng.integers(110, 130, size=scales.shape)
    arena[-1] = 0
    read = _whole_pages(sized, arena, "compressed_kv")
    out = sized.buffer(np.zeros((read.entries.most, 64, V4_ELEMENTS), np.uint16))
    plan = gather_dequantise_v4_plan(read.entries, 64, read.rows, out.pointer, read.check)
    moved, results = read.count * (584 + 1024), {"out": out, "refusals": read.refusals}
    return Workload("gather_dequantise_v4", (plan,), moved, read.given, results, sized.kept)


def _dequantise_v32(sized: Sized) -> Workload:
    arena = sized.slots(sized.less(1024), V32_PAGE)
    data, _ = row_views(arena, V32_BYTES, 0)
    _finite(data[..., :V32_CODES])
    data[..., V32_CODES : V32_CODES + 16] = np.exp(sized.floats(len(arena), 64, 4)).view(np.uint8)
    data[..., V32_CODES + 16 :] = _halves(sized, len(arena), 64, V32_ELEMENTS - V32_CODES).view(np.uint8)
    arena[-1] = 0
    read = _whole_pages(sized, arena, "compressed_kv")
    out = sized.buffer(np.zeros((read.entries.most, 64, V32_ELEMENTS), np.uint16))
    plan = gather_dequantise_v32_plan(read.entries, 64, read.rows, out.pointer, read.check)
    moved, results = read.count * (656 + 1152), {"out": out, "refusals": read.refusals}
    return Workload("gather_dequantise_v32", (plan,), moved, read.given, results, sized.kept)


def _dequantise_rows(sized: Sized) -> Workload:
    arena = sized.slots(sized.less(1024), INDEX_PAGE)
    data, scales = row_views(arena, 128, 4)
    _finite(data)
    scales[...] = np.exp(sized.floats(len(arena), 64, 1)).view(np.uint8)
    arena[-1] = 0
    read = _whole_pages(sized, arena, "indexer_state")
    out = sized.buffer(np.zeros((read.entries.most, 64, 128), np.uint16))
    check = replace(read.check, versions=None)  # the plan takes none
    plan = gather_dequantise_rows_plan(read.entries, 64, 128, read.rows, out.pointer, check)
    given, results = read.given | {"versions": None}, {"out": out, "refusals": read.refusals}
    return Workload("gather_dequantise_rows", (plan,), read.count * (132 + 256), given, results, sized.kept)


@dataclass(frozen=True, slots=True)
class Written:
    """Pages that a launch writes a row of for each of some tokens."""

    tokens: int
    entries: Entries
    rows: Pointer
    check: Check[Pointer]
    given: dict[str, Any]
    results: dict[str, Buffer]


def _tokens(sized: Sized, page: int) -> Written:
    tokens = sized.less(8192)
    pages, place = -(-tokens // 64), sized.rng.permutation(tokens)
    ids, rows = (place // 64).astype(np.int32), (place % 64).astype(np.uint32)
    arena = sized.slots(pages, page)
    check, given, refusals = sized.check("compressed_kv", pages, ids, Side.WRITER)
    memory = sized.buffer(arena)
    entries = Entries(memory.pointer, page, pages, sized.up(ids), tokens)
    given |= {"arena": arena, "ids": ids.astype(np.int64), "rows": rows.astype(np.int64)}
    return Written(tokens, entries, sized.up(rows), check, given, {"arena": memory, "refusals": refusals})


def _quantise(sized: Sized) -> Workload:
    made = _tokens(sized, V4_PAGE)
    values = _halves(sized, made.tokens, V4_ELEMENTS)
    plan = quantise_insert_v4_plan(made.entries, 64, made.rows, sized.up(values), made.check)
    given, moved = made.given | {"values": values}, made.tokens * (584 + 1024)
    return Workload("quantise_insert_v4", (plan,), moved, given, made.results, sized.kept)


def _quantise_v32(sized: Sized) -> Workload:
    made = _tokens(sized, V32_PAGE)
    values = _halves(sized, made.tokens, V32_ELEMENTS)
    plan = quantise_insert_v32_plan(made.entries, 64, made.rows, sized.up(values), made.check)
    given, moved = made.given | {"values": values}, made.tokens * (656 + 1152)
    return Workload("quantise_insert_v32", (plan,), moved, given, made.results, sized.kept)


def _quantise_rows(sized: Sized) -> Workload:
    made = _tokens(sized, INDEX_PAGE)
    values = _halves(sized, made.tokens, 128)
    plan = quantise_insert_rows_plan(made.entries, 64, 128, made.rows, sized.up(values), made.check)
    given, moved = made.given | {"values": values}, made.tokens * (132 + 256)
    return Workload("quantise_insert_rows", (plan,), moved, given, made.results, sized.kept)


# -- Compression -------------------------------------------------------------------------------------------------------


def _windows(sized: Sized, layer: Compressor, count: int) -> tuple[Windows[Pointer], dict[str, Any]]:
    """So many windows one after the other, each with the one before it where they overlap."""
    ratio, rope = layer.ratio, layer.rope
    rows, current = ratio * (count + 1), np.arange(1, count + 1, dtype=np.uint32) * ratio
    kv, gate = sized.floats(rows, layer.width), sized.floats(rows, layer.width)
    weight, rotary = sized.floats(layer.elements), sized.floats(16, rope)
    positions = sized.rng.integers(16, size=count).astype(np.uint32)
    origin = np.full(count, ROWS if layer.overlaps else 0, np.uint8)
    windows = Windows(
        sized.up(kv), sized.up(gate), rows, layer.width, sized.up(np.zeros((ratio, layer.width), np.float32)),
        sized.up(weight), sized.up(rotary), 16, sized.up(current), sized.up(positions), sized.up(origin),
        sized.up(current - ratio), count,
    )  # fmt: skip
    given = {
        "layer": layer, "kv": kv, "gate": gate, "current": current.astype(np.int64),
        "previous": current.astype(np.int64) - ratio, "positions": positions.astype(np.int64), "weight": weight,
        "rotary": rotary,
    }  # fmt: skip
    return windows, given


def _compress(sized: Sized) -> Workload:
    layer, count = Compressor(512, 128, False, 64, 1e-6, rows_folded=True), sized.less(512)
    windows, given = _windows(sized, layer, count)
    out = sized.buffer(np.zeros((count, 512), np.float32))
    plan = compress_plan(layer, windows, out.pointer, sized.up(np.zeros(count, np.uint8)))
    return Workload("compress", (plan,), count * (layer.bytes_read + 2048), given, {"out": out}, sized.kept)


def _compress_v4(sized: Sized) -> Workload:
    layer = Compressor(512, 4, True, 64, 1e-6, rows_folded=True)
    made = _tokens(sized, V4_PAGE)
    windows, given = _windows(sized, layer, made.tokens)
    plan = compress_v4_plan(layer, windows, made.entries, 64, made.rows, made.check)
    moved = made.tokens * (layer.bytes_read + 584)
    return Workload("compress_v4", (plan,), moved, made.given | {"windows": given}, made.results, sized.kept)


def _compress_keys(sized: Sized) -> Workload:
    layer = Compressor(128, 4, True, 64, 1e-6, rows_folded=True)
    made = _tokens(sized, INDEX_PAGE)
    windows, given = _windows(sized, layer, made.tokens)
    plan = compress_index_key_plan(layer, windows, made.entries, 64, made.rows, made.check)
    moved = made.tokens * (layer.bytes_read + 132)
    return Workload("compress_index_key", (plan,), moved, made.given | {"windows": given}, made.results, sized.kept)


# -- The cold form -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packing:
    """Slots of an indexer whose keys lie close together, and the launch that packs them."""

    cut: Cut
    data: npt.NDArray[np.uint8]
    table: Pointer
    entries: Entries
    memory: Buffer
    plan: LaunchPlan
    out: Buffer
    sizes: Buffer
    given: dict[str, Any]


def _packing(sized: Sized) -> Packing:
    layout = PROFILES["deepseek_v4_flash"].layouts["indexer_state"]
    found, count = cut(layout), sized.less(256)
    stride = -(-found.body_most // 32) * 32
    data = sized.rng.integers(64, 192, size=(count, layout.slot_bytes), dtype=np.uint8)
    ids, memory = sized.up(np.arange(count, dtype=np.int32)), sized.buffer(data)
    table, entries = sized.up(found.table), Entries(memory.pointer, layout.slot_bytes, count, ids, count)
    out, sizes = sized.buffer(np.zeros((count, stride), np.uint8)), sized.buffer(np.zeros(count, np.uint32))
    plan = pack_plan(found, table, entries, False, out.pointer, stride, sizes.pointer)
    sized.launcher.launch(plan)
    groups = [
        {
            "item": group.item, "elements": group.elements, "lanes": group.lanes, "blocks": group.blocks,
            "order": group.order.reshape(-1),
            "bytes": found.table[group.blocks, 0].astype(np.int64)[:, None] + np.arange(group.elements * group.item),
            "forms": found.table[group.blocks, 3].astype(np.int64)[:, None] + np.arange(2 * group.item),
        }
        for group in found.groups
    ]  # fmt: skip
    given = {"groups": groups, "count": found.count, "forms_bytes": found.forms_bytes}
    return Packing(found, data, table, entries, memory, plan, out, sizes, given)


def _pack(sized: Sized) -> Workload:
    made = _packing(sized)
    bits = np.array([number.bit_length() for number in range(256)])
    given = made.given | {"slots": made.data, "payload_offset": made.cut.payload_offset,
                          "body": made.out.pointer.bytes // len(made.data), "bits": bits}  # fmt: skip
    moved = len(made.data) * made.cut.end + int(made.sizes.download().sum())
    return Workload("pack", (made.plan,), moved, given, {"out": made.out, "sizes": made.sizes}, sized.kept)


def _expand(sized: Sized) -> Workload:
    made = _packing(sized)
    bodies = made.out.download()
    begins = np.arange(len(bodies), dtype=np.uint64) * bodies.shape[1]
    blank = np.zeros_like(made.data)
    made.memory.write(blank)
    lossy = sized.up(np.zeros(len(bodies), np.uint8))
    plan = expand_plan(made.cut, made.table, made.entries, made.out.pointer, sized.up(begins), lossy)
    given, moved = made.given | {"slots": blank, "bodies": bodies}, len(bodies) * made.cut.end
    moved += int(made.sizes.download().sum())
    return Workload("expand", (plan,), moved, given, {"slots": made.memory}, sized.kept)


MAKERS = (
    _pin, _unpin, _revalidate, _event, _put, _gather, _scatter, _scrub, _window, _indexer, _checksum, _prefix,
    _topology, _dequantise, _dequantise_v32, _dequantise_rows, _quantise, _quantise_v32, _quantise_rows, _compress,
    _compress_v4, _compress_keys, _pack, _expand,
)  # fmt: skip
"""One for each kernel of the catalogue."""
