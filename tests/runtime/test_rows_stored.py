"""What live requests publish goes to the store as what fills publish does: by the same policy, and no other bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.policy import WindowPolicy
from kvfsm.runtime.scheduler import Scheduler
from kvfsm.runtime.stores.store import StoreError

from .indexer_keys import prompt
from .rows import compute
from .serving import ByHand, Shelf, leaks

NAMES = ("tiny_deepseek_v4", "tiny_gpt_oss", "tiny_llama", "tiny_deepseek_v32")


def begin(name: str = "tiny_deepseek_v4", **options: Any) -> tuple[Manager, Shelf, Keys, int]:
    """A row of two granules that the device has written."""
    profile, store = PROFILES[name], Shelf()
    manager = Manager(profile, dict.fromkeys(profile.kinds, 24), NumpyBackend(), store=store, **options)
    row = manager.requests.admit(2 * profile.granule)
    compute(manager, row, 0)
    return manager, store, prompt(manager, 2), row


def stored(manager: Manager, keys: Keys) -> dict[str, list[bool]]:
    """Which granules of paged kinds, and whether the boundary of the second, the store has."""
    assert manager.store is not None
    core = manager.core
    places = {kind: np.arange(2) if kind in core.paged else core.places(kind, 2) for kind in core.kinds}
    return {
        kind: manager.store.contains(manager.object_of(keys.digests, keys.salt, kind, where)).tolist()
        for kind, where in places.items()
    }


def nothing_held(manager: Manager) -> bool:
    held = any(pool.table.fields("holds").any() for pool in manager.core.pools.values())
    return not held and manager.storer.open == [] and manager.audit().ok


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["publish", "preempt"])
def test_others_find_it_in_the_store_and_read_the_same(name: str, how: str) -> None:
    manager, store, keys, row = begin(name)
    getattr(manager.requests, how)(row, keys)
    assert all(all(there) for there in stored(manager, keys).values()) and nothing_held(manager)
    assert manager.persist(keys) == 0  # nothing is left to store
    profile = manager.profile
    other = Manager(profile, dict.fromkeys(profile.kinds, 24), NumpyBackend(), store=store)
    answer = other.match(keys)
    assert answer.plan is not None and other.load(answer.plan).now == 2 * profile.granule
    with other.acquire(other.match(keys)) as theirs, manager.acquire(manager.match(keys)) as ours:
        for kind in profile.kinds:
            read, written = (one.core.pools[kind].arena.bytes for one in (other, manager))
            assert np.array_equal(read[theirs.slots[kind]], written[ours.slots[kind]])


@pytest.mark.parametrize(
    ("options", "given"),
    [({"writes": "none"}, {}), ({}, {"done": lambda: False}), ({"window": WindowPolicy.none()}, {})],
    ids=["the policy says no", "the device writes still", "exact, without windows"],
)
def test_what_the_policy_keeps_out_stays_out(options: dict[str, Any], given: dict[str, Any]) -> None:
    manager, _, keys, row = begin(**options)
    assert manager.requests.publish(row, keys, **given) == 2
    there = stored(manager, keys)
    assert any(any(one) for one in there.values()) is ("window" in options)
    assert nothing_held(manager)
    manager.requests.finish(row)
    manager.persist(keys)
    assert all(all(one) for one in stored(manager, keys).values())


def test_what_rests_on_a_replay_is_not_stored() -> None:
    manager, store, keys, row = begin(window=WindowPolicy.none(), writes="none")
    manager.requests.preempt(row, keys)
    manager.writes_through = True
    longer = prompt(manager, 4, shared=0)
    longer = manager.keys([*np.random.default_rng(1).integers(0, 256, keys.tokens)[: 2 * keys.granule], *range(70)])
    lease = manager.acquire(manager.match(longer, at_most=2 * keys.granule))
    assert not lease.exact
    row = manager.requests.admit(4 * keys.granule, lease=lease)
    manager.requests.publish(row, longer)
    assert not store.objects


def test_device_that_has_ended_is_as_good_as_none() -> None:
    manager, _, keys, row = begin()
    manager.requests.publish(row, keys, done=lambda: True)
    assert all(all(one) for one in stored(manager, keys).values())


@pytest.mark.parametrize("how", ["publish", "preempt"])
def test_a_store_that_fails_is_counted_and_others_find_it_all_the_same(how: str) -> None:
    manager, store, keys, row = begin()

    def put_many(*_: Any, **__: Any) -> int:
        raise StoreError("the disk is full")

    store.put_many = put_many  # type: ignore[method-assign]
    getattr(manager.requests, how)(row, keys)
    assert manager.store_failures == 1 and nothing_held(manager)
    assert manager.match(keys).now == 2 * keys.granule and not store.objects
    del store.put_many  # type: ignore[attr-defined]
    assert manager.persist(keys) > 0


def test_a_store_that_breaks_leaves_nothing_held() -> None:
    manager, store, keys, row = begin()

    def put_many(*_: Any, **__: Any) -> int:
        raise RuntimeError("a bug of the store")

    store.put_many = put_many  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a bug"):
        manager.requests.publish(row, keys)
    assert nothing_held(manager) and manager.requests.shared_tokens([row])[0] == 2 * keys.granule


def test_a_reset_that_comes_in_between_keeps_it_out() -> None:
    """S29: bytes of an epoch that has ended are not stored in the next one."""
    manager, store, keys, row = begin()
    real = store.put_many

    def put_many(*given: Any, **options: Any) -> int:
        store.reset()
        return real(*given, **options)

    store.put_many = put_many  # type: ignore[method-assign]
    manager.requests.publish(row, keys)
    assert not any(any(one) for one in stored(manager, keys).values())
    assert manager.store_failures == 0 and nothing_held(manager)


def test_slots_stay_whose_while_the_store_reads_them() -> None:
    """Nobody gets them, though their row has ended meanwhile."""
    manager, store, keys, row = begin()
    real, evicted = store.put_many, list[int]()

    def put_many(*given: Any, **options: Any) -> int:
        manager.requests.finish(row)
        evicted.extend(manager.evict(kind, 24) for kind in manager.profile.kinds)
        return real(*given, **options)

    store.put_many = put_many  # type: ignore[method-assign]
    manager.requests.publish(row, keys)
    assert not any(evicted) and nothing_held(manager)
    assert all(manager.evict(kind, 24) for kind in manager.profile.kinds)


def test_who_gives_up_does_not_wait_for_a_store() -> None:
    """A store writes out of all locks, for those who share and for those who go back."""
    profile, store = PROFILES["tiny_deepseek_v4"], Shelf()
    manager = Manager(profile, dict.fromkeys(profile.kinds, 24), NumpyBackend(), store=store)
    scheduler = Scheduler(manager, ByHand())
    real, cancelled = store.put_many, list[bool]()

    def put_many(*given: Any, **options: Any) -> int:
        cancelled.append(scheduler.cancel(waiting.pop()))
        return real(*given, **options)

    store.put_many = put_many  # type: ignore[method-assign]
    waiting = [scheduler.submit(prompt(manager, 1, seed=seed)) for seed in (7, 8)]
    for seed, share in ((1, scheduler.publish), (2, scheduler.preempt)):
        live = scheduler.submit(prompt(manager, 2, seed=seed))
        while live.row is None or live.computed < 2 * profile.granule:
            scheduler.schedule()
        share(live)
        assert all(all(one) for one in stored(manager, live.keys).values())
        scheduler.cancel(live)
    assert cancelled == [True, True] and not scheduler.live and leaks(scheduler) == []
