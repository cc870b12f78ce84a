"""What memory holds of a chain goes to the store on demand: what it lacks, whole and exact, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.memory import MemoryStore
from kvfsm.runtime.stores.store import EpochEnded, Item, Namespace, OtherNamespace, Store, StoreFailed

NAMES = ("tiny_deepseek_v4", "tiny_gpt_oss", "tiny_gemma3")


class Broken(LocalStore):
    """Fails when it is told to."""

    fails = False

    def put_many(self, items: Sequence[Item], *, at_epoch: int | None = None) -> int:
        if self.fails:
            raise StoreFailed("the disk is gone")
        return super().put_many(items, at_epoch=at_epoch)


def make(name: str, path: Path) -> tuple[Manager, Broken]:
    profile = PROFILES[name]
    store = Broken(path, Namespace.of(profile))
    return manager_over(name, store), store


def manager_over(name: str, store: Store | None, **options: Any) -> Manager:
    profile = PROFILES[name]
    return Manager(profile, dict.fromkeys(profile.kinds, 32), NumpyBackend(), store=store, **options)


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("layout of compressed_kv", lambda own: replace(own, layouts={**own.layouts, "compressed_kv": "padded"})),
        ("layout of swa_window", lambda own: replace(own, layouts={"compressed_kv": own.layouts["compressed_kv"]})),
        ("model identity", lambda own: replace(own, model_identity="other weights")),
        ("semantics", lambda own: replace(own, semantics="another meaning")),
    ],
)
def test_a_store_of_another_namespace_is_refused_when_the_manager_is_made(
    tmp_path: Path, part: str, other: Callable[[Namespace], Namespace]
) -> None:
    own = Namespace.of(PROFILES["tiny_deepseek_v4"])
    with LocalStore(tmp_path, other(own)) as store:
        with pytest.raises(OtherNamespace, match=f"its {part} is .*; open it with Namespace.of") as error:
            manager_over("tiny_deepseek_v4", store)
        whole = "layout of" if part.startswith("layout") else part
        assert all(said.startswith(f"its {whole}") for said in error.value.differences)
    with LocalStore(tmp_path, own) as store:  # a control
        assert manager_over("tiny_deepseek_v4", store).store is store


def test_a_store_in_memory_is_its_first_managers() -> None:
    store = MemoryStore()
    for _ in range(2):
        manager_over("tiny_deepseek_v4", store)
    with pytest.raises(OtherNamespace, match="model identity"):
        manager_over("tiny_gpt_oss", store)


def put(manager: Manager, keys: Keys, start: int, stop: int) -> None:
    fill = manager.reserve(keys, start, stop)
    for kind in fill.kinds:
        for part in manager.profile.layouts[kind].parts:
            fill.view(kind, part.name, part.layer)[:] = start + 1
    manager.publish(fill)


def prompt(manager: Manager, granules: int) -> Keys:
    return manager.keys(np.arange(granules * manager.profile.granule + 1))


def stored(name: str, store: LocalStore) -> int:
    """Granules of the prompt that another manager finds there."""
    manager = manager_over(name, store)
    return manager.match(prompt(manager, 4)).length // manager.profile.granule


@pytest.mark.parametrize("name", NAMES)
def test_what_a_failing_store_missed_is_stored_later(name: str, tmp_path: Path) -> None:
    manager, store = make(name, tmp_path)
    keys = prompt(manager, 4)
    put(manager, keys, 0, 2)
    store.fails = True
    put(manager, keys, 2, 4)
    assert (manager.store_failures, stored(name, store)) == (1, 2)
    with pytest.raises(StoreFailed):
        manager.persist(keys)
    assert manager.audit().ok and stored(name, store) == 2
    store.fails = False
    objects = store.usage().objects
    assert manager.persist(keys) == store.usage().objects - objects > 0
    assert stored(name, store) == 4 and manager.persist(keys) == 0
    assert manager.audit().ok
    store.close()


@pytest.mark.parametrize("name", NAMES)
def test_what_a_live_request_published_is_stored_from_a_granule_on(name: str, tmp_path: Path) -> None:
    _, store = make(name, tmp_path)
    manager = manager_over(name, store, writes="none")
    keys, granule = prompt(manager, 4), manager.profile.granule
    row = manager.requests.admit(2 * granule)
    manager.requests.publish(row, keys)
    assert stored(name, store) == 0
    manager.persist(keys)
    assert stored(name, store) == 2
    for _ in range(2 * granule):
        manager.requests.step([row])
    manager.requests.publish(row, keys)
    manager.persist(keys, 2)
    assert stored(name, store) == 4
    manager.requests.finish(row)
    assert manager.audit().ok
    for kind in manager.profile.kinds:
        manager.evict(kind, 99)  # nothing is held any more
        assert manager.core.pools[kind].free == 32
    store.close()


def test_what_is_lossy_or_packed_stays_out(tmp_path: Path) -> None:
    name = "tiny_deepseek_v4"
    _, store = make(name, tmp_path)
    manager = manager_over(name, store, cold=4, writes="none")
    keys = prompt(manager, 2)
    put(manager, keys, 0, 1)
    put(manager, keys, 1, 2)
    assert manager.pack(keys, 1, lossy=True) == 1
    manager.persist(keys)
    assert stored(name, store) == 1
    manager.expand(keys)
    assert not manager.match(keys).exact
    manager.persist(keys)
    assert stored(name, store) == 1
    assert manager.audit().ok
    store.close()


def test_a_reset_in_between_keeps_nothing(tmp_path: Path) -> None:
    name = "tiny_deepseek_v4"
    manager, store = make(name, tmp_path)
    manager = manager_over(name, store, writes="none")
    keys = prompt(manager, 4)
    put(manager, keys, 0, 4)
    contains = store.contains

    def reset_meanwhile(ids: Any) -> Any:
        store.contains = contains  # type: ignore[method-assign]
        manager.reset()
        return contains(ids)

    store.contains = reset_meanwhile  # type: ignore[method-assign]
    with pytest.raises(EpochEnded):
        manager.persist(keys)
    assert (stored(name, store), store.usage().objects) == (0, 0)
    assert manager.audit().ok and all(pool.free == 32 for pool in manager.core.pools.values())
    store.close()


def test_too_many_at_once_are_refused_and_hold_nothing(tmp_path: Path) -> None:
    name = "tiny_deepseek_v4"
    _, store = make(name, tmp_path)
    manager = manager_over(name, store, writes="none")
    keys = prompt(manager, 2)
    put(manager, keys, 0, 2)
    contains, deep = store.contains, []

    def again(ids: Any) -> Any:
        """While one stores, another begins."""
        deep.append(manager.core.pools["compressed_kv"].table.fields("holds").max())
        try:
            manager.persist(keys)
        finally:
            store.contains = contains  # type: ignore[method-assign]
        return contains(ids)

    store.contains = again  # type: ignore[method-assign]
    with pytest.raises(Refused, match="TOO_MANY_HOLDS"):
        manager.persist(keys)
    assert max(deep) == manager.core.pools["uncompressed_tail"].table.LAYOUT.field("holds").high  # fewer than KV has
    for kind, pool in manager.core.pools.items():
        assert not pool.table.fields("holds").any(), kind
    assert manager.persist(keys) == store.usage().objects > 0
    assert manager.audit().ok
    store.close()


@pytest.mark.parametrize("start", [-1, 3])
def test_a_start_that_is_no_granule_of_the_keys_is_refused(start: int, tmp_path: Path) -> None:
    manager, store = make("tiny_gpt_oss", tmp_path)
    with pytest.raises(ValueError, match="give granules, not tokens"):
        manager.persist(prompt(manager, 2), start)
    store.close()


def test_without_a_store_there_is_nothing_to_write_to() -> None:
    manager = manager_over("tiny_deepseek_v4", None)
    with pytest.raises(ValueError, match="make it with store="):
        manager.persist(prompt(manager, 1))
