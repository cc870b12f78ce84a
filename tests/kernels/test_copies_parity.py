"""Copies by kernels are those of the references, byte for byte and refusal for refusal."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kvfsm.kernels.copies import (
    gather,
    gather_plan,
    indexer_gather,
    indexer_gather_plan,
    scatter,
    scatter_plan,
    scrub,
    scrub_plan,
    window_gather,
    window_gather_plan,
)
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.launch import Launcher
from kvfsm.kernels.reading import Side
from kvfsm.runtime.generated import KINDS

from .pools import PINNED, Uploaded, check_of, copied, random_bytes, some_slots, with_strangers

SIZES = (16, 512, 2048 + 16, 8192, 8192 + 4096 + 16)
"""Bytes of a slot: one vector, part of a round, more than a round, a strip, more than a strip."""

BESIDE = 48
"""Bytes between what is copied of two slots."""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("entries", [0, 1, 11])
def test_gather(launcher: Launcher, rng: np.random.Generator, size: int, entries: int) -> None:
    arena, up = random_bytes(rng, 5, size + BESIDE), Uploaded(launcher)
    ids, out = some_slots(rng, 5, entries), random_bytes(rng, entries, size)
    plan = gather_plan(Entries(up(arena), size + BESIDE, 5, up(ids), entries), size, up(out))
    launcher.launch(plan)
    np.testing.assert_array_equal(up.now(out), gather(arena[:, :size], ids))


@pytest.mark.parametrize("kind", PINNED)
@pytest.mark.parametrize("side", Side)
def test_gather_refuses_by_slot(launcher: Launcher, rng: np.random.Generator, kind: str, side: Side) -> None:
    slots, entries, size = 40, 60, 528
    arena, out, up = random_bytes(rng, slots, size), random_bytes(rng, entries, size), Uploaded(launcher)
    ids = with_strangers(rng, some_slots(rng, slots, entries), slots)
    check = check_of(rng, kind, slots, entries, side, versions=False)
    plan = gather_plan(Entries(up(arena), size, slots, up(ids), entries), size, up(out), check=up.check(check))
    launcher.launch(plan)
    right = copied(check)
    np.testing.assert_array_equal(up.now(out), gather(arena, ids, out.copy(), check=right))
    np.testing.assert_array_equal(up.now(check.refusals), right.refusals)
    np.testing.assert_array_equal(up.now(check.words), check.words)
    assert 0 < np.count_nonzero(right.refusals) < entries


def test_a_pool_without_slots_refuses_every_entry(launcher: Launcher, rng: np.random.Generator) -> None:
    """Its arena and its words are empty arrays, to which CuPy and torch give address 0."""
    arena, out, up = np.zeros((0, 64), np.uint8), random_bytes(rng, 5, 64), Uploaded(launcher)
    check, ids = check_of(rng, "swa_window", 0, 5), np.array([0, -1, 3, 0, 0], np.int32)
    launcher.launch(gather_plan(Entries(up(arena), 64, 0, up(ids), 5), 64, up(out), check=up.check(check)))
    right, refused = out.copy(), copied(check)
    gather(arena, ids, right, check=refused)
    np.testing.assert_array_equal(up.now(out), right)
    np.testing.assert_array_equal(up.now(check.refusals), refused.refusals)
    assert refused.refusals.all()
    launcher.launch(scatter_plan(Entries(up(arena), 64, 0, up(ids), 5), 64, up(out), check=up.check(copied(check))))


@pytest.mark.parametrize("live", [-1, 0, 3, 8, 1000])
def test_gather_finds_on_the_device_how_many_entries_are_in_use(
    launcher: Launcher, rng: np.random.Generator, live: int
) -> None:
    arena, ids, up = random_bytes(rng, 4, 64), some_slots(rng, 4, 8), Uploaded(launcher)
    out, count = random_bytes(rng, 8, 64), np.array([live], np.int64)
    launcher.launch(gather_plan(Entries(up(arena), 64, 4, up(ids), 8, live=up(count)), 64, up(out)))
    np.testing.assert_array_equal(up.now(out), gather(arena, ids, out.copy(), live=live))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("entries", [0, 1, 7])
def test_scatter(launcher: Launcher, rng: np.random.Generator, size: int, entries: int) -> None:
    arena, data, up = random_bytes(rng, 9, size + BESIDE), random_bytes(rng, entries, size), Uploaded(launcher)
    ids = some_slots(rng, 9, entries, unique=True)
    launcher.launch(scatter_plan(Entries(up(arena), size + BESIDE, 9, up(ids), entries), size, up(data)))
    right = arena.copy()
    scatter(right[:, :size], ids, data)
    np.testing.assert_array_equal(up.now(arena), right)


@pytest.mark.parametrize("kind", PINNED)
@pytest.mark.parametrize("side", Side)
def test_scatter_refuses_by_slot(launcher: Launcher, rng: np.random.Generator, kind: str, side: Side) -> None:
    slots, entries, size = 60, 50, 528
    arena, data, up = random_bytes(rng, slots, size), random_bytes(rng, entries, size), Uploaded(launcher)
    own = some_slots(rng, slots, entries, unique=True)
    ids = with_strangers(rng, own, slots)
    check = check_of(rng, kind, slots, entries, side, versions=False)
    state = KINDS[kind].STATES["RESIDENT" if side == Side.READER else "FILLING"]  # of the first entry, which goes
    ids[0], check.expected[0], check.refusals[0] = own[0], 1, 0
    check.words[own[0]] = KINDS[kind].LAYOUT.pack(state=state, generation=1)
    live = np.array([entries - 5], np.int64)
    launcher.launch(
        scatter_plan(
            Entries(up(arena), size, slots, up(ids), entries, live=up(live)), size, up(data), check=up.check(check)
        )
    )  # fmt: skip
    right, refused = arena.copy(), copied(check)
    scatter(right, ids, data, check=refused, live=entries - 5)
    np.testing.assert_array_equal(up.now(arena), right)
    np.testing.assert_array_equal(up.now(check.refusals), refused.refusals)
    assert (right != arena).any(axis=1).sum() in range(1, entries)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pattern", [0, 0xFFFFFFFF, 0x01020304])
def test_scrub(launcher: Launcher, rng: np.random.Generator, size: int, pattern: int) -> None:
    arena, ids, up = random_bytes(rng, 7, size + BESIDE), some_slots(rng, 7, 5, unique=True), Uploaded(launcher)
    launcher.launch(scrub_plan(Entries(up(arena), size + BESIDE, 7, up(ids), 5), size, pattern))
    right = arena.copy()
    scrub(right[:, :size], ids, pattern)
    np.testing.assert_array_equal(up.now(arena), right)


def test_scrub_refuses_by_slot(launcher: Launcher, rng: np.random.Generator) -> None:
    slots, entries = 40, 30
    arena, up = random_bytes(rng, slots, 32), Uploaded(launcher)
    ids = with_strangers(rng, some_slots(rng, slots, entries, unique=True), slots)
    check = check_of(rng, "swa_window", slots, entries, Side.WRITER)
    launcher.launch(scrub_plan(Entries(up(arena), 32, slots, up(ids), entries), 32, 0, check=up.check(check)))
    right, refused = arena.copy(), copied(check)
    scrub(right, ids, check=refused)
    np.testing.assert_array_equal(up.now(arena), right)
    np.testing.assert_array_equal(up.now(check.refusals), refused.refusals)


WINDOWS = {
    # width, pages of a slot, rows of a page, bytes of a row, rows of the window
    "a slot that is a ring": (1, 1, 19, 128, 16),
    "pages of a ring": (1, 2, 64, 576, 128),
    "their scales": (1, 2, 64, 8, 128),
    "blocks": (9, 1, 16, 64, 128),
    "blocks of two pages": (3, 2, 4, 16, 15),
    "long rows": (3, 1, 2, 8192 + 16, 3),
    "a window of one row": (1, 1, 4, 16, 1),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("checked", [False, True], ids=["unchecked", "checked"])
def test_window_gather(launcher: Launcher, rng: np.random.Generator, name: str, checked: bool) -> None:
    width, pages, page_rows, row_bytes, rows = WINDOWS[name]
    slots, most, up = 12, 7, Uploaded(launcher)
    page_stride = -(-page_rows * row_bytes // 16) * 16 + 32
    arena = random_bytes(rng, slots, pages * page_stride)
    block_rows = pages * page_rows
    positions = rng.integers(0, 4 * block_rows * width, most)
    positions[:4] = (-1, 0, rows - 1, rows)  # none, one row, all but full, just past
    positions[4:6] += (2**31, 2**63 - 4 * block_rows * width)  # rows are counted in 64 bits
    table = rng.integers(slots, size=(most, width)).astype(np.int32)
    check = None
    if checked:
        table = with_strangers(rng, table.reshape(-1), slots).reshape(most, width)
        check = check_of(rng, "swa_window", slots, most * width, Side(int(rng.integers(2))))
    out, live = random_bytes(rng, most, rows, row_bytes), np.array([most - 1], np.int64)
    plan = window_gather_plan(
        up(arena), arena.shape[1], slots, up(table), width, block_rows, up(positions), rows, most, row_bytes, up(out),
        page_rows=page_rows, page_stride=page_stride, live=up(live), check=up.check(check),
    )  # fmt: skip
    launcher.launch(plan)
    right, refused = out.copy(), None if check is None else copied(check)
    window_gather(
        rows_of(arena, pages, page_stride, page_rows, row_bytes), table, positions, right, check=refused, live=6
    )
    np.testing.assert_array_equal(up.now(out), right)
    if check is not None and refused is not None:
        np.testing.assert_array_equal(up.now(check.refusals), refused.refusals)


INDEXERS = {
    # rows of a slot, bytes of a key, bytes of a scale
    "keys of DeepSeek-V4": (64, 128, 4),
    "more than a strip": (100, 128, 4),
    "keys without scales": (8, 64, 0),
    "packed keys with four scales": (16, 64, 4),
    "long keys": (2, 8192 + 32, 8),
}


@pytest.mark.parametrize("name", INDEXERS)
@pytest.mark.parametrize("checked", [False, True], ids=["unchecked", "checked"])
def test_indexer_gather(launcher: Launcher, rng: np.random.Generator, name: str, checked: bool) -> None:
    slot_rows, key_bytes, scale_bytes = INDEXERS[name]
    slots, most, up = 20, 24, Uploaded(launcher)
    keys_end = slot_rows * key_bytes
    arena = random_bytes(rng, slots, -(-(keys_end + slot_rows * scale_bytes) // 16) * 16 + 16)
    ids = some_slots(rng, slots, most)
    counts = rng.integers(0, slot_rows + 1, most)
    counts[:3] = (slot_rows, 0, 1)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.uint32)
    out_rows = max(1, int(starts[-1]) - 1)  # the last row finds no room
    check = None
    if checked:
        ids = with_strangers(rng, ids, slots)
        check = check_of(rng, "indexer_state", slots, most)
    out_keys, out_scales = random_bytes(rng, out_rows, key_bytes), random_bytes(rng, out_rows, scale_bytes)
    live, memory = np.array([most - 1], np.int64), up(arena)
    has_scales = scale_bytes > 0
    plan = indexer_gather_plan(
        memory, memory.skip(keys_end) if has_scales else None, arena.shape[1], slots, up(ids), up(starts), most,
        slot_rows, key_bytes, scale_bytes, up(out_keys), up(out_scales) if has_scales else None, out_rows,
        live=up(live), check=up.check(check),
    )  # fmt: skip
    launcher.launch(plan)
    right_keys, right_scales, refused = out_keys.copy(), out_scales.copy(), None if check is None else copied(check)
    keys = arena[:, :keys_end].reshape(slots, slot_rows, key_bytes)
    scales = arena[:, keys_end : keys_end + slot_rows * scale_bytes].reshape(slots, slot_rows, scale_bytes)
    indexer_gather(
        keys, scales if has_scales else None, ids, starts, right_keys, right_scales if has_scales else None,
        check=refused, live=most - 1,
    )  # fmt: skip
    np.testing.assert_array_equal(up.now(out_keys), right_keys)
    if has_scales:
        np.testing.assert_array_equal(up.now(out_scales), right_scales)
    if check is not None and refused is not None:
        np.testing.assert_array_equal(up.now(check.refusals), refused.refusals)


def rows_of(
    arena: npt.NDArray[np.uint8], pages: int, page_stride: int, page_rows: int, row_bytes: int
) -> npt.NDArray[np.uint8]:
    """Slots as [slots, pages, page_rows, row_bytes], without what lies between pages."""
    shape, strides = (len(arena), pages, page_rows, row_bytes), (arena.shape[1], page_stride, row_bytes, 1)
    return np.ndarray(shape, np.uint8, arena.data, 0, strides)
