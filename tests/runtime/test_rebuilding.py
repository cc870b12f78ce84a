"""Indexer keys that are missing, or of other entries, are computed again; what is found meanwhile is never wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvfsm.runtime import publication
from kvfsm.runtime.admission import Admission, Deferred
from kvfsm.runtime.answers import AnswerKind, Reason
from kvfsm.runtime.errors import Refused
from kvfsm.runtime.fill import Fill
from kvfsm.runtime.generated.models import PROFILES
from kvfsm.runtime.keys import Keys
from kvfsm.runtime.lease import Lease
from kvfsm.runtime.manager import Manager
from kvfsm.runtime.policy import WindowPolicy
from kvfsm.runtime.profile import Profile
from kvfsm.runtime.queues import Queue, queue_of

from .indexer_keys import (
    BOTH,
    KEYS,
    KV,
    V4,
    Events,
    audited,
    basis,
    behind,
    decoded,
    keys_read,
    make,
    mark,
    planned,
    prompt,
    put,
    states,
)
from .serving import Shelf


@BOTH
def test_keys_evicted_by_themselves_are_to_be_rebuilt(profile: Profile) -> None:
    manager, a = make(profile), profile.granule
    keys = prompt(manager, 5)
    put(manager, keys, 0, 5)
    assert manager.match(keys).rebuild is None
    manager.evict(KEYS, 2)
    answer = manager.match(keys)
    assert (answer.kind, answer.now, answer.rebuild) == (AnswerKind.HIT, 3 * a, range(3 * a, 5 * a))
    assert (answer.objects[KEYS].verdict, answer.objects[KEYS].length) == ("REBUILD", 3 * a)
    assert (answer.objects[KV].verdict, answer.objects[KV].length) == ("HIT", 5 * a)
    assert queue_of(answer) is Queue.INDEXER
    fill = manager.rebuild_begin(answer)
    audited(manager)
    assert (fill.kinds, fill.start, fill.stop, fill.places[KEYS].tolist()) == ((KEYS,), 3, 5, [3, 4])
    assert len(basis(fill).lease.slots[KV]) == 5 and len(basis(fill).lease.slots[KEYS]) == 3
    mark(manager, fill)
    manager.publish(fill)
    audited(manager)
    again = manager.match(keys)
    assert (again.kind, again.now, again.exact, again.rebuild) == (AnswerKind.HIT, 5 * a, True, None)
    assert keys_read(manager, again) == [1, 2, 3, 4, 5]
    assert not manager.receipts and not manager.leaks()


@BOTH
def test_without_any_keys_all_are_rebuilt(profile: Profile) -> None:
    manager, a = make(profile), profile.granule
    keys = prompt(manager, 3)
    put(manager, keys, 0, 3)
    manager.evict(KEYS, 3)
    answer = manager.match(keys)
    assert (answer.kind, answer.now, answer.rebuild) == (AnswerKind.MISS, 0, range(3 * a))
    manager.publish(manager.rebuild_begin(answer))
    assert manager.match(keys).now == 3 * a
    audited(manager)


def test_no_keys_are_rebuilt_behind_the_last_boundary_that_windows_allow() -> None:
    manager = make()
    keys = prompt(manager, 5)
    manager.publish(manager.reserve(keys, 0, 2))
    manager.publish(manager.reserve(keys, 2, 4))
    manager.publish(manager.reserve(keys, 4, 5, kinds=(KV, KEYS)))
    manager.evict(KEYS, 4)
    answer = manager.match(keys)
    assert (answer.now, answer.rebuild) == (0, range(V4.granule, 4 * V4.granule))
    manager.evict("swa_window", 16)
    assert manager.match(keys).rebuild is None
    manager.evict(KEYS, 1)
    audited(manager)


def test_what_a_store_brings_is_loaded_and_not_rebuilt() -> None:
    manager = make(store=Shelf())
    keys = prompt(manager, 4)
    put(manager, keys, 0, 4)
    manager.evict(KEYS, 2)
    answer = manager.match(keys)
    assert (answer.kind, answer.rebuild, answer.objects[KEYS].verdict) == (AnswerKind.HIT_PENDING, None, "PENDING")
    assert queue_of(answer) is Queue.DISK
    assert manager.load(planned(answer)).now == 4 * V4.granule
    audited(manager)


def test_rebuilt_keys_are_stored() -> None:
    store = Shelf()
    manager = make(store=store)
    keys = prompt(manager, 4)
    put(manager, keys, 0, 4)
    names = manager.object_of(keys.digests, keys.salt, KEYS, np.arange(4))
    for name in names[2:]:
        del store.objects[name]
    manager.evict(KEYS, 2)
    fill = manager.rebuild_begin(manager.match(keys))
    mark(manager, fill)
    manager.publish(fill)
    assert store.contains(names).all()
    audited(manager)


def test_entries_made_anew_leave_their_keys_behind() -> None:
    """S16: keys of another version are found by nobody, and rebuilt where they lie."""
    events = Events()
    manager, a = make(on_event=events), V4.granule
    keys = prompt(manager, 4)
    behind(manager, keys, 4)
    assert states(manager) == {"stale": 4} and events.seen["fall_behind"] == 4
    answer = manager.match(keys)
    assert answer.now == 0 and answer.objects[KEYS].verdict == "REBUILD"
    free = manager.core.pools[KEYS].free
    fill = manager.rebuild_begin(answer)
    assert manager.core.pools[KEYS].free == free  # in place
    assert states(manager) == {"rebuilding": fill.stop}
    audited(manager)
    mark(manager, fill)
    manager.publish(fill)
    audited(manager)
    assert events.seen["rebuild_begin"] == events.seen["rebuild_done"] == 4
    again = manager.match(keys)
    assert again.now == 4 * a and keys_read(manager, again) == [1, 2, 3, 4]
    pools = manager.core.pools
    assert set(pools[KEYS].table.fields("version")[pools[KEYS].in_state(np.arange(16), "resident")]) == {1}


def test_a_fill_that_brings_keys_too_leaves_none_behind() -> None:
    manager = make()
    keys = prompt(manager, 4)
    behind(manager, keys, 4)
    put(manager, keys, 0, 4)
    assert states(manager) == {"resident": 4} and manager.match(keys).now == 4 * V4.granule
    audited(manager)


def test_rows_publish_over_stale_keys() -> None:
    manager = make()
    keys = prompt(manager, 4)
    behind(manager, keys, 3)
    row = manager.requests.admit(4 * V4.granule)
    manager.requests.publish(row, keys)
    audited(manager)
    assert manager.match(keys).now == 4 * V4.granule
    manager.requests.finish(row)
    audited(manager)


def test_a_store_brings_keys_in_the_place_of_stale_ones() -> None:
    store = Shelf()
    manager = make(store=store)
    keys = prompt(manager, 3)
    put(manager, keys, 0, 3)
    manager.evict(KV, 3), manager.evict(KEYS, 3), manager.evict("swa_window", 3), manager.evict("uncompressed_tail", 3)
    store.objects, kept = {}, store.objects
    behind(manager, keys, 3)
    store.objects = kept
    answer = manager.match(keys)
    assert answer.kind is AnswerKind.HIT_PENDING and planned(answer).wanted[KEYS].tolist() == [0, 1, 2]
    assert manager.load(planned(answer)).now == 3 * V4.granule
    assert states(manager) == {"resident": 3}
    audited(manager)


def test_stale_keys_are_not_persisted_and_go_before_older_ones() -> None:
    store = Shelf()
    manager = make(store=store, writes="none")
    keys, other = prompt(manager, 3), prompt(manager, 3, seed=2)
    put(manager, other, 0, 3)
    decoded(manager, keys, 3)
    assert manager.evict(KV, 6) == 6
    for chain in (keys, other):
        manager.publish(manager.reserve(chain, 0, 3, kinds=(KV,)))
    assert states(manager) == {"resident": 3, "stale": 3}
    manager.persist(keys)
    assert store.contains(manager.object_of(keys.digests, keys.salt, KV, np.arange(3))).all()
    assert not store.contains(manager.object_of(keys.digests, keys.salt, KEYS, np.arange(3))).any()
    manager.evict(KEYS, 3)
    assert states(manager) == {"resident": 3} and manager.match(other).now == 3 * V4.granule
    audited(manager)


def test_giving_up_in_place_loses_the_keys_and_nothing_else() -> None:
    events, ended = Events(), [False]
    manager = make(on_event=events)
    keys = prompt(manager, 4)
    behind(manager, keys, 4)
    fill = manager.rebuild_begin(manager.match(keys))
    manager.abandon(fill, done=lambda: ended[0])
    audited(manager)
    assert states(manager) == {"rebuilding": 4} and manager.match(keys).rebuild == range(4 * V4.granule)
    ended[0] = True
    manager.evict(KEYS, 0)
    audited(manager)
    assert not states(manager) and events.seen["discard"] == 4
    assert states(manager, KV) == {"resident": 4} and not manager.leaks()
    manager.publish(manager.rebuild_begin(manager.match(keys)))
    assert manager.match(keys).now == 4 * V4.granule
    audited(manager)


def test_giving_up_new_slots_changes_nothing() -> None:
    manager = make()
    keys = prompt(manager, 4)
    put(manager, keys, 0, 4)
    manager.evict(KEYS, 2)
    before, words = manager.match(keys), manager.core.pools[KEYS].table.fields("pins").copy()
    manager.abandon(manager.rebuild_begin(before))
    after = manager.match(keys)
    assert (after.now, after.rebuild, states(manager)) == (before.now, before.rebuild, {"resident": 2})
    assert np.array_equal(manager.core.pools[KEYS].table.fields("pins"), words)
    audited(manager)


def test_keys_that_a_transfer_reads_are_rebuilt_elsewhere() -> None:
    """Stale keys that somebody still reads are not written to."""
    manager = make()
    keys = prompt(manager, 3)
    decoded(manager, keys, 3)
    pool = manager.core.pools[KEYS]
    read = pool.in_state(np.arange(16), "resident").nonzero()[0][1:2]
    held = manager.storer.hold({KEYS: (read, read)})
    manager.evict(KV, 3)
    manager.publish(manager.reserve(keys, 0, 3, kinds=(KV,)))
    fill = manager.rebuild_begin(manager.match(keys))
    assert states(manager) == {"stale": 1, "rebuilding": 2, "filling": 1}
    audited(manager)
    manager.publish(fill)
    audited(manager)
    assert manager.match(keys).now == 3 * V4.granule and states(manager) == {"expired": 1, "resident": 3}
    spot = manager.core.index.locate(keys.digests, 3)
    manager.storer.unhold(held, spot.segment, spot.at)
    assert states(manager) == {"resident": 3}


def test_without_room_nothing_is_taken() -> None:
    manager = make(slots=6)
    keys = prompt(manager, 4)
    put(manager, keys, 0, 4)
    manager.evict(KEYS, 2)
    answer = manager.match(keys)
    blocked = manager.reserve(prompt(manager, 3, seed=2), 0, 3, kinds=(KEYS,))
    before = manager.core.pools[KV].table.words.copy(), manager.core.pools[KEYS].table.words.copy()
    with pytest.raises(Refused, match="POOL_FULL"):
        manager.rebuild_begin(answer)
    after = manager.core.pools[KV].table.words, manager.core.pools[KEYS].table.words
    assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True))
    audited(manager)
    manager.abandon(blocked)
    manager.publish(manager.rebuild_begin(answer))
    assert manager.match(keys).now == 4 * V4.granule


@pytest.mark.parametrize("device_has_ended", [True, False])
def test_what_the_device_has_ended_is_news_where_a_rebuild_is_put_off(device_has_ended: bool) -> None:
    manager = make(slots=6)
    admission, told = Admission(manager), []
    keys = prompt(manager, 4)
    put(manager, keys, 0, 4)
    manager.evict(KEYS, 2)
    answer = manager.match(keys)
    manager.reserve(prompt(manager, 3, seed=2), 0, 3, kinds=(KEYS,))
    ended = [False]
    manager.release(manager.acquire(answer), done=lambda: ended[0])
    manager.watch_room(lambda: told.append(None))
    ended[0] = device_has_ended
    decision = admission.rebuild(answer, keys.tokens)
    assert isinstance(decision, Deferred) and decision.reason is Reason.POOL_FULL
    assert len(told) == int(device_has_ended)
    audited(manager)


def test_room_is_made_of_stale_keys_at_the_chain_s_end() -> None:
    """Keys that were to be rebuilt in place may have to go for the others; then they have new slots, too."""
    manager = make(slots=4)
    keys = prompt(manager, 4)
    behind(manager, keys, 3)
    manager.evict("swa_window", 4), manager.evict("uncompressed_tail", 4)
    manager.publish(manager.reserve(keys, 3, 4, kinds=(KV, "swa_window", "uncompressed_tail")))
    other = prompt(manager, 1, seed=2)
    fill = manager.reserve(other, 0, 1, kinds=(KEYS,))
    answer = manager.match(keys)
    assert answer.rebuild == range(4 * V4.granule) and manager.core.pools[KEYS].free == 0
    with pytest.raises(Refused, match="POOL_FULL"):
        manager.rebuild_begin(answer)
    assert states(manager) == {"stale": 3, "filling": 1}
    manager.publish(fill)
    rebuilt = manager.rebuild_begin(answer)
    assert states(manager) == {"filling": 4}
    audited(manager)
    manager.publish(rebuilt)
    assert manager.match(keys).now == 4 * V4.granule
    audited(manager)


def test_entries_that_are_rebuilt_from_are_not_evicted() -> None:
    manager = make()
    keys = prompt(manager, 4)
    put(manager, keys, 0, 4)
    manager.evict(KEYS, 4)
    fill = manager.rebuild_begin(manager.match(keys))
    assert manager.evict(KV, 4) == 0
    manager.publish(fill)
    assert manager.evict(KV, 4) == 4
    audited(manager)


def made_anew(manager: Manager, keys: Keys) -> None:
    manager.evict(KV, 4)
    put(manager, keys, 0, 4)


LOST: dict[str, Callable[[Manager, Keys], object]] = {
    "evicted": lambda manager, keys: manager.evict(KV, 1),
    "expired": lambda manager, keys: manager.expire(keys, 2),
    "made anew": made_anew,
}


@pytest.mark.parametrize("lost", ["expired"])
def test_keys_of_entries_that_are_gone_are_published_to_nobody(lost: str) -> None:
    manager = make()
    keys = prompt(manager, 4)
    behind(manager, keys, 4)
    fill = manager.rebuild_begin(manager.match(keys))
    LOST[lost](manager, keys)
    audited(manager)
    with pytest.raises(Refused, match="STALE"):
        manager.publish(fill)
    audited(manager)
    manager.abandon(fill)
    audited(manager)
    assert manager.match(keys).now == 0 and not manager.leaks()


@pytest.mark.parametrize("lost", LOST)
def test_a_match_whose_entries_are_gone_begins_nothing(lost: str) -> None:
    manager = make()
    keys = prompt(manager, 4)
    put(manager, keys, 0, 4)
    manager.evict(KEYS, 2)
    answer = manager.match(keys)
    LOST[lost](manager, keys)
    with pytest.raises(Refused, match="STALE"):
        manager.rebuild_begin(answer)
    audited(manager)
    assert not manager.fills and not manager.receipts


def test_of_two_who_rebuild_the_same_the_first_is_kept() -> None:
    manager = make()
    keys = prompt(manager, 4)
    behind(manager, keys, 4)
    answer = manager.match(keys)
    one, two = manager.rebuild_begin(answer), manager.rebuild_begin(answer)
    assert states(manager) == {"rebuilding": 4, "filling": 4}
    audited(manager)
    mark(manager, two, by=100)
    manager.publish(two)
    audited(manager)
    mark(manager, one)
    manager.publish(one)
    audited(manager)
    assert states(manager) == {"resident": 4} and keys_read(manager, manager.match(keys)) == [101, 102, 103, 104]


def test_a_load_that_ends_during_a_rebuilding_is_kept() -> None:
    manager = make()
    keys = prompt(manager, 4)
    behind(manager, keys, 4)
    fill = manager.rebuild_begin(manager.match(keys))
    put(manager, keys, 0, 2)
    audited(manager)
    assert manager.match(keys).now == 2 * V4.granule
    manager.publish(fill)
    audited(manager)
    assert manager.match(keys).now == 4 * V4.granule and states(manager) == {"resident": 4}


def test_branches_read_on_when_what_they_share_is_rebuilt() -> None:
    manager = make(slots=24)
    one, two = prompt(manager, 4, 1, shared=2), prompt(manager, 4, 2, shared=2)
    decoded(manager, one, 4)
    put(manager, two, 2, 4)
    assert manager.match(two).now == 4 * V4.granule
    manager.evict(KV, 8)
    for keys in (one, two):
        manager.publish(manager.reserve(keys, 0, 4, kinds=(KV,)))
    audited(manager)
    assert states(manager) == {"stale": 4, "resident": 2}
    assert manager.match(one).now == manager.match(two).now == 0
    manager.publish(manager.rebuild_begin(manager.match(one)))
    audited(manager)
    assert manager.match(one).now == manager.match(two).now == 4 * V4.granule


def test_good_keys_between_stale_ones_stay() -> None:
    manager = make()
    keys = prompt(manager, 5)
    behind(manager, keys, 5)
    for granule in (1, 3):
        put(manager, keys, granule, granule + 1)
    assert states(manager) == {"stale": 3, "resident": 2}
    fill = manager.rebuild_begin(manager.match(keys))
    assert fill.places[KEYS].tolist() == [0, 2, 4]
    manager.evict(KEYS, 9)
    mark(manager, fill)
    manager.publish(fill)
    audited(manager)
    assert keys_read(manager, manager.match(keys)) == [1, 2, 3, 4, 5]


def test_keys_of_lossy_entries_are_lossy() -> None:
    store = Shelf()
    manager = make(store=store, cold=8, writes="none")
    keys = prompt(manager, 4)
    put(manager, keys, 0, 4)
    manager.pack(keys, 2, lossy=True)
    manager.expand(keys)
    manager.evict(KEYS, 4)
    fill = manager.rebuild_begin(manager.match(keys))
    assert basis(fill).lossy.tolist() == [False, False, True, True]
    manager.publish(fill)
    audited(manager)
    assert manager.match(keys, at_most=2 * V4.granule).exact and not manager.match(keys).exact
    manager.persist(keys)
    names = manager.object_of(keys.digests, keys.salt, KEYS, np.arange(4))
    assert store.contains(names).tolist() == [True, True, False, False]


def test_packed_copies_of_the_same_version_keep_their_keys() -> None:
    manager = make(cold=8)
    keys = prompt(manager, 4)
    decoded(manager, keys, 4)
    manager.pack(keys)
    assert manager.expand(keys).now == 4 * V4.granule
    assert states(manager) == {"resident": 4}
    audited(manager)


def test_keys_computed_on_a_replay_are_lossy() -> None:
    manager = make(window=WindowPolicy.none())
    keys = prompt(manager, 4)
    put(manager, keys, 0, 4)
    manager.evict(KEYS, 2)
    answer = manager.match(keys)
    assert answer.replay is not None and answer.rebuild is not None
    fill = manager.rebuild_begin(answer)
    assert fill.lossy and basis(fill).lossy.all() and not basis(fill).lease.exact
    manager.publish(fill)
    audited(manager)


def test_a_reset_ends_a_rebuilding() -> None:
    manager = make()
    keys = prompt(manager, 4)
    behind(manager, keys, 4)
    fill = manager.rebuild_begin(manager.match(keys))
    manager.reset()
    audited(manager)
    with pytest.raises(Refused, match="EPOCH"):
        manager.publish(fill)
    manager.abandon(fill)
    audited(manager)
    assert not states(manager) and not states(manager, KV)


@pytest.mark.parametrize("slots", [None, dict.fromkeys(V4.kinds, 8)])
def test_memory_that_moves_takes_a_rebuilding_with_it(slots: dict[str, int] | None) -> None:
    manager = make()
    keys = prompt(manager, 4)
    behind(manager, keys, 4)
    fill = manager.rebuild_begin(manager.match(keys))
    with pytest.raises(Refused, match="PINNED"):
        manager.reallocate(slots)
    manager.reallocate(slots, void=True)
    audited(manager)
    assert not states(manager)
    with pytest.raises(Refused, match="STALE"):
        manager.publish(fill)


def test_an_answer_that_names_nothing_begins_nothing() -> None:
    manager = make()
    keys = prompt(manager, 3)
    put(manager, keys, 0, 3)
    with pytest.raises(Refused, match="no indexer keys"):
        manager.rebuild_begin(manager.match(keys))
    for profile in (PROFILES["tiny_llama"], PROFILES["tiny_gemma3"]):
        other = make(profile)
        tokens = prompt(other, 3)
        put(other, tokens, 0, 3)
        assert other.match(tokens).rebuild is None


def test_a_lease_that_is_given_back_early_protects_nothing() -> None:
    manager = make()
    keys = prompt(manager, 4)
    put(manager, keys, 0, 4)
    manager.evict(KEYS, 2)
    fill = manager.rebuild_begin(manager.match(keys))
    manager.release(basis(fill).lease)
    manager.evict(KV, 1)
    with pytest.raises(Refused, match="STALE"):
        manager.publish(fill)
    manager.abandon(fill)
    audited(manager)


# ---- at use ---------------------------------------------------------------------------------------------------------


def of_one_version(manager: Manager, lease: Lease) -> bool:
    """S16: all keys of a lease can be used with its entries, layer by layer."""
    pool, entries = manager.core.pools[KEYS], manager.core.pools[KV]
    slots, generations = lease.slots[KEYS], pool.generations(lease.slots[KEYS])
    versions = entries.table.fields("version", lease.slots[KV])
    given = [pool.rules.use_layer(n, versions) for n in range(len(manager.profile.layouts[KEYS].layers))]
    return not any(pool.fire("use_layer", slots, expected=generations, **one) for one in given)


def walk(manager: Manager, seed: int, steps: int) -> None:
    """Random acts on three chains that share a beginning; whatever a match finds is of one version."""
    chance = np.random.default_rng(seed)
    chains = [prompt(manager, 4, 1, shared=2), prompt(manager, 4, 2, shared=2), prompt(manager, 3, 3)]
    fills: list[Fill] = []
    for _ in range(steps):
        keys = chains[chance.integers(3)]
        try:
            match chance.integers(12):
                case 0:
                    decoded(manager, keys, 3)
                case 1:
                    put(manager, keys, 0, 2)
                case 2:
                    manager.evict(KV, int(chance.integers(1, 9)))
                case 3:
                    manager.evict(KEYS, int(chance.integers(1, 6)))
                case 4:
                    manager.evict(KV, 20)
                    manager.publish(manager.reserve(keys, 0, 3, kinds=(KV,)))
                case 5 | 6 | 10:
                    fills.append(manager.rebuild_begin(manager.match(keys)))
                case 7 | 8 if fills:
                    manager.publish(fills[0])
                    fills.pop(0)
                case 9 if fills:
                    manager.abandon(fills.pop())
                case 11:
                    manager.expire(keys, 2)
        except Refused as refused:
            if refused.refusal.name == "STALE" and refused.layer == "publish":
                manager.abandon(fills.pop(0))
        audited(manager)
        for one in chains:
            if (answer := manager.match(one)).now:
                with manager.acquire(answer) as lease:
                    assert of_one_version(manager, lease), f"seed {seed}"
    for fill in fills:
        manager.abandon(fill)
    audited(manager)
    assert not manager.leaks()


def test_whatever_is_found_is_of_one_version() -> None:
    events = Events()
    for seed in range(12):
        walk(make(slots=20, on_event=events), seed, 60)
    assert events.seen.keys() >= {"fall_behind", "rebuild_begin", "rebuild_done"}


def test_keys_that_did_not_fall_behind_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above tells keys of another version from good ones."""
    monkeypatch.setattr(publication, "_fall_behind", lambda *_: None)
    manager = make()
    keys = prompt(manager, 3)
    behind(manager, keys, 3)
    answer = manager.match(keys)
    assert answer.now == 3 * V4.granule
    with pytest.raises(Refused, match="VERSION"):
        manager.acquire(answer)
    pool, entries = manager.core.pools[KEYS], manager.core.pools[KV]
    spot = manager.core.index.locate(keys.digests, 3)
    slots = {kind: manager.core.slots_at(kind, spot, 3) for kind in (KV, KEYS)}
    assert not of_one_version(manager, Lease(manager, 0, "", 0, True, None, slots))
    assert (pool.table.fields("version", slots[KEYS]) != entries.table.fields("version", slots[KV])).all()
