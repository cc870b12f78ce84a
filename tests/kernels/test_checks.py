"""Checks: what plans refuse, what launches move, what a checksum notices, and that planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.checks import (
    PAGE_CHECKSUM,
    checksum,
    page_checksum,
    page_checksum_plan,
    verified_prefix_plan,
)
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.launch import LaunchPlan, LaunchRefused, Pointer
from kvfsm.kernels.reading import Check, Side
from kvfsm.kernels.source import source_of

from ..hostcuda.building import Build
from ..hostcuda.faults import HostFault
from ..hostcuda.host import HostLauncher, edited
from ..hostcuda.schedules import Random
from .compiling import LACKS, TABLE_MAJOR, compiled, disassembler, nvrtcs
from .pools import Uploaded, random_bytes, some_slots, sound_check
from .sass import loops
from .traffic import moved_bytes

RNG = np.random.default_rng(7)
WASTE = 1.05


def pointer(size: int, address: int = 4096) -> Pointer:
    return Pointer(address, size)


# ---- plans ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"arena": pointer(4096, 4104)}, r"argument 0 'arena' .* must be a multiple of 16"),
        ({"size": 100}, "'bytes' .* is 100; fix: use a multiple of 16"),
        ({"stride": 1000}, "'stride' .* is 1000; fix: use a multiple of 16"),
        ({"stride": 512}, "'stride' .* is 512; fix: 1024 bytes of a slot need a stride of at least 1024"),
        ({"ids": pointer(8)}, "'ids' .* the plan needs 12 bytes there"),
        ({"sums": 16}, "'sums' .* the plan needs 24 bytes there"),
        ({"live": pointer(4)}, "'live' .* the plan needs 8 bytes there"),
    ],
)
def test_a_bad_checksum_is_refused_with_its_fix(changed: dict[str, Any], said: str) -> None:
    def planned(size: int = 1024, sums: int = 24, **changed: Any) -> LaunchPlan:
        entries = Entries(pointer(4096), 1024, 4, pointer(12), 3)
        return page_checksum_plan(replace(entries, **changed), size, pointer(sums))

    assert planned().grid == (3, 1, 1)
    assert planned(most=0).is_empty
    with pytest.raises(LaunchRefused, match=said):
        planned(**changed)


def prefix_check(**changed: Any) -> Check[Pointer]:
    sound: dict[str, Any] = {"words": pointer(32), "expected": pointer(28), "refusals": pointer(0)}
    return Check("compressed_kv", **sound | changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"wanted": None}, "'sums' .*; fix: pass sums and wanted, or None for both"),
        ({"check": prefix_check(side=Side.WRITER)}, "'machine' .* is of <Side.WRITER: 1>; fix: a prefix is"),
        ({"check": prefix_check(words=pointer(31))}, "'words' .* the plan needs 32 bytes there"),
        ({"check": prefix_check(expected=pointer(27))}, "'expected' .* the plan needs 28 bytes there"),
        ({"offsets": pointer(8)}, "'offsets' .* the plan needs 12 bytes there"),
        ({"verified": pointer(4)}, "'verified' .* the plan needs 8 bytes there"),
        ({"reasons": pointer(1)}, "'reasons' .* the plan needs 2 bytes there"),
        ({"sums": pointer(8)}, "'sums' .* the plan needs 56 bytes there"),
    ],
)
def test_a_bad_prefix_is_refused_with_its_fix(changed: dict[str, Any], said: str) -> None:
    sound: dict[str, Any] = {
        "check": prefix_check(), "offsets": pointer(12), "ids": pointer(28), "slots": 4, "blocks": 7, "most": 2,
        "verified": pointer(8), "reasons": pointer(2), "sums": pointer(56), "wanted": pointer(56),
    }  # fmt: skip
    assert verified_prefix_plan(**sound).grid == (2, 1, 1)
    with pytest.raises(LaunchRefused, match=said):
        verified_prefix_plan(**sound | changed)


# ---- meanings -------------------------------------------------------------------------------------------------------


def test_a_checksum_notices_every_bit_every_move_and_every_length() -> None:
    page = random_bytes(RNG, 1, 128)
    page[0, 32:48] = page[0, 64:80] + 1
    sums = {int(checksum(page)[0])}
    for bit in range(8 * 128):
        changed = page.copy()
        changed[0, bit // 8] ^= 1 << bit % 8
        sums.add(int(checksum(changed)[0]))
    assert len(sums) == 1 + 8 * 128
    rows = page.reshape(8, 16)
    swapped = [rows[np.r_[:a, b, a + 1 : b, a, b + 1 : 8]] for a in range(8) for b in range(a + 1, 8)]
    sums |= {int(checksum(one.reshape(1, 128))[0]) for one in swapped}
    assert len(sums) == 1 + 8 * 128 + len(swapped)
    zeros = [int(checksum(np.zeros((1, 16 * count), np.uint8))[0]) for count in range(20)]
    assert len(set(zeros)) == 20


def test_a_checksum_notices_small_numbers_that_change_places() -> None:
    # The case in which a sum of keyed products is weak: equal sums of numbers, keys that differ by little.
    rows = np.array([[1, 2, 3, 4], [2, 1, 4, 3], [4, 3, 2, 1], [3, 4, 1, 2], [0, 3, 3, 4]], "<u4")
    orders = [np.roll(rows, turn, axis=0)[::step] for turn in range(5) for step in (1, -1)]
    sums = [int(checksum(np.ascontiguousarray(order).view(np.uint8).reshape(1, 80))[0]) for order in orders]
    assert len(set(sums)) == len(sums)


def test_without_a_check_every_number_must_be_a_slot() -> None:
    with pytest.raises(IndexError, match=r"there is no slot -1 in an arena of 3; fix: pass slots of \[0, 3\)"):
        page_checksum(random_bytes(RNG, 3, 32), np.array([2, -1]), np.zeros(2, np.uint64))


# ---- what launches move ---------------------------------------------------------------------------------------------


def launched(plan: Callable[[Uploaded], LaunchPlan], build: Build = Build.CHECK, **options: Any) -> HostLauncher:
    launcher = HostLauncher(build, **options)
    launcher.launch(plan(Uploaded(launcher)))
    return launcher


def a_checksum(up: Uploaded, pages: int = 4, size: int = 37440) -> LaunchPlan:
    arena, ids = random_bytes(RNG, pages, size), np.arange(pages, dtype=np.int32)
    check = up.check(sound_check("compressed_kv", pages, pages))
    return page_checksum_plan(
        Entries(up(arena), size, pages, up(ids), pages), size, up(np.zeros(pages, np.uint64)), check=check
    )  # fmt: skip


def test_a_checksum_reads_its_pages_once_and_little_else() -> None:
    launcher = launched(a_checksum)
    least = 4 * 37440
    assert least <= moved_bytes(launcher) <= WASTE * least
    assert launcher.traffic is not None
    wide = [site for site in launcher.traffic.sites if site.bytes > 4096]
    assert {(site.width, site.is_write) for site in wide} == {(16, False)}


def a_prefix(up: Uploaded, blocks: int = 600) -> LaunchPlan:
    ids, sums = some_slots(RNG, 64, blocks), RNG.integers(99, size=blocks).astype(np.uint64)
    check = up.check(sound_check("compressed_kv", 64, blocks))
    assert check is not None
    offsets, verified = np.array([0, 0, blocks], np.uint32), np.zeros(2, np.uint32)
    return verified_prefix_plan(
        check, up(offsets), up(ids), 64, blocks, 2, up(verified), up(np.zeros(2, np.uint8)),
        sums=up(sums), wanted=up(sums.copy()),
    )  # fmt: skip


def test_a_prefix_reads_24_bytes_a_block_beside_its_words() -> None:
    traffic = launched(lambda up: a_prefix(up, 3000)).traffic
    assert traffic is not None
    least = 3000 * 24
    assert least <= traffic.bytes_moved <= WASTE * least
    words = [site for site in traffic.sites if site.is_atomic]
    assert sum(site.bytes for site in words) <= 3000 * 8


MOST_INSTRUCTIONS = 20
"""For 16 bytes: with more, an H200 would compute a checksum more slowly than it reads the page."""


def instructions_for_16_bytes(cubin: bytes) -> float:
    """In the loop of the checksum that loads the most."""
    turns = [(sum(one.startswith("LDG.E.128") for one in code), len(code)) for code in loops(cubin, "page_checksum")]
    vectors, count = max(turns)
    assert vectors > 0
    return count / vectors


@pytest.mark.xdist_group("nvrtc")  # what other tests compiled this one has
@pytest.mark.skipif(TABLE_MAJOR not in nvrtcs() or disassembler() is None, reason=f"{LACKS}, or nvidia-cuda-nvdisasm")
def test_a_checksum_takes_few_instructions() -> None:
    for architecture in ("sm_80", "sm_90", "sm_100", "sm_120"):
        assert instructions_for_16_bytes(compiled("checks.cu", architecture).cubin) <= MOST_INSTRUCTIONS
    slow = source_of(PAGE_CHECKSUM).replace("sum += checked16(held[k]", "sum = spread(sum, at) + checked16(held[k]")
    assert instructions_for_16_bytes(nvrtcs()[TABLE_MAJOR].compile(slow, "sm_90").cubin) > MOST_INSTRUCTIONS


# ---- planted bugs ---------------------------------------------------------------------------------------------------


LOOKED = "  __syncthreads();  // all reads come after thread 0's acquire\n"
PARTS = "  __syncthreads();  // parts are there, and all reads come before thread 0's second look\n"
CHUNK = "    __syncthreads();  // all have read before the next chunk writes\n"
FIRSTS = "    if (kv_lane() == 0) firsts[kv_warp()] = first;\n    __syncthreads();\n"

PLANTED = {
    "no barrier after the first look": (a_checksum, LOOKED, "", "race or uninitialised"),
    "no barrier before parts are added": (a_checksum, PARTS, "", "race or uninitialised"),
    "a barrier for some threads only": (
        a_checksum, PARTS, "  if (threadIdx.x < 32) __syncthreads();\n  else __syncthreads();\n", "barrier_divergence",
    ),
    "a vector past the page": (a_checksum, "at < end; at += kThreads)", "at <= end; at += kThreads)", "out_of_bounds"),
    "parts of warps that are not there": (
        a_checksum, "/ kWarpLanes; ++k) sum", "/ kWarpLanes + 1; ++k) sum", "undefined",
    ),
    "no barrier between chunks": (a_prefix, CHUNK, "", "race"),
    "no barrier before the least is found": (
        a_prefix, FIRSTS, "    if (kv_lane() == 0) firsts[kv_warp()] = first;\n", "race or uninitialised",
    ),
    "blocks of a request that has fewer": (a_prefix, "    if (at < end) {", "    if (at <= end) {", "out_of_bounds"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found_by_what_is_meant_for_it(name: str) -> None:
    plan, find, replace, kind = PLANTED[name]
    launched(plan, schedule=Random(3))  # sound as it is
    build = Build.UNDEFINED if kind == "undefined" else Build.CHECK
    with pytest.raises(HostFault) as caught:
        launched(plan, build, sources=edited((find, replace)), schedule=Random(3))
    assert caught.value.kind in kind.split(" or ")


@pytest.mark.parametrize("plan", [a_checksum, a_prefix], ids=lambda one: one.__name__)
def test_nothing_is_left_undefined(plan: Callable[[Uploaded], LaunchPlan]) -> None:
    launched(plan, Build.UNDEFINED)
