"""Packing and expanding: what launches move, and that planted bugs are found."""

from __future__ import annotations

import numpy as np
import pytest

from kvfsm.kernels import packed
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.floats import to_bf16
from kvfsm.kernels.packed_form import BLOCK, cut
from kvfsm.kernels.packed_slot import pack_slots, unwrapped
from kvfsm.runtime.layout import ITEM_BYTES, Layout, Part

from ..hostcuda.building import Build
from ..hostcuda.faults import HostFault
from ..hostcuda.host import HostLauncher, edited
from .packable import MIXED, random_slots
from .pools import Uploaded
from .traffic import moved_bytes

RNG = np.random.default_rng(7)
WASTE = 1.05
SLOTS = 2


def layout_of(dtype: str, elements: int = 64 * BLOCK) -> Layout:
    width = elements * ITEM_BYTES[dtype]
    return Layout("compressed_kv", 1, (Part("rows", 0, 0, 1, width, (elements,), dtype, "rows"),), width, 32)


def numbers(layout: Layout) -> np.ndarray:
    """Slots of normal numbers, or of bytes."""
    dtype, count = layout.parts[0].dtype, layout.slot_bytes // ITEM_BYTES[layout.parts[0].dtype]
    drawn = RNG.standard_normal((SLOTS, count)).astype(np.float32)
    if dtype == "uint8":
        return RNG.integers(0, 256, (SLOTS, count)).astype(np.uint8)
    return (drawn if dtype == "float32" else to_bf16(drawn)).view(np.uint8)


def run_pack(launcher: HostLauncher, layout: Layout, data: np.ndarray, lossy: bool) -> tuple[np.ndarray, np.ndarray]:
    made, up, ids = cut(layout), Uploaded(launcher), np.arange(SLOTS, dtype=np.int32)
    stride = -(-made.body_most // 32) * 32
    out, sizes = np.full((SLOTS, stride), 0xEE, np.uint8), np.zeros(SLOTS, np.uint32)
    entries = Entries(up(data), layout.slot_bytes, SLOTS, up(ids), SLOTS)
    launcher.launch(packed.pack_plan(made, up(made.table), entries, lossy, up(out), stride, up(sizes)))
    return up.now(out), up.now(sizes)


def run_expand(launcher: HostLauncher, layout: Layout, bodies: list[bytes], lossy: bool) -> np.ndarray:
    made, up, ids = cut(layout), Uploaded(launcher), np.arange(SLOTS, dtype=np.int32)
    lengths = [len(body) + -len(body) % 32 for body in bodies]
    memory = np.concatenate(
        [np.frombuffer(body.ljust(size), np.uint8) for body, size in zip(bodies, lengths, strict=True)]
    )
    begins = np.cumsum([0, *lengths[:-1]]).astype(np.uint64)
    arena = np.zeros((SLOTS, layout.slot_bytes), np.uint8)
    entries = Entries(up(arena), layout.slot_bytes, SLOTS, up(ids), SLOTS)
    forms = np.full(SLOTS, lossy, np.uint8)
    launcher.launch(packed.expand_plan(made, up(made.table), entries, up(memory), up(begins), up(forms)))
    return up.now(arena)


def bodies_of(layout: Layout, data: np.ndarray, lossy: bool) -> list[bytes]:
    return [unwrapped(layout, blob).body for blob in pack_slots(layout, data, lossy)]


@pytest.mark.parametrize("lossy", [False, True], ids=["lossless", "lossy"])
@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32"])
def test_slots_and_bodies_are_moved_once_and_little_else(dtype: str, lossy: bool) -> None:
    layout = layout_of(dtype)
    data = numbers(layout)
    bodies = bodies_of(layout, data, lossy)
    stated = data.size + sum(map(len, bodies)) + SLOTS * 16 * cut(layout).count
    packing = HostLauncher(Build.CHECK)
    run_pack(packing, layout, data, lossy)
    assert 0.99 * stated <= moved_bytes(packing) <= WASTE * stated
    expanding = HostLauncher(Build.CHECK)
    run_expand(expanding, layout, bodies, lossy)
    assert 0.99 * stated <= moved_bytes(expanding) <= WASTE * stated


def test_elements_of_four_bytes_go_by_wide_accesses() -> None:
    layout = layout_of("float32")
    data, launcher = numbers(layout), HostLauncher(Build.CHECK)
    run_expand(launcher, layout, bodies_of(layout, data, False), False)
    assert launcher.traffic is not None
    wide = [site for site in launcher.traffic.sites if site.is_write and site.bytes >= data.size // 4]
    assert {(site.width, site.sectors_per_request, site.efficiency) for site in wide} == {(16, 16.0, 1.0)}


PACK_FAULTS = {
    "no barrier before the blocks' bytes are added": (
        "    __syncthreads();  // bytes of all blocks are there, and what was said of those before is read\n",
        "",
        ("race", "uninitialised"),
    ),
    "no barrier before what is said is written": (
        "    __syncthreads();  // all is said, and bytes of all blocks are read\n", "", ("race", "uninitialised"),
    ),
    "vectors wherever a part lies": (
        "first + kRun <= block.elements && goes_by_vectors(begin, block.item)) {\n      load_run",
        "first + kRun <= block.elements) {\n      load_run",
        ("misaligned",),
    ),
    "elements behind the last one": (
        "const bool is_there = kv_lane() < lanes && first + i < block.elements;",
        "const bool is_there = kv_lane() < lanes && block.elements != 0;",
        ("out_of_bounds",),
    ),
    "a block too many": (
        "const bool has_block = number < block_count;",
        "const bool has_block = number <= block_count;",
        ("out_of_bounds",),
    ),
    "a word with half of the warp": (
        "    least = kv_warp_min(least);",
        "    if (kv_lane() < 16) __syncwarp();\n    least = kv_warp_min(least);",
        ("warp_divergence",),
    ),
    "padding goes into the arena": (
        "body[at + kv_lane()] = 0;", "((kv_u8*)slot)[kv_lane()] = 0;", ("const_write",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PACK_FAULTS)
def test_a_bug_planted_into_packing_is_found_by_what_is_meant_for_it(name: str) -> None:
    find, replace, kinds = PACK_FAULTS[name]
    layout = LAST_IS_ONE if name == "elements behind the last one" else MIXED
    data = random_slots(layout, 3, SLOTS)
    run_pack(HostLauncher(Build.CHECK), layout, data, False)
    with pytest.raises(HostFault) as caught:
        run_pack(HostLauncher(Build.CHECK, sources=edited((find, replace))), layout, data, False)
    assert caught.value.kind in kinds


LAST_IS_ONE = Layout("compressed_kv", 1, (Part("rows", 0, 0, 1, 8, (1,), "int64", "rows"),), 16, 16)
"""An element alone: seven more would lie behind the slot."""

EXPAND_FAULTS = {
    "no barrier before the slot is known": (
        "  __syncthreads();  // writes of all come after that thread's acquire\n", "", ("race", "uninitialised"),
    ),
    "vectors wherever a part lies": (
        "first + kRun <= block.elements && goes_by_vectors(begin, block.item)) {\n      store_run",
        "first + kRun <= block.elements) {\n      store_run",
        ("misaligned",),
    ),
    "elements behind the last one": (
        "if (first + i < block.elements) store_one", "if (block.elements != 0) store_one", ("out_of_bounds", "race"),
    ),
    "a byte too many of each lane": (
        "for (kv_u32 j = 0; j < width; j++) bits |=", "for (kv_u32 j = 0; j <= width; j++) bits |=",
        ("out_of_bounds", "undefined"),
    ),
    "blocks of the warp before too": (
        "kv_warp() * kBlocksOfWarp;", "kv_warp() * (kBlocksOfWarp - 1);", ("race",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPAND_FAULTS)
def test_a_bug_planted_into_expanding_is_found_by_what_is_meant_for_it(name: str) -> None:
    find, replace, kinds = EXPAND_FAULTS[name]
    layouts = {"elements behind the last one": LAST_IS_ONE, "a byte too many of each lane": layout_of("uint8", BLOCK)}
    layout = layouts.get(name, MIXED)
    data = random_slots(MIXED, 3, SLOTS) if layout is MIXED else RNG.integers(0, 256, (SLOTS, layout.slot_bytes))
    data = data.astype(np.uint8)
    bodies = bodies_of(layout, data, False)
    run_expand(HostLauncher(Build.CHECK), layout, bodies, False)
    with pytest.raises(HostFault) as caught:
        run_expand(HostLauncher(Build.CHECK, sources=edited((find, replace))), layout, bodies, False)
    assert caught.value.kind in kinds


MEANINGS = {
    "signs stay on top": ("return (value << 1 | value >> (8 * item - 1)) & mask_of(item);",
                          "return value & mask_of(item);"),
    "the least value is nobody's": ("least = kv_warp_min(least);", "least = 0 * kv_warp_min(least);"),
    "a bit less than the farthest takes": ("while (far >> width != 0) width++;", "while (far >> width > 1) width++;"),
    "padding is left": ("if (kv_lane() < start + padded(width * lanes) - at) body[at + kv_lane()] = 0;", ""),
    "scales by a lane alone": ("kv_scale(kv_greatest(kv_peak(numbers), kWarpLanes), kLeastPeak)",
                               "kv_scale(kv_peak(numbers), kLeastPeak)"),
    "elements one after the other": ("return i / kRun * kRun * lanes + kv_lane() * kRun + i % kRun;",
                                     "return lanes * 0 + kv_lane() * kPerLane + i;"),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANINGS)
def test_a_planted_change_of_meaning_is_no_parity(name: str) -> None:
    find, replace = MEANINGS[name]
    data = random_slots(MIXED, 4, SLOTS)
    made, lossy = cut(MIXED), name == "scales by a lane alone"
    right = np.full((SLOTS, -(-made.body_most // 32) * 32), 0xEE, np.uint8)
    sizes = np.zeros(SLOTS, np.uint32)
    packed.pack(made, data, np.arange(SLOTS, dtype=np.int32), lossy, right, sizes)
    sound, found = (
        run_pack(HostLauncher(sources=edited((find, other))), MIXED, data, lossy) for other in (find, replace)
    )
    assert np.array_equal(sound[0], right) and np.array_equal(sound[1], sizes)
    assert not (np.array_equal(found[0], right) and np.array_equal(found[1], sizes))
