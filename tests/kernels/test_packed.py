"""The packed form: bits come back, room is saved, and slots that may not be touched are left."""

from __future__ import annotations

import numpy as np
import pytest

from kvfsm.kernels import packed
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.floats import from_bf16, to_bf16
from kvfsm.kernels.launch import LaunchRefused, Pointer
from kvfsm.kernels.packed_form import cut
from kvfsm.kernels.packed_slot import expand_slots, pack_slots, unwrapped
from kvfsm.kernels.reading import Check, Side
from kvfsm.runtime.generated import Refusal
from kvfsm.runtime.generated.compressed_kv import LAYOUT as WORD
from kvfsm.runtime.generated.compressed_kv import CompressedKvState
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.layout import Layout

from .packable import LAYOUTS, MIXED, random_slots

TINY = PROFILES["tiny_deepseek_v4"].layouts["compressed_kv"]
FLASH = PROFILES["deepseek_v4_flash"].layouts["compressed_kv"]


def payloads(layout: Layout, data: np.ndarray) -> list[np.ndarray]:
    return [data[:, part.offset : part.end] for part in layout.parts]


@pytest.mark.parametrize("layout", [*LAYOUTS.values(), TINY, FLASH], ids=[*LAYOUTS, "tiny", "flash"])
@pytest.mark.parametrize("seed", [0, 1])
def test_lossless_bytes_come_back_whatever_they_are(layout: Layout, seed: int) -> None:
    data = random_slots(layout, seed, 3)
    back = expand_slots(layout, pack_slots(layout, data))
    for one, other in zip(payloads(layout, data), payloads(layout, back), strict=True):
        assert np.array_equal(one, other)
    between = np.ones(layout.slot_bytes, bool)
    for part in layout.parts:
        between[part.offset : part.end] = False
    assert not back[:, between].any()


def test_numbers_take_less_room() -> None:
    chance = np.random.default_rng(2)
    normal = chance.standard_normal((4, TINY.slot_bytes // 4)).astype(np.float32)
    for blob in pack_slots(TINY, normal.view(np.uint8)):
        assert len(blob) < 0.95 * TINY.slot_bytes
    zeros = pack_slots(FLASH, np.zeros((1, FLASH.slot_bytes), np.uint8))[0]
    assert len(zeros) < 0.03 * FLASH.slot_bytes
    noise = chance.integers(0, 256, (1, FLASH.slot_bytes)).astype(np.uint8)
    assert len(pack_slots(FLASH, noise)[0]) < 1.03 * FLASH.slot_bytes


def test_bodies_are_as_long_as_the_cut_says_at_most() -> None:
    for layout in (*LAYOUTS.values(), TINY, FLASH):
        noise = np.random.default_rng(3).integers(0, 256, (1, layout.slot_bytes)).astype(np.uint8)
        for lossy in (False, True):
            body = unwrapped(layout, pack_slots(layout, noise, lossy)[0]).body
            assert len(body) <= cut(layout).body_most
    assert len(unwrapped(FLASH, pack_slots(FLASH, noise)[0]).body) == cut(FLASH).body_most


def test_the_lossy_form_is_fp8_with_a_scale_a_block() -> None:
    data = np.zeros((1, MIXED.slot_bytes), np.uint8)
    chance = np.random.default_rng(4)
    singles = (chance.standard_normal(75) * 100).astype(np.float32)
    halves = to_bf16(chance.standard_normal(300).astype(np.float32))
    singles_part, halves_part = MIXED.part("singles", 0), MIXED.part("halves", 0)
    data[0, singles_part.offset : singles_part.end] = singles.view(np.uint8)
    data[0, halves_part.offset : halves_part.end] = halves.view(np.uint8)
    back = expand_slots(MIXED, pack_slots(MIXED, data, lossy=True))
    single = back[0, singles_part.offset : singles_part.end].copy().view(np.float32)
    half = from_bf16(back[0, halves_part.offset : halves_part.end].copy().view(np.uint16))
    peak = np.abs(singles).max()
    assert (
        0 < np.abs(single - singles).max() and (np.abs(single - singles) <= np.abs(singles) / 15 + peak / 2**17).all()
    )
    before = from_bf16(halves)
    peaks = np.repeat([np.abs(before[:256]).max(), np.abs(before[256:]).max()], [256, 44])
    assert (np.abs(half - before) <= np.abs(before) * 0.067 + peaks / 2**17).all()
    for name in ("bytes", "longs", "doubles"):
        part = MIXED.part(name, 0)
        assert np.array_equal(back[0, part.offset : part.end], data[0, part.offset : part.end])


def test_what_is_no_plain_number_stays_what_it_is() -> None:
    slot = np.zeros(TINY.slot_bytes // 4, np.float32)
    slot[:6] = [np.nan, np.inf, -np.inf, 3.0, 2e-38, -0.0]
    slot[256:260] = [2e-38, -1.5e-38, 1e-40, np.nan]
    bits = slot.view(np.uint32)
    bits[10] = 0xFF800001  # a NaN of its own
    data = slot.view(np.uint8)[None]
    assert np.array_equal(expand_slots(TINY, pack_slots(TINY, data)), data)
    back = expand_slots(TINY, pack_slots(TINY, data, lossy=True)).view(np.float32)[0]
    assert np.isnan(back[[0, 10, 259]]).all() and back[1:4].tolist() == [3.0, -3.0, 3.0]
    assert np.abs(back[256:258] / slot[256:258] - 1).max() < 0.07 and back[258] == 0
    assert np.isnan(back).sum() == 3


def test_slots_that_may_not_be_touched_are_left() -> None:
    data = random_slots(TINY, 9, 3)
    made = cut(TINY)
    states = (CompressedKvState.COMPRESSING, CompressedKvState.EXPANDING, CompressedKvState.RESIDENT)
    words = np.array([WORD.pack(state=state, generation=3) for state in states], np.uint64)
    expected, refusals = np.array([3, 2, 3], np.uint32), np.zeros(3, np.uint8)
    check = Check("compressed_kv", words, expected, refusals, Side.WRITER)
    out, sizes = np.zeros((3, made.body_most), np.uint8), np.zeros(3, np.uint32)
    packed.pack(made, data, np.arange(3, dtype=np.int32), False, out, sizes, check)
    assert refusals.tolist() == [0, Refusal.STALE, Refusal.ILLEGAL]
    body = unwrapped(TINY, pack_slots(TINY, data[:1])[0]).body
    assert sizes.tolist() == [len(body), 0, 0] and out[0, : len(body)].tobytes() == body
    assert not out[1:].any()
    arena, bodies = np.zeros_like(data), np.frombuffer(body, np.uint8)
    at, forms = np.zeros(3, np.uint64), np.zeros(3, np.uint8)
    refusals[:], expected[:] = 0, 3
    packed.expand(made, arena, np.arange(3, dtype=np.int32), bodies, at, forms, check)
    assert refusals.tolist() == [0, 0, Refusal.ILLEGAL]
    assert np.array_equal(arena[:2], data[[0, 0]]) and not arena[2].any()


def test_plans_refuse_what_kernels_do_not_take() -> None:
    made, memory = cut(TINY), Pointer(1 << 20, 1 << 20)
    slots = Entries(memory, 2560, 3, memory, 3)
    assert packed.expand_plan(made, memory, slots, memory, memory, memory).grid == (3, 1, 1)
    assert packed.pack_plan(made, memory, slots, True, memory, 2720, memory).grid == (3, 1, 1)
    with pytest.raises(LaunchRefused, match=f"'out_stride' .* is 2560; fix: pass at least {made.body_most}"):
        packed.pack_plan(made, memory, slots, False, memory, 2560, memory)
    short = Entries(Pointer(1 << 20, 3 * 2560 - 1), 2560, 3, memory, 3)
    with pytest.raises(LaunchRefused, match="needs 7680 bytes"):
        packed.expand_plan(made, memory, short, memory, memory, memory)
    with pytest.raises(LaunchRefused, match=r"'stride' .* is 2568; fix: use a multiple of 16"):
        packed.expand_plan(made, memory, Entries(memory, 2568, 3, memory, 3), memory, memory, memory)
    flash = Entries(Pointer(1 << 20, 1 << 30), FLASH.slot_bytes, 3, memory, 3)
    assert packed.expand_plan(cut(FLASH), memory, flash, memory, memory, memory).grid == (3 * 100, 1, 1)
