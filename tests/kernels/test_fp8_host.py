"""FP8 rows: what launches move, and that planted bugs are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.kernels import fp8
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.floats import to_bf16
from kvfsm.kernels.launch import LaunchPlan
from kvfsm.kernels.reading import Check, Side
from kvfsm.runtime.generated.compressed_kv import LAYOUT, CompressedKvState

from ..hostcuda.building import Build
from ..hostcuda.faults import HostFault
from ..hostcuda.host import HostLauncher, edited
from .pools import Uploaded, copied, random_bytes, sound_check
from .traffic import moved_bytes

RNG = np.random.default_rng(6)
FORMATS = {"v4": ((), 512, 584), "v32": ((), 576, 656), "rows": ((128,), 128, 132)}
ROWS, PAGES, STRIDE = 64, 3, 42048
WASTE = 1.05


class Case:
    """A gather of whole pages, or an insert of all rows of some, of one format."""

    def __init__(self, name: str, verb: str, page_rows: int = ROWS, stride: int = STRIDE, given: Any = None) -> None:
        self.width, self.elements, self.row_bytes = FORMATS[name]
        self.is_gather = verb == "gather_dequantise"
        self.page_rows = page_rows
        self.plan_of = getattr(fp8, f"{verb}_{name}_plan")
        self.reference = getattr(fp8, f"{verb}_{name}")
        # As engines pad them, pages begin at whole sectors.
        self.pages = random_bytes(RNG, PAGES, stride)
        if self.is_gather:
            self.ids, self.rows = np.arange(PAGES, dtype=np.int32)[::-1].copy(), np.full(PAGES, page_rows, np.uint32)
            self.data = RNG.integers(0, 2**16, (PAGES, page_rows, self.elements)).astype(np.uint16)
            self.check = sound_check("compressed_kv", PAGES, PAGES)
        else:
            self.ids = np.repeat(np.arange(PAGES, dtype=np.int32), page_rows)
            self.rows = np.tile(np.arange(page_rows, dtype=np.uint32), PAGES)
            numbers = RNG.standard_normal((len(self.ids), self.elements)).astype(np.float32) if given is None else given
            self.data = to_bf16(numbers)
            word = np.full(PAGES, LAYOUT.pack(state=CompressedKvState.FILLING, generation=1), np.uint64)
            n = len(self.ids)
            self.check = Check("compressed_kv", word, np.ones(n, np.uint32), np.zeros(n, np.uint8), Side.WRITER)

    def plan(self, up: Uploaded) -> LaunchPlan:
        entries = Entries(up(self.pages), self.pages.shape[1], PAGES, up(self.ids), len(self.ids))
        given = self.page_rows, *self.width, up(self.rows), up(self.data), up.check(self.check)
        found: LaunchPlan = self.plan_of(entries, *given)
        return found

    def run(self, **options: Any) -> tuple[HostLauncher, np.ndarray, np.ndarray]:
        """The launcher, the bytes that were written, the refusals."""
        launcher = HostLauncher(Build.CHECK, **options)
        up = Uploaded(launcher)
        launcher.launch(self.plan(up))
        return launcher, up.now(self.data if self.is_gather else self.pages), up.now(self.check.refusals)

    def right(self) -> tuple[np.ndarray, np.ndarray]:
        pages, data, check = self.pages.copy(), self.data.copy(), copied(self.check)
        self.reference(pages, self.page_rows, *self.width, self.ids, self.rows, data, check)
        return data if self.is_gather else pages, check.refusals


@pytest.mark.parametrize("name", FORMATS)
def test_a_gather_moves_its_rows_and_little_else(name: str) -> None:
    case = Case(name, "gather_dequantise")
    stated = PAGES * (ROWS * (case.row_bytes + 2 * case.elements) + 33)
    moved = moved_bytes(case.run()[0])
    assert stated <= moved <= WASTE * stated


@pytest.mark.parametrize("name", FORMATS)
def test_an_insert_moves_its_rows_and_little_else(name: str) -> None:
    case = Case(name, "quantise_insert")
    stated = len(case.ids) * (case.row_bytes + 2 * case.elements + 13) + 8 * len(case.ids) // fp8.INSERTED_AT_ONCE
    assert stated <= moved_bytes(case.run()[0]) <= WASTE * stated


def test_rows_go_by_wide_accesses() -> None:
    launcher = Case("v4", "gather_dequantise").run()[0]
    assert launcher.traffic is not None
    wide = [site for site in launcher.traffic.sites if site.is_write and site.bytes >= ROWS * 512]
    assert {(site.width, site.sectors_per_request, site.efficiency) for site in wide} == {(16, 16.0, 1.0)}


# -- Planted bugs ------------------------------------------------------------------------------------------------------

FAULTS = {
    "no barrier before rows are read": (
        ("v4", "gather_dequantise"),
        "  __syncthreads();  // reads of all come after that thread's acquire\n",
        "",
        "race",
    ),
    "no barrier before the second look": (
        ("rows", "gather_dequantise"),
        "  __syncthreads();\n  if (reading->refusal == kv_refusal::kApplied) return;",
        "  if (reading->refusal == kv_refusal::kApplied) return;",
        "race",
    ),
    "a row too many": (
        ("v32", "gather_dequantise"),
        "if (kv_look_and_bound(check, entry, reading->slot, slots, wanted <= page_rows)) readable = wanted;",
        "if (kv_look_and_bound(check, entry, reading->slot, slots, wanted <= page_rows)) readable = wanted + 1;",
        "out_of_bounds",
    ),
    "a row behind the page is written": (
        ("v32", "quantise_insert"),
        "kv_look_and_bound(check, entry, slot, slots, row < page_rows)",
        "kv_look_and_bound(check, entry, slot, slots, row <= page_rows)",
        "out_of_bounds",
    ),
    "a shuffle that half of a warp skips": (
        ("v4", "quantise_insert"),
        "      if (unit < kV4CodeUnits) {\n        *(kv_u64*)",
        "      if (lane >= 16) __syncwarp();\n      if (unit < kV4CodeUnits) {\n        *(kv_u64*)",
        "warp_divergence",
    ),
    "codes by 16 bytes at multiples of 8": (
        ("v32", "gather_dequantise"),
        "const kv_u64 codes = kv_load_relaxed((const kv_u64*)(data + unit * 8));\n"
        "      kv_store16(target + unit * 8, kv_to_bf16(kv_dequantised(codes, scale)));\n"
        "    }\n    if (lane < kV32RopeUnits)",
        "const kv_vec16 both = kv_load16(data + unit * 8);\n"
        "      const kv_u64 codes = both.x | (kv_u64)both.y << 32;\n"
        "      kv_store16(target + unit * 8, kv_to_bf16(kv_dequantised(codes, scale)));\n"
        "    }\n    if (lane < kV32RopeUnits)",
        "misaligned",
    ),
    "a write through the arena": (
        ("v4", "gather_dequantise"),
        "      kv_store16(target + unit * 8, halves);",
        "      kv_store16(unit < 4 ? (kv_u16*)data + unit * 8 : target + unit * 8, halves);",
        "const_write",
    ),
    "scales that nobody keeps": (
        ("rows", "quantise_insert"), "    if (lane == 0) scales[n] = scale;\n", "", "uninitialised",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_bug_is_found_by_what_is_meant_for_it(name: str) -> None:
    form, find, replace, kind = FAULTS[name]
    case = Case(*form)
    if not case.is_gather:
        case.rows[-1] = case.page_rows  # refused
    case.run()  # sound as it is
    with pytest.raises(HostFault) as caught:
        case.run(sources=edited((find, replace)))
    assert caught.value.kind == kind


MEANINGS = {
    "scales may be flushed": (
        ("rows", "quantise_insert"),
        "__fdiv_rn(fmaxf(kv_bits_float(peak), least_peak), kE4m3Max)",
        "__fdiv_rn(kv_bits_float(peak) + 0.0f * least_peak, kE4m3Max)",
    ),
    "infinities move the scale": (
        ("v32", "quantise_insert"), "return bits < 0x7F800000u ? bits : 0u;", "return bits <= 0x7F800000u ? bits : 0u;",
    ),
    "scales rounded down": (
        ("v4", "quantise_insert"), "(bits >> 23) + ((bits & 0x7FFFFFu) != 0u)", "(bits >> 23)",
    ),
    "the scale of the group before": (
        ("v4", "gather_dequantise"), "(unit * 8 / kV4Group * 8)", "((unit * 8 - 1) / kV4Group * 8 % 64)",
    ),
    "no look at the word": (
        ("v32", "gather_dequantise"),
        "if (kv_look(check, entry, slot, slots) != kv_refusal::kApplied) return false;",
        "if (slot < 0 || (kv_u32)slot >= slots) return false;",
    ),
    "the greatest of half a group": (
        ("rows", "quantise_insert"), "kv_scale(kv_greatest(peak, kWarpLanes)", "kv_scale(kv_greatest(peak, 8)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANINGS)
def test_a_planted_change_of_meaning_is_no_parity(name: str) -> None:
    form, find, replace = MEANINGS[name]
    given = RNG.standard_normal((PAGES * 8, FORMATS[form[0]][1])).astype(np.float32)
    given[0] *= np.float32(1e-38)
    given[1, 3] = np.inf
    case = Case(*form, page_rows=8, stride=5376, given=given)
    if case.is_gather:
        case.check.expected[1] = 0
    right = case.right()
    assert all(map(np.array_equal, case.run()[1:], right))
    found = case.run(sources=edited((find, replace)))[1:]
    assert not all(map(np.array_equal, found, right))
