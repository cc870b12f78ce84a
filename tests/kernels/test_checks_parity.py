"""What kernels find out is what the references find out."""

from __future__ import annotations

import numpy as np
import pytest

from kvfsm.kernels.checks import (
    FROM,
    KEYS,
    checksum,
    page_checksum,
    page_checksum_plan,
    verified_prefix,
    verified_prefix_plan,
)
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.launch import Launcher

from .pools import PINNED, Uploaded, check_of, copied, random_bytes, some_slots, sound_check, with_strangers

PAGES = (16, 256 * 16, 256 * 16 * 4, 256 * 16 * 5 + 16, 37440)
"""Bytes: one vector, a round of the block, four rounds, a ragged end, a page of DeepSeek-V4."""


@pytest.mark.parametrize("size", PAGES)
@pytest.mark.parametrize("entries", [0, 1, 5])
def test_page_checksum(launcher: Launcher, rng: np.random.Generator, size: int, entries: int) -> None:
    arena, up, ids = random_bytes(rng, 3, size + 32), Uploaded(launcher), some_slots(rng, 3, entries)
    sums = np.zeros(entries, np.uint64)
    launcher.launch(page_checksum_plan(Entries(up(arena), size + 32, 3, up(ids), entries), size, up(sums)))
    np.testing.assert_array_equal(up.now(sums), checksum(arena[ids, :size]))


@pytest.mark.parametrize("fill", [0, 0xFF, "the keys themselves"])
def test_page_checksum_of_pages_that_are_all_alike(launcher: Launcher, fill: int | str) -> None:
    page = np.full((1, 4096), fill if isinstance(fill, int) else 0, np.uint8)
    if isinstance(fill, str):  # every factor is zero
        keys = np.arange(256, dtype=np.uint32)[:, None] * KEYS + FROM
        page = (0 - keys).astype("<u4").view(np.uint8).reshape(1, 4096)
    up, sums = Uploaded(launcher), np.zeros(1, np.uint64)
    launcher.launch(page_checksum_plan(Entries(up(page), 4096, 1, up(np.zeros(1, np.int32)), 1), 4096, up(sums)))
    np.testing.assert_array_equal(up.now(sums), checksum(page))


@pytest.mark.parametrize("kind", PINNED)
def test_page_checksum_refuses_by_slot(launcher: Launcher, rng: np.random.Generator, kind: str) -> None:
    slots, entries, up = 30, 40, Uploaded(launcher)
    arena, ids = random_bytes(rng, slots, 4112), with_strangers(rng, some_slots(rng, slots, entries), slots)
    check, sums = check_of(rng, kind, slots, entries, versions=False), rng.integers(99, size=entries).astype(np.uint64)
    live = np.array([entries - 3], np.int64)
    launcher.launch(
        page_checksum_plan(
            Entries(up(arena), 4112, slots, up(ids), entries, live=up(live)), 4112, up(sums), check=up.check(check)
        )
    )
    right, refused = sums.copy(), copied(check)
    page_checksum(arena, ids, right, check=refused, live=entries - 3)
    np.testing.assert_array_equal(up.now(sums), right)
    np.testing.assert_array_equal(up.now(check.refusals), refused.refusals)


@pytest.mark.parametrize("kind", PINNED)
@pytest.mark.parametrize("summed", [False, True], ids=["words alone", "with sums"])
def test_verified_prefix(launcher: Launcher, rng: np.random.Generator, kind: str, summed: bool) -> None:
    lengths = [0, 1, 255, 256, 257, 700, 30, 30]  # none, one, around a chunk, several chunks
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.uint32)
    blocks, most, slots, up = int(offsets[-1]), len(lengths), 50, Uploaded(launcher)
    check, ids = sound_check(kind, slots, blocks), some_slots(rng, slots, blocks)
    sums = rng.integers(2**63, size=blocks).astype(np.uint64)
    wanted = sums.copy()
    for request in (1, 2, 4, 5, 6):  # one mistake in each, of each kind of mistake
        at = int(offsets[request] + rng.integers(lengths[request]))
        if request % 3 == 1:
            check.expected[at] += 1
        elif request % 3 == 2:
            wanted[at] ^= np.uint64(1)
        else:
            ids[at] = -1
    check.words[rng.integers(slots)] = 0  # a slot that is nobody's, wherever it occurs
    given = (sums, wanted) if summed else (None, None)
    verified, reasons = np.full(most, 7, np.uint32), np.full(most, 7, np.uint8)
    live, on_device = np.array([most - 1], np.int64), up.check(check)
    assert on_device is not None
    launcher.launch(
        verified_prefix_plan(
            on_device, up(offsets), up(ids), slots, blocks, most, up(verified), up(reasons),
            sums=up.maybe(given[0]), wanted=up.maybe(given[1]), live=up(live),
        )
    )  # fmt: skip
    right, why = verified.copy(), reasons.copy()
    verified_prefix(check, offsets, ids, right, why, sums=given[0], wanted=given[1], live=most - 1)
    np.testing.assert_array_equal(up.now(verified), right)
    np.testing.assert_array_equal(up.now(reasons), why)
    np.testing.assert_array_equal(up.now(check.words), check.words)


def test_a_request_without_blocks_verifies(launcher: Launcher) -> None:
    """All that is of blocks is an empty array."""
    check, ids, sums, up = (
        sound_check("compressed_kv", 0, 0),
        np.zeros(0, np.int32),
        np.zeros(0, np.uint64),
        Uploaded(launcher),
    )
    offsets, verified, reasons = np.zeros(2, np.uint32), np.full(1, 7, np.uint32), np.full(1, 7, np.uint8)
    on_device = up.check(check)
    assert on_device is not None
    launcher.launch(
        verified_prefix_plan(
            on_device, up(offsets), up(ids), 0, 0, 1, up(verified), up(reasons), sums=up(sums), wanted=up(sums.copy())
        )
    )
    assert (up.now(verified).tolist(), up.now(reasons).tolist()) == ([0], [0])
    verified_prefix(check, offsets, ids, verified, reasons, sums=sums, wanted=sums)
    assert (verified.tolist(), reasons.tolist()) == ([0], [0])
