"""Slots packed and expanded by kernels are those of the references, byte for byte and refusal for refusal."""

from __future__ import annotations

import numpy as np
import pytest

from kvfsm.kernels import packed
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.launch import Launcher
from kvfsm.kernels.packed_form import cut
from kvfsm.kernels.packed_slot import expand_slots, pack_slots, unwrapped
from kvfsm.kernels.reading import Side
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.layout import Layout, Part

from .awkward import awkward_floats
from .packable import LAYOUTS, MIXED, random_slots
from .pools import Uploaded, check_of, copied, random_bytes, some_slots, with_strangers

LONG = Layout(
    "compressed_kv",
    1,
    (
        Part("rows", 0, 0, 33, 656, (656,), "uint8", "latent"),
        Part("singles", 0, 21648, 17, 2048, (512,), "float32", "latent"),
    ),
    56464,
    16,
)
"""More blocks than one block of threads takes."""

EVERY = LAYOUTS | {"tiny": PROFILES["tiny_deepseek_v4"].layouts["compressed_kv"], "long": LONG}


@pytest.fixture(params=EVERY.values(), ids=EVERY)
def layout(request: pytest.FixtureRequest) -> Layout:
    found: Layout = request.param
    return found


def awkward_slots(rng: np.random.Generator, layout: Layout, count: int) -> np.ndarray:
    """Some of numbers that are no plain ones."""
    data = random_slots(layout, int(rng.integers(1 << 32)), count)
    for part in layout.parts:
        if part.dtype == "float32":
            slot = int(rng.integers(count))
            numbers = awkward_floats(rng, part.rows, part.row_bytes // 4)
            data[slot, part.offset : part.end] = np.ascontiguousarray(numbers).view(np.uint8).reshape(-1)
    return data


def bodies_of(layout: Layout, data: np.ndarray, forms: list[bool]) -> tuple[np.ndarray, np.ndarray]:
    """Bodies behind one another at multiples of 32, with noise between, and where each begins."""
    begins, pieces, at = [], [], 0
    for slot, lossy in zip(data, forms, strict=True):
        body = np.frombuffer(unwrapped(layout, pack_slots(layout, slot[None], lossy)[0]).body, np.uint8)
        begins.append(at)
        pieces += [body, np.full(-len(body) % 32 + 32, 0xEE, np.uint8)]
        at += len(body) + -len(body) % 32 + 32
    return np.concatenate([np.zeros(0, np.uint8), *pieces]), np.array(begins, np.uint64)


@pytest.mark.parametrize("lossy", [False, True], ids=["lossless", "lossy"])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_pack(launcher: Launcher, rng: np.random.Generator, layout: Layout, lossy: bool, count: int) -> None:
    data, made, up = awkward_slots(rng, layout, 5), cut(layout), Uploaded(launcher)
    ids, stride = some_slots(rng, 5, count), -(-made.body_most // 32) * 32 + 32
    out, sizes = random_bytes(rng, count, stride), np.full(count, 7, np.uint32)
    entries = Entries(up(data), layout.slot_bytes, 5, up(ids), count)
    launcher.launch(packed.pack_plan(made, up(made.table), entries, lossy, up(out), stride, up(sizes)))
    right, right_sizes = out.copy(), sizes.copy()
    packed.pack(made, data, ids, lossy, right, right_sizes)
    np.testing.assert_array_equal(up.now(sizes), right_sizes)
    np.testing.assert_array_equal(up.now(out), right)
    for n, slot in enumerate(ids):
        body = unwrapped(layout, pack_slots(layout, data[slot][None], lossy)[0]).body
        assert right[n, : right_sizes[n]].tobytes() == body


@pytest.mark.parametrize("count", [0, 1, 4])
def test_expand(launcher: Launcher, rng: np.random.Generator, layout: Layout, count: int) -> None:
    data, made, up = awkward_slots(rng, layout, max(count, 1))[:count], cut(layout), Uploaded(launcher)
    forms = [bool(rng.integers(2)) for _ in range(count)]
    bodies, begins = bodies_of(layout, data, forms)
    arena, ids = random_bytes(rng, 5, layout.slot_bytes), some_slots(rng, 5, count, unique=True)
    lossy = np.array(forms, np.uint8)
    entries = Entries(up(arena), layout.slot_bytes, 5, up(ids), count)
    launcher.launch(packed.expand_plan(made, up(made.table), entries, up(bodies), up(begins), up(lossy)))
    right = arena.copy()
    packed.expand(made, right, ids, bodies, begins, lossy)
    np.testing.assert_array_equal(up.now(arena), right)
    for n, slot in enumerate(ids):
        (alone,) = expand_slots(layout, pack_slots(layout, data[n][None], forms[n]))
        for part in layout.parts:
            np.testing.assert_array_equal(right[slot, part.offset : part.end], alone[part.offset : part.end])


@pytest.mark.parametrize("live", [None, -1, 0, 5, 1000])
def test_both_refuse_by_slot(launcher: Launcher, rng: np.random.Generator, live: int | None) -> None:
    slots, count, made = 30, 20, cut(MIXED)
    data, up = awkward_slots(rng, MIXED, slots), Uploaded(launcher)
    ids = with_strangers(rng, some_slots(rng, slots, count, unique=True), slots)
    check = check_of(rng, "compressed_kv", slots, count, Side.WRITER)
    out, sizes = random_bytes(rng, count, 9216), np.full(count, 7, np.uint32)
    counted = None if live is None else np.array([live], np.int64)
    where = up(made.table), Entries(up(data), MIXED.slot_bytes, slots, up(ids), count, up.maybe(counted))
    launcher.launch(packed.pack_plan(made, *where, False, up(out), 9216, up(sizes), up.check(check)))
    right, right_sizes, refused = out.copy(), sizes.copy(), copied(check)
    packed.pack(made, data, ids, False, right, right_sizes, refused, live)
    np.testing.assert_array_equal(up.now(sizes), right_sizes)
    written = np.arange(9216) < np.where(right_sizes == 7, 0, right_sizes)[:, None]
    np.testing.assert_array_equal(np.where(written, up.now(out), 0), np.where(written, right, 0))
    np.testing.assert_array_equal(up.now(check.refusals), refused.refusals)

    bodies, begins = bodies_of(MIXED, data[:count], [False] * count)
    arena, again, lossy = random_bytes(rng, slots, MIXED.slot_bytes), copied(check), np.zeros(count, np.uint8)
    into = up(made.table), Entries(up(arena), MIXED.slot_bytes, slots, up(ids), count, up.maybe(counted))
    launcher.launch(packed.expand_plan(made, *into, up(bodies), up(begins), up(lossy), up.check(again)))
    right, refused = arena.copy(), copied(again)
    packed.expand(made, right, ids, bodies, begins, lossy, refused, live)
    np.testing.assert_array_equal(up.now(arena), right)
    np.testing.assert_array_equal(up.now(again.refusals), refused.refusals)


def test_what_one_kernel_packs_the_other_expands(launcher: Launcher, rng: np.random.Generator, layout: Layout) -> None:
    data, made, up = awkward_slots(rng, layout, 3), cut(layout), Uploaded(launcher)
    ids, stride = np.arange(3, dtype=np.int32), -(-made.body_most // 32) * 32
    out, sizes = np.zeros((3, stride), np.uint8), np.zeros(3, np.uint32)
    at_out, at_ids, at_table = up(out), up(ids), up(made.table)
    entries = Entries(up(data), layout.slot_bytes, 3, at_ids, 3)
    launcher.launch(packed.pack_plan(made, at_table, entries, False, at_out, stride, up(sizes)))
    arena, begins = np.zeros_like(data), (np.arange(3) * stride).astype(np.uint64)
    into = Entries(up(arena), layout.slot_bytes, 3, at_ids, 3)
    launcher.launch(packed.expand_plan(made, at_table, into, at_out, up(begins), up(np.zeros(3, np.uint8))))
    for part in layout.parts:
        np.testing.assert_array_equal(up.now(arena)[:, part.offset : part.end], data[:, part.offset : part.end])
