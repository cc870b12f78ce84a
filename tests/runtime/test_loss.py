"""Whatever rests on a lossy form is answered as approximate, as long as any of it is used, whichever kind it is of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.answers import Answer, AnswerKind
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.stores.memory import MemoryStore

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule
KINDS = ("compressed_kv", "indexer_state", "uncompressed_tail", "swa_window")


def make(store: MemoryStore | None = None) -> Manager:
    return Manager(PROFILE, dict.fromkeys(PROFILE.kinds, 16), NumpyBackend(), store=store, cold=16)


def keys_of(manager: Manager, granules: int = 3) -> Keys:
    return manager.keys(np.random.default_rng(5).integers(0, 256, granules * A + 1))


def write(fill: Fill) -> None:
    for kind in fill.kinds:
        for part in PROFILE.layouts[kind].parts:
            view = fill.view(kind, part.name, part.layer)
            for n, place in enumerate(fill.places[kind].tolist()):
                rows = np.random.default_rng([place, part.layer]).standard_normal((part.rows, part.row_bytes // 4))
                view[n] = rows.astype("<f4").view(np.uint8)


def put(manager: Manager, keys: Keys, start: int, stop: int, **options: Any) -> None:
    fill = manager.reserve(keys, start, stop, **options)
    write(fill)
    manager.publish(fill)


def gone_on_from_lossy_kv(store: MemoryStore | None = None) -> tuple[Manager, Keys]:
    """Granule 2, and the tail and window at its end, were computed from granules [0, 2) after a lossy packing.

    ``store``: gets exact copies of all three granules afterwards, as another process would compute them.
    """
    manager = make(store)
    keys = keys_of(manager)
    put(manager, keys, 0, 2)
    manager.pack(keys, lossy=True)
    manager.expand(keys)
    with manager.acquire(manager.match(keys)) as lease:
        assert lease.length == 2 * A and not lease.exact
        put(manager, keys, 2, 3, lease=lease)
    if store is not None:
        store.objects |= shelved().objects
    return manager, keys


def shelved() -> MemoryStore:
    """A store with exact copies of all three granules, of every kind."""
    store = MemoryStore()
    writer = make(store)
    put(writer, keys_of(writer), 0, 3)
    return store


def load_exact(manager: Manager, keys: Keys) -> Answer:
    """Bring back from the store whatever is missing."""
    answer = manager.match(keys)
    assert answer.kind is AnswerKind.HIT_PENDING and answer.plan is not None
    return manager.load(answer.plan)


def lossy_kinds(manager: Manager) -> set[str]:
    """Kinds of which any slot that can be read says that it is lossy."""
    found = set()
    for kind, pool in manager.core.pools.items():
        held = np.flatnonzero(pool.in_state(np.arange(len(pool)), "resident"))
        if pool.table.fields("lossy", held).any():
            found.add(kind)
    return found


@pytest.mark.parametrize("kept", KINDS)
def test_one_kind_that_rests_on_loss_is_enough_whatever_exact_copies_lie_beside_it(kept: str) -> None:
    """All that was computed from the lossy entries goes, except one kind, and comes back exact from the store."""
    manager, keys = gone_on_from_lossy_kv(MemoryStore())
    for kind in KINDS:
        if kind != kept:
            assert manager.evict(kind, 16) > 0
    answer = load_exact(manager, keys)
    assert (answer.kind, answer.length) == (AnswerKind.HIT, 3 * A)
    assert not answer.exact
    with manager.acquire(answer) as lease:
        assert not lease.exact
    assert lossy_kinds(manager) == {kept}
    assert manager.audit().ok

    assert manager.evict(kept, 16) > 0  # the control: without it the answer is exact again
    answer = load_exact(manager, keys)
    assert (answer.length, answer.exact) == (3 * A, True)
    with manager.acquire(answer) as lease:
        assert lease.exact


@pytest.mark.parametrize("kept", KINDS[1:])
def test_the_same_where_the_exact_copies_are_published_anew(kept: str) -> None:
    manager, keys = gone_on_from_lossy_kv()
    for kind in KINDS:
        if kind != kept:
            manager.evict(kind, 16)
    put(manager, keys, 0, 3)  # computed from the start: exact
    answer = manager.match(keys)
    assert (answer.length, answer.exact) == (3 * A, False)
    assert not manager.acquire(answer).exact
    assert lossy_kinds(manager) == {kept}


@pytest.mark.parametrize("kept", KINDS[1:])
def test_what_goes_on_from_it_is_approximate_too_and_is_not_stored(kept: str) -> None:
    store = MemoryStore()
    manager, _ = gone_on_from_lossy_kv(store)
    for kind in KINDS:
        if kind != kept:
            manager.evict(kind, 16)
    keys = keys_of(manager, 5)  # another prompt, so that what is behind granule 3 is not in the store
    longer = manager.keys(np.concatenate((np.random.default_rng(5).integers(0, 256, 3 * A), np.arange(2 * A + 1) % 7)))
    assert longer.digests[:3] == keys.digests[:3]
    load_exact(manager, longer)
    before = dict(store.objects)
    with manager.acquire(manager.match(longer)) as lease:
        put(manager, longer, 3, 4, lease=lease)
    put(manager, longer, 4, 5)  # without a lease: by what the chain holds
    assert store.objects == before
    answer = manager.match(longer)
    assert (answer.length, answer.exact) == (5 * A, False)


@pytest.mark.parametrize("kept", KINDS[1:])
def test_a_live_request_passes_it_on(kept: str) -> None:
    manager, keys = gone_on_from_lossy_kv(MemoryStore())
    for kind in KINDS:
        if kind != kept:
            manager.evict(kind, 16)
    lease = manager.acquire(load_exact(manager, keys))
    longer = manager.keys(np.concatenate((np.random.default_rng(5).integers(0, 256, 3 * A), np.arange(A + 1) % 7)))
    row = manager.requests.admit(4 * A, lease=lease)
    manager.requests.publish(row, longer)
    manager.requests.finish(row)
    answer = manager.match(longer)
    assert (answer.length, answer.exact) == (4 * A, False)
    assert lossy_kinds(manager) == set(KINDS)
    assert manager.audit().ok


def test_a_live_request_that_changes_over_to_lossy_blocks_goes_on_from_them() -> None:
    """Its own blocks were exact; those that others published first are what it reads from then on."""
    manager, keys = gone_on_from_lossy_kv()
    row = manager.requests.admit(3 * A)
    assert manager.requests.publish(row, keys) == 3
    manager.expire(keys)  # the row's pins keep what it reads; nothing of it is found any more
    longer = manager.keys(np.concatenate((np.random.default_rng(5).integers(0, 256, 3 * A), np.arange(A + 1) % 7)))
    put(manager, longer, 0, 3)
    assert manager.match(longer).exact
    for _ in range(A):
        manager.requests.step([row])
    assert manager.requests.publish(row, longer) == 4
    answer = manager.match(longer)
    assert (answer.length, answer.exact) == (4 * A, False)
    manager.requests.finish(row)
    assert manager.audit().ok


def test_keys_and_boundaries_that_are_made_for_lossy_entries_are_lossy() -> None:
    """A fill that brings no entries of its own rests on those that are there."""
    manager, keys = gone_on_from_lossy_kv()
    for kind in KINDS[1:]:
        manager.evict(kind, 16)
    put(manager, keys, 0, 3, kinds=KINDS[1:])
    assert lossy_kinds(manager) == set(KINDS)
    assert not manager.match(keys).exact


def test_slots_that_were_lossy_are_exact_when_they_are_taken_anew() -> None:
    manager, keys = gone_on_from_lossy_kv()
    for kind in KINDS:
        manager.evict(kind, 16)
        assert manager.core.pools[kind].lossy == 0
    put(manager, keys, 0, 3)
    assert manager.match(keys).exact
    assert manager.audit().ok


def test_a_count_of_lossy_slots_that_is_wrong_is_told() -> None:
    manager, _ = gone_on_from_lossy_kv()
    manager.core.pools["swa_window"].lossy -= 1
    assert manager.audit().violations == ("T9: 1 slots are lossy, 0 are counted (swa_window)",)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_store_calls_lossy_is_answered_as_approximate(kind: str) -> None:
    store = shelved()
    for name, (payload, meta) in store.objects.items():
        store.objects[name] = (payload, {**meta, "lossy": name.kind == kind})
    manager = make(store)
    answer = load_exact(manager, keys_of(manager))
    assert (answer.kind, answer.length, answer.exact) == (AnswerKind.HIT, 3 * A, False)
    assert lossy_kinds(manager) == {kind}


@pytest.mark.parametrize("elsewhere", ["nothing", "another prompt"])
def test_loss_elsewhere_makes_nothing_else_approximate(elsewhere: str) -> None:
    """The negative control of them all."""
    manager = make() if elsewhere == "nothing" else gone_on_from_lossy_kv()[0]
    other = manager.keys(np.random.default_rng(6).integers(0, 256, 3 * A + 1))
    put(manager, other, 0, 3)
    assert manager.match(other).exact
    assert manager.acquire(manager.match(other)).exact
