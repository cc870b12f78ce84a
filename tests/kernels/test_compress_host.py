"""Compression: what launches move, and that planted bugs are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.compress import (
    ROWS,
    Compressor,
    Windows,
    compress,
    compress_index_key_plan,
    compress_plan,
    compress_v4_plan,
)
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.launch import Launcher
from kvfsm.kernels.reading import Check, Side
from kvfsm.runtime.generated.compressed_kv import LAYOUT, CompressedKvState

from ..hostcuda.building import Build
from ..hostcuda.faults import HostFault
from ..hostcuda.host import HostLauncher, edited
from .pools import Uploaded
from .test_compress_parity import in_memory
from .traffic import moved_bytes
from .windows import CSA, HCA, INDEX, ODD, TINY_HCA, windows_of

WASTE = 1.05
ENTRIES = 4


def aligned(compressor: Compressor) -> Windows[Any]:
    """Entries that have a window before them, if any has, among rows without gaps."""
    windows = windows_of(compressor, 3, ENTRIES, stride=compressor.width)
    starts = (np.arange(ENTRIES) * compressor.ratio).astype(np.uint32)
    origin = np.full(ENTRIES, ROWS if compressor.overlaps else 0, np.uint8)
    return replace(windows, current=starts, previous=starts[::-1].copy(), origin=origin)


def run(launcher: Launcher, compressor: Compressor, windows: Windows[Any]) -> tuple[np.ndarray, np.ndarray]:
    out, refusals = np.zeros((windows.most, compressor.elements), np.float32), np.zeros(windows.most, np.uint8)
    up = Uploaded(launcher)
    launcher.launch(compress_plan(compressor, in_memory(up, windows), up(out), up(refusals)))
    return up.now(out), up.now(refusals)


@pytest.mark.parametrize("form", [True, False], ids=["folded", "raw"])
@pytest.mark.parametrize("compressor", [CSA, HCA], ids=["CSA", "HCA"])
def test_an_entry_moves_its_rows_once_and_little_else(compressor: Compressor, form: bool) -> None:
    compressor = replace(compressor, rows_folded=form, carry_folded=form)
    launcher = HostLauncher(Build.CHECK)
    run(launcher, compressor, aligned(compressor))
    stated = ENTRIES * (compressor.bytes_read + 4 * compressor.elements + 14)
    assert stated <= moved_bytes(launcher) <= WASTE * stated


@pytest.mark.parametrize("name", ["v4", "index_key"])
def test_an_fp8_entry_moves_its_rows_once_and_little_else(name: str) -> None:
    compressor, row_bytes = (CSA, 584) if name == "v4" else (INDEX, 132)
    compressor = replace(compressor, rows_folded=True)
    launcher = HostLauncher(Build.CHECK)
    up, pages = Uploaded(launcher), np.zeros((1, 64 * row_bytes), np.uint8)
    at, rows = np.zeros(ENTRIES, np.int32), np.arange(ENTRIES, dtype=np.uint32)
    word = np.array([LAYOUT.pack(state=CompressedKvState.FILLING, generation=1)], np.uint64)
    check = Check("compressed_kv", word, np.ones(ENTRIES, np.uint32), np.zeros(ENTRIES, np.uint8), Side.WRITER)
    where = Entries(up(pages), pages.shape[1], 1, up(at), ENTRIES), 64, up(rows)
    plan = compress_v4_plan if name == "v4" else compress_index_key_plan
    launcher.launch(plan(compressor, in_memory(up, aligned(compressor)), *where, up.check(check)))
    stated = ENTRIES * (compressor.bytes_read + row_bytes + 26) + 8
    assert stated <= moved_bytes(launcher) <= WASTE * stated


def test_rows_go_by_wide_accesses() -> None:
    launcher = HostLauncher(Build.CHECK)
    run(launcher, replace(HCA, rows_folded=True), aligned(HCA))
    assert launcher.traffic is not None
    wide = [site for site in launcher.traffic.sites if site.bytes >= ENTRIES * 2048]
    assert len(wide) >= 3
    assert {(site.width, site.sectors_per_request, site.efficiency) for site in wide} == {(16, 16.0, 1.0)}


FAULTS = {
    "no barrier between the warps' sums and their total": (
        CSA, "    __syncthreads();\n    total = warps[0];", "    total = warps[0];", "uninitialised",
    ),
    "a barrier for threads with channels only": (
        TINY_HCA,
        "    __syncthreads();\n    total = warps[0];",
        "    if (has_channels)\n      __syncthreads();\n    else\n      __syncthreads();\n    total = warps[0];",
        "barrier_divergence",
    ),
    "a row behind the last one": (
        ODD,
        "if (row < first || row >= rows) continue;\n      const kv_u32 place",
        "if (row < first || row > rows) continue;\n      const kv_u32 place",
        "out_of_bounds",
    ),
    "no look at the number of rows": (
        HCA, "(kv_u64)entry->current + w.ratio <= w.row_count", "entry->current <= 0xFFFFFFF0u", "out_of_bounds",
    ),
    "channels that there are not": (
        TINY_HCA, "if (channel < w.elements) values = pooled", "if (channel <= w.elements) values = pooled",
        "out_of_bounds",
    ),
    "a window that no thread has read": (
        CSA, "  __syncthreads();\n  if (entry.is_there == 0) return;", "  if (entry.is_there == 0) return;", "race",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_bug_is_found_by_what_is_meant_for_it(name: str) -> None:
    compressor, find, replaced, kind = FAULTS[name]
    windows = replace(aligned(compressor), most=1)
    windows.current[0] = windows.row_count - compressor.ratio  # the last rows there are
    if name == "no look at the number of rows":
        windows.current[0] += 1
    run(HostLauncher(Build.CHECK), compressor, windows)  # sound as it is
    with pytest.raises(HostFault) as caught:
        run(HostLauncher(Build.CHECK, sources=edited((find, replaced))), compressor, windows)
    assert caught.value.kind == kind


MEANINGS = {
    "sums are not scaled to the new peak": (HCA, "sums.at[i] = __fmul_rn(sums.at[i], shrink);", ""),
    "halves of a row the other way round": (
        CSA, "const kv_u32 own = w.elements * w.overlaps + channel;", "const kv_u32 own = channel;",
    ),
    "the bias is added to folded gates": (
        replace(CSA, rows_folded=True), "if ((is_carried ? w.carry_folded : w.rows_folded) != 0) continue;",
        "if (is_carried && w.carry_folded != 0) continue;",
    ),
    "windows without one before count zeros": (CSA, "entry.origin == kNothing ? w.ratio : 0;", "false ? w.ratio : 0;"),
    "any NaN": (HCA, "return (bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC00000u : bits;", "return bits;"),
    "fused": (
        HCA,
        "sums.at[i] = __fadd_rn(sums.at[i], __fmul_rn(weight, kv[j].at[i]));",
        "sums.at[i] = __fmaf_rn(weight, kv[j].at[i], sums.at[i]);",
    ),
    "turned the other way": (
        CSA,
        "result.at[i] = __fsub_rn(__fmul_rn(values.at[i], cosine), __fmul_rn(values.at[i + 1], sine));",
        "result.at[i] = __fadd_rn(__fmul_rn(values.at[i], cosine), __fmul_rn(values.at[i + 1], sine));",
    ),
    "a shorter exp": (CSA, "  result = __fadd_rn(__fmul_rn(result, rest), 0.008368717f);\n", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANINGS)
def test_a_planted_change_of_meaning_is_no_parity(name: str) -> None:
    compressor, find, replaced = MEANINGS[name]
    windows = windows_of(compressor, 5, ENTRIES)
    if name == "any NaN":
        windows.gate[:] = np.inf
    right, refusals = np.zeros((ENTRIES, compressor.elements), np.float32), np.zeros(ENTRIES, np.uint8)
    compress(compressor, windows, right, refusals)
    sound, found = (
        run(HostLauncher(sources=edited((find, other))), compressor, windows)[0] for other in (find, replaced)
    )
    assert np.array_equal(sound.view(np.uint32), right.view(np.uint32))
    assert not np.array_equal(found.view(np.uint32), right.view(np.uint32))
