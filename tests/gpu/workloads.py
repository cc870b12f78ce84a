"""What the table of times is made of: a launch of each kernel at a size that a server has, and its bytes.

Each makes its plan for a launcher; ``scale`` divides the sizes, so that the tests can run them on the host. ``torch``
is the expression that a user would write instead, over tensors as in the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvfsm.kernels.checks import Ring, Rows, check_topology_plan, page_checksum_plan, verified_prefix_plan
from kvfsm.kernels.compress import Compressor, Windows, compress_index_key_plan, compress_plan, compress_v4_plan
from kvfsm.kernels.copies import gather_plan, indexer_gather_plan, scatter_plan, scrub_plan, window_gather_plan
from kvfsm.kernels.fp8 import (
    Entries,
    gather_dequantise_rows_plan,
    gather_dequantise_v4_plan,
    gather_dequantise_v32_plan,
    quantise_insert_rows_plan,
    quantise_insert_v4_plan,
    quantise_insert_v32_plan,
)
from kvfsm.kernels.launch import Launcher, LaunchPlan, Pointer
from kvfsm.kernels.packed import Slots, expand_plan, pack_plan
from kvfsm.kernels.packed_form import Cut, cut
from kvfsm.kernels.reading import Check, Side
from kvfsm.kernels.words import (
    apply_event_plan,
    first_places,
    machine_number,
    put_words_plan,
    revalidate_plan,
    unpin_plan,
    validate_pin_plan,
    width_of,
)
from kvfsm.runtime.generated import KINDS
from kvfsm.runtime.generated.models import PROFILES

V4_PAGE, V4_ROW, INDEX_PAGE = 37440, 576, 8640
"""Bytes of DeepSeek-V4: a page of 64 rows, a row of it, a page of 64 keys of its indexer."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One launch.

    plan   for the timed launches; all it needs stays in memory as long as ``kept``
    bytes  read and written, as the docstring of the reference says
    torch  what a user would write, on tensors that ``tensors`` makes; None where there is no such thing
    """

    name: str
    plan: LaunchPlan
    bytes: int
    torch: str | None = None
    tensors: Callable[[Any], dict[str, Any]] | None = None


class Sized:
    """Memory for workloads, and checks over slots that are all readable, or all being written."""

    def __init__(self, launcher: Launcher, scale: int) -> None:
        self.launcher, self.scale, self.kept = launcher, scale, list[Any]()

    def less(self, number: int) -> int:
        return max(1, number // self.scale)

    def up(self, array: Any) -> Pointer:
        buffer = self.launcher.upload(np.ascontiguousarray(array))
        self.kept.append(buffer)
        return buffer.pointer

    def zeros(self, size: int) -> Pointer:
        return self.up(np.zeros(size, np.uint8))

    def check(self, kind: str, slots: int, entries: int, side: Side = Side.READER) -> Check[Pointer]:
        state = KINDS[kind].STATES["RESIDENT" if side is Side.READER else "FILLING"]
        words = np.full(slots, KINDS[kind].LAYOUT.pack(state=state, generation=1), np.uint64)
        return Check(kind, self.up(words), self.up(np.ones(entries, np.uint32)), self.zeros(entries), side)


def workloads(launcher: Launcher, scale: int = 1) -> tuple[list[Workload], Sized]:
    """All of them, and what holds their memory."""
    sized = Sized(launcher, scale)
    return [make(sized) for make in MAKERS], sized


def _pages(sized: Sized, size: int, total: int) -> tuple[int, Pointer, Pointer]:
    """(pages, memory of twice as many slots, numbers of a random half) for so many bytes in all."""
    pages = sized.less(total // size)
    ids = np.random.default_rng(1).permutation(2 * pages)[:pages].astype(np.int32)
    return pages, sized.zeros(2 * pages * size), sized.up(ids)


def _torch_pages(size: int, total: int) -> Callable[[Any], dict[str, Any]]:
    def tensors(torch: Any) -> dict[str, Any]:
        pages = total // size
        arena = torch.zeros(2 * pages, size, dtype=torch.uint8, device="cuda")
        ids = torch.randperm(2 * pages, device="cuda")[:pages]
        return {"arena": arena, "ids": ids, "data": torch.zeros(pages, size, dtype=torch.uint8, device="cuda")}

    return tensors


MIB = 1 << 20


def _gather(sized: Sized) -> Workload:
    pages, arena, ids = _pages(sized, V4_PAGE, 64 * MIB)
    out, check = sized.zeros(pages * V4_PAGE), sized.check("compressed_kv", 2 * pages, pages)
    plan = gather_plan(arena, V4_PAGE, 2 * pages, ids, pages, V4_PAGE, out, check=check)
    return Workload("gather", plan, 2 * pages * V4_PAGE, "arena[ids]", _torch_pages(V4_PAGE, 64 * MIB))


def _scatter(sized: Sized) -> Workload:
    pages, arena, ids = _pages(sized, V4_PAGE, 64 * MIB)
    check = sized.check("compressed_kv", 2 * pages, pages, Side.WRITER)
    data = sized.zeros(pages * V4_PAGE)
    plan = scatter_plan(arena, V4_PAGE, 2 * pages, ids, pages, V4_PAGE, data, check=check)
    return Workload(
        "scatter", plan, 2 * pages * V4_PAGE, "arena.index_copy_(0, ids, data)", _torch_pages(V4_PAGE, 64 * MIB)
    )


def _scrub(sized: Sized) -> Workload:
    pages, arena, ids = _pages(sized, V4_PAGE, 64 * MIB)
    plan = scrub_plan(arena, V4_PAGE, 2 * pages, ids, pages, V4_PAGE)
    return Workload("scrub", plan, pages * V4_PAGE, "arena.index_fill_(0, ids, 0)", _torch_pages(V4_PAGE, 64 * MIB))


def _window(sized: Sized) -> Workload:
    requests, stride = sized.less(256), 2 * V4_PAGE
    table, arena = sized.up(np.arange(requests, dtype=np.int32)), sized.zeros(requests * stride)
    positions = sized.up(np.arange(requests, dtype=np.int64) * 37 + 1000)
    out, check = sized.zeros(requests * 128 * V4_ROW), sized.check("swa_window", requests, requests)
    plan = window_gather_plan(
        arena, stride, requests, table, 1, 128, positions, 128, requests, V4_ROW, out, page_rows=64,
        page_stride=V4_PAGE, check=check,
    )  # fmt: skip
    return Workload(
        "window_gather", plan, 2 * requests * 128 * V4_ROW, "ring[rows[:, None], (ends[:, None] - last) % 128]", _ring
    )


def _ring(torch: Any) -> dict[str, Any]:
    ring = torch.zeros(256, 128, V4_ROW, dtype=torch.uint8, device="cuda")
    ends = torch.arange(256, device="cuda") * 37 + 1000
    return {"ring": ring, "rows": torch.arange(256, device="cuda"), "ends": ends,
            "last": torch.arange(127, -1, -1, device="cuda")}  # fmt: skip


def _indexer(sized: Sized) -> Workload:
    pages, arena, ids = _pages(sized, INDEX_PAGE, 2048 * INDEX_PAGE)
    starts = sized.up(np.arange(pages + 1, dtype=np.uint32) * 64)
    keys, scales = sized.zeros(pages * 64 * 128), sized.zeros(pages * 64 * 4)
    check = replace(sized.check("indexer_state", 2 * pages, pages), versions=sized.zeros(4 * pages))
    plan = indexer_gather_plan(
        arena, arena.skip(8192), INDEX_PAGE, 2 * pages, ids, starts, pages, 64, 128, 4, keys, scales, pages * 64,
        check=check,
    )  # fmt: skip
    torch = "arena[ids, :8192].clone(), arena[ids, 8192:8448].clone()"
    return Workload(
        "indexer_gather", plan, pages * (2 * 64 * 132 + 8), torch, _torch_pages(INDEX_PAGE, 2048 * INDEX_PAGE)
    )


def _checksum(sized: Sized) -> Workload:
    pages, arena, ids = _pages(sized, V4_PAGE, 64 * MIB)
    check = sized.check("compressed_kv", 2 * pages, pages)
    plan = page_checksum_plan(arena, V4_PAGE, 2 * pages, ids, pages, V4_PAGE, sized.zeros(8 * pages), check=check)
    return Workload(
        "page_checksum", plan, pages * V4_PAGE, "arena[ids].view(torch.int64).sum(1)", _torch_pages(V4_PAGE, 64 * MIB)
    )


def _prefix(sized: Sized) -> Workload:
    requests, length = sized.less(256), 40
    blocks, slots = requests * length, sized.less(20_000)
    offsets = sized.up(np.arange(requests + 1, dtype=np.uint32) * length)
    ids = sized.up(np.random.default_rng(2).integers(slots, size=blocks).astype(np.int32))
    sums, check = sized.zeros(8 * blocks), sized.check("compressed_kv", slots, blocks)
    plan = verified_prefix_plan(
        check, offsets, ids, slots, blocks, requests, sized.zeros(4 * requests), sized.zeros(requests), sums=sums,
        wanted=sums,
    )  # fmt: skip
    return Workload("verified_prefix", plan, 32 * blocks + 5 * requests)


def _topology(sized: Sized) -> Workload:
    count, width, slots, numbers = sized.less(256), 512, 4096, 1000
    table = np.full((count, width), -1, np.int32)
    table[:, :100] = np.random.default_rng(3).integers(slots - 1, size=(count, 100))
    positions = sized.up(np.full(count, 100 * 256 - 1, np.int64))
    rows = Rows(sized.up(table), sized.up(np.array([count])), positions, 256, False, -1, slots - 1)
    ring = Ring(sized.zeros(32 * 64), sized.zeros(8), sized.zeros(8), 64)
    check, signature = sized.check("compressed_kv", slots, 1), sized.zeros(8 * numbers)
    plan = check_topology_plan(
        rows, count, width, signature, signature, numbers, sized.zeros(8), 0, sized.zeros(count), ring,
        kind="compressed_kv", slots=slots, words=check.words,
    )  # fmt: skip
    return Workload("check_topology", plan, count * (16 * numbers + 4 * width + 100 * 32))


def _references(sized: Sized) -> tuple[int, dict[str, Any]]:
    count, slots = sized.less(10_000), sized.less(10_000)
    kind = "compressed_kv"
    arguments = np.zeros((width_of("validate_pin"), count), np.int64)
    arguments[0] = 1
    return count, {
        "words": sized.check(kind, slots, 1).words, "first": sized.up(first_places({kind: slots})), "references": count,
        "machines": sized.up(np.full(count, machine_number(kind), np.uint8)),
        "slots": sized.up(np.arange(count, dtype=np.uint32)), "arguments": sized.up(arguments),
        "leases": sized.zeros(count),
    }  # fmt: skip


TORCH_PIN = "torch.where((words[ids] >> 20 & 0xFFFFF) == expected, words[ids] + 16, words[ids])"


def _torch_words(torch: Any) -> dict[str, Any]:
    words = torch.full((10_000,), 1 << 20 | 2, dtype=torch.int64, device="cuda")
    return {"words": words, "ids": torch.randperm(10_000, device="cuda"), "expected": 1}


def _pin(sized: Sized) -> Workload:
    """Refuses from the 4096th launch on, when pins are at their most: it takes as long."""
    count, shared = _references(sized)
    requests = -(-count // 64)
    starts = sized.up(np.minimum(np.arange(requests + 1) * 64, count).astype(np.uint32))
    number, verdicts = sized.up(np.array([requests], np.uint32)), sized.zeros(requests)
    plan = validate_pin_plan(starts=starts, count=number, requests=requests, verdicts=verdicts, **shared)
    return Workload("validate_pin", plan, count * (6 + 16 + 64) + 5 * requests, TORCH_PIN, _torch_words)


def _unpin(sized: Sized) -> Workload:
    """Of references that hold nothing, after the first launch."""
    count, shared = _references(sized)
    plan = unpin_plan(count=sized.up(np.array([count], np.uint32)), **shared)
    return Workload("unpin", plan, count * (7 + 8 + 64))


def _revalidate(sized: Sized) -> Workload:
    count, shared = _references(sized)
    del shared["leases"]
    plan = revalidate_plan(count=sized.up(np.array([count], np.uint32)), refusals=sized.zeros(count), **shared)
    return Workload("revalidate", plan, count * (6 + 16 + 32))


def _event(sized: Sized) -> Workload:
    count = sized.less(10_000)
    check, number = sized.check("swa_window", count, count, Side.WRITER), sized.up(np.array([count], np.uint32))
    arguments = np.zeros((2, count), np.int64)
    arguments[0] = 1  # the window stays where it is, so the event applies every time
    plan = apply_event_plan(
        "swa_window", "slide", words=check.words, slot_count=count, count=number, firings=count,
        slots=sized.up(np.arange(count, dtype=np.uint32)), arguments=sized.up(arguments), refusals=check.refusals,
    )  # fmt: skip
    return Workload("apply_event", plan, count * (5 + 16 + 64))


def _put(sized: Sized) -> Workload:
    count = sized.less(10_000)
    check, number = sized.check("swa_window", count, count), sized.up(np.array([count], np.uint32))
    plan = put_words_plan(
        "swa_window", words=check.words, slot_count=count, count=number, values_max=count,
        slots=sized.up(np.arange(count, dtype=np.uint32)), values=check.words, refusals=check.refusals,
    )  # fmt: skip
    return Workload("put_words", plan, count * (13 + 64))


def _entries(sized: Sized, pages: int, rows: Any, ids: Any, page: int = V4_PAGE) -> Entries:
    return Entries(sized.zeros(pages * page), page, pages, 64, sized.up(ids), sized.up(rows), len(ids))


def _whole_pages(sized: Sized, page: int) -> tuple[int, Entries]:
    """(rows, all rows of some pages in any order)."""
    pages = sized.less(1024)
    ids, rows = np.random.default_rng(4).permutation(pages).astype(np.int32), np.full(pages, 64, np.uint32)
    return 64 * pages, _entries(sized, pages, rows, ids, page)


def _tokens(sized: Sized, page: int) -> tuple[int, Entries, Check[Pointer]]:
    """(tokens, a row of a page for each, its check)."""
    tokens = sized.less(8192)
    pages = -(-tokens // 64)
    ids, rows = np.arange(tokens, dtype=np.int32) // 64, np.arange(tokens, dtype=np.uint32) % 64
    check = sized.check("compressed_kv", pages, tokens, Side.WRITER)
    return tokens, _entries(sized, pages, rows, ids, page), check


def _dequantise(sized: Sized) -> Workload:
    rows, entries = _whole_pages(sized, V4_PAGE)
    check = sized.check("compressed_kv", entries.slots, entries.most)
    plan = gather_dequantise_v4_plan(entries, sized.zeros(rows * 1024), check)
    torch = "(codes[ids].view(torch.float8_e4m3fn).to(torch.bfloat16).unflatten(-1, (7, 64)) * scales[ids])"
    return Workload("gather_dequantise_v4", plan, rows * (584 + 1024), torch, _torch_codes)


def _dequantise_v32(sized: Sized) -> Workload:
    rows, entries = _whole_pages(sized, 64 * 656)
    check = sized.check("compressed_kv", entries.slots, entries.most)
    plan = gather_dequantise_v32_plan(entries, sized.zeros(rows * 1152), check)
    return Workload("gather_dequantise_v32", plan, rows * (656 + 1152))


def _dequantise_rows(sized: Sized) -> Workload:
    rows, entries = _whole_pages(sized, INDEX_PAGE)
    check = sized.check("indexer_state", entries.slots, entries.most)
    plan = gather_dequantise_rows_plan(entries, 128, sized.zeros(rows * 256), check)
    return Workload("gather_dequantise_rows", plan, rows * (132 + 256))


def _torch_codes(torch: Any) -> dict[str, Any]:
    codes = torch.zeros(1024, 64, 448, dtype=torch.uint8, device="cuda")
    scales = torch.ones(1024, 64, 7, 1, dtype=torch.bfloat16, device="cuda")
    return {"codes": codes, "scales": scales, "ids": torch.randperm(1024, device="cuda")}


def _quantise(sized: Sized) -> Workload:
    tokens, entries, check = _tokens(sized, V4_PAGE)
    plan = quantise_insert_v4_plan(entries, sized.zeros(tokens * 1024), check)
    torch = "(values / values.abs().amax(-1, True).clamp(min=1e-4) * 448).to(torch.float8_e4m3fn)"
    return Workload("quantise_insert_v4", plan, tokens * (584 + 1024), torch, _torch_values)


def _quantise_v32(sized: Sized) -> Workload:
    tokens, entries, check = _tokens(sized, 64 * 656)
    plan = quantise_insert_v32_plan(entries, sized.zeros(tokens * 1152), check)
    return Workload("quantise_insert_v32", plan, tokens * (656 + 1152))


def _quantise_rows(sized: Sized) -> Workload:
    tokens, entries, check = _tokens(sized, INDEX_PAGE)
    plan = quantise_insert_rows_plan(entries, 128, sized.zeros(tokens * 256), check)
    return Workload("quantise_insert_rows", plan, tokens * (132 + 256))


def _torch_values(torch: Any) -> dict[str, Any]:
    return {"values": torch.zeros(8192, 7, 64, dtype=torch.bfloat16, device="cuda")}


def _windows(sized: Sized, layer: Compressor, count: int) -> Windows[Pointer]:
    """So many windows one after the other, each with the one before it where they overlap."""
    ratio, rope = layer.ratio, layer.rope
    rows, current = ratio * (count + 1), np.arange(1, count + 1, dtype=np.uint32) * ratio
    kv, gate = sized.zeros(rows * layer.width * 4), sized.zeros(rows * layer.width * 4)
    bias, weight = sized.zeros(4 * ratio * layer.width), sized.zeros(4 * layer.elements)
    origin = sized.up(np.full(count, int(layer.overlaps), np.uint8))
    return Windows(
        kv, gate, rows, layer.width, bias, weight, sized.zeros(4 * rope * 16), 16, sized.up(current),
        sized.zeros(4 * count), origin, sized.up(current - ratio), count,
    )  # fmt: skip


def _compress_floats(sized: Sized) -> Workload:
    layer, count = Compressor(512, 128, False, 64, 1e-6, rows_folded=True), sized.less(512)
    given, out = _windows(sized, layer, count), sized.zeros(count * 2048)
    plan = compress_plan(layer, given, out, sized.zeros(count))
    return Workload("compress", plan, count * (layer.bytes_read + 2048))


def _compress(sized: Sized) -> Workload:
    layer = Compressor(512, 4, True, 64, 1e-6, rows_folded=True)
    count, entries, check = _tokens(sized, V4_PAGE)
    plan = compress_v4_plan(layer, _windows(sized, layer, count), entries, check)
    return Workload("compress_v4", plan, count * (layer.bytes_read + 584))


def _compress_keys(sized: Sized) -> Workload:
    layer = Compressor(128, 4, True, 64, 1e-6, rows_folded=True)
    count, entries, check = _tokens(sized, INDEX_PAGE)
    plan = compress_index_key_plan(layer, _windows(sized, layer, count), entries, check)
    return Workload("compress_index_key", plan, count * (layer.bytes_read + 132))


def _packing(sized: Sized) -> tuple[Cut, Slots, LaunchPlan, Pointer, int, int]:
    """(cut, slots of random bytes, the launch that packs them, where to, how far apart, bytes of all bodies)."""
    layout = PROFILES["deepseek_v4_flash"].layouts["indexer_state"]
    found, slots = cut(layout), sized.less(256)
    stride = -(-found.body_most // 32) * 32
    data = np.random.default_rng(5).integers(256, size=slots * layout.slot_bytes).astype(np.uint8)
    ids, table = sized.up(np.arange(slots, dtype=np.int32)), sized.up(found.table)
    where = Slots(sized.up(data), layout.slot_bytes, slots, ids, slots, table)
    out, sizes = sized.zeros(slots * stride), sized.launcher.upload(np.zeros(slots, np.uint32))
    plan = pack_plan(found, where, False, out, stride, sizes.pointer)
    sized.launcher.launch(plan)
    sized.kept.append(sizes)
    return found, where, plan, out, stride, int(sizes.download().sum())


def _pack(sized: Sized) -> Workload:
    found, where, plan, _, _, packed = _packing(sized)
    return Workload("pack", plan, where.most * found.end + packed)


def _expand(sized: Sized) -> Workload:
    found, where, _, out, stride, packed = _packing(sized)
    begins = sized.up(np.arange(where.most, dtype=np.uint64) * stride)
    plan = expand_plan(found, where, out, begins, sized.zeros(where.most))
    return Workload("expand", plan, where.most * found.end + packed)


MAKERS = (
    _pin, _unpin, _revalidate, _event, _put, _gather, _scatter, _scrub, _window, _indexer, _checksum, _prefix,
    _topology, _dequantise, _dequantise_v32, _dequantise_rows, _quantise, _quantise_v32, _quantise_rows, _compress,
    _compress_floats, _compress_keys, _pack, _expand,
)  # fmt: skip
