"""Every way to restore wrongly is noticed. A check that can't fail proves nothing, so each mutation must make it fail.

Greedy tokens often survive these mutations; logits don't. Each is tried at aligned boundaries, where a restore that
forgets the carried rows looks complete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvfsm.codegen.cli.demo_runs import Comparison, compare
from kvfsm.runtime.integrations.cache_state import capture, first_difference

from .conftest import Subject
from .plain_slots import PlainStore

CSA_LAYERS = (2, 4)
LENGTHS = (64, 96, 160)

# In the bytes of the slots that a lease covers


def each_part(store: PlainStore, length: int, kind: str, name: str) -> list[Any]:
    lease = store.lease(length)
    return [lease.view(kind, part.name, part.layer) for part in store.profile.layouts[kind].parts if part.name == name]


def drop_overlap(store: PlainStore, length: int) -> None:
    for name in ("overlap_kv", "overlap_gate"):
        for rows in each_part(store, length, "uncompressed_tail", name):
            rows[:] = 0


def zero_indexer_overlap(store: PlainStore, length: int) -> None:
    for name in ("overlap_kv", "overlap_gate"):
        for rows in each_part(store, length, "indexer_state", name):
            rows[:] = 0


def roll_indexer_keys(store: PlainStore, length: int) -> None:
    for rows in each_part(store, length, "indexer_state", "keys"):
        roll(rows)


def flip_sign_of_oldest_indexer_key(store: PlainStore, length: int) -> None:
    for rows in each_part(store, length, "indexer_state", "keys"):
        rows[0, 0, 3::4] ^= 0x80  # the sign bit of each little-endian float32


def roll_compressed(store: PlainStore, length: int) -> None:
    for rows in each_part(store, length, "compressed_kv", "entries"):
        roll(rows)


def zero_window(store: PlainStore, length: int) -> None:
    for name in ("keys", "values"):
        for rows in each_part(store, length, "swa_window", name):
            rows[:] = 0


def zero_oldest_window_row(store: PlainStore, length: int) -> None:
    assert store.profile.window is not None
    for name in ("keys", "values"):
        for rows in each_part(store, length, "swa_window", name):
            rows[0, 1 - store.profile.window] = 0  # those before it are only to go back to


def roll(rows: Any) -> None:
    """Move each row of [slots, rows, bytes] on by one, across slots; the last becomes the first."""
    flat = rows.reshape(-1, rows.shape[-1]).copy()
    rows[:] = np.roll(flat, 1, axis=0).reshape(rows.shape)


BYTE_MUTATIONS: dict[str, Callable[[PlainStore, int], None]] = {
    "overlap zeroed": drop_overlap,
    "indexer overlap zeroed": zero_indexer_overlap,
    "indexer keys rolled": roll_indexer_keys,
    "oldest indexer key with its sign flipped": flip_sign_of_oldest_indexer_key,
    "compressed entries rolled": roll_compressed,
    "window zeroed": zero_window,
    "oldest window row zeroed": zero_oldest_window_row,
}

# In the restored cache


def forget_overlap(cache: Any) -> None:
    for layer in CSA_LAYERS:
        cache.layers[layer].overlap_kv["compressor"] = None
        cache.layers[layer].overlap_gate["compressor"] = None


def indexer_one_short(cache: Any) -> None:
    for layer in CSA_LAYERS:
        entries = cache.layers[layer].compressed_kv
        entries["indexer"] = entries["indexer"][:, :-1]


def compressed_one_short(cache: Any) -> None:
    for layer in cache.layers[1:]:
        layer.compressed_kv["compressor"] = layer.compressed_kv["compressor"][:, :-1]


def position_four_on(cache: Any) -> None:
    for layer in cache.layers:
        layer.cumulative_length += 4


def entry_count_one_on(cache: Any) -> None:
    for layer in cache.layers[1:]:
        for name in layer.entry_count:
            layer.entry_count[name] += 1


CACHE_MUTATIONS: dict[str, Callable[[Any], None]] = {
    "overlap dropped": forget_overlap,
    "indexer keys one short": indexer_one_short,
    "compressed entries one short": compressed_one_short,
    "position shifted by 4": position_four_on,
    "entry count one too many": entry_count_one_on,
}


def damaged(store: PlainStore) -> PlainStore:
    """A copy whose bytes may be damaged."""
    copy = PlainStore(store.profile, len(store.arenas["compressed_kv"].bytes))
    for kind, arena in store.arenas.items():
        copy.arenas[kind].bytes[:] = arena.bytes
    return copy


def spoils(comparison: Comparison) -> bool:
    """Whether damage went on to what was computed; that the restored cache differs is no wonder."""
    spread = comparison.logits_error > 0 or comparison.cache_sha256 != comparison.reference_sha256
    return spread and not comparison.identical


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("mutation", BYTE_MUTATIONS)
def test_damaged_slots_change_the_logits(mutation: str, length: int, v4: Subject) -> None:
    store = damaged(v4.store)
    BYTE_MUTATIONS[mutation](store, length)
    comparison = compare(v4.warm(v4.adapter.restore(store.lease(length)), length), v4.cold)
    assert comparison.difference is not None and comparison.difference.startswith("logits")
    assert comparison.logits_error > 0


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("mutation", CACHE_MUTATIONS)
def test_a_wrongly_restored_cache_changes_the_logits(mutation: str, length: int, v4: Subject) -> None:
    cache = v4.adapter.restore(v4.store.lease(length))
    CACHE_MUTATIONS[mutation](cache)
    comparison = compare(v4.warm(cache, length), v4.cold)
    assert comparison.difference is not None and comparison.difference.startswith("logits")
    assert comparison.logits_error > 0


@pytest.mark.parametrize("length", LENGTHS)
def test_undamaged_copies_pass_the_same_check(length: int, v4: Subject) -> None:
    store = damaged(v4.store)
    assert compare(v4.warm(v4.adapter.restore(store.lease(length)), length), v4.cold).identical


@pytest.mark.parametrize("kind", ["compressed_kv", "uncompressed_tail", "swa_window", "indexer_state"])
def test_one_flipped_bit_in_any_object_is_noticed(kind: str, v4: Subject) -> None:
    store = damaged(v4.store)
    part = next(part for part in store.profile.layouts[kind].parts if part.role != "pending")
    store.lease(96).view(kind, part.name, part.layer)[-1, -1, 2] ^= 0x40
    assert spoils(compare(v4.warm(v4.adapter.restore(store.lease(96)), 96), v4.cold))


@pytest.mark.parametrize("name", ["tiny-deepseek-v32", "tiny-gpt-oss", "tiny-gemma3"])
def test_a_rolled_row_is_noticed_in_every_part_of_the_other_models(
    name: str, subject_of: Callable[[str], Subject]
) -> None:
    subject = subject_of(name)
    for kind, layout in subject.profile.layouts.items():
        for part in layout.parts:
            store = damaged(subject.store)
            roll(store.lease(96).view(kind, part.name, part.layer))
            warm = subject.warm(subject.adapter.restore(store.lease(96)), 96)
            assert spoils(compare(warm, subject.cold)), f"{kind} layer {part.layer} part {part.name}"


def test_counters_that_disagree_are_seen_before_logits_are_touched(v4: Subject) -> None:
    cache = v4.adapter.restore(v4.store.lease(160))
    cache.layers[1].entry_count["compressor"] += 1
    assert first_difference(capture(cache), v4.at[160]) == "1.entry_count.compressor is 11 against 10"


def test_a_restored_cache_that_heals_is_noticed_all_the_same(v4: Subject) -> None:
    """Logits and final cache agree, and only what stood in the cache right after the restore tells."""
    warm = v4.warm(v4.adapter.restore(v4.store.lease(96)), 96)
    name = "2.overlap_kv.compressor"
    spoilt = replace(warm, restored={**warm.restored, name: v4.at[64][name]})
    told = compare(spoilt, v4.cold).difference
    assert told is not None and told.startswith(f"restored cache: {name} differs")


def test_a_reference_without_that_boundary_proves_nothing(v4: Subject) -> None:
    warm = v4.warm(v4.adapter.restore(v4.store.lease(96)), 96)
    found = compare(warm, replace(v4.cold, boundaries={64: v4.at[64]}))
    assert found.difference == "the reference kept no cache at token 96 to hold the restored one against"
