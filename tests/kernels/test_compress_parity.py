"""Entries by kernels are those of the references, bit for bit and refusal for refusal."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels import compress as family
from kvfsm.kernels.compress import Compressor, Windows
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.launch import Launcher, Pointer
from kvfsm.kernels.reading import Check, Side
from kvfsm.runtime.generated.compressed_kv import LAYOUT, CompressedKvState

from .awkward import awkward_floats
from .pools import Uploaded, check_of, copied, random_bytes, some_slots, with_strangers
from .windows import CSA, HCA, INDEX, ODD, TINY_HCA, windows_of

COMPRESSORS = {"CSA": CSA, "HCA": HCA, "indexer": INDEX, "small HCA": TINY_HCA, "odd": ODD}
FORMS = {
    "folded": {"rows_folded": True, "carry_folded": True},
    "raw": {"rows_folded": False, "carry_folded": False},
    "folded when carried": {"rows_folded": False, "carry_folded": True},
}


def drawn(rng: np.random.Generator, compressor: Compressor, entries: int, awkward: bool) -> Windows[Any]:
    """Rows of every origin, some of them not there, with strides wider than rows."""
    windows = windows_of(compressor, int(rng.integers(1 << 32)), entries)
    if entries > 6:
        windows.current[4] = windows.row_count - compressor.ratio + 1
        windows.positions[5] = windows.position_count
        windows.origin[6] = 3
    if awkward:
        for array in (windows.kv, windows.carry_kv, windows.bias, windows.weight, windows.rotary):
            if rng.random() < 0.7:
                array[:] = awkward_floats(rng, *array.shape)
        for array in (windows.gate, windows.carry_gate):
            array[:] = awkward_floats(rng, *array.shape)
            array[rng.random(len(array)) < 0.3] = rng.choice([-np.inf, -1e38, 0.0, 90.0])
    return windows


def in_memory(up: Uploaded, windows: Windows[Any]) -> Windows[Pointer]:
    arrays = {one.name: getattr(windows, one.name) for one in fields(windows)}
    return replace(windows, **{name: up(array) for name, array in arrays.items() if isinstance(array, np.ndarray)})


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("awkward", [False, True], ids=["plain", "awkward"])
def test_compress(launcher: Launcher, rng: np.random.Generator, name: str, form: str, awkward: bool) -> None:
    compressor, up = replace(COMPRESSORS[name], **FORMS[form]), Uploaded(launcher)
    entries = 3 if name == "HCA" else 9
    windows = drawn(rng, compressor, entries, awkward)
    out, refusals = np.full((entries, compressor.elements), 7, np.float32), np.zeros(entries, np.uint8)
    refusals[1] = 9
    launcher.launch(family.compress_plan(compressor, in_memory(up, windows), up(out), up(refusals)))
    right, refused = out.copy(), refusals.copy()
    family.compress(compressor, windows, right, refused)
    np.testing.assert_array_equal(up.now(out).view(np.uint32), right.view(np.uint32))
    np.testing.assert_array_equal(up.now(refusals), refused)
    assert np.count_nonzero(refused == 0) >= 2


@pytest.mark.parametrize("live", [-1, 0, 2, 100])
def test_only_entries_in_use_are_made(launcher: Launcher, rng: np.random.Generator, live: int) -> None:
    windows, up = replace(drawn(rng, INDEX, 4, False), live=np.array([live])), Uploaded(launcher)
    out, refusals = np.full((4, 128), 7, np.float32), np.zeros(4, np.uint8)
    launcher.launch(family.compress_plan(INDEX, in_memory(up, windows), up(out), up(refusals)))
    right, refused = out.copy(), refusals.copy()
    family.compress(INDEX, windows, right, refused)
    np.testing.assert_array_equal(up.now(out), right)


def test_no_entry_is_no_launch(launcher: Launcher) -> None:
    windows, up = windows_of(INDEX, 1, 0), Uploaded(launcher)
    out, refusals = np.zeros((0, 128), np.float32), np.zeros(0, np.uint8)
    plan = family.compress_plan(INDEX, in_memory(up, windows), up(out), up(refusals))
    assert plan.is_empty
    launcher.launch(plan)
    family.compress(INDEX, windows, out, refusals)


@pytest.mark.parametrize("elements", [4, 124, 128, 132, 380, 512])
@pytest.mark.parametrize("rope", [0, 4])
def test_the_norm_sums_any_number_of_channels(
    launcher: Launcher, rng: np.random.Generator, elements: int, rope: int
) -> None:
    compressor, up = Compressor(elements, 3, False, rope, 1e-6, rows_folded=True), Uploaded(launcher)
    windows = drawn(rng, compressor, 4, False)
    out, refusals = np.zeros((4, elements), np.float32), np.zeros(4, np.uint8)
    launcher.launch(family.compress_plan(compressor, in_memory(up, windows), up(out), up(refusals)))
    right = out.copy()
    family.compress(compressor, windows, right, refusals)
    np.testing.assert_array_equal(up.now(out), right)


def places(
    rng: np.random.Generator, slots: int, entries: int, page_rows: int
) -> tuple[np.ndarray, np.ndarray, Check[Any]]:
    ids = with_strangers(rng, some_slots(rng, slots, entries, unique=True), slots)
    rows = rng.integers(0, page_rows + 1, entries).astype(np.uint32)  # some behind the page
    check = check_of(rng, "compressed_kv", slots, entries, Side.WRITER)
    ids[:4], rows[:4], check.expected[:4], check.refusals[:4] = [9, 8, 7, 6], [0, 1, 2, 0], 1, 0
    ids[4:] = np.where(np.isin(ids[4:], ids[:4]), -1, ids[4:])
    check.words[ids[:4]] = LAYOUT.pack(state=CompressedKvState.FILLING, generation=1)
    return ids, rows, check


@pytest.mark.parametrize("compressor", [CSA, replace(HCA, ratio=16, rows_folded=False)], ids=["CSA", "HCA"])
@pytest.mark.parametrize("awkward", [False, True], ids=["plain", "awkward"])
def test_compress_v4(launcher: Launcher, rng: np.random.Generator, compressor: Compressor, awkward: bool) -> None:
    slots, entries, page_rows, up = 30, 20, 3, Uploaded(launcher)
    pages = random_bytes(rng, slots, 3 * 584 + 72)
    windows, (ids, rows, check) = drawn(rng, compressor, entries, awkward), places(rng, slots, entries, page_rows)
    where = Entries(up(pages), pages.shape[1], slots, up(ids), entries), page_rows, up(rows)
    launcher.launch(family.compress_v4_plan(compressor, in_memory(up, windows), *where, up.check(check)))
    right, refused = pages.copy(), copied(check)
    family.compress_v4(compressor, windows, right, page_rows, ids, rows, refused)
    np.testing.assert_array_equal(up.now(pages), right)
    np.testing.assert_array_equal(up.now(check.refusals), refused.refusals)
    assert refused.refusals[:4].tolist() == [0, 0, 0, 0] and refused.refusals.any()


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("awkward", [False, True], ids=["plain", "awkward"])
def test_compress_index_key(launcher: Launcher, rng: np.random.Generator, power_of_two: bool, awkward: bool) -> None:
    slots, entries, page_rows, up = 30, 20, 3, Uploaded(launcher)
    pages = random_bytes(rng, slots, 3 * 132 + 68)
    windows, (ids, rows, check) = drawn(rng, INDEX, entries, awkward), places(rng, slots, entries, page_rows)
    where = Entries(up(pages), pages.shape[1], slots, up(ids), entries), page_rows, up(rows)
    plan = family.compress_index_key_plan(
        INDEX, in_memory(up, windows), *where, up.check(check), power_of_two=power_of_two
    )
    launcher.launch(plan)
    right, refused = pages.copy(), copied(check)
    family.compress_index_key(INDEX, windows, right, page_rows, ids, rows, refused, power_of_two=power_of_two)
    np.testing.assert_array_equal(up.now(pages), right)
    np.testing.assert_array_equal(up.now(check.refusals), refused.refusals)
    assert refused.refusals[:4].tolist() == [0, 0, 0, 0] and refused.refusals.any()
