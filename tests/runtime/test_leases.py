"""Leases: addresses that stay, pins that only their owner gives back, epochs, and what the audit sees."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.answers import AnswerKind, Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.layers import intersect
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.policy import WindowPolicy, replay_range
from kvfsm.runtime.trails import TrailSpec

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule


def make(slots: int = 16, **options: Any) -> Manager:
    return Manager(PROFILE, dict.fromkeys(PROFILE.kinds, slots), NumpyBackend(), **options)


def keys_of(manager: Manager, granules: int, seed: int = 0, **options: Any) -> Keys:
    return manager.keys(np.random.default_rng(seed).integers(0, 256, granules * A + 1), **options)


def put(manager: Manager, keys: Keys, start: int, stop: int, **options: Any) -> None:
    for granule in range(start, stop):
        fill = manager.reserve(keys, granule, granule + 1, **options)
        for kind in fill.kinds:
            manager.core.pools[kind].arena.bytes[fill.slots[kind]] = granule + 1
        manager.publish(fill)


def audited(manager: Manager) -> None:
    assert manager.audit().violations == ()


def test_components_name_every_tensor_at_its_address() -> None:
    manager = make()
    keys = keys_of(manager, 3)
    put(manager, keys, 0, 3)
    with manager.acquire(manager.match(keys)) as lease:
        table = lease.state_data_ptrs
        expected = [(g.object, layer, p.name) for g in PROFILE.groups for layer in g.layers
                    for p in PROFILE.layouts[g.object].parts if p.layer == layer]  # fmt: skip
        assert [(one.kind, one.layer, one.part) for one in table] == expected
        for one in table:
            arena = manager.core.pools[one.kind].arena
            flat = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * arena.bytes.size).from_address(arena.base))
            for n, slot in enumerate(one.slots.tolist()):
                at = one.base - arena.base + slot * one.stride
                there = lease.view(one.kind, one.part, one.layer)[n].ravel()
                assert np.array_equal(flat[at : at + one.item_bytes], there)
        before = [(one.base, one.stride, one.item_bytes) for one in table]
    manager.evict("compressed_kv", 9)
    put(manager, keys, 0, 3)
    with manager.acquire(manager.match(keys)) as lease:
        assert [(one.base, one.stride, one.item_bytes) for one in lease.state_data_ptrs] == before


def test_a_lease_says_in_which_generation_it_has_each_slot() -> None:
    manager = make()
    put(manager, keys := keys_of(manager, 3), 0, 3)
    manager.evict("compressed_kv", 3)
    put(manager, keys, 0, 3)  # in slots that were others'
    lease = manager.acquire(manager.match(keys))
    assert lease.generations.keys() == lease.slots.keys()
    for kind, slots in lease.slots.items():
        assert lease.generations[kind].tolist() == manager.core.pools[kind].generations(slots).tolist()
    assert lease.generations["compressed_kv"].max() > 1
    manager.release(lease)
    with pytest.raises(Refused) as refused:
        _ = lease.generations
    assert refused.value.refusal is Reason.LEASE


def test_a_dropped_lease_frees_nothing_and_is_named() -> None:
    manager = make()
    keys = keys_of(manager, 2)
    put(manager, keys, 0, 2)
    lease = manager.acquire(manager.match(keys), owner="forgetful")
    del lease
    gc.collect()
    audit = manager.audit()
    assert audit.ok and "forgetful" in audit.dropped[0]
    assert manager.evict("compressed_kv", 9) == 0


def test_a_release_waits_for_the_device() -> None:
    manager, finished = make(), []
    keys = keys_of(manager, 2)
    put(manager, keys, 0, 2)
    lease = manager.acquire(manager.match(keys))
    manager.release(lease, done=lambda: bool(finished))
    with pytest.raises(Refused, match="released already"):
        manager.release(lease)
    audited(manager)
    assert manager.evict("compressed_kv", 9) == 0
    finished.append(True)
    assert manager.evict("compressed_kv", 9) == 2
    audited(manager)


def test_a_shared_answer_is_acquired_for_all_or_none() -> None:
    manager = make()
    one, two = keys_of(manager, 4, 1), keys_of(manager, 4, 2)
    put(manager, one, 0, 4)
    put(manager, two, 0, 2)
    answer = manager.match_shared([(one, None), (two, None)])
    assert answer.length == 2 * A
    leases = manager.acquire_all(answer)
    assert [lease.length for lease in leases] == [2 * A, 2 * A]
    for lease in leases:
        manager.release(lease)
    assert manager.expire(two, 1) > 0
    with pytest.raises(Refused) as stale:
        manager.acquire_all(answer)
    assert stale.value.refusal is Reason.STALE
    assert not manager.receipts
    audited(manager)
    assert manager.match_shared([(one, None), (two, None)]).length == A


def test_an_interior_granule_that_expires_takes_what_is_behind_it() -> None:
    manager = make()
    keys = keys_of(manager, 5)
    put(manager, keys, 0, 5)
    lease = manager.acquire(manager.match(keys))
    manager.expire(keys, 2)
    assert manager.match(keys).length == 2 * A
    audited(manager)
    assert (lease.view("compressed_kv", "entries", 2)[4] == 5).all()
    assert manager.audit().counts["compressed_kv"]["expired"] == 3
    manager.release(lease)
    assert manager.audit().counts["compressed_kv"]["expired"] == 0
    audited(manager)
    put(manager, keys, 2, 5)
    assert manager.match(keys).length == 5 * A


def test_a_reset_voids_everything_but_leases() -> None:
    manager = make()
    keys = keys_of(manager, 3)
    put(manager, keys, 0, 2)
    answer = manager.match(keys)
    lease, fill = manager.acquire(answer), manager.reserve(keys, 2, 3)
    assert manager.reset() == 2
    assert manager.match(keys).kind is AnswerKind.MISS
    with pytest.raises(Refused) as stale:
        manager.acquire(answer)
    assert stale.value.refusal is Reason.STALE
    with pytest.raises(Refused) as late:
        manager.publish(fill)
    assert late.value.refusal is Reason.EPOCH
    manager.abandon(fill)
    assert (lease.view("compressed_kv", "entries", 2)[1] == 2).all()
    audited(manager)
    manager.release(lease)
    assert all(pool.free == 16 for pool in manager.core.pools.values())
    audited(manager)


def test_nothing_that_rests_on_an_ended_epoch_is_published_in_a_later_one() -> None:
    manager = make()
    keys = keys_of(manager, 3)
    put(manager, keys, 0, 2)
    lease, other = (manager.acquire(manager.match(keys)) for _ in range(2))
    cold, warm = manager.requests.admit(3 * A), manager.requests.admit(3 * A, lease=other)
    assert manager.reset() == 2
    put(manager, keys, 0, 2)  # the chain before what they bring is there again: of this epoch
    on_lease = manager.reserve(keys, 2, 3, lease=lease)  # to go on with, for itself alone
    for publish in (
        lambda: manager.publish(on_lease),
        lambda: manager.requests.publish(cold, keys),
        lambda: manager.requests.publish(warm, keys),
    ):
        with pytest.raises(Refused) as late:
            publish()
        assert late.value.refusal is Reason.EPOCH
        assert manager.match(keys, 9 * A).now == 2 * A
    after = manager.requests.admit(3 * A, lease=lease)  # a request that begins now, on what was read then
    with pytest.raises(Refused) as late:
        manager.requests.publish(after, keys)
    assert late.value.refusal is Reason.EPOCH
    manager.abandon(on_lease)
    for row in (cold, warm, after):
        manager.requests.finish(row)
    audited(manager)
    row = manager.requests.admit(3 * A, lease=manager.acquire(manager.match(keys)))
    assert manager.requests.publish(row, keys) == 3
    manager.requests.finish(row)
    audited(manager)


def test_the_kernel_asks_for_its_layout_and_meaning() -> None:
    manager = make()
    keys = keys_of(manager, 2)
    put(manager, keys, 0, 2)
    ours = {kind: layout.digest for kind, layout in PROFILE.layouts.items()}
    assert manager.match(keys, asks=ours).length == 2 * A
    other = manager.match(keys, asks=ours | {"uncompressed_tail": "0" * 64})
    assert (other.kind, other.reason, other.layer) == (AnswerKind.REJECT, Reason.LAYOUT, "kernel ABI")
    assert manager.layers.refused["kernel ABI"] == 1
    with pytest.raises(Refused):
        manager.acquire(other)


def test_misaligned_memory_is_rejected() -> None:
    size = 16 * PROFILE.layouts["compressed_kv"].slot_bytes
    memory = np.zeros(size + 4096, np.uint8)
    off = -memory.ctypes.data % 4096 + 8
    manager = make(buffers={"compressed_kv": memory[off : off + size]}, copy_bytes=16)
    keys = keys_of(manager, 2)
    put(manager, keys, 0, 2)
    answer = manager.match(keys)
    assert (answer.kind, answer.reason, answer.layer) == (AnswerKind.REJECT, Reason.ALIGN, "alignment")
    manager = make(copy_bytes=16, io_bytes=4096)
    put(manager, keys_of(manager, 2), 0, 2)
    assert manager.match(keys).kind is (AnswerKind.HIT if all(
        layout.slot_bytes % 4096 == 0 for layout in PROFILE.layouts.values()) else AnswerKind.REJECT)  # fmt: skip


def test_a_stride_fits_the_copy_instruction_and_not_only_the_layout() -> None:
    layout = PROFILE.layouts["compressed_kv"]
    assert layout.slot_bytes % layout.alignment == 0 and layout.slot_bytes % 48
    memory = np.zeros(16 * layout.slot_bytes + 4096, np.uint8)
    first = -memory.ctypes.data % 48
    manager = make(buffers={"compressed_kv": memory[first : first + 16 * layout.slot_bytes]}, copy_bytes=48)
    keys = keys_of(manager, 2)
    put(manager, keys, 0, 2)
    answer = manager.match(keys)
    assert (answer.kind, answer.reason, answer.layer) == (AnswerKind.REJECT, Reason.ALIGN, "alignment")
    assert answer.detail == f"stride {layout.slot_bytes:#x} of compressed_kv is not a multiple of 48 bytes"


def test_half_a_granule_is_no_hit() -> None:
    manager = make()
    keys = keys_of(manager, 2)
    put(manager, keys, 0, 2)
    answer = manager.match(keys, A)
    assert (answer.kind, answer.reason, answer.layer) == (AnswerKind.MISS, Reason.GRANULE, "whole block")
    assert f"A={A}" in answer.detail


def test_keys_of_another_model_or_salt_find_nothing() -> None:
    manager = make()
    put(manager, keys_of(manager, 2), 0, 2)
    assert manager.match(keys_of(manager, 2, salt=b"other")).kind is AnswerKind.MISS
    foreign = Keys(A, "another model", np.arange(3 * A))
    assert manager.match(foreign).reason is Reason.IDENTITY


def test_one_missing_kind_is_enough_for_a_miss() -> None:
    for kind in PROFILE.kinds:
        manager = make()
        keys = keys_of(manager, 2)
        put(manager, keys, 0, 2, kinds=[other for other in PROFILE.kinds if other != kind])
        answer = manager.match(keys)
        assert (answer.kind, answer.reason, answer.objects[kind].length) == (AnswerKind.MISS, Reason.INTERSECT, 0)
        audited(manager)


def test_indexer_keys_of_another_version_are_replaced() -> None:
    manager = make()
    keys = keys_of(manager, 2)
    put(manager, keys, 0, 2)
    row = manager.requests.admit(1)
    for _ in range(2 * A - 1):
        manager.requests.step([row])
    manager.evict("compressed_kv", 2)  # the indexer's keys stay, and route to entries of another version
    manager.requests.publish(row, keys)
    audited(manager)
    with manager.acquire(manager.match(keys)) as lease:
        versions = [manager.core.pools[k].table.fields("version", lease.slots[k]).tolist()
                    for k in ("compressed_kv", "indexer_state")]  # fmt: skip
        assert versions[0] == versions[1] == [A // manager.requests.stride] * 2
    manager.requests.finish(row)
    audited(manager)


def test_checkpoints_bound_the_hit() -> None:
    manager = make(window=WindowPolicy.checkpoint(2 * A))
    keys = keys_of(manager, 5)
    put(manager, keys, 0, 5)
    assert manager.match(keys).length == 4 * A
    assert manager.match(keys).exact
    audited(manager)


def test_policies_keep_the_blocks_that_their_boundaries_need() -> None:
    spec = TrailSpec(True, per=4, need=2)
    assert WindowPolicy.full().places(spec, 256, 1, 2).tolist() == [4, 5, 6, 7]
    assert WindowPolicy.checkpoint(512).places(spec, 256, 0, 4).tolist() == [6, 7, 14, 15]
    assert WindowPolicy.none().places(spec, 256, 0, 4).tolist() == []
    assert WindowPolicy.checkpoint(512).places(TrailSpec(False), 256, 0, 3).tolist() == []


def test_a_replay_covers_all_window_layers() -> None:
    replay = replay_range(PROFILE, 10 * A)
    layers = len({layer for group in PROFILE.groups_of("swa_window") for layer in group.layers})
    assert PROFILE.window is not None
    assert replay.stop == 10 * A and replay.start % A == 0 and len(replay) >= layers * (PROFILE.window - 1)


def test_the_intersection_is_the_greatest_common_boundary() -> None:
    chance = np.random.default_rng(8)
    for _ in range(300):
        sets = [sorted({0, *chance.integers(1, 30, chance.integers(1, 25)).tolist()}) for _ in range(3)]
        legal = [lambda at_most, one=one: max(b for b in one if b <= at_most) for one in sets]
        most = int(chance.integers(0, 31))
        expected = max(b for b in set.intersection(*map(set, sets)) if b <= most)
        assert intersect(most, legal) == expected == intersect(expected, legal)


def test_eviction_goes_by_age_and_from_the_ends() -> None:
    manager = make(slots=8)
    old, new = keys_of(manager, 3, 1), keys_of(manager, 3, 2)
    put(manager, new, 0, 3)
    put(manager, old, 0, 3)
    manager.release(manager.acquire(manager.match(new)))
    assert manager.evict("compressed_kv", 2) == 2
    assert [manager.match(keys).objects["compressed_kv"].length for keys in (old, new)] == [A, 3 * A]
    assert manager.evict("compressed_kv", 2) == 2
    assert [manager.match(keys).objects["compressed_kv"].length for keys in (old, new)] == [0, 2 * A]
    assert manager.evict("swa_window", 3) == 3  # windows of boundaries that nobody released lately
    assert manager.match(new).objects["swa_window"].length == 3 * A
    audited(manager)


def test_what_a_split_moved_up_is_still_evicted() -> None:
    manager = make()
    one = keys_of(manager, 10, 1)
    two = manager.keys(np.concatenate((np.random.default_rng(1).integers(0, 256, 6 * A), np.zeros(3 * A, int))))
    put(manager, one, 0, 4)
    put(manager, one, 4, 10, kinds=("compressed_kv",))
    put(manager, two, 6, 8, kinds=("compressed_kv",))  # splits behind the indexer's last granule
    assert manager.evict("indexer_state", 9) == 4
    assert manager.evict("compressed_kv", 99) == 12
    audited(manager)


def test_what_is_left_of_an_expired_chain_is_still_evicted() -> None:
    manager = make()
    one, two = keys_of(manager, 6, 1), keys_of(manager, 6, 2)
    put(manager, one, 0, 3)
    head = np.random.default_rng(1).integers(0, 256, 3 * A)
    put(manager, manager.keys(np.concatenate((head, np.ones(A, int)))), 3, 4)
    put(manager, two, 0, 3)
    lease = manager.acquire(manager.match(one, 3 * A + 1))
    assert manager.evict("compressed_kv", 4) == 4  # all but the leased chain, whose entry in the queue is now gone
    manager.release(lease)
    manager.expire(one, 2)
    assert manager.evict("compressed_kv", 9) == 2
    audited(manager)


def test_metadata_is_counted() -> None:
    manager = make(slots=1024)
    keys = keys_of(manager, 1000)
    empty = manager.metadata_bytes()
    fill = manager.reserve(keys, 0, 1000, kinds=("compressed_kv", "indexer_state"))
    manager.publish(fill)
    assert 40 * 1000 < manager.metadata_bytes() - empty < 64 * 1000
