"""Loads from a store and expansions: all or nothing, layer by layer, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfsm.kernels.reference import NumpyBackend
from kvfsm.runtime.answers import AnswerKind, Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.generated import Refusal
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.lease import Lease
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.policy import WindowPolicy
from kvfsm.runtime.stores.local import LocalStore
from kvfsm.runtime.stores.memory import MemoryStore
from kvfsm.runtime.stores.store import Found, Namespace, ObjectId, Verdict

PROFILE = PROFILES["tiny_deepseek_v4"]
A = PROFILE.granule


class Shelf(MemoryStore):
    """A store in memory; of ``broken`` kinds it gives nothing, and loses what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[str] = set()

    def get(self, id: ObjectId, into: Any) -> Found:
        if id.kind in self.broken:
            self.objects.pop(id, None)
            return Found(Verdict.INTEGRITY)
        return super().get(id, into)


def make(store: Shelf | None = None, slots: int = 32, **options: Any) -> Manager:
    return Manager(PROFILE, dict.fromkeys(PROFILE.kinds, slots), NumpyBackend(), store=store, **options)


def prompt_keys(manager: Manager, granules: int, seed: int = 0) -> Keys:
    return manager.keys(np.random.default_rng(seed).integers(0, 256, granules * A + 3))


def write(fill: Fill) -> None:
    for kind in fill.kinds:
        for part in PROFILE.layouts[kind].parts:
            view = fill.view(kind, part.name, part.layer)
            for n, place in enumerate(fill.places[kind].tolist()):
                view[n] = (place * 7 + part.layer + len(kind)) % 251


def put(manager: Manager, keys: Keys, start: int, stop: int) -> None:
    for granule in range(start, stop):
        fill = manager.reserve(keys, granule, granule + 1)
        write(fill)
        manager.publish(fill)


def check_bytes(lease: Lease) -> None:
    for kind in lease.slots:
        boundary = lease.length // A
        places = range(boundary) if kind in ("compressed_kv", "indexer_state") else [boundary]
        for part in PROFILE.layouts[kind].parts:
            for n, place in enumerate(places):
                assert (lease.view(kind, part.name, part.layer)[n] == (place * 7 + part.layer + len(kind)) % 251).all()


def audited(manager: Manager) -> None:
    assert manager.audit().violations == ()


def stored(granules: int = 4) -> Shelf:
    """A store that another manager filled."""
    store = Shelf()
    writer = make(store)
    put(writer, prompt_keys(writer, granules), 0, granules)
    audited(writer)
    return store


def test_another_process_finds_what_was_stored() -> None:
    manager = make(stored())
    answer = manager.match(prompt_keys(manager, 4))
    assert (answer.kind, answer.length, answer.now) == (AnswerKind.HIT_PENDING, 4 * A, 0)
    assert answer.objects["ondisk_prefix"].verdict == "HIT"
    assert answer.plan is not None and answer.plan.objects == 4 + 4 + 1 + 1
    ready = manager.load(answer.plan)
    assert (ready.kind, ready.length, ready.exact) == (AnswerKind.HIT, 4 * A, True)
    audited(manager)
    with manager.acquire(ready) as lease:
        check_bytes(lease)
    audited(manager)


def test_a_load_goes_on_where_memory_ends() -> None:
    manager = make(stored())
    keys = prompt_keys(manager, 4)
    put(manager, keys, 0, 2)
    answer = manager.match(keys)
    assert (answer.length, answer.now) == (4 * A, 2 * A)
    assert answer.plan is not None and answer.plan.wanted["compressed_kv"].tolist() == [2, 3]
    assert manager.load(answer.plan).length == 4 * A
    audited(manager)


@pytest.mark.parametrize("kind", PROFILE.kinds)
def test_a_kind_that_is_broken_throughout_lets_nothing_be_read(kind: str) -> None:
    store = stored()
    store.broken = {kind}
    manager = make(store)
    answer = manager.match(prompt_keys(manager, 4))
    for _ in range(20):
        if answer.plan is None:
            break
        answer = manager.load(answer.plan)
        audited(manager)
    assert (answer.kind, answer.length) == (AnswerKind.MISS, 0)
    core = manager.core  # pages before the boundary that has no state are whole, and stay
    left = 3 if kind in core.trailing else 0
    assert {name: 32 - pool.free for name, pool in core.pools.items()} == (
        dict.fromkeys(core.paged, left) | dict.fromkeys(core.trailing, 0)
    )


def test_attempts_are_bounded_until_the_object_is_stored_anew() -> None:
    class Liar(Shelf):
        """Says that it has what it can't give."""

        gets = 0

        def get(self, id: ObjectId, into: Any) -> Found:
            self.gets += 1
            return Found(Verdict.MISS) if id.kind in self.broken else super().get(id, into)

    store = Liar()
    store.objects, store.broken = stored(1).objects, {"compressed_kv"}
    manager = make(store, writes="write_through")
    keys = prompt_keys(manager, 1)
    answer, loads = manager.match(keys), 0
    while answer.plan is not None:
        answer, loads = manager.load(answer.plan), loads + 1
    assert (answer.kind, loads, store.gets) == (AnswerKind.MISS, 2, 2)
    put(manager, keys, 0, 1)
    store.broken = set()
    for kind in PROFILE.kinds:
        manager.evict(kind, 9)
    again = manager.match(keys)
    assert again.plan is not None and manager.load(again.plan).now == A
    audited(manager)


def test_a_load_that_others_carry_out_is_tried_twice_too() -> None:
    manager = make(stored(2), writes="none")
    keys, tries = prompt_keys(manager, 2), 0
    while (plan := manager.match(keys).plan) is not None and plan.boundary == 2:
        manager.load_begin(plan).done(False, missing={"compressed_kv": [1]})
        tries += 1
    assert tries == 2
    assert plan is not None and plan.boundary == 1  # what lies before is not to blame
    manager.loader.attempts.forget()
    for _ in range(2):
        plan = manager.match(keys).plan
        assert plan is not None
        manager.load_begin(plan).done(False)  # nobody knows why: all of it counts
    assert manager.match(keys).plan is None and manager.loader.attempts.failing == plan.objects
    audited(manager)


def test_a_load_that_goes_well_counts_its_objects_as_sound_again() -> None:
    manager = make(stored(1), writes="none")
    keys = prompt_keys(manager, 1)
    plan = manager.match(keys).plan
    assert plan is not None
    manager.load_begin(plan).done(False)
    assert manager.loader.attempts.failing == plan.objects
    assert manager.load(plan).now == A
    assert manager.loader.attempts.failing == 0
    audited(manager)


def test_what_is_missing_must_be_of_the_ticket() -> None:
    manager = make(stored(1))
    plan = manager.match(prompt_keys(manager, 1)).plan
    assert plan is not None
    ticket = manager.load_begin(plan)
    for ok, missing in ((False, {"compressed_kv": [7]}), (False, {"nothing": [0]}), (True, {"compressed_kv": [0]})):
        with pytest.raises(ValueError, match=r"missing from ticket 1"):
            ticket.done(ok, missing=missing)
        assert ticket.state == "open"
    with pytest.raises(ValueError, match=r"give some of \[0\]"):
        ticket.miss("compressed_kv", [0, 1])
    ticket.done(False)
    audited(manager)


def test_a_prefix_comes_back_from_the_local_store(tmp_path: Path) -> None:
    namespace = Namespace.of(PROFILE)
    store = LocalStore(tmp_path, namespace)
    writer = make(store)  # type: ignore[arg-type]
    put(writer, prompt_keys(writer, 3), 0, 3)
    assert writer.store_failures == 0
    store.close()
    store = LocalStore(tmp_path, namespace)
    manager = make(store)  # type: ignore[arg-type]
    answer = manager.match(prompt_keys(manager, 3))
    assert answer.plan is not None
    with manager.acquire(manager.load(answer.plan)) as lease:
        assert lease.length == 3 * A
        check_bytes(lease)
    audited(manager)
    manager.reset()
    assert manager.match(prompt_keys(manager, 3)).kind is AnswerKind.MISS
    store.close()


def test_a_load_into_a_full_pool_is_refused_whole() -> None:
    manager = make(stored(), slots=3)
    answer = manager.match(prompt_keys(manager, 4))
    assert answer.plan is not None
    with pytest.raises(Refused):
        manager.load(answer.plan)
    audited(manager)
    assert all(pool.free == 3 for pool in manager.core.pools.values())


def test_an_aborted_load_is_quarantined_until_it_stops() -> None:
    manager = make(stored())
    keys = prompt_keys(manager, 4)
    plan = manager.match(keys).plan
    assert plan is not None
    ticket = manager.load_begin(plan)
    ticket.abort()
    assert manager.audit().counts["compressed_kv"]["quarantined"] == 4
    audited(manager)
    ticket.done()
    assert manager.match(keys).now == 0
    assert all(pool.free == 32 for pool in manager.core.pools.values())
    with pytest.raises(Refused) as twice:
        ticket.done()
    assert twice.value.refusal is Reason.LEASE
    audited(manager)


def test_a_load_with_missing_layers_is_not_published() -> None:
    manager = make(stored())
    keys = prompt_keys(manager, 4)
    plan = manager.match(keys).plan
    assert plan is not None
    ticket = manager.load_begin(plan)
    assert ticket.use_layer(0) is Refusal.PENDING
    ticket.land("compressed_kv")
    with pytest.raises(Refused) as early:
        ticket.done()
    assert early.value.refusal is Refusal.INCOMPLETE
    assert manager.match(keys).now == 0
    ticket.done(False)
    audited(manager)


def test_a_load_of_an_ended_epoch_publishes_nothing() -> None:
    store = stored()
    manager = make(store)
    keys = prompt_keys(manager, 4)
    plan = manager.match(keys).plan
    assert plan is not None
    ticket = manager.load_begin(plan)
    manager.reset()
    ticket.done()
    assert ticket.state == "failed"
    assert manager.match(keys).kind is AnswerKind.MISS
    audited(manager)


def test_two_loads_of_the_same_prefix_leave_one_copy() -> None:
    manager = make(stored())
    keys = prompt_keys(manager, 4)
    plan = manager.match(keys).plan
    assert plan is not None
    ticket = manager.load_begin(plan)
    assert manager.load(plan).length == 4 * A
    for kind in ("compressed_kv", "indexer_state"):
        for _ in PROFILE.layouts[kind].layers:
            ticket.land(kind)
    ticket.done()
    assert manager.audit().counts["compressed_kv"]["resident"] == 4
    audited(manager)


def test_each_object_says_what_it_lacks_and_whether_the_store_was_asked() -> None:
    manager = make(Shelf())
    keys = prompt_keys(manager, 2)
    assert manager.match(keys).objects["ondisk_prefix"].verdict == "MISS"  # asked, and it had nothing
    fill = manager.reserve(keys, 0, 2)
    write(fill)
    manager.publish(fill)
    assert manager.match(keys).objects["ondisk_prefix"].verdict == "UNASKED"
    assert manager.match(keys, asks={"swa_window": "0" * 64}).objects["ondisk_prefix"].verdict == "UNASKED"

    manager.evict("swa_window", 1)
    answer = manager.match(keys)
    assert answer.kind is AnswerKind.HIT_PENDING
    words = {kind: said.verdict for kind, said in answer.objects.items()}
    assert words == {
        "compressed_kv": "HIT",  # all there; it waits for the window
        "uncompressed_tail": "HIT",
        "swa_window": "PENDING",
        "indexer_state": "HIT",
        "ondisk_prefix": "HIT",
    }
    assert make().match(keys).objects["ondisk_prefix"].verdict == "ABSENT"


@pytest.mark.parametrize("live", [False, True], ids=["fill", "live request"])
def test_what_follows_a_replay_is_approximate_for_ever(live: bool) -> None:
    """Windows that were computed again are right to rounding only, and so is whatever is computed from them."""
    manager = make(window=WindowPolicy.none())
    keys = prompt_keys(manager, 3)
    manager.publish(manager.reserve(keys, 0, 2))
    lease = manager.acquire(manager.match(keys))
    assert lease.replay is not None and not lease.exact
    if live:
        row = manager.requests.admit(3 * A, lease=lease)
        manager.requests.publish(row, keys)
        manager.requests.finish(row)
    else:
        manager.publish(manager.reserve(keys, 2, 3, lease=lease))
        manager.release(lease)
    kv = manager.core.pools["compressed_kv"].table
    resident = np.flatnonzero(kv.states(np.arange(32)) == kv.STATES.RESIDENT)
    assert sorted(kv.fields("lossy", resident).tolist()) == [0, 0, 1]
    assert manager.audit().ok
