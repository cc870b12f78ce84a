"""Copies: what plans refuse, what launches move, what references promise, and that planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvfsm.kernels.copies import (
    STRIP_BYTES,
    WARPS,
    gather,
    gather_plan,
    indexer_gather,
    indexer_gather_plan,
    scatter,
    scatter_plan,
    scrub,
    scrub_plan,
    window_gather_plan,
)
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.launch import LaunchPlan, LaunchRefused, Pointer
from kvfsm.kernels.reading import Check
from kvfsm.kernels.reference import NumpyBackend
from kvfsm.kernels.source import source_of
from kvfsm.runtime.generated import Refusal

from ..hostcuda.building import Build
from ..hostcuda.faults import HostFault
from ..hostcuda.host import HostLauncher, edited
from . import test_copies_parity as parity
from .pools import Uploaded, copied, random_bytes, sound_check
from .traffic import moved_bytes

RNG = np.random.default_rng(5)


# ---- plans ----------------------------------------------------------------------------------------------------------


def pointer(size: int, address: int = 4096) -> Pointer:
    return Pointer(address, size)


HUGE = pointer(2**60)


def planned(**changed: Any) -> LaunchPlan:
    """A sound gather of 4 of 10 slots, 256 bytes of each, with some arguments changed."""
    given: dict[str, Any] = {"bytes": 256, "out": pointer(1024), "check": None}
    given |= {name: changed.pop(name) for name in given.keys() & changed.keys()}
    return gather_plan(replace(Entries(pointer(10 * 512), 512, 10, pointer(16), 4), **changed), **given)


def checked(**changed: Any) -> Check[Pointer]:
    sound: dict[str, Any] = {"words": pointer(80), "expected": pointer(16), "refusals": pointer(4)}
    return Check("swa_window", **sound | changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"arena": pointer(5120, 4104)}, r"argument 0 'arena' .* must be a multiple of 16"),
        ({"out": pointer(1024, 4100)}, r"argument 7 'out' .* must be a multiple of 16"),
        ({"bytes": 250}, r"argument 6 'bytes' \(u32\) is 250; fix: use a multiple of 16"),
        ({"stride": 520}, r"argument 1 'stride' \(u64\) is 520; fix: use a multiple of 16"),
        ({"stride": 240}, "'stride' .* is 240; fix: 256 bytes of a slot need a stride of at least 256"),
        ({"arena": pointer(9 * 512 + 255)}, "the plan needs 4864 bytes there"),
        ({"ids": pointer(15)}, "'ids' .* the plan needs 16 bytes there"),
        ({"out": pointer(1023)}, "'out' .* the plan needs 1024 bytes there"),
        ({"live": pointer(4)}, "'live' .* the plan needs 8 bytes there"),
        ({"check": checked(words=pointer(79))}, "'words' .* the plan needs 80 bytes there"),
        ({"check": checked(expected=pointer(15))}, "'expected' .* the plan needs 16 bytes there"),
        ({"check": checked(refusals=pointer(3))}, "'refusals' .* the plan needs 4 bytes there"),
        (
            {"most": 2**32 - 1, "bytes": 8208, "stride": 16384, "arena": HUGE, "ids": HUGE, "out": HUGE},
            "'most' .* is 4294967295; fix: launch fewer than 2.*32 strips; these are 8589934590",
        ),
    ],
)
def test_a_bad_plan_is_refused_with_its_fix(changed: dict[str, Any], said: str) -> None:
    assert planned(check=checked()).grid == (1, 1, 1)
    with pytest.raises(LaunchRefused, match=said):
        planned(**changed)


def test_slots_of_another_width_are_not_taken_for_others() -> None:
    """A manager's slots and generations are int64, as torch's indexes are: read as int32, every other one is 0."""
    launcher, ids = HostLauncher(), np.array([3, 2], np.int64)
    with pytest.raises(LaunchRefused, match=r"'ids' \(const i32\*\) holds int64; fix: pass int32 or uint32"):
        planned(ids=launcher.upload(ids).pointer, most=2)
    wrong = checked(expected=launcher.upload(np.ones(4, np.int64)).pointer)
    with pytest.raises(LaunchRefused, match=r"'expected' \(const u32\*\) holds int64; fix: pass uint32 or int32"):
        planned(check=wrong)
    assert planned(ids=launcher.upload(ids.astype(np.int32)).pointer, most=2).kernel.name == "gather"


@pytest.mark.parametrize("empty", [{"most": 0}, {"bytes": 0}], ids=str)
def test_nothing_to_copy_is_no_launch(empty: dict[str, int]) -> None:
    assert planned(**empty).is_empty


@pytest.mark.parametrize("out_rows", [0, 3, 8])
@pytest.mark.parametrize("starts", [[5, 7, 2, 4], [7, 9, 2, 0], [0, 8, 8, 8]], ids=str)
def test_rows_that_there_are_not_are_left_out_and_refuse_nothing(starts: list[int], out_rows: int) -> None:
    """Ranges that descend, that are longer than a slot, and that end behind the output."""
    launcher, keys, ids = HostLauncher(Build.CHECK), random_bytes(RNG, 4, 2 * 32), np.array([3, 0, 1], np.int32)
    up, out, refusals = launcher.upload, np.full((out_rows, 32), 99, np.uint8), np.zeros(3, np.uint8)
    at, found, told = np.array(starts, np.uint32), up(out), up(refusals)
    check = sound_check("indexer_state", 4, 3)
    remote = Check("indexer_state", up(check.words).pointer, up(check.expected).pointer, told.pointer)
    launcher.launch(
        indexer_gather_plan(
            up(keys).pointer, None, 64, 4, up(ids).pointer, up(at).pointer, 3, 2, 32, 0, found.pointer, None, out_rows,
            check=remote,
        )
    )  # fmt: skip
    indexer_gather(keys.reshape(4, 2, 32), None, ids, at, out, None, check=check)
    np.testing.assert_array_equal(found.download(), out)
    assert not told.download().any() and not check.refusals.any()


def test_a_warp_has_a_strip() -> None:
    large = {"arena": pointer(10 * 32768), "ids": pointer(32), "out": pointer(2**20)}
    plan = planned(bytes=2 * STRIP_BYTES + 16, stride=32768, most=8, **large)
    assert plan.grid == (3 * 8 // WARPS, 1, 1)
    assert f"kStripBytes = {STRIP_BYTES};" in source_of(plan.kernel)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"rows": 130},
            "'rows' .* is 130; fix: gather at most 129, or use a wider table: 9 entries of 16 rows hold the last 129",
        ),
        ({"width": 1, "rows": 17}, "1 entries of 16 rows hold the last 16 at least"),
        ({"rows": 0}, "'rows' .* is 0; fix: pass at least 1"),
        ({"page_rows": 5}, "'page_rows' .* is 5; fix: use a divisor of 16"),
        ({"row_bytes": 6}, "'row_bytes' .* is 6; fix: use a multiple of 4"),
        ({"page_rows": 8, "page_stride": 256}, "'page_stride' .* is 256; fix: pages take at least 512 bytes"),
        ({"table": pointer(4 * 9 * 3 - 1)}, "'table' .* the plan needs 108 bytes there"),
        ({"positions": pointer(16)}, "'positions' .* the plan needs 24 bytes there"),
        ({"out": pointer(100)}, "'out' .* the plan needs 24576 bytes there"),
        (
            {"width": 2**30, "most": 4, "table": HUGE, "out": HUGE, "positions": HUGE},
            "'width' .* is 1073741824; fix: launch fewer than 2.*32 entries; 4 requests have 4294967296",
        ),
    ],
)
def test_a_bad_window_is_refused_with_its_fix(changed: dict[str, Any], said: str) -> None:
    sound: dict[str, Any] = {
        "arena": pointer(2**16), "stride": 2048, "slots": 4, "table": pointer(108), "width": 9, "block_rows": 16,
        "positions": pointer(24), "rows": 128, "most": 3, "row_bytes": 64, "out": pointer(3 * 128 * 64),
    }  # fmt: skip
    assert not window_gather_plan(**sound).is_empty
    with pytest.raises(LaunchRefused, match=said):
        window_gather_plan(**sound | changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"scales": None}, "'out_scales' .*; fix: pass scales and out_scales, or None for both"),
        ({"key_bytes": 100}, "'key_bytes' .* is 100; fix: use a multiple of 16"),
        ({"scale_bytes": 2}, "'scale_bytes' .* is 2; fix: use a multiple of 4"),
        ({"starts": pointer(12)}, "'starts' .* the plan needs 16 bytes there"),
        ({"out_keys": pointer(10)}, "'out_keys' .* the plan needs 12800 bytes there"),
        ({"out_scales": pointer(8)}, "'out_scales' .* the plan needs 400 bytes there"),
        ({"scales": pointer(8)}, "'scales' .* the plan needs"),
        ({"slot_rows": 0}, "'slot_rows' .* is 0; fix: pass at least 1"),
        (
            {"check": Check("indexer_state", pointer(32), pointer(12), pointer(3), versions=pointer(8))},
            "'versions' .* the plan needs 12 bytes there",
        ),
    ],
)
def test_a_bad_indexer_gather_is_refused_with_its_fix(changed: dict[str, Any], said: str) -> None:
    sound: dict[str, Any] = {
        "keys": pointer(2**16), "scales": pointer(2**16), "stride": 8640, "slots": 4, "ids": pointer(12),
        "starts": pointer(16), "most": 3, "slot_rows": 64, "key_bytes": 128, "scale_bytes": 4,
        "out_keys": pointer(12800), "out_scales": pointer(400), "out_rows": 100,
    }  # fmt: skip
    assert not indexer_gather_plan(**sound).is_empty
    with pytest.raises(LaunchRefused, match=said):
        indexer_gather_plan(**sound | changed)


# ---- references -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-1, 4])
def test_without_a_check_every_number_must_be_a_slot(wrong: int) -> None:
    arena, ids = random_bytes(RNG, 4, 16), np.array([0, wrong])
    said = rf"there is no slot {wrong} in an arena of 4; fix: pass slots of \[0, 4\)"
    with pytest.raises(IndexError, match=said):
        gather(arena, ids)
    with pytest.raises(IndexError, match=said):
        gather(arena, ids, random_bytes(RNG, 2, 16))
    with pytest.raises(IndexError, match=said):
        scatter(arena, ids, random_bytes(RNG, 2, 16))
    with pytest.raises(IndexError, match=said):
        scrub(arena, ids)
    scrub(arena, ids, live=1)  # what is not in use may be any number
    assert not arena[0].any() and arena[1:].any(axis=1).all()


def test_new_memory_holds_zeros_where_an_entry_was_refused() -> None:
    arena, check = random_bytes(RNG, 4, 16), sound_check("swa_window", 4, 3)
    check.expected[1] = 2
    out = gather(arena, np.array([0, 1, 2]), check=check)
    assert (out[0] == arena[0]).all() and not out[1].any() and (out[2] == arena[2]).all()
    assert check.refusals.tolist() == [0, Refusal.STALE, 0]


def test_the_numpy_backend_is_the_references() -> None:
    backend, arena = NumpyBackend(), random_bytes(RNG, 6, 3, 16)
    ids, data = np.array([4, 1]), random_bytes(RNG, 2, 3, 16)
    np.testing.assert_array_equal(backend.gather(arena, ids), gather(arena, ids))
    backend.scatter(arena, ids, data)
    np.testing.assert_array_equal(arena[[4, 1]], data)
    backend.scrub(arena, ids)
    assert not arena[[4, 1]].any() and arena[[0, 2, 3, 5]].any(axis=(1, 2)).all()


# ---- what launches move ---------------------------------------------------------------------------------------------

WASTE = 1.05


def launched(plan: Callable[[Uploaded], LaunchPlan], build: Build = Build.CHECK, **options: Any) -> HostLauncher:
    launcher = HostLauncher(build, **options)
    launcher.launch(plan(Uploaded(launcher)))
    return launcher


@pytest.mark.parametrize("size", [4096, 2 * STRIP_BYTES, 2 * STRIP_BYTES + 2048])
def test_copies_of_slots_move_their_bytes_and_little_else(size: int) -> None:
    arena, ids, other = random_bytes(RNG, 9, size), np.arange(8, dtype=np.int32), random_bytes(RNG, 8, size)

    def check(up: Uploaded) -> Check[Pointer] | None:
        return up.check(sound_check("compressed_kv", 9, 8))

    total = 8 * size
    gathered = launched(lambda up: gather_plan(Entries(up(arena), size, 9, up(ids), 8), size, up(other), check(up)))
    assert 2 * total <= moved_bytes(gathered) <= WASTE * 2 * total
    scattered = launched(lambda up: scatter_plan(Entries(up(arena), size, 9, up(ids), 8), size, up(other)))
    assert 2 * total <= moved_bytes(scattered) <= WASTE * 2 * total
    scrubbed = launched(lambda up: scrub_plan(Entries(up(arena), size, 9, up(ids), 8), size))
    assert total <= moved_bytes(scrubbed) <= WASTE * total


def test_every_vector_of_a_copy_is_16_bytes_wide_and_a_warp_asks_for_whole_sectors() -> None:
    arena, ids, out = random_bytes(RNG, 2, 8192), np.array([1], np.int32), random_bytes(RNG, 1, 8192)
    launcher = launched(lambda up: gather_plan(Entries(up(arena), 8192, 2, up(ids), 1), 8192, up(out)))
    assert launcher.traffic is not None
    wide = [site for site in launcher.traffic.sites if site.bytes >= 2048]
    assert {site.is_write for site in wide} == {False, True}
    assert {(site.width, site.sectors_per_request, site.efficiency) for site in wide} == {(16, 16.0, 1.0)}


def test_a_window_moves_its_rows_and_little_else() -> None:
    stride, requests = 37440 * 2, 4
    arena, table = random_bytes(RNG, 4, stride), np.arange(4, dtype=np.int32).reshape(4, 1)
    positions = np.array([1000, 1063, 1064, 200])  # the ring begins anywhere
    for row_bytes, offset in ((576, 0), (8, 36864)):
        out = random_bytes(RNG, requests, 128, row_bytes)
        launcher = launched(
            lambda up, row_bytes=row_bytes, offset=offset, out=out: window_gather_plan(  # type: ignore[misc]
                up(arena).skip(offset), stride, 4, up(table), 1, 128, up(positions), 128, requests, row_bytes, up(out),
                page_rows=64, page_stride=37440, check=up.check(sound_check("swa_window", 4, 4)),
            )
        )  # fmt: skip
        least = 2 * requests * 128 * row_bytes
        # Scales are a 73rd of the bytes: what is read beside them shows there, and not in the whole.
        assert least <= moved_bytes(launcher) <= (WASTE if row_bytes == 576 else 1.5) * least


def test_an_indexer_gather_moves_keys_scales_and_a_word_a_block() -> None:
    arena, ids = random_bytes(RNG, 8, 8640), np.arange(8, dtype=np.int32)
    starts = np.arange(9, dtype=np.uint32) * 64
    check = sound_check("indexer_state", 8, 8)
    versioned = Check(check.kind, check.words, check.expected, check.refusals, versions=np.zeros(8, np.uint32))

    def plan(up: Uploaded) -> LaunchPlan:
        memory = up(arena)
        return indexer_gather_plan(
            memory, memory.skip(8192), 8640, 8, up(ids), up(starts), 8, 64, 128, 4, up(random_bytes(RNG, 512, 128)),
            up(random_bytes(RNG, 512, 4)), 512, check=up.check(versioned),
        )  # fmt: skip

    least = 2 * 512 * 132
    assert least <= moved_bytes(launched(plan)) <= WASTE * least


# ---- planted bugs ---------------------------------------------------------------------------------------------------


def a_gather(up: Uploaded, size: int = 3 * 2048 + 512, check: bool = True) -> LaunchPlan:
    """Of three slots."""
    arena, out = random_bytes(RNG, 4, size), np.zeros((3, size), np.uint8)
    found = sound_check("compressed_kv", 4, 3) if check else None
    ids = np.array([3, 0, 2], np.int32)
    return gather_plan(Entries(up(arena), size, 4, up(ids), 3), size, up(out), check=up.check(found))


def a_scale_gather(up: Uploaded) -> LaunchPlan:
    """Rows of 8 bytes."""
    out, positions = np.zeros((1, 10, 8), np.uint8), np.array([12])
    arena, table = random_bytes(RNG, 3, 64), np.array([[2, 1, 0]], np.int32)
    return window_gather_plan(up(arena), 64, 3, up(table), 3, 8, up(positions), 10, 1, 8, up(out))


def two_strips(up: Uploaded) -> LaunchPlan:
    """Of each slot: two warps refuse, or don't, for one entry."""
    return a_gather(up, STRIP_BYTES + 512)


def a_guarded_gather(up: Uploaded) -> LaunchPlan:
    """Of a table whose last entry is the guard."""
    arena, out, ids = random_bytes(RNG, 4, 64), np.zeros((2, 64), np.uint8), np.array([3, -1], np.int32)
    check = up.check(sound_check("swa_window", 4, 2))
    return gather_plan(Entries(up(arena), 64, 4, up(ids), 2), 64, up(out), check)


def a_stride_off_16(up: Uploaded) -> LaunchPlan:
    """What the plan refuses, launched all the same."""
    plan = a_gather(up)
    values = list(plan.values)
    values[1] = plan.value("stride") - 8  # type: ignore[operator]
    return LaunchPlan(plan.kernel, plan.grid, tuple(values))


PLANTED = {
    "a vector past the strip": (
        a_gather,
        "for (; at < end; at += kWarpLanes) store16",
        "for (; at <= end; at += kWarpLanes) store16",
        "out_of_bounds",
    ),
    "an entry too many": (
        a_gather, "if (live == nullptr) return most;", "if (live == nullptr) return most + 1;", "out_of_bounds",
    ),
    "a strip of the next slot": (
        two_strips, "min(kStripBytes, bytes - begin)", "kStripBytes", "out_of_bounds",
    ),
    "the guard is a slot": (
        a_guarded_gather, "slot >= 0 && (kv_u32)slot < slots", "(kv_u32)slot + 1u <= slots", "out_of_bounds",
    ),
    "scales copied 16 bytes at a time": (
        a_scale_gather, "const bool wide = row_bytes % 16 == 0;", "const bool wide = true;", "misaligned",
    ),
    "refusals written by plain stores": (
        two_strips,
        "  if (code != kv_refusal::kApplied) kv_refuse(check, entry, code);\n  return code;\n}\n\n#endif",
        "  check.refusals[entry] = code;\n  return code;\n}\n\n#endif",
        "race",
    ),
    "lane 0 is answered elsewhere": (
        a_gather,
        "  if (kv_lane() == 0) code = kv_look_again(check, entry, slot);\n",
        "  if (kv_lane() == 0) return __shfl_sync(kWholeWarp, kv_look_again(check, entry, slot) + 0u, 0);\n",
        "warp_divergence",
    ),
    "a write through the arena": (
        a_gather,
        "if (look_again(check, strip.item, slot) != kv_refusal::kApplied) fill16<false>(to, strip.bytes, 0);",
        "fill16<false>((kv_u8*)arena, 16, look_again(check, strip.item, slot));",
        "const_write",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found_by_what_is_meant_for_it(name: str) -> None:
    plan, find, replace, kind = PLANTED[name]
    launched(plan)  # sound as it is
    with pytest.raises(HostFault) as caught:
        launched(plan, sources=edited((find, replace)))
    assert caught.value.kind == kind


@pytest.mark.parametrize("plan", [a_gather, a_scale_gather, two_strips, a_guarded_gather], ids=lambda one: one.__name__)
def test_nothing_is_left_undefined(plan: Callable[[Uploaded], LaunchPlan]) -> None:
    launched(plan, Build.UNDEFINED)


def test_a_stride_that_no_plan_has_would_be_misaligned() -> None:
    with pytest.raises(HostFault) as caught:
        launched(a_stride_off_16)
    assert caught.value.kind == "misaligned"


PLANTED_MEANINGS = {
    "no look at the word": ("code = is_slot ? kv_answer(check, kv_load_acquire(check.words + slot), entry)",
                            "code = is_slot ? (kv_u8)(kv_load_acquire(check.words + slot) & 0)"),
    "no look at the generation": ("(kv_i64)check.expected[entry])", "kv_events::generation_of(check.machine, word))"),
    "an entry refused before is looked at again": ("if (code != kv_refusal::kApplied) return code;\n  code = is_slot",
                                                   "code = is_slot"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED_MEANINGS)
def test_a_planted_change_of_meaning_is_no_parity(name: str) -> None:
    arena, out, check = random_bytes(RNG, 4, 64), random_bytes(RNG, 5, 64), sound_check("swa_window", 4, 5)
    check.expected[1], check.refusals[2], check.words[3] = 0, 9, check.words[3] & ~np.uint64(15)
    ids = np.array([0, 1, 2, -1, 3], np.int32)

    def run(launcher: HostLauncher) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        up = Uploaded(launcher)
        launcher.launch(gather_plan(Entries(up(arena), 64, 4, up(ids), 5), 64, up(out), check=up.check(check)))
        return up.now(out), up.now(check.refusals)

    refused = copied(check)
    right = gather(arena, ids, out.copy(), check=refused), refused.refusals
    assert all(map(np.array_equal, run(HostLauncher()), right))
    found = run(HostLauncher(sources=edited(PLANTED_MEANINGS[name])))
    assert not all(map(np.array_equal, found, right))


def blocks(launcher: HostLauncher) -> None:
    parity.test_window_gather(launcher, np.random.default_rng(2), "blocks", False)


def no_slots(launcher: HostLauncher) -> None:
    parity.test_a_pool_without_slots_refuses_every_entry(launcher, np.random.default_rng(2))


DIFFERENCES: dict[str, tuple[Callable[[HostLauncher], None], str, str]] = {
    "positions of 31 bits": (blocks, "if (position < 0) return;", "if (position < 0 || position >> 31 != 0) return;"),
    "entries of 32 bits": (
        blocks, "(kv_u32)(page / block_pages % width)", "(kv_u32)page / block_pages % width",
    ),
    "without words there is no check": (
        no_slots, "return check.refusals != nullptr;", "return check.words != nullptr;",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_planted_difference_is_seen_by_parity(name: str) -> None:
    scenario, find, replace = DIFFERENCES[name]
    scenario(HostLauncher())
    with pytest.raises(AssertionError):
        scenario(HostLauncher(sources=edited((find, replace))))
